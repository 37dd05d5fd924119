//! Measures the time of a round trip between two PEs. One PE puts elements and a signal to the
//! other PE, which waits for the signal and then does the same.

use super::{Clock, WARM_UP};
use peerweave_device::prelude::*;

/// The parameters of a ping-pong between two PEs.
#[derive(Clone, Copy, Debug, KernelArg)]
#[repr(C)]
pub struct PingPong {
    /// Destination of the puts, on each of the two PEs.
    pub to: SymSlice<u32>,
    /// Source of the puts, with the same length as `to`.
    pub from: SymSlice<u32>,
    /// One signal word, initially 0.
    pub signal: SymSlice<u64>,
    /// The other PE.
    pub peer: u32,
    /// 1 on the PE that starts, 0 on the other PE.
    pub begins: u32,
}

macro_rules! ping_pong {
    ($threads:tt: $name:ident, $put_signal:ident, $wait:ident, $words:literal, $calls:expr) => {
        #[doc = concat!("Measures a round trip between two PEs. A PE puts elements and a signal to the other PE, which then answers in the same way. On each PE, ", $words, " makes the calls.")]
        ///
        /// # Errors
        /// Fails if the other PE does not answer before the deadline.
        #[kernel(max_threads = $threads)]
        pub fn $name(ctx: &Context, game: PingPong, iterations: u32, result: DeviceSlice<u64>) -> Result<(), Failed> {
            let PingPong { to, from, signal, peer, begins } = game;
            let mut clock = Clock::new(iterations);
            let calls = $calls;
            for repetition in 0..iterations.saturating_add(WARM_UP) {
                clock.tick(repetition);
                let value = u64::from(repetition) + 1;
                if calls {
                    if begins != 0 {
                        ctx.$put_signal(to, from, signal, value, SignalOp::Set, peer);
                    }
                    ctx.$wait(signal, Compare::Ge, value, peer)?;
                    if begins == 0 {
                        ctx.$put_signal(to, from, signal, value, SignalOp::Set, peer);
                    }
                }
            }
            clock.write(result);
            Ok(())
        }
    };
}

ping_pong!(128: bench_ping_pong_thread, put_signal, signal_wait_until_from, "one thread", gpu::thread_rank() == 0);
ping_pong!(128: bench_ping_pong_warp, put_signal_warp, signal_wait_until_from_warp, "one warp", gpu::warp() == 0);
ping_pong!(1024: bench_ping_pong_block, put_signal_block, signal_wait_until_from_block, "one block", true);
