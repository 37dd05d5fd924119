//! Tests of scan and exclusive_scan: every type and reduction, any length and alignment, calls in
//! place, calls between other collectives, and calls with a missing rank.

use crate::numbers::Numbers;
use crate::world::{Given, RANKS, World, scalar};
use peerweave_collectives::{Call, scan};
use peerweave_grid::{JobError, explore};
use peerweave_types::{DType, FailureKind, KernelOp, Pe, ReduceOp, bf16, f16};
use std::time::Duration;

fn calls<T: Numbers>(world: &World, given: &Given, exclusive: bool) -> Vec<Call> {
    let call = |rank: usize| {
        let call = world.call(given, rank, size_of::<T>(), scalar::<T>(rank as u32).bits());
        Call { is_exclusive: u32::from(exclusive), ..call }
    };
    (0..world.members.len()).map(call).collect()
}

/// Runs a scan, or an exclusive scan, on all ranks, and checks the results.
fn check<T: Numbers>(world: &mut World, given: &Given, exclusive: bool) {
    let n = world.members.len() as u32;
    let inputs = world.inputs::<T>(given);
    let calls = calls::<T>(world, given, exclusive);
    let kernel = scan::kernel(T::DTYPE, n).expect("a kernel exists for a type that can be reduced");
    let scalars: Vec<T> = (0..n).map(scalar::<T>).collect();
    let expected = |rank: usize, before: Vec<u64>| {
        let included = if exclusive { rank } else { rank + 1 };
        let element = |i: usize| {
            let each: Vec<T> = inputs[..included].iter().map(|input| input[i]).collect();
            T::expected(given.op, &each, &scalars[..included]).bits()
        };
        if included == 0 { before } else { (0..given.count).map(element).collect() }
    };
    world.check_launch(given, &inputs, |world| world.run(kernel, given, &calls, |_| true), expected);
}

/// Checks scans of a type with every reduction that scans support.
fn every_reduction<T: Numbers>() {
    for ranks in RANKS {
        let mut world = World::new(ranks, u64::from(ranks));
        for op in ReduceOp::ALL.into_iter().filter(|op| op.accepts(T::DTYPE) && *op != ReduceOp::Avg) {
            for exclusive in [false, true] {
                check::<T>(&mut world, &Given { op, count: 131, shift: [1, 3], ..Given::default() }, exclusive);
            }
        }
    }
}

types! {
    every_reduction:
    scan_of_i8_is_exact: i8;
    scan_of_u8_is_exact: u8;
    scan_of_i16_is_exact: i16;
    scan_of_u16_is_exact: u16;
    scan_of_i32_is_exact: i32;
    scan_of_u32_is_exact: u32;
    scan_of_i64_is_exact: i64;
    scan_of_u64_is_exact: u64;
    scan_of_f16_is_rounded_once: f16;
    scan_of_bf16_is_rounded_once: bf16;
    scan_of_f32_adds_in_order_of_ranks: f32;
    scan_of_f64_adds_in_order_of_ranks: f64;
}

#[test]
fn scans_that_alternate_with_all_reduces_are_correct() {
    for ranks in [2, 3, 8] {
        explore(2, |seed| {
            let mut world = World::new(ranks, seed);
            for (round, count) in [1, 4, 500, 2, 64, 7].into_iter().enumerate() {
                let given = Given { count, in_place: round % 3 == 1, blocks: 1 + round as u32 % 3, ..Given::default() };
                check::<f32>(&mut world, &given, round % 2 == 0);
                check::<f32>(&mut world, &given, round % 2 == 1);
                world.check::<f32>(&Given { count: count + 8, ..Given::default() });
                check::<u8>(&mut world, &Given { op: ReduceOp::Max, shift: [5, 2], ..given }, false);
            }
            Ok::<(), String>(())
        });
    }
}

#[test]
fn scan_of_a_team_reduces_in_rank_order() {
    let mut world = World::of(5, &[4, 0, 2], 1);
    check::<f32>(&mut world, &Given { count: 1000, ..Given::default() }, false);
    check::<f32>(&mut world, &Given { count: 1000, ..Given::default() }, true);
}

#[test]
fn scan_error_names_the_missing_lowest_or_highest_rank() {
    for missing in [0, 2] {
        let mut world = World::with_deadline(3, &[2, 0, 1], 1, Duration::from_secs(2));
        let given = Given { count: 4, blocks: 1, ..Given::default() };
        let calls = calls::<f32>(&world, &given, false);
        let kernel = scan::kernel(DType::F32, 3).expect("a kernel exists for a type that can be reduced");
        let error =
            world.run(kernel, &given, &calls, |rank| rank != missing).expect_err("the scan fails, because a rank is missing");
        let JobError::Failed { report, .. } = &error else { panic!("{error}, expected a failure with a report") };
        let pe = Pe::new(world.members[missing as usize]);
        assert_eq!((report.kind(), report.missing_pe()), (Some(FailureKind::Deadline), Some(pe)), "{error}");
        assert_eq!(report.0.operation, KernelOp::Scan as u32, "{error}");
    }
}

#[test]
fn scan_kernels_exist_for_every_reducible_type() {
    for dtype in DType::ALL {
        for ranks in 0..=9 {
            let wanted = dtype.is_reducible() && (1..=8).contains(&ranks);
            assert_eq!(scan::kernel(dtype, ranks).is_some(), wanted, "{dtype} {ranks}");
        }
    }
}
