//! Runs the conformance suite of the host backend on GPUs of the fake driver: every collective,
//! element type and reduction against the oracle, on buffers of every kind, in both forms.
//!
//! Kernels run on the CPU, a coroutine for each of their threads, so there are fewer cases here
//! than on the host.
#![cfg(target_os = "linux")]

#[path = "../../crates/peerweave-cuda/tests/common/mod.rs"]
mod common;

use peerweave::{DType, PeerCause};
use peerweave_cuda::{Cuda, GpuOptions};
use peerweave_fakes::Fakes;
use peerweave_tests::conformance::{all_of_a_type, team_of};
use peerweave_tests::{contexts, locks, waits};
use std::sync::Arc;
use std::time::Duration;

fn options() -> GpuOptions {
    GpuOptions::new(64 << 20).deadline(Duration::from_secs(60)).slots(4)
}

/// Runs the cases of some types in a team of a shape.
fn every_collective(n_pes: u32, shape: &str, types: &[DType], passes: usize, seed: u64) {
    common::pes_that_may_fail(n_pes, options(), |gpu| {
        let backend = Cuda::new(gpu.expect("it is set up")).expect("a backend");
        let world = peerweave::World::from(peerweave_core::World::new(backend).expect("a world"));
        let team = team_of(&world, shape);
        for dtype in types {
            all_of_a_type(&world, team.as_ref(), *dtype, passes, seed);
        }
        let _ = world.finalize().expect("all finalize");
    });
}

#[test]
fn waits_follow_the_order_of_the_type_and_are_fair() {
    Fakes::new().cuda().run(|| {
        common::pes_that_may_fail(2, options(), |gpu| {
            let backend = Cuda::new(gpu.expect("it is set up")).expect("a backend");
            let world = peerweave::World::from(peerweave_core::World::new(backend).expect("a world"));
            waits::of_every_type(&world);
            waits::any_is_fair(&world);
            assert!(world.finalize().expect("all finalize").is_clean());
        });
    });
}

/// Runs a program on GPUs.
fn on_gpus(n_pes: u32, program: impl Fn(peerweave::World) + Sync) {
    common::pes_that_may_fail(n_pes, options(), |gpu| {
        let backend = Cuda::new(gpu.expect("it is set up")).expect("a backend");
        program(peerweave::World::from(peerweave_core::World::new(backend).expect("a world")));
    });
}

#[test]
fn contexts_are_independent() {
    Fakes::new().cuda().run(|| {
        on_gpus(2, |world| {
            contexts::all_operations(&world);
            contexts::quiet_is_of_its_own_context(&world);
            contexts::threads_use_contexts(&world);
            contexts::no_use_after_finalize(world);
        });
    });
}

#[test]
fn locks_have_one_holder_and_name_it() {
    Fakes::new().cuda().run(|| {
        on_gpus(2, |world| {
            locks::one_holds_at_a_time(&world, 2, 4);
            locks::waiters_take_turns(&world, 2);
            locks::deadline_names_the_holder(&world);
            assert!(world.finalize().expect("all finalize").is_clean());
        });
    });
}

#[test]
fn lock_of_a_lost_pe_is_taken_over() {
    Fakes::new().cuda().run(|| {
        common::pes_that_may_fail(2, options(), |gpu| {
            let gpu = gpu.expect("it is set up");
            let (pe, rendezvous) = (gpu.pe(), Arc::clone(gpu.rendezvous()));
            let backend = Cuda::new(gpu).expect("a backend");
            let world = peerweave::World::from(peerweave_core::World::new(backend).expect("a world"));
            locks::holder_that_leaves_is_named(world, PeerCause::Died);
            if pe.get() == 1 {
                // The harness cannot leave the job while this clone lives. Dropping it then closes
                // the connection, as the death of the process does.
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(200));
                    drop(rendezvous);
                });
            }
        });
    });
}

#[test]
fn collectives_of_every_type_are_correct_with_two_pes() {
    Fakes::new().cuda().run(|| every_collective(2, "world", &DType::ALL, 1, 2));
}

#[test]
fn collectives_are_correct_with_three_pes() {
    Fakes::new().cuda().run(|| every_collective(3, "world", &[DType::F32, DType::BF16, DType::U8], 1, 3));
}

#[test]
fn collectives_are_correct_in_teams_of_other_shapes() {
    Fakes::new().cuda().run(|| {
        every_collective(3, "reversed", &[DType::I32], 1, 4);
        every_collective(3, "all_but_one", &[DType::F16], 1, 5);
    });
}

#[test]
fn collectives_are_correct_with_one_pe() {
    Fakes::new().cuda().run(|| every_collective(1, "world", &[DType::F64, DType::I8], 1, 1));
}
