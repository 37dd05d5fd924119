//! Tests of the protocols under a model checker, which explores the interleavings and the stale
//! reads that the memory orders allow.
//!
//! Empty unless compiled with `--cfg loom`: `RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 cargo
//! test -p peerweave-device --release --test loom`.
//!
//! Every scenario is a function generic over the word type. It must hold for [`words::Exact`]. It
//! must fail for each word with one weakened order on which it relies, and for each omitted step of
//! the protocol; otherwise the scenario would prove nothing.
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

/// Runs a scenario that must fail, either by the checker's report of an unordered access or by the
/// message of an assertion.
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

/// Checks every execution of this team. `memory` creates the shared state anew for each execution.
/// A rank may end early if its [`Patience`] is exhausted; in some executions no rank may do so.
fn check<M: Send + Sync + 'static>(
    team: Team,
    memory: impl Fn() -> M + Send + Sync + 'static,
    body: impl Fn(usize, &M) -> Result<(), GaveUp> + Send + Sync + 'static,
) {
    let mut checker = loom::model::Builder::new();
    let bound = checker.preemption_bound.unwrap_or(usize::from(u8::MAX)).min(team.preemptions);
    checker.preemption_bound = Some(bound);
    // Not the checker's `Arc`: it cannot be dropped by a thread that a refuted execution never
    // started.
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
    assert!(completed.load(Ordering::Relaxed) > 0, "somebody gave up in every execution");
}

/// The ranks of a scenario, and the limit of its exploration.
#[derive(Clone, Copy)]
struct Team {
    ranks: usize,
    /// Maximum number of preemptions of a rank; `LOOM_MAX_PREEMPTIONS` lowers it. The number of
    /// states of three ranks grows so fast that each such scenario sets a limit that fits in a
    /// minute.
    preemptions: usize,
}

impl Team {
    const PAIR: Self = Self { ranks: 2, preemptions: 3 };

    const fn of_three(preemptions: usize) -> Self {
        Self { ranks: 3, preemptions }
    }

    /// Returns the limit of each wait of such a team.
    fn patience(self) -> Patience {
        if self.ranks == 2 { Patience::endless() } else { Patience::short() }
    }
}

/// The error of a rank that ended its scenario early, because a wait exceeded its limit.
#[derive(Debug)]
struct GaveUp;

/// A pause that lets another thread run.
#[derive(Clone, Copy)]
struct Patience(u32);

impl Patience {
    /// Returns an unlimited pause, for two ranks: the checker itself stops an endless execution.
    const fn endless() -> Self {
        Self(u32::MAX)
    }

    /// Returns a limited pause, for more ranks, because the checker runs the first of several
    /// waiting threads and never the others. An execution in which a rank ends early is cut short
    /// but does not fail: its earlier accesses are checked.
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

/// Ordinary memory. The checker fails an execution in which an access is not ordered after a write,
/// or a write not ordered after an access.
#[derive(Default)]
struct Plain(UnsafeCell<u64>);

// SAFETY: the shared number in the cell is synchronised by the protocol under test. If the protocol
// fails to do so, the checker reports that before the number is accessed, which every `refuted!`
// test checks.
unsafe impl Sync for Plain {}

impl Plain {
    fn set(&self, value: u64) {
        // SAFETY: the checker has found the write ordered after all other accesses, else it panics
        // before.
        self.0.with_mut(|number| unsafe { *number = value });
    }

    fn get(&self) -> u64 {
        // SAFETY: the checker has found the read ordered after all writes, else it panics before.
        self.0.with(|number| unsafe { *number })
    }
}

/// Returns `n` default values.
fn several<T: Default>(n: usize) -> Vec<T> {
    (0..n).map(|_| T::default()).collect()
}
