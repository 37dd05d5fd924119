//! Incomplete transfers on NVSHMEM's own streams (`nbi`).
//!
//! A quiet or a barrier on a stream makes that stream wait for NVSHMEM's own streams. NVSHMEM then
//! forgets those transfers: a later quiet on the host does not wait for them, nor does the quiet
//! inside a free. So from then on their memory must wait for that stream.
//!
//! # Invariant
//! - **\[N1\]** The memory of an incomplete `nbi` transfer is listed here, or is recorded as used
//!   by a stream that waits for the transfer.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use peerweave_driver::CudaStream;

use crate::comm::Comm;
use crate::comm::streams::{Streams, wait_all};
use crate::error::{MisuseKind, NvshmemError};

/// The incomplete transfers.
#[derive(Default)]
pub(crate) struct Pending {
    open: Mutex<Open>,
    /// Streams that wait for transfers.
    taken: peerweave_driver::Streams,
}

/// For each memory of an incomplete transfer, the streams that use it. A stream is added when it
/// waits for the transfer.
pub(crate) struct Open {
    memory: Vec<Arc<Streams>>,
    /// Number of times that the list was emptied, by which a memory detects whether it is listed.
    emptied: u64,
}

impl Default for Open {
    fn default() -> Self {
        Self { memory: Vec::new(), emptied: 1 }
    }
}

impl Open {
    fn note(&mut self, streams: &Arc<Streams>) {
        // The counter changes only under this list's lock. Further transfers of the same memory
        // only compare it.
        if streams.pending.load(Ordering::Relaxed) != self.emptied {
            streams.pending.store(self.emptied, Ordering::Relaxed);
            self.memory.push(Arc::clone(streams));
        }
    }

    /// Empties the list: NVSHMEM has completed the transfers, or a stream waits for them.
    pub(crate) fn empty(&mut self) {
        self.emptied += 1;
        self.memory.clear();
    }
}

impl Pending {
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the memory of a transfer to the list. Hold the result until the transfer is enqueued.
    pub(crate) fn add(&self, memory: [Option<&Arc<Streams>>; 3]) -> MutexGuard<'_, Open> {
        let mut open = self.lock();
        memory.into_iter().flatten().for_each(|streams| open.note(streams));
        open
    }

    /// Records that a stream is about to wait for all listed transfers. Hold the result until it
    /// does, and then call [`empty`](Open::empty).
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

    /// Fails if a captured stream would have to wait for incomplete transfers.
    pub(crate) fn check_capture(&self, call: &'static str) -> Result<(), NvshmemError> {
        if self.lock().memory.is_empty() { Ok(()) } else { Err(outside(call)) }
    }

    /// Waits for the streams that wait for transfers, then completes the remaining ones.
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

/// Returns the error for a wait that NVSHMEM cannot capture: it would make the graph wait for a
/// stream outside of it, and end the process.
fn outside(call: &'static str) -> NvshmemError {
    let why =
        "transfers on NVSHMEM's own streams are pending, and a graph cannot wait for them; call quiet_blocking before capturing";
    NvshmemError::misuse(call, MisuseKind::Context { why })
}
