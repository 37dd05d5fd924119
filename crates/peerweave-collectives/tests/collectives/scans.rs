//! Tests of scan and exclusive_scan: every type and reduction, any length and alignment, in place,
//! between other collectives, and with a missing rank.

use crate::numbers::Numbers;
use crate::world::{Given, World, scalar};
use peerweave_collectives::{Call, scan};
use peerweave_grid::{JobError, explore};
use peerweave_types::{DType, FailureKind, KernelOp, Pe, ReduceOp, bf16, f16};
use std::time::Duration;

const RANKS: [u32; 5] = [1, 2, 3, 5, 8];
const MARK: u8 = 0xa5;

fn calls<T: Numbers>(world: &World, given: &Given, exclusive: bool) -> Vec<Call> {
    let call = |rank: usize| {
        let call = world.call(given, rank, size_of::<T>(), scalar::<T>(rank as u32).bits());
        Call { is_exclusive: u32::from(exclusive), ..call }
    };
    (0..world.members.len()).map(call).collect()
}

/// Makes a call on all ranks. Checks every element of the results, and that nothing else was
/// written.
fn check<T: Numbers>(world: &mut World, given: &Given, exclusive: bool) {
    let n = world.members.len();
    let inputs: Vec<Vec<T>> = (0..n as u32).map(|rank| (0..given.count).map(|i| T::given(rank, i)).collect()).collect();
    let from = world.view::<T>(0, given.shift[0], given.count);
    let to = if given.in_place { from } else { world.view::<T>(1, given.shift[1], given.count) };
    let around = world.view::<u8>(1, 0, (given.shift[1] + given.count + 16) * size_of::<T>());
    for (pe, input) in world.members.clone().into_iter().zip(&inputs) {
        world.job.write(pe, around, &vec![MARK; around.len()]);
        world.job.write(pe, from, input);
    }
    let before: Vec<Vec<u64>> =
        world.members.iter().map(|pe| world.job.read(*pe, to).into_iter().map(T::bits).collect()).collect();
    let calls = calls::<T>(world, given, exclusive);
    let kernel = scan::kernel(T::DTYPE, n as u32).expect("a type that can be reduced");
    world.run(kernel, given, &calls, |_| true).unwrap_or_else(|error| panic!("{given:?} of {}: {error}", T::DTYPE));
    let scalars: Vec<T> = (0..n as u32).map(scalar::<T>).collect();
    for (rank, pe) in world.members.clone().into_iter().enumerate() {
        let included = if exclusive { rank } else { rank + 1 };
        let element = |i: usize| {
            let each: Vec<T> = inputs[..included].iter().map(|input| input[i]).collect();
            T::expected(given.op, &each, &scalars[..included]).bits()
        };
        let expected = if included == 0 { before[rank].clone() } else { (0..given.count).map(element).collect() };
        let found: Vec<u64> = world.job.read(pe, to).into_iter().map(T::bits).collect();
        assert!(found == expected, "{given:?} of {}, exclusive: {exclusive}, rank {rank} of {n}", T::DTYPE);
        let whole = world.job.read(pe, around);
        let written = match given.in_place {
            true => 0..0,
            false => given.shift[1] * size_of::<T>()..(given.shift[1] + given.count) * size_of::<T>(),
        };
        let untouched = |bytes: &[u8]| bytes.iter().all(|byte| *byte == MARK);
        assert!(untouched(&whole[..written.start]) && untouched(&whole[written.end..]), "{given:?}: wrote outside");
    }
}

/// Checks every reduction of a type.
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

macro_rules! types {
    ($($name:ident: $t:ty;)*) => {$(
        #[test]
        fn $name() {
            every_reduction::<$t>();
        }
    )*};
}

types! {
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
fn scans_of_any_length_share_the_banks_with_other_calls() {
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
fn scan_follows_the_order_of_a_team() {
    let mut world = World::of(5, &[4, 0, 2], 1);
    check::<f32>(&mut world, &Given { count: 1000, ..Given::default() }, false);
    check::<f32>(&mut world, &Given { count: 1000, ..Given::default() }, true);
}

#[test]
fn scan_names_a_missing_rank_above_and_below() {
    for missing in [0, 2] {
        let mut world = World::with_deadline(3, &[2, 0, 1], 1, Duration::from_millis(200));
        let given = Given { count: 4, blocks: 1, ..Given::default() };
        let calls = calls::<f32>(&world, &given, false);
        let kernel = scan::kernel(DType::F32, 3).expect("a type that can be reduced");
        let error = world.run(kernel, &given, &calls, |rank| rank != missing).expect_err("a rank is missing");
        let JobError::Failed { report, .. } = &error else { panic!("{error}") };
        let pe = Pe::new(world.members[missing as usize]);
        assert_eq!((report.kind(), report.missing_pe()), (Some(FailureKind::Deadline), Some(pe)), "{error}");
        assert_eq!(report.0.operation, KernelOp::Scan as u32, "{error}");
    }
}

#[test]
fn every_type_that_can_be_reduced_has_a_scan() {
    for dtype in DType::ALL {
        for ranks in 0..=9 {
            let wanted = dtype.is_reducible() && (1..=8).contains(&ranks);
            assert_eq!(scan::kernel(dtype, ranks).is_some(), wanted, "{dtype} {ranks}");
        }
    }
}
