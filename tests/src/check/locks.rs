//! Checks locks: one holder at a time, the order of waiters, and deadlines.

use peerweave::{Error, Lock, Pe, PeerCause, Rank, Symmetric, World};
use std::time::{Duration, Instant};

/// The rank whose memory has the elements that a lock protects.
const HOME: Rank = Rank::new(0);
const LONG: Duration = Duration::from_secs(60);

/// Adds 1 to both elements at `home`. The caller must hold the lock. The elements differ only while
/// a holder changes them. Returns the previous value of the elements.
///
/// # Panics
/// If the elements differ, because another PE holds the lock too.
pub fn step(world: &World, pair: &Symmetric<u64>, home: Rank) -> u64 {
    let team = world.team();
    let before = team.g_blocking(pair, 0, home).unwrap();
    assert_eq!(team.g_blocking(pair, 1, home).unwrap(), before, "two PEs hold the lock");
    team.p_blocking(pair, 0, before + 1, home).unwrap();
    std::thread::yield_now();
    team.p_blocking(pair, 1, before + 1, home).unwrap();
    before
}

/// Checks that the lock has one holder at a time. Each of `n_threads` threads of each PE acquires
/// the lock `rounds` times.
///
/// # Panics
/// If a result is wrong.
pub fn one_holds_at_a_time(world: &World, n_threads: usize, rounds: usize) {
    let (lock, pair) = (world.alloc_lock().unwrap(), world.alloc_zeroed::<u64>(2).unwrap());
    let thread = || {
        for round in 0..rounds {
            let guard = match round % 4 {
                3 => loop {
                    match lock.try_lock().unwrap() {
                        Some(guard) => break guard,
                        None => std::thread::yield_now(),
                    }
                },
                2 => lock.take_over().unwrap(),
                _ => lock.lock().unwrap(),
            };
            assert_eq!(guard.taken_from(), None);
            assert_eq!(lock.holder().unwrap(), Some(world.my_pe()));
            step(world, &pair, HOME);
            if round % 2 == 0 { guard.unlock().unwrap() } else { drop(guard) }
        }
    };
    std::thread::scope(|scope| (0..n_threads).for_each(|_| drop(scope.spawn(thread))));
    world.team().barrier_blocking().unwrap();
    let total = (world.n_pes() * n_threads * rounds) as u64;
    assert_eq!(world.team().g_blocking(&pair, 0, HOME).unwrap(), total);
    assert_eq!((lock.holder().unwrap(), lock.waiters().unwrap()), (None, Vec::new()));
    world.team().barrier_blocking().unwrap();
    lock.release().unwrap();
    pair.release().unwrap();
}

/// Waits until `condition` holds.
///
/// # Panics
/// If `condition` does not hold within 20 seconds.
pub fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LONG, "timed out after {LONG:?} waiting until {what}");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Checks that waiting PEs acquire the lock one after the other in rank order, `turns` times each.
/// A holder unlocks only when all other PEs that still need the lock are waiting.
///
/// # Panics
/// If the PEs acquire the lock in another order.
pub fn waiters_take_turns(world: &World, turns: usize) {
    let (lock, pair) = (world.alloc_lock().unwrap(), world.alloc_zeroed::<u64>(2).unwrap());
    let (me, n) = (world.my_pe().index(), world.n_pes());
    let mut first = (me == 0).then(|| lock.lock().unwrap());
    world.team().barrier_blocking().unwrap();
    for turn in 0..turns {
        let guard = first.take().unwrap_or_else(|| lock.lock().unwrap());
        let number = step(world, &pair, HOME) as usize;
        assert_eq!(number, turn * n + me, "number of earlier acquisitions of the lock, in turn {turn} of this PE");
        let due = if turn + 1 < turns { n - 1 } else { n - 1 - me };
        until("the other PEs wait for the lock", || lock.waiters().unwrap().len() == due);
        guard.unlock().unwrap();
    }
    drop(first);
    world.team().barrier_blocking().unwrap();
    lock.release().unwrap();
    pair.release().unwrap();
}

/// Asserts that an attempt timed out, and that the error names the holder.
fn assert_names(holder: Pe, result: Result<impl Sized, Error>) {
    match result.map(drop) {
        Err(Error::Timeout(timeout)) => {
            assert_eq!((timeout.call, &timeout.missing[..], timeout.holder), ("lock_within", &[holder][..], Some(holder)));
            assert!(timeout.to_string().ends_with(&format!(" s; {holder} holds the lock")), "{timeout}");
        }
        other => panic!("expected a timeout, found {other:?}"),
    }
}

/// Checks that a wait for the lock ends at its deadline, with an error that names the holder.
///
/// # Panics
/// If a result is wrong.
pub fn deadline_names_the_holder(world: &World) {
    const SHORT: Duration = Duration::from_millis(50);
    let (lock, holder) = (world.alloc_lock().unwrap(), Pe::new(world.n_pes() as u32 - 1));
    let guard = (world.my_pe() == holder).then(|| lock.lock().unwrap());
    world.team().barrier_blocking().unwrap();
    let attempt = |lock: &Lock| assert_names(holder, lock.lock_within(SHORT));
    match guard {
        None => attempt(&lock),
        Some(_) => {
            let error = lock.lock_within(SHORT).map(drop).unwrap_err();
            assert!(error.to_string().ends_with(" s; this PE already holds the lock"), "{error}");
            assert!(error.blamed().is_empty(), "{error}");
        }
    }
    assert!(lock.try_lock().unwrap().is_none());
    world.team().barrier_blocking().unwrap();
    assert_eq!(lock.waiters().unwrap(), Vec::new());
    world.team().barrier_blocking().unwrap();
    drop(guard);
    drop(lock.lock_within(LONG).unwrap());
    world.team().barrier_blocking().unwrap();
    lock.release().unwrap();
}

/// Checks that errors name a holder that leaves, with the cause `due`, and that another PE can take
/// the lock over. Ends the world.
///
/// # Panics
/// If a result is wrong.
pub fn holder_that_leaves_is_named(world: World, due: PeerCause) {
    let (lock, last) = (world.alloc_lock().unwrap(), Pe::new(world.n_pes() as u32 - 1));
    if world.my_pe() == last {
        std::mem::forget(lock.lock().unwrap());
    }
    world.team().barrier_blocking().unwrap();
    match world.my_pe().get() {
        0 => {
            for attempt in [lock.lock().map(drop), lock.try_lock().map(drop)] {
                // `try_lock` returns `None` if the holder has not left yet. Then `lock` waits until
                // the holder leaves.
                let attempt = attempt.and_then(|()| lock.lock().map(drop));
                let is_named = matches!(&attempt, Err(Error::Peer { pe, cause, .. }) if *pe == last && *cause == due);
                assert!(is_named, "{attempt:?}");
            }
            let guard = lock.take_over().unwrap();
            assert_eq!(guard.taken_from(), Some(last));
            guard.unlock().unwrap();
            assert_eq!(lock.lock().unwrap().taken_from(), None, "the lock has no former holder after the unlock");
        }
        _ => drop(lock),
    }
}

/// Checks that a lock refuses every call after `finalize`, and that dropping a guard then does no
/// harm.
///
/// # Panics
/// If a call is not refused.
pub fn no_use_after_finalize(world: World) {
    let (lock, held) = (world.alloc_lock().unwrap(), world.alloc_lock().unwrap());
    let mine = (world.my_pe().get() == 0).then(|| (held.lock().unwrap(), lock.lock().unwrap()));
    assert_eq!(world.finalize().unwrap().leaked.len(), 2, "expected two leaked locks, because they were not released");
    let refused = |done: Result<(), Error>, call: &str| {
        let text = done.unwrap_err().to_string();
        assert_eq!(text, format!("{call}: the world was finalized"));
    };
    refused(world.alloc_lock().map(drop), "alloc_lock");
    refused(lock.lock().map(drop), "lock");
    refused(lock.lock_within(LONG).map(drop), "lock_within");
    refused(lock.try_lock().map(drop), "try_lock");
    refused(lock.take_over().map(drop), "take_over");
    refused(lock.holder().map(drop), "holder");
    refused(lock.waiters().map(drop), "waiters");
    mine.into_iter().for_each(|(held, dropped)| {
        refused(held.unlock(), "unlock");
        drop(dropped);
        refused(lock.lock().map(drop), "lock");
    });
    refused(lock.release(), "release");
}
