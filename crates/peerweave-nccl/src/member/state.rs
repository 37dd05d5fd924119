//! The gate of a communicator: a lock that decides which thread may call NCCL on the communicator's
//! handle, and when the handle may be freed.
//!
//! The gate does not call NCCL. The atomic `owner` describes the thread that owns the gate, and
//! only this thread writes `owner`. The atomic `word` contains the state and the number of readers.
//! So entering takes one locked instruction. A thread that enters writes `owner` and then reads
//! `word`. A thread that closes the gate writes `word` and then reads `owner`. So at least one of
//! these threads sees the other thread.
//!
//! # Invariants
//! - **[G1]** At most one thread has entered exclusively, because NCCL forbids unordered calls on
//!   one communicator.
//! - **[G2]** After [`Gate::close`] no thread enters. Closing succeeds once. The thread that closed
//!   the gate frees the handle, after [`Gate::drain`].
//! - **[G3]** A thread that may block inside NCCL is marked by `enter_blocking` or
//!   `try_enter_blocking`, which fail once the gate is closed. All other threads inside the gate
//!   only query NCCL for a state or a text, so these threads leave even without an abort.
//!   [`Gate::drain`] waits for these threads without a limit.
//!
//! [`Gate::drain`] waits for marked threads only for a limited time, because a marked thread may be
//! stuck in NCCL until the abort. After this time, the abort frees the handle. However, the system
//! may have suspended a marked thread before its call of NCCL. Such a thread would then call NCCL
//! with the freed handle. A marked thread therefore checks the state again immediately before it
//! calls NCCL. A short race between this check and the call remains. NCCL's own API has the same
//! race, because the program decides when to abort.

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
    /// Returns the reason that an error gives for a call that is not possible in this state. For a
    /// live communicator, the reason is [`DeadState::Failed`].
    pub(crate) fn dead(self) -> DeadState {
        match self {
            Self::Suspended => DeadState::Suspended,
            Self::Failed | Self::Live => DeadState::Failed,
            Self::Revoked => DeadState::Revoked,
            Self::Finalized => DeadState::Finalized,
            Self::Aborted => DeadState::Aborted,
        }
    }

    /// Returns the reason that an error gives for a call that is not possible in this state, or
    /// `None` if the communicator is live.
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

/// Set of communicator states in which a call is possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allowed(u32);

impl Allowed {
    /// The only state in which work may be enqueued: live.
    pub(crate) const LIVE: Self = Self(State::Live.bit());
    /// The only state in which a communicator may be resumed: suspended.
    pub(crate) const SUSPENDED: Self = Self(State::Suspended.bit());
    /// States in which a communicator can be split, or shrunk with `ShrinkMode::Default`: live and
    /// revoked.
    pub(crate) const SPLIT: Self = Self(State::Live.bit() | State::Revoked.bit());
    /// States in which a communicator can be shrunk with `ShrinkMode::Abort`: live, revoked and
    /// failed.
    pub(crate) const SHRINK: Self = Self(Self::SPLIT.0 | State::Failed.bit());
    /// States of a communicator that has been neither finalized nor aborted.
    pub(crate) const OPEN: Self = Self(State::Live.bit() | State::Suspended.bit() | State::Failed.bit() | State::Revoked.bit());

    fn has(self, state: State) -> bool {
        self.0 & state.bit() != 0
    }
}

/// The reason why a thread could not enter the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The communicator's state does not allow the call.
    State(State),
    /// Another thread was inside the gate until the deadline.
    Busy,
}

/// Mode of a gate that has no owner.
const FREE: u64 = 0;
/// Mode of a gate whose owner is not blocked in NCCL. The owner soon leaves the gate, even without
/// an abort.
const BRIEF: u64 = 1;
/// Mode of a gate whose owner may be blocked in NCCL.
const BLOCKING: u64 = 2;
/// Mask of the bits of `Gate::owner` that contain the mode, such as [`FREE`].
const MODE_MASK: u64 = 3;
/// Increment of `Gate::owner` for one acquisition of the gate. The low two bits of `Gate::owner`
/// contain the mode, such as [`FREE`]. The bits above count the acquisitions. An acquisition is
/// counted when its owner leaves the gate.
const ACQUISITION: u64 = 4;

/// Mask of the bits of `Gate::word` that contain the communicator's state.
const STATE_MASK: u64 = 0b111;
/// Increment of `Gate::word` for each reader that is not blocked in NCCL. The count of these
/// readers has 24 bits, which are enough for all threads of a process.
const READER: u64 = 1 << 8;
/// Increment of `Gate::word` for each reader that may be blocked in NCCL.
const BLOCKING_READER: u64 = 1 << 32;

/// Divisor that determines how long a waiter sleeps. The time that the waiter has waited so far is
/// divided by this number. The quotient, limited to [`SLEEP_BOUNDS`], is the duration of the next
/// sleep.
const SLEEP_FRACTION: u32 = 8;
/// Waiting time after which a waiter has priority over new callers. Without this priority, new
/// callers could always enter first.
const STARVING_AFTER: Duration = Duration::from_millis(5);
/// Minimum and maximum duration of one sleep of a waiter.
const SLEEP_BOUNDS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(20)];

/// Limit of the time that [`Gate::drain`] counts between two of its checks. A longer pause means
/// that the system has suspended this thread or the process. The time beyond this limit does not
/// count as waiting time.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// Executes a sequentially consistent fence in builds for the model checker loom. Does nothing in
/// other builds. Loom gives sequentially consistent loads and stores a weaker order than Rust does.
/// The fence restores the order.
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

/// Lock that decides which thread may call NCCL on a communicator's handle, and when the handle may
/// be freed.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// Describes the owner, which is the thread that has entered the gate exclusively. The low bits
    /// contain the owner's mode. The high bits count the earlier owners. So each owner has a
    /// different value, even if the same thread enters the gate again.
    ///
    /// While the gate has an owner, only the owner writes this value. So a plain store, instead of
    /// a locked instruction, suffices to leave the gate.
    owner: AtomicU64,
    /// Number of threads that wait for the gate.
    waiting: AtomicU32,
    /// Number of starving waiters, which have waited for at least [`STARVING_AFTER`].
    starving: AtomicU32,
    /// State of the communicator, and two counts of readers (threads that share the gate): readers
    /// that are not blocked in NCCL, and readers that may be blocked in NCCL.
    word: AtomicU64,
    sleepers: Mutex<()>,
    left: Condvar,
}

/// Guard of a thread that has entered the gate (the communicator's lock) exclusively. Readers may
/// be inside at the same time. Dropping the guard leaves the gate.
#[derive(Debug)]
pub(crate) struct Inside<'a>(&'a Gate);

/// Guard of a starving waiter, which has waited for at least [`STARVING_AFTER`]. While the guard
/// lives, `Gate::starving` counts the waiter.
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

/// Guard of a thread that has entered the gate (the communicator's lock) as a reader. Dropping the
/// guard leaves the gate.
#[derive(Debug)]
pub(crate) struct Reader<'a>(&'a Gate);

/// The threads that are still inside a closed gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Occupancy {
    /// No thread is inside the gate.
    Empty,
    /// At least one thread inside the gate is not marked as possibly blocked in NCCL. This thread
    /// leaves the gate even without an abort.
    Brief,
    /// Every thread inside the gate is marked as possibly blocked in NCCL.
    Stuck,
}

impl Gate {
    /// The value that [`stuck_in`](Self::stuck_in) returns if only readers may be blocked in NCCL.
    /// Readers are the threads that share the gate (the communicator's lock). If the owner of the
    /// gate may be blocked, `stuck_in` returns a different value.
    pub(crate) const READER: u64 = BRIEF;

    /// Enters the gate (the communicator's lock) exclusively. If the gate cannot be acquired
    /// immediately, calls `patience` and waits for at most the time that `patience` returns. Fails
    /// if the communicator's state is not in `allowed`.
    #[inline]
    pub(crate) fn enter(&self, allowed: Allowed, patience: impl FnOnce() -> Duration) -> Result<Inside<'_>, Refused> {
        match self.try_lock_fairly(BRIEF) {
            Some(inside) => inside.allowed(allowed),
            None => self.enter_contended(allowed, patience()),
        }
    }

    /// Enters the gate exclusively, and marks this thread as possibly blocked in NCCL. One atomic
    /// operation does both. The caller then calls NCCL immediately. Returns `None` unless the gate
    /// is free and the state is live.
    #[inline]
    pub(crate) fn try_enter_blocking(&self) -> Option<Inside<'_>> {
        let inside = self.try_lock_fairly(BLOCKING)?;
        fenced();
        // As in `enter_blocking`, either this thread sees that the gate is closed, or the closing
        // thread sees this thread [G3].
        if self.word.load(SeqCst) & STATE_MASK == State::Live as u64 { Some(inside) } else { None }
    }

    /// Acquires the gate like [`take`](Self::take). In contrast, returns `None` also while a waiter
    /// has waited for at least [`STARVING_AFTER`], because this waiter has priority.
    #[inline]
    fn try_lock_fairly(&self, mode: u64) -> Option<Inside<'_>> {
        if self.starving.load(Relaxed) == 0 { self.take(mode) } else { None }
    }

    /// Makes this thread the owner of the gate. `mode` is [`BRIEF`] or [`BLOCKING`]. Returns `None`
    /// if the gate is not free.
    #[inline]
    fn take(&self, mode: u64) -> Option<Inside<'_>> {
        // The exchange synchronises with the release by the previous owner. So the effects of one
        // call on the communicator precede the next call. The exchange is in the single total order
        // with `close` and `drain`. The code does not use `then_some`, because a dropped unused
        // guard would release the gate.
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
            // A thread that changes the state locks the mutex afterwards, so its notification is
            // never lost. A thread that leaves the gate does not execute a fence between its store
            // to `owner` and its load of `waiting`. Its notification can be lost in the nanoseconds
            // until the store is visible. The waiter then tries again at the end of its sleep.
            let is_others =
                self.owner.load(SeqCst) & MODE_MASK != FREE || starvation.is_none() && self.starving.load(Relaxed) != 0;
            if is_others && allowed.has(self.state()) {
                let sleep = (start.elapsed() / SLEEP_FRACTION).clamp(SLEEP_BOUNDS[0], SLEEP_BOUNDS[1]).min(rest);
                drop(self.left.wait_timeout(guard, sleep).unwrap_or_else(PoisonError::into_inner));
            }
            self.waiting.fetch_sub(1, Relaxed);
        }
    }

    /// Enters the gate as a reader. A reader excludes no thread: other readers and the owner (the
    /// thread that has called [`enter`](Self::enter)) may be inside at the same time.
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

    /// Returns a number that identifies the threads that are marked as possibly blocked in NCCL.
    /// Returns `None` if no thread is marked. Returns [`READER`](Self::READER) if only readers
    /// (threads that share the gate) are marked. If the owner of the gate is marked, returns a
    /// number that is different for each acquisition of the gate.
    pub(crate) fn stuck_in(&self) -> Option<u64> {
        let (owner, word) = (self.owner.load(Acquire), self.word.load(Acquire));
        let reader = (word >= BLOCKING_READER).then_some(Self::READER);
        (owner & MODE_MASK == BLOCKING).then_some(owner).or(reader)
    }

    /// Sets the state and returns the previous state. If the gate is closed, the state does not
    /// change, and is returned as the error.
    pub(crate) fn set(&self, state: State) -> Result<State, State> {
        let change = |word| (!state_of(word).is_closed()).then_some(with_state(word, state));
        let before = self.word.fetch_update(SeqCst, Acquire, change).map(state_of).map_err(state_of)?;
        // Waiters check the new state immediately.
        self.wake();
        Ok(before)
    }

    /// Changes the state from `from` to `to`. If the state is not `from`, returns the current state
    /// as the error. A closed gate stays closed ([G2] of this module).
    pub(crate) fn change(&self, from: State, to: State) -> Result<(), State> {
        let change = |word| (state_of(word) == from && !from.is_closed()).then_some(with_state(word, to));
        self.word.fetch_update(SeqCst, Acquire, change).map_err(state_of)?;
        self.wake();
        Ok(())
    }

    /// Closes the gate (the communicator's lock), and changes the communicator's state to `state`:
    /// finalized or aborted. After that no thread can enter the gate. If the gate is already
    /// closed, returns the unchanged state as the error (invariant [G2] of this module).
    pub(crate) fn close(&self, state: State) -> Result<(), State> {
        debug_assert!(state.is_closed());
        self.set(state).map(|_| ())
    }

    /// Closes the gate like [`close`](Self::close), but only if the state is `from`. Otherwise
    /// changes nothing, and returns the current state as the error. A reader (a thread that shares
    /// the gate) may then have changed the state, and may be inside NCCL.
    pub(crate) fn close_from(&self, from: State, state: State) -> Result<(), State> {
        debug_assert!(state.is_closed());
        self.change(from, state)
    }

    /// Waits until all threads have left the closed gate, and then returns `true`. Returns `false`
    /// after the time `grace` if every thread inside is marked as possibly blocked in NCCL.
    ///
    /// A thread without this mark leaves soon, so the wait for such a thread has no time limit
    /// ([G3] of this module). While the system suspends this thread or the whole process, the time
    /// does not count towards `grace`.
    pub(crate) fn drain(&self, grace: Duration) -> bool {
        let (mut waited, mut looked_at) = (Duration::ZERO, Instant::now());
        loop {
            match self.occupancy() {
                Occupancy::Empty => return true,
                Occupancy::Stuck if waited >= grace => return false,
                Occupancy::Stuck | Occupancy::Brief => {}
            }
            if waited < Duration::from_micros(50) {
                std::hint::spin_loop();
            } else {
                std::thread::sleep((waited / 8).min(Duration::from_millis(2)));
            }
            waited += looked_at.elapsed().min(LONGEST_PAUSE);
            looked_at = Instant::now();
        }
    }

    /// Returns whether threads are still inside the closed gate, and whether all of them are marked
    /// as possibly blocked in NCCL. Loads the owner and the number of readers one after the other,
    /// so a thread may enter between the two loads. This thread then finds the gate closed, and
    /// does not use the communicator's handle.
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
    /// Returns the high bits of the atomic `owner`, which count the earlier acquisitions of the
    /// gate (the communicator's lock). The low bits, which contain the mode, are 0 in the result.
    /// While this thread is inside the gate, no other thread writes `owner`.
    #[inline]
    fn acquisition(&self) -> u64 {
        self.0.owner.load(Relaxed) & !MODE_MASK
    }

    /// Returns `self` if the state of the communicator is in `allowed`. Otherwise returns the state
    /// as an error, and drops `self`, so that this thread releases the gate (the communicator's
    /// lock).
    #[inline]
    fn allowed(self, allowed: Allowed) -> Result<Self, Refused> {
        fenced();
        let state = self.0.state();
        if allowed.has(state) { Ok(self) } else { Err(Refused::State(state)) }
    }

    /// Marks this thread as possibly blocked in NCCL. Called before a call that may block inside
    /// NCCL. If the gate (the communicator's lock) is closed, removes the mark, and returns the
    /// communicator's state as the error. After this error, the caller must not use the
    /// communicator's handle.
    pub(crate) fn enter_blocking(&self) -> Result<(), State> {
        // In the single total order, this store precedes the load below, and the change of state in
        // `close` precedes the loads in `drain`. So either this thread sees that the gate is
        // closed, or the closing thread sees this thread [G3].
        self.0.owner.store(self.acquisition() | BLOCKING, SeqCst);
        fenced();
        let state = self.0.state();
        if state.is_closed() {
            self.leave_blocking();
            return Err(state);
        }
        Ok(())
    }

    /// Removes the mark that [`enter_blocking`](Self::enter_blocking) has set. Called after NCCL
    /// has returned. The caller then checks whether the gate is open. If the gate is open, the
    /// handle stays valid until the caller leaves the gate, because a thread that closes the gate
    /// waits for the caller.
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
    /// Notifies all waiters.
    #[cold]
    fn wake(&self) {
        drop(self.sleepers.lock().unwrap_or_else(PoisonError::into_inner));
        self.left.notify_all();
    }
}

impl Reader<'_> {
    /// Runs `call`, which may block in NCCL. While `call` runs, this reader is marked as possibly
    /// blocked in NCCL. If the gate is closed, does not run `call`, and returns the communicator's
    /// state as the error.
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
