//! The waits of a PE. A waiter first spins, or yields if PEs share processors, and then sleeps. A
//! wait that does not succeed ends at its time limit, or when an awaited PE has died or left.
//!
//! The caller polls shared memory and determines which PEs are missing. If one of the first polls
//! succeeds, the waiter does not read the clock.

use crate::sync::peers::Peers;
use peerweave_core::Error;
use std::time::{Duration, Instant};

/// Number of polls before the clock is read for the first time, if every PE has a processor to
/// itself.
const SPINS: u32 = 2000;
/// Like [`SPINS`], but if PEs share processors. The number is small, because the awaited PE may
/// need this processor.
const SPINS_SHARED: u32 = 4;
/// Number of polls between two readings of the clock, if every PE has a processor to itself.
const SPINS_PER_CLOCK: u32 = 200;
/// Number of yields between two readings of the clock, if there are fewer processors than PEs.
const YIELDS_PER_CLOCK: u32 = 16;
/// Time for which a waiter spins before it sleeps, if there are at least as many processors as PEs.
/// The time is longer than a time slice. During this time, a waiter does not yield its processor,
/// because another process could then use the processor for a whole time slice. There is one
/// exception: the waiter yields if another PE runs on the same processor (see
/// [`Peers::shares_my_processor`]).
const SPIN_TIME: Duration = Duration::from_millis(10);
/// Time for which a waiter yields before it sleeps, if there are fewer processors than PEs. A
/// sleeping waiter detects a change about 50 µs late, while a yielding waiter keeps its processor
/// busy.
const YIELD_TIME: Duration = Duration::from_millis(2);
/// Duration of the first sleep.
const SHORTEST_SLEEP: Duration = Duration::from_micros(20);
/// Maximum duration of a sleep.
const LONGEST_SLEEP: Duration = Duration::from_millis(1);
/// Interval at which a waiter checks that the missing PEs are alive.
const LIVENESS_PERIOD: Duration = Duration::from_millis(5);

/// The time limit of a wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    /// After this time, the wait stops without an error, and the caller may continue the wait
    /// later.
    Budget(Duration),
    /// After this time, the operation fails with a timeout.
    Deadline(Duration),
}

/// The reason why a wait or an operation returned before it was complete.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The time budget is spent. Nothing has failed: call the function again to continue.
    BudgetSpent,
    /// The operation failed. Boxed, so that results of the hot paths fit in registers.
    Failed(Box<Error>),
}

impl Stop {
    /// Returns the error of a stopped operation. The limit of the operation must have been a
    /// deadline, not a time budget.
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Failed(error) => *error,
            Self::BudgetSpent => unreachable!("the wait had a time budget, expected a deadline"),
        }
    }
}

impl From<Error> for Stop {
    #[cold]
    fn from(error: Error) -> Self {
        Self::Failed(Box::new(error))
    }
}

/// A wait of a PE, with its limit.
#[derive(Debug)]
pub(crate) struct Waiter<'a> {
    peers: Option<&'a Peers>,
    spins: u32,
    /// Whether there are fewer processors than PEs.
    oversubscribed: bool,
    limit: Limit,
    slow: Option<Slow>,
}

/// The part of the state of a wait that contains times. The first polls of a wait do not read the
/// clock, so a short wait does not have this part.
#[derive(Debug)]
struct Slow {
    since: Instant,
    checked: Instant,
    yields: u32,
    sleep: Option<Duration>,
}

impl<'a> Waiter<'a> {
    /// Starts a wait. If `peers` is `None`, the waiter does not detect an abort of the job. The
    /// waiter then also does not check whether another PE runs on the same processor as this PE.
    #[inline]
    pub(crate) fn new(peers: Option<&'a Peers>, oversubscribed: bool, limit: Limit) -> Self {
        let shared = oversubscribed || peers.is_some_and(Peers::shared_my_processor);
        Self { peers, spins: if shared { SPINS_SHARED } else { SPINS }, oversubscribed, limit, slow: None }
    }

    /// Polls `look` until it returns a value. At intervals, also calls `gone`, which returns an
    /// error if an awaited PE has died or left. If the limit is a deadline and passes, calls
    /// `timeout` with the time waited, and returns its error. If the limit is a time budget and is
    /// spent, returns [`Stop::BudgetSpent`].
    #[inline]
    pub(crate) fn until<T>(
        &mut self,
        mut look: impl FnMut() -> Option<T>,
        mut gone: impl FnMut() -> Result<(), Error>,
        timeout: impl Fn(Duration) -> Error,
    ) -> Result<T, Stop> {
        loop {
            let paused = self.pause(&mut gone, &timeout);
            // `look` is also called after a failure, because the peer may have arrived, and even
            // left, since the last call.
            if let Some(found) = look() {
                return Ok(found);
            }
            paused?;
        }
    }

    /// Pauses between two polls of the caller. [`Waiter::until`] describes the arguments. Returns
    /// an error if the wait must end.
    #[inline]
    pub(crate) fn pause(
        &mut self,
        gone: impl FnMut() -> Result<(), Error>,
        timeout: impl Fn(Duration) -> Error,
    ) -> Result<(), Stop> {
        if self.spins > 0 {
            self.spins -= 1;
            std::hint::spin_loop();
            return Ok(());
        }
        self.pause_slowly(gone, timeout)
    }

    /// Restarts the time limit of the wait. The caller has seen progress, so the full time is
    /// available again.
    pub(crate) fn progressed(&mut self) {
        if let Some(slow) = &mut self.slow {
            slow.since = Instant::now();
            slow.sleep = None;
        }
    }

    #[cold]
    fn pause_slowly(
        &mut self,
        mut gone: impl FnMut() -> Result<(), Error>,
        timeout: impl Fn(Duration) -> Error,
    ) -> Result<(), Stop> {
        let oversubscribed = self.oversubscribed;
        let peers = self.peers;
        // An abort takes precedence, because PEs may be gone because of the abort.
        let mut gone = || {
            let gone = gone();
            peers.map_or(Ok(()), Peers::check_abort)?;
            gone
        };
        let Some(slow) = &mut self.slow else {
            let now = Instant::now();
            self.slow = Some(Slow { since: now, checked: now, yields: 0, sleep: None });
            return Ok(());
        };
        if oversubscribed && slow.sleep.is_none() {
            std::thread::yield_now();
            slow.yields = slow.yields.wrapping_add(1);
            if !slow.yields.is_multiple_of(YIELDS_PER_CLOCK) {
                return Ok(());
            }
        }
        let now = Instant::now();
        let waited = now - slow.since;
        match self.limit {
            Limit::Budget(budget) if waited >= budget => return Err(Stop::BudgetSpent),
            Limit::Deadline(deadline) if waited >= deadline => {
                gone()?;
                return Err(timeout(waited).into());
            }
            _ => {}
        }
        if now - slow.checked >= LIVENESS_PERIOD {
            slow.checked = now;
            gone()?;
        }
        if waited < if oversubscribed { YIELD_TIME } else { SPIN_TIME } {
            match self.peers {
                _ if oversubscribed => {}
                Some(peers) if peers.shares_my_processor() => std::thread::yield_now(),
                _ => self.spins = SPINS_PER_CLOCK,
            }
        } else {
            let rest = match self.limit {
                Limit::Budget(limit) | Limit::Deadline(limit) => limit.saturating_sub(waited),
            };
            let sleep = slow.sleep.unwrap_or(SHORTEST_SLEEP);
            std::thread::sleep(sleep.min(rest));
            slow.sleep = Some((sleep * 2).min(LONGEST_SLEEP));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(why: &'static str) -> Error {
        Error::Unsupported { call: "test", backend: "host", why }
    }

    fn expired(waiter: &mut Waiter<'_>, gone: impl Fn() -> Result<(), Error>, waited: &std::cell::Cell<Duration>) -> Stop {
        let timeout = |time| {
            waited.set(time);
            error("too late")
        };
        waiter.until(|| None::<()>, gone, timeout).unwrap_err()
    }

    #[test]
    fn wait_fails_at_the_deadline_and_reports_the_time_waited() {
        let mut waiter = Waiter::new(None, false, Limit::Deadline(Duration::from_millis(30)));
        let (started, waited) = (Instant::now(), Default::default());
        let stop = expired(&mut waiter, || Ok(()), &waited);
        assert!(matches!(stop, Stop::Failed(_)) && waited.get() >= Duration::from_millis(30));
        assert!(started.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn wait_stops_without_an_error_after_its_time_budget() {
        let mut waiter = Waiter::new(None, true, Limit::Budget(Duration::from_millis(1)));
        let gone = || panic!("liveness was checked within a millisecond");
        assert!(matches!(expired(&mut waiter, gone, &Default::default()), Stop::BudgetSpent));
    }

    #[test]
    fn wait_for_a_gone_peer_ends_before_the_deadline() {
        let mut waiter = Waiter::new(None, true, Limit::Deadline(Duration::from_secs(60)));
        let started = Instant::now();
        let stop = expired(&mut waiter, || Err(error("gone")), &Default::default());
        assert!(stop.into_error().to_string().contains("gone"));
        assert!(started.elapsed() < Duration::from_secs(20));
    }
}
