//! Tests of collectives of the portable API in CUDA graphs of the fake driver.
#![cfg(target_os = "linux")]

mod common;

use std::time::Duration;

use peerweave_core::{Error, OnDevice, Rank, ReduceFn, ReduceOp, Result, Stream, Strides, Symmetric, Team};
use peerweave_cuda::{Cuda, GpuOptions};
use peerweave_driver::cudarc::driver::sys::{CUgraphInstantiate_flags as Flags, CUstreamCaptureMode as Mode};
use peerweave_driver::{DeviceMemory, PrivateStream};
use peerweave_fakes::Fakes;

const LEN: usize = 300;
const N: usize = 3;

struct Operands {
    x: Symmetric<u32>,
    y: Symmetric<u32>,
    device: OnDevice<u32>,
}

/// A test case: a function that enqueues a collective, and a function that returns the expected
/// result of a rank. [`given`] returns the elements of a rank's input.
type Case = (fn(&Team, &Stream, &Operands) -> Result<()>, fn(usize) -> Vec<u32>);

fn given(rank: usize, index: usize) -> u32 {
    (1000 * rank + index) as u32
}

fn part(rank: usize, first: usize) -> impl Iterator<Item = u32> {
    (first..first + LEN).map(move |index| given(rank, index))
}

fn sums(first: usize) -> Vec<u32> {
    (first..first + LEN).map(|index| (0..N).map(|rank| given(rank, index)).sum()).collect()
}

const CASES: &[Case] = &[
    (|team, stream, on| team.all_reduce(stream, &on.x.slice(..LEN)?, &on.y.slice(..LEN)?, ReduceOp::Sum).map(drop), |_| sums(0)),
    (
        |team, stream, on| team.all_gather(stream, &on.x.slice(..LEN)?, &on.y).map(drop),
        |_| (0..N).flat_map(|rank| part(rank, 0)).collect(),
    ),
    (
        |team, stream, on| team.all_to_all(stream, &on.x, &on.y).map(drop),
        |me| (0..N).flat_map(|rank| part(rank, me * LEN)).collect(),
    ),
    (|team, stream, on| team.reduce_scatter(stream, &on.x, &on.y.slice(..LEN)?, ReduceOp::Sum).map(drop), |me| sums(me * LEN)),
    (
        |team, stream, on| team.broadcast(stream, &on.x.slice(..LEN)?, &on.y.slice(..LEN)?, Rank::new(2)).map(drop),
        |_| part(2, 0).collect(),
    ),
    (
        |team, stream, on| team.gather(stream, &on.x.slice(..LEN)?, &on.y, Rank::new(1)).map(drop),
        |me| if me == 1 { (0..N).flat_map(|rank| part(rank, 0)).collect() } else { Vec::new() },
    ),
    (
        |team, stream, on| team.scatter(stream, &on.x, &on.y.slice(..LEN)?, Rank::new(1)).map(drop),
        |me| part(1, me * LEN).collect(),
    ),
    (
        |team, stream, on| team.reduce(stream, &on.x.slice(..LEN)?, &on.y.slice(..LEN)?, ReduceOp::Max, Rank::new(0)).map(drop),
        |me| if me == 0 { part(N - 1, 0).collect() } else { Vec::new() },
    ),
    (
        |team, stream, on| team.scan(stream, &on.x.slice(..LEN)?, &on.y.slice(..LEN)?, ReduceOp::Sum).map(drop),
        |me| (0..LEN).map(|index| (0..=me).map(|rank| given(rank, index)).sum()).collect(),
    ),
    (
        |team, stream, on| team.exclusive_scan(stream, &on.x.slice(..LEN)?, &on.y.slice(..LEN)?, ReduceOp::Max).map(drop),
        |me| (0..LEN).map(|index| if me == 0 { 7 } else { given(me - 1, index) }).collect(),
    ),
    (
        |team, stream, on| {
            let strides = Strides { count: LEN / 3, source: 3, dest: 2 };
            team.all_to_all_strided(stream, &on.x, &on.y, strides).map(drop)
        },
        |me| {
            let sent = |index: usize| given(index / (LEN / 3), 3 * (me * (LEN / 3) + index % (LEN / 3)));
            (0..2 * LEN - 1).map(|index| if index % 2 == 0 { sent(index / 2) } else { 7 }).collect()
        },
    ),
    // The result is stored in memory of the device that is not on the heap, then copied to the
    // heap.
    (
        |team, stream, on| {
            team.all_reduce(stream, &on.x.slice(..LEN)?, &on.device, ReduceOp::Sum)?;
            team.barrier(stream)?;
            stream.copy(&on.device, &on.y.slice(..LEN)?).map(drop)
        },
        |_| sums(0),
    ),
];

#[test]
fn collectives_are_correct_if_graphs_and_calls_alternate() {
    Fakes::new().cuda().run(|| {
        let options = GpuOptions::new(4 << 20).deadline(Duration::from_secs(60)).slots(4);
        common::worlds(N as u32, options, |world| {
            let (cuda, me) = (world.backend::<Cuda>().expect("the world runs on GPUs"), world.my_pe().index());
            let own = PrivateStream::new(cuda.context()).unwrap();
            let queue = world.adopt_stream(cuda.wrap_stream(own.clone()).unwrap()).unwrap();
            let memory = DeviceMemory::<u32>::alloc(cuda.context(), LEN).unwrap();
            let device = peerweave_cuda::on_device(&memory).unwrap();
            let on = Operands { x: world.alloc(N * LEN).unwrap(), y: world.alloc_zeroed(N * LEN).unwrap(), device };
            on.x.copy_from(&(0..N * LEN).map(|index| given(me, index)).collect::<Vec<u32>>()).unwrap();
            for (call, expected) in CASES {
                // Kernels cannot be loaded during a capture, so this call loads them.
                call(world.team(), &queue, &on).unwrap();
                queue.synchronize().unwrap();
                own.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
                let captured = [(); 2].map(|()| call(world.team(), &queue, &on));
                let graph = own.end_capture(Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
                captured.into_iter().for_each(|captured| captured.unwrap());
                let graph = graph.unwrap().expect("the capture returns a graph");
                for _ in 0..3 {
                    on.y.fill(7).unwrap();
                    world.team().barrier_blocking().unwrap();
                    graph.launch().unwrap();
                    call(world.team(), &queue, &on).unwrap();
                    queue.synchronize().unwrap();
                    let expected = expected(me);
                    assert_eq!(on.y.slice(..expected.len()).unwrap().to_vec().unwrap(), expected);
                }
            }
            drop((queue, own));
            let Operands { x, y, .. } = on;
            x.release().unwrap();
            y.release().unwrap();
        });
    });
}

#[test]
fn reduction_by_a_host_function_is_refused_in_a_capture() {
    Fakes::new().cuda().run(|| {
        let options = GpuOptions::new(4 << 20).deadline(Duration::from_secs(60)).slots(4);
        common::worlds(2, options, |world| {
            let cuda = world.backend::<Cuda>().expect("the world runs on GPUs");
            let own = PrivateStream::new(cuda.context()).unwrap();
            let queue = world.adopt_stream(cuda.wrap_stream(own.clone()).unwrap()).unwrap();
            let (team, x, y) = (world.team(), world.alloc_zeroed::<u32>(5).unwrap(), world.alloc_zeroed::<u32>(5).unwrap());
            let function = ReduceFn::new(|a: u32, b: u32| a.max(b));
            own.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
            let refused = [
                team.all_reduce_with(&queue, &x, &y, &function).map(drop),
                team.scan_with(&queue, &x, &y, &function).map(drop),
                team.reduce_with(&queue, &x, &y, &function, Rank::new(1)).map(drop),
            ];
            let graph = own.end_capture(Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
            for (refused, call) in refused.into_iter().zip(["all_reduce", "scan", "reduce"]) {
                let error = refused.unwrap_err();
                assert!(matches!(error, Error::Unsupported { call: found, .. } if found == call), "{error}");
                assert!(error.to_string().contains("a graph cannot capture"), "{error}");
            }
            drop(graph);
            // The stream and the team are usable after the capture.
            team.all_reduce_with(&queue, &x, &y, &function).unwrap().wait().unwrap();
            drop((queue, own));
            x.release().unwrap();
            y.release().unwrap();
        });
    });
}
