//! One operation that is being enqueued on a CUDA stream: the memory that it uses, its copies, its
//! kernels, and where its outcome is.
//!
//! Invariants: everything that work on the stream uses is recorded with the stream, or held by the
//! caller of `ops::enqueue`, until the stream has passed the work. **\[G3\]** Memory of the host
//! that an operation names is valid for as long as its [`Copier`] needs; the caller of
//! `ops::enqueue` guarantees this validity.

mod copies;
mod kernels;
mod memory;
mod source;

pub(crate) use source::Source;

use std::sync::Arc;

use peerweave_driver::{CudaStream, Keep};

use crate::backend::resources::{Copier, Few, Staged};
use crate::backend::state::{Live, State};

/// One operation that is being enqueued.
pub(crate) struct Enqueue<'a> {
    pub(crate) state: &'a State,
    pub(crate) gpu: &'a Live,
    pub(crate) stream: &'a Arc<CudaStream>,
    pub(crate) call: &'static str,
    pub(crate) copier: Copier,
    pub(crate) capturing: bool,
    /// Memory that the work uses and that the portable API does not keep alive.
    pub(crate) keep: Few<Keep>,
    /// Pinned memory that the work uses.
    pub(crate) staged: Few<Staged>,
    /// Number of bytes of pools that the work uses.
    pub(crate) held_bytes: usize,
    /// Pinned memory with results, which the calling thread copies to the caller's memory when the
    /// work has ended.
    pub(crate) results: Few<Staged>,
}

impl<'a> Enqueue<'a> {
    /// Prepares an operation on a stream whose context is current.
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
