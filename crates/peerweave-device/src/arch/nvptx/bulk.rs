//! Bulk copies between global and shared memory by the copy unit (TMA) of sm_90, and the barriers
//! in shared memory (`mbarrier`) by which threads wait for the copies.
//!
//! Addresses of shared memory are 32-bit addresses in the shared window. If the PTX is for an
//! architecture before sm_90, [`AVAILABLE`] is false, and copies and barriers must not be used.
//!
//! The copy unit accesses memory independently of the thread that starts the copy. [`fence_shared`]
//! and [`fence_global`] order a thread's earlier accesses before the copies that the thread starts
//! later.

use core::arch::asm;

/// Whether the PTX is for an architecture with bulk copies: sm_90 or later.
pub const AVAILABLE: bool = cfg!(target_feature = "sm_90");

/// Required alignment of addresses and sizes, in bytes.
pub const ALIGN: usize = 16;

/// Returns the address in the shared window to which a generic pointer points.
///
/// # Safety
/// `pointer` points to shared memory of this block.
#[inline(always)]
pub unsafe fn shared_address(pointer: *const u8) -> u32 {
    let address: u64;
    // SAFETY: converts an address, which the caller promises is in shared memory; touches no
    // memory.
    unsafe { asm!("cvta.to.shared.u64 {a}, {p};", a = out(reg64) address, p = in(reg64) pointer, options(pure, nomem, nostack)) };
    address as u32
}

/// Returns whether a generic pointer points to shared memory.
#[inline(always)]
pub fn is_shared(pointer: *const u8) -> bool {
    let is: u32;
    // SAFETY: looks at an address; touches no memory.
    unsafe {
        asm!("{{ .reg .pred p; isspacep.shared p, {a}; selp.u32 {is}, 1, 0, p; }}", a = in(reg64) pointer, is = out(reg32) is,
            options(pure, nomem, nostack));
    }
    is != 0
}

/// Returns whether a generic pointer points to global memory.
#[inline(always)]
pub fn is_global(pointer: *const u8) -> bool {
    let is: u32;
    // SAFETY: looks at an address; touches no memory.
    unsafe {
        asm!("{{ .reg .pred p; isspacep.global p, {a}; selp.u32 {is}, 1, 0, p; }}", a = in(reg64) pointer, is = out(reg32) is,
            options(pure, nomem, nostack));
    }
    is != 0
}

/// Initialises a barrier. A phase of the barrier completes when one thread has arrived and the
/// expected number of bytes has been copied.
///
/// # Safety
/// `barrier` is the address of 8 aligned bytes in this block's shared memory. Nothing else uses
/// these bytes until [`invalidate`] returns.
#[inline(always)]
pub unsafe fn init(barrier: u32) {
    #[cfg(target_feature = "sm_90")]
    // SAFETY: the caller promises the word.
    unsafe {
        asm!("mbarrier.init.shared::cta.b64 [{b}], 1;", b = in(reg32) barrier, options(nostack))
    };
    #[cfg(not(target_feature = "sm_90"))]
    let _ = barrier;
    fence_shared();
}

/// Destroys a barrier, so that its memory can be reused.
///
/// # Safety
/// [`init`] has initialised the barrier, and no copy that uses the barrier is outstanding.
#[inline(always)]
pub unsafe fn invalidate(barrier: u32) {
    #[cfg(target_feature = "sm_90")]
    // SAFETY: the caller promises an idle barrier.
    unsafe {
        asm!("mbarrier.inval.shared::cta.b64 [{b}];", b = in(reg32) barrier, options(nostack));
    }
    #[cfg(not(target_feature = "sm_90"))]
    let _ = barrier;
}

/// Orders this thread's earlier accesses to shared memory before this thread's later bulk copies.
#[inline(always)]
pub fn fence_shared() {
    #[cfg(target_feature = "sm_90")]
    // SAFETY: a fence; memory counts as changed.
    unsafe {
        asm!("fence.proxy.async.shared::cta;", options(nostack));
    }
}

/// Orders this thread's earlier accesses to global memory before this thread's later bulk copies.
#[inline(always)]
pub fn fence_global() {
    #[cfg(target_feature = "sm_90")]
    // SAFETY: a fence; memory counts as changed.
    unsafe {
        asm!("fence.proxy.async.global;", options(nostack));
    }
}

/// Starts a copy from global memory to shared memory. The current phase of the barrier completes
/// when the copy is complete.
///
/// # Safety
/// [`AVAILABLE`] is true. Both addresses and `bytes` are multiples of [`ALIGN`]. The range at `to`
/// is accessible shared memory of this block. The range at `from` is accessible global memory.
/// Until the phase is complete, nothing else accesses `to`, and no other copy uses the barrier.
#[inline(always)]
pub unsafe fn start_load(to: u32, from: *const u8, bytes: u32, barrier: u32) {
    #[cfg(target_feature = "sm_90")]
    // SAFETY: as the caller promises.
    unsafe {
        asm!(
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [{barrier}], {bytes};",
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{to}], [{from}], {bytes}, [{barrier}];",
            to = in(reg32) to, from = in(reg64) from, bytes = in(reg32) bytes, barrier = in(reg32) barrier, options(nostack),
        );
    }
    #[cfg(not(target_feature = "sm_90"))]
    let _ = (to, from, bytes, barrier);
}

/// Returns whether the barrier's phase with this parity is complete. If the result is true, the
/// copied data is visible to this thread.
///
/// # Safety
/// [`AVAILABLE`] is true, and [`init`] has initialised the barrier.
#[inline(always)]
pub unsafe fn test(barrier: u32, parity: u32) -> bool {
    #[cfg(target_feature = "sm_90")]
    {
        let done: u32;
        // SAFETY: as the caller promises.
        unsafe {
            asm!(
                "{{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [{barrier}], {parity}; selp.u32 {done}, 1, 0, p; }}",
                barrier = in(reg32) barrier, parity = in(reg32) parity, done = out(reg32) done, options(nostack),
            );
        }
        done != 0
    }
    #[cfg(not(target_feature = "sm_90"))]
    {
        let _ = (barrier, parity);
        true
    }
}

/// Starts a copy from shared memory to global memory. The copy belongs to the group that the next
/// call of [`commit`] ends.
///
/// # Safety
/// [`AVAILABLE`] is true. Both addresses and `bytes` are multiples of [`ALIGN`]. The range at `to`
/// is accessible global memory. The range at `from` is accessible shared memory of this block.
/// `from` is not written until the copy unit has read that range (see [`wait_read`]).
#[inline(always)]
pub unsafe fn start_store(to: *mut u8, from: u32, bytes: u32) {
    #[cfg(target_feature = "sm_90")]
    // SAFETY: as the caller promises.
    unsafe {
        asm!("cp.async.bulk.global.shared::cta.bulk_group [{to}], [{from}], {bytes};",
            to = in(reg64) to, from = in(reg32) from, bytes = in(reg32) bytes, options(nostack));
    }
    #[cfg(not(target_feature = "sm_90"))]
    let _ = (to, from, bytes);
}

/// Ends the current group of bulk stores of this thread. The group contains the stores that this
/// thread has started since the previous call.
#[inline(always)]
pub fn commit() {
    #[cfg(target_feature = "sm_90")]
    // SAFETY: touches no memory.
    unsafe {
        asm!("cp.async.bulk.commit_group;", options(nostack));
    }
}

/// Waits until this thread's bulk stores have read their sources, except the stores in the newest
/// `PENDING` groups. After the call, the shared memory that these stores have read can be reused.
#[inline(always)]
pub fn wait_read<const PENDING: usize>() {
    #[cfg(target_feature = "sm_90")]
    // SAFETY: waits; memory counts as changed. The wait ends, because the copy unit waits for no
    // other thread.
    unsafe {
        asm!("cp.async.bulk.wait_group.read {n};", n = const PENDING, options(nostack));
    }
}

/// Waits until all bulk stores that this thread has committed are complete. After the call, these
/// bulk stores are ordered like ordinary writes of this thread.
#[inline(always)]
pub fn wait_written() {
    #[cfg(target_feature = "sm_90")]
    // SAFETY: waits; memory counts as changed. The wait ends, because the copy unit waits for no
    // other thread.
    unsafe {
        asm!("cp.async.bulk.wait_group 0;", options(nostack));
    }
}
