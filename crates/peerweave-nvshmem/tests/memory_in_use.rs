//! Memory that somebody may still use is neither freed nor given back.
#![cfg(target_os = "linux")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{Hold, device, fail_driver, fakes, misuse, start};
use peerweave_driver::cudarc::driver::sys::{CUcontext, CUgraphInstantiate_flags, CUstreamCaptureMode};
use peerweave_driver::{DeviceBuffer, DeviceMemory, Driver, DriverError, Keep, Raw};
use peerweave_nvshmem::{MisuseKind, NvshmemError};

const A_WHILE: Duration = Duration::from_millis(300);

#[test]
fn weak_handle_makes_none_once_free_has_counted() {
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
            // It has counted the handles, and waits for the stream.
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
        // SAFETY: nothing is enqueued with it, and the memory lives as long.
        let raw = unsafe { Raw::<u32>::new(memory.address(), memory.len(), 0, None) };
        let kind = misuse(here.context.register_local(&raw));
        assert!(matches!(kind, MisuseKind::Context { why } if why.contains("only borrowed")), "{kind:?}");
        here.end();
    });
}

#[test]
fn copy_that_fails_reads_the_callers_slice_no_more() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        let count = 1 << 22;
        let memory = here.context.alloc_zeroed::<u64>(count).expect("memory");
        // Pinned memory is read when the stream comes to the copy.
        // SAFETY: it is filled before it is read.
        let mut pinned = unsafe { here.context.device().alloc_pinned::<u64>(count) }.expect("memory of the host");
        let values = pinned.as_mut_slice().expect("nothing uses it");
        values.fill(7);
        // The questions before are about the caller's stream and the context's own; then comes the copy.
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
fn dropped_registration_leaves_the_current_context() {
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
fn capture_begun_during_a_put_gives_no_graph() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        let (target, source) = (here.context.alloc_zeroed::<u64>(16), here.context.alloc_zeroed::<u64>(16));
        let (target, source) = (target.expect("memory"), source.expect("memory"));
        // The PEs that are reached are looked up once.
        here.context.put(&target, &source, here.context.pe(), &here.stream).expect("enqueued");
        // Between the question whether the stream is captured and the call.
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
