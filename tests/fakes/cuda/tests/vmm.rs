//! Virtual memory: mapping, access rights, sharing between processes by descriptors, by fabric
//! handles and by legacy IPC.

mod common;

use common::*;
use cudarc::driver::{CudaContext, sys};
use peerweave_fakes::Fakes;
use sys::CUresult::*;

fn fakes() -> Fakes {
    Fakes::new().cuda()
}

#[test]
fn mapped_memory_is_accessible_until_unmapped() {
    fakes().run(|| {
        let context = CudaContext::new(0).unwrap();
        let before = context.mem_get_info().unwrap();
        context.bind_to_thread().unwrap();
        let handle = create(0, 2 * PIECE).unwrap();
        let address = map(handle, 2 * PIECE, 0);
        fill(address, 7, PIECE / 2);
        assert_eq!(words(address + 2 * PIECE as u64 - 8, 2), [7, 7]);
        // The mapping keeps the memory after the handle is released.
        assert_eq!(call!(cuMemRelease(handle)), CUDA_SUCCESS);
        assert_eq!(call!(cuMemRelease(handle)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(words(address, 1), [7]);
        assert_ne!(context.mem_get_info().unwrap(), before);
        assert_eq!(call!(cuMemUnmap(address, 2 * PIECE)), CUDA_SUCCESS);
        assert_eq!(context.mem_get_info().unwrap(), before);
        assert_eq!(call!(cuMemsetD8_v2(address, 1, 1)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(call!(cuMemAddressFree(address, 2 * PIECE)), CUDA_SUCCESS);
    });
}

#[test]
fn invalid_mapping_calls_return_errors() {
    fakes().run(|| {
        let _context = CudaContext::new(0).unwrap();
        assert_eq!(create(0, PIECE + 4096), Err(CUDA_ERROR_INVALID_VALUE));
        assert_eq!(create(0, 0), Err(CUDA_ERROR_INVALID_VALUE));
        assert_eq!(create(99, PIECE), Err(CUDA_ERROR_INVALID_DEVICE));
        let handle = create(0, PIECE).unwrap();
        let address = reserve(2 * PIECE);
        assert_eq!(call!(cuMemMap(address, 2 * PIECE, 0, handle, 0)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(call!(cuMemMap(address + 4096, PIECE, 0, handle, 0)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(call!(cuMemMap(address + 2 * PIECE as u64, PIECE, 0, handle, 0)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(call!(cuMemMap(address, PIECE, 0, handle + 16, 0)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(call!(cuMemMap(address, PIECE, PIECE, handle, 0)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(call!(cuMemMap(address, PIECE, 0, handle, 0)), CUDA_SUCCESS);
        assert_eq!(call!(cuMemMap(address, PIECE, 0, handle, 0)), CUDA_ERROR_INVALID_VALUE);
        // A mapping without access rights cannot be accessed.
        assert_eq!(call!(cuMemsetD8_v2(address, 1, 1)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(allow(address, 2 * PIECE, 0, READ_WRITE), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(allow(address, PIECE, 0, READ), CUDA_SUCCESS);
        assert_eq!(call!(cuMemsetD8_v2(address, 1, 1)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(words(address, 1), [0xC3C3_C3C3]);
        let mut flags = 9;
        assert_eq!(call!(cuMemGetAccess(&mut flags, &location(0), address)), CUDA_SUCCESS);
        assert_eq!(flags, 1);
        assert_eq!(call!(cuMemAddressFree(address, 2 * PIECE)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(call!(cuMemUnmap(address, 2 * PIECE)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(call!(cuMemUnmap(address, PIECE)), CUDA_SUCCESS);
        assert_eq!(call!(cuMemAddressFree(address, PIECE)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(call!(cuMemAddressFree(address, 2 * PIECE)), CUDA_SUCCESS);
    });
}

#[test]
fn allocation_beyond_the_free_memory_is_out_of_memory() {
    fakes().env("PEERWEAVE_FAKE_CUDA_MEMORY_BYTES", (3 * PIECE).to_string()).run(|| {
        let context = CudaContext::new(0).unwrap();
        let one = create(0, 2 * PIECE).unwrap();
        assert_eq!(create(0, 2 * PIECE), Err(CUDA_ERROR_OUT_OF_MEMORY));
        assert!(create(1, 2 * PIECE).is_ok());
        assert_eq!(call!(cuMemRelease(one)), CUDA_SUCCESS);
        assert!(create(0, 2 * PIECE).is_ok());
        assert_eq!(context.mem_get_info().unwrap().0, PIECE);
    });
}

#[test]
fn one_copy_can_span_adjacent_mappings() {
    fakes().run(|| {
        let _context = CudaContext::new(0).unwrap();
        let base = reserve(4 * PIECE);
        assert_eq!(base % PIECE as u64, 0);
        let mut handles = Vec::new();
        for (index, device) in [(0, 0), (1, 1)] {
            let handle = create(device, PIECE).unwrap();
            let at = base + (index * PIECE) as u64;
            handles.push(handle);
            assert_eq!(call!(cuMemMap(at, PIECE, 0, handle, 0)), CUDA_SUCCESS);
            assert_eq!(call!(cuMemRelease(handle)), CUDA_SUCCESS);
        }
        assert_eq!(allow(base, 2 * PIECE, 0, READ_WRITE), CUDA_SUCCESS);
        fill(base + PIECE as u64 - 8, 5, 4);
        assert_eq!(words(base + PIECE as u64 - 12, 6), [0xC3C3_C3C3, 5, 5, 5, 5, 0xC3C3_C3C3]);
        assert_eq!(call!(cuMemsetD8_v2(base + 2 * PIECE as u64 - 1, 1, 2)), CUDA_ERROR_INVALID_VALUE);
        let mut handle = 0;
        assert_eq!(call!(cuMemRetainAllocationHandle(&mut handle, (base + PIECE as u64 + 5) as *mut _)), CUDA_SUCCESS);
        assert_eq!(handle, handles[1], "expected the handle by which the memory was mapped");
        let mut found = prop(0, POSIX);
        assert_eq!(call!(cuMemGetAllocationPropertiesFromHandle(&mut found, handle)), CUDA_SUCCESS);
        // SAFETY: a location has two words, and the second is the number of the device.
        assert_eq!(unsafe { (&raw const found.location).cast::<i32>().add(1).read() }, 1);
        assert_eq!(call!(cuMemRelease(handle)), CUDA_SUCCESS);
        assert_eq!(call!(cuMemRelease(handle)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(call!(cuMemUnmap(base, 2 * PIECE)), CUDA_SUCCESS);
    });
}

#[test]
fn descriptor_shares_memory_with_other_processes() {
    fakes().run_many(3, |me| {
        let _context = CudaContext::new(me.rank).unwrap();
        let handle = if me.rank == 0 {
            let handle = create(0, PIECE).unwrap();
            share(&me, "memory", Some(&export(handle)));
            handle
        } else {
            import(&share(&me, "memory", None).expect("this child receives a descriptor")).unwrap()
        };
        let address = map(handle, PIECE, me.rank as i32);
        assert_eq!(call!(cuMemRelease(handle)), CUDA_SUCCESS);
        fill(address + 4 * me.rank as u64, 100 + me.rank as u32, 1);
        me.meet("written");
        assert_eq!(words(address, 3), [100, 101, 102]);
        let mut ordinal = -1;
        let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        assert_eq!(call!(cuPointerGetAttribute((&raw mut ordinal).cast(), attribute, address)), CUDA_SUCCESS);
        assert_eq!(ordinal, 0);
        me.meet("read");
    });
}

#[test]
fn import_of_other_files_and_export_of_private_memory_fail() {
    fakes().run(|| {
        let _context = CudaContext::new(0).unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(import(&file.into()), Err(CUDA_ERROR_INVALID_VALUE));
        let mut handle = 0;
        assert_eq!(call!(cuMemImportFromShareableHandle(&mut handle, 9999 as *mut _, POSIX)), CUDA_ERROR_INVALID_VALUE);
        let private = {
            let mut handle = 0;
            let types = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
            assert_eq!(call!(cuMemCreate(&mut handle, PIECE, &prop(0, types), 0)), CUDA_SUCCESS);
            handle
        };
        let mut fd = -1_i32;
        let code = call!(cuMemExportToShareableHandle((&raw mut fd).cast(), private, POSIX, 0));
        assert_eq!(code, CUDA_ERROR_INVALID_VALUE);
    });
}

#[test]
fn fabric_handle_type_is_refused_if_no_fabric_directory_is_set() {
    fakes().run(|| {
        let _context = CudaContext::new(0).unwrap();
        let mut handle = 0;
        assert_eq!(call!(cuMemCreate(&mut handle, PIECE, &prop(0, FABRIC), 0)), CUDA_ERROR_NOT_SUPPORTED);
    });
}

#[test]
fn fabric_handle_can_be_copied_as_bytes() {
    let directory = tempfile::tempdir().unwrap();
    fakes().env("PEERWEAVE_FAKE_CUDA_FABRIC_DIR", directory.path()).run_many(2, |me| {
        let context = CudaContext::new(me.rank).unwrap();
        use sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED as SUPPORTED;
        assert_eq!(context.attribute(SUPPORTED).unwrap(), 1);
        let mut handle = 0;
        if me.rank == 0 {
            assert_eq!(call!(cuMemCreate(&mut handle, PIECE, &prop(0, FABRIC), 0)), CUDA_SUCCESS);
            let address = map(handle, PIECE, 0);
            fill(address, 42, 4);
            let mut bytes = [0_u8; 64];
            assert_eq!(call!(cuMemExportToShareableHandle(bytes.as_mut_ptr().cast(), handle, FABRIC, 0)), CUDA_SUCCESS);
            me.put_file("handle", &bytes);
            me.meet("done");
        } else {
            let mut bytes = std::fs::read(me.file("handle")).unwrap();
            assert_eq!(call!(cuMemImportFromShareableHandle(&mut handle, bytes.as_mut_ptr().cast(), FABRIC)), CUDA_SUCCESS);
            assert_eq!(words(map(handle, PIECE, 1), 4), [42; 4]);
            bytes[9] ^= 1;
            let code = call!(cuMemImportFromShareableHandle(&mut handle, bytes.as_mut_ptr().cast(), FABRIC));
            assert_eq!(code, CUDA_ERROR_INVALID_VALUE);
            me.meet("done");
        }
    });
}

#[test]
fn legacy_ipc_handle_shares_an_allocation() {
    fakes().run_many(2, |me| {
        let context = CudaContext::new(me.rank).unwrap();
        context.bind_to_thread().unwrap();
        // SAFETY: the handle is an array of 64 bytes, and zero is valid for each byte.
        let mut handle: sys::CUipcMemHandle = unsafe { std::mem::zeroed() };
        let place = (&raw mut handle).cast::<u8>();
        if me.rank == 0 {
            let mut pointer = 0;
            assert_eq!(call!(cuMemAlloc_v2(&mut pointer, 5000)), CUDA_SUCCESS);
            fill(pointer, 11, 1250);
            assert_eq!(call!(cuIpcGetMemHandle(&mut handle, pointer)), CUDA_SUCCESS);
            let mut here = 0;
            assert_eq!(call!(cuIpcOpenMemHandle_v2(&mut here, handle, 1)), CUDA_ERROR_INVALID_CONTEXT);
            // SAFETY: `place` points to the 64 bytes of the handle.
            me.put_file("handle", unsafe { std::slice::from_raw_parts(place, 64) });
            me.meet("changed");
            assert_eq!(words(pointer, 3), [12, 11, 11]);
            me.meet("closed");
            let mut pool = 0;
            assert_eq!(call!(cuMemAllocAsync(&mut pool, 100, std::ptr::null_mut())), CUDA_SUCCESS);
            assert_eq!(call!(cuIpcGetMemHandle(&mut handle, pool)), CUDA_ERROR_INVALID_VALUE);
        } else {
            let bytes = std::fs::read(me.file("handle")).unwrap();
            // SAFETY: the source and the target have 64 bytes each.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, 64) };
            let (mut pointer, mut again) = (0, 0);
            assert_eq!(call!(cuIpcOpenMemHandle_v2(&mut pointer, handle, 0)), CUDA_ERROR_INVALID_VALUE);
            assert_eq!(call!(cuIpcOpenMemHandle_v2(&mut pointer, handle, 1)), CUDA_SUCCESS);
            assert_eq!(call!(cuIpcOpenMemHandle_v2(&mut again, handle, 1)), CUDA_SUCCESS);
            assert_eq!(pointer, again);
            assert_eq!(words(pointer, 1250), [11; 1250]);
            assert_eq!(call!(cuMemsetD32_v2(pointer + 4996, 1, 2)), CUDA_ERROR_INVALID_VALUE);
            assert_eq!(call!(cuMemFree_v2(pointer)), CUDA_ERROR_INVALID_VALUE);
            fill(pointer, 12, 1);
            me.meet("changed");
            assert_eq!(call!(cuIpcCloseMemHandle(pointer)), CUDA_SUCCESS);
            assert_eq!(words(pointer, 1), [12]);
            assert_eq!(call!(cuIpcCloseMemHandle(pointer)), CUDA_SUCCESS);
            assert_eq!(call!(cuIpcCloseMemHandle(pointer)), CUDA_ERROR_INVALID_VALUE);
            me.meet("closed");
        }
    });
}

#[test]
fn ipc_handle_of_a_dead_process_does_not_open() {
    fakes().run_many(2, |me| {
        let context = CudaContext::new(me.rank).unwrap();
        context.bind_to_thread().unwrap();
        // SAFETY: the handle is an array of 64 bytes, and zero is valid for each byte.
        let mut handle: sys::CUipcMemHandle = unsafe { std::mem::zeroed() };
        let place = (&raw mut handle).cast::<u8>();
        if me.rank == 0 {
            let mut pointer = 0;
            assert_eq!(call!(cuMemAlloc_v2(&mut pointer, 64)), CUDA_SUCCESS);
            assert_eq!(call!(cuIpcGetMemHandle(&mut handle, pointer)), CUDA_SUCCESS);
            // SAFETY: `place` points to the 64 bytes of the handle.
            me.put_file("handle", unsafe { std::slice::from_raw_parts(place, 64) });
            me.put_file("pid", std::process::id().to_string().as_bytes());
        } else {
            let bytes = std::fs::read(me.file("handle")).unwrap();
            let pid = std::fs::read_to_string(me.file("pid")).unwrap();
            let is_gone = || {
                let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
                state.is_empty() || state.contains(") Z ")
            };
            while !is_gone() {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            // SAFETY: the source and the target have 64 bytes each.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, 64) };
            let mut pointer = 0;
            assert_eq!(call!(cuIpcOpenMemHandle_v2(&mut pointer, handle, 1)), CUDA_ERROR_INVALID_VALUE);
        }
    });
}

#[test]
fn ipc_event_can_be_awaited_in_another_process() {
    fakes().run_many(2, |me| {
        let context = CudaContext::new(me.rank).unwrap();
        let stream = context.new_stream().unwrap();
        // SAFETY: the handle is an array of 64 bytes, and zero is valid for each byte.
        let mut handle: sys::CUipcEventHandle = unsafe { std::mem::zeroed() };
        let place = (&raw mut handle).cast::<u8>();
        let mut event = std::ptr::null_mut();
        if me.rank == 0 {
            assert_eq!(call!(cuEventCreate(&mut event, 4)), CUDA_ERROR_INVALID_VALUE);
            assert_eq!(call!(cuEventCreate(&mut event, 6)), CUDA_SUCCESS);
            assert_eq!(call!(cuIpcGetEventHandle(&mut handle, event)), CUDA_SUCCESS);
            /// # Safety
            /// None: the function accesses nothing.
            unsafe extern "C" fn nap(_: *mut core::ffi::c_void) {
                std::thread::sleep(std::time::Duration::from_millis(60));
            }
            assert_eq!(call!(cuLaunchHostFunc(stream.cu_stream(), Some(nap), std::ptr::null_mut())), CUDA_SUCCESS);
            assert_eq!(call!(cuEventRecord(event, stream.cu_stream())), CUDA_SUCCESS);
            // SAFETY: `place` points to the 64 bytes of the handle.
            me.put_file("handle", unsafe { std::slice::from_raw_parts(place, 64) });
            me.meet("waited");
        } else {
            let bytes = std::fs::read(me.file("handle")).unwrap();
            // SAFETY: the source and the target have 64 bytes each.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, 64) };
            assert_eq!(call!(cuIpcOpenEventHandle(&mut event, handle)), CUDA_SUCCESS);
            assert_eq!(call!(cuStreamWaitEvent(stream.cu_stream(), event, 0)), CUDA_SUCCESS);
            stream.synchronize().unwrap();
            assert_eq!(call!(cuEventQuery(event)), CUDA_SUCCESS);
            me.meet("waited");
        }
    });
}

#[test]
fn processes_that_see_different_devices_share_memory() {
    fakes().run_many(2, |me| {
        // SAFETY: the process has no other thread yet.
        unsafe { std::env::set_var("CUDA_VISIBLE_DEVICES", (me.rank + 4).to_string()) };
        assert_eq!(CudaContext::device_count().unwrap(), 1);
        let context = CudaContext::new(0).unwrap();
        use sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID as BUS;
        assert_eq!(context.attribute(BUS).unwrap(), 0x14 + me.rank as i32);
        let handle = if me.rank == 0 {
            let handle = create(0, PIECE).unwrap();
            share(&me, "memory", Some(&export(handle)));
            handle
        } else {
            import(&share(&me, "memory", None).expect("this child receives a descriptor")).unwrap()
        };
        let address = map(handle, PIECE, 0);
        if me.rank == 0 {
            fill(address, 6, 8);
        }
        me.meet("written");
        assert_eq!(words(address, 8), [6; 8]);
        let mut ordinal = 7;
        let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        assert_eq!(call!(cuPointerGetAttribute((&raw mut ordinal).cast(), attribute, address)), CUDA_SUCCESS);
        assert_eq!(ordinal, if me.rank == 0 { 0 } else { -2 });
        me.meet("read");
    });
}
