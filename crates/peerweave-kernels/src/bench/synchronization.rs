//! Latency of atomic operations and of barriers.

use super::{Clock, WARM_UP};
use peerweave_device::prelude::*;

macro_rules! atomic {
    ($name:ident, $call:ident, $words:literal) => {
        #[doc = concat!("Measures the latency of `", stringify!($call), "` (", $words, ") on a word of PE `pe`. One thread makes the calls, and each call waits for the previous call.")]
        #[kernel(max_threads = 256)]
        pub fn $name(ctx: &Context, word: SymSlice<u64>, pe: u32, iterations: u32, result: DeviceSlice<u64>) {
            if gpu::thread_rank() != 0 {
                return;
            }
            let mut clock = Clock::new(iterations);
            let mut sum = 0u64;
            for repetition in 0..iterations.saturating_add(WARM_UP) {
                clock.tick(repetition);
                sum = sum.wrapping_add(ctx.$call(word, 1 + (sum & 1), pe));
            }
            clock.write(result);
            if result.len() > 1 {
                result.write(1, sum);
            }
        }
    };
}

atomic!(bench_atomic, atomic_fetch_add, "with acquire and release order");
atomic!(bench_atomic_relaxed, atomic_fetch_add_relaxed, "with relaxed order");

macro_rules! barrier {
    ($name:ident, $call:ident, $words:literal, $calls:expr) => {
        #[doc = concat!("Measures a barrier of all PEs. On each PE, ", $words, " makes the calls.")]
        /// Writes the mean time of a barrier, in nanoseconds, to `result[0]`.
        ///
        /// # Errors
        /// Fails if a PE does not arrive before the deadline.
        #[kernel(max_threads = 256)]
        pub fn $name(ctx: &Context, iterations: u32, result: DeviceSlice<u64>) -> Result<(), Failed> {
            let mut clock = Clock::new(iterations);
            let calls = $calls;
            for repetition in 0..iterations.saturating_add(WARM_UP) {
                clock.tick(repetition);
                if calls {
                    ctx.$call()?;
                }
            }
            clock.write(result);
            Ok(())
        }
    };
}

barrier!(bench_barrier_thread, barrier_all, "one thread", gpu::thread_rank() == 0);
barrier!(bench_barrier_warp, barrier_all_warp, "one warp", gpu::warp() == 0);
barrier!(bench_barrier_block, barrier_all_block, "one block", true);
