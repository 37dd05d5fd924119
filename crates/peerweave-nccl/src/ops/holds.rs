//! The resources that a call keeps alive: its buffers until it is issued, and those kept by a
//! graph.
//!
//! Invariant: the graph into which a call is captured keeps all resources of the call.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use peerweave_driver::{Access, CudaStream, Keep, Keeper, keep_in_graph, refuse_capture_begun};

use crate::Call;
use crate::library::error::NcclError;
use crate::member::membership::Inner;

/// The resources that a call keeps until it is issued, or for the graph into which it is captured.
/// Filled in place, because it is large and mostly empty.
#[derive(Default)]
pub(crate) struct Holds<'a> {
    /// Guards of the buffer that is read and of the buffer that is written, if their owners are
    /// notified when the work is enqueued.
    pub(super) guards: [Option<Access<'a>>; 2],
    /// Owners of these two buffers, which are kept alive if a capture is detected.
    pub(super) keepers: [Option<&'a dyn Keeper>; 2],
    /// Owners that the captured graph keeps alive. Nonempty if and only if the stream is known to
    /// be captured.
    pub(super) keeps: Vec<Keep>,
    /// The reduction or window that the call uses.
    pub(super) owner: Option<Keep>,
}

impl Holds<'_> {
    /// Returns whether the call is captured.
    #[inline]
    pub(crate) fn is_captured(&self) -> bool {
        !self.keeps.is_empty()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        let has_no_buffer = self.guards.iter().all(Option::is_none) && self.keepers.iter().all(Option::is_none);
        has_no_buffer && self.keeps.is_empty() && self.owner.is_none()
    }

    /// Returns whether dropping this value has no effect.
    #[inline]
    pub(crate) fn is_free_of_drops(&self) -> bool {
        self.guards.iter().all(Option::is_none) && self.keeps.capacity() == 0 && self.owner.is_none()
    }

    /// Records that the call is captured. The list is then never empty, so the communicator is kept
    /// too.
    pub(super) fn set_captured(&mut self) {
        self.keeps.extend(self.keepers.iter_mut().filter_map(Option::take).map(|keeper| keeper.keep()));
        self.keeps.push(self.owner.clone().unwrap_or_else(|| Arc::new(())));
    }

    /// Keeps the call's resources, after NCCL was called inside the gate and a check found that the
    /// stream is being captured. The call is in the graph, or ran right before the capture began. A
    /// graph that keeps the resources is correct in both cases.
    ///
    /// # Errors
    /// If the graph does not accept the resources: the capture is then invalidated. If the capture
    /// has ended, the resources are leaked.
    #[cold]
    pub(crate) fn keep_in_open_capture(
        &mut self,
        inner: &Arc<Inner>,
        call: Call,
        stream: &Arc<CudaStream>,
    ) -> Result<(), NcclError> {
        self.set_captured();
        let Err(error) = keep_call(inner, stream, &self.keeps) else { return Ok(()) };
        std::mem::forget((GraphHold::new(inner), std::mem::take(&mut self.keeps)));
        // The result is ignored: it only distinguishes a capture that was invalidated here from one
        // that had ended.
        let _ = refuse_capture_begun(call.name(), stream);
        Err(error)
    }
}

/// Keeps the communicator of a captured call alive.
struct GraphHold(Arc<Inner>);

impl GraphHold {
    fn new(inner: &Arc<Inner>) -> Self {
        inner.graphs.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(inner))
    }
}

/// Attaches the resources of a captured call, and its communicator, to the graph.
pub(super) fn keep_call(inner: &Arc<Inner>, stream: &Arc<CudaStream>, keeps: &[Keep]) -> Result<(), NcclError> {
    let mut keeps = keeps.to_vec();
    keeps.push(Arc::new(GraphHold::new(inner)));
    Ok(keep_in_graph(stream, keeps)?)
}

impl Drop for GraphHold {
    fn drop(&mut self) {
        self.0.graphs.fetch_sub(1, Ordering::Release);
    }
}
