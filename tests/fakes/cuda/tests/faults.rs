//! Faults that a test orders: failing calls, missing functions, lies about versions and features, the log of calls.

use cudarc::driver::{CudaContext, CudaStream, DevicePtr, sys};
use peerweave_fakes::{Fakes, child};
use std::sync::Arc;
use sys::CUresult::*;

#[test]
fn a_call_fails_when_it_is_told_to() {
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_FAIL", "cuStreamCreate:2=2,cuEventCreate:*=999").run(|| {
        let context = CudaContext::new(0).unwrap();
        let first: Arc<CudaStream> = context.new_stream().unwrap();
        assert_eq!(context.new_stream().unwrap_err().0, CUDA_ERROR_OUT_OF_MEMORY);
        assert!(context.new_stream().is_ok());
        assert_eq!(first.record_event(None).unwrap_err().0, CUDA_ERROR_UNKNOWN);
        assert_eq!(first.record_event(None).unwrap_err().0, CUDA_ERROR_UNKNOWN);
    });
}

#[test]
fn a_function_that_is_taken_away_is_found_nowhere() {
    Fakes::new().cuda().without("cuMulticastCreate").without("cuMemCreate").run(|| {
        // SAFETY: looking up names; nothing is called through them.
        unsafe {
            let library = sys::culib();
            type Function = unsafe extern "C" fn();
            assert!(library.get::<Function>(b"cuMulticastCreate").is_err());
            assert!(library.get::<Function>(b"cuMemCreate").is_err());
            assert!(library.get::<Function>(b"cuInit").is_ok());
            assert!(library.get::<Function>(b"cuMemMap").is_ok());
        }
        CudaContext::new(0).unwrap();
        let mut function = core::ptr::null_mut();
        let mut status = sys::CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SUCCESS;
        // SAFETY: a name, and places for the answers.
        let code = unsafe { sys::cuGetProcAddress_v2(c"cuMemCreate".as_ptr(), &mut function, 12080, 0, &mut status) };
        assert_eq!(code, CUDA_ERROR_NOT_FOUND);
        assert!(function.is_null());
        assert_eq!(status, sys::CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    });
}

#[test]
fn a_driver_may_lie_about_itself() {
    Fakes::new()
        .cuda()
        .env("PEERWEAVE_FAKE_CUDA_VERSION", "11080")
        .env("PEERWEAVE_FAKE_CUDA_NO_POOLS", "1")
        .env("PEERWEAVE_FAKE_CUDA_NO_VMM", "1")
        .env("PEERWEAVE_FAKE_CUDA_NO_PEER", "0-1")
        .run(|| {
            let context = CudaContext::new(0).unwrap();
            let mut version = 0;
            // SAFETY: a place for a number.
            unsafe { sys::cuDriverGetVersion(&mut version) }.result().unwrap();
            assert_eq!(version, 11080);
            assert!(!context.has_async_alloc());
            let attribute = |which| context.attribute(which).unwrap();
            use sys::CUdevice_attribute::*;
            assert_eq!(attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED), 0);
            assert_eq!(attribute(CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED), 0);
            // Without pools cudarc allocates in order of the host.
            let stream = context.new_stream().unwrap();
            let there = stream.clone_htod(&[1_u8, 2, 3]).unwrap();
            assert_eq!(stream.clone_dtoh(&there).unwrap(), [1, 2, 3]);
            let mut can = 5;
            // SAFETY: a place for a number.
            unsafe { sys::cuDeviceCanAccessPeer(&mut can, 0, 1) }.result().unwrap();
            assert_eq!(can, 0);
            // SAFETY: as above.
            unsafe { sys::cuDeviceCanAccessPeer(&mut can, 1, 0) }.result().unwrap();
            assert_eq!(can, 1);
        });
}

#[test]
fn what_a_broken_pair_writes_is_lost() {
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_BROKEN_PEER", "0-1").run(|| {
        let contexts: Vec<_> = (0..2).map(|ordinal| CudaContext::new(ordinal).unwrap()).collect();
        let streams: Vec<_> = contexts.iter().map(|context| context.new_stream().unwrap()).collect();
        let mut can = 0;
        // SAFETY: a place for a number.
        unsafe { sys::cuDeviceCanAccessPeer(&mut can, 0, 1) }.result().unwrap();
        assert_eq!(can, 1);
        // In both directions, a copy by the stream of the device that the bytes come from.
        for (from, to, arrives) in [(0, 1, 0), (1, 0, 7)] {
            let source = streams[from].clone_htod(&[7_u32; 8]).unwrap();
            let target = streams[to].alloc_zeros::<u32>(8).unwrap();
            streams[from].synchronize().unwrap();
            streams[to].synchronize().unwrap();
            let (from_address, _guard) = source.device_ptr(&streams[from]);
            let (to_address, _other) = target.device_ptr(&streams[to]);
            contexts[from].bind_to_thread().unwrap();
            // SAFETY: 32 bytes of two live allocations.
            unsafe { sys::cuMemcpyDtoDAsync_v2(to_address, from_address, 32, streams[from].cu_stream()) }.result().unwrap();
            streams[from].synchronize().unwrap();
            assert_eq!(streams[to].clone_dtoh(&target).unwrap(), [arrives; 8]);
        }
    });
}

#[test]
fn the_log_shows_every_call_and_nothing_else() {
    const ME: &str = "the_log_shows_every_call_and_nothing_else";
    if child().is_some() {
        let mut count = 0;
        // SAFETY: a number, and a place for one.
        unsafe {
            sys::cuInit(0).result().unwrap();
            sys::cuDeviceGetCount(&mut count).result().unwrap();
        }
        return;
    }
    let output = Fakes::new().cuda().run_child(ME);
    assert!(output.passed(), "{output}");
    assert_eq!(output.calls, ["cuInit", "cuDeviceGetCount"]);
}

#[test]
fn errors_have_the_drivers_names() {
    Fakes::new().cuda().run(|| {
        let error = cudarc::driver::DriverError(CUDA_ERROR_OUT_OF_MEMORY);
        assert_eq!(error.error_name().unwrap().to_str(), Ok("CUDA_ERROR_OUT_OF_MEMORY"));
        assert_eq!(error.error_string().unwrap().to_str(), Ok("out of memory"));
    });
}

#[test]
fn kernels_are_refused() {
    Fakes::new().cuda().run(|| {
        let _context = CudaContext::new(0).unwrap();
        let mut module = core::ptr::null_mut();
        // SAFETY: a place for a handle, and an image that is a text.
        let code = unsafe { sys::cuModuleLoadData(&mut module, c".version 8.0".as_ptr().cast()) };
        assert_eq!(code, CUDA_ERROR_NO_BINARY_FOR_GPU);
    });
}
