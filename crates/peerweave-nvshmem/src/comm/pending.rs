//! Incomplete `nbi` transfers, which run on NVSHMEM's own streams, and the memory that these
//! transfers use.
//!
//! A quiet or a barrier on a stream makes this stream wait for NVSHMEM's own streams. From then on,
//! NVSHMEM treats the transfers as complete, although this stream may still be waiting. A later
//! quiet of the host does not wait for these transfers. A free does not wait for them either. This
//! crate therefore waits for the stream before it frees the memory of the transfers.
//!
//! # Invariant
//! - **\[N1\]** The memory of an incomplete `nbi` transfer is in the list of this module, or is
//!   recorded as used by a stream that waits for the transfer.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use peerweave_driver::CudaStream;

use crate::comm::Comm;
use crate::comm::streams::{Streams, wait_all};
use crate::error::{MisuseKind, NvshmemError};

/// The list of incomplete transfers.
#[derive(Default)]
pub(crate) struct Pending {
    open: Mutex<Open>,
    /// The streams on which a quiet or a barrier waits for transfers. These transfers have been
    /// removed from the list `open`.
    taken: peerweave_driver::Streams,
}

/// The memory that incomplete transfers use. `memory` has an element for each allocation: the list
/// of the streams that use the allocation. When a stream starts to wait for the transfers, the
/// stream is added to the lists of all these allocations.
pub(crate) struct Open {
    memory: Vec<Arc<Streams>>,
    /// Number of the current list in `memory`, counted from 1. A new list begins each time `memory`
    /// is emptied. [`Streams::pending`] of an allocation is the number of the list to which the
    /// allocation was last added. So the allocation is in `memory` if and only if the two numbers
    /// are equal.
    emptied: u64,
}

impl Default for Open {
    fn default() -> Self {
        Self { memory: Vec::new(), emptied: 1 }
    }
}

impl Open {
    fn note(&mut self, streams: &Arc<Streams>) {
        // The number changes only while this list is locked. A further transfer of the same memory
        // only compares the number.
        if streams.pending.load(Ordering::Relaxed) != self.emptied {
            streams.pending.store(self.emptied, Ordering::Relaxed);
            self.memory.push(Arc::clone(streams));
        }
    }

    /// Empties the list. The caller ensures that NVSHMEM has completed the listed transfers, or
    /// that a stream waits for these transfers.
    pub(crate) fn empty(&mut self) {
        self.emptied += 1;
        self.memory.clear();
    }
}

impl Pending {
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the memory of a transfer to the list. The caller keeps the returned lock until the
    /// transfer is enqueued.
    pub(crate) fn add(&self, memory: [Option<&Arc<Streams>>; 3]) -> MutexGuard<'_, Open> {
        let mut open = self.lock();
        memory.into_iter().flatten().for_each(|streams| open.note(streams));
        open
    }

    /// Records that a stream is about to wait for all listed transfers. The caller keeps the
    /// returned lock until the wait is enqueued, and then calls [`empty`](Open::empty).
    pub(crate) fn wait_for_all(
        &self,
        call: &'static str,
        stream: &Arc<CudaStream>,
        capturing: bool,
    ) -> Result<MutexGuard<'_, Open>, NvshmemError> {
        let open = self.lock();
        if !open.memory.is_empty() {
            if capturing {
                return Err(outside(call));
            }
            self.taken.note(stream);
            open.memory.iter().for_each(|streams| streams.note(stream));
        }
        Ok(open)
    }

    /// Returns an error if transfers are incomplete, because a stream that is being captured cannot
    /// wait for the transfers.
    pub(crate) fn check_capture(&self, call: &'static str) -> Result<(), NvshmemError> {
        if self.lock().memory.is_empty() { Ok(()) } else { Err(outside(call)) }
    }

    /// Waits until all `nbi` transfers are complete. First waits for the streams in `taken`: these
    /// streams wait for transfers that have left the list. Then calls `quiet`, which must complete
    /// the transfers in the list, and empties the list.
    pub(crate) fn complete(
        &self,
        call: &'static str,
        comm: &Comm,
        quiet: impl FnOnce() -> Result<(), NvshmemError>,
    ) -> Result<(), NvshmemError> {
        wait_all(call, comm, &self.taken)?;
        let mut open = self.lock();
        quiet()?;
        open.empty();
        Ok(())
    }
}

/// Returns the error of a call that would make a captured graph wait for transfers on NVSHMEM's own
/// streams. These streams are outside of the graph. NVSHMEM would try to add the wait to the graph,
/// and would end the process.
fn outside(call: &'static str) -> NvshmemError {
    let why = "transfers on NVSHMEM's own streams are pending, and a graph cannot wait for these transfers; call quiet_blocking before capturing";
    NvshmemError::misuse(call, MisuseKind::Context { why })
}
