//! Tests of the symmetric heap after a failure, over the fake driver: the PEs that are notified,
//! the delay, and later calls.
#![cfg(target_os = "linux")]

mod common;

use std::time::{Duration, Instant};

use common::{Calls, LONG, Me, cuda, fail, hold, process, process_within, settle, soon, threads, threads_within};
use peerweave_driver::DeviceMemory;
use peerweave_fakes::Fakes;
use peerweave_types::Pe;
use peerweave_vmm::{
    Exportable, Granularity, HeapOptions, HeapTransport, Misuse, PeerCause, PhysicalMemory, SymmetricHeap, VmmError,
};

const MIB: usize = 1 << 20;

fn heap(me: &Me) -> SymmetricHeap {
    SymmetricHeap::new(&me.rendezvous, &me.context, HeapOptions::new(4 * MIB).max_bytes(64 * MIB)).expect("a heap")
}

#[test]
fn failed_growth_frees_its_addresses_for_the_next_growth() {
    Fakes::new().cuda().run(|| {
        threads(2, |me| {
            let heap = heap(&me);
            let mut memory = heap.alloc::<u64>(64).expect("room");
            // Endless work on memory of the heap does not delay the release of a chunk that no PE
            // has used.
            hold(&me.stream, true);
            peerweave_vmm::zero(&me.stream, &mut memory).expect("enqueued");
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
            heap.grow(MIB).expect("the heap is as it was");
            assert_eq!(heap.bytes(), 6 * MIB as u64);
            hold(&me.stream, false);
            heap.free(memory).expect("all free it");
        });
        settle();
        Calls::now().assert_balanced("at the end");
    });
}

#[test]
fn failed_ipc_growth_frees_unopened_memory_at_once() {
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_NO_VMM", "1").run_many(2, |child| {
        let me = process(&child);
        let heap = heap(&me);
        assert_eq!(heap.transport(), HeapTransport::Ipc);
        let mut memory = heap.alloc::<u64>(64).expect("room");
        hold(&me.stream, true);
        peerweave_vmm::zero(&me.stream, &mut memory).expect("enqueued");
        let free = common::free_bytes(&me.context);
        if me.pe == 1 {
            fail("cuMemAlloc_v2:1=201");
        }
        heap.grow(MIB).expect_err("PE 1 has no memory");
        fail("");
        settle();
        assert_eq!(common::free_bytes(&me.context), free, "it does not wait for the heap's streams");
        hold(&me.stream, false);
        heap.free(memory).expect("all free it");
        heap.finalize().expect("all end it");
        me.leave();
    });
}

#[test]
fn failed_ipc_growth_frees_memory_that_others_opened() {
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_NO_VMM", "1").run_many(3, |child| {
        let me = process(&child);
        let free = common::free_bytes(&me.context);
        for nth in [1, 2] {
            if me.pe == 1 {
                fail(&format!("cuIpcOpenMemHandle_v2:{nth}=201"));
            }
            SymmetricHeap::new(&me.rendezvous, &me.context, HeapOptions::new(4 * MIB)).map(drop).expect_err("PE 1 cannot open");
            fail("");
            settle();
            assert_eq!(common::free_bytes(&me.context), free, "opening {nth}: nobody has it open any more");
        }
        let heap = heap(&me);
        let with_heap = common::free_bytes(&me.context);
        if me.pe == 2 {
            fail("cuIpcOpenMemHandle_v2:2=201");
        }
        heap.grow(MIB).expect_err("PE 2 cannot open");
        fail("");
        settle();
        assert_eq!(common::free_bytes(&me.context), with_heap);
        heap.grow(MIB).expect("without faults");
        heap.check_peers().expect("all is mapped");
        assert!(heap.finalize().expect("all end it").is_clean());
        settle();
        assert_eq!(common::free_bytes(&me.context), free);
        Calls::now().assert_balanced("at the end");
        me.leave();
    });
}

#[test]
fn pe_out_of_descriptors_is_reported_and_the_heap_survives() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    Fakes::new().cuda().run_many(3, |child| {
        let me = process(&child);
        let heap = heap(&me);
        // PE 0 leads the exchange, PE 1 follows. Room for five descriptors is enough to export and
        // to connect, but not to receive those of the others. Room for two is enough to create and
        // export. Room for one is not.
        for (victim, room) in [(0, 5), (1, 5), (1, 2), (0, 2), (1, 1)] {
            // Descriptors that are released later would make room.
            settle();
            me.barrier("ready");
            let before = getrlimit(Resource::Nofile);
            let mut held = Vec::new();
            if me.pe == victim {
                setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum: before.maximum })
                    .expect("less is always allowed");
                while let Ok(file) = std::fs::File::open("/dev/null") {
                    held.push(file);
                }
                held.truncate(held.len() - room);
            }
            let start = Instant::now();
            let error = heap.grow(MIB).expect_err("one PE takes no descriptors");
            assert!(start.elapsed() < LONG / 2, "reported only after {:?}: {error}", start.elapsed());
            let says_so = |text: &str| ["descriptors", "open files", "OPERATING_SYSTEM"].iter().any(|word| text.contains(word));
            if me.pe == victim {
                assert!(says_so(&error.to_string()), "{room}: {error}");
            } else {
                let VmmError::Peer { pe, cause: PeerCause::Failed(text), .. } = &error else { panic!("{room}: {error}") };
                assert!(pe.get() == victim && says_so(text), "{room}: {error}");
            }
            drop(held);
            setrlimit(Resource::Nofile, before).expect("what it was");
        }
        heap.grow(MIB).expect("there is room now");
        heap.finalize().expect("all end it");
        me.leave();
    });
}

#[test]
fn failed_peer_check_frees_its_pages() {
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_BROKEN_PEER", "0-1").run_many(2, |child| {
        let me = process(&child);
        let heap = heap(&me);
        for round in 0..60 {
            let error = heap.check_peers().expect_err("what PE 0 writes to PE 1 is lost");
            let exhausted = matches!(error, VmmError::Misuse(Misuse::Exhausted { .. }));
            assert!(!exhausted, "round {round}: {error}");
        }
        assert!(heap.finalize().expect("all end it").is_clean());
        me.leave();
    });
}

#[test]
fn failed_check_is_reported_to_all_and_frees_its_pages() {
    Fakes::new().cuda().run_many(2, |child| {
        let me = process(&child);
        let heap = heap(&me);
        for nth in 1..=4 {
            if me.pe == 1 {
                fail(&format!("cuMemcpyAsync:{nth}=201"));
            }
            let error = heap.check_peers().expect_err("by order");
            fail("");
            match me.pe {
                1 => assert_eq!(cuda(&error), Some(("cuMemcpyAsync", 201)), "{error}"),
                _ => assert!(matches!(&error, VmmError::Peer { pe, .. } if pe.get() == 1), "{error}"),
            }
        }
        heap.check_peers().expect("without faults");
        assert!(heap.finalize().expect("all end it").is_clean());
        me.leave();
    });
}

#[test]
fn finalize_of_an_ipc_heap_waits_only_for_its_own_device() {
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_NO_VMM", "1").run_many(2, |child| {
        let me = process(&child);
        let heap = heap(&me);
        // Memory of other code, on a stream that never completes.
        let elsewhere = common::context(7).new_stream().expect("a stream");
        hold(&elsewhere, true);
        drop(DeviceMemory::<u8>::zeroed(&elsewhere, 1 << 10).expect("room"));
        let start = Instant::now();
        heap.finalize().expect("the heap has nothing to do with it");
        assert!(start.elapsed() < LONG / 4, "{:?}", start.elapsed());
        Calls::now().assert_balanced("all is closed");
        hold(&elsewhere, false);
        settle();
        me.leave();
    });
}

#[test]
fn memory_that_a_pe_could_not_close_is_not_freed() {
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_NO_VMM", "1").run_many(2, |child| {
        let me = process(&child);
        let heap = heap(&me);
        let free = common::free_bytes(&me.context);
        if me.pe == 1 {
            fail("cuIpcCloseMemHandle:1=201");
        }
        let error = heap.finalize().expect_err("PE 1 could not close");
        match me.pe {
            1 => assert_eq!(cuda(&error), Some(("cuIpcCloseMemHandle", 201)), "{error}"),
            _ => assert!(matches!(&error, VmmError::Peer { pe, .. } if pe.get() == 1), "{error}"),
        }
        fail("");
        settle();
        assert_eq!(common::free_bytes(&me.context), free, "it is leaked");
        me.leave();
    });
}

#[test]
fn finalize_of_an_ipc_heap_keeps_memory_that_a_pe_holds() {
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_NO_VMM", "1").run_many(2, |child| {
        let me = process(&child);
        let heap = heap(&me);
        let mut memory = heap.alloc::<u64>(4).expect("room");
        peerweave_vmm::write(&me.stream, &mut memory, &[u64::from(me.pe) + 5; 4], soon()).expect("written");
        let held = (me.pe == 1).then(|| memory.peer(Pe::new(0)).expect("of this machine"));
        drop(memory);
        me.barrier("written");
        heap.finalize().expect("all end it");
        settle();
        me.barrier("settled");
        if let Some(held) = held {
            assert_eq!(peerweave_vmm::read(&me.stream, &held, soon()).expect("it is still there"), [5; 4]);
        }
        me.barrier("seen");
        me.leave();
    });
}

#[test]
fn growth_with_an_unknown_outcome_keeps_its_memory() {
    let deadline = Duration::from_millis(1500);
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_NO_VMM", "1").run_many(2, |child| {
        let me = process_within(&child, deadline);
        let heap = heap(&me);
        let free = common::free_bytes(&me.context);
        if me.pe == 0 {
            let error = heap.grow(MIB).expect_err("PE 1 does not come");
            assert!(matches!(&error, VmmError::Timeout { .. }), "{error}");
            settle();
            assert!(common::free_bytes(&me.context) < free, "PE 1 may have been notified and open it later");
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
            let mut memory = heap.alloc::<u64>(64).expect("room");
            hold(&me.stream, true);
            peerweave_vmm::zero(&me.stream, &mut memory).expect("enqueued");
            std::thread::scope(|scope| {
                let ending = scope.spawn(|| heap.finalize());
                std::thread::sleep(Duration::from_millis(200));
                assert!(!ending.is_finished(), "the work is still to come");
                hold(&me.stream, false);
                ending.join().expect("no panic").expect("all are through");
            });
        });
    });
}

#[test]
fn pe_that_sends_an_invalid_blob_is_named_to_all() {
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
                    SymmetricHeap::new(&me.rendezvous, &me.context, options).map(drop).expect_err("PE 1 is another program");
                assert!(matches!(&error, VmmError::Peer { pe, .. } if pe.get() == 1), "{error}");
                return;
            }
            // Like a version of this crate that sends a longer statement.
            let message_of = me.rendezvous.exchange("peerweave-vmm/new", &statement(&call, &[7; 80])).expect("a round");
            let id = u64::from_le_bytes(message_of[0][5 + call.len()..][..8].try_into().expect("8 bytes"));
            let start = Instant::now();
            let chunk = me.rendezvous.exchange(&format!("peerweave-vmm/{id:016x}/0/chunk"), &statement(&call, &[]));
            let chunk = chunk.expect("PE 0 tells");
            assert_eq!(chunk[0][0], 3, "that it failed because of another PE");
            assert!(start.elapsed() < LONG / 4, "{:?}", start.elapsed());
        });
    });
}

#[test]
fn settle_waits_until_a_dropped_mapping_is_unmapped() {
    Fakes::new().cuda().run(|| {
        let context = common::context(0);
        let bytes = Granularity::of_device(0, Exportable::NOWHERE).expect("VMM").recommended;
        let memory = PhysicalMemory::create(&context, bytes, Exportable::NOWHERE).expect("room");
        let addresses = peerweave_vmm::Reservation::new(&context, bytes, bytes).expect("addresses");
        for _ in 0..100 {
            drop(addresses.map(0, &memory, bytes).expect("free"));
            assert!(peerweave_driver::settle(Instant::now() + Duration::from_secs(10)));
        }
    });
}

#[test]
fn broken_heap_creates_no_multicast_objects() {
    Fakes::new().cuda().run(|| {
        let deadline = Duration::from_secs(3);
        let is_over = std::sync::Barrier::new(2);
        threads_within(2, deadline, |me| {
            let heap = heap(&me);
            if me.pe == 1 {
                is_over.wait();
                return;
            }
            heap.alloc::<u8>(1).expect_err("PE 1 sleeps");
            let start = Instant::now();
            let error = heap.multicast().expect_err("the PEs may not agree any more");
            assert!(matches!(error, VmmError::Misuse(Misuse::Broken { .. })), "{error}");
            assert!(start.elapsed() < deadline, "nobody is waited for");
            is_over.wait();
        });
    });
}

#[test]
fn allocation_waits_for_multicast_creation_of_its_pe() {
    Fakes::new().cuda().run(|| {
        threads(2, |me| {
            let heap = heap(&me);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let has_begun = || Ok::<_, ()>(Calls::now().names().contains(&"cuMulticastCreate"));
                    assert_eq!(peerweave_driver::wait_until(common::soon(), has_begun), Ok(true));
                    for _ in 0..10 {
                        let memory = heap.alloc::<u64>(64).expect("all allocate");
                        heap.free(memory).expect("all free it");
                    }
                });
                heap.multicast().expect("all make them");
            });
        });
    });
}
