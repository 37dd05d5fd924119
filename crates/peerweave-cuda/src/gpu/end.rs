//! Ends a GPU: releases its memory and its modules, then waits for background threads of this
//! process that still hold a handle of the rendezvous.
//!
//! Each allocation of the GPU contains a handle of the rendezvous. After an allocation is dropped,
//! a background thread of another crate frees the memory, as soon as the streams that used the
//! memory have completed. [`Gone`] waits until the heap and NVSHMEM's context are released.
//! Invariant: [`Gone`] is the last field of [`Inner`], so all other fields are dropped before the
//! wait begins.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use peerweave_driver::{deadline_after, drain_retired, wait};

use super::{Gpu, Inner};
use crate::error::{CudaError, misuse};
use crate::heap::Question;

/// Interval at which [`Gone`] checks whether all other threads have released the heap of a GPU and
/// NVSHMEM's context.
const LOOK: Duration = Duration::from_micros(200);
/// Maximum time for which a drop of a GPU waits until no thread holds the GPU's heap or NVSHMEM's
/// context. Also the maximum time for which [`Gpu::end`] waits until a background thread has freed
/// memory and unloaded modules.
const PATIENCE: Duration = Duration::from_secs(2);

/// A guard that a GPU owns. After a GPU is dropped, other threads may hold the GPU's heap and
/// NVSHMEM's context for a short time. The drop of the guard waits until these threads have
/// released both, for at most [`PATIENCE`].
pub(crate) struct Gone(Vec<Question>);

impl Gone {
    pub(crate) fn new(parts: Vec<Question>) -> Self {
        Self(parts)
    }

    /// Waits until the heap and NVSHMEM's context are released, for at most `longest`. Returns
    /// whether both are released.
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
            tracing::debug!("memory of a dropped GPU is still in use after {PATIENCE:?}");
        }
    }
}

impl fmt::Debug for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gone({} parts)", self.0.len())
    }
}

impl Gpu {
    /// Ends the GPU. First waits until the GPU has completed its work and all PEs have made this
    /// call. Then releases the heap, the modules and the context. Last, waits until no thread of
    /// this process still uses the rendezvous for the GPU. The caller can then call
    /// [`Rendezvous::leave`](peerweave_bootstrap::Rendezvous::leave). The deadline of the GPU
    /// limits each wait.
    ///
    /// If NVSHMEM has allocated the heap, this call also finalises NVSHMEM, unless the process has
    /// other handles of NVSHMEM.
    ///
    /// Without this call, the drop of the GPU's last handle releases the heap, the modules and the
    /// context. The drop does not wait for the other PEs. It waits for threads for at most 2 s,
    /// reports no errors, and does not finalise NVSHMEM.
    ///
    /// # Collective
    /// All PEs. On each PE, `self` is the last handle of its GPU.
    ///
    /// # Errors
    /// [`CudaError::Misuse`] while there are other handles (clones, streams, memory, teams); the
    /// GPU is then unchanged. All other errors are returned after this PE has released everything
    /// that it can. [`CudaError::PeLost`] or [`CudaError::Kernel`] if a kernel has failed.
    /// [`CudaError::Bootstrap`] names a PE that did not arrive. [`CudaError::Stuck`] if work does
    /// not complete, or if threads do not release the rendezvous. Errors of the heap.
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use peerweave_bootstrap::{Job, Options, Rendezvous};
    /// # use peerweave_cuda::{Gpu, GpuOptions};
    /// # let job = Job::from_env()?;
    /// let rendezvous = Arc::new(Rendezvous::join(&job, Options::default())?);
    /// let context = peerweave_driver::context(job.local_pe as usize)?;
    /// let gpu = Gpu::new(&rendezvous, &context, GpuOptions::new(64 << 20))?;
    /// // … create and drop streams, memory and teams …
    /// gpu.end()?;
    /// Arc::into_inner(rendezvous).expect("the last handle").leave()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn end(self) -> Result<(), CudaError> {
        const CALL: &str = "Gpu::end";
        let inner = Arc::try_unwrap(self.0).map_err(|shared| {
            let others = format!("in use by {} other handles", Arc::strong_count(&shared) - 1);
            misuse(CALL, "the GPU", others, "no other handle: drop clones, streams, memory and teams first")
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
            // Without the other PEs no collective call is possible, so this PE releases its own
            // part alone. The wait below also covers this part, so the release precedes that wait.
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
        // Another thread unloads the modules. After this function, the process may end and shut
        // down the driver. No thread may call the driver during the shut-down.
        if !drain_retired(deadline_after(PATIENCE)) {
            tracing::debug!("memory or modules of a `Gpu` that was ended are still in use after {PATIENCE:?}");
        }
        worked.and(met).and(ended).and(let_go)
    }
}
