//! The collective reduce_scatter: rank `r` gets the reduction of part `r` of all inputs.
//!
//! In these kernels, [`Call::count`] is the number of elements of a part. An input has one part for
//! each rank. The starts of consecutive parts are [`Call::stride`] bytes apart.

use crate::Call;
use crate::line::Operand;
use crate::line::push::push_to_banks;
use crate::line::reduce::{Class, outgoing, reduce};
use crate::line::wait::{Row, await_sum, await_two_rows, position, put_back};
use peerweave_device::prelude::*;
use peerweave_types::{KernelOp, bf16, f16};

/// Runs a reduce_scatter. Each launch uses one of the two banks in every staging area. A bank has
/// one part from each rank, in rank order: if a part has `n` lines of 16 bytes, the part from rank
/// `r` starts at line `r * n` of the bank.
#[inline(always)]
fn run<T: Class, const W: usize, const MORE: bool, const PLAIN: bool>(ctx: &Context, call: &Call) -> Result<(), Failed> {
    if !call.begin() {
        return Ok(());
    }
    // SAFETY: the launch guarantees an input of one part for each rank, and a result of one part.
    let part = |k: u32| unsafe { Operand::<PLAIN>::new(call.send + u64::from(call.rank_after(k)) * call.stride, call.count) };
    // SAFETY: the launch guarantees a result of one part.
    let recv = unsafe { Operand::<PLAIN>::new(call.recv, call.count) };
    let lines = recv.lines::<T>();
    let outgoing = |k: u32, line| outgoing::<T, PLAIN>(call.op, call.scalar, part(k).read::<T>(line));
    let region = u64::from(call.rank) * lines;
    // SAFETY: the launch guarantees the counter, and areas with banks for a part of each rank.
    let banks = unsafe { push_to_banks::<W, MORE, 1, false>(call, lines, region, |_, _| true, outgoing, |_, _| ())? };
    let (first, step) = position();
    let row_of = |line| Row { lines: banks, first: line, stride: lines, ranks: call.ranks };
    let mut line = first;
    if PLAIN && !MORE {
        // Loading two lines of each rank takes as long as loading one.
        while line + step < lines {
            let (row, next) = (row_of(line), line + step);
            let own = [outgoing(0, line), outgoing(0, next)];
            let found = await_two_rows::<W>(ctx, KernelOp::ReduceScatter, call, row, step, own)?;
            recv.write::<T>(line, reduce::<T, W, PLAIN>(call.op, call.ranks, &found[0]));
            recv.write::<T>(next, reduce::<T, W, PLAIN>(call.op, call.ranks, &found[1]));
            put_back::<W, false>(call, row);
            put_back::<W, false>(call, row_of(next));
            line = next + step;
        }
    }
    while line < lines {
        let row = row_of(line);
        let own = outgoing(0, line);
        recv.write::<T>(line, await_sum::<T, W, MORE, PLAIN>(ctx, KernelOp::ReduceScatter, call, row, own)?);
        put_back::<W, MORE>(call, row);
        line += step;
    }
    Ok(())
}

macro_rules! entries {
    ($($name:ident: <$t:ty, $w:literal, $more:literal, $plain:literal>;)*) => {$(
        #[doc = concat!("reduce_scatter of `", stringify!($t), "`. The kernel's name ends with the maximum number of ranks.")]
        #[kernel(max_threads = 512, unchecked, ptx = crate::PTX)]
        pub fn $name(ctx: &Context, call: Call) -> Result<(), Failed> {
            run::<$t, $w, $more, $plain>(ctx, &call)
        }
    )*};
}

entries! {
    reduce_scatter_f16_2: <f16, 2, false, false>;
    reduce_scatter_f16_4: <f16, 4, false, false>;
    reduce_scatter_f16_8: <f16, 4, true, false>;
    reduce_scatter_bf16_2: <bf16, 2, false, false>;
    reduce_scatter_bf16_4: <bf16, 4, false, false>;
    reduce_scatter_bf16_8: <bf16, 4, true, false>;
    reduce_scatter_f32_2: <f32, 2, false, false>;
    reduce_scatter_f32_4: <f32, 4, false, false>;
    reduce_scatter_f32_8: <f32, 4, true, false>;
    reduce_scatter_i8_8: <i8, 4, true, false>;
    reduce_scatter_u8_8: <u8, 4, true, false>;
    reduce_scatter_i16_8: <i16, 4, true, false>;
    reduce_scatter_u16_8: <u16, 4, true, false>;
    reduce_scatter_i32_8: <i32, 4, true, false>;
    reduce_scatter_u32_8: <u32, 4, true, false>;
    reduce_scatter_i64_8: <i64, 4, true, false>;
    reduce_scatter_u64_8: <u64, 4, true, false>;
    reduce_scatter_f64_8: <f64, 4, true, false>;
    reduce_scatter_plain_f16_2: <f16, 2, false, true>;
    reduce_scatter_plain_f16_4: <f16, 4, false, true>;
    reduce_scatter_plain_f16_8: <f16, 4, true, true>;
    reduce_scatter_plain_bf16_2: <bf16, 2, false, true>;
    reduce_scatter_plain_bf16_4: <bf16, 4, false, true>;
    reduce_scatter_plain_bf16_8: <bf16, 4, true, true>;
    reduce_scatter_plain_f32_2: <f32, 2, false, true>;
    reduce_scatter_plain_f32_4: <f32, 4, false, true>;
    reduce_scatter_plain_f32_8: <f32, 4, true, true>;
}

/// Returns the kernel of reduce_scatter for an element type and a number of ranks. Returns `None`
/// if the type cannot be reduced, or if `ranks` is not 1 to [`MAX_RANKS`](crate::MAX_RANKS).
///
/// Pass `true` as `is_plain` only if the reduction is the sum, and the addresses of both operands,
/// the length of a part and the stride are multiples of [`LINE_BYTES`](crate::LINE_BYTES).
/// `is_plain` may differ between ranks.
#[cfg(not(target_arch = "nvptx64"))]
pub fn kernel(
    dtype: peerweave_types::DType,
    ranks: u32,
    is_plain: bool,
) -> Option<&'static peerweave_device::launch::Kernel<(Call,)>> {
    use peerweave_types::DType::{BF16, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
    if ranks == 0 || ranks as usize > crate::MAX_RANKS {
        return None;
    }
    Some(match (dtype, ranks, is_plain) {
        (F16, ..=2, true) => &reduce_scatter_plain_f16_2::KERNEL,
        (F16, ..=4, true) => &reduce_scatter_plain_f16_4::KERNEL,
        (F16, _, true) => &reduce_scatter_plain_f16_8::KERNEL,
        (BF16, ..=2, true) => &reduce_scatter_plain_bf16_2::KERNEL,
        (BF16, ..=4, true) => &reduce_scatter_plain_bf16_4::KERNEL,
        (BF16, _, true) => &reduce_scatter_plain_bf16_8::KERNEL,
        (F32, ..=2, true) => &reduce_scatter_plain_f32_2::KERNEL,
        (F32, ..=4, true) => &reduce_scatter_plain_f32_4::KERNEL,
        (F32, _, true) => &reduce_scatter_plain_f32_8::KERNEL,
        (F16, ..=2, _) => &reduce_scatter_f16_2::KERNEL,
        (F16, ..=4, _) => &reduce_scatter_f16_4::KERNEL,
        (F16, _, _) => &reduce_scatter_f16_8::KERNEL,
        (BF16, ..=2, _) => &reduce_scatter_bf16_2::KERNEL,
        (BF16, ..=4, _) => &reduce_scatter_bf16_4::KERNEL,
        (BF16, _, _) => &reduce_scatter_bf16_8::KERNEL,
        (F32, ..=2, _) => &reduce_scatter_f32_2::KERNEL,
        (F32, ..=4, _) => &reduce_scatter_f32_4::KERNEL,
        (F32, _, _) => &reduce_scatter_f32_8::KERNEL,
        (I8, _, _) => &reduce_scatter_i8_8::KERNEL,
        (U8, _, _) => &reduce_scatter_u8_8::KERNEL,
        (I16, _, _) => &reduce_scatter_i16_8::KERNEL,
        (U16, _, _) => &reduce_scatter_u16_8::KERNEL,
        (I32, _, _) => &reduce_scatter_i32_8::KERNEL,
        (U32, _, _) => &reduce_scatter_u32_8::KERNEL,
        (I64, _, _) => &reduce_scatter_i64_8::KERNEL,
        (U64, _, _) => &reduce_scatter_u64_8::KERNEL,
        (F64, _, _) => &reduce_scatter_f64_8::KERNEL,
        _ => return None,
    })
}
