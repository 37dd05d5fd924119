//! Enqueues the copies and kernels of one operation on a CUDA stream, and provides the memory that
//! they use. Also determines where the outcome of the operation is stored.
//!
//! Invariant: the resources that the stream's work uses stay alive until the stream has completed
//! the work. For each resource, either its use is recorded with the stream, or the caller of
//! `ops::enqueue` keeps the resource alive. **\[G3\]** The caller of `ops::enqueue` guarantees that
//! operands in host memory are valid while the operation's [`Copier`] accesses them.

mod copies;
mod kernels;
mod memory;
mod source;

pub(crate) use source::{Source, Wait};

use std::sync::Arc;

use peerweave_driver::{CudaStream, Keep};

use crate::backend::resources::{Copier, Few, Staged};
use crate::backend::state::{Live, State};

/// The state of one operation while it is being enqueued on a CUDA stream.
pub(crate) struct Enqueue<'a> {
    pub(crate) state: &'a State,
    pub(crate) gpu: &'a Live,
    pub(crate) stream: &'a Arc<CudaStream>,
    pub(crate) call: &'static str,
    pub(crate) copier: Copier,
    pub(crate) capturing: bool,
    /// Handles that are held until the enqueued work has ended: handles of temporary memory, of
    /// outcomes and of the caller's reduction function. During a capture, also handles of symmetric
    /// memory.
    pub(crate) keep: Few<Keep>,
    /// Pinned memory that replaces the caller's memory in the enqueued work.
    pub(crate) staged: Few<Staged>,
    /// Number of bytes of temporary memory that the enqueued work uses: pinned memory and device
    /// memory from pools.
    pub(crate) held_bytes: usize,
    /// Pinned memory with results. When the work has ended, the calling thread copies the results
    /// to the caller's memory.
    pub(crate) results: Few<Staged>,
}

impl<'a> Enqueue<'a> {
    /// Creates the state of an operation that is to be enqueued on `stream`. The context of
    /// `stream` must be current.
    pub(crate) fn new(
        state: &'a State,
        gpu: &'a Live,
        stream: &'a Arc<CudaStream>,
        call: &'static str,
        copier: Copier,
        capturing: bool,
    ) -> Self {
        let (keep, staged, results) = (Few::default(), Few::default(), Few::default());
        Self { state, gpu, stream, call, copier, capturing, keep, staged, held_bytes: 0, results }
    }
}
