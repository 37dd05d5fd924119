//! Tests of a lock whose holder is suspended between its two steps: the holder chooses a waiting
//! PE, and then changes the state.

use super::*;
use crate::noop::Noop;

/// Returns a world of two PEs, and two handles to one lock: one for PE 1, and one for PE 0.
fn both() -> (World, Lock, Lock) {
    let world = World::new(Noop::new(1, 2)).expect("the world is created");
    let lock = world.alloc_lock().expect("the lock is allocated");
    let words = Words::new(lock.words.memory().clone(), world.team());
    (world, lock, Lock { words, gate: Gate::default(), me: Pe::new(0) })
}

/// Makes PE 0 hold the lock, choose PE 1 as the next holder, and pass the lock on to PE 1 only
/// after PE 1 has given up.
fn pass_on_late(lock: &Lock, holder: &Lock) {
    std::mem::forget(holder.lock().expect("the lock is free"));
    let me = Pe::new(1);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| lock.lock_within(Duration::from_secs(1)).map(drop));
        while !holder.words.stop_waiting("unlock", me).expect("the atomic operation succeeds") {
            std::thread::yield_now();
        }
        let error = waiting.join().expect("the thread does not panic").expect_err("PE 0 still holds the lock");
        assert!(matches!(&error, Error::Timeout(timeout) if timeout.holder == Some(Pe::new(0))), "{error}");
    });
    assert!(holder.words.change("unlock", State::Held(Pe::new(0)), State::Passed(me)).expect("the atomic operation succeeds"));
    holder.gate.leave();
}

#[test]
fn lock_passed_to_a_timed_out_waiter_can_be_acquired_by_others() {
    let (_world, lock, holder) = both();
    pass_on_late(&lock, &holder);
    let guard = holder.try_lock().expect("no PE has died").expect("PE 1 does not wait any more");
    assert_eq!(guard.taken_from(), None);
    guard.unlock().expect("the lock is freed");
    // PE 1 can wait for the lock again.
    let guard = holder.lock().expect("the lock is free");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| lock.lock().map(drop));
        while !lock.words.waits("lock", lock.me).expect("the atomic operation succeeds") {
            std::thread::yield_now();
        }
        guard.unlock().expect("the lock is passed on");
        waiting.join().expect("the thread does not panic").expect("the lock was passed on");
    });
    assert_eq!(lock.holder().expect("the atomic operation succeeds"), None);
}

#[test]
fn pe_that_timed_out_acquires_the_lock_at_the_next_call() {
    let (_world, lock, holder) = both();
    pass_on_late(&lock, &holder);
    lock.lock().expect("the lock was passed on to this PE").unlock().expect("the lock is freed");
    holder.lock().expect("the lock is free").unlock().expect("the lock is freed");
}
