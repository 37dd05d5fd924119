//! Collectives. A rank enters, exchanges entries with all ranks, compares calls, and runs an
//! algorithm. The algorithms are in the other files of this folder.
//!
//! Except in a small broadcast, every rank reads the entry line of every other rank. So each of
//! these collectives is also a synchronization. Only the algorithms that access buffers of other
//! ranks end with a second synchronization.
//!
//! | algorithm | used for | data passes through | syncs |
//! |---|---|---|---|
//! | [`broadcast`] | broadcasts of at most 64 bytes | the entry line, or the line behind it | 0 |
//! | [`staged`], in the line | operands of at most 24 bytes | the entry line | 1 |
//! | [`staged`], in one round | small operands | the staging area | 1 |
//! | [`direct`] | symmetric buffers | nothing: copied directly | 2 |
//! | [`vector`], in slots | small parts of different lengths | the entry line or staging area | 1 |
//! | [`cross_memory`] | private buffers that all ranks can read | nothing: system copy | 2 or 3 |
//! | [`staged`], in rounds | private buffers | the staging areas | 1 per block, plus 1 |
//!
//! Collectives with larger parts of different lengths need one or two more synchronizations to
//! exchange their counts.

mod agreement;
mod broadcast;
mod counts;
mod cross_memory;
mod direct;
mod functions;
mod rms_norm;
mod staged;
mod vector;

pub(crate) use agreement::{Purpose, allocation_detail, split_detail};

use self::agreement::CallWords;
use self::counts::Counts;
use self::rms_norm::Norm;
use crate::memory::layout::ENTRY_LINES;
use crate::memory::line::{self, Entry};
use crate::ops::shared::{Shared, on_a_device};
use crate::ops::tuning;
use crate::simd;
use crate::sync::step::{Step, With};
use crate::sync::team::{REPORT_GRACE, TeamRef, TeamState};
use crate::sync::wait::{Limit, Stop};
use peerweave_core::backend::{Collective, CollectiveKind, Place};
use peerweave_core::{Error, Timeout};
use peerweave_types::ReduceOp;
use smallvec::SmallVec;
use std::borrow::Cow;

/// A list with one value per rank. Teams of up to 16 ranks need no heap allocation.
type PerRank<T> = SmallVec<[T; 16]>;

/// Runs a collective to its end on the calling thread.
#[inline]
pub(crate) fn run(shared: &Shared, op: &Collective, limit: Limit) -> Result<(), Stop> {
    if op.kind == CollectiveKind::AllReduceRmsNorm {
        return CollectiveTask::start(shared, op)?.drive(shared, limit);
    }
    let team = shared.teams.get(op.kind.name(), op.team)?;
    Turn::issue(&team, Purpose::User, 0).drive(shared, &team, op, limit)
}

/// A collective that this rank has started. The collective already has its epoch, which is its
/// number in the order of the team's operations.
#[derive(Debug)]
pub(crate) struct CollectiveTask<'a> {
    team: TeamRef<'a>,
    op: Cow<'a, Collective>,
    turn: Turn,
    /// The norm of an all-reduce with RMSNorm. Each rank computes the norm after the reduction,
    /// without communication.
    norm: Option<Box<Norm>>,
}

/// The position of a collective among the operations of its team, and the reason why the collective
/// runs. The reason (`purpose`) is either that the program called this collective, or that another
/// call, such as a split, needs it.
#[derive(Debug)]
struct Turn {
    epoch: u32,
    /// Whether this rank has published its entry, by which other ranks see that it has entered the
    /// collective.
    entered: bool,
    purpose: Purpose,
    /// Arguments of the call for which the collective runs, encoded in one word. Such a call is,
    /// for example, a split. `purpose` determines the encoding. The word must be the same on all
    /// ranks.
    detail: u64,
}

impl<'a> CollectiveTask<'a> {
    /// Starts a collective: gives the collective the next epoch of the team. The caller must then
    /// call [`Self::drive`] until the collective ends, or call [`Self::skip`] once.
    ///
    /// # Errors
    /// If the team does not exist.
    #[inline]
    pub(crate) fn start(shared: &'a Shared, op: &'a Collective) -> Result<Self, Error> {
        Ok(Self::start_in(shared.teams.get(op.kind.name(), op.team)?, op))
    }

    /// Like [`Self::start`], but for a collective whose team the caller has already looked up.
    #[inline]
    pub(crate) fn start_in(team: TeamRef<'a>, op: &'a Collective) -> Self {
        if op.kind == CollectiveKind::AllReduceRmsNorm {
            let (reduction, norm) = Norm::after(op);
            let task = Self::start_internal(team, Cow::Owned(reduction), Purpose::User, op.shape().detail);
            return Self { norm: Some(Box::new(norm)), ..task };
        }
        Self::start_internal(team, Cow::Borrowed(op), Purpose::User, 0)
    }

    /// Starts a collective that the program has called, or that the backend runs as a part of
    /// another call. `purpose` says which call needs the collective, such as a split of the team.
    /// `detail` encodes parameters of the call.
    #[inline]
    pub(crate) fn start_internal(team: TeamRef<'a>, op: Cow<'a, Collective>, purpose: Purpose, detail: u64) -> Self {
        Self { turn: Turn::issue(&team, purpose, detail), team, op, norm: None }
    }

    pub(crate) fn into_owned(self) -> CollectiveTask<'static> {
        CollectiveTask { team: self.team.into_owned(), op: Cow::Owned(self.op.into_owned()), ..self }
    }

    /// Runs the collective to its end. If `limit` is a time budget, returns when the budget is
    /// spent.
    ///
    /// # Errors
    /// [`Stop::BudgetSpent`] if `limit` is a budget and other ranks did not enter in that time.
    /// Call again to continue.
    pub(crate) fn drive(&mut self, shared: &Shared, limit: Limit) -> Result<(), Stop> {
        self.turn.drive(shared, &self.team, &self.op, limit)?;
        if let Some(norm) = &self.norm {
            norm.run(shared);
        }
        Ok(())
    }

    /// Ends the collective as failed, without running the collective. `because` is the failure of
    /// an earlier operation, for example in the same stream.
    pub(crate) fn skip(&mut self, shared: &Shared, because: &Error) {
        let step = Step { peers: &shared.peers, team: &self.team, call: "skip", epoch: self.turn.epoch };
        if step.team.may_run(step.epoch) || wait_for_turn(shared, &step, Limit::Deadline(shared.peers.deadline)).is_ok() {
            fail(&step, because);
            step.team.end_epoch(step.epoch);
        }
    }
}

impl Turn {
    /// Creates the turn of a new collective, with the next epoch of the team.
    #[inline]
    fn issue(team: &TeamState, purpose: Purpose, detail: u64) -> Self {
        Self { epoch: team.issue_epoch(), entered: false, purpose, detail }
    }

    /// Runs the collective, as described at [`CollectiveTask::drive`].
    #[inline]
    fn drive(&mut self, shared: &Shared, team: &TeamState, op: &Collective, limit: Limit) -> Result<(), Stop> {
        let call = self.purpose.call().unwrap_or(op.kind.name());
        let step = Step { peers: &shared.peers, team, call, epoch: self.epoch };
        if !team.may_run(self.epoch) {
            wait_for_turn(shared, &step, limit)?;
        }
        let guard = EndOnPanic(&step);
        let outcome = match team.poisoned(call) {
            Some(error) => Err(error.into()),
            None => {
                let (purpose, detail) = (self.purpose, self.detail);
                let run = Run { shared, step: &step, op, me: team.rank, n: team.size(), purpose, detail };
                match op.special {
                    None => run.run(&mut self.entered, limit),
                    Some(_) => run.run_special(&mut self.entered, limit),
                }
            }
        };
        std::mem::forget(guard);
        let outcome = match outcome {
            // The operation is not complete, so it keeps its turn until the task is driven again.
            Err(Stop::BudgetSpent) => return outcome,
            Err(Stop::Failed(error)) => {
                let error = team.name_cause(step.peers, *error, true);
                fail(&step, &error);
                Err(error.into())
            }
            Ok(()) => Ok(()),
        };
        team.end_epoch(self.epoch);
        outcome
    }
}

/// Guard against a panic in an operation. The guard is dropped only after a panic, and then ends
/// the operation as failed. Without the guard, later operations of the team would wait for this
/// operation.
struct EndOnPanic<'a>(&'a Step<'a>);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        let panicked = std::io::Error::other("the operation panicked");
        fail(self.0, &Error::system(self.0.call, panicked));
        self.0.team.end_epoch(self.0.epoch);
    }
}

/// Waits until the earlier operations of the team have ended on this PE. If `limit` is a deadline,
/// the wait may last twice the deadline plus [`REPORT_GRACE`], because an earlier operation may run
/// until [`REPORT_GRACE`] after its own deadline. When the wait times out, the team fails on this
/// PE.
#[cold]
fn wait_for_turn(shared: &Shared, step: &Step<'_>, limit: Limit) -> Result<(), Stop> {
    let limit = match limit {
        Limit::Deadline(deadline) => Limit::Deadline(deadline.saturating_mul(2).saturating_add(REPORT_GRACE)),
        budget => budget,
    };
    let timeout = |waited| {
        let missing = shared.teams.missing(step.peers);
        Error::from(Timeout::new(step.call, step.team.name(), waited, missing))
    };
    let stop = step.peers.waiter(limit).until(|| step.team.may_run(step.epoch).then_some(()), |_| Ok(()), timeout);
    if let Err(Stop::Failed(error)) = &stop {
        step.team.fail(step.peers, error);
    }
    stop
}

/// Records that an operation of the team has failed on this rank, and publishes the failure to the
/// other ranks. Later collectives of the team then fail on this rank.
///
/// Does nothing after a mismatch of calls. All ranks have detected the mismatch, and no rank has
/// changed any data, so the team stays usable.
///
/// Also does nothing if an operation of the team has failed before. A rank publishes its failure in
/// its progress word, together with the number of the operation. A higher number in this word would
/// say that the rank has completed the operation that failed first, which is false.
#[cold]
fn fail(step: &Step<'_>, error: &Error) {
    if !matches!(error, Error::Mismatch(_)) && step.team.failure().is_none() {
        // The root cause is published first, because a rank that sees the failure must find its
        // root cause.
        step.team.fail(step.peers, error);
        step.publish_failure();
    }
}

/// The values that a collective needs while it runs on this rank.
#[derive(Clone, Copy)]
struct Run<'a> {
    shared: &'a Shared,
    step: &'a Step<'a>,
    op: &'a Collective,
    me: usize,
    n: usize,
    purpose: Purpose,
    detail: u64,
}

/// The way in which the operands of a collective reach the other ranks. The choice depends only on
/// parameters that all ranks must pass alike, so all ranks choose the same algorithm. Each call has
/// a signature, which is a digest of these parameters. Ranks compare their signatures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    /// Algorithm for a collective without operands, such as a barrier. Each rank only publishes
    /// that it has entered, and waits for the other ranks.
    Arrival,
    InLine,
    /// A small broadcast whose operand does not fit into the root's entry line. An entry line is a
    /// cache line in which a rank announces that it has entered the collective. The root writes the
    /// operand to the cache line after its entry line.
    BehindLine,
    Staged,
    Large,
    /// A collective whose parts have different lengths, for example an all-to-all-v. Each rank
    /// chooses by its own element counts how it sends its parts, as described in `vector.rs`. Ranks
    /// can choose differently, because the signature of a call does not cover the counts.
    Vector,
}

impl Algorithm {
    /// Returns the maximum number of operations by which a rank may be ahead of the slowest rank of
    /// the team. If the result is `d`, a rank enters an operation only after every rank has entered
    /// the operation that was issued `d` operations earlier. The limit protects memory that other
    /// ranks may still read: a rank reuses an entry line after `ENTRY_LINES` operations, and reuses
    /// a staging area after two operations.
    #[inline]
    fn behind(self) -> u32 {
        match self {
            Self::Staged | Self::Vector => 1,
            Self::Arrival | Self::InLine | Self::BehindLine | Self::Large => ENTRY_LINES as u32 - 1,
        }
    }
}

impl Run<'_> {
    #[inline]
    fn element_bytes(&self) -> usize {
        self.op.element_bytes()
    }

    /// Returns the number of parts of an operand. This is 1, or the number of ranks if the operand
    /// has a part for each rank.
    #[inline]
    fn parts(&self) -> usize {
        match self.op.kind {
            CollectiveKind::ReduceScatter
            | CollectiveKind::Scatter
            | CollectiveKind::AllToAll
            | CollectiveKind::AllToAllStrided => self.n,
            kind if kind.has_counts() => self.n,
            _ => 1,
        }
    }

    /// Returns the data that this rank requests at the same time as the entry of another rank. By
    /// its entry, the other rank announces the call. In an all-reduce with operands of at most one
    /// cache line, the data is the operand in the other rank's staging area. The early request
    /// shortens the all-reduce by 10 % to 25 %.
    ///
    /// In other collectives, this rank requests only the entry. In gathers and broadcasts, a rank
    /// with little work would request the operand before the other rank has written it. Between
    /// distant processors, such requests made the collective up to 1.2 times slower.
    #[inline]
    fn fetched_with_entry(&self, algorithm: Algorithm) -> With {
        let is_line = algorithm == Algorithm::Staged && self.op.count * self.element_bytes() <= line::BYTES;
        if is_line && self.op.kind == CollectiveKind::AllReduce { With::StagedLine } else { With::Nothing }
    }

    /// Prepares the cache for the next collective. Requests the cache lines to which this rank will
    /// copy the operand of that collective: see [`Step::own_next_stage`]. This helps only if that
    /// operand has the same size as the present one.
    #[inline]
    fn own_next_operand(&self, algorithm: Algorithm) {
        if algorithm == Algorithm::Staged {
            self.step.own_next_stage(0, self.op.count * self.element_bytes() * self.parts());
        }
    }

    #[inline]
    fn algorithm(&self) -> Algorithm {
        match self.op.kind {
            CollectiveKind::Barrier | CollectiveKind::Sync => return Algorithm::Arrival,
            kind if kind.has_counts() => return Algorithm::Vector,
            _ => {}
        }
        let bytes = self.op.count * self.element_bytes() * self.parts();
        let scalar_bytes = if self.op.op == ReduceOp::PreMulSum { 8 } else { 0 };
        if bytes <= line::PAYLOAD_BYTES - scalar_bytes {
            Algorithm::InLine
        } else if self.is_small_broadcast() {
            Algorithm::BehindLine
        } else if bytes <= tuning::staged_limit(self.n) {
            Algorithm::Staged
        } else {
            Algorithm::Large
        }
    }

    /// Runs a collective with a rare option, for example a reduction by a function of the program.
    /// The code for rare options is kept out of [`Run::run`], so that the code of common
    /// collectives stays short.
    #[inline(never)]
    fn run_special(&self, entered: &mut bool, limit: Limit) -> Result<(), Stop> {
        match self.op.function() {
            None => self.run(entered, limit),
            Some(_) => functions::catching(self.step.call, || self.run(entered, limit)),
        }
    }

    #[inline]
    fn run(&self, entered: &mut bool, limit: Limit) -> Result<(), Stop> {
        let algorithm = self.algorithm();
        let call = self.call_words();
        let signature = agreement::signature(&call);
        let mine = if *entered {
            // Another thread has published the entry of this rank, so the entry is read from the
            // line of this rank.
            self.step.entry(self.me, With::Nothing, &mut None, limit)?
        } else {
            self.step.wait_to_enter(algorithm.behind(), limit)?;
            *entered = true;
            self.enter(algorithm, &call, signature)
        };
        if algorithm == Algorithm::Arrival {
            return self.all_entered(signature, limit);
        }
        if self.is_small_broadcast() && !self.compares_in_full(algorithm) {
            return self.small_broadcast(algorithm, mine, limit);
        }
        let is_small = matches!(algorithm, Algorithm::InLine | Algorithm::BehindLine | Algorithm::Staged);
        if is_small && matches!(self.op.kind, CollectiveKind::Broadcast | CollectiveKind::Scatter) {
            return self.take_from_root(algorithm, mine, limit);
        }
        let mut entries = PerRank::new();
        self.entries(algorithm, mine, &mut entries, limit)?;
        match algorithm {
            // Only a barrier, a sync and a small broadcast use these. They have returned.
            Algorithm::Arrival | Algorithm::BehindLine => {}
            Algorithm::InLine => self.consume_lines(&entries),
            Algorithm::Staged => self.consume_staged(&entries),
            Algorithm::Large => self.large(&entries, None, 0)?,
            Algorithm::Vector => self.vector(&mut entries)?,
        }
        if self.purpose == Purpose::Destroy {
            // A member may create another team in the slot as soon as it returns. So it waits until
            // every rank has read every entry. The next team continues the counts in the words that
            // are read here.
            self.step.sync(1)?;
        }
        Ok(())
    }

    /// Publishes the entry of this rank. If the operand is small, this function first copies the
    /// operand to shared memory: to the entry itself, or to other memory that all ranks can read.
    /// If the operand is large, nothing is copied. The entry then contains the offsets or addresses
    /// of the buffers, as described at [`Run::code`]. If the collective has parts of different
    /// lengths, [`Run::vector_entry`] creates the entry instead.
    #[inline]
    fn enter(&self, algorithm: Algorithm, call: &CallWords, signature: u64) -> Entry {
        let mut entry = Entry { signature, payload: [0; 3] };
        match algorithm {
            Algorithm::Arrival => {}
            Algorithm::InLine => {
                if self.op.op == ReduceOp::PreMulSum {
                    entry.payload[2] = self.op.scalar;
                }
                self.pack(entry.payload.as_mut_ptr().cast(), 0..self.op.count);
            }
            Algorithm::BehindLine => self.pack(self.step.operand(self.me), 0..self.op.count),
            Algorithm::Staged => {
                entry.payload[2] = self.op.scalar;
                self.pack(self.step.stage(self.me, self.step.parity()), 0..self.op.count);
            }
            Algorithm::Large => {
                entry.payload = [self.code(self.op.send), self.code(self.op.recv), self.op.scalar];
            }
            Algorithm::Vector => entry = self.vector_entry(signature),
        }
        self.publish_call(call);
        self.step.publish(&entry);
        entry
    }

    /// Waits until all ranks have published their entries, and compares their calls. The entries
    /// contain no operands, so this function reads only the signatures.
    #[inline]
    fn all_entered(&self, signature: u64, limit: Limit) -> Result<(), Stop> {
        let mut agreed = !self.compares_in_full(Algorithm::Arrival);
        let mut waiter = None;
        for rank in (0..self.n).filter(|&rank| rank != self.me) {
            agreed &= self.step.entry_signature(rank, &mut waiter, limit)? == signature;
        }
        self.step.own_next_entry();
        self.agree(agreed, signature)
    }

    /// Records that every rank has entered the operation, and completes the comparison of the
    /// calls. `agreed` states whether the caller has compared the calls of all ranks and found no
    /// difference. If `agreed` is `false`, this function compares the full parameters, and returns
    /// an error if two calls differ. `signature` is the signature of this rank's call.
    #[inline]
    fn agree(&self, agreed: bool, signature: u64) -> Result<(), Stop> {
        let outcome = if agreed { Ok(()) } else { self.compare_calls() };
        let is_in_history = self.is_small_broadcast() && outcome.is_ok();
        self.step.team.set_history(if is_in_history { broadcast::history_after(signature) } else { 0 });
        self.step.team.set_entered_by_all(self.step.epoch);
        outcome
    }

    /// Waits for the entries of all ranks, and compares the calls of these ranks with the call of
    /// this rank. `mine` is the entry of this rank. This function uses `mine` instead of reading
    /// this entry from shared memory, because the read would wait until the store of the entry has
    /// reached the cache.
    #[inline]
    fn entries(&self, algorithm: Algorithm, mine: Entry, entries: &mut PerRank<Entry>, limit: Limit) -> Result<(), Stop> {
        let mut agreed = !self.compares_in_full(algorithm);
        let (with, mut waiter) = (self.fetched_with_entry(algorithm), None);
        for rank in 0..self.n {
            if rank == self.me {
                entries.push(mine);
                continue;
            }
            let entry = self.step.entry(rank, with, &mut waiter, limit)?;
            agreed &= entry.signature == mine.signature;
            entries.push(entry);
        }
        self.step.own_next_entry();
        self.own_next_operand(algorithm);
        self.agree(agreed, mine.signature)
    }

    /// Completes a collective in which only the root has an operand. Waits for the entries of all
    /// ranks, compares their calls with the call of this rank, and computes this rank's result. An
    /// entry contains the signature of a call, and can contain an operand. So this function reads
    /// the complete entry of the root, but only the signatures of the other ranks.
    #[inline]
    fn take_from_root(&self, algorithm: Algorithm, mine: Entry, limit: Limit) -> Result<(), Stop> {
        let root = self.op.root.index();
        let mut agreed = !self.compares_in_full(algorithm);
        let mut operand = mine;
        let mut waiter = None;
        for rank in (0..self.n).filter(|&rank| rank != self.me) {
            let signature = if rank == root {
                operand = self.step.entry(rank, With::Nothing, &mut waiter, limit)?;
                operand.signature
            } else {
                self.step.entry_signature(rank, &mut waiter, limit)?
            };
            agreed &= signature == mine.signature;
        }
        self.step.own_next_entry();
        if self.me == root {
            self.own_next_operand(algorithm);
        }
        self.agree(agreed, mine.signature)?;
        self.consume_root(algorithm, &operand);
        Ok(())
    }

    /// Runs the rest of a collective with large operands, after all ranks have entered. The entries
    /// contain no operands, but the codes of the buffers, which are offsets or addresses (see
    /// [`Run::code`]). `phases_done` is the number of phases that this collective has already
    /// completed. Each phase ends with a synchronization of all ranks.
    fn large(&self, entries: &[Entry], counts: Option<&Counts>, phases_done: u32) -> Result<(), Stop> {
        if entries.iter().all(|entry| is_symmetric(entry.payload[0]) && is_symmetric(entry.payload[1])) {
            self.direct(entries, counts, phases_done)
        } else if self.shared.cross_memory && cross_memory::serves(self.op, in_place(entries), self.n) {
            self.cross_memory(entries)
        } else {
            self.in_rounds(entries, counts, phases_done)
        }
    }

    /// Returns the code by which an entry identifies a buffer. The code is the offset of a
    /// symmetric buffer, the address of a private buffer with the flag [`PRIVATE`], or
    /// [`NO_BUFFER`].
    fn code(&self, place: Option<Place>) -> u64 {
        match place {
            None => NO_BUFFER,
            Some(Place::Symmetric(at)) => at.0,
            Some(Place::Private(at)) => at as u64 | PRIVATE,
            Some(Place::Device { .. }) => on_a_device(),
        }
    }

    fn address(&self, place: Option<Place>) -> *mut u8 {
        self.shared.address(place.expect("peerweave-core bug: the collective has no operand"))
    }

    /// Reduces the operands of all ranks, in the order of the ranks.
    #[inline]
    fn reduce(&self, inputs: &[simd::Input], outputs: &[*mut u8], count: usize, stores: simd::Stores) {
        if let Some(function) = self.op.function() {
            return functions::combine(function, inputs, outputs, count);
        }
        // SAFETY: callers pass operands of `count` elements each. These are staging areas, lines,
        // or ranges that the core has checked. Outputs coincide with inputs or do not overlap them.
        unsafe { simd::reduce(self.op.dtype, self.op.op, inputs, outputs, count, stores) }
    }
}

/// Code of a buffer that a rank does not have (see [`Run::code`]).
const NO_BUFFER: u64 = u64::MAX;
/// Flag in the code by which ranks identify a buffer (see [`Run::code`]). The flag is set if the
/// buffer is private memory of the rank that passed it. The other bits are then the address of the
/// buffer in the process of that rank.
const PRIVATE: u64 = 1 << 63;

/// Returns whether `code` identifies a symmetric buffer. Other ranks can access such a buffer
/// directly. Also returns `true` if `code` is [`NO_BUFFER`].
fn is_symmetric(code: u64) -> bool {
    code == NO_BUFFER || code & PRIVATE == 0
}

/// How many ranks work in place: none, some or all. A rank works in place if it passed the same
/// buffer as operand and as result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InPlace {
    None,
    Some,
    All,
}

fn in_place(entries: &[Entry]) -> InPlace {
    let is = |entry: &&Entry| entry.payload[0] == entry.payload[1];
    match entries.iter().filter(is).count() {
        0 => InPlace::None,
        n if n == entries.len() => InPlace::All,
        _ => InPlace::Some,
    }
}
