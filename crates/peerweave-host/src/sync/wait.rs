//! How a PE waits: it spins, or yields where PEs share processors, then sleeps, and gives up at its deadline or when somebody it waits for is gone.
//!
//! Knows nothing of what is awaited: the caller looks, and says who is missing. A look that succeeds at once costs no clock reading.

use crate::memory::layout::Segments;
use peerweave_core::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Looks before the clock is read for the first time, where every PE has a processor.
const SPINS: u32 = 2000;
/// The same where PEs share processors: whoever is awaited needs this one.
const SPINS_CROWDED: u32 = 4;
/// Further looks between two looks at the clock, where every PE has a processor.
const SPINS_PER_CLOCK: u32 = 200;
/// Yields between two looks at the clock, where they share them.
const YIELDS_PER_CLOCK: u32 = 16;
/// How long a waiter that has a processor to itself spins. Longer than a time slice: beside strangers' processes a waiter that yields
/// loses its processor for a slice, is late itself then, and so keeps the other side from ever meeting it. But the system may have put two PEs on
/// one processor although there are enough: then the one that waits yields to the other. See [`Neighbours`].
const SPIN_TIME: Duration = Duration::from_millis(10);
/// How long a waiter that shares its processor yields before it sleeps: a sleeping waiter is 50 µs late, a yielding one burns its processor.
const YIELD_TIME: Duration = Duration::from_millis(2);
/// The first sleep.
const SHORTEST_SLEEP: Duration = Duration::from_micros(20);
/// The longest sleep.
const LONGEST_SLEEP: Duration = Duration::from_millis(1);
/// How often those who are missing are asked whether they still live.
const LIVENESS_PERIOD: Duration = Duration::from_millis(5);

/// When a wait is over without success.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    /// After this long the caller wants its thread back; nothing has failed.
    Budget(Duration),
    /// After this long the operation has failed.
    Deadline(Duration),
}

/// Why a pause ended the wait.
#[derive(Debug)]
pub(crate) enum Expired {
    /// The budget is spent.
    Budget,
    /// The deadline has passed; so long it was waited.
    Deadline(Duration),
    /// Somebody who is awaited will not come.
    Failed(Error),
}

/// Where the PEs of this machine run: each says so in its page when it waits for long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Neighbours<'a> {
    pub(crate) segments: &'a Segments,
    pub(crate) me: usize,
    /// Whether this PE shared its processor when it last asked.
    pub(crate) shared: &'a AtomicBool,
}

impl Neighbours<'_> {
    /// Says where this PE runs; whether another one last waited there too.
    fn share_my_processor(&self) -> bool {
        // SAFETY: takes nothing and gives a number, or -1 where the system does not know.
        let processor = unsafe { libc::sched_getcpu() };
        let Ok(processor) = u64::try_from(processor) else { return false };
        let word = |pe: usize| &self.segments.page(pe).processor;
        word(self.me).store(processor + 1, Ordering::Relaxed);
        let others = (0..self.segments.layout().n_pes).filter(|&pe| pe != self.me);
        let shared = others.into_iter().any(|pe| word(pe).load(Ordering::Relaxed) == processor + 1);
        self.shared.store(shared, Ordering::Relaxed);
        shared
    }
}

/// One wait.
#[derive(Debug)]
pub(crate) struct Waiter<'a> {
    spins: u32,
    crowded: bool,
    neighbours: Option<Neighbours<'a>>,
    limit: Limit,
    slow: Option<Slow>,
}

#[derive(Debug)]
struct Slow {
    since: Instant,
    checked: Instant,
    yields: u32,
    sleep: Option<Duration>,
}

impl<'a> Waiter<'a> {
    /// A wait, where there are fewer processors than PEs (`crowded`) or not.
    #[inline]
    pub(crate) fn new(crowded: bool, neighbours: Option<Neighbours<'a>>, limit: Limit) -> Self {
        let short = crowded || neighbours.is_some_and(|neighbours| neighbours.shared.load(Ordering::Relaxed));
        Self { spins: if short { SPINS_CROWDED } else { SPINS }, crowded, neighbours, limit, slow: None }
    }

    /// Passes a little time between two looks. `gone` is asked now and then whether somebody who is awaited will not come.
    #[inline]
    pub(crate) fn pause(&mut self, gone: impl FnMut() -> Result<(), Error>) -> Result<(), Expired> {
        if self.spins > 0 {
            self.spins -= 1;
            std::hint::spin_loop();
            return Ok(());
        }
        self.slow(gone)
    }

    /// Starts spinning anew after progress; the deadline counts from here.
    pub(crate) fn progressed(&mut self) {
        if let Some(slow) = &mut self.slow {
            slow.since = Instant::now();
            slow.sleep = None;
        }
    }

    #[cold]
    fn slow(&mut self, mut gone: impl FnMut() -> Result<(), Error>) -> Result<(), Expired> {
        let crowded = self.crowded;
        let Some(slow) = &mut self.slow else {
            let now = Instant::now();
            self.slow = Some(Slow { since: now, checked: now, yields: 0, sleep: None });
            return Ok(());
        };
        if crowded && slow.sleep.is_none() {
            std::thread::yield_now();
            slow.yields = slow.yields.wrapping_add(1);
            if !slow.yields.is_multiple_of(YIELDS_PER_CLOCK) {
                return Ok(());
            }
        }
        let now = Instant::now();
        let waited = now - slow.since;
        match self.limit {
            Limit::Budget(budget) if waited >= budget => return Err(Expired::Budget),
            Limit::Deadline(deadline) if waited >= deadline => {
                gone().map_err(Expired::Failed)?;
                return Err(Expired::Deadline(waited));
            }
            _ => {}
        }
        if now - slow.checked >= LIVENESS_PERIOD {
            slow.checked = now;
            gone().map_err(Expired::Failed)?;
        }
        if waited < if crowded { YIELD_TIME } else { SPIN_TIME } {
            match self.neighbours {
                _ if crowded => {}
                Some(neighbours) if neighbours.share_my_processor() => std::thread::yield_now(),
                _ => self.spins = SPINS_PER_CLOCK,
            }
        } else {
            let left = match self.limit {
                Limit::Budget(limit) | Limit::Deadline(limit) => limit.saturating_sub(waited),
            };
            let sleep = slow.sleep.unwrap_or(SHORTEST_SLEEP);
            std::thread::sleep(sleep.min(left));
            slow.sleep = Some((sleep * 2).min(LONGEST_SLEEP));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_ends_the_wait_and_says_how_long_it_was() {
        let mut waiter = Waiter::new(false, None, Limit::Deadline(Duration::from_millis(30)));
        let started = Instant::now();
        let expired = loop {
            if let Err(expired) = waiter.pause(|| Ok(())) {
                break expired;
            }
        };
        assert!(matches!(expired, Expired::Deadline(waited) if waited >= Duration::from_millis(30)));
        assert!(started.elapsed() < Duration::from_secs(2));
    }

    #[test]
    fn a_budget_ends_the_wait_without_failure() {
        let mut waiter = Waiter::new(true, None, Limit::Budget(Duration::from_millis(1)));
        let expired = loop {
            if let Err(expired) = waiter.pause(|| panic!("nobody is asked within a millisecond")) {
                break expired;
            }
        };
        assert!(matches!(expired, Expired::Budget));
    }

    #[test]
    fn a_missing_peer_is_asked_for_well_before_the_deadline() {
        let mut waiter = Waiter::new(true, None, Limit::Deadline(Duration::from_secs(60)));
        let started = Instant::now();
        let gone = || Err(Error::Unsupported { call: "test", backend: "host", why: "gone" });
        loop {
            if let Err(expired) = waiter.pause(gone) {
                assert!(matches!(expired, Expired::Failed(_)));
                break;
            }
        }
        assert!(started.elapsed() < Duration::from_secs(1));
    }
}
