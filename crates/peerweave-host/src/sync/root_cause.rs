//! Finds the PE whose failure came first. A PE that fails because of another PE stores the number
//! of that other PE in a failure word in shared memory. PEs that detect the failure follow these
//! words from PE to PE, until they find the first failure.
//!
//! A failure word is 0, or contains the number of a PE and the cause of its failure. Only one
//! PE writes each word. Each PE has one failure word for each team. It has another failure word in
//! its page (its own part of the shared memory), for the failures of all its operations.
//!
//! The word in the page may be replaced by a later failure, unless the word names another PE that
//! has died or left. The later failure is then a consequence.
//!
//! A PE that waits for another PE for most of its deadline publishes that PE in its word for the
//! team, and clears the word when the wait ends. So a PE whose deadline passes can follow these
//! words to the PE for which all other PEs wait. A failure of the team replaces such a word.

use crate::sync::peers::Peers;
use crate::sync::wait::Stop;
use peerweave_core::backend::TeamId;
use peerweave_core::{Error, PeerCause, TeamName};
use peerweave_types::Pe;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Maximum time to wait until this PE detects the end of a PE that a failure word names. A failure
/// word in the page of a PE may be old, so it counts only if the PE that it names is gone.
const PROCESS_END: Duration = Duration::from_millis(200);
/// Maximum time to wait until this PE detects the end of a process whose memory could not be read.
/// At the end of a process, the operating system first unmaps the memory of the process, which
/// takes long for a large memory. Only then does it close the files of the process, from which a
/// launcher detects the end.
const PROCESS_END_AFTER_MEMORY: Duration = Duration::from_secs(1);

const CAUSES: [PeerCause; 5] = [PeerCause::Died, PeerCause::Left, PeerCause::Failed, PeerCause::Unreachable, PeerCause::Shrinks];

/// Flag in the failure word of a team. The flag states that the team has not failed on the PE that
/// wrote the word. The PE has waited for the named PE for a long time, or searches for the cause of
/// a timeout. Other PEs do not treat such a word as a failure.
pub(crate) const PROVISIONAL: u64 = 1 << 63;

/// Returns the failure word of a PE that has waited for PE `pe` for a long time.
pub(crate) fn waits_for(pe: usize) -> u64 {
    PROVISIONAL | 2 << 32 | (pe as u64 + 1)
}

/// Returns the failure word for `error` of PE `me`.
pub(crate) fn encode(error: &Error, me: usize) -> u64 {
    let cause = match error {
        Error::Peer { cause, .. } => CAUSES.iter().position(|known| known == cause).unwrap_or(2),
        _ => 2,
    };
    let pe = error.blamed().first().map_or(me, |pe| pe.index());
    (cause as u64) << 32 | (pe as u64 + 1)
}

/// Returns the PE and the cause in a failure word. Returns `None` if the word is 0 or invalid.
fn decode(word: u64) -> Option<(usize, PeerCause)> {
    let pe = (word & 0xffff_ffff).checked_sub(1)?;
    Some((pe as usize, CAUSES.get(((word & !PROVISIONAL) >> 32) as usize)?.clone()))
}

/// Returns the PE that a failure word names. Returns `None` if the word is 0 or invalid.
pub(crate) fn pe_of(word: u64) -> Option<Pe> {
    decode(word).map(|(pe, _)| Pe::new(pe as u32))
}

impl Peers {
    /// Records the failure `error` of this PE: writes the failure word into the page of this PE.
    /// Returns the word.
    ///
    /// If the page already contains a failure word, there are two cases. If the earlier word names
    /// another PE, and that PE has died or left, the page keeps the earlier word: the new failure
    /// is a consequence of the earlier failure. Otherwise, the new word replaces the earlier word.
    pub(crate) fn record_failure(&self, error: &Error) -> u64 {
        let word = encode(error, self.me);
        let failure = &self.segments.page(self.me).failure;
        let earlier = failure.load(Ordering::Relaxed);
        let still_gone = |pe: usize| pe < self.n_pes() && pe != self.me && self.liveness.gone(pe).is_some();
        if !decode(earlier).is_some_and(|(pe, _)| still_gone(pe)) {
            let _ = failure.compare_exchange(earlier, word, Ordering::Release, Ordering::Relaxed);
        }
        word
    }

    /// Records the failure of an operation in the page of this PE if another PE caused the failure.
    /// If this PE dies or leaves later, the other PEs name the recorded PE as the cause. Returns
    /// `error`. If the job was aborted, returns the error of the abort instead.
    #[cold]
    pub(crate) fn record_outcome(&self, error: Error) -> Error {
        if let Some(aborted) = self.abort_error() {
            return aborted;
        }
        let mut first = &error;
        while let Error::Poisoned { because, .. } = first {
            first = because;
        }
        if matches!(first, Error::Peer { .. } | Error::Timeout(_)) {
            self.record_failure(first);
        }
        error
    }

    /// Like [`Peers::record_outcome`], but for the error that `stop` contains. If `stop` is
    /// [`Stop::BudgetSpent`], nothing has failed, and this function returns `stop` unchanged.
    #[cold]
    pub(crate) fn record_stop(&self, stop: Stop) -> Stop {
        match stop {
            Stop::Failed(error) => self.record_outcome(*error).into(),
            Stop::BudgetSpent => stop,
        }
    }

    /// Returns the error of a call that cannot succeed, because the call needs the PE `pe`, which
    /// has left, died or failed. The error names the PE whose failure came first. `team_word` is
    /// the failure word that `pe` has written for the team. It is 0 if `pe` has written none.
    pub(crate) fn peer_error(&self, call: &'static str, team: TeamName, pe: usize, cause: PeerCause, team_word: u64) -> Error {
        if let Some(aborted) = self.abort_error() {
            return aborted;
        }
        let (pe, cause) = self.root_cause(pe, cause, (team_word != 0).then_some(team_word));
        Error::Peer { call, team, pe: Pe::new(pe as u32), cause }
    }

    /// Finds the PE that failed first. The search starts at `pe`, which failed with `cause`, and
    /// follows the failure words from PE to PE. `word` is the failure word that `pe` has written
    /// for a team. The search also follows the words of PEs that have died, because such a PE may
    /// have recorded the failure of another PE before its own death.
    fn root_cause(&self, pe: usize, cause: PeerCause, mut word: Option<u64>) -> (usize, PeerCause) {
        // If memory cannot be read, it belongs to a process that is ending, because the kernel
        // unmaps the memory first.
        let cause = match cause {
            PeerCause::Unreachable if self.is_gone_within(pe, PROCESS_END_AFTER_MEMORY) => {
                self.liveness.gone(pe).unwrap_or(cause)
            }
            cause => cause,
        };
        let start = (pe, cause);
        let mut found = start.clone();
        let mut died = None;
        let mut seen = vec![self.me];
        loop {
            // The chain is a circle, or it ends at this PE, which was late but did not fail. The
            // result is a PE of the chain that died, or else the start of the chain.
            if seen.contains(&found.0) {
                return died.unwrap_or(start);
            }
            if found.1 == PeerCause::Died || self.liveness.gone(found.0) == Some(PeerCause::Died) {
                found.1 = PeerCause::Died;
                died.get_or_insert_with(|| found.clone());
            }
            seen.push(found.0);
            let in_team = word.take();
            match decode(in_team.unwrap_or_else(|| self.segments.page(found.0).failure.load(Ordering::Acquire))) {
                // The PE shrinks the world although no PE is gone.
                Some((next, PeerCause::Shrinks)) if next == found.0 && found.1 != PeerCause::Died => {
                    return (next, PeerCause::Shrinks);
                }
                // The word of a page may be old. It counts only if the PE that it names is gone
                // too.
                Some((next, cause))
                    if next != found.0
                        && next < self.n_pes()
                        && (in_team.is_some() || self.is_gone_within(next, PROCESS_END)) =>
                {
                    // The named PE had died before this word was written.
                    if cause == PeerCause::Died {
                        died = Some((next, PeerCause::Died));
                    }
                    found = (next, cause);
                }
                _ => return found,
            }
        }
    }

    /// Checks whether an operation of a team can still succeed. The operation needs the member
    /// `peer`. `slot` is the number of the team's block in each segment.
    ///
    /// If any other member has died, returns that member and the cause. If no other member has
    /// died, but `peer` has left or has failed in this team, returns `peer` and the cause.
    /// Otherwise, returns `None`.
    pub(crate) fn unavailable(&self, members: &[usize], slot: usize, peer: usize) -> Option<(usize, PeerCause)> {
        let mut others = members.iter().copied().filter(|&pe| pe != self.me);
        if let Some(dead) = others.find(|&pe| self.liveness.gone(pe) == Some(PeerCause::Died)) {
            return Some((dead, PeerCause::Died));
        }
        if let Some(cause) = self.liveness.gone(peer) {
            return Some((peer, cause));
        }
        (self.team_failure(peer, slot) != 0).then_some((peer, PeerCause::Failed))
    }

    /// Returns the failure word of PE `pe` for the team in slot `slot`. Returns 0 if the team has
    /// not failed on that PE.
    pub(crate) fn team_failure(&self, pe: usize, slot: usize) -> u64 {
        let word = self.segments.team_words(pe, slot).failure.word.load(Ordering::Acquire);
        if word & PROVISIONAL == 0 { word } else { 0 }
    }

    /// Returns an error if this PE must not wait for a signal any longer. Any PE of the job may be
    /// the sender. So this function returns an error if another PE has died or has called shrink,
    /// or if all other PEs have left.
    pub(crate) fn check_signallers(&self, call: &'static str) -> Result<(), Error> {
        self.check_abort()?;
        let team = TeamName { id: TeamId::WORLD, size: self.n_pes() };
        let mut left = None;
        let mut shrinks = None;
        let mut active = self.n_pes() == 1;
        for pe in (0..self.n_pes()).filter(|&pe| pe != self.me) {
            match self.liveness.gone(pe).map(|cause| self.root_cause(pe, cause, None)) {
                // The PE left by itself, and other PEs may still signal.
                Some((first, PeerCause::Left)) if first == pe => left = Some(pe),
                Some((first, cause)) => return Err(Error::Peer { call, team, pe: Pe::new(first as u32), cause }),
                None => {
                    active = true;
                    if shrinks.is_none() && self.segments.survivors(pe).has_begun() {
                        shrinks = Some(pe);
                    }
                }
            }
        }
        let peer = |pe: usize, cause| Err(Error::Peer { call, team, pe: Pe::new(pe as u32), cause });
        match (left, shrinks) {
            (Some(pe), _) if !active || shrinks.is_some() => peer(pe, PeerCause::Left),
            (None, Some(pe)) => peer(pe, PeerCause::Shrinks),
            _ => Ok(()),
        }
    }

    /// Waits at most `limit` until the PE `pe` has died or left. Returns whether it has died or
    /// left. If `pe` is this PE, returns `false` at once. The wait is necessary because the
    /// operating system unmaps the memory of a process before it reports the end of the process.
    fn is_gone_within(&self, pe: usize, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        loop {
            if pe == self.me || self.liveness.gone(pe).is_some() {
                return pe != self.me;
            }
            if Instant::now() >= end {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peerweave_core::Timeout;

    #[test]
    fn failure_word_encodes_the_failed_pe_and_the_cause() {
        let team = TeamName { id: TeamId::WORLD, size: 9 };
        for cause in CAUSES {
            let error = Error::Peer { call: "barrier", team, pe: Pe::new(7), cause: cause.clone() };
            assert_eq!(decode(encode(&error, 1)), Some((7, cause)));
        }
        let missing = vec![Pe::new(0), Pe::new(4)];
        let late = Error::from(Timeout::new("barrier", team, Default::default(), missing));
        assert_eq!(decode(encode(&late, 1)), Some((0, PeerCause::Failed)));
        let own = Error::Unsupported { call: "barrier", backend: "host", why: "a test" };
        assert_eq!(decode(encode(&own, 1)), Some((1, PeerCause::Failed)));
        assert_eq!(decode(0), None);
        assert_eq!(decode(encode(&late, 1) | PROVISIONAL), Some((0, PeerCause::Failed)));
        assert_eq!(decode(waits_for(7)), Some((7, PeerCause::Failed)));
    }
}
