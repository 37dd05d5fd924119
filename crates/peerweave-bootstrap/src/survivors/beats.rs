//! Detects PEs that are stopped, for example by a signal. During an agreement each PE increments a
//! counter, and the other PEs read the counter.
//!
//! If one PE is stopped, the agreement fails on all PEs, but at different places and times. The
//! counters show which PE is stopped, and which PEs only wait for the stopped PE.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::SurvivorWords;

/// Pause between two increments of this PE's counter in `Survivors::beating`.
pub(super) const PAUSE: Duration = Duration::from_millis(1);

/// Time after which a participating PE with an unchanged counter is considered stopped. A running
/// PE increments its counter every millisecond, or less often if its processor is busy.
const SILENCE: Duration = Duration::from_secs(1);

type Words<'a> = dyn Fn(usize) -> &'a SurvivorWords + Sync + 'a;

/// For each PE, the last known counter and the time at which this PE last saw the counter change.
pub(super) struct Beats {
    start: Instant,
    seen: Mutex<Vec<Seen>>,
}

struct Seen {
    count: u64,
    /// Time at which this PE last saw the counter change. `None` if the counter has not changed.
    at: Option<Instant>,
}

impl Beats {
    pub(super) fn new(n_pes: usize, words: &Words<'_>) -> Self {
        let count = |pe: usize| words(pe).beat.load(Ordering::Relaxed);
        let seen = (0..n_pes).map(|pe| Seen { count: count(pe), at: None }).collect();
        Self { start: Instant::now(), seen: Mutex::new(seen) }
    }

    /// Increments the counter of this PE, and reads the counters of all PEs.
    pub(super) fn beat(&self, me: usize, words: &Words<'_>) {
        words(me).beat.fetch_add(1, Ordering::Relaxed);
        let now = Instant::now();
        for (pe, seen) in self.seen.lock().unwrap_or_else(PoisonError::into_inner).iter_mut().enumerate() {
            let count = words(pe).beat.load(Ordering::Relaxed);
            if count != seen.count {
                *seen = Seen { count, at: Some(now) };
            }
        }
    }

    /// Returns whether [`beat`](Self::beat) has seen the counter of a PE change since this
    /// [`Beats`] was created.
    pub(super) fn has_run(&self, pe: usize) -> bool {
        self.last(pe).is_some()
    }

    /// Returns whether a participating PE is considered stopped. A PE is considered stopped if its
    /// counter has not changed for longer than a limit. The limit is [`SILENCE`], or half of the
    /// time since the creation of this value, whichever is shorter.
    pub(super) fn has_stopped(&self, pe: usize) -> bool {
        self.last(pe).unwrap_or(self.start).elapsed() > SILENCE.min(self.start.elapsed() / 2)
    }

    fn last(&self, pe: usize) -> Option<Instant> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)[pe].at
    }
}
