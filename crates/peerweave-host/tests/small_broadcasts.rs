//! Tests of small broadcasts, in which the root does not wait for the other ranks.

use peerweave_core::{Error, Rank, ReduceOp};
use peerweave_host::{HostOptions, on_threads};
use std::sync::Barrier;
use std::time::Duration;

/// Number of small broadcasts that a root can complete before any other rank has called broadcast.
const AHEAD: usize = 3;

#[test]
fn root_can_be_three_small_broadcasts_ahead_of_other_ranks() {
    let (is_ahead, is_over) = (Barrier::new(2), Barrier::new(2));
    on_threads(2, &HostOptions::default(), |world| {
        let team = world.team();
        team.barrier_blocking().unwrap();
        if world.my_pe().get() == 0 {
            for value in 0..AHEAD as u64 {
                team.broadcast_in_place_blocking(&mut [value; 8], Rank::new(0)).unwrap();
            }
            is_ahead.wait();
            team.broadcast_in_place_blocking(&mut [9u64; 8], Rank::new(0)).unwrap();
        } else {
            is_ahead.wait();
            for expected in [0, 1, 2, 9] {
                let mut value = [0u64; 8];
                team.broadcast_in_place_blocking(&mut value, Rank::new(0)).unwrap();
                assert_eq!(value, [expected; 8]);
            }
        }
        is_over.wait();
    })
    .expect("the shared memory is mapped");
}

#[test]
fn ranks_receive_small_broadcasts_of_a_root_that_has_left() {
    let has_left = Barrier::new(2);
    on_threads(2, &HostOptions::default(), |world| {
        world.team().barrier_blocking().unwrap();
        if world.my_pe().get() == 0 {
            for value in 0..AHEAD as u64 {
                world.team().broadcast_in_place_blocking(&mut [value; 8], Rank::new(0)).unwrap();
            }
            drop(world);
            has_left.wait();
        } else {
            has_left.wait();
            for expected in 0..AHEAD as u64 {
                let mut value = [7u64; 8];
                world.team().broadcast_in_place_blocking(&mut value, Rank::new(0)).unwrap();
                assert_eq!(value, [expected; 8]);
            }
            let error = world.team().broadcast_in_place_blocking(&mut [0u64; 8], Rank::new(0)).expect_err("the root has left");
            assert_eq!(error.blamed().iter().map(|pe| pe.get()).collect::<Vec<_>>(), [0], "{error}");
        }
    })
    .expect("the shared memory is mapped");
}

#[test]
fn timeout_of_a_broadcast_root_names_the_missing_rank() {
    let mut options = HostOptions::default();
    options.deadline = Duration::from_millis(500);
    let is_over = Barrier::new(3);
    on_threads(3, &options, |world| {
        let team = world.team();
        team.barrier_blocking().unwrap();
        let calls = if world.my_pe().get() == 2 { 0 } else { AHEAD };
        for value in 0..calls as u64 {
            let mut value = [value; 8];
            team.broadcast_in_place_blocking(&mut value, Rank::new(0)).unwrap();
        }
        if world.my_pe().get() == 0 {
            let error = team.broadcast_in_place_blocking(&mut [0u64; 8], Rank::new(0)).expect_err("PE 2 has not called");
            assert!(matches!(&error, Error::Timeout(timeout) if timeout.call == "broadcast"), "{error}");
            assert_eq!(error.blamed().iter().map(|pe| pe.get()).collect::<Vec<_>>(), [2], "{error}");
        }
        is_over.wait();
    })
    .expect("the shared memory is mapped");
}

#[test]
fn small_broadcasts_between_other_collectives_are_correct() {
    for n in [1, 2, 3, 8] {
        on_threads(n, &HostOptions::default(), |world| {
            let (team, me) = (world.team(), world.my_pe().get());
            let private = [0u8; 70];
            let symmetric = world.alloc_zeroed::<u8>(70).unwrap();
            let mut random = 7u64;
            for round in 0..4000u32 {
                // The same numbers on all PEs.
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let (root, len) = ((random >> 33) as u32 % n as u32, (random >> 40) as usize % 70);
                let expected: Vec<u8> = (0..len).map(|i| (round as usize * 3 + root as usize * 5 + i) as u8).collect();
                let mut value = if me == root { expected.clone() } else { private[..len].to_vec() };
                match random >> 60 {
                    0 => team.barrier_blocking().unwrap(),
                    1 => {
                        let mut sum = vec![me; 40];
                        team.all_reduce_in_place_blocking(&mut sum, ReduceOp::Sum).unwrap();
                        assert_eq!(sum, vec![(0..n as u32).sum(); 40]);
                    }
                    2 => {
                        let mut all = vec![0u8; 5 * n];
                        team.all_gather_blocking(&[me as u8; 5], &mut all).unwrap();
                        assert!(all.chunks(5).enumerate().all(|(rank, part)| part == [rank as u8; 5]));
                    }
                    3..=7 => {
                        if me == root {
                            symmetric.slice(..len).unwrap().copy_from(&expected).unwrap();
                        }
                        let range = symmetric.slice(..len).unwrap();
                        team.broadcast_in_place_blocking(&range, Rank::new(root)).unwrap();
                        assert_eq!(range.to_vec().unwrap(), expected, "round {round}, root {root}");
                        continue;
                    }
                    _ => {}
                }
                team.broadcast_in_place_blocking(&mut value, Rank::new(root)).unwrap();
                assert_eq!(value, expected, "round {round}, root {root}");
            }
            symmetric.release().unwrap();
            assert!(world.finalize().unwrap().is_clean());
        })
        .expect("the shared memory is mapped");
    }
}
