//! Tests that NVSHMEM is finalised after all enqueued work, and that no call enters NVSHMEM after
//! that.
#![cfg(target_os = "linux")]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use common::{DEADLINE, block, device, fakes, misuse, rendezvous, settings, start, unblock};
use peerweave_nvshmem::{Context, MisuseKind, NvshmemError};

const A_WHILE: Duration = Duration::from_millis(200);

#[test]
fn finalize_waits_for_a_quiet_enqueued_on_a_stream() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        let stream = here.new_stream();
        block(&stream);
        here.context.quiet(&stream).expect("the work is enqueued");
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let ending = scope.spawn(|| {
                here.end();
                ended.store(true, Ordering::SeqCst);
            });
            std::thread::sleep(A_WHILE);
            assert!(!ended.load(Ordering::SeqCst), "NVSHMEM was finalised before a stream completed");
            unblock(&stream);
            ending.join().expect("the thread does not panic");
        });
        stream.synchronize().expect("the stream completes");
    });
}

#[test]
fn call_of_another_thread_is_refused_while_finalize_waits() {
    fakes().run_many(2, |child| {
        let here = start(&child);
        let (stream, team) = (here.new_stream(), here.context.world());
        block(&stream);
        here.context.quiet(&stream).expect("the work is enqueued");
        let other = here.new_stream();
        let common::Here { context, rendezvous, .. } = here;
        std::thread::scope(|scope| {
            let ending = scope.spawn(|| context.finalize().expect("all PEs finalize NVSHMEM"));
            // Finalising has begun as soon as other calls are refused. This query enqueues no work.
            let begun = peerweave_driver::wait_until::<()>(Instant::now() + DEADLINE, || Ok(team.config().is_err()));
            assert_eq!(begun, Ok(true), "finalising did not begin in time");
            let kind = misuse(team.barrier(&other));
            assert!(
                matches!(kind, MisuseKind::Context { why } if why.contains("another thread is finalising NVSHMEM")),
                "{kind:?}"
            );
            unblock(&stream);
            ending.join().expect("the thread does not panic");
        });
        let error = team.barrier(&other).expect_err("NVSHMEM can no longer be used");
        assert!(matches!(error, NvshmemError::Dead { .. }), "{error}");
        drop(team);
        std::sync::Arc::into_inner(rendezvous)
            .expect("no context keeps the rendezvous alive")
            .leave()
            .expect("all PEs leave the rendezvous");
    });
}

#[test]
fn calls_succeed_after_a_failed_finalize() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        let (memory, team) = (here.context.alloc_zeroed::<u64>(1).expect("the memory is allocated"), here.context.world());
        let kind = misuse(here.context.finalize());
        assert!(matches!(kind, MisuseKind::InUse { .. }), "{kind:?}");
        team.barrier(&here.stream).expect("the call succeeds after the failed finalize");
        let context = peerweave_nvshmem::Context::current().expect("NVSHMEM is still running");
        context.free(memory).expect("all PEs free the memory");
        context.finalize().expect("all PEs finalize NVSHMEM");
    });
}

#[test]
fn exactly_one_of_four_concurrent_finalize_calls_ends_nvshmem() {
    fakes().run_many(1, |child| {
        let meeting = rendezvous(&child, DEADLINE);
        for round in 0..400 {
            let context = Context::from_rendezvous(&meeting, &device(0), settings(DEADLINE)).expect("NVSHMEM starts");
            let together = Arc::new(Barrier::new(5));
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    let (handle, together) = (context.clone(), Arc::clone(&together));
                    std::thread::spawn(move || {
                        together.wait();
                        handle.finalize().expect("a handle is released").other_handles
                    })
                })
                .collect();
            drop(context);
            together.wait();
            let left: Vec<usize> = threads.into_iter().map(|thread| thread.join().expect("the thread does not panic")).collect();
            assert_eq!(
                left.iter().filter(|others| **others == 0).count(),
                1,
                "round {round}: the calls found {left:?} other handles, expected one call to find none"
            );
            assert!(Context::current().is_none(), "round {round}: NVSHMEM still runs");
        }
    });
}

#[test]
fn finalize_is_refused_while_a_cuda_module_is_initialised() {
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_ANY_MODULE", "1").run_many(1, |child| {
        let here = start(&child);
        let keep = Arc::new("module");
        // SAFETY: the fake library does not read the module.
        let guard = unsafe { here.context.init_module(std::ptr::without_provenance_mut(0x1000), Arc::clone(&keep) as _) };
        let guard = guard.expect("the module is initialised");
        // NVSHMEM keeps the module's address after it is finalised, and writes to the module at its
        // next start.
        let refused = misuse(here.context.finalize());
        assert!(matches!(refused, MisuseKind::InUse { .. }), "{refused:?}");
        drop(guard);
        common::drain_retired();
        assert_eq!(Arc::strong_count(&keep), 1);
        Context::current().expect("NVSHMEM is still running").finalize().expect("all PEs finalize NVSHMEM");
    });
}
