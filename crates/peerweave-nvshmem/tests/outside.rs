//! Tests of memory from outside the heap, which is kept alive while a transfer uses the memory.
//! Also tests that unsuitable memory and oversized requests are refused before NVSHMEM is called.
#![cfg(target_os = "linux")]

mod common;

use std::time::{Duration, Instant};

use common::{DEADLINE, Hold, by_network, count, fakes, mapped, misuse, says, settings, start, start_with};
use peerweave_driver::DeviceMemory;
use peerweave_driver::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use peerweave_nvshmem::{MisuseKind, NvshmemError};

const A_WHILE: Duration = Duration::from_secs(1);

#[test]
fn memory_stays_registered_while_a_put_on_it_is_pending() {
    fakes().run_many(2, |child| {
        let here = by_network(&child);
        let hold = Hold::new(&here);
        let target = here.context.alloc::<u32>(64).expect("the memory is allocated");
        let source = DeviceMemory::<u32>::from_slice(&here.stream, &[child.rank as u32; 64]).expect("the memory is allocated");
        let refused = misuse(here.context.put(&target, &source, here.next(), &here.stream));
        assert!(matches!(refused, MisuseKind::Unregistered { .. }), "{refused:?}");
        let registration = here.context.register_local(&source).expect("the memory is registered");
        hold.hold(&here.stream);
        here.context.put(&target, &source, here.next(), &here.stream).expect("the memory is registered");
        drop(registration);
        here.context.quiet_blocking().expect("the quiet completes");
        assert_eq!(count("registrations"), 1, "the registration ended before its stream completed");
        hold.release();
        here.context.world().barrier(&here.stream).expect("the work is enqueued");
        assert_eq!(target.to_vec(&here.stream).expect("the copy completes"), [here.previous(); 64]);
        here.context.quiet_blocking().expect("the quiet completes");
        assert_eq!(count("registrations"), 0);
        here.context.free(target).expect("all PEs free the memory");
        hold.free();
        here.end();
    });
}

#[test]
fn unsuitable_memory_is_refused_before_nvshmem_maps_it() {
    fakes().run_many(2, |child| {
        let here = start(&child);
        let all = mapped(&here, 2);
        let half = all.len() / 2;
        let deadline = || Instant::now() + DEADLINE;
        let low = all.slice(0..half).expect("the range is in bounds");
        let mut first = all.slice(0..half).expect("the range is in bounds");
        peerweave_vmm::write(&here.stream, &mut first, &vec![7; half], deadline()).expect("the copy completes");
        drop(first);
        // NVSHMEM would map the start of the physical memory instead of the given part.
        for part in [all.slice(half..2 * half), all.slice(0..half)] {
            let refused = misuse(here.context.register_symmetric(&part.expect("the range is in bounds")));
            assert!(matches!(refused, MisuseKind::Context { why } if why.contains("a part of a mapping")), "{refused:?}");
        }
        // NVSHMEM would detect this memory too late, and lose its heap.
        let plain = DeviceMemory::<u32>::from_slice(&here.stream, &[1; 64]).expect("the memory is allocated");
        let refused = misuse(here.context.register_symmetric(&plain));
        assert!(matches!(refused, MisuseKind::Context { why } if why.contains("virtual memory")), "{refused:?}");
        assert_eq!(peerweave_vmm::read(&here.stream, &low, deadline()).expect("the copy completes"), vec![7; half]);
        let whole = here.context.register_symmetric(&all).expect("the memory is registered");
        assert_eq!(
            whole.slice(0..half).expect("the range is in bounds").to_vec(&here.stream).expect("the copy completes"),
            vec![7; half]
        );
        here.context.free(whole).expect("all PEs free the memory");
        here.end();
    });
}

#[test]
fn registration_of_memory_of_unsuitable_length_is_refused() {
    fakes().run_many(1, |child| {
        let here = start_with(&child, settings(DEADLINE).heap_step_bytes(512 << 20));
        let refused = misuse(here.context.register_symmetric(&mapped(&here, 1)));
        assert!(matches!(refused, MisuseKind::Value { what: "the length of the memory in bytes", .. }), "{refused:?}");
        here.end();
    });
    fakes().run_many(1, |child| {
        let here = start_with(&child, settings(DEADLINE).max_memory_bytes(4 << 20));
        says(here.context.register_symmetric(&mapped(&here, 2)), &["NVSHMEM_MAX_MEMORY_PER_GPU"]);
        here.end();
    });
}

#[test]
fn oversized_allocation_is_refused_and_the_heap_stays_usable() {
    fakes().run_many(2, |child| {
        let here = start_with(&child, settings(DEADLINE).max_memory_bytes(32 << 30));
        let first = here.context.alloc_zeroed::<u32>(64).expect("the memory is allocated");
        let error = says(here.context.alloc::<u8>(33 << 30), &["NVSHMEM_MAX_MEMORY_PER_GPU"]);
        assert!(matches!(error, NvshmemError::Nvshmem(_)), "{error}");
        let (free, _) = here.context.device().mem_get_info().expect("the driver reports the free memory");
        assert!(free < 32 << 30, "the fake device must have less than 32 GiB free");
        says(here.context.alloc::<u8>(free + (1 << 20)), &["the heap would have to grow"]);
        assert_eq!(first.to_vec(&here.stream).expect("the copy completes"), [0; 64]);
        here.context.free(first).expect("all PEs free the memory");
        here.end();
    });
}

#[test]
fn put_succeeds_if_registration_is_dropped_during_the_put() {
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_SLOW", "nvshmem_fence=4000").run_many(2, |child| {
        let here = by_network(&child);
        let hold = Hold::new(&here);
        let target = here.context.alloc::<u32>(64).expect("the memory is allocated");
        let source = DeviceMemory::<u32>::from_slice(&here.stream, &[child.rank as u32; 64]).expect("the memory is allocated");
        let registration = here.context.register_local(&source).expect("the memory is registered");
        here.context.put(&target, &source, here.next(), &here.stream).expect("the memory is registered");
        here.stream.synchronize().expect("the stream completes");
        let other = here.new_stream();
        std::thread::scope(|scope| {
            scope.spawn(|| here.context.fence_blocking().expect("the call returns"));
            std::thread::sleep(A_WHILE);
            let put = scope.spawn(|| here.context.put(&target, &source, here.next(), &other));
            std::thread::sleep(A_WHILE);
            drop(registration);
            put.join().expect("the thread does not panic").expect("the memory was still registered");
        });
        other.synchronize().expect("the stream completes");
        here.context.world().barrier_blocking().expect("all PEs make the call");
        here.context.quiet_blocking().expect("the quiet completes");
        assert_eq!(count("registrations"), 0);
        here.context.free(target).expect("all PEs free the memory");
        hold.free();
        here.end();
    });
}

#[test]
fn memory_stays_registered_while_a_captured_graph_uses_it() {
    fakes().run_many(2, |child| {
        let here = by_network(&child);
        let target = here.context.alloc::<u32>(64).expect("the memory is allocated");
        let source =
            DeviceMemory::<u32>::from_slice(&here.stream, &[child.rank as u32 + 1; 64]).expect("the memory is allocated");
        here.stream.synchronize().expect("the stream completes");
        let registration = here.context.register_local(&source).expect("the memory is registered");
        // The first put queries whose memory is mapped in this process.
        here.context.put(&target, &source, here.next(), &here.stream).expect("the memory is registered");
        here.stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("the capture begins");
        here.context.put(&target, &source, here.next(), &here.stream).expect("the call is captured");
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = here.stream.end_capture(flags).expect("the capture ends").expect("the graph has nodes");
        drop(registration);
        here.context.quiet_blocking().expect("the quiet completes");
        assert_eq!(count("registrations"), 1, "the registration ended while a graph uses it");
        graph.launch().expect("the graph is launched");
        here.stream.synchronize().expect("the stream completes");
        drop(graph);
        // Values that a graph owns are dropped some time after the graph.
        let gone = Instant::now() + DEADLINE;
        while count("registrations") > 0 {
            assert!(Instant::now() < gone, "the registration did not end after its graph");
            here.context.quiet_blocking().expect("the quiet completes");
        }
        here.context.free(target).expect("all PEs free the memory");
        here.end();
    });
}
