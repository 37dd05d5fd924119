//! Waits for kernels that use their own protocols on shared memory.

use crate::api::report::Report;
use crate::api::{Context, Failed};
use crate::gpu;
use crate::pause::until;
use peerweave_types::{FailureKind, KernelOp};

impl Context {
    /// Calls `look` until it returns a value. This is the wait for a kernel's own protocol, for
    /// example one in which the data serves as its own flag. The wait fails at the context's
    /// deadline, or when another wait of this PE has failed.
    ///
    /// `missing` is called once, after a failure: it returns the PE that did not do its part, and
    /// the host's error names that PE. Only the reads of `look` determine the memory order.
    ///
    /// # Errors
    /// [`Failed`], which has been written to the status.
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
    pub fn poll<T>(
        &self,
        operation: KernelOp,
        look: impl FnMut() -> Option<T>,
        missing: impl FnOnce() -> u32,
    ) -> Result<T, Failed> {
        let mut spin = self.spin();
        until(&mut spin, look).map_err(|kind| self.fail(kind, Report { pe: missing(), ..Report::of(operation) }))
    }

    /// Like [`Self::poll`], for the threads of a block for which `polls` is true. All threads of
    /// the block call it and return together: when every polling thread has its value, or when one
    /// has failed. Writes that one thread acquired are visible to all.
    ///
    /// # Errors
    /// [`Failed`], on all threads.
    #[inline(always)]
    pub fn poll_block(
        &self,
        operation: KernelOp,
        polls: bool,
        look: impl FnMut() -> Option<()>,
        missing: impl FnOnce() -> u32,
    ) -> Result<(), Failed> {
        // All threads take one path to the barrier, and the outcome is not examined after it.
        // Otherwise the compiler would copy the barrier into each path.
        let mut look = look;
        let has_failed = self.poll(operation, || if polls { look() } else { Some(()) }, missing).is_err();
        if gpu::sync_threads_or(has_failed) { Err(Failed::new(FailureKind::Aborted)) } else { Ok(()) }
    }
}
