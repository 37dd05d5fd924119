//! Lines, the 16-byte units in which kernels move data: how they are read, written, copied, pushed,
//! awaited and reduced.
//!
//! From the top down: [`push`] uses [`wait`], [`wait`] uses [`access`], and [`access`] uses
//! [`reduce`]. [`copy`] uses [`access`] only.

mod access;
pub(crate) mod copy;
pub(crate) mod push;
pub(crate) mod reduce;
pub(crate) mod wait;

pub(crate) use access::{Operand, per_line};
pub use peerweave_device::lines::LINE_BYTES;
pub(crate) use peerweave_device::lines::{Lines, has_arrived};
