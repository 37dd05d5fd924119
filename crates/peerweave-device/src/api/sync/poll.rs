//! Waits of kernels that read shared memory by protocols of their own.

use crate::api::report::Report;
use crate::api::{Context, Failed};
use crate::gpu;
use crate::pause::until;
use peerweave_types::{FailureKind, KernelOp};

impl Context {
    /// Calls `look` until it returns something: the wait of a kernel whose protocol is its own,
    /// such as one in which the data is the flag. It ends by the context's deadline, or when
    /// another wait of this PE has failed.
    ///
    /// `missing` is called once, after a failure: it returns the PE that did not do its part, which
    /// the host's error names. `look` orders nothing unless its reads do.
    ///
    /// # Errors
    /// [`Failed`], which has been written to the status.
    ///
    /// ```
    /// use peerweave_device::prelude::*;
    /// use peerweave_device::types::KernelOp;
    ///
    /// /// Waits until PE 0 has written another number than 0 here.
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

    /// [`Self::poll`] by those threads of a block for which `polls` is true. All threads of the
    /// block call it, and return together: when all have seen what they look for, or one has
    /// failed. What a thread acquired is visible to all.
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
        // One path to the barrier, also for threads that do not poll, and no look at the outcome
        // behind it: the compiler would copy the barrier into each path.
        let mut look = look;
        let has_failed = self.poll(operation, || if polls { look() } else { Some(()) }, missing).is_err();
        if gpu::sync_threads_or(has_failed) { Err(Failed::new(FailureKind::Aborted)) } else { Ok(()) }
    }
}
