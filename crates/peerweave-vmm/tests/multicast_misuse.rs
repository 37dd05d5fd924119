//! Tests of multicast objects with invalid arguments, disabled multicast and missing PEs. The tests
//! always use the fake driver, never a real driver.
#![cfg(target_os = "linux")]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Calls, context, cuda, drain_retired, fail, hold, multicast_store, process, soon, threads, threads_within};
use peerweave_driver::{CudaCode, CudaContext, Driver};
use peerweave_fakes::Fakes;
use peerweave_types::{Pe, SymOffset};
use peerweave_vmm::multicast::{Building, MulticastId, MulticastProperties, SharedMulticast, Team, check_device, collective};
use peerweave_vmm::{
    Exportable, FabricHandle, Granularity, HeapOptions, Misuse, PhysicalMemory, Reservation, Rights, SymmetricHeap, VmmError,
    read,
};

const MIB: usize = 1 << 20;

fn bytes() -> usize {
    MulticastProperties::new(2, 2 * MIB).granularity().expect("the fake driver supports multicast").recommended
}

fn contexts(n: usize) -> Vec<Arc<CudaContext>> {
    (0..n).map(context).collect()
}

fn team(contexts: &[Arc<CudaContext>], bytes: usize) -> Team {
    let properties = MulticastProperties::new(contexts.len() as u32, bytes);
    let mut building = Building::create(&contexts[0], properties).expect("the object is created");
    contexts.iter().for_each(|context| building.add_device(context).expect("the device supports multicast"));
    building.complete().expect("all devices are added")
}

fn memory(context: &Arc<CudaContext>, bytes: usize) -> PhysicalMemory {
    PhysicalMemory::create(context, bytes, Exportable::FILE_DESCRIPTOR).expect("there is enough memory")
}

#[test]
fn bindings_must_cover_every_byte_of_the_multicast_object() {
    Fakes::new().cuda().run(|| {
        let contexts = contexts(2);
        let bytes = bytes();
        let step = MulticastProperties::new(2, bytes).granularity().expect("the fake driver reports the granularity").minimum;
        let team = team(&contexts, bytes);
        let ours: Vec<_> = contexts.iter().map(|context| memory(context, bytes)).collect();
        let gap = |result: Result<_, VmmError>| {
            let error = result.map(drop::<peerweave_vmm::multicast::Bound>).expect_err("the bindings leave a gap");
            assert!(matches!(error, VmmError::Misuse(Misuse::Value { .. })), "{error}");
            error.to_string()
        };
        // Both ranges have bindings, but the caller does not pass them and could drop them at any
        // time.
        let kept = [0, 1].map(|at| team.bind(&ours[at], 0, 0, bytes).expect("the range is unbound"));
        assert!(gap(team.clone().bound(vec![])).contains("no memory of device 0 is bound to byte 0"));
        let [first, second] = kept;
        assert!(gap(team.clone().bound(vec![first])).contains("no memory of device 1 is bound to byte 0"));
        drop(second);
        drain_retired();
        // Pieces in any order cover the object, but not if the middle piece is missing.
        let piece = |device: usize, at: usize, len: usize| team.bind(&ours[device], at, at, len).expect("the range is unbound");
        let mut pieces = vec![piece(1, 0, bytes), piece(0, 2 * step, bytes - 2 * step), piece(0, 0, step), piece(0, step, step)];
        let middle = pieces.pop();
        assert!(gap(team.clone().bound(pieces)).contains(&format!("no memory of device 0 is bound to byte {step}")));
        drain_retired();
        let pieces = vec![
            piece(0, 2 * step, bytes - 2 * step),
            piece(1, 0, bytes),
            piece(0, 0, step),
            middle.expect("the middle piece is still bound"),
        ];
        let bound = team.clone().bound(pieces).expect("every byte is bound");
        let addresses = Reservation::new(&contexts[0], bytes, 2 * MIB).expect("the addresses are reserved");
        let mapping = bound.map(&addresses, 0, bytes, &[0, 1]).expect("the memory is mapped");
        assert_eq!(multicast_store(&contexts[0], mapping.address(), &[1; 8]), Ok(()));
    });
}

#[test]
fn memory_stays_bound_on_a_pe_that_times_out_waiting_for_peers() {
    Fakes::new().cuda().run(|| {
        let (has_failed, is_over) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        threads_within(2, Duration::from_secs(5), |me| {
            let bytes = bytes();
            let team = collective(&me.rendezvous, &me.context, &[Pe::new(0), Pe::new(1)], "late", bytes)
                .expect("both PEs add their devices");
            let binding = team.bind(&memory(&me.context, bytes), 0, 0, bytes).expect("the range is unbound");
            if me.pe == 1 {
                has_failed.wait();
            }
            match (me.pe, team.bound_with(&me.rendezvous, "late", vec![binding])) {
                (0, given_up) => {
                    assert!(matches!(given_up, Err(VmmError::Timeout { .. })), "{given_up:?}");
                    drain_retired();
                    has_failed.wait();
                    // The rendezvous of this PE stays open, so that this PE does not count as lost.
                    is_over.wait();
                }
                (_, bound) => {
                    let bound = bound.expect("the other PE has reported that its memory is bound");
                    let addresses = Reservation::new(&me.context, bytes, 2 * MIB).expect("the addresses are reserved");
                    let mapping = bound.map(&addresses, 0, bytes, &[me.context.ordinal()]).expect("the memory is mapped");
                    assert_eq!(multicast_store(&me.context, mapping.address(), &[1; 8]), Ok(()));
                    is_over.wait();
                }
            }
        });
        drain_retired();
        assert_eq!(Calls::now().good("cuMulticastUnbind"), 1, "only the binding of PE 1 must be unbound");
    });
}

#[test]
fn heap_stays_bound_if_multicast_creation_times_out_on_one_pe() {
    Fakes::new().cuda().run(|| {
        let is_over = std::sync::Barrier::new(2);
        let ends = threads_within(2, Duration::from_secs(5), |me| {
            let heap = SymmetricHeap::new(&me.rendezvous, &me.context, HeapOptions::new(16 * MIB)).expect("the heap is created");
            me.barrier("made");
            if me.pe == 0 {
                // Delays the last step of PE 0, so that only its report is missing.
                fail("cuMemSetAccess:1=10000ms");
            }
            me.barrier("ordered");
            match heap.multicast() {
                Err(given_up) => {
                    assert!(matches!(given_up, VmmError::Timeout { .. }), "{given_up:?}");
                    drain_retired();
                    let again = heap.multicast().map(drop).expect_err("the PEs may have different outcomes");
                    assert!(matches!(again, VmmError::Misuse(Misuse::Broken { .. })), "{again}");
                    is_over.wait();
                    false
                }
                Ok(multicast) => {
                    let address = multicast.address_of(SymOffset(0)).expect("the range is in bounds");
                    assert_eq!(
                        multicast_store(&me.context, address, &[1; 8]),
                        Ok(()),
                        "the other PE has reported that the object is mapped"
                    );
                    is_over.wait();
                    true
                }
            }
        });
        assert!(ends[0] != ends[1], "exactly one PE must time out: {ends:?}");
    });
}

#[test]
fn bytes_of_a_multicast_object_cannot_be_bound_twice_at_once() {
    Fakes::new().cuda().run(|| {
        let contexts = contexts(1);
        let bytes = bytes();
        let team = team(&contexts, bytes);
        let ours = memory(&contexts[0], bytes);
        let is_occupied = |error: &VmmError| matches!(error, VmmError::Misuse(Misuse::Occupied { .. }));
        for round in 0..300 {
            drop(team.bind(&ours, 0, 0, bytes).expect("the range is unbound"));
            let next = loop {
                match team.bind(&ours, 0, 0, bytes) {
                    Ok(binding) => break binding,
                    Err(error) => assert!(is_occupied(&error), "round {round}: {error}"),
                }
            };
            drain_retired();
            let error = team.bind(&ours, 0, 0, bytes).map(drop).expect_err("the next binding occupies the range");
            assert!(is_occupied(&error), "round {round}: {error}");
            drop(next);
            drain_retired();
        }
        // Memory that could not be unbound stays bound, both for this crate and for the driver.
        let stuck = team.bind(&ours, 0, 0, bytes).expect("the range is unbound");
        fail("cuMulticastUnbind:1=201");
        drop(stuck);
        drain_retired();
        fail("");
        let error = team.bind(&ours, 0, 0, bytes).map(drop).expect_err("the memory is still bound");
        assert!(is_occupied(&error), "{error}");
    });
}

#[test]
fn imported_memory_cannot_be_bound_to_a_multicast_object() {
    Fakes::new().cuda().run(|| {
        let contexts = contexts(2);
        let bytes = bytes();
        let team = team(&contexts, bytes);
        let made = memory(&contexts[0], bytes);
        assert_eq!(made.device(), Some(0));
        // SAFETY: the memory was just exported with this length.
        let imported =
            unsafe { PhysicalMemory::import(&contexts[1], made.export_file_descriptor().expect("the export succeeds")) };
        let imported = imported.expect("the import succeeds");
        assert_eq!(imported.device(), None);
        let mapping = Reservation::new(&contexts[1], bytes, 2 * MIB).and_then(|place| place.map(0, &imported, bytes));
        let mapping = mapping.expect("the memory is mapped");
        mapping.allow(&[1], Rights::ReadWrite).expect("the devices are peers");
        for refused in [team.bind(&imported, 0, 0, bytes), team.bind_mapping(&mapping, 0, 0, bytes)] {
            let error = refused.map(drop).expect_err("the memory is on device 0");
            assert!(matches!(error, VmmError::Misuse(Misuse::Value { what: "memory", .. })), "{error}");
            assert!(error.to_string().contains("imported"), "{error}");
        }
        drop(team.bind(&made, 0, 0, bytes).expect("the refused calls occupied no range"));
        drop((mapping, imported, made, team));
        drain_retired();
        Calls::now().assert_balanced("after refused bindings of imported memory");
    });
}

#[test]
fn pes_with_different_multicast_objects_form_no_team() {
    Fakes::new().cuda().run(|| {
        threads(2, |me| {
            let mut building =
                Building::create(&me.context, MulticastProperties::new(2, bytes())).expect("the object is created");
            building.add_device(&me.context).expect("the PE's own device is accepted");
            let error =
                building.complete_with(&me.rendezvous, "apart").map(drop).expect_err("each object has only one of two devices");
            assert!(matches!(error, VmmError::Misuse(Misuse::Diverged { .. })), "{error}");
        });
        drain_retired();
        Calls::now().assert_balanced("after the failed completion");
    });
}

#[test]
fn bind_refuses_memory_that_lacks_the_fabric_handle_type() {
    let place = tempfile::tempdir().expect("the temporary directory is created");
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_FABRIC_DIR", place.path()).run_many(2, |child| {
        let me = process(&child);
        let bytes = bytes();
        let properties = MulticastProperties { exportable: Exportable::FABRIC, ..MulticastProperties::new(2, bytes) };
        let mut building = if me.pe == 0 {
            let building = Building::create(&me.context, properties).expect("the object is created");
            let SharedMulticast::Fabric { handle, id, .. } = building.export_fabric().expect("the handle type is supported")
            else {
                panic!("the export returned no fabric handle")
            };
            me.rendezvous.exchange("handle", &[&handle.0[..], &id.0[..]].concat()).expect("the other PE takes part");
            building
        } else {
            let sent = me.rendezvous.exchange("handle", &[]).expect("PE 0 takes part").swap_remove(0);
            let (handle, id) = sent.split_at(64);
            let handle = FabricHandle(handle.try_into().expect("the handle has 64 bytes"));
            let id = MulticastId(id.try_into().expect("the id has 16 bytes"));
            // SAFETY: PE 0 exported a multicast object with these properties and this id.
            unsafe { Building::import(&me.context, SharedMulticast::Fabric { handle, properties, id }) }
                .expect("the import succeeds")
        };
        building.add_device(&me.context).expect("the PE's own device is accepted");
        let team = building.complete_with(&me.rendezvous, "fabric").expect("all devices are added");
        let error =
            team.bind(&memory(&me.context, bytes), 0, 0, bytes).map(drop).expect_err("the memory has no fabric handle type");
        assert!(matches!(error, VmmError::Misuse(Misuse::Value { what: "exportable", .. })), "{error}");
        let memory = PhysicalMemory::create(&me.context, bytes, Exportable::FABRIC).expect("there is enough memory");
        let binding = team.bind(&memory, 0, 0, bytes).expect("the memory has the object's handle type");
        let bound = team.bound_with(&me.rendezvous, "fabric", vec![binding]).expect("all PEs bind their memory");
        let addresses = Reservation::new(&me.context, 2 * bytes, bytes).expect("the addresses are reserved");
        let own = addresses.map(bytes, &memory, bytes).expect("the addresses are free");
        own.allow(&[me.context.ordinal()], Rights::ReadWrite).expect("the PE's own device is accepted");
        let mapping = bound.map(&addresses, 0, bytes, &[me.context.ordinal()]).expect("the memory is mapped");
        me.barrier("mapped");
        if me.pe == 1 {
            multicast_store(&me.context, mapping.address(), &9u64.to_ne_bytes()).expect("the memory is mapped");
        }
        me.barrier("stored");
        let view = own.memory::<u64>(me.context.ordinal()).and_then(|view| view.slice(0..1)).expect("the device has rights");
        let soon = Instant::now() + Duration::from_secs(60);
        assert_eq!(peerweave_vmm::read(&me.stream, &view, soon).expect("the read completes"), [9]);
        drop((bound, mapping, own, view, memory, addresses));
        drain_retired();
        Calls::now().assert_balanced("after all values were dropped");
        me.leave();
    });
}

#[test]
fn member_lists_that_differ_or_repeat_a_pe_are_refused() {
    Fakes::new().cuda().run(|| {
        threads(2, |me| {
            let start = Instant::now();
            let twice = [me.pe, me.pe].map(Pe::new);
            let error = collective(&me.rendezvous, &me.context, &twice, "twice", bytes())
                .map(drop)
                .expect_err("a member is listed twice");
            assert!(matches!(error, VmmError::Misuse(Misuse::Value { what: "members", .. })), "{error}");
            let all = [0, 1].map(Pe::new);
            let members = if me.pe == 0 { &all[..1] } else { &all };
            let error = collective(&me.rendezvous, &me.context, members, "differ", bytes())
                .map(drop)
                .expect_err("the data of the PEs differs");
            assert!(matches!(error, VmmError::Misuse(Misuse::Diverged { .. })), "{error}");
            assert!(start.elapsed() < Duration::from_secs(25), "a PE waited for the deadline");
        });
        drain_retired();
        Calls::now().assert_balanced("after the refused calls");
    });
}

#[test]
fn pes_on_one_device_create_no_multicast_object() {
    Fakes::new().cuda().run_many(3, |child| {
        let me = process(&child);
        let members = [0, 1, 2].map(Pe::new);
        // The driver would wait forever for a device that is not added.
        let shared = context(me.pe.min(1) as usize);
        let bytes = bytes();
        let error =
            collective(&me.rendezvous, &shared, &members, "one device", bytes).map(drop).expect_err("two PEs share a device");
        let text = error.to_string();
        assert!(matches!(error, VmmError::Misuse(Misuse::Value { what: "members", .. })), "{error}");
        assert!(text.contains("PE 1 and PE 2 on device") && text.contains("different devices"), "{text}");
        let heap =
            SymmetricHeap::new(&me.rendezvous, &shared, HeapOptions::new(16 * MIB)).expect("PEs of a heap may share a device");
        let error = heap.multicast().map(drop).expect_err("two PEs share a device");
        assert!(matches!(error, VmmError::Misuse(Misuse::Value { what: "members", .. })), "{error}");
        assert!(!Calls::now().names().contains(&"cuMulticastCreate"), "an object was created");
        heap.finalize().expect("all PEs finalize the heap");
        me.leave();
    });
}

#[test]
fn multicast_stores_succeed_after_another_pe_times_out() {
    Fakes::new().cuda().run(|| {
        let is_over = std::sync::Barrier::new(2);
        threads_within(2, Duration::from_secs(5), |me| {
            let options = HeapOptions::new(16 * MIB).max_bytes(64 * MIB);
            let heap = SymmetricHeap::new(&me.rendezvous, &me.context, options).expect("the heap is created");
            heap.grow(16 * MIB).expect("there is enough memory");
            me.barrier("made");
            if me.pe == 0 {
                // Delays the last step of PE 0 for the second chunk.
                fail("cuMemSetAccess:3=10000ms");
            }
            me.barrier("ordered");
            match heap.multicast() {
                Err(given_up) => {
                    assert!(matches!(given_up, VmmError::Timeout { .. }), "{given_up:?}");
                }
                Ok(multicast) => {
                    drain_retired();
                    for offset in [0, 16 * MIB as u64] {
                        let address = multicast.address_of(SymOffset(offset)).expect("the range is in bounds");
                        assert_eq!(
                            multicast_store(&me.context, address, &[1; 8]),
                            Ok(()),
                            "the other PE has reported that the object is mapped"
                        );
                    }
                }
            }
            is_over.wait();
        });
    });
}

#[test]
fn multicast_creation_waits_for_a_lost_pe_only_once() {
    Fakes::new().cuda().run(|| {
        let deadline = Duration::from_secs(6);
        threads_within(2, deadline, |me| {
            let (members, bytes) = ([Pe::new(0), Pe::new(1)], bytes());
            if me.pe == 0 {
                let start = Instant::now();
                let error = collective(&me.rendezvous, &me.context, &members, "lost", bytes).map(drop).expect_err("PE 1 is lost");
                let took = start.elapsed();
                assert_eq!(error.blamed(), [Pe::new(1)], "{error}");
                assert!(took < deadline * 2, "the call waited for a second exchange: {took:?}");
                return;
            }
            // Acts like a PE that is lost after the second exchange.
            let call = format!("multicast::collective(lost, {bytes} bytes)");
            let say = |round: &str, blob: &[u8]| {
                let statement = [&[1], &(call.len() as u32).to_le_bytes()[..], call.as_bytes(), blob].concat();
                me.rendezvous.exchange(&format!("peerweave-vmm/multicast/lost/{round}"), &statement).expect("PE 0 takes part");
            };
            let numbers = [2u32, 0, 1].map(u32::to_le_bytes).concat();
            say("looked", &[&numbers, &b"another device"[..]].concat());
            say("created", &[]);
            std::thread::sleep(2 * deadline);
        });
    });
}

#[test]
fn shortage_of_file_descriptors_is_reported_before_the_deadline() {
    Fakes::new().cuda().run_many(3, |child| {
        let me = process(&child);
        let members: Vec<Pe> = (0..3).map(Pe::new).collect();
        for full in [0, 1] {
            let mut held = Vec::new();
            if me.pe == full {
                let old = rustix::process::getrlimit(rustix::process::Resource::Nofile);
                let few = rustix::process::Rlimit { current: Some(64), maximum: old.maximum };
                rustix::process::setrlimit(rustix::process::Resource::Nofile, few).expect("lowering the limit is allowed");
                while let Ok(file) = std::fs::File::open("/dev/null") {
                    held.push(file);
                }
                // The remaining descriptors suffice for the PE's own export, but not for the
                // exchange.
                held.truncate(held.len() - if full == 0 { 8 } else { 1 });
            }
            let bytes = bytes();
            me.barrier("full");
            let start = Instant::now();
            let error = collective(&me.rendezvous, &me.context, &members, "full", bytes)
                .map(drop)
                .expect_err("one PE is out of descriptors");
            let took = start.elapsed();
            drop(held);
            assert!(took < Duration::from_secs(25), "PE {}: the error came only after {took:?}: {error}", me.pe);
            if me.pe != full {
                assert!(matches!(&error, VmmError::Peer { pe, .. } if pe.get() == full), "PE {}: {error}", me.pe);
            }
            me.barrier("checked");
        }
        drain_retired();
        Calls::now().assert_balanced("after the failed calls");
        me.leave();
    });
}

#[test]
fn memory_of_another_heap_has_no_multicast_address() {
    Fakes::new().cuda().run(|| {
        threads(2, |me| {
            let heap =
                || SymmetricHeap::new(&me.rendezvous, &me.context, HeapOptions::new(16 * MIB)).expect("the heap is created");
            let (one, other) = (heap(), heap());
            let (ours, theirs) =
                (one.alloc::<u64>(64).expect("the heap has room"), other.alloc::<u64>(64).expect("there is enough memory"));
            let multicast = one.multicast().expect("the fake driver supports multicast");
            assert!(multicast.view(&ours).is_ok());
            let view = multicast.view(&theirs);
            assert!(matches!(view, Err(VmmError::Misuse(Misuse::OtherHeap { .. }))), "{view:?}");
            me.barrier("seen");
        });
    });
}

#[test]
fn collective_calls_of_a_heap_are_serialised() {
    Fakes::new().cuda().run(|| {
        threads(1, |me| {
            let heap = SymmetricHeap::new(&me.rendezvous, &me.context, HeapOptions::new(16 * MIB)).expect("the heap is created");
            fail("cuMulticastCreate:1=700ms");
            std::thread::scope(|scope| {
                let multicast = scope.spawn(|| heap.multicast().map(drop));
                while Calls::now().good("cuMulticastCreate") == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let memory = heap.alloc::<u64>(16).expect("the allocation waits for the multicast call");
                assert_eq!(Calls::now().good("cuMulticastBindMem"), 1, "the multicast call was still running when alloc began");
                multicast.join().expect("the thread does not panic").expect("the multicast call succeeds");
                heap.free(memory).expect("all PEs free the memory");
            });
            drain_retired();
            heap.multicast().map(drop).expect("a second call succeeds");
        });
    });
}

#[test]
fn multicast_calls_are_refused_once_multicast_is_disabled() {
    Fakes::new().cuda().run(|| {
        threads(1, |me| {
            let contexts = contexts(2);
            let bytes = bytes();
            let properties = MulticastProperties::new(2, bytes);
            let create = || Building::create(&contexts[0], properties).expect("the object is created");
            let (mut one, two) = (create(), create());
            let team = team(&contexts, bytes);
            let ours: Vec<_> = contexts.iter().map(|context| memory(context, bytes)).collect();
            let addresses = Reservation::new(&contexts[0], bytes, 2 * MIB).expect("the addresses are reserved");
            let own = Reservation::new(&contexts[0], bytes, 2 * MIB).and_then(|place| place.map(0, &ours[0], bytes));
            let own = own.expect("the memory is mapped");
            let bindings = ours.iter().map(|memory| team.bind(memory, 0, 0, bytes).expect("the range is unbound")).collect();
            let other = self::team(&contexts, bytes);
            let bound = team.bound(bindings).expect("all devices have bound memory");
            let before = Calls::now().names().len();
            // SAFETY: this is the only thread of the scenario that reads or writes the environment.
            unsafe { std::env::set_var("PEERWEAVE_MULTICAST", "off") };
            let forbidden = |result: Result<(), VmmError>, what: &str| {
                assert!(matches!(result, Err(VmmError::MulticastDisabled(_))), "{what}: {result:?}");
            };
            forbidden(properties.granularity().map(drop), "granularity");
            forbidden(one.add_device(&contexts[0]), "add_device");
            forbidden(one.export_file_descriptor().map(drop), "export_file_descriptor");
            forbidden(one.export_fabric().map(drop), "export_fabric");
            forbidden(other.bind(&ours[0], 0, 0, bytes).map(drop), "bind");
            forbidden(other.bind_mapping(&own, 0, 0, bytes).map(drop), "bind_mapping");
            forbidden(other.clone().bound(Vec::new()).map(drop), "bound");
            forbidden(other.clone().bound_with(&me.rendezvous, "late", Vec::new()).map(drop), "bound_with");
            forbidden(bound.map(&addresses, 0, bytes, &[0, 1]).map(drop), "map");
            let calls = Calls::now();
            assert_eq!(calls.names()[before..], [""; 0]);
            check_device(0).expect("the check only reads an attribute");
            // The calls fail and drop the object. The object is released although multicast is
            // disabled.
            forbidden(one.complete().map(drop), "complete");
            forbidden(two.complete_with(&me.rendezvous, "late").map(drop), "complete_with");
            assert_eq!(Calls::now().good("cuDeviceGetPCIBusId"), calls.good("cuDeviceGetPCIBusId"));
            drop((bound, other, own, ours, addresses));
        });
        drain_retired();
        Calls::now().assert_balanced("after multicast was disabled");
    });
}

#[test]
fn multicast_object_with_two_handle_types_exports_both() {
    let place = tempfile::tempdir().expect("the temporary directory is created");
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_FABRIC_DIR", place.path()).run(|| {
        let exportable = Exportable { file_descriptor: true, fabric: true };
        let properties = MulticastProperties { exportable, ..MulticastProperties::new(2, bytes()) };
        let building = Building::create(&context(0), properties).expect("the object is created");
        assert!(matches!(building.export_file_descriptor(), Ok(SharedMulticast::FileDescriptor { .. })));
        assert!(matches!(building.export_fabric(), Ok(SharedMulticast::Fabric { .. })));
    });
}

#[test]
fn heap_free_waits_for_work_at_the_multicast_address() {
    Fakes::new().cuda().run(|| {
        let both_have_waited = std::sync::Barrier::new(2);
        threads(2, |me| {
            let heap = SymmetricHeap::new(&me.rendezvous, &me.context, HeapOptions::new(16 * MIB)).expect("the heap is created");
            let memory = heap.alloc::<u8>(256).expect("the heap has room");
            let multicast = heap.multicast().expect("the fake driver supports multicast");
            me.barrier("mapped");
            if me.pe == 0 {
                hold(&me.stream, true);
                let access = multicast.mappings()[0].access(&me.stream);
                let address = multicast.elements(&memory).expect("the range is in bounds").address();
                me.context.bind_to_thread().expect("the context is live");
                let api = Driver::get().expect("the fake driver is loaded").api();
                // SAFETY: the range is mapped, and the access is kept until the work is enqueued.
                let code = unsafe { api.cuMemsetD8Async(address, 7, 256, me.stream.cu_stream()) };
                assert_eq!(code, Ok(CudaCode::SUCCESS));
                drop(access);
            }
            // No stream of the other PE is stuck, but both PEs free the memory together.
            let freed = std::thread::scope(|scope| {
                let freeing = scope.spawn(|| heap.free(memory));
                std::thread::sleep(Duration::from_millis(200));
                assert!(!freeing.is_finished(), "free returned before the pending work completed");
                // The PEs do not synchronise by the rendezvous here, because `free` uses it.
                both_have_waited.wait();
                if me.pe == 0 {
                    hold(&me.stream, false);
                }
                freeing.join().expect("the thread does not panic")
            });
            freed.expect("all PEs complete the call");
            drop(multicast);
            let again = heap.alloc::<u8>(256).expect("the heap has room");
            assert_eq!(read(&me.stream, &again, soon()).expect("the read completes"), [0; 256]);
            me.barrier("seen");
        });
    });
}

#[test]
fn error_mentions_imex_only_if_fabric_handles_are_refused() {
    let place = tempfile::tempdir().expect("the temporary directory is created");
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_FABRIC_DIR", place.path()).run(|| {
        let context = context(0);
        let bytes = Granularity::of_device(0, Exportable::FABRIC).expect("the device has virtual memory management").minimum;
        let create = || PhysicalMemory::create(&context, bytes, Exportable::FABRIC).map(drop);
        fail("cuMemCreate:1=1,cuMemCreate:2=1");
        let error = create().expect_err("two faults are injected");
        assert_eq!(
            cuda(&error),
            Some(("cuMemCreate", 1)),
            "fabric handles are available, so the error is that of the driver: {error}"
        );
        fail("cuMemCreate:1=800,cuMemCreate:2=800");
        let error = create().expect_err("fabric handles are not permitted");
        assert!(matches!(&error, VmmError::Unsupported { needs, .. } if needs.contains("IMEX")), "{error}");
        fail("");
        drain_retired();
        Calls::now().assert_balanced("after the failed allocations");
    });
}

#[test]
fn imported_multicast_object_has_the_exported_id() {
    Fakes::new().cuda().run(|| {
        let contexts = contexts(2);
        let building = Building::create(&contexts[0], MulticastProperties::new(2, bytes())).expect("the object is created");
        let other = Building::create(&contexts[0], MulticastProperties::new(2, bytes())).expect("the object is created");
        assert_ne!(building.id(), other.id());
        let shared = building.export_file_descriptor().expect("the export succeeds");
        assert!(matches!(&shared, SharedMulticast::FileDescriptor { id, .. } if *id == building.id()));
        // SAFETY: the object was just exported.
        let imported = unsafe { Building::import(&contexts[1], shared) }.expect("the import succeeds");
        assert_eq!(imported.id(), building.id());
    });
}
