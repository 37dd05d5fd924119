//! Measurements of one-sided operations from inside kernels: latency of puts, gets, atomic
//! operations and barriers, time of a round trip with signals, and bandwidth by number of blocks.
//!
//! A latency kernel runs as one block. The kernel repeats its operation `iterations` times, after
//! [`WARM_UP`] repetitions that are not measured, and writes the average time of one repetition to
//! `result[0]`, in nanoseconds. A bandwidth kernel runs as several blocks, and writes the start
//! time and the end time of each block.

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

/// The clock of a measurement. The clock starts after the warm-up.
struct Clock {
    started: u64,
    iterations: u32,
}

impl Clock {
    #[inline(always)]
    fn new(iterations: u32) -> Self {
        Self { started: 0, iterations }
    }

    /// Starts the clock if `repetition` is the first repetition after the warm-up. Each thread must
    /// call this method at the start of each repetition.
    #[inline(always)]
    fn tick(&mut self, repetition: u32) {
        if repetition == WARM_UP {
            self.started = gpu::now_ns();
        }
    }

    /// Writes the average time of one repetition, in nanoseconds, to `result[0]`. All threads call
    /// this method, and only the block's first thread writes.
    #[inline(always)]
    fn write(&self, result: DeviceSlice<u64>) {
        if gpu::thread_rank() == 0 && !result.is_empty() {
            let elapsed = gpu::now_ns().wrapping_sub(self.started);
            result.write(0, elapsed / u64::from(self.iterations.max(1)));
        }
    }
}
