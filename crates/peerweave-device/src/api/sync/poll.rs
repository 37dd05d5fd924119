//! Methods by which a kernel waits, if the kernel implements its own protocol on symmetric memory.

use crate::api::report::Report;
use crate::api::{Context, Failed};
use crate::gpu;
use crate::pause::until;
#[cfg(not(target_arch = "nvptx64"))]
use crate::pause::{Pause, from_fn};
#[cfg(not(target_arch = "nvptx64"))]
use core::sync::atomic::{AtomicU64, Ordering};
use peerweave_types::{FailureKind, KernelOp};

impl Context {
    /// Calls `look` until `look` returns a value. A kernel that implements its own protocol can
    /// wait by this method, for example if the data itself serves as the flag. The wait fails at
    /// the context's deadline, or when another wait of this PE has failed.
    ///
    /// `missing` returns the PE for which the kernel waits. If the wait fails, `missing` is called,
    /// and the host's error names the PE that `missing` returns. In a kernel on the host, `missing`
    /// is also called during the wait, which fails soon after that PE has left the job. The wait
    /// itself orders no accesses. The reads in `look` determine the memory order.
    ///
    /// # Errors
    /// [`Failed`] if the wait fails. The failure has been written to the context's status.
    ///
    /// ```
    /// use peerweave_device::prelude::*;
    /// use peerweave_device::types::KernelOp;
    ///
    /// /// Waits until PE 0 has written a number other than 0 here.
    /// #[kernel]
    /// pub fn wait_for_number(ctx: &Context, number: SymSlice<u64>) -> Result<(), Failed> {
    ///     let look = || Some(ctx.atomic_fetch(number, ctx.my_pe())).filter(|found| *found != 0);
    ///     ctx.poll(KernelOp::WaitUntil, look, || 0)?;
    ///     Ok(())
    /// }
    /// # fn main() {}
    /// ```
    #[inline(always)]
    pub fn poll<T>(&self, operation: KernelOp, look: impl FnMut() -> Option<T>, missing: impl Fn() -> u32) -> Result<T, Failed> {
        #[cfg(target_arch = "nvptx64")]
        let mut pause = self.spin();
        #[cfg(not(target_arch = "nvptx64"))]
        let mut pause = self.unless_gone(&missing);
        until(&mut pause, look).map_err(|kind| self.fail(kind, Report { pe: missing(), ..Report::of(operation) }))
    }

    /// Returns the pause that a wait makes between two polls. `missing` returns the PE for which
    /// the thread waits. If that PE has left the job, the pause allows one more poll, and then
    /// fails. The last poll is needed because the PE may have satisfied the condition before it
    /// left.
    #[cfg(not(target_arch = "nvptx64"))]
    fn unless_gone<'a>(&'a self, missing: &'a impl Fn() -> u32) -> impl Pause<Error = FailureKind> + 'a {
        let (mut spin, mut last) = (self.spin(), None);
        from_fn(move || {
            spin.pause()?;
            let gone = Some(()).filter(|()| self.has_gone()).map(|()| missing()).filter(|pe| self.is_gone(*pe));
            if gone.is_some() && gone == last {
                return Err(FailureKind::Aborted);
            }
            last = gone;
            Ok(())
        })
    }

    /// Returns word `index` of the table of PEs that have left the job; 0 if the context has no
    /// such table. Word 0 is not 0 if any PE has left. The later words have one bit for each PE of
    /// the job.
    #[cfg(not(target_arch = "nvptx64"))]
    #[inline]
    fn gone_word(&self, index: usize) -> u64 {
        let words = core::ptr::with_exposed_provenance::<AtomicU64>(self.raw().gone as usize);
        if words.is_null() {
            return 0;
        }
        // SAFETY: the host keeps the table allocated while the kernel runs, and accesses it
        // atomically. The table has one word, plus one word for each 64 PEs, and `index` lies
        // within it.
        unsafe { &*words.add(index) }.load(Ordering::Acquire)
    }

    /// Returns whether any PE has left the job.
    #[cfg(not(target_arch = "nvptx64"))]
    #[inline]
    fn has_gone(&self) -> bool {
        self.gone_word(0) != 0
    }

    /// Returns whether a PE has left the job; `false` if no PE has this number.
    #[cfg(not(target_arch = "nvptx64"))]
    fn is_gone(&self, pe: u32) -> bool {
        pe < self.raw().n_pes && self.gone_word(1 + pe as usize / 64) >> (pe % 64) & 1 != 0
    }

    /// Like [`Self::poll`], but called by all threads of a block. A thread with `polls == true`
    /// calls `look` until it returns a value. The other threads do not call `look`. The call
    /// returns when `look` has returned a value on each polling thread, or when the wait of a
    /// thread has failed. Writes that one thread has acquired are visible to all threads of the
    /// block.
    ///
    /// # Errors
    /// [`Failed`] on all threads of the block, if the wait of any thread fails.
    #[inline(always)]
    pub fn poll_block(
        &self,
        operation: KernelOp,
        polls: bool,
        look: impl FnMut() -> Option<()>,
        missing: impl Fn() -> u32,
    ) -> Result<(), Failed> {
        // All threads take one path to the barrier, and no branch after the barrier depends on the
        // outcome of the poll. With such branches the compiler would copy the barrier into each
        // path.
        let mut look = look;
        let has_failed = self.poll(operation, || if polls { look() } else { Some(()) }, missing).is_err();
        if gpu::sync_threads_or(has_failed) { Err(Failed::new(FailureKind::Aborted)) } else { Ok(()) }
    }
}
