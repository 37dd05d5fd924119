//! Waiting for signal words of this PE, and testing them.

use crate::shared::Shared;
use crate::wait::{Expired, Limit};
use peerweave_core::backend::{Outcome, TeamId, Until, WaitMode, WaitUntil};
use peerweave_core::{Error, PeerCause, TeamName, Timeout};
use peerweave_types::Pe;
use std::sync::atomic::Ordering;

impl Shared {
    /// Waits, or looks once; `None` where `limit` is a budget and it was spent first.
    pub(crate) fn wait_until(&self, wait: &WaitUntil, limit: Limit) -> Result<Option<Outcome>, Error> {
        if let Some(outcome) = self.look(wait) {
            return Ok(Some(outcome));
        }
        if wait.mode == WaitMode::Test {
            return Ok(Some(Outcome::NotYet));
        }
        let call = match wait.until {
            Until::All if wait.count == 1 => "wait_until",
            Until::All => "wait_until_all",
            Until::Any => "wait_until_any",
            Until::Some => "wait_until_some",
        };
        let team = TeamName { id: TeamId::WORLD, size: self.n_pes() };
        let mut waiter = self.waiter(limit);
        loop {
            let paused = waiter.pause(|| self.nobody_can_signal(call, team));
            if let Some(outcome) = self.look(wait) {
                return Ok(Some(outcome));
            }
            match paused {
                Ok(()) => {}
                Err(Expired::Budget) => return Ok(None),
                Err(Expired::Failed(error)) => {
                    self.leave_word(&error);
                    return Err(error);
                }
                Err(Expired::Deadline(waited)) => {
                    return Err(Error::Timeout(Box::new(Timeout { call, team, waited, missing: Vec::new() })));
                }
            }
        }
    }

    /// Whether the wait is over.
    fn look(&self, wait: &WaitUntil) -> Option<Outcome> {
        let value = |i: usize| self.word(self.me, wait.at.plus(8 * i as u64)).load(Ordering::Acquire);
        let mut looked_at = (0..wait.count).filter(|&i| wait.exclude.as_ref().is_none_or(|exclude| !exclude[i])).peekable();
        if looked_at.peek().is_none() {
            return Some(match wait.until {
                Until::All => Outcome::Word(0),
                Until::Any | Until::Some => Outcome::Indices(Vec::new()),
            });
        }
        match wait.until {
            Until::All => {
                let mut last = 0;
                for i in looked_at {
                    last = value(i);
                    if !wait.compare.holds(last, wait.value) {
                        return None;
                    }
                }
                Some(Outcome::Word(last))
            }
            Until::Any => looked_at.find(|&i| wait.compare.holds(value(i), wait.value)).map(|i| Outcome::Indices(vec![i])),
            Until::Some => {
                let found: Vec<usize> = looked_at.filter(|&i| wait.compare.holds(value(i), wait.value)).collect();
                (!found.is_empty()).then_some(Outcome::Indices(found))
            }
        }
    }

    /// Anybody may be the one who signals, so one PE that died, or all others having left, ends the wait.
    fn nobody_can_signal(&self, call: &'static str, team: TeamName) -> Result<(), Error> {
        let mut left = None;
        let mut somebody = self.n_pes() == 1;
        for pe in (0..self.n_pes()).filter(|&pe| pe != self.me) {
            match self.liveness.gone(pe).map(|cause| self.first_cause(pe, cause)) {
                // It left of itself; others may still signal.
                Some((first, PeerCause::Left)) if first == pe => left = Some(pe),
                Some((first, cause)) => return Err(Error::Peer { call, team, pe: Pe::new(first as u32), cause }),
                None => somebody = true,
            }
        }
        match left {
            Some(pe) if !somebody => Err(Error::Peer { call, team, pe: Pe::new(pe as u32), cause: PeerCause::Left }),
            _ => Ok(()),
        }
    }
}
