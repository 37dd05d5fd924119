//! The collectives scan and exclusive_scan: rank `r` gets the reduction of the inputs of ranks 0 to
//! `r` (scan), or of ranks 0 to `r - 1` (exclusive_scan).
//!
//! Every rank pushes the lines of its input to all higher ranks. Each rank reduces the lines that
//! it receives in the order of ranks. Every rank pushes its first line to lower ranks too, because
//! every two ranks must exchange a line in both directions ([`mod@crate::epoch`]). Lower ranks wait
//! for that line and do not use it. The result may overwrite the input, because one thread reads a
//! line of the input and later writes the same line of the result.

use crate::Call;
use crate::line::Operand;
use crate::line::push::push_to_banks;
use crate::line::reduce::{Class, fold_lines, outgoing};
use crate::line::wait::{Row, await_lines, position, put_back};
use peerweave_device::prelude::*;
use peerweave_types::{KernelOp, bf16, f16};

/// Runs a scan or an exclusive scan. Each launch uses one of the two banks in every staging area. A
/// bank has room for the inputs of all ranks, in rank order: if an input has `n` lines of 16 bytes,
/// the input of rank `r` starts at line `r * n` of the bank.
#[inline(always)]
fn run<T: Class, const W: usize, const MORE: bool>(ctx: &Context, call: &Call) -> Result<(), Failed> {
    if !call.begin() {
        return Ok(());
    }
    // SAFETY: the launch guarantees the documented properties of the call's fields.
    let (send, recv) = unsafe { (Operand::<false>::new(call.send, call.count), Operand::<false>::new(call.recv, call.count)) };
    let lines = send.lines::<T>();
    let own = |line| outgoing::<T, false>(call.op, call.scalar, send.read::<T>(line));
    let region = u64::from(call.rank) * lines;
    let there = |k, line| line == 0 || call.rank_after(k) > call.rank;
    // SAFETY: the launch guarantees the counter, and areas with banks for the lines of all ranks.
    let banks = unsafe { push_to_banks::<W, MORE, 0, true>(call, lines, region, there, |_, line| own(line), |_, _| ())? };
    // The result is the reduction of the inputs of the ranks below this number.
    let included = call.rank + u32::from(call.is_exclusive == 0);
    let (first, step) = position();
    let mut line = first;
    while line < lines {
        let ranks = if line == 0 { call.ranks } else { call.rank + 1 };
        let row = Row { lines: banks, first: line, stride: lines, ranks };
        let mut state = T::unpack([0; 2]);
        await_lines::<W, MORE>(ctx, KernelOp::Scan, call, row, own(line), |base, lines| {
            if base < included {
                state = fold_lines::<T, W, false>(call.op, included - base, &lines, (MORE && base > 0).then_some(state));
            }
        })?;
        if included > 0 {
            recv.write::<T>(line, T::pack(state));
        }
        put_back::<W, MORE>(call, row);
        line += step;
    }
    Ok(())
}

macro_rules! entries {
    ($($name:ident: <$t:ty, $w:literal, $more:literal>;)*) => {$(
        #[doc = concat!("scan and exclusive_scan of `", stringify!($t), "` by up to eight ranks.")]
        #[kernel(max_threads = 512, unchecked, ptx = crate::PTX)]
        pub fn $name(ctx: &Context, call: Call) -> Result<(), Failed> {
            run::<$t, $w, $more>(ctx, &call)
        }
    )*};
}

entries! {
    scan_i8_8: <i8, 4, true>;
    scan_u8_8: <u8, 4, true>;
    scan_i16_8: <i16, 4, true>;
    scan_u16_8: <u16, 4, true>;
    scan_i32_8: <i32, 4, true>;
    scan_u32_8: <u32, 4, true>;
    scan_i64_8: <i64, 4, true>;
    scan_u64_8: <u64, 4, true>;
    scan_f16_8: <f16, 4, true>;
    scan_bf16_8: <bf16, 4, true>;
    scan_f32_8: <f32, 4, true>;
    scan_f64_8: <f64, 4, true>;
}

/// Returns the scan kernel for an element type and a number of ranks. Returns `None` if the type
/// cannot be reduced, or if `ranks` is not 1 to [`MAX_RANKS`](crate::MAX_RANKS).
/// [`Call::is_exclusive`] selects an inclusive or an exclusive scan. [`Call::count`] is the number
/// of elements in an input.
///
/// ```
/// use peerweave_collectives::scan;
/// use peerweave_types::DType;
///
/// assert_eq!(scan::kernel(DType::I16, 3).unwrap().name(), "scan_i16_8");
/// assert!(scan::kernel(DType::F8E5M2, 3).is_none());
/// ```
#[cfg(not(target_arch = "nvptx64"))]
pub fn kernel(dtype: peerweave_types::DType, ranks: u32) -> Option<&'static peerweave_device::launch::Kernel<(Call,)>> {
    use peerweave_types::DType::{BF16, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
    if ranks == 0 || ranks as usize > crate::MAX_RANKS {
        return None;
    }
    Some(match dtype {
        I8 => &scan_i8_8::KERNEL,
        U8 => &scan_u8_8::KERNEL,
        I16 => &scan_i16_8::KERNEL,
        U16 => &scan_u16_8::KERNEL,
        I32 => &scan_i32_8::KERNEL,
        U32 => &scan_u32_8::KERNEL,
        I64 => &scan_i64_8::KERNEL,
        U64 => &scan_u64_8::KERNEL,
        F16 => &scan_f16_8::KERNEL,
        BF16 => &scan_bf16_8::KERNEL,
        F32 => &scan_f32_8::KERNEL,
        F64 => &scan_f64_8::KERNEL,
        _ => return None,
    })
}
