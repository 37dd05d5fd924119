//! Checks the arguments of one-sided operations, signals, atomics and waits, and converts each call
//! to an [`Op`].

use super::{Prepared, argument, overlap, rank, region, separate, team};
use crate::Result;
use crate::arguments::signal::SignalUpdate;
use crate::arguments::span::{Owner, Span};
use crate::arguments::symmetric::Remote;
use crate::backend::{
    Atomic, AtomicKind, Direction, Get, GetElement, Op, Put, PutElement, Strided, Until, WaitMode, WaitUntil, WaitValues,
};
use crate::bounds::{self, length, positive, wrong_length, wrong_range};
use crate::check::rotation;
use crate::world::team::Team;
use peerweave_types::{Compare, Pe, Rank, Strides};

/// Checks the team `of`, the memory `local` of this PE, the memory `remote` of the target, and the
/// rank `target`. If the target is this PE, also checks that the two memory ranges do not overlap.
/// Returns the target PE.
#[inline(always)]
fn sides(
    call: &'static str,
    of: &Team,
    names: &'static [&'static str; 2],
    local: &Span<'_>,
    remote: &Remote<'_>,
    target: Rank,
) -> Result<Pe> {
    team(call, of)?;
    let shared = &of.inner.shared;
    argument(call, shared, names[0], local)?;
    region(call, shared, names[1], remote.region)?;
    let pe = rank(call, of, "rank", target)?;
    if pe == shared.my_pe {
        separate(call, names, local, &remote.here())?;
    }
    Ok(pe)
}

/// Checks the team `of`, the memory `buffer` and the rank `target`. Returns the PE that has this
/// rank.
pub(crate) fn peer_of(call: &'static str, of: &Team, buffer: Remote<'_>, target: Rank) -> Result<Pe> {
    team(call, of)?;
    region(call, &of.inner.shared, "buffer", buffer.region)?;
    rank(call, of, "rank", target)
}

#[inline(always)]
pub(crate) fn put<'a>(
    call: &'static str,
    of: &Team,
    source: Span<'a>,
    dest: Remote<'a>,
    update: Option<SignalUpdate<'a>>,
    nbi: bool,
    target: Rank,
) -> Result<Prepared<'a>> {
    let pe = sides(call, of, &["source", "dest"], &source, &dest, target)?;
    length(call, "source", source.len, dest.len)?;
    let mut owners = [source.owner, Owner::Region(dest.region), Owner::Caller];
    let mut signal = None;
    if let Some(update) = update {
        region(call, &of.inner.shared, "signal", update.signal.region())?;
        let word = update.signal.span();
        if dest.here().overlaps(&word) {
            return Err(overlap(call, &["dest", "signal"], "use a signal word outside of `dest`"));
        }
        owners[2] = word.owner;
        signal = Some((update.signal.offset(), update.value, update.op));
    }
    let put = Put {
        pe,
        target: dest.at,
        source: source.place,
        bytes: source.bytes(),
        element_bytes: dest.element_bytes(),
        signal,
        nbi,
    };
    Ok(Prepared::new(Op::Put(put), owners))
}

#[inline(always)]
pub(crate) fn get<'a>(
    call: &'static str,
    of: &Team,
    source: Remote<'a>,
    dest: Span<'a>,
    nbi: bool,
    target: Rank,
) -> Result<Prepared<'a>> {
    let pe = sides(call, of, &["dest", "source"], &dest, &source, target)?;
    length(call, "dest", dest.len, source.len)?;
    let get = Get { pe, source: source.at, target: dest.place, bytes: dest.bytes(), element_bytes: source.element_bytes(), nbi };
    Ok(Prepared::new(Op::Get(get), [dest.owner, Owner::Region(source.region), Owner::Caller]))
}

/// Checks a strided put ([`Direction::Send`]) or get ([`Direction::Receive`]), and returns the
/// operation.
pub(crate) fn strided<'a>(
    call: &'static str,
    of: &Team,
    direction: Direction,
    local: Span<'a>,
    remote: Remote<'a>,
    strides: Strides,
    target: Rank,
) -> Result<Prepared<'a>> {
    let (names, local_stride, remote_stride) = match direction {
        Direction::Send => (&["source", "dest"], strides.source, strides.dest),
        Direction::Receive => (&["dest", "source"], strides.dest, strides.source),
    };
    positive(call, "strides.source", strides.source)?;
    positive(call, "strides.dest", strides.dest)?;
    reach(call, names[0], local.len, local_stride, strides.count)?;
    reach(call, names[1], remote.len, remote_stride, strides.count)?;
    let pe = sides(call, of, names, &local, &remote, target)?;
    // The stride of fewer than two elements has no meaning, and may be any number.
    let (local_stride, remote_stride) = if strides.count > 1 { (local_stride, remote_stride) } else { (1, 1) };
    let op = Strided {
        direction,
        pe,
        remote: remote.at,
        remote_stride,
        local: local.place,
        local_stride,
        element_bytes: remote.element_bytes(),
        count: strides.count,
    };
    Ok(Prepared::new(Op::Strided(op), [local.owner, Owner::Region(remote.region), Owner::Caller]))
}

/// Checks that `count` strided elements, starting at element 0, lie within a buffer of `len`
/// elements.
pub(super) fn reach(call: &'static str, name: &'static str, len: usize, stride: usize, count: usize) -> Result<()> {
    let Some(last) = count.checked_sub(1) else { return Ok(()) };
    let end = last.saturating_mul(stride).saturating_add(1);
    if end <= len { Ok(()) } else { Err(wrong_range(call, name, 0, end, len)) }
}

#[inline(always)]
pub(crate) fn signal<'a>(call: &'static str, of: &Team, update: SignalUpdate<'a>, target: Rank) -> Result<Prepared<'a>> {
    team(call, of)?;
    region(call, &of.inner.shared, "signal", update.signal.region())?;
    let pe = rank(call, of, "rank", target)?;
    let op = crate::backend::Signal { pe, at: update.signal.offset(), value: update.value, op: update.op };
    Ok(Prepared::new(Op::Signal(op), [update.signal.span().owner, Owner::Caller, Owner::Caller]))
}

/// Returns element `index` of `remote`. Fails if the index is too large.
#[inline(always)]
fn element<'a>(call: &'static str, remote: Remote<'a>, index: usize) -> Result<Remote<'a>> {
    bounds::index(call, "index", index, remote.len)?;
    Ok(Remote { at: remote.at.plus((index * remote.element_bytes()) as u64), len: 1, ..remote })
}

/// Checks the team `of`, the memory `remote`, the index and the rank `target`. Returns the PE with
/// the rank `target`, and the element of `remote` at the index.
#[inline(always)]
fn remote_element<'a>(
    call: &'static str,
    of: &Team,
    name: &'static str,
    remote: Remote<'a>,
    index: usize,
    target: Rank,
) -> Result<(Pe, Remote<'a>)> {
    team(call, of)?;
    region(call, &of.inner.shared, name, remote.region)?;
    let remote = element(call, remote, index)?;
    Ok((rank(call, of, "rank", target)?, remote))
}

#[inline(always)]
pub(crate) fn put_element<'a>(
    call: &'static str,
    of: &Team,
    dest: Remote<'a>,
    index: usize,
    bits: u64,
    target: Rank,
) -> Result<Prepared<'a>> {
    let (pe, dest) = remote_element(call, of, "dest", dest, index, target)?;
    let op = PutElement { pe, target: dest.at, bits, element_bytes: dest.element_bytes() };
    Ok(Prepared::new(Op::PutElement(op), [Owner::Region(dest.region), Owner::Caller, Owner::Caller]))
}

/// Like [`put_element`], but for elements whose size is not 1, 2, 4 or 8 bytes. The operation reads
/// the value from `source`.
pub(crate) fn put_value<'a>(
    call: &'static str,
    of: &Team,
    source: Span<'a>,
    dest: Remote<'a>,
    index: usize,
    target: Rank,
) -> Result<Prepared<'a>> {
    let (_, dest) = remote_element(call, of, "dest", dest, index, target)?;
    put(call, of, source, dest, None, false, target)
}

/// Like [`get_element`], but for elements whose size is not 1, 2, 4 or 8 bytes. The operation
/// writes the value to `dest`.
pub(crate) fn get_value<'a>(
    call: &'static str,
    of: &Team,
    source: Remote<'a>,
    index: usize,
    dest: Span<'a>,
    target: Rank,
) -> Result<Prepared<'a>> {
    let (_, source) = remote_element(call, of, "source", source, index, target)?;
    get(call, of, source, dest, false, target)
}

#[inline(always)]
pub(crate) fn get_element<'a>(
    call: &'static str,
    of: &Team,
    source: Remote<'a>,
    index: usize,
    target: Rank,
) -> Result<Prepared<'a>> {
    let (pe, source) = remote_element(call, of, "source", source, index, target)?;
    let op = GetElement { pe, source: source.at, element_bytes: source.element_bytes() };
    Ok(Prepared::new(Op::GetElement(op), [Owner::Region(source.region), Owner::Caller, Owner::Caller]))
}

/// The words of a wait or test, and the condition on these words.
pub(crate) struct Awaited<'a> {
    /// The name of the parameter that contains the words, for error messages.
    pub(crate) name: &'static str,
    pub(crate) words: Remote<'a>,
    pub(crate) exclude: Option<&'a [bool]>,
    pub(crate) compare: Compare,
    pub(crate) values: WaitValues,
    pub(crate) until: Until,
}

#[inline(always)]
pub(crate) fn wait<'a>(call: &'static str, of: &Team, awaited: Awaited<'a>, mode: WaitMode) -> Result<Prepared<'a>> {
    let Awaited { name, words, exclude, compare, values, until } = awaited;
    team(call, of)?;
    region(call, &of.inner.shared, name, words.region)?;
    let exclude = match exclude {
        Some(exclude) if exclude.len() != words.len => {
            return Err(wrong_length(call, "exclude", exclude.len(), words.len));
        }
        exclude => exclude.map(Into::into),
    };
    if let WaitValues::Each(values) = &values {
        length(call, "values", values.len(), words.len)?;
    }
    let start = if until == Until::Any { rotation::start(words.len) } else { 0 };
    let op = WaitUntil { at: words.at, count: words.len, dtype: words.dtype, exclude, compare, values, until, start, mode };
    Ok(Prepared::new(Op::Wait(op), [Owner::Region(words.region), Owner::Caller, Owner::Caller]))
}

/// Checks a wait for one word, or a test of one word, and returns the operation. The word is
/// element `index` of `words`. `name` is the name of the parameter for errors.
#[inline(always)]
pub(crate) fn wait_for_one<'a>(
    call: &'static str,
    of: &Team,
    (name, words, index): (&'static str, Remote<'a>, usize),
    (compare, value): (Compare, u64),
    mode: WaitMode,
) -> Result<Prepared<'a>> {
    team(call, of)?;
    region(call, &of.inner.shared, name, words.region)?;
    let Remote { at, dtype, region, .. } = element(call, words, index)?;
    let (until, values) = (Until::All, WaitValues::Same(value));
    let op = WaitUntil { at, count: 1, dtype, exclude: None, compare, values, until, start: 0, mode };
    Ok(Prepared::new(Op::Wait(op), [Owner::Region(region), Owner::Caller, Owner::Caller]))
}

#[inline(always)]
pub(crate) fn atomic<'a>(
    call: &'static str,
    of: &Team,
    dest: Remote<'a>,
    index: usize,
    kind: AtomicKind,
    operands: [u64; 2],
    target: Rank,
) -> Result<Prepared<'a>> {
    let (pe, Remote { at, .. }) = remote_element(call, of, "dest", dest, index, target)?;
    let op = Atomic { pe, at, dtype: dest.dtype, kind, operand: operands[0], compare: operands[1] };
    Ok(Prepared::new(Op::Atomic(op), [Owner::Region(dest.region), Owner::Caller, Owner::Caller]))
}
