//! Tests of the report of leaks at process exit. The report is printed once, with names, and is not
//! printed without leaks.
#![cfg(target_os = "linux")]
#![allow(missing_docs, reason = "scenarios are named, not documented")]

mod common;

use common::*;
use peerweave_fakes::child;
use peerweave_nccl::{Communicator, Config, Nccl, NcclMem};

#[test]
fn leak_report_lists_resources_that_are_not_yet_freed() {
    fakes(1).run(|| {
        assert!(Nccl::leaks().is_empty());
        let (comm, stream) = alone();
        let memory = NcclMem::from_slice(comm.nccl(), &stream, &[1.0f32; 64]).expect("memory is allocated");
        let registration = comm.register(&memory).expect("the memory is registered");
        let leaks = Nccl::leaks();
        assert_eq!((leaks.communicators.len(), leaks.allocations, leaks.allocated_bytes), (1, 1, 256), "{leaks}");
        assert_eq!((leaks.communicators[0].registrations, leaks.communicators[0].state), (1, None));
        assert_eq!(&*leaks.communicators[0].name, comm.name());
        registration.deregister_local(DEADLINE).expect("the memory is unregistered");
        assert_eq!(Nccl::leaks().communicators[0].registrations, 0);
        drop(memory);
        comm.finalize(DEADLINE).expect("the communicator ends");
        assert!(peerweave_driver::drain_retired(std::time::Instant::now() + DEADLINE));
        assert!(Nccl::leaks().is_empty(), "{}", Nccl::leaks());
    });
}

#[test]
fn leaks_are_reported_at_exit() {
    if child().is_some() {
        Nccl::report_leaks_at_exit().expect("atexit accepts the function");
        Nccl::report_leaks_at_exit().expect("the function is already registered");
        let all = all_with(1, &Config::new().name("forgotten"));
        let memory = NcclMem::from_slice(all[0].0.nccl(), &all[0].1, &[1.0f32; 64]).expect("memory is allocated");
        std::mem::forget((all, memory));
        std::process::exit(0);
    }
    let output = fakes(1).run_child("leaks_are_reported_at_exit");
    let lines: Vec<_> = output.stderr.lines().filter(|line| line.starts_with("peerweave-nccl: leaked: ")).collect();
    assert_eq!(
        lines,
        [
            "peerweave-nccl: leaked: communicator \"forgotten\" #1 (rank 0 of 1) was neither finalized nor aborted",
            "peerweave-nccl: leaked: ncclMemAlloc allocations that have not been freed: 1 (256 bytes)",
        ],
        "{output}"
    );
}

#[test]
fn exit_without_leaks_reports_nothing() {
    if child().is_some() {
        Nccl::report_leaks_at_exit().expect("atexit accepts the function");
        for (comm, _) in all(2) {
            drop(comm);
        }
        assert!(Communicator::wait_for_dropped(DEADLINE), "dropped communicators are not ended");
        std::process::exit(0);
    }
    let output = fakes(2).run_child("exit_without_leaks_reports_nothing");
    assert!(output.status.success() && !output.stderr.contains("leaked"), "{output}");
}

#[test]
fn communicator_dropped_during_exit_makes_no_nccl_call() {
    extern "C" fn last() {
        std::thread::sleep(std::time::Duration::from_millis(600));
    }
    if child().is_some() {
        // Exit functions run in reverse order of registration, so this function runs after NCCL's
        // runtime has shut down.
        // SAFETY: the function lives as long as the process.
        assert_eq!(unsafe { libc::atexit(last) }, 0);
        let comms = all(1);
        std::thread::spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(200));
            drop(comms);
        });
        std::process::exit(0);
    }
    let output = fakes(1).run_child("communicator_dropped_during_exit_makes_no_nccl_call");
    assert!(output.status.success(), "{output}");
}

#[test]
fn process_exit_waits_for_a_dropped_communicator() {
    if child().is_some() {
        Nccl::report_leaks_at_exit().expect("atexit accepts the function");
        drop(all(1));
        // The watchdog may hold the communicator for a moment after the drop.
        let until = std::time::Instant::now() + DEADLINE;
        while Nccl::leaks().ending == 0 && std::time::Instant::now() < until {
            std::thread::yield_now();
        }
        // The thread that only calls `ncclCommFinalize` must not count as a communicator.
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert_eq!(Nccl::leaks().ending, 1, "the communicator is still being ended");
        std::process::exit(0);
    }
    let output = fakes(1)
        .env("PEERWEAVE_FAKE_NCCL_SLOW", "ncclCommFinalize=4000")
        .run_child("process_exit_waits_for_a_dropped_communicator");
    assert!(output.status.success() && !output.stderr.contains("leaked"), "{output}");
}
