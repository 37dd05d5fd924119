//! Operations that order and complete a thread's puts and gets.

use crate::api::scope::{Block, Scope, Warp};
use crate::api::{Context, network};
use crate::gpu::{Fence, Sys};
use peerweave_types::KernelContext;

impl Context {
    /// Returns whether this PE can reach other PEs over the network. If not, this PE makes no calls
    /// over the network, so fences and quiets need not order or complete such calls.
    #[inline(always)]
    pub(crate) fn has_network(&self) -> bool {
        network::available() && self.raw().capabilities & KernelContext::CAN_NETWORK != 0
    }

    /// Orders this thread's puts, signals and atomic operations to each PE. At each PE, the
    /// operations before the fence are visible before the operations after the fence.
    ///
    /// The fence also orders all earlier reads and writes of this thread, and all writes of other
    /// threads that this thread has observed. If all threads of a warp or a block have made one put
    /// together, they must synchronise with the caller before the fence.
    #[inline(always)]
    pub fn fence(&self) {
        self.finish_bulk();
        if self.has_network() {
            network::fence(self.my_pe());
        }
        <Sys as Fence>::acq_rel();
    }

    /// Waits until this thread's puts are complete at the target PEs, and this thread's gets are
    /// complete on this PE. Puts and gets by `_nbi` methods are included. The call is stronger than
    /// [`Self::fence`].
    #[inline(always)]
    pub fn quiet(&self) {
        self.finish_bulk();
        if self.has_network() {
            network::quiet(self.my_pe());
        }
        <Sys as Fence>::acq_rel();
    }

    /// Waits until the sources of this thread's `_nbi` puts can be reused. The call is weaker than
    /// [`Self::quiet`], because the puts may not yet be complete at the peers.
    #[inline(always)]
    pub fn flush(&self) {
        self.flush_bulk();
        if self.has_network() {
            // Not all supported versions of NVSHMEM have a weaker call than `quiet`.
            network::quiet(self.my_pe());
        }
    }

    /// Like [`Self::flush`], but called by all threads of the warp. After the call, each thread can
    /// reuse the sources of all threads of the warp.
    #[inline(always)]
    pub fn flush_warp(&self) {
        self.flush();
        Warp::sync();
    }

    /// Like [`Self::flush`], but called by all threads of the block. After the call, each thread
    /// can reuse the sources of all threads of the block.
    #[inline(always)]
    pub fn flush_block(&self) {
        self.flush();
        Block::sync();
    }
}
