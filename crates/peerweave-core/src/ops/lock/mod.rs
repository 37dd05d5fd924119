//! Locks of all PEs of a job.
//!
//! The state of a lock is one word: free, held by a PE, or passed on to a PE. Each PE has another
//! word, set while it waits. The holder passes the lock on to the next waiting PE, in the order of
//! PEs after its own, and frees the lock only if none waits. So a PE that waits gets the lock after
//! at most two turns of each other PE. Only changes of the state decide who holds the lock:
//! a PE that dies between two changes leaves a state that names it.

mod gate;
mod words;

use crate::Result;
use crate::arguments::symmetric::Symmetric;
use crate::backend::error::{Error, Timeout};
use crate::shared::Shared;
use crate::world::world::World;
use gate::Gate;
use peerweave_types::Pe;
use std::fmt;
use std::panic::Location;
use std::time::{Duration, Instant};
use words::{State, Words};

/// A lock that one thread of one PE holds at a time. [`World::alloc_lock`] makes it.
///
/// # Ordering
/// A holder sees what the holders before it did under the lock: accesses to memory of the host,
/// and puts, gets, signals and atomics in their `_blocking` forms. Wait for the tickets of
/// stream-ordered operations, or for the quiet of a [`Context`](crate::Context), before the lock
/// is unlocked.
///
/// # Order of waiters
/// The holder passes the lock on to the next PE that waits, in the order of PEs after its own: no
/// PE waits for more than two turns of each other PE. Threads of one PE that wait for the same lock
/// take turns in any order. A thread that locks a lock that it holds waits until the deadline; the
/// error says that this PE already holds the lock.
///
/// # Death of the holder
/// If the PE that holds the lock dies, or leaves the job, what the lock protects may be in any
/// state. So [`Lock::lock`] and [`Lock::try_lock`] then return
/// [`Error::Peer`](crate::Error::Peer), which names that PE: on every PE, each time, until one
/// PE has called [`Lock::take_over`]. That call returns a guard like the others, and
/// [`LockGuard::taken_from`] says from whom. A PE that dies while it waits is passed over.
///
/// The `host` backend notices a death within milliseconds, the `cuda` backend when the connection
/// of the PE to the rendezvous closes; there, a PE that leaves the job in order is noticed only at
/// the deadline.
///
/// # Example
/// ```
/// use peerweave::{Rank, World};
///
/// # fn main() -> peerweave::Result<()> {
/// let world = World::from_env()?;
/// let (team, zero) = (world.team(), Rank::new(0));
/// let (lock, account) = (world.alloc_lock()?, world.alloc_zeroed::<i64>(2)?);
/// for _ in 0..10 {
///     let guard = lock.lock()?;
///     let mut both = [0; 2]; // on PE 0
///     team.get_blocking(&account, &mut both, zero)?;
///     team.put_blocking(&[both[0] + 1, both[1] - 1], &account, zero)?;
///     guard.unlock()?;
/// }
/// team.barrier_blocking()?;
/// assert_eq!(team.g_blocking(&account, 0, zero)?, 10 * world.n_pes() as i64);
/// lock.release()?; // collective, like the allocation
/// account.release()?;
/// assert!(world.finalize()?.is_clean());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Lock {
    words: Words,
    gate: Gate,
    me: Pe,
}

/// A held [`Lock`]. Dropping it unlocks; [`LockGuard::unlock`] also returns errors.
///
/// Any thread of the PE may drop it. A guard that is forgotten holds the lock forever.
#[must_use = "dropping the guard unlocks the lock"]
pub struct LockGuard<'a> {
    lock: &'a Lock,
    taken_from: Option<Pe>,
}

/// How a call behaves if it does not get the lock at once.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Wait,
    Try,
    TakeOver,
}

/// How long a PE that gives up waits for a grant that it was promised.
const GRACE: Duration = Duration::from_millis(100);

impl World {
    /// Allocates a lock, which is free.
    ///
    /// # Collective
    /// As for [`World::alloc`]: all PEs must call, in the same order as other allocations and
    /// releases.
    ///
    /// # Errors
    /// As for [`World::alloc`].
    #[track_caller]
    pub fn alloc_lock(&self) -> Result<Lock> {
        let (call, len) = ("alloc_lock", Words::len(self.n_pes()));
        let memory = Symmetric::allocate(call, &self.shared, len, 64, true, Location::caller())?;
        Ok(Lock { words: Words::new(memory, self.team()), gate: Gate::default(), me: self.my_pe() })
    }
}

impl Lock {
    /// Waits until this thread holds the lock, up to the deadline of the world.
    ///
    /// # Errors
    /// [`Error::Peer`](crate::Error::Peer) if the holder has died or left the job: see [Death of
    /// the holder](Lock#death-of-the-holder); [`Error::Timeout`](crate::Error::Timeout) at the
    /// deadline, which names the holder ([`Timeout::holder`](crate::Timeout::holder)), or the PE to
    /// which the lock was passed on; [`Misuse`](crate::Misuse) after finalize.
    pub fn lock(&self) -> Result<LockGuard<'_>> {
        self.wait("lock", Mode::Wait, self.shared().deadline)
    }

    /// Like [`Lock::lock`], for no longer than `limit`.
    ///
    /// # Errors
    /// As for [`Lock::lock`].
    pub fn lock_within(&self, limit: Duration) -> Result<LockGuard<'_>> {
        self.wait("lock_within", Mode::Wait, limit)
    }

    /// Locks if no PE and no thread of this PE holds the lock now; otherwise returns `None`.
    ///
    /// # Errors
    /// As for [`Lock::lock`], without the deadline.
    pub fn try_lock(&self) -> Result<Option<LockGuard<'_>>> {
        self.acquire("try_lock", Mode::Try, Duration::ZERO)
    }

    /// Like [`Lock::lock`], but takes the lock over from a holder that has died or left the job.
    /// The caller must bring what the lock protects into a valid state:
    /// [`LockGuard::taken_from`]. Waits as [`Lock::lock`] while the holder is alive.
    ///
    /// # Errors
    /// As for [`Lock::lock`], except for the death of the holder.
    pub fn take_over(&self) -> Result<LockGuard<'_>> {
        self.wait("take_over", Mode::TakeOver, self.shared().deadline)
    }

    /// Returns the PE that holds the lock, or to which the lock was passed on, at this moment; for
    /// messages.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) after finalize; errors of the backend.
    pub fn holder(&self) -> Result<Option<Pe>> {
        self.words.state("holder").map(State::pe)
    }

    /// Returns the PEs that wait for the lock at this moment, ascending; for messages.
    ///
    /// # Errors
    /// As for [`Lock::holder`].
    pub fn waiters(&self) -> Result<Vec<Pe>> {
        let mut waiters = Vec::new();
        for pe in (0..self.words.team().size() as u32).map(Pe::new) {
            if self.words.waits("waiters", pe)? {
                waiters.push(pe);
            }
        }
        Ok(waiters)
    }

    /// Frees the memory of the lock.
    ///
    /// # Collective
    /// As [`Symmetric::release`](crate::Symmetric::release). A PE that holds the lock cannot call,
    /// because its guard borrows the lock: the others fail at the deadline and name that PE.
    ///
    /// # Errors
    /// As for [`Symmetric::release`](crate::Symmetric::release).
    pub fn release(self) -> Result<()> {
        self.words.into_memory().release()
    }

    fn wait(&self, call: &'static str, mode: Mode, limit: Duration) -> Result<LockGuard<'_>> {
        self.acquire(call, mode, limit).map(|guard| guard.expect("a wait returns a guard or an error"))
    }

    fn acquire(&self, call: &'static str, mode: Mode, limit: Duration) -> Result<Option<LockGuard<'_>>> {
        self.shared().usable(call)?;
        let start = Instant::now();
        // A limit that exceeds the clock is a year.
        let end = start.checked_add(limit).unwrap_or_else(|| start + Duration::from_secs(365 * 24 * 3600));
        if !self.gate.enter(end) {
            // Another thread of this PE holds the lock, or waits for it.
            let holder = self.words.state(call).ok().and_then(State::pe).or(Some(self.me));
            return if mode == Mode::Try { Ok(None) } else { Err(self.timed_out(call, start, holder)) };
        }
        let taken = self.take(call, mode, start, end);
        if !matches!(taken, Ok(Some(_))) {
            self.gate.leave();
        }
        Ok(taken?.map(|taken_from| LockGuard { lock: self, taken_from }))
    }

    /// Takes the lock. The caller has entered the gate. Returns `None` if `mode` is [`Mode::Try`]
    /// and another PE holds the lock; otherwise the PE from which the lock was taken over, if any.
    fn take(&self, call: &'static str, mode: Mode, start: Instant, end: Instant) -> Result<Option<Option<Pe>>> {
        if self.words.change(call, State::Free, State::Held(self.me))? {
            return Ok(Some(None));
        }
        if mode == Mode::Try {
            return self.look(call, mode, true).map(std::result::Result::ok);
        }
        self.words.set_waits(call, self.me, true)?;
        let mut pause = Pause::new();
        let failed = loop {
            let is_check = pause.is_check();
            match self.look(call, mode, is_check) {
                Ok(Ok(from)) => {
                    // The lock is passed on only by its holder, which is this PE.
                    self.words.set_waits(call, self.me, false)?;
                    return Ok(Some(from));
                }
                Ok(Err(state)) if is_check && Instant::now() >= end => break self.timed_out(call, start, state.pe()),
                Ok(Err(_)) => pause.pause(),
                Err(error) => break error,
            }
        };
        if self.words.set_waits(call, self.me, false)? {
            return Err(failed);
        }
        // The holder has chosen this PE, and its next change of the state passes the lock on.
        let grace = Instant::now() + GRACE;
        while Instant::now() < grace {
            if let Ok(from) = self.look(call, Mode::Wait, true)? {
                return Ok(Some(from));
            }
            pause.pause();
        }
        // The holder was stopped between the two changes. The next call of this PE accepts the
        // lock.
        Err(failed)
    }

    /// Takes the lock if this PE may; otherwise returns the state. If `is_check`, also checks
    /// whether the holder is alive.
    fn look(&self, call: &'static str, mode: Mode, is_check: bool) -> Result<std::result::Result<Option<Pe>, State>> {
        let state = self.words.state(call)?;
        let from = match state {
            State::Free => None,
            State::Passed(pe) if pe == self.me => None,
            State::Held(pe) | State::Passed(pe) => {
                let lost = || self.shared().backend.lost(call, pe);
                match (is_check && pe != self.me).then(lost).flatten() {
                    None => return Ok(Err(state)),
                    Some(error) if !matches!(error, Error::Peer { .. }) => return Err(error),
                    // It died before it noticed that the lock was passed on to it.
                    Some(_) if state == State::Passed(pe) => None,
                    Some(_) if mode == Mode::TakeOver => Some(pe),
                    // It may have unlocked, and left, after the state was read.
                    Some(error) if self.words.state(call)? == state => {
                        return Err(self.shared().backend.record_loss(error));
                    }
                    Some(_) => return Ok(Err(state)),
                }
            }
        };
        Ok(if self.words.change(call, state, State::Held(self.me))? { Ok(from) } else { Err(state) })
    }

    /// Passes the lock on, or frees it.
    fn unlock(&self) -> Result<()> {
        const CALL: &str = "unlock";
        let published = self.words.publish(CALL);
        let passed_on = self.pass_on(CALL);
        self.gate.leave();
        published.and(passed_on)
    }

    fn pass_on(&self, call: &'static str) -> Result<()> {
        let n_pes = self.words.team().size() as u32;
        let mine = State::Held(self.me);
        for distance in 1..n_pes {
            let pe = Pe::new((self.me.get() + distance) % n_pes);
            // Only one of the holder, and of the PE that gives up, clears the word.
            if self.words.waits(call, pe)? && self.words.set_waits(call, pe, false)? {
                return self.words.change(call, mine, State::Passed(pe)).map(drop);
            }
        }
        self.words.change(call, mine, State::Free).map(drop)
    }

    fn shared(&self) -> &Shared {
        &self.words.team().inner.shared
    }

    fn timed_out(&self, call: &'static str, start: Instant, holder: Option<Pe>) -> Error {
        let (team, waited) = (self.words.team().name(), start.elapsed());
        // A PE does not miss itself.
        let missing = holder.into_iter().filter(|&pe| pe != self.me).collect();
        Timeout { holder, ..Timeout::new(call, team, waited, missing) }.into()
    }
}

impl LockGuard<'_> {
    /// Returns the PE that held the lock when it died or left, if this guard took the lock over
    /// from it: see [`Lock::take_over`].
    pub fn taken_from(&self) -> Option<Pe> {
        self.taken_from
    }

    /// Unlocks. Waits for no PE.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) after finalize; errors of the backend.
    pub fn unlock(self) -> Result<()> {
        let lock = self.lock;
        std::mem::forget(self);
        lock.unlock()
    }
}

impl Drop for LockGuard<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.lock.unlock() {
            tracing::warn!(pe = self.lock.me.get(), %error, "a lock was not unlocked");
        }
    }
}

impl fmt::Debug for LockGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard").field("taken_from", &self.taken_from).finish_non_exhaustive()
    }
}

/// The pauses of a waiter between two reads: it spins, then yields, then sleeps.
struct Pause {
    pauses: u32,
    started: Instant,
    next_check: Duration,
}

impl Pause {
    const SPINS: u32 = 64;
    const YIELDING: Duration = Duration::from_micros(500);
    const BETWEEN_CHECKS: Duration = Duration::from_millis(1);

    fn new() -> Self {
        Self { pauses: 0, started: Instant::now(), next_check: Self::BETWEEN_CHECKS }
    }

    /// Returns whether the waiter should check the holder and the deadline now.
    fn is_check(&mut self) -> bool {
        if self.pauses < Self::SPINS {
            return false;
        }
        let elapsed = self.started.elapsed();
        let is_due = elapsed >= self.next_check;
        if is_due {
            self.next_check = elapsed + Self::BETWEEN_CHECKS;
        }
        is_due
    }

    fn pause(&mut self) {
        self.pauses = self.pauses.saturating_add(1);
        if self.pauses < Self::SPINS {
            return std::hint::spin_loop();
        }
        let elapsed = self.started.elapsed();
        if elapsed < Self::YIELDING {
            return std::thread::yield_now();
        }
        // A longer wait bears a later notice.
        std::thread::sleep((elapsed / 20).clamp(Duration::from_micros(20), Duration::from_millis(1)));
    }
}
