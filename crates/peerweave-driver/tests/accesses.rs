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
fn slice_of_a_captured_stream_is_refused_on_other_streams() {
    Fakes::new().cuda().run(|| {
        let (context, own) = device();
        let other = context.new_stream().expect("a stream");
        let mut slice = own.alloc_zeros::<u8>(64).expect("room");
        own.begin_capture(RELAXED).expect("capture");
        let refused = |result: Result<(), DriverError>| {
            let error = result.expect_err("its stream cannot wait");
            assert!(matches!(error, DriverError::OwnerCapturing { .. }), "{error}");
        };
        refused(slice.read(&other).map(drop));
        refused(slice.write(&other).map(drop));
        refused(copy_to_host("test", &other, &slice, Instant::now() + LONG).map(drop));
        assert!(!is_capturing(&other).expect("a live stream"), "the other stream was drawn into the capture");
        own.end_capture(NO_FLAGS).expect("nothing spoiled it");
        drop(slice.read(&other).expect("the capture is over"));
    });
}

#[test]
fn drop_of_an_access_waits_for_a_capture_begun_meanwhile() {
    Fakes::new().cuda().run(|| {
        let (context, own) = device();
        let other = context.new_stream().expect("a stream");
        let slice = own.alloc_zeros::<u8>(64).expect("room");
        wait(&own, Instant::now() + LONG).expect("a live stream");
        block(&other);
        let access = slice.read(&other).expect("a live stream");
        own.begin_capture(RELAXED).expect("capture");
        let (ended, told) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(4 * SHORT);
                ended.send(()).expect("it is asked");
                own.end_capture(NO_FLAGS).expect("nothing spoiled it");
            });
            let started = Instant::now();
            drop(access);
            assert!(started.elapsed() < LONG, "it waited for the work, which is stuck");
            assert!(told.try_recv().is_ok(), "the slice's stream could not wait for the work by then");
        });
        drop(slice);
        assert!(!wait(&own, Instant::now() + SHORT).expect("a live stream"), "it is freed under the other stream's work");
        unblock(&other);
        assert!(wait(&own, Instant::now() + LONG).expect("it goes on"));
    });
}

#[test]
fn drop_of_an_access_waits_until_the_work_ends() {
    Fakes::new().cuda().run(|| {
        let (context, own) = device();
        let other = context.new_stream().expect("a stream");
        let slice = own.alloc_zeros::<u8>(64).expect("room");
        block(&other);
        let access = slice.read(&other).expect("a live stream");
        own.begin_capture(RELAXED).expect("capture");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(100));
                unblock(&other);
            });
            drop(access);
        });
        assert!(wait(&other, Instant::now()).expect("a live stream"), "the access was dropped under its work");
        own.end_capture(NO_FLAGS).expect("nothing spoiled it");
    });
}

/// Begins to capture the stream while the driver delays a call of that name, which must not be
/// captured.
fn captured_meanwhile<R>(stream: &Arc<CudaStream>, late: &str, call: impl FnOnce() -> Result<R, DriverError>) {
    let before = peerweave_fakes::entered(late);
    fail(&format!("{late}:*=400ms"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            peerweave_fakes::wait_until_entered(late, before + 1);
            stream.begin_capture(RELAXED).expect("it is not being captured yet");
        });
        let error = call().map(drop).expect_err("a graph would replay it");
        assert!(matches!(error, DriverError::CaptureBegun { .. }), "{error}");
    });
    fail("");
    assert!(stream.end_capture(NO_FLAGS).is_err(), "{late} is in a graph");
}

#[test]
fn capture_begun_during_a_copy_is_invalidated() {
    Fakes::new().cuda().run(|| {
        let (_, stream) = device();
        let mut memory = DeviceMemory::<u8>::zeroed(&stream, 64).expect("room");
        captured_meanwhile(&stream, "cuMemcpyHtoDAsync_v2", || memory.copy_from(&stream, &[1; 64]));
        captured_meanwhile(&stream, "cuMemcpyDtoHAsync_v2", || memory.to_vec(&stream));
        captured_meanwhile(&stream, "cuMemsetD8Async", || DeviceMemory::<u8>::zeroed(&stream, 64));
        memory.copy_from(&stream, &[2; 64]).expect("no capture");
        assert_eq!(memory.to_vec(&stream).expect("no capture"), [2; 64]);
    });
}
