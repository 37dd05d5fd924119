//! Tests of the portable API on GPUs, with device memory of other libraries as operands, graphs,
//! streams of the application, and kernel launches.
#![cfg(target_os = "linux")]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use peerweave_core::{Buffer, Compare, Error, MisuseKind, Rank, World};
use peerweave_cuda::{Cuda, GpuOptions, of_cudarc, on_device};
use peerweave_driver::cudarc::driver::sys::{CUgraphInstantiate_flags as Flags, CUstreamCaptureMode as Mode};
use peerweave_driver::{CudaStream, DeviceMemory, PrivateStream};
use peerweave_fakes::Fakes;
use peerweave_test_kernels::ring;

use common::worlds;

fn options() -> GpuOptions {
    GpuOptions::new(1 << 20).deadline(Duration::from_secs(60)).slots(4)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Creates a stream of the application on the device of the world.
fn own_stream(world: &World) -> PrivateStream {
    let ordinal = world.caps().device.expect("the world runs on GPUs") as usize;
    PrivateStream::new(&peerweave_driver::context(ordinal).unwrap()).unwrap()
}

fn wrapped(world: &World, stream: &Arc<CudaStream>) -> peerweave_core::Stream {
    let cuda = world.backend::<Cuda>().unwrap();
    world.adopt_stream(cuda.wrap_stream(Arc::clone(stream)).unwrap()).unwrap()
}

#[test]
fn device_memory_can_be_an_operand_of_put_get_and_copy() {
    Fakes::new().cuda().run(|| {
        worlds(2, options(), |world| {
            let (team, stream, other) = (world.team(), world.stream().unwrap(), Rank::new(1 - world.my_pe().get()));
            let (x, own) = (world.alloc_zeroed::<f32>(4).unwrap(), own_stream(world));
            let memory = DeviceMemory::from_slice(&own, &[1.0f32, 2.0, 3.0, 4.0]).unwrap();
            let operand = on_device(&memory).unwrap();
            drop(memory);
            team.put(&stream, &operand.slice(1..3).unwrap(), &x.slice(..2).unwrap(), other).unwrap();
            team.barrier(&stream).unwrap().wait().unwrap();
            team.get_blocking(&x, &operand, other).unwrap();
            let back = Buffer::zeroed(4);
            stream.copy(&operand, &back).unwrap().wait().unwrap();
            assert_eq!((x.to_vec().unwrap(), back.to_vec()), (vec![2.0, 3.0, 0.0, 0.0], vec![2.0, 3.0, 0.0, 0.0]));
            team.barrier_blocking().unwrap();
            x.release().unwrap();
        });
    });
}

#[test]
fn stream_of_a_cudarc_slice_waits_for_operations_on_the_slice() {
    Fakes::new().cuda().run(|| {
        worlds(1, options(), |world| {
            let (team, stream, me) = (world.team(), world.stream().unwrap(), Rank::new(0));
            let (x, words) = (world.alloc_zeroed::<i32>(3).unwrap(), world.alloc_zeroed::<u64>(1).unwrap());
            let own = own_stream(world);
            let slice = Arc::new(own.clone_htod(&[7, 8, 9]).unwrap());
            let operand = of_cudarc(Arc::clone(&slice));
            let go = words.signal(0).unwrap();
            team.wait_until(&stream, &go, Compare::Eq, 1).unwrap();
            let put = team.put(&stream, &operand, &x, me).unwrap();
            drop((operand, slice));
            // The stream of the slice frees the slice, so it waits for the put.
            assert!(!peerweave_driver::wait(&own, Instant::now() + Duration::from_millis(20)).unwrap());
            team.signal_blocking(go.set(1), me).unwrap();
            put.wait().unwrap();
            assert_eq!(x.to_vec().unwrap(), [7, 8, 9]);
            x.release().unwrap();
            words.release().unwrap();
        });
    });
}

#[test]
fn operations_on_a_wrapped_stream_run_on_the_cudarc_stream() {
    Fakes::new().cuda().run(|| {
        worlds(1, options(), |world| {
            let (own, x) = (own_stream(world), world.alloc_zeroed::<i32>(2).unwrap());
            let stream = wrapped(world, &own);
            stream.fill(&x, 3).unwrap();
            world.team().p(&stream, &x, 1, 4, Rank::new(0)).unwrap();
            assert!(peerweave_driver::wait(&own, soon()).unwrap());
            assert_eq!(x.to_vec().unwrap(), [3, 4]);
            let other = peerweave_driver::context(1).unwrap();
            let foreign = world.backend::<Cuda>().unwrap().wrap_stream(Arc::clone(&PrivateStream::new(&other).unwrap()));
            assert!(matches!(foreign, Err(Error::Unsupported { call: "wrap_stream", .. })));
            x.release().unwrap();
        });
    });
}

#[test]
fn captured_operations_run_only_when_the_graph_is_launched() {
    Fakes::new().cuda().run(|| {
        worlds(2, options(), |world| {
            let (team, other) = (world.team(), Rank::new(1 - world.my_pe().get()));
            let (data, words) = (world.alloc_zeroed::<u64>(2).unwrap(), world.alloc_zeroed::<u64>(1).unwrap());
            let (own, arrived) = (own_stream(world), words.signal(0).unwrap());
            let stream = wrapped(world, &own);
            data.slice(..1).unwrap().fill(u64::from(world.my_pe().get()) + 5).unwrap();
            // These calls load the kernels before the capture, because kernels cannot be loaded
            // during a capture.
            team.signal(&stream, arrived.add(0), other).unwrap();
            team.wait_until(&stream, &arrived, Compare::Eq, 0).unwrap();
            team.barrier(&stream).unwrap().wait().unwrap();
            own.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
            let (from, to) = data.split_at(1).unwrap();
            let put = team.put_signal(&stream, &from, &to, arrived.add(1), other).unwrap();
            let waited = team.wait_until(&stream, &arrived, Compare::Ge, 1).unwrap();
            let met = team.barrier(&stream).unwrap();
            let refused = team.put(&stream, &Buffer::from(vec![1]), &to, other).unwrap_err();
            assert!(matches!(refused, Error::Unsupported { call: "put", .. }), "{refused}");
            let graph = own
                .end_capture(Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)
                .unwrap()
                .expect("the capture returns a graph");
            for ticket in [&put, &met] {
                assert!(ticket.is_captured());
                assert_eq!(ticket.wait().unwrap_err().misuse(), Some(&MisuseKind::Captured));
            }
            assert!(waited.is_captured());
            drop((from, to));
            assert_eq!(words.load(0).unwrap(), 0, "the captured operations ran before the graph was launched");
            team.barrier_blocking().unwrap();
            for _ in 0..3 {
                graph.launch().unwrap();
            }
            assert!(peerweave_driver::wait(&own, soon()).unwrap());
            assert_eq!((words.load(0).unwrap(), data.load(1).unwrap()), (3, u64::from(other.get()) + 5));
            team.barrier_blocking().unwrap();
            drop(graph);
            data.release().unwrap();
            words.release().unwrap();
        });
    });
}

#[test]
fn application_kernel_runs_on_a_stream_of_the_world() {
    common::fakes().run(|| {
        worlds(2, options(), |world| {
            let (word, signal) = (world.alloc_zeroed::<u64>(1).unwrap(), world.alloc_zeroed::<u64>(1).unwrap());
            let stream = world.stream().unwrap();
            stream.launch(&ring::KERNEL, 1, 1, (&word, &signal, 1)).unwrap().wait().unwrap();
            assert_eq!(word.load(0).unwrap(), 10 * u64::from(1 - world.my_pe().get()) + 7);
            world.team().barrier_blocking().unwrap();
            word.release().unwrap();
            signal.release().unwrap();
        });
    });
}
