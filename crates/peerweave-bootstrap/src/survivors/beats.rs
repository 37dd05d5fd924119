//! Shows which PEs run: each PE counts while it takes part, and the others read its counter.
//!
//! All PEs of an agreement fail if one of them is stopped, each in its own way and at its own time.
//! The counters tell the stopped PE from those that wait for it.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::SurvivorWords;

/// The pause between two counts while another thread of the PE does the work.
pub(super) const PAUSE: Duration = Duration::from_millis(1);

/// A PE that takes part and has not counted for this time has stopped. A PE that runs counts every
/// millisecond, or later if its processor is busy.
const SILENCE: Duration = Duration::from_secs(1);

type Words<'a> = dyn Fn(usize) -> &'a SurvivorWords + Sync + 'a;

/// When this PE has last seen each PE run.
pub(super) struct Beats {
    start: Instant,
    seen: Mutex<Vec<Seen>>,
}

struct Seen {
    count: u64,
    /// The time of the last change; `None` if the counter has not changed.
    at: Option<Instant>,
}

impl Beats {
    pub(super) fn new(n_pes: usize, words: &Words<'_>) -> Self {
        let count = |pe: usize| words(pe).beat.load(Ordering::Relaxed);
        let seen = (0..n_pes).map(|pe| Seen { count: count(pe), at: None }).collect();
        Self { start: Instant::now(), seen: Mutex::new(seen) }
    }

    /// Counts for this PE, and looks at the others.
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

    /// Returns whether a PE has counted since this PE has called.
    pub(super) fn has_run(&self, pe: usize) -> bool {
        self.last(pe).is_some()
    }

    /// Returns whether a PE that takes part does not run. A short call needs less silence.
    pub(super) fn has_stopped(&self, pe: usize) -> bool {
        self.last(pe).unwrap_or(self.start).elapsed() > SILENCE.min(self.start.elapsed() / 2)
    }

    fn last(&self, pe: usize) -> Option<Instant> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)[pe].at
    }
}
