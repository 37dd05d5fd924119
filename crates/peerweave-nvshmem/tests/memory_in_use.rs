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
fn weak_handle_cannot_be_upgraded_during_free() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        let hold = Hold::new(&here);
        let (memory, other) = (here.context.alloc_zeroed::<u64>(16), here.context.alloc_zeroed::<u64>(16));
        let (memory, other) = (memory.expect("memory"), other.expect("memory"));
        hold.hold(&here.stream);
        here.context.put(&memory, &other, here.context.pe(), &here.stream).expect("enqueued");
        let address = memory.address();
        let weak = {
            let (_, keep) = memory.keep().expect("it is owned");
            Arc::downgrade(&keep)
        };
        let freed = AtomicBool::new(false);
        let kept = std::thread::scope(|scope| {
            let freeing = scope.spawn(|| {
                here.context.free(memory).expect("nobody has a handle");
                freed.store(true, Ordering::SeqCst);
            });
            std::thread::sleep(A_WHILE);
            // `free` has counted the handles, and waits for the stream.
            let kept: Option<Keep> = weak.upgrade();
            assert!(!freed.load(Ordering::SeqCst), "the stream has not passed yet");
            hold.release();
            freeing.join().expect("no panic");
            kept
        });
        let again = here.context.alloc_zeroed::<u64>(16).expect("memory");
        assert!(kept.is_none() || again.address() != address, "what was kept was given to somebody else");
        for memory in [other, again] {
            here.context.free(memory).expect("freed");
        }
        hold.free();
        here.end();
    });
}

#[test]
fn kept_memory_is_not_freed() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        let memory = here.context.alloc_zeroed::<u64>(16).expect("memory");
        let (_, keep) = memory.keep().expect("it is owned");
        let weak = Arc::downgrade(&keep);
        let kind = misuse(here.context.free(memory));
        assert!(matches!(kind, MisuseKind::InUse { .. }), "{kind:?}");
        drop(keep);
        assert!(weak.upgrade().is_none());
        assert_eq!(here.context.finalize().expect("nobody has a handle").leaked.len(), 1);
    });
}

#[test]
fn borrowed_memory_is_not_registered() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        let memory = DeviceMemory::<u32>::alloc(&device(0), 64).expect("room");
        // SAFETY: no work is enqueued with it, and the memory outlives it.
        let raw = unsafe { Raw::<u32>::new(memory.address(), memory.len(), 0, None) };
        let kind = misuse(here.context.register_local(&raw));
        assert!(matches!(kind, MisuseKind::Context { why } if why.contains("borrowed memory")), "{kind:?}");
        here.end();
    });
}

#[test]
fn failed_copy_does_not_read_the_callers_slice_later() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        let count = 1 << 22;
        let memory = here.context.alloc_zeroed::<u64>(count).expect("memory");
        // Pinned memory is read when the stream reaches the copy. SAFETY: the memory is filled
        // before it is read.
        let mut pinned = unsafe { here.context.device().alloc_pinned::<u64>(count) }.expect("memory of the host");
        let values = pinned.as_mut_slice().expect("nothing uses it");
        values.fill(7);
        // The first two queries are about the caller's stream and the context's own stream. The
        // third one is about the copy.
        fail_driver("cuStreamSynchronize:*=999,cuStreamQuery:3=999");
        let error = memory.copy_from(&here.stream, values).expect_err("it cannot be asked whether the copy is done");
        values.fill(0);
        fail_driver("");
        assert!(error.to_string().contains("CUDA_ERROR_UNKNOWN"), "{error}");
        let copied = memory.to_vec(&here.stream).expect("a copy");
        assert!(copied.iter().all(|value| *value == 7), "the copy read what the caller wrote afterwards");
        here.context.free(memory).expect("freed");
        here.end();
    });
}

#[test]
fn dropped_registration_does_not_change_current_context() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        let memory = DeviceMemory::<u32>::alloc(&device(0), 64).expect("room");
        let registration = here.context.register_local(&memory).expect("it is registered");
        let one = device(1);
        one.bind_to_thread().expect("a live context");
        drop(registration);
        let mut current: CUcontext = std::ptr::null_mut();
        // SAFETY: the pointer is to a live handle.
        let code = unsafe { Driver::get().expect("the fake").api().cuCtxGetCurrent(&raw mut current) };
        assert!(code.is_ok_and(|code| code == peerweave_driver::CudaCode::SUCCESS));
        assert_eq!(current, one.cu_ctx(), "a destructor changed the thread's current context");
        drop(memory);
        here.end();
    });
}

#[test]
fn capture_begun_during_a_put_is_invalidated() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        let (target, source) = (here.context.alloc_zeroed::<u64>(16), here.context.alloc_zeroed::<u64>(16));
        let (target, source) = (target.expect("memory"), source.expect("memory"));
        // The first put looks up which PEs are mapped.
        here.context.put(&target, &source, here.context.pe(), &here.stream).expect("enqueued");
        // The capture begins between the capture query and the call.
        let before = peerweave_fakes::entered("cuCtxGetCurrent");
        fail_driver("cuCtxGetCurrent:1=400ms");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                peerweave_fakes::wait_until_entered("cuCtxGetCurrent", before + 1);
                let relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
                here.stream.begin_capture(relaxed).expect("it is not being captured yet");
            });
            let error = here.context.put(&target, &source, here.context.pe(), &here.stream).expect_err("a graph would replay it");
            assert!(matches!(error, NvshmemError::Cuda(DriverError::CaptureBegun { .. })), "{error}");
        });
        fail_driver("");
        assert!(here.stream.end_capture(CUgraphInstantiate_flags(0)).is_err(), "the put is in a graph that keeps nothing");
        here.context.free(source).expect("freed");
        here.context.free(target).expect("freed");
        here.end();
    });
}

#[test]
fn dropping_a_registration_does_not_wait_for_other_pes() {
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_SLOW", "nvshmem_malloc=3000").run_many(1, |child| {
        let here = start(&child);
        let memory = peerweave_driver::DeviceMemory::<u32>::alloc(here.context.device(), 64).expect("memory");
        let registration = here.context.register_local(&memory).expect("it is registered");
        std::thread::scope(|scope| {
            let context = here.context.clone();
            let allocating = scope.spawn(move || {
                let buffer = context.alloc_zeroed::<u8>(8).expect("memory");
                context.free(buffer).expect("it is freed");
            });
            std::thread::sleep(A_WHILE);
            drop(registration);
            let waited = allocating.is_finished();
            allocating.join().expect("it ends");
            assert!(!waited, "the destructor waited until the other thread was out of NVSHMEM");
        });
        here.context.quiet_blocking().expect("quiet");
        assert_eq!(count("registrations"), 0, "whoever came in next has told it");
        here.end();
    });
}

#[test]
fn memory_is_free_as_soon_as_its_graph_is_gone() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        for round in 0..100 {
            let buffer = here.context.alloc::<u32>(64).expect("memory");
            let (target, source) = (buffer.slice(0..32).expect("inside"), buffer.slice(32..64).expect("inside"));
            here.stream.begin_capture(MODE).expect("it can be captured");
            here.context.put(&target, &source, here.context.pe(), &here.stream).expect("it is captured");
            let graph = here.stream.end_capture(FLAGS).expect("a graph").expect("it has nodes");
            drop((target, source));
            drop(graph);
            here.context.free(buffer).unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
        here.end();
    });
}

/// Memory that is released while a transfer, for which another stream waits, may still use it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Freed {
    Source,
    Target,
    Word,
}

#[test]
fn memory_of_nbi_transfers_waits_for_the_stream_of_the_quiet() {
    for (by_barrier, which) in [(false, Freed::Source), (true, Freed::Source), (false, Freed::Target), (true, Freed::Word)] {
        fakes().run_many(1, move |child| {
            let here = start(&child);
            let hold = Hold::new(&here);
            let (one, other) = (here.new_stream(), here.new_stream());
            let source = here.context.alloc_zeroed::<u32>(64).expect("memory");
            let target = here.context.alloc_zeroed::<u32>(64).expect("memory");
            let word = here.context.alloc_zeroed::<u64>(1).expect("memory");
            let complete = |stream| match by_barrier {
                true => here.context.node().expect("the team").barrier(stream).expect("it is enqueued"),
                false => here.context.quiet(stream).expect("it is enqueued"),
            };
            // Memory of a completed transfer is listed again by the next transfer.
            for stream in [&here.stream, &other] {
                let signal = Signal { word: &word, value: 1, op: SignalOp::Add };
                here.context.put_signal_nbi(&target, &source, &signal, here.context.pe(), &one).expect("it is left to NVSHMEM");
                here.context.put_nbi(&target, &source, here.context.pe(), &one).expect("it is left to NVSHMEM");
                if Arc::ptr_eq(stream, &other) {
                    hold.hold(&other);
                }
                // From here on NVSHMEM treats the transfer as complete, and only this stream waits
                // for it.
                complete(stream);
            }
            let (mut words, mut memory) = (Some(word), vec![(Freed::Source, source), (Freed::Target, target)]);
            let (freed, took) = hold.release_after(A_WHILE, || match memory.iter().position(|(what, _)| *what == which) {
                Some(index) => here.context.free(memory.swap_remove(index).1),
                None => here.context.free(words.take().expect("it is there")),
            });
            freed.expect("it is freed");
            assert!(took >= A_WHILE / 2, "it took {took:?}: the transfer may still use the {which:?}");
            memory.into_iter().for_each(|(_, memory)| here.context.free(memory).expect("it is freed"));
            words.into_iter().for_each(|word| here.context.free(word).expect("it is freed"));
            hold.free();
            here.end();
        });
    }
}

#[test]
fn quiet_and_barrier_refuse_capture_with_pending_nbi() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        let (one, other) = (here.new_stream(), here.new_stream());
        let source = here.context.alloc_zeroed::<u32>(64).expect("memory");
        let target = here.context.alloc_zeroed::<u32>(64).expect("memory");
        here.context.put_nbi(&target, &source, here.context.pe(), &one).expect("it is left to NVSHMEM");
        other.begin_capture(MODE).expect("it can be captured");
        // NVSHMEM would have the captured stream wait for one outside of the graph, and end the
        // process.
        for refused in [here.context.quiet(&other), here.context.world().barrier(&other)] {
            let refused = misuse(refused);
            assert!(matches!(refused, MisuseKind::Context { .. }), "{refused:?}");
        }
        drop(other.end_capture(FLAGS).expect("the capture was not spoiled"));
        here.context.quiet_blocking().expect("it is complete");
        other.begin_capture(MODE).expect("it can be captured");
        here.context.quiet(&other).expect("now there is nothing outside");
        drop(other.end_capture(FLAGS).expect("a graph"));
        peerweave_driver::settle(Instant::now() + DEADLINE);
        here.context.free(source).expect("it is freed");
        here.context.free(target).expect("it is freed");
        here.end();
    });
}

#[test]
fn unsupported_flush_leaves_nbi_transfers_pending() {
    let old = Fakes::new().cuda().nvshmem_of("3.4.5").env("PEERWEAVE_MULTICAST", "off");
    old.env("PEERWEAVE_FAKE_NVSHMEM_NBI_DELAY_MS", "5000").run_many(1, |child| {
        let here = start(&child);
        let source = here.context.alloc_zeroed::<u32>(64).expect("memory");
        let target = here.context.alloc_zeroed::<u32>(64).expect("memory");
        here.context.put_nbi(&target, &source, here.context.pe(), &here.new_stream()).expect("it is left");
        let error = here.context.flush(&here.stream).expect_err("3.4.5 has none");
        assert!(matches!(error, NvshmemError::Unsupported(_)), "{error}");
        let stream = here.new_stream();
        stream.begin_capture(MODE).expect("a capture");
        // NVSHMEM would end the process: the graph would wait for a stream outside of it.
        let refused = misuse(here.context.quiet(&stream));
        assert!(matches!(refused, MisuseKind::Context { why } if why.contains("quiet_blocking")), "{refused:?}");
        drop(stream.end_capture(FLAGS).expect("it ends"));
        here.context.quiet_blocking().expect("quiet");
        here.context.free(source).expect("freed");
        here.context.free(target).expect("freed");
        here.end();
    });
}

#[test]
fn completed_streams_are_not_kept_by_their_memory() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        let buffer = here.context.alloc_zeroed::<u32>(64).expect("memory");
        let mut known = Vec::new();
        for _ in 0..300 {
            let stream = here.new_stream();
            let (target, source) = (buffer.slice(0..32).expect("inside"), buffer.slice(32..64).expect("inside"));
            here.context.put(&target, &source, here.context.pe(), &stream).expect("it is enqueued");
            stream.synchronize().expect("it passes");
            known.push(Arc::downgrade(&stream));
        }
        let kept = known.iter().filter(|stream| stream.strong_count() > 0).count();
        assert!(kept < 100, "{kept} streams that are done are kept");
        here.context.free(buffer).expect("it is freed");
        here.end();
    });
}
