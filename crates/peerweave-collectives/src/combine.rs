//! Kernels that combine operands in the memory of one device. Before the launch, the caller has
//! copied the operands of other ranks to this memory. Operands from other hosts can arrive, for
//! example, through a communication library.
//!
//! A kernel combines the operands in the order of their addresses, so ranks that combine the same
//! operands get the same bits. The arithmetic is the same as in the other kernels of this crate.

use crate::line::Operand;
use crate::line::reduce::{Class, finish, fold_lines, outgoing};
use crate::line::wait::position;
use peerweave_device::prelude::*;
use peerweave_types::{bf16, f16};

/// The argument of this module's kernels, which reduce several operands on one device to one
/// result. The operands start at equal distances in memory.
#[derive(Clone, Copy, Debug, KernelArg)]
#[repr(C)]
pub struct Combine {
    /// Address of the first operand, aligned to the size of an element.
    pub send: u64,
    /// Address of the result, aligned to the size of an element. The result must be one of the
    /// operands, or must not overlap any operand.
    pub recv: u64,
    /// Number of elements in each operand.
    pub count: u64,
    /// Distance in bytes between the starts of two consecutive operands, a multiple of the element
    /// size.
    pub stride: u64,
    /// For the reduction `PreMulSum`: zero-extended bits of the factor by which every operand is
    /// multiplied.
    pub scalar: u64,
    /// Number of operands, at least 1.
    pub operands: u32,
    /// For the reduction `Avg`: the number by which the sum is divided.
    pub ranks: u32,
    /// The reduction, as the number of a `ReduceOp`.
    pub op: u32,
    /// Explicit padding, always 0.
    pub reserved: u32,
}

/// Number of lines that a thread loads before it combines them. Each of these lines belongs to a
/// different operand.
const W: usize = 4;

/// Combines the operands. A thread combines one 16-byte line of each operand at a time. It loads
/// the lines of up to `W` operands before it combines these lines.
#[inline(always)]
fn run<T: Class>(call: &Combine) -> Result<(), Failed> {
    // SAFETY: the launch guarantees the documented properties of the fields.
    let operand = |index: u32| unsafe { Operand::<false>::new(call.send + u64::from(index) * call.stride, call.count) };
    // SAFETY: the launch guarantees the documented properties of the fields.
    let recv = unsafe { Operand::<false>::new(call.recv, call.count) };
    let (lines, (first, step)) = (recv.lines::<T>(), position());
    let mut line = first;
    while line < lines {
        let mut state = T::unpack([0; 2]);
        let mut base = 0;
        while base < call.operands {
            let mut read = [[0; 2]; W];
            for k in 0..W {
                if base + (k as u32) < call.operands {
                    read[k] = outgoing::<T, false>(call.op, call.scalar, operand(base + k as u32).read::<T>(line));
                }
            }
            state = fold_lines::<T, W, false>(call.op, call.operands - base, &read, (base > 0).then_some(state));
            base += W as u32;
        }
        recv.write::<T>(line, finish::<T, false>(call.op, call.ranks, state));
        line += step;
    }
    Ok(())
}

macro_rules! entries {
    ($($name:ident: $t:ty;)*) => {$(
        #[doc = concat!("Combines operands of `", stringify!($t), "`.")]
        #[kernel(max_threads = 512, unchecked, ptx = crate::PTX)]
        pub fn $name(_ctx: &Context, call: Combine) -> Result<(), Failed> {
            run::<$t>(&call)
        }
    )*};
}

entries! {
    combine_i8: i8;
    combine_u8: u8;
    combine_i16: i16;
    combine_u16: u16;
    combine_i32: i32;
    combine_u32: u32;
    combine_i64: i64;
    combine_u64: u64;
    combine_f16: f16;
    combine_bf16: bf16;
    combine_f32: f32;
    combine_f64: f64;
}

/// Returns the kernel that combines operands of an element type, or `None` if the type cannot be
/// reduced.
///
/// ```
/// use peerweave_collectives::combine;
/// use peerweave_types::DType;
///
/// assert_eq!(combine::kernel(DType::I16).unwrap().name(), "combine_i16");
/// assert!(combine::kernel(DType::F8E5M2).is_none());
/// ```
#[cfg(not(target_arch = "nvptx64"))]
pub fn kernel(dtype: peerweave_types::DType) -> Option<&'static peerweave_device::launch::Kernel<(Combine,)>> {
    use peerweave_types::DType::{BF16, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
    Some(match dtype {
        I8 => &combine_i8::KERNEL,
        U8 => &combine_u8::KERNEL,
        I16 => &combine_i16::KERNEL,
        U16 => &combine_u16::KERNEL,
        I32 => &combine_i32::KERNEL,
        U32 => &combine_u32::KERNEL,
        I64 => &combine_i64::KERNEL,
        U64 => &combine_u64::KERNEL,
        F16 => &combine_f16::KERNEL,
        BF16 => &combine_bf16::KERNEL,
        F32 => &combine_f32::KERNEL,
        F64 => &combine_f64::KERNEL,
        _ => return None,
    })
}
