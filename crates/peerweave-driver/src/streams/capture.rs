//! Queries whether a stream is being captured, and gives a graph ownership of the memory that its
//! nodes use.
//!
//! While a thread captures a stream in the global mode, the driver refuses queries by other
//! threads, and such a query invalidates the capture. So this crate runs queries in [`relaxed`]
//! mode.
//!
//! A graph replays addresses, so the memory behind these addresses must live as long as the graph.
//! CUDA's user objects attach a value to a graph. The destructor callback of a user object may not
//! call the driver, so it passes the value to a thread of this crate (see `reaper.rs`).

use std::ffi::c_void;
use std::sync::Arc;

use super::{Keep, reaper};
use crate::cudarc::driver::CudaStream;
use crate::cudarc::driver::sys::{CUgraph, CUuserObject};
use crate::library::bind;
use crate::streams::is_of_every_context;
use crate::{CudaCode, CudaError, Driver, DriverError};

/// The flag `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`, which the driver requires for every user object.
const NO_DESTRUCTOR_SYNC: u32 = 1;
/// The flag `CU_GRAPH_USER_OBJECT_MOVE`: the reference is moved to the graph.
const MOVE: u32 = 1;

/// The status `CU_STREAM_CAPTURE_STATUS_NONE`: the stream is not being captured.
const NOT_CAPTURING: u32 = 0;
/// The status `CU_STREAM_CAPTURE_STATUS_ACTIVE`: the stream is being captured. A status other than
/// this and [`NOT_CAPTURING`] is treated as an invalidated capture, even if this crate does not
/// know it.
const CAPTURING: u32 = 1;

/// Returns whether the stream is being captured into a graph. Work that is enqueued on such a
/// stream is not executed, but becomes part of the graph. For a default stream or a per-thread
/// stream, this call makes the stream's context current.
///
/// # Errors
/// An error of the driver, or [`CudaError`] if an earlier error has invalidated the capture.
#[inline]
pub fn is_capturing(stream: &CudaStream) -> Result<bool, DriverError> {
    if is_of_every_context(stream) {
        // The driver queries the stream of the current context, so the stream's context must be
        // current.
        bind(stream.context())?;
    }
    let mut status = NOT_CAPTURING;
    // SAFETY: the stream is live and the pointer is to a live value.
    let code = unsafe { Driver::get()?.api().cuStreamIsCapturing(stream.cu_stream(), &raw mut status) }?;
    CudaError::check("cuStreamIsCapturing", code)?;
    Ok(means_capturing(status)?)
}

/// Returns an error if another thread began to capture the stream while the caller enqueued work.
/// Before enqueuing the work, the caller has called [`is_capturing`], which returned `false`. Call
/// this function after enqueuing the work.
///
/// The work may be part of the new graph. A replay of that graph would use memory that the graph
/// does not keep alive. So this function invalidates the capture.
///
/// # Errors
/// [`DriverError::CaptureBegun`] if a capture has begun, or an error of [`is_capturing`].
#[inline]
pub fn refuse_capture_begun(call: &'static str, stream: &CudaStream) -> Result<(), DriverError> {
    // The default stream cannot be captured.
    if is_of_every_context(stream) || !is_capturing(stream)? { Ok(()) } else { Err(invalidate(call, stream)) }
}

#[cold]
fn invalidate(call: &'static str, stream: &CudaStream) -> DriverError {
    if let Ok(driver) = Driver::get() {
        // SAFETY: the stream is live. The query is forbidden during a capture, and invalidates the
        // capture.
        let _ = unsafe { driver.api().cuStreamQuery(stream.cu_stream()) };
    }
    DriverError::CaptureBegun { call }
}

/// Returns whether the driver would refuse to query a stream now. The driver refuses the query in
/// three cases:
/// - The stream is being captured.
/// - The capture was invalidated, and the thread that began the capture has not ended it.
/// - The stream is the default stream. Another stream is being captured, and is ordered with the
///   default stream.
///
/// # Errors
/// As for [`is_capturing`](is_capturing#errors), except in the cases above.
pub(crate) fn cannot_be_asked(stream: &CudaStream) -> Result<bool, DriverError> {
    match is_capturing(stream) {
        Err(DriverError::Cuda(error))
            if error.is(CudaCode::STREAM_CAPTURE_INVALIDATED) || error.is(CudaCode::STREAM_CAPTURE_IMPLICIT) =>
        {
            Ok(true)
        }
        answer => answer,
    }
}

#[inline]
fn means_capturing(status: u32) -> Result<bool, CudaError> {
    match status {
        NOT_CAPTURING => Ok(false),
        CAPTURING => Ok(true),
        _ => Err(CudaError::new("cuStreamIsCapturing", CudaCode::STREAM_CAPTURE_INVALIDATED)),
    }
}

/// Runs driver queries in CUDA's relaxed capture mode. If another thread is capturing a stream, the
/// queries neither fail nor invalidate the capture of that stream.
///
/// The queries must not use a stream that is being captured.
pub fn relaxed<R>(ask: impl FnOnce() -> R) -> R {
    struct Before(i32);
    impl Drop for Before {
        fn drop(&mut self) {
            exchange(self.0);
        }
    }
    let _before = exchange(RELAXED).map(Before);
    ask()
}

/// The mode `CU_STREAM_CAPTURE_MODE_RELAXED`: this thread may make any call while another thread
/// captures a stream.
const RELAXED: i32 = 2;

/// Sets the thread's capture mode and returns the previous mode. Returns `None` if the driver has
/// no capture modes.
fn exchange(mode: i32) -> Option<i32> {
    let mut mode = mode;
    // SAFETY: the pointer is to a live integer that holds a valid mode.
    let code = unsafe { Driver::get().ok()?.api().cuThreadExchangeStreamCaptureMode(&raw mut mode) };
    (code == Ok(CudaCode::SUCCESS)).then_some(mode)
}

/// Sets the relaxed capture mode for the calling thread, which is a thread of this crate. After
/// that, driver calls of this thread never invalidate a capture.
pub(crate) fn relax_this_thread() {
    exchange(RELAXED);
}

/// Returns whether two streams are being captured into the same graph.
///
/// # Errors
/// `CUDA_ERROR_ILLEGAL_STATE` if one of the streams is not being captured, or another error of the
/// driver.
pub fn is_same_capture(one: &CudaStream, other: &CudaStream) -> Result<bool, DriverError> {
    Ok(capture(one)?.0 == capture(other)?.0)
}

/// Returns the ID of the capture of a stream, and the graph into which the stream is being
/// captured. Fails if the stream is not being captured.
fn capture(stream: &CudaStream) -> Result<(u64, CUgraph), DriverError> {
    const CALL: &str = "cuStreamGetCaptureInfo_v2";
    let (mut status, mut id, mut graph): (u32, u64, CUgraph) = (NOT_CAPTURING, 0, std::ptr::null_mut());
    let (dependencies, count) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the stream is live; the pointers are to live values, or null where allowed.
    let code = unsafe {
        let api = Driver::get()?.api();
        api.cuStreamGetCaptureInfo_v2(stream.cu_stream(), &raw mut status, &raw mut id, &raw mut graph, dependencies, count)
    }?;
    CudaError::check(CALL, code)?;
    if status != CAPTURING || graph.is_null() {
        return Err(CudaError::new(CALL, CudaCode::ILLEGAL_STATE).into());
    }
    Ok((id, graph))
}

/// Passes ownership of `kept` to the graph into which the stream is being captured. The values live
/// until this graph and all its executable graphs have been destroyed. Then a thread of this crate
/// drops the values.
///
/// This function requires CUDA 11.3.
///
/// # Errors
/// `CUDA_ERROR_ILLEGAL_STATE` if the stream is not being captured. [`DriverError::Missing`] if the
/// driver is too old. After an error, the values have been dropped, or a thread of this crate drops
/// them.
pub fn keep_in_graph(stream: &Arc<CudaStream>, kept: Vec<Keep>) -> Result<(), DriverError> {
    let api = Driver::get()?.api();
    let (_, graph) = capture(stream)?;
    let kept: *mut c_void = Box::into_raw(Box::new(kept)).cast();
    let mut object: CUuserObject = std::ptr::null_mut();
    // SAFETY: `release` takes ownership of the box exactly once, when the last reference is
    // released.
    let code = unsafe { api.cuUserObjectCreate(&raw mut object, kept, Some(release), 1, NO_DESTRUCTOR_SYNC) };
    match code {
        Ok(CudaCode::SUCCESS) => {}
        refused => {
            // SAFETY: no object was created, so the box has no other owner.
            drop(unsafe { Box::from_raw(kept.cast::<Vec<Keep>>()) });
            CudaError::check("cuUserObjectCreate", refused?)?;
        }
    }
    // SAFETY: the graph is being captured, so it is live. The only reference to the object is moved
    // to the graph.
    let retained = unsafe { api.cuGraphRetainUserObject(graph, object, 1, MOVE) };
    if retained != Ok(CudaCode::SUCCESS) {
        // SAFETY: the reference was not moved, so this code releases it, which runs `release`.
        let _ = unsafe { api.cuUserObjectRelease(object, 1) };
    }
    CudaError::check("cuGraphRetainUserObject", retained?)?;
    Ok(())
}

/// Passes the values of a user object to a thread of this crate, which drops them. The driver calls
/// this function, on any thread, when the last reference to the user object is released.
///
/// # Safety
/// `kept` is the box of a `Vec<Keep>` that `keep_in_graph` passed to the user object. No other code
/// releases the box.
unsafe extern "C" fn release(kept: *mut c_void) {
    // SAFETY: the pointer is the box that `keep_in_graph` passed, and this is its only release.
    reaper::drop_later(*unsafe { Box::from_raw(kept.cast::<Vec<Keep>>()) });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_capture_status_means_invalidated_capture() {
        assert_eq!((means_capturing(NOT_CAPTURING), means_capturing(CAPTURING)), (Ok(false), Ok(true)));
        for spoiled_or_unknown in [2, 3, u32::MAX] {
            let error = means_capturing(spoiled_or_unknown).expect_err("the capture is invalidated");
            assert!(error.is(CudaCode::STREAM_CAPTURE_INVALIDATED), "{error}");
        }
    }
}
