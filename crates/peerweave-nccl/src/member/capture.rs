//! Calls on streams that are being captured.
//!
//! `ops` has the values that a graph keeps alive. Invariant: if the work of a call may be in a
//! graph, a check before or after the call detects it.

use std::sync::atomic::{AtomicBool, Ordering};

use peerweave_driver::{CudaCode, CudaStream, is_capturing, refuse_capture_begun};

use crate::library::error::NcclError;
use crate::member::membership::{Inner, OF_EVERY_CONTEXT};

/// The larger of the two handle values that mean the default stream (0 and 1).
const DEFAULT: usize = 1;

/// `CU_STREAM_CAPTURE_STATUS_NONE`.
const NOT_CAPTURED: u32 = 0;

/// Whether a call in this process has found a stream being captured.
static CAPTURE_SEEN: AtomicBool = AtomicBool::new(false);

impl Inner {
    /// Returns whether work enqueued on the stream now is captured into a graph.
    #[inline]
    pub(crate) fn is_capturing(&self, stream: &CudaStream) -> Result<bool, NcclError> {
        let mut status = NOT_CAPTURED;
        // SAFETY: the stream is live and the pointer is to a live value.
        let code = unsafe { self.driver.api().cuStreamIsCapturing(stream.cu_stream(), &raw mut status) };
        if code == Ok(CudaCode::SUCCESS) && status == NOT_CAPTURED { Ok(false) } else { is_capturing_checked(stream) }
    }

    /// Returns whether a call may check for a capture only after it is issued, and keep its memory
    /// alive then.
    ///
    /// A capture that another thread **ends** during a call is detected only by checks both before
    /// and after it. The same applies to a capture that begins during the call. So both checks are
    /// made from the first capture in this process on. Neither detects a capture that begins and
    /// ends within one call: a program that captures a stream used by several threads must exclude
    /// their calls.
    #[inline]
    pub(crate) fn may_check_capture_later(&self, stream: &CudaStream) -> bool {
        // On a non-blocking communicator, NCCL enqueues the work after its function has returned.
        // And the reported state of a default stream depends on other streams.
        self.blocking && stream.cu_stream().addr() > OF_EVERY_CONTEXT && !CAPTURE_SEEN.load(Ordering::Relaxed)
    }

    /// Returns whether the driver reports that the stream is not being captured. A default stream
    /// is not queried, because it cannot be captured.
    #[inline]
    pub(crate) fn is_surely_not_captured(&self, stream: &CudaStream) -> bool {
        if stream.cu_stream().addr() <= DEFAULT {
            return true;
        }
        let mut status = NOT_CAPTURED;
        // SAFETY: the stream is live and the pointer is to a live value.
        let code = unsafe { self.driver.api().cuStreamIsCapturing(stream.cu_stream(), &raw mut status) };
        code == Ok(CudaCode::SUCCESS) && status == NOT_CAPTURED
    }

    /// Fails if another thread has begun to capture the stream during a call whose memory no graph
    /// keeps. Called after NCCL.
    ///
    /// NCCL itself checks for a capture, later than this crate, so the work may be in the graph. A
    /// graph that replays it would use memory that is not kept. So the capture is invalidated, and
    /// no graph results.
    #[inline]
    pub(crate) fn not_captured_meanwhile(&self, call: &'static str, stream: &CudaStream) -> Result<(), NcclError> {
        if self.is_surely_not_captured(stream) {
            return Ok(());
        }
        CAPTURE_SEEN.store(true, Ordering::Relaxed);
        Ok(refuse_capture_begun(call, stream)?)
    }
}

/// Checks for a capture if the quick check was inconclusive.
#[cold]
fn is_capturing_checked(stream: &CudaStream) -> Result<bool, NcclError> {
    CAPTURE_SEEN.store(true, Ordering::Relaxed);
    Ok(is_capturing(stream)?)
}
