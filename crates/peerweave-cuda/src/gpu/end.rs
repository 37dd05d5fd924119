//! The end of a GPU: its parts are released, and no thread holds the rendezvous any more.
//!
//! Threads of other crates free memory after the streams that used it have completed, and such
//! memory holds the rendezvous. Invariant: [`Gone`] is the last field of the struct whose parts it
//! waits for, so the parts have been dropped before it waits.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use peerweave_driver::{deadline_after, settle, wait};

use super::{Gpu, Inner};
use crate::error::{CudaError, misuse};
use crate::heap::Question;

/// Interval at which the parts are checked.
const LOOK: Duration = Duration::from_micros(200);
/// Time for which dropping a GPU waits for its parts, and ending a GPU for its modules.
const PATIENCE: Duration = Duration::from_secs(2);

/// Parts that threads may hold for a short time after the GPU is dropped. Dropping this value waits
/// for them.
pub(crate) struct Gone(Vec<Question>);

impl Gone {
    pub(crate) fn new(parts: Vec<Question>) -> Self {
        Self(parts)
    }

    /// Waits until all parts are released. Returns `false` at the time limit.
    fn wait(&mut self, longest: Duration) -> bool {
        let end = deadline_after(longest);
        loop {
            self.0.retain(|is_gone| !is_gone());
            if self.0.is_empty() || Instant::now() >= end {
                return std::mem::take(&mut self.0).is_empty();
            }
            std::thread::sleep(LOOK);
        }
    }
}

impl Drop for Gone {
    fn drop(&mut self) {
        if !std::thread::panicking() && !self.wait(PATIENCE) {
            tracing::debug!("memory of a GPU that was dropped is still in use after {PATIENCE:?}");
        }
    }
}

impl fmt::Debug for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gone({} parts)", self.0.len())
    }
}

impl Gpu {
    /// Ends the GPU. Waits for its work and for all PEs, releases heap, modules and context, and
    /// waits until no thread of this process holds the rendezvous for it. Each wait has the
    /// deadline of the GPU. [`Rendezvous::leave`](peerweave_bootstrap::Rendezvous::leave) can be
    /// called afterwards. On NVSHMEM's heap this also finalises NVSHMEM, unless the process has
    /// other handles of it.
    ///
    /// Dropping the last handle releases the same parts without the other PEs. It waits for threads
    /// for at most 2 s, reports no errors, and does not finalise NVSHMEM.
    ///
    /// # Collective
    /// All PEs, each with its last handle.
    ///
    /// # Errors
    /// [`CudaError::Misuse`] while there are other handles (clones, streams, memory, teams);
    /// nothing has ended then. All other errors are returned after this PE has released everything
    /// that it can. [`CudaError::PeLost`] and [`CudaError::Kernel`] for a failure of a kernel.
    /// [`CudaError::Bootstrap`] names a PE that did not arrive. [`CudaError::Stuck`] if work or
    /// threads do not end. Errors of the heap.
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use peerweave_bootstrap::{Job, Options, Rendezvous};
    /// # use peerweave_cuda::{Gpu, GpuOptions};
    /// # let job = Job::from_env()?;
    /// let rendezvous = Arc::new(Rendezvous::join(&job, Options::default())?);
    /// let context = peerweave_driver::context(job.local_pe as usize)?;
    /// let gpu = Gpu::new(&rendezvous, &context, GpuOptions::new(64 << 20))?;
    /// // … streams, memory and teams come and go …
    /// gpu.end()?;
    /// Arc::into_inner(rendezvous).expect("the last handle").leave()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn end(self) -> Result<(), CudaError> {
        const CALL: &str = "Gpu::end";
        let inner = Arc::try_unwrap(self.0).map_err(|shared| {
            let others = format!("in use by {} other handles", Arc::strong_count(&shared) - 1);
            misuse(CALL, "the GPU", others, "no other handle; drop clones, streams, memory and teams first")
        })?;
        inner.close(CALL)
    }
}

impl Inner {
    fn close(self, call: &'static str) -> Result<(), CudaError> {
        let longest = self.deadline;
        let worked = match wait(&self.stream, deadline_after(longest)) {
            Ok(true) => self.ended(call),
            Ok(false) => Err(CudaError::Stuck { call, waited: longest }),
            Err(error) => Err(error.into()),
        };
        // After this barrier, no kernel of another PE uses this PE's memory.
        let met = self.rendezvous.barrier("peerweave-cuda/end").map_err(CudaError::from);
        let Self { rendezvous, heap, sync, stream, report, tables, modules, mut gone, .. } = self;
        drop((modules, tables, report));
        let ended = match &met {
            Ok(()) => heap.free(sync).and_then(|()| heap.end()),
            // Without the other PEs no collective call is possible, so this PE ends its part alone.
            // It does so before the wait below, which also waits for this part.
            Err(_) => {
                drop((sync, heap));
                Ok(None)
            }
        };
        let ended = ended.map(|question| gone.0.extend(question));
        drop((stream, rendezvous));
        let start = Instant::now();
        let let_go = match gone.wait(longest) {
            true => Ok(()),
            false => Err(CudaError::Stuck { call, waited: start.elapsed() }),
        };
        // Another thread unloads the modules. If the process ends next, the driver shuts down, and
        // no thread may be in a call of it.
        if !settle(deadline_after(PATIENCE)) {
            tracing::debug!("memory or modules of a GPU that ended are still in use after {PATIENCE:?}");
        }
        worked.and(met).and(ended).and(let_go)
    }
}
