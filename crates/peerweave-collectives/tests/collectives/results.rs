//! Tests of barriers, and of all_reduce kernels that write the result to one rank only, one part to
//! each rank, or directly to symmetric memory.

use crate::numbers::Numbers;
use crate::world::{Given, MARK, RANKS, World, scalar};
use peerweave_collectives::{Algorithm, Call, Results, all_reduce, barrier};
use peerweave_grid::{JobError, explore};
use peerweave_types::{FailureKind, KernelOp, Pe, ReduceOp, bf16};
use std::time::Duration;

/// Runs one all_reduce kernel on each rank, with the arguments that `change` returns. Returns the
/// result memory of each rank. The bytes of elements that no kernel wrote are [`MARK`].
fn results<T: Numbers>(world: &mut World, given: &Given, is_plain: bool, change: impl Fn(usize, Call) -> Call) -> Vec<Vec<T>> {
    let n = world.members.len();
    let input = world.view::<T>(0, given.shift[0], given.count);
    let result = world.view::<T>(1, given.shift[1], given.count);
    let marks = world.view::<u8>(1, 0, (given.shift[1] + given.count) * size_of::<T>());
    for (rank, pe) in world.members.clone().into_iter().enumerate() {
        let values: Vec<T> = (0..given.count).map(|index| T::given(rank as u32, index)).collect();
        world.job.write(pe, input, &values);
        world.job.write(pe, marks, &vec![MARK; marks.len()]);
    }
    let kernel = all_reduce::kernel(given.algorithm, T::DTYPE, n as u32, is_plain)
        .expect("a kernel exists for a type that can be reduced");
    let calls: Vec<Call> =
        (0..n).map(|rank| change(rank, world.call(given, rank, size_of::<T>(), scalar::<T>(rank as u32).bits()))).collect();
    world.run(kernel, given, &calls, |_| true).unwrap_or_else(|error| panic!("{given:?}: {error}"));
    let at = if given.in_place { input } else { result };
    world.members.iter().map(|pe| world.job.read(*pe, at)).collect()
}

fn expected<T: Numbers>(world: &World, given: &Given) -> Vec<u64> {
    let ranks = world.members.len() as u32;
    let scalars: Vec<T> = (0..ranks).map(scalar::<T>).collect();
    let each = |index| (0..ranks).map(|rank| T::given(rank, index)).collect::<Vec<T>>();
    (0..given.count).map(|index| T::expected(given.op, &each(index), &scalars).bits()).collect()
}

fn bits<T: Numbers>(values: &[T]) -> Vec<u64> {
    values.iter().map(|value| value.bits()).collect()
}

#[test]
fn result_of_a_reduce_is_written_only_at_the_root() {
    for ranks in RANKS {
        explore(2, |seed| {
            let mut world = World::new(ranks, seed);
            for algorithm in Algorithm::ALL {
                for (root, count, op, is_plain) in [(0, 1600, ReduceOp::Sum, true), (ranks - 1, 1603, ReduceOp::Max, false)] {
                    let given = Given { algorithm, count, op, ..Given::default() };
                    let results = results::<bf16>(&mut world, &given, is_plain, |_, call| Call {
                        results: Results::Root(root).code(),
                        ..call
                    });
                    let expected = expected::<bf16>(&world, &given);
                    for (rank, found) in results.iter().enumerate() {
                        let untouched = vec![u64::from(u16::from_le_bytes([MARK; 2])); given.count];
                        let wanted = if rank as u32 == root { &expected } else { &untouched };
                        assert_eq!(&bits(found), wanted, "{given:?}: rank {rank}, root {root}");
                    }
                }
            }
            Ok::<(), String>(())
        });
    }
}

#[test]
fn chunked_reduce_scatter_writes_only_the_part_of_each_rank() {
    for ranks in RANKS {
        explore(2, |seed| {
            let mut world = World::new(ranks, seed);
            let part = 400;
            let given = Given { algorithm: Algorithm::Chunked, count: part * ranks as usize, ..Given::default() };
            let own = |rank: usize, call: Call| {
                let back = (rank * part * size_of::<f32>()) as u64;
                Call { recv: call.recv.wrapping_sub(back), results: Results::OwnPart.code(), ..call }
            };
            let results = results::<f32>(&mut world, &given, true, own);
            let expected = expected::<f32>(&world, &given);
            for (rank, found) in results.iter().enumerate() {
                assert_eq!(bits(&found[..part]), expected[rank * part..][..part], "rank {rank} of {ranks}");
                assert!(bits(&found[part..]).iter().all(|bits| *bits == u64::from(u32::from_le_bytes([MARK; 4]))), "rank {rank}");
            }
            Ok::<(), String>(())
        });
    }
}

#[test]
fn chunked_all_reduce_into_symmetric_memory_is_correct() {
    for ranks in RANKS {
        explore(2, |seed| {
            let mut world = World::new(ranks, seed);
            for in_place in [false, true] {
                let given = Given { algorithm: Algorithm::Chunked, count: 6400, in_place, blocks: 3, ..Given::default() };
                // In the first call, all ranks offer their result buffers for direct stores. In the
                // next calls, some ranks do, then none, then other ranks, then all.
                for offers in [!0, 0b1010_0110, 0, 0b0101_1001, !0] {
                    let offered = |rank: usize, call| Call { is_symmetric: offers >> rank & 1, ..call };
                    let results = results::<f32>(&mut world, &given, true, offered);
                    let expected = expected::<f32>(&world, &given);
                    for (rank, found) in results.iter().enumerate() {
                        assert!(bits(found) == expected, "{given:?}: rank {rank} of {ranks}");
                    }
                }
            }
            Ok::<(), String>(())
        });
    }
}

#[test]
fn barrier_completes_or_its_error_names_the_missing_rank() {
    let given = Given { blocks: 1, ..Given::default() };
    for ranks in RANKS {
        let mut world = World::new(ranks, 3);
        for _ in 0..3 {
            let calls: Vec<Call> = (0..ranks as usize).map(|rank| world.call(&given, rank, 4, 0)).collect();
            let kernel = barrier::kernel(ranks).expect("a kernel exists for this number of ranks");
            world.run(kernel, &given, &calls, |_| true).unwrap_or_else(|error| panic!("{ranks} ranks: {error}"));
            world.check::<f32>(&Given::default());
        }
    }
    let mut world = World::with_deadline(3, &[2, 0, 1], 1, Duration::from_secs(2));
    let calls: Vec<Call> = (0..3).map(|rank| world.call(&given, rank, 4, 0)).collect();
    let error = world
        .run(&barrier::barrier_8::KERNEL, &given, &calls, |rank| rank != 2)
        .expect_err("the barrier fails, because rank 2 is missing");
    let JobError::Failed { report, .. } = &error else { panic!("{error}, expected a failure with a report") };
    assert_eq!((report.kind(), report.missing_pe()), (Some(FailureKind::Deadline), Some(Pe::new(1))), "{error}");
    assert_eq!(report.0.operation, KernelOp::Barrier as u32, "{error}");
    assert!(barrier::kernel(9).is_none());
}
