//! Transfers: put and get, atomic operations, multicast, and copies by the copy unit of an SM.

mod atomic;
pub(super) mod bulk;
pub(super) mod copy;
mod multicast;
mod rma;

pub use multicast::MulticastSlice;
