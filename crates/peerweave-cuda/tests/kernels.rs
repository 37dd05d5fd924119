//! Tests of the heap, context, launches and waits of GPUs, over the fake driver. Kernels run on the
//! CPU, from the same source as on GPUs.
#![cfg(target_os = "linux")]

mod common;

use std::time::{Duration, Instant};

use peerweave_cuda::{CudaError, GpuOptions};
use peerweave_driver::DriverError;
use peerweave_driver::cudarc::driver::sys::{CUgraphInstantiate_flags as Flags, CUstreamCaptureMode as Mode};
use peerweave_driver::launch::LaunchError;
use peerweave_test_kernels::{barriers, count_up, ring, wait_for_ever};
use peerweave_types::{FailureKind, KernelOp, Pe};

use common::{fakes, pes};

fn options() -> GpuOptions {
    GpuOptions::new(1 << 20).deadline(Duration::from_secs(60)).slots(4)
}

#[test]
fn kernel_delivers_words_and_signals_to_the_next_pe() {
    fakes().run(|| {
        pes(3, options(), |gpu| {
            let (word, signal) =
                (gpu.alloc::<u64>(1).expect("the memory is allocated"), gpu.alloc::<u64>(1).expect("the memory is allocated"));
            let stream = gpu.stream().expect("the stream is created");
            for round in 1..=5 {
                stream.launch(&ring::KERNEL, 1, 1, (word.slice(), signal.slice(), round)).expect("the kernel is launched");
            }
            let before = u64::from((gpu.pe().get() + 2) % 3);
            assert_eq!(word.read(&stream).expect("the kernels complete"), [10 * before + 7]);
            gpu.barrier("read").expect("all PEs arrive");
            gpu.free(word).expect("the memory is freed");
            gpu.free(signal).expect("the memory is freed");
        });
    });
}

#[test]
fn block_barriers_synchronize_all_threads_of_a_block() {
    fakes().run(|| {
        pes(2, options(), |gpu| {
            let stream = gpu.stream().expect("the stream is created");
            for _ in 0..3 {
                stream.launch(&barriers::KERNEL, 1, 32, (20,)).expect("the kernel is launched");
            }
            stream.wait().expect("all PEs reach the barrier");
        });
    });
}

#[test]
fn barriers_work_after_recovery_from_a_kernel_timeout() {
    fakes().run(|| {
        let short = options().deadline(Duration::from_secs(3));
        pes(2, short, |gpu| {
            let signal = gpu.alloc::<u64>(1).expect("the memory is allocated");
            let stream = gpu.stream().expect("the stream is created");
            if gpu.pe() == Pe::new(0) {
                let start = Instant::now();
                stream.launch(&wait_for_ever::KERNEL, 1, 1, (signal.slice(), 1)).expect("the kernel is launched");
                let error = stream.wait().expect_err("the wait fails, because no PE signals");
                assert!(start.elapsed() < Duration::from_secs(20), "the call took {:?}", start.elapsed());
                let CudaError::Kernel { failure, .. } = &error else { panic!("{error}, expected the failure of a kernel") };
                assert_eq!((failure.kind, failure.pe), (Some(FailureKind::Deadline), Some(Pe::new(1))), "{error}");
                assert_eq!((failure.operation, failure.expected), (Some(KernelOp::SignalWaitUntil), u64::MAX), "{error}");
                let error =
                    stream.launch(&barriers::KERNEL, 1, 1, (1,)).expect_err("the call fails, because a kernel has failed");
                assert!(matches!(error, CudaError::Failed { .. }), "{error}");
            }
            gpu.recover().expect("both PEs arrive");
            stream.launch(&barriers::KERNEL, 1, 1, (3,)).expect("the kernel is launched");
            stream.wait().expect("both PEs reach the barrier");
        });
    });
}

#[test]
fn kernel_wait_error_names_the_killed_pe() {
    let _ = fakes().run_with_victims(3, &[2], |child| one_is_killed(&child));
}

fn one_is_killed(child: &peerweave_fakes::Child) {
    let gpu = common::process(child, options());
    let (signal, own) =
        (gpu.alloc::<u64>(1).expect("the memory is allocated"), gpu.alloc::<u64>(4).expect("the memory is allocated"));
    gpu.barrier("ready").expect("all PEs arrive");
    if gpu.pe() == Pe::new(2) {
        std::thread::sleep(Duration::from_millis(200));
        std::process::abort();
    }
    let stream = gpu.stream().expect("the stream is created");
    let start = Instant::now();
    stream.launch(&wait_for_ever::KERNEL, 1, 1, (signal.slice(), 2)).expect("the kernel is launched");
    let error = stream.wait().expect_err("the wait fails, because PE 2 is dead");
    assert!(matches!(error, CudaError::PeLost { .. }) && error.pe() == Some(Pe::new(2)), "{error}");
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "the call took {:?}, expected an error long before the deadline",
        start.elapsed()
    );
    // Calls that need no other PE still work.
    own.write(&stream, 0, &[1, 2, 3, 4]).expect("the GPU is usable");
    let error = gpu.recover().expect_err("the recovery fails, because PE 2 is dead");
    assert_eq!(error.pe(), Some(Pe::new(2)), "{error}");
}

#[test]
fn launch_with_zero_blocks_or_freed_memory_is_refused() {
    fakes().run(|| {
        pes(1, options(), |gpu| {
            let (memory, other) =
                (gpu.alloc::<u64>(16).expect("the memory is allocated"), gpu.alloc::<u64>(16).expect("the memory is allocated"));
            let stream = gpu.stream().expect("the stream is created");
            let error = stream
                .launch(&count_up::KERNEL, 0, 1, (memory.slice(), 0))
                .expect_err("the launch fails, because it has no blocks");
            assert!(matches!(error, CudaError::Driver(DriverError::Launch(LaunchError::Shape { .. }))), "{error}");
            let freed = memory.slice();
            gpu.free(memory).expect("the memory is freed");
            let error =
                stream.launch(&count_up::KERNEL, 1, 1, (freed, 0)).expect_err("the launch fails, because the memory was freed");
            assert!(matches!(error, CudaError::Misuse { .. }), "{error}");
            stream.launch(&count_up::KERNEL, 1, 1, (other.slice(), 3)).expect("the kernel is launched");
            assert_eq!(other.read(&stream).expect("the work completes"), (3..19).collect::<Vec<u64>>());
        });
    });
}

#[test]
fn graph_launches_succeed_after_a_memory_handle_is_dropped() {
    fakes().run(|| {
        pes(2, options(), |gpu| {
            let (memory, copy) =
                (gpu.alloc::<u64>(8).expect("the memory is allocated"), gpu.alloc::<u64>(8).expect("the memory is allocated"));
            let stream = gpu.stream().expect("the stream is created");
            stream.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("the capture begins");
            stream.launch(&barriers::KERNEL, 1, 2, (2,)).expect("the call is captured");
            stream.launch(&count_up::KERNEL, 1, 4, (memory.slice(), 1)).expect("the call is captured");
            stream.launch(&count_up::KERNEL, 1, 4, (copy.slice(), 2)).expect("the call is captured");
            let graph = stream.end_capture(Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
            let graph = graph.expect("the capture ends").expect("the capture returns a graph");
            drop(memory);
            for _ in 0..4 {
                graph.launch().expect("the graph is launched");
            }
            assert_eq!(copy.read(&stream).expect("the work completes"), (2..10).collect::<Vec<u64>>());
            stream.launch(&barriers::KERNEL, 1, 2, (1,)).expect("the kernel is launched");
            stream.wait().expect("the epochs continue after the graph");
        });
    });
}
