//! Tests of the gate with real threads: entering, waiting, notification, and timeouts.
//!
//! `model.rs` tests every interleaving. `weak.rs` tests weak memory orders. Invariant: no test
//! depends on the order in which threads enter.

use super::*;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize};

const LONG: Duration = Duration::from_secs(60);

#[test]
fn lock_is_held_by_one_thread_at_a_time_and_wakes_every_waiter() {
    let (gate, inside, entries) = (Gate::default(), AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2_000 {
                    let _inside = gate.enter(Allowed::LIVE, || LONG).expect("the communicator is live");
                    assert_eq!(inside.fetch_add(1, Relaxed), 0);
                    entries.fetch_add(1, Relaxed);
                    inside.fetch_sub(1, Relaxed);
                }
            });
        }
    });
    assert_eq!(entries.into_inner(), 8_000);
    assert_eq!((gate.owner.into_inner(), gate.waiting.into_inner(), gate.word.into_inner()), (8_000 * ACQUISITION, 0, 0));
    assert_eq!(gate.starving.into_inner(), 0);
}

/// Calls and an abort race repeatedly. The abort must wait for every thread that entered before the
/// gate was closed.
#[test]
fn abort_waits_for_every_thread_that_acquired_the_lock_earlier() {
    let (mut got_in, mut refused) = (0, 0);
    for round in 0..3_000 {
        let (gate, is_freed, start) = (Gate::default(), AtomicBool::new(false), Barrier::new(3));
        let (gate, is_freed, start) = (&gate, &is_freed, &start);
        let call = move |enter: &dyn Fn() -> bool| {
            start.wait();
            (0..200).filter(|_| enter()).count()
        };
        let use_it = |inside: Inside<'_>| {
            assert!(!is_freed.load(Relaxed), "round {round}: the value was used after it was freed");
            drop(inside);
            true
        };
        std::thread::scope(|scope| {
            let entering_blocking = scope.spawn(move || call(&|| gate.try_enter_blocking().is_some_and(use_it)));
            let entering = scope.spawn(move || {
                call(&|| gate.enter(Allowed::LIVE, || LONG).is_ok_and(|inside| inside.enter_blocking().is_ok() && use_it(inside)))
            });
            start.wait();
            (0..round % 64).for_each(|_| std::hint::spin_loop());
            gate.close(State::Aborted).expect("no thread has closed the gate before");
            assert!(gate.drain(LONG));
            is_freed.store(true, Relaxed);
            got_in += entering_blocking.join().expect("the thread does not panic");
            refused += 200 - entering.join().expect("the thread does not panic");
        });
    }
    assert!(got_in > 0 && refused > 0, "{got_in} entered, {refused} refused: the threads did not race");
}

#[test]
fn communicator_lock_held_by_a_thread_refuses_other_threads() {
    let gate = Gate::default();
    let inside = gate.try_enter_blocking().expect("no thread is inside the gate");
    assert!(gate.try_enter_blocking().is_none());
    assert_eq!(gate.enter(Allowed::LIVE, || Duration::ZERO).map(drop), Err(Refused::Busy));
    assert!(gate.try_enter_blocking().is_none(), "the refused thread released the gate");
    drop(inside);
    assert!(gate.try_enter_blocking().is_some());
}

#[test]
fn try_lock_succeeds_only_if_the_communicator_is_live() {
    for state in [State::Suspended, State::Failed, State::Revoked] {
        let gate = Gate::default();
        gate.set(state).expect("the gate is open");
        assert!(gate.try_enter_blocking().is_none(), "{state:?}");
        assert!(gate.enter(Allowed::OPEN, || Duration::ZERO).is_ok(), "{state:?}: a thread must be able to enter a free gate");
    }
    let gate = Gate::default();
    let inside = gate.try_enter_blocking().expect("the communicator is live");
    gate.close(State::Aborted).expect("no thread has closed the gate before");
    assert!(!gate.drain(Duration::from_millis(5)), "drain did not notice that the thread inside may be blocked");
    drop(inside);
    assert!(gate.drain(Duration::ZERO) && gate.try_enter_blocking().is_none());
}

/// Another thread enters the gate in a loop, and leaves it only briefly between two entries.
#[test]
fn lock_waiter_is_not_starved_by_a_thread_that_locks_in_a_loop() {
    let (gate, taken, done) = (Gate::default(), AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                let inside = gate.try_enter_blocking().ok_or(()).or_else(|()| gate.enter(Allowed::LIVE, || LONG));
                let (_inside, start) = (inside.expect("the communicator is live"), Instant::now());
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
            drop(gate.enter(Allowed::LIVE, || LONG).expect("the communicator is live"));
            most = most.max(taken.load(Relaxed) - before);
        }
        done.store(true, Relaxed);
        println!("the other thread entered at most {most} times during one wait");
        assert!(most < 60, "the other thread entered {most} times during one wait, expected fewer than 60");
    });
}

#[test]
fn waiter_is_notified_of_a_state_change() {
    let gate = Gate::default();
    let _inside = gate.enter(Allowed::LIVE, || LONG).expect("no thread is inside the gate");
    for (from, to) in [(State::Live, State::Failed), (State::Failed, State::Revoked)] {
        let allowed = Allowed(from.bit());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| gate.enter(allowed, || LONG).map(drop));
            std::thread::sleep(Duration::from_millis(20));
            match from {
                State::Live => assert_eq!(gate.change(from, to), Ok(())),
                _ => assert_eq!(gate.set(to), Ok(from)),
            }
            assert_eq!(waiting.join().expect("the thread does not panic"), Err(Refused::State(to)));
        });
    }
}

#[test]
fn waiting_thread_wakes_when_the_communicator_closes() {
    let gate = Gate::default();
    let inside = gate.enter(Allowed::LIVE, || LONG).expect("no thread is inside the gate");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| gate.enter(Allowed::LIVE, || LONG).map(drop));
        std::thread::sleep(Duration::from_millis(20));
        gate.close(State::Aborted).expect("no thread has closed the gate before");
        assert_eq!(waiting.join().expect("the thread does not panic"), Err(Refused::State(State::Aborted)));
    });
    assert!(inside.enter_blocking().is_err(), "the gate is closed");
    drop(inside);
    assert!(gate.drain(LONG));
}

#[test]
fn abort_waits_without_timeout_for_lock_holders_outside_nccl() {
    let gate = Gate::default();
    let inside = gate.enter(Allowed::LIVE, || LONG).expect("no thread is inside the gate");
    inside.enter_blocking().expect("the gate is open");
    gate.close(State::Aborted).expect("no thread has closed the gate before");
    assert!(!gate.drain(Duration::from_millis(5)), "drain did not notice that the thread inside is blocked");
    inside.leave_blocking();
    std::thread::scope(|scope| {
        let draining = scope.spawn(|| gate.drain(Duration::ZERO));
        std::thread::sleep(Duration::from_millis(30));
        assert!(!draining.is_finished());
        drop(inside);
        assert!(draining.join().expect("the thread does not panic"));
    });
}

#[test]
fn abort_wait_times_out_if_a_lock_reader_is_blocked_in_nccl() {
    let gate = Gate::default();
    let reader = gate.enter_shared(Allowed::OPEN).expect("the gate is open");
    let drained = reader.enter_blocking(|| {
        gate.close(State::Aborted).expect("no thread has closed the gate before");
        gate.drain(Duration::from_millis(5))
    });
    assert_eq!(drained, Ok(false));
    assert_eq!(reader.enter_blocking(|| ()), Err(State::Aborted));
    drop(reader);
    assert!(gate.drain(Duration::ZERO));
}

#[test]
fn state_change_fails_if_expected_and_current_state_differ() {
    let gate = Gate::default();
    assert_eq!(gate.change(State::Suspended, State::Live), Err(State::Live));
    gate.set(State::Revoked).expect("the gate is open");
    assert_eq!(gate.change(State::Suspended, State::Live), Err(State::Revoked));
    assert_eq!(gate.change(State::Revoked, State::Live), Ok(()));
}

#[test]
fn close_fails_if_expected_and_current_state_differ() {
    let gate = Gate::default();
    let inside = gate.enter(Allowed::LIVE, || LONG).expect("no thread is inside the gate");
    // A revocation enters as a reader.
    let reader = gate.enter_shared(Allowed::OPEN).expect("the gate is open");
    assert_eq!(gate.set(State::Revoked), Ok(State::Live));
    let freed = reader.enter_blocking(|| gate.close_from(State::Live, State::Finalized));
    assert_eq!(freed, Ok(Err(State::Revoked)), "the handle would be freed while a thread is inside NCCL");
    assert!(!gate.is_closed());
    drop((inside, reader));
    assert!(gate.enter(Allowed::SPLIT, || LONG).is_ok(), "a revoked communicator must allow a split");
    let gate = Gate::default();
    assert_eq!(gate.close_from(State::Live, State::Finalized), Ok(()));
    assert_eq!(gate.set(State::Revoked), Err(State::Finalized), "a closed gate must stay closed");
}

#[test]
fn communicator_lock_can_be_closed_only_once() {
    let gate = Gate::default();
    assert_eq!(gate.close(State::Finalized), Ok(()));
    assert_eq!(gate.close(State::Aborted), Err(State::Finalized));
    assert_eq!(gate.set(State::Live), Err(State::Finalized));
    assert_eq!(gate.change(State::Finalized, State::Revoked), Err(State::Finalized));
    assert!(gate.enter_shared(Allowed::OPEN).is_err());
}

#[test]
fn second_exclusive_lock_times_out_while_the_first_is_held() {
    let gate = Gate::default();
    let _inside = gate.enter(Allowed::LIVE, || LONG).expect("no thread is inside the gate");
    let second = gate.enter(Allowed::LIVE, || Duration::from_millis(10));
    assert_eq!(second.map(drop), Err(Refused::Busy));
    assert!(gate.enter_shared(Allowed::LIVE).is_ok(), "a shared entry must succeed while another thread is inside the gate");
}

#[test]
fn locking_fails_if_the_communicator_state_is_not_allowed() {
    let gate = Gate::default();
    gate.set(State::Revoked).expect("the gate is open");
    assert_eq!(gate.enter(Allowed::LIVE, || LONG).map(drop), Err(Refused::State(State::Revoked)));
    assert!(gate.enter(Allowed::SPLIT, || LONG).is_ok());
    gate.set(State::Suspended).expect("the gate is open");
    assert!(gate.enter(Allowed::SUSPENDED, || LONG).is_ok());
    assert!(gate.enter(Allowed::SPLIT, || LONG).is_err());
}
