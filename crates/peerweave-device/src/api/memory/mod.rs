//! Transfers: put and get, atomic operations, multicast, and bulk copies (TMA).

mod atomic;
pub(super) mod bulk;
pub(super) mod copy;
mod multicast;
mod rma;

pub use multicast::MulticastSlice;
