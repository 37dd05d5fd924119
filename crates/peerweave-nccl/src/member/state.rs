//! The gate of a communicator: who may call NCCL on its handle now, and whether the handle may be
//! freed.
//!
//! Knows nothing of NCCL. Whose turn it is is one word, which only who has the turn writes; the
//! state and who looks in are another. So a call takes one locked instruction: each of the two
//! sides writes its own word and then looks at the other's, and one of them sees the other.
//!
//! # Invariants
//! - **[G1]** At most one thread is inside by [`Gate::enter`]. NCCL forbids calls on one
//!   communicator in no order.
//! - **[G2]** After [`Gate::close`] nobody gets in, and it succeeds once: whoever it succeeds for
//!   frees the handle, after [`Gate::drain`].
//! - **[G3]** A thread that may be stuck inside NCCL has said so by `dive` or `plunge`, which fail
//!   once the gate is closed. All others leave by themselves, and are waited for however long that
//!   takes them: they do nothing in NCCL but ask for a state or a text.
//!
//! Who has said so and is not seen to leave is given up after a while, since an abort is what frees
//! who is stuck. A thread that the system stops for longer than that between its word and its call
//! looks the same, and calls on what was freed: the caller asks again right before, and the rest is
//! NCCL's rule too, which leaves to its callers when to abort.

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

    /// As [`dead`](Self::dead), for what may be well.
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

/// Which states a call is possible in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// Nobody has the turn.
const FREE: u64 = 0;
/// Who has it passes through.
const SHALLOW: u64 = 1;
/// Who has it may be stuck in NCCL.
const DEEP: u64 = 2;
/// Which of these it is.
const DEPTH: u64 = 3;
/// One turn, in the count of turns that were taken and left.
const TURN: u64 = 4;

const STATE_MASK: u64 = 0b111;
/// One who looks in, in 24 bits: more threads than there are.
const READER: u64 = 1 << 8;
/// One who looks in and may be stuck in NCCL.
const DEEP_READER: u64 = 1 << 32;

/// The longest sleep of one who waits for the turn, in parts of what was waited already; and at
/// least, and at most.
const NAP: u32 = 8;
/// Who has waited for longer gets the turn before those who come later, who would else take it as
/// often as they ask.
const HUNGRY_AFTER: Duration = Duration::from_millis(5);
const NAPS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(20)];

/// The model checker takes sequentially consistent accesses for less than they are, and only
/// believes in fences.
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
    /// Taken by who finds it free; then written by who has it alone, so that leaving is a plain
    /// store. Counts the turns, so that two calls look different.
    turn: AtomicU64,
    /// How many wait for the turn.
    waiting: AtomicU32,
    /// How many of them have waited for long.
    hungry: AtomicU32,
    /// The state, and who looks in.
    word: AtomicU64,
    sleepers: Mutex<()>,
    left: Condvar,
}

/// A thread that is inside alone. Leaves when dropped.
#[derive(Debug)]
pub(crate) struct Inside<'a>(&'a Gate);

/// A thread that has waited for long. No longer when dropped.
struct Hunger<'a>(&'a AtomicU32);

impl<'a> Hunger<'a> {
    fn new(hungry: &'a AtomicU32) -> Self {
        hungry.fetch_add(1, Relaxed);
        Self(hungry)
    }
}

impl Drop for Hunger<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// A thread that only looks, beside others.
#[derive(Debug)]
pub(crate) struct Looking<'a>(&'a Gate);

/// Who is in a gate that was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Nobody,
    /// Somebody who leaves by himself.
    PassesThrough,
    /// Only who may be stuck in NCCL.
    Stuck,
}

impl Gate {
    /// What [`stuck_in`](Self::stuck_in) gives where nobody has the turn, and a thread looks in: no
    /// number of a turn.
    pub(crate) const READER: u64 = SHALLOW;

    /// Goes in alone. While another is inside, waits for as long as `patience` says; it is asked
    /// only then.
    #[inline]
    pub(crate) fn enter(&self, allowed: Allowed, patience: impl FnOnce() -> Duration) -> Result<Inside<'_>, Refused> {
        match self.take_first(SHALLOW) {
            Some(inside) => inside.allowed(allowed),
            None => self.enter_slowly(allowed, patience()),
        }
    }

    /// Goes in alone and dives, in one step, where nobody is inside and the state is live; `None`
    /// elsewhere. To call NCCL at once.
    #[inline]
    pub(crate) fn plunge(&self) -> Option<Inside<'_>> {
        let inside = self.take_first(DEEP)?;
        fenced();
        // As in `dive`: either this thread sees that the gate is closed, or who closes it sees this
        // thread [G3].
        if self.word.load(SeqCst) & STATE_MASK == State::Live as u64 { Some(inside) } else { None }
    }

    /// As [`take`](Self::take), where nobody has waited for long.
    #[inline]
    fn take_first(&self, depth: u64) -> Option<Inside<'_>> {
        if self.hungry.load(Relaxed) == 0 { self.take(depth) } else { None }
    }

    #[inline]
    fn take(&self, depth: u64) -> Option<Inside<'_>> {
        // Acquires what who had the turn before released: what one call did to the communicator
        // comes before the next call. In the one order of all with `close` and `drain`. Not
        // `then_some`: one that is made and dropped gives the turn away.
        let turn = self.turn.load(Relaxed);
        (turn & DEPTH == FREE && self.turn.compare_exchange(turn, turn | depth, SeqCst, Relaxed).is_ok()).then(|| Inside(self))
    }

    #[cold]
    fn enter_slowly(&self, allowed: Allowed, patience: Duration) -> Result<Inside<'_>, Refused> {
        let (start, mut hunger) = (Instant::now(), None);
        loop {
            if !allowed.has(self.state()) {
                return Err(Refused::State(self.state()));
            }
            let inside = if hunger.is_some() { self.take(SHALLOW) } else { self.take_first(SHALLOW) };
            if let Some(inside) = inside {
                return inside.allowed(allowed);
            }
            if hunger.is_none() && start.elapsed() >= HUNGRY_AFTER {
                hunger = Some(Hunger::new(&self.hungry));
            }
            let Some(rest) = patience.checked_sub(start.elapsed()) else { return Err(Refused::Busy) };
            let guard = self.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
            self.waiting.fetch_add(1, SeqCst);
            // Who changes the state takes the mutex after that, so that its wake-up is never lost.
            // Who leaves does not pay for a fence between its store and its look at who waits: in
            // the nanoseconds until the store is seen, its wake-up can be lost, and then the nap
            // ends.
            let is_others = self.turn.load(SeqCst) & DEPTH != FREE || hunger.is_none() && self.hungry.load(Relaxed) != 0;
            if is_others && allowed.has(self.state()) {
                let nap = (start.elapsed() / NAP).clamp(NAPS[0], NAPS[1]).min(rest);
                drop(self.left.wait_timeout(guard, nap).unwrap_or_else(PoisonError::into_inner));
            }
            self.waiting.fetch_sub(1, Relaxed);
        }
    }

    /// Looks in, whoever is inside.
    pub(crate) fn look(&self, allowed: Allowed) -> Result<Looking<'_>, Refused> {
        let count = |word| allowed.has(state_of(word)).then_some(word + READER);
        match self.word.fetch_update(AcqRel, Acquire, count) {
            Ok(_) => Ok(Looking(self)),
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

    /// A thread that may be stuck in NCCL now, by a number that stays the same until it is out.
    /// Costs the threads inside nothing.
    pub(crate) fn stuck_in(&self) -> Option<u64> {
        let (turn, word) = (self.turn.load(Acquire), self.word.load(Acquire));
        let reader = (word >= DEEP_READER).then_some(Self::READER);
        (turn & DEPTH == DEEP).then_some(turn).or(reader)
    }

    /// Changes the state of what is not closed, and gives what it was. Gives the state that is kept
    /// instead, if it is closed.
    pub(crate) fn set(&self, state: State) -> Result<State, State> {
        let change = |word| (!state_of(word).is_closed()).then_some(with_state(word, state));
        let before = self.word.fetch_update(SeqCst, Acquire, change).map(state_of).map_err(state_of)?;
        // Who waits to get in is told at once.
        self.wake();
        Ok(before)
    }

    /// Changes one state to another, unless it is something else by now. What is closed stays
    /// closed [G2].
    pub(crate) fn change(&self, from: State, to: State) -> Result<(), State> {
        let change = |word| (state_of(word) == from && !from.is_closed()).then_some(with_state(word, to));
        self.word.fetch_update(SeqCst, Acquire, change).map_err(state_of)?;
        self.wake();
        Ok(())
    }

    /// Lets nobody in any more. Succeeds once [G2].
    pub(crate) fn close(&self, state: State) -> Result<(), State> {
        debug_assert!(state.is_closed());
        self.set(state).map(|_| ())
    }

    /// As [`close`](Self::close), only from one state: not from what somebody who looks in has made
    /// of it, and may be inside NCCL for.
    pub(crate) fn close_from(&self, from: State, state: State) -> Result<(), State> {
        debug_assert!(state.is_closed());
        self.change(from, state)
    }

    /// After `close`: waits until nobody uses the handle, or all who do are stuck in NCCL for
    /// `grace`. Gives whether nobody does.
    ///
    /// Waits without a limit for who only passes through [G3]: for a thread of this crate.
    pub(crate) fn drain(&self, grace: Duration) -> bool {
        let start = Instant::now();
        loop {
            match self.presence() {
                Presence::Nobody => return true,
                Presence::Stuck if start.elapsed() >= grace => return false,
                Presence::Stuck | Presence::PassesThrough => {}
            }
            match start.elapsed() {
                waited if waited < Duration::from_micros(50) => std::hint::spin_loop(),
                waited => std::thread::sleep((waited / 8).min(Duration::from_millis(2))),
            }
        }
    }

    /// Who is inside, after `close`. Two looks are enough: who comes between them finds the gate
    /// closed, and touches nothing.
    fn presence(&self) -> Presence {
        fenced();
        let (turn, word) = (self.turn.load(SeqCst), self.word.load(SeqCst));
        if turn & DEPTH == FREE && word & !STATE_MASK == 0 {
            Presence::Nobody
        } else if turn & DEPTH == SHALLOW || word & (DEEP_READER - READER) != 0 {
            Presence::PassesThrough
        } else {
            Presence::Stuck
        }
    }
}

impl<'a> Inside<'a> {
    /// The number of this turn, which this thread alone writes now.
    #[inline]
    fn turn(&self) -> u64 {
        self.0.turn.load(Relaxed) & !DEPTH
    }

    /// Stays inside if the state allows it.
    #[inline]
    fn allowed(self, allowed: Allowed) -> Result<Self, Refused> {
        fenced();
        let state = self.0.state();
        if allowed.has(state) { Ok(self) } else { Err(Refused::State(state)) }
    }

    /// Before a call that may be stuck inside NCCL. Gives the state instead if the gate was closed
    /// meanwhile: the handle is not to be used then.
    pub(crate) fn dive(&self) -> Result<(), State> {
        // The store comes before the load in the one order of all, as does the change of state in
        // `close` before the looks of `drain`. So either this thread sees that it is closed, or who
        // closes sees this thread [G3].
        self.0.turn.store(self.turn() | DEEP, SeqCst);
        fenced();
        let state = self.0.state();
        if state.is_closed() {
            self.surface();
            return Err(state);
        }
        Ok(())
    }

    /// After it. Who looks at the state after this either sees that it is closed, or is waited for.
    pub(crate) fn surface(&self) {
        self.0.turn.store(self.turn() | SHALLOW, SeqCst);
        fenced();
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.turn.store(self.turn() + TURN, Release);
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

impl Looking<'_> {
    /// As [`Inside::dive`], for the time of a call.
    pub(crate) fn dive<R>(&self, call: impl FnOnce() -> R) -> Result<R, State> {
        let before = self.0.word.fetch_add(DEEP_READER - READER, AcqRel);
        let result = if state_of(before).is_closed() { Err(state_of(before)) } else { Ok(call()) };
        self.0.word.fetch_sub(DEEP_READER - READER, Release);
        result
    }
}

impl Drop for Looking<'_> {
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
