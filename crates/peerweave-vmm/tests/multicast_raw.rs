//! Tests of multicast objects that involve driver calls of other code: raw handles, memory of other
//! libraries, explicit unbinding, recommended lengths.
#![cfg(target_os = "linux")]

mod common;

use std::sync::Arc;

use common::{Calls, context, drain_retired, fail, multicast_store, soon, threads};
use peerweave_driver::cudarc::driver::sys::CUdevice;
use peerweave_driver::{CudaCode, CudaContext, Driver, Keep};
use peerweave_fakes::Fakes;
use peerweave_vmm::multicast::{Building, MulticastProperties, Team};
use peerweave_vmm::{Exportable, HeapOptions, Mapping, Misuse, PhysicalMemory, Reservation, Rights, SymmetricHeap, VmmError};

const MIB: usize = 1 << 20;
/// The granularity that the fake driver recommends, in bytes. Its minimum is 2 MiB.
const RECOMMENDED: usize = 16 * MIB;

fn team(contexts: &[Arc<CudaContext>], bytes: usize) -> Team {
    let properties = MulticastProperties::new(contexts.len() as u32, bytes);
    let mut building = Building::create(&contexts[0], properties).expect("the object is created");
    contexts.iter().try_for_each(|context| building.add_device(context)).expect("the devices are added");
    building.complete().expect("all devices are added")
}

/// Returns memory of a device and a mapping that the device can access.
fn mapped(context: &Arc<CudaContext>, bytes: usize) -> (PhysicalMemory, Mapping) {
    let memory = PhysicalMemory::create(context, bytes, Exportable::FILE_DESCRIPTOR).expect("there is enough memory");
    let addresses = Reservation::new(context, bytes, 2 * MIB).expect("the addresses are reserved");
    let mapping = addresses.map(0, &memory, bytes).expect("the memory is mapped");
    mapping.allow(&[context.ordinal()], Rights::ReadWrite).expect("the device gets rights");
    (memory, mapping)
}

fn seen(context: &Arc<CudaContext>, mapping: &Mapping, at: usize, len: usize) -> Vec<u8> {
    let view =
        mapping.memory::<u8>(context.ordinal()).and_then(|memory| memory.slice(at..at + len)).expect("the range is in bounds");
    peerweave_vmm::read(&context.default_stream(), &view, soon()).expect("the read completes")
}

#[track_caller]
fn misuse<R>(result: Result<R, VmmError>) -> Misuse {
    match result.map(drop).expect_err("the call is refused") {
        VmmError::Misuse(misuse) => misuse,
        other => panic!("the error is {other}, expected a misuse"),
    }
}

#[test]
fn multicast_store_reaches_memory_that_was_bound_by_address() {
    Fakes::new().cuda().run(|| {
        let contexts = [context(0), context(1)];
        let bytes = 2 * MIB;
        let team = team(&contexts, bytes);
        let own: Vec<_> = contexts.iter().map(|context| mapped(context, bytes)).collect();
        let keeps: Vec<Arc<()>> = own.iter().map(|_| Arc::default()).collect();
        let bindings = contexts.iter().zip(&own).zip(&keeps).map(|((context, (_, mapping)), keep)| {
            let keep: Keep = Arc::new((Arc::clone(keep), mapping.clone()));
            // SAFETY: the range is that of the mapping, which `keep` keeps alive.
            unsafe { team.bind_address(context, 0, mapping.address(), bytes, keep) }.expect("the memory is bound")
        });
        let bound = team.clone().bound(bindings.collect()).expect("every byte is bound");
        assert_eq!(bound.as_raw(), team.as_raw());
        let addresses = Reservation::new(&contexts[0], bytes, 2 * MIB).expect("the addresses are reserved");
        let mapping = bound.map(&addresses, 0, bytes, &[0, 1]).expect("the memory is mapped");
        multicast_store(&contexts[0], mapping.address() + 512, &[7; 16]).expect("the memory is mapped");
        for (context, (_, own)) in contexts.iter().zip(&own) {
            assert_eq!(seen(context, own, 512, 16), [7; 16]);
        }
        assert!(keeps.iter().all(|keep| Arc::strong_count(keep) == 2), "bound memory must have two owners");
        drop((mapping, addresses));
        drain_retired();
        bound.unbind().expect("the object has no other users");
        assert!(keeps.iter().all(|keep| Arc::strong_count(keep) == 1), "unbound memory must have one owner");
        drop((team, own));
        drain_retired();
        Calls::now().assert_balanced("after unbinding foreign memory");
    });
}

#[test]
fn binding_by_address_refuses_invalid_arguments() {
    Fakes::new().cuda().run(|| {
        let contexts = [context(0)];
        let team = team(&contexts, 4 * MIB);
        let (_, mapping) = mapped(&contexts[0], 4 * MIB);
        let (other, keep) = (context(1), || Arc::new(()) as Keep);
        let bind = |context, offset, address, bytes| {
            // SAFETY: the mapping lives until the end of the test. Ranges outside it are refused.
            unsafe { team.bind_address(context, offset, address, bytes, keep()) }
        };
        let address = mapping.address();
        let refused = misuse(bind(&other, 0, address, 2 * MIB));
        assert!(matches!(&refused, Misuse::Value { what: "device", value, .. } if value == "1"), "{refused}");
        let refused = misuse(bind(&contexts[0], 0, address + 4096, 2 * MIB));
        assert!(matches!(refused, Misuse::Unaligned { what: "address", .. }), "{refused}");
        let refused = misuse(bind(&contexts[0], 2 * MIB, address, 4 * MIB));
        assert!(matches!(refused, Misuse::OutOfRange { .. }), "{refused}");
        let first = bind(&contexts[0], 0, address, 2 * MIB).expect("the memory is bound");
        let refused = misuse(bind(&contexts[0], 0, address + 2 * MIB as u64, 2 * MIB));
        assert!(matches!(refused, Misuse::Occupied { .. }), "{refused}");
        first.unbind().expect("the memory was bound");
        bind(&contexts[0], 0, address, 2 * MIB).expect("the range is unbound at once").unbind().expect("the memory was bound");
    });
}

#[test]
fn memory_stays_bound_and_allocated_after_a_failed_unbind() {
    Fakes::new().cuda().run(|| {
        let contexts = [context(0)];
        let team = team(&contexts, 2 * MIB);
        let (_, mapping) = mapped(&contexts[0], 2 * MIB);
        let owner: Arc<()> = Arc::default();
        let keep: Keep = Arc::new(Arc::clone(&owner));
        // SAFETY: the mapping lives until the end of the test.
        let binding =
            unsafe { team.bind_address(&contexts[0], 0, mapping.address(), 2 * MIB, keep) }.expect("the memory is bound");
        fail("cuMulticastUnbind:*=999");
        let error = binding.unbind().expect_err("the driver returns an error");
        assert!(error.to_string().contains("cuMulticastUnbind"), "{error}");
        assert_eq!(Arc::strong_count(&owner), 2, "memory that is still bound must have two owners");
        fail("");
        let (memory, _own) = mapped(&contexts[0], 2 * MIB);
        let refused = misuse(team.bind(&memory, 0, 0, 2 * MIB));
        assert!(matches!(refused, Misuse::Occupied { .. }), "{refused}");
    });
}

#[test]
fn unbind_refuses_a_multicast_object_that_is_mapped() {
    Fakes::new().cuda().run(|| {
        let contexts = [context(0)];
        let team = team(&contexts, 2 * MIB);
        let (memory, own) = mapped(&contexts[0], 2 * MIB);
        let binding = team.bind(&memory, 0, 0, 2 * MIB).expect("the memory is bound");
        let bound = team.bound(vec![binding]).expect("every byte is bound");
        let addresses = Reservation::new(&contexts[0], 2 * MIB, 2 * MIB).expect("the addresses are reserved");
        let mapping = bound.map(&addresses, 0, 2 * MIB, &[0]).expect("the memory is mapped");
        let refused = misuse(bound.unbind());
        assert!(matches!(&refused, Misuse::Value { what: "the object", .. }), "{refused}");
        multicast_store(&contexts[0], mapping.address(), &[3; 8]).expect("the memory is still mapped");
        assert_eq!(seen(&contexts[0], &own, 0, 8), [3; 8]);
    });
}

#[test]
fn memory_bound_by_a_driver_call_can_be_unbound_by_the_team() {
    Fakes::new().cuda().run(|| {
        let contexts = [context(0)];
        let team = team(&contexts, 4 * MIB);
        let (memory, _own) = mapped(&contexts[0], 4 * MIB);
        let (_, foreign) = mapped(&contexts[0], 2 * MIB);
        let binding = team.bind(&memory, 0, 0, 2 * MIB).expect("the memory is bound");
        let api = Driver::get().expect("the fake driver is loaded").api();
        // SAFETY: the handle is the team's, and the range is that of the mapping.
        let code = unsafe { api.cuMulticastBindAddr(team.as_raw(), 2 * MIB, foreign.address(), 2 * MIB, 0) };
        assert_eq!(code, Ok(CudaCode::SUCCESS));
        // SAFETY: no multicast address is mapped.
        let unbind = |device, offset, bytes| unsafe { team.unbind(device, offset, bytes) };
        assert!(matches!(misuse(unbind(0, 0, 4 * MIB)), Misuse::Occupied { .. }), "a Binding covers a part of the range");
        assert!(matches!(misuse(unbind(1, 2 * MIB, 2 * MIB)), Misuse::Value { what: "device", .. }));
        assert!(matches!(misuse(unbind(0, 2 * MIB, 4096)), Misuse::Unaligned { .. }));
        assert!(matches!(misuse(unbind(0, 4 * MIB, 2 * MIB)), Misuse::OutOfRange { .. }));
        unbind(0, 2 * MIB, 2 * MIB).expect("the memory was bound");
        let error = unbind(0, 2 * MIB, 2 * MIB).expect_err("the range is unbound");
        assert!(matches!(error, VmmError::Driver(_)), "{error}");
        drop(binding);
        drain_retired();
        // SAFETY: the handle is the team's, and no memory is bound to the range.
        let code = unsafe { api.cuMulticastUnbind(team.as_raw(), 0 as CUdevice, 0, 2 * MIB) };
        assert_ne!(code, Ok(CudaCode::SUCCESS), "the dropped binding was not unbound");
    });
}

#[test]
fn multicast_length_is_rounded_up_to_the_granularity() {
    Fakes::new().cuda().run(|| {
        let rounded = |bytes| MulticastProperties::new(2, bytes).rounded_up().map(|properties| properties.bytes);
        assert_eq!(rounded(0).ok(), Some(RECOMMENDED));
        assert_eq!(rounded(RECOMMENDED).ok(), Some(RECOMMENDED));
        assert_eq!(rounded(RECOMMENDED + 1).ok(), Some(2 * RECOMMENDED));
        assert!(matches!(rounded(usize::MAX), Err(VmmError::Misuse(Misuse::Value { .. }))));
    });
}

#[test]
fn heap_for_multicast_has_the_recommended_granularity() {
    Fakes::new().cuda().run(|| {
        threads(2, |me| {
            for (multicast, expected) in [(true, RECOMMENDED as u64), (false, 4 * MIB as u64)] {
                let options = HeapOptions::new(4 * MIB).multicast(multicast);
                let heap = SymmetricHeap::new(&me.rendezvous, &me.context, options).expect("the heap is created");
                let chunks = heap.physical();
                assert!(chunks.iter().all(|(start, memory)| start % expected == 0 && memory.bytes() as u64 == expected));
                let all = heap.multicast().expect("the fake driver supports multicast");
                if multicast {
                    let address = all.mappings()[0].address();
                    assert!(address.is_multiple_of(RECOMMENDED as u64), "{address:#x}");
                }
                me.barrier("mapped");
                drop((all, chunks));
                heap.finalize().expect("all PEs finalize the heap");
            }
        });
    });
}

#[test]
fn heap_for_multicast_can_be_created_if_multicast_is_disabled() {
    Fakes::new().cuda().env("PEERWEAVE_MULTICAST", "off").run(|| {
        threads(1, |me| {
            let heap = SymmetricHeap::new(&me.rendezvous, &me.context, HeapOptions::new(4 * MIB).multicast(true))
                .expect("the heap is created");
            assert_eq!(heap.physical()[0].1.bytes(), 4 * MIB);
            assert!(matches!(heap.multicast(), Err(VmmError::MulticastDisabled(_))));
        });
    });
}
