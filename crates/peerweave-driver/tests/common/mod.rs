//! Helpers of the tests: a device, and functions of the fake driver.
#![allow(dead_code, unused_imports, reason = "each test binary uses only some of the helpers")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use peerweave_driver::cudarc::driver::sys::CUstream;
use peerweave_driver::{CudaCode, CudaContext, CudaStream, Driver, context};
use peerweave_fakes::driver;
pub(crate) use peerweave_fakes::driver::fail;

pub(crate) const LONG: Duration = Duration::from_secs(60);
pub(crate) const SHORT: Duration = Duration::from_millis(50);

pub(crate) fn device() -> (Arc<CudaContext>, Arc<CudaStream>) {
    let context = context(0).expect("the fake driver has devices");
    let stream = context.new_stream().expect("the stream is created");
    (context, stream)
}

pub(crate) fn block(stream: &CudaStream) {
    driver::block(stream.cu_stream());
}

pub(crate) fn unblock(stream: &CudaStream) {
    driver::unblock(stream.cu_stream());
}

/// Returns the number of successful calls of a function, from the log of the fake driver.
pub(crate) fn calls(function: &str) -> usize {
    let log = std::env::var_os("PEERWEAVE_FAKE_CUDA_LOG").expect("the test harness sets the variable");
    let log = std::fs::read_to_string(log).expect("the fake driver writes the log");
    log.lines()
        .filter(|line| line.split_whitespace().nth(1) == Some(function))
        .map(|line| if line.contains(" = ") { -1 } else { 1 })
        .sum::<i32>() as usize
}

/// Returns a stream that is ordered with the default stream. cudarc creates no such streams.
pub(crate) fn blocking_stream(context: &Arc<CudaContext>) -> Arc<CudaStream> {
    context.bind_to_thread().expect("the context is live");
    let mut made: CUstream = std::ptr::null_mut();
    // SAFETY: the context is current, and the pointer is to a live handle.
    let code = unsafe { Driver::get().expect("the fake driver is loaded").api().cuStreamCreate(&raw mut made, 0) };
    assert_eq!(code, Ok(CudaCode::SUCCESS));
    // SAFETY: the stream was just created in this context.
    unsafe { context.wrap_borrowed_stream(made) }
}

pub(crate) fn free_bytes(context: &CudaContext) -> usize {
    context.mem_get_info().expect("the context is live").0
}

pub(crate) fn comes(soon: Duration, mut what: impl FnMut() -> bool) -> bool {
    peerweave_driver::wait_until::<()>(Instant::now() + soon, || Ok(what())) == Ok(true)
}
