//! One-sided operations: transfers, atomics, signals, the ordering of these operations, and waits.

mod address;
mod atomic;
mod context;
mod local;
mod order;
mod signal;
mod transfers;
mod wait;
mod wait_vector;

pub use context::Context;
