//! The executor that runs the threads of a kernel on the host, seen from inside a kernel.
//!
//! Without an executor a kernel is one block of one thread: the thread that called it.
//! `peerweave-grid` sets one that runs whole grids.

use crate::network::call::Call;
use core::cell::RefCell;
use core::ptr;
use peerweave_types::Dim3;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Instant;
use std::vec::Vec;

/// The operations that a kernel's thread needs of its executor. Every method has a default: that of
/// one block of one thread.
///
/// An executor is set once for the process and is called on every thread that runs device code; a
/// thread that it does not run must get the answers of [`Single`].
///
/// Each wait, each strong access and each fence calls [`Self::step`], where the executor may run
/// another thread of the grid.
pub trait Executor: Sync {
    /// The index of this thread in its block.
    fn thread_idx(&self) -> Dim3 {
        Dim3::ZERO
    }

    /// The index of this block in its grid.
    fn block_idx(&self) -> Dim3 {
        Dim3::ZERO
    }

    /// The shape of a block.
    fn block_dim(&self) -> Dim3 {
        Dim3::ONE
    }

    /// The shape of the grid.
    fn grid_dim(&self) -> Dim3 {
        Dim3::ONE
    }

    /// Waits until all threads of the block that have not ended have called it, and returns whether
    /// any gave `true`. What each wrote before is visible to all after.
    fn sync_threads_or(&self, value: bool) -> bool {
        value
    }

    /// Passes `value` to the threads of the warp in `mask` and returns their values by lane; other
    /// entries are unspecified. All threads in `mask` call it. Earlier writes of each are visible
    /// to all afterwards.
    fn exchange(&self, mask: u32, value: u64) -> [u64; 32] {
        let _ = mask;
        let mut values = [0; 32];
        values[0] = value;
        values
    }

    /// The block's shared memory whose size was given at the launch: where it begins, aligned to
    /// 128 bytes, and its bytes.
    fn dynamic_shared(&self) -> (*mut u8, usize) {
        (ptr::dangling_mut::<u128>().cast(), 0)
    }

    /// The block's shared memory that the program declares at `site`: the same address for all
    /// threads of the block, with unspecified content. It lives as long as the block. `site`
    /// identifies the declaration: no other declaration has the same. `align` is a power of two, at
    /// most 128.
    fn fixed_shared(&self, site: usize, bytes: usize, align: usize) -> *mut u8 {
        let _ = align;
        OWN_SHARED.with_borrow_mut(|declared| {
            let lines = declared.entry(site).or_insert_with(|| std::vec![SharedLine([0; 128]); bytes.div_ceil(128)]);
            lines.as_mut_ptr().cast()
        })
    }

    /// Returns whether this thread's PE reaches others by an emulated network, for PEs whose memory
    /// its context does not map.
    fn has_network(&self) -> bool {
        false
    }

    /// Carries out a call of the network; returns what a call that reads a word has read. Called
    /// only where [`Self::has_network`] is `true`.
    fn network(&self, call: Call) -> u64 {
        panic!("this executor has no network: {call:?}")
    }

    /// A point where another thread may run: before each strong access and each fence.
    fn step(&self) {}

    /// A wait has found nothing: others must run.
    fn pause(&self) {
        std::thread::yield_now();
    }

    /// Nanoseconds on a clock that all threads of the grid share and that never goes back.
    fn now_ns(&self) -> u64 {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }
}

/// A part of shared memory, aligned as the most demanding copies need it.
#[derive(Clone, Copy)]
#[repr(C, align(128))]
struct SharedLine([u8; 128]);

std::thread_local! {
    /// The shared memory of a block that is this thread alone, by declaration. Never freed while
    /// the thread lives.
    static OWN_SHARED: RefCell<BTreeMap<usize, Vec<SharedLine>>> = const { RefCell::new(BTreeMap::new()) };
}

/// One block of one thread: the thread that calls.
#[derive(Clone, Copy, Debug)]
pub struct Single;

impl Executor for Single {}

static EXECUTOR: OnceLock<&'static dyn Executor> = OnceLock::new();

/// There is an executor already, and it is another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlreadySet;

impl core::fmt::Display for AlreadySet {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("another executor of kernels is set in this process")
    }
}

impl core::error::Error for AlreadySet {}

/// Sets the executor of this process, which stays until it ends. Setting the same again does
/// nothing.
///
/// # Errors
/// [`AlreadySet`] where another was set.
pub fn set_executor(executor: &'static dyn Executor) -> Result<(), AlreadySet> {
    let set = *EXECUTOR.get_or_init(|| executor);
    if ptr::addr_eq(set, executor) { Ok(()) } else { Err(AlreadySet) }
}

/// The executor of this process.
#[inline]
pub fn executor() -> &'static dyn Executor {
    match EXECUTOR.get() {
        Some(executor) => *executor,
        None => &Single,
    }
}
