//! Checks of whether the stream of a call is being captured.
//!
//! `holds.rs` has the resources that a graph keeps alive. Invariant: if the work of a call may be
//! in a graph, a check before or after the call detects the capture.

use std::sync::atomic::{AtomicBool, Ordering};

use peerweave_driver::{CudaCode, CudaStream, is_capturing, refuse_capture_begun};

use crate::library::error::NcclError;
use crate::member::membership::{Inner, OF_EVERY_CONTEXT};

/// Largest handle value of the default stream. The driver uses 0 and 1 for the default stream.
const DEFAULT: usize = 1;

/// `CU_STREAM_CAPTURE_STATUS_NONE`.
const NOT_CAPTURED: u32 = 0;

/// Whether a call in this process has found a stream being captured.
static CAPTURE_SEEN: AtomicBool = AtomicBool::new(false);

impl Inner {
    /// Returns whether the stream is being captured, so that enqueued work goes into a graph.
    #[inline]
    pub(crate) fn is_capturing(&self, stream: &CudaStream) -> Result<bool, NcclError> {
        let mut status = NOT_CAPTURED;
        // SAFETY: the stream is live and the pointer is to a live value.
        let code = unsafe { self.driver.api().cuStreamIsCapturing(stream.cu_stream(), &raw mut status) };
        if code == Ok(CudaCode::SUCCESS) && status == NOT_CAPTURED { Ok(false) } else { is_capturing_checked(stream) }
    }

    /// Returns whether a call may check for a capture only after the call was issued. If the stream
    /// is being captured, the call then attaches its memory to the graph.
    ///
    /// If another thread **ends** a capture during a call, only two checks, before and after the
    /// call, detect the end. The same applies to a capture that begins during the call. So every
    /// call makes both checks after the process has seen a first capture. The checks do not detect
    /// a capture that begins and ends within one call. A program that captures a stream used by
    /// several threads must prevent calls of the other threads during the capture.
    #[inline]
    pub(crate) fn may_check_capture_later(&self, stream: &CudaStream) -> bool {
        // On a non-blocking communicator, NCCL enqueues the work after its function has returned.
        // For a default stream, the state that the driver reports depends on other streams.
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
    /// keeps alive. Called after NCCL was called.
    ///
    /// NCCL checks for a capture later than this crate, so the work may be in the graph. A replay
    /// of the graph would then use memory that is not kept alive. So this function invalidates the
    /// capture, and no graph results.
    #[inline]
    pub(crate) fn not_captured_meanwhile(&self, call: &'static str, stream: &CudaStream) -> Result<(), NcclError> {
        if self.is_surely_not_captured(stream) {
            return Ok(());
        }
        CAPTURE_SEEN.store(true, Ordering::Relaxed);
        Ok(refuse_capture_begun(call, stream)?)
    }
}

/// Checks for a capture if the quick check failed or found a capture.
#[cold]
fn is_capturing_checked(stream: &CudaStream) -> Result<bool, NcclError> {
    CAPTURE_SEEN.store(true, Ordering::Relaxed);
    Ok(is_capturing(stream)?)
}
