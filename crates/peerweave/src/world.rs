//! This PE's handle to the job. The handle creates teams, streams and symmetric memory.

use crate::choice::{self, BackendKind};
use crate::environment::{self, Settings};
use peerweave_bootstrap::Job;
use peerweave_core::Error;
use peerweave_core::backend::Backend;
use peerweave_host::{Host, HostOptions};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// A [`peerweave_core::World`] with additional constructors. This type dereferences to
/// [`peerweave_core::World`].
///
/// ```
/// use peerweave::{ReduceOp, World};
///
/// # fn main() -> Result<(), peerweave::Error> {
/// let world = World::from_env()?; // without a launcher: a single PE
/// let mut sum = [0.0f32; 2];
/// world.team().all_reduce_blocking(&[1.0, 2.0], &mut sum, ReduceOp::Sum)?;
/// assert_eq!(sum, [1.0, 2.0].map(|x| x * world.n_pes() as f32));
/// assert!(world.finalize()?.is_clean());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct World(peerweave_core::World);

impl World {
    /// Joins the job that the environment describes. The launcher of the job is `peerweave run`,
    /// `torchrun`, Open MPI, MPICH or Slurm. Without a launcher, creates a job of one PE. Reads
    /// settings from the variables in [`environment::names`], and uses the backend that
    /// [`BackendChoice`](crate::BackendChoice) describes.
    ///
    /// # Collective
    /// Every PE of the job must call this function once.
    ///
    /// # Joining twice
    /// In a job of several PEs, each PE can join only once. The other PEs have mapped the memory of
    /// the first join, and detect the death of the PE by the connection of the first join. A second
    /// join would replace neither the mapped memory nor the connection. So the rendezvous refuses
    /// the second call with [`Error::Setup`]. The text of the error says that this PE has already
    /// joined. A second process with the same PE number gets the same error.
    ///
    /// - Under `peerweave run`, the second call fails even after
    ///   [`finalize`](peerweave_core::World::finalize).
    /// - Under other launchers, PE 0 runs the rendezvous. Until `finalize`, the second call fails.
    ///   On PE 0, the second call fails after 3 s, because the address of the rendezvous is in use.
    ///   After `finalize`, it is unspecified whether a second call of all PEs succeeds.
    /// - In a job of one PE, with or without a launcher, each call creates a new job of one PE.
    ///
    /// Join once, and share the world: its methods take `&self`, so threads can share a reference,
    /// and a `static` can hold the world. For a smaller world after a failure, call
    /// [`World::shrink`] instead of joining again.
    ///
    /// # Errors
    /// - [`Error::Setup`] if the launcher's variables contradict each other, or if this PE has
    ///   joined before. Also [`Error::Setup`] if the value of `PEERWEAVE_ROUTE`, or the file of
    ///   `PEERWEAVE_ROUTE_TABLE`, is invalid.
    /// - [`Error::Timeout`] if PEs are missing at the deadline. The error names the missing PEs.
    /// - [`Error::Peer`] if a PE has died before all PEs have joined.
    /// - [`Error::Misuse`] if any other variable of Peerweave has an invalid value.
    pub fn from_env() -> Result<Self, Error> {
        Self::builder().build()
    }

    /// Returns a builder, which can override the settings of the environment.
    pub fn builder() -> WorldBuilder {
        WorldBuilder::default()
    }

    /// Creates a world of the PEs that remain after a failure, and ends this world. Calls
    /// [`peerweave_core::World::shrink`], which documents the details.
    ///
    /// # Collective
    /// All PEs that have neither died nor left the job must make this call.
    ///
    /// # Errors
    /// The errors of [`peerweave_core::World::shrink`].
    ///
    /// ```
    /// use peerweave::{ReduceOp, World};
    ///
    /// # fn main() -> peerweave::Result<()> {
    /// let mut world = World::from_env()?;
    /// let mut sum = [0];
    /// while let Err(error) = world.team().all_reduce_blocking(&[1], &mut sum, ReduceOp::Sum) {
    ///     eprintln!("{error}"); // names the PE that died
    ///     world = world.shrink()?;
    /// }
    /// assert_eq!(sum[0] as usize, world.n_pes());
    /// println!("{}", world.finalize()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn shrink(&self) -> Result<Self, Error> {
        self.0.shrink().map(Self)
    }

    /// Returns the `peerweave-core` world that this value contains.
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

/// Builds a [`World`]. For a setting that the builder does not set, the environment variable
/// determines the value. If the variable is not set either, the default applies.
#[derive(Debug, Default)]
pub struct WorldBuilder {
    backend: Option<Arc<dyn Backend>>,
    job: Option<Job>,
    deadline: Option<Duration>,
    heap_bytes: Option<usize>,
    check_calls: Option<bool>,
    cross_memory_attach: Option<bool>,
    kernel_seed: Option<u64>,
    device: Option<usize>,
}

impl WorldBuilder {
    /// Sets the backend of the world. The caller has created this backend, and the backend has
    /// already joined its job. So the other settings of this builder and the environment are
    /// ignored. A backend can serve only one world.
    #[must_use]
    pub fn backend(mut self, backend: Arc<dyn Backend>) -> Self {
        self.backend = Some(backend);
        self
    }

    /// Sets the job to join, instead of the job that the environment describes.
    #[must_use]
    pub fn job(mut self, job: Job) -> Self {
        self.job = Some(job);
        self
    }

    /// Sets the default time limit for each wait (`PEERWEAVE_DEADLINE`; default 60 s).
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Sets the size of the symmetric heap of each PE, in bytes (`PEERWEAVE_HEAP_BYTES`). Default:
    /// 1 GiB on GPUs. On the host backend, the default is the size of the machine's memory, and the
    /// system allocates a page when the page is first used.
    #[must_use]
    pub fn heap_bytes(mut self, bytes: usize) -> Self {
        self.heap_bytes = Some(bytes);
        self
    }

    /// Sets whether PEs on the host backend compare the full descriptions of their calls before the
    /// calls run (`PEERWEAVE_CHECK_CALLS`; default no).
    #[must_use]
    pub fn check_calls(mut self, check: bool) -> Self {
        self.check_calls = Some(check);
        self
    }

    /// Sets whether the host backend may read private buffers directly from the memory of other
    /// processes (`PEERWEAVE_CROSS_MEMORY_ATTACH`; default yes, if the system permits).
    #[must_use]
    pub fn cross_memory_attach(mut self, allowed: bool) -> Self {
        self.cross_memory_attach = Some(allowed);
        self
    }

    /// Sets the order in which the host backend runs the threads of kernels
    /// (`PEERWEAVE_KERNEL_SEED`). With 0, the default, the threads run in the order of their
    /// indices. With any other number, the order varies from launch to launch, to expose races. If
    /// the program runs again with the same number, the orders are the same.
    #[must_use]
    pub fn kernel_seed(mut self, seed: u64) -> Self {
        self.kernel_seed = Some(seed);
        self
    }

    /// Sets the GPU of this PE. `ordinal` is the number of the GPU among the GPUs that this process
    /// sees. Default: the PE with index `i` on its machine uses GPU `i`. If the process sees only
    /// one GPU, the PE uses that GPU. The host backend ignores this setting.
    #[must_use]
    pub fn device(mut self, ordinal: usize) -> Self {
        self.device = Some(ordinal);
        self
    }

    /// Joins the job.
    ///
    /// # Collective
    /// Every PE of the job must call this function once, with the same settings, except for the
    /// device. [`World::from_env`] describes what happens if a PE [joins
    /// twice](World#joining-twice). The same applies to a job from
    /// [`WorldBuilder::job`].
    ///
    /// # Errors
    /// The errors of [`World::from_env`].
    pub fn build(mut self) -> Result<World, Error> {
        let backend = match self.backend.take() {
            Some(backend) => backend,
            None => {
                let settings = Settings::from_env()?;
                let job = match &self.job {
                    Some(job) => job.clone(),
                    None => environment::job()?,
                };
                let choice = choice::decide(settings.backend.unwrap_or_default(), choice::gpus, job.local_n_pes)?;
                match choice.backend {
                    BackendKind::Host => Arc::new(Host::join(&job, &self.host_options(&settings))?),
                    BackendKind::Cuda => self.cuda(&job, &settings)?,
                }
            }
        };
        peerweave_core::World::new(backend).map(World)
    }

    /// Like [`on_threads`](crate::on_threads), but with the settings of this builder. Ignores the
    /// builder's backend and job. Each call creates a new job.
    ///
    /// # Errors
    /// The errors of [`on_threads`](crate::on_threads).
    ///
    /// ```
    /// use peerweave::World;
    /// use std::time::Duration;
    ///
    /// let settings = World::builder().deadline(Duration::from_secs(10)).heap_bytes(1 << 20);
    /// let pes = settings.on_threads(2, |world| world.my_pe().get())?;
    /// assert_eq!(pes, [0, 1]);
    /// # Ok::<(), peerweave::Error>(())
    /// ```
    pub fn on_threads<R: Send>(self, n_pes: usize, program: impl Fn(World) -> R + Sync) -> Result<Vec<R>, Error> {
        peerweave_host::on_threads(n_pes, &self.host_options(&Settings::from_env()?), |world| program(World::from(world)))
    }

    /// Returns the options for the host backend. If a setting is not in this builder, the
    /// environment determines the value. If the setting is not in the environment either, the
    /// default applies.
    fn host_options(&self, settings: &Settings) -> HostOptions {
        let mut options = HostOptions::default();
        options.deadline = self.deadline.or(settings.deadline).unwrap_or(options.deadline);
        options.heap_bytes = self.heap_bytes.or(settings.heap_bytes);
        options.check_calls = self.check_calls.or(settings.check_calls).unwrap_or(options.check_calls);
        options.cross_memory_attach =
            self.cross_memory_attach.or(settings.cross_memory_attach).unwrap_or(options.cross_memory_attach);
        options.kernel_seed = self.kernel_seed.or(settings.kernel_seed).unwrap_or(options.kernel_seed);
        options
    }

    /// Joins the job on the backend for GPUs, with the GPU of this PE.
    #[cfg(feature = "cuda")]
    fn cuda(&self, job: &Job, settings: &Settings) -> Result<Arc<dyn Backend>, Error> {
        Ok(peerweave_cuda::Cuda::join(job, &self.cuda_options_with(settings)?)?)
    }

    /// Returns the options that [`build`](Self::build) passes to the backend for GPUs. Programs
    /// that create the backend themselves can use these options.
    ///
    /// # Errors
    /// As for [`build`](Self::build), if the environment has an invalid setting.
    #[cfg(feature = "cuda")]
    pub fn cuda_options(&self) -> Result<peerweave_cuda::CudaOptions, Error> {
        self.cuda_options_with(&Settings::from_env()?)
    }

    #[cfg(feature = "cuda")]
    fn cuda_options_with(&self, settings: &Settings) -> Result<peerweave_cuda::CudaOptions, Error> {
        let mut options = peerweave_cuda::CudaOptions::default();
        options.deadline = self.deadline.or(settings.deadline).unwrap_or(options.deadline);
        options.heap_bytes = self.heap_bytes.or(settings.heap_bytes);
        options.device = self.device;
        options.nccl = settings.nccl.unwrap_or(options.nccl);
        options.route_table = settings.route_table.as_ref().map(std::path::PathBuf::from);
        if let Some(text) = &settings.route {
            // The error names the invalid text and the expected form.
            options.forced = text.parse::<peerweave_cuda::Forced>().map_err(|error| Error::setup("World::from_env", error))?;
        }
        Ok(options)
    }

    /// Returns an error, because this build cannot use GPUs.
    #[cfg(not(feature = "cuda"))]
    fn cuda(&self, _: &Job, _: &Settings) -> Result<Arc<dyn Backend>, Error> {
        let why = "this build of `peerweave` has no feature `cuda`: enable the feature, or use the host backend";
        Err(Error::Unsupported { call: "World::from_env", backend: "cuda", why })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_of_the_builder_overrides_the_environment() {
        let environment = Settings {
            deadline: Some(Duration::from_secs(2)),
            heap_bytes: Some(1 << 20),
            kernel_seed: Some(5),
            ..Settings::default()
        };
        let options = World::builder().deadline(Duration::from_secs(3)).host_options(&environment);
        assert_eq!((options.deadline, options.heap_bytes, options.kernel_seed), (Duration::from_secs(3), Some(1 << 20), 5));
        assert_eq!(World::builder().host_options(&Settings::default()), HostOptions::default());
    }
}
