//! Tests of setup calls: either all PEs call NVSHMEM or no PE does, whatever other threads do. No
//! PE that arrived is reported as missing.
#![cfg(target_os = "linux")]

mod common;

use std::time::{Duration, Instant};

use common::{DEADLINE, SHORT, device, fakes, misuse, rendezvous, settings, start, start_at, start_within};
use peerweave_nvshmem::{Context, MisuseKind, NvshmemError, Settings, TeamConfig, TeamId};
use peerweave_types::Pe;

/// A time after which another thread has begun a call.
const A_WHILE: Duration = Duration::from_secs(1);

#[test]
fn team_splits_in_different_orders_are_errors_on_all_pes() {
    fakes().run_many(2, |child| {
        child.meet("started");
        let meeting = rendezvous(&child, Duration::from_secs(6));
        let here = start_at(meeting, &child, settings(Duration::from_secs(4)));
        let (context, world) = (&here.context, here.context.world());
        let (one, other) = (here.team_of_first(2), here.team_of_first(2));
        let (first, second) = if child.rank == 0 { (&one, &other) } else { (&other, &one) };
        let outcomes = std::thread::scope(|scope| {
            let first = scope.spawn(|| first.split_strided(0, 1, 1, TeamConfig::default()).map(drop));
            std::thread::sleep(A_WHILE);
            [second.split_strided(0, 1, 1, TeamConfig::default()).map(drop), first.join().expect("the thread does not panic")]
        });
        for outcome in &outcomes {
            let waited = matches!(outcome, Err(NvshmemError::Timeout(_) | NvshmemError::Disagree(_)));
            assert!(waited, "{outcome:?}");
        }
        child.meet("over");
        // No PE was inside NVSHMEM, so NVSHMEM is usable.
        world.barrier_blocking().expect("all PEs make the call");
        context.free(context.alloc::<u8>(8).expect("the memory is allocated")).expect("all PEs free the memory");
        here.team_of_first(2).destroy().expect("all PEs destroy the team");
        drop((one, other, world));
        here.end();
    });
}

#[test]
fn splits_by_two_threads_succeed_if_pes_use_the_same_order() {
    fakes().run_many(2, |child| {
        let here = start(&child);
        let world = here.context.world();
        let (one, other) = (here.team_of_first(2), here.team_of_first(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // The other PE makes this call later.
                std::thread::sleep(A_WHILE * 2 * child.rank as u32);
                one.split_strided(0, 1, 1, TeamConfig::default()).expect("the team is split");
            });
            std::thread::sleep(A_WHILE * (1 + 3 * child.rank as u32));
            other.split_strided(0, 1, 1, TeamConfig::default()).expect("the team is split");
        });
        drop((one, other, world));
        here.end();
    });
}

#[test]
fn timed_out_allocation_does_not_disturb_a_waiting_allocation() {
    fakes().run_many(2, |child| {
        let here = start_within(&child, SHORT);
        let first = if child.rank == 0 {
            std::thread::scope(|scope| {
                let first = scope.spawn(|| here.context.alloc::<u8>(8));
                std::thread::sleep(A_WHILE);
                let error = here.context.alloc::<u8>(8).expect_err("another thread makes a setup call");
                assert!(matches!(error, NvshmemError::Timeout(_)), "{error}");
                child.put_file("late", b"");
                first.join().expect("the thread does not panic")
            })
        } else {
            child.wait_for_file("late");
            here.context.alloc::<u8>(8)
        };
        here.context.free(first.expect("all PEs made the first call")).expect("all PEs free the memory");
        here.context.world().barrier_blocking().expect("all PEs make the call");
        here.end();
    });
}

#[test]
fn allocation_during_slow_puts_has_the_same_outcome_on_all_pes() {
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_SLOW", "nvshmem_putmem=1500").run_many(2, |child| {
        let here = start_within(&child, Duration::from_secs(6));
        let memory = here.context.alloc::<u32>(128).expect("the memory is allocated");
        let (target, source) =
            (memory.slice(0..64).expect("the range is in bounds"), memory.slice(64..128).expect("the range is in bounds"));
        let outcome = std::thread::scope(|scope| {
            if child.rank == 0 {
                for _ in 0..4 {
                    // Each of these calls returns well within its own deadline, with or without an
                    // error.
                    scope.spawn(|| (0..2).for_each(|_| drop(here.context.put_blocking(&target, &source, here.context.pe()))));
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            here.context.alloc::<u8>(8)
        });
        let alike = if outcome.is_ok() { "memory" } else { "an error" };
        child.put_file(&format!("outcome-{}", child.rank), alike.as_bytes());
        child.meet("over");
        let theirs = std::fs::read(child.directory.join(format!("outcome-{}", 1 - child.rank))).expect("the file exists");
        assert_eq!(String::from_utf8_lossy(&theirs), alike, "{outcome:?}");
        here.context.world().barrier_blocking().expect("no call is inside NVSHMEM");
        drop((outcome, target, source));
        here.context.free(memory).expect("all PEs free the memory");
        here.context.finalize().expect("all PEs finalize NVSHMEM");
    });
}

#[test]
fn split_succeeds_after_some_pes_created_a_team_by_id() {
    fakes().run_many(3, |child| {
        let here = start(&child);
        if child.rank < 2 {
            let members = [Pe::new(0), Pe::new(1)];
            let team = here.context.team_of(TeamId::from_u64(1), &members, TeamConfig::default()).expect("the team is created");
            team.destroy().expect("all PEs destroy the team");
        }
        here.team_of_first(3).destroy().expect("all PEs make the same call");
        here.end();
    });
}

#[test]
fn team_split_succeeds_after_nvshmem_is_started_again() {
    fakes().run_many(2, |child| {
        let meeting = rendezvous(&child, DEADLINE);
        for life in 0..2 {
            let context = Context::from_rendezvous(&meeting, &device(child.rank), settings(DEADLINE)).expect("NVSHMEM starts");
            let node = context.node().expect("the team exists");
            // PE 1 calls later, with the same arguments. The keys at the rendezvous differ in each
            // start of NVSHMEM.
            if child.rank == 1 {
                std::thread::sleep(A_WHILE);
            }
            let count = 2 - life;
            let part = node.split_strided(0, 1, count, TeamConfig::default());
            let part = part.unwrap_or_else(|error| panic!("start {life}: equal calls failed: {error}"));
            if let Some(part) = part {
                part.destroy().expect("all PEs destroy the team");
            }
            drop(node);
            context.finalize().expect("all PEs finalize NVSHMEM");
        }
    });
}

#[test]
fn second_start_with_a_different_id_is_refused() {
    fakes().run(|| {
        let quiet = || settings(DEADLINE);
        let (one, other) =
            (Context::unique_id(&quiet()).expect("the id is created"), Context::unique_id(&quiet()).expect("the id is created"));
        assert_ne!(one, other);
        let context = Context::from_unique_id(one, Pe::new(0), 1, &device(0), quiet()).expect("NVSHMEM starts");
        let again = Context::from_unique_id(one, Pe::new(0), 1, &device(0), quiet())
            .expect("a second start with equal arguments returns a handle");
        let refused = misuse(Context::from_unique_id(other, Pe::new(0), 1, &device(0), quiet()));
        assert!(matches!(refused, MisuseKind::AlreadyInitialized { .. }), "{refused:?}");
        again.finalize().expect("a handle is released");
        context.finalize().expect("all PEs finalize NVSHMEM");
    });
}

#[test]
fn environment_is_restored_after_two_threads_create_ids() {
    fakes().env_remove("NVSHMEM_DEBUG").env("PEERWEAVE_FAKE_NVSHMEM_SLOW", "nvshmemx_get_uniqueid=200").run(|| {
        std::thread::scope(|scope| {
            for after in [0, 100] {
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_millis(after));
                    Context::unique_id(&Settings::default().debug("WARN")).expect("the id is created");
                });
            }
        });
        assert_eq!(std::env::var("NVSHMEM_DEBUG").ok(), None, "NVSHMEM_DEBUG was not removed from the environment");
    });
}

#[test]
fn pes_that_allocate_different_types_get_an_error() {
    fakes().run_many(2, |child| {
        let here = start(&child);
        let error = match child.rank {
            0 => here.context.alloc::<f32>(2).err(),
            _ => here.context.alloc::<u64>(1).err(),
        };
        let error = error.expect("the element types differ");
        assert!(matches!(error, NvshmemError::Disagree(_)), "{error}");
        here.end();
    });
}

#[test]
fn team_split_makes_no_nvshmem_call_if_one_pe_arrives_too_late() {
    fakes().run_many(2, |child| {
        child.meet("started");
        let meeting = rendezvous(&child, SHORT);
        let deadline = 2 * SHORT;
        let context = Context::from_rendezvous(&meeting, &device(child.rank), settings(deadline)).expect("NVSHMEM starts");
        let node = context.node().expect("the team exists");
        if child.rank == 1 {
            child.wait_for_file("given up");
        }
        let error = node.split_strided(0, 1, 2, TeamConfig::default()).expect_err("the PEs did not call at the same time");
        if child.rank == 0 {
            child.put_file("given up", b"");
        }
        // No PE called NVSHMEM, so NVSHMEM is usable.
        let alive = context.quiet_blocking();
        // PE 0 must not end before PE 1, because PE 0 runs the server of the rendezvous.
        std::fs::write(child.directory.join(child.rank.to_string()), "done").expect("the file is written");
        child.wait_for_file("0");
        child.wait_for_file("1");
        alive.unwrap_or_else(|dead| panic!("{dead}, after: {error}"));
    });
}

#[test]
fn start_on_a_shared_gpu_without_rendezvous_is_an_error() {
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_SHARE_GPU", "1").run_many(2, |child| {
        if child.rank == 0 {
            child.put_file("id", &Context::unique_id(&settings(DEADLINE)).expect("the id is created").to_bytes());
        }
        child.wait_for_file("id");
        let bytes = std::fs::read(child.directory.join("id")).expect("the file has the id");
        let id = bytes.as_slice().try_into().expect("the id has 128 bytes");
        let started = Context::from_unique_id(id, Pe::new(child.rank as u32), 2, &device(0), settings(DEADLINE));
        // NVSHMEM would end the process at the first barrier.
        let refused = started.and_then(|context| context.world().barrier(context.stream()));
        let error = refused.expect_err("the PEs share a GPU");
        assert!(matches!(error, NvshmemError::Preflight(_) | NvshmemError::Unsupported(_)), "{error}");
    });
}

#[test]
fn bad_alignment_on_one_pe_is_an_error_on_all_pes() {
    fakes().run_many(2, |child| {
        let here = start(&child);
        let began = Instant::now();
        let error = here
            .context
            .alloc_aligned::<u8>(if child.rank == 0 { 64 } else { 3 }, 8)
            .expect_err("the arguments of one PE are invalid");
        match child.rank {
            0 => assert!(matches!(error, NvshmemError::Disagree(_)), "{error}"),
            _ => assert!(matches!(error, NvshmemError::Misuse(_)), "{error}"),
        }
        assert!(
            began.elapsed() < DEADLINE / 2,
            "the error was returned after {:?}, expected less than half of the deadline",
            began.elapsed()
        );
        let memory = here.context.alloc_aligned::<u8>(64, 8).expect("all PEs make the same call");
        here.context.free(memory).expect("all PEs free the memory");
        here.end();
    });
}

#[test]
fn bad_settings_of_one_pe_are_an_error_on_all_pes() {
    fakes().run_many(2, |child| {
        let meeting = rendezvous(&child, DEADLINE);
        let wrong = match child.rank {
            0 => settings(DEADLINE),
            _ => settings(DEADLINE).variable("LD_PRELOAD", "x"),
        };
        let began = Instant::now();
        let error =
            Context::from_rendezvous(&meeting, &device(child.rank), wrong).expect_err("the arguments of one PE are invalid");
        match child.rank {
            0 => assert!(matches!(error, NvshmemError::Preflight(_)), "{error}"),
            _ => assert!(matches!(error, NvshmemError::Misuse(_)), "{error}"),
        }
        assert!(
            began.elapsed() < DEADLINE / 2,
            "the error was returned after {:?}, expected less than half of the deadline",
            began.elapsed()
        );
        // No PE called NVSHMEM, so NVSHMEM can still be started.
        let context =
            Context::from_rendezvous(&meeting, &device(child.rank), settings(DEADLINE)).expect("all PEs make the same call");
        context.finalize().expect("all PEs finalize NVSHMEM");
    });
}
