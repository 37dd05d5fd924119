//! Tests of `World::team_of` on GPUs, over the fake driver. Only the members of the new team call
//! `team_of`. Errors name missing members, and members that pass a different list.
#![cfg(target_os = "linux")]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use peerweave_core::{Error, Pe, ReduceOp, Team, World};
use peerweave_cuda::GpuOptions;
use peerweave_fakes::Fakes;

use common::worlds;

fn options() -> GpuOptions {
    GpuOptions::new(4 << 20).deadline(Duration::from_secs(60)).slots(4)
}

fn list(members: impl IntoIterator<Item = u32>) -> Vec<Pe> {
    members.into_iter().map(Pe::new).collect()
}

/// Asserts that the team has these members, and that the members can communicate.
fn works(team: &Team, members: &[Pe]) {
    assert_eq!(team.members(), members);
    let mut sum = [team.members()[team.my_rank().index()].get()];
    team.all_reduce_in_place_blocking(&mut sum, ReduceOp::Sum).unwrap();
    assert_eq!(sum, [members.iter().map(|pe| pe.get()).sum::<u32>()]);
}

#[test]
fn team_from_a_list_of_pes_has_the_rank_order_of_the_list() {
    Fakes::new().cuda().run(|| {
        worlds(4, options(), |world| {
            let lists = [list([3, 1]), list([0, 1, 2]), list([2]), list([1, 3]), list([3, 2, 1, 0])];
            for members in lists.iter().cycle().take(15) {
                if members.contains(&world.my_pe()) {
                    let team = world.team_of(members).unwrap();
                    works(&team, members);
                    let alone = team.split(Some(team.my_rank().get().into()), 0).unwrap().expect("a color was given");
                    works(&alone, &[world.my_pe()]);
                    alone.destroy().unwrap();
                    team.destroy().unwrap();
                }
            }
            world.team().barrier_blocking().unwrap();
        });
    });
}

#[test]
fn team_creation_fails_on_all_members_if_one_has_too_many_teams() {
    Fakes::new().cuda().run(|| {
        // The number of teams is small, because the fake driver takes long to create a team.
        worlds(3, options().teams(4), |world| {
            let (me, max_teams) = (world.my_pe(), world.caps().max_teams);
            let too_many = |error: Error| assert!(matches!(error, Error::TooManyTeams { call: "team_of", .. }), "{error}");
            let mut alone = Vec::new();
            if me.get() == 1 {
                alone = (1..max_teams).map(|_| world.team_of(&[me]).unwrap()).collect();
                too_many(world.team_of(&[me]).unwrap_err());
            }
            world.team().barrier_blocking().unwrap();
            let all = list(0..3);
            too_many(world.team_of(&all).unwrap_err());
            alone.pop().map_or(Ok(()), Team::destroy).unwrap();
            let team = world.team_of(&all).unwrap();
            works(&team, &all);
            team.destroy().unwrap();
            alone.into_iter().for_each(|team| team.destroy().unwrap());
        });
    });
}

/// Asserts that the call fails before the deadline with a mismatch. Returns the PE that the error
/// names, and the call of that PE.
fn mismatch(world: &World, members: &[Pe]) -> (u32, String) {
    let start = Instant::now();
    let Err(Error::Mismatch(mismatch)) = world.team_of(members) else { panic!("{members:?}: the call returned no mismatch") };
    assert!(start.elapsed() < Duration::from_secs(20), "{mismatch} after {:?}", start.elapsed());
    (mismatch.pe.get(), mismatch.theirs)
}

#[test]
fn team_creation_from_different_lists_fails_on_all_pes() {
    Fakes::new().cuda().run(|| {
        worlds(3, options(), |world| {
            let all = list(0..3);
            for round in 0..4 {
                // In even rounds, PE 1 passes another order. In odd rounds, the list of PE 1 lacks
                // PE 2.
                let odd = if round % 2 == 0 { list([0, 2, 1]) } else { list([1, 0]) };
                let me = world.my_pe().get();
                world.team().barrier_blocking().unwrap();
                if me == 1 {
                    std::thread::sleep(Duration::from_millis(100));
                    let (pe, theirs) = mismatch(world, &odd);
                    assert_ne!(pe, 1);
                    assert_eq!(theirs, "team_of of PEs [0, 1, 2]");
                } else {
                    let (pe, theirs) = mismatch(world, &all);
                    let expected = if round % 2 == 0 { "team_of of PEs [0, 2, 1]" } else { "team_of of PEs [1, 0]" };
                    assert_eq!((pe, theirs.as_str()), (1, expected));
                }
                world.team().barrier_blocking().unwrap();
                let team = world.team_of(&all).unwrap();
                works(&team, &all);
                team.destroy().unwrap();
            }
        });
    });
}

#[test]
fn team_creation_that_timed_out_succeeds_when_retried() {
    Fakes::new().cuda().run(|| {
        let failed = AtomicUsize::new(0);
        worlds(3, options().deadline(Duration::from_secs(5)), |world| {
            let all = list(0..3);
            if world.my_pe().get() == 2 {
                let start = Instant::now();
                while failed.load(Ordering::Acquire) < 2 {
                    assert!(start.elapsed() < common::LONG, "the other PEs got no errors");
                    std::thread::sleep(Duration::from_millis(1));
                }
            } else {
                let error = world.team_of(&all).unwrap_err();
                assert!(matches!(&error, Error::Timeout(late) if late.call == "team_of"), "{error}");
                assert_eq!(error.blamed(), [Pe::new(2)], "{error}");
                failed.fetch_add(1, Ordering::Release);
            }
            let team = world.team_of(&all).unwrap();
            works(&team, &all);
            team.destroy().unwrap();
        });
    });
}
