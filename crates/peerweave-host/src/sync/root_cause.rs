//! Who is to blame: a PE that fails because another is gone leaves word of whom it blames, so that those who find it gone in turn name the one that
//! was first, and not whoever failed first because of it.
//!
//! A word is 0, or names a PE and what became of it. Each is written by one PE, once for each page and once for each team's use of a slot.

use crate::ops::shared::Shared;
use peerweave_core::{Error, PeerCause};
use peerweave_types::Pe;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long the end of a process may take to be seen, where another PE says that it has ended.
const ENDING: Duration = Duration::from_millis(200);
/// The same where its memory could not be read: the kernel takes a large memory apart first, and the files of the process after that. Until those are
/// closed, a launcher does not know that this process was first to go.
const MEMORY_GONE: Duration = Duration::from_secs(1);

const CAUSES: [PeerCause; 4] = [PeerCause::Died, PeerCause::Left, PeerCause::Failed, PeerCause::Unreachable];

/// The word for a failure of PE `me`.
pub(crate) fn word_of(error: &Error, me: usize) -> u64 {
    let cause = match error {
        Error::Peer { cause, .. } => CAUSES.iter().position(|known| known == cause).unwrap_or(2),
        _ => 2,
    };
    let pe = error.blamed().first().map_or(me, |pe| pe.index());
    (cause as u64) << 32 | (pe as u64 + 1)
}

/// The PE and cause of a word.
fn read(word: u64) -> Option<(usize, PeerCause)> {
    let pe = (word & 0xffff_ffff).checked_sub(1)?;
    Some((pe as usize, CAUSES.get((word >> 32) as usize)?.clone()))
}

/// The PE that a word names.
pub(crate) fn named_by(word: u64) -> Option<Pe> {
    read(word).map(|(pe, _)| Pe::new(pe as u32))
}

impl Shared {
    /// Leaves word of this PE's failure in its page; returns the word, for a team.
    ///
    /// The word of an earlier failure stays while the PE that it names is gone: later failures follow from that one. Otherwise it was of
    /// something that passed.
    pub(crate) fn leave_word(&self, error: &Error) -> u64 {
        let word = word_of(error, self.me);
        let blames = &self.segments.page(self.me).blames;
        let earlier = blames.load(Ordering::Relaxed);
        if !read(earlier).is_some_and(|(pe, _)| pe < self.n_pes() && pe != self.me && self.liveness.gone(pe).is_some()) {
            let _ = blames.compare_exchange(earlier, word, Ordering::Release, Ordering::Relaxed);
        }
        word
    }

    /// Passes an outcome on, and leaves word where it is a failure of which another PE is the cause. Every call of the backend ends here: a PE that
    /// finds this one gone later names that other one.
    #[inline]
    pub(crate) fn noted<T>(&self, outcome: Result<T, Error>) -> Result<T, Error> {
        outcome.inspect_err(|error| self.note(error))
    }

    #[cold]
    fn note(&self, error: &Error) {
        if matches!(error, Error::Peer { .. } | Error::Timeout(_)) {
            self.leave_word(error);
        }
    }

    /// Follows the words of who blames whom, from `pe` for `cause`, to whoever was first. A PE that died is not asked: it is first.
    pub(crate) fn first_cause(&self, pe: usize, cause: PeerCause) -> (usize, PeerCause) {
        self.first_cause_from(pe, cause, None)
    }

    /// The same, where `pe` is known to have left this word in a team.
    pub(crate) fn first_cause_from(&self, pe: usize, cause: PeerCause, word: Option<u64>) -> (usize, PeerCause) {
        // Memory that could not be read is that of a process that ends: the kernel takes the memory first.
        let cause = match cause {
            PeerCause::Unreachable if self.is_gone_within(pe, MEMORY_GONE) => self.liveness.gone(pe).unwrap_or(cause),
            cause => cause,
        };
        let start = (pe, cause);
        let (mut at, mut word) = (start.clone(), word);
        let mut seen = vec![self.me];
        loop {
            if at.1 == PeerCause::Died || self.liveness.gone(at.0) == Some(PeerCause::Died) {
                return (at.0, PeerCause::Died);
            }
            // PEs that blame each other, or this one, which was late perhaps but did not fail: then the one that was found is named.
            if seen.contains(&at.0) {
                return start;
            }
            seen.push(at.0);
            let of_team = word.take();
            match read(of_team.unwrap_or_else(|| self.segments.page(at.0).blames.load(Ordering::Acquire))) {
                // The word of a page may be about something long past: it counts if whom it names is gone too.
                Some((next, cause))
                    if next != at.0 && next < self.n_pes() && (of_team.is_some() || self.is_gone_within(next, ENDING)) =>
                {
                    at = (next, cause);
                }
                _ => return at,
            }
        }
    }

    /// Why `peer` will not come to an operation of a team, and who of the members is the first reason: one that died before any other.
    pub(crate) fn will_not_come(&self, members: &[usize], slot: usize, peer: usize) -> Option<(usize, PeerCause)> {
        let mut others = members.iter().copied().filter(|&pe| pe != self.me);
        if let Some(dead) = others.find(|&pe| self.liveness.gone(pe) == Some(PeerCause::Died)) {
            return Some((dead, PeerCause::Died));
        }
        if let Some(cause) = self.liveness.gone(peer) {
            return Some((peer, cause));
        }
        let gave_up = self.segments.team_words(peer, slot).broken.word.load(Ordering::Acquire) != 0;
        gave_up.then_some((peer, PeerCause::Failed))
    }

    /// Whether a PE is gone, or is on its way: the kernel takes a process's memory before it says that the process has ended.
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
    use peerweave_core::backend::TeamId;
    use peerweave_core::{TeamName, Timeout};

    #[test]
    fn a_word_names_the_pe_and_what_became_of_it() {
        let team = TeamName { id: TeamId::WORLD, size: 9 };
        for cause in CAUSES {
            let error = Error::Peer { call: "barrier", team, pe: Pe::new(7), cause: cause.clone() };
            assert_eq!(read(word_of(&error, 1)), Some((7, cause)));
        }
        let missing = vec![Pe::new(0), Pe::new(4)];
        let late = Error::Timeout(Box::new(Timeout { call: "barrier", team, waited: Default::default(), missing }));
        assert_eq!(read(word_of(&late, 1)), Some((0, PeerCause::Failed)));
        let own = Error::Unsupported { call: "barrier", backend: "host", why: "a test" };
        assert_eq!(read(word_of(&own, 1)), Some((1, PeerCause::Failed)));
        assert_eq!(read(0), None);
    }
}
