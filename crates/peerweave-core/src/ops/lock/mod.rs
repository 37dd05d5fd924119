//! Locks that all PEs of a job share.
//!
//! The state of a lock is one word: free, held by a PE, or passed on to a PE. Each PE also has a
//! word that is set while the PE waits. The holder passes the lock on to the next waiting PE, in
//! cyclic order of PE numbers, starting after the holder's number. If no PE waits, the holder frees
//! the lock. So while a PE waits, every other PE holds the lock at most twice.
//!
//! Only the state word decides which PE holds the lock. If the holder dies before it changes the
//! state, the state still names the holder. If the lock was passed on to a PE that has given up, or
//! that has died, any PE may take the lock.

mod gate;
#[cfg(test)]
mod tests;
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

/// A lock for all PEs of a job. At most one thread of one PE holds the lock at a time.
/// [`World::alloc_lock`] allocates a lock.
///
/// # Ordering
/// A holder sees the effects of the operations that earlier holders ran while they held the lock.
/// These operations are accesses to host memory, and the `_blocking` forms of puts, gets, signals
/// and atomics. Before you unlock, wait for the tickets of stream-ordered operations. For
/// operations of a context, call [`Context::quiet`](crate::Context::quiet) before you unlock.
///
/// # Order of waiters
/// The holder passes the lock on to the next waiting PE, in cyclic order of PE numbers, starting
/// after the holder's number. So while a PE waits, every other PE holds the lock at most twice. If
/// several threads of one PE wait for the same lock, they get the lock in unspecified order.
///
/// If a thread that holds the lock tries to lock it again, the call fails at the deadline. The
/// error says that this PE already holds the lock.
///
/// # Death of the holder
/// If the holder dies or leaves the job, the data that the lock protects may be in any state. So
/// [`Lock::lock`] and [`Lock::try_lock`] then fail on every PE with
/// [`Error::Peer`](crate::Error::Peer), until a call of [`Lock::take_over`] has succeeded on one
/// PE. The error names the former holder, or the PE whose failure caused the former holder to end.
///
/// The guard that `take_over` returns names the former holder: see [`LockGuard::taken_from`]. If a
/// PE dies while it waits for the lock, the lock skips that PE.
///
/// The `host` backend detects a death within milliseconds. The `cuda` backend detects a death when
/// the connection between the PE and the rendezvous closes. If the holder leaves the job without an
/// error while it holds the lock, waiters on the `cuda` backend fail only at the deadline.
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
///     let mut both = [0; 2]; // the two counters of PE 0
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

/// A guard that holds a [`Lock`]. Dropping the guard unlocks the lock. [`LockGuard::unlock`] also
/// unlocks the lock, and returns an error if unlocking fails.
///
/// Any thread of the PE may drop the guard. If the guard is forgotten ([`std::mem::forget`]), this
/// PE holds the lock forever.
#[must_use = "dropping the guard unlocks the lock"]
pub struct LockGuard<'a> {
    lock: &'a Lock,
    taken_from: Option<Pe>,
}

/// What a call does if the lock is not free: waits, returns `None`, or waits and takes the lock
/// over from a dead holder.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Wait,
    Try,
    TakeOver,
}

/// The time that a PE continues to wait for the lock after its wait has failed, for example at the
/// deadline. Applies only if the holder has already chosen the PE as the next holder.
const GRACE: Duration = Duration::from_millis(100);

impl World {
    /// Allocates a lock, which is free at first.
    ///
    /// # Collective
    /// All PEs must make the call. All PEs must make their allocations and releases in the same
    /// order.
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
    /// Acquires the lock. Waits for the lock at most until the deadline of the world.
    ///
    /// # Errors
    /// - [`Error::Peer`](crate::Error::Peer) if the holder has died or left the job: see
    ///   [Death of the holder](Lock#death-of-the-holder).
    /// - [`Error::Timeout`](crate::Error::Timeout) at the deadline.
    ///   [`Timeout::holder`](crate::Timeout::holder) is the PE that holds the lock, or the PE to
    ///   which the lock has been passed on.
    /// - [`Misuse`](crate::Misuse) after finalize.
    pub fn lock(&self) -> Result<LockGuard<'_>> {
        self.wait("lock", Mode::Wait, self.shared().deadline)
    }

    /// Like [`Lock::lock`], but waits for at most `limit`.
    ///
    /// # Errors
    /// As for [`Lock::lock`].
    pub fn lock_within(&self, limit: Duration) -> Result<LockGuard<'_>> {
        self.wait("lock_within", Mode::Wait, limit)
    }

    /// Acquires the lock if the lock is free now. Returns `None` if another PE holds the lock, or
    /// if any thread of this PE holds the lock or waits for the lock. Also returns `None` if the
    /// lock has been passed on to another PE.
    ///
    /// # Errors
    /// As for [`Lock::lock`], except [`Error::Timeout`](crate::Error::Timeout).
    pub fn try_lock(&self) -> Result<Option<LockGuard<'_>>> {
        self.acquire("try_lock", Mode::Try, Duration::ZERO)
    }

    /// Like [`Lock::lock`], but also takes the lock over from a holder that has died or left the
    /// job. If [`LockGuard::taken_from`] of the new guard returns a PE, the caller must bring the
    /// data that the lock protects into a valid state. While the holder is alive, the call waits
    /// like [`Lock::lock`].
    ///
    /// # Errors
    /// As for [`Lock::lock`], except that the call does not fail if the holder has died or left the
    /// job.
    pub fn take_over(&self) -> Result<LockGuard<'_>> {
        self.wait("take_over", Mode::TakeOver, self.shared().deadline)
    }

    /// Returns the PE that holds the lock now, or to which the lock has been passed on. Returns
    /// `None` if the lock is free. The result may already be out of date when the call returns, so
    /// use the result only in messages.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) after finalize; errors of the backend.
    pub fn holder(&self) -> Result<Option<Pe>> {
        self.words.state("holder").map(State::pe)
    }

    /// Returns the PEs that wait for the lock now, in ascending order. The result may already be
    /// out of date when the call returns, so use the result only in messages.
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
    /// As for [`Symmetric::release`](crate::Symmetric::release). A PE that holds the lock cannot
    /// make the call, because the guard borrows the lock. If the other PEs make the call while a PE
    /// holds the lock, their calls fail at the deadline, with an error that names the holder.
    ///
    /// # Errors
    /// As for [`Symmetric::release`](crate::Symmetric::release).
    pub fn release(self) -> Result<()> {
        self.words.into_memory().release()
    }

    fn wait(&self, call: &'static str, mode: Mode, limit: Duration) -> Result<LockGuard<'_>> {
        self.acquire(call, mode, limit).map(|guard| guard.expect("a call that waits returns a guard or an error"))
    }

    fn acquire(&self, call: &'static str, mode: Mode, limit: Duration) -> Result<Option<LockGuard<'_>>> {
        self.shared().usable(call)?;
        let start = Instant::now();
        // If the clock cannot represent the end of the wait, the limit is a year.
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

    /// Acquires the lock, and returns `Ok(Some(from))`. `from` is the former holder if
    /// [`Mode::TakeOver`] took the lock from a holder that had died or left the job, and otherwise
    /// `None`. Returns `Ok(None)` if `mode` is [`Mode::Try`] and this PE may not take the lock now.
    ///
    /// The caller has entered the gate (see `gate.rs`), so no other thread of this PE acquires the
    /// lock now.
    fn take(&self, call: &'static str, mode: Mode, start: Instant, end: Instant) -> Result<Option<Option<Pe>>> {
        if self.words.change(call, State::Free, State::Held(self.me))? {
            return Ok(Some(None));
        }
        if mode == Mode::Try {
            return self.look(call, mode, true).map(std::result::Result::ok);
        }
        self.words.start_waiting(call, self.me)?;
        let mut pause = Pause::new();
        let failed = loop {
            let is_check = pause.is_check();
            match self.look(call, mode, is_check) {
                Ok(Ok(from)) => {
                    // Only the holder, which is this PE, reads this word to pass the lock on.
                    self.words.stop_waiting(call, self.me)?;
                    return Ok(Some(from));
                }
                Ok(Err(state)) if is_check && Instant::now() >= end => break self.timed_out(call, start, state.pe()),
                Ok(Err(_)) => pause.pause(),
                Err(error) => break error,
            }
        };
        if self.words.stop_waiting(call, self.me)? {
            return Err(failed);
        }
        // The holder has cleared this PE's wait word, so the holder has chosen this PE. The
        // holder's next change of the state passes the lock on to this PE.
        let grace = Instant::now() + GRACE;
        while Instant::now() < grace {
            if let Ok(from) = self.look(call, Mode::Wait, true)? {
                return Ok(Some(from));
            }
            pause.pause();
        }
        // The holder was suspended after it cleared the wait word and before it changed the state.
        // Once the holder has passed the lock on to this PE, any PE may take the lock. If the
        // holder passed the lock on before this PE gave up, this PE takes the lock now.
        self.words.give_up(call, self.me)?;
        self.look(call, Mode::Wait, true)?.map_or(Err(failed), |from| Ok(Some(from)))
    }

    /// Tries once to acquire the lock, without waiting. Returns `Ok(Ok(from))` if this PE now holds
    /// the lock: see [`Lock::take`] for `from`. Returns `Ok(Err(state))`, with the state of the
    /// lock, if this PE may not take the lock now.
    ///
    /// If `is_check` is `true`, the call also checks whether the PE that the state names has died
    /// or left the job. This PE is the holder, or a PE to which the lock was passed on. In the
    /// second case, the call also checks whether that PE has given up waiting.
    fn look(&self, call: &'static str, mode: Mode, is_check: bool) -> Result<std::result::Result<Option<Pe>, State>> {
        let state = self.words.state(call)?;
        let from = match state {
            State::Free => None,
            State::Passed(pe) if pe == self.me => None,
            State::Passed(pe) if is_check && self.words.gave_up(call, pe)? => None,
            State::Held(pe) | State::Passed(pe) => {
                let lost = || self.shared().backend.lost(call, pe);
                match (is_check && pe != self.me).then(lost).flatten() {
                    None => return Ok(Err(state)),
                    Some(error) if !matches!(error, Error::Peer { .. }) => return Err(error),
                    // The lock was passed on to that PE, which died before it took the lock. So
                    // this PE may take the lock.
                    Some(_) if state == State::Passed(pe) => None,
                    Some(_) if mode == Mode::TakeOver => Some(pe),
                    // The holder may have unlocked and left after the state was read.
                    Some(error) if self.words.state(call)? == state => {
                        return Err(self.shared().backend.record_loss(error));
                    }
                    Some(_) => return Ok(Err(state)),
                }
            }
        };
        Ok(if self.words.change(call, state, State::Held(self.me))? { Ok(from) } else { Err(state) })
    }

    /// Passes the lock on to a waiting PE, or frees the lock if no PE waits.
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
            // A waiter that stops waiting changes its word too. Only one of the changes succeeds.
            if self.words.waits(call, pe)? && self.words.stop_waiting(call, pe)? {
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
        // The PE that waits is not missing.
        let missing = holder.into_iter().filter(|&pe| pe != self.me).collect();
        Timeout { holder, ..Timeout::new(call, team, waited, missing) }.into()
    }
}

impl LockGuard<'_> {
    /// Returns the PE from which [`Lock::take_over`] took the lock over. That PE died or left the
    /// job while it held the lock. Returns `None` if the lock was not taken over.
    pub fn taken_from(&self) -> Option<Pe> {
        self.taken_from
    }

    /// Unlocks the lock, without waiting for other PEs.
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
            tracing::warn!(pe = self.lock.me.get(), %error, "a lock guard was dropped, but unlocking failed");
        }
    }
}

impl fmt::Debug for LockGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard").field("taken_from", &self.taken_from).finish_non_exhaustive()
    }
}

/// The pauses that a waiter makes between two reads of the lock's state. First the waiter spins,
/// then the waiter yields its thread, then the waiter sleeps.
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

    /// Returns whether the next check is due. In a check, the waiter finds out whether the holder
    /// is alive and whether the deadline has passed.
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
        // Sleeps for 5 % of the time waited so far, within limits. After a long wait, a longer
        // delay of the next read matters less.
        std::thread::sleep((elapsed / 20).clamp(Duration::from_micros(20), Duration::from_millis(1)));
    }
}
