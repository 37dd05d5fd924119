//! Communication among PEs for Rust: collectives and one-sided operations on a symmetric heap.
//!
//! The host backend runs on the shared memory of one machine, and needs no GPU. With the feature
//! `cuda`, the same programs run on GPUs, with one GPU for each PE. `peerweave-cuda` lists the
//! supported features.
//!
//! ```text
//!   peerweave                this crate: World::from_env(), re-exports
//!     peerweave-core         the API and its checks
//!     peerweave-host         backend: PEs are processes or threads of one machine
//!     peerweave-cuda         backend: each PE has a GPU (feature `cuda`)
//!     peerweave-bootstrap    launcher environments, rendezvous
//!     peerweave-device       protocols for host and kernels
//! ```
//!
//! ```
//! use peerweave::{Rank, ReduceOp, World};
//!
//! # fn main() -> Result<(), peerweave::Error> {
//! let world = World::from_env()?;
//! let team = world.team();
//! let (mine, sum) = (world.alloc::<f32>(1024)?, world.alloc_zeroed::<f32>(1024)?); // on every PE
//! mine.fill(1.0)?;
//!
//! let stream = world.stream()?;
//! let ticket = team.all_reduce(&stream, &mine, &sum, ReduceOp::Sum)?; // stream-ordered
//! ticket.wait()?;
//! assert_eq!(sum.load(7)?, world.n_pes() as f32);
//!
//! team.barrier_blocking()?; // a neighbour's all-reduce may still be writing its `sum`
//! let right = Rank::new((world.my_pe().get() + 1) % world.n_pes() as u32);
//! team.put_blocking(&[2.0f32], &sum.slice(0..1)?, right)?; // one-sided
//! team.barrier_blocking()?; // every put is complete, including the put to this PE
//! assert_eq!(sum.load(0)?, 2.0);
//!
//! mine.release()?; // collective, like the allocation
//! sum.release()?;
//! assert!(world.finalize()?.is_clean());
//! # Ok(())
//! # }
//! ```
//!
//! The [`guide`] helps to choose an operation. It also lists Peerweave's equivalents for the
//! functions of MPI, OpenSHMEM, NCCL and `torch.distributed`.
//!
//! Start several PEs with `peerweave run -n 4 -- PROGRAM`, `torchrun`, `mpirun` or `srun`. In a
//! test, run the PEs as threads with [`on_threads`].

/// Runs the example of the project's README as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Project;

/// Runs the example of this crate's README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod choice;
pub mod environment;
pub mod guide;
mod world;

pub use choice::{BackendChoice, BackendKind};

pub use peerweave_bootstrap as bootstrap;
pub use peerweave_core::*;
#[cfg(feature = "cuda")]
pub use peerweave_cuda as cuda;
pub use peerweave_host as host;
/// Implements the trait [`Element`](trait@Element) for a struct. The trait documents the
/// requirements.
///
/// # Structs
/// The derive needs `#[repr(C)]` or `#[repr(transparent)]`, fields that are elements, and no
/// padding. A struct with padding does not compile: add an explicit field instead of the padding.
/// ```
/// use peerweave::{Element, Rank, ReduceOp, World};
///
/// #[derive(Clone, Copy, PartialEq, Debug, Element)]
/// #[repr(C)]
/// struct Particle {
///     position: [f64; 3],
///     charge: f32,
///     kind: u32,
/// }
///
/// #[derive(Clone, Copy, PartialEq, Debug, Element)]
/// #[element(reduce)] // all fields have the same type of values
/// #[repr(C)]
/// struct Statistics {
///     count: f64,
///     sums: [f64; 2],
/// }
///
/// # fn main() -> peerweave::Result<()> {
/// let world = World::from_env()?;
/// let (team, me) = (world.team(), world.my_pe().get());
/// let mut first = Particle { position: [0.5; 3], charge: me as f32, kind: me };
/// team.broadcast_in_place_blocking(&mut first, Rank::new(0))?;
/// assert_eq!(first, Particle { position: [0.5; 3], charge: 0.0, kind: 0 });
///
/// let mut all = Statistics { count: 1.0, sums: [f64::from(me), 2.0] };
/// team.all_reduce_in_place_blocking(&mut all, ReduceOp::Sum)?;
/// assert_eq!((all.count, all.sums[1]), (world.n_pes() as f64, 2.0 * world.n_pes() as f64));
/// assert!(world.finalize()?.is_clean());
/// # Ok(())
/// # }
/// ```
/// A struct with padding is refused:
/// ```compile_fail,E0080
/// # use peerweave::Element;
/// #[derive(Clone, Copy, PartialEq, Debug, Element)]
/// #[repr(C)]
/// struct Padded {
///     wide: u64,
///     narrow: u32, // four bytes of padding follow
/// }
/// ```
/// A field that is not an element is refused too:
/// ```compile_fail,E0277
/// # use peerweave::Element;
/// #[derive(Clone, Copy, PartialEq, Debug, Element)]
/// #[repr(C)]
/// struct Named {
///     name: &'static str,
/// }
/// ```
///
/// # `bool`
/// `bool` is not an element, because a peer could write a byte that is neither 0 nor 1: use
/// [`Bool`].
/// ```compile_fail,E0277
/// # let world = peerweave::World::from_env().unwrap();
/// world.alloc::<bool>(1).unwrap();
/// ```
pub use peerweave_macros::Element;
pub use world::{World, WorldBuilder};

/// Runs `program` on `n_pes` PEs of the host backend, with one thread for each PE. Intended for
/// tests and for learning.
///
/// Reads settings from the variables in [`environment::names`], as [`World::from_env`] does. To
/// pass settings from the program instead, use [`WorldBuilder::on_threads`].
///
/// Returns the results in the order of PEs. If a PE panics, the PE leaves the job, and the other
/// PEs get an error that names this PE. The panic resumes on the calling thread once all PEs have
/// ended.
///
/// Each call creates a new job, which does not use the variables of a launcher. Therefore a process
/// may call this function several times, also concurrently. Use the `world` that `program` gets:
/// [`World::from_env`] would join the job of the launcher, or create a job of one PE.
///
/// # Errors
/// - [`Error::Aborted`], instead of the results, if a PE has called
///   [`World::abort`](peerweave_core::World::abort).
/// - [`Error::Setup`] if the shared memory cannot be created.
/// - [`Error::Misuse`] if one of Peerweave's variables has an invalid value.
///
/// Errors that `program` returns are part of the results.
///
/// ```
/// use peerweave::{ReduceOp, on_threads};
///
/// let sums = on_threads(3, |world| {
///     let mut sum = [0u32];
///     world.team().all_reduce_blocking(&[world.my_pe().get()], &mut sum, ReduceOp::Sum)?;
///     Ok::<_, peerweave::Error>(sum[0])
/// })?;
/// assert!(sums.into_iter().all(|sum| sum.is_ok_and(|sum| sum == 0 + 1 + 2)));
/// # Ok::<(), peerweave::Error>(())
/// ```
pub fn on_threads<R: Send>(n_pes: usize, program: impl Fn(World) -> R + Sync) -> Result<Vec<R>, Error> {
    World::builder().on_threads(n_pes, program)
}
