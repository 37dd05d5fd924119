//! Kernels that check the device API: every function at every scope, with each element type.
//! Results are compared exactly.
//!
//! The same source runs on the host, in tests under several schedules, and on GPUs. Each kernel is
//! launched on all PEs with blocks of at least 33 threads, so that a block has two warps. The
//! kernel writes to `result` of its PE. Word 0 is the number of differences. Words 1 to 3 are the
//! source line, the found value and the expected value of the first difference. The last word is
//! [`FINISHED`] when the kernel is complete.
//!
//! | module | checked functions |
//! |---|---|
//! | `rma` | puts and gets of one element, of contiguous elements, at strides, and with signals; sources and targets of each kind; bulk copies |
//! | `signal` | changes of signals, waits and tests |
//! | `wait` | waits and tests for one, any, all or some elements, with one value or a value for each element |
//! | `atomic` | atomic operations, by one thread and by all PEs at the same time |
//! | `team` | barriers and syncs at each scope, of all PEs and of a team |
//! | `collective` | broadcast, fcollect, alltoall, reduce, reducescatter |
//! | `context` | numbers of PEs and ranks, mapped peers, and waits of a kernel's own protocol |
//! | `warp` | indices, barriers, shuffles, votes and shared memory |
#![no_std]

pub mod atomic;
pub mod collective;
pub mod context;
pub mod rma;
pub mod signal;
pub mod team;
pub mod wait;
pub mod warp;

use peerweave_device::prelude::*;
use peerweave_types::{bf16, f16};

/// Required number of words of `result`.
pub const RESULT_WORDS: usize = 8;

/// Value of the last word of `result` when the kernel is complete.
pub const FINISHED: u64 = 0xf1;

/// An element type whose values are computed from numbers, so that both sides of a copy can compute
/// the same element.
pub trait Sample: Plain + PartialEq {
    /// Returns the element for a number. Different numbers below 2¹¹ have different elements; for
    /// `bf16` and types of 8 bits only numbers below 2⁸.
    fn of(number: u64) -> Self;

    /// Returns the low bits of the element, for reports.
    fn bits(self) -> u64;
}

macro_rules! samples {
    ($($t:ty: |$n:ident| $of:expr, |$v:ident| $bits:expr;)*) => {$(
        impl Sample for $t {
            #[inline(always)]
            fn of($n: u64) -> Self {
                $of
            }

            #[inline(always)]
            fn bits(self) -> u64 {
                let $v = self;
                $bits
            }
        }
    )*};
}

samples! {
    i8: |n| n as i8, |v| v as u64;
    u8: |n| n as u8, |v| u64::from(v);
    i16: |n| n as i16, |v| v as u64;
    u16: |n| n as u16, |v| u64::from(v);
    i32: |n| n as i32, |v| v as u64;
    u32: |n| n as u32, |v| u64::from(v);
    i64: |n| n as i64, |v| v as u64;
    u64: |n| n, |v| v;
    u128: |n| u128::from(n) << 64 | u128::from(n ^ 0xff), |v| v as u64;
    f16: |n| f16::from_f32((n & 0x7ff) as f32), |v| u64::from(v.to_bits());
    bf16: |n| bf16::from_f32((n & 0xff) as f32), |v| u64::from(v.to_bits());
    f32: |n| (n & 0xff_ffff) as f32, |v| u64::from(v.to_bits());
    f64: |n| (n & 0xffff_ffff) as f64, |v| v.to_bits();
}

/// The context and the result of a check kernel.
pub(crate) struct Check<'a> {
    pub(crate) ctx: &'a Context,
    result: SymSlice<u64>,
}

impl<'a> Check<'a> {
    pub(crate) fn new(ctx: &'a Context, result: SymSlice<u64>) -> Self {
        Self { ctx, result }
    }

    /// Returns the numbers of this PE, the next PE, and the previous PE.
    #[inline(always)]
    pub(crate) fn ring(&self) -> (u32, u32, u32) {
        let (me, n) = (self.ctx.my_pe(), self.ctx.n_pes());
        (me, (me + 1) % n, (me + n - 1) % n)
    }

    /// Records a difference at a source line, if the values differ.
    #[inline(always)]
    pub(crate) fn same(&self, line: u32, found: u64, expected: u64) {
        if found != expected {
            self.differ(line, found, expected);
        }
    }

    #[inline(never)]
    fn differ(&self, line: u32, found: u64, expected: u64) {
        let me = self.ctx.my_pe();
        if self.ctx.atomic_fetch_inc(self.result.at(0), me) == 0 {
            let result = self.ctx.local(self.result);
            result.write(1, u64::from(line));
            result.write(2, found);
            result.write(3, expected);
        }
    }

    /// Records that the kernel is complete. All threads of the block must call this method. Only
    /// block 0 writes the record.
    #[inline(always)]
    pub(crate) fn finish(&self) {
        gpu::sync_threads();
        if gpu::thread_rank() == 0 && gpu::block_rank() == 0 {
            self.ctx.local(self.result).write(RESULT_WORDS - 1, FINISHED);
        }
    }

    /// Waits until all PEs have called this method. All threads of the block must call it.
    #[inline(never)]
    pub(crate) fn meet(&self) -> Result<(), Failed> {
        self.ctx.barrier_all_block()
    }

    /// Fills this PE's own slice with the elements for `first` and the following numbers. All
    /// threads of the block must call this method. Afterwards the elements are visible to all these
    /// threads.
    #[inline(never)]
    pub(crate) fn fill<T: Sample>(&self, of: SymSlice<T>, first: u64) {
        let mine = self.ctx.local(of);
        for i in (gpu::thread_rank() as usize..of.len()).step_by(gpu::block_threads() as usize) {
            mine.write(i, T::of(first + i as u64));
        }
        gpu::sync_threads();
    }

    /// Fills this PE's own slice with the element for 0. All threads of the block must call this
    /// method. Afterwards the elements are visible to all these threads.
    #[inline(never)]
    pub(crate) fn clear<T: Sample>(&self, of: SymSlice<T>) {
        let mine = self.ctx.local(of);
        for i in (gpu::thread_rank() as usize..of.len()).step_by(gpu::block_threads() as usize) {
            mine.write(i, T::of(0));
        }
        gpu::sync_threads();
    }

    /// Compares each element of this PE's own slice with the element for `number(index)`. All
    /// threads of the block must call this method.
    #[inline(always)]
    pub(crate) fn expect<T: Sample>(&self, line: u32, of: SymSlice<T>, number: impl Fn(usize) -> u64) {
        let mine = self.ctx.local(of);
        for i in (gpu::thread_rank() as usize..of.len()).step_by(gpu::block_threads() as usize) {
            let (found, expected) = (mine.read(i), T::of(number(i)));
            if found != expected {
                self.differ(line, found.bits(), expected.bits());
            }
        }
    }
}

/// Calls a closure in a function that is not inlined.
///
/// The functions of the device API are inlined into their callers, and a check kernel calls
/// hundreds of them. In a single function they take minutes to compile, in separate functions only
/// seconds.
#[inline(never)]
pub(crate) fn apart<R>(act: impl FnOnce() -> R) -> R {
    act()
}

/// Returns whether this thread belongs to the scope that makes a call: the first thread, the first
/// warp, or the whole block.
macro_rules! takes_part {
    (thread) => {
        gpu::thread_rank() == 0
    };
    (warp) => {
        gpu::warp() == 0
    };
    (block) => {
        true
    };
}
pub(crate) use takes_part;
