//! Tests of memory, direct access, teams and failures on a GPU with NVSHMEM's heap, over the fake
//! driver and the fake NVSHMEM.
#![cfg(target_os = "linux")]

mod common;

use std::time::{Duration, Instant};

use peerweave_cuda::{CudaError, GpuOptions, Transport};
use peerweave_driver::cudarc::driver::sys::{CUgraphInstantiate_flags as Flags, CUstreamCaptureMode as Mode};
use peerweave_fakes::{Child, Fakes};
use peerweave_nvshmem::Settings;
use peerweave_test_kernels::{barriers, count_up, meet_in_team, ring, sum_in_team, wait_for_ever};
use peerweave_types::{FailureKind, Pe};

fn fakes() -> Fakes {
    common::fakes().nvshmem().env("PEERWEAVE_MULTICAST", "off").env("PEERWEAVE_FAKE_NVSHMEM_WAIT_MS", "15000")
}

fn settings() -> Settings {
    Settings::default().deadline(common::LONG).remote_transport("none").symmetric_size_bytes(64 << 20).heap_step_bytes(2 << 20)
}

fn options(transport: Transport) -> GpuOptions {
    GpuOptions::new(1 << 20).transport(transport).deadline(common::LONG).slots(4).teams(3)
}

fn gpu(child: &Child) -> common::ProcessGpu {
    common::process(child, options(Transport::Nvshmem(settings())))
}

#[test]
fn kernels_access_memory_of_peers_in_the_nvshmem_heap() {
    fakes().run_many(3, |child| {
        let gpu = gpu(&child);
        assert!(!gpu.uses_network(), "all memory is mapped");
        let (word, signal) =
            (gpu.alloc::<u64>(1).expect("the memory is allocated"), gpu.alloc::<u64>(1).expect("the memory is allocated"));
        let stream = gpu.stream().expect("the stream is created");
        for round in 1..=5 {
            stream.launch(&ring::KERNEL, 1, 1, (word.slice(), signal.slice(), round)).expect("the kernel is launched");
        }
        let before = u64::from((gpu.pe().get() + 2) % 3);
        assert_eq!(word.read(&stream).expect("the kernels complete"), [10 * before + 7]);
        stream.launch(&barriers::KERNEL, 1, 64, (5,)).expect("the kernel is launched");
        stream.wait().expect("all PEs reach the barrier");
        gpu.barrier("read").expect("all PEs arrive");
        gpu.free(word).expect("the memory is freed");
        gpu.free(signal).expect("the memory is freed");
    });
}

#[test]
fn freed_memory_of_nvshmems_heap_is_reused_and_zeroed() {
    fakes().run_many(2, |child| {
        let gpu = gpu(&child);
        let stream = gpu.stream().expect("the stream is created");
        let words = 3 << 15;
        for round in 0..4 {
            // Each allocation takes three quarters of the heap, so the heap has no room for two
            // allocations.
            let memory = gpu.alloc::<u64>(words).expect("the previous allocation was freed");
            assert_eq!(memory.read(&stream).expect("the memory is read"), vec![0; words]);
            stream.launch(&count_up::KERNEL, 1, 64, (memory.slice(), round)).expect("the kernel is launched");
            memory.write(&stream, 5, &[77, 78]).expect("the range is inside the memory");
            let found = memory.read(&stream).expect("the work completes");
            assert_eq!((found[4], found[5], found[6], found[7]), (round + 4, 77, 78, round + 7));
            let error = gpu.alloc::<u64>(words).expect_err("the call fails, because the heap has no room for two allocations");
            assert!(
                error.to_string().starts_with("Gpu::alloc: the length is 786432 bytes, expected at most ")
                    && error.to_string().ends_with(" bytes, the largest free range of the heap"),
                "{error}"
            );
            gpu.free(memory).expect("the memory is freed");
        }
    });
}

#[test]
fn freeing_nvshmem_memory_waits_for_kernels_that_use_the_memory() {
    fakes().run_many(1, |child| {
        let gpu = gpu(&child);
        let (signal, memory) =
            (gpu.alloc::<u64>(1).expect("the memory is allocated"), gpu.alloc::<u64>(64).expect("the memory is allocated"));
        let (stream, other) = (gpu.stream().expect("the stream is created"), gpu.stream().expect("the stream is created"));
        stream.launch(&wait_for_ever::KERNEL, 1, 1, (signal.slice(), 0)).expect("the kernel is launched");
        stream.launch(&count_up::KERNEL, 1, 64, (memory.slice(), 0)).expect("the kernel is launched");
        let delay = Duration::from_millis(300);
        let start = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(delay);
                signal.write(&other, 0, &[u64::MAX]).expect("the elements are written");
            });
            gpu.free(memory).expect("the memory is freed after the kernels");
            assert!(start.elapsed() >= delay, "freed after {:?}, while a kernel used the memory", start.elapsed());
        });
        stream.wait().expect("the kernels complete");
        gpu.free(signal).expect("the memory is freed");
    });
}

#[test]
fn nvshmem_heap_memory_used_by_a_graph_is_not_freed() {
    // The driver drops the handles of a graph some time after the graph has been destroyed. The end
    // of the GPU waits for that.
    fakes().env("PEERWEAVE_FAKE_CUDA_DESTROY_MS", "300").run_many(2, |child| {
        let gpu = gpu(&child);
        let (memory, stream) =
            (gpu.alloc::<u64>(64).expect("the memory is allocated"), gpu.stream().expect("the stream is created"));
        let offset = memory.slice().offset();
        let graph = (child.rank == 0).then(|| {
            stream.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("the capture begins");
            stream.launch(&count_up::KERNEL, 1, 64, (memory.slice(), 0)).expect("the call is captured");
            let graph = stream.end_capture(Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
            graph.expect("the capture ends").expect("the capture returns a graph")
        });
        let error = gpu.free(memory).expect_err("the call fails, because a graph of PE 0 uses the memory");
        match &error {
            CudaError::Misuse { call: "Gpu::free", .. } if child.rank == 0 => {}
            CudaError::PeFailed { pe, .. } if child.rank == 1 && *pe == Pe::new(0) => {}
            _ => panic!("PE {}: unexpected error: {error}", child.rank),
        }
        if let Some(graph) = graph {
            graph.launch().expect("the graph is launched");
            stream.wait().expect("the kernel completes");
        }
        assert_ne!(gpu.alloc::<u64>(64).expect("the memory is allocated").slice().offset(), offset, "the memory stays allocated");
    });
}

#[test]
fn freeing_a_different_allocation_on_each_pe_fails_on_all_pes() {
    fakes().run_many(2, |child| {
        let gpu = gpu(&child);
        let first = gpu.alloc::<u32>(100).expect("the memory is allocated");
        let second = gpu.alloc::<u32>(100).expect("the memory is allocated");
        // The allocations have the same length, and the PEs free them in different orders.
        let (one, other) = if child.rank == 0 { (first, second) } else { (second, first) };
        let error = gpu.free(one).expect_err("the call fails, because PEs free different memory");
        assert!(matches!(&error, CudaError::Misuse { call: "Gpu::free", .. }), "{error}");
        drop(other);
    });
}

#[test]
fn teams_can_be_split_and_destroyed_with_an_nvshmem_heap() {
    fakes().run_many(3, |child| {
        let gpu = gpu(&child);
        let me = gpu.pe().get();
        let (word, stream) =
            (gpu.alloc::<u64>(1).expect("the memory is allocated"), gpu.stream().expect("the stream is created"));
        let (to, from) =
            (gpu.alloc::<u32>(33).expect("the memory is allocated"), gpu.alloc::<u32>(33).expect("the memory is allocated"));
        from.write(&stream, 0, &[me + 1; 33]).expect("the elements are written");
        gpu.barrier("written").expect("all PEs arrive");
        // There are more rounds than team numbers, and each round has different members.
        let mut total = 0;
        for round in 0..4 {
            let color = u64::from((me + round).is_multiple_of(3));
            let team = gpu.split(Some(color), -i64::from(me)).expect("all PEs split").expect("a color was given");
            let sum: u32 = team.members().iter().map(|pe| pe.get() + 1).sum();
            stream.launch(&meet_in_team::KERNEL, 1, 32, (team.kernel_team(), word.slice(), 3)).expect("the kernel is launched");
            let args = (team.kernel_team(), to.slice(), from.slice());
            stream.launch(&sum_in_team::KERNEL, 1, 32, args).expect("the kernel is launched");
            total += 3 * u64::from(sum);
            assert_eq!(word.read(&stream).expect("the work completes"), [total]);
            assert_eq!(to.read(&stream).expect("the work completes"), [sum; 33]);
            team.destroy().expect("the team is not in use");
        }
        gpu.barrier("read").expect("all PEs arrive");
    });
}

#[test]
fn kernel_error_with_nvshmem_heap_names_the_missing_pe() {
    fakes().run_many(2, |child| {
        let short = options(Transport::Nvshmem(settings())).deadline(Duration::from_secs(3));
        let gpu = common::process(&child, short);
        let (signal, stream) =
            (gpu.alloc::<u64>(1).expect("the memory is allocated"), gpu.stream().expect("the stream is created"));
        if gpu.pe() == Pe::new(0) {
            stream.launch(&wait_for_ever::KERNEL, 1, 1, (signal.slice(), 1)).expect("the kernel is launched");
            let error = stream.wait().expect_err("the wait fails, because no PE signals");
            let CudaError::Kernel { failure, .. } = &error else { panic!("{error}, expected the failure of a kernel") };
            assert_eq!((failure.kind, failure.pe), (Some(FailureKind::Deadline), Some(Pe::new(1))), "{error}");
        }
        gpu.recover().expect("both PEs arrive");
        stream.launch(&barriers::KERNEL, 1, 1, (3,)).expect("the kernel is launched");
        stream.wait().expect("both PEs reach the barrier");
    });
}

#[test]
fn launch_with_network_transport_fails_without_device_library() {
    fakes().run_many(2, |child| {
        let gpu = common::process(&child, options(Transport::Network(settings())));
        assert!(gpu.uses_network(), "no other PE is reached directly");
        let (word, signal) =
            (gpu.alloc::<u64>(1).expect("the memory is allocated"), gpu.alloc::<u64>(1).expect("the memory is allocated"));
        let stream = gpu.stream().expect("the stream is created");
        // The fake NVSHMEM has no device library, so the launch fails before anything runs.
        let error = stream
            .launch(&ring::KERNEL, 1, 1, (word.slice(), signal.slice(), 1))
            .expect_err("the launch fails without a device library");
        assert!(matches!(error, CudaError::Link(_)), "{error}");
        gpu.barrier("refused").expect("all PEs arrive");
    });
}
