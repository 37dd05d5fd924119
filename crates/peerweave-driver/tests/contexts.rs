//! Tests that destructors do not change the thread's current context.
#![cfg(target_os = "linux")]

mod common;

use std::sync::Arc;
use std::time::Instant;

use common::{LONG, block, unblock};
use peerweave_driver::cudarc::driver::sys::CUcontext;
use peerweave_driver::{
    CudaCode, CudaContext, DeviceBuffer, DeviceMemory, Driver, PrivateStream, Streams, context, drain_retired, retire,
};
use peerweave_fakes::Fakes;

fn current() -> CUcontext {
    let mut current: CUcontext = std::ptr::null_mut();
    // SAFETY: the pointer is to a live handle.
    let code = unsafe { Driver::get().expect("the fake driver is loaded").api().cuCtxGetCurrent(&raw mut current) };
    assert_eq!(code, Ok(CudaCode::SUCCESS));
    current
}

/// Creates a value on device 0 and drops the value while the context of device 1 is current.
fn dropped_elsewhere<R>(make: impl FnOnce(&Arc<CudaContext>) -> R) {
    let (zero, one) = (context(0).expect("the device exists"), context(1).expect("device 1 exists"));
    let made = make(&zero);
    one.bind_to_thread().expect("the context is live");
    drop(made);
    assert_eq!(current(), one.cu_ctx(), "a destructor changed the thread's current context");
    assert!(drain_retired(Instant::now() + LONG));
}

#[test]
fn dropping_memory_keeps_the_current_context() {
    Fakes::new().cuda().run(|| {
        dropped_elsewhere(|zero| {
            DeviceMemory::<u32>::zeroed(&zero.new_stream().expect("the stream is created"), 4)
                .expect("the device has enough memory")
        });
    });
}

#[test]
fn dropping_a_stream_keeps_the_current_context() {
    Fakes::new().cuda().run(|| dropped_elsewhere(|zero| PrivateStream::new(zero).expect("the stream is created")));
}

#[test]
fn dropping_a_list_of_streams_keeps_the_current_context() {
    Fakes::new().cuda().run(|| {
        dropped_elsewhere(|zero| {
            let streams = Streams::new();
            // The list has the only handle of the stream.
            streams.note(&zero.new_stream().expect("the stream is created"));
            streams
        });
    });
}

#[test]
fn dropping_an_access_keeps_the_current_context() {
    Fakes::new().cuda().run(|| {
        let zero = context(0).expect("the device exists");
        let (own, other) = (zero.new_stream().expect("the stream is created"), zero.new_stream().expect("the stream is created"));
        let slice = own.alloc_zeros::<u8>(64).expect("the device has enough memory");
        block(&other);
        dropped_elsewhere(|_| slice.read(&other).expect("the stream is live"));
        unblock(&other);
        other.synchronize().expect("the stream completes");
    });
}

#[test]
fn deferred_free_keeps_the_current_context() {
    Fakes::new().cuda().run(|| {
        let (zero, one) = (context(0).expect("the device exists"), context(1).expect("device 1 exists"));
        let stream = zero.new_stream().expect("the stream is created");
        one.bind_to_thread().expect("the context is live");
        retire(&zero, [stream], Box::new(|| {}));
        assert_eq!(current(), one.cu_ctx());
        assert!(drain_retired(Instant::now() + LONG));
    });
}
