//! Tests of multicast objects over the fake driver, which replicates stores. The tests never use a
//! real driver.
#![cfg(target_os = "linux")]

mod common;

use std::sync::Arc;

use common::{Calls, Me, context, cuda, devices, drain_retired, fail, free_bytes, multicast_store, process, soon, threads};
use peerweave_driver::{CudaContext, DriverError};
use peerweave_fakes::Fakes;
use peerweave_types::{Pe, SymOffset};
use peerweave_vmm::multicast::{
    Binding, Bound, Building, MulticastId, MulticastMapping, MulticastProperties, SharedMulticast, Team, check_device, collective,
};
use peerweave_vmm::{
    Exportable, HeapOptions, Mapping, Misuse, PhysicalMemory, Reservation, Rights, SharedMemory, SymmetricHeap, VmmError,
};

const MIB: usize = 1 << 20;

fn bytes() -> usize {
    MulticastProperties::new(2, 2 * MIB).granularity().expect("the fake driver supports multicast").recommended
}

/// Returns memory of a device and a mapping that the device can access.
fn memory(context: &Arc<CudaContext>, bytes: usize) -> Result<(PhysicalMemory, Mapping), VmmError> {
    let memory = PhysicalMemory::create(context, bytes, Exportable::FILE_DESCRIPTOR)?;
    let mapping = Reservation::new(context, bytes, 2 * MIB)?.map(0, &memory, bytes)?;
    mapping.allow(&[context.ordinal()], Rights::ReadWrite)?;
    Ok((memory, mapping))
}

fn team(contexts: &[Arc<CudaContext>], bytes: usize) -> Result<Team, VmmError> {
    let mut building = Building::create(&contexts[0], MulticastProperties::new(contexts.len() as u32, bytes))?;
    contexts.iter().try_for_each(|context| building.add_device(context))?;
    building.complete()
}

/// Runs all steps in one process. Half of the devices bind physical memory, and the other half
/// binds mapped memory.
fn sequence(contexts: &[Arc<CudaContext>], bytes: usize) -> Result<(Vec<Mapping>, MulticastMapping), VmmError> {
    let team = team(contexts, bytes)?;
    let mut own = Vec::new();
    let mut bindings: Vec<Binding> = Vec::new();
    for context in contexts {
        let (memory, mapping) = memory(context, bytes)?;
        bindings.push(match context.ordinal() % 2 {
            0 => team.bind(&memory, 0, 0, bytes)?,
            _ => team.bind_mapping(&mapping, 0, 0, bytes)?,
        });
        own.push(mapping);
    }
    let bound: Bound = team.bound(bindings)?;
    let addresses = Reservation::new(&contexts[0], bytes, 2 * MIB)?;
    let ordinals: Vec<usize> = contexts.iter().map(|context| context.ordinal()).collect();
    let mapping = bound.map(&addresses, 0, bytes, &ordinals)?;
    Ok((own, mapping))
}

fn seen(context: &Arc<CudaContext>, mapping: &Mapping, at: usize, len: usize) -> Vec<u8> {
    let stream = context.new_stream().expect("the stream is created");
    let view =
        mapping.memory::<u8>(context.ordinal()).and_then(|memory| memory.slice(at..at + len)).expect("the range is in bounds");
    peerweave_vmm::read(&stream, &view, soon()).expect("the read completes")
}

fn contexts(n: usize) -> Vec<Arc<CudaContext>> {
    (0..n).map(context).collect()
}

#[test]
fn multicast_store_reaches_every_device_of_a_process() {
    Fakes::new().cuda().run(|| {
        for n in 1..=devices() {
            let contexts = contexts(n);
            let free = free_bytes(&contexts[0]);
            let (own, mapping) = sequence(&contexts, bytes()).expect("no fault is injected");
            for (round, context) in contexts.iter().enumerate() {
                let message_of = [round as u8 + 1, 2, 3, 4, 5, 6, 7, 8];
                multicast_store(context, mapping.address() + 4096, &message_of).expect("every device has mapped the object");
                for (context, own) in contexts.iter().zip(&own) {
                    assert_eq!(seen(context, own, 4096, 8), message_of, "{n} devices");
                }
            }
            drop((own, mapping));
            drain_retired();
            Calls::now().assert_balanced(&format!("{n} devices"));
            assert_eq!(free_bytes(&contexts[0]), free);
        }
    });
}

/// The PEs create an object together, bind their memory, and read each other's stores.
fn whole_life(me: &Me) {
    let members: Vec<Pe> = (0..me.n).map(Pe::new).collect();
    let bytes = bytes();
    let team = collective(&me.rendezvous, &me.context, &members, "test", bytes).expect("all PEs add their devices");
    assert_eq!((team.devices(), team.properties().devices), (&[me.context.ordinal()][..], me.n));
    let (memory, own) = memory(&me.context, bytes).expect("there is enough memory");
    let binding = team.bind(&memory, 0, 0, bytes).expect("the team is complete");
    let bound = team.bound_with(&me.rendezvous, "test", vec![binding]).expect("all PEs bind their memory");
    let addresses = Reservation::new(&me.context, bytes, 2 * MIB).expect("the addresses are reserved");
    let mapping = bound.map(&addresses, 0, bytes, &[me.context.ordinal()]).expect("the memory is mapped");
    drop((bound, addresses, memory));
    let view = mapping.view::<u64>();
    assert_eq!((view.address(), view.len()), (mapping.address(), bytes / 8));
    me.barrier("mapped");
    for turn in 0..me.n {
        if turn == me.pe {
            let access = mapping.access(&me.stream);
            multicast_store(&me.context, access.address() + 64 * u64::from(turn), &[turn as u8 + 1; 16])
                .expect("the memory is mapped");
        }
        me.barrier("stored");
        assert_eq!(
            seen(&me.context, &own, 64 * turn as usize, 16),
            [turn as u8 + 1; 16],
            "the data that PE {turn} stored has not arrived"
        );
        me.barrier("seen");
    }
    drop((mapping, own));
    drain_retired();
}

#[test]
fn multicast_store_reaches_pes_that_are_threads() {
    Fakes::new().cuda().run(|| {
        for n in [2, 3, 8] {
            threads(n, |me| whole_life(&me));
            Calls::now().assert_balanced(&format!("{n} threads"));
        }
    });
}

#[test]
fn multicast_store_reaches_pes_that_are_processes() {
    for n in [2, 5, 8] {
        Fakes::new().cuda().run_many(n, |child| {
            let me = process(&child);
            whole_life(&me);
            Calls::now().assert_balanced("at the end of each process");
            me.leave();
        });
    }
}

#[test]
fn groups_of_pes_create_separate_multicast_objects() {
    Fakes::new().cuda().run(|| {
        // Each group stands for the PEs of one machine. The last group has one PE fewer.
        threads(5, |me| {
            let groups = [vec![0, 2], vec![1, 3], vec![4]].map(|pes| pes.into_iter().map(Pe::new).collect::<Vec<_>>());
            let members = groups.iter().find(|group| group.contains(&Pe::new(me.pe))).expect("each PE is in a group");
            let bytes = bytes();
            let team = collective(&me.rendezvous, &me.context, members, "groups", bytes).expect("all PEs add their devices");
            assert_eq!(team.properties().devices as usize, members.len());
            let (memory, own) = memory(&me.context, bytes).expect("there is enough memory");
            let binding = team.bind(&memory, 0, 0, bytes).expect("the team is complete");
            let bound = team.bound_with(&me.rendezvous, "groups", vec![binding]).expect("all PEs bind their memory");
            let addresses = Reservation::new(&me.context, bytes, 2 * MIB).expect("the addresses are reserved");
            let mapping = bound.map(&addresses, 0, bytes, &[me.context.ordinal()]).expect("the memory is mapped");
            me.barrier("mapped");
            if members[0].get() == me.pe {
                multicast_store(&me.context, mapping.address(), &[me.pe as u8 + 1; 4]).expect("the memory is mapped");
            }
            me.barrier("stored");
            assert_eq!(
                seen(&me.context, &own, 0, 4),
                [members[0].get() as u8 + 1; 4],
                "the data of the group's first PE has not arrived"
            );
            // If the object of one PE differs from the object of its group, all PEs get an error.
            let team = collective(&me.rendezvous, &me.context, members, "again", bytes).expect("all PEs add their devices");
            let other = collective(&me.rendezvous, &me.context, members, "other", bytes).expect("all PEs add their devices");
            let team = if me.pe == 2 { other } else { team };
            let binding = team.bind(&memory, 0, 0, bytes).expect("the team is complete");
            let error = team.bound_with(&me.rendezvous, "apart", vec![binding]).map(drop).expect_err("PE 2 has another object");
            assert!(
                matches!(&error, VmmError::Misuse(Misuse::Diverged { one, other, .. }) if (one.get(), other.get()) == (0, 2)),
                "{error}"
            );
        });
        drain_retired();
        Calls::now().assert_balanced("groups");
    });
}

/// Tests stores to the multicast addresses of a heap that has grown.
fn heap(me: &Me) {
    let options = HeapOptions::new(16 * MIB).max_bytes(256 * MIB);
    let heap = SymmetricHeap::new(&me.rendezvous, &me.context, options).expect("the heap is created");
    heap.grow(16 * MIB).expect("there is enough memory");
    let first = heap.alloc::<u32>(1000).expect("the heap has room");
    let rest = heap.alloc::<u8>(20 * MIB).expect("the allocation spans both chunks");
    let multicast = heap.multicast().expect("the fake driver supports multicast");
    let view = multicast.view(&rest).expect("the range is in bounds");
    assert_eq!(view.multicast, multicast.address_of(rest.offset()).expect("the range is in bounds"));
    assert_eq!((view.me, view.n_pes), (me.pe, me.n));
    let elements = multicast.elements(&first).expect("the range is in bounds");
    assert_eq!((elements.len(), Some(elements.address())), (1000, multicast.address_of(first.offset()).ok()));
    if me.pe == 0 {
        let address = elements.slice(7..8).expect("the range is in bounds").address_of(0).expect("the index is in bounds");
        multicast_store(&me.context, address, &7u32.to_ne_bytes()).expect("the memory is mapped");
    }
    me.barrier("mapped");
    let last = 20 * MIB as u64 - 8;
    if me.pe == me.n - 1 {
        multicast_store(
            &me.context,
            view.multicast_address(SymOffset(last)).expect("the view has a multicast address"),
            b"all hear",
        )
        .expect("the memory is mapped");
    }
    me.barrier("stored");
    let found = rest.slice(last as usize..20 * MIB).expect("the range is in bounds");
    assert_eq!(peerweave_vmm::read(&me.stream, &found, soon()).expect("the read completes"), b"all hear");
    let words =
        peerweave_vmm::read(&me.stream, &first.slice(6..9).expect("the range is in bounds"), soon()).expect("the read completes");
    assert_eq!(words, [0, 7, 0]);
    assert!(multicast.address_of(SymOffset(32 * MIB as u64)).is_err());
    drop((found, multicast));
    heap.free(rest).expect("all PEs free the memory");
    heap.free(first).expect("all PEs free the memory");
    assert!(heap.finalize().expect("all PEs finalize the heap").is_clean());
    drain_retired();
}

#[test]
fn heap_has_multicast_addresses_if_pes_are_threads_or_processes() {
    Fakes::new().cuda().run(|| {
        threads(3, |me| heap(&me));
        Calls::now().assert_balanced("three threads");
    });
    Fakes::new().cuda().run_many(4, |child| {
        let me = process(&child);
        heap(&me);
        Calls::now().assert_balanced("at the end of each process");
        me.leave();
    });
}

#[test]
fn multicast_disabled_by_a_variable_makes_no_driver_calls() {
    for (variable, value) in [("PEERWEAVE_MULTICAST", "off"), ("NCCL_NVLS_ENABLE", "0"), ("NVSHMEM_DISABLE_NVLS", "1")] {
        Fakes::new().cuda().env(variable, value).env("FORBIDS", variable).run(|| {
            let forbids = std::env::var("FORBIDS").expect("the variable is set above");
            threads(2, |me| {
                let heap = SymmetricHeap::new(&me.rendezvous, &me.context, HeapOptions::new(MIB)).expect("the heap is created");
                let file = || std::fs::File::open("/dev/null").expect("/dev/null exists").into();
                let properties = MulticastProperties::new(2, 16 * MIB);
                me.barrier("before");
                let before = Calls::now().names().len();
                me.barrier("counted");
                let check = |error: VmmError| match error {
                    VmmError::MulticastDisabled(disabled) => assert_eq!(disabled.variable, forbids),
                    other => panic!("the error is {other}, expected MulticastDisabled"),
                };
                check(Building::create(&me.context, properties).expect_err("multicast is disabled"));
                let shared = SharedMulticast::FileDescriptor { fd: file(), properties, id: MulticastId([1; 16]) };
                // SAFETY: the call fails before it imports the descriptor.
                check(unsafe { Building::import(&me.context, shared) }.expect_err("multicast is disabled"));
                let handle = peerweave_vmm::FabricHandle([1; 64]);
                let shared = SharedMulticast::Fabric { handle, properties, id: MulticastId([1; 16]) };
                // SAFETY: the call fails before it imports the handle.
                check(unsafe { Building::import(&me.context, shared) }.expect_err("multicast is disabled"));
                let members = [Pe::new(0), Pe::new(1)];
                check(
                    collective(&me.rendezvous, &me.context, &members, "forbidden", 16 * MIB).expect_err("multicast is disabled"),
                );
                check(heap.multicast().expect_err("multicast is disabled"));
                me.barrier("tried");
                let calls = Calls::now();
                assert_eq!(&calls.names()[before..], [""; 0], "{forbids}");
                me.barrier("seen");
            });
            assert!(!Calls::now().names().iter().any(|name| name.contains("Multicast")), "{forbids}");
        });
    }
}

#[test]
fn multicast_disabled_on_one_pe_is_an_error_on_all_pes() {
    Fakes::new().cuda().run_many(2, |child| {
        let bytes = bytes();
        if child.rank == 1 {
            // SAFETY: this is the only thread of the process that reads the environment.
            unsafe { std::env::set_var("PEERWEAVE_MULTICAST", "off") };
        }
        let me = process(&child);
        let error = collective(&me.rendezvous, &me.context, &[Pe::new(0), Pe::new(1)], "half", bytes)
            .expect_err("PE 1 has disabled multicast");
        assert!(!Calls::now().names().contains(&"cuMulticastCreate"), "a PE created an object although PE 1 forbids it");
        match (me.pe, &error) {
            (1, VmmError::MulticastDisabled(_)) => {}
            (0, VmmError::Peer { pe, .. }) => {
                assert_eq!((pe.get(), error.to_string().contains("PEERWEAVE_MULTICAST=off")), (1, true))
            }
            _ => panic!("the error is {error}, expected MulticastDisabled on PE 1 and Peer on PE 0"),
        }
        drain_retired();
        Calls::now().assert_balanced("after the failed call");
        me.leave();
    });
}

#[test]
fn failing_driver_calls_return_errors_without_leaks() {
    Fakes::new().cuda().run(|| {
        let contexts = contexts(3);
        let bytes = bytes();
        drop(sequence(&contexts, bytes).expect("no fault is injected"));
        drain_retired();
        let free = free_bytes(&contexts[0]);
        let functions = [
            ("cuDriverGetVersion", 2),
            ("cuDeviceGetAttribute", 4),
            ("cuMulticastGetGranularity", 2),
            ("cuMulticastCreate", 1),
            ("cuMulticastAddDevice", 3),
            ("cuMemCreate", 3),
            ("cuMemAddressReserve", 4),
            ("cuMemMap", 4),
            ("cuMemSetAccess", 4),
            ("cuMulticastBindMem", 2),
            ("cuMulticastBindAddr", 1),
        ];
        for (function, calls) in functions {
            for nth in 1..=calls {
                fail(&format!("{function}:{nth}=201"));
                let error = sequence(&contexts, bytes).map(drop).expect_err(function);
                fail("");
                assert_eq!(cuda(&error), Some((function, 201)), "call {nth}: {error}");
                drain_retired();
                Calls::now().assert_balanced(&format!("{function} at call {nth}"));
                assert_eq!(free_bytes(&contexts[0]), free, "{function} at call {nth}");
            }
        }
        drop(sequence(&contexts, bytes).expect("no fault is injected any more"));
    });
}

#[test]
fn failed_multicast_creation_leaves_no_object_on_any_pe() {
    Fakes::new().cuda().run_many(2, |child| {
        let me = process(&child);
        let options = HeapOptions::new(16 * MIB).max_bytes(64 * MIB);
        let heap = SymmetricHeap::new(&me.rendezvous, &me.context, options).expect("the heap is created");
        let free = free_bytes(&me.context);
        let steps = [
            (0, "cuMulticastCreate"),
            (0, "cuMemExportToShareableHandle"),
            (0, "cuMulticastAddDevice"),
            (1, "cuMemAddressReserve"),
            (1, "cuMulticastGetGranularity"),
            (1, "cuMemImportFromShareableHandle"),
            (1, "cuMulticastAddDevice"),
            (1, "cuMulticastBindMem"),
            (1, "cuMemMap"),
            (1, "cuMemSetAccess"),
        ];
        for (pe, function) in steps {
            let before = Calls::now();
            if me.pe == pe {
                fail(&format!("{function}:1=201"));
            }
            let error = heap.multicast().map(drop).expect_err(function);
            if me.pe == pe {
                fail("");
                assert_eq!(cuda(&error), Some((function, 201)), "{error}");
            } else {
                assert!(matches!(&error, VmmError::Peer { pe: blamed, .. } if blamed.get() == pe), "{function}: {error}");
                assert!(error.to_string().contains(function), "{error}");
            }
            drain_retired();
            let after = Calls::now();
            let new = |name: &str| after.good(name) - before.good(name);
            let taken = new("cuMulticastCreate") + new("cuMemImportFromShareableHandle");
            assert_eq!(new("cuMemRelease"), taken, "{function}");
            assert_eq!(new("cuMulticastUnbind"), new("cuMulticastBindMem"), "{function}");
            assert_eq!((new("cuMemUnmap"), new("cuMemAddressFree")), (new("cuMemMap"), new("cuMemAddressReserve")), "{function}");
            assert_eq!(free_bytes(&me.context), free, "{function}");
        }
        let multicast = heap.multicast().expect("no fault is injected any more");
        me.barrier("mapped");
        drop(multicast);
        assert!(heap.finalize().expect("all PEs finalize the heap").is_clean());
        drain_retired();
        Calls::now().assert_balanced("at the end");
        me.leave();
    });
}

#[test]
fn multicast_object_is_unmapped_then_unbound_then_released() {
    const GOING: [&str; 4] = ["cuMemUnmap", "cuMulticastUnbind", "cuMemRelease", "cuMemAddressFree"];
    Fakes::new().cuda().run(|| {
        let contexts = contexts(2);
        let (own, mapping) = sequence(&contexts, bytes()).expect("no fault is injected");
        drain_retired();
        let before = Calls::now().names().len();
        // The mappings of the memory itself stay, so only the multicast address and its parts are
        // released.
        drop(mapping);
        drain_retired();
        let calls = Calls::now();
        let names = &calls.names()[before..];
        let count = |function| names.iter().filter(|name| **name == function).count();
        assert_eq!(GOING.map(count), [1, 2, 1, 1], "{names:?}");
        let first = |function| names.iter().position(|name| *name == function).expect("the function was called");
        let last = |function| names.iter().rposition(|name| *name == function).expect("the function was called");
        assert!(
            first("cuMemUnmap") < first("cuMulticastUnbind"),
            "the address must be unmapped before any memory is unbound: {names:?}"
        );
        assert!(
            last("cuMulticastUnbind") < first("cuMemRelease"),
            "the object must be released after all memory is unbound: {names:?}"
        );
        drop(own);
        drain_retired();
        Calls::now().assert_balanced("after the memory was dropped");

        // The call that fails, and the numbers of successful calls of the functions in `GOING`. The
        // first numbers are those after the multicast mapping was dropped. The second numbers are
        // those after the memory was dropped too.
        let failures = [
            ("cuMemUnmap", [0, 0, 0, 0], [1, 0, 0, 1]),
            ("cuMulticastUnbind", [1, 1, 0, 1], [3, 1, 1, 3]),
            ("cuMemRelease", [1, 2, 0, 1], [3, 2, 2, 3]),
            ("cuMemAddressFree", [1, 2, 1, 0], [3, 2, 3, 2]),
        ];
        for (function, first, then) in failures {
            let (own, mapping) = sequence(&contexts, bytes()).expect("only the release calls fail");
            drain_retired();
            let before = Calls::now();
            let new = || GOING.map(|function| Calls::now().good(function) - before.good(function));
            fail(&format!("{function}:1=201"));
            drop(mapping);
            drain_retired();
            fail("");
            assert_eq!(new(), first, "{function}: wrong release calls after the address was dropped");
            drop(own);
            drain_retired();
            // The order in which the threads of the two devices unbind is not defined. One of the
            // two bindings keeps a mapping, which keeps its memory.
            let other = if function == "cuMulticastUnbind" { [2, 1, 1, 2] } else { then };
            assert!([then, other].contains(&new()), "{function}: the release calls are {:?}, expected {then:?}", new());
        }
        drop(sequence(&contexts, bytes()).expect("later calls succeed"));
        drain_retired();
    });
}

#[test]
fn multicast_calls_refuse_invalid_arguments() {
    Fakes::new().cuda().run(|| {
        let contexts = contexts(3);
        let bytes = bytes();
        let step = MulticastProperties::new(2, bytes).granularity().expect("the fake driver reports the granularity").minimum;
        let create = |properties| Building::create(&contexts[0], properties).map(drop);
        let value = |result: Result<(), VmmError>, name: &str| match result {
            Err(VmmError::Misuse(Misuse::Value { what, .. })) => assert_eq!(what, name),
            other => panic!("{name}: the result is {other:?}, expected Misuse::Value"),
        };
        value(create(MulticastProperties::new(0, bytes)), "devices");
        value(create(MulticastProperties { flags: 4, ..MulticastProperties::new(2, bytes) }), "flags");
        for wrong in [0, step + 1] {
            let result = create(MulticastProperties::new(2, wrong));
            assert!(matches!(result, Err(VmmError::Misuse(Misuse::Unaligned { what: "bytes", .. }))), "{result:?}");
        }
        let private = MulticastProperties { exportable: Exportable::NOWHERE, ..MulticastProperties::new(2, bytes) };
        let private = Building::create(&contexts[0], private).expect("the object is created");
        value(private.export_file_descriptor().map(drop), "exportable");
        value(private.export_fabric().map(drop), "exportable");
        drop(private);

        let mut building = Building::create(&contexts[0], MulticastProperties::new(2, bytes)).expect("the object is created");
        building.add_device(&contexts[0]).expect("the first device is added");
        value(building.add_device(&contexts[0]), "device");
        building.add_device(&contexts[1]).expect("the second device is added");
        value(building.add_device(&contexts[2]), "device");
        let mut alone = Building::create(&contexts[0], MulticastProperties::new(2, bytes)).expect("the object is created");
        alone.add_device(&contexts[0]).expect("the first device is added");
        value(alone.complete().map(drop), "devices added");

        let team = building.complete().expect("all devices are added");
        let private = PhysicalMemory::create(&contexts[0], bytes, Exportable::NOWHERE).expect("there is enough memory");
        value(team.bind(&private, 0, 0, bytes).map(drop), "exportable");
        drop(private);
        let ours: Vec<_> = contexts.iter().map(|context| memory(context, bytes).expect("there is enough memory")).collect();
        value(team.bind(&ours[2].0, 0, 0, bytes).map(drop), "memory");
        let misuse = |result: Result<Binding, VmmError>| match result {
            Err(VmmError::Misuse(misuse)) => misuse,
            other => panic!("the result is {other:?}, expected a misuse"),
        };
        assert!(matches!(misuse(team.bind(&ours[0].0, 0, 0, 2 * bytes)), Misuse::OutOfRange { .. }));
        assert!(matches!(misuse(team.bind(&ours[0].0, bytes, 0, bytes)), Misuse::OutOfRange { .. }));
        assert!(matches!(misuse(team.bind(&ours[0].0, 1, 0, step)), Misuse::Unaligned { what: "offset", .. }));
        assert!(matches!(misuse(team.bind(&ours[0].0, 0, 1, step)), Misuse::Unaligned { what: "memory_offset", .. }));
        assert!(matches!(misuse(team.bind(&ours[0].0, 0, 0, step - 1)), Misuse::Unaligned { what: "bytes", .. }));
        let first = team.bind(&ours[0].0, 0, 0, step).expect("the range is unbound");
        assert!(matches!(misuse(team.bind(&ours[0].0, 0, 0, bytes)), Misuse::Occupied { .. }));
        assert!(matches!(misuse(team.bind_mapping(&ours[0].1, 0, 1, step)), Misuse::Unaligned { what: "mapping_offset", .. }));
        let second = team.bind(&ours[1].0, 0, 0, bytes).expect("the range is unbound");
        // Device 0 has a gap, where an access would fault.
        let gap = team.clone().bound(vec![first, second]).map(drop);
        assert!(
            matches!(&gap, Err(error) if error.to_string().contains(&format!("no memory of device 0 is bound to byte {step}"))),
            "{gap:?}"
        );
        drain_retired();
        let other = self::team(&contexts[..2], bytes).expect("a second object is created");
        let foreign: Vec<Binding> =
            (0..2).map(|at| other.bind(&ours[at].0, 0, 0, bytes).expect("the range is unbound")).collect();
        value(team.bound(foreign).map(drop), "a binding");

        let (_own, mapping) = sequence(&contexts[..2], bytes).expect("no fault is injected");
        assert_eq!(mapping.bytes(), bytes);
        assert!(multicast_store(&contexts[2], mapping.address(), &[1]).is_err(), "device 2 has no rights");
        drop(mapping);
        drop(ours);
        drain_retired();
    });
}

#[test]
fn multicast_team_with_missing_devices_cannot_be_completed() {
    Fakes::new().cuda().run(|| {
        threads(2, |me| {
            let members = [Pe::new(0), Pe::new(1)];
            let properties = MulticastProperties::new(3, bytes());
            let mut building = if me.pe == 0 {
                let building = Building::create(&me.context, properties).expect("the object is created");
                let SharedMulticast::FileDescriptor { fd, id, .. } =
                    building.export_file_descriptor().expect("the handle type is supported")
                else {
                    panic!("the export returned no file descriptor")
                };
                me.rendezvous.exchange("id", &id.0).expect("the other PE takes part");
                me.rendezvous.share_descriptor(&members, Some(fd)).expect("the other PE takes part");
                building
            } else {
                let ids = me.rendezvous.exchange("id", &[]).expect("PE 0 takes part");
                let id = MulticastId(ids[0][..].try_into().expect("the id has 16 bytes"));
                let fd = me.rendezvous.share_descriptor(&members, None).expect("PE 0 takes part");
                // SAFETY: PE 0 exported a multicast object with these properties and this id.
                unsafe { Building::import(&me.context, SharedMulticast::FileDescriptor { fd, properties, id }) }
                    .expect("the import succeeds")
            };
            building.add_device(&me.context).expect("the PE's own device is accepted");
            assert_eq!(building.devices_added(), 1);
            let error = building.complete_with(&me.rendezvous, "three").map(drop).expect_err("one of three devices is missing");
            assert!(error.to_string().contains("devices that all PEs have added is 2, expected 3"), "{error}");
        });
        drain_retired();
        Calls::now().assert_balanced("after the failed completion");
    });
}

#[test]
fn multicast_object_imported_as_memory_cannot_be_mapped() {
    Fakes::new().cuda().run(|| {
        let contexts = contexts(1);
        let building = Building::create(&contexts[0], MulticastProperties::new(1, bytes())).expect("the object is created");
        let SharedMulticast::FileDescriptor { fd, .. } = building.export_file_descriptor().expect("the handle type is supported")
        else {
            panic!("the export returned no file descriptor")
        };
        // SAFETY: the call violates the contract on purpose, and the driver returns an error.
        let imported = unsafe { PhysicalMemory::import(&contexts[0], SharedMemory::FileDescriptor { fd, bytes: bytes() }) };
        let mapped = imported.and_then(|memory| {
            let mapping = Reservation::new(&contexts[0], bytes(), 2 * MIB)?.map(0, &memory, bytes())?;
            mapping.allow(&[0], Rights::ReadWrite)
        });
        assert!(mapped.is_err(), "{mapped:?}");
    });
}

#[test]
fn multicast_error_names_the_missing_requirement() {
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_VERSION", "12000").run(|| {
        let error = Building::create(&context(0), MulticastProperties::new(2, 16 * MIB)).map(drop).expect_err("the driver is too old");
        assert_eq!(
            error.to_string(),
            "the use of multicast objects is not supported: it needs a driver for CUDA 12.1 or later, found a driver for CUDA 12.0"
        );
    });
    Fakes::new().cuda().without("cuMulticastCreate").run(|| {
        let error = Building::create(&context(0), MulticastProperties::new(2, bytes()))
            .map(drop)
            .expect_err("the driver lacks a function");
        assert!(matches!(&error, VmmError::Unsupported { needs, .. } if needs.contains("CUDA 12.1")), "{error}");
        assert!(error.to_string().contains("cuMulticastCreate"), "{error}");
    });
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_NO_MULTICAST", "1").run(|| {
        let error = check_device(0).expect_err("the device lacks multicast");
        assert!(matches!(&error, VmmError::Unsupported { found, .. } if found.contains("device 0")), "{error}");
        assert!(matches!(check_device(99), Err(VmmError::Driver(DriverError::NoSuchDevice { ordinal: 99, .. }))));
        threads(2, |me| {
            let error = collective(&me.rendezvous, &me.context, &[Pe::new(0), Pe::new(1)], "none", 16 * MIB).map(drop);
            assert!(matches!(error, Err(VmmError::Unsupported { .. })), "{error:?}");
        });
    });
}
