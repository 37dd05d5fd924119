//! The waits of a PE. A waiter first spins between polls, or yields its processor if PEs share
//! processors. Later it sleeps between polls. A wait that does not succeed ends at its time limit,
//! or when an awaited PE has died or left.
//!
//! The caller polls shared memory and determines which PEs are missing. If one of the first polls
//! succeeds, the waiter does not read the clock.

use crate::sync::peers::Peers;
use crate::sync::root_cause;
use peerweave_core::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Number of polls before the clock is read for the first time, if every PE has a processor to
/// itself.
const SPINS: u32 = 2000;
/// Number of polls before the clock is read for the first time, if PEs share processors. The number
/// is smaller than [`SPINS`], because the awaited PE may need this processor.
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
/// Duration of the first sleep in a wait. Each further sleep of the wait is twice as long, up to
/// [`LONGEST_SLEEP`].
const SHORTEST_SLEEP: Duration = Duration::from_micros(20);
/// Maximum duration of a sleep.
const LONGEST_SLEEP: Duration = Duration::from_millis(1);
/// Interval at which a waiter checks that the missing PEs are alive.
const LIVENESS_PERIOD: Duration = Duration::from_millis(5);
/// Time before its deadline at which a waiter begins to publish the PE for which it waits. If the
/// deadline is shorter than twice this time, the waiter begins at half of the deadline.
const REPORT_BEFORE: Duration = Duration::from_secs(5);

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
    /// The time budget is spent, but nothing has failed. The caller can call the same function
    /// again to continue.
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
            Self::BudgetSpent => unreachable!("the wait stopped after its time budget, expected a wait with a deadline"),
        }
    }
}

impl From<Error> for Stop {
    #[cold]
    fn from(error: Error) -> Self {
        Self::Failed(Box::new(error))
    }
}

/// One wait of this PE: its time limit, and the state that determines how the wait polls and
/// sleeps.
#[derive(Debug)]
pub(crate) struct Waiter<'a> {
    peers: Option<&'a Peers>,
    spins: u32,
    /// Whether there are fewer processors than PEs.
    oversubscribed: bool,
    limit: Limit,
    slow: Option<SlowWait<'a>>,
}

/// The part of the state of a wait that contains times. The first polls of a wait do not read the
/// clock, so a short wait does not have this part.
#[derive(Debug)]
pub(crate) struct SlowWait<'a> {
    since: Instant,
    /// Time from which [`Self::report`] reports the wait. `None` if the wait has a time budget,
    /// because such a wait is short.
    report_at: Option<Instant>,
    report: Option<Report<'a>>,
    checked: Instant,
    yields: u32,
    sleep: Option<Duration>,
}

/// A report that this PE has waited for a long time. The report is stored in this PE's failure word
/// for a team. Dropping this value clears the word.
#[derive(Debug)]
struct Report<'a> {
    word: &'a AtomicU64,
    value: u64,
}

impl Report<'_> {
    /// Returns the value of the report, and leaves this value in the failure word.
    fn into_value(self) -> u64 {
        let value = self.value;
        std::mem::forget(self);
        value
    }
}

impl Drop for Report<'_> {
    fn drop(&mut self) {
        // The exchange fails if the team has failed in the meantime. The word keeps the failure.
        let _ = self.word.compare_exchange(self.value, 0, Ordering::Release, Ordering::Relaxed);
    }
}

impl<'a> SlowWait<'a> {
    fn new(limit: Limit) -> Self {
        let now = Instant::now();
        let report_at = Self::report_at(now, limit);
        Self { since: now, report_at, report: None, checked: now, yields: 0, sleep: None }
    }

    /// Returns the time from which [`Self::report`] reports a wait that starts at `now`. Returns
    /// `None` if the limit is a time budget.
    fn report_at(now: Instant, limit: Limit) -> Option<Instant> {
        match limit {
            Limit::Budget(_) => None,
            Limit::Deadline(deadline) => now.checked_add(deadline - (deadline / 2).min(REPORT_BEFORE)),
        }
    }

    /// Reports to the other members of the team in slot `slot` that this PE waits for PE `awaited`,
    /// if the wait is long. A PE whose deadline passes then does not name this PE as the cause. The
    /// report ends with the wait. Does nothing if another wait of this PE in the team has reported.
    pub(crate) fn report(&mut self, peers: &'a Peers, slot: usize, awaited: usize) {
        if self.report_at.is_none_or(|at| Instant::now() < at) {
            return;
        }
        let (word, value) = (&peers.segments.team_words(peers.me, slot).failure.word, root_cause::waits_for(awaited));
        // The report of another team ends before this report.
        let earlier = self.report.take_if(|report| std::ptr::eq(report.word, word));
        self.report = None;
        let expected = earlier.map_or(0, Report::into_value);
        if word.compare_exchange(expected, value, Ordering::Release, Ordering::Relaxed).is_ok() {
            self.report = Some(Report { word, value });
        }
    }
}

impl<'a> Waiter<'a> {
    /// Starts a wait. If `peers` is `None`, the waiter does not detect an abort of the job. The
    /// waiter then also does not check whether another PE runs on the same processor as this PE.
    #[inline]
    pub(crate) fn new(peers: Option<&'a Peers>, oversubscribed: bool, limit: Limit) -> Self {
        let shared = oversubscribed || peers.is_some_and(Peers::shared_my_processor);
        Self { peers, spins: if shared { SPINS_SHARED } else { SPINS }, oversubscribed, limit, slow: None }
    }

    /// Polls `look` until it returns a value. At intervals, also calls `gone`. That function
    /// returns an error if an awaited PE has died or left, and may call [`SlowWait::report`]. If a
    /// deadline passes, returns the error of `timeout`, which gets the time waited. If a time
    /// budget is spent, returns [`Stop::BudgetSpent`].
    #[inline]
    pub(crate) fn until<T>(
        &mut self,
        mut look: impl FnMut() -> Option<T>,
        mut gone: impl FnMut(&mut SlowWait<'a>) -> Result<(), Error>,
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

    /// Pauses once, for a caller that polls in its own loop. `gone` and `timeout` are called as in
    /// [`Waiter::until`]. Returns an error or [`Stop::BudgetSpent`] if the wait must end.
    #[inline]
    pub(crate) fn pause(
        &mut self,
        gone: impl FnMut(&mut SlowWait<'a>) -> Result<(), Error>,
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
            let restarted = SlowWait::new(self.limit);
            *slow = SlowWait { checked: slow.checked, yields: slow.yields, ..restarted };
        }
    }

    #[cold]
    fn pause_slowly(
        &mut self,
        mut gone: impl FnMut(&mut SlowWait<'a>) -> Result<(), Error>,
        timeout: impl Fn(Duration) -> Error,
    ) -> Result<(), Stop> {
        let oversubscribed = self.oversubscribed;
        let peers = self.peers;
        // An abort takes precedence, because PEs may be gone because of the abort.
        let mut gone = |slow: &mut SlowWait<'a>| {
            let gone = gone(slow);
            peers.map_or(Ok(()), Peers::check_abort)?;
            gone
        };
        let Some(slow) = &mut self.slow else {
            self.slow = Some(SlowWait::new(self.limit));
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
                gone(slow)?;
                return Err(timeout(waited).into());
            }
            _ => {}
        }
        if now - slow.checked >= LIVENESS_PERIOD {
            slow.checked = now;
            gone(slow)?;
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
        let gone = |_: &mut SlowWait<'_>| gone();
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
    fn wait_ends_without_an_error_when_the_time_budget_is_spent() {
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
