//! Order and completion of what a thread has put.

use crate::api::scope::{Block, Scope, Warp};
use crate::api::{Context, network};
use crate::gpu::{Fence, Sys};
use peerweave_types::KernelContext;

impl Context {
    /// Returns whether some PEs are reached by the network, which may have calls of this PE
    /// outstanding.
    #[inline(always)]
    pub(crate) fn has_network(&self) -> bool {
        network::available() && self.raw().capabilities & KernelContext::CAN_NETWORK != 0
    }

    /// Orders this thread's puts, signals and atomic operations to each PE: those before are
    /// visible there before those after.
    ///
    /// It orders all that this thread has read and written before, and what it has seen others do.
    /// Where threads of a warp or a block have put together, each that is to be ordered has
    /// synchronised with the caller.
    #[inline(always)]
    pub fn fence(&self) {
        self.finish_bulk();
        if self.has_network() {
            network::fence(self.my_pe());
        }
        <Sys as Fence>::acq_rel();
    }

    /// Waits until this thread's puts, `_nbi` forms included, are complete at their PEs, and its
    /// gets here. Stronger than [`Self::fence`].
    #[inline(always)]
    pub fn quiet(&self) {
        self.finish_bulk();
        if self.has_network() {
            network::quiet(self.my_pe());
        }
        <Sys as Fence>::acq_rel();
    }

    /// Waits until the sources of this thread's `_nbi` puts may be used again. Weaker than
    /// [`Self::quiet`]: nothing is complete at the peers.
    #[inline(always)]
    pub fn flush(&self) {
        self.flush_bulk();
        if self.has_network() {
            // NVSHMEM has no weaker call in all versions that are supported.
            network::quiet(self.my_pe());
        }
    }

    /// [`Self::flush`] for all threads of the warp: the sources of all of them may be used again by
    /// each.
    #[inline(always)]
    pub fn flush_warp(&self) {
        self.flush();
        Warp::sync();
    }

    /// [`Self::flush`] for all threads of the block: the sources of all of them may be used again
    /// by each.
    #[inline(always)]
    pub fn flush_block(&self) {
        self.flush();
        Block::sync();
    }
}
