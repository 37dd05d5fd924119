//! Calls of the host with arguments that differ among the PEs of GPUs: every PE gets an error, with
//! the words of the host backend, and the world stays usable.
#![cfg(target_os = "linux")]

mod common;

use std::time::Duration;

use peerweave_core::{Error, Result, TeamShape, World};
use peerweave_cuda::GpuOptions;
use peerweave_fakes::Fakes;

fn options() -> GpuOptions {
    GpuOptions::new(4 << 20).deadline(Duration::from_secs(20)).slots(4)
}

/// Makes `call` on three PEs, where PE 1 is odd; each of them says what PE 1 and another called.
fn differ(odd: &str, others: &str, call: impl Fn(&World, bool) -> Result<()> + Sync) {
    common::worlds(3, options(), |world| {
        let is_odd = world.my_pe().get() == 1;
        for round in 0..3 {
            let Err(Error::Mismatch(mismatch)) = call(world, is_odd) else {
                panic!("PE {}, round {round}: not a mismatch of {odd} and {others}", world.my_pe());
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
fn strided_splits_into_other_shapes_mismatch() {
    let split = |world: &World, start, stride, size| world.team().split_strided(TeamShape { start, stride, size }).map(drop);
    Fakes::new().cuda().run(|| {
        differ(
            "split_strided into 3 ranks from 2 at stride -1",
            "split_strided into 3 ranks from 0 at stride 1",
            |world, odd| {
                if odd { split(world, 2, -1, 3) } else { split(world, 0, 1, 3) }
            },
        );
    });
}

#[test]
fn splits_by_other_calls_or_row_lengths_mismatch() {
    Fakes::new().cuda().run(|| {
        differ("split_2d with x_range 1, into rows", "split_2d with x_range 2, into rows", |world, odd| {
            world.team().split_2d(if odd { 1 } else { 2 }).map(drop)
        });
        differ("split", "split_strided into 2 ranks from 1 at stride 1", |world, odd| {
            let shape = TeamShape { start: 1, stride: 1, size: 2 };
            if odd { world.team().split(Some(0), 0).map(drop) } else { world.team().split_strided(shape).map(drop) }
        });
    });
}

#[test]
fn allocations_of_other_types_or_lengths_mismatch() {
    Fakes::new().cuda().run(|| {
        let (eight, sixteen) =
            ("alloc of 8 elements of f64 aligned to 64, not zeroed", "alloc of 16 elements of i32 aligned to 64, not zeroed");
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
fn splits_of_a_team_compare_the_calls_of_its_members_alone() {
    Fakes::new().cuda().run(|| {
        common::worlds(4, options(), |world| {
            let me = world.my_pe().get();
            let half = world.team().split(Some(u64::from(me / 2)), 0).unwrap().expect("a color was given");
            if me / 2 == 0 {
                let shape = TeamShape { start: 0, stride: 1, size: 1 + me };
                let Err(Error::Mismatch(mismatch)) = half.split_strided(shape) else { panic!("{shape:?} is that of one rank") };
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
