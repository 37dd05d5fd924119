//! Waits for signal words of this PE, and tests them.

use crate::ops::shared::Shared;
use crate::sync::target;
use crate::sync::wait::{Limit, Stop};
use peerweave_core::backend::{Outcome, TeamId, Until, WaitMode, WaitUntil};
use peerweave_core::{Error, TeamName, Timeout};
use peerweave_device::put_signal::{self, Several};
use peerweave_device::{Words, word};

impl Shared {
    /// Waits for signal words, or tests them once.
    pub(crate) fn wait_until(&self, wait: &WaitUntil, limit: Limit) -> Result<Outcome, Stop> {
        if let Some(outcome) = self.look(wait) {
            return Ok(outcome);
        }
        if wait.mode == WaitMode::Test {
            // A program may spin on tests.
            if target::check_is_due() {
                self.peers.check_signallers("test")?;
                target::checked();
            }
            return Ok(Outcome::NotYet);
        }
        let call = match wait.until {
            Until::All if wait.count == 1 => "wait_until",
            Until::All => "wait_until_all",
            Until::Any => "wait_until_any",
            Until::Some => "wait_until_some",
        };
        let team = TeamName { id: TeamId::WORLD, size: self.n_pes() };
        let timeout = |waited| Error::Timeout(Box::new(Timeout { call, team, waited, missing: Vec::new(), running: None }));
        self.peers.waiter(limit).until(|| self.look(wait), || self.peers.check_signallers(call), timeout)
    }

    /// Returns the outcome of the wait, if its condition holds now.
    fn look(&self, wait: &WaitUntil) -> Option<Outcome> {
        let words = word::from_fn(wait.count, |i| self.peers.segments.word(self.peers.me, wait.at.plus(8 * i as u64)));
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
}
