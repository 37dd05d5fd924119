//! The portable API of Peerweave, its validation, and the contract of a backend.
//!
//! This crate does not move data between PEs. A [`backend::Backend`], which is passed to
//! [`World::new`], moves the data. This crate depends on no backend. The crate `peerweave` chooses
//! a backend and re-exports this API.
//!
//! ```text
//!   ops/         all_reduce, put, wait_until, …: methods of teams, worlds and streams, typed
//!    │  call.rs   the only file that passes operations to the backend
//!   check/       turns every wrong call into a `Misuse`, before anything is enqueued
//!    │
//!   world/       the handles: world, team, stream, ticket
//!   arguments/   arguments of calls: symmetric memory, buffers, signal words, reductions
//!    │
//!   shared.rs    the state that all handles of a world share
//!   backend/     the contract of a backend; operations as plain data
//! ```
//!
//! Every operation has two forms. The *stream-ordered* form has the short name: it takes a
//! [`Stream`], returns a [`Ticket`] at once, and runs after earlier operations on the stream. The
//! *blocking* form, which has `_blocking` in its name, runs on the calling thread and returns when
//! the operation is complete.
//!
//! Operations take four kinds of memory, through [`Source`] and [`Dest`]:
//! - [`Symmetric`]: memory that all PEs allocate together. Symmetric memory is the target of
//!   one-sided operations, and the fastest memory for all operations;
//! - [`Buffer`]: reference-counted ordinary memory, which stream-ordered operations can use;
//! - [`OnDevice`]: device memory together with its owner, for backends that use that device;
//! - slices, arrays and vectors of the calling program, which only the blocking forms accept,
//!   because a stream cannot hold a borrow.
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

mod arguments;
#[allow(unsafe_code, reason = "this module declares the unsafe traits that backends implement")]
pub mod backend;
mod bounds;
mod call;
mod check;

pub mod noop;
mod ops;
mod pools;
mod shared;
mod world;

pub use arguments::{
    Buffer, Dest, MaybeDest, MaybeSource, NormElement, OnDevice, OutputScale, Parts, QuantizedElement, ReduceFn, Reduction,
    RmsNorm, RowScales, Signal, SignalUpdate, Source, StreamDest, StreamOutputScale, StreamSource, Symmetric, SymmetricRange,
    WaitWord, none,
};
pub use backend::error::{AwaitedWord, Error, KernelFailure, Mismatch, Misuse, MisuseKind, PeerCause, TeamName, Timeout};
pub use backend::{
    AccumulatorType, AfterFailure, CallChecking, Caps, NanRule, PrivateBuffers, ReductionCaps, ReductionOrder, VectorCounts,
};
pub use ops::{BlockingGroup, Group, LaunchArg, LaunchArgs, LaunchShape};
pub use ops::{Context, Lock, LockGuard};
pub use peerweave_types::{
    AtomicElement, AtomicInteger, Bool, Compare, DType, DeviceSlice, Dim3, Element, F8E4M3, F8E5M2, FailureKind, HeapGeometry,
    Integer, KernelArg, KernelOp, Number, Pe, Plain, Rank, ReduceOp, Scalar, SignalOp, SingleElement, Strides, SymOffset,
    SymSlice, TeamShape, WaitElement, bf16, derived, f16,
};
pub use shared::{FinalizeReport, LeakedBuffer};
pub use world::{Event, Stream, Team, Ticket, World};

/// The result of a Peerweave call; by default, the error type is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;
