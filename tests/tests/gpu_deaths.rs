//! Checks the death of PEs on GPUs of the fake driver while the PEs repeat an operation.
#![cfg(target_os = "linux")]

#[path = "../../crates/peerweave-cuda/tests/common/mod.rs"]
mod common;

use peerweave::{Error, Pe, Rank, World};
use peerweave_cuda::{Cuda, GpuOptions};
use peerweave_fakes::{Child, Fakes};
use peerweave_tests::check::contexts;
use peerweave_tests::repeat::acts::act;
use std::time::{Duration, Instant};

/// Kills the last of three PEs while all of them repeat an operation.
fn one_is_killed(child: &Child, how: &str) {
    let options = GpuOptions::new(1 << 20).deadline(Duration::from_secs(60)).slots(4);
    let gpu = common::process(child, options);
    let world =
        World::from(peerweave_core::World::new(Cuda::new(gpu.clone()).expect("the backend starts")).expect("the world starts"));
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

/// Returns whether an operation of a context only copies data.
fn copies(how: &&str) -> bool {
    ["put", "put_to_another", "put_strided", "get"].contains(how)
}

#[test]
fn error_names_a_pe_that_died_during_put_get_or_quiet() {
    for how in contexts::REPEATED.into_iter().filter(copies) {
        let _ = Fakes::new().cuda().run_with_victims(3, &[2], |child| one_is_killed(&child, how));
    }
}

#[test]
fn error_names_a_pe_that_died_during_signal_atomic_or_wait() {
    for how in contexts::REPEATED.into_iter().filter(|how| !copies(how)) {
        let _ = Fakes::new().cuda().run_with_victims(3, &[2], |child| one_is_killed(&child, how));
    }
}

/// Kills the last of three PEs while all of them repeat the operation `name`.
fn act_names_the_dead(child: &Child, name: &str) {
    let options = GpuOptions::new(8 << 20).deadline(Duration::from_secs(60)).slots(4);
    let gpu = common::process(child, options);
    let world =
        World::from(peerweave_core::World::new(Cuda::new(gpu.clone()).expect("the backend starts")).expect("the world starts"));
    let victim = Pe::new(2);
    let repeated = || -> peerweave::Result<()> {
        let mut act = act(&world, name)?;
        act()?;
        world.team().barrier_blocking()?;
        if world.my_pe() == victim {
            std::thread::spawn(|| {
                std::thread::sleep(Duration::from_millis(60));
                std::process::abort();
            });
        }
        loop {
            act()?;
        }
    };
    let start = Instant::now();
    let error = repeated().expect_err("PE 2 dies");
    assert!(start.elapsed() < Duration::from_secs(30), "{name}: reported after {:?}, at the deadline", start.elapsed());
    assert!(matches!(error, Error::Peer { pe, .. } if pe == victim), "{name}: {error}");
    drop(world);
    let _ = gpu.end();
}

#[test]
fn errors_name_a_pe_killed_during_a_reduction() {
    let names = [
        "AllReduce:4096:symmetric",
        "AllReduceInPlace:300000:symmetric",
        "Reduce:4096:symmetric",
        "ReduceScatter:4096:symmetric",
        "Scan:4096:symmetric",
        "ExclusiveScan:4096:private",
        "functions:3000",
    ];
    for name in names {
        let fakes = Fakes::new().cuda().limit(Duration::from_secs(120));
        let _ = fakes.run_with_victims(3, &[2], |child| act_names_the_dead(&child, name));
    }
}

#[test]
fn errors_name_a_pe_killed_during_a_data_transfer() {
    let names = [
        "Broadcast:4096:symmetric",
        "AllGather:4096:symmetric",
        "AllGatherV:4096:symmetric",
        "Gather:4096:private",
        "GatherV:4096:symmetric",
        "Scatter:4096:symmetric",
        "ScatterV:4096:private",
        "AllToAll:4096:symmetric",
        "AllToAllV:4096:symmetric",
        "strided:3000:symmetric",
        "ring:3000",
        "star:3000",
    ];
    for name in names {
        let fakes = Fakes::new().cuda().limit(Duration::from_secs(120));
        let _ = fakes.run_with_victims(3, &[2], |child| act_names_the_dead(&child, name));
    }
}

#[test]
fn errors_name_a_pe_killed_during_a_wait_or_collective_call() {
    let names = [
        "alloc:4096",
        "barrier",
        "sync",
        "split",
        "stream:4096",
        "wait",
        "wait_on_stream",
        "wait16",
        "wait_vector",
        "test",
        "quiet",
        "lock",
        "exchange_counts",
    ];
    for name in names {
        let fakes = Fakes::new().cuda().limit(Duration::from_secs(120));
        let _ = fakes.run_with_victims(3, &[2], |child| act_names_the_dead(&child, name));
    }
}
