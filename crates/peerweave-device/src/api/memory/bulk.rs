//! Copies by the copy unit (TMA) of sm_90, through shared memory that the kernel has lent to its
//! context. With the copy unit, one thread reaches the bandwidth of a whole block.
//!
//! The lent region contains two barriers and two buffers. A copy fills one buffer from global
//! memory while the other buffer is written to global memory. Invariant: a buffer is filled again
//! only after the stores have read its previous content. Stores may be outstanding between calls.
//! [`Context::finish_bulk`] completes these stores.

use crate::Pause;
use crate::api::report::Report;
use crate::api::{Context, Failed, SharedSlice};
use crate::gpu::bulk;
use peerweave_types::KernelOp;

/// Shared memory that a thread has lent to its context for bulk copies.
#[derive(Clone, Copy)]
pub(crate) struct Lent {
    /// 32-bit address of the two barriers in the lent shared memory; 0 if the thread has lent no
    /// memory. The buffers start [`HEADER`] bytes after this address.
    barriers: u32,
    /// Size in bytes of one of the two buffers in the lent memory; 0 if the thread has lent no
    /// memory.
    half: u32,
    /// Parity of the current phase of each barrier: bit 0 for the first barrier, bit 1 for the
    /// second.
    parity: u32,
}

/// Offset of the first buffer in the lent memory, in bytes. The two barriers, and padding that
/// aligns the buffers, precede the buffer.
const HEADER: u32 = 128;
/// Alignment of the barriers and buffers in the lent memory, in bytes. The size of a buffer is a
/// multiple of this number.
const GRAIN: u32 = 128;

impl Lent {
    pub(crate) const NOTHING: Self = Self { barriers: 0, half: 0, parity: 0 };

    /// Returns whether the thread has lent shared memory to its context.
    #[inline(always)]
    pub(crate) fn is_some(&self) -> bool {
        self.half != 0
    }

    /// Returns the parities of the current phases of both barriers. A function that is not inlined
    /// works on a copy of the context, and changes only the parities in this copy. So the function
    /// returns them, and its caller passes them to [`Self::set_parity`] of its own context.
    #[inline(always)]
    pub(crate) fn parity(&self) -> u32 {
        self.parity
    }

    /// Sets the parity bits of the two barriers in the lent memory. `parity` is a value that
    /// [`Self::parity`] has returned.
    #[inline(always)]
    pub(crate) fn set_parity(&mut self, parity: u32) {
        self.parity = parity;
    }
}

impl Context {
    /// Lends shared memory to this thread's puts and gets. If the GPU is sm_90 or later and the
    /// kernel was compiled for such a GPU, these puts and gets use bulk copies. Otherwise, the call
    /// has no effect.
    ///
    /// Each thread lends its own region. A copy moves almost half of the region at a time, for
    /// example 32 KiB if the region has 64 KiB plus 128 bytes. A region of a few KiB is already
    /// useful. A copy by a warp or a block uses the region of the scope's first thread. The region
    /// is in use until [`Self::reclaim_shared`] returns or the context is dropped.
    ///
    /// # Safety
    /// Nothing else accesses the region until [`Self::reclaim_shared`] returns or the thread ends.
    #[inline]
    pub unsafe fn lend_shared(&self, region: SharedSlice<u8>) {
        if !bulk::AVAILABLE {
            return;
        }
        self.reclaim_shared();
        let start = region.as_ptr();
        let skip = (start as usize).wrapping_neg() % GRAIN as usize;
        let Some(usable) = region.len().checked_sub(skip + HEADER as usize) else { return };
        let half = (usable as u32 / 2) / GRAIN * GRAIN;
        if half == 0 {
            return;
        }
        // SAFETY: the caller lends shared memory of this block. The barriers lie in that memory,
        // are aligned, and nothing else uses them.
        unsafe {
            let barriers = bulk::shared_address(start.add(skip));
            bulk::init(barriers);
            bulk::init(barriers + 8);
            self.lent.set(Lent { barriers, half, parity: 0 });
        }
    }

    /// Takes back the memory that this thread has lent by [`Self::lend_shared`]. Waits until all
    /// copies are complete. After the call, the kernel may use the memory for other purposes.
    #[inline]
    pub fn reclaim_shared(&self) {
        let lent = self.lent.replace(Lent::NOTHING);
        if lent.half != 0 {
            bulk::wait_written();
            // SAFETY: `lend_shared` has initialised these barriers. Every call that started a load
            // has waited for it, or has failed; after a failure the kernel ends.
            unsafe {
                bulk::invalidate(lent.barriers);
                bulk::invalidate(lent.barriers + 8);
            }
        }
    }

    /// Waits until all bulk stores of this thread are complete. After the call, a fence or a
    /// release orders these stores.
    #[inline(always)]
    pub(crate) fn finish_bulk(&self) {
        if bulk::AVAILABLE && self.bulk_pending.get() {
            bulk::wait_written();
            self.bulk_pending.set(false);
        }
    }

    /// Waits until the bulk stores of this thread no longer read their sources.
    #[inline(always)]
    pub(crate) fn flush_bulk(&self) {
        if bulk::AVAILABLE && self.bulk_pending.get() {
            bulk::wait_read::<0>();
        }
    }

    /// Returns whether this thread can make a bulk copy: whether bulk copies are available, this
    /// thread has lent shared memory, and the addresses and the length are aligned.
    #[inline(always)]
    pub(crate) fn can_bulk(&self, to: *const u8, from: *const u8, bytes: usize) -> bool {
        bulk::AVAILABLE && self.lent.get().half != 0 && (to as usize | from as usize | bytes).is_multiple_of(bulk::ALIGN)
    }

    /// Copies global memory to global memory. When the call returns, the source has been read, but
    /// stores may be outstanding.
    ///
    /// # Errors
    /// If the copy unit (TMA) has not loaded a chunk before the context's deadline, or if another
    /// wait of this PE has failed.
    ///
    /// # Safety
    /// [`Self::can_bulk`] is true for the arguments. Both ranges are accessible global memory of
    /// `bytes` bytes, and do not overlap.
    #[inline]
    pub(crate) unsafe fn bulk_copy(&self, to: *mut u8, from: *const u8, bytes: usize) -> Result<(), Failed> {
        let mut lent = self.lent.get();
        let half = lent.half as usize;
        bulk::fence_global();
        // Waits until the stores of an earlier call no longer read the buffers.
        self.flush_bulk();
        // Chunk `n` uses buffer `n % 2`. The index is toggled, because a division takes as long as
        // a copy of 1 KiB.
        let chunk = |at: usize| (bytes - at).min(half) as u32;
        // SAFETY: the chunk lies within the source, and the buffer within the lent region. The
        // stores of the buffer's previous chunk no longer read it.
        let load = |at: usize, which: u32| unsafe {
            let buffer = lent.barriers + HEADER + which * lent.half;
            bulk::start_load(buffer, from.add(at), chunk(at), lent.barriers + which * 8);
        };
        let (mut at, mut which, mut parity) = (0, 0, lent.parity);
        let mut outcome;
        load(at, which);
        loop {
            let next = at + half;
            if next < bytes {
                // The stores of the previous chunk may still read the other buffer.
                bulk::wait_read::<0>();
                load(next, which ^ 1);
            }
            outcome = self.await_load(lent.barriers + which * 8, parity >> which & 1);
            if outcome.is_err() {
                break;
            }
            parity ^= 1 << which;
            // SAFETY: the buffer contains the chunk, whose target range lies within the target.
            unsafe { bulk::start_store(to.add(at), lent.barriers + HEADER + which * lent.half, chunk(at)) };
            bulk::commit();
            at = next;
            which ^= 1;
            if at >= bytes {
                break;
            }
        }
        lent.parity = parity;
        self.lent.set(lent);
        self.bulk_pending.set(true);
        outcome
    }

    /// Starts a copy of shared memory to global memory. When the call returns, the copy unit (TMA)
    /// may still read the source and write the target.
    ///
    /// # Safety
    /// [`bulk::AVAILABLE`] is true. `from` is shared memory of this block and `to` is global
    /// memory, both accessible for `bytes` bytes. Both addresses and `bytes` are multiples of
    /// [`bulk::ALIGN`].
    #[inline]
    pub(crate) unsafe fn bulk_from_shared(&self, to: *mut u8, from: *const u8, bytes: usize) {
        bulk::fence_shared();
        // SAFETY: as the caller promises.
        unsafe { bulk::start_store(to, bulk::shared_address(from), bytes as u32) };
        bulk::commit();
        self.bulk_pending.set(true);
    }

    /// Copies global memory to shared memory and waits for the copy.
    ///
    /// # Errors
    /// As for [`Self::bulk_copy`].
    ///
    /// # Safety
    /// [`Self::can_bulk`] is true for the arguments. `to` is shared memory of this block and `from`
    /// is global memory, both accessible for `bytes` bytes.
    #[inline]
    pub(crate) unsafe fn bulk_to_shared(&self, to: *mut u8, from: *const u8, bytes: usize) -> Result<(), Failed> {
        let mut lent = self.lent.get();
        bulk::fence_shared();
        bulk::fence_global();
        // SAFETY: the caller promises both ranges, and the barrier is idle between calls.
        unsafe { bulk::start_load(bulk::shared_address(to), from, bytes as u32, lent.barriers) };
        let outcome = self.await_load(lent.barriers, lent.parity & 1);
        lent.parity ^= 1;
        self.lent.set(lent);
        outcome
    }

    #[inline(always)]
    fn await_load(&self, barrier: u32, parity: u32) -> Result<(), Failed> {
        let mut spin = self.spin();
        // SAFETY: `lend_shared` has initialised this barrier.
        while !unsafe { bulk::test(barrier, parity) } {
            if let Err(kind) = spin.pause() {
                return Err(self.fail(kind, Report::of(KernelOp::BulkCopy)));
            }
        }
        Ok(())
    }
}

const _: () = assert!(HEADER as usize >= 16 && HEADER.is_multiple_of(GRAIN));
