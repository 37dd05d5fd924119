//! Copies by the copy unit of sm_90, through shared memory that a thread has lent: one thread then
//! moves as much as a block does.
//!
//! The lent region holds two barriers and two buffers. A copy fills one buffer from global memory
//! while the other is written out. Invariant: a buffer is filled again only when the stores of its
//! previous content no longer read it. Stores may be outstanding between calls;
//! [`Context::finish_bulk`] completes them.

use crate::Pause;
use crate::api::report::Report;
use crate::api::{Context, Failed, SharedSlice};
use crate::gpu::bulk;
use peerweave_types::KernelOp;

/// Shared memory that a thread has lent for bulk copies.
#[derive(Clone, Copy)]
pub(crate) struct Lent {
    /// Address of the barriers in the shared window; the buffers follow at [`HEADER`]. If no memory
    /// is lent, this and `half` are 0.
    barriers: u32,
    /// Size of each buffer in bytes; 0 if no memory is lent.
    half: u32,
    /// Parity of the current phase of each barrier, one bit each.
    parity: u32,
}

/// Bytes before the buffers: two barriers, and padding that aligns the buffers.
const HEADER: u32 = 128;
/// The size of a buffer is a multiple of this number of bytes.
const GRAIN: u32 = 128;

impl Lent {
    pub(crate) const NOTHING: Self = Self { barriers: 0, half: 0, parity: 0 };

    /// Returns whether shared memory is lent.
    #[inline(always)]
    pub(crate) fn is_some(&self) -> bool {
        self.half != 0
    }

    /// Returns the phases of the barriers, for a function that copies on behalf of this thread.
    #[inline(always)]
    pub(crate) fn parity(&self) -> u32 {
        self.parity
    }

    /// Sets the phases of the barriers to values from [`Self::parity`].
    #[inline(always)]
    pub(crate) fn set_parity(&mut self, parity: u32) {
        self.parity = parity;
    }
}

impl Context {
    /// Lends shared memory to this thread's puts and gets, which then use bulk copies if the GPU
    /// supports them (sm_90 and later; the kernel must have been compiled for it). On other GPUs
    /// and on the host this has no effect.
    ///
    /// Each thread lends its own region. A region of 64 KiB and 128 bytes moves 32 KiB at a time; a
    /// region of a few KiB is already useful. Copies at warp and block scope use the region of the
    /// scope's first thread. [`Self::reclaim_shared`] ends the loan, and so does the end of the
    /// context.
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
        // SAFETY: the caller lends shared memory of this block; the barriers lie within it,
        // aligned, and nobody else uses them.
        unsafe {
            let barriers = bulk::shared_address(start.add(skip));
            bulk::init(barriers);
            bulk::init(barriers + 8);
            self.lent.set(Lent { barriers, half, parity: 0 });
        }
    }

    /// Returns the memory of [`Self::lend_shared`] after all copies have completed. It may then be
    /// used for anything.
    #[inline]
    pub fn reclaim_shared(&self) {
        let lent = self.lent.replace(Lent::NOTHING);
        if lent.half != 0 {
            bulk::wait_written();
            // SAFETY: barriers that `lend_shared` made; every load was awaited by the call that
            // started it, unless that call failed, after which the kernel ends.
            unsafe {
                bulk::invalidate(lent.barriers);
                bulk::invalidate(lent.barriers + 8);
            }
        }
    }

    /// Waits until all bulk stores of this thread have been written, so that a fence or a release
    /// orders them.
    #[inline(always)]
    pub(crate) fn finish_bulk(&self) {
        if bulk::AVAILABLE && self.bulk_pending.get() {
            bulk::wait_written();
            self.bulk_pending.set(false);
        }
    }

    /// Waits until the bulk stores of this thread no longer read their source.
    #[inline(always)]
    pub(crate) fn flush_bulk(&self) {
        if bulk::AVAILABLE && self.bulk_pending.get() {
            bulk::wait_read::<0>();
        }
    }

    /// Returns whether this thread may make a bulk copy: memory is lent, and the addresses and the
    /// length are aligned.
    #[inline(always)]
    pub(crate) fn can_bulk(&self, to: *const u8, from: *const u8, bytes: usize) -> bool {
        bulk::AVAILABLE && self.lent.get().half != 0 && (to as usize | from as usize | bytes).is_multiple_of(bulk::ALIGN)
    }

    /// Copies global memory to global memory. The stores may be outstanding when it returns; the
    /// source has been read.
    ///
    /// # Errors
    /// If the copy unit does not answer within the deadline.
    ///
    /// # Safety
    /// [`Self::can_bulk`] holds; both sides are accessible global memory of `bytes` bytes, and do
    /// not overlap.
    #[inline]
    pub(crate) unsafe fn bulk_copy(&self, to: *mut u8, from: *const u8, bytes: usize) -> Result<(), Failed> {
        let mut lent = self.lent.get();
        let half = lent.half as usize;
        bulk::fence_global();
        // Waits until the stores of an earlier call no longer read the buffers.
        self.flush_bulk();
        // Chunk `n` goes through buffer `n % 2`; there is no division, because it takes as long as
        // a copy of 1 KiB.
        let chunk = |at: usize| (bytes - at).min(half) as u32;
        // SAFETY: the chunk lies within the source, the buffer within the lent region, and the
        // buffer is idle: the stores of its previous chunk no longer read it.
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
            // SAFETY: the buffer holds the chunk, which lies within the target.
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

    /// Copies shared memory to global memory. The stores may be outstanding when it returns, and
    /// may still read the source.
    ///
    /// # Safety
    /// Bulk copies are available; `from` is shared memory of this block and `to` global memory,
    /// both accessible for `bytes` bytes; all is aligned to [`bulk::ALIGN`].
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
    /// [`Self::can_bulk`] holds; `to` is shared memory of this block and `from` global memory, both
    /// accessible for `bytes` bytes.
    #[inline]
    pub(crate) unsafe fn bulk_to_shared(&self, to: *mut u8, from: *const u8, bytes: usize) -> Result<(), Failed> {
        let mut lent = self.lent.get();
        bulk::fence_shared();
        bulk::fence_global();
        // SAFETY: as the caller promises; the barrier is idle between calls.
        unsafe { bulk::start_load(bulk::shared_address(to), from, bytes as u32, lent.barriers) };
        let outcome = self.await_load(lent.barriers, lent.parity & 1);
        lent.parity ^= 1;
        self.lent.set(lent);
        outcome
    }

    #[inline(always)]
    fn await_load(&self, barrier: u32, parity: u32) -> Result<(), Failed> {
        let mut spin = self.spin();
        // SAFETY: a barrier that `lend_shared` made.
        while !unsafe { bulk::test(barrier, parity) } {
            if let Err(kind) = spin.pause() {
                return Err(self.fail(kind, Report::of(KernelOp::BulkCopy)));
            }
        }
        Ok(())
    }
}

const _: () = assert!(HEADER as usize >= 16 && HEADER.is_multiple_of(GRAIN));
