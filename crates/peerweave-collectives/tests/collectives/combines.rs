//! Tests of the kernels that combine operands on one device. The tests cover every type and
//! reduction, several lengths and alignments, and calls in place. The numbers of operands are
//! around 4, the number of operands that a kernel reads at a time.

use crate::numbers::Numbers;
use crate::world::scalar;
use peerweave_collectives::combine::{self, Combine};
use peerweave_grid::{Job, Options, Shape};
use peerweave_types::{ReduceOp, bf16, f16};

/// Number of elements in the memory of the operands, including the gaps between operands. The
/// memory of the result has the same length.
const ROOM: usize = 4096;

/// Combines operands of `count` elements with gaps between the operands. Checks the result, and
/// checks that the memory around the result is unchanged.
fn check<T: Numbers>(op: ReduceOp, operands: u32, count: usize, shift: usize, in_place: bool) {
    let mut job = Job::new(1).options(Options::default().seed(u64::from(operands)));
    let (given, result) = (job.alloc::<T>(ROOM), job.alloc::<T>(ROOM));
    let stride = count + 3;
    let all: Vec<T> = (0..ROOM).map(|at| T::given((at / stride) as u32, at % stride)).collect();
    job.write(0, given, &all);
    let bytes = size_of::<T>() as u64;
    let send = job.address(0, given) + shift as u64 * bytes;
    // In place, the result replaces the last operand.
    let last = (operands - 1) as usize * stride;
    let to = if in_place { send + last as u64 * bytes } else { job.address(0, result) + bytes };
    let call = Combine {
        send,
        recv: to,
        count: count as u64,
        stride: stride as u64 * bytes,
        scalar: scalar::<T>(1).bits(),
        operands,
        ranks: operands,
        op: op as u32,
        reserved: 0,
    };
    let before: Vec<T> = job.read(0, if in_place { given } else { result });
    let kernel = combine::kernel(T::DTYPE).expect("a kernel exists for a type that can be reduced");
    job.launch_each(kernel, Shape::new(2, 32), |_| Some((call,))).expect("the kernel waits for no other PE, so it does not fail");
    let after: Vec<T> = job.read(0, if in_place { given } else { result });
    let first = if in_place { shift + last } else { 1 };
    let scalars = vec![scalar::<T>(1); operands as usize];
    for (at, (now, was)) in after.iter().zip(&before).enumerate() {
        let expected = match at.checked_sub(first).filter(|index| *index < count) {
            Some(index) => {
                let each: Vec<T> = (0..operands as usize).map(|operand| all[shift + operand * stride + index]).collect();
                T::expected(op, &each, &scalars)
            }
            None => *was,
        };
        assert_eq!(now.bits(), expected.bits(), "{op} of {operands} operands of {count} elements, element {at}");
    }
}

fn every_reduction<T: Numbers>() {
    for op in ReduceOp::ALL.into_iter().filter(|op| op.accepts(T::DTYPE)) {
        for operands in [1, 3, 4, 5, 9] {
            check::<T>(op, operands, 131, 1, operands == 4);
        }
        check::<T>(op, 2, 64, 0, false);
        check::<T>(op, 2, 1, 3, true);
    }
}

types! {
    every_reduction:
    operands_of_i8_are_combined: i8;
    operands_of_u8_are_combined: u8;
    operands_of_i16_are_combined: i16;
    operands_of_u16_are_combined: u16;
    operands_of_i32_are_combined: i32;
    operands_of_u32_are_combined: u32;
    operands_of_i64_are_combined: i64;
    operands_of_u64_are_combined: u64;
    operands_of_f16_are_rounded_once: f16;
    operands_of_bf16_are_rounded_once: bf16;
    operands_of_f32_are_added_in_order: f32;
    operands_of_f64_are_added_in_order: f64;
}
