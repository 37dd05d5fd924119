//! Checks the death of PEs on GPUs of the fake driver while the PEs use contexts.
#![cfg(target_os = "linux")]

#[path = "../../crates/peerweave-cuda/tests/common/mod.rs"]
mod common;

use peerweave::{Rank, World};
use peerweave_cuda::{Cuda, GpuOptions};
use peerweave_fakes::{Child, Fakes};
use peerweave_tests::contexts;
use std::time::Duration;

/// Kills the last of three PEs while all of them repeat an operation.
fn one_is_killed(child: &Child, how: &str) {
    let options = GpuOptions::new(1 << 20).deadline(Duration::from_secs(60)).slots(4);
    let gpu = common::process(child, options);
    let world = World::from(peerweave_core::World::new(Cuda::new(gpu.clone()).expect("a backend")).expect("a world"));
    contexts::quiet_names_the_dead(&world, how, Rank::new(2), || {
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            std::process::abort();
        });
    });
    drop(world);
    let (_, took) = gpu.end();
    assert!(took < Duration::from_secs(20), "the end took {took:?}, expected less than 20 s, without a wait for the dead PE");
}

/// Returns whether an operation of a context only copies.
fn copies(how: &&str) -> bool {
    ["put", "put_to_another", "put_strided", "get"].contains(how)
}

#[test]
fn quiet_error_names_a_pe_that_died_during_puts_or_gets() {
    for how in contexts::REPEATED.into_iter().filter(copies) {
        let _ = Fakes::new().cuda().run_with_victims(3, &[2], |child| one_is_killed(&child, how));
    }
}

#[test]
fn quiet_error_names_a_pe_that_died_during_other_operations() {
    for how in contexts::REPEATED.into_iter().filter(|how| !copies(how)) {
        let _ = Fakes::new().cuda().run_with_victims(3, &[2], |child| one_is_killed(&child, how));
    }
}
