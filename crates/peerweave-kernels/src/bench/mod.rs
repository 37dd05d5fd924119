//! Measurements of one-sided operations from inside kernels: latency of puts, gets, signals, atomic
//! operations and barriers, and bandwidth by number of blocks.
//!
//! Each kernel repeats its operation `iterations` times, after [`WARM_UP`] repetitions that are not
//! measured, and writes the nanoseconds of one repetition to `result[0]`. These kernels run as one
//! block. The bandwidth kernels run as several blocks, and write the start time and the end time of
//! each block.

mod latency;
mod ping_pong;
mod synchronization;
mod throughput;

pub use latency::*;
pub use ping_pong::*;
pub use synchronization::*;
pub use throughput::*;

use peerweave_device::prelude::*;

/// Number of repetitions that are not measured, before the clock starts.
pub const WARM_UP: u32 = 20;

/// The clock of a measurement. It starts after the warm-up.
struct Clock {
    started: u64,
    iterations: u32,
}

impl Clock {
    #[inline(always)]
    fn new(iterations: u32) -> Self {
        Self { started: 0, iterations }
    }

    /// Starts the clock if the warm-up has ended. Must be called at the start of each repetition,
    /// with its index.
    #[inline(always)]
    fn tick(&mut self, repetition: u32) {
        if repetition == WARM_UP {
            self.started = gpu::now_ns();
        }
    }

    /// Writes the nanoseconds of one repetition. All threads call this function, and only the
    /// block's first thread writes.
    #[inline(always)]
    fn write(&self, result: DeviceSlice<u64>) {
        if gpu::thread_rank() == 0 && !result.is_empty() {
            let elapsed = gpu::now_ns().wrapping_sub(self.started);
            result.write(0, elapsed / u64::from(self.iterations.max(1)));
        }
    }
}
