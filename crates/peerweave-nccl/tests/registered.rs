//! Tests of unregistering memory on one rank, while the other ranks do not unregister memory. The
//! call waits only for the work of this rank.
#![cfg(target_os = "linux")]
#![allow(missing_docs, reason = "scenarios are named, not documented")]

mod common;

use std::time::Duration;

use common::*;
use peerweave_nccl::{Config, MisuseKind, NcclError, NcclMem, Rank, ReduceOp, Window, WindowKind};

#[test]
fn local_deregistration_needs_no_other_rank() {
    fakes(2).run(|| {
        ranks(2, &Config::new(), |comm, stream| {
            let mut buffer = floats(&stream, &[1.0; 1024]);
            let registration = comm.register(&buffer).expect("the memory is registered");
            comm.all_reduce_in_place(&stream, &mut buffer, ReduceOp::Sum).expect("the call is enqueued");
            if comm.rank() == Rank::new(0) {
                // Rank 1 keeps its registration until its communicator ends.
                registration.deregister_local(DEADLINE).expect("rank 0 unregisters without rank 1");
            }
            assert_eq!(value(&buffer, &stream), 2.0);
            comm.finalize(DEADLINE).expect("all communicators end");
        });
        nothing_is_left();
        // Rank 1's registration was dropped with its communicator.
        assert_eq!(counted("left_behind"), 1);
    });
}

#[test]
fn local_deregistration_frees_memory_dropped_while_registered() {
    fakes(1).run(|| {
        let (comm, stream) = alone();
        let memory = NcclMem::from_slice(comm.nccl(), &stream, &[1.0f32; 64]).expect("memory is allocated");
        let registration = comm.register(&memory).expect("the memory is registered");
        drop(memory);
        peerweave_driver::drain_retired(std::time::Instant::now() + Duration::from_millis(50));
        assert_eq!((counted("allocations"), counted("registrations")), (1, 1), "the memory is still registered");
        registration.deregister_local(DEADLINE).expect("the memory is unregistered");
        assert!(peerweave_driver::drain_retired(std::time::Instant::now() + DEADLINE));
        assert_eq!((counted("allocations"), counted("registrations")), (0, 0));
    });
}

#[test]
fn deregister_waits_for_every_stream_with_work() {
    // The collective on the second stream never ends.
    fakes(1).env("PEERWEAVE_FAKE_NCCL_STUCK", "ncclAllReduce:1").run(|| {
        let (comm, stream) = alone();
        let beside = comm.context().new_stream().expect("a stream is created");
        let mut buffer = floats(&beside, &[1.0; 64]);
        let (local, collective) = (
            comm.register(&buffer).expect("the memory is registered"),
            comm.register(&buffer).expect("the memory is registered"),
        );
        comm.all_reduce_in_place(&beside, &mut buffer, ReduceOp::Sum).expect("the call is enqueued");
        let patience = Duration::from_millis(100);
        for result in [local.deregister_local(patience), collective.deregister(&stream, patience)] {
            let error = result.expect_err("a collective on another stream uses the memory");
            assert!(matches!(error, NcclError::Timeout(_)), "{error}");
        }
        assert_eq!(counted("registrations"), 2, "both registrations still exist");
        comm.abort(DEADLINE).expect("the communicator ends");
        drop((comm, buffer));
        nothing_is_left();
    });
}

#[test]
fn local_deregistration_of_a_window_does_not_free_the_memory() {
    fakes(2).run(|| {
        ranks(2, &Config::new(), |comm, stream| {
            let memory = NcclMem::from_slice(comm.nccl(), &stream, &[1.0f32; 64]).expect("memory is allocated");
            let window = Window::register(&comm, &memory, WindowKind::SYMMETRIC)
                .expect("all ranks register")
                .expect("the fake has windows");
            let clone = window.clone();
            let error = window.deregister_local(DEADLINE).expect_err("a clone still uses the window");
            assert!(matches!(error.misuse_kind(), Some(MisuseKind::Context { .. })), "{error}");
            drop(memory);
            if comm.rank() == Rank::new(0) {
                clone.deregister_local(DEADLINE).expect("rank 0 unregisters without rank 1");
            }
            peerweave_driver::drain_retired(std::time::Instant::now() + Duration::from_millis(50));
            // Peers may still write to the memory, so it is not freed.
            assert_eq!(counted("allocations"), 2);
            comm.nccl().check("success", 0).expect("code 0 is success");
            sum(&comm, &stream).expect("both ranks join");
            comm.finalize(DEADLINE).expect("all communicators end");
        });
        nothing_is_left();
    });
}

#[test]
fn window_flags_gin_only_and_cft_counted_need_nccl_2_32() {
    fakes(1).run(|| {
        let (comm, stream) = alone();
        let memory = NcclMem::from_slice(comm.nccl(), &stream, &[1.0f32; 64]).expect("memory is allocated");
        for kind in [WindowKind::GIN_ONLY, WindowKind::CFT_COUNTED, WindowKind::GIN_ONLY.and(WindowKind::STRICT_ORDERING)] {
            let window =
                Window::register(&comm, &memory, kind).expect("NCCL 2.32 supports the flag").expect("the fake has windows");
            window.deregister(&stream, DEADLINE).expect("the memory is unregistered");
        }
    });
    fakes_of(1, "2.31.2").run(|| {
        let (comm, stream) = alone();
        let memory = NcclMem::from_slice(comm.nccl(), &stream, &[1.0f32; 64]).expect("memory is allocated");
        for (kind, flag) in [
            (WindowKind::GIN_ONLY, "NCCL_WIN_GIN_ONLY"),
            (WindowKind::CFT_COUNTED.and(WindowKind::STRICT_ORDERING), "NCCL_WIN_CFT_COUNTED"),
            (WindowKind::STRICT_ORDERING.and(WindowKind::GIN_ONLY), "NCCL_WIN_GIN_ONLY"),
        ] {
            let error = Window::register(&comm, &memory, kind).expect_err("NCCL 2.31 lacks the flag");
            assert!(matches!(&error, NcclError::Unsupported(error) if error.what == flag), "{error}");
        }
        assert_eq!(counted("windows"), 0);
        let strict = Window::register(&comm, &memory, WindowKind::STRICT_ORDERING).expect("NCCL 2.29.7 introduced the flag");
        assert!(strict.is_some());
    });
}
