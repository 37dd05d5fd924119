//! Tests of accesses to cudarc's slices on other streams, while a stream is being captured.
#![cfg(target_os = "linux")]

mod common;

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::{LONG, SHORT, block, device, fail, unblock};
use peerweave_driver::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use peerweave_driver::{CudaStream, DeviceBuffer, DeviceBufferMut, DeviceMemory, DriverError, copy_to_host, is_capturing, wait};
use peerweave_fakes::Fakes;

const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
const NO_FLAGS: CUgraphInstantiate_flags = CUgraphInstantiate_flags(0);

#[test]
fn other_streams_cannot_use_a_slice_whose_stream_is_captured() {
    Fakes::new().cuda().run(|| {
        let (context, own) = device();
        let other = context.new_stream().expect("the stream is created");
        let mut slice = own.alloc_zeros::<u8>(64).expect("the device has enough memory");
        own.begin_capture(RELAXED).expect("the capture begins");
        let refused = |result: Result<(), DriverError>| {
            let error = result.expect_err("the slice's own stream is being captured");
            assert!(matches!(error, DriverError::OwnerCapturing { .. }), "{error}");
        };
        refused(slice.read(&other).map(drop));
        refused(slice.write(&other).map(drop));
        refused(copy_to_host("test", &other, &slice, Instant::now() + LONG).map(drop));
        assert!(!is_capturing(&other).expect("the stream is live"), "the other stream became part of the capture");
        own.end_capture(NO_FLAGS).expect("the capture is valid");
        drop(slice.read(&other).expect("the capture is over"));
    });
}

#[test]
fn dropping_an_access_waits_until_the_capture_ends() {
    Fakes::new().cuda().run(|| {
        let (context, own) = device();
        let other = context.new_stream().expect("the stream is created");
        let slice = own.alloc_zeros::<u8>(64).expect("the device has enough memory");
        wait(&own, Instant::now() + LONG).expect("the stream is live");
        block(&other);
        let access = slice.read(&other).expect("the stream is live");
        own.begin_capture(RELAXED).expect("the capture begins");
        let (ended, told) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(4 * SHORT);
                ended.send(()).expect("the receiver is alive");
                own.end_capture(NO_FLAGS).expect("the capture is valid");
            });
            let started = Instant::now();
            drop(access);
            assert!(started.elapsed() < LONG, "dropping the access waited for the stuck work");
            assert!(told.try_recv().is_ok(), "the access was dropped before the capture ended");
        });
        drop(slice);
        assert!(
            !wait(&own, Instant::now() + SHORT).expect("the stream is live"),
            "the slice is freed before the other stream's work ended"
        );
        unblock(&other);
        assert!(wait(&own, Instant::now() + LONG).expect("the stream completes"));
    });
}

#[test]
fn dropping_an_access_during_capture_waits_for_stream_work() {
    Fakes::new().cuda().run(|| {
        let (context, own) = device();
        let other = context.new_stream().expect("the stream is created");
        let slice = own.alloc_zeros::<u8>(64).expect("the device has enough memory");
        block(&other);
        let access = slice.read(&other).expect("the stream is live");
        own.begin_capture(RELAXED).expect("the capture begins");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(100));
                unblock(&other);
            });
            drop(access);
        });
        assert!(wait(&other, Instant::now()).expect("the stream is live"), "the access was dropped before its work ended");
        own.end_capture(NO_FLAGS).expect("the capture is valid");
    });
}

/// Begins to capture the stream while the fake driver delays the call named `late`. Checks that the
/// work of `call` does not become part of a graph.
fn captured_meanwhile<R>(stream: &Arc<CudaStream>, late: &str, call: impl FnOnce() -> Result<R, DriverError>) {
    let before = peerweave_fakes::entered(late);
    fail(&format!("{late}:*=3000ms"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            peerweave_fakes::wait_until_entered(late, before + 1);
            stream.begin_capture(RELAXED).expect("the stream is not being captured yet");
        });
        let error = call().map(drop).expect_err("the capture began during the call");
        assert!(matches!(error, DriverError::CaptureBegun { .. }), "{error}");
    });
    fail("");
    assert!(stream.end_capture(NO_FLAGS).is_err(), "the capture is valid and contains {late}");
}

#[test]
fn capture_begun_during_a_copy_is_invalidated() {
    Fakes::new().cuda().run(|| {
        let (_, stream) = device();
        let mut memory = DeviceMemory::<u8>::zeroed(&stream, 64).expect("the device has enough memory");
        captured_meanwhile(&stream, "cuMemcpyHtoDAsync_v2", || memory.copy_from(&stream, &[1; 64]));
        captured_meanwhile(&stream, "cuMemcpyDtoHAsync_v2", || memory.to_vec(&stream));
        captured_meanwhile(&stream, "cuMemsetD8Async", || DeviceMemory::<u8>::zeroed(&stream, 64));
        memory.copy_from(&stream, &[2; 64]).expect("the stream is not being captured");
        assert_eq!(memory.to_vec(&stream).expect("the stream is not being captured"), [2; 64]);
    });
}
