//! [`Cuda`], the backend of one PE.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use peerweave_core::Error;
use peerweave_core::backend::StreamBackend;
use peerweave_driver::{CudaContext, CudaStream};

use super::CudaOptions;
use crate::backend::error::{driver, unsupported};
use crate::backend::lock::lock;
use crate::backend::state::State;
use crate::backend::streams::{CudaQueue, Queue};

/// The backend that runs one PE on a GPU. `World::new(Cuda::new(gpu)?)` creates a world with this
/// backend.
///
/// Each PE has its own GPU. A PE is a process, or a thread of a process. A table in the README of
/// this crate lists the implemented operations.
pub struct Cuda {
    pub(super) state: Arc<State>,
    pub(super) options: CudaOptions,
    /// The streams that the user has created or wrapped.
    queues: Mutex<Vec<Weak<Queue>>>,
}

impl Cuda {
    /// Creates the backend of a PE from the PE's state.
    pub(super) fn of(state: State, options: CudaOptions) -> Arc<Self> {
        Arc::new(Self { state: Arc::new(state), options, queues: Mutex::default() })
    }

    /// Returns the context of this PE's GPU. The caller can use cudarc to create streams and memory
    /// in this context.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.state.context
    }

    /// Returns a stream of cudarc as a stream of this backend, for
    /// [`World::adopt_stream`](peerweave_core::World::adopt_stream). In this stream, the
    /// application's work and Peerweave's operations run in the order in which they are enqueued.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the stream does not belong to the context of this PE's GPU.
    /// [`Error::System`] if the stream is a per-thread default stream.
    ///
    /// ```no_run
    /// # fn f(world: &peerweave_core::World, stream: std::sync::Arc<peerweave_driver::CudaStream>) -> peerweave_core::Result<()> {
    /// let cuda = world.backend::<peerweave_cuda::Cuda>().expect("the world runs on GPUs");
    /// let stream = world.adopt_stream(cuda.wrap_stream(stream)?)?;
    /// world.team().barrier(&stream)?.wait()
    /// # }
    /// ```
    pub fn wrap_stream(&self, stream: Arc<CudaStream>) -> Result<Arc<dyn StreamBackend>, Error> {
        const CALL: &str = "wrap_stream";
        if stream.context().cu_ctx() != self.state.context.cu_ctx() {
            return Err(unsupported(CALL, "the stream belongs to another context, expected the context of this PE's GPU"));
        }
        peerweave_driver::refuse_per_thread(CALL, &stream).map_err(|error| driver(CALL, error))?;
        Ok(self.adopt(CudaQueue::wrap(&self.state, stream)?))
    }

    /// Registers a stream of the user, so that [`drain`](Self::drain) waits for the work in the
    /// stream.
    pub(super) fn adopt(&self, queue: CudaQueue) -> Arc<dyn StreamBackend> {
        lock(&self.queues).push(Arc::downgrade(&queue.0));
        Arc::new(queue)
    }

    /// Returns the streams of the user that still exist.
    pub(super) fn live_queues(&self) -> Vec<Arc<Queue>> {
        let mut queues = lock(&self.queues);
        queues.retain(|queue| queue.strong_count() > 0);
        queues.iter().filter_map(Weak::upgrade).collect()
    }

    /// Waits until the streams that the application has created or wrapped have completed their
    /// work, at most until the deadline. Returns [`Error::Timeout`] at the deadline. Ignores
    /// failures of the work.
    pub(super) fn drain(&self, call: &'static str) -> Result<(), Error> {
        let start = Instant::now();
        for queue in self.live_queues() {
            let rest = self.state.deadline.saturating_sub(start.elapsed());
            // Failures of the work are ignored here, because the streams report them.
            if let Err(Error::Timeout(_)) = queue.synchronize(rest) {
                return Err(self.state.timed_out(call, self.state.world(), start.elapsed()));
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cuda({:?})", self.state)
    }
}
