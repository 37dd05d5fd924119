//! Transfers that were left to NVSHMEM's own streams (`nbi`), until somebody completes them.
//!
//! A quiet or a barrier on a stream makes that stream wait for NVSHMEM's own, and NVSHMEM forgets
//! them at once: a later quiet on the host, also the one inside of a free, waits for nothing more.
//! So from then on that stream is what the memory of those transfers has to wait for.
//!
//! # Invariant
//! - **\[N1\]** What an `nbi` transfer reads or writes is known here, or as used by a stream that
//!   waits for the transfer, or the transfer is complete.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use peerweave_driver::CudaStream;

use crate::comm::Comm;
use crate::comm::streams::{Streams, pass_all};
use crate::error::{MisuseKind, NvshmemError};

/// What was left.
#[derive(Default)]
pub(crate) struct Pending {
    open: Mutex<Open>,
    /// Streams that took transfers over.
    taken: peerweave_driver::Streams,
}

/// By memory: the streams that use it, to which one is added when the transfer is taken over.
pub(crate) struct Open {
    memory: Vec<Arc<Streams>>,
    /// Counts how often the list was emptied, so that memory knows whether it is in it.
    emptied: u64,
}

impl Default for Open {
    fn default() -> Self {
        Self { memory: Vec::new(), emptied: 1 }
    }
}

impl Open {
    fn note(&mut self, streams: &Arc<Streams>) {
        // Under this list's lock alone; a row of transfers between the same memory looks, and that
        // is all.
        if streams.pending.load(Ordering::Relaxed) != self.emptied {
            streams.pending.store(self.emptied, Ordering::Relaxed);
            self.memory.push(Arc::clone(streams));
        }
    }

    /// NVSHMEM has completed it, or a stream will.
    pub(crate) fn empty(&mut self) {
        self.emptied += 1;
        self.memory.clear();
    }
}

impl Pending {
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A transfer between pieces of memory is about to be left; the result is to be held until it
    /// is.
    pub(crate) fn add(&self, memory: [Option<&Arc<Streams>>; 3]) -> MutexGuard<'_, Open> {
        let mut open = self.lock();
        memory.into_iter().flatten().for_each(|streams| open.note(streams));
        open
    }

    /// The stream is about to take over everything that was left; the result is to be held until it
    /// has, and then [emptied](Open::empty).
    pub(crate) fn take_over(
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

    /// An error where a captured stream would have to wait for transfers that were left.
    pub(crate) fn check_capture(&self, call: &'static str) -> Result<(), NvshmemError> {
        if self.lock().memory.is_empty() { Ok(()) } else { Err(outside(call)) }
    }

    /// Waits for the streams that took over, then completes what nobody has.
    pub(crate) fn complete(
        &self,
        call: &'static str,
        comm: &Comm,
        quiet: impl FnOnce() -> Result<(), NvshmemError>,
    ) -> Result<(), NvshmemError> {
        pass_all(call, comm, &self.taken)?;
        let mut open = self.lock();
        quiet()?;
        open.empty();
        Ok(())
    }
}

/// NVSHMEM would have the graph wait for a stream outside of it, and end the process.
fn outside(call: &'static str) -> NvshmemError {
    let why = "transfers were left to NVSHMEM's own streams, which a graph cannot wait for: call quiet_blocking before capturing";
    NvshmemError::misuse(call, MisuseKind::Context { why })
}
