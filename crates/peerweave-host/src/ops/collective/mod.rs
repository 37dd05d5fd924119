//! Collectives: entering, comparing calls, choosing the way, and what happens when it fails. The ways themselves are in the files below.
//!
//! Every collective begins with all ranks reading all ranks' entry lines, so each is also a synchronisation; only the ways that touch
//! other ranks' buffers end with a second one.
//!
//! | way | when | data passes through | synchronisations |
//! |---|---|---|---|
//! | [`staged`], in the line | operand <= 24 bytes | the entry line | 1 |
//! | [`staged`], staged | small | the staging area | 1 |
//! | [`direct`] | all buffers symmetric | nothing: one copy | 2 |
//! | [`attach`] | private buffers, readable by all | nothing, or the kernel's copy | 2 or 3 |
//! | [`staged`], in rounds | private buffers | the staging areas, block by block | 1 per block, and 1 |

mod attach;
mod counts;
mod direct;
mod staged;

use crate::memory::line::{self, Entry};
use crate::ops::shared::Shared;
use crate::ops::tuning;
use crate::simd;
use crate::sync::step::{Failure, Step};
use crate::sync::team::TeamState;
use crate::sync::wait::{Expired, Limit};
use peerweave_core::backend::{Allocation, Collective, CollectiveKind, Place};
use peerweave_core::{Error, Mismatch, Timeout};
use peerweave_types::{DType, Pe, ReduceOp};
use smallvec::SmallVec;
use std::sync::atomic::Ordering;

/// A value per rank, without an allocation for usual teams.
type PerRank<T> = SmallVec<[T; 16]>;

/// What a collective is for. The backend's own run like a user's, and cannot be mistaken for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Purpose {
    User = 0,
    Allocate = 1,
    Release = 2,
    Split = 3,
    Destroy = 4,
    Finalize = 5,
    Join = 6,
    Place = 7,
}

impl Purpose {
    const ALL: [Self; 8] =
        [Self::User, Self::Allocate, Self::Release, Self::Split, Self::Destroy, Self::Finalize, Self::Join, Self::Place];

    /// The call, where it is the backend's own.
    fn call(self) -> Option<&'static str> {
        match self {
            Self::User => None,
            Self::Allocate | Self::Place => Some("alloc"),
            Self::Release => Some("release"),
            Self::Split => Some("split"),
            Self::Destroy => Some("destroy"),
            Self::Finalize => Some("finalize"),
            Self::Join => Some("World::from_env"),
        }
    }
}

/// What an allocation must agree on, in one word: bytes, alignment, zeroed.
pub(crate) fn allocation_detail(request: &Allocation) -> u64 {
    let align = u64::from(request.align.trailing_zeros());
    let bytes = (request.bytes as u64).min((1 << ALLOCATE_ALIGN_SHIFT) - 1);
    bytes | align << ALLOCATE_ALIGN_SHIFT | u64::from(request.zeroed) << 63
}

/// No request of 2^56 bytes can be fulfilled: the address space is smaller. All those look alike.
const ALLOCATE_ALIGN_SHIFT: u32 = 56;

/// A collective on its way: whether it has been entered, under which number.
#[derive(Debug)]
pub(crate) struct Progress {
    epoch: u32,
    entered: bool,
    purpose: Purpose,
    /// What all ranks must agree on besides.
    detail: u64,
}

impl Progress {
    /// Takes the next number of the team. Must be driven to its end.
    #[inline]
    pub(crate) fn begin(team: &TeamState) -> Self {
        Self::begin_for(team, Purpose::User, 0)
    }

    /// The same for a collective of the backend itself.
    #[inline]
    pub(crate) fn begin_for(team: &TeamState, purpose: Purpose, detail: u64) -> Self {
        Self { epoch: team.begin(), entered: false, purpose, detail }
    }

    /// Runs the collective; `None` where `limit` is a budget and others did not arrive within it: call again.
    #[inline]
    pub(crate) fn drive(
        &mut self,
        shared: &Shared,
        team: &TeamState,
        op: &Collective,
        limit: Limit,
    ) -> Result<Option<()>, Failure> {
        let step = Step { shared, team, call: self.purpose.call().unwrap_or(op.kind.name()), epoch: self.epoch };
        if !team.is_turn(self.epoch) && !wait_for_turn(&step, limit)? {
            return Ok(None);
        }
        let turn = Turn { step: &step };
        let outcome = match team.broken() {
            Some(error) => Err(Box::new(error.clone())),
            None => Run { step: &step, op, me: team.rank, n: team.size(), purpose: self.purpose, detail: self.detail }
                .run(&mut self.entered, limit),
        };
        match outcome {
            Ok(true) => turn.end(),
            Ok(false) => {
                turn.keep();
                return Ok(None);
            }
            Err(failure) => {
                failed(&step, &failure);
                turn.end();
                return Err(failure);
            }
        }
        Ok(Some(()))
    }

    /// Takes its turn without running.
    pub(crate) fn skip(&mut self, shared: &Shared, team: &TeamState, because: &Error) {
        let step = Step { shared, team, call: "skip", epoch: self.epoch };
        if wait_for_turn(&step, Limit::Deadline(shared.deadline)).is_ok() {
            let turn = Turn { step: &step };
            failed(&step, because);
            turn.end();
        }
    }
}

/// The turn of an operation in its team. It ends even when the operation panics, since others wait behind it.
struct Turn<'a> {
    step: &'a Step<'a>,
}

impl Turn<'_> {
    #[inline]
    fn end(self) {
        self.step.team.end(self.step.epoch);
        std::mem::forget(self);
    }

    /// The operation goes on later.
    #[inline]
    fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let panicked = std::io::Error::other("the operation panicked");
        failed(self.step, &Error::system(self.step.call, panicked));
        self.step.team.end(self.step.epoch);
    }
}

/// Waits for the operations before; `false` where `limit` is a budget and it was spent first. Each of those has a deadline, so that an end that does
/// not come within two of them is a failure of its own.
#[cold]
fn wait_for_turn(step: &Step<'_>, limit: Limit) -> Result<bool, Failure> {
    let limit = match limit {
        Limit::Deadline(deadline) => Limit::Deadline(deadline.saturating_mul(2)),
        budget => budget,
    };
    let mut waiter = step.shared.waiter(limit);
    while !step.team.is_turn(step.epoch) {
        match waiter.pause(|| Ok(())) {
            Ok(()) => {}
            Err(Expired::Budget) => return Ok(false),
            Err(Expired::Deadline(waited)) => {
                let missing = step.shared.teams.missing(step.shared);
                let timeout = Timeout { call: step.call, team: step.team.name(), waited, missing };
                let error = Error::Timeout(Box::new(timeout));
                step.team.give_up(step.shared, &error);
                return Err(Box::new(error));
            }
            Err(Expired::Failed(error)) => return Err(Box::new(error)),
        }
    }
    Ok(true)
}

/// Ends the team's collectives on this rank after a failure, and tells the others whom this rank blames.
#[cold]
pub(crate) fn failed(step: &Step<'_>, error: &Error) {
    // Ranks that called different things have all noticed, have touched nothing, and stay in step. After the first failure the phase stays where it is:
    // in a later epoch it would say that this rank had completed the one in which it failed.
    if !matches!(error, Error::Mismatch(_)) && step.team.broken().is_none() {
        // First whom this rank blames, then that it failed: who sees the second must find the first.
        step.team.give_up(step.shared, error);
        step.fail();
    }
}

/// One collective, as one rank runs it.
#[derive(Clone, Copy)]
struct Run<'a> {
    step: &'a Step<'a>,
    op: &'a Collective,
    me: usize,
    n: usize,
    purpose: Purpose,
    detail: u64,
}

/// How the operands of an operation travel; a function of what the signature covers, so that all ranks agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Nothing,
    Line,
    Staged,
    Large,
}

impl Run<'_> {
    #[inline]
    fn element_bytes(&self) -> usize {
        self.op.dtype.size_bytes()
    }

    /// Whether an operand has one part per rank.
    #[inline]
    fn parts(&self) -> usize {
        match self.op.kind {
            CollectiveKind::ReduceScatter | CollectiveKind::Scatter | CollectiveKind::AllToAll | CollectiveKind::AllToAllV => {
                self.n
            }
            _ => 1,
        }
    }

    #[inline]
    fn way(&self) -> Way {
        match self.op.kind {
            CollectiveKind::Barrier | CollectiveKind::Sync => return Way::Nothing,
            CollectiveKind::AllToAllV => return Way::Large,
            _ => {}
        }
        let bytes = self.op.count * self.element_bytes() * self.parts();
        let in_line = if self.op.op == ReduceOp::PreMulSum { line::PAYLOAD_BYTES - 8 } else { line::PAYLOAD_BYTES };
        if bytes <= in_line {
            Way::Line
        } else if bytes <= tuning::staged_limit(self.n) {
            Way::Staged
        } else {
            Way::Large
        }
    }

    /// `false` where `limit` is a budget and it was spent first.
    #[inline]
    fn run(&self, entered: &mut bool, limit: Limit) -> Result<bool, Failure> {
        let way = self.way();
        let signature = self.signature();
        let mine = if *entered {
            // Begun on another thread: what was said then is in this rank's own line.
            self.step.entry(self.me, &mut None, limit)?.expect("this rank has entered")
        } else {
            *entered = true;
            self.enter(way, signature)
        };
        if way == Way::Nothing {
            return self.all_entered(signature, limit);
        }
        let mut entries = PerRank::new();
        if !self.entries(way, mine, &mut entries, limit)? {
            return Ok(false);
        }
        match way {
            Way::Nothing => {}
            Way::Line => self.consume_lines(&entries),
            Way::Staged => self.consume_staged(&entries),
            Way::Large => self.large(&entries)?,
        }
        Ok(true)
    }

    #[inline]
    fn enter(&self, way: Way, signature: u64) -> Entry {
        let mut entry = Entry { signature, payload: [0; 3] };
        match way {
            Way::Nothing => {}
            Way::Line => {
                if self.op.op == ReduceOp::PreMulSum {
                    entry.payload[2] = self.op.scalar;
                }
                self.pack(entry.payload.as_mut_ptr().cast(), 0..self.op.count);
            }
            Way::Staged => {
                entry.payload[2] = self.op.scalar;
                self.pack(self.step.stage(self.me, self.step.parity()), 0..self.op.count);
            }
            Way::Large => {
                entry.payload = [self.code(self.op.send), self.code(self.op.recv), self.op.scalar];
                if self.op.kind == CollectiveKind::AllToAllV {
                    self.publish_counts();
                }
            }
        }
        self.publish_call();
        self.step.publish(&entry);
        entry
    }

    /// Waits for all ranks' entries, which carry nothing.
    #[inline]
    fn all_entered(&self, signature: u64, limit: Limit) -> Result<bool, Failure> {
        let mut agreed = !self.compares_in_full(Way::Nothing);
        let mut waiter = None;
        for rank in (0..self.n).filter(|&rank| rank != self.me) {
            let Some(theirs) = self.step.entry_signature(rank, &mut waiter, limit)? else { return Ok(false) };
            agreed &= theirs == signature;
        }
        if !agreed {
            self.compare_calls()?;
        }
        Ok(true)
    }

    /// Waits for all ranks' entries and compares their calls with this one's. A rank does not read its own line: that would wait until the
    /// store has left the core.
    #[inline]
    fn entries(&self, way: Way, mine: Entry, entries: &mut PerRank<Entry>, limit: Limit) -> Result<bool, Failure> {
        let mut agreed = !self.compares_in_full(way);
        let mut waiter = None;
        for rank in 0..self.n {
            if rank == self.me {
                entries.push(mine);
                continue;
            }
            let Some(entry) = self.step.entry(rank, &mut waiter, limit)? else { return Ok(false) };
            agreed &= entry.signature == mine.signature;
            entries.push(entry);
        }
        if !agreed {
            self.compare_calls()?;
        }
        Ok(true)
    }

    /// The call in words: what all ranks must agree on.
    fn call_words(&self) -> [u64; 4] {
        let op = self.op;
        let what = op.kind as u64 | (op.dtype as u64) << 8 | (op.op as u64) << 16 | (self.purpose as u64) << 24;
        [what, u64::from(op.root.get()), op.count as u64, self.detail]
    }

    /// A digest of the call. Each term is a bijection of one word, so that calls that differ in one word alone never have the same.
    #[inline]
    fn signature(&self) -> u64 {
        let [what, root, count, detail] = self.call_words();
        (what ^ root << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ count.wrapping_mul(0xd6e8_feb8_6659_fd93)
            ^ detail.wrapping_mul(0xff51_afd7_ed55_8ccd)
    }

    /// Whether calls are compared in full and not only by their digests: wherever a rank touches memory by what another one says.
    #[inline]
    fn compares_in_full(&self, way: Way) -> bool {
        self.step.shared.compare_calls || way == Way::Large || self.purpose != Purpose::User
    }

    #[inline]
    fn publish_call(&self) {
        let words = &self.step.words(self.me).call[self.step.parity()].words;
        for (to, from) in words.iter().zip(self.call_words()) {
            to.store(from, Ordering::Relaxed);
        }
    }

    #[cold]
    fn compare_calls(&self) -> Result<(), Failure> {
        let mine = self.call_words();
        for rank in 0..self.n {
            let words = &self.step.words(rank).call[self.step.parity()].words;
            let theirs = std::array::from_fn(|i| words[i].load(Ordering::Relaxed));
            if theirs != mine {
                return Err(mismatch(Mismatch {
                    team: self.step.team.name(),
                    pe: Pe::new(self.step.team.members[rank] as u32),
                    mine: describe(mine),
                    theirs: describe(theirs),
                }));
            }
        }
        Ok(())
    }

    fn large(&self, entries: &[Entry]) -> Result<(), Failure> {
        let counts = match self.op.kind {
            CollectiveKind::AllToAllV => Some(self.read_counts()?),
            _ => None,
        };
        let phases_done = u32::from(counts.is_some());
        if entries.iter().all(|entry| is_symmetric(entry.payload[0]) && is_symmetric(entry.payload[1])) {
            self.direct(entries, counts.as_ref(), phases_done)
        } else if self.step.shared.attach && attach::serves(self.op, in_place(entries), self.n) {
            self.attach(entries)
        } else {
            self.in_rounds(entries, counts.as_ref(), phases_done)
        }
    }

    /// A buffer as the other ranks learn of it.
    fn code(&self, place: Option<Place>) -> u64 {
        match place {
            None => NO_BUFFER,
            Some(Place::Symmetric(at)) => at.0,
            Some(Place::Private(at)) => at as u64 | PRIVATE,
        }
    }

    fn address(&self, place: Option<Place>) -> *mut u8 {
        self.step.shared.address(place.expect("peerweave-core bug: a buffer is missing"))
    }

    /// Reduces whole operands of all ranks, in rank order.
    #[inline]
    fn reduce(&self, inputs: &[simd::Input], outputs: &[*mut u8], count: usize, stores: simd::Stores) {
        // SAFETY: callers pass operands of `count` elements each: staging areas, lines, or ranges that the core has checked; outputs coincide
        // with inputs or are apart.
        unsafe { simd::reduce(self.op.dtype, self.op.op, inputs, outputs, count, stores) }
    }
}

/// No buffer.
const NO_BUFFER: u64 = u64::MAX;
/// Marks an address in the owner's address space.
const PRIVATE: u64 = 1 << 63;

/// A buffer that is not there bars nobody from the direct way.
fn is_symmetric(code: u64) -> bool {
    code == NO_BUFFER || code & PRIVATE == 0
}

/// How many ranks gave the same buffer twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InPlace {
    Nobody,
    Somebody,
    All,
}

fn in_place(entries: &[Entry]) -> InPlace {
    let is = |entry: &&Entry| entry.payload[0] == entry.payload[1];
    match entries.iter().filter(is).count() {
        0 => InPlace::Nobody,
        n if n == entries.len() => InPlace::All,
        _ => InPlace::Somebody,
    }
}

fn mismatch(mismatch: Mismatch) -> Failure {
    Box::new(Error::Mismatch(Box::new(mismatch)))
}

fn describe([what, root, count, detail]: [u64; 4]) -> String {
    let purpose = Purpose::ALL.get((what >> 24 & 0xff) as usize).copied().unwrap_or(Purpose::User);
    if let Some(call) = purpose.call() {
        return match purpose {
            Purpose::Allocate => {
                let bytes = detail & ((1 << ALLOCATE_ALIGN_SHIFT) - 1);
                let align = 1u64 << (detail >> ALLOCATE_ALIGN_SHIFT & 0x3f);
                let zeroed = if detail >> 63 == 1 { "zeroed" } else { "not zeroed" };
                format!("{call} of {bytes} bytes aligned to {align}, {zeroed}")
            }
            Purpose::Join => format!("{call} with {detail} bytes of symmetric heap"),
            Purpose::Place => format!("{call} that ends at {detail:#x}"),
            Purpose::Release => format!("{call} of the buffer at {detail:#x}"),
            _ => call.to_owned(),
        };
    }
    let Some(kind) = CollectiveKind::from_u8(what as u8) else { return format!("something unknown ({what:#x})") };
    let mut text = kind.name().to_owned();
    if matches!(kind, CollectiveKind::Barrier | CollectiveKind::Sync) {
        return text;
    }
    if kind != CollectiveKind::AllToAllV {
        text += &format!(" of {count} elements");
    }
    if let Some(dtype) = DType::from_u8((what >> 8) as u8) {
        text += &format!(" of {dtype}");
    }
    if kind.reduces()
        && let Some(op) = ReduceOp::from_u8((what >> 16) as u8)
    {
        text += &format!(" by {op}");
    }
    if kind.has_root() {
        text += &format!(" with root {root}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_described_in_full() {
        let words = [CollectiveKind::Reduce as u64 | (DType::F32 as u64) << 8 | (ReduceOp::Max as u64) << 16, 3, 17, 0];
        assert_eq!(describe(words), "reduce of 17 elements of float by max with root 3");
        assert_eq!(describe([CollectiveKind::Barrier as u64, 0, 0, 0]), "barrier");
    }
}
