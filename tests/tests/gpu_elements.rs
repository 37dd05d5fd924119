//! Checks element types that consist of several values on GPUs of the fake driver: every operation
//! that moves them, reductions of their values, functions, and calls that must be refused.
#![cfg(target_os = "linux")]

#[path = "../../crates/peerweave-cuda/tests/common/mod.rs"]
mod common;

use peerweave::World;
use peerweave_cuda::{Cuda, GpuOptions};
use peerweave_fakes::Fakes;
use peerweave_tests::check::conformance::team_of;
use peerweave_tests::check::elements;
use std::time::Duration;

/// Numbers of elements. They are small, because kernels run on the CPU, with a coroutine for each
/// GPU thread.
const COUNTS: [usize; 3] = [1, 7, 300];

/// Runs a check with a PE on each of these simulated hosts. The check must release all symmetric
/// memory.
fn check_on(hosts: &[&str], check: impl Fn(&World) + Sync) {
    let options = GpuOptions::new(64 << 20).deadline(Duration::from_secs(60)).slots(4);
    common::pes_on(hosts, options, |gpu| {
        let backend = Cuda::new(gpu.expect("the GPU is set up")).expect("the backend starts");
        let world = World::from(peerweave_core::World::new(backend).expect("the world starts"));
        check(&world);
        assert!(world.finalize().expect("all PEs finalize").is_clean());
    });
}

/// Runs a check with this number of PEs on one host.
fn check(n_pes: usize, check: impl Fn(&World) + Sync) {
    check_on(&vec!["one"; n_pes], check);
}

/// Runs a check in the world of one and of two PEs, and in the reversed team of three PEs.
fn check_teams(run: impl Fn(&World, &peerweave::Team) + Sync) {
    for n_pes in [1, 2] {
        check(n_pes, |world| run(world, world.team()));
    }
    check(3, |world| {
        let reversed = team_of(world, "reversed").expect("the reversed team has all PEs");
        run(world, &reversed);
        reversed.destroy().expect("all PEs destroy the team");
    });
}

#[test]
fn one_sided_operations_move_composite_types() {
    Fakes::new().cuda().run(|| check_teams(|world, team| elements::move_one_sided(world, team, &COUNTS)));
}

#[test]
fn collectives_move_composite_types() {
    Fakes::new().cuda().run(|| check_teams(|world, team| elements::move_by_collectives(world, team, &COUNTS)));
}

#[test]
fn reduction_of_a_composite_type_reduces_each_component() {
    Fakes::new().cuda().run(|| check_teams(|world, team| elements::reduce(world, team, &[1, 33, 700])));
}

#[test]
fn reduction_functions_and_strided_calls_accept_composite_types() {
    Fakes::new().cuda().run(|| check_teams(|world, team| elements::combine_and_stride(world, team, &[1, 5, 700])));
}

#[test]
fn collectives_move_composite_types_across_hosts() {
    let fakes = Fakes::new().cuda().nccl().env("NCCL_NVLS_ENABLE", "0");
    fakes.run(|| {
        check_on(&["a", "b", "a"], |world| {
            elements::move_by_collectives(world, world.team(), &[1, 70]);
            elements::combine_and_stride(world, world.team(), &[1, 70]);
        });
    });
}

#[test]
fn invalid_arguments_for_composite_types_are_refused() {
    Fakes::new().cuda().run(|| check(2, elements::refuse));
}
