//! Tests of collectives that NCCL carries out, with fakes of the driver and NCCL. The tests check
//! results, choices that are the same on all PEs, and PEs that die or make no call while NCCL runs.
#![cfg(target_os = "linux")]

mod common;

use std::time::{Duration, Instant};

use peerweave_core::{Buffer, Error, Pe, PeerCause, Rank, ReduceOp, Result, Stream, Symmetric, World};
use peerweave_cuda::{CollectiveKind, Cuda, CudaOptions, GpuOptions, Method, Provider, Query};
use peerweave_driver::PrivateStream;
use peerweave_driver::cudarc::driver::sys::{CUgraphInstantiate_flags as Flags, CUstreamCaptureMode as Mode};
use peerweave_fakes::Fakes;
use peerweave_types::DType;

fn gpu() -> GpuOptions {
    GpuOptions::new(8 << 20).deadline(Duration::from_secs(60)).slots(4)
}

fn fakes() -> Fakes {
    Fakes::new().cuda().nccl().env("NCCL_NVLS_ENABLE", "0")
}

/// Returns options with which NCCL carries out every collective that the routes permit.
fn options() -> CudaOptions {
    let mut options = CudaOptions::default();
    options.nccl = true;
    options.forced = "all=nccl".parse().unwrap();
    options
}

/// Runs `body` on each of `n` PEs, and then finalizes the world.
fn worlds(n: u32, options: impl Fn() -> CudaOptions + Sync, body: impl Fn(&World) + Sync) {
    common::pes_that_may_fail(n, gpu(), |gpu| {
        let world = World::new(Cuda::with(gpu.expect("the GPU is set up"), &options()).expect("the backend is created"))
            .expect("the world is created");
        body(&world);
        let report = world.finalize().expect("every PE ends the job");
        assert!(report.is_clean(), "{report}");
    });
}

fn cuda(world: &World) -> &Cuda {
    world.backend::<Cuda>().expect("the world runs on GPUs")
}

/// Returns the provider that carries out a call of 100 elements, and the explanation.
fn provider(world: &World, kind: CollectiveKind, dtype: DType) -> (Provider, String) {
    let explained = cuda(world).explain(world.team(), &Query::new(kind, dtype, 100)).unwrap();
    (explained.provider, explained.to_string())
}

const LEN: usize = 100;
const N: usize = 3;

/// Returns the element at `index` in the input of rank `rank`.
fn given(rank: usize, index: usize) -> u32 {
    (1000 * rank + index) as u32
}

fn part(rank: usize, first: usize) -> impl Iterator<Item = u32> {
    (first..first + LEN).map(move |index| given(rank, index))
}

fn sums(first: usize) -> Vec<u32> {
    (first..first + LEN).map(|index| (0..N).map(|rank| given(rank, index)).sum()).collect()
}

/// A test case: a kind of collective, a function that enqueues the collective with an input and a
/// result, and a function that returns the expected result of a rank.
type Case = (CollectiveKind, fn(&World, &Stream, &Symmetric<u32>, &Symmetric<u32>) -> Result<()>, fn(usize) -> Vec<u32>);

const CASES: &[Case] = &[
    (
        CollectiveKind::AllReduce,
        |world, s, x, y| world.team().all_reduce(s, &x.slice(..LEN)?, &y.slice(..LEN)?, ReduceOp::Sum).map(drop),
        |_| sums(0),
    ),
    (
        CollectiveKind::Reduce,
        |world, s, x, y| world.team().reduce(s, &x.slice(..LEN)?, &y.slice(..LEN)?, ReduceOp::Max, Rank::new(1)).map(drop),
        |me| if me == 1 { part(N - 1, 0).collect() } else { Vec::new() },
    ),
    (
        CollectiveKind::ReduceScatter,
        |world, s, x, y| world.team().reduce_scatter(s, x, &y.slice(..LEN)?, ReduceOp::Sum).map(drop),
        |me| sums(me * LEN),
    ),
    (
        CollectiveKind::AllGather,
        |world, s, x, y| world.team().all_gather(s, &x.slice(..LEN)?, y).map(drop),
        |_| (0..N).flat_map(|rank| part(rank, 0)).collect(),
    ),
    (
        CollectiveKind::AllToAll,
        |world, s, x, y| world.team().all_to_all(s, x, y).map(drop),
        |me| (0..N).flat_map(|rank| part(rank, me * LEN)).collect(),
    ),
    (
        CollectiveKind::Broadcast,
        |world, s, x, y| world.team().broadcast(s, &x.slice(..LEN)?, &y.slice(..LEN)?, Rank::new(2)).map(drop),
        |_| part(2, 0).collect(),
    ),
    (
        CollectiveKind::Gather,
        |world, s, x, y| world.team().gather(s, &x.slice(..LEN)?, y, Rank::new(1)).map(drop),
        |me| if me == 1 { (0..N).flat_map(|rank| part(rank, 0)).collect() } else { Vec::new() },
    ),
    (
        CollectiveKind::Scatter,
        |world, s, x, y| world.team().scatter(s, x, &y.slice(..LEN)?, Rank::new(1)).map(drop),
        |me| part(1, me * LEN).collect(),
    ),
];

#[test]
fn every_collective_by_nccl_has_correct_results() {
    let log = std::env::temp_dir().join(format!("peerweave-by-nccl-{}", std::process::id()));
    fakes().env("PEERWEAVE_FAKE_NCCL_LOG", &log).run(|| {
        worlds(N as u32, options, |world| {
            let (me, stream) = (world.my_pe().index(), world.stream().unwrap());
            let (x, y) = (world.alloc::<u32>(N * LEN).unwrap(), world.alloc_zeroed::<u32>(N * LEN).unwrap());
            x.copy_from(&(0..N * LEN).map(|index| given(me, index)).collect::<Vec<_>>()).unwrap();
            for (kind, call, expected) in CASES {
                let (provider, text) = provider(world, *kind, DType::U32);
                assert_eq!(provider, Provider::Nccl, "{text}");
                assert!(text.contains("NCCL; because the caller chose nccl"), "{text}");
                y.fill(7).unwrap();
                call(world, &stream, &x, &y).unwrap();
                stream.synchronize().unwrap();
                let expected = expected(me);
                assert_eq!(y.slice(..expected.len()).unwrap().to_vec().unwrap(), expected, "{kind:?}");
                world.team().barrier_blocking().unwrap();
            }
            x.release().unwrap();
            y.release().unwrap();
        });
    });
    // The scenario ran in a child process, whose environment has the path of the log. Only the
    // parent process checks the log.
    let is_scenario = std::env::var_os("PEERWEAVE_FAKE_NCCL_LOG").is_some();
    let calls = std::fs::read_to_string(&log).unwrap_or_default();
    let _ = std::fs::remove_file(&log);
    if !is_scenario {
        for name in ["ncclAllReduce(", "ncclReduce(", "ncclReduceScatter(", "ncclAllGather(", "ncclAlltoAll(", "ncclBroadcast("] {
            assert!(calls.contains(name), "{name}");
        }
    }
}

#[test]
fn nccl_calls_in_place_and_on_host_memory_are_correct() {
    fakes().run(|| {
        worlds(2, options, |world| {
            let (team, me) = (world.team(), world.my_pe().get());
            let x = world.alloc::<i32>(4).unwrap();
            let fill = || x.copy_from(&[1, 2, 3, 4].map(|value| value + 10 * me as i32)).unwrap();
            fill();
            team.all_reduce_in_place_blocking(&x, ReduceOp::Sum).unwrap();
            assert_eq!(x.to_vec().unwrap(), [12, 14, 16, 18]);
            fill();
            team.all_to_all_in_place_blocking(&x).unwrap();
            assert_eq!(x.to_vec().unwrap(), if me == 0 { [1, 2, 11, 12] } else { [3, 4, 13, 14] });
            fill();
            team.reduce_scatter_in_place_blocking(&x, ReduceOp::Sum).unwrap();
            // The part of the other rank is unchanged.
            assert_eq!(x.to_vec().unwrap(), if me == 0 { [12, 14, 3, 4] } else { [11, 12, 16, 18] });
            fill();
            team.all_gather_in_place_blocking(&x).unwrap();
            assert_eq!(x.to_vec().unwrap(), [1, 2, 13, 14]);
            fill();
            team.broadcast_in_place_blocking(&x, Rank::new(1)).unwrap();
            assert_eq!(x.to_vec().unwrap(), [11, 12, 13, 14]);
            let (mine, sum) = (Buffer::from(vec![me as i32 + 1; 5]), Buffer::<i32>::zeroed(5));
            team.all_reduce_blocking(&mine, &sum, ReduceOp::Prod).unwrap();
            assert_eq!(sum.to_vec(), [2; 5]);
            let stream = world.stream().unwrap();
            team.all_gather(&stream, &mine, &Buffer::<i32>::zeroed(10)).unwrap().wait().unwrap();
            team.all_reduce_in_place(&stream, &sum, ReduceOp::Sum).unwrap().wait().unwrap();
            assert_eq!(sum.to_vec(), [4; 5]);
            x.release().unwrap();
        });
    });
}

#[test]
fn nccl_runs_neither_subteam_calls_nor_float_sums_of_three_pes() {
    fakes().run(|| {
        worlds(3, options, |world| {
            let (provider_of_floats, text) = provider(world, CollectiveKind::AllReduce, DType::F32);
            assert_eq!(provider_of_floats, Provider::Own, "{text}");
            assert!(
                text.contains(
                    "not used: the method nccl, which the caller chose, because the bits of NCCL's result could differ"
                ),
                "{text}"
            );
            let (x, y) = (world.alloc::<f32>(3).unwrap(), world.alloc_zeroed::<f32>(3).unwrap());
            x.fill(1.5).unwrap();
            world.team().all_reduce_blocking(&x, &y, ReduceOp::Sum).unwrap();
            assert_eq!(y.to_vec().unwrap(), [4.5; 3]);
            let pair = world.team().split((world.my_pe().get() < 2).then_some(0), 0).unwrap();
            if let Some(pair) = pair {
                let explained = cuda(world).explain(&pair, &Query::new(CollectiveKind::AllReduce, DType::U32, 100)).unwrap();
                assert_eq!(explained.provider, Provider::Own);
                assert!(explained.to_string().contains("a communicator only for the team of all PEs"), "{explained}");
                pair.all_reduce_blocking(&x, &y, ReduceOp::Sum).unwrap();
                assert_eq!(y.to_vec().unwrap(), [3.0; 3]);
                pair.destroy().unwrap();
            }
            // The choice may change between calls, if all PEs change it.
            cuda(world).choose(CollectiveKind::AllGather, Some(Method::Own));
            assert_eq!(provider(world, CollectiveKind::AllGather, DType::U8).0, Provider::Own);
            cuda(world).choose(CollectiveKind::AllGather, Some(Method::Nccl));
            assert_eq!(provider(world, CollectiveKind::AllGather, DType::U8).0, Provider::Nccl);
            world.team().barrier_blocking().unwrap();
            x.release().unwrap();
            y.release().unwrap();
        });
    });
}

/// Runs an all_reduce, which NCCL or Peerweave's kernels carry out, and checks the result.
fn sum_is_right(world: &World) {
    let (x, y) = (world.alloc::<u32>(9).unwrap(), world.alloc_zeroed::<u32>(9).unwrap());
    x.fill(world.my_pe().get() + 1).unwrap();
    world.team().all_reduce_blocking(&x, &y, ReduceOp::Sum).unwrap();
    let n = world.n_pes() as u32;
    assert_eq!(y.to_vec().unwrap(), [n * (n + 1) / 2; 9]);
    world.team().barrier_blocking().unwrap();
    x.release().unwrap();
    y.release().unwrap();
}

#[test]
fn collectives_are_correct_if_nccl_is_missing_or_fails() {
    let without = Fakes::new().cuda().env("PEERWEAVE_NCCL_PATH", "/nowhere");
    without.run(|| {
        worlds(2, options, |world| {
            let (provider, text) = provider(world, CollectiveKind::AllReduce, DType::U32);
            assert_eq!(provider, Provider::Own, "{text}");
            assert!(text.contains("because NCCL cannot be used: PE 0: NCCL was not found"), "{text}");
            sum_is_right(world);
        });
    });
    for (variable, value, reason) in [
        ("PEERWEAVE_FAKE_NCCL_FAIL", "ncclCommInitRankConfig:2=3", "NCCL cannot be used: PE "),
        ("PEERWEAVE_MULTICAST", "off", "NCCL_NVLS_ENABLE=0"),
    ] {
        let fakes = if variable == "PEERWEAVE_MULTICAST" { Fakes::new().cuda().nccl() } else { fakes() };
        fakes.env(variable, value).run(|| {
            worlds(2, options, |world| {
                let (provider, text) = provider(world, CollectiveKind::AllReduce, DType::U32);
                assert!(provider == Provider::Own && text.contains(reason), "{text}");
                sum_is_right(world);
            });
        });
    }
}

#[test]
fn disabled_nccl_is_not_loaded() {
    Fakes::new().cuda().env("PEERWEAVE_NCCL_PATH", "/nowhere").run(|| {
        let off = || {
            let mut options = options();
            options.nccl = false;
            options
        };
        worlds(2, off, |world| {
            let (provider, text) = provider(world, CollectiveKind::AllReduce, DType::U32);
            assert!(provider == Provider::Own && text.contains("because NCCL is not enabled"), "{text}");
            sum_is_right(world);
        });
    });
}

#[test]
fn nccl_calls_in_graphs_and_on_streams_can_alternate() {
    fakes().run(|| {
        worlds(2, options, |world| {
            let (cuda, me) = (cuda(world), world.my_pe().get());
            let own = PrivateStream::new(cuda.context()).unwrap();
            let queue = world.adopt_stream(cuda.wrap_stream(own.clone()).unwrap()).unwrap();
            let (x, y) = (world.alloc::<u32>(LEN).unwrap(), world.alloc_zeroed::<u32>(2 * LEN).unwrap());
            x.copy_from(&part(me as usize, 0).collect::<Vec<_>>()).unwrap();
            let expected: Vec<u32> = part(0, 0).chain(part(1, 0)).collect();
            let gather = || world.team().all_gather(&queue, &x, &y).map(drop);
            gather().unwrap();
            world.team().barrier(&queue).unwrap();
            queue.synchronize().unwrap();
            own.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
            let captured = gather().and_then(|()| world.team().barrier(&queue).map(drop));
            let graph = own.end_capture(Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
            captured.unwrap();
            let graph = graph.unwrap().expect("the capture returns a graph");
            for _ in 0..3 {
                y.fill(7).unwrap();
                world.team().barrier_blocking().unwrap();
                graph.launch().unwrap();
                gather().unwrap();
                queue.synchronize().unwrap();
                assert_eq!(y.to_vec().unwrap(), expected);
            }
            drop(graph);
            drop((queue, own));
            world.team().barrier_blocking().unwrap();
            x.release().unwrap();
            y.release().unwrap();
        });
    });
}

#[test]
fn timed_out_nccl_call_names_the_missing_pe() {
    fakes().run(|| {
        let gpu = gpu().deadline(Duration::from_secs(5));
        // Each PE waits here until the calls of all PEs have failed. If a PE ended its world
        // earlier, the error of another PE would name this PE.
        let all_have_failed = std::sync::Barrier::new(3);
        common::pes_that_may_fail(3, gpu, |gpu| {
            let world = World::new(Cuda::with(gpu.expect("the GPU is set up"), &options()).unwrap()).unwrap();
            let (team, stream) = (world.team(), world.stream().unwrap());
            let (x, y) = (world.alloc::<u32>(4).unwrap(), world.alloc::<u32>(4).unwrap());
            // NCCL connects the ranks in this first call.
            team.all_reduce_blocking(&x, &y, ReduceOp::Sum).unwrap();
            if world.my_pe() != Pe::new(1) {
                let start = Instant::now();
                let error = match world.my_pe().get() {
                    0 => team.all_reduce_blocking(&x, &y, ReduceOp::Sum).unwrap_err(),
                    _ => team.all_reduce(&stream, &x, &y, ReduceOp::Sum).and_then(|ticket| ticket.wait()).unwrap_err(),
                };
                assert!(start.elapsed() < Duration::from_secs(25), "the call took {:?}", start.elapsed());
                let Error::Timeout(timeout) = &error else { panic!("{error}, expected a timeout") };
                assert_eq!((timeout.call, &timeout.missing[..]), ("all_reduce", &[Pe::new(1)][..]), "{error}");
                // The team is poisoned, and later calls are refused.
                let refused = team.barrier_blocking().unwrap_err();
                assert!(matches!(refused, Error::Poisoned { .. }), "{refused}");
                // Copies need no other PE.
                x.copy_from(&[1, 2, 3, 4]).unwrap();
                assert_eq!(x.to_vec().unwrap(), [1, 2, 3, 4]);
            }
            all_have_failed.wait();
            drop((x, y, stream));
            drop(world);
        });
    });
}

#[test]
fn all_reduce_on_one_pe_and_barrier_on_another_is_a_mismatch() {
    fakes().run(|| {
        let gpu = gpu().deadline(Duration::from_secs(10));
        let all_have_failed = std::sync::Barrier::new(2);
        common::pes_that_may_fail(2, gpu, |gpu| {
            let world = World::new(Cuda::with(gpu.expect("the GPU is set up"), &options()).unwrap()).unwrap();
            let (team, x) = (world.team(), world.alloc_zeroed::<u32>(8).unwrap());
            team.all_reduce_in_place_blocking(&x, ReduceOp::Sum).unwrap();
            let error = match world.my_pe().get() {
                0 => team.all_reduce_in_place_blocking(&x, ReduceOp::Sum).unwrap_err(),
                // The fake NCCL ends the process if collectives do not match, so PE 1 makes a call
                // that Peerweave's kernels carry out.
                _ => team.barrier_blocking().unwrap_err(),
            };
            all_have_failed.wait();
            assert!(matches!(error, Error::Mismatch(_)), "{error}");
            drop(x);
            drop(world);
        });
    });
}

#[test]
fn nccl_call_error_names_a_killed_pe() {
    let _ = fakes().run_with_victims(3, &[2], |child| one_is_killed(&child));
}

#[test]
fn nccl_error_names_a_pe_killed_before_nccl_connects() {
    let _ = fakes().env("PEERWEAVE_FAKE_NCCL_CONNECT", "1").run_with_victims(3, &[2], |child| one_is_killed(&child));
}

#[test]
fn graph_with_an_nccl_call_ends_if_a_pe_is_killed() {
    let _ = fakes().run_with_victims(2, &[1], |child| graph_of_a_killed_pe(&child));
}

/// Kills PE 1 while PE 0 waits through the driver for a graph that contains a call of NCCL.
fn graph_of_a_killed_pe(child: &peerweave_fakes::Child) {
    let gpu = common::process(child, gpu());
    let world = World::new(Cuda::with(gpu.clone(), &options()).unwrap()).unwrap();
    let (cuda, x) = (cuda(&world), world.alloc_zeroed::<u32>(64).unwrap());
    let own = PrivateStream::new(cuda.context()).unwrap();
    let queue = world.adopt_stream(cuda.wrap_stream(own.clone()).unwrap()).unwrap();
    world.team().all_reduce_in_place(&queue, &x, ReduceOp::Sum).unwrap().wait().unwrap();
    own.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
    let captured = world.team().all_reduce_in_place(&queue, &x, ReduceOp::Sum).map(drop);
    let graph = own.end_capture(Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
    captured.unwrap();
    let graph = graph.unwrap().expect("the capture returns a graph");
    world.team().barrier_blocking().unwrap();
    if world.my_pe() == Pe::new(1) {
        std::process::abort();
    }
    graph.launch().unwrap();
    let start = Instant::now();
    let passed = peerweave_driver::wait(&own, Instant::now() + Duration::from_secs(30)).unwrap();
    assert!(passed, "the graph still runs after {:?}", start.elapsed());
    let error = world.team().all_reduce_in_place_blocking(&x, ReduceOp::Sum).unwrap_err();
    assert_eq!(error.blamed(), [Pe::new(1)], "{error}");
    drop((graph, queue, own, x));
    drop(world);
    let _ = gpu.end();
}

fn one_is_killed(child: &peerweave_fakes::Child) {
    let gpu = common::process(child, gpu());
    let world = World::new(Cuda::with(gpu.clone(), &options()).unwrap()).unwrap();
    let (team, stream) = (world.team(), world.stream().unwrap());
    let (x, y) = (world.alloc_zeroed::<u32>(64).unwrap(), world.alloc_zeroed::<u32>(64).unwrap());
    // NCCL connects the ranks in the first call, and waits for the ranks on the host.
    match std::env::var("PEERWEAVE_FAKE_NCCL_CONNECT") {
        Ok(_) => team.barrier_blocking().unwrap(),
        Err(_) => team.all_reduce_blocking(&x, &y, ReduceOp::Sum).unwrap(),
    }
    if world.my_pe() == Pe::new(2) {
        std::thread::sleep(Duration::from_millis(200));
        std::process::abort();
    }
    let start = Instant::now();
    let error = match world.my_pe().get() {
        0 => team.all_reduce_blocking(&x, &y, ReduceOp::Sum).unwrap_err(),
        _ => {
            let enqueued = team.all_reduce(&stream, &x, &y, ReduceOp::Sum).map(drop);
            enqueued.and_then(|()| stream.synchronize()).unwrap_err()
        }
    };
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "the call took {:?}, expected an error long before the deadline",
        start.elapsed()
    );
    assert!(matches!(error, Error::Peer { cause: PeerCause::Died, .. }), "{error}");
    assert_eq!(error.blamed(), [Pe::new(2)], "{error}");
    // Calls that need no other PE still work.
    x.copy_from(&[7; 64]).unwrap();
    assert_eq!(x.load(0).unwrap(), 7);
    drop((x, y, stream));
    drop(world);
    let (ended, took) = gpu.end();
    assert!(ended.is_err(), "the end succeeded, expected an error, because a PE is lost");
    assert!(took < Duration::from_secs(20), "the end took {took:?}, expected no wait for the dead PE");
}
