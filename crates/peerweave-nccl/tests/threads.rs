//! Tests of threads that share a communicator: calls of different threads exclude each other.
#![cfg(target_os = "linux")]
#![allow(missing_docs, reason = "scenarios are named, not documented")]

mod common;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use common::*;
use peerweave_nccl::{
    CollConfig, Communicator, Config, DeadState, DeviceCommunicator, Nccl, NcclError, NcclMem, PreMulSum, ResultCode, UniqueId,
    Window,
};

#[test]
fn communicator_types_are_send_and_sync() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<(Nccl, UniqueId, Config, CollConfig, Communicator, NcclError)>();
    shared::<(PreMulSum<f32>, NcclMem<f32>, Window<f32>, peerweave_nccl::Registration, DeviceCommunicator)>();
}

#[test]
fn threads_share_a_communicator() {
    fakes(1).run(|| {
        let (comm, _) = alone();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let stream = comm.context().new_stream().expect("a stream is created");
                    for _ in 0..200 {
                        assert_eq!(sum(&comm, &stream).expect("the all-reduce succeeds"), 1.0);
                    }
                });
            }
        });
        assert_eq!(comm.sequence(), 800);
    });
}

#[test]
fn queries_and_calls_of_several_threads_never_overlap() {
    // The fake ends the process if two threads call it on one non-blocking communicator at the same
    // time.
    fakes(1).run(|| {
        let (comm, stream) = alone();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !done.load(Ordering::Acquire) {
                        assert!(matches!(comm.async_error(), Ok(None | Some(ResultCode::IN_PROGRESS))));
                        comm.wait(&stream, DEADLINE).expect("the work completes");
                    }
                });
            }
            for _ in 0..200 {
                assert_eq!(sum(&comm, &stream).expect("the all-reduce succeeds"), 1.0);
            }
            done.store(true, Ordering::Release);
        });
        assert_eq!(comm.sequence(), 200);
    });
}

#[test]
fn tracing_subscriber_may_call_methods_of_communicators() {
    struct Nosy;
    impl tracing::Subscriber for Nosy {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }
        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn event(&self, _: &tracing::Event<'_>) {
            Nccl::load().expect("the fake library is found");
            Communicator::abort_all(DEADLINE).expect("all existing communicators end");
        }
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
    }
    fakes(1).run(|| {
        tracing::subscriber::with_default(Nosy, || {
            let made = Communicator::builder()
                .nccl(Nccl::load().expect("the fake library is found"))
                .deadline(DEADLINE)
                .init_all(&contexts(1));
            assert_eq!(state_of(made.expect("the communicator is created").remove(0).abort(DEADLINE)), DeadState::Aborted);
        });
        nothing_is_left();
    });
}

#[test]
fn waiter_gets_the_lock_before_a_thread_that_calls_in_a_loop() {
    // Each call queries four statistics, and the next call follows immediately.
    fakes(1).env("PEERWEAVE_FAKE_NCCL_SLOW", "ncclCommMemStats=5").run(|| {
        let (comm, _) = alone();
        let (calls, is_done) = (AtomicU32::new(0), AtomicBool::new(false));
        let mut passed = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Acquire) {
                    comm.mem_stats().expect("the query succeeds");
                    calls.fetch_add(1, Ordering::AcqRel);
                }
            });
            for _ in 0..24 {
                let before = calls.load(Ordering::Acquire);
                while calls.load(Ordering::Acquire) == before {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let before = calls.load(Ordering::Acquire);
                comm.properties().expect("the waiter enters");
                passed.push(calls.load(Ordering::Acquire) - before);
            }
            is_done.store(true, Ordering::Release);
        });
        // Ignores the largest third, because the system may have suspended this thread in these
        // rounds.
        passed.sort_unstable();
        assert!(
            passed[passed.len() * 2 / 3 - 1] <= 3,
            "{passed:?} calls entered before the waiter, expected at most 3 in a round"
        );
    });
}
