//! What a PE tells the command while it measures: one JSON object per line of its standard output.
//!
//! Results travel this way, and not by the library that is measured, so that a library that moves wrong data cannot vouch for itself.

use serde::{Deserialize, Serialize};

use super::geometry::Placement;

/// One line.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Record {
    /// A PE has passed its first barrier.
    Ready(Ready),
    /// A PE has measured one placement of one line of the table.
    Measured(Measured),
}

/// Who a PE is.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Ready {
    /// Which.
    pub pe: usize,
    /// Its process.
    pub pid: u32,
    /// Its backend.
    pub backend: String,
    /// What computes.
    pub compute: String,
    /// How ordinary buffers take part.
    pub private_buffers: String,
    /// When it had passed the first barrier, in nanoseconds of the machine's monotonic clock.
    pub passed_at_ns: u64,
}

/// What one PE measured.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Measured {
    /// Which PE.
    pub pe: usize,
    /// Which line of the table.
    pub row: usize,
    /// Out of place or in place.
    pub placement: Placement,
    /// Calls per batch.
    pub iters: u64,
    /// Time per call in microseconds, for each batch; empty for a PE that only watched.
    pub batch_us: Vec<f64>,
    /// Elements that had wrong values; `None` where nothing was checked.
    pub wrong: Option<u64>,
}

/// Nanoseconds of the clock that all processes of the machine share.
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
