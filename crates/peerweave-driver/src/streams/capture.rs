//! Streams that are being captured, and what the graph must keep alive.
//!
//! While a stream is captured in the mode of the whole process, a thread that only asks whether
//! something is done is refused, and the capture is spoiled. [`relaxed`] is for who asks.
//!
//! A graph replays addresses. So what it uses must live as long as it does, however long that is:
//! CUDA's user objects tie a value to a graph. Their last function may not call the driver, so it
//! hands the value to the reaper.

use std::ffi::c_void;
use std::sync::Arc;

use super::{Keep, reaper};
use crate::cudarc::driver::CudaStream;
use crate::cudarc::driver::sys::{CUgraph, CUuserObject};
use crate::library::bind;
use crate::streams::is_of_every_context;
use crate::{CudaCode, CudaError, Driver, DriverError};

/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`, the only flag that exists and it must be given.
const NO_DESTRUCTOR_SYNC: u32 = 1;
/// `CU_GRAPH_USER_OBJECT_MOVE`: the reference is handed over.
const MOVE: u32 = 1;

/// `CU_STREAM_CAPTURE_STATUS_NONE`.
const NOT_CAPTURING: u32 = 0;
/// `CU_STREAM_CAPTURE_STATUS_ACTIVE`. Any other status is an
/// invalidated capture, or unknown to this version and treated like one.
const CAPTURING: u32 = 1;

/// Whether work enqueued on the stream now is captured into a graph instead of run. For a default
/// or a per-thread stream, makes its context the thread's current one.
///
/// # Errors
/// [`CudaError`] also where the capture was invalidated by an earlier fault.
#[inline]
pub fn is_capturing(stream: &CudaStream) -> Result<bool, DriverError> {
    if is_of_every_context(stream) {
        // With another context the answer would be of that one's stream, and with none there is
        // none.
        bind(stream.context())?;
    }
    let mut status = NOT_CAPTURING;
    // SAFETY: the stream is live and the pointer is to a live value.
    let code = unsafe { Driver::get()?.api().cuStreamIsCapturing(stream.cu_stream(), &raw mut status) }?;
    CudaError::check("cuStreamIsCapturing", code)?;
    Ok(means_capturing(status)?)
}

/// After work was enqueued on a stream that was not being captured when [`is_capturing`] was asked:
/// an error if another thread has begun to capture it meanwhile.
///
/// The work may be in that graph, and a replay would use memory that nothing keeps. So the capture
/// is invalidated, and there will be no graph.
///
/// # Errors
/// [`DriverError::CaptureBegun`]; as [`is_capturing`].
#[inline]
pub fn refuse_capture_begun(call: &'static str, stream: &CudaStream) -> Result<(), DriverError> {
    // The default stream cannot be captured.
    if is_of_every_context(stream) || !is_capturing(stream)? { Ok(()) } else { Err(invalidate(call, stream)) }
}

#[cold]
fn invalidate(call: &'static str, stream: &CudaStream) -> DriverError {
    if let Ok(driver) = Driver::get() {
        // SAFETY: the stream is live. The question is forbidden while a stream is being captured,
        // and invalidates the capture.
        let _ = unsafe { driver.api().cuStreamQuery(stream.cu_stream()) };
    }
    DriverError::CaptureBegun { call }
}

/// Whether a stream cannot be asked what it has to do now, and can be later: it is being captured,
/// or its owner has not ended yet a capture that was spoiled, or it is the default stream while a
/// stream that it waits for is being captured.
///
/// # Errors
/// As [`is_capturing`](is_capturing#errors), but for these.
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

/// Runs something that asks the driver questions, so that it neither fails because another thread
/// is capturing a stream nor spoils that capture.
///
/// It must not use a stream that is being captured.
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

/// `CU_STREAM_CAPTURE_MODE_RELAXED`: any call is allowed.
const RELAXED: i32 = 2;

/// Changes the thread's capture mode and gives the one before; `None` where the driver has no such
/// modes.
fn exchange(mode: i32) -> Option<i32> {
    let mut mode = mode;
    // SAFETY: the pointer is to a live integer, a mode that the driver knows.
    let code = unsafe { Driver::get().ok()?.api().cuThreadExchangeStreamCaptureMode(&raw mut mode) };
    (code == Ok(CudaCode::SUCCESS)).then_some(mode)
}

/// Has this thread, which is one of ours, never disturb a capture.
pub(crate) fn relax_this_thread() {
    exchange(RELAXED);
}

/// Whether two streams are being captured into the same graph.
///
/// # Errors
/// What the driver says; `CUDA_ERROR_ILLEGAL_STATE` where one is not being captured.
pub fn is_same_capture(one: &CudaStream, other: &CudaStream) -> Result<bool, DriverError> {
    Ok(capture(one)?.0 == capture(other)?.0)
}

/// The capture that a stream is in: its id and its graph.
fn capture(stream: &CudaStream) -> Result<(u64, CUgraph), DriverError> {
    const CALL: &str = "cuStreamGetCaptureInfo_v2";
    let (mut status, mut id, mut graph): (u32, u64, CUgraph) = (NOT_CAPTURING, 0, std::ptr::null_mut());
    let (dependencies, count) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the stream is live; the pointers are to live values, or null, which is allowed for
    // those.
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

/// Makes the graph that the stream is being captured into keep these values until it, and all that
/// is made of it, is destroyed.
///
/// They are dropped by a thread of this crate, some time after. Since CUDA 11.3.
///
/// # Errors
/// If the stream is not being captured (`CUDA_ERROR_ILLEGAL_STATE`), or the driver is too old; the
/// values are dropped then.
pub fn keep_in_graph(stream: &Arc<CudaStream>, kept: Vec<Keep>) -> Result<(), DriverError> {
    let api = Driver::get()?.api();
    let (_, graph) = capture(stream)?;
    let kept: *mut c_void = Box::into_raw(Box::new(kept)).cast();
    let mut object: CUuserObject = std::ptr::null_mut();
    // SAFETY: `release` takes the box back, exactly once: when the last reference goes.
    let code = unsafe { api.cuUserObjectCreate(&raw mut object, kept, Some(release), 1, NO_DESTRUCTOR_SYNC) };
    match code {
        Ok(CudaCode::SUCCESS) => {}
        refused => {
            // SAFETY: no object was made, so nobody else has the box.
            drop(unsafe { Box::from_raw(kept.cast::<Vec<Keep>>()) });
            CudaError::check("cuUserObjectCreate", refused?)?;
        }
    }
    // SAFETY: the graph is being captured, so it lives; the only reference to the object is handed
    // over.
    let retained = unsafe { api.cuGraphRetainUserObject(graph, object, 1, MOVE) };
    if retained != Ok(CudaCode::SUCCESS) {
        // SAFETY: the reference was not handed over, so it is ours to give back; that runs
        // `release`.
        let _ = unsafe { api.cuUserObjectRelease(object, 1) };
    }
    CudaError::check("cuGraphRetainUserObject", retained?)?;
    Ok(())
}

/// Called by the driver when the last reference to a user object goes, on a thread of its choice.
///
/// # Safety
/// `kept` is a box of `Vec<Keep>` that `keep_in_graph` gave to a user object, and this is its one
/// release.
unsafe extern "C" fn release(kept: *mut c_void) {
    // SAFETY: the pointer is the box that `keep_in_graph` gave away, and this is its one release.
    reaper::drop_later(*unsafe { Box::from_raw(kept.cast::<Vec<Keep>>()) });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_that_no_header_knows_is_a_capture_to_stay_away_from() {
        assert_eq!((means_capturing(NOT_CAPTURING), means_capturing(CAPTURING)), (Ok(false), Ok(true)));
        for spoiled_or_unknown in [2, 3, u32::MAX] {
            let error = means_capturing(spoiled_or_unknown).expect_err("it is not to be used");
            assert!(error.is(CudaCode::STREAM_CAPTURE_INVALIDATED), "{error}");
        }
    }
}
