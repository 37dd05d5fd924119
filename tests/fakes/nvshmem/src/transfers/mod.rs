//! One-sided operations: puts, gets, signals, waits for words, atomics.
//!
//! Collectives are in module `collectives`. Invariant: the remote side is symmetric memory that is
//! live when it is accessed.

mod atomics;
mod puts;
mod signal;
mod transfer;
mod values;
mod waits;
