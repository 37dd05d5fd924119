//! Checks all-reduces with residual and RMSNorm on GPUs of the fake driver.
//!
//! Kernels run on the CPU, with a coroutine for each GPU thread, so rows are short.
#![cfg(target_os = "linux")]

#[path = "../../crates/peerweave-cuda/tests/common/mod.rs"]
mod common;

use peerweave::RmsNorm;
use peerweave_cuda::{Cuda, GpuOptions};
use peerweave_fakes::Fakes;
use peerweave_tests::check::conformance::team_of;
use peerweave_tests::check::norms;
use std::time::Duration;

/// Runs a program on this number of simulated GPUs.
fn on_gpus(n_pes: u32, program: impl Fn(peerweave::World) + Sync) {
    let options = GpuOptions::new(64 << 20).deadline(Duration::from_secs(60)).slots(4);
    common::pes_that_may_fail(n_pes, options, |gpu| {
        let backend = Cuda::new(gpu.expect("the GPU is set up")).expect("the backend starts");
        program(peerweave::World::from(peerweave_core::World::new(backend).expect("the world starts")));
    });
}

#[test]
fn all_reduce_rms_norm_equals_separate_steps_for_every_type() {
    Fakes::new().cuda().run(|| {
        on_gpus(2, |world| {
            norms::of_every_type(&world, Some(world.team()), &[(0, 64), (3, 136)], 2);
            assert!(world.finalize().expect("all PEs finalize").is_clean());
        });
    });
}

#[test]
fn all_reduce_rms_norm_in_a_team_equals_separate_steps() {
    Fakes::new().cuda().run(|| {
        on_gpus(1, |world| {
            norms::of_every_type(&world, Some(world.team()), &[(2, 72)], 1);
            assert!(world.finalize().expect("all PEs finalize").is_clean());
        });
        on_gpus(3, |world| {
            let team = team_of(&world, "all_but_one");
            norms::of_every_type(&world, team.as_ref(), &[(1, 40)], 9);
            let own = world.team_of(&[world.my_pe()]).expect("a team of this PE alone can be created");
            norms::of_every_type(&world, Some(&own), &[(1, 40)], 10);
            let _ = world.finalize().expect("all PEs finalize");
        });
    });
}

#[test]
fn all_reduce_rms_norm_across_hosts_equals_separate_steps() {
    let fakes = Fakes::new().cuda().nccl().env("NCCL_NVLS_ENABLE", "0");
    fakes.run(|| {
        for hosts in [&["a", "b"][..], &["a", "a", "b"]] {
            let options = GpuOptions::new(64 << 20).deadline(Duration::from_secs(60)).slots(4);
            common::pes_on(hosts, options, |gpu| {
                let backend = Cuda::new(gpu.expect("the GPU is set up")).expect("the backend starts");
                let world = peerweave::World::from(peerweave_core::World::new(backend).expect("the world starts"));
                norms::of_every_type(&world, Some(world.team()), &[(0, 64), (3, 136)], 3);
                assert!(world.finalize().expect("all PEs finalize").is_clean());
            });
        }
    });
}

#[test]
fn all_reduce_rms_norm_of_unaligned_rows_is_refused() {
    Fakes::new().cuda().run(|| {
        on_gpus(2, |world| {
            let team = world.team();
            let [input, residual, output] = [0; 3].map(|_| world.alloc_zeroed::<f32>(24).expect("the heap has enough memory"));
            let weight = world.alloc_zeroed::<f32>(6).expect("the heap has enough memory");
            let norm = |hidden| weight.slice(..hidden).expect("the range is inside the memory");
            let refused = |done: peerweave::Result<()>| {
                assert!(matches!(done, Err(peerweave::Error::Unsupported { .. })), "{done:?}");
            };
            refused(team.all_reduce_rms_norm_blocking(&input, &residual, &output, RmsNorm::new(&norm(6))));
            let [input, residual, output] =
                [input, residual, output].map(|all| (all.slice(1..13).expect("the range is inside the memory"), all));
            refused(team.all_reduce_rms_norm_blocking(&input.0, &residual.0, &output.0, RmsNorm::new(&norm(4))));
            let all = [input.1, residual.1, output.1];
            team.all_reduce_rms_norm_blocking(&all[0], &all[1], &all[2], RmsNorm::new(&norm(4)))
                .expect("rows of this length are supported");
            all.into_iter().chain([weight]).for_each(|buffer| buffer.release().expect("all PEs release the memory"));
            assert!(world.finalize().expect("all PEs finalize").is_clean());
        });
    });
}
