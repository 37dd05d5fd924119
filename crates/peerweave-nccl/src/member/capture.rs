//! Streams that are being captured, as calls on a communicator meet them.
//!
//! What a graph keeps is in `ops`. Invariant: if the work of a call may be in a graph, a check
//! before or after the call detects it.

use std::sync::atomic::{AtomicBool, Ordering};

use peerweave_driver::{CudaCode, CudaStream, is_capturing, refuse_capture_begun};

use crate::library::error::NcclError;
use crate::member::membership::{Inner, OF_EVERY_CONTEXT};

/// The last of the handles of the default stream.
const DEFAULT: usize = 1;

/// `CU_STREAM_CAPTURE_STATUS_NONE`.
const NOT_CAPTURED: u32 = 0;

/// Whether a call in this process has met a stream that is being captured.
static CAPTURE_SEEN: AtomicBool = AtomicBool::new(false);

impl Inner {
    /// Whether work that is enqueued on the stream now is captured into a graph.
    #[inline]
    pub(crate) fn is_capturing(&self, stream: &CudaStream) -> Result<bool, NcclError> {
        let mut status = NOT_CAPTURED;
        // SAFETY: the stream is live and the pointer is to a live value.
        let code = unsafe { self.driver.api().cuStreamIsCapturing(stream.cu_stream(), &raw mut status) };
        if code == Ok(CudaCode::SUCCESS) && status == NOT_CAPTURED { Ok(false) } else { is_capturing_checked(stream) }
    }

    /// Whether a call need not ask before it is issued whether the stream is being captured: it
    /// asks after it, and keeps what it uses then.
    ///
    /// A capture that another thread **ends** during a call is detected only by checking both
    /// before and after, as is one that begins during the call. So both checks are made as soon as
    /// this process has seen a capture. Neither detects a capture that begins and ends within one
    /// call: a program that captures a stream used by several threads must keep their calls out.
    #[inline]
    pub(crate) fn may_check_capture_later(&self, stream: &CudaStream) -> bool {
        // With others NCCL enqueues the work after its function has returned. And what a default
        // stream answers depends on other streams.
        self.blocking && stream.cu_stream().addr() > OF_EVERY_CONTEXT && !CAPTURE_SEEN.load(Ordering::Relaxed)
    }

    /// Whether the driver says that the stream is not being captured. A default stream is not
    /// asked: no capture takes it.
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

    /// After NCCL was called for work that no graph keeps anything for: an error if another thread
    /// has begun to capture the stream meanwhile.
    ///
    /// NCCL itself checks whether the stream is captured, later than this crate, so the work may be
    /// in the graph. A graph that replays it would use memory that is not kept. So the capture is
    /// invalidated, and no graph results.
    #[inline]
    pub(crate) fn not_captured_meanwhile(&self, call: &'static str, stream: &CudaStream) -> Result<(), NcclError> {
        if self.is_surely_not_captured(stream) {
            return Ok(());
        }
        CAPTURE_SEEN.store(true, Ordering::Relaxed);
        Ok(refuse_capture_begun(call, stream)?)
    }
}

/// For an answer that is not plainly no.
#[cold]
fn is_capturing_checked(stream: &CudaStream) -> Result<bool, NcclError> {
    CAPTURE_SEEN.store(true, Ordering::Relaxed);
    Ok(is_capturing(stream)?)
}
