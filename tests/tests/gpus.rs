//! Runs the conformance suite of the host backend on GPUs of the fake driver: every collective,
//! element type and reduction against the oracle, on buffers of every kind, on streams and
//! blocking.
//!
//! Kernels run on the CPU, with a coroutine for each GPU thread, so there are fewer cases here than
//! on the host.
#![cfg(target_os = "linux")]

#[path = "../../crates/peerweave-cuda/tests/common/mod.rs"]
mod common;

use peerweave::{Caps, DType, Error, PeerCause, ReduceFn, ReductionCaps};
use peerweave_cuda::{Cuda, GpuOptions};
use peerweave_fakes::Fakes;
use peerweave_tests::check::conformance::{all_of_a_type, in_teams, shapes_for, team_of};
use peerweave_tests::check::{contexts, functions, locks, waits};
use std::sync::Arc;
use std::time::Duration;

fn options() -> GpuOptions {
    GpuOptions::new(64 << 20).deadline(Duration::from_secs(60)).slots(4)
}

/// Runs the cases of some types in a team of a shape.
fn every_collective(n_pes: u32, shape: &str, types: &[DType], passes: usize, seed: u64) {
    every_collective_on(&vec!["one"; n_pes as usize], shape, types, passes, seed);
}

/// Like [`every_collective`], with a PE on each of these simulated hosts.
fn every_collective_on(hosts: &[&str], shape: &str, types: &[DType], passes: usize, seed: u64) {
    common::pes_on(hosts, options(), |gpu| {
        let backend = Cuda::new(gpu.expect("the GPU is set up")).expect("the backend starts");
        let world = peerweave::World::from(peerweave_core::World::new(backend).expect("the world starts"));
        let team = team_of(&world, shape);
        for dtype in types {
            all_of_a_type(&world, team.as_ref(), *dtype, passes, seed);
        }
        let _ = world.finalize().expect("all PEs finalize");
    });
}

#[test]
fn waits_accept_every_type_and_a_wait_for_any_word_is_fair() {
    Fakes::new().cuda().run(|| {
        common::pes_that_may_fail(2, options(), |gpu| {
            let backend = Cuda::new(gpu.expect("the GPU is set up")).expect("the backend starts");
            let world = peerweave::World::from(peerweave_core::World::new(backend).expect("the world starts"));
            in_teams(&world, shapes_for(2), |team| {
                waits::of_every_type(&world, team);
                waits::any_is_fair(&world, team);
            });
            assert!(world.finalize().expect("all PEs finalize").is_clean());
        });
    });
}

/// Runs a program on this number of simulated GPUs.
fn on_gpus(n_pes: u32, program: impl Fn(peerweave::World) + Sync) {
    common::pes_that_may_fail(n_pes, options(), |gpu| {
        let backend = Cuda::new(gpu.expect("the GPU is set up")).expect("the backend starts");
        program(peerweave::World::from(peerweave_core::World::new(backend).expect("the world starts")));
    });
}

#[test]
fn context_operations_are_correct_and_quiet_is_per_context() {
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
fn locks_have_one_holder_and_errors_name_the_holder() {
    Fakes::new().cuda().run(|| {
        on_gpus(2, |world| {
            locks::one_holds_at_a_time(&world, 2, 4);
            locks::waiters_take_turns(&world, 2);
            locks::deadline_names_the_holder(&world);
            locks::no_use_after_finalize(world);
        });
    });
}

#[test]
fn lock_held_by_a_lost_pe_can_be_taken_over() {
    Fakes::new().cuda().run(|| {
        common::pes_that_may_fail(2, options(), |gpu| {
            let gpu = gpu.expect("the GPU is set up");
            let (pe, rendezvous) = (gpu.pe(), Arc::clone(gpu.rendezvous()));
            let backend = Cuda::new(gpu).expect("the backend starts");
            let world = peerweave::World::from(peerweave_core::World::new(backend).expect("the world starts"));
            locks::holder_that_leaves_is_named(world, PeerCause::Died);
            if pe.get() == 1 {
                // The harness cannot leave the job while this clone lives. Dropping the clone
                // closes the connection, as the death of the process does.
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(200));
                    drop(rendezvous);
                });
            }
        });
    });
}

/// Runs the cases of each type that `which` selects.
fn with_two_pes(which: impl Fn(DType) -> bool) {
    let types: Vec<DType> = DType::ALL.into_iter().filter(|dtype| which(*dtype)).collect();
    every_collective(2, "world", &types, 1, 2);
}

#[test]
fn collectives_of_8_or_16_bit_integers_are_correct_on_two_pes() {
    Fakes::new().cuda().run(|| with_two_pes(|dtype| dtype.is_integer() && dtype.size_bytes() < 4));
}

#[test]
fn collectives_of_32_or_64_bit_integers_are_correct_on_two_pes() {
    Fakes::new().cuda().run(|| with_two_pes(|dtype| dtype.is_integer() && dtype.size_bytes() >= 4));
}

#[test]
fn collectives_of_floats_are_correct_with_two_pes() {
    Fakes::new().cuda().run(|| with_two_pes(|dtype| !dtype.is_integer()));
}

#[test]
fn collectives_are_correct_with_three_pes() {
    Fakes::new().cuda().run(|| every_collective(3, "world", &[DType::F32, DType::BF16, DType::U8, DType::I16], 1, 3));
}

#[test]
fn collectives_are_correct_in_reversed_and_partial_teams() {
    Fakes::new().cuda().run(|| {
        every_collective(3, "reversed", &[DType::I32], 1, 4);
        every_collective(3, "all_but_one", &[DType::F16], 1, 5);
    });
}

/// Returns the fakes of the driver and of NCCL.
fn with_nccl() -> Fakes {
    Fakes::new().cuda().nccl().env("NCCL_NVLS_ENABLE", "0")
}

#[test]
fn collectives_of_two_hosts_are_correct_with_every_type() {
    with_nccl().run(|| every_collective_on(&["a", "b"], "world", &DType::ALL, 1, 6));
}

#[test]
fn collectives_of_hosts_with_unequal_pe_counts_are_correct() {
    with_nccl().run(|| every_collective_on(&["a", "a", "b"], "world", &[DType::F32, DType::BF16, DType::I16], 1, 7));
}

#[test]
fn collectives_of_two_hosts_with_two_pes_each_are_correct() {
    with_nccl().run(|| every_collective_on(&["a", "b", "b", "a"], "world", &[DType::F16, DType::U64], 1, 8));
}

#[test]
fn collectives_of_teams_on_several_hosts_are_correct() {
    with_nccl().run(|| {
        every_collective_on(&["a", "b", "c"], "reversed", &[DType::I32], 1, 9);
        every_collective_on(&["b", "a", "b", "a"], "all_but_one", &[DType::F64], 1, 10);
    });
}

#[test]
fn reduction_functions_and_strided_all_to_all_work_across_hosts() {
    with_nccl().run(|| {
        common::pes_on(&["a", "b", "a"], options(), |gpu| {
            let backend = Cuda::new(gpu.expect("the GPU is set up")).expect("the backend starts");
            let world = peerweave::World::from(peerweave_core::World::new(backend).expect("the world starts"));
            in_teams(&world, shapes_for(3), |team| {
                functions::in_rank_order(&world, team, &[0, 1, 3, 700]);
                functions::strided(&world, team, &[0, 1, 5, 200]);
            });
            assert!(world.finalize().expect("all PEs finalize").is_clean());
        });
    });
}

#[test]
fn collectives_are_correct_with_one_pe() {
    Fakes::new().cuda().run(|| every_collective(1, "world", &[DType::F64, DType::I8], 1, 1));
}

#[test]
fn reduction_functions_combine_elements_in_rank_order() {
    Fakes::new().cuda().run(|| {
        for n_pes in [1, 3] {
            on_gpus(n_pes, |world| {
                in_teams(&world, shapes_for(n_pes as usize), |team| functions::in_rank_order(&world, team, &[0, 1, 3, 700]));
                assert!(world.finalize().expect("all PEs finalize").is_clean());
            });
        }
        on_gpus(2, |world| {
            // The operands are longer than one piece.
            functions::in_rank_order(&world, world.team(), &[300_001]);
            functions::another_call_is_noticed(world.team());
            drop(world.finalize());
        });
    });
}

#[test]
fn panic_in_a_reduction_function_fails_only_one_pe() {
    Fakes::new().cuda().run(|| {
        on_gpus(3, |world| {
            let (team, me) = (world.team(), world.my_pe().get());
            let function = ReduceFn::new(move |a: u64, b: u64| if me == 1 && b == 77 { panic!("no 77") } else { a + b });
            let (mut sum, stream) = ([0u64; 50], world.stream().expect("a stream can be created"));
            let done = team.all_reduce_with_blocking(&[77u64; 50], &mut sum, &function);
            if me == 1 {
                let failed = done.unwrap_err();
                let text = failed.to_string();
                assert!(
                    matches!(failed, Error::System { .. }) && text.contains("all_reduce") && text.contains("no 77"),
                    "{text}"
                );
            } else {
                done.expect("this function does not panic");
                assert_eq!(sum, [3 * 77; 50]);
            }
            // The team stays usable.
            let (a, b) = (world.alloc_zeroed::<u64>(5).unwrap(), world.alloc_zeroed::<u64>(5).unwrap());
            a.fill(1).unwrap();
            team.all_reduce_with(&stream, &a, &b, &function).unwrap().wait().unwrap();
            assert_eq!(b.to_vec().unwrap(), [3; 5]);
            team.barrier_blocking().unwrap();
            a.release().unwrap();
            b.release().unwrap();
            let _ = world.finalize().expect("all PEs finalize");
        });
    });
}

#[test]
fn strided_all_to_all_moves_elements_to_correct_indices() {
    Fakes::new().cuda().run(|| {
        for n_pes in [1, 3] {
            on_gpus(n_pes, |world| {
                in_teams(&world, shapes_for(world.n_pes()), |team| functions::strided(&world, team, &[0, 1, 5, 200]));
                assert!(world.finalize().expect("all PEs finalize").is_clean());
            });
        }
    });
}

#[test]
fn every_defined_reduction_is_listed_in_the_capabilities() {
    Fakes::new().cuda().run(|| {
        on_gpus(1, |world| {
            let named = |all: &[ReductionCaps]| all.iter().map(|caps| (caps.kind, caps.dtype, caps.op)).collect::<Vec<_>>();
            assert_eq!(named(&world.caps().reductions), named(&Caps::reductions_with(|_| {})));
            assert!(world.caps().reduce_functions);
            let _ = world.finalize().expect("all PEs finalize");
        });
    });
}
