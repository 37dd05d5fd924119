//! Tests of one-sided operations on a PE that has left. A program that repeats such operations in a
//! loop gets an error.

use peerweave_core::{Compare, Error, PeerCause, Rank, Result, Symmetric, World};
use peerweave_host::{HostOptions, on_threads};
use std::time::{Duration, Instant};

/// Checks that an operation on PE 1 fails after PE 1 has left. PEs 0 and 2 call `spin` in a loop
/// until `spin` returns an error. The word of PE 1 has the value 1.
fn spins_end(name: &str, spin: impl Fn(&World, &Symmetric<u64>) -> Result<()> + Sync) {
    const GONE: Rank = Rank::new(1);
    on_threads(3, &HostOptions::default(), |world| {
        let (team, word) = (world.team().clone(), world.alloc_zeroed::<u64>(1).unwrap());
        if team.my_rank() == GONE {
            team.atomic_set_blocking(&word, 0, 1, GONE).unwrap();
            return team.barrier_blocking().unwrap();
        }
        team.barrier_blocking().unwrap();
        let (started, mut calls) = (Instant::now(), 0u64);
        let error = loop {
            calls += 1;
            match spin(&world, &word) {
                Err(error) => break error,
                Ok(()) => assert!(started.elapsed() < Duration::from_secs(20), "{name}: {calls} calls have succeeded"),
            }
        };
        let left = matches!(&error, Error::Peer { pe, cause: PeerCause::Left, .. } if pe.get() == 1);
        assert!(left, "{name}: {error}");
        // After the error, every call of this thread is checked.
        let again = spin(&world, &word);
        assert!(again.is_err(), "{name}: a call after the error succeeds");
    })
    .expect("the shared memory is mapped");
}

#[test]
fn spin_on_a_lock_word_of_a_pe_that_left_returns_an_error() {
    spins_end("compare and swap", |world, word| {
        world.team().atomic_compare_swap_blocking(word, 0, 0u64, 1, Rank::new(1)).map(|old| assert_eq!(old, 1))
    });
    // In a loop of two calls, the check must not always be in the fence.
    spins_end("swap beside a fence", |world, word| {
        world.fence_blocking()?;
        world.team().atomic_swap_blocking(word, 0, 1u64, Rank::new(1)).map(drop)
    });
}

#[test]
fn put_or_get_fails_if_the_target_pe_has_left() {
    const GONE: Rank = Rank::new(1);
    spins_end("put", |world, word| world.team().put_blocking(&[3u64], word, GONE));
    spins_end("p", |world, word| world.team().p_blocking(word, 0, 3, GONE));
    spins_end("get", |world, word| world.team().get_blocking(word, &mut [0u64], GONE));
    spins_end("g", |world, word| world.team().g_blocking(word, 0, GONE).map(drop));
    spins_end("signal", |world, word| world.team().signal_blocking(word.signal(0)?.set(3), GONE));
    let stream = |world: &World| world.stream().unwrap();
    spins_end("p on a stream", |world, word| world.team().p(&stream(world), word, 0, 3, GONE)?.wait());
}

#[test]
fn calls_to_live_pes_succeed_after_a_pe_has_left() {
    on_threads(3, &HostOptions::default(), |world| {
        let (team, word) = (world.team().clone(), world.alloc_zeroed::<u64>(1).unwrap());
        team.barrier_blocking().unwrap();
        if world.my_pe().get() == 1 {
            return;
        }
        let other = Rank::new(2 - world.my_pe().get());
        for _ in 0..5000 {
            // This is before the last increment, after which the other PE may leave.
            assert!(!team.test(&word.signal(0).unwrap(), Compare::Gt, 5000).unwrap());
            team.atomic_inc_blocking(&word, 0, other).unwrap();
            world.quiet_blocking().unwrap();
        }
        team.wait_until_blocking(&word.signal(0).unwrap(), Compare::Eq, 5000).unwrap();
    })
    .expect("the shared memory is mapped");
}

#[test]
fn polling_a_signal_word_fails_once_all_other_pes_have_left() {
    on_threads(2, &HostOptions::default(), |world| {
        let word = world.alloc_zeroed::<u64>(1).unwrap();
        world.team().barrier_blocking().unwrap();
        if world.my_pe().get() == 1 {
            return;
        }
        let started = Instant::now();
        let error = loop {
            match world.team().test(&word.signal(0).unwrap(), Compare::Ne, 0) {
                Ok(holds) => assert!(!holds && started.elapsed() < Duration::from_secs(20), "tests of the word do not fail"),
                Err(error) => break error,
            }
        };
        assert!(matches!(&error, Error::Peer { call: "test", pe, .. } if pe.get() == 1), "{error}");
    })
    .expect("the shared memory is mapped");
}
