//! Synchronizes the ranks of a team inside an operation. When a rank enters the operation, it
//! publishes an entry line. Afterwards it publishes each completed phase of the operation in its
//! progress word.
//!
//! This module moves no data. A progress word contains the epoch of the operation (32 bits), the
//! number of completed phases (24 bits), and a status (8 bits), which is 1 if the rank has failed.
//! The whole word follows the protocol of [`peerweave_device::flag`]: only the rank to which the
//! word belongs writes it, and the value only grows, modulo 2^64.

use crate::memory::layout::{ENTRY_LINES, TeamWords};
use crate::memory::line::{self, Entry, Line};
use crate::sync::peers::Peers;
use crate::sync::team::TeamState;
use crate::sync::wait::{Limit, SlowWait, Stop, Waiter};
use peerweave_core::{Error, PeerCause, Timeout};
use peerweave_device::flag;
use peerweave_types::Pe;
use std::sync::atomic::Ordering;
use std::time::Duration;

const FAILED: u64 = 1;
const LAST_PHASE: u32 = 0xff_ffff;

/// Maximum number of bytes that a rank takes into its cache in advance, for the next operation. The
/// bytes belong to the rank's own staging area. The number is small, because a processor requests
/// only a few cache lines at a time.
const OWNED_BYTES: usize = 1024;

/// Returns the index of the entry line for the operation with the number `epoch` in its team. An
/// entry line is a cache line in which a rank publishes that it has entered an operation. Each rank
/// has `ENTRY_LINES` entry lines for a team, and uses them in turn.
#[inline]
pub(crate) fn line_of(epoch: u32) -> usize {
    epoch as usize % ENTRY_LINES
}

fn progress(epoch: u32, phase: u32, status: u64) -> u64 {
    u64::from(epoch) << 32 | u64::from(phase) << 8 | status
}

/// Returns the progress word of a rank that has completed the operation with the epoch `epoch` and
/// has not entered the next operation.
pub(crate) fn progress_before_next(epoch: u32) -> u64 {
    progress(epoch, LAST_PHASE, 0)
}

/// The data that a rank requests into its cache together with the entry of another rank. By the
/// entry, the other rank announces that it has entered an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum With {
    Nothing,
    /// The first cache line of the other rank's staging area for this operation. The processor
    /// fetches this line and the entry line at the same time.
    StagedLine,
}

/// One operation of a team, as this rank executes it: how the rank publishes its progress and waits
/// for other ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step<'a> {
    pub(crate) peers: &'a Peers,
    pub(crate) team: &'a TeamState,
    pub(crate) call: &'static str,
    pub(crate) epoch: u32,
}

impl<'a> Step<'a> {
    #[inline]
    pub(crate) fn words(&self, rank: usize) -> &'a TeamWords {
        self.team.blocks[rank].words()
    }

    /// Returns the index, 0 or 1, of the staging area that the operation uses on every rank.
    #[inline]
    pub(crate) fn parity(&self) -> usize {
        (self.epoch & 1) as usize
    }

    /// Returns the index of the entry line of this operation (see [`line_of`]).
    #[inline]
    pub(crate) fn line(&self) -> usize {
        line_of(self.epoch)
    }

    /// Returns the address of the operand of a small broadcast, in the memory of the rank `rank`.
    /// The operand has its own cache line, directly after the entry line that this operation uses.
    #[inline]
    pub(crate) fn operand(&self, rank: usize) -> *mut u8 {
        self.words(rank).entry[self.line()].operand()
    }

    /// Returns staging area `parity` (0 or 1) of the rank `rank`.
    #[inline]
    pub(crate) fn stage(&self, rank: usize, parity: usize) -> *mut u8 {
        self.team.blocks[rank].stage(parity)
    }

    /// Publishes that this rank has entered the operation.
    #[inline]
    pub(crate) fn publish(&self, entry: &Entry) {
        self.words(self.team.rank).entry[self.line()].publish(self.epoch, entry);
    }

    /// Waits until this rank may enter this operation. A rank must not be too far ahead of the
    /// other ranks: every rank must have entered the operation that has the number
    /// `self.epoch - behind` in the team. Returns at once if this rank already knows that every
    /// rank has entered that operation. This is so, for example, if the last operation of this rank
    /// has waited for all ranks.
    #[inline]
    pub(crate) fn wait_to_enter(&self, behind: u32, limit: Limit) -> Result<(), Stop> {
        if self.epoch.wrapping_sub(self.team.entered_by_all()) <= behind {
            return Ok(());
        }
        self.wait_for_ranks(behind, limit)
    }

    /// Waits until every rank has entered the team's operation number `self.epoch - behind`. Also
    /// records the number of the latest operation that every rank has entered, as far as this rank
    /// knows.
    #[inline(never)]
    fn wait_for_ranks(&self, behind: u32, limit: Limit) -> Result<(), Stop> {
        let entered = |rank: usize, behind: u32| {
            let epoch = self.epoch.wrapping_sub(behind);
            self.words(rank).entry[line_of(epoch)].has_reached(epoch)
        };
        let (mut waiter, mut farthest) = (None, 1);
        for rank in (0..self.team.size()).filter(|&rank| rank != self.team.rank) {
            let last = (1..behind).find(|&behind| entered(rank, behind)).unwrap_or(behind);
            if last == behind {
                self.wait(rank, &mut waiter, limit, || entered(rank, behind).then_some(()), |rank| !entered(rank, behind))?;
            }
            farthest = farthest.max(last);
        }
        self.team.set_entered_by_all(self.epoch.wrapping_sub(farthest));
        Ok(())
    }

    /// Prepares the store to the entry line of this rank's next operation: takes this cache line
    /// into the cache of this processor. The store then needs no communication with other
    /// processors.
    ///
    /// Other ranks have read the previous entry in this line, so their processors have copies of
    /// the line. Without the preparation, the store waits until these copies are invalidated. The
    /// ranks that wait for the new entry then also wait for the invalidation. The caller calls this
    /// function after the entries of this operation have arrived, and before it uses the operands.
    /// With this function and [`Step::own_next_stage`], a broadcast of 64 B between two PEs took
    /// 170 ns instead of 340 ns. In this broadcast, every rank waited for every other rank.
    #[inline]
    pub(crate) fn own_next_entry(&self) {
        self.words(self.team.rank).entry[line_of(self.epoch.wrapping_add(1))].own();
    }

    /// Like [`Step::own_next_entry`], but for the cache line after the entry line. If the next
    /// operation is a small broadcast from this rank, this rank writes the operand to that cache
    /// line.
    #[inline]
    pub(crate) fn own_next_operand(&self) {
        line::own(self.words(self.team.rank).entry[line_of(self.epoch.wrapping_add(1))].operand());
    }

    /// Prepares the stores to this rank's staging area in the next operation, for the reason that
    /// [`Step::own_next_entry`] describes. Takes the cache lines that start at the byte `offset` of
    /// this area into the cache of this processor. The range has `bytes` bytes, but at most
    /// [`OWNED_BYTES`]. This helps only if the next operation has operands of the same size.
    #[inline]
    pub(crate) fn own_next_stage(&self, offset: usize, bytes: usize) {
        let first = self.stage(self.team.rank, self.parity() ^ 1).wrapping_add(offset);
        for at in (0..bytes.min(OWNED_BYTES)).step_by(line::BYTES) {
            line::own(first.wrapping_add(at));
        }
    }

    /// Waits until `rank` has entered the operation. Returns the entry that `rank` has published.
    /// The caller passes the same `waiter` for all ranks, so `limit` applies to the total time of
    /// these waits.
    #[inline]
    pub(crate) fn entry(&self, rank: usize, with: With, waiter: &mut Option<Waiter<'a>>, limit: Limit) -> Result<Entry, Stop> {
        let stage = self.stage(rank, self.parity());
        self.entered(rank, waiter, limit, |line| {
            if with == With::StagedLine {
                line::fetch(stage);
            }
            line.read(self.epoch)
        })
    }

    /// Waits until `rank` has entered the operation. Returns the signature that `rank` has
    /// published for its call.
    #[inline]
    pub(crate) fn entry_signature(&self, rank: usize, waiter: &mut Option<Waiter<'a>>, limit: Limit) -> Result<u64, Stop> {
        self.entered(rank, waiter, limit, |line| line.read_signature(self.epoch))
    }

    #[inline]
    fn entered<T>(
        &self,
        rank: usize,
        waiter: &mut Option<Waiter<'a>>,
        limit: Limit,
        read: impl Fn(&Line) -> Option<T>,
    ) -> Result<T, Stop> {
        let line = |rank| &self.words(rank).entry[self.line()];
        let awaited = line(rank);
        self.wait(rank, waiter, limit, || read(awaited), |rank| !line(rank).has(self.epoch))
    }

    /// Waits until `look` returns a value, and returns this value. `rank` is the rank for which the
    /// caller waits: the wait fails if this rank has left or failed. The error of a timeout names
    /// every rank for which `misses` returns `true`.
    ///
    /// The code calls `look` in only one place, so that the compiler inlines `look`. The time of
    /// `look` is a part of the latency of every operation.
    #[inline]
    fn wait<T>(
        &self,
        rank: usize,
        waiter: &mut Option<Waiter<'a>>,
        limit: Limit,
        look: impl Fn() -> Option<T>,
        misses: impl Fn(usize) -> bool,
    ) -> Result<T, Stop> {
        let timeout = |waited| self.timeout(waited, (0..self.team.size()).filter(|&rank| misses(rank)));
        let mut stop = None;
        loop {
            if let Some(found) = look() {
                return Ok(found);
            }
            // `look` was called once again after the failure, because the rank may have arrived,
            // and even left.
            if let Some(stop) = stop {
                return Err(stop);
            }
            let waiter = waiter.get_or_insert_with(|| self.peers.waiter(limit));
            stop = waiter.pause(|wait| self.check_member(rank, wait), timeout).err();
        }
    }

    /// Publishes that this rank has completed the first `phase` phases of the operation.
    #[inline]
    fn complete(&self, phase: u32) {
        flag::post(&self.words(self.team.rank).progress.word, progress(self.epoch, phase, 0));
    }

    /// Publishes that this rank has failed, so that other ranks stop waiting for this rank.
    pub(crate) fn publish_failure(&self) {
        flag::post(&self.words(self.team.rank).progress.word, progress(self.epoch, LAST_PHASE, FAILED));
    }

    /// Publishes that this rank has completed the first `phase` phases of the operation. Then waits
    /// until all ranks have completed these phases.
    ///
    /// A rank may already be in a later operation, so its progress word may contain a later epoch.
    /// Such a rank has completed all phases of this operation. The later operation may even belong
    /// to the next team in the same slot, because that team continues the count of epochs.
    #[inline]
    pub(crate) fn sync(&self, phase: u32) -> Result<(), Stop> {
        self.complete(phase);
        let (target, limit) = (progress(self.epoch, phase, 0), Limit::Deadline(self.peers.deadline));
        let mut waiter = None;
        for rank in (0..self.team.size()).filter(|&rank| rank != self.team.rank) {
            let word = |rank| &self.words(rank).progress.word;
            let reached = |rank| flag::reached(word(rank), target);
            self.wait(rank, &mut waiter, limit, || reached(rank).then_some(()), |rank| !reached(rank))?;
            if word(rank).load(Ordering::Relaxed) == progress(self.epoch, LAST_PHASE, FAILED) {
                return Err(self.peer_error(rank, PeerCause::Failed).into());
            }
        }
        Ok(())
    }

    /// Returns the error of this rank's call, which cannot succeed because of `rank`, for the
    /// reason `cause`. The error names the PE whose failure came first: the PE of `rank` or another
    /// PE. If the job was aborted, returns the error of the abort instead.
    pub(crate) fn peer_error(&self, rank: usize, cause: PeerCause) -> Error {
        self.error_of_pe(self.team.members[rank], cause)
    }

    fn error_of_pe(&self, pe: usize, cause: PeerCause) -> Error {
        let word = self.peers.team_failure(pe, self.team.slot);
        self.peers.peer_error(self.call, self.team.name(), pe, cause, word)
    }

    /// Returns an error if a wait for `rank` can no longer succeed: `rank` has left or failed, or
    /// another member of the team has died. The error names the PE whose failure came first. If the
    /// wait is long, also reports to the other members that this PE waits for `rank` (see
    /// [`SlowWait::report`]).
    fn check_member(&self, rank: usize, wait: &mut SlowWait<'a>) -> Result<(), Error> {
        let TeamState { members, slot, .. } = self.team;
        wait.report(self.peers, *slot, members[rank]);
        match self.peers.unavailable(members, *slot, members[rank]) {
            None => Ok(()),
            Some((pe, cause)) => Err(self.error_of_pe(pe, cause)),
        }
    }

    fn timeout(&self, waited: Duration, missing: impl Iterator<Item = usize>) -> Error {
        let missing = missing.map(|rank| Pe::new(self.team.members[rank] as u32)).collect();
        Error::from(Timeout::new(self.call, self.team.name(), waited, missing))
    }
}
