//! Waits for words in the symmetric memory of this PE, and tests them.

use crate::ops::shared::Shared;
use crate::sync::target;
use crate::sync::wait::{Limit, Stop};
use peerweave_core::backend::{Outcome, TeamId, Until, WaitMode, WaitUntil};
use peerweave_core::{TeamName, Timeout};
use peerweave_device::put_signal::Watch;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

impl Shared {
    /// Waits until the condition on the words is true. In the mode `Test`, tests the condition once
    /// without waiting.
    pub(crate) fn wait_until(&self, wait: &WaitUntil, limit: Limit) -> Result<Outcome, Stop> {
        if let Some(outcome) = self.look(wait) {
            return Ok(outcome);
        }
        if wait.mode == WaitMode::Test {
            // A program may call `test` in a loop, so the PEs that may write the words are checked
            // sometimes.
            if target::check_is_due() {
                self.peers.check_signallers("test")?;
                target::checked();
            }
            return Ok(Outcome::NotYet);
        }
        let call = wait.call_name();
        let team = TeamName { id: TeamId::WORLD, size: self.n_pes() };
        let timeout = |waited| {
            let word = wait.unsatisfied(|i| self.load(wait, i));
            Timeout { word, ..Timeout::new(call, team, waited, Vec::new()) }.into()
        };
        self.peers.waiter(limit).until(|| self.look(wait), |_| self.peers.check_signallers(call), timeout)
    }

    /// Tests the condition of `wait` once. Returns the outcome of the wait if the condition is
    /// true.
    #[inline]
    fn look(&self, wait: &WaitUntil) -> Option<Outcome> {
        match wait.dtype.size_bytes() {
            8 => look_at(wait, |i| self.awaited::<AtomicU64>(wait, i).load(Ordering::Acquire)),
            4 => look_at(wait, |i| u64::from(self.awaited::<AtomicU32>(wait, i).load(Ordering::Acquire))),
            2 => look_at(wait, |i| u64::from(self.awaited::<AtomicU16>(wait, i).load(Ordering::Acquire))),
            _ => panic!("peerweave-core bug: a wait for words of type {}, expected an integer of 2, 4 or 8 bytes", wait.dtype),
        }
    }

    /// Returns the value of the word at an index.
    fn load(&self, wait: &WaitUntil, index: usize) -> u64 {
        match wait.dtype.size_bytes() {
            8 => self.awaited::<AtomicU64>(wait, index).load(Ordering::Acquire),
            4 => self.awaited::<AtomicU32>(wait, index).load(Ordering::Acquire).into(),
            _ => self.awaited::<AtomicU16>(wait, index).load(Ordering::Acquire).into(),
        }
    }

    /// Returns the word at position `index` among the words of `wait`. `A` is the atomic integer
    /// type that has the size of the word.
    #[inline]
    fn awaited<A>(&self, wait: &WaitUntil, index: usize) -> &A {
        debug_assert_eq!(size_of::<A>(), wait.dtype.size_bytes());
        let at = self.own(wait.at.plus((index * size_of::<A>()) as u64)).cast::<A>();
        debug_assert!(at.is_aligned() && index < wait.count);
        // SAFETY: the core has checked that the words are in a live allocation and aligned. The
        // memory stays mapped while `self` lives, and is accessed atomically or by `simd`.
        unsafe { &*at }
    }
}

/// Tests the condition of `wait` once. Returns the outcome of the wait if the condition is true,
/// and `None` if not. `load` reads the word at an index, with acquire order.
#[inline]
fn look_at(wait: &WaitUntil, load: impl Fn(usize) -> u64) -> Option<Outcome> {
    let look = |i: usize| Some(load(i)).filter(|&seen| wait.holds(i, seen));
    if wait.count == 1 && wait.exclude.is_none() && wait.until == Until::All {
        return look(0).map(Outcome::Word);
    }
    let words = Watch { len: wait.count, look, exclude: |i: usize| wait.excludes(i) };
    if words.all_excluded() {
        return Some(if wait.until == Until::All { Outcome::Word(0) } else { Outcome::Indices(Vec::new()) });
    }
    match wait.until {
        Until::All => words.test_all().then_some(Outcome::Word(0)),
        Until::Any => words.test_any_from(wait.start).map(|i| Outcome::Indices(vec![i])),
        Until::Some => {
            let mut found = Vec::new();
            words.test_some(|i, _| found.push(i));
            (!found.is_empty()).then_some(Outcome::Indices(found))
        }
    }
}
