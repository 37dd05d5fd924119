//! Tests of the symmetric heap with PEs as threads and as processes, over the fake driver.
#![cfg(target_os = "linux")]

mod common;

use std::time::{Duration, Instant};

use common::{Calls, Me, cuda, drain_retired, fail, free_bytes, hold, process, soon, threads, threads_within};
use peerweave_driver::{DeviceBuffer, DeviceBufferMut};
use peerweave_fakes::Fakes;
use peerweave_types::{Pe, Rank};
use peerweave_vmm::{Growth, HeapOptions, HeapTransport, Misuse, PeerCause, Sharing, SymmetricHeap, SymmetricMemory, VmmError};

const MIB: usize = 1 << 20;

fn options() -> HeapOptions {
    HeapOptions::new(4 * MIB).max_bytes(64 * MIB)
}

fn heap(me: &Me, options: HeapOptions) -> SymmetricHeap {
    SymmetricHeap::new(&me.rendezvous, &me.context, options).expect("the heap is created")
}

fn words(from: u32, to: u32, len: usize) -> Vec<u64> {
    (0..len as u64).map(|word| u64::from(from) << 40 | u64::from(to) << 32 | word).collect()
}

/// Writes to the memory of every PE, and compares the data from every PE.
fn all_to_all(me: &Me, heap: &SymmetricHeap, len: usize) {
    let mailbox: SymmetricMemory<u64> = heap.alloc(len * me.n as usize).expect("the heap has room");
    let slot = |of: u32| of as usize * len..(of as usize + 1) * len;
    let zeros = peerweave_vmm::read(&me.stream, &mailbox, soon()).expect("the read completes");
    assert!(zeros.iter().all(|word| *word == 0), "new memory must be zero");
    me.barrier("zeros seen");
    for to in 0..me.n {
        let mut theirs = mailbox.peer(Pe::new(to)).and_then(|peer| peer.slice(slot(me.pe))).expect("the memory is mapped");
        peerweave_vmm::write(&me.stream, &mut theirs, &words(me.pe, to, len), soon()).expect("the put completes");
    }
    me.barrier("put");
    for (at, from) in (0..me.n).flat_map(|at| (0..me.n).map(move |from| (at, from))) {
        let theirs = mailbox.peer(Pe::new(at)).and_then(|peer| peer.slice(slot(from))).expect("the memory is mapped");
        assert_eq!(
            peerweave_vmm::read(&me.stream, &theirs, soon()).expect("the get completes"),
            words(from, at, len),
            "the data from PE {from} to PE {at} is wrong"
        );
    }
    me.barrier("got");
    heap.free(mailbox).expect("all PEs free the memory");
}

/// Calls every function of a heap once.
fn whole_life(me: &Me, options: HeapOptions, transport: HeapTransport) {
    let free = free_bytes(&me.context);
    me.barrier("measured");
    let heap = heap(me, options);
    assert_eq!((heap.transport(), heap.bytes(), heap.members().len()), (transport, 4 * MIB as u64, me.n as usize));
    all_to_all(me, &heap, 1000);
    heap.grow(1).expect("the heap may grow");
    assert_eq!(heap.bytes(), 6 * MIB as u64);
    let first = heap.alloc::<u8>(4 * MIB).expect("the memory fits in the first chunk");
    all_to_all(me, &heap, 10_000);
    if let Ok(geometry) = heap.geometry() {
        let address = heap.address_of(Pe::new(me.n - 1), 4096).expect("the range is in bounds");
        assert_eq!(address, geometry.address(Pe::new(me.n - 1), peerweave_types::SymOffset(4096)));
        let view = first.view().expect("the segments are at equal strides");
        assert_eq!(view.address(Rank::new(me.pe), peerweave_types::SymOffset(0)), first.address());
    } else {
        assert_eq!(transport, HeapTransport::Ipc);
    }
    heap.free(first).expect("all PEs free the memory");
    let pad = heap.signal_pad(5).expect("there is enough memory");
    let next = Pe::new((me.pe + 1) % me.n);
    peerweave_vmm::write(&me.stream, &mut pad.signal_of(next, 3).expect("the memory is mapped"), &[77], soon())
        .expect("the signal is set");
    me.barrier("signalled");
    assert_eq!(
        peerweave_vmm::read(&me.stream, &pad.signal(3).expect("the range is in bounds"), soon()).expect("the read completes"),
        [77]
    );
    assert_eq!(
        peerweave_vmm::read(&me.stream, &pad.signal(2).expect("the range is in bounds"), soon()).expect("the read completes"),
        [0]
    );
    assert!(matches!(pad.signal(5), Err(VmmError::Misuse(Misuse::OutOfRange { unit: "signals", .. }))));
    heap.free_signal_pad(pad).expect("all PEs free the memory");
    let report = heap.finalize().expect("all PEs finalize the heap");
    assert!(report.is_clean(), "{report}");
    drain_retired();
    me.barrier("settled");
    assert_eq!(free_bytes(&me.context), free, "PE {}: memory of the device was not released", me.pe);
}

#[test]
fn pes_on_threads_share_heap_memory_without_leaks() {
    Fakes::new().cuda().run(|| {
        for n in [1, 2, 5] {
            threads(n, |me| {
                whole_life(&me, options(), HeapTransport::Process);
                me.leave();
            });
            Calls::now().assert_balanced(&format!("{n} threads"));
        }
    });
}

#[test]
fn pes_in_processes_share_heap_memory_without_leaks() {
    Fakes::new().cuda().run_many(4, |child| {
        let me = process(&child);
        whole_life(&me, options(), HeapTransport::FileDescriptor);
        Calls::now().assert_balanced("at the end of each process");
        me.leave();
    });
}

#[test]
fn processes_share_memory_by_legacy_ipc_if_devices_lack_vmm() {
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_NO_VMM", "1").run_many(3, |child| {
        let me = process(&child);
        whole_life(&me, options(), HeapTransport::Ipc);
        Calls::now().assert_balanced("at the end of each process");
        me.leave();
    });
}

#[test]
fn ipc_memory_is_freed_if_heap_creation_fails_on_one_pe() {
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_NO_VMM", "1").run_many(2, |child| {
        let me = process(&child);
        let free = free_bytes(&me.context);
        if me.pe == 1 {
            fail("cuMemAlloc_v2:1=201");
        }
        assert!(SymmetricHeap::new(&me.rendezvous, &me.context, options()).is_err());
        fail("");
        drain_retired();
        assert_eq!(free_bytes(&me.context), free, "memory that no PE opened was not freed");
        whole_life(&me, options(), HeapTransport::Ipc);
        me.leave();
    });
}

#[test]
fn freeing_heap_memory_that_has_two_handles_is_an_error() {
    Fakes::new().cuda().run(|| {
        threads(1, |me| {
            let heap = heap(&me, options());
            let memory = heap.alloc::<u64>(16).expect("the heap has room");
            let (_, keep) = memory.keep().expect("the memory has an owner");
            let error = heap.free(memory).expect_err("another owner exists");
            assert!(matches!(error, VmmError::Misuse(Misuse::StillShared { handles: 2, .. })), "{error}");
            drop(keep);
            // After the failed call of `free`, a weak handle cannot be upgraded.
            let memory = heap.alloc::<u64>(16).expect("the heap has room");
            let weak = memory.keep().map(|(_, keep)| std::sync::Arc::downgrade(&keep)).expect("the memory has an owner");
            assert!(heap.free(memory).is_err() && weak.upgrade().is_none(), "the memory must stay allocated without a handle");
            let report = heap.finalize().expect("all PEs finalize the heap");
            assert_eq!(report.leaks.iter().map(|leak| leak.dropped).collect::<Vec<_>>(), [true, true]);
        });
    });
}

#[test]
fn pes_as_threads_enable_peer_access_if_devices_lack_vmm() {
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_NO_VMM", "1").run(|| {
        threads(3, |me| whole_life(&me, options().sharing(Sharing::Ipc), HeapTransport::Ipc));
    });
}

#[test]
fn heap_uses_requested_fabric_handles_or_reports_why_not() {
    let place = tempfile::tempdir().expect("the temporary directory is created");
    let fabric = || Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_FABRIC_DIR", place.path());
    let fallback_reason = |me: &Me| {
        let heap = heap(me, options().sharing(Sharing::PreferFabric));
        let message_of = (heap.transport(), heap.fallback_reason().map(str::to_owned));
        heap.finalize().expect("all PEs finalize the heap");
        drain_retired();
        me.barrier("gone");
        message_of
    };
    fabric().run_many(2, |child| {
        let me = process(&child);
        assert_eq!(fallback_reason(&me), (HeapTransport::Fabric, None));
        whole_life(&me, options().sharing(Sharing::PreferFabric), HeapTransport::Fabric);
        let plain = heap(&me, options());
        assert_eq!(
            (plain.transport(), plain.fallback_reason()),
            (HeapTransport::FileDescriptor, None),
            "fabric handles were not requested"
        );
        plain.finalize().expect("all PEs finalize the heap");
        me.leave();
    });
    // Threads of one process need no handles, but they use fabric handles if these are requested.
    fabric().run(|| {
        threads(2, |me| {
            assert_eq!(fallback_reason(&me), (HeapTransport::Fabric, None));
            me.leave();
        });
    });
    // The device reports fabric handles, but the machine's service refuses them to one PE or to
    // both PEs.
    for refused in [0..2, 1..2] {
        fabric().run_many(2, |child| {
            let me = process(&child);
            let exporting = "cuMemExportToShareableHandle:1=800";
            let making = "cuMemCreate:1=801,cuMemCreate:2=801,cuMemCreate:3=801";
            for orders in [exporting, making] {
                let (call, _) = orders.split_once(':').expect("the fault has a function and a number");
                if refused.contains(&me.pe) {
                    fail(orders);
                }
                me.barrier("refused");
                let (transport, why) = fallback_reason(&me);
                fail("");
                assert_eq!(transport, HeapTransport::FileDescriptor);
                let why = why.expect("fabric handles are not used");
                assert!(why.starts_with(&format!("PE {}: ", refused.start)) && why.contains(call), "{why}");
                me.barrier("checked");
            }
            whole_life(&me, options().sharing(Sharing::PreferFabric), HeapTransport::Fabric);
            me.leave();
        });
    }
    Fakes::new().cuda().run_many(2, |child| {
        let me = process(&child);
        let (transport, why) = fallback_reason(&me);
        assert_eq!(transport, HeapTransport::FileDescriptor);
        assert!(why.as_ref().is_some_and(|why| why.contains("HANDLE_TYPE_FABRIC_SUPPORTED")), "{why:?}");
        whole_life(&me, options().sharing(Sharing::PreferFabric), HeapTransport::FileDescriptor);
        me.leave();
    });
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_NO_VMM", "1").run_many(2, |child| {
        let me = process(&child);
        let (transport, why) = fallback_reason(&me);
        assert_eq!((transport, why.as_deref()), (HeapTransport::Ipc, Some("PE 0: device 0 lacks virtual memory management")));
        me.leave();
    });
}

#[test]
fn heap_grows_automatically_up_to_its_limit() {
    Fakes::new().cuda().run(|| {
        threads(2, |me| {
            let heap = heap(&me, options().max_bytes(16 * MIB).growth(Growth::Steps { bytes: MIB }));
            let large = heap.alloc::<f32>(2 * MIB).expect("the heap grows");
            assert!(heap.bytes() >= 8 * MIB as u64);
            let error = heap.alloc::<u8>(16 * MIB).expect_err("the allocation exceeds the limit");
            let VmmError::Misuse(Misuse::Exhausted { bytes, limit, .. }) = error else {
                panic!("the error is {error}, expected Exhausted")
            };
            assert_eq!((bytes, limit), (16 * MIB as u64, 16 * MIB as u64));
            // The refused allocation does not affect the heap.
            let small = heap.alloc::<f64>(3).expect("the heap has room");
            assert!(matches!(heap.grow(1 << 30), Err(VmmError::Misuse(Misuse::Exhausted { .. }))));
            heap.free(large).expect("all PEs free the memory");
            heap.free(small).expect("all PEs free the memory");
            assert!(heap.finalize().expect("all PEs finalize the heap").is_clean());
        });
    });
}

#[test]
fn heap_stays_usable_if_the_calls_of_the_pes_differ() {
    Fakes::new().cuda().run(|| {
        let all = threads(3, |me| {
            let heap = heap(&me, options());
            let len = if me.pe == 2 { 11 } else { 10 };
            let error = heap.alloc::<f32>(len).expect_err("the lengths differ");
            let VmmError::Misuse(Misuse::Diverged { one, other, one_has, other_has, .. }) = &error else {
                panic!("the error is {error}, expected Diverged")
            };
            assert_eq!((*one, *other), (Pe::new(0), Pe::new(2)));
            assert!(one_has.contains("alloc(10 x f32") && other_has.contains("alloc(11 x f32"), "{error}");
            let memory = heap.alloc::<f32>(10).expect("the calls of the PEs are equal");
            // PE 0 grows the heap, and the other PEs free memory.
            let error = match me.pe {
                0 => heap.grow(MIB).expect_err("the other PEs free memory"),
                _ => heap.free(memory.clone()).expect_err("two handles exist, and PE 0 makes another call"),
            };
            assert!(matches!(error, VmmError::Misuse(Misuse::Diverged { .. } | Misuse::StillShared { .. })), "{error}");
            let offset = memory.offset();
            heap.free(memory).expect("the calls of the PEs are equal");
            offset
        });
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "the offsets differ among the PEs: {all:?}");
    });
}

#[test]
fn freeing_memory_fails_on_all_pes_if_one_pe_holds_a_slice() {
    Fakes::new().cuda().run(|| {
        threads(2, |me| {
            let heap = heap(&me, options());
            let memory = heap.alloc::<u32>(100).expect("the heap has room");
            let offset = memory.offset().0;
            let kept = (me.pe == 1).then(|| memory.slice(3..4).expect("the range is in bounds"));
            let error = heap.free(memory).expect_err("PE 1 has a slice");
            match me.pe {
                1 => assert!(matches!(error, VmmError::Misuse(Misuse::StillShared { handles: 2, .. })), "{error}"),
                _ => {
                    assert!(matches!(&error, VmmError::Peer { pe, cause: PeerCause::Failed(_), .. } if pe.get() == 1), "{error}")
                }
            }
            let other = heap.alloc::<u32>(100).expect("the heap has room");
            assert_ne!(other.offset().0, offset, "memory that was not freed was allocated again");
            let report = heap.finalize().expect("all PEs finalize the heap");
            let seen: Vec<(u64, bool)> = report.leaks.iter().map(|leak| (leak.offset, leak.dropped)).collect();
            assert_eq!(seen, [(offset, kept.is_none()), (other.offset().0, false)]);
            // The memory is still mapped for the PE that has the slice.
            if let Some(mut kept) = kept {
                peerweave_vmm::write(&me.stream, &mut kept, &[5], soon()).expect("the memory is still mapped");
            }
        });
        drain_retired();
        Calls::now().assert_balanced("at the end");
    });
}

#[test]
fn heap_cannot_free_memory_of_another_heap() {
    Fakes::new().cuda().run(|| {
        threads(1, |me| {
            let (one, other) = (heap(&me, options()), heap(&me, options()));
            let memory = one.alloc::<u8>(1).expect("the heap has room");
            assert!(matches!(other.free(memory), Err(VmmError::Misuse(Misuse::OtherHeap { .. }))));
            assert_eq!(one.finalize().expect("all PEs finalize the heap").leaks.len(), 1);
        });
    });
}

#[test]
fn freeing_memory_times_out_if_a_stream_that_uses_it_is_stuck() {
    Fakes::new().cuda().run(|| {
        let deadline = Duration::from_secs(5);
        threads_within(2, deadline, |me| {
            let heap = heap(&me, options());
            let mut memory = heap.alloc::<u32>(100).expect("the heap has room");
            if me.pe == 0 {
                hold(&me.stream, true);
                peerweave_vmm::zero(&me.stream, &mut memory).expect("the work is enqueued");
            }
            let start = Instant::now();
            let error = heap.free(memory).expect_err("a stream does not complete");
            assert!(start.elapsed() < 3 * deadline, "{:?}", start.elapsed());
            match (me.pe, &error) {
                (0, VmmError::Timeout { call, missing, .. }) => assert!(call.contains("stream") && missing.is_empty(), "{error}"),
                (_, VmmError::Peer { pe, .. }) => assert_eq!(pe.get(), 0),
                _ => panic!("the error is {error}, expected Timeout on PE 0 and Peer on the other PEs"),
            }
            if me.pe == 0 {
                hold(&me.stream, false);
            }
            // All PEs know of the failure, so the heap stays usable. The memory that was not freed
            // stays allocated.
            let other = heap.alloc::<u32>(100).expect("the heap has room");
            heap.free(other).expect("all PEs free the memory");
            assert_eq!(heap.finalize().expect("all PEs finalize the heap").leaks.len(), 1);
        });
    });
}

#[test]
fn timeout_error_of_a_heap_call_names_the_missing_pe() {
    Fakes::new().cuda().run(|| {
        let is_over = std::sync::Barrier::new(3);
        threads_within(3, Duration::from_secs(5), |me| {
            let heap = heap(&me, options());
            if me.pe == 1 {
                is_over.wait();
                return;
            }
            let error = heap.alloc::<u8>(1).expect_err("PE 1 does not arrive");
            assert!(matches!(&error, VmmError::Timeout { missing, .. } if *missing == [Pe::new(1)]), "{error}");
            let error = heap.alloc::<u8>(1).expect_err("the PEs may have different states");
            assert!(matches!(error, VmmError::Misuse(Misuse::Broken { .. })), "{error}");
            is_over.wait();
        });
    });
}

#[test]
fn heap_creation_error_is_returned_on_all_pes_without_leaks() {
    Fakes::new().cuda().run_many(2, |child| {
        let me = process(&child);
        let functions = [
            ("cuMemGetInfo_v2", 1),
            ("cuMemAddressReserve", 1),
            ("cuStreamCreate", 1),
            ("cuMemCreate", 1),
            ("cuMemExportToShareableHandle", 1),
            ("cuMemImportFromShareableHandle", 1),
            ("cuMemMap", 2),
            ("cuMemSetAccess", 2),
        ];
        for (function, calls) in functions {
            for nth in 1..=calls {
                if me.pe == 1 {
                    fail(&format!("{function}:{nth}=201"));
                }
                let error = SymmetricHeap::new(&me.rendezvous, &me.context, options()).map(drop).expect_err(function);
                if me.pe == 1 {
                    fail("");
                    assert!(cuda(&error).is_some_and(|(call, code)| call == function && code == 201), "{function}: {error}");
                } else {
                    let VmmError::Peer { pe, cause: PeerCause::Failed(text), .. } = &error else {
                        panic!("{function}: the error is {error}")
                    };
                    assert_eq!(pe.get(), 1);
                    assert!(text.contains(function), "{text}");
                }
                drain_retired();
                Calls::now().assert_balanced(&format!("{function} at call {nth}"));
            }
        }
        // The rendezvous stays usable after the failures.
        whole_life(&me, options(), HeapTransport::FileDescriptor);
        me.leave();
    });
}

#[test]
fn failed_growth_leaves_the_heap_unchanged() {
    Fakes::new().cuda().run(|| {
        threads(1, |me| {
            let heap = heap(&me, options());
            for function in ["cuMemCreate", "cuMemMap", "cuMemSetAccess"] {
                fail(&format!("{function}:1=201"));
                let error = heap.grow(MIB).expect_err(function);
                fail("");
                assert_eq!(cuda(&error), Some((function, 201)));
                drain_retired();
                assert_eq!(heap.bytes(), 4 * MIB as u64);
            }
            fail("cuMemsetD8Async:1=201");
            assert!(heap.alloc::<u8>(9).is_err());
            fail("");
            all_to_all(&me, &heap, 4 * MIB / 8);
            heap.grow(MIB).expect("no fault is injected");
        });
    });
}

#[test]
fn too_little_memory_on_one_device_is_an_error_on_all_pes() {
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_MEMORY_BYTES", (8 * MIB).to_string()).run(|| {
        threads(2, |me| {
            let taken =
                (me.pe == 1).then(|| peerweave_vmm::IpcMemory::alloc(&me.context, 6 * MIB).expect("there is enough memory"));
            me.barrier("taken");
            let error =
                SymmetricHeap::new(&me.rendezvous, &me.context, options()).map(drop).expect_err("PE 1 has too little memory");
            assert_eq!(error.is_out_of_memory(), me.pe == 1, "{error}");
            assert!(error.to_string().contains("CUDA_ERROR_OUT_OF_MEMORY"), "{error}");
            drop(taken);
            drain_retired();
            me.barrier("dropped");
            SymmetricHeap::new(&me.rendezvous, &me.context, options()).expect("the shortage is over");
        });
    });
}

#[test]
fn heap_on_devices_without_peer_access_is_refused() {
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_NO_PEER", "0-1,1-0").run(|| {
        threads(2, |me| {
            let error = SymmetricHeap::new(&me.rendezvous, &me.context, options())
                .map(drop)
                .expect_err("the devices cannot access each other");
            let text = error.to_string();
            assert!(text.contains("peer access"), "{text}");
        });
    });
}

#[test]
fn error_names_both_pes_if_peer_access_between_them_is_broken() {
    Fakes::new().cuda().run(|| {
        threads(3, |me| {
            let heap = heap(&me, options());
            heap.check_peers().expect("all paths work");
            assert!(heap.finalize().expect("all PEs finalize the heap").is_clean());
        });
    });
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_BROKEN_PEER", "0-1").run_many(2, |child| {
        let me = process(&child);
        let heap = heap(&me, options());
        let error = heap.check_peers().expect_err("data written from PE 0 to PE 1 is lost");
        let text = error.to_string();
        assert!(text.contains("peer access from PE 0 to PE 1 is broken: word 0 of the data that was written is"), "{text}");
        assert_eq!(matches!(error, VmmError::BrokenPeer { .. }), me.pe == 1);
        heap.finalize().expect("all PEs finalize the heap");
        me.leave();
    });
}

#[test]
fn killed_pe_with_mapped_memory_is_an_error_on_other_pes() {
    let outputs = Fakes::new().cuda().run_with_victims(3, &[2], |child| one_is_killed(&child));
    if let [.., killed] = &outputs[..] {
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(killed.status.signal(), Some(9), "{killed}");
    }
}

fn one_is_killed(child: &peerweave_fakes::Child) {
    let me = process(child);
    let heap = heap(&me, options());
    let mut memory = heap.alloc::<u64>(1000).expect("the heap has room");
    peerweave_vmm::write(&me.stream, &mut memory, &words(me.pe, 0, 1000), soon()).expect("the write completes");
    me.barrier("written");
    if me.pe == 2 {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
    let start = Instant::now();
    let error = heap.alloc::<u64>(1).expect_err("PE 2 is dead");
    assert_eq!(error.blamed(), [Pe::new(2)], "{error}");
    assert!(matches!(&error, VmmError::Peer { cause: PeerCause::Lost(_), .. }), "{error}");
    assert!(start.elapsed() < Duration::from_secs(20), "the loss was reported only after {:?}", start.elapsed());
    let theirs = memory.peer(Pe::new(2)).expect("the memory is still mapped");
    assert_eq!(peerweave_vmm::read(&me.stream, &theirs, soon()).expect("the memory is still mapped"), words(2, 0, 1000));
    drop((theirs, memory));
    assert!(heap.finalize().is_err());
    drain_retired();
    Calls::now().assert_balanced("after another PE was killed");
}

#[test]
fn thousand_heap_allocations_leak_no_memory() {
    Fakes::new().cuda().run(|| {
        threads(2, |me| {
            let free = free_bytes(&me.context);
            me.barrier("measured");
            let heap = heap(&me, options());
            for round in 0..1000usize {
                let one = heap.alloc::<u64>(1 + round * 37 % 1000).expect("the heap has room");
                let other = heap.alloc_aligned::<u8>(1 + round % 300, 4096).expect("the heap has room");
                assert_eq!(other.offset().0 % 4096, 0);
                heap.free(one).expect("all PEs free the memory");
                heap.free(other).expect("all PEs free the memory");
            }
            heap.free(heap.alloc::<u8>(4 * MIB).expect("the free ranges have merged")).expect("all PEs free the memory");
            drop(heap);
            drain_retired();
            me.barrier("settled");
            assert_eq!(free_bytes(&me.context), free);
        });
    });
}

#[test]
fn heap_calls_with_invalid_arguments_are_refused() {
    Fakes::new().cuda().run(|| {
        threads(1, |me| {
            let heap = heap(&me, options());
            let text = |error: VmmError| error.to_string();
            let error = heap.alloc_aligned::<u8>(1, 3).map(drop).map_err(text);
            assert_eq!(error, Err("SymmetricHeap::alloc: alignment_bytes is 3, expected a power of two of at most 2 MiB".into()));
            assert!(heap.alloc::<u64>(usize::MAX / 4).is_err());
            assert!(heap.alloc::<u64>(usize::MAX).is_err());
            let mut memory = heap.alloc::<u32>(10).expect("the heap has room");
            assert_eq!((memory.len(), memory.is_empty(), memory.device()), (10, false, me.context.ordinal()));
            assert!(matches!(memory.peer(Pe::new(1)), Err(VmmError::Misuse(Misuse::NotMapped { .. }))));
            assert!(matches!(memory.slice(5..11), Err(VmmError::Misuse(Misuse::OutOfRange { .. }))));
            assert!(heap.address_of(Pe::new(0), 4 * MIB as u64).is_err());
            assert!(peerweave_vmm::write(&me.stream, &mut memory, &[1; 9], soon()).is_err(), "a wrong length was accepted");
            let other = common::context(1).new_stream().expect("the stream is created");
            assert!(peerweave_vmm::zero(&other, &mut memory).is_err(), "a stream of another device was accepted");
            let address = memory.address();
            assert_eq!(memory.write(&me.stream).expect("the stream is live").address(), address);
            assert!(memory.keep().is_some());
            let empty = heap.alloc::<u32>(0).expect("an empty allocation succeeds");
            assert!(peerweave_vmm::read(&me.stream, &empty, soon()).expect("no copy is needed").is_empty());
            heap.free(empty).expect("an empty allocation is freed like any other");
        });
    });
}
