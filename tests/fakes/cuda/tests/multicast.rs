//! Multicast objects: stores that reach every device, in one process and across several; and
//! refused calls.

mod common;

use common::*;
use cudarc::driver::{CudaContext, sys};
use peerweave_fakes::{Child, Fakes};
use sys::CUresult::*;

fn fakes() -> Fakes {
    Fakes::new().cuda()
}

fn object_prop(devices: u32, size: usize) -> sys::CUmulticastObjectProp {
    sys::CUmulticastObjectProp { numDevices: devices, size, handleTypes: u64::from(POSIX.0), flags: 0 }
}

fn create_object(devices: u32, size: usize) -> Result<u64, sys::CUresult> {
    let mut handle = 0;
    match call!(cuMulticastCreate(&mut handle, &object_prop(devices, size))) {
        CUDA_SUCCESS => Ok(handle),
        code => Err(code),
    }
}

fn store(address: u64, values: &[u32]) -> i32 {
    type Store = unsafe extern "C" fn(u64, *const core::ffi::c_void, usize) -> core::ffi::c_int;
    // SAFETY: the fake has this function with this type, and the bytes live for the call.
    unsafe {
        let store = *sys::culib().get::<Store>(b"peerweave_fake_multicast_store").unwrap();
        store(address, values.as_ptr().cast(), size_of_val(values))
    }
}

/// Creates a multicast object for devices of this process. Returns the object, its address for
/// device 0, and the address of a mapping of each device's memory.
fn team(devices: i32) -> (u64, u64, Vec<u64>) {
    let object = create_object(devices as u32, 2 * PIECE).unwrap();
    for device in 0..devices {
        assert_eq!(call!(cuMulticastAddDevice(object, device)), CUDA_SUCCESS);
    }
    let views = (0..devices)
        .map(|device| {
            let memory = create(device, 2 * PIECE).unwrap();
            assert_eq!(call!(cuMulticastBindMem(object, 0, memory, 0, 2 * PIECE, 0)), CUDA_SUCCESS);
            let view = map(memory, 2 * PIECE, 0);
            assert_eq!(call!(cuMemRelease(memory)), CUDA_SUCCESS);
            view
        })
        .collect();
    let address = map(object, 2 * PIECE, 0);
    (object, address, views)
}

#[test]
fn multicast_store_reaches_the_memory_of_every_device() {
    fakes().run(|| {
        let context = CudaContext::new(0).unwrap();
        use sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED as SUPPORTED;
        assert_eq!(context.attribute(SUPPORTED).unwrap(), 1);
        for devices in 2..=8 {
            let (_, address, views) = team(devices);
            fill(address + PIECE as u64 - 8, 3, 4);
            assert_eq!(store(address, &[1, 2]), 0);
            let host = [8_u32; 5];
            assert_eq!(call!(cuMemcpyHtoD_v2(address + 100, host.as_ptr().cast(), 20)), CUDA_SUCCESS);
            for view in views {
                assert_eq!(words(view + PIECE as u64 - 8, 4), [3; 4]);
                assert_eq!(words(view, 3), [1, 2, 0xC3C3_C3C3]);
                assert_eq!(words(view + 100, 6), [8, 8, 8, 8, 8, 0xC3C3_C3C3]);
            }
        }
    });
}

#[test]
fn host_store_to_a_multicast_address_faults() {
    const ME: &str = "host_store_to_a_multicast_address_faults";
    if peerweave_fakes::child().is_some() {
        let _context = CudaContext::new(0).unwrap();
        let (_, address, _) = team(2);
        println!("about to store");
        // SAFETY: the store faults on purpose: the parent checks that the child ends with this
        // fault.
        unsafe { (address as *mut u32).write_volatile(1) };
        println!("stored");
        return;
    }
    let output = fakes().run_child(ME);
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(output.status.signal(), Some(11), "{output}");
    assert!(output.stdout.contains("about to store") && !output.stdout.contains("stored\n"), "{output}");
}

#[test]
fn multicast_address_cannot_be_read() {
    fakes().run(|| {
        let _context = CudaContext::new(0).unwrap();
        let (_, address, _) = team(2);
        let mut out = [0_u32; 1];
        assert_eq!(call!(cuMemcpyDtoH_v2(out.as_mut_ptr().cast(), address, 4)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(store(address + 2 * PIECE as u64 - 4, &[1, 2]), CUDA_ERROR_INVALID_VALUE as i32);
    });
}

#[test]
fn multicast_steps_in_the_wrong_order_fail() {
    fakes().env("PEERWEAVE_FAKE_CUDA_TEAM_WAIT_MS", "50").run(|| {
        let _context = CudaContext::new(0).unwrap();
        assert_eq!(create_object(2, PIECE + 1), Err(CUDA_ERROR_INVALID_VALUE));
        assert_eq!(create_object(0, PIECE), Err(CUDA_ERROR_INVALID_VALUE));
        let object = create_object(2, 2 * PIECE).unwrap();
        let memories = [create(0, 2 * PIECE).unwrap(), create(1, 2 * PIECE).unwrap(), create(2, 2 * PIECE).unwrap()];
        let bind =
            |at: usize, memory: u64, from: usize, size: usize| call!(cuMulticastBindMem(object, at, memory, from, size, 0));
        assert_eq!(call!(cuMulticastAddDevice(object, 0)), CUDA_SUCCESS);
        assert_eq!(call!(cuMulticastAddDevice(object, 0)), CUDA_ERROR_INVALID_VALUE);
        // Binding and mapping wait for the second device, which is not added yet.
        assert_eq!(bind(0, memories[0], 0, PIECE), CUDA_ERROR_SYSTEM_NOT_READY);
        let address = reserve(2 * PIECE);
        assert_eq!(call!(cuMemMap(address, 2 * PIECE, 0, object, 0)), CUDA_ERROR_SYSTEM_NOT_READY);
        assert_eq!(call!(cuMulticastAddDevice(object, 1)), CUDA_SUCCESS);
        assert_eq!(call!(cuMulticastAddDevice(object, 2)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(bind(0, memories[2], 0, PIECE), CUDA_ERROR_INVALID_DEVICE);
        assert_eq!(bind(4096, memories[0], 0, PIECE), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(bind(PIECE, memories[0], 0, 2 * PIECE), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(bind(0, memories[0], PIECE, 2 * PIECE), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(bind(0, object, 0, PIECE), CUDA_ERROR_INVALID_VALUE);
        let mut private = 0;
        let unshared = prop(0, sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE);
        assert_eq!(call!(cuMemCreate(&mut private, PIECE, &unshared, 0)), CUDA_SUCCESS);
        assert_eq!(bind(0, private, 0, PIECE), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(bind(PIECE, memories[0], 0, PIECE), CUDA_SUCCESS);
        assert_eq!(bind(PIECE, memories[0], PIECE, PIECE), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(call!(cuMemMap(address, 2 * PIECE, 0, object, 0)), CUDA_SUCCESS);
        assert_eq!(allow(address, 2 * PIECE, 2, READ_WRITE), CUDA_ERROR_INVALID_DEVICE);
        assert_eq!(allow(address, 2 * PIECE, 0, READ_WRITE), CUDA_SUCCESS);
        // Device 1 has bound no memory yet, so the store has no target on that device.
        assert_eq!(store(address + PIECE as u64, &[1]), CUDA_ERROR_ILLEGAL_ADDRESS as i32);
        assert_eq!(bind(PIECE, memories[1], PIECE, PIECE), CUDA_SUCCESS);
        assert_eq!(store(address + PIECE as u64, &[1]), 0);
        assert_eq!(store(address, &[1]), CUDA_ERROR_ILLEGAL_ADDRESS as i32);
        assert_eq!(call!(cuMulticastUnbind(object, 1, 0, PIECE)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(call!(cuMulticastUnbind(object, 1, PIECE, PIECE)), CUDA_SUCCESS);
        assert_eq!(call!(cuMulticastUnbind(object, 1, PIECE, PIECE)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(store(address + PIECE as u64, &[1]), CUDA_ERROR_ILLEGAL_ADDRESS as i32);
    });
}

#[test]
fn multicast_bound_memory_is_freed_after_unbinding() {
    fakes().run(|| {
        let context = CudaContext::new(0).unwrap();
        let free = |context: &CudaContext| context.mem_get_info().unwrap().0;
        let before = free(&context);
        let (object, address, views) = team(2);
        for view in &views {
            assert_eq!(call!(cuMemUnmap(*view, 2 * PIECE)), CUDA_SUCCESS);
        }
        assert_eq!(free(&context), before - 2 * PIECE);
        assert_eq!(store(address, &[5]), 0);
        assert_eq!(call!(cuMulticastUnbind(object, 0, 0, 2 * PIECE)), CUDA_SUCCESS);
        assert_eq!(free(&context), before);
        // Releasing the last mapping and handle of the object also unbinds memory that is still
        // bound.
        let other = CudaContext::new(1).unwrap();
        assert!(free(&other) < before);
        assert_eq!(call!(cuMemUnmap(address, 2 * PIECE)), CUDA_SUCCESS);
        assert!(free(&other) < before);
        assert_eq!(call!(cuMemRelease(object)), CUDA_SUCCESS);
        assert_eq!(free(&other), before);
    });
}

#[test]
fn multicast_store_reaches_memory_bound_by_address() {
    fakes().run(|| {
        let _context = CudaContext::new(0).unwrap();
        let object = create_object(2, PIECE).unwrap();
        let mut views = Vec::new();
        for device in 0..2 {
            assert_eq!(call!(cuMulticastAddDevice(object, device)), CUDA_SUCCESS);
        }
        for device in 0..2 {
            let view = map(create(device, 2 * PIECE).unwrap(), 2 * PIECE, 0);
            let at = view + PIECE as u64;
            assert_eq!(call!(cuMulticastBindAddr(object, 0, at + 4, PIECE, 0)), CUDA_ERROR_INVALID_VALUE);
            assert_eq!(call!(cuMulticastBindAddr_v2(object, 1 - device, 0, at, PIECE, 0)), CUDA_ERROR_INVALID_DEVICE);
            assert_eq!(call!(cuMulticastBindAddr_v2(object, device, 0, at, PIECE, 0)), CUDA_SUCCESS);
            views.push(at);
        }
        let address = map(object, PIECE, 0);
        assert_eq!(store(address + 12, &[9]), 0);
        for view in views {
            assert_eq!(words(view + 8, 2), [0xC3C3_C3C3, 9]);
        }
    });
}

#[test]
fn minimum_and_recommended_multicast_granularity_differ() {
    fakes().run(|| {
        let _context = CudaContext::new(0).unwrap();
        use sys::CUmulticastGranularity_flags_enum::*;
        let (mut least, mut recommended) = (0, 0);
        let prop = object_prop(2, PIECE);
        assert_eq!(call!(cuMulticastGetGranularity(&mut least, &prop, CU_MULTICAST_GRANULARITY_MINIMUM)), CUDA_SUCCESS);
        assert_eq!(call!(cuMulticastGetGranularity(&mut recommended, &prop, CU_MULTICAST_GRANULARITY_RECOMMENDED)), CUDA_SUCCESS);
        assert_eq!(least, PIECE);
        assert!(recommended > least && recommended.is_multiple_of(least));
    });
}

#[test]
fn missing_multicast_support_is_reported() {
    fakes().env("PEERWEAVE_FAKE_CUDA_NO_MULTICAST", "1").run(|| {
        let context = CudaContext::new(0).unwrap();
        use sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED as SUPPORTED;
        assert_eq!(context.attribute(SUPPORTED).unwrap(), 0);
        assert_eq!(create_object(2, PIECE), Err(CUDA_ERROR_NOT_SUPPORTED));
    });
}

/// Makes the child one device of the team: binds its memory and maps the object. Returns the
/// object, its address, and the address of the memory.
fn join(me: &Child) -> (u64, u64, u64) {
    let device = me.rank as i32;
    let object = if me.rank == 0 {
        let object = create_object(me.count as u32, PIECE).unwrap();
        share(me, "object", Some(&export(object)));
        object
    } else {
        import(&share(me, "object", None).expect("this child receives a descriptor")).unwrap()
    };
    assert_eq!(call!(cuMulticastAddDevice(object, device)), CUDA_SUCCESS);
    let memory = create(device, PIECE).unwrap();
    // This call waits for the devices that the other children add.
    assert_eq!(call!(cuMulticastBindMem(object, 0, memory, 0, PIECE, 0)), CUDA_SUCCESS);
    (object, map(object, PIECE, device), map(memory, PIECE, device))
}

#[test]
fn multicast_store_reaches_the_memory_of_all_processes() {
    fakes().run_many(4, |me| {
        let _context = CudaContext::new(me.rank).unwrap();
        let (object, address, view) = join(&me);
        me.meet("bound");
        fill(address + 64 * me.rank as u64, 1000 + me.rank as u32, 4);
        me.meet("stored");
        for rank in 0..me.count {
            assert_eq!(words(view + 64 * rank as u64, 4), [1000 + rank as u32; 4]);
        }
        me.meet("read");
        assert_eq!(call!(cuMulticastUnbind(object, me.rank as i32, 0, PIECE)), CUDA_SUCCESS);
        me.meet("unbound");
        assert_eq!(store(address, &[1]), CUDA_ERROR_ILLEGAL_ADDRESS as i32);
    });
}

#[test]
fn multicast_store_fails_after_a_participating_process_ends() {
    fakes().run_many(3, |me| {
        let _context = CudaContext::new(me.rank).unwrap();
        let (_, address, _) = join(&me);
        me.put_file(&format!("pid.{}", me.rank), std::process::id().to_string().as_bytes());
        me.meet("bound");
        if me.rank == 2 {
            return;
        }
        let pid = std::fs::read_to_string(me.file("pid.2")).unwrap();
        let is_gone = || {
            let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            state.is_empty() || state.contains(") Z ")
        };
        while !is_gone() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(store(address, &[1]), CUDA_ERROR_ILLEGAL_ADDRESS as i32);
    });
}
