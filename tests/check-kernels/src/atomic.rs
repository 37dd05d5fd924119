//! Checks atomic operations: the returned values, the stored values, and that no update is lost if
//! all threads of all PEs update one element.

use crate::{Check, Sample, apart, takes_part};
use peerweave_device::api::{KernelAdd, KernelAtomic, KernelInteger};
use peerweave_device::prelude::*;
use peerweave_types::{bf16, f16};

/// Required number of elements of `words`.
pub const WORDS: usize = 8;

/// Checks the strong and the relaxed form of one operation that returns nothing, on an element of
/// the next PE. No other PE writes that element.
macro_rules! both {
    ($check:ident, $word:ident, $pe:ident, $strong:ident, $relaxed:ident ($($argument:expr),*) from $start:expr => $end:expr) => {
        apart(|| {
            for relaxed in [false, true] {
                $check.ctx.atomic_set($word, T::of($start), $pe);
                // Over a network, only a fence orders a relaxed operation after the set above.
                $check.ctx.fence();
                if relaxed {
                    $check.ctx.$relaxed($word, $($argument,)* $pe);
                } else {
                    $check.ctx.$strong($word, $($argument,)* $pe);
                }
                $check.same(line!(), $check.ctx.atomic_fetch($word, $pe).bits(), T::of($end).bits());
            }
        });
    };
}

/// Like `both`, for operations that return the previous value. Also compares the returned value.
macro_rules! both_fetch {
    ($check:ident, $word:ident, $pe:ident, $strong:ident, $relaxed:ident ($($argument:expr),*) from $start:expr => $end:expr) => {
        apart(|| {
            for relaxed in [false, true] {
                $check.ctx.atomic_set_relaxed($word, T::of($start), $pe);
                $check.ctx.fence();
                let found = if relaxed {
                    $check.ctx.$relaxed($word, $($argument,)* $pe)
                } else {
                    $check.ctx.$strong($word, $($argument,)* $pe)
                };
                $check.same(line!(), found.bits(), T::of($start).bits());
                $check.ctx.fence();
                $check.same(line!(), $check.ctx.atomic_fetch_relaxed($word, $pe).bits(), T::of($end).bits());
            }
        });
    };
}

/// Checks the atomic operations that all types of `KernelAtomic` have.
fn numbers<T: Sample + KernelAtomic>(check: &Check<'_>, word: SymSlice<T>, pe: u32) {
    let of = |number| T::of(number);
    both_fetch!(check, word, pe, atomic_swap, atomic_swap_relaxed(of(9)) from 5 => 9);
    both_fetch!(check, word, pe, atomic_compare_swap, atomic_compare_swap_relaxed(of(5), of(8)) from 5 => 8);
    both_fetch!(check, word, pe, atomic_compare_swap, atomic_compare_swap_relaxed(of(6), of(8)) from 5 => 5);
    both_fetch!(check, word, pe, atomic_fetch_add, atomic_fetch_add_relaxed(of(20)) from 5 => 25);
    both_fetch!(check, word, pe, atomic_fetch_inc, atomic_fetch_inc_relaxed() from 5 => 6);
    both!(check, word, pe, atomic_add, atomic_add_relaxed(of(20)) from 5 => 25);
    both!(check, word, pe, atomic_inc, atomic_inc_relaxed() from 5 => 6);
}

/// Checks the atomic operations of 16-bit floats, which are only additions.
fn halves<T: Sample + KernelAdd>(ctx: &Context, words: SymSlice<T>, result: SymSlice<u64>) -> Result<(), Failed> {
    let check = Check::new(ctx, result);
    let (_, next, _) = check.ring();
    // Each 32-bit word contains two elements, and an addition must change only one element.
    for index in [0, 1] {
        if takes_part!(thread) {
            ctx.p(words.at(index), T::of(5), next);
            ctx.quiet();
            for (number, relaxed) in [(5, false), (25, true)] {
                let found = if relaxed {
                    ctx.atomic_fetch_add_relaxed(words.at(index), T::of(20), next)
                } else {
                    ctx.atomic_fetch_add(words.at(index), T::of(20), next)
                };
                check.same(line!(), found.bits(), T::of(number).bits());
            }
            ctx.atomic_add(words.at(index), T::of(3), next);
            ctx.atomic_add_relaxed(words.at(index), T::of(3), next);
            ctx.fence();
            check.same(line!(), ctx.atomic_fetch_inc(words.at(index), next).bits(), T::of(51).bits());
            ctx.fence();
            ctx.atomic_inc_relaxed(words.at(index), next);
        }
        check.meet()?;
        check.expect(line!(), words.at(index).truncate(1), |_| 53);
        check.expect(line!(), words.at(1 - index).truncate(1), |_| if index == 0 { 0 } else { 53 });
        check.meet()?;
    }
    // All threads of all PEs add to one element of PE 0 at the same time. The sum is small enough
    // to be exact in the element type.
    ctx.atomic_add(words.at(2), T::of(1), 0);
    check.meet()?;
    if takes_part!(thread) && ctx.my_pe() == 0 {
        let threads = u64::from(ctx.n_pes() * gpu::block_threads());
        check.same(line!(), ctx.local(words).read(2).bits(), T::of(threads).bits());
    }
    check.finish();
    Ok(())
}

/// Checks the atomic operations that only integers have, and that additions of integers wrap.
fn bits<T: Sample + KernelInteger>(check: &Check<'_>, word: SymSlice<T>, pe: u32) {
    let of = |number| T::of(number);
    both_fetch!(check, word, pe, atomic_fetch_and, atomic_fetch_and_relaxed(of(0b0110)) from 0b1100 => 0b0100);
    both_fetch!(check, word, pe, atomic_fetch_or, atomic_fetch_or_relaxed(of(0b0110)) from 0b1100 => 0b1110);
    both_fetch!(check, word, pe, atomic_fetch_xor, atomic_fetch_xor_relaxed(of(0b0110)) from 0b1100 => 0b1010);
    both!(check, word, pe, atomic_and, atomic_and_relaxed(of(0b0110)) from 0b1100 => 0b0100);
    both!(check, word, pe, atomic_or, atomic_or_relaxed(of(0b0110)) from 0b1100 => 0b1110);
    both!(check, word, pe, atomic_xor, atomic_xor_relaxed(of(0b0110)) from 0b1100 => 0b1010);
    // The addition wraps.
    both_fetch!(check, word, pe, atomic_fetch_add, atomic_fetch_add_relaxed(of(2)) from u64::MAX => 1);
}

fn all<T: Sample + KernelAtomic>(
    ctx: &Context,
    words: SymSlice<T>,
    result: SymSlice<u64>,
    more: impl Fn(&Check<'_>, SymSlice<T>, u32),
) -> Result<(), Failed> {
    let check = Check::new(ctx, result);
    let (_, next, _) = check.ring();
    if takes_part!(thread) {
        numbers(&check, words.at(0), next);
        more(&check, words.at(0), next);
    }
    check.meet()?;
    // All threads of all PEs update elements of PE 0 at the same time. The results are small enough
    // to be exact as floats.
    ctx.atomic_add(words.at(1), T::of(3), 0);
    ctx.atomic_fetch_add_relaxed(words.at(1), T::of(2), 0);
    ctx.atomic_inc(words.at(2), 0);
    ctx.atomic_fetch_inc(words.at(2), 0);
    // Adds one by compare-and-swap. The element only grows, so a thread whose expected value is too
    // small tries the next value.
    let mut number = 0;
    while ctx.atomic_compare_swap(words.at(3), T::of(number), T::of(number + 1), 0) != T::of(number) {
        number += 1;
    }
    check.meet()?;
    if takes_part!(thread) && ctx.my_pe() == 0 {
        let threads = u64::from(ctx.n_pes() * gpu::block_threads());
        check.same(line!(), ctx.atomic_fetch(words.at(1), 0).bits(), T::of(5 * threads).bits());
        check.same(line!(), ctx.atomic_fetch(words.at(2), 0).bits(), T::of(2 * threads).bits());
        check.same(line!(), ctx.atomic_fetch(words.at(3), 0).bits(), T::of(threads).bits());
    }
    check.finish();
    Ok(())
}

/// Defines one kernel for each element type.
macro_rules! kernels {
    ($($name:ident: $t:ty, $more:expr;)*) => {$(
        #[doc = concat!("Checks atomic operations on `", stringify!($t), "`. `words` has [`WORDS`] elements, initially 0. The launch has one block on each PE, and")]
        /// at most 2048 threads on all PEs together.
        #[kernel]
        pub fn $name(ctx: &Context, words: SymSlice<$t>, result: SymSlice<u64>) -> Result<(), Failed> {
            all(ctx, words, result, $more)
        }
    )*};
}

kernels! {
    check_atomic_i32: i32, bits;
    check_atomic_u32: u32, bits;
    check_atomic_i64: i64, bits;
    check_atomic_u64: u64, bits;
    check_atomic_f32: f32, |_, _, _| ();
    check_atomic_f64: f64, |_, _, _| ();
}

/// Checks additions to `f16`. `words` has [`WORDS`] elements, initially 0. The launch has one block
/// on each PE, and at most 1024 threads on all PEs together.
#[kernel]
pub fn check_atomic_f16(ctx: &Context, words: SymSlice<f16>, result: SymSlice<u64>) -> Result<(), Failed> {
    halves(ctx, words, result)
}

/// Checks additions to `bf16`. `words` has [`WORDS`] elements, initially 0. The launch has one
/// block on each PE, and at most 256 threads on all PEs together.
#[kernel]
pub fn check_atomic_bf16(ctx: &Context, words: SymSlice<bf16>, result: SymSlice<u64>) -> Result<(), Failed> {
    halves(ctx, words, result)
}
