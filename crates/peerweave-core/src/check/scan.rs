//! Checks the arguments of scans, of reductions with the caller's function, and of strided
//! all-to-alls.

use super::collective::{CollectiveExtras, collective, pair, reduction, result_at_root, single};
use super::one_sided::reach;
use super::{Prepared, argument, rank, team, times_ranks};
use crate::arguments::reduction::ErasedReduction;
use crate::arguments::span::Span;
use crate::backend::{CollectiveKind, Special};
use crate::bounds::{length, positive, wrong_value};
use crate::shared::Shared;
use crate::world::team::Team;
use crate::{Error, Result};
use peerweave_types::{DType, Rank, ReduceOp, Strides};
use std::sync::Arc;

/// Checks that a scan with this reduction is defined for the element type. For a premultiplied sum
/// ([`ReduceOp::PreMulSum`]), returns the scalar as bits. For other reductions, returns
/// [`ErasedReduction::NO_SCALAR`].
fn scannable(call: &'static str, op: ErasedReduction, dtype: DType) -> Result<u64> {
    if op.op == ReduceOp::Avg {
        return Err(wrong_value(call, "op", op.op, "a reduction other than avg: for averages, use `Sum` and divide the result"));
    }
    reduction(call, op, dtype)
}

pub(crate) fn scan<'a>(
    call: &'static str,
    of: &Team,
    kind: CollectiveKind,
    send: Span<'a>,
    recv: Span<'a>,
    op: ErasedReduction,
) -> Result<Prepared<'a>> {
    pair(call, of, &send, &recv)?;
    length(call, "recv", recv.len, send.len)?;
    let extras = CollectiveExtras::reduction(op.op, scannable(call, op, send.dtype)?);
    Ok(collective(kind, of, send.dtype, send.len, Some(&send), Some(&recv), extras))
}

pub(crate) fn scan_in_place<'a>(
    call: &'static str,
    of: &Team,
    kind: CollectiveKind,
    buffer: Span<'a>,
    op: ErasedReduction,
) -> Result<Prepared<'a>> {
    single(call, of, &buffer)?;
    let extras = CollectiveExtras::reduction(op.op, scannable(call, op, buffer.dtype)?);
    Ok(collective(kind, of, buffer.dtype, buffer.len, Some(&buffer), Some(&buffer), extras))
}

/// Checks that an element has at most 512 bytes. The limit exists because backends buffer at least
/// one element of each rank.
fn element(call: &'static str, bytes: usize) -> Result<()> {
    const MOST: usize = 512;
    if bytes <= MOST {
        return Ok(());
    }
    Err(wrong_value(call, "the element type", format_args!("a type of {bytes} bytes"), "a type of at most 512 bytes"))
}

/// Checks that the backend supports reductions by a function of the caller. Returns the parameters
/// of the operation, which contain the function.
fn function(call: &'static str, shared: &Shared, function: Arc<Special>) -> Result<CollectiveExtras> {
    element(call, function.element_bytes())?;
    if !shared.backend.caps().reduce_functions {
        let why = "the backend cannot call functions on the host: use a `ReduceOp`, or gather the elements and combine them";
        return Err(Error::Unsupported { call, backend: shared.backend.name(), why });
    }
    Ok(CollectiveExtras { special: Some(function), ..CollectiveExtras::NONE })
}

/// Checks the arguments of an all-reduce or scan that uses the caller's function. Returns the
/// operation. Every rank passes `recv`.
pub(crate) fn by_function<'a>(
    call: &'static str,
    of: &Team,
    kind: CollectiveKind,
    send: Span<'a>,
    recv: Span<'a>,
    by: Arc<Special>,
) -> Result<Prepared<'a>> {
    pair(call, of, &send, &recv)?;
    length(call, "recv", recv.len, send.len)?;
    let extras = function(call, &of.inner.shared, by)?;
    Ok(collective(kind, of, send.dtype, send.len, Some(&send), Some(&recv), extras))
}

/// Checks the arguments of a reduce that uses the caller's function. Returns the operation. Only
/// the root uses `recv`.
pub(crate) fn reduce_with<'a>(
    call: &'static str,
    of: &Team,
    send: Span<'a>,
    recv: Option<Span<'a>>,
    by: Arc<Special>,
    root: Rank,
) -> Result<Prepared<'a>> {
    team(call, of)?;
    argument(call, &of.inner.shared, "send", &send)?;
    rank(call, of, "root", root)?;
    let recv = result_at_root(call, of, root, &send, recv)?;
    let extras = CollectiveExtras { root, ..function(call, &of.inner.shared, by)? };
    Ok(collective(CollectiveKind::Reduce, of, send.dtype, send.len, Some(&send), recv.as_ref(), extras))
}

/// Checks a strided all-to-all, in which each rank sends `strides.count` elements to each rank.
/// Returns the operation.
pub(crate) fn all_to_all_strided<'a>(
    call: &'static str,
    of: &Team,
    send: Span<'a>,
    recv: Span<'a>,
    strides: Strides,
) -> Result<Prepared<'a>> {
    pair(call, of, &send, &recv)?;
    let elements = times_ranks(of, strides.count);
    for (name, argument, stride, len) in
        [("strides.source", "send", strides.source, send.len), ("strides.dest", "recv", strides.dest, recv.len)]
    {
        positive(call, name, stride)?;
        reach(call, argument, len, stride, elements)?;
    }
    let element_bytes = send.parts * send.dtype.size_bytes();
    element(call, element_bytes)?;
    let special = Special::Strides { distances: [strides.source, strides.dest], element_bytes };
    let extras = CollectiveExtras { special: Some(of.inner.shared.pools.specials.share(special)), ..CollectiveExtras::NONE };
    Ok(collective(CollectiveKind::AllToAllStrided, of, send.dtype, strides.count, Some(&send), Some(&recv), extras))
}
