//! The report of a PE's first failure, which the host reads. Also the pause of a waiting kernel
//! between two polls, which ends the wait at the deadline or after an abort.
//!
//! Invariant: a report is written once. The thread that changes `claimed` from 0 to 1 writes all
//! fields, and writes the kind last.

use super::{Context, Failed};
use crate::Pause;
use crate::gpu::{self, Access, Rmw, Sys};
use core::mem::offset_of;
use peerweave_types::{FailureKind, KernelContext, KernelOp, KernelStatus};

/// The fields of a failure report ([`KernelStatus`]) that describe the failed operation. The report
/// also contains the kind of failure, the block and the thread, which [`write()`] adds.
#[derive(Clone, Copy)]
pub(crate) struct Report {
    pub(crate) operation: KernelOp,
    pub(crate) pe: u32,
    pub(crate) team: u32,
    pub(crate) expected: u64,
    pub(crate) found: u64,
}

impl Report {
    #[inline]
    pub(crate) const fn of(operation: KernelOp) -> Self {
        Self { operation, pe: KernelStatus::NONE, team: KernelStatus::NONE, expected: 0, found: 0 }
    }
}

impl Context {
    /// Writes the report of a failure, and ends the waits of all threads of this PE. If another
    /// thread has already written a report, the earlier report is kept.
    #[inline(always)]
    pub(crate) fn fail(&self, kind: FailureKind, report: Report) -> Failed {
        let Report { operation, pe, team, expected, found } = report;
        // SAFETY: `raw` is the context of `enter`, whose caller promised valid addresses.
        unsafe { write::<()>(self.raw(), kind as u32, operation as u32, pe, team, expected, found) };
        Failed::new(kind)
    }

    /// Fails the kernel with `code`: makes the waits of all threads on this PE fail, and returns
    /// the error that the kernel should return. If the kernel has already failed, the first failure
    /// is kept. The error on the host contains `code` as the found value. Unlike NVSHMEM's
    /// `global_exit`, this call does not end other PEs: the host decides whether they end.
    ///
    /// ```
    /// use peerweave_device::prelude::*;
    ///
    /// #[kernel]
    /// pub fn check(ctx: &Context, of: SymSlice<f32>) -> Result<(), Failed> {
    ///     if ctx.local(of).read(0).is_nan() {
    ///         return Err(ctx.exit(17));
    ///     }
    ///     Ok(())
    /// }
    /// # fn main() {}
    /// ```
    #[cold]
    #[inline]
    pub fn exit(&self, code: u64) -> Failed {
        self.fail(FailureKind::Exit, Report { found: code, ..Report::of(KernelOp::Exit) })
    }

    /// Returns a [`Spin`] for a new wait of this thread, by which the wait checks the deadline and
    /// the abort word.
    #[inline(always)]
    pub(crate) fn spin(&self) -> Spin<'_> {
        Spin { context: self, looks: 0, started: 0, asked: 0 }
    }
}

/// Writes the report of a failure, and sets the abort word. The abort word makes the waits of this
/// PE fail. If a failure has already been reported, does nothing. The function is not inlined, so
/// that its code is not repeated in every operation. The PTX of the kernel's crate must contain the
/// function. The type parameter makes the compiler generate the function in that crate.
///
/// # Safety
/// `raw` is a context that satisfies the safety conditions of [`Context::enter`].
#[cold]
#[inline(never)]
#[expect(
    clippy::extra_unused_type_parameters,
    reason = "the type parameter makes the compiler generate the function in the kernel's crate"
)]
pub(crate) unsafe fn write<Here>(raw: &KernelContext, kind: u32, operation: u32, pe: u32, team: u32, expected: u64, found: u64) {
    let field = |offset: usize| (raw.status + offset as u64) as *mut u32;
    let wide = |offset: usize| (raw.status + offset as u64) as *mut u64;
    // SAFETY: the caller promises valid addresses. So the context's status block and abort word are
    // aligned, accessible, and accessed only atomically while the kernel runs.
    unsafe {
        if <u32 as Rmw<Sys, gpu::Relaxed>>::compare_swap(field(offset_of!(KernelStatus, claimed)), 0, 1) == 0 {
            let write = |offset, value| <u32 as Access<Sys>>::store_relaxed(field(offset), value);
            write(offset_of!(KernelStatus, operation), operation);
            write(offset_of!(KernelStatus, pe), pe);
            write(offset_of!(KernelStatus, team), team);
            write(offset_of!(KernelStatus, block), gpu::block_rank());
            write(offset_of!(KernelStatus, thread), gpu::thread_rank());
            <u64 as Access<Sys>>::store_relaxed(wide(offset_of!(KernelStatus, expected)), expected);
            <u64 as Access<Sys>>::store_relaxed(wide(offset_of!(KernelStatus, found)), found);
            <u32 as Access<Sys>>::store_release(field(offset_of!(KernelStatus, kind)), kind);
            <u32 as Access<Sys>>::store_relaxed(raw.abort as *mut u32, 1);
        }
    }
}

/// The state of one wait in a kernel. The wait calls [`Pause::pause`] after each unsuccessful poll.
/// In every [`Spin::INTERVAL`]th call, `pause` reads the clock. It then also reads the abort word
/// if the deadline has passed, or if the last reading of this word is at least [`Spin::abort_ns`]
/// nanoseconds ago.
pub(crate) struct Spin<'a> {
    context: &'a Context,
    looks: u32,
    started: u64,
    /// Time of this wait's last reading of the abort word, in nanoseconds. Before that, the time of
    /// the wait's first reading of the clock.
    asked: u64,
}

impl Spin<'_> {
    /// Number of polls between two readings of the clock. On a GPU a poll of a word takes about 0.5
    /// µs, and a poll of a bulk copy about 0.05 µs.
    const INTERVAL: u32 = if cfg!(target_arch = "nvptx64") { 64 } else { 8 };
    /// The smallest and the largest result of [`Self::abort_ns`], in nanoseconds.
    const ABORT_NS: [u64; 2] = if cfg!(target_arch = "nvptx64") { [100_000, 25_000_000] } else { [1, 1] };
    /// The time by which [`Self::abort_ns`] grows for each thread of the grid, in nanoseconds.
    const ABORT_NS_PER_THREAD: u64 = 80;

    /// Returns the minimum time between two readings of the abort word by one thread, in
    /// nanoseconds. The time grows with the number of threads in the grid, within the limits
    /// [`Self::ABORT_NS`].
    ///
    /// The abort word may be in host memory. A GPU reads host memory for one warp at a time, and
    /// each read takes about 0.65 µs. The returned time is about four times the number of warps,
    /// multiplied by 0.65 µs. If the time were shorter, the readings of one kernel would delay the
    /// kernels of other PEs. The warps of the delayed kernels would then read the word too, and all
    /// later calls would be slow.
    #[inline]
    fn abort_ns() -> u64 {
        let [shortest, longest] = Self::ABORT_NS;
        let threads = gpu::grid_dim().count().wrapping_mul(u64::from(gpu::block_threads()));
        threads.wrapping_mul(Self::ABORT_NS_PER_THREAD).clamp(shortest, longest)
    }

    #[cold]
    #[inline]
    fn check(&mut self) -> Result<(), FailureKind> {
        let now = gpu::now_ns();
        if self.started == 0 {
            self.started = now.max(1);
            self.asked = now;
        }
        let raw = self.context.raw();
        let is_late = now.wrapping_sub(self.started) > raw.deadline_ns;
        if now.wrapping_sub(self.asked) < Self::abort_ns() && !is_late {
            return Ok(());
        }
        self.asked = now;
        // SAFETY: the context's abort word is aligned, accessible and accessed atomically while the
        // kernel runs.
        if unsafe { <u32 as Access<Sys>>::load_relaxed(raw.abort as *const u32) } != 0 {
            return Err(FailureKind::Aborted);
        }
        if is_late { Err(FailureKind::Deadline) } else { Ok(()) }
    }
}

impl Pause for Spin<'_> {
    type Error = FailureKind;

    #[inline(always)]
    fn pause(&mut self) -> Result<(), FailureKind> {
        gpu::pause();
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(Self::INTERVAL) { self.check() } else { Ok(()) }
    }
}
