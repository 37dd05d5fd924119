//! Tests of collective calls with arguments that differ among the PEs. Every PE gets an error, and
//! the world stays usable. After a small broadcast, a PE that did not wait gets the error from its
//! next call that waits for all PEs.

use peerweave_core::{Error, Mismatch, Rank, ReduceOp, Result, Team, TeamShape, World};
use peerweave_host::{HostOptions, on_threads};

/// Makes `call` on three PEs, with different arguments on PE 1. Checks that the error of each PE
/// contains the calls of PE 1 and of another PE.
fn differ(odd: &str, others: &str, call: impl Fn(&World, bool) -> Result<()> + Sync) {
    on_threads(3, &HostOptions::default(), |world| {
        let is_odd = world.my_pe().get() == 1;
        for round in 0..3 {
            let Err(Error::Mismatch(mismatch)) = call(&world, is_odd) else {
                panic!("PE {}, round {round}: expected a mismatch of {odd} and {others}", world.my_pe());
            };
            let (mine, theirs) = if is_odd { (odd, others) } else { (others, odd) };
            assert_eq!((mismatch.mine.as_str(), mismatch.theirs.as_str()), (mine, theirs));
        }
        world.team().barrier_blocking().unwrap();
        let all = world.team().split(Some(0), 0).unwrap().expect("the rank passed a color");
        all.barrier_blocking().unwrap();
        world.alloc::<u8>(1).unwrap().release().unwrap();
        all.destroy().unwrap();
        let _ = world.finalize().unwrap();
    })
    .expect("the shared memory is mapped");
}

#[test]
fn strided_splits_with_different_shapes_are_a_mismatch() {
    let split = |world: &World, start, stride, size| world.team().split_strided(TeamShape { start, stride, size }).map(drop);
    differ(
        "split_strided into 1 rank from rank 0 at stride 1",
        "split_strided into 3 ranks from rank 0 at stride 1",
        |world, odd| split(world, 0, 1, if odd { 1 } else { 3 }),
    );
    differ(
        "split_strided into 3 ranks from rank 2 at stride -1",
        "split_strided into 3 ranks from rank 0 at stride 1",
        |world, odd| {
            if odd { split(world, 2, -1, 3) } else { split(world, 0, 1, 3) }
        },
    );
}

#[test]
fn ranks_that_split_a_team_differently_get_a_mismatch_error() {
    differ(
        "split_2d of the team into rows with x_range 1 (ranks per row)",
        "split_2d of the team into rows with x_range 2 (ranks per row)",
        |world, odd| world.team().split_2d(if odd { 1 } else { 2 }).map(drop),
    );
    differ(
        "local_team",
        "split",
        |world, odd| {
            if odd { world.local_team().map(drop) } else { world.team().split(Some(0), 0).map(drop) }
        },
    );
    differ("split", "split_strided into 2 ranks from rank 1 at stride 1", |world, odd| {
        let shape = TeamShape { start: 1, stride: 1, size: 2 };
        if odd { world.team().split(Some(0), 0).map(drop) } else { world.team().split_strided(shape).map(drop) }
    });
}

#[test]
fn allocations_of_different_types_are_a_mismatch() {
    differ(
        "alloc of 8 elements of f64 aligned to 64 bytes, not zeroed",
        "alloc of 16 elements of i32 aligned to 64 bytes, not zeroed",
        |world, odd| if odd { world.alloc::<f64>(8).map(drop) } else { world.alloc::<i32>(16).map(drop) },
    );
}

#[test]
fn strided_split_into_a_one_rank_team_ignores_the_stride() {
    on_threads(2, &HostOptions::default(), |world| {
        let stride = world.my_pe().get() as i32 + 7;
        let team = world.team().split_strided(TeamShape { start: 1, stride, size: 1 }).unwrap();
        assert_eq!(team.map(|team| team.size()), (world.my_pe().get() == 1).then_some(1));
    })
    .expect("the shared memory is mapped");
}

/// Returns the mismatch with which a call has failed. Panics if the call has any other result.
#[track_caller]
fn mismatch<R>(result: Result<R>) -> Mismatch {
    match result {
        Err(Error::Mismatch(mismatch)) => *mismatch,
        Err(other) => panic!("the call failed with another error than a mismatch: {other}"),
        Ok(_) => panic!("the call succeeded, expected a mismatch"),
    }
}

/// Checks that the next barrier of the team fails with a mismatch, because the earlier broadcasts
/// of two ranks differ. Checks that the team is usable after the mismatch.
#[track_caller]
fn next_barrier_is_a_mismatch(team: &Team) {
    let barrier = mismatch(team.barrier_blocking());
    assert_eq!(barrier.mine, "barrier after earlier broadcasts of at most 64 bytes");
    assert_eq!(barrier.theirs, "barrier after broadcasts of at most 64 bytes that differ from those of this PE");
    for round in 0..10 {
        let mut sum = [1u32; 20];
        team.all_reduce_in_place_blocking(&mut sum, ReduceOp::Sum).unwrap();
        assert_eq!(sum, [team.size() as u32; 20]);
        let mut value = [team.my_rank().get() + round; 3];
        team.broadcast_in_place_blocking(&mut value, Rank::new(1)).unwrap();
        assert_eq!(value, [1 + round; 3]);
    }
}

#[test]
fn small_broadcasts_with_different_roots_fail_the_next_barrier() {
    on_threads(3, &HostOptions::default(), |world| {
        let (team, me) = (world.team(), world.my_pe().get());
        for count in [1, 6, 7, 16] {
            let mut value = vec![me; count];
            // PE 2 agrees with PE 0.
            team.broadcast_in_place_blocking(&mut value, Rank::new(me % 2)).unwrap();
            assert_eq!(value, vec![if me == 1 { 1 } else { 0 }; count]);
            next_barrier_is_a_mismatch(team);
        }
    })
    .expect("the shared memory is mapped");
}

#[test]
fn broadcast_fails_only_on_the_rank_with_a_different_count() {
    on_threads(3, &HostOptions::default(), |world| {
        let (team, me) = (world.team(), world.my_pe().get());
        for (count, odd) in [(3, 4), (16, 15), (16, 17), (16, 100_000)] {
            let mut value = vec![me; if me == 1 { odd } else { count }];
            let outcome = team.broadcast_in_place_blocking(&mut value, Rank::new(0));
            if me == 1 {
                let found = mismatch(outcome);
                assert_eq!(found.pe.get(), 0);
                assert_eq!(found.mine, format!("broadcast of {odd} elements of u32 with root 0"));
                assert_eq!(found.theirs, format!("broadcast of {count} elements of u32 with root 0"));
                assert_eq!(value, vec![1; odd], "the failed call changed its buffer");
            } else {
                outcome.unwrap();
                assert_eq!(value, vec![0; count]);
            }
            next_barrier_is_a_mismatch(team);
        }
    })
    .expect("the shared memory is mapped");
}

#[test]
fn broadcast_on_one_rank_and_barrier_on_others_is_a_mismatch() {
    on_threads(3, &HostOptions::default(), |world| {
        let (team, me) = (world.team(), world.my_pe().get());
        for root in [0, 1] {
            let outcome =
                if me == 0 { team.broadcast_in_place_blocking(&mut [7u8; 9], Rank::new(root)) } else { team.barrier_blocking() };
            if root == 1 {
                // PE 0 waits for PE 1, so all PEs notice the mismatch in this call.
                mismatch(outcome);
                team.barrier_blocking().unwrap();
                continue;
            }
            if me == 0 {
                outcome.unwrap();
            } else {
                let found = mismatch(outcome);
                assert_eq!(
                    (found.mine.as_str(), found.theirs.as_str()),
                    ("barrier", "broadcast of 9 elements of u8 with root 0")
                );
            }
            next_barrier_is_a_mismatch(team);
        }
    })
    .expect("the shared memory is mapped");
}
