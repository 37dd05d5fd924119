//! Order and completion of a thread's puts.

use crate::api::scope::{Block, Scope, Warp};
use crate::api::{Context, network};
use crate::gpu::{Fence, Sys};
use peerweave_types::KernelContext;

impl Context {
    /// Returns whether some PEs are reached over the network, so that calls of this PE may be
    /// outstanding there.
    #[inline(always)]
    pub(crate) fn has_network(&self) -> bool {
        network::available() && self.raw().capabilities & KernelContext::CAN_NETWORK != 0
    }

    /// Orders this thread's puts, signals and atomic operations to each PE: earlier ones are
    /// visible there before later ones.
    ///
    /// Orders all earlier reads and writes of this thread, and writes of others that it has
    /// observed. If threads of a warp or a block have put together, each of them must have
    /// synchronised with the caller.
    #[inline(always)]
    pub fn fence(&self) {
        self.finish_bulk();
        if self.has_network() {
            network::fence(self.my_pe());
        }
        <Sys as Fence>::acq_rel();
    }

    /// Waits until this thread's puts, including `_nbi` forms, are complete at their PEs, and its
    /// gets are complete on this PE. Stronger than [`Self::fence`].
    #[inline(always)]
    pub fn quiet(&self) {
        self.finish_bulk();
        if self.has_network() {
            network::quiet(self.my_pe());
        }
        <Sys as Fence>::acq_rel();
    }

    /// Waits until the sources of this thread's `_nbi` puts can be reused. Weaker than
    /// [`Self::quiet`], because the puts need not be complete at the peers.
    #[inline(always)]
    pub fn flush(&self) {
        self.flush_bulk();
        if self.has_network() {
            // NVSHMEM has no weaker call in all versions that are supported.
            network::quiet(self.my_pe());
        }
    }

    /// Like [`Self::flush`], for all threads of the warp: afterwards each thread can reuse the
    /// sources of all.
    #[inline(always)]
    pub fn flush_warp(&self) {
        self.flush();
        Warp::sync();
    }

    /// Like [`Self::flush`], for all threads of the block: afterwards each thread can reuse the
    /// sources of all.
    #[inline(always)]
    pub fn flush_block(&self) {
        self.flush();
        Block::sync();
    }
}
