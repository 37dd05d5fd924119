//! How the ranks of a team keep step inside an operation: they enter it with an entry line, and then publish how far they are.
//!
//! Moves no data. The phase word of a rank holds the epoch (32 bits), how many phases of that operation it has completed (24 bits), and
//! whether it failed (8 bits). It is written by its owner alone and never decreases, but for the wrap-around of the epoch, which nobody
//! can be 2^31 operations behind to see.

use crate::memory::layout::TeamWords;
use crate::memory::line::{Entry, Line};
use crate::ops::shared::Shared;
use crate::sync::team::TeamState;
use crate::sync::wait::{Expired, Limit, Waiter};
use peerweave_core::{Error, PeerCause, Timeout};
use peerweave_types::Pe;
use std::sync::atomic::Ordering;

/// A failure on its way to the caller: boxed, so that results of the hot paths fit in registers.
pub(crate) type Failure = Box<Error>;

const FAILED: u64 = 1;

fn phase_word(epoch: u32, phase: u32, status: u64) -> u64 {
    u64::from(epoch) << 32 | u64::from(phase) << 8 | status
}

/// One operation of a team, as this rank runs it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) team: &'a TeamState,
    pub(crate) call: &'static str,
    pub(crate) epoch: u32,
}

impl<'a> Step<'a> {
    #[inline]
    pub(crate) fn words(&self, rank: usize) -> &'a TeamWords {
        self.shared.segments.team_words(self.team.members[rank], self.team.slot)
    }

    #[inline]
    pub(crate) fn parity(&self) -> usize {
        (self.epoch & 1) as usize
    }

    /// This rank's staging area for the operation, or that of another.
    #[inline]
    pub(crate) fn stage(&self, rank: usize, parity: usize) -> *mut u8 {
        self.shared.segments.stage(self.team.members[rank], self.team.slot, parity)
    }

    /// Tells all ranks that this one has entered.
    #[inline]
    pub(crate) fn publish(&self, entry: &Entry) {
        self.words(self.team.rank).entry[self.parity()].publish(self.epoch, entry);
    }

    /// Waits until `rank` has entered; `None` where the budget was spent first. One waiter serves all ranks, so that limits hold for all together.
    #[inline]
    pub(crate) fn entry(&self, rank: usize, waiter: &mut Option<Waiter<'a>>, limit: Limit) -> Result<Option<Entry>, Failure> {
        self.entered(rank, waiter, limit, |line| line.read(self.epoch))
    }

    /// The same where nothing of the entry is wanted but its signature.
    #[inline]
    pub(crate) fn entry_signature(
        &self,
        rank: usize,
        waiter: &mut Option<Waiter<'a>>,
        limit: Limit,
    ) -> Result<Option<u64>, Failure> {
        self.entered(rank, waiter, limit, |line| line.read_signature(self.epoch))
    }

    #[inline]
    fn entered<T>(
        &self,
        rank: usize,
        waiter: &mut Option<Waiter<'a>>,
        limit: Limit,
        read: impl Fn(&Line) -> Option<T>,
    ) -> Result<Option<T>, Failure> {
        self.reached(rank, waiter, limit, |rank| read(&self.words(rank).entry[self.parity()]))
    }

    /// Waits until `look` finds something of `rank`; `None` where the budget was spent first.
    #[inline]
    fn reached<T>(
        &self,
        rank: usize,
        waiter: &mut Option<Waiter<'a>>,
        limit: Limit,
        look: impl Fn(usize) -> Option<T>,
    ) -> Result<Option<T>, Failure> {
        if let Some(found) = look(rank) {
            return Ok(Some(found));
        }
        let waiter = waiter.get_or_insert_with(|| self.shared.waiter(limit));
        loop {
            let paused = waiter.pause(|| self.gone(rank).map_err(|failure| *failure));
            // Also after a failure: it may have come, and even left in good order, between the last look and the question.
            if let Some(found) = look(rank) {
                return Ok(Some(found));
            }
            if let Err(expired) = paused {
                return self.expired(expired, || (0..self.team.size()).filter(|&rank| look(rank).is_none()).collect());
            }
        }
    }

    /// Publishes that this rank has completed `phase` phases of the operation.
    #[inline]
    pub(crate) fn complete(&self, phase: u32) {
        self.words(self.team.rank).phase.word.store(phase_word(self.epoch, phase, 0), Ordering::Release);
    }

    /// Publishes that this rank failed, so that nobody waits for it.
    pub(crate) fn fail(&self) {
        self.words(self.team.rank).phase.word.store(phase_word(self.epoch, 0xff_ffff, FAILED), Ordering::Release);
    }

    fn has_completed(&self, rank: usize, phase: u32) -> bool {
        let word = self.words(rank).phase.word.load(Ordering::Acquire);
        // A later epoch is seen only at the end of a team, whose words the next team goes on counting.
        match ((word >> 32) as u32).wrapping_sub(self.epoch) as i32 {
            0 => (word as u32) >> 8 >= phase,
            later => later > 0,
        }
    }

    /// Waits until every rank has completed `phase` phases.
    #[inline]
    pub(crate) fn all_completed(&self, phase: u32) -> Result<(), Failure> {
        let mut waiter = None;
        for rank in 0..self.team.size() {
            if rank != self.team.rank {
                self.one_completed(rank, phase, &mut waiter)?;
            }
        }
        Ok(())
    }

    /// Waits until `rank` has completed `phase` phases.
    #[inline]
    fn one_completed(&self, rank: usize, phase: u32, waiter: &mut Option<Waiter<'a>>) -> Result<(), Failure> {
        let limit = Limit::Deadline(self.shared.deadline);
        let reached = self.reached(rank, waiter, limit, |rank| self.has_completed(rank, phase).then_some(()))?;
        debug_assert!(reached.is_some(), "a deadline is no budget");
        let word = self.words(rank).phase.word.load(Ordering::Relaxed);
        if word & 0xff == FAILED && (word >> 32) as u32 == self.epoch {
            return Err(self.peer_error(rank, PeerCause::Failed));
        }
        Ok(())
    }

    /// Publishes that this rank has completed `phase` phases, and waits for all.
    #[inline]
    pub(crate) fn sync(&self, phase: u32) -> Result<(), Failure> {
        self.complete(phase);
        self.all_completed(phase)
    }

    /// An error that names `rank`, or whoever it blames itself.
    pub(crate) fn peer_error(&self, rank: usize, cause: PeerCause) -> Failure {
        let word = self.words(rank).broken.word.load(Ordering::Acquire);
        let (pe, cause) = self.shared.first_cause_from(self.team.members[rank], cause, (word != 0).then_some(word));
        Box::new(Error::Peer { call: self.call, team: self.team.name(), pe: Pe::new(pe as u32), cause })
    }

    /// Fails where `rank` will not come, and names who was first: a member that died before any other.
    fn gone(&self, rank: usize) -> Result<(), Failure> {
        let TeamState { members, slot, .. } = self.team;
        match self.shared.will_not_come(members, *slot, members[rank]) {
            None => Ok(()),
            Some((pe, cause)) => {
                let rank = members.iter().position(|&member| member == pe).expect("a member was found");
                Err(self.peer_error(rank, cause))
            }
        }
    }

    fn expired<T>(&self, expired: Expired, missing: impl FnOnce() -> Vec<usize>) -> Result<Option<T>, Failure> {
        match expired {
            Expired::Budget => Ok(None),
            Expired::Failed(error) => Err(Box::new(error)),
            Expired::Deadline(waited) => Err(Box::new(Error::Timeout(Box::new(Timeout {
                call: self.call,
                team: self.team.name(),
                waited,
                missing: missing().into_iter().map(|rank| Pe::new(self.team.members[rank] as u32)).collect(),
            })))),
        }
    }
}
