//! Tests of physical memory, addresses, mappings and export within one process, over the fake
//! driver.
#![cfg(target_os = "linux")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Calls, context, cuda, drain_retired, fail, free_bytes, hold, process, soon};
use peerweave_driver::{CudaContext, DeviceBuffer, DriverError};
use peerweave_fakes::Fakes;
use peerweave_vmm::{
    Exportable, Granularity, IpcMemory, IpcPeerMemory, Mapping, Misuse, PhysicalMemory, Reservation, Rights, SharedMemory,
    VmmError,
};

fn step() -> usize {
    Granularity::of_device(0, Exportable::NOWHERE).expect("the fake driver has virtual memory management").minimum
}

/// Returns memory of a device and a mapping of it, without rights to access the mapping.
fn mapped(context: &Arc<CudaContext>) -> (PhysicalMemory, Mapping) {
    let memory = PhysicalMemory::create(context, step(), Exportable::NOWHERE).expect("there is enough memory");
    let mapping = Reservation::new(context, step(), step())
        .expect("the addresses are reserved")
        .map(0, &memory, step())
        .expect("the addresses are free");
    (memory, mapping)
}

/// Creates, reserves, maps, accesses and drops memory once.
fn sequence(context: &Arc<CudaContext>) -> Result<(), VmmError> {
    let bytes = Granularity::of_device(context.ordinal(), Exportable::FILE_DESCRIPTOR)?.recommended;
    let memory = PhysicalMemory::create(context, bytes, Exportable::FILE_DESCRIPTOR)?;
    let addresses = Reservation::new(context, 2 * bytes, bytes)?;
    let mapping = addresses.map(bytes, &memory, bytes)?;
    mapping.allow(&[context.ordinal()], Rights::ReadWrite)?;
    let shared = memory.export_file_descriptor()?;
    // SAFETY: the descriptor was just exported.
    let again = unsafe { PhysicalMemory::import(context, shared) }?;
    let twin = addresses.map(0, &again, bytes)?;
    twin.allow(&[context.ordinal()], Rights::ReadWrite)?;
    let stream = context.new_stream().expect("the stream is created");
    let values: Vec<u32> = (0..1000).collect();
    peerweave_vmm::write(&stream, &mut mapping.memory::<u32>(context.ordinal())?.slice(5..1005)?, &values, soon())?;
    let found = peerweave_vmm::read(&stream, &twin.memory::<u32>(context.ordinal())?.slice(5..1005)?, soon())?;
    assert_eq!(found, values, "both mappings have the same memory");
    Ok(())
}

#[test]
fn mapping_keeps_memory_and_addresses_alive() {
    Fakes::new().cuda().run(|| {
        let context = context(0);
        let free = free_bytes(&context);
        let memory = PhysicalMemory::create(&context, step(), Exportable::NOWHERE).expect("there is enough memory");
        let addresses = Reservation::new(&context, step(), step()).expect("the addresses are reserved");
        let mapping = addresses.map(0, &memory, step()).expect("the memory and the addresses are unused");
        mapping.allow(&[0], Rights::ReadWrite).expect("the device gets rights");
        let view = mapping.memory::<u64>(0).expect("the device has rights");
        drop((memory, addresses, mapping));
        drain_retired();
        let stream = context.new_stream().expect("the stream is created");
        peerweave_vmm::write(&stream, &mut view.slice(0..2).expect("the range is in bounds"), &[7, 8], soon())
            .expect("the memory is still mapped");
        assert_eq!(free_bytes(&context), free - step());
        assert_eq!(Calls::now().good("cuMemUnmap"), 0);
        drop(view);
        drain_retired();
        let calls = Calls::now();
        let names = calls.names();
        let at = |function| names.iter().position(|name| *name == function).expect("the function was called");
        assert!(at("cuMemUnmap") < at("cuMemRelease") && at("cuMemUnmap") < at("cuMemAddressFree"));
        calls.assert_balanced("after all values were dropped");
        assert_eq!(free_bytes(&context), free);
    });
}

#[test]
fn dropped_mapping_is_unmapped_after_pending_work_completes() {
    Fakes::new().cuda().run(|| {
        let context = context(0);
        let stream = context.new_stream().expect("the stream is created");
        let (memory, mapping) = mapped(&context);
        mapping.allow(&[0], Rights::ReadWrite).expect("the device gets rights");
        hold(&stream, true);
        let mut view = mapping.memory::<u64>(0).expect("the device has rights");
        peerweave_vmm::zero(&stream, &mut view).expect("the work is enqueued");
        drop((view, mapping, memory));
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(Calls::now().good("cuMemUnmap"), 0, "the stream has not run its work yet");
        hold(&stream, false);
        drain_retired();
        Calls::now().assert_balanced("after the stream completed");
    });
}

#[test]
fn mapping_does_not_keep_completed_streams_alive() {
    Fakes::new().cuda().run(|| {
        let context = context(0);
        let (memory, mapping) = mapped(&context);
        mapping.allow(&[0], Rights::ReadWrite).expect("the device gets rights");
        let view = mapping.memory::<u64>(0).expect("the device has rights").slice(0..1).expect("the range is in bounds");
        let busy = context.new_stream().expect("the stream is created");
        hold(&busy, true);
        peerweave_vmm::zero(&busy, &mut view.clone()).expect("the work is enqueued");
        let weak_busy = Arc::downgrade(&busy);
        let mut seen = Vec::new();
        for value in 0..1000 {
            let stream = context.new_stream().expect("the stream is created");
            peerweave_vmm::write(&stream, &mut view.clone(), &[value], soon()).expect("the write completes");
            seen.push(Arc::downgrade(&stream));
        }
        let kept = seen.iter().filter(|stream| stream.upgrade().is_some()).count();
        assert!(kept <= 64, "{kept} of 1000 streams are still recorded, expected at most 64");
        drop(busy);
        assert!(weak_busy.upgrade().is_some(), "a stream with pending work must stay recorded");
        hold(&weak_busy.upgrade().expect("the stream is still recorded"), false);
        drop((view, mapping, memory));
        drain_retired();
        Calls::now().assert_balanced("at the end");
    });
}

#[test]
fn invalid_mapping_arguments_are_refused_before_driver_calls() {
    Fakes::new().cuda().run(|| {
        let context = context(0);
        let step = step();
        let memory = PhysicalMemory::create(&context, 2 * step, Exportable::NOWHERE).expect("there is enough memory");
        let addresses = Reservation::new(&context, 4 * step, step).expect("the addresses are reserved");
        let before = Calls::now().names().len();
        let text = |error: VmmError| error.to_string();
        let unaligned = PhysicalMemory::create(&context, step + 1, Exportable::NOWHERE).map(drop).map_err(text);
        assert_eq!(
            unaligned,
            Err(format!("PhysicalMemory::create: bytes is {} bytes, expected a positive multiple of {step}", step + 1))
        );
        assert!(matches!(Reservation::new(&context, 0, step), Err(VmmError::Misuse(Misuse::Value { what: "bytes", .. }))));
        assert!(matches!(
            Reservation::new(&context, step, 3),
            Err(VmmError::Misuse(Misuse::Value { what: "alignment_bytes", .. }))
        ));
        let outside = addresses.map(3 * step, &memory, 2 * step).map(drop).map_err(text);
        assert_eq!(
            outside,
            Err(format!("Reservation::map: the range is {}..{}, expected a range within {} bytes", 3 * step, 5 * step, 4 * step))
        );
        assert!(matches!(addresses.map(0, &memory, 3 * step), Err(VmmError::Misuse(Misuse::OutOfRange { .. }))));
        assert!(matches!(addresses.map(usize::MAX, &memory, step), Err(VmmError::Misuse(Misuse::OutOfRange { .. }))));
        let mapped: Vec<_> = Calls::now().names()[before..]
            .iter()
            .filter(|name| name.contains("Map") || name.contains("Create"))
            .map(|name| (*name).to_owned())
            .collect();
        assert!(mapped.is_empty(), "{mapped:?}");

        let mapping = addresses.map(step, &memory, 2 * step).expect("the addresses are free");
        for offset in [0, step, 2 * step] {
            let bytes = 2 * step;
            assert!(matches!(addresses.map(offset, &memory, bytes), Err(VmmError::Misuse(Misuse::Occupied { .. }))), "{offset}");
        }
        assert!(matches!(mapping.memory::<u8>(0), Err(VmmError::Misuse(Misuse::Value { what: "rights", .. }))));
        mapping.allow(&[0, 1], Rights::ReadWrite).expect("the fake driver has both devices");
        assert_eq!(mapping.rights(1).expect("the driver reports the rights"), Rights::ReadWrite);
        let view = mapping.memory::<u8>(1).expect("the device has rights");
        assert_eq!((view.device(), view.len()), (1, 2 * step));
        assert!(
            matches!(mapping.allow(&[1], Rights::None), Err(VmmError::Misuse(Misuse::Value { what: "rights", .. }))),
            "rights were reduced although a handle exists"
        );
        assert!(matches!(memory.export_file_descriptor(), Err(VmmError::Misuse(Misuse::Value { what: "exportable", .. }))));
        drop(view);
        fail("cuMemSetAccess:1=999");
        assert!(mapping.allow(&[0, 1], Rights::Read).is_err(), "the injected fault must be returned");
        fail("");
        // The driver may have reduced the rights of some devices before it failed.
        assert!(matches!(mapping.memory::<u8>(1), Err(VmmError::Misuse(Misuse::Value { what: "rights", .. }))));
        mapping.allow(&[0, 1], Rights::ReadWrite).expect("the fake driver has both devices");
        let view = mapping.memory::<u8>(1).expect("the device has rights again");
        drop((view, mapping));
        drain_retired();
        addresses.map(0, &memory, 2 * step).expect("the addresses are free again");
    });
}

#[test]
fn failing_driver_calls_return_errors_without_leaks() {
    Fakes::new().cuda().run(|| {
        let context = context(0);
        sequence(&context).expect("no fault is injected");
        drain_retired();
        let free = free_bytes(&context);
        let functions = [
            ("cuMemGetAllocationGranularity", 2),
            ("cuMemCreate", 1),
            ("cuMemAddressReserve", 1),
            ("cuMemMap", 2),
            ("cuMemSetAccess", 2),
            ("cuMemExportToShareableHandle", 1),
            ("cuMemImportFromShareableHandle", 1),
            ("cuMemcpyHtoDAsync_v2", 1),
            ("cuMemcpyDtoHAsync_v2", 1),
        ];
        for (function, calls) in functions {
            for nth in 1..=calls {
                // CUDA_ERROR_INVALID_CONTEXT: a code without a special meaning here.
                fail(&format!("{function}:{nth}=201"));
                let error = sequence(&context).expect_err(function);
                fail("");
                assert_eq!(cuda(&error), Some((function, 201)), "{error}");
                drain_retired();
                Calls::now().assert_balanced(&format!("{function} at call {nth}"));
                assert_eq!(free_bytes(&context), free, "{function} at call {nth}");
            }
        }
        sequence(&context).expect("no fault is injected any more");
    });
}

#[test]
fn memory_that_cannot_be_released_is_leaked_without_panic() {
    Fakes::new().cuda().run(|| {
        let context = context(0);
        fail("cuMemUnmap:*=201,cuMemRelease:*=201,cuMemAddressFree:*=201");
        sequence(&context).expect("only the release calls fail");
        drain_retired();
        fail("");
        assert_eq!(Calls::now().good("cuMemUnmap"), 0);
        // Memory of a mapping that is still mapped is not released.
        assert_eq!(Calls::now().names().iter().filter(|name| **name == "cuMemRelease").count(), 0);
        sequence(&context).expect("later calls succeed");
    });
}

#[test]
fn too_large_allocation_returns_the_out_of_memory_error() {
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_MEMORY_BYTES", (8usize << 20).to_string()).run(|| {
        let context = context(0);
        let error =
            PhysicalMemory::create(&context, 16 << 20, Exportable::NOWHERE).expect_err("the device has only half of that memory");
        assert!(error.is_out_of_memory(), "{error}");
        // Memory that was dropped just now counts as free.
        for _ in 0..4 {
            PhysicalMemory::create(&context, 6 << 20, Exportable::NOWHERE).expect("the previous memory was freed");
        }
    });
}

#[test]
fn device_without_virtual_memory_management_is_refused() {
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_NO_VMM", "1").run(|| {
        let context = context(0);
        let error = PhysicalMemory::create(&context, 2 << 20, Exportable::NOWHERE)
            .expect_err("the device lacks virtual memory management");
        assert!(matches!(error, VmmError::Unsupported { feature: "virtual memory management", .. }), "{error}");
        assert!(error.to_string().contains("VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"), "{error}");
        assert!(matches!(Reservation::new(&context, 2 << 20, 2 << 20), Err(VmmError::Unsupported { .. })));
    });
}

#[test]
fn missing_driver_function_is_named_in_the_error() {
    for function in ["cuMemCreate", "cuMemAddressReserve", "cuMemSetAccess"] {
        Fakes::new().cuda().without(function).env("LACKS", function).run(|| {
            let lacks = std::env::var("LACKS").expect("the variable is set above");
            let error = sequence(&context(0)).expect_err("the driver lacks a function");
            let VmmError::Driver(DriverError::Missing(missing)) = &error else {
                panic!("the error is {error}, expected Missing")
            };
            assert_eq!((missing.name, missing.since), (lacks.as_str(), "10.2"));
            drain_retired();
            Calls::now().assert_balanced(&lacks);
        });
    }
}

#[test]
fn missing_driver_error_lists_the_paths_that_were_tried() {
    Fakes::new().run(|| {
        let error = peerweave_vmm::PeerMatrix::look().expect_err("no driver is installed");
        assert!(matches!(error, VmmError::Driver(DriverError::Load(_))), "{error}");
        assert!(error.to_string().contains("libcuda.so.1"), "{error}");
        assert!(matches!(Granularity::of_device(0, Exportable::NOWHERE), Err(VmmError::Driver(DriverError::Load(_)))));
    });
}

#[test]
fn exported_descriptor_keeps_dropped_memory_allocated() {
    Fakes::new().cuda().run_many(2, |child| {
        let me = process(&child);
        let members = [0, 1].map(Into::into);
        let bytes =
            Granularity::of_device(0, Exportable::FILE_DESCRIPTOR).expect("the device has virtual memory management").recommended;
        let words: Vec<u64> = (0..4096).map(|word| word * 3).collect();
        let map = |memory: &PhysicalMemory| {
            let mapping = Reservation::new(&me.context, bytes, bytes)?.map(0, memory, bytes)?;
            mapping.allow(&[me.context.ordinal()], Rights::ReadWrite)?;
            mapping.memory::<u64>(me.context.ordinal())?.slice(0..4096)
        };
        if me.pe == 0 {
            let memory = PhysicalMemory::create(&me.context, bytes, Exportable::FILE_DESCRIPTOR).expect("there is enough memory");
            peerweave_vmm::write(&me.stream, &mut map(&memory).expect("the memory is mapped"), &words, soon())
                .expect("the write completes");
            let SharedMemory::FileDescriptor { fd, .. } = memory.export_file_descriptor().expect("the handle type is supported")
            else {
                panic!("the export returned no file descriptor")
            };
            me.rendezvous.share_descriptor(&members, Some(fd)).expect("the other PE takes part");
            drop(memory);
            drain_retired();
            me.barrier("dropped");
        } else {
            let fd = me.rendezvous.share_descriptor(&members, None).expect("PE 0 takes part");
            // SAFETY: PE 0 exported memory of that length.
            let memory = unsafe { PhysicalMemory::import(&me.context, SharedMemory::FileDescriptor { fd, bytes }) }
                .expect("the import succeeds");
            let view = map(&memory).expect("the memory is mapped");
            me.barrier("dropped");
            assert_eq!(peerweave_vmm::read(&me.stream, &view, soon()).expect("the memory is still mapped"), words);
        }
        me.leave();
    });
}

#[test]
fn ipc_memory_that_another_process_may_have_open_is_leaked() {
    Fakes::new().cuda().run_many(2, |child| {
        let me = process(&child);
        let bytes = IpcMemory::STEP_BYTES;
        if me.pe == 0 {
            let memory = IpcMemory::alloc(&me.context, bytes).expect("there is enough memory");
            let lost = IpcMemory::alloc(&me.context, bytes).expect("there is enough memory");
            let handle = memory.export().expect("the memory is exported");
            lost.export().expect("the memory is exported");
            me.rendezvous.put("handle", &handle.0).expect("the rendezvous server answers");
            me.barrier("opened");
            me.barrier("closed");
            // SAFETY: the other process has closed the memory.
            unsafe { memory.recall() };
            drop((memory, lost));
            drain_retired();
            assert_eq!(Calls::now().good("cuMemFreeAsync"), 1, "only the recalled memory must be freed");
        } else {
            let handle = me.rendezvous.get("handle").expect("PE 0 puts the handle").try_into().expect("the handle has 64 bytes");
            // SAFETY: the owner keeps the memory until the barrier below.
            let opened = unsafe { IpcPeerMemory::open(&me.context, peerweave_vmm::IpcHandle(handle), bytes) }
                .expect("the memory is opened");
            assert!(opened.address() != 0);
            me.barrier("opened");
            hold(&me.stream, true);
            drop(opened.access(&me.stream));
            drop(opened);
            std::thread::sleep(Duration::from_millis(100));
            assert_eq!(Calls::now().good("cuIpcCloseMemHandle"), 0, "the memory was closed while a stream may use it");
            hold(&me.stream, false);
            drain_retired();
            me.barrier("closed");
            Calls::now().assert_balanced("after closing");
        }
        me.leave();
    });
}

#[test]
fn dropped_memory_stays_allocated_until_its_stream_completes() {
    Fakes::new().cuda().run(|| {
        let context = context(0);
        let stream = context.new_stream().expect("the stream is created");
        let (memory, mapping) = mapped(&context);
        let error = mapping.access(0, &stream).map(drop).expect_err("the device has no rights yet");
        assert!(matches!(&error, VmmError::Misuse(Misuse::Value { what: "rights", .. })), "{error}");
        mapping.allow(&[0], Rights::Read).expect("the device gets rights");
        let older = IpcMemory::alloc(&context, IpcMemory::STEP_BYTES).expect("there is enough memory");
        hold(&stream, true);
        assert_eq!(mapping.access(0, &stream).expect("the device has the right to read").address(), mapping.address());
        assert_eq!(older.access(&stream).address(), older.address());
        drop((mapping, older, memory));
        std::thread::sleep(Duration::from_millis(100));
        let calls = Calls::now();
        assert_eq!(
            (calls.good("cuMemUnmap"), calls.good("cuMemFreeAsync")),
            (0, 0),
            "the memory was released while a stream may use it"
        );
        hold(&stream, false);
        drain_retired();
        let calls = Calls::now();
        assert_eq!((calls.good("cuMemUnmap"), calls.good("cuMemFreeAsync")), (1, 1));
    });
}

#[test]
fn copies_on_a_captured_stream_are_refused() {
    use peerweave_driver::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
    Fakes::new().cuda().run(|| {
        let context = context(0);
        let stream = context.new_stream().expect("the stream is created");
        let (_memory, mapping) = mapped(&context);
        mapping.allow(&[0], Rights::ReadWrite).expect("the memory is mapped");
        let (mut view, other) =
            (mapping.memory::<u64>(0).expect("the device has rights"), mapping.memory::<u64>(0).expect("the device has rights"));
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("the capture begins");
        let values = vec![0; view.len()];
        for refused in [
            peerweave_vmm::zero(&stream, &mut view),
            peerweave_vmm::copy(&stream, &mut view, &other),
            peerweave_vmm::write(&stream, &mut view, &values, soon()),
            peerweave_vmm::read(&stream, &other, soon()).map(drop),
        ] {
            let error = refused.expect_err("the stream is being captured");
            assert!(matches!(error, VmmError::Driver(DriverError::Capturing { .. })), "{error}");
        }
        drop(stream.end_capture(CUgraphInstantiate_flags(0)));
    });
}

#[test]
fn weak_handles_cannot_be_upgraded_after_access_is_revoked() {
    Fakes::new().cuda().run(|| {
        let context = context(0);
        let granularity =
            Granularity::of_device(0, Exportable::NOWHERE).expect("the device has virtual memory management").recommended;
        let physical = PhysicalMemory::create(&context, granularity, Exportable::NOWHERE).expect("there is enough memory");
        let mapping = Reservation::new(&context, granularity, granularity).expect("the addresses are reserved").map(
            0,
            &physical,
            granularity,
        );
        let mapping = mapping.expect("the memory is mapped");
        mapping.allow(&[0], Rights::ReadWrite).expect("the device gets rights");
        let (of_mapping, of_memory) =
            (mapping.keep(), mapping.memory::<u8>(0).expect("the device has rights").keep().expect("the memory has an owner").1);
        let weak = [Arc::downgrade(&of_mapping), Arc::downgrade(&of_memory)];
        assert!(mapping.allow(&[0], Rights::None).is_err(), "rights were removed although an owner exists");
        drop((of_mapping, of_memory));
        mapping.allow(&[0], Rights::None).expect("no other handle exists");
        assert!(weak.iter().all(|weak| weak.upgrade().is_none()), "a weak handle can still be upgraded");
    });
}
