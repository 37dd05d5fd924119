//! The executor that runs the threads of a kernel on the host, as seen by a kernel.
//!
//! Without an executor, a kernel is a block of one thread: the thread that called it.
//! `peerweave-grid` sets an executor that runs whole grids.

use crate::network::call::Call;
use core::cell::RefCell;
use core::ptr;
use peerweave_types::Dim3;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Instant;
use std::vec::Vec;

/// The operations that a kernel thread needs of its executor. The default methods implement a block
/// of one thread.
///
/// An executor is set once for the process, and is called on every thread that runs device code. A
/// thread that it does not run must get the results of [`Single`].
///
/// Each wait, each strong access and each fence calls [`Self::step`], in which the executor may run
/// another thread of the grid.
pub trait Executor: Sync {
    /// Returns the index of this thread in its block.
    fn thread_idx(&self) -> Dim3 {
        Dim3::ZERO
    }

    /// Returns the index of this block in its grid.
    fn block_idx(&self) -> Dim3 {
        Dim3::ZERO
    }

    /// Returns the shape of a block.
    fn block_dim(&self) -> Dim3 {
        Dim3::ONE
    }

    /// Returns the shape of the grid.
    fn grid_dim(&self) -> Dim3 {
        Dim3::ONE
    }

    /// Waits until all threads of the block that have not ended have called it. Returns whether any
    /// of them passed `true`. Earlier writes of each thread are visible to all threads afterwards.
    fn sync_threads_or(&self, value: bool) -> bool {
        value
    }

    /// Passes `value` to the threads of the warp in `mask`. Returns their values by lane; other
    /// entries are unspecified. All threads in `mask` call it. Earlier writes of each thread are
    /// visible to all threads afterwards.
    fn exchange(&self, mask: u32, value: u64) -> [u64; 32] {
        let _ = mask;
        let mut values = [0; 32];
        values[0] = value;
        values
    }

    /// Returns the block's dynamic shared memory, whose size the launch specifies: its address,
    /// aligned to 128 bytes, and its size in bytes.
    fn dynamic_shared(&self) -> (*mut u8, usize) {
        (ptr::dangling_mut::<u128>().cast(), 0)
    }

    /// Returns the block's shared memory declared at `site`: the same address for all threads of
    /// the block, with unspecified initial content. It lives as long as the block. `site` is unique
    /// to the declaration. `align` is a power of two, at most 128.
    fn fixed_shared(&self, site: usize, bytes: usize, align: usize) -> *mut u8 {
        let _ = align;
        OWN_SHARED.with_borrow_mut(|declared| {
            let lines = declared.entry(site).or_insert_with(|| std::vec![SharedLine([0; 128]); bytes.div_ceil(128)]);
            lines.as_mut_ptr().cast()
        })
    }

    /// Returns whether this thread's PE reaches PEs that are not mapped over an emulated network.
    fn has_network(&self) -> bool {
        false
    }

    /// Executes a call of the network. Returns the value if the call reads a word. Only called if
    /// [`Self::has_network`] returns `true`.
    fn network(&self, call: Call) -> u64 {
        panic!("this executor has no network: {call:?}")
    }

    /// Called before each access of global memory and each fence: another thread may run here.
    fn step(&self) {}

    /// Called by a wait after an unsuccessful poll: other threads must run.
    fn pause(&self) {
        std::thread::yield_now();
    }

    /// Returns the time in nanoseconds, on a monotonic clock shared by all threads of the grid.
    fn now_ns(&self) -> u64 {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }
}

/// A part of shared memory, with the alignment that the most demanding copies need.
#[derive(Clone, Copy)]
#[repr(C, align(128))]
struct SharedLine([u8; 128]);

std::thread_local! {
    /// Shared memory of a block that consists of this thread, by declaration. It is not freed while
    /// the thread lives.
    static OWN_SHARED: RefCell<BTreeMap<usize, Vec<SharedLine>>> = const { RefCell::new(BTreeMap::new()) };
}

/// A block of one thread: the calling thread.
#[derive(Clone, Copy, Debug)]
pub struct Single;

impl Executor for Single {}

static EXECUTOR: OnceLock<&'static dyn Executor> = OnceLock::new();

/// The error if another executor is already set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlreadySet;

impl core::fmt::Display for AlreadySet {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("another executor of kernels is set in this process")
    }
}

impl core::error::Error for AlreadySet {}

/// Sets the executor of this process until the process ends. Setting the same executor again has no
/// effect.
///
/// # Errors
/// [`AlreadySet`] if another executor is set.
pub fn set_executor(executor: &'static dyn Executor) -> Result<(), AlreadySet> {
    let set = *EXECUTOR.get_or_init(|| executor);
    if ptr::addr_eq(set, executor) { Ok(()) } else { Err(AlreadySet) }
}

/// Returns the executor of this process.
#[inline]
pub fn executor() -> &'static dyn Executor {
    match EXECUTOR.get() {
        Some(executor) => *executor,
        None => &Single,
    }
}
