//! The protocols under a model checker, which tries the interleavings and the stale reads that
//! their orderings allow.
//!
//! Empty unless compiled with `--cfg loom`: `RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 cargo
//! test -p peerweave-device --release --test loom`.
//!
//! Every scenario is a function over the kind of word. It must hold for [`words::Exact`], and must
//! be refuted for each word with one ordering weakened that it relies on, and for each step of the
//! protocol left out: else it would prove nothing.
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

/// A scenario that must fail: by what the checker says of an access that nothing orders, or by the
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

/// Checks every execution of this team, whose shared state `memory` makes anew for each. A rank may
/// give up, for a [`Patience`] that is at its end; there must be executions in which none does.
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

/// The ranks of a scenario, and how far it is explored.
#[derive(Clone, Copy)]
struct Team {
    ranks: usize,
    /// Maximum number of preemptions of a rank; `LOOM_MAX_PREEMPTIONS` lowers it. The states of
    /// three ranks grow so fast that each such scenario sets what fits in a minute.
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

/// A rank has left a scenario, because a wait exceeded its limit.
#[derive(Debug)]
struct GaveUp;

/// Lets another thread run.
#[derive(Clone, Copy)]
struct Patience(u32);

impl Patience {
    /// For two ranks: unlimited, so that the checker itself stops an endless execution.
    const fn endless() -> Self {
        Self(u32::MAX)
    }

    /// For more ranks: limited, because the checker runs the first of several waiting threads and
    /// never the others. An execution in which a rank gives up is cut short, but not a failure:
    /// what happened before is checked.
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

/// Ordinary memory: the checker refutes an execution in which an access is not ordered after a
/// write, or a write after an access.
#[derive(Default)]
struct Plain(UnsafeCell<u64>);

// SAFETY: shared is the number in the cell; the protocol under test synchronises; the checker
// refutes it where it does not, before the number is touched (every `refuted!` test does just
// that).
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

/// `n` values.
fn several<T: Default>(n: usize) -> Vec<T> {
    (0..n).map(|_| T::default()).collect()
}
