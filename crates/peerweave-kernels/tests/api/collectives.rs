//! Tests of collectives at each scope, and of barriers of several blocks.

use crate::{PES, job};
use peerweave_device::prelude::*;
use peerweave_device::types::{bf16, f16};
use peerweave_grid::Shape;

macro_rules! moving {
    ($name:ident, $threads:literal: $broadcast:ident $fcollect:ident $alltoall:ident $sync:ident) => {
        mod $name {
            use super::*;

            #[kernel]
            fn moving(
                ctx: &Context,
                from: SymSlice<u16>,
                all: SymSlice<u16>,
                turned: SymSlice<u16>,
                root: SymSlice<u16>,
            ) -> Result<(), Failed> {
                let world = KernelTeam::WORLD;
                ctx.$fcollect(world, all, from)?;
                ctx.$alltoall(world, turned, all)?;
                ctx.$broadcast(world, root, from, 1)?;
                ctx.$sync()
            }

            #[test]
            fn collectives_copy_every_element_to_the_expected_member() {
                for (seed, len) in [(0, 1), (1, 8), (2, 21), (3, 100)] {
                    let mut job = job(seed);
                    let n = PES as usize;
                    let (from, root) = (job.alloc::<u16>(len), job.alloc::<u16>(len));
                    let [all, turned] = [0; 2].map(|_| job.alloc::<u16>(len * n + 1));
                    let value = |pe: usize, index: usize| (pe * 1000 + index + 1) as u16;
                    for pe in 0..n {
                        job.write(pe as u32, from, &(0..len).map(|index| value(pe, index)).collect::<Vec<_>>());
                    }
                    job.launch(&moving::KERNEL, 1, $threads, (from, all, turned, root)).unwrap();
                    let mut everybody: Vec<u16> = (0..n).flat_map(|pe| (0..len).map(move |index| value(pe, index))).collect();
                    everybody.push(0);
                    for pe in 0..n {
                        assert_eq!(job.read(pe as u32, all), everybody);
                        assert_eq!(job.read(pe as u32, root), (0..len).map(|index| value(1, index)).collect::<Vec<_>>());
                        // Every member passed the same elements; part `pe` is for PE `pe`.
                        let mut parts: Vec<u16> = (0..n).flat_map(|_| (0..len).map(|index| value(pe, index))).collect();
                        parts.push(0);
                        assert_eq!(job.read(pe as u32, turned), parts);
                    }
                }
            }
        }
    };
}

moving!(moving_thread, 1: broadcast fcollect alltoall sync_all);
moving!(moving_warp, 32: broadcast_warp fcollect_warp alltoall_warp sync_all_warp);
moving!(moving_block, 48: broadcast_block fcollect_block alltoall_block sync_all_block);

macro_rules! reducing {
    ($($name:ident $t:ty, $op:ident, $threads:expr, $reduce:ident $reducescatter:ident: |$n:ident| $value:expr, |$a:ident, $b:ident| $both:expr;)*) => {$(
        mod $name {
            use super::*;

            #[kernel]
            fn reducing(ctx: &Context, to: SymSlice<$t>, from: SymSlice<$t>, part: SymSlice<$t>) -> Result<(), Failed> {
                ctx.$reducescatter(KernelTeam::WORLD, part, from, $op)?;
                ctx.$reduce(KernelTeam::WORLD, to, from, $op)?;
                // This reduction is in place.
                ctx.$reduce(KernelTeam::WORLD, from, from, $op)
            }

            #[test]
            fn reductions_write_the_expected_result_on_all_members() {
                for (seed, len) in [(0, 1usize), (1, 7), (2, 64), (3, 205)] {
                    let mut job = job(seed);
                    let (to, from) = (job.alloc::<$t>(len), job.alloc::<$t>(len));
                    let part = job.alloc::<$t>(len / PES as usize);
                    let value = |$n: usize| -> $t { $value };
                    let given = |pe: usize, index: usize| value(pe * 31 + index);
                    for pe in 0..PES as usize {
                        job.write(pe as u32, from, &(0..len).map(|index| given(pe, index)).collect::<Vec<_>>());
                    }
                    job.launch(&reducing::KERNEL, 1, $threads, (to, from, part)).unwrap();
                    let both = |$a: $t, $b: $t| -> $t { $both };
                    let all = |index: usize| (1..PES as usize).fold(given(0, index), |sum, pe| both(sum, given(pe, index)));
                    let expected: Vec<$t> = (0..len).map(all).collect();
                    for pe in 0..PES {
                        assert_eq!(job.read(pe, to), expected, "reduce of {len}");
                        assert_eq!(job.read(pe, from), expected, "reduce of {len} in place");
                        let each = len / PES as usize;
                        assert_eq!(job.read(pe, part), expected[pe as usize * each..][..each], "reducescatter of {len}");
                    }
                }
            }
        }
    )*};
}

reducing! {
    sum_i32 i32, Sum, 1, reduce reducescatter: |n| n as i32 - 9, |a, b| a + b;
    xor_u64 u64, Xor, 1, reduce reducescatter: |n| n as u64 * 0x1_0000_0001, |a, b| a ^ b;
    max_bf16 bf16, Max, 1, reduce reducescatter: |n| bf16::from_f32((n % 50) as f32 - 20.0), |a, b| if b > a { b } else { a };
    sum_i8 i8, Sum, 48, reduce_block reducescatter_block: |n| n as i8, |a, b| a.wrapping_add(b);
    prod_u8 u8, Prod, 32, reduce_warp reducescatter_warp: |n| n as u8, |a, b| a.wrapping_mul(b);
    min_i32 i32, Min, 32, reduce_warp reducescatter_warp: |n| 50 - n as i32, |a, b| a.min(b);
    max_u32 u32, Max, 48, reduce_block reducescatter_block: |n| n as u32 % 17, |a, b| a.max(b);
    and_u64 u64, And, 48, reduce_block reducescatter_block: |n| !(1 << (n % 60)), |a, b| a & b;
    or_i64 i64, Or, 32, reduce_warp reducescatter_warp: |n| 1 << (n % 60), |a, b| a | b;
    xor_u8 u8, Xor, 48, reduce_block reducescatter_block: |n| n as u8, |a, b| a ^ b;
    // Sums of small integers, exact in every order and every precision.
    sum_f16 f16, Sum, 48, reduce_block reducescatter_block: |n| f16::from_f32((n % 50) as f32), |a, b| f16::from_f32(a.to_f32() + b.to_f32());
    sum_bf16 bf16, Sum, 32, reduce_warp reducescatter_warp: |n| bf16::from_f32((n % 50) as f32), |a, b| bf16::from_f32(a.to_f32() + b.to_f32());
    max_f32 f32, Max, 48, reduce_block reducescatter_block: |n| n as f32 - 40.0, |a, b| a.max(b);
    prod_f64 f64, Prod, 32, reduce_warp reducescatter_warp: |n| (n % 4) as f64, |a, b| a * b;
}

/// In each round, every block puts a value to the next PE, passes a barrier, and checks the value
/// that the same block of the previous PE has put.
#[kernel]
fn barriers(ctx: &Context, cells: SymSlice<u64>, form: u32) -> Result<(), Failed> {
    let (me, n, block) = (ctx.my_pe(), ctx.n_pes(), gpu::block_rank());
    let world = KernelTeam::WORLD;
    assert_eq!((ctx.team_my_pe(world), ctx.team_n_pes(world), ctx.team_pe(world, 1)), (Some(me), n, Some(1)));
    assert_eq!((ctx.team_my_pe(KernelTeam::new(9)), ctx.team_n_pes(KernelTeam::new(9)), ctx.team_pe(world, n)), (None, 0, None));
    assert_eq!((ctx.team_translate_pe(world, me, world), ctx.team_translate_pe(world, n, world)), (Some(me), None));
    assert_eq!(ctx.team_translate_pe(world, me, KernelTeam::new(9)), None);
    let cell = cells.at(block as usize);
    for round in 1..=4u64 {
        if gpu::thread_rank() == 0 {
            ctx.p(cell, round * 100 + u64::from(me), (me + 1) % n);
        }
        let first_warp = gpu::warp() == 0;
        match form {
            0 if gpu::thread_rank() == 0 => ctx.barrier(world)?,
            1 if gpu::thread_rank() == 0 => ctx.sync(world)?,
            2 if first_warp => ctx.barrier_warp(world)?,
            3 if first_warp => ctx.sync_warp(world)?,
            4 => ctx.barrier_block(world)?,
            5 => ctx.sync_block(world)?,
            6 if gpu::thread_rank() == 0 => ctx.sync_all()?,
            7 => ctx.sync_all_block()?,
            _ => {}
        }
        gpu::sync_threads();
        let left = u64::from((me + n - 1) % n);
        assert_eq!(ctx.g(cell, me), round * 100 + left, "round {round}");
        // No PE puts the value of the next round before all PEs have read the value of this round.
        ctx.barrier_all_block()?;
    }
    Ok(())
}

#[test]
fn puts_are_ordered_by_barriers_of_every_scope() {
    for form in 0..8 {
        for seed in 0..3 {
            let mut job = job(seed);
            let cells = job.alloc::<u64>(3);
            job.launch_each(&barriers::KERNEL, Shape::new(3, 40), |_| Some((cells, form))).unwrap_or_else(|error| {
                panic!("form {form}, seed {seed}: {error}");
            });
        }
    }
}
