//! Indices, barriers, shuffles, votes, shared memory and time.

use core::arch::asm;
use peerweave_types::Dim3;

/// Threads of a warp.
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

/// The index of this thread in its block.
#[inline(always)]
pub fn thread_idx() -> Dim3 {
    Dim3 { x: constant_register!("tid.x"), y: constant_register!("tid.y"), z: constant_register!("tid.z") }
}

/// The index of this block in the grid.
#[inline(always)]
pub fn block_idx() -> Dim3 {
    Dim3 { x: constant_register!("ctaid.x"), y: constant_register!("ctaid.y"), z: constant_register!("ctaid.z") }
}

/// The shape of a block.
#[inline(always)]
pub fn block_dim() -> Dim3 {
    Dim3 { x: constant_register!("ntid.x"), y: constant_register!("ntid.y"), z: constant_register!("ntid.z") }
}

/// The shape of the grid.
#[inline(always)]
pub fn grid_dim() -> Dim3 {
    Dim3 { x: constant_register!("nctaid.x"), y: constant_register!("nctaid.y"), z: constant_register!("nctaid.z") }
}

/// Waits until all threads of the block have called it. What each wrote before is visible to all
/// after.
#[inline(always)]
pub fn sync_threads() {
    // SAFETY: a barrier; memory counts as changed.
    unsafe { asm!("barrier.sync 0;", options(nostack)) };
}

/// [`sync_threads`], and returns whether any thread gave `true`.
#[inline(always)]
pub fn sync_threads_or(value: bool) -> bool {
    let (value, any) = (u32::from(value), &mut 0u32);
    // SAFETY: a barrier; memory counts as changed. The predicates are the block's own.
    unsafe {
        asm!(
            "{{ .reg .pred a, b; setp.ne.u32 a, {value}, 0; barrier.red.or.pred b, 0, a; selp.u32 {any}, 1, 0, b; }}",
            value = in(reg32) value,
            any = out(reg32) *any,
            options(nostack),
        );
    }
    *any != 0
}

/// Waits until all threads of the warp in `mask` have called it. What each wrote before is visible
/// to all after.
#[inline(always)]
pub fn sync_warp(mask: u32) {
    // SAFETY: a barrier; memory counts as changed.
    unsafe { asm!("bar.warp.sync {mask};", mask = in(reg32) mask, options(nostack)) };
}

macro_rules! shuffle {
    ($(#[$doc:meta])* $name:ident, $mode:literal, $parameter:ident, $clamp:literal) => {
        $(#[$doc])*
        #[inline(always)]
        pub fn $name(mask: u32, value: u32, $parameter: u32) -> u32 {
            let got: u32;
            // SAFETY: exchanges registers among the threads of the mask; not pure, since all of
            // them must execute it.
            unsafe {
                asm!(
                    concat!("shfl.sync.", $mode, ".b32 {got}, {value}, {lane}, ", $clamp, ", {mask};"),
                    got = out(reg32) got,
                    value = in(reg32) value,
                    lane = in(reg32) $parameter,
                    mask = in(reg32) mask,
                    options(nostack),
                );
            }
            got
        }
    };
}

shuffle!(
    /// The value of lane `from` modulo 32. All threads in `mask` call it.
    shuffle_idx, "idx", from, "31"
);
shuffle!(
    /// The value of the lane `by` below this one; its own where there is none. All threads in
    /// `mask` call it. `by` is at most 31.
    shuffle_up, "up", by, "0"
);
shuffle!(
    /// The value of the lane `by` above this one; its own where there is none. All threads in
    /// `mask` call it. `by` is at most 31.
    shuffle_down, "down", by, "31"
);
shuffle!(
    /// The value of the lane whose number is this one's exclusive or `by`. All threads in `mask`
    /// call it.
    shuffle_xor, "bfly", by, "31"
);

/// The threads of `mask` that gave `true`, by lane. All threads in `mask` call it.
#[inline(always)]
pub fn vote_ballot(mask: u32, value: bool) -> u32 {
    let ballot: u32;
    // SAFETY: exchanges predicates among the threads of the mask; not pure, since all of them must
    // execute it.
    unsafe {
        asm!(
            "{{ .reg .pred p; setp.ne.u32 p, {value}, 0; vote.sync.ballot.b32 {ballot}, p, {mask}; }}",
            ballot = out(reg32) ballot,
            value = in(reg32) u32::from(value),
            mask = in(reg32) mask,
            options(nostack),
        );
    }
    ballot
}

/// The block's shared memory whose size was given at the launch: where it begins, and its bytes.
///
/// The symbol is declared by [`crate::kernel_preamble`], which `#[kernel]` writes into the crate of
/// the kernel.
#[inline(always)]
pub fn dynamic_shared() -> (*mut u8, usize) {
    let address: u64;
    // SAFETY: takes the address of a symbol and makes it a generic one; touches no memory.
    unsafe {
        asm!(
            "{{ .reg .b64 a; mov.u64 a, peerweave_dynamic_shared; cvta.shared.u64 {address}, a; }}",
            address = out(reg64) address,
            options(pure, nomem, nostack),
        );
    }
    (address as *mut u8, constant_register!("dynamic_smem_size") as usize)
}

/// Nanoseconds on a clock that all threads of the device share.
#[inline(always)]
pub fn now_ns() -> u64 {
    let now: u64;
    // SAFETY: reads a clock. Not pure: two readings differ.
    unsafe { asm!("mov.u64 {now}, %globaltimer;", now = out(reg64) now, options(nostack)) };
    now
}

/// Lets other threads run: called by a wait that found nothing. GPUs need nothing.
#[inline(always)]
pub fn pause() {}

/// Ends the kernel with an error that names no place, and that ends the CUDA context with it.
#[inline(always)]
pub fn trap() -> ! {
    // SAFETY: ends the kernel. What follows is never executed.
    unsafe { asm!("trap;", options(noreturn, nostack)) }
}
