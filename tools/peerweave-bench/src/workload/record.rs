//! Messages from a PE to the command: one JSON object per line of the PE's standard output.
//!
//! Results are not sent through the library under test, so that a library that moves wrong data
//! cannot hide the error.

use std::io::Write;

use serde::{Deserialize, Serialize};

use super::geometry::Placement;

/// One message from a PE to the command.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Record {
    /// A PE has passed its first barrier.
    Ready(Ready),
    /// A PE has measured one case of the table, either in place or out of place.
    Measured(Measured),
    /// A note to print before a line of the table.
    Note(Note),
    /// Which contenders of a comparison are measured, and why the other contenders are not
    /// measured.
    Contenders(Contenders),
    /// In a comparison, a PE has measured one contender for one line of the table.
    Compared(Compared),
}

/// The contenders of a comparison: other libraries, and Peerweave's kernels. Lists the measured
/// contenders and those that are not measured.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Contenders {
    /// Names and versions of the contenders that are measured, in the order of the columns.
    pub present: Vec<(String, String)>,
    /// Names of the contenders that are not measured, with the reasons.
    pub absent: Vec<(String, String)>,
    /// Architecture of the GPUs, such as `sm_90`.
    pub arch: String,
}

/// The measurement that one PE made for one contender of a comparison.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Compared {
    /// Index of the PE.
    pub pe: usize,
    /// Index of the line in the table of results, from 0.
    pub row: usize,
    /// Name of the contender.
    pub contender: String,
    /// Calls per batch.
    pub iters: u64,
    /// Time per call in microseconds, for each batch; empty if the contender does not support the
    /// call.
    pub batch_us: Vec<f64>,
    /// Number of wrong elements; `None` if results were not checked.
    pub wrong: Option<u64>,
}

/// A note to print before a line of the table.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Note {
    /// Index of the line in the table of results, from 0.
    pub row: usize,
    /// The note, in one line.
    pub text: String,
}

/// Record of a PE that has passed its first barrier: identity and settings of the PE.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Ready {
    /// Index of the PE.
    pub pe: usize,
    /// Process ID of the PE.
    pub pid: u32,
    /// Name of the PE's backend.
    pub backend: String,
    /// Device or instruction set that computes reductions.
    pub compute: String,
    /// How ordinary buffers, which are not in symmetric memory, are transferred between PEs.
    pub private_buffers: String,
    /// Time at which the PE passed the first barrier, in nanoseconds of the machine's monotonic
    /// clock.
    pub passed_at_ns: u64,
}

/// The measurement that one PE made for one line of the table, either in place or out of place.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Measured {
    /// Index of the PE.
    pub pe: usize,
    /// Index of the line in the table of results, from 0.
    pub row: usize,
    /// Whether the in-place or the out-of-place form was measured.
    pub placement: Placement,
    /// Calls per batch.
    pub iters: u64,
    /// Time per call in microseconds, for each batch; empty for a PE that made no calls.
    pub batch_us: Vec<f64>,
    /// Number of wrong elements; `None` if results were not checked.
    pub wrong: Option<u64>,
}

/// Returns the time of the monotonic clock of this machine, in nanoseconds.
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Prints a record as one line with a single write, so that the lines of PEs that are threads do
/// not interleave.
pub(crate) fn say(record: &Record) {
    let mut line = serde_json::to_string(record).expect("the keys of all maps in a record are text");
    line.push('\n');
    // Ignores errors: if the command has died, this process is killed too.
    let _ = std::io::stdout().lock().write_all(line.as_bytes());
}
