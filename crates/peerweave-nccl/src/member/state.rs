//! The gate of a communicator: decides which thread may call NCCL on the handle, and when the
//! handle may be freed.
//!
//! The gate does not call NCCL. `owner` holds the current owner; only the owner writes it. The
//! state and the number of readers are in a second word, `word`. So a call takes one locked
//! instruction: each side writes its own word and then reads the other's, so at least one of them
//! sees the other.
//!
//! # Invariants
//! - **[G1]** At most one thread is inside by [`Gate::enter`]. NCCL forbids unordered calls on one
//!   communicator.
//! - **[G2]** After [`Gate::close`] no thread enters. Closing succeeds once: the thread that closed
//!   the gate frees the handle, after [`Gate::drain`].
//! - **[G3]** A thread that may block inside NCCL is marked by `enter_blocking` or
//!   `try_enter_blocking`, which fail once the gate is closed. All other threads leave without an
//!   abort, and are waited for without a limit: they only query NCCL for a state or a text.
//!
//! A thread that is marked as blocking and does not leave is no longer waited for after some time,
//! because only an abort ends its call. A thread that the system suspends between the mark and its
//! call of NCCL looks the same, and would use a freed handle. So the caller checks the state again
//! right before the call. NCCL has the same remaining window: the caller decides when to abort.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::time::{Duration, Instant};

#[cfg(not(loom))]
use std::sync::{
    Condvar, Mutex,
    atomic::{AtomicU32, AtomicU64},
};

#[cfg(loom)]
use loom::sync::{
    Condvar, Mutex,
    atomic::{AtomicU32, AtomicU64},
};

use crate::DeadState;

/// State of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum State {
    Live = 0,
    Suspended = 1,
    Failed = 2,
    Revoked = 3,
    Finalized = 4,
    Aborted = 5,
}

impl State {
    /// Converts the state to the state that the error of a refused call contains.
    pub(crate) fn dead(self) -> DeadState {
        match self {
            Self::Suspended => DeadState::Suspended,
            Self::Failed | Self::Live => DeadState::Failed,
            Self::Revoked => DeadState::Revoked,
            Self::Finalized => DeadState::Finalized,
            Self::Aborted => DeadState::Aborted,
        }
    }

    /// Like [`dead`](Self::dead); `None` if the communicator is live.
    pub(crate) fn dead_unless_live(self) -> Option<DeadState> {
        (self != Self::Live).then(|| self.dead())
    }

    fn is_closed(self) -> bool {
        matches!(self, Self::Finalized | Self::Aborted)
    }

    const fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// The states in which a call is possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allowed(u32);

impl Allowed {
    /// States in which work may be enqueued: only live.
    pub(crate) const LIVE: Self = Self(State::Live.bit());
    /// States in which a communicator may be resumed.
    pub(crate) const SUSPENDED: Self = Self(State::Suspended.bit());
    /// States in which children may be created: live and revoked.
    pub(crate) const SPLIT: Self = Self(State::Live.bit() | State::Revoked.bit());
    /// States in which a communicator without the lost ranks may be created: live, revoked and
    /// failed.
    pub(crate) const SHRINK: Self = Self(Self::SPLIT.0 | State::Failed.bit());
    /// States of every communicator that has not been freed.
    pub(crate) const OPEN: Self = Self(State::Live.bit() | State::Suspended.bit() | State::Failed.bit() | State::Revoked.bit());

    fn has(self, state: State) -> bool {
        self.0 & state.bit() != 0
    }
}

/// The reason why entering failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The state does not allow the call.
    State(State),
    /// Another thread was inside until the deadline.
    Busy,
}

/// The gate is free.
const FREE: u64 = 0;
/// Mode of an owner that leaves without being aborted.
const BRIEF: u64 = 1;
/// Mode of an owner that may be blocked in NCCL.
const BLOCKING: u64 = 2;
/// Mask of the bits of the mode.
const MODE_MASK: u64 = 3;
/// One acquisition in the count of completed acquisitions.
const ACQUISITION: u64 = 4;

const STATE_MASK: u64 = 0b111;
/// One reader in a count of 24 bits, which exceeds the number of threads.
const READER: u64 = 1 << 8;
/// One reader that may be blocked in NCCL.
const BLOCKING_READER: u64 = 1 << 32;

/// A waiter sleeps for this fraction of the time waited so far, within [`SLEEP_BOUNDS`].
const SLEEP_FRACTION: u32 = 8;
/// Time after which a waiter enters before new callers, which otherwise could enter whenever they
/// try.
const STARVING_AFTER: Duration = Duration::from_millis(5);
const SLEEP_BOUNDS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(20)];

/// Executes a fence for the model checker, which treats sequentially consistent accesses as weaker
/// than they are.
#[inline]
fn fenced() {
    #[cfg(loom)]
    loom::sync::atomic::fence(SeqCst);
}

fn state_of(word: u64) -> State {
    match word & STATE_MASK {
        0 => State::Live,
        1 => State::Suspended,
        2 => State::Failed,
        3 => State::Revoked,
        4 => State::Finalized,
        _ => State::Aborted,
    }
}

fn with_state(word: u64, state: State) -> u64 {
    word & !STATE_MASK | state as u64
}

/// The gate of one communicator.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// The mode of the owner, and the number of acquisitions, so that two calls have different
    /// values. A thread acquires it if it is free; then only that thread writes it, so leaving is a
    /// plain store.
    owner: AtomicU64,
    /// The number of waiters.
    waiting: AtomicU32,
    /// The number of waiters that are starving.
    starving: AtomicU32,
    /// The state and the number of readers.
    word: AtomicU64,
    sleepers: Mutex<()>,
    left: Condvar,
}

/// An exclusive entry of a thread. Dropping it leaves the gate.
#[derive(Debug)]
pub(crate) struct Inside<'a>(&'a Gate);

/// Marks a waiter as starving until it is dropped.
struct Starvation<'a>(&'a AtomicU32);

impl<'a> Starvation<'a> {
    fn new(starving: &'a AtomicU32) -> Self {
        starving.fetch_add(1, Relaxed);
        Self(starving)
    }
}

impl Drop for Starvation<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// A shared entry of a thread. Dropping it leaves the gate.
#[derive(Debug)]
pub(crate) struct Reader<'a>(&'a Gate);

/// The threads inside a closed gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Occupancy {
    Empty,
    /// At least one thread that leaves without being aborted.
    Brief,
    /// Only threads that may be blocked in NCCL.
    Stuck,
}

impl Gate {
    /// The value of [`stuck_in`](Self::stuck_in) if there is no owner and a reader may be blocked.
    /// It differs from every acquisition.
    pub(crate) const READER: u64 = BRIEF;

    /// Enters exclusively. If another thread is inside, waits for at most `patience`, which is
    /// called only then.
    #[inline]
    pub(crate) fn enter(&self, allowed: Allowed, patience: impl FnOnce() -> Duration) -> Result<Inside<'_>, Refused> {
        match self.try_lock_fairly(BRIEF) {
            Some(inside) => inside.allowed(allowed),
            None => self.enter_contended(allowed, patience()),
        }
    }

    /// Enters exclusively and marks this thread as blocking, in one step. Returns `None` unless the
    /// gate is free and the state is live. For an immediate call of NCCL.
    #[inline]
    pub(crate) fn try_enter_blocking(&self) -> Option<Inside<'_>> {
        let inside = self.try_lock_fairly(BLOCKING)?;
        fenced();
        // As in `enter_blocking`: either this thread sees that the gate is closed, or the thread
        // that closes it sees this one [G3].
        if self.word.load(SeqCst) & STATE_MASK == State::Live as u64 { Some(inside) } else { None }
    }

    /// Like [`take`](Self::take), if no waiter is starving.
    #[inline]
    fn try_lock_fairly(&self, mode: u64) -> Option<Inside<'_>> {
        if self.starving.load(Relaxed) == 0 { self.take(mode) } else { None }
    }

    #[inline]
    fn take(&self, mode: u64) -> Option<Inside<'_>> {
        // Acquires what the previous owner released, so that the effects of one call on the
        // communicator precede the next call. The exchange is in the single total order with
        // `close` and `drain`. `then_some` would drop an unused guard, which would release the
        // gate.
        let owner = self.owner.load(Relaxed);
        (owner & MODE_MASK == FREE && self.owner.compare_exchange(owner, owner | mode, SeqCst, Relaxed).is_ok())
            .then(|| Inside(self))
    }

    #[cold]
    fn enter_contended(&self, allowed: Allowed, patience: Duration) -> Result<Inside<'_>, Refused> {
        let (start, mut starvation) = (Instant::now(), None);
        loop {
            if !allowed.has(self.state()) {
                return Err(Refused::State(self.state()));
            }
            let inside = if starvation.is_some() { self.take(BRIEF) } else { self.try_lock_fairly(BRIEF) };
            if let Some(inside) = inside {
                return inside.allowed(allowed);
            }
            if starvation.is_none() && start.elapsed() >= STARVING_AFTER {
                starvation = Some(Starvation::new(&self.starving));
            }
            let Some(rest) = patience.checked_sub(start.elapsed()) else { return Err(Refused::Busy) };
            let guard = self.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
            self.waiting.fetch_add(1, SeqCst);
            // A thread that changes the state locks the mutex afterwards, so that its notification
            // is never lost. A thread that leaves does not pay for a fence between its store and
            // its load of `waiting`. In the nanoseconds until the store is visible its notification
            // can be lost; then the sleep ends.
            let is_others =
                self.owner.load(SeqCst) & MODE_MASK != FREE || starvation.is_none() && self.starving.load(Relaxed) != 0;
            if is_others && allowed.has(self.state()) {
                let sleep = (start.elapsed() / SLEEP_FRACTION).clamp(SLEEP_BOUNDS[0], SLEEP_BOUNDS[1]).min(rest);
                drop(self.left.wait_timeout(guard, sleep).unwrap_or_else(PoisonError::into_inner));
            }
            self.waiting.fetch_sub(1, Relaxed);
        }
    }

    /// Enters as a reader, beside an owner and other readers.
    pub(crate) fn enter_shared(&self, allowed: Allowed) -> Result<Reader<'_>, Refused> {
        let count = |word| allowed.has(state_of(word)).then_some(word + READER);
        match self.word.fetch_update(AcqRel, Acquire, count) {
            Ok(_) => Ok(Reader(self)),
            Err(word) => Err(Refused::State(state_of(word))),
        }
    }

    #[inline]
    pub(crate) fn state(&self) -> State {
        state_of(self.word.load(SeqCst))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state().is_closed()
    }

    /// Returns a number for the thread that may be blocked in NCCL now. The number is the same
    /// until that thread leaves. Has no cost for the threads inside.
    pub(crate) fn stuck_in(&self) -> Option<u64> {
        let (owner, word) = (self.owner.load(Acquire), self.word.load(Acquire));
        let reader = (word >= BLOCKING_READER).then_some(Self::READER);
        (owner & MODE_MASK == BLOCKING).then_some(owner).or(reader)
    }

    /// Sets the state unless the gate is closed. Returns the previous state. If the gate is closed,
    /// returns the state that is kept as the error.
    pub(crate) fn set(&self, state: State) -> Result<State, State> {
        let change = |word| (!state_of(word).is_closed()).then_some(with_state(word, state));
        let before = self.word.fetch_update(SeqCst, Acquire, change).map(state_of).map_err(state_of)?;
        // Waiters are notified at once.
        self.wake();
        Ok(before)
    }

    /// Changes `from` to `to`, unless the state has changed meanwhile. A closed gate stays closed
    /// [G2].
    pub(crate) fn change(&self, from: State, to: State) -> Result<(), State> {
        let change = |word| (state_of(word) == from && !from.is_closed()).then_some(with_state(word, to));
        self.word.fetch_update(SeqCst, Acquire, change).map_err(state_of)?;
        self.wake();
        Ok(())
    }

    /// Closes the gate: no thread enters afterwards. Succeeds once [G2].
    pub(crate) fn close(&self, state: State) -> Result<(), State> {
        debug_assert!(state.is_closed());
        self.set(state).map(|_| ())
    }

    /// Like [`close`](Self::close), but only from one state: a reader may have changed the state,
    /// and may therefore be inside NCCL.
    pub(crate) fn close_from(&self, from: State, state: State) -> Result<(), State> {
        debug_assert!(state.is_closed());
        self.change(from, state)
    }

    /// Waits, after `close`, until no thread uses the handle, or until all threads that use it have
    /// been blocked in NCCL for `grace`. Returns whether no thread uses it.
    ///
    /// Waits without a limit for threads that are not blocked in NCCL [G3].
    pub(crate) fn drain(&self, grace: Duration) -> bool {
        let start = Instant::now();
        loop {
            match self.occupancy() {
                Occupancy::Empty => return true,
                Occupancy::Stuck if start.elapsed() >= grace => return false,
                Occupancy::Stuck | Occupancy::Brief => {}
            }
            match start.elapsed() {
                waited if waited < Duration::from_micros(50) => std::hint::spin_loop(),
                waited => std::thread::sleep((waited / 8).min(Duration::from_millis(2))),
            }
        }
    }

    /// Returns the kind of threads inside, after `close`. Two loads are sufficient: a thread that
    /// enters between them finds the gate closed and does not use the handle.
    fn occupancy(&self) -> Occupancy {
        fenced();
        let (owner, word) = (self.owner.load(SeqCst), self.word.load(SeqCst));
        if owner & MODE_MASK == FREE && word & !STATE_MASK == 0 {
            Occupancy::Empty
        } else if owner & MODE_MASK == BRIEF || word & (BLOCKING_READER - READER) != 0 {
            Occupancy::Brief
        } else {
            Occupancy::Stuck
        }
    }
}

impl<'a> Inside<'a> {
    /// Returns the number of this acquisition; only this thread writes it now.
    #[inline]
    fn acquisition(&self) -> u64 {
        self.0.owner.load(Relaxed) & !MODE_MASK
    }

    /// Keeps the entry if the state allows it.
    #[inline]
    fn allowed(self, allowed: Allowed) -> Result<Self, Refused> {
        fenced();
        let state = self.0.state();
        if allowed.has(state) { Ok(self) } else { Err(Refused::State(state)) }
    }

    /// Marks this thread as blocking, before a call that may block inside NCCL. If the gate was
    /// closed meanwhile, returns the state as the error, and the handle must not be used.
    pub(crate) fn enter_blocking(&self) -> Result<(), State> {
        // The store precedes the load in the single total order, as the change of state in `close`
        // precedes the loads of `drain`. So either this thread sees that the gate is closed, or the
        // thread that closes it sees this one [G3].
        self.0.owner.store(self.acquisition() | BLOCKING, SeqCst);
        fenced();
        let state = self.0.state();
        if state.is_closed() {
            self.leave_blocking();
            return Err(state);
        }
        Ok(())
    }

    /// Removes the mark, after the call. If the thread reads the state afterwards, either it sees
    /// that the gate is closed, or the thread that closed the gate waits for it.
    pub(crate) fn leave_blocking(&self) {
        self.0.owner.store(self.acquisition() | BRIEF, SeqCst);
        fenced();
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.owner.store(self.acquisition() + ACQUISITION, Release);
        if self.0.waiting.load(Relaxed) != 0 {
            self.0.wake();
        }
    }
}

impl Gate {
    #[cold]
    fn wake(&self) {
        drop(self.sleepers.lock().unwrap_or_else(PoisonError::into_inner));
        self.left.notify_all();
    }
}

impl Reader<'_> {
    /// Like [`Inside::enter_blocking`], for the duration of a call.
    pub(crate) fn enter_blocking<R>(&self, call: impl FnOnce() -> R) -> Result<R, State> {
        let before = self.0.word.fetch_add(BLOCKING_READER - READER, AcqRel);
        let result = if state_of(before).is_closed() { Err(state_of(before)) } else { Ok(call()) };
        self.0.word.fetch_sub(BLOCKING_READER - READER, Release);
        result
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        self.0.word.fetch_sub(READER, Release);
    }
}

#[cfg(all(test, loom))]
mod model;

#[cfg(all(test, miri))]
mod weak;

#[cfg(all(test, not(loom)))]
mod tests;
