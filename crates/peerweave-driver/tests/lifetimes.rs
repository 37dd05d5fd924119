//! Tests of when memory is freed, over the fake driver: captures, stuck devices, cudarc's slices on
//! several streams.
#![cfg(target_os = "linux")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use peerweave_driver::cudarc::driver::result::DriverError as CudarcError;
use peerweave_driver::cudarc::driver::sys::{CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode};
use peerweave_driver::{
    CudaCode, CudaContext, CudaSlice, CudaStream, DeviceBuffer, DeviceBufferMut, DeviceMemory, DriverError, PrivateStream,
    context, retire, settle, wait, wait_past_capture,
};
use peerweave_fakes::Fakes;

use common::{LONG, SHORT, block, blocking_stream, calls, comes, device, fail, free_bytes, unblock};

/// Retires a value that was used on the stream. Returns a flag that is set when it is freed.
fn retire_flag(context: &Arc<CudaContext>, stream: &Arc<CudaStream>) -> Arc<AtomicBool> {
    let freed = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&freed);
    retire(context, [Arc::clone(stream)], Box::new(move || flag.store(true, Ordering::Release)));
    freed
}

#[test]
fn memory_dropped_during_capture_waits_for_earlier_work() {
    Fakes::new().cuda().run(|| {
        let (context, stream) = device();
        block(&stream);
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("capture");
        let freed = retire_flag(&context, &stream);
        assert!(!comes(SHORT, || freed.load(Ordering::Acquire)), "the work before the capture still runs");
        drop(stream.end_capture(CUgraphInstantiate_flags(0)).expect("the capture is whole"));
        assert!(!comes(SHORT, || freed.load(Ordering::Acquire)), "the work before the capture still runs");
        unblock(&stream);
        assert!(settle(Instant::now() + LONG));
        assert!(freed.load(Ordering::Acquire));
    });
}

#[test]
fn default_stream_memory_is_freed_after_a_blocking_capture_ends() {
    Fakes::new().cuda().run(|| {
        let (context, _) = device();
        let blocking = blocking_stream(&context);
        blocking.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("capture");
        let freed = retire_flag(&context, &context.default_stream());
        assert!(!comes(SHORT, || freed.load(Ordering::Acquire)), "the default stream cannot be asked yet");
        let error = wait(&context.default_stream(), Instant::now() + SHORT).expect_err("it cannot be asked yet");
        assert!(matches!(&error, DriverError::Cuda(error) if error.is(CudaCode::STREAM_CAPTURE_IMPLICIT)), "{error}");
        drop(blocking.end_capture(CUgraphInstantiate_flags(0)).expect("nobody spoiled it"));
        assert!(settle(Instant::now() + LONG));
        assert!(freed.load(Ordering::Acquire), "it is not leaked");
    });
}

#[test]
fn reaper_does_not_invalidate_a_global_capture() {
    Fakes::new().cuda().run(|| {
        let (context, stream) = device();
        let captured = context.new_stream().expect("a stream");
        block(&stream);
        let freed = retire_flag(&context, &stream);
        captured.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).expect("capture");
        assert!(!comes(SHORT, || freed.load(Ordering::Acquire)), "the stream is stuck");
        let waited = std::thread::scope(|scope| {
            scope.spawn(|| wait(&stream, Instant::now() + SHORT).expect("a question disturbs nobody")).join().expect("no panic")
        });
        assert!(!waited);
        captured.end_capture(CUgraphInstantiate_flags(0)).expect("nobody spoiled it");
        unblock(&stream);
        assert!(settle(Instant::now() + LONG));
        assert!(freed.load(Ordering::Acquire));
    });
}

#[test]
fn retiring_does_not_invalidate_a_capture() {
    Fakes::new().cuda().run(|| {
        let (context, stream) = device();
        let before = peerweave_fakes::entered("cuEventRecord");
        fail("cuEventRecord:1=400ms");
        let freed = std::thread::scope(|scope| {
            let retiring = scope.spawn(|| retire_flag(&context, &stream));
            peerweave_fakes::wait_until_entered("cuEventRecord", before + 1);
            stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).expect("capture");
            retiring.join().expect("no panic")
        });
        assert!(!comes(SHORT, || freed.load(Ordering::Acquire)), "what the stream had to do before cannot be asked yet");
        stream.end_capture(CUgraphInstantiate_flags(0)).expect("nobody spoiled it");
        assert!(settle(Instant::now() + LONG));
        assert!(freed.load(Ordering::Acquire));
    });
}

#[test]
fn wait_does_not_invalidate_a_capture_that_begins() {
    Fakes::new().cuda().run(|| {
        let (_, stream) = device();
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        block(&stream);
        let (told, waited) = std::thread::scope(|scope| {
            let told = scope.spawn(|| wait(&stream, Instant::now() + LONG));
            let waits = scope.spawn(|| wait_past_capture(&stream, Instant::now() + LONG));
            std::thread::sleep(SHORT);
            stream.begin_capture(mode).expect("capture");
            let told = told.join().expect("no panic");
            unblock(&stream);
            std::thread::sleep(SHORT);
            assert!(!waits.is_finished(), "it cannot be known yet");
            stream.end_capture(CUgraphInstantiate_flags(0)).expect("nobody spoiled it");
            (told, waits.join().expect("no panic"))
        });
        assert!(matches!(told, Err(DriverError::Capturing { .. })), "{told:?}");
        assert!(waited.expect("it goes on"));
        stream.begin_capture(mode).expect("capture");
        assert!(!wait_past_capture(&stream, Instant::now() + SHORT).expect("it may end yet"));
        stream.end_capture(CUgraphInstantiate_flags(0)).expect("nobody spoiled it");
    });
}

#[test]
fn allocation_and_copies_succeed_during_a_global_capture() {
    Fakes::new().cuda().run(|| {
        let (context, stream) = device();
        let captured = context.new_stream().expect("a stream");
        captured.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).expect("capture");
        let copied = std::thread::scope(|scope| {
            let copying = scope.spawn(|| DeviceMemory::from_slice(&stream, &[1u32, 2, 3])?.to_vec(&stream));
            copying.join().expect("no panic")
        });
        assert_eq!(copied.expect("it disturbs nobody"), [1, 2, 3]);
        captured.end_capture(CUgraphInstantiate_flags(0)).expect("nobody spoiled it");
    });
}

#[test]
fn graph_never_fills_memory_that_it_does_not_keep() {
    Fakes::new().cuda().run(|| {
        let (_, stream) = device();
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).expect("capture");
        let error = DeviceMemory::<u32>::zeroed(&stream, 4).expect_err("each replay would fill it");
        assert!(matches!(error, DriverError::Capturing { call: "DeviceMemory::zeroed" }), "{error}");
        let error = DeviceMemory::from_slice(&stream, &[1u32]).expect_err("each replay would copy it");
        assert!(matches!(error, DriverError::Capturing { .. }), "{error}");
        stream.end_capture(CUgraphInstantiate_flags(0)).expect("nobody spoiled it");
    });
}

#[test]
fn wait_for_a_captured_stream_fails_and_keeps_the_capture() {
    Fakes::new().cuda().run(|| {
        let (_, stream) = device();
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("capture");
        let error = wait(&stream, Instant::now() + LONG).expect_err("there is nothing to wait for");
        assert!(matches!(error, DriverError::Capturing { call: "wait" }), "{error}");
        stream.end_capture(CUgraphInstantiate_flags(0)).expect("nobody spoiled it");
    });
}

#[test]
fn event_that_cannot_be_queried_frees_nothing() {
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_FAIL", "cuEventQuery:1=1").run(|| {
        let (context, stream) = device();
        let freed = retire_flag(&context, &stream);
        assert!(settle(Instant::now() + LONG), "it is not waited for either");
        assert!(!freed.load(Ordering::Acquire), "it was leaked");
        let freed = retire_flag(&context, &stream);
        assert!(settle(Instant::now() + LONG));
        assert!(freed.load(Ordering::Acquire), "the next one is freed");
    });
}

#[test]
fn stuck_stream_delays_only_its_own_memory() {
    Fakes::new().cuda().run(|| {
        let (context, stuck) = device();
        let stream = context.new_stream().expect("a stream");
        let memory = DeviceMemory::<u8>::zeroed(&stream, 1 << 20).expect("room");
        assert!(wait(&stream, Instant::now() + LONG).expect("it ends"));
        block(&stuck);
        let before = free_bytes(&context);
        drop(memory);
        assert!(settle(Instant::now() + LONG), "the driver's own freeing would wait for the whole device");
        assert_eq!(free_bytes(&context), before + (1 << 20));
        unblock(&stuck);
    });
}

#[test]
fn error_recorded_by_other_code_stays_in_the_context() {
    Fakes::new().cuda().run(|| {
        let (context, stream) = device();
        let before = free_bytes(&context);
        let memory = DeviceMemory::<u8>::zeroed(&stream, 1 << 20).expect("room");
        context.record_err::<()>(Err(CudarcError(CUresult::CUDA_ERROR_INVALID_VALUE)));
        assert!(wait(&stream, Instant::now() + LONG).expect("nothing is wrong with the stream"));
        drop(memory);
        assert!(settle(Instant::now() + LONG));
        assert_eq!(context.check_err(), Err(CudarcError(CUresult::CUDA_ERROR_INVALID_VALUE)), "whose it is can still see it");
        assert_eq!(free_bytes(&context), before, "it was not leaked for it");
    });
}

#[test]
fn default_stream_belongs_to_its_context_on_any_thread() {
    Fakes::new().cuda().run(|| {
        let (zero, one) = (context(0).expect("a device"), context(1).expect("another device"));
        let stream = zero.default_stream();
        // On a thread that has no context yet, and on one that has another device's.
        for other in [None, Some(one)] {
            let stream = Arc::clone(&stream);
            let waited = std::thread::spawn(move || {
                other.iter().for_each(|context| context.bind_to_thread().expect("a live context"));
                let waited = wait(&stream, Instant::now() + LONG)?;
                DeviceMemory::<u32>::zeroed(&stream, 4)?.to_vec(&stream)?;
                Ok::<bool, DriverError>(waited)
            });
            assert!(waited.join().expect("no panic").expect("the stream knows its context"));
        }
    });
}

#[test]
fn longest_possible_wait_does_not_overflow() {
    Fakes::new().cuda().run(|| {
        let (_, stream) = device();
        let memory = DeviceMemory::<u32>::zeroed(&stream, 4).expect("room");
        assert_eq!(memory.to_vec_within(&stream, Duration::MAX).expect("it ends"), [0; 4]);
    });
}

/// Drops a slice while work on it is enqueued on a stuck stream. The slice's own stream, in whose
/// order it is freed, must then wait for that work.
fn freed_after(own: &Arc<CudaStream>, stuck: &Arc<CudaStream>, slice: CudaSlice<u8>) {
    assert!(!wait(stuck, Instant::now()).expect("it is only stuck"));
    drop(slice);
    assert!(!wait(own, Instant::now() + SHORT).expect("a live stream"), "it is freed under the other stream's work");
    unblock(stuck);
    assert!(wait(own, Instant::now() + LONG).expect("it goes on"));
}

#[test]
fn slice_read_by_two_streams_outlives_the_work_of_both() {
    Fakes::new().cuda().run(|| {
        let (context, own) = device();
        let (first, second) = (context.new_stream().expect("a stream"), context.new_stream().expect("a stream"));
        let slice = own.alloc_zeros::<u8>(64).expect("room");
        block(&first);
        drop(slice.read(&first).expect("a live stream"));
        drop(slice.read(&second).expect("a live stream"));
        freed_after(&own, &first, slice);
    });
}

#[test]
fn slice_outlives_streams_of_another_context_object() {
    Fakes::new().cuda().run(|| {
        // Two cudarc objects for one context of the driver. Neither knows how many streams the
        // other has created.
        let own = context(0).expect("a device").default_stream();
        let (_elsewhere, stream) = device();
        let mut slice = own.alloc_zeros::<u8>(64).expect("room");
        block(&stream);
        drop(slice.write(&stream).expect("a live stream"));
        freed_after(&own, &stream, slice);

        let slice = own.alloc_zeros::<u8>(64).expect("room");
        block(&own);
        drop(slice.read(&stream).expect("a live stream"));
        assert!(!wait(&stream, Instant::now() + SHORT).expect("a live stream"), "it reads what was not written yet");
        unblock(&own);
        assert!(wait(&stream, Instant::now() + LONG).expect("it goes on"));
    });
}

#[test]
fn default_stream_slice_is_freed_after_work_of_other_streams() {
    Fakes::new().cuda().run(|| {
        let context = context(0).expect("a device");
        let own = context.default_stream();
        let mut slice = own.alloc_zeros::<u8>(64).expect("room");
        let stream = context.new_stream().expect("a stream");
        block(&stream);
        drop(slice.write(&stream).expect("a live stream"));
        // When none of its own streams is left, cudarc's context frees memory without checking
        // events. So the default stream must already wait.
        assert!(!wait(&own, Instant::now() + SHORT).expect("a live stream"));
        freed_after(&own, &stream, slice);
    });
}

#[test]
fn slice_written_by_another_stream_does_not_delay_own_stream() {
    Fakes::new().cuda().run(|| {
        let (context, own) = device();
        let other = context.new_stream().expect("a stream");
        let mut slice = own.alloc_zeros::<u8>(64).expect("room");
        block(&other);
        drop(slice.write(&other).expect("a live stream"));
        assert!(wait(&own, Instant::now() + LONG).expect("a live stream"), "computing goes on beside communicating");
        freed_after(&own, &other, slice);
    });
}

#[test]
fn pending_error_of_others_does_not_stop_stream_joins() {
    Fakes::new().cuda().run(|| {
        let (context, own) = device();
        let other = context.new_stream().expect("a stream");
        let left = || context.record_err::<()>(Err(CudarcError(CUresult::CUDA_ERROR_NOT_FOUND)));
        // Read while its own stream has not filled it yet.
        block(&own);
        let slice = own.alloc_zeros::<u8>(64).expect("room");
        left();
        drop(slice.read(&other).expect("a live stream"));
        assert!(!wait(&other, Instant::now() + SHORT).expect("a live stream"), "it reads what was not written yet");
        assert_eq!(context.check_err(), Err(CudarcError(CUresult::CUDA_ERROR_NOT_FOUND)), "whose it is can still see it");
        unblock(&own);
        assert!(wait(&other, Instant::now() + LONG).expect("it goes on"));
        // Freed while another stream still reads it.
        block(&other);
        left();
        drop(slice.read(&other).expect("a live stream"));
        let _ = context.check_err();
        freed_after(&own, &other, slice);
        // This thread does not wait for a stream whose events cudarc has recorded.
        let mut slice = own.alloc_zeros::<u8>(64).expect("room");
        block(&other);
        left();
        let started = Instant::now();
        drop(slice.write(&other).expect("a live stream"));
        assert!(started.elapsed() < LONG, "it waited for a stream that is stuck");
        assert_eq!(context.check_err(), Err(CudarcError(CUresult::CUDA_ERROR_NOT_FOUND)));
        freed_after(&own, &other, slice);
    });
}

#[test]
fn per_thread_streams_are_refused() {
    Fakes::new().cuda().run(|| {
        let context = context(0).expect("a device");
        let stream = context.per_thread_stream();
        let refused = |error: DriverError| assert!(matches!(error, DriverError::PerThreadStream { .. }), "{error}");
        refused(DeviceMemory::<u32>::zeroed(&stream, 4).expect_err("another thread could not wait"));
        refused(DeviceMemory::from_slice(&stream, &[1u32]).expect_err("another thread could not wait"));
        let before = free_bytes(&context);
        let memory = DeviceMemory::<u8>::alloc(&context, 1 << 20).expect("room");
        // A call that accepts the buffer cannot be refused, so the memory is leaked.
        block(&stream);
        drop(memory.read(&stream).expect("a live stream"));
        std::thread::scope(|scope| scope.spawn(move || drop(memory)).join().expect("no panic"));
        assert!(settle(Instant::now() + LONG));
        assert!(free_bytes(&context) < before, "the stream of the first thread still uses it");
        unblock(&stream);
    });
}

#[test]
fn private_stream_is_destroyed_with_its_last_handle() {
    Fakes::new().cuda().run(|| {
        let context = context(0).expect("a device");
        let default = context.default_stream();
        block(&default);
        let started = Instant::now();
        let own = PrivateStream::new(&context).expect("a stream");
        assert!(wait(&own, Instant::now() + LONG).expect("nothing is on it"), "it is not behind the default stream");
        assert!(started.elapsed() < LONG / 2, "the default stream is stuck");
        assert!(!context.is_in_multi_stream_mode(), "cudarc's own first stream still waits for what it did not record");
        let destroyed = || calls("cuStreamDestroy_v2");
        let handle = Arc::clone(&own);
        drop(own);
        assert_eq!(destroyed(), 0, "somebody has a handle");
        assert!(wait(&handle, Instant::now() + LONG).expect("a live stream"));
        drop(handle);
        drop(PrivateStream::new(&context).expect("a stream"));
        assert_eq!(destroyed(), 2, "both");
        unblock(&default);
    });
}

#[test]
fn driver_that_has_shut_down_is_not_called() {
    Fakes::new().cuda().run(|| {
        let (context, stream) = device();
        let freed = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&freed);
        block(&stream);
        let memory = DeviceMemory::<u8>::zeroed(&stream, 1 << 20).expect("room");
        drop(memory);
        retire(&context, [Arc::clone(&stream)], Box::new(move || flag.store(true, Ordering::Release)));
        // The state that the driver's own exit handler leaves.
        fail("cuCtxGetCurrent:*=4,cuEventQuery:*=4,cuStreamIsCapturing:*=4");
        assert!(settle(Instant::now() + LONG), "nothing is waited for any more");
        fail("");
        unblock(&stream);
        assert!(!freed.load(Ordering::Acquire), "it was left to the driver");
    });
}

#[test]
fn panicking_destructors_do_not_stop_the_reaper() {
    /// A panic payload that panics when it is dropped.
    struct Thrown;
    impl Drop for Thrown {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                panic!("a payload that panics");
            }
        }
    }
    struct Told(Arc<AtomicBool>);
    impl Drop for Told {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    Fakes::new().cuda().run(|| {
        let (context, stream) = device();
        block(&stream);
        let gone = Arc::new(AtomicBool::new(false));
        let owned = Told(Arc::clone(&gone));
        retire(&context, [Arc::clone(&stream)], Box::new(move || drop(owned)));
        retire(&context, [], Box::new(|| std::panic::panic_any(Thrown)));
        assert!(!comes(SHORT, || gone.load(Ordering::Acquire)), "it is dropped under the work of a stream");
        unblock(&stream);
        assert!(settle(Instant::now() + LONG));
        assert!(gone.load(Ordering::Acquire), "what was retired before is freed all the same");
    });
}

#[test]
fn freeing_uses_one_stream_per_context_and_releases_both() {
    Fakes::new().cuda().run(|| {
        let kept = context(0).expect("a device");
        for _ in 0..50 {
            // Another cudarc object for the same context of the driver.
            let context = context(0).expect("a device");
            drop(DeviceMemory::<u8>::alloc(&context, 64).expect("room"));
            assert!(settle(Instant::now() + LONG));
        }
        let (made, destroyed) = (calls("cuStreamCreate"), calls("cuStreamDestroy_v2"));
        assert!(made - destroyed <= 1, "{made} made, {destroyed} destroyed");
        drop(kept);
        let held = || calls("cuDevicePrimaryCtxRetain") - calls("cuDevicePrimaryCtxRelease_v2");
        assert!(comes(LONG, || held() == 0), "the context is kept by who has nothing to free");
        assert_eq!(calls("cuStreamDestroy_v2"), calls("cuStreamCreate"));
    });
}

#[test]
fn slice_of_a_private_stream_outlives_the_stream_that_writes_it() {
    Fakes::new().cuda().run(|| {
        let context = context(0).expect("a device");
        let (own, other) = (PrivateStream::new(&context).expect("a stream"), PrivateStream::new(&context).expect("a stream"));
        // cudarc checks events as long as a stream exists that it counts.
        let counted = context.new_stream().expect("a stream");
        let mut slice = own.alloc_zeros::<u8>(64).expect("room");
        block(&other);
        drop(slice.write(&other).expect("a live stream"));
        drop(counted);
        freed_after(&own, &other, slice);
    });
}

#[test]
fn default_stream_is_queried_in_its_own_context() {
    Fakes::new().cuda().run(|| {
        let (here, elsewhere) = (context(0).expect("a device"), context(1).expect("a device"));
        let blocking = blocking_stream(&here);
        blocking.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("capture");
        elsewhere.bind_to_thread().expect("a live context");
        let error = wait(&here.default_stream(), Instant::now() + SHORT).expect_err("it cannot be asked now");
        assert!(matches!(&error, DriverError::Cuda(error) if error.is(CudaCode::STREAM_CAPTURE_IMPLICIT)), "{error}");
        blocking.end_capture(CUgraphInstantiate_flags(0)).expect("nobody spoiled it");
    });
}

#[test]
fn memory_of_a_broken_context_is_leaked() {
    Fakes::new().cuda().run(|| {
        let (context, stream) = device();
        block(&stream);
        let freed = retire_flag(&context, &stream);
        fail("cuCtxSetCurrent:*=201");
        unblock(&stream);
        assert!(settle(Instant::now() + LONG), "nothing is waited for any more");
        fail("");
        assert!(!freed.load(Ordering::Acquire), "it may have called the driver for another context");
    });
}
