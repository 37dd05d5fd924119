//! Tests that memory in use is neither freed nor unregistered.
#![cfg(target_os = "linux")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{DEADLINE, Hold, count, device, fail_driver, fakes, misuse, start};
use peerweave_driver::cudarc::driver::sys::{CUcontext, CUgraphInstantiate_flags, CUstreamCaptureMode};
use peerweave_driver::{DeviceBuffer, DeviceMemory, Driver, DriverError, Keep, Raw};
use peerweave_fakes::Fakes;
use peerweave_nvshmem::{MisuseKind, NvshmemError, Signal};
use peerweave_types::SignalOp;

const A_WHILE: Duration = Duration::from_millis(300);
const FLAGS: CUgraphInstantiate_flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
const MODE: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;

#[test]
fn weak_memory_handle_cannot_be_upgraded_during_free() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        let hold = Hold::new(&here);
        let (memory, other) = (here.context.alloc_zeroed::<u64>(16), here.context.alloc_zeroed::<u64>(16));
        let (memory, other) = (memory.expect("the memory is allocated"), other.expect("the memory is allocated"));
        hold.hold(&here.stream);
        here.context.put(&memory, &other, here.context.pe(), &here.stream).expect("the work is enqueued");
        let address = memory.address();
        let weak = {
            let (_, keep) = memory.keep().expect("the memory has an owner");
            Arc::downgrade(&keep)
        };
        let freed = AtomicBool::new(false);
        let kept = std::thread::scope(|scope| {
            let freeing = scope.spawn(|| {
                here.context.free(memory).expect("no handle exists");
                freed.store(true, Ordering::SeqCst);
            });
            std::thread::sleep(Duration::from_secs(2));
            // `free` has counted the handles, and now waits for the stream.
            let kept: Option<Keep> = weak.upgrade();
            assert!(!freed.load(Ordering::SeqCst), "the memory was freed before its stream completed");
            hold.release();
            freeing.join().expect("the thread does not panic");
            kept
        });
        let again = here.context.alloc_zeroed::<u64>(16).expect("the memory is allocated");
        assert!(kept.is_none() || again.address() != address, "memory with an owner was allocated again");
        for memory in [other, again] {
            here.context.free(memory).expect("all PEs free the memory");
        }
        hold.free();
        here.end();
    });
}

#[test]
fn free_of_memory_with_a_second_owner_is_refused() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        let memory = here.context.alloc_zeroed::<u64>(16).expect("the memory is allocated");
        let (_, keep) = memory.keep().expect("the memory has an owner");
        let weak = Arc::downgrade(&keep);
        let kind = misuse(here.context.free(memory));
        assert!(matches!(kind, MisuseKind::InUse { .. }), "{kind:?}");
        drop(keep);
        assert!(weak.upgrade().is_none());
        assert_eq!(here.context.finalize().expect("no handle exists").leaked.len(), 1);
    });
}

#[test]
fn registration_of_borrowed_memory_is_refused() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        let memory = DeviceMemory::<u32>::alloc(&device(0), 64).expect("the memory is allocated");
        // SAFETY: no work uses the memory, and the memory outlives the borrowed buffer.
        let raw = unsafe { Raw::<u32>::new(memory.address(), memory.len(), 0, None) };
        let kind = misuse(here.context.register_local(&raw));
        assert!(matches!(kind, MisuseKind::Context { why } if why.contains("borrowed memory")), "{kind:?}");
        here.end();
    });
}

#[test]
fn callers_slice_is_not_read_after_a_copy_has_failed() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        let count = 1 << 22;
        let memory = here.context.alloc_zeroed::<u64>(count).expect("the memory is allocated");
        // Pinned memory is read when the stream reaches the copy.
        // SAFETY: the memory is filled before it is read.
        let mut pinned = unsafe { here.context.device().alloc_pinned::<u64>(count) }.expect("the pinned memory is allocated");
        let values = pinned.as_mut_slice().expect("the pinned memory is idle");
        values.fill(7);
        // The first two queries are for the caller's stream and for the context's own stream. The
        // third query is for the copy.
        fail_driver("cuStreamSynchronize:*=999,cuStreamQuery:3=999");
        let error = memory.copy_from(&here.stream, values).expect_err("the driver cannot report whether the copy is complete");
        values.fill(0);
        fail_driver("");
        assert!(error.to_string().contains("CUDA_ERROR_UNKNOWN"), "{error}");
        let copied = memory.to_vec(&here.stream).expect("the copy completes");
        assert!(copied.iter().all(|value| *value == 7), "the copy read values that the caller wrote after the error");
        here.context.free(memory).expect("all PEs free the memory");
        here.end();
    });
}

#[test]
fn dropped_registration_does_not_change_current_context() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        let memory = DeviceMemory::<u32>::alloc(&device(0), 64).expect("the memory is allocated");
        let registration = here.context.register_local(&memory).expect("the memory is registered");
        let one = device(1);
        one.bind_to_thread().expect("the context is live");
        drop(registration);
        let mut current: CUcontext = std::ptr::null_mut();
        // SAFETY: the pointer is to a live handle.
        let code = unsafe { Driver::get().expect("the fake library is loaded").api().cuCtxGetCurrent(&raw mut current) };
        assert!(code.is_ok_and(|code| code == peerweave_driver::CudaCode::SUCCESS));
        assert_eq!(current, one.cu_ctx(), "a destructor changed the thread's current context");
        drop(memory);
        here.end();
    });
}

#[test]
fn capture_that_begins_during_a_put_is_invalidated() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        let (target, source) = (here.context.alloc_zeroed::<u64>(16), here.context.alloc_zeroed::<u64>(16));
        let (target, source) = (target.expect("the memory is allocated"), source.expect("the memory is allocated"));
        // The first put queries whose memory is mapped in this process.
        here.context.put(&target, &source, here.context.pe(), &here.stream).expect("the work is enqueued");
        // The capture begins after the put's capture query and before the call of NVSHMEM.
        let before = peerweave_fakes::entered("cuCtxGetCurrent");
        fail_driver("cuCtxGetCurrent:1=400ms");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                peerweave_fakes::wait_until_entered("cuCtxGetCurrent", before + 1);
                let relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
                here.stream.begin_capture(relaxed).expect("the capture begins");
            });
            let error = here
                .context
                .put(&target, &source, here.context.pe(), &here.stream)
                .expect_err("the capture began during the call");
            assert!(matches!(error, NvshmemError::Cuda(DriverError::CaptureBegun { .. })), "{error}");
        });
        fail_driver("");
        assert!(
            here.stream.end_capture(CUgraphInstantiate_flags(0)).is_err(),
            "end_capture returned a graph that does not own the memory of the put"
        );
        here.context.free(source).expect("all PEs free the memory");
        here.context.free(target).expect("all PEs free the memory");
        here.end();
    });
}

#[test]
fn dropping_a_registration_does_not_wait_for_other_calls() {
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_SLOW", "nvshmem_malloc=8000").run_many(1, |child| {
        let here = start(&child);
        let memory = peerweave_driver::DeviceMemory::<u32>::alloc(here.context.device(), 64).expect("the memory is allocated");
        let registration = here.context.register_local(&memory).expect("the memory is registered");
        std::thread::scope(|scope| {
            let context = here.context.clone();
            let allocating = scope.spawn(move || {
                let buffer = context.alloc_zeroed::<u8>(8).expect("the memory is allocated");
                context.free(buffer).expect("all PEs free the memory");
            });
            std::thread::sleep(A_WHILE);
            drop(registration);
            let waited = allocating.is_finished();
            allocating.join().expect("the thread does not panic");
            assert!(!waited, "the destructor waited for a call of another thread");
        });
        here.context.quiet_blocking().expect("the quiet completes");
        assert_eq!(count("registrations"), 0, "the next call must unregister the memory");
        here.end();
    });
}

#[test]
fn memory_can_be_freed_after_the_graph_is_destroyed() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        for round in 0..100 {
            let buffer = here.context.alloc::<u32>(64).expect("the memory is allocated");
            let (target, source) =
                (buffer.slice(0..32).expect("the range is in bounds"), buffer.slice(32..64).expect("the range is in bounds"));
            here.stream.begin_capture(MODE).expect("the capture begins");
            here.context.put(&target, &source, here.context.pe(), &here.stream).expect("the call is captured");
            let graph = here.stream.end_capture(FLAGS).expect("the capture ends").expect("the graph has nodes");
            drop((target, source));
            drop(graph);
            here.context.free(buffer).unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
        here.end();
    });
}

/// The memory that a test frees while an `nbi` transfer may still use the memory. A stream waits
/// for the transfer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Freed {
    Source,
    Target,
    Word,
}

#[test]
fn free_waits_for_a_queued_quiet_or_barrier_that_completes_puts() {
    for (by_barrier, which) in [(false, Freed::Source), (true, Freed::Source), (false, Freed::Target), (true, Freed::Word)] {
        fakes().run_many(1, move |child| {
            let here = start(&child);
            let hold = Hold::new(&here);
            let (one, other) = (here.new_stream(), here.new_stream());
            let source = here.context.alloc_zeroed::<u32>(64).expect("the memory is allocated");
            let target = here.context.alloc_zeroed::<u32>(64).expect("the memory is allocated");
            let word = here.context.alloc_zeroed::<u64>(1).expect("the memory is allocated");
            let complete = |stream| match by_barrier {
                true => here.context.node().expect("the team exists").barrier(stream).expect("the work is enqueued"),
                false => here.context.quiet(stream).expect("the work is enqueued"),
            };
            // The memory of a completed transfer is listed again by its next transfer.
            for stream in [&here.stream, &other] {
                let signal = Signal { word: &word, value: 1, op: SignalOp::Add };
                here.context
                    .put_signal_nbi(&target, &source, &signal, here.context.pe(), &one)
                    .expect("the transfer is enqueued");
                here.context.put_nbi(&target, &source, here.context.pe(), &one).expect("the transfer is enqueued");
                if Arc::ptr_eq(stream, &other) {
                    hold.hold(&other);
                }
                // From here on NVSHMEM treats the transfer as complete, and only this stream waits
                // for the transfer.
                complete(stream);
            }
            let (mut words, mut memory) = (Some(word), vec![(Freed::Source, source), (Freed::Target, target)]);
            let (freed, took) = hold.release_after(A_WHILE, || match memory.iter().position(|(what, _)| *what == which) {
                Some(index) => here.context.free(memory.swap_remove(index).1),
                None => here.context.free(words.take().expect("the word exists")),
            });
            freed.expect("all PEs free the memory");
            assert!(took >= A_WHILE / 2, "freeing the {which:?} took {took:?}, expected a wait for the transfer");
            memory.into_iter().for_each(|(_, memory)| here.context.free(memory).expect("all PEs free the memory"));
            words.into_iter().for_each(|word| here.context.free(word).expect("all PEs free the memory"));
            hold.free();
            here.end();
        });
    }
}

#[test]
fn captured_quiet_and_barrier_fail_while_nbi_puts_are_pending() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        let (one, other) = (here.new_stream(), here.new_stream());
        let source = here.context.alloc_zeroed::<u32>(64).expect("the memory is allocated");
        let target = here.context.alloc_zeroed::<u32>(64).expect("the memory is allocated");
        here.context.put_nbi(&target, &source, here.context.pe(), &one).expect("the transfer is enqueued");
        other.begin_capture(MODE).expect("the capture begins");
        // NVSHMEM would make the captured stream wait for a stream outside of the graph, and end
        // the process.
        for refused in [here.context.quiet(&other), here.context.world().barrier(&other)] {
            let refused = misuse(refused);
            assert!(matches!(refused, MisuseKind::Context { .. }), "{refused:?}");
        }
        drop(other.end_capture(FLAGS).expect("the capture is valid"));
        here.context.quiet_blocking().expect("the quiet completes");
        other.begin_capture(MODE).expect("the capture begins");
        here.context.quiet(&other).expect("no transfer is pending");
        drop(other.end_capture(FLAGS).expect("the capture ends"));
        peerweave_driver::drain_retired(Instant::now() + DEADLINE);
        here.context.free(source).expect("all PEs free the memory");
        here.context.free(target).expect("all PEs free the memory");
        here.end();
    });
}

#[test]
fn nbi_puts_stay_pending_if_nvshmem_does_not_support_flush() {
    let old = Fakes::new().cuda().nvshmem_of("3.4.5").env("PEERWEAVE_MULTICAST", "off");
    old.env("PEERWEAVE_FAKE_NVSHMEM_NBI_DELAY_MS", "5000").run_many(1, |child| {
        let here = start(&child);
        let source = here.context.alloc_zeroed::<u32>(64).expect("the memory is allocated");
        let target = here.context.alloc_zeroed::<u32>(64).expect("the memory is allocated");
        here.context.put_nbi(&target, &source, here.context.pe(), &here.new_stream()).expect("the transfer is enqueued");
        let error = here.context.flush(&here.stream).expect_err("NVSHMEM 3.4.5 lacks flush");
        assert!(matches!(error, NvshmemError::Unsupported(_)), "{error}");
        let stream = here.new_stream();
        stream.begin_capture(MODE).expect("the capture begins");
        // NVSHMEM would make the graph wait for a stream outside of the graph, and end the process.
        let refused = misuse(here.context.quiet(&stream));
        assert!(matches!(refused, MisuseKind::Context { why } if why.contains("quiet_blocking")), "{refused:?}");
        drop(stream.end_capture(FLAGS).expect("the capture ends"));
        here.context.quiet_blocking().expect("the quiet completes");
        here.context.free(source).expect("all PEs free the memory");
        here.context.free(target).expect("all PEs free the memory");
        here.end();
    });
}

#[test]
fn memory_does_not_keep_completed_streams_alive() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        let buffer = here.context.alloc_zeroed::<u32>(64).expect("the memory is allocated");
        let mut known = Vec::new();
        for _ in 0..300 {
            let stream = here.new_stream();
            let (target, source) =
                (buffer.slice(0..32).expect("the range is in bounds"), buffer.slice(32..64).expect("the range is in bounds"));
            here.context.put(&target, &source, here.context.pe(), &stream).expect("the work is enqueued");
            stream.synchronize().expect("the stream completes");
            known.push(Arc::downgrade(&stream));
        }
        let kept = known.iter().filter(|stream| stream.strong_count() > 0).count();
        assert!(kept < 100, "{kept} completed streams are still recorded, expected fewer than 100");
        here.context.free(buffer).expect("all PEs free the memory");
        here.end();
    });
}
