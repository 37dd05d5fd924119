//! The gate of a communicator: who may call NCCL on its handle now, and whether the handle may be freed.
//!
//! Knows nothing of NCCL. State, lock and the count of readers are one word, so that each decision is one atomic step.
//!
//! # Invariants
//! - **[G1]** At most one thread is inside by [`Gate::enter`]. NCCL forbids calls on one communicator in no order.
//! - **[G2]** After [`Gate::close`] nobody gets in, and it succeeds once: whoever it succeeds for frees the handle, after [`Gate::drain`].
//! - **[G3]** A thread that may be stuck inside NCCL has said so by `dive`, which fails once the gate is closed. All others leave by
//!   themselves, and are waited for however long that takes them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::DeadState;

/// What a communicator can do now.
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
    /// How a state is told to a caller who cannot do something in it.
    pub(crate) fn dead(self) -> DeadState {
        match self {
            Self::Suspended => DeadState::Suspended,
            Self::Failed | Self::Live => DeadState::Failed,
            Self::Revoked => DeadState::Revoked,
            Self::Finalized => DeadState::Finalized,
            Self::Aborted => DeadState::Aborted,
        }
    }

    fn is_closed(self) -> bool {
        matches!(self, Self::Finalized | Self::Aborted)
    }

    const fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// Which states a call is possible in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowed(u32);

impl Allowed {
    /// Work is enqueued only on what lives.
    pub(crate) const LIVE: Self = Self(State::Live.bit());
    /// What suspending ends.
    pub(crate) const SUSPENDED: Self = Self(State::Suspended.bit());
    /// Children can be made of what was revoked.
    pub(crate) const SPLIT: Self = Self(State::Live.bit() | State::Revoked.bit());
    /// A new communicator without the ranks that are gone can be made even of what failed.
    pub(crate) const SHRINK: Self = Self(Self::SPLIT.0 | State::Failed.bit());
    /// Whatever was not freed.
    pub(crate) const OPEN: Self = Self(State::Live.bit() | State::Suspended.bit() | State::Failed.bit() | State::Revoked.bit());

    fn has(self, state: State) -> bool {
        self.0 & state.bit() != 0
    }
}

/// Why somebody does not get in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The state does not allow it.
    State(State),
    /// Another thread was inside until the deadline.
    Busy,
}

const LOCKED: u64 = 1;
const WAITERS: u64 = 2;
/// Who is inside may be stuck in NCCL.
const DEEP: u64 = 1 << 5;
const STATE_SHIFT: u32 = 2;
const STATE_MASK: u64 = 0b111 << STATE_SHIFT;
/// One who looks in, in 24 bits: more threads than there are.
const READER: u64 = 1 << 8;
/// One who looks in and may be stuck in NCCL.
const DEEP_READER: u64 = 1 << 32;

fn state_of(word: u64) -> State {
    match (word & STATE_MASK) >> STATE_SHIFT {
        0 => State::Live,
        1 => State::Suspended,
        2 => State::Failed,
        3 => State::Revoked,
        4 => State::Finalized,
        _ => State::Aborted,
    }
}

fn with_state(word: u64, state: State) -> u64 {
    word & !STATE_MASK | (state as u64) << STATE_SHIFT
}

/// The gate of one communicator.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    word: AtomicU64,
    sleepers: Mutex<()>,
    left: Condvar,
}

/// A thread that is inside alone. Leaves when dropped.
#[derive(Debug)]
pub(crate) struct Inside<'a>(&'a Gate);

/// A thread that only looks, beside others.
#[derive(Debug)]
pub(crate) struct Looking<'a>(&'a Gate);

impl Gate {
    /// Goes in alone. While another is inside, waits for as long as `patience` says; it is asked only then.
    #[inline]
    pub(crate) fn enter(&self, allowed: Allowed, patience: impl FnOnce() -> Duration) -> Result<Inside<'_>, Refused> {
        // Acquire, with the release of who left before: what one call did to the communicator comes before the next call.
        if allowed.has(State::Live) && self.word.compare_exchange(0, LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return Ok(Inside(self));
        }
        self.enter_slowly(allowed, patience())
    }

    #[cold]
    fn enter_slowly(&self, allowed: Allowed, patience: Duration) -> Result<Inside<'_>, Refused> {
        let start = Instant::now();
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if !allowed.has(state_of(word)) {
                return Err(Refused::State(state_of(word)));
            }
            if word & LOCKED == 0 {
                match self.word.compare_exchange_weak(word, word | LOCKED, Ordering::Acquire, Ordering::Relaxed) {
                    Ok(_) => return Ok(Inside(self)),
                    Err(now) => word = now,
                }
                continue;
            }
            let Some(rest) = patience.checked_sub(start.elapsed()) else { return Err(Refused::Busy) };
            let guard = self.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
            // Who leaves clears the mark and takes the mutex before waking: no wake-up is lost between here and the wait.
            match self.word.compare_exchange(word, word | WAITERS, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => drop(self.left.wait_timeout(guard, rest).unwrap_or_else(PoisonError::into_inner)),
                Err(_) => drop(guard),
            }
            word = self.word.load(Ordering::Relaxed);
        }
    }

    /// Looks in, whoever is inside.
    pub(crate) fn look(&self, allowed: Allowed) -> Result<Looking<'_>, Refused> {
        let count = |word| allowed.has(state_of(word)).then_some(word + READER);
        match self.word.fetch_update(Ordering::Acquire, Ordering::Relaxed, count) {
            Ok(_) => Ok(Looking(self)),
            Err(word) => Err(Refused::State(state_of(word))),
        }
    }

    pub(crate) fn state(&self) -> State {
        state_of(self.word.load(Ordering::Acquire))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state().is_closed()
    }

    /// Changes the state of what is not closed. Gives the state that is kept instead, if it is closed.
    pub(crate) fn set(&self, state: State) -> Result<(), State> {
        let change = |word| (!state_of(word).is_closed()).then_some(with_state(word, state));
        self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).map(|_| ()).map_err(state_of)
    }

    /// Changes one state to another, unless it is something else by now.
    pub(crate) fn change(&self, from: State, to: State) -> Result<(), State> {
        let change = |word| (state_of(word) == from).then_some(with_state(word, to));
        self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).map(|_| ()).map_err(state_of)
    }

    /// Lets nobody in any more. Succeeds once [G2].
    pub(crate) fn close(&self, state: State) -> Result<(), State> {
        debug_assert!(state.is_closed());
        self.set(state)?;
        // Who waits to get in is told at once.
        drop(self.sleepers.lock().unwrap_or_else(PoisonError::into_inner));
        self.left.notify_all();
        Ok(())
    }

    /// After `close`: waits until nobody uses the handle, or all who do are stuck in NCCL for `grace`. Gives whether nobody does.
    ///
    /// Waits without a limit for who only passes through [G3]: for a thread of this crate.
    pub(crate) fn drain(&self, grace: Duration) -> bool {
        let start = Instant::now();
        loop {
            let word = self.word.load(Ordering::Acquire) & !(STATE_MASK | WAITERS);
            if word == 0 {
                return true;
            }
            let passes_through = word & (LOCKED | DEEP) == LOCKED || word & (DEEP_READER - READER) != 0;
            if !passes_through && start.elapsed() >= grace {
                return false;
            }
            match start.elapsed() {
                waited if waited < Duration::from_micros(50) => std::hint::spin_loop(),
                waited => std::thread::sleep((waited / 8).min(Duration::from_millis(2))),
            }
        }
    }
}

impl Inside<'_> {
    /// Before a call that may be stuck inside NCCL. Gives the state instead if the gate was closed meanwhile: the handle is not to be used then.
    #[inline]
    pub(crate) fn dive(&self) -> Result<(), State> {
        // One atomic step with closing: either this thread sees that it is closed, or who closes sees this thread [G3].
        let before = self.0.word.fetch_or(DEEP, Ordering::AcqRel);
        if state_of(before).is_closed() {
            self.surface();
            return Err(state_of(before));
        }
        Ok(())
    }

    /// After it.
    pub(crate) fn surface(&self) {
        self.0.word.fetch_and(!DEEP, Ordering::Release);
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        let before = self.0.word.fetch_and(!(LOCKED | WAITERS | DEEP), Ordering::Release);
        if before & WAITERS != 0 {
            drop(self.0.sleepers.lock().unwrap_or_else(PoisonError::into_inner));
            self.0.left.notify_all();
        }
    }
}

impl Looking<'_> {
    /// As [`Inside::dive`], for the time of a call.
    pub(crate) fn dive<R>(&self, call: impl FnOnce() -> R) -> Result<R, State> {
        let before = self.0.word.fetch_add(DEEP_READER - READER, Ordering::AcqRel);
        let result = if state_of(before).is_closed() { Err(state_of(before)) } else { Ok(call()) };
        self.0.word.fetch_sub(DEEP_READER - READER, Ordering::Release);
        result
    }
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        self.0.word.fetch_sub(READER, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn one_thread_at_a_time_and_nobody_is_forgotten() {
        let (gate, inside, entries) = (Gate::default(), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        let _inside = gate.enter(Allowed::LIVE, || LONG).expect("it is live");
                        assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
                        entries.fetch_add(1, Ordering::Relaxed);
                        inside.fetch_sub(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(entries.into_inner(), 8_000);
        assert_eq!(gate.word.into_inner() & !WAITERS, 0);
    }

    #[test]
    fn who_waits_is_told_when_the_gate_closes() {
        let gate = Gate::default();
        let inside = gate.enter(Allowed::LIVE, || LONG).expect("nobody is inside");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| gate.enter(Allowed::LIVE, || LONG).map(drop));
            std::thread::sleep(Duration::from_millis(20));
            gate.close(State::Aborted).expect("it was open");
            assert_eq!(waiting.join().expect("no panic"), Err(Refused::State(State::Aborted)));
        });
        assert!(inside.dive().is_err(), "it is closed");
        drop(inside);
        assert!(gate.drain(LONG));
    }

    #[test]
    fn who_is_stuck_is_given_up_and_who_passes_through_is_waited_for() {
        let gate = Gate::default();
        let inside = gate.enter(Allowed::LIVE, || LONG).expect("nobody is inside");
        inside.dive().expect("it is open");
        gate.close(State::Aborted).expect("it was open");
        assert!(!gate.drain(Duration::from_millis(5)), "it is stuck");
        inside.surface();
        std::thread::scope(|scope| {
            let draining = scope.spawn(|| gate.drain(Duration::ZERO));
            std::thread::sleep(Duration::from_millis(30));
            assert!(!draining.is_finished());
            drop(inside);
            assert!(draining.join().expect("no panic"));
        });
    }

    #[test]
    fn who_looks_in_and_is_stuck_is_given_up_too() {
        let gate = Gate::default();
        let looking = gate.look(Allowed::OPEN).expect("it is open");
        let drained = looking.dive(|| {
            gate.close(State::Aborted).expect("it was open");
            gate.drain(Duration::from_millis(5))
        });
        assert_eq!(drained, Ok(false));
        assert_eq!(looking.dive(|| ()), Err(State::Aborted));
        drop(looking);
        assert!(gate.drain(Duration::ZERO));
    }

    #[test]
    fn state_changes_only_from_what_it_was() {
        let gate = Gate::default();
        assert_eq!(gate.change(State::Suspended, State::Live), Err(State::Live));
        gate.set(State::Revoked).expect("open");
        assert_eq!(gate.change(State::Suspended, State::Live), Err(State::Revoked));
        assert_eq!(gate.change(State::Revoked, State::Live), Ok(()));
    }

    #[test]
    fn gate_closes_once() {
        let gate = Gate::default();
        assert_eq!(gate.close(State::Finalized), Ok(()));
        assert_eq!(gate.close(State::Aborted), Err(State::Finalized));
        assert_eq!(gate.set(State::Live), Err(State::Finalized));
        assert!(gate.look(Allowed::OPEN).is_err());
    }

    #[test]
    fn busy_gate_is_given_up_at_the_deadline() {
        let gate = Gate::default();
        let _inside = gate.enter(Allowed::LIVE, || LONG).expect("nobody is inside");
        let second = gate.enter(Allowed::LIVE, || Duration::from_millis(10));
        assert_eq!(second.map(drop), Err(Refused::Busy));
        assert!(gate.look(Allowed::LIVE).is_ok(), "looking is possible beside it");
    }

    #[test]
    fn states_allow_what_they_should() {
        let gate = Gate::default();
        gate.set(State::Revoked).expect("open");
        assert_eq!(gate.enter(Allowed::LIVE, || LONG).map(drop), Err(Refused::State(State::Revoked)));
        assert!(gate.enter(Allowed::SPLIT, || LONG).is_ok());
        gate.set(State::Suspended).expect("open");
        assert!(gate.enter(Allowed::SUSPENDED, || LONG).is_ok());
        assert!(gate.enter(Allowed::SPLIT, || LONG).is_err());
    }
}
