//! Tests of calls on GPUs whose arguments differ among the PEs. Every PE gets an error with the
//! same text as on the host backend. If the PEs compare a call on the host before it begins, the
//! world stays usable after the call has failed.
#![cfg(target_os = "linux")]

mod common;

use std::time::{Duration, Instant};

use peerweave_core::{Buffer, Error, Group, Pe, Rank, ReduceOp, Result, Strides, TeamShape, VectorCounts, World};
use peerweave_cuda::{Cuda, GpuOptions};
use peerweave_fakes::Fakes;

fn options() -> GpuOptions {
    GpuOptions::new(4 << 20).deadline(Duration::from_secs(60)).slots(4)
}

/// Makes `call` on three PEs, with other arguments on PE 1. Checks that the error of each PE
/// contains the calls of PE 1 and of another PE.
fn differ(odd: &str, others: &str, call: impl Fn(&World, bool) -> Result<()> + Sync) {
    common::worlds(3, options(), |world| {
        let is_odd = world.my_pe().get() == 1;
        for round in 0..3 {
            let Err(Error::Mismatch(mismatch)) = call(world, is_odd) else {
                panic!("PE {}, round {round}: the call returned no mismatch of {odd} and {others}", world.my_pe());
            };
            let (mine, theirs) = if is_odd { (odd, others) } else { (others, odd) };
            assert_eq!((mismatch.mine.as_str(), mismatch.theirs.as_str()), (mine, theirs));
        }
        world.team().barrier_blocking().unwrap();
        let all = world.team().split(Some(0), 0).unwrap().expect("a color was given");
        all.barrier_blocking().unwrap();
        world.alloc::<u8>(1).unwrap().release().unwrap();
        all.destroy().unwrap();
    });
}

#[test]
fn split_strided_calls_with_different_shapes_are_a_mismatch() {
    let split = |world: &World, start, stride, size| world.team().split_strided(TeamShape { start, stride, size }).map(drop);
    Fakes::new().cuda().run(|| {
        differ(
            "split_strided into 3 ranks from rank 2 at stride -1",
            "split_strided into 3 ranks from rank 0 at stride 1",
            |world, odd| {
                if odd { split(world, 2, -1, 3) } else { split(world, 0, 1, 3) }
            },
        );
    });
}

#[test]
fn pes_that_split_a_team_differently_get_a_mismatch() {
    Fakes::new().cuda().run(|| {
        differ(
            "split_2d of the team into rows with x_range 1 (ranks per row)",
            "split_2d of the team into rows with x_range 2 (ranks per row)",
            |world, odd| world.team().split_2d(if odd { 1 } else { 2 }).map(drop),
        );
        differ("split", "split_strided into 2 ranks from rank 1 at stride 1", |world, odd| {
            let shape = TeamShape { start: 1, stride: 1, size: 2 };
            if odd { world.team().split(Some(0), 0).map(drop) } else { world.team().split_strided(shape).map(drop) }
        });
    });
}

#[test]
fn allocations_of_different_types_or_lengths_are_a_mismatch() {
    Fakes::new().cuda().run(|| {
        let (eight, sixteen) = (
            "alloc of 8 elements of f64 aligned to 64 bytes, not zeroed",
            "alloc of 16 elements of i32 aligned to 64 bytes, not zeroed",
        );
        differ(eight, sixteen, |world, odd| if odd { world.alloc::<f64>(8).map(drop) } else { world.alloc::<i32>(16).map(drop) });
        differ(
            "split",
            eight,
            |world, odd| {
                if odd { world.team().split(Some(0), 0).map(drop) } else { world.alloc::<f64>(8).map(drop) }
            },
        );
    });
}

#[test]
fn split_of_one_team_ignores_the_calls_of_other_teams() {
    Fakes::new().cuda().run(|| {
        common::worlds(4, options(), |world| {
            let me = world.my_pe().get();
            let half = world.team().split(Some(u64::from(me / 2)), 0).unwrap().expect("a color was given");
            if me / 2 == 0 {
                let shape = TeamShape { start: 0, stride: 1, size: 1 + me };
                let Err(Error::Mismatch(mismatch)) = half.split_strided(shape) else {
                    panic!("{shape:?}: the call returned no mismatch")
                };
                assert_eq!(mismatch.pe.get(), 1 - me);
            }
            let all = half.split(Some(7), -i64::from(me)).unwrap().expect("a color was given");
            assert_eq!(all.members().first().map(|pe| pe.get()), Some(me / 2 * 2 + 1));
            let mut sum = [me];
            all.all_reduce_in_place_blocking(&mut sum, peerweave_core::ReduceOp::Sum).unwrap();
            assert_eq!(sum, [if me < 2 { 1 } else { 5 }]);
            all.destroy().unwrap();
            half.destroy().unwrap();
        });
    });
}

/// Makes equal calls on three PEs, then the collective `call` with other arguments on PE 1. Checks
/// that each PE gets an error long before the deadline, with the calls of PE 1 and of another PE.
fn collectives_differ(odd: &str, others: &str, call: impl Fn(&World, bool) -> Result<()> + Sync) {
    let ends = common::pes_that_may_fail(3, options(), |gpu| {
        let world = World::new(Cuda::new(gpu.unwrap()).unwrap()).unwrap();
        for _ in 0..70 {
            world.team().barrier_blocking().unwrap();
        }
        let (is_odd, start) = (world.my_pe().get() == 1, Instant::now());
        // If the kernel of a rank has ended before the other ranks begin, this rank detects the
        // difference only in its next call.
        let error = call(&world, is_odd).and_then(|()| world.team().barrier_blocking()).unwrap_err();
        assert!(start.elapsed() < Duration::from_secs(20), "the call took {:?}", start.elapsed());
        let Error::Mismatch(mismatch) = &error else { panic!("{}: {error}", world.my_pe()) };
        let (mine, theirs) = if is_odd { (odd, others) } else { (others, odd) };
        assert_eq!((mismatch.mine.as_str(), mismatch.theirs.as_str()), (mine, theirs));
        assert!(matches!(world.team().failure(), Some(Error::Mismatch(_))));
        let refused = world.team().barrier_blocking().unwrap_err();
        assert!(matches!(refused, Error::Poisoned { call: "barrier", .. }), "{refused}");
        let _ = world.finalize();
    });
    assert_eq!(ends.len(), 3);
}

#[test]
fn collectives_of_different_kinds_or_lengths_are_a_mismatch() {
    let sum = |world: &World, len| world.team().all_reduce_in_place_blocking(&mut vec![1.0f32; len], ReduceOp::Sum);
    Fakes::new().cuda().run(|| {
        collectives_differ(
            "all_reduce of 50 elements of f32 by sum",
            "all_reduce of 900 elements of f32 by sum",
            |world, odd| sum(world, if odd { 50 } else { 900 }),
        );
        let scan = |world: &World, is_exclusive, len| match is_exclusive {
            true => world.team().exclusive_scan_in_place_blocking(&mut vec![1.0f32; len], ReduceOp::Sum),
            false => world.team().scan_in_place_blocking(&mut vec![1.0f32; len], ReduceOp::Sum),
        };
        collectives_differ("exclusive_scan of 7 elements of f32 by sum", "scan of 7 elements of f32 by sum", |world, odd| {
            scan(world, odd, 7)
        });
        collectives_differ("scan of 8 elements of f32 by sum", "scan of 9 elements of f32 by sum", |world, odd| {
            scan(world, false, if odd { 8 } else { 9 })
        });
        collectives_differ("all_to_all_strided of 1 elements of f32", "all_to_all_strided of 2 elements of f32", |world, odd| {
            let strides = Strides { count: if odd { 1 } else { 2 }, source: 1, dest: 1 };
            world.team().all_to_all_strided_blocking(&[1.0f32; 6], &mut [0.0; 6], strides)
        });
        collectives_differ("barrier", "all_reduce of 3 elements of f32 by sum", |world, odd| {
            if odd { world.team().barrier_blocking() } else { sum(world, 3) }
        });
    });
}

#[test]
fn queued_calls_with_different_types_or_roots_are_a_mismatch() {
    Fakes::new().cuda().run(|| {
        collectives_differ(
            "broadcast of 4 elements of u8 with root 1",
            "broadcast of 4 elements of u8 with root 2",
            |world, odd| {
                let (stream, x) = (world.stream()?, Buffer::<u8>::zeroed(4));
                world.team().broadcast_in_place(&stream, &x, Rank::new(if odd { 1 } else { 2 }))?.wait()
            },
        );
        collectives_differ("all_gather of 2 elements of i32", "all_gather of 2 elements of f32", |world, odd| {
            let stream = world.stream()?;
            if odd {
                world.team().all_gather(&stream, &Buffer::<i32>::zeroed(2), &Buffer::zeroed(6))?;
            } else {
                world.team().all_gather(&stream, &Buffer::<f32>::zeroed(2), &Buffer::zeroed(6))?;
            }
            stream.synchronize()
        });
    });
}

/// Exchanges 20 equal messages between two PEs, and then makes `call`. In `call`, PE 0 sends a
/// message to PE 1 that differs from the message that PE 1 receives. Checks that each PE gets an
/// error with both messages, long before the deadline.
fn messages_differ(sent: &str, received: &str, call: impl Fn(&World, u32) -> Result<()> + Sync) {
    let ends = common::pes_that_may_fail(2, options(), |gpu| {
        let world = World::new(Cuda::new(gpu.unwrap()).unwrap()).unwrap();
        let (me, team) = (world.my_pe().get(), world.team());
        for _ in 0..20 {
            match me {
                0 => team.send_blocking(&[1.0f32; 3], Rank::new(1)).unwrap(),
                _ => team.recv_blocking(&mut [0.0f32; 3], Rank::new(0)).unwrap(),
            }
        }
        let start = Instant::now();
        // The kernel of a sender may end before the receiver begins. The sender then detects the
        // difference in its next call.
        let error = call(&world, me).and_then(|()| team.barrier_blocking()).unwrap_err();
        assert!(start.elapsed() < Duration::from_secs(20), "the call took {:?}", start.elapsed());
        let Error::Mismatch(mismatch) = &error else { panic!("PE {me}: {error}, expected a mismatch") };
        let (mine, theirs) = if me == 0 { (sent, received) } else { (received, sent) };
        assert_eq!((mismatch.mine.as_str(), mismatch.theirs.as_str()), (mine, theirs));
        assert_eq!(error.blamed(), [Pe::new(1 - me)], "{error}");
        assert!(matches!(team.failure(), Some(Error::Mismatch(_))));
        let _ = world.finalize();
    });
    assert_eq!(ends.len(), 2);
}

#[test]
fn send_and_receive_of_unequal_lengths_or_types_is_a_mismatch() {
    Fakes::new().cuda().run(|| {
        // Short messages are sent as 16-byte lines, and long messages through rings.
        for (sent, received) in [(3, 5), (5, 3), (300_000, 7), (7, 300_000)] {
            messages_differ(
                &format!("send of {sent} elements of f32"),
                &format!("recv of {received} elements of f32"),
                |world, me| match me {
                    0 => world.team().send_blocking(&vec![1.0f32; sent], Rank::new(1)),
                    _ => world.team().recv_blocking(&mut vec![0.0f32; received], Rank::new(0)),
                },
            );
        }
        messages_differ("send of 4 elements of f32", "recv of 4 elements of i32", |world, me| {
            let stream = world.stream()?;
            match me {
                0 => world.team().send(&stream, &Buffer::<f32>::zeroed(4), Rank::new(1))?.wait(),
                _ => world.team().recv(&stream, &Buffer::<i32>::zeroed(4), Rank::new(0))?.wait(),
            }
        });
        messages_differ("send of 2 elements of u8", "recv of 1 elements of u8", |world, me| {
            let (stream, buffer) = (world.stream()?, Buffer::<u8>::zeroed(2));
            let members = |group: &mut Group| match me {
                0 => group.send(&buffer, Rank::new(1)),
                _ => group.recv(&buffer.slice(..1)?, Rank::new(0)),
            };
            world.team().group(&stream, |group| members(group).map(drop))?.wait()
        });
    });
}

#[test]
fn all_to_all_v_with_unequal_send_and_receive_counts_fails() {
    Fakes::new().cuda().run(|| {
        messages_differ(
            "all_to_all_v in which rank 0 sends 3 elements of f32 to rank 1",
            "all_to_all_v in which rank 1 receives 2 elements of f32 from rank 0",
            |world, me| {
                let (sent, received) = if me == 0 { ([1, 3], [1, 1]) } else { ([1, 1], [2, 1]) };
                let counts = VectorCounts::packed(sent, received);
                world.team().all_to_all_v_blocking(&[1.0f32; 4], &mut [0.0f32; 4], counts)
            },
        );
    });
}
