//! Checks puts, gets and views of symmetric memory on GPUs of the fake driver: every type, buffers
//! of every kind, ranges, casts, and handles made from offsets and addresses.
#![cfg(target_os = "linux")]

#[path = "../../crates/peerweave-cuda/tests/common/mod.rs"]
mod common;

use peerweave::World;
use peerweave_cuda::{Cuda, GpuOptions};
use peerweave_fakes::Fakes;
use peerweave_tests::check::conformance::team_of;
use peerweave_tests::check::{one_sided, views};
use std::time::Duration;

/// Runs a check on this number of simulated GPUs. The check must release all symmetric memory.
fn check(n_pes: u32, check: impl Fn(&World) + Sync) {
    let options = GpuOptions::new(64 << 20).deadline(Duration::from_secs(60)).slots(4);
    common::pes_that_may_fail(n_pes, options, |gpu| {
        let backend = Cuda::new(gpu.expect("the GPU is set up")).expect("the backend starts");
        let world = World::from(peerweave_core::World::new(backend).expect("the world starts"));
        check(&world);
        assert!(world.finalize().expect("all PEs finalize").is_clean());
    });
}

#[test]
fn puts_and_gets_are_correct_for_all_types_and_sizes() {
    Fakes::new().cuda().run(|| {
        let lens = [0, 1, 3, 8, 65, usize::MAX];
        for (n_pes, shape) in [(1, "world"), (2, "world"), (3, "reversed"), (3, "all_but_one")] {
            check(n_pes, |world| {
                let team = team_of(world, shape);
                one_sided::every_type(world, team.as_ref(), &lens, 9001);
                team.filter(|_| shape != "world").map_or(Ok(()), peerweave::Team::destroy).expect("all PEs destroy the team");
            });
        }
    });
}

#[test]
fn views_of_symmetric_memory_cover_the_same_bytes_on_all_ranks() {
    Fakes::new().cuda().run(|| {
        for n_pes in [1, 2, 3] {
            check(n_pes, |world| views::name_the_same_bytes(world, world.team()));
        }
        check(3, |world| {
            let reversed = team_of(world, "reversed").expect("the reversed team has all PEs");
            views::name_the_same_bytes(world, &reversed);
            reversed.destroy().expect("all PEs destroy the team");
        });
    });
}

#[test]
fn symmetric_handle_can_be_made_from_an_offset_or_address() {
    Fakes::new().cuda().run(|| {
        for n_pes in [1, 3] {
            check(n_pes, views::are_found_by_offset_and_address);
        }
    });
}
