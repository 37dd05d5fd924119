//! Collectives, sends, receives, and groups of operations.

mod blocking;
mod exchange_counts;
mod functions;
mod group;
mod on_stream;
mod parts;
mod rms_norm;
mod scan;
mod strided;

pub use group::{BlockingGroup, Group};
