//! Transfers that were left to NVSHMEM's own streams (`nbi`), until somebody completes them.
//!
//! A quiet or a barrier on a stream makes that stream wait for NVSHMEM's own, and NVSHMEM forgets them at once: a later quiet on the host, also the one
//! inside of a free, waits for nothing more. So from then on that stream is what the memory of those transfers has to wait for.
//!
//! # Invariant
//! - **\[N1\]** What an `nbi` transfer reads or writes is known here, or as used by a stream that waits for the transfer, or the transfer is complete.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use peerweave_driver::CudaStream;

use crate::context::Inner;
use crate::error::{MisuseKind, NvshmemError};
use crate::streams::Streams;

/// What was left.
#[derive(Default)]
pub(crate) struct Left {
    open: Mutex<Open>,
    /// Streams that took transfers over.
    taken: Streams,
}

/// By memory: the streams that use it, to which one is added when the transfer is taken over.
#[derive(Default)]
pub(crate) struct Open(Vec<Arc<Streams>>);

impl Left {
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A transfer between two pieces of memory is about to be left; the result is to be held until it is.
    pub(crate) fn leave(&self, memory: [&Arc<Streams>; 2]) -> MutexGuard<'_, Open> {
        let mut open = self.lock();
        for streams in memory {
            if !open.0.iter().any(|known| Arc::ptr_eq(known, streams)) {
                open.0.push(Arc::clone(streams));
            }
        }
        open
    }

    /// The stream is about to take over everything that was left; the result is to be held until it has.
    pub(crate) fn take_over(
        &self,
        call: &'static str,
        stream: &Arc<CudaStream>,
        capturing: bool,
    ) -> Result<MutexGuard<'_, Open>, NvshmemError> {
        let mut open = self.lock();
        if !open.0.is_empty() {
            if capturing {
                return Err(outside(call));
            }
            self.taken.note(stream);
            open.0.drain(..).for_each(|streams| streams.note(stream));
        }
        Ok(open)
    }

    /// An error where a captured stream would have to wait for transfers that were left.
    pub(crate) fn check_capture(&self, call: &'static str) -> Result<(), NvshmemError> {
        if self.lock().0.is_empty() { Ok(()) } else { Err(outside(call)) }
    }

    /// Waits for the streams that took over, then completes what nobody has.
    pub(crate) fn complete(
        &self,
        call: &'static str,
        inner: &Inner,
        quiet: impl FnOnce() -> Result<(), NvshmemError>,
    ) -> Result<(), NvshmemError> {
        self.taken.settle(call, inner)?;
        let mut open = self.lock();
        quiet()?;
        open.0.clear();
        Ok(())
    }
}

/// NVSHMEM would have the graph wait for a stream outside of it, and end the process.
fn outside(call: &'static str) -> NvshmemError {
    let why = "transfers were left to NVSHMEM's own streams, which a graph cannot wait for: call quiet_blocking before capturing";
    NvshmemError::misuse(call, MisuseKind::Context { why })
}
