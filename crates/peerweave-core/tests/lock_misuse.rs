//! Checks the error of every wrong use of a lock, and that valid uses succeed, on the recording
//! backend.

use peerweave_core::noop::{Call, Noop};
use peerweave_core::{Error, Lock, Pe, Result, World};
use std::sync::Arc;
use std::time::Duration;

/// Returns the world of PE 1 of 4 and its backend, and a lock.
fn scene() -> (Arc<Noop>, World, Lock) {
    let noop = Noop::new(1, 4);
    let world = World::new(noop.clone()).unwrap();
    let lock = world.alloc_lock().unwrap();
    (noop, world, lock)
}

type Wrong = fn(&World, &Lock) -> Result<()>;

/// Calls on a world, or on a lock of that world, that fail after a finalize or shrink.
const TABLE: &[(&str, Wrong)] = &[
    ("alloc_lock", |world, _| world.alloc_lock().map(drop)),
    ("lock", |_, lock| lock.lock().map(drop)),
    ("lock_within", |_, lock| lock.lock_within(Duration::MAX).map(drop)),
    ("lock_within", |_, lock| lock.lock_within(Duration::ZERO).map(drop)),
    ("try_lock", |_, lock| lock.try_lock().map(drop)),
    ("take_over", |_, lock| lock.take_over().map(drop)),
    ("holder", |_, lock| lock.holder().map(drop)),
    ("waiters", |_, lock| lock.waiters().map(drop)),
];

/// Checks that every call of `TABLE` fails with the reason `why` before the backend is called.
fn assert_refused(noop: &Noop, world: &World, lock: Lock, why: &str) {
    noop.take_calls();
    for (call, wrong) in TABLE {
        assert_eq!(wrong(world, &lock).unwrap_err().to_string(), format!("{call}: {why}"));
    }
    let error = lock.release().unwrap_err();
    assert_eq!(error.to_string(), format!("release: {why}"));
    let calls = noop.take_calls();
    assert!(calls.is_empty(), "{calls:?}");
}

#[test]
fn every_lock_call_fails_after_finalize() {
    let (noop, world, lock) = scene();
    assert_eq!(world.finalize().unwrap().leaked.len(), 1, "the lock was not released");
    assert_refused(&noop, &world, lock, "the world was finalized");
}

#[test]
fn every_lock_call_fails_after_shrink() {
    let (noop, world, lock) = scene();
    let new = world.shrink().unwrap();
    assert_refused(
        &noop,
        &world,
        lock,
        "the world was replaced by World::shrink: use the new world, which World::shrink returned",
    );
    drop(new.alloc_lock().unwrap().lock().unwrap());
}

#[test]
fn lock_guard_cannot_unlock_after_the_world_is_finalized() {
    let (_, world, lock) = scene();
    let other = world.alloc_lock().unwrap();
    let (guard, dropped) = (lock.lock().unwrap(), other.lock().unwrap());
    let _ = world.finalize().unwrap();
    assert_eq!(guard.unlock().unwrap_err().to_string(), "unlock: the world was finalized");
    drop(dropped);
    assert!(other.lock().unwrap_err().misuse().is_some(), "the call fails at once and does not wait for the dropped guard");
}

/// Asserts that a wait timed out and its error says that this PE holds the lock.
fn assert_held(done: Result<impl Sized>, call: &str) {
    let Err(error) = done.map(drop) else { panic!("{call}: the lock has two holders") };
    let (text, start) = (error.to_string(), format!("{call} on the world (4 PEs): timed out after "));
    assert!(text.starts_with(&start) && text.ends_with(" s; this PE already holds the lock"), "{text}");
    let Error::Timeout(timeout) = error else { panic!("expected a timeout: {text}") };
    assert_eq!((timeout.holder, timeout.missing), (Some(Pe::new(1)), Vec::new()));
}

#[test]
fn lock_timeout_names_this_pe_if_this_pe_holds_the_lock() {
    let (_, _world, lock) = scene();
    let guard = lock.lock().unwrap();
    for limit in [Duration::ZERO, Duration::from_millis(20)] {
        assert_held(lock.lock_within(limit), "lock_within");
    }
    assert!(lock.try_lock().unwrap().is_none());
    guard.unlock().unwrap();
    assert_eq!(lock.holder().unwrap(), None);
}

#[test]
fn takeover_of_a_lock_times_out_while_the_holder_is_alive() {
    let (_, _world, lock) = scene();
    let guard = lock.lock().unwrap();
    assert_held(lock.take_over(), "take_over");
    assert_held(lock.lock(), "lock");
    drop(guard);
    let guard = lock.take_over().unwrap();
    assert_eq!(guard.taken_from(), None, "no PE held the lock");
}

#[test]
fn timed_lock_call_accepts_a_time_limit_of_any_length() {
    let (_, _world, lock) = scene();
    for limit in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
        drop(lock.lock_within(limit).unwrap());
    }
    // A thread waits with a limit that the clock cannot represent, and gets the lock.
    let guard = lock.lock().unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| lock.lock_within(Duration::MAX).map(drop));
        std::thread::sleep(Duration::from_millis(20));
        guard.unlock().unwrap();
        waits.join().unwrap().unwrap();
    });
}

#[test]
fn locks_of_two_worlds_are_independent() {
    let (_, first, lock) = scene();
    let (_, second, other) = scene();
    let (guard, others) = (lock.lock().unwrap(), other.lock().unwrap());
    assert_eq!((lock.holder().unwrap(), other.holder().unwrap()), (Some(Pe::new(1)), Some(Pe::new(1))));
    others.unlock().unwrap();
    other.release().unwrap();
    assert!(second.finalize().unwrap().is_clean());
    assert_eq!(lock.holder().unwrap(), Some(Pe::new(1)));
    guard.unlock().unwrap();
    lock.release().unwrap();
    assert!(first.finalize().unwrap().is_clean());
}

#[test]
fn out_of_memory_error_of_a_lock_allocation_names_the_call() {
    let world = World::new(Noop::with_heap(0, 1, 8192)).unwrap();
    let _x = world.alloc::<u8>(8100).unwrap();
    let error = world.alloc_lock().unwrap_err();
    assert_eq!(error.to_string(), "alloc_lock: out of memory: 128 bytes requested, 92 available (the symmetric heap)");
}

#[test]
fn lock_release_frees_the_memory_of_the_lock() {
    let (noop, world, lock) = scene();
    assert!(matches!(noop.take_calls()[..], [Call::Allocate(_)]));
    lock.release().unwrap();
    assert!(matches!(noop.take_calls()[..], [Call::Release(_)]));
    assert!(world.finalize().unwrap().is_clean());
}
