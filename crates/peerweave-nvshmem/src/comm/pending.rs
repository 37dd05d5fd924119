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

/// Tracks the incomplete `nbi` transfers, which run on NVSHMEM's own streams.
#[derive(Default)]
pub(crate) struct Pending {
    open: Mutex<Open>,
    /// The streams on which a quiet or a barrier waits for transfers. These transfers have been
    /// removed from the list `open`.
    taken: peerweave_driver::Streams,
}

/// The memory of the incomplete transfers for which no stream waits yet. `memory` has an element
/// for each allocation: the list of the streams that use the allocation. When a stream starts to
/// wait for the transfers, the stream is added to each of these lists, and `memory` is emptied.
pub(crate) struct Open {
    memory: Vec<Arc<Streams>>,
    /// One more than the number of times that `memory` was emptied. [`Streams::pending`] of an
    /// allocation equals this number if and only if the allocation is in `memory`.
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

    /// Adds the memory of a transfer to the list: its two buffers, and its signal word if there is
    /// one. Each element of `memory` is the list of the streams that use one allocation. The caller
    /// keeps the returned lock until the transfer is enqueued.
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

    /// Returns an error if `nbi` transfers are incomplete. Called for a stream that is being
    /// captured, because a graph cannot wait for these transfers.
    pub(crate) fn check_capture(&self, call: &'static str) -> Result<(), NvshmemError> {
        if self.lock().memory.is_empty() { Ok(()) } else { Err(outside(call)) }
    }

    /// Waits until all `nbi` transfers are complete. First waits for the streams in `taken`,
    /// because a quiet or a barrier on these streams waits for transfers that are no longer in the
    /// list `open`. Then calls `quiet`, which must complete the transfers in the list. Finally
    /// empties the list.
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
