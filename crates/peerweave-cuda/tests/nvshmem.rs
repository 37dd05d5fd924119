//! Tests of a GPU with NVSHMEM's heap, over the fake driver and the fake NVSHMEM: memory, direct
//! access, teams, ends.
#![cfg(target_os = "linux")]

mod common;

use std::time::Duration;

use peerweave_cuda::{CudaError, GpuOptions, Transport};
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
fn kernels_access_peers_in_nvshmems_heap() {
    fakes().run_many(3, |child| {
        let gpu = gpu(&child);
        assert!(!gpu.uses_network(), "all memory is mapped");
        let (word, signal) = (gpu.alloc::<u64>(1).expect("room"), gpu.alloc::<u64>(1).expect("room"));
        let stream = gpu.stream().expect("a stream");
        for round in 1..=5 {
            stream.launch(&ring::KERNEL, 1, 1, (word.slice(), signal.slice(), round)).expect("it is launched");
        }
        let before = u64::from((gpu.pe().get() + 2) % 3);
        assert_eq!(word.read(&stream).expect("the kernels end"), [10 * before + 7]);
        stream.launch(&barriers::KERNEL, 1, 64, (5,)).expect("it is launched");
        stream.wait().expect("all meet");
        gpu.barrier("read").expect("all are here");
        gpu.free(word).expect("freed");
        gpu.free(signal).expect("freed");
    });
}

#[test]
fn freed_memory_is_reused_and_zeroed() {
    fakes().run_many(2, |child| {
        let gpu = gpu(&child);
        let stream = gpu.stream().expect("a stream");
        let words = 3 << 15;
        for round in 0..4 {
            // Each allocation takes three quarters of the heap, so there is no room for two.
            let memory = gpu.alloc::<u64>(words).expect("the one before was freed");
            assert_eq!(memory.read(&stream).expect("it is read"), vec![0; words]);
            stream.launch(&count_up::KERNEL, 1, 64, (memory.slice(), round)).expect("it is launched");
            memory.write(&stream, 5, &[77, 78]).expect("it is in the range");
            let found = memory.read(&stream).expect("it ends");
            assert_eq!((found[4], found[5], found[6], found[7]), (round + 4, 77, 78, round + 7));
            let error = gpu.alloc::<u64>(words).expect_err("there is no room for two");
            assert!(
                error.to_string().starts_with("Gpu::alloc: the length is 786432 bytes, expected at most ")
                    && error.to_string().ends_with(" bytes, the free part of the heap"),
                "{error}"
            );
            gpu.free(memory).expect("freed");
        }
    });
}

#[test]
fn allocations_of_different_lengths_are_refused_on_all_pes() {
    fakes().run_many(2, |child| {
        let gpu = gpu(&child);
        let first = gpu.alloc::<u32>(100).expect("room");
        let second = gpu.alloc::<u32>(100).expect("room");
        // The same lengths, freed in another order.
        let (one, other) = if child.rank == 0 { (first, second) } else { (second, first) };
        let error = gpu.free(one).expect_err("PEs free different memory");
        assert!(matches!(&error, CudaError::Misuse { call: "Gpu::free", .. }), "{error}");
        drop(other);
    });
}

#[test]
fn teams_in_nvshmems_heap_can_be_split_and_destroyed() {
    fakes().run_many(3, |child| {
        let gpu = gpu(&child);
        let me = gpu.pe().get();
        let (word, stream) = (gpu.alloc::<u64>(1).expect("room"), gpu.stream().expect("a stream"));
        let (to, from) = (gpu.alloc::<u32>(33).expect("room"), gpu.alloc::<u32>(33).expect("room"));
        from.write(&stream, 0, &[me + 1; 33]).expect("written");
        gpu.barrier("written").expect("all are here");
        // There are more rounds than team numbers; each round has other members.
        let mut total = 0;
        for round in 0..4 {
            let color = u64::from((me + round).is_multiple_of(3));
            let team = gpu.split(Some(color), -i64::from(me)).expect("all split").expect("a color was given");
            let sum: u32 = team.members().iter().map(|pe| pe.get() + 1).sum();
            stream.launch(&meet_in_team::KERNEL, 1, 32, (team.kernel_team(), word.slice(), 3)).expect("it is launched");
            let args = (team.kernel_team(), to.slice(), from.slice());
            stream.launch(&sum_in_team::KERNEL, 1, 32, args).expect("it is launched");
            total += 3 * u64::from(sum);
            assert_eq!(word.read(&stream).expect("it ends"), [total]);
            assert_eq!(to.read(&stream).expect("it ends"), [sum; 33]);
            team.destroy().expect("nothing uses it");
        }
        gpu.barrier("read").expect("all are here");
    });
}

#[test]
fn missing_pe_is_named_in_nvshmems_heap() {
    fakes().run_many(2, |child| {
        let short = options(Transport::Nvshmem(settings())).deadline(Duration::from_millis(300));
        let gpu = common::process(&child, short);
        let (signal, stream) = (gpu.alloc::<u64>(1).expect("room"), gpu.stream().expect("a stream"));
        if gpu.pe() == Pe::new(0) {
            stream.launch(&wait_for_ever::KERNEL, 1, 1, (signal.slice(), 1)).expect("it is launched");
            let error = stream.wait().expect_err("nobody signals");
            let CudaError::Kernel { failure, .. } = &error else { panic!("{error}") };
            assert_eq!((failure.kind, failure.pe), (Some(FailureKind::Deadline), Some(Pe::new(1))), "{error}");
        }
        gpu.recover().expect("both are here");
        stream.launch(&barriers::KERNEL, 1, 1, (3,)).expect("it is launched");
        stream.wait().expect("both meet");
    });
}

#[test]
fn forced_network_needs_a_kernel_built_for_the_network() {
    fakes().run_many(2, |child| {
        let gpu = common::process(&child, options(Transport::Network(settings())));
        assert!(gpu.uses_network(), "no other PE is reached directly");
        let (word, signal) = (gpu.alloc::<u64>(1).expect("room"), gpu.alloc::<u64>(1).expect("room"));
        let stream = gpu.stream().expect("a stream");
        // The fake has no device library to link with, and the launch reports that before anything
        // runs.
        let error = stream.launch(&ring::KERNEL, 1, 1, (word.slice(), signal.slice(), 1)).expect_err("no device library");
        assert!(matches!(error, CudaError::Link(_)), "{error}");
        gpu.barrier("refused").expect("all are here");
    });
}
