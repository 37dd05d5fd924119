//! Tests of operations of a PE on its own memory (fills, copies, elements), and of the capabilities
//! that the backend reports.

use peerweave_core::backend::CollectiveKind;
use peerweave_core::{
    AccumulatorType, AfterFailure, Buffer, DType, Error, Integer, NanRule, Rank, ReduceOp, ReductionOrder, World, bf16,
};
use peerweave_host::{HostOptions, on_threads};
use std::time::Duration;

fn alone(program: impl Fn(World) + Sync) {
    on_threads(1, &HostOptions::default(), program).expect("the shared memory is mapped");
}

#[test]
fn fill_sets_all_elements_of_the_slice_and_no_others() {
    fn fill<T: Integer>(world: &World, value: T, rest: T) {
        // The range is longer than a chunk of `fill`, and its ends are unaligned.
        let (stream, x, last) = (world.stream().unwrap(), world.alloc::<T>(9001).unwrap(), 8999);
        x.fill(rest).unwrap();
        x.slice(1..=last).unwrap().fill(value).unwrap();
        let expected: Vec<T> = (0..9001).map(|i| if (1..=last).contains(&i) { value } else { rest }).collect();
        assert_eq!(x.to_vec().unwrap(), expected);
        stream.fill(&x, value).unwrap();
        stream.fill(&x.slice(2..4).unwrap(), rest).unwrap().wait().unwrap();
        let expected: Vec<T> = (0..9001).map(|i| if (2..4).contains(&i) { rest } else { value }).collect();
        assert_eq!(x.to_vec().unwrap(), expected);
    }
    alone(|world| {
        fill::<u8>(&world, 0xa5, 1);
        fill::<i32>(&world, -0x0102_0304, 0);
        fill::<u64>(&world, 0x0102_0304_0506_0708, 9);
        fill::<u64>(&world, 0, 9);
    });
}

#[test]
fn data_is_copied_between_symmetric_memory_and_buffers() {
    alone(|world| {
        let (stream, x) = (world.stream().unwrap(), world.alloc_zeroed::<f32>(600).unwrap());
        let (from, back) = (Buffer::from(vec![1.5f32; 500]), Buffer::<f32>::zeroed(600));
        stream.copy(&from, &x.slice(100..).unwrap()).unwrap();
        stream.copy(&x, &back).unwrap().wait().unwrap();
        assert_eq!(back.to_vec(), [vec![0.0; 100], vec![1.5; 500]].concat());
    });
}

#[test]
fn put_and_get_transfer_elements_of_every_size() {
    on_threads(2, &HostOptions::default(), |world| {
        let (team, stream) = (world.team(), world.stream().unwrap());
        let (bytes, halves) = (world.alloc_zeroed::<u8>(3).unwrap(), world.alloc_zeroed::<bf16>(3).unwrap());
        let (words, wide) = (world.alloc_zeroed::<f32>(3).unwrap(), world.alloc_zeroed::<i64>(3).unwrap());
        let other = Rank::new(1 - world.my_pe().get());
        team.p_blocking(&bytes, 1, 0xfe, other).unwrap();
        team.p(&stream, &halves, 1, bf16::from_f32(-2.5), other).unwrap();
        team.p_blocking(&words, 1, -2.5, other).unwrap();
        team.p(&stream, &wide, 1, i64::MIN, other).unwrap().wait().unwrap();
        team.barrier_blocking().unwrap();
        assert_eq!(bytes.to_vec().unwrap(), [0, 0xfe, 0]);
        assert_eq!(halves.to_vec().unwrap(), [0.0, -2.5, 0.0].map(bf16::from_f32));
        assert_eq!((words.to_vec().unwrap(), wide.to_vec().unwrap()), (vec![0.0, -2.5, 0.0], vec![0, i64::MIN, 0]));
        assert_eq!(team.g_blocking(&bytes, 1, other).unwrap(), 0xfe);
        assert_eq!(team.g(&stream, &halves, 1, other).unwrap().wait().unwrap().to_f32(), -2.5);
        assert_eq!(team.g(&stream, &words, 1, other).unwrap().wait().unwrap(), -2.5);
        assert_eq!(team.g_blocking(&wide, 1, other).unwrap(), i64::MIN);
        team.barrier_blocking().unwrap();
    })
    .expect("the shared memory is mapped");
}

#[test]
fn capabilities_describe_the_arithmetic_of_each_reduction() {
    alone(|world| {
        let caps = world.caps();
        assert_eq!((caps.device, caps.after_failure), (None, AfterFailure::SkipsStream));
        let sum = caps.reduction(CollectiveKind::AllReduce, DType::BF16, ReduceOp::Sum).expect("the reduction is defined");
        assert_eq!((sum.order, sum.same_bits), (ReductionOrder::Rank, true));
        assert_eq!((sum.accumulator, sum.nan), (AccumulatorType::F32RoundedOnce, NanRule::IgnoredByMinMaxCanonical));
        let max = caps.reduction(CollectiveKind::ReduceScatter, DType::F64, ReduceOp::Max).expect("the reduction is defined");
        assert_eq!(max.accumulator, AccumulatorType::Element);
        for (kind, dtype, op) in [
            (CollectiveKind::AllReduce, DType::F32, ReduceOp::And),
            (CollectiveKind::AllReduce, DType::F8E4M3, ReduceOp::Sum),
            (CollectiveKind::AllGather, DType::F32, ReduceOp::Sum),
        ] {
            assert_eq!(caps.reduction(kind, dtype, op), None, "{kind:?} of {dtype} by {op} is reported as a reduction");
        }
    });
}

#[test]
fn team_reports_the_timeout_error_of_an_earlier_barrier() {
    let mut options = HostOptions::default();
    options.deadline = Duration::from_millis(100);
    let has_failed = std::sync::Barrier::new(2);
    on_threads(2, &options, |world| {
        assert!(world.team().failure().is_none());
        let outcome = (world.my_pe().get() == 0).then(|| world.team().barrier_blocking());
        has_failed.wait();
        if let Some(outcome) = outcome {
            assert!(matches!(outcome, Err(Error::Timeout(_))), "{outcome:?}");
            assert!(matches!(world.team().failure(), Some(Error::Timeout(_))));
        }
    })
    .expect("the shared memory is mapped");
}
