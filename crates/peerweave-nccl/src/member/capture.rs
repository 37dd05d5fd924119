//! Detection of captures: every call checks whether its stream is being captured.
//!
//! `holds.rs` has the resources that a graph keeps alive. Every call makes two checks: one before
//! its buffers are acquired, and one after NCCL was called. Invariant: if only one of the checks
//! finds an open capture of the stream, the call fails, and no graph uses memory that may be freed.
//!
//! The checks do not detect a capture that another thread begins and ends within one call of NCCL.
//! A program may capture a stream that several threads use. Such a program must prevent calls of
//! the other threads on this stream during the capture.

use peerweave_driver::{CudaCode, CudaStream, is_capturing, refuse_capture_begun};

use crate::library::error::NcclError;
use crate::member::membership::Inner;

/// Largest stream handle that stands for the default stream. The driver uses the handles 0 and 1
/// for the default stream.
const DEFAULT: usize = 1;

/// The driver's status `CU_STREAM_CAPTURE_STATUS_NONE`: the stream is not being captured.
const NOT_CAPTURED: u32 = 0;

impl Inner {
    /// Returns whether the stream is being captured, so that enqueued work goes into a graph.
    #[inline]
    pub(crate) fn is_capturing(&self, stream: &CudaStream) -> Result<bool, NcclError> {
        if self.is_reported_free(stream) { Ok(false) } else { Ok(is_capturing(stream)?) }
    }

    /// Returns whether the stream is certainly not being captured. A default stream cannot be
    /// captured, so for a default stream this function returns `true` without a query of the
    /// driver.
    #[inline]
    pub(crate) fn is_surely_not_captured(&self, stream: &CudaStream) -> bool {
        stream.cu_stream().addr() <= DEFAULT || self.is_reported_free(stream)
    }

    /// Returns whether the driver reports that the stream is not being captured. Returns `false` if
    /// the query fails.
    #[inline]
    fn is_reported_free(&self, stream: &CudaStream) -> bool {
        let mut status = NOT_CAPTURED;
        // SAFETY: the stream is live and the pointer is to a live value.
        let code = unsafe { self.driver.api().cuStreamIsCapturing(stream.cu_stream(), &raw mut status) };
        code == Ok(CudaCode::SUCCESS) && status == NOT_CAPTURED
    }

    /// Checks, after a call of NCCL, that no other thread has begun to capture the stream during
    /// the call. Called only if the check before the call found no capture. If a capture has begun,
    /// returns an error and invalidates the capture, so that the capture yields no graph.
    ///
    /// NCCL itself checks for a capture later than the first check of this crate. So NCCL may have
    /// put the work into the graph. The graph does not keep the memory of the work alive, so a
    /// replay could use freed memory.
    #[inline]
    pub(crate) fn not_captured_meanwhile(&self, call: &'static str, stream: &CudaStream) -> Result<(), NcclError> {
        if self.is_surely_not_captured(stream) { Ok(()) } else { Ok(refuse_capture_begun(call, stream)?) }
    }
}
