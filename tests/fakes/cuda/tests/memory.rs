//! Memory: exhaustion, use after free and address queries, through cudarc and by raw calls.

use core::ffi::{c_int, c_void};

use cudarc::driver::{CudaContext, sys};
use peerweave_fakes::Fakes;
use sys::CUresult::*;

fn fakes() -> Fakes {
    Fakes::new().cuda()
}

/// Calls a function of the driver's C interface.
macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: the pointers are to live variables of the right types, or deliberately wrong
        // numbers that the fake looks up.
        unsafe { sys::$name($($argument),*) }
    };
}

fn allocate(bytes: usize) -> Result<u64, sys::CUresult> {
    let mut pointer = 0;
    match call!(cuMemAlloc_v2(&mut pointer, bytes)) {
        CUDA_SUCCESS => Ok(pointer),
        code => Err(code),
    }
}

#[test]
fn freed_memory_can_be_allocated_again() {
    fakes().env("PEERWEAVE_FAKE_CUDA_MEMORY_BYTES", (8 << 20).to_string()).run(|| {
        let context = CudaContext::new(0).unwrap();
        let other = CudaContext::new(1).unwrap();
        context.bind_to_thread().unwrap();
        let first = allocate(6 << 20).unwrap();
        assert_eq!(allocate(4 << 20), Err(CUDA_ERROR_OUT_OF_MEMORY));
        assert_eq!(context.mem_get_info().unwrap(), (2 << 20, 8 << 20));
        assert_eq!(other.mem_get_info().unwrap(), (8 << 20, 8 << 20));
        context.bind_to_thread().unwrap();
        assert_eq!(call!(cuMemFree_v2(first)), CUDA_SUCCESS);
        let again = allocate(8 << 20).unwrap();
        assert_eq!(call!(cuMemFree_v2(again)), CUDA_SUCCESS);
        assert_eq!(allocate(0), Err(CUDA_ERROR_INVALID_VALUE));
    });
}

#[test]
fn thousand_allocations_and_frees_leak_no_memory() {
    fakes().run(|| {
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        let before = context.mem_get_info().unwrap();
        for round in 1..1000 {
            let one = stream.alloc_zeros::<u8>(round * 37).unwrap();
            let two = stream.clone_htod(&vec![round; 300]).unwrap();
            drop(one);
            assert_eq!(stream.clone_dtoh(&two).unwrap()[299], round);
        }
        stream.synchronize().unwrap();
        assert_eq!(context.mem_get_info().unwrap(), before);
    });
}

#[test]
fn calls_on_freed_memory_return_invalid_value() {
    fakes().run(|| {
        let context = CudaContext::new(0).unwrap();
        context.bind_to_thread().unwrap();
        let pointer = allocate(4096).unwrap();
        assert_eq!(call!(cuMemFree_v2(pointer)), CUDA_SUCCESS);
        assert_eq!(call!(cuMemFree_v2(pointer)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(call!(cuMemsetD8_v2(pointer, 1, 16)), CUDA_ERROR_INVALID_VALUE);
        let mut host = [0_u8; 16];
        assert_eq!(call!(cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), pointer, 16)), CUDA_ERROR_INVALID_VALUE);
        let mut kind = 0_u32;
        let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
        assert_eq!(call!(cuPointerGetAttribute((&raw mut kind).cast::<c_void>(), attribute, pointer)), CUDA_ERROR_INVALID_VALUE);
    });
}

#[test]
fn queued_copy_of_freed_memory_fails_with_illegal_address() {
    fakes().run(|| {
        let context = CudaContext::new(0).unwrap();
        let (one, two) = (context.new_stream().unwrap(), context.new_stream().unwrap());
        let (mut from, mut to) = (0, 0);
        assert_eq!(call!(cuMemAllocAsync(&mut from, 4096, one.cu_stream())), CUDA_SUCCESS);
        assert_eq!(call!(cuMemAllocAsync(&mut to, 4096, one.cu_stream())), CUDA_SUCCESS);
        // SAFETY: the fake has these functions with these types.
        let (block, unblock) = unsafe {
            type Function = unsafe extern "C" fn(sys::CUstream) -> c_int;
            let library = sys::culib();
            (
                *library.get::<Function>(b"peerweave_fake_stream_block").unwrap(),
                *library.get::<Function>(b"peerweave_fake_stream_unblock").unwrap(),
            )
        };
        // SAFETY: the stream is live.
        assert_eq!(unsafe { block(one.cu_stream()) }, 0);
        assert_eq!(call!(cuMemcpyDtoDAsync_v2(to, from, 4096, one.cu_stream())), CUDA_SUCCESS);
        assert_eq!(call!(cuMemFreeAsync(from, two.cu_stream())), CUDA_SUCCESS);
        two.synchronize().unwrap();
        // SAFETY: the stream is live.
        assert_eq!(unsafe { unblock(one.cu_stream()) }, 0);
        assert_eq!(one.synchronize().unwrap_err().0, CUDA_ERROR_ILLEGAL_ADDRESS);
        assert_eq!(context.new_stream().unwrap_err().0, CUDA_ERROR_ILLEGAL_ADDRESS);
    });
}

#[test]
fn copy_beyond_an_allocation_is_refused() {
    fakes().run(|| {
        let context = CudaContext::new(0).unwrap();
        context.bind_to_thread().unwrap();
        let pointer = allocate(1000).unwrap();
        let _behind = allocate(1000).unwrap();
        let host = [7_u8; 2000];
        assert_eq!(call!(cuMemcpyHtoD_v2(pointer, host.as_ptr().cast(), 1001)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(call!(cuMemcpyHtoD_v2(pointer + 999, host.as_ptr().cast(), 1)), CUDA_SUCCESS);
        assert_eq!(call!(cuMemcpyHtoD_v2(pointer + 1000, host.as_ptr().cast(), 1)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(call!(cuMemcpyHtoD_v2(host.as_ptr() as u64, host.as_ptr().cast(), 1)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(call!(cuMemcpyHtoD_v2(0, host.as_ptr().cast(), 1)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(call!(cuMemsetD32_v2(pointer + 2, 1, 1)), CUDA_ERROR_INVALID_VALUE);
    });
}

#[test]
fn pointer_queries_return_the_device_and_allocation_bounds() {
    fakes().run(|| {
        let _first = CudaContext::new(0).unwrap();
        let context = CudaContext::new(3).unwrap();
        context.bind_to_thread().unwrap();
        let pointer = allocate(5000).unwrap();
        let mut ordinal = -1;
        let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        assert_eq!(call!(cuPointerGetAttribute((&raw mut ordinal).cast(), attribute, pointer + 4999)), CUDA_SUCCESS);
        assert_eq!(ordinal, 3);
        let (mut base, mut size) = (0, 0);
        assert_eq!(call!(cuMemGetAddressRange_v2(&mut base, &mut size, pointer + 77)), CUDA_SUCCESS);
        assert_eq!((base, size), (pointer, 5000));
        let mut attributes = [attribute, sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE];
        let (mut device, mut kind) = (0_i32, 9_u32);
        let mut data: [*mut c_void; 2] = [(&raw mut device).cast(), (&raw mut kind).cast()];
        let stack = (&raw const kind) as u64;
        assert_eq!(call!(cuPointerGetAttributes(2, attributes.as_mut_ptr(), data.as_mut_ptr(), stack)), CUDA_SUCCESS);
        assert_eq!((device, kind), (-2, 0));
        assert_eq!(call!(cuPointerGetAttributes(2, attributes.as_mut_ptr(), data.as_mut_ptr(), pointer)), CUDA_SUCCESS);
        assert_eq!((device, kind), (3, 2));
    });
}

#[test]
fn new_memory_holds_0xc3_bytes_and_pinned_memory_is_copied() {
    fakes().run(|| {
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        // SAFETY: every bit pattern is a u8.
        let fresh = unsafe { stream.alloc::<u8>(64) }.unwrap();
        assert_eq!(stream.clone_dtoh(&fresh).unwrap(), vec![0xC3; 64]);
        // SAFETY: the memory is written before it is read.
        let mut pinned = unsafe { context.alloc_pinned::<u32>(100) }.unwrap();
        pinned.as_mut_slice().unwrap().fill(5);
        let there = stream.clone_htod(&pinned).unwrap();
        assert_eq!(stream.clone_dtoh(&there).unwrap(), vec![5; 100]);
    });
}

#[test]
fn calls_with_invalid_handles_return_errors() {
    fakes().run(|| {
        let mut device = 0;
        assert_eq!(call!(cuDeviceGet(&mut device, 0)), CUDA_ERROR_NOT_INITIALIZED);
        assert_eq!(call!(cuInit(0)), CUDA_SUCCESS);
        assert_eq!(allocate(16), Err(CUDA_ERROR_INVALID_CONTEXT));
        let context = CudaContext::new(0).unwrap();
        let nonsense = 0x1234_5670 as *mut c_void;
        assert_eq!(call!(cuStreamSynchronize(nonsense.cast())), CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(call!(cuEventQuery(nonsense.cast())), CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(call!(cuCtxSetCurrent(nonsense.cast())), CUDA_ERROR_INVALID_CONTEXT);
        let mut stream = core::ptr::null_mut();
        assert_eq!(call!(cuStreamCreate(&mut stream, 0)), CUDA_SUCCESS);
        assert_eq!(call!(cuStreamDestroy_v2(stream)), CUDA_SUCCESS);
        assert_eq!(call!(cuStreamDestroy_v2(stream)), CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(call!(cuStreamCreate(core::ptr::null_mut(), 0)), CUDA_ERROR_INVALID_VALUE);
        let other = CudaContext::new(1).unwrap();
        let event = context.new_event(None).unwrap();
        let foreign = other.new_stream().unwrap();
        assert_eq!(call!(cuEventRecord(event.cu_event(), foreign.cu_stream())), CUDA_ERROR_INVALID_HANDLE);
    });
}

#[test]
fn destroyed_context_frees_memory_and_streams() {
    fakes().run(|| {
        let context = CudaContext::new(0).unwrap();
        context.bind_to_thread().unwrap();
        let before = context.mem_get_info().unwrap();
        let pointer = allocate(1 << 20).unwrap();
        let mut stream = core::ptr::null_mut();
        assert_eq!(call!(cuStreamCreate(&mut stream, 0)), CUDA_SUCCESS);
        drop(context);
        assert_eq!(call!(cuStreamQuery(stream)), CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(allocate(1), Err(CUDA_ERROR_CONTEXT_IS_DESTROYED));
        let context = CudaContext::new(0).unwrap();
        assert_eq!(context.mem_get_info().unwrap(), before);
        assert_eq!(call!(cuMemFree_v2(pointer)), CUDA_ERROR_INVALID_VALUE);
    });
}

#[test]
fn managed_memory_is_accessible_by_host_and_device() {
    fakes().run(|| {
        let context = CudaContext::new(1).unwrap();
        context.bind_to_thread().unwrap();
        let mut pointer = 0;
        assert_eq!(call!(cuMemAllocManaged(&mut pointer, 4096, 1)), CUDA_SUCCESS);
        // SAFETY: the host can access managed memory, and nothing else uses this memory now.
        unsafe { (pointer as *mut u32).write(77) };
        let mut out = 0_u32;
        assert_eq!(call!(cuMemcpyDtoH_v2((&raw mut out).cast(), pointer, 4)), CUDA_SUCCESS);
        assert_eq!(out, 77);
        let mut managed = 0_u8;
        let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED;
        assert_eq!(call!(cuPointerGetAttribute((&raw mut managed).cast(), attribute, pointer)), CUDA_SUCCESS);
        assert_eq!(managed, 1);
        assert_eq!(call!(cuMemAllocManaged(&mut pointer, 4096, 3)), CUDA_ERROR_INVALID_VALUE);
    });
}

#[test]
fn second_registration_of_host_memory_is_an_error() {
    fakes().run(|| {
        let context = CudaContext::new(0).unwrap();
        context.bind_to_thread().unwrap();
        let mut memory = vec![3_u8; 8192];
        let place = memory.as_mut_ptr().cast::<c_void>();
        assert_eq!(call!(cuMemHostRegister_v2(place, 8192, 0)), CUDA_SUCCESS);
        assert_eq!(call!(cuMemHostRegister_v2(place.wrapping_byte_add(100), 10, 0)), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        let mut device = 0;
        assert_eq!(call!(cuMemHostGetDevicePointer_v2(&mut device, place, 0)), CUDA_SUCCESS);
        // The device can access registered memory by this address.
        assert_eq!(call!(cuMemsetD8_v2(device + 8191, 9, 1)), CUDA_SUCCESS);
        assert_eq!(call!(cuCtxSynchronize()), CUDA_SUCCESS);
        assert_eq!(call!(cuMemFreeHost(place)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(call!(cuMemHostUnregister(place)), CUDA_SUCCESS);
        assert_eq!(call!(cuMemHostUnregister(place)), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
        assert_eq!(memory[8191], 9);
        assert_eq!(call!(cuMemsetD8_v2(device, 9, 1)), CUDA_ERROR_INVALID_VALUE);
    });
}

#[test]
fn contexts_form_a_stack_per_thread() {
    fakes().run(|| {
        let (one, two) = (CudaContext::new(0).unwrap(), CudaContext::new(1).unwrap());
        one.bind_to_thread().unwrap();
        assert_eq!(call!(cuCtxPushCurrent_v2(two.cu_ctx())), CUDA_SUCCESS);
        let mut device = -1;
        assert_eq!(call!(cuCtxGetDevice(&mut device)), CUDA_SUCCESS);
        assert_eq!(device, 1);
        let mut popped = std::ptr::null_mut();
        assert_eq!(call!(cuCtxPopCurrent_v2(&mut popped)), CUDA_SUCCESS);
        assert_eq!(popped, two.cu_ctx());
        assert_eq!(call!(cuCtxGetDevice(&mut device)), CUDA_SUCCESS);
        assert_eq!(device, 0);
        // A new thread has no current context.
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(call!(cuCtxSynchronize()), CUDA_ERROR_INVALID_CONTEXT));
        });
        let (mut flags, mut active) = (9, 9);
        assert_eq!(call!(cuDevicePrimaryCtxGetState(2, &mut flags, &mut active)), CUDA_SUCCESS);
        assert_eq!(active, 0);
        assert_eq!(call!(cuDevicePrimaryCtxRelease_v2(2)), CUDA_ERROR_INVALID_CONTEXT);
    });
}
