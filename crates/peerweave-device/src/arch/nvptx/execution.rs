//! Indices, barriers, shuffles, votes, shared memory and time.
//!
//! Operations that several threads execute together are intrinsics of LLVM, not inline assembly.
//! LLVM may copy inline assembly into both paths of a branch, so that threads would reach one
//! barrier at different instructions. LLVM never duplicates an intrinsic that is marked convergent.
//! For barriers of a block, this module uses the aligned form, like `__syncthreads` of CUDA. The
//! PTX assembler would duplicate and expand barriers of the unaligned form.

use core::arch::asm;
use peerweave_types::Dim3;

/// Number of threads in a warp.
pub const WARP_SIZE: u32 = 32;

/// Reads a special register whose value does not change while the thread runs.
macro_rules! constant_register {
    ($register:literal) => {{
        let value: u32;
        // SAFETY: reads a register that is constant for the thread and touches no memory.
        unsafe { asm!(concat!("mov.u32 {value}, %", $register, ";"), value = out(reg32) value, options(pure, nomem, nostack)) };
        value
    }};
}

unsafe extern "C" {
    #[link_name = "llvm.nvvm.barrier.cta.sync.aligned.all"]
    fn barrier_sync(id: u32);
    #[link_name = "llvm.nvvm.barrier.cta.red.or.aligned.all"]
    fn barrier_red_or(id: u32, value: bool) -> bool;
    #[link_name = "llvm.nvvm.bar.warp.sync"]
    fn bar_warp_sync(mask: u32);
    #[link_name = "llvm.nvvm.vote.ballot.sync"]
    fn vote_ballot_sync(mask: u32, value: bool) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.idx.i32"]
    fn shfl_sync_idx(mask: u32, value: u32, from: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.up.i32"]
    fn shfl_sync_up(mask: u32, value: u32, by: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.down.i32"]
    fn shfl_sync_down(mask: u32, value: u32, by: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.bfly.i32"]
    fn shfl_sync_bfly(mask: u32, value: u32, by: u32, clamp: u32) -> u32;
}

/// Prevents the compiler from moving memory accesses across this call. Generates no instruction.
#[inline(always)]
fn compiler_barrier() {
    // SAFETY: the assembly text is empty; memory counts as changed.
    unsafe { asm!("", options(nostack)) };
}

/// Returns the index of this thread in its block.
#[inline(always)]
pub fn thread_idx() -> Dim3 {
    Dim3 { x: constant_register!("tid.x"), y: constant_register!("tid.y"), z: constant_register!("tid.z") }
}

/// Returns the index of this block in the grid.
#[inline(always)]
pub fn block_idx() -> Dim3 {
    Dim3 { x: constant_register!("ctaid.x"), y: constant_register!("ctaid.y"), z: constant_register!("ctaid.z") }
}

/// Returns the number of threads in a block, for each dimension.
#[inline(always)]
pub fn block_dim() -> Dim3 {
    Dim3 { x: constant_register!("ntid.x"), y: constant_register!("ntid.y"), z: constant_register!("ntid.z") }
}

/// Returns the number of blocks in the grid, for each dimension.
#[inline(always)]
pub fn grid_dim() -> Dim3 {
    Dim3 { x: constant_register!("nctaid.x"), y: constant_register!("nctaid.y"), z: constant_register!("nctaid.z") }
}

/// Waits until all threads of the block have called this function. Earlier writes of each thread
/// are visible to all these threads after the call.
#[inline(always)]
pub fn sync_threads() {
    // SAFETY: barrier 0, of all threads of the block; it touches no memory.
    unsafe { barrier_sync(0) };
}

/// Waits like [`sync_threads`]. Returns whether `value` was `true` in any thread of the block.
#[inline(always)]
pub fn sync_threads_or(value: bool) -> bool {
    // SAFETY: barrier 0, of all threads of the block; it touches no memory.
    unsafe { barrier_red_or(0, value) }
}

/// Waits until all threads in `mask` have called this function. Earlier writes of each thread are
/// visible to all these threads after the call.
#[inline(always)]
pub fn sync_warp(mask: u32) {
    // SAFETY: a barrier of the threads in the mask; it touches no memory.
    unsafe { bar_warp_sync(mask) };
}

macro_rules! shuffle {
    ($(#[$doc:meta])* $name:ident, $intrinsic:ident, $parameter:ident, $clamp:literal) => {
        $(#[$doc])*
        #[inline(always)]
        pub fn $name(mask: u32, value: u32, $parameter: u32) -> u32 {
            // SAFETY: exchanges registers among the threads of the mask.
            unsafe { $intrinsic(mask, value, $parameter, $clamp) }
        }
    };
}

shuffle!(
    /// Returns the `value` that one lane has passed: the lane with the number `from` modulo 32.
    /// All threads in `mask` call this function.
    shuffle_idx, shfl_sync_idx, from, 31
);
shuffle!(
    /// Returns the `value` that another lane has passed: the lane whose number is lower by `by`. If
    /// there is no such lane, returns this thread's `value`. All threads in `mask` call this
    /// function. `by` is at most 31.
    shuffle_up, shfl_sync_up, by, 0
);
shuffle!(
    /// Returns the `value` that another lane has passed: the lane whose number is higher by `by`.
    /// If there is no such lane, returns this thread's `value`. All threads in `mask` call this
    /// function. `by` is at most 31.
    shuffle_down, shfl_sync_down, by, 31
);
shuffle!(
    /// Returns the `value` that another lane has passed. The number of that lane is this lane's
    /// number XOR `by`. All threads in `mask` call this function.
    shuffle_xor, shfl_sync_bfly, by, 31
);

/// Returns the mask of those lanes in `mask` whose threads called this function with `true`. All
/// threads in `mask` must call this function.
#[inline(always)]
pub fn vote_ballot(mask: u32, value: bool) -> u32 {
    compiler_barrier();
    // SAFETY: exchanges predicates among the threads of the mask.
    let ballot = unsafe { vote_ballot_sync(mask, value) };
    compiler_barrier();
    ballot
}

/// Returns the address and the size in bytes of the block's dynamic shared memory. The launch
/// specifies the size.
///
/// The PTX of this function refers to the symbol `peerweave_dynamic_shared`. The macro
/// [`crate::kernel_preamble`], which `#[kernel]` calls in the kernel's crate, declares this symbol.
#[inline(always)]
pub fn dynamic_shared() -> (*mut u8, usize) {
    let address: u64;
    // SAFETY: converts the address of a symbol to a generic address; touches no memory.
    unsafe {
        asm!(
            "{{ .reg .b64 a; mov.u64 a, peerweave_dynamic_shared; cvta.shared.u64 {address}, a; }}",
            address = out(reg64) address,
            options(pure, nomem, nostack),
        );
    }
    (address as *mut u8, constant_register!("dynamic_smem_size") as usize)
}

/// Returns the time in nanoseconds, on a clock shared by all threads of the device.
#[inline(always)]
pub fn now_ns() -> u64 {
    let now: u64;
    // SAFETY: reads a clock. Not pure: two readings differ.
    unsafe { asm!("mov.u64 {now}, %globaltimer;", now = out(reg64) now, options(nostack)) };
    now
}

/// Allows the next kernel of the stream to start early, if that kernel is launched by a
/// programmatic dependent launch. The call is a hint, and orders nothing. Before sm_90 it has no
/// effect.
#[inline(always)]
pub fn start_next_kernel() {
    #[cfg(target_feature = "sm_90")]
    // SAFETY: an instruction that only lets another kernel begin earlier.
    unsafe {
        asm!("griddepcontrol.launch_dependents;", options(nostack));
    }
}

/// Waits until the earlier kernels of the stream have ended and the writes of these kernels are
/// visible. If this kernel was not launched by a programmatic dependent launch, the call returns
/// immediately, because the earlier kernels have ended before this kernel starts.
#[inline(always)]
pub fn wait_for_previous_kernel() {
    #[cfg(target_feature = "sm_90")]
    // SAFETY: a wait; memory counts as changed.
    unsafe {
        asm!("griddepcontrol.wait;", options(nostack));
    }
}

/// Does nothing. A wait calls this function after each unsuccessful poll. A GPU runs other threads
/// without this call.
#[inline(always)]
pub fn pause() {}

/// Ends the kernel with an error that names no thread. After this error, the CUDA context is
/// unusable.
#[inline(always)]
pub fn trap() -> ! {
    // SAFETY: ends the kernel, so no later instruction is executed.
    unsafe { asm!("trap;", options(noreturn, nostack)) }
}
