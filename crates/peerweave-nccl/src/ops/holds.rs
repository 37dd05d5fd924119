//! Resources that a call keeps alive. A call borrows its buffers until the call is issued. The
//! resources of a captured call stay alive as long as the graph exists.
//!
//! Invariant: the graph into which a call is captured keeps all resources of the call alive.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use peerweave_driver::{Access, CudaStream, Keep, keep_in_graph};

use crate::library::error::NcclError;
use crate::member::membership::Inner;

/// Resources of a call. The call keeps its resources alive until the call is issued. If the call is
/// captured, the graph then keeps the owners in `keeps` alive. This struct is large and mostly
/// empty, so it is filled in place instead of being moved.
#[derive(Default)]
pub(crate) struct Holds<'a> {
    /// Guards of the call's two buffers: first the read buffer, then the written buffer. A buffer
    /// has a guard if its owner must be notified after the work was enqueued. Dropping the guard
    /// notifies the owner.
    pub(super) guards: [Option<Access<'a>>; 2],
    /// Owners of memory and other resources of a captured call, which the graph keeps alive. The
    /// list is empty if and only if the call is not captured.
    pub(super) keeps: Vec<Keep>,
    /// The reduction or window that the call uses.
    pub(super) owner: Option<Keep>,
}

impl Holds<'_> {
    /// Returns whether the stream of the call is being captured, so that a graph records the call.
    #[inline]
    pub(crate) fn is_captured(&self) -> bool {
        !self.keeps.is_empty()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.guards.iter().all(Option::is_none) && self.keeps.is_empty() && self.owner.is_none()
    }

    /// Returns whether dropping this value would have no effect, because the value contains no
    /// guard, no owner and no allocated list. The caller may then forget the value, which saves a
    /// function call.
    #[inline]
    pub(crate) fn is_free_of_drops(&self) -> bool {
        self.guards.iter().all(Option::is_none) && self.keeps.capacity() == 0 && self.owner.is_none()
    }

    /// Marks the call as captured, by adding an element to `keeps`. The element is the call's
    /// reduction or window, or an empty value if the call uses neither. A call counts as captured
    /// if `keeps` is not empty.
    pub(super) fn set_captured(&mut self) {
        self.keeps.push(self.owner.clone().unwrap_or_else(|| Arc::new(())));
    }
}

/// Value that a graph owns for one captured call. The value keeps the communicator alive, and is
/// counted as a captured call of the communicator.
struct GraphHold(Arc<Inner>);

impl GraphHold {
    fn new(inner: &Arc<Inner>) -> Self {
        inner.graphs.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(inner))
    }
}

/// Makes the graph keep the resources of a captured call alive. The graph also keeps the
/// communicator alive.
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
