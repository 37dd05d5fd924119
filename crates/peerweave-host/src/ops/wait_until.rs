//! Waiting for signal words of this PE, and testing them.

use crate::ops::shared::Shared;
use crate::sync::wait::{Expired, Limit};
use peerweave_core::backend::{Outcome, TeamId, Until, WaitMode, WaitUntil};
use peerweave_core::{Error, PeerCause, TeamName, Timeout};
use peerweave_device::put_signal::{self, Several};
use peerweave_device::{Words, word};
use peerweave_types::Pe;

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
                Err(Expired::Failed(error)) => return Err(error),
                Err(Expired::Deadline(waited)) => {
                    return Err(Error::Timeout(Box::new(Timeout { call, team, waited, missing: Vec::new() })));
                }
            }
        }
    }

    /// Whether the wait is over.
    fn look(&self, wait: &WaitUntil) -> Option<Outcome> {
        let words = word::from_fn(wait.count, |i| self.word(self.me, wait.at.plus(8 * i as u64)));
        if wait.count == 1 && wait.exclude.is_none() && wait.until == Until::All {
            return put_signal::test(words.word(0), wait.compare, wait.value).map(Outcome::Word);
        }
        let exclude = |i: usize| wait.exclude.as_ref().is_some_and(|exclude| exclude[i]);
        let several = Several { words, exclude, compare: wait.compare, value: wait.value };
        if several.all_excluded() {
            return Some(if wait.until == Until::All { Outcome::Word(0) } else { Outcome::Indices(Vec::new()) });
        }
        match wait.until {
            Until::All => several.test_all().then_some(Outcome::Word(0)),
            Until::Any => several.test_any().map(|i| Outcome::Indices(vec![i])),
            Until::Some => {
                let mut found = Vec::new();
                several.test_some(|i, _| found.push(i));
                (!found.is_empty()).then_some(Outcome::Indices(found))
            }
        }
    }

    /// Anybody may be the one who signals, so one PE that died, or all others having left, ends the wait.
    pub(crate) fn nobody_can_signal(&self, call: &'static str, team: TeamName) -> Result<(), Error> {
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
