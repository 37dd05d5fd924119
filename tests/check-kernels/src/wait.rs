//! Checks waits and tests for one, any, all or some elements of symmetric memory. The elements are
//! compared with one value, or each element with a separate value.

use crate::{Check, Sample, takes_part};
use peerweave_device::api::KernelInteger;
use peerweave_device::prelude::*;

/// Required number of elements of `words`.
pub const WORDS: usize = 8;

fn all<T: Sample + KernelInteger>(ctx: &Context, words: SymSlice<T>, result: SymSlice<u64>) -> Result<(), Failed> {
    let check = Check::new(ctx, result);
    let (_, next, _) = check.ring();
    let of = |number| T::of(number);
    let yes = |holds: bool| u64::from(holds);
    if takes_part!(thread) {
        // All elements are 0 here.
        check.same(line!(), yes(ctx.test(words, Compare::Ne, of(0))), 0);
        check.same(line!(), yes(ctx.test_any(words, EXCLUDE_NONE, Compare::Eq, of(9)).is_some()), 0);
        check.same(line!(), yes(ctx.test_all(words, EXCLUDE_NONE, Compare::Eq, of(0))), 1);
    }
    check.meet()?;
    if takes_part!(thread) {
        // Waits for any element. Only element 5 changes.
        ctx.atomic_set(words.at(5), of(50), next);
        let any = ctx.wait_until_any(words, EXCLUDE_NONE, Compare::Gt, of(0))?;
        check.same(line!(), any.map_or(99, |index| index as u64), 5);
        ctx.wait_until(words.at(5), Compare::Ge, of(50))?;
        check.same(line!(), yes(ctx.test(words.at(5), Compare::Le, of(50))), 1);
        check.same(line!(), yes(ctx.test(words.at(5), Compare::Lt, of(50))), 0);
        // Excluded elements are ignored. If all elements are excluded, the waits return
        // immediately.
        let excluded = ctx.test_any(words, |index| index == 5, Compare::Gt, of(0));
        check.same(line!(), yes(excluded.is_some()), 0);
        check.same(line!(), yes(ctx.wait_until_any(words, |_| true, Compare::Eq, of(77))?.is_some()), 0);
        ctx.wait_until_all(words, |_| true, Compare::Eq, of(77))?;
    }
    check.meet()?;
    if takes_part!(thread) {
        // Waits for all elements, each with a separate value.
        for index in 0..WORDS {
            ctx.atomic_set(words.at(index), of(10 + index as u64), next);
        }
        let values: [T; WORDS] = core::array::from_fn(|index| of(10 + index as u64));
        ctx.wait_until_all_vector(words, EXCLUDE_NONE, Compare::Eq, &values)?;
        check.same(line!(), yes(ctx.test_all_vector(words, EXCLUDE_NONE, Compare::Eq, &values)), 1);
        ctx.wait_until_all(words, EXCLUDE_NONE, Compare::Ge, of(10))?;
        check.same(line!(), yes(ctx.test_all(words, EXCLUDE_NONE, Compare::Gt, of(10))), 0);

        // Waits for some elements: the elements above 14.
        let mut indices = [0; WORDS];
        let found = ctx.wait_until_some(words, &mut indices, EXCLUDE_NONE, Compare::Gt, of(14))?;
        check.same(line!(), found as u64, 3);
        check.same(line!(), indices[..3].iter().fold(0, |all, index| all * 10 + *index as u64), 567);
        let found = ctx.test_some(words, &mut indices, |index| index == 6, Compare::Gt, of(14));
        check.same(line!(), found as u64, 2);
        check.same(line!(), indices[1] as u64, 7);
        let others: [T; WORDS] = core::array::from_fn(|index| of(if index == 3 { 13 } else { 0 }));
        let any = ctx.wait_until_any_vector(words, EXCLUDE_NONE, Compare::Eq, &others)?;
        check.same(line!(), any.map_or(99, |index| index as u64), 3);
        check.same(line!(), ctx.test_any_vector(words, EXCLUDE_NONE, Compare::Eq, &others).map_or(99, |index| index as u64), 3);
        check.same(line!(), ctx.wait_until_some_vector(words, &mut indices, EXCLUDE_NONE, Compare::Eq, &others)? as u64, 1);
        check.same(line!(), ctx.test_some_vector(words, &mut indices, EXCLUDE_NONE, Compare::Ne, &others) as u64, 7);
    }
    check.finish();
    Ok(())
}

/// Defines one kernel for each element type.
macro_rules! kernels {
    ($($name:ident: $t:ty;)*) => {$(
        #[doc = concat!("Checks waits and tests for `", stringify!($t), "`. `words` has [`WORDS`] elements, initially 0. The launch has one block on each PE.")]
        #[kernel]
        pub fn $name(ctx: &Context, words: SymSlice<$t>, result: SymSlice<u64>) -> Result<(), Failed> {
            all(ctx, words, result)
        }
    )*};
}

kernels! {
    check_wait_i32: i32;
    check_wait_u32: u32;
    check_wait_i64: i64;
    check_wait_u64: u64;
}
