//! Tests of the protocols under the model checker loom. Loom explores all interleavings, and all
//! stale reads that the memory orders allow.
//!
//! Empty unless compiled with `--cfg loom`: `RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 cargo
//! test -p peerweave-device --release --test loom`.
//!
//! Every scenario is a function that is generic over the word type. The scenario must succeed for
//! [`words::Exact`]. The scenario must fail for words with a weakened memory order, and if a step
//! of the protocol is omitted. These failures prove that the scenario can find errors. The tests of
//! such failures have names that end in `_is_refuted`.
#![cfg(loom)]

mod barrier;
mod flag;
mod mailbox;
mod put_signal;
mod sealed;
mod words;

use loom::cell::UnsafeCell;
use peerweave_device::Pause;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Declares a test of a scenario that must fail: by loom's panic for an unordered access, or by the
/// given message of an assertion.
macro_rules! refuted {
    ($name:ident, $scenario:expr) => {
        $crate::refuted!($name, "Causality violation", $scenario);
    };
    ($name:ident, $message:literal, $scenario:expr) => {
        #[test]
        #[should_panic(expected = $message)]
        fn $name() {
            $scenario;
        }
    };
}
pub(crate) use refuted;

/// Checks every execution of a team that loom explores. `memory` creates the shared state of each
/// execution. A rank may end early if its [`Patience`] is exhausted. In at least one execution all
/// ranks must complete.
fn check<M: Send + Sync + 'static>(
    team: Team,
    memory: impl Fn() -> M + Send + Sync + 'static,
    body: impl Fn(usize, &M) -> Result<(), GaveUp> + Send + Sync + 'static,
) {
    let mut checker = loom::model::Builder::new();
    let bound = checker.preemption_bound.unwrap_or(usize::from(u8::MAX)).min(team.preemptions);
    checker.preemption_bound = Some(bound);
    // Not loom's `Arc`: if an execution fails before a thread starts, dropping loom's `Arc` in that
    // thread would panic.
    let body = Arc::new(body);
    let completed = Arc::new(AtomicUsize::new(0));
    let count = completed.clone();
    checker.check(move || {
        let memory = Arc::new(memory());
        let others: Vec<_> = (1..team.ranks)
            .map(|rank| {
                let (memory, body) = (memory.clone(), body.clone());
                loom::thread::spawn(move || body(rank, &memory))
            })
            .collect();
        let mut outcome = body(0, &memory);
        for other in others {
            outcome = outcome.and(other.join().unwrap());
        }
        count.fetch_add(usize::from(outcome.is_ok()), Ordering::Relaxed);
    });
    assert!(
        completed.load(Ordering::Relaxed) > 0,
        "in every execution a rank gave up, expected an execution in which all ranks complete"
    );
}

/// The number of ranks of a scenario, and the limit of its exploration.
#[derive(Clone, Copy)]
struct Team {
    ranks: usize,
    /// Maximum number of preemptions in an execution. `LOOM_MAX_PREEMPTIONS` can lower the maximum.
    /// With three ranks the number of states grows fast, so each such scenario sets a limit with
    /// which the scenario takes less than a minute.
    preemptions: usize,
}

impl Team {
    const PAIR: Self = Self { ranks: 2, preemptions: 3 };

    const fn of_three(preemptions: usize) -> Self {
        Self { ranks: 3, preemptions }
    }

    /// Returns the pause for a wait of this team.
    fn patience(self) -> Patience {
        if self.ranks == 2 { Patience::endless() } else { Patience::short() }
    }
}

/// The error of a rank that ended its scenario early, because a wait exceeded its number of polls.
#[derive(Debug)]
struct GaveUp;

/// A pause that lets another thread run, and fails after a number of calls.
#[derive(Clone, Copy)]
struct Patience(u32);

impl Patience {
    /// Returns an unlimited pause, for two ranks. Loom itself fails an endless execution.
    const fn endless() -> Self {
        Self(u32::MAX)
    }

    /// Returns a pause that succeeds once, for three ranks. Among several waiting threads, loom
    /// always runs the first thread, so an unlimited wait would not end. If a rank ends early, the
    /// execution does not fail, and its earlier accesses are checked.
    const fn short() -> Self {
        Self(1)
    }
}

impl Pause for Patience {
    type Error = GaveUp;

    fn pause(&mut self) -> Result<(), GaveUp> {
        self.0 = self.0.checked_sub(1).ok_or(GaveUp)?;
        loom::thread::yield_now();
        Ok(())
    }
}

/// Ordinary memory. Loom fails an execution in which a write and another access are not ordered
/// with respect to each other.
#[derive(Default)]
struct Plain(UnsafeCell<u64>);

// SAFETY: the number in the cell is shared. The protocol under test synchronises the accesses to
// the number. If the protocol does not, loom panics before the number is accessed. The `refuted!`
// tests check that panic.
unsafe impl Sync for Plain {}

impl Plain {
    fn set(&self, value: u64) {
        // SAFETY: loom has checked that the write is ordered after all other accesses; if not, loom
        // has panicked.
        self.0.with_mut(|number| unsafe { *number = value });
    }

    fn get(&self) -> u64 {
        // SAFETY: loom has checked that the read is ordered after all writes; if not, loom has
        // panicked.
        self.0.with(|number| unsafe { *number })
    }
}

/// Returns `n` default values.
fn several<T: Default>(n: usize) -> Vec<T> {
    (0..n).map(|_| T::default()).collect()
}
