//! The interface between a kernel on the host and the executor that runs its threads.
//!
//! If no executor is set, a kernel runs as a block of one thread, on the thread that called the
//! kernel. `peerweave-grid` sets an executor that runs whole grids.

use crate::network::call::Call;
use core::cell::RefCell;
use core::ptr;
use peerweave_types::Dim3;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Instant;
use std::vec::Vec;

/// An executor of kernels on the host: it implements the operations that kernel threads call. The
/// default methods implement a block of one thread. [`Single`] uses these default methods.
///
/// [`set_executor`] sets the executor once for the process. Every thread of the process that runs
/// device code then calls the executor, even a thread that the executor has not started. On such a
/// thread, each method must behave like the default method.
///
/// Each fence, and each access to memory that other threads may write, first calls [`Self::step`].
/// During that call, the executor may run another thread of the grid.
pub trait Executor: Sync {
    /// Returns the index of this thread in its block.
    fn thread_idx(&self) -> Dim3 {
        Dim3::ZERO
    }

    /// Returns the index of this block in its grid.
    fn block_idx(&self) -> Dim3 {
        Dim3::ZERO
    }

    /// Returns the number of threads in a block, for each dimension.
    fn block_dim(&self) -> Dim3 {
        Dim3::ONE
    }

    /// Returns the number of blocks in the grid, for each dimension.
    fn grid_dim(&self) -> Dim3 {
        Dim3::ONE
    }

    /// Waits until all threads of the block that have not ended have called this method. Returns
    /// whether any of these threads passed `true`. Earlier writes of each thread are visible to all
    /// these threads after the call.
    fn sync_threads_or(&self, value: bool) -> bool {
        value
    }

    /// Passes `value` to all threads in `mask`, and returns the values that these threads have
    /// passed, indexed by lane. Entries of lanes outside `mask` are unspecified. All threads in
    /// `mask` call this method. Earlier writes of each thread are visible to all these threads
    /// after the call.
    fn exchange(&self, mask: u32, value: u64) -> [u64; 32] {
        let _ = mask;
        let mut values = [0; 32];
        values[0] = value;
        values
    }

    /// Returns the address and the size in bytes of the block's dynamic shared memory. The launch
    /// specifies the size. The address is aligned to 128 bytes.
    fn dynamic_shared(&self) -> (*mut u8, usize) {
        (ptr::dangling_mut::<u128>().cast(), 0)
    }

    /// Returns the address of the block's shared memory for the declaration that `site` identifies.
    /// All threads of the block get the same address. The memory has unspecified initial content,
    /// and exists until the block ends. `align` is a power of two, at most 128.
    fn fixed_shared(&self, site: usize, bytes: usize, align: usize) -> *mut u8 {
        let _ = align;
        OWN_SHARED.with_borrow_mut(|declared| {
            let lines = declared.entry(site).or_insert_with(|| std::vec![SharedLine([0; 128]); bytes.div_ceil(128)]);
            lines.as_mut_ptr().cast()
        })
    }

    /// Returns whether this thread's PE has an emulated network, through which the PE reaches PEs
    /// whose memory is not mapped.
    fn has_network(&self) -> bool {
        false
    }

    /// Executes a call on the emulated network. If the call is a fetching atomic operation, returns
    /// the previous value of the word. For every other call, the result is unspecified. Called only
    /// if [`Self::has_network`] returns `true`.
    fn network(&self, call: Call) -> u64 {
        panic!("the executor of this kernel emulates no network, so it cannot execute {call:?}")
    }

    /// Allows the executor to run another thread. Called before each fence, and before each access
    /// to memory that other threads may write.
    fn step(&self) {}

    /// Lets other threads run. A wait calls this method after each unsuccessful poll.
    fn pause(&self) {
        std::thread::yield_now();
    }

    /// Returns the time in nanoseconds, on a monotonic clock shared by all threads of the grid.
    fn now_ns(&self) -> u64 {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }
}

/// 128 bytes of shared memory, with the alignment of shared memory.
#[derive(Clone, Copy)]
#[repr(C, align(128))]
struct SharedLine([u8; 128]);

std::thread_local! {
    /// Shared memory of a block that consists only of this thread. The key is the argument `site`
    /// of [`Executor::fixed_shared`]. The memory is freed when the thread ends.
    static OWN_SHARED: RefCell<BTreeMap<usize, Vec<SharedLine>>> = const { RefCell::new(BTreeMap::new()) };
}

/// The executor for a block that consists of one thread: the calling thread.
#[derive(Clone, Copy, Debug)]
pub struct Single;

impl Executor for Single {}

static EXECUTOR: OnceLock<&'static dyn Executor> = OnceLock::new();

/// The error that [`set_executor`] returns if the process already has a different executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlreadySet;

impl core::fmt::Display for AlreadySet {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("set_executor: this process already has a different executor")
    }
}

impl core::error::Error for AlreadySet {}

/// Sets the executor of this process until the process ends. Setting the same executor again has no
/// effect.
///
/// # Errors
/// [`AlreadySet`] if a different executor is set.
pub fn set_executor(executor: &'static dyn Executor) -> Result<(), AlreadySet> {
    let set = *EXECUTOR.get_or_init(|| executor);
    if ptr::addr_eq(set, executor) { Ok(()) } else { Err(AlreadySet) }
}

/// Returns the executor of this process; [`Single`] if no executor is set.
#[inline]
pub fn executor() -> &'static dyn Executor {
    match EXECUTOR.get() {
        Some(executor) => *executor,
        None => &Single,
    }
}
