//! Resources that a call keeps alive: its buffers until the call is issued, and the resources of a
//! captured call for as long as the graph exists.
//!
//! Invariant: the graph into which a call is captured keeps all resources of the call alive.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use peerweave_driver::{Access, CudaStream, Keep, Keeper, keep_in_graph, refuse_capture_begun};

use crate::Call;
use crate::library::error::NcclError;
use crate::member::membership::Inner;

/// Resources that a call keeps alive until the call is issued, or that a graph keeps alive after a
/// capture. The value is filled in place, because it is large and mostly empty.
#[derive(Default)]
pub(crate) struct Holds<'a> {
    /// Guards of the buffer that is read and of the buffer that is written. A guard exists if the
    /// owner of the buffer is notified when the work is enqueued.
    pub(super) guards: [Option<Access<'a>>; 2],
    /// Owners of these two buffers. They are moved to `keeps` if a capture is detected.
    pub(super) keepers: [Option<&'a dyn Keeper>; 2],
    /// Owners that the captured graph keeps alive. The list is not empty if and only if the stream
    /// is known to be captured.
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

    /// Records that the call is captured. Adds the resources of the call to `keeps`, or an empty
    /// placeholder, because a non-empty list marks a captured call.
    pub(super) fn set_captured(&mut self) {
        self.keeps.extend(self.keepers.iter_mut().filter_map(Option::take).map(|keeper| keeper.keep()));
        self.keeps.push(self.owner.clone().unwrap_or_else(|| Arc::new(())));
    }

    /// Attaches the call's resources to the graph of an open capture. Used if the capture is found
    /// only after NCCL was called. The call is in the graph, or ran right before the capture began.
    /// In either case the graph may keep the resources.
    ///
    /// # Errors
    /// Fails if the graph does not accept the resources, or if the capture has ended. The resources
    /// are then leaked, and an open capture is invalidated.
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
        // The result is ignored. It only tells whether the capture was invalidated here or had
        // already ended.
        let _ = refuse_capture_begun(call.name(), stream);
        Err(error)
    }
}

/// Keeps the communicator of a captured call alive, and counts as one captured call of the
/// communicator.
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
