//! The portable API of Peerweave, all of its validation, and the contract that a backend fulfils.
//!
//! Nothing here moves data between PEs: a [`backend::Backend`] does, given as a value to [`World::new`]. Nothing here knows which backends
//! there are; the crate `peerweave` picks one and re-exports this API.
//!
//! ```text
//!   World ── Team ── all_reduce, put, wait_until, …     typed; generic over the element
//!     │        │
//!     │     check.rs      every wrong use becomes a `Misuse`, before anything is enqueued
//!     │        │
//!     │      call.rs      the only place that hands operations over
//!     └────────┴───── dyn Backend                       erased: `Op` is plain data
//! ```
//!
//! Every operation has two forms. The short name is *stream-ordered*: it takes a [`Stream`], returns a [`Ticket`] at once, and runs after
//! what was enqueued before it. The name with `_blocking` runs on the calling thread and returns when it is complete.
//!
//! Memory comes in three kinds, which operations take through [`Source`] and [`Dest`]:
//! - [`Symmetric`]: allocated by all PEs together; the only target of one-sided operations, and the fast one everywhere;
//! - [`Buffer`]: ordinary memory that may be in flight, shared by reference counting;
//! - slices, arrays and vectors of the caller: in the blocking forms only, since a queue cannot hold a borrow.
//!
//! ```
//! use peerweave::{Rank, ReduceOp, World};
//!
//! # fn main() -> peerweave::Result<()> {
//! let world = World::from_env()?; // PEs are started by a launcher; without one, a job of one PE
//! let team = world.team();
//! let (mine, sum) = (world.alloc::<f32>(4)?, world.alloc_zeroed::<f32>(4)?);
//! mine.copy_from(&[1.0, 2.0, 3.0, 4.0])?;
//! team.all_reduce_blocking(&mine, &sum, ReduceOp::Sum)?;
//! assert_eq!(sum.to_vec()?, [1.0, 2.0, 3.0, 4.0].map(|x| x * world.n_pes() as f32));
//!
//! team.barrier_blocking()?; // no PE's `sum` is written or read by that all-reduce any more
//! let right = Rank::new((team.my_rank().get() + 1) % team.size() as u32);
//! team.put_blocking(&[5.0], &sum.slice(3..4)?, right)?;
//! team.barrier_blocking()?; // all puts are complete
//! assert_eq!(sum.load(3)?, 5.0);
//!
//! mine.release()?; // collective, like the allocation
//! sum.release()?;
//! assert!(world.finalize()?.is_clean());
//! # Ok(())
//! # }
//! ```
#![deny(unsafe_code)]

mod argument;
mod atomic;
#[allow(unsafe_code, reason = "the traits that a backend implements are unsafe")]
pub mod backend;
mod buffer;
mod call;
mod check;
mod collective;
mod collective_blocking;
mod error;
mod fork;
mod group;
mod launch;
pub mod noop;
mod one_sided;
mod reduction;
mod shared;
mod shared_bytes;
mod signal;
mod stream;
mod symmetric;
mod team;
mod ticket;
mod world;

pub use argument::{Dest, MaybeDest, MaybeSource, Source, StreamDest, StreamSource, none};
pub use backend::{CallChecking, Caps, PrivateBuffers, VectorCounts};
pub use buffer::Buffer;
pub use error::{Error, KernelFailure, Mismatch, Misuse, MisuseKind, PeerCause, TeamName, Timeout};
pub use group::{BlockingGroup, Group};
pub use launch::{LaunchArg, LaunchArgs, LaunchShape};
pub use one_sided::Strides;
pub use peerweave_types::{
    AtomicElement, AtomicInteger, Compare, DType, DeviceSlice, Dim3, Element, F8E4M3, F8E5M2, FailureKind, HeapGeometry, Integer,
    KernelArg, KernelOp, Number, Pe, Rank, ReduceOp, SignalOp, SymOffset, SymSlice, TeamShape, bf16, f16,
};
pub use reduction::Reduction;
pub use shared::{FinalizeReport, LeakedBuffer};
pub use signal::{Signal, SignalUpdate};
pub use stream::{Event, Stream};
pub use symmetric::Symmetric;
pub use team::Team;
pub use ticket::Ticket;
pub use world::World;

/// A result of Peerweave.
pub type Result<T, E = Error> = std::result::Result<T, E>;
