//! Tests of atomic operations on a peer's elements, strong and relaxed, for every type.

use crate::{PES, go, job, right};
use peerweave_device::prelude::*;

macro_rules! integers {
    ($($name:ident $t:ty;)*) => {$(
        mod $name {
            use super::*;

            #[kernel]
            fn operations(ctx: &Context, of: SymSlice<$t>) {
                let (at, pe) = (|index| of.at(index), right(ctx));
                // The strong form of each operation uses element 0, and the relaxed form uses
                // element 1.
                ctx.atomic_set(at(0), 40, pe);
                ctx.atomic_set_relaxed(at(1), 41, pe);
                assert_eq!((ctx.atomic_fetch(at(0), pe), ctx.atomic_fetch_relaxed(at(1), pe)), (40, 41));
                assert_eq!((ctx.atomic_swap(at(0), 7, pe), ctx.atomic_swap_relaxed(at(1), 8, pe)), (40, 41));
                assert_eq!(ctx.atomic_compare_swap(at(0), 6, 1, pe), 7);
                assert_eq!(ctx.atomic_compare_swap(at(0), 7, 1, pe), 7);
                assert_eq!(ctx.atomic_compare_swap_relaxed(at(1), 8, 2, pe), 8);
                assert_eq!((ctx.atomic_fetch(at(0), pe), ctx.atomic_fetch(at(1), pe)), (1, 2));
                assert_eq!((ctx.atomic_fetch_inc(at(0), pe), ctx.atomic_fetch_inc_relaxed(at(1), pe)), (1, 2));
                ctx.atomic_inc(at(0), pe);
                ctx.atomic_inc_relaxed(at(1), pe);
                assert_eq!((ctx.atomic_fetch_add(at(0), 10, pe), ctx.atomic_fetch_add_relaxed(at(1), 10, pe)), (3, 4));
                ctx.atomic_add(at(0), (0 as $t).wrapping_sub(1), pe);
                ctx.atomic_add_relaxed(at(1), 1, pe);
                assert_eq!((ctx.atomic_fetch(at(0), pe), ctx.atomic_fetch(at(1), pe)), (12, 15));
                assert_eq!((ctx.atomic_fetch_and(at(0), 0b1010, pe), ctx.atomic_fetch_and_relaxed(at(1), 0b0110, pe)), (12, 15));
                assert_eq!((ctx.atomic_fetch_or(at(0), 1, pe), ctx.atomic_fetch_or_relaxed(at(1), 1, pe)), (8, 6));
                assert_eq!((ctx.atomic_fetch_xor(at(0), 3, pe), ctx.atomic_fetch_xor_relaxed(at(1), 3, pe)), (9, 7));
                ctx.atomic_and(at(0), 0b1110, pe);
                ctx.atomic_and_relaxed(at(1), 0b1100, pe);
                ctx.atomic_or(at(0), 0b1, pe);
                ctx.atomic_or_relaxed(at(1), 0b11, pe);
                ctx.atomic_xor(at(0), 0b100, pe);
                ctx.atomic_xor_relaxed(at(1), 0b100, pe);
                assert_eq!((ctx.atomic_fetch(at(0), pe), ctx.atomic_fetch(at(1), pe)), (15, 3));
                // Leaves a value that the host can check.
                ctx.atomic_set(at(0), 1 + ctx.my_pe() as $t, pe);
            }

            #[kernel]
            fn counts(ctx: &Context, of: SymSlice<$t>) {
                for pe in 0..ctx.n_pes() {
                    ctx.atomic_add_relaxed(of, 1, pe);
                    ctx.atomic_fetch_add(of, 2, pe);
                }
            }

            #[test]
            fn atomic_operations_return_the_previous_value() {
                let mut job = job(5);
                let of = job.alloc::<$t>(2);
                go(&mut job, &operations::KERNEL, 1, (of,));
                for pe in 0..PES {
                    assert_eq!(job.read(pe, of), [1 + ((pe + PES - 1) % PES) as $t, 3]);
                }
            }

            #[test]
            fn no_atomic_addition_of_concurrent_threads_is_lost() {
                let mut job = job(9);
                let of = job.alloc::<$t>(1);
                job.launch(&counts::KERNEL, 2, 40, (of,)).unwrap();
                for pe in 0..PES {
                    assert_eq!(job.read(pe, of), [(3 * 80 * PES) as $t]);
                }
            }
        }
    )*};
}

integers! { of_i32 i32; of_u32 u32; of_i64 i64; of_u64 u64; }

macro_rules! floats {
    ($($name:ident $t:ty;)*) => {$(
        mod $name {
            use super::*;

            #[kernel]
            fn operations(ctx: &Context, of: SymSlice<$t>) {
                let pe = right(ctx);
                ctx.atomic_set(of, 1.5, pe);
                assert_eq!(ctx.atomic_fetch(of, pe), 1.5);
                assert_eq!(ctx.atomic_swap(of, 2.5, pe), 1.5);
                assert_eq!(ctx.atomic_compare_swap(of, 2.5, -4.0, pe), 2.5);
                assert_eq!(ctx.atomic_fetch_add(of, 0.25, pe), -4.0);
                assert_eq!(ctx.atomic_fetch_inc_relaxed(of, pe), -3.75);
                ctx.atomic_add(of, 0.5, pe);
                ctx.atomic_add_relaxed(of, 0.25, pe);
                ctx.atomic_inc(of, pe);
            }

            #[test]
            fn floats_can_be_set_swapped_and_added_atomically() {
                let mut job = job(6);
                let of = job.alloc::<$t>(1);
                go(&mut job, &operations::KERNEL, 1, (of,));
                for pe in 0..PES {
                    assert_eq!(job.read(pe, of), [-1.0]);
                }
            }
        }
    )*};
}

floats! { of_f32 f32; of_f64 f64; }

macro_rules! halves {
    ($($name:ident $t:ident;)*) => {$(
        mod $name {
            use super::*;
            use peerweave_device::types::$t;

            /// Operates on the second of two elements in a 32-bit word. The first element must not
            /// change.
            #[kernel]
            fn operations(ctx: &Context, of: SymSlice<$t>) {
                let (at, pe) = (of.at(1), right(ctx));
                let number = |value: f32| $t::from_f32(value);
                assert_eq!(ctx.atomic_fetch_add(at, number(1.5), pe), number(0.0));
                assert_eq!(ctx.atomic_fetch_add_relaxed(at, number(2.0), pe), number(1.5));
                ctx.atomic_add(at, number(-8.0), pe);
                ctx.atomic_add_relaxed(at, number(0.5), pe);
                assert_eq!(ctx.atomic_fetch_inc(at, pe), number(-4.0));
                assert_eq!(ctx.atomic_fetch_inc_relaxed(at, pe), number(-3.0));
                ctx.atomic_inc(at, pe);
                ctx.atomic_inc_relaxed(at, pe);
            }

            /// Adds from all threads of all PEs at the same time, to both halves of a word.
            #[kernel]
            fn counts(ctx: &Context, of: SymSlice<$t>) {
                let index = gpu::thread_rank() as usize % 2;
                for pe in 0..ctx.n_pes() {
                    ctx.atomic_add_relaxed(of.at(index), $t::ONE, pe);
                    ctx.atomic_fetch_add(of.at(index), $t::ONE, pe);
                }
            }

            #[test]
            fn additions_to_16_bit_floats_do_not_change_adjacent_elements() {
                let mut job = job(4);
                let of = job.alloc::<$t>(4);
                (0..PES).for_each(|pe| job.write(pe, of, &[$t::from_f32(7.0), $t::ZERO, $t::from_f32(9.0), $t::ONE]));
                go(&mut job, &operations::KERNEL, 1, (of,));
                for pe in 0..PES {
                    assert_eq!(job.read(pe, of).map_to_f32(), [7.0, 0.0, 9.0, 1.0]);
                }
            }

            #[test]
            fn no_atomic_addition_of_concurrent_threads_is_lost() {
                for seed in 0..4 {
                    let mut job = job(seed);
                    let of = job.alloc::<$t>(2);
                    job.launch(&counts::KERNEL, 1, 32, (of,)).unwrap();
                    for pe in 0..PES {
                        // The sums are small enough to be exact.
                        assert_eq!(job.read(pe, of).map_to_f32(), [(2 * 16 * PES) as f32; 2], "seed {seed}");
                    }
                }
            }
        }
    )*};
}

halves! {
    f16_ f16;
    bf16_ bf16;
}

/// Conversion of 16-bit floats to `f32`, for comparisons.
trait MapToF32 {
    fn map_to_f32(self) -> Vec<f32>;
}

impl<T: Into<f32>> MapToF32 for Vec<T> {
    fn map_to_f32(self) -> Vec<f32> {
        self.into_iter().map(Into::into).collect()
    }
}
