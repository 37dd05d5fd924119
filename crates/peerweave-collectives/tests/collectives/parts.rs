//! Tests of reduce_scatter, all_gather and all_to_all.

use crate::numbers::Numbers;
use crate::world::{Given, RANKS, World, scalar};
use peerweave_collectives::exchange::Exchange;
use peerweave_collectives::{Call, exchange, reduce_scatter};
use peerweave_grid::explore;
use peerweave_types::{ReduceOp, bf16, f16};

/// Writes an input of `parts` parts of `given.count` elements to the memory of each rank. Returns
/// the inputs of all ranks.
fn inputs<T: Numbers>(world: &mut World, given: &Given, parts: usize) -> Vec<Vec<T>> {
    let len = given.count * parts;
    let all: Vec<Vec<T>> =
        (0..world.members.len() as u32).map(|rank| (0..len).map(|index| T::given(rank, index)).collect()).collect();
    for (pe, input) in world.members.clone().into_iter().zip(&all) {
        let view = world.view::<T>(0, given.shift[0], len);
        world.job.write(pe, view, input);
    }
    all
}

fn calls<T: Numbers>(world: &World, given: &Given, count: u64) -> Vec<Call> {
    let call = |rank: usize| {
        let call = world.call(given, rank, size_of::<T>(), scalar::<T>(rank as u32).bits());
        Call { count, stride: count * size_of::<T>() as u64, ..call }
    };
    (0..world.members.len()).map(call).collect()
}

fn results<T: Numbers>(world: &World, given: &Given, parts: usize) -> Vec<Vec<u64>> {
    let view = world.view::<T>(1, given.shift[1], given.count * parts);
    world.members.iter().map(|pe| world.job.read(*pe, view).into_iter().map(T::bits).collect()).collect()
}

/// Returns whether the call consists of whole 16-byte lines, so that the plain kernels can run the
/// call.
fn is_whole<T>(given: &Given) -> bool {
    let whole = |elements: usize| (elements * size_of::<T>()).is_multiple_of(16);
    whole(given.count) && whole(given.shift[0]) && whole(given.shift[1])
}

fn check_reduce_scatter<T: Numbers>(world: &mut World, given: &Given) {
    let ranks = world.members.len();
    let all = inputs::<T>(world, given, ranks);
    let is_plain = given.op == ReduceOp::Sum && is_whole::<T>(given);
    let kernel =
        reduce_scatter::kernel(T::DTYPE, ranks as u32, is_plain).expect("a kernel exists for a type that can be reduced");
    let calls = calls::<T>(world, given, given.count as u64);
    world.run(kernel, given, &calls, |_| true).unwrap_or_else(|error| panic!("{given:?} of {}: {error}", T::DTYPE));
    let scalars: Vec<T> = (0..ranks as u32).map(scalar::<T>).collect();
    for (rank, found) in results::<T>(world, given, 1).into_iter().enumerate() {
        let element = |index: usize| {
            let each: Vec<T> = all.iter().map(|input| input[rank * given.count + index]).collect();
            T::expected(given.op, &each, &scalars).bits()
        };
        assert_eq!(found, (0..given.count).map(element).collect::<Vec<_>>(), "{given:?} of {}, rank {rank}", T::DTYPE);
    }
}

fn check_exchange<T: Numbers>(world: &mut World, given: &Given, exchange: Exchange) {
    let ranks = world.members.len();
    let all = inputs::<T>(world, given, if exchange == Exchange::AllToAll { ranks } else { 1 });
    let kernel =
        exchange::kernel(exchange, ranks as u32, is_whole::<T>(given)).expect("a kernel exists for this number of ranks");
    let calls = calls::<T>(world, given, (given.count * size_of::<T>()) as u64);
    world.run(kernel, given, &calls, |_| true).unwrap_or_else(|error| panic!("{exchange:?} {given:?}: {error}"));
    for (rank, found) in results::<T>(world, given, ranks).into_iter().enumerate() {
        let at = if exchange == Exchange::AllToAll { rank * given.count } else { 0 };
        let expected: Vec<u64> =
            all.iter().flat_map(|input| &input[at..at + given.count]).map(|element| element.bits()).collect();
        assert_eq!(found, expected, "{exchange:?} {given:?} of {}, rank {rank}", T::DTYPE);
    }
}

#[test]
fn reduce_scatter_gives_rank_r_the_reduced_part_r() {
    for ranks in RANKS {
        let mut world = World::new(ranks, 2);
        let given = Given { count: 203, ..Given::default() };
        for op in ReduceOp::ALL.into_iter().filter(|op| !op.is_bitwise()) {
            check_reduce_scatter::<bf16>(&mut world, &Given { op, ..given });
            check_reduce_scatter::<i64>(&mut world, &Given { op, count: 57, ..given });
        }
        check_reduce_scatter::<f16>(&mut world, &Given { count: 208, shift: [8, 16], ..given });
        check_reduce_scatter::<f32>(&mut world, &Given { count: 400, blocks: 1, ..given });
        check_reduce_scatter::<u8>(&mut world, &Given { op: ReduceOp::Xor, shift: [3, 5], ..given });
        check_reduce_scatter::<f64>(&mut world, &Given { count: 1, ..given });
        check_reduce_scatter::<i16>(&mut world, &Given { op: ReduceOp::Min, shift: [1, 2], ..given });
        check_reduce_scatter::<u16>(&mut world, &Given { op: ReduceOp::Avg, ..given });
    }
}

#[test]
fn all_gather_and_all_to_all_are_correct_at_any_alignment() {
    for ranks in RANKS {
        explore(2, |seed| {
            let mut world = World::new(ranks, seed);
            for exchange in [Exchange::AllGather, Exchange::AllToAll] {
                check_exchange::<f32>(&mut world, &Given { count: 400, ..Given::default() }, exchange);
                check_exchange::<u8>(&mut world, &Given { count: 333, shift: [1, 7], ..Given::default() }, exchange);
                check_exchange::<i64>(&mut world, &Given { count: 1, blocks: 3, ..Given::default() }, exchange);
            }
            Ok::<(), String>(())
        });
    }
}

#[test]
fn alternating_collectives_of_different_kinds_are_correct() {
    explore(3, |seed| {
        let mut world = World::new(3, seed);
        for call in 0..6 {
            let given = Given { count: [8, 500, 60][call % 3], ..Given::default() };
            check_reduce_scatter::<f32>(&mut world, &given);
            check_exchange::<f32>(&mut world, &given, Exchange::AllToAll);
            world.check::<f32>(&given);
            check_exchange::<f32>(&mut world, &given, Exchange::AllGather);
        }
        Ok::<(), String>(())
    });
}
