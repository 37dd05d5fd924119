//! How a world is made: from the environment, or piece by piece. What it does is in `peerweave-core`.

use crate::environment::{self, Settings};
use peerweave_bootstrap::Job;
use peerweave_core::backend::Backend;
use peerweave_core::{Error, FinalizeReport};
use peerweave_host::{Host, HostOptions};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// All PEs of the job, as one of them sees them: where everything begins.
///
/// This is [`peerweave_core::World`] with the ways to make one; everything else is reached through it.
///
/// ```
/// use peerweave::{ReduceOp, World};
///
/// # fn main() -> Result<(), peerweave::Error> {
/// let world = World::from_env()?; // without a launcher: a single PE
/// let mut sum = [0.0f32; 2];
/// world.team().all_reduce_blocking(&[1.0, 2.0], &mut sum, ReduceOp::Sum)?;
/// assert_eq!(sum, [1.0, 2.0].map(|x| x * world.n_pes() as f32));
/// world.finalize()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct World(peerweave_core::World);

impl World {
    /// Joins the job that the environment describes: that of `peerweave run`, `torchrun`, Open MPI, MPICH or Slurm; without one of them,
    /// a job of one PE. Settings are taken from the variables of [`environment::names`].
    ///
    /// # Collective
    /// Every PE of the job calls it.
    ///
    /// # Errors
    /// [`Error::Setup`] where the launcher's variables contradict each other or PEs do not come (it names those that are missing);
    /// [`Error::Misuse`] where one of Peerweave's own variables has a value that it cannot have.
    pub fn from_env() -> Result<Self, Error> {
        Self::builder().build()
    }

    /// Starts to make a world whose settings differ from the environment's.
    pub fn builder() -> WorldBuilder {
        WorldBuilder::default()
    }

    /// The end of this PE's part in the job; see [`peerweave_core::World::finalize`].
    ///
    /// # Collective
    /// Every PE of the job calls it.
    ///
    /// # Errors
    /// As the core's.
    pub fn finalize(self) -> Result<FinalizeReport, Error> {
        self.0.finalize()
    }

    /// Gives up the convenience of this type.
    pub fn into_core(self) -> peerweave_core::World {
        self.0
    }
}

impl From<peerweave_core::World> for World {
    fn from(world: peerweave_core::World) -> Self {
        Self(world)
    }
}

impl Deref for World {
    type Target = peerweave_core::World;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// Makes a [`World`]. What is not set is taken from the environment, and what is not set there has a default.
#[derive(Debug, Default)]
pub struct WorldBuilder {
    backend: Option<Arc<dyn Backend>>,
    job: Option<Job>,
    deadline: Option<Duration>,
    heap_bytes: Option<usize>,
    check_calls: Option<bool>,
    cross_memory_attach: Option<bool>,
}

impl WorldBuilder {
    /// A backend that is ready made, its own settings included; the settings of this builder are then for nobody.
    #[must_use]
    pub fn backend(mut self, backend: Arc<dyn Backend>) -> Self {
        self.backend = Some(backend);
        self
    }

    /// The job to join, in place of the one that the environment describes.
    #[must_use]
    pub fn job(mut self, job: Job) -> Self {
        self.job = Some(job);
        self
    }

    /// The deadline of every wait that is given none (`PEERWEAVE_DEADLINE`; 60 s).
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Bytes of symmetric heap of each PE (`PEERWEAVE_HEAP_BYTES`; as much as the machine has memory: pages cost nothing until touched).
    #[must_use]
    pub fn heap_bytes(mut self, bytes: usize) -> Self {
        self.heap_bytes = Some(bytes);
        self
    }

    /// Whether PEs compare calls in full before they run them (`PEERWEAVE_CHECK_CALLS`; no).
    #[must_use]
    pub fn check_calls(mut self, check: bool) -> Self {
        self.check_calls = Some(check);
        self
    }

    /// Whether private buffers may be read out of other processes (`PEERWEAVE_CROSS_MEMORY_ATTACH`; yes, where permitted).
    #[must_use]
    pub fn cross_memory_attach(mut self, allowed: bool) -> Self {
        self.cross_memory_attach = Some(allowed);
        self
    }

    /// Joins the job.
    ///
    /// # Collective
    /// Every PE of the job calls it, with the same settings.
    ///
    /// # Errors
    /// As [`World::from_env`].
    pub fn build(self) -> Result<World, Error> {
        let backend = match self.backend {
            Some(backend) => backend,
            None => {
                let settings = Settings::from_env()?;
                let mut options = HostOptions::default();
                options.deadline = self.deadline.or(settings.deadline).unwrap_or(options.deadline);
                options.heap_bytes = self.heap_bytes.or(settings.heap_bytes);
                options.check_calls = self.check_calls.or(settings.check_calls).unwrap_or(options.check_calls);
                options.cross_memory_attach =
                    self.cross_memory_attach.or(settings.cross_memory_attach).unwrap_or(options.cross_memory_attach);
                let job = match self.job {
                    Some(job) => job,
                    None => environment::job()?,
                };
                Arc::new(Host::join(&job, &options)?)
            }
        };
        peerweave_core::World::new(backend).map(World)
    }
}
