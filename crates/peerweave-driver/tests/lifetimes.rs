//! Tests of the time at which memory is freed, over the fake driver: captures, stuck devices,
//! cudarc's slices on several streams.
#![cfg(target_os = "linux")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use peerweave_driver::cudarc::driver::result::DriverError as CudarcError;
use peerweave_driver::cudarc::driver::sys::{CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode};
use peerweave_driver::{
    CudaCode, CudaContext, CudaSlice, CudaStream, DeviceBuffer, DeviceBufferMut, DeviceMemory, DriverError, PrivateStream,
    context, drain_retired, retire, wait, wait_past_capture,
};
use peerweave_fakes::Fakes;

use common::{LONG, SHORT, block, blocking_stream, calls, comes, device, fail, free_bytes, unblock};

/// Retires a value that was used on the stream. Returns a flag that is set when the value is freed.
fn retire_flag(context: &Arc<CudaContext>, stream: &Arc<CudaStream>) -> Arc<AtomicBool> {
    let freed = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&freed);
    retire(context, [Arc::clone(stream)], Box::new(move || flag.store(true, Ordering::Release)));
    freed
}

#[test]
fn deferred_free_waits_for_work_that_precedes_a_capture() {
    Fakes::new().cuda().run(|| {
        let (context, stream) = device();
        block(&stream);
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("the capture begins");
        let freed = retire_flag(&context, &stream);
        assert!(!comes(SHORT, || freed.load(Ordering::Acquire)), "the value is freed before the work that precedes the capture");
        drop(stream.end_capture(CUgraphInstantiate_flags(0)).expect("the capture is valid"));
        assert!(!comes(SHORT, || freed.load(Ordering::Acquire)), "the value is freed before the work that precedes the capture");
        unblock(&stream);
        assert!(drain_retired(Instant::now() + LONG));
        assert!(freed.load(Ordering::Acquire));
    });
}

#[test]
fn default_stream_memory_is_freed_only_after_the_capture() {
    Fakes::new().cuda().run(|| {
        let (context, _) = device();
        let blocking = blocking_stream(&context);
        blocking.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("the capture begins");
        let freed = retire_flag(&context, &context.default_stream());
        assert!(!comes(SHORT, || freed.load(Ordering::Acquire)), "the value is freed before the capture ended");
        let error = wait(&context.default_stream(), Instant::now() + SHORT).expect_err("the default stream cannot be queried");
        assert!(matches!(&error, DriverError::Cuda(error) if error.is(CudaCode::STREAM_CAPTURE_IMPLICIT)), "{error}");
        drop(blocking.end_capture(CUgraphInstantiate_flags(0)).expect("the capture is valid"));
        assert!(drain_retired(Instant::now() + LONG));
        assert!(freed.load(Ordering::Acquire), "the value is leaked");
    });
}

#[test]
fn reaper_does_not_invalidate_a_global_capture() {
    Fakes::new().cuda().run(|| {
        let (context, stream) = device();
        let captured = context.new_stream().expect("the stream is created");
        block(&stream);
        let freed = retire_flag(&context, &stream);
        captured.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).expect("the capture begins");
        assert!(!comes(SHORT, || freed.load(Ordering::Acquire)), "the value is freed while the stream is stuck");
        let waited = std::thread::scope(|scope| {
            scope
                .spawn(|| wait(&stream, Instant::now() + SHORT).expect("a query does not invalidate the capture"))
                .join()
                .expect("the thread does not panic")
        });
        assert!(!waited);
        captured.end_capture(CUgraphInstantiate_flags(0)).expect("the capture is valid");
        unblock(&stream);
        assert!(drain_retired(Instant::now() + LONG));
        assert!(freed.load(Ordering::Acquire));
    });
}

#[test]
fn deferred_free_does_not_invalidate_a_capture() {
    Fakes::new().cuda().run(|| {
        let (context, stream) = device();
        let before = peerweave_fakes::entered("cuEventRecord");
        fail("cuEventRecord:1=3000ms");
        let freed = std::thread::scope(|scope| {
            let retiring = scope.spawn(|| retire_flag(&context, &stream));
            peerweave_fakes::wait_until_entered("cuEventRecord", before + 1);
            stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).expect("the capture begins");
            retiring.join().expect("the thread does not panic")
        });
        assert!(!comes(SHORT, || freed.load(Ordering::Acquire)), "the value is freed during the capture");
        stream.end_capture(CUgraphInstantiate_flags(0)).expect("the capture is valid");
        assert!(drain_retired(Instant::now() + LONG));
        assert!(freed.load(Ordering::Acquire));
    });
}

#[test]
fn wait_does_not_invalidate_a_capture_begun_during_the_wait() {
    Fakes::new().cuda().run(|| {
        let (_, stream) = device();
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        block(&stream);
        let (told, waited) = std::thread::scope(|scope| {
            let told = scope.spawn(|| wait(&stream, Instant::now() + LONG));
            let waits = scope.spawn(|| wait_past_capture(&stream, Instant::now() + LONG));
            std::thread::sleep(SHORT);
            stream.begin_capture(mode).expect("the capture begins");
            let told = told.join().expect("the thread does not panic");
            unblock(&stream);
            std::thread::sleep(SHORT);
            assert!(!waits.is_finished(), "the wait ended during the capture");
            stream.end_capture(CUgraphInstantiate_flags(0)).expect("the capture is valid");
            (told, waits.join().expect("the thread does not panic"))
        });
        assert!(matches!(told, Err(DriverError::Capturing { .. })), "{told:?}");
        assert!(waited.expect("the stream completes"));
        stream.begin_capture(mode).expect("the capture begins");
        assert!(!wait_past_capture(&stream, Instant::now() + SHORT).expect("the work has not failed"));
        stream.end_capture(CUgraphInstantiate_flags(0)).expect("the capture is valid");
    });
}

#[test]
fn allocation_and_copies_succeed_during_a_global_capture() {
    Fakes::new().cuda().run(|| {
        let (context, stream) = device();
        let captured = context.new_stream().expect("the stream is created");
        captured.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).expect("the capture begins");
        let copied = std::thread::scope(|scope| {
            let copying = scope.spawn(|| DeviceMemory::from_slice(&stream, &[1u32, 2, 3])?.to_vec(&stream));
            copying.join().expect("the thread does not panic")
        });
        assert_eq!(copied.expect("the copies succeed"), [1, 2, 3]);
        captured.end_capture(CUgraphInstantiate_flags(0)).expect("the capture is valid");
    });
}

#[test]
fn initialised_memory_cannot_be_created_on_a_captured_stream() {
    Fakes::new().cuda().run(|| {
        let (_, stream) = device();
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).expect("the capture begins");
        let error = DeviceMemory::<u32>::zeroed(&stream, 4).expect_err("a stream that is being captured is refused");
        assert!(matches!(error, DriverError::Capturing { call: "DeviceMemory::zeroed" }), "{error}");
        let error = DeviceMemory::from_slice(&stream, &[1u32]).expect_err("a stream that is being captured is refused");
        assert!(matches!(error, DriverError::Capturing { .. }), "{error}");
        stream.end_capture(CUgraphInstantiate_flags(0)).expect("the capture is valid");
    });
}

#[test]
fn failed_wait_for_a_captured_stream_keeps_the_capture_valid() {
    Fakes::new().cuda().run(|| {
        let (_, stream) = device();
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("the capture begins");
        let error = wait(&stream, Instant::now() + LONG).expect_err("the stream is being captured");
        assert!(matches!(error, DriverError::Capturing { call: "wait" }), "{error}");
        stream.end_capture(CUgraphInstantiate_flags(0)).expect("the capture is valid");
    });
}

#[test]
fn deferred_drop_leaks_the_value_if_an_event_query_fails() {
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_FAIL", "cuEventQuery:1=1").run(|| {
        let (context, stream) = device();
        let freed = retire_flag(&context, &stream);
        assert!(drain_retired(Instant::now() + LONG), "the leaked value is still pending");
        assert!(!freed.load(Ordering::Acquire), "the value was freed");
        let freed = retire_flag(&context, &stream);
        assert!(drain_retired(Instant::now() + LONG));
        assert!(freed.load(Ordering::Acquire), "the next value is not freed");
    });
}

#[test]
fn stuck_stream_does_not_delay_freeing_memory_of_other_streams() {
    Fakes::new().cuda().run(|| {
        let (context, stuck) = device();
        let stream = context.new_stream().expect("the stream is created");
        let memory = DeviceMemory::<u8>::zeroed(&stream, 1 << 20).expect("the device has enough memory");
        assert!(wait(&stream, Instant::now() + LONG).expect("the wait succeeds"));
        block(&stuck);
        let before = free_bytes(&context);
        drop(memory);
        assert!(drain_retired(Instant::now() + LONG), "freeing waited for the whole device");
        assert_eq!(free_bytes(&context), before + (1 << 20));
        unblock(&stuck);
    });
}

#[test]
fn memory_is_freed_and_a_recorded_cudarc_error_is_kept() {
    Fakes::new().cuda().run(|| {
        let (context, stream) = device();
        let before = free_bytes(&context);
        let memory = DeviceMemory::<u8>::zeroed(&stream, 1 << 20).expect("the device has enough memory");
        context.record_err::<()>(Err(CudarcError(CUresult::CUDA_ERROR_INVALID_VALUE)));
        assert!(wait(&stream, Instant::now() + LONG).expect("the stream has no error"));
        drop(memory);
        assert!(drain_retired(Instant::now() + LONG));
        assert_eq!(context.check_err(), Err(CudarcError(CUresult::CUDA_ERROR_INVALID_VALUE)), "the recorded error was lost");
        assert_eq!(free_bytes(&context), before, "the memory was leaked because of the recorded error");
    });
}

#[test]
fn default_stream_is_usable_whichever_context_is_current() {
    Fakes::new().cuda().run(|| {
        let (zero, one) = (context(0).expect("the device exists"), context(1).expect("device 1 exists"));
        let stream = zero.default_stream();
        // Waits on a thread without a current context, and on a thread whose current context is of
        // another device.
        for other in [None, Some(one)] {
            let stream = Arc::clone(&stream);
            let waited = std::thread::spawn(move || {
                other.iter().for_each(|context| context.bind_to_thread().expect("the context is live"));
                let waited = wait(&stream, Instant::now() + LONG)?;
                DeviceMemory::<u32>::zeroed(&stream, 4)?.to_vec(&stream)?;
                Ok::<bool, DriverError>(waited)
            });
            assert!(waited.join().expect("the thread does not panic").expect("the wait and the copy succeed"));
        }
    });
}

#[test]
fn longest_possible_wait_does_not_overflow() {
    Fakes::new().cuda().run(|| {
        let (_, stream) = device();
        let memory = DeviceMemory::<u32>::zeroed(&stream, 4).expect("the device has enough memory");
        assert_eq!(memory.to_vec_within(&stream, Duration::MAX).expect("the wait succeeds"), [0; 4]);
    });
}

/// Drops a slice while work on it is enqueued on a stuck stream. Checks that the slice's own
/// stream, in whose order the slice is freed, waits for that work.
fn freed_after(own: &Arc<CudaStream>, stuck: &Arc<CudaStream>, slice: CudaSlice<u8>) {
    assert!(!wait(stuck, Instant::now()).expect("the work has not failed"));
    drop(slice);
    assert!(
        !wait(own, Instant::now() + SHORT).expect("the stream is live"),
        "the slice is freed before the other stream's work ended"
    );
    unblock(stuck);
    assert!(wait(own, Instant::now() + LONG).expect("the stream completes"));
}

#[test]
fn slice_is_not_freed_while_one_of_two_streams_reads_it() {
    Fakes::new().cuda().run(|| {
        let (context, own) = device();
        let (first, second) =
            (context.new_stream().expect("the stream is created"), context.new_stream().expect("the stream is created"));
        let slice = own.alloc_zeros::<u8>(64).expect("the device has enough memory");
        block(&first);
        drop(slice.read(&first).expect("the stream is live"));
        drop(slice.read(&second).expect("the stream is live"));
        freed_after(&own, &first, slice);
    });
}

#[test]
fn slice_work_is_ordered_across_cudarc_objects_of_one_context() {
    Fakes::new().cuda().run(|| {
        // Two cudarc objects for one context of the driver. Neither knows how many streams the
        // other has created.
        let own = context(0).expect("the device exists").default_stream();
        let (_elsewhere, stream) = device();
        let mut slice = own.alloc_zeros::<u8>(64).expect("the device has enough memory");
        block(&stream);
        drop(slice.write(&stream).expect("the stream is live"));
        freed_after(&own, &stream, slice);

        let slice = own.alloc_zeros::<u8>(64).expect("the device has enough memory");
        block(&own);
        drop(slice.read(&stream).expect("the stream is live"));
        assert!(
            !wait(&stream, Instant::now() + SHORT).expect("the stream is live"),
            "the stream reads the slice before it is filled"
        );
        unblock(&own);
        assert!(wait(&stream, Instant::now() + LONG).expect("the stream completes"));
    });
}

#[test]
fn default_stream_slice_is_freed_after_writes_on_other_streams() {
    Fakes::new().cuda().run(|| {
        let context = context(0).expect("the device exists");
        let own = context.default_stream();
        let mut slice = own.alloc_zeros::<u8>(64).expect("the device has enough memory");
        let stream = context.new_stream().expect("the stream is created");
        block(&stream);
        drop(slice.write(&stream).expect("the stream is live"));
        // When no stream of cudarc's context exists any more, the context frees memory without
        // checking events. So the default stream must already wait.
        assert!(!wait(&own, Instant::now() + SHORT).expect("the stream is live"));
        freed_after(&own, &stream, slice);
    });
}

#[test]
fn dropping_a_write_access_adds_no_wait_to_the_slice_stream() {
    Fakes::new().cuda().run(|| {
        let (context, own) = device();
        let other = context.new_stream().expect("the stream is created");
        let mut slice = own.alloc_zeros::<u8>(64).expect("the device has enough memory");
        block(&other);
        drop(slice.write(&other).expect("the stream is live"));
        assert!(
            wait(&own, Instant::now() + LONG).expect("the stream is live"),
            "the own stream waits for the other stream's work"
        );
        freed_after(&own, &other, slice);
    });
}

#[test]
fn slice_accesses_stay_ordered_despite_a_recorded_cudarc_error() {
    Fakes::new().cuda().run(|| {
        let (context, own) = device();
        let other = context.new_stream().expect("the stream is created");
        let left = || context.record_err::<()>(Err(CudarcError(CUresult::CUDA_ERROR_NOT_FOUND)));
        // The slice is read while its own stream has not filled it yet.
        block(&own);
        let slice = own.alloc_zeros::<u8>(64).expect("the device has enough memory");
        left();
        drop(slice.read(&other).expect("the stream is live"));
        assert!(
            !wait(&other, Instant::now() + SHORT).expect("the stream is live"),
            "the stream reads the slice before it is filled"
        );
        assert_eq!(context.check_err(), Err(CudarcError(CUresult::CUDA_ERROR_NOT_FOUND)), "the recorded error was lost");
        unblock(&own);
        assert!(wait(&other, Instant::now() + LONG).expect("the stream completes"));
        // The slice is freed while another stream still reads it.
        block(&other);
        left();
        drop(slice.read(&other).expect("the stream is live"));
        let _ = context.check_err();
        freed_after(&own, &other, slice);
        // This thread does not wait for a stream whose events cudarc has recorded.
        let mut slice = own.alloc_zeros::<u8>(64).expect("the device has enough memory");
        block(&other);
        left();
        let started = Instant::now();
        drop(slice.write(&other).expect("the stream is live"));
        assert!(started.elapsed() < LONG, "dropping the access waited for the stuck stream");
        assert_eq!(context.check_err(), Err(CudarcError(CUresult::CUDA_ERROR_NOT_FOUND)));
        freed_after(&own, &other, slice);
    });
}

#[test]
fn per_thread_streams_are_refused() {
    Fakes::new().cuda().run(|| {
        let context = context(0).expect("the device exists");
        let stream = context.per_thread_stream();
        let refused = |error: DriverError| assert!(matches!(error, DriverError::PerThreadStream { .. }), "{error}");
        refused(DeviceMemory::<u32>::zeroed(&stream, 4).expect_err("per-thread streams are refused"));
        refused(DeviceMemory::from_slice(&stream, &[1u32]).expect_err("per-thread streams are refused"));
        let before = free_bytes(&context);
        let memory = DeviceMemory::<u8>::alloc(&context, 1 << 20).expect("the device has enough memory");
        // A call that accepts the buffer cannot be refused, so the memory is leaked.
        block(&stream);
        drop(memory.read(&stream).expect("the stream is live"));
        std::thread::scope(|scope| scope.spawn(move || drop(memory)).join().expect("the thread does not panic"));
        assert!(drain_retired(Instant::now() + LONG));
        assert!(free_bytes(&context) < before, "the memory was freed while a stream uses it");
        unblock(&stream);
    });
}

#[test]
fn private_stream_is_destroyed_with_the_last_handle() {
    Fakes::new().cuda().run(|| {
        let context = context(0).expect("the device exists");
        let default = context.default_stream();
        block(&default);
        let started = Instant::now();
        let own = PrivateStream::new(&context).expect("the stream is created");
        assert!(
            wait(&own, Instant::now() + LONG).expect("the stream is idle"),
            "the private stream waits for the default stream"
        );
        assert!(started.elapsed() < LONG / 2, "creating the stream waited for the default stream");
        assert!(!context.is_in_multi_stream_mode(), "cudarc counts the private stream");
        let destroyed = || calls("cuStreamDestroy_v2");
        let handle = Arc::clone(&own);
        drop(own);
        assert_eq!(destroyed(), 0, "the stream was destroyed while a handle exists");
        assert!(wait(&handle, Instant::now() + LONG).expect("the stream is live"));
        drop(handle);
        drop(PrivateStream::new(&context).expect("the stream is created"));
        assert_eq!(destroyed(), 2, "one of the two streams was not destroyed");
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
        let memory = DeviceMemory::<u8>::zeroed(&stream, 1 << 20).expect("the device has enough memory");
        drop(memory);
        retire(&context, [Arc::clone(&stream)], Box::new(move || flag.store(true, Ordering::Release)));
        // These errors are those of a driver that has shut down.
        fail("cuCtxGetCurrent:*=4,cuEventQuery:*=4,cuStreamIsCapturing:*=4");
        assert!(drain_retired(Instant::now() + LONG), "a retired value is still pending");
        fail("");
        unblock(&stream);
        assert!(!freed.load(Ordering::Acquire), "a retired function ran after the driver had shut down");
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
        assert!(!comes(SHORT, || gone.load(Ordering::Acquire)), "the value is dropped before the work of its stream ended");
        unblock(&stream);
        assert!(drain_retired(Instant::now() + LONG));
        assert!(gone.load(Ordering::Acquire), "the value is not freed after another function panicked");
    });
}

#[test]
fn reaper_thread_keeps_at_most_one_stream_and_no_unused_context() {
    Fakes::new().cuda().run(|| {
        let kept = context(0).expect("the device exists");
        for _ in 0..50 {
            // Another cudarc object for the same context of the driver.
            let context = context(0).expect("the device exists");
            drop(DeviceMemory::<u8>::alloc(&context, 64).expect("the device has enough memory"));
            assert!(drain_retired(Instant::now() + LONG));
        }
        let (made, destroyed) = (calls("cuStreamCreate"), calls("cuStreamDestroy_v2"));
        assert!(
            made - destroyed <= 1,
            "{made} streams were created and {destroyed} destroyed, expected at most one not destroyed"
        );
        drop(kept);
        let held = || calls("cuDevicePrimaryCtxRetain") - calls("cuDevicePrimaryCtxRelease_v2");
        assert!(comes(LONG, || held() == 0), "the freeing thread still retains the context");
        assert_eq!(calls("cuStreamDestroy_v2"), calls("cuStreamCreate"));
    });
}

#[test]
fn dropped_slice_is_freed_after_writes_by_other_streams() {
    Fakes::new().cuda().run(|| {
        let context = context(0).expect("the device exists");
        let (own, other) = (
            PrivateStream::new(&context).expect("the stream is created"),
            PrivateStream::new(&context).expect("the stream is created"),
        );
        // cudarc checks events while a stream that it counts exists.
        let counted = context.new_stream().expect("the stream is created");
        let mut slice = own.alloc_zeros::<u8>(64).expect("the device has enough memory");
        block(&other);
        drop(slice.write(&other).expect("the stream is live"));
        drop(counted);
        freed_after(&own, &other, slice);
    });
}

#[test]
fn default_stream_query_ignores_the_current_context() {
    Fakes::new().cuda().run(|| {
        let (here, elsewhere) = (context(0).expect("the device exists"), context(1).expect("the device exists"));
        let blocking = blocking_stream(&here);
        blocking.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("the capture begins");
        elsewhere.bind_to_thread().expect("the context is live");
        let error = wait(&here.default_stream(), Instant::now() + SHORT).expect_err("the default stream cannot be queried");
        assert!(matches!(&error, DriverError::Cuda(error) if error.is(CudaCode::STREAM_CAPTURE_IMPLICIT)), "{error}");
        blocking.end_capture(CUgraphInstantiate_flags(0)).expect("the capture is valid");
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
        assert!(drain_retired(Instant::now() + LONG), "a retired value is still pending");
        fail("");
        assert!(!freed.load(Ordering::Acquire), "a retired function ran without its context");
    });
}
