//! The executor of kernels on the host. The executor implements the functions of `peerweave-device`
//! for the kernel thread that is running on this host thread. Outside of kernels, the executor
//! behaves like a block of one thread.

use crate::engine::current;
use crate::network;
use peerweave_device::arch::{Executor, Single, set_executor};
use peerweave_device::network::call::Call;
use peerweave_types::Dim3;

/// The executor that runs the kernels of this process.
#[derive(Debug)]
struct Grid(#[allow(dead_code, reason = "nothing reads the field, but it gives the static variable a unique address")] u8);

static GRID: Grid = Grid(0);

/// Sets the executor of this crate as the executor of kernels in this process.
///
/// # Panics
/// If a different crate has already set the executor of this process.
pub(crate) fn install() {
    set_executor(&GRID).expect("only peerweave-grid sets the executor of kernels in this process");
}

impl Executor for Grid {
    fn thread_idx(&self) -> Dim3 {
        current().map_or(Dim3::ZERO, |thread| thread.thread_idx)
    }

    fn block_idx(&self) -> Dim3 {
        current().map_or(Dim3::ZERO, |thread| thread.block_idx)
    }

    fn block_dim(&self) -> Dim3 {
        current().map_or(Dim3::ONE, |thread| thread.block_dim)
    }

    fn grid_dim(&self) -> Dim3 {
        current().map_or(Dim3::ONE, |thread| thread.grid_dim)
    }

    fn sync_threads_or(&self, value: bool) -> bool {
        current().map_or_else(|| Single.sync_threads_or(value), |thread| thread.sync_threads_or(value))
    }

    fn exchange(&self, mask: u32, value: u64) -> [u64; 32] {
        current().map_or_else(|| Single.exchange(mask, value), |thread| thread.exchange(mask, value))
    }

    fn dynamic_shared(&self) -> (*mut u8, usize) {
        current().map_or_else(|| Single.dynamic_shared(), |thread| thread.block(|block| block.dynamic()))
    }

    fn fixed_shared(&self, site: usize, bytes: usize, align: usize) -> *mut u8 {
        match current() {
            Some(thread) => thread.block(|block| block.fixed(site, bytes, align)),
            None => Single.fixed_shared(site, bytes, align),
        }
    }

    fn has_network(&self) -> bool {
        network::current().is_some()
    }

    fn network(&self, call: Call) -> u64 {
        self.step();
        network::current().expect("a kernel uses the network only in a grid that has a network").call(call)
    }

    #[inline]
    fn step(&self) {
        if let Some(thread) = current() {
            thread.step();
        }
    }

    fn pause(&self) {
        match current() {
            Some(thread) => thread.pause(),
            None => Single.pause(),
        }
    }
}
