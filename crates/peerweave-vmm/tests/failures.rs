//! Tests of the symmetric heap after a failure, over the fake driver: which PEs are notified, how
//! soon, and whether later calls succeed.
#![cfg(target_os = "linux")]

mod common;

use std::time::{Duration, Instant};

use common::{Calls, LONG, Me, cuda, drain_retired, fail, hold, process, process_within, soon, threads, threads_within};
use peerweave_driver::DeviceMemory;
use peerweave_fakes::Fakes;
use peerweave_types::Pe;
use peerweave_vmm::{
    Exportable, Granularity, HeapOptions, HeapTransport, Misuse, PeerCause, PhysicalMemory, SymmetricHeap, VmmError,
};

const MIB: usize = 1 << 20;

fn heap(me: &Me) -> SymmetricHeap {
    SymmetricHeap::new(&me.rendezvous, &me.context, HeapOptions::new(4 * MIB).max_bytes(64 * MIB)).expect("the heap is created")
}

#[test]
fn addresses_are_reused_after_the_heap_fails_to_grow() {
    Fakes::new().cuda().run(|| {
        threads(2, |me| {
            let heap = heap(&me);
            let mut memory = heap.alloc::<u64>(64).expect("the heap has room");
            // Endless work on memory of the heap does not delay the release of a chunk that no PE
            // has used.
            hold(&me.stream, true);
            peerweave_vmm::zero(&me.stream, &mut memory).expect("the work is enqueued");
            for round in 0..10 {
                for function in ["cuMemMap", "cuMemSetAccess"] {
                    me.barrier("before");
                    if me.pe == 1 {
                        fail(&format!("{function}:{}=201", round % 4 + 1));
                    }
                    me.barrier("armed");
                    heap.grow(MIB).expect_err(function);
                    me.barrier("failed");
                    fail("");
                }
            }
            me.barrier("disarmed");
            heap.grow(MIB).expect("the heap is unchanged");
            assert_eq!(heap.bytes(), 6 * MIB as u64);
            hold(&me.stream, false);
            heap.free(memory).expect("all PEs free the memory");
        });
        drain_retired();
        Calls::now().assert_balanced("after the heap was dropped");
    });
}

#[test]
fn failed_ipc_growth_frees_new_memory_that_no_other_pe_opened() {
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_NO_VMM", "1").run_many(2, |child| {
        let me = process(&child);
        let heap = heap(&me);
        assert_eq!(heap.transport(), HeapTransport::Ipc);
        let mut memory = heap.alloc::<u64>(64).expect("the heap has room");
        hold(&me.stream, true);
        peerweave_vmm::zero(&me.stream, &mut memory).expect("the work is enqueued");
        let free = common::free_bytes(&me.context);
        if me.pe == 1 {
            fail("cuMemAlloc_v2:1=201");
        }
        heap.grow(MIB).expect_err("PE 1 is out of memory");
        fail("");
        drain_retired();
        assert_eq!(common::free_bytes(&me.context), free, "the memory must be freed without waiting for the heap's streams");
        hold(&me.stream, false);
        heap.free(memory).expect("all PEs free the memory");
        heap.finalize().expect("all PEs finalize the heap");
        me.leave();
    });
}

#[test]
fn failed_ipc_growth_frees_new_memory_after_other_pes_close_it() {
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_NO_VMM", "1").run_many(3, |child| {
        let me = process(&child);
        let free = common::free_bytes(&me.context);
        for nth in [1, 2] {
            if me.pe == 1 {
                fail(&format!("cuIpcOpenMemHandle_v2:{nth}=201"));
            }
            SymmetricHeap::new(&me.rendezvous, &me.context, HeapOptions::new(4 * MIB))
                .map(drop)
                .expect_err("PE 1 cannot open the memory");
            fail("");
            drain_retired();
            assert_eq!(
                common::free_bytes(&me.context),
                free,
                "open call {nth} failed: the memory that the other PEs closed was not freed"
            );
        }
        let heap = heap(&me);
        let with_heap = common::free_bytes(&me.context);
        if me.pe == 2 {
            fail("cuIpcOpenMemHandle_v2:2=201");
        }
        heap.grow(MIB).expect_err("PE 2 cannot open the memory");
        fail("");
        drain_retired();
        assert_eq!(common::free_bytes(&me.context), with_heap);
        heap.grow(MIB).expect("no fault is injected");
        heap.check_peers().expect("all memory is mapped");
        assert!(heap.finalize().expect("all PEs finalize the heap").is_clean());
        drain_retired();
        assert_eq!(common::free_bytes(&me.context), free);
        Calls::now().assert_balanced("after the heap was finalised");
        me.leave();
    });
}

#[test]
fn heap_is_usable_after_one_pe_ran_out_of_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    Fakes::new().cuda().run_many(3, |child| {
        let me = process(&child);
        let heap = heap(&me);
        // PE 0 leads the exchange, and PE 1 takes part. Five free descriptors suffice to export and
        // to connect, but not to receive the descriptors of the other PEs. Two free descriptors
        // suffice to create and export. One free descriptor does not suffice.
        for (victim, room) in [(0, 5), (1, 5), (1, 2), (0, 2), (1, 1)] {
            // Descriptors that are closed during the call would hide the shortage.
            drain_retired();
            me.barrier("ready");
            let before = getrlimit(Resource::Nofile);
            let mut held = Vec::new();
            if me.pe == victim {
                setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum: before.maximum })
                    .expect("lowering the limit is allowed");
                while let Ok(file) = std::fs::File::open("/dev/null") {
                    held.push(file);
                }
                held.truncate(held.len() - room);
            }
            let start = Instant::now();
            let error = heap.grow(MIB).expect_err("one PE is out of descriptors");
            assert!(start.elapsed() < LONG / 2, "the error came only after {:?}: {error}", start.elapsed());
            let says_so = |text: &str| ["descriptors", "open files", "OPERATING_SYSTEM"].iter().any(|word| text.contains(word));
            if me.pe == victim {
                assert!(says_so(&error.to_string()), "{room}: {error}");
            } else {
                let VmmError::Peer { pe, cause: PeerCause::Failed(text), .. } = &error else {
                    panic!("{room}: the error is {error}, expected Peer with the cause Failed")
                };
                assert!(pe.get() == victim && says_so(text), "{room}: {error}");
            }
            drop(held);
            setrlimit(Resource::Nofile, before).expect("the previous limit is restored");
        }
        heap.grow(MIB).expect("the shortage is over");
        heap.finalize().expect("all PEs finalize the heap");
        me.leave();
    });
}

#[test]
fn peer_access_check_leaks_no_heap_memory_if_data_is_lost() {
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_BROKEN_PEER", "0-1").run_many(2, |child| {
        let me = process(&child);
        let heap = heap(&me);
        for round in 0..60 {
            let error = heap.check_peers().expect_err("data written from PE 0 to PE 1 is lost");
            let exhausted = matches!(error, VmmError::Misuse(Misuse::Exhausted { .. }));
            assert!(!exhausted, "round {round}: {error}");
        }
        assert!(heap.finalize().expect("all PEs finalize the heap").is_clean());
        me.leave();
    });
}

#[test]
fn peer_access_check_that_fails_on_one_pe_fails_on_all_pes() {
    Fakes::new().cuda().run_many(2, |child| {
        let me = process(&child);
        let heap = heap(&me);
        for nth in 1..=4 {
            if me.pe == 1 {
                fail(&format!("cuMemcpyAsync:{nth}=201"));
            }
            let error = heap.check_peers().expect_err("a fault is injected");
            fail("");
            match me.pe {
                1 => assert_eq!(cuda(&error), Some(("cuMemcpyAsync", 201)), "{error}"),
                _ => assert!(matches!(&error, VmmError::Peer { pe, .. } if pe.get() == 1), "{error}"),
            }
        }
        heap.check_peers().expect("no fault is injected");
        assert!(heap.finalize().expect("all PEs finalize the heap").is_clean());
        me.leave();
    });
}

#[test]
fn ipc_heap_finalize_does_not_wait_for_unrelated_devices() {
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_NO_VMM", "1").run_many(2, |child| {
        let me = process(&child);
        let heap = heap(&me);
        // Memory of other code, freed on a stream of another device that never completes.
        let elsewhere = common::context(7).new_stream().expect("the stream is created");
        hold(&elsewhere, true);
        drop(DeviceMemory::<u8>::zeroed(&elsewhere, 1 << 10).expect("there is enough memory"));
        let start = Instant::now();
        heap.finalize().expect("the heap does not use this stream");
        assert!(start.elapsed() < LONG / 4, "{:?}", start.elapsed());
        Calls::now().assert_balanced("after finalize");
        hold(&elsewhere, false);
        drain_retired();
        me.leave();
    });
}

#[test]
fn ipc_memory_is_not_freed_if_a_peer_fails_to_close_it() {
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_NO_VMM", "1").run_many(2, |child| {
        let me = process(&child);
        let heap = heap(&me);
        let free = common::free_bytes(&me.context);
        if me.pe == 1 {
            fail("cuIpcCloseMemHandle:1=201");
        }
        let error = heap.finalize().expect_err("PE 1 could not close the memory");
        match me.pe {
            1 => assert_eq!(cuda(&error), Some(("cuIpcCloseMemHandle", 201)), "{error}"),
            _ => assert!(matches!(&error, VmmError::Peer { pe, .. } if pe.get() == 1), "{error}"),
        }
        fail("");
        drain_retired();
        assert_eq!(common::free_bytes(&me.context), free, "the memory must be leaked");
        me.leave();
    });
}

#[test]
fn heap_finalize_keeps_ipc_memory_that_another_pe_has_open() {
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_NO_VMM", "1").run_many(2, |child| {
        let me = process(&child);
        let heap = heap(&me);
        let mut memory = heap.alloc::<u64>(4).expect("the heap has room");
        peerweave_vmm::write(&me.stream, &mut memory, &[u64::from(me.pe) + 5; 4], soon()).expect("the write completes");
        let held = (me.pe == 1).then(|| memory.peer(Pe::new(0)).expect("PE 0 is on this machine"));
        drop(memory);
        me.barrier("written");
        heap.finalize().expect("all PEs finalize the heap");
        drain_retired();
        me.barrier("settled");
        if let Some(held) = held {
            assert_eq!(peerweave_vmm::read(&me.stream, &held, soon()).expect("the memory is still open"), [5; 4]);
        }
        me.barrier("seen");
        me.leave();
    });
}

#[test]
fn new_memory_stays_allocated_if_heap_growth_times_out() {
    let deadline = Duration::from_secs(5);
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_NO_VMM", "1").run_many(2, |child| {
        child.meet("started");
        let me = process_within(&child, deadline);
        let heap = heap(&me);
        let free = common::free_bytes(&me.context);
        if me.pe == 0 {
            let error = heap.grow(MIB).expect_err("PE 1 does not arrive");
            assert!(matches!(&error, VmmError::Timeout { .. }), "{error}");
            drain_retired();
            assert!(common::free_bytes(&me.context) < free, "the memory must stay allocated, because PE 1 may open it later");
            child.put_file("done", b"");
        } else {
            child.wait_for_file("done");
        }
    });
}

#[test]
fn finalize_waits_for_work_on_the_memory_of_the_heap() {
    Fakes::new().cuda().run(|| {
        threads(1, |me| {
            let heap = heap(&me);
            let mut memory = heap.alloc::<u64>(64).expect("the heap has room");
            hold(&me.stream, true);
            peerweave_vmm::zero(&me.stream, &mut memory).expect("the work is enqueued");
            std::thread::scope(|scope| {
                let ending = scope.spawn(|| heap.finalize());
                std::thread::sleep(Duration::from_millis(200));
                assert!(!ending.is_finished(), "finalize returned before the pending work completed");
                hold(&me.stream, false);
                ending.join().expect("the thread does not panic").expect("all PEs complete the call");
            });
        });
    });
}

#[test]
fn error_names_the_pe_that_sent_invalid_data() {
    Fakes::new().cuda().run(|| {
        threads(2, |me| {
            let options = HeapOptions::new(4 * MIB);
            let call = format!("SymmetricHeap::new({options:?})");
            let statement = |call: &str, blob: &[u8]| {
                let mut statement = vec![1];
                statement.extend((call.len() as u32).to_le_bytes());
                statement.extend(call.as_bytes());
                statement.extend(blob);
                statement
            };
            if me.pe == 0 {
                let error =
                    SymmetricHeap::new(&me.rendezvous, &me.context, options).map(drop).expect_err("PE 1 sends an invalid blob");
                assert!(matches!(&error, VmmError::Peer { pe, .. } if pe.get() == 1), "{error}");
                return;
            }
            // Acts like a version of this crate that sends a longer blob.
            let message_of =
                me.rendezvous.exchange("peerweave-vmm/new", &statement(&call, &[7; 80])).expect("the exchange succeeds");
            let id = u64::from_le_bytes(message_of[0][5 + call.len()..][..8].try_into().expect("the number has 8 bytes"));
            let start = Instant::now();
            let chunk = me.rendezvous.exchange(&format!("peerweave-vmm/{id:016x}/0/chunk"), &statement(&call, &[]));
            let chunk = chunk.expect("PE 0 reports its failure");
            assert_eq!(chunk[0][0], 3, "PE 0 must report that it failed because of another PE");
            assert!(start.elapsed() < LONG / 4, "{:?}", start.elapsed());
        });
    });
}

#[test]
fn reserved_addresses_can_be_mapped_again_after_an_unmap() {
    Fakes::new().cuda().run(|| {
        let context = common::context(0);
        let bytes = Granularity::of_device(0, Exportable::NOWHERE).expect("the device has virtual memory management").recommended;
        let memory = PhysicalMemory::create(&context, bytes, Exportable::NOWHERE).expect("there is enough memory");
        let addresses = peerweave_vmm::Reservation::new(&context, bytes, bytes).expect("the addresses are reserved");
        for _ in 0..100 {
            drop(addresses.map(0, &memory, bytes).expect("the addresses are free"));
            assert!(peerweave_driver::drain_retired(Instant::now() + LONG));
        }
    });
}

#[test]
fn unusable_heap_creates_no_multicast_objects() {
    Fakes::new().cuda().run(|| {
        let deadline = Duration::from_secs(5);
        let is_over = std::sync::Barrier::new(2);
        threads_within(2, deadline, |me| {
            let heap = heap(&me);
            if me.pe == 1 {
                is_over.wait();
                return;
            }
            heap.alloc::<u8>(1).expect_err("PE 1 does not arrive");
            let start = Instant::now();
            let error = heap.multicast().expect_err("the PEs may have different states");
            assert!(matches!(error, VmmError::Misuse(Misuse::Broken { .. })), "{error}");
            assert!(start.elapsed() < deadline, "the call must not wait for another PE");
            is_over.wait();
        });
    });
}

#[test]
fn allocation_during_multicast_creation_succeeds() {
    Fakes::new().cuda().run(|| {
        threads(2, |me| {
            let heap = heap(&me);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let has_begun = || Ok::<_, ()>(Calls::now().names().contains(&"cuMulticastCreate"));
                    assert_eq!(peerweave_driver::wait_until(common::soon(), has_begun), Ok(true));
                    for _ in 0..10 {
                        let memory = heap.alloc::<u64>(64).expect("all PEs allocate the memory");
                        heap.free(memory).expect("all PEs free the memory");
                    }
                });
                heap.multicast().expect("all PEs create the objects");
            });
        });
    });
}
