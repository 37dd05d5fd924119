//! The gate of a communicator: who may call NCCL on its handle now, and whether the handle may be freed.
//!
//! Knows nothing of NCCL. Whose turn it is is one word, which only who has the turn writes; the state and who looks in are another. So a call takes one
//! locked instruction: each of the two sides writes its own word and then looks at the other's, and one of them sees the other.
//!
//! # Invariants
//! - **[G1]** At most one thread is inside by [`Gate::enter`]. NCCL forbids calls on one communicator in no order.
//! - **[G2]** After [`Gate::close`] nobody gets in, and it succeeds once: whoever it succeeds for frees the handle, after [`Gate::drain`].
//! - **[G3]** A thread that may be stuck inside NCCL has said so by `dive` or `plunge`, which fail once the gate is closed. All others leave by
//!   themselves, and are waited for however long that takes them: they do nothing in NCCL but ask for a state or a text.
//!
//! Who has said so and is not seen to leave is given up after a while, since an abort is what frees who is stuck. A thread that the system stops for longer
//! than that between its word and its call looks the same, and calls on what was freed: who calls asks once more right before, and the rest is NCCL's rule
//! too, which leaves to its callers when to abort.

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

/// Nobody has the turn.
const FREE: u32 = 0;
/// Who has it passes through.
const SHALLOW: u32 = 1;
/// Who has it may be stuck in NCCL.
const DEEP: u32 = 2;

const STATE_MASK: u64 = 0b111;
/// One who looks in, in 24 bits: more threads than there are.
const READER: u64 = 1 << 8;
/// One who looks in and may be stuck in NCCL.
const DEEP_READER: u64 = 1 << 32;

/// The longest sleep of one who waits for the turn, in parts of what was waited already; and at least, and at most.
const NAP: u32 = 8;
/// Who has waited for longer gets the turn before those who come later, who would else take it as often as they ask.
const HUNGRY_AFTER: Duration = Duration::from_millis(5);
const NAPS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(20)];

/// The model checker takes sequentially consistent accesses for less than they are, and only believes in fences.
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
    /// Taken by who finds it free; then written by who has it alone, so that leaving is a plain store.
    turn: AtomicU32,
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
    /// Goes in alone. While another is inside, waits for as long as `patience` says; it is asked only then.
    #[inline]
    pub(crate) fn enter(&self, allowed: Allowed, patience: impl FnOnce() -> Duration) -> Result<Inside<'_>, Refused> {
        match self.take_first(SHALLOW) {
            Some(inside) => inside.allowed(allowed),
            None => self.enter_slowly(allowed, patience()),
        }
    }

    /// Goes in alone and dives, in one step, where nobody is inside and the state is live; `None` elsewhere. To call NCCL at once.
    #[inline]
    pub(crate) fn plunge(&self) -> Option<Inside<'_>> {
        let inside = self.take_first(DEEP)?;
        fenced();
        // As in `dive`: either this thread sees that the gate is closed, or who closes it sees this thread [G3].
        if self.word.load(SeqCst) & STATE_MASK == State::Live as u64 { Some(inside) } else { None }
    }

    /// As [`take`](Self::take), where nobody has waited for long.
    #[inline]
    fn take_first(&self, depth: u32) -> Option<Inside<'_>> {
        if self.hungry.load(Relaxed) == 0 { self.take(depth) } else { None }
    }

    #[inline]
    fn take(&self, depth: u32) -> Option<Inside<'_>> {
        // Acquires what who had the turn before released: what one call did to the communicator comes before the next call.
        // In the one order of all with `close` and `drain`.
        // Not `then_some`: one that is made and dropped gives the turn away.
        self.turn.compare_exchange(FREE, depth, SeqCst, Relaxed).is_ok().then(|| Inside(self))
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
            // Who changes the state takes the mutex after that, so that its wake-up is never lost. Who leaves does not pay for a fence between
            // its store and its look at who waits: in the nanoseconds until the store is seen, its wake-up can be lost, and then the nap ends.
            let is_others = self.turn.load(SeqCst) != FREE || hunger.is_none() && self.hungry.load(Relaxed) != 0;
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

    /// Changes the state of what is not closed, and gives what it was. Gives the state that is kept instead, if it is closed.
    pub(crate) fn set(&self, state: State) -> Result<State, State> {
        let change = |word| (!state_of(word).is_closed()).then_some(with_state(word, state));
        let before = self.word.fetch_update(SeqCst, Acquire, change).map(state_of).map_err(state_of)?;
        // Who waits to get in is told at once.
        self.wake();
        Ok(before)
    }

    /// Changes one state to another, unless it is something else by now. What is closed stays closed [G2].
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

    /// As [`close`](Self::close), only from one state: not from what somebody who looks in has made of it, and may be inside NCCL for.
    pub(crate) fn close_from(&self, from: State, state: State) -> Result<(), State> {
        debug_assert!(state.is_closed());
        self.change(from, state)
    }

    /// After `close`: waits until nobody uses the handle, or all who do are stuck in NCCL for `grace`. Gives whether nobody does.
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

    /// Who is inside, after `close`. Two looks are enough: who comes between them finds the gate closed, and touches nothing.
    fn presence(&self) -> Presence {
        fenced();
        let (turn, word) = (self.turn.load(SeqCst), self.word.load(SeqCst));
        if turn == FREE && word & !STATE_MASK == 0 {
            Presence::Nobody
        } else if turn == SHALLOW || word & (DEEP_READER - READER) != 0 {
            Presence::PassesThrough
        } else {
            Presence::Stuck
        }
    }
}

impl<'a> Inside<'a> {
    /// Stays inside if the state allows it.
    #[inline]
    fn allowed(self, allowed: Allowed) -> Result<Self, Refused> {
        fenced();
        let state = self.0.state();
        if allowed.has(state) { Ok(self) } else { Err(Refused::State(state)) }
    }

    /// Before a call that may be stuck inside NCCL. Gives the state instead if the gate was closed meanwhile: the handle is not to be used then.
    pub(crate) fn dive(&self) -> Result<(), State> {
        // The store comes before the load in the one order of all, as does the change of state in `close` before the looks of `drain`. So either this
        // thread sees that it is closed, or who closes sees this thread [G3].
        self.0.turn.store(DEEP, SeqCst);
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
        self.0.turn.store(SHALLOW, SeqCst);
        fenced();
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.turn.store(FREE, Release);
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
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn one_thread_at_a_time_and_nobody_is_forgotten() {
        let (gate, inside, entries) = (Gate::default(), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        let _inside = gate.enter(Allowed::LIVE, || LONG).expect("it is live");
                        assert_eq!(inside.fetch_add(1, Relaxed), 0);
                        entries.fetch_add(1, Relaxed);
                        inside.fetch_sub(1, Relaxed);
                    }
                });
            }
        });
        assert_eq!(entries.into_inner(), 8_000);
        assert_eq!((gate.turn.into_inner(), gate.waiting.into_inner(), gate.word.into_inner()), (FREE, 0, 0));
        assert_eq!(gate.hungry.into_inner(), 0);
    }

    /// What a call does, and what who aborts does, again and again at the same moment: who got in before the gate was closed is waited for.
    #[test]
    fn nobody_is_inside_what_was_closed_and_drained() {
        let (mut got_in, mut refused) = (0, 0);
        for round in 0..3_000 {
            let (gate, is_freed, start) = (Gate::default(), AtomicBool::new(false), Barrier::new(3));
            let (gate, is_freed, start) = (&gate, &is_freed, &start);
            let call = move |enter: &dyn Fn() -> bool| {
                start.wait();
                (0..200).filter(|_| enter()).count()
            };
            let use_it = |inside: Inside<'_>| {
                assert!(!is_freed.load(Relaxed), "round {round}: used after it was freed");
                drop(inside);
                true
            };
            std::thread::scope(|scope| {
                let plunging = scope.spawn(move || call(&|| gate.plunge().is_some_and(use_it)));
                let entering = scope.spawn(move || {
                    call(&|| gate.enter(Allowed::LIVE, || LONG).is_ok_and(|inside| inside.dive().is_ok() && use_it(inside)))
                });
                start.wait();
                (0..round % 64).for_each(|_| std::hint::spin_loop());
                gate.close(State::Aborted).expect("it was open");
                assert!(gate.drain(LONG));
                is_freed.store(true, Relaxed);
                got_in += plunging.join().expect("no panic");
                refused += 200 - entering.join().expect("no panic");
            });
        }
        assert!(got_in > 0 && refused > 0, "{got_in} and {refused}: the race was not run");
    }

    #[test]
    fn turn_that_is_taken_is_kept_whoever_tries_to_get_in() {
        let gate = Gate::default();
        let inside = gate.plunge().expect("nobody is inside");
        assert!(gate.plunge().is_none());
        assert_eq!(gate.enter(Allowed::LIVE, || Duration::ZERO).map(drop), Err(Refused::Busy));
        assert!(gate.plunge().is_none(), "who was refused has not given the turn away");
        drop(inside);
        assert!(gate.plunge().is_some());
    }

    #[test]
    fn who_plunges_gets_into_what_is_live_only_and_leaves_nothing_behind() {
        for state in [State::Suspended, State::Failed, State::Revoked] {
            let gate = Gate::default();
            gate.set(state).expect("open");
            assert!(gate.plunge().is_none(), "{state:?}");
            assert!(gate.enter(Allowed::OPEN, || Duration::ZERO).is_ok(), "{state:?}: the turn is free");
        }
        let gate = Gate::default();
        let inside = gate.plunge().expect("it is live");
        gate.close(State::Aborted).expect("it was open");
        assert!(!gate.drain(Duration::from_millis(5)), "it may be stuck");
        drop(inside);
        assert!(gate.drain(Duration::ZERO) && gate.plunge().is_none());
    }

    /// The other thread leaves for no longer than it takes to ask again.
    #[test]
    fn who_has_waited_gets_the_turn_before_one_who_takes_it_again_and_again() {
        let (gate, taken, done) = (Gate::default(), AtomicUsize::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    let inside = gate.plunge().ok_or(()).or_else(|()| gate.enter(Allowed::LIVE, || LONG));
                    let (_inside, start) = (inside.expect("it is live"), Instant::now());
                    taken.fetch_add(1, Relaxed);
                    while start.elapsed() < Duration::from_millis(1) {
                        std::hint::spin_loop();
                    }
                }
            });
            let mut most = 0;
            for _ in 0..20 {
                std::thread::sleep(Duration::from_millis(3));
                let before = taken.load(Relaxed);
                drop(gate.enter(Allowed::LIVE, || LONG).expect("it is live"));
                most = most.max(taken.load(Relaxed) - before);
            }
            done.store(true, Relaxed);
            println!("the other had at most {most} turns meanwhile");
            assert!(most < 60, "{most}");
        });
    }

    #[test]
    fn who_waits_is_told_when_the_state_changes() {
        let gate = Gate::default();
        let _inside = gate.enter(Allowed::LIVE, || LONG).expect("nobody is inside");
        for (from, to) in [(State::Live, State::Failed), (State::Failed, State::Revoked)] {
            let allowed = Allowed(from.bit());
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| gate.enter(allowed, || LONG).map(drop));
                std::thread::sleep(Duration::from_millis(20));
                match from {
                    State::Live => assert_eq!(gate.change(from, to), Ok(())),
                    _ => assert_eq!(gate.set(to), Ok(from)),
                }
                assert_eq!(waiting.join().expect("no panic"), Err(Refused::State(to)));
            });
        }
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
    fn gate_closes_in_order_only_from_the_state_that_was_found() {
        let gate = Gate::default();
        let inside = gate.enter(Allowed::LIVE, || LONG).expect("nobody is inside");
        // Who revokes looks in and needs no turn.
        let looking = gate.look(Allowed::OPEN).expect("it is open");
        assert_eq!(gate.set(State::Revoked), Ok(State::Live));
        let freed = looking.dive(|| gate.close_from(State::Live, State::Finalized));
        assert_eq!(freed, Ok(Err(State::Revoked)), "it would be freed under who is inside NCCL");
        assert!(!gate.is_closed());
        drop((inside, looking));
        assert!(gate.enter(Allowed::SPLIT, || LONG).is_ok(), "children can be made of it");
        let gate = Gate::default();
        assert_eq!(gate.close_from(State::Live, State::Finalized), Ok(()));
        assert_eq!(gate.set(State::Revoked), Err(State::Finalized), "what is closed stays closed");
    }

    #[test]
    fn gate_closes_once() {
        let gate = Gate::default();
        assert_eq!(gate.close(State::Finalized), Ok(()));
        assert_eq!(gate.close(State::Aborted), Err(State::Finalized));
        assert_eq!(gate.set(State::Live), Err(State::Finalized));
        assert_eq!(gate.change(State::Finalized, State::Revoked), Err(State::Finalized));
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
