//! Tests of the collective kernels among the PEs of one process, under many thread schedules. The
//! tests cover every algorithm, type and reduction, several numbers of ranks, lengths and
//! alignments, calls without synchronization between them, and missing ranks.

/// Defines a test for each pair of a test name and a type. The test calls the function `$check` for
/// that type.
macro_rules! types {
    ($check:ident: $($name:ident: $t:ty;)*) => {$(
        #[test]
        fn $name() {
            $check::<$t>();
        }
    )*};
}

mod combines;
mod failures;
mod numbers;
mod parts;
mod results;
mod rms_norm;
mod scans;
mod transfers;
mod world;

use numbers::Numbers;
use peerweave_collectives::{Algorithm, all_reduce};
use peerweave_grid::explore;
use peerweave_types::{DType, ReduceOp, bf16, f16};
use world::{Given, RANKS, World};

/// Checks the all_reduce of a type with every algorithm and reduction, and with several numbers of
/// ranks.
fn every_reduction<T: Numbers>() {
    for ranks in RANKS {
        let mut world = World::new(ranks, u64::from(ranks));
        for algorithm in Algorithm::ALL {
            for op in ReduceOp::ALL.into_iter().filter(|op| op.accepts(T::DTYPE)) {
                world.check::<T>(&Given { algorithm, op, count: 331, blocks: 2, threads: 32, ..Given::default() });
            }
        }
    }
}

types! {
    every_reduction:
    all_reduce_of_i8_is_exact: i8;
    all_reduce_of_u8_is_exact: u8;
    all_reduce_of_i16_is_exact: i16;
    all_reduce_of_u16_is_exact: u16;
    all_reduce_of_i32_is_exact: i32;
    all_reduce_of_u32_is_exact: u32;
    all_reduce_of_i64_is_exact: i64;
    all_reduce_of_u64_is_exact: u64;
    all_reduce_of_f16_is_rounded_once: f16;
    all_reduce_of_bf16_is_rounded_once: bf16;
    all_reduce_of_f32_adds_in_order_of_ranks: f32;
    all_reduce_of_f64_adds_in_order_of_ranks: f64;
}

#[test]
fn all_reduce_is_correct_under_different_schedules() {
    for ranks in [2, 3, 8] {
        explore(3, |seed| {
            let mut world = World::new(ranks, seed);
            for algorithm in Algorithm::ALL {
                world.check::<bf16>(&Given { algorithm, count: 777, blocks: 3, threads: 32, ..Given::default() });
            }
            Ok::<(), String>(())
        });
    }
}

#[test]
fn all_reduce_is_correct_for_any_length_and_alignment() {
    let mut world = World::new(3, 1);
    let mut random = 12345_u64;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) % below
    };
    for round in 0..24 {
        let count = if round % 3 == 0 { next(40) + 1 } else { next(2500) + 150 } as usize;
        let algorithm = if count < 150 { Algorithm::OneShot } else { Algorithm::ALL[round % 3] };
        let shift = [next(9) as usize, next(9) as usize];
        let (blocks, threads) = (next(4) as u32 + 1, 32 * (next(2) as u32 + 1));
        let in_place = round % 5 == 4;
        let given = Given { algorithm, count, shift, blocks, threads, in_place, ..Given::default() };
        world.check::<bf16>(&given);
        world.check::<i8>(&Given { count: count.max(300), ..given });
        world.check::<f32>(&Given { op: ReduceOp::Max, count: count.max(100), ..given });
    }
}

#[test]
fn consecutive_all_reduce_calls_do_not_mix_data() {
    for ranks in [2, 4] {
        explore(2, |seed| {
            let mut world = World::new(ranks, seed);
            let shapes = [(Algorithm::OneShot, 500, 4), (Algorithm::OneShot, 8, 1), (Algorithm::TwoShot, 2000, 2)];
            for call in 0..9 {
                let (algorithm, count, blocks) = shapes[call % 3];
                world.check::<f32>(&Given { algorithm, count, blocks, threads: 32, ..Given::default() });
            }
            Ok::<(), String>(())
        });
    }
}

#[test]
fn all_reduce_of_extreme_bit_patterns_is_exact() {
    let mut world = World::new(2, 3);
    for algorithm in Algorithm::ALL {
        for fill in [0_u64, u64::MAX, 0x8000_8000_8000_8000] {
            world.check_bits(algorithm, fill);
        }
    }
}

#[test]
fn chunked_all_reduce_is_correct_if_chunks_wrap_around_the_ring() {
    for ranks in [1, 2, 3, 8] {
        explore(2, |seed| {
            let mut world = World::new(ranks, seed);
            let given = Given { algorithm: Algorithm::Chunked, count: 20_001, blocks: 2, threads: 64, ..Given::default() };
            world.check::<bf16>(&given);
            world.check::<bf16>(&Given { blocks: 3, shift: [1, 1], ..given });
            Ok::<(), String>(())
        });
    }
}

#[test]
fn all_reduce_of_whole_16_byte_lines_matches_the_reference() {
    for ranks in RANKS {
        let mut world = World::new(ranks, 5);
        for algorithm in Algorithm::ALL {
            for blocks in [1, 3] {
                world.check::<bf16>(&Given { algorithm, count: 1600, blocks, ..Given::default() });
                world.check::<f16>(&Given { algorithm, count: 1608, blocks, in_place: true, ..Given::default() });
                world.check::<f32>(&Given { algorithm, count: 2004, blocks, shift: [4, 8], ..Given::default() });
            }
        }
    }
}

#[test]
fn all_reduce_is_exact_if_rank_order_differs_from_pe_order() {
    let mut world = World::of(5, &[4, 0, 2], 1);
    for algorithm in Algorithm::ALL {
        world.check::<f32>(&Given { algorithm, count: 1000, ..Given::default() });
    }
}

#[test]
fn all_reduce_kernels_exist_for_every_reducible_type() {
    for algorithm in Algorithm::ALL {
        for dtype in DType::ALL {
            for ranks in 0..=9 {
                let there = [true, false].map(|plain| all_reduce::kernel(algorithm, dtype, ranks, plain).is_some());
                assert_eq!(there, [dtype.is_reducible() && (1..=8).contains(&ranks); 2], "{dtype} {ranks}");
            }
        }
    }
}
