//! Set-up calls: everybody calls NVSHMEM, or nobody, whatever threads do meanwhile; and nobody is blamed who came.
#![cfg(target_os = "linux")]

mod common;

use std::time::Duration;

use common::{SHORT, fakes, rendezvous, settings, start, start_at, start_within};
use peerweave_nvshmem::{NvshmemError, TeamConfig, TeamId};
use peerweave_types::Pe;

const A_WHILE: Duration = Duration::from_millis(200);

#[test]
fn threads_that_make_set_up_calls_in_other_orders_get_errors_and_nvshmem_goes_on() {
    fakes().run_many(2, |child| {
        let meeting = rendezvous(&child, Duration::from_secs(3));
        let here = start_at(meeting, &child, settings(Duration::from_secs(1)));
        let (context, world) = (&here.context, here.context.world());
        let make = || world.split_strided(0, 1, 2, TeamConfig::default()).expect("split").expect("all are in it");
        let (one, other) = (make(), make());
        let (first, second) = if child.rank == 0 { (&one, &other) } else { (&other, &one) };
        let outcomes = std::thread::scope(|scope| {
            let first = scope.spawn(|| first.split_strided(0, 1, 1, TeamConfig::default()).map(drop));
            std::thread::sleep(A_WHILE);
            [second.split_strided(0, 1, 1, TeamConfig::default()).map(drop), first.join().expect("no panic")]
        });
        for outcome in &outcomes {
            let waited = matches!(outcome, Err(NvshmemError::Timeout(_) | NvshmemError::Disagree(_)));
            assert!(waited, "{outcome:?}");
        }
        child.meet("over");
        // Nobody was inside NVSHMEM, which goes on.
        world.barrier_blocking().expect("all come");
        context.free(context.alloc::<u8>(8).expect("memory")).expect("freed");
        here.context
            .world()
            .split_strided(0, 1, 2, TeamConfig::default())
            .expect("split")
            .expect("a team")
            .destroy()
            .expect("ended");
        drop((one, other, world));
        here.end();
    });
}

#[test]
fn threads_that_make_set_up_calls_in_one_order_wait_for_each_other() {
    fakes().run_many(2, |child| {
        let here = start(&child);
        let world = here.context.world();
        let make = || world.split_strided(0, 1, 2, TeamConfig::default()).expect("split").expect("all are in it");
        let (one, other) = (make(), make());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // The other PE comes later.
                std::thread::sleep(A_WHILE * 2 * child.rank as u32);
                one.split_strided(0, 1, 1, TeamConfig::default()).expect("split");
            });
            std::thread::sleep(A_WHILE * (1 + 3 * child.rank as u32));
            other.split_strided(0, 1, 1, TeamConfig::default()).expect("split");
        });
        drop((one, other, world));
        here.end();
    });
}

#[test]
fn a_thread_that_waits_too_long_for_its_turn_does_not_break_the_call_before_it() {
    fakes().run_many(2, |child| {
        let here = start_within(&child, SHORT);
        let first = if child.rank == 0 {
            std::thread::scope(|scope| {
                let first = scope.spawn(|| here.context.alloc::<u8>(8));
                std::thread::sleep(A_WHILE);
                let error = here.context.alloc::<u8>(8).expect_err("the first is before it");
                assert!(matches!(error, NvshmemError::Timeout(_)), "{error}");
                child.put_file("late", b"");
                first.join().expect("no panic")
            })
        } else {
            child.wait_for_file("late");
            here.context.alloc::<u8>(8)
        };
        here.context.free(first.expect("all came to the first call")).expect("freed");
        here.context.world().barrier_blocking().expect("all come");
        here.end();
    });
}

#[test]
fn a_pe_that_has_met_the_others_and_does_not_get_into_nvshmem_leaves_nobody_inside() {
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_SLOW", "nvshmem_putmem=1500").run_many(2, |child| {
        let here = start_within(&child, Duration::from_secs(3));
        let memory = here.context.alloc::<u32>(128).expect("memory");
        let (target, source) = (memory.slice(0..64).expect("a half"), memory.slice(64..128).expect("a half"));
        let outcome = std::thread::scope(|scope| {
            if child.rank == 0 {
                for _ in 0..4 {
                    // Each of them is well within its own deadline, or says that it is not.
                    scope.spawn(|| (0..2).for_each(|_| drop(here.context.put_blocking(&target, &source, here.context.pe()))));
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            here.context.alloc::<u8>(8)
        });
        let alike = if outcome.is_ok() { "memory" } else { "an error" };
        child.put_file(&format!("outcome-{}", child.rank), alike.as_bytes());
        child.meet("over");
        let theirs = std::fs::read(child.directory.join(format!("outcome-{}", 1 - child.rank))).expect("it is there");
        assert_eq!(String::from_utf8_lossy(&theirs), alike, "{outcome:?}");
        here.context.world().barrier_blocking().expect("nobody is inside");
        drop((outcome, target, source));
        here.context.free(memory).expect("freed");
        here.context.finalize().expect("it ends");
    });
}

#[test]
fn a_team_that_some_pes_make_by_an_id_is_no_child_of_the_world() {
    fakes().run_many(3, |child| {
        let here = start_within(&child, Duration::from_secs(2));
        if child.rank < 2 {
            let members = [Pe::new(0), Pe::new(1)];
            let team = here.context.team_of(TeamId::from_u64(1), &members, TeamConfig::default()).expect("made");
            team.destroy().expect("ended");
        }
        let part = here.context.world().split_strided(0, 1, 3, TeamConfig::default()).expect("split").expect("all are in it");
        part.destroy().expect("all came to the same call");
        here.end();
    });
}
