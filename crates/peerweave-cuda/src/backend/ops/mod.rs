//! The operations of the portable API: each one enqueues copies and kernels on a stream.
//!
//! ```text
//!  dispatch.rs      enqueues an operation by its kind
//!  one_sided.rs     operations of this PE alone, and accesses to the memory of another PE
//!  waits.rs         waits for words, and tests of words
//!  by_nccl.rs       collectives by NCCL
//!  functions.rs     reductions by a function of the caller, on the host
//!  norm.rs          all_reduce with residual and RMSNorm
//!  strides.rs       operations with strides
//!  transfers.rs     sends and receives, and collectives with parts of different lengths
//!  collectives.rs   the other collectives, by the kernels of `collective`
//!  order.rs         the order of a team's collectives
//! ```

mod by_nccl;
mod collectives;
mod dispatch;
mod functions;
mod norm;
mod one_sided;
mod order;
mod strides;
mod transfers;
mod waits;

pub(crate) use collectives::NO_KERNELS;
pub(crate) use dispatch::enqueue;
