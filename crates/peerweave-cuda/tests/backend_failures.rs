//! Tests of the errors of the portable API on GPUs when a kernel fails or a PE is lost, and of the
//! state after these errors.
#![cfg(target_os = "linux")]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use peerweave_bootstrap::{Options, Rendezvous};
use peerweave_core::{Compare, Error, Parts, Pe, PeerCause, Rank, ReduceFn, ReduceOp, Strides, World};
use peerweave_cuda::{Cuda, CudaError, CudaOptions, GpuOptions};
use peerweave_fakes::Fakes;

use common::worlds;

fn options() -> GpuOptions {
    GpuOptions::new(1 << 20).slots(4)
}

#[test]
fn timed_out_wait_poisons_teams_but_copies_still_work() {
    Fakes::new().cuda().run(|| {
        worlds(1, options().deadline(Duration::from_secs(3)), |world| {
            let (team, stream, me) = (world.team(), world.stream().unwrap(), Rank::new(0));
            let (words, x) = (world.alloc_zeroed::<u64>(1).unwrap(), world.alloc_zeroed::<i32>(2).unwrap());
            let start = Instant::now();
            let ticket = team.wait_until(&stream, &words.signal(0).unwrap(), Compare::Eq, 1).unwrap();
            let error = ticket.wait().unwrap_err();
            assert!(start.elapsed() < Duration::from_secs(20), "the call took {:?}", start.elapsed());
            let Error::Timeout(timeout) = &error else { panic!("{error}, expected a timeout") };
            let word = timeout.word.expect("the wait is for one word");
            assert_eq!((timeout.call, word.found, word.compare, word.value), ("wait_until", 0, Compare::Eq, 1), "{error}");
            assert!(timeout.missing.is_empty(), "the error names a PE, but any PE may set the word: {error}");
            assert!(matches!(team.failure(), Some(Error::Timeout(_))));
            // Later calls that need kernels are refused as poisoned.
            for error in [team.barrier(&stream).unwrap_err(), team.barrier_blocking().unwrap_err()] {
                assert!(matches!(error, Error::Poisoned { call: "barrier", .. }), "{error}");
            }
            let refused = team.signal_blocking(words.signal(0).unwrap().set(1), me).unwrap_err();
            assert!(matches!(refused, Error::Poisoned { call: "signal", .. }), "{refused}");
            // Copies need no kernel, so the stream still runs them.
            team.put(&stream, &x.slice(..1).unwrap(), &x.slice(1..).unwrap(), me).unwrap().wait().unwrap();
            assert!(matches!(stream.synchronize(), Err(Error::Timeout(_))), "the first synchronize call must report the failure");
            stream.synchronize().unwrap();
            x.copy_from(&[1, 2]).unwrap();
            assert_eq!(x.to_vec().unwrap(), [1, 2]);
            x.release().unwrap();
            words.release().unwrap();
        });
    });
}

#[test]
fn barrier_and_wait_errors_name_a_killed_pe() {
    let _ = Fakes::new().cuda().run_with_victims(3, &[2], |child| one_is_killed(&child));
}

fn one_is_killed(child: &peerweave_fakes::Child) {
    let gpu = common::process(child, options().deadline(Duration::from_secs(60)));
    let world = World::new(Cuda::new(gpu.clone()).unwrap()).unwrap();
    let (team, words) = (world.team(), world.alloc_zeroed::<u64>(1).unwrap());
    team.barrier_blocking().unwrap();
    if world.my_pe() == Pe::new(2) {
        std::thread::sleep(Duration::from_millis(200));
        std::process::abort();
    }
    let start = Instant::now();
    let error = match world.my_pe().get() {
        0 => team.barrier_blocking().unwrap_err(),
        _ => team.wait_until_blocking(&words.signal(0).unwrap(), Compare::Eq, 1).map(drop).unwrap_err(),
    };
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "the call took {:?}, expected an error long before the deadline",
        start.elapsed()
    );
    assert!(matches!(error, Error::Peer { cause: PeerCause::Died, .. }), "{error}");
    assert_eq!(error.blamed(), [Pe::new(2)], "{error}");
    // Calls that need no other PE still work.
    words.copy_from(&[7]).unwrap();
    assert_eq!(words.load(0).unwrap(), 7);
    drop((words, world));
    let (ended, took) = gpu.end();
    assert!(matches!(ended, Err(CudaError::PeLost { pe, .. }) if pe == Pe::new(2)), "{ended:?}");
    assert!(took < Duration::from_secs(20), "the end took {took:?}, expected no wait for the dead PE");
}

#[test]
fn error_blames_the_late_pe_instead_of_the_pe_that_gave_up() {
    let _ = Fakes::new().cuda().run_with_victims(3, &[1], |child| one_is_late(&child));
}

/// PE 2 calls a barrier late. PE 1 has a short deadline, gives up, and ends its process.
fn one_is_late(child: &peerweave_fakes::Child) {
    let deadline = Duration::from_secs(if child.rank == 1 { 4 } else { 60 });
    let gpu = common::process(child, options().deadline(deadline));
    let world = World::new(Cuda::new(gpu.clone()).unwrap()).unwrap();
    let team = world.team();
    team.barrier_blocking().unwrap();
    if child.rank == 2 {
        // This delay is so long that the other PEs have seen the end of PE 1.
        std::thread::sleep(Duration::from_secs(10));
    }
    let start = Instant::now();
    // PE 2 completes the first barrier, at which the other PEs have arrived.
    let error = (0..2).find_map(|_| team.barrier_blocking().err()).unwrap();
    if child.rank == 1 {
        assert_eq!(error.blamed(), [Pe::new(2)], "{error}");
        std::process::abort();
    }
    assert!(
        start.elapsed() < Duration::from_secs(25),
        "the call took {:?}, expected an error before the deadline",
        start.elapsed()
    );
    // PE 2 itself cannot be at fault for its error, so its error names the PE that ended.
    let at_fault = Pe::new(if child.rank == 0 { 2 } else { 1 });
    assert!(matches!(error, Error::Peer { pe, cause: PeerCause::Failed, .. } if pe == at_fault), "{error}");
    drop(world);
    let _ = gpu.end();
}

#[test]
fn join_error_names_a_pe_killed_during_the_join() {
    let _ = Fakes::new().cuda().run_with_victims(3, &[2], |child| one_is_killed_in_the_join(&child));
}

fn one_is_killed_in_the_join(child: &peerweave_fakes::Child) {
    let rendezvous = Rendezvous::join(&common::job_of(child), Options::default()).unwrap();
    if child.rank == 2 {
        std::thread::sleep(Duration::from_millis(100));
        std::process::abort();
    }
    let context = peerweave_driver::context(child.rank).unwrap();
    let start = Instant::now();
    let error = Cuda::join_by(&Arc::new(rendezvous), &context, &CudaOptions::default()).map(drop).unwrap_err();
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "the call took {:?}, expected an error long before the deadline",
        start.elapsed()
    );
    assert!(matches!(error, Error::Peer { cause: PeerCause::Died, .. }), "{error}");
    assert_eq!(error.blamed(), [Pe::new(2)], "{error}");
}

#[test]
fn join_error_names_the_missing_pe_at_the_deadline() {
    let _ = Fakes::new().cuda().run_with_victims(2, &[1], |child| one_does_not_join(&child));
}

fn one_does_not_join(child: &peerweave_fakes::Child) {
    if child.rank == 1 {
        std::process::abort();
    }
    let mut options = CudaOptions::default();
    options.deadline = Duration::from_secs(1);
    let error = Cuda::join(&common::job_of(child), &options).map(drop).unwrap_err();
    assert!(matches!(error, Error::Timeout(_)), "{error}");
    assert_eq!(error.blamed(), [Pe::new(1)], "{error}");
}

#[test]
fn abort_ends_every_process_with_the_given_exit_code() {
    let outputs = Fakes::new().cuda().run_with_victims(4, &[0, 1, 2, 3], |child| one_aborts(&child));
    for (pe, output) in outputs.iter().enumerate() {
        assert_eq!(output.status.code(), Some(6), "PE {pe}: {output}");
        assert!(!output.stderr.contains("continued after the abort"), "PE {pe}: {output}");
    }
}

fn one_aborts(child: &peerweave_fakes::Child) {
    let gpu = common::process(child, options().deadline(Duration::from_secs(60)));
    let world = World::new(Cuda::new(gpu.clone()).unwrap()).unwrap();
    let (team, words) = (world.team(), world.alloc_zeroed::<u64>(1).unwrap());
    team.barrier_blocking().unwrap();
    let outcome = match world.my_pe().get() {
        0 => team.barrier_blocking(),
        1 => team.wait_until_blocking(&words.signal(0).unwrap(), Compare::Eq, 1).map(drop),
        2 => {
            std::thread::sleep(Duration::from_millis(100));
            Err(world.abort(6))
        }
        _ => {
            // PE 3 makes no call.
            std::thread::sleep(Duration::from_secs(50));
            Ok(())
        }
    };
    panic!("{} continued after the abort: {outcome:?}", world.my_pe());
}

/// The calls during which a PE is killed.
const KILLED_IN: [&str; 7] =
    ["scan", "exclusive_scan", "all_gather_v", "scatter_v", "all_to_all_strided", "all_reduce_with", "group"];

#[test]
fn error_names_a_pe_killed_during_a_collective_or_group_call() {
    for call in KILLED_IN {
        let _ = Fakes::new().cuda().run_with_victims(3, &[2], |child| one_is_killed_in_a_call(&child, call));
    }
}

fn one_is_killed_in_a_call(child: &peerweave_fakes::Child, call: &str) {
    let gpu = common::process(child, options().deadline(Duration::from_secs(60)));
    let world = World::new(Cuda::new(gpu.clone()).unwrap()).unwrap();
    let (team, stream) = (world.team(), world.stream().unwrap());
    let (x, all) = (world.alloc_zeroed::<u32>(300).unwrap(), world.alloc_zeroed::<u32>(1800).unwrap());
    let (function, parts) = (ReduceFn::new(|a: u32, b: u32| a.max(b)), Arc::new(Parts::equal(3, 300)));
    let next = |behind: u32| Rank::new((world.my_pe().get() + behind) % 3);
    let act = || -> peerweave_core::Result<()> {
        let (to, part) = (all.slice(..300)?, all.slice(900..1200)?);
        match call {
            "scan" => team.scan(&stream, &x, &to, ReduceOp::Sum)?.wait(),
            "exclusive_scan" => team.exclusive_scan_blocking(&x, &to, ReduceOp::Max),
            "all_gather_v" => team.all_gather_v(&stream, &x, &all, Arc::clone(&parts))?.wait(),
            "scatter_v" => team.scatter_v_blocking(&all.slice(..900)?, &x, Arc::clone(&parts), Rank::new(1)),
            "all_to_all_strided" => {
                let strides = Strides { count: 100, source: 1, dest: 2 };
                team.all_to_all_strided(&stream, &x, &all, strides)?.wait()
            }
            "all_reduce_with" => team.all_reduce_with(&stream, &x, &to, &function)?.wait(),
            _ => team.group_blocking(|group| {
                group.send(&x, next(1))?;
                group.recv(&part, next(2))
            }),
        }
    };
    (0..3).try_for_each(|_| act()).unwrap();
    team.barrier_blocking().unwrap();
    if world.my_pe() == Pe::new(2) {
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            std::process::abort();
        });
    }
    let start = Instant::now();
    let error = loop {
        if let Err(error) = act() {
            break error;
        }
    };
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "the call took {:?}, expected an error long before the deadline",
        start.elapsed()
    );
    assert_eq!(error.blamed(), [Pe::new(2)], "{error}");
    drop((x, all, stream, world));
    let (_, took) = gpu.end();
    assert!(took < Duration::from_secs(20), "the end took {took:?}, expected no wait for the dead PE");
}
