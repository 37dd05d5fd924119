//! Faults that a test injects: failing calls, missing functions, emulated versions and features.
//! Also tests the log of calls.

use cudarc::driver::{CudaContext, CudaStream, DevicePtr, sys};
use peerweave_fakes::{Fakes, child};
use std::sync::Arc;
use sys::CUresult::*;

#[test]
fn injected_faults_fail_the_selected_driver_calls() {
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
fn lookup_of_a_removed_function_fails() {
    Fakes::new().cuda().without("cuMulticastCreate").without("cuMemCreate").run(|| {
        // SAFETY: the names are only looked up, and nothing is called.
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
        // SAFETY: the name is a C string, and the pointers are valid for the results.
        let code = unsafe { sys::cuGetProcAddress_v2(c"cuMemCreate".as_ptr(), &mut function, 12080, 0, &mut status) };
        assert_eq!(code, CUDA_ERROR_NOT_FOUND);
        assert!(function.is_null());
        assert_eq!(status, sys::CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    });
}

#[test]
fn environment_variables_change_the_reported_features() {
    Fakes::new()
        .cuda()
        .env("PEERWEAVE_FAKE_CUDA_VERSION", "11080")
        .env("PEERWEAVE_FAKE_CUDA_NO_POOLS", "1")
        .env("PEERWEAVE_FAKE_CUDA_NO_VMM", "1")
        .env("PEERWEAVE_FAKE_CUDA_NO_PEER", "0-1")
        .run(|| {
            let context = CudaContext::new(0).unwrap();
            let mut version = 0;
            // SAFETY: the pointer is valid for a number.
            unsafe { sys::cuDriverGetVersion(&mut version) }.result().unwrap();
            assert_eq!(version, 11080);
            assert!(!context.has_async_alloc());
            let attribute = |which| context.attribute(which).unwrap();
            use sys::CUdevice_attribute::*;
            assert_eq!(attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED), 0);
            // A later version of the driver introduced this attribute.
            let unknown = context.attribute(CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED);
            assert_eq!(unknown.unwrap_err().0, CUDA_ERROR_INVALID_VALUE);
            // Without pools, cudarc allocates memory synchronously, not in stream order.
            let stream = context.new_stream().unwrap();
            let there = stream.clone_htod(&[1_u8, 2, 3]).unwrap();
            assert_eq!(stream.clone_dtoh(&there).unwrap(), [1, 2, 3]);
            let mut can = 5;
            // SAFETY: the pointer is valid for a number.
            unsafe { sys::cuDeviceCanAccessPeer(&mut can, 0, 1) }.result().unwrap();
            assert_eq!(can, 0);
            // SAFETY: as above.
            unsafe { sys::cuDeviceCanAccessPeer(&mut can, 1, 0) }.result().unwrap();
            assert_eq!(can, 1);
        });
}

#[test]
fn writes_to_a_peer_with_a_broken_path_are_lost() {
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_BROKEN_PEER", "0-1").run(|| {
        let contexts: Vec<_> = (0..2).map(|ordinal| CudaContext::new(ordinal).unwrap()).collect();
        let streams: Vec<_> = contexts.iter().map(|context| context.new_stream().unwrap()).collect();
        let mut can = 0;
        // SAFETY: the pointer is valid for a number.
        unsafe { sys::cuDeviceCanAccessPeer(&mut can, 0, 1) }.result().unwrap();
        assert_eq!(can, 1);
        // Copies in both directions, each on a stream of the source device.
        for (from, to, arrives) in [(0, 1, 0), (1, 0, 7)] {
            let source = streams[from].clone_htod(&[7_u32; 8]).unwrap();
            let target = streams[to].alloc_zeros::<u32>(8).unwrap();
            streams[from].synchronize().unwrap();
            streams[to].synchronize().unwrap();
            let (from_address, _guard) = source.device_ptr(&streams[from]);
            let (to_address, _other) = target.device_ptr(&streams[to]);
            contexts[from].bind_to_thread().unwrap();
            // SAFETY: both allocations are live and have 32 bytes.
            unsafe { sys::cuMemcpyDtoDAsync_v2(to_address, from_address, 32, streams[from].cu_stream()) }.result().unwrap();
            streams[from].synchronize().unwrap();
            assert_eq!(streams[to].clone_dtoh(&target).unwrap(), [arrives; 8]);
        }
    });
}

#[test]
fn log_contains_every_driver_call_and_nothing_else() {
    const ME: &str = "log_contains_every_driver_call_and_nothing_else";
    if child().is_some() {
        let mut count = 0;
        // SAFETY: the pointer is valid for a number.
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
fn names_of_error_codes_equal_those_of_the_cuda_driver() {
    Fakes::new().cuda().run(|| {
        let error = cudarc::driver::DriverError(CUDA_ERROR_OUT_OF_MEMORY);
        assert_eq!(error.error_name().unwrap().to_str(), Ok("CUDA_ERROR_OUT_OF_MEMORY"));
        assert_eq!(error.error_string().unwrap().to_str(), Ok("out of memory"));
    });
}

#[test]
fn module_image_without_a_kernel_is_refused() {
    Fakes::new().cuda().run(|| {
        let _context = CudaContext::new(0).unwrap();
        let mut module = core::ptr::null_mut();
        // SAFETY: the pointer is valid for a handle, and the image is a C string.
        let code = unsafe { sys::cuModuleLoadData(&mut module, c".version 8.0".as_ptr().cast()) };
        assert_eq!(code, CUDA_ERROR_NO_BINARY_FOR_GPU);
    });
}

#[test]
fn failed_context_stays_failed_and_other_devices_work() {
    Fakes::new().cuda().run(|| {
        let other = CudaContext::new(1).unwrap();
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        context.bind_to_thread().unwrap();
        // SAFETY: the fake has this function with this type.
        unsafe {
            type Fail = unsafe extern "C" fn(core::ffi::c_int) -> core::ffi::c_int;
            assert_eq!((*sys::culib().get::<Fail>(b"peerweave_fake_context_fail").unwrap())(719), 0);
        }
        assert_eq!(stream.synchronize().unwrap_err().0, CUDA_ERROR_LAUNCH_FAILED);
        assert_eq!(stream.clone_htod(&[1_u8]).unwrap_err().0, CUDA_ERROR_LAUNCH_FAILED);
        let healthy = other.new_stream().unwrap();
        assert_eq!(healthy.clone_dtoh(&healthy.clone_htod(&[1_u8]).unwrap()).unwrap(), [1]);
    });
}

#[test]
fn second_enable_of_peer_access_is_an_error() {
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_NO_PEER", "0-2").run(|| {
        let contexts: Vec<_> = (0..3).map(|ordinal| CudaContext::new(ordinal).unwrap()).collect();
        contexts[0].bind_to_thread().unwrap();
        // SAFETY: the contexts are live.
        let (enable, disable) = unsafe {
            (
                |peer: usize| sys::cuCtxEnablePeerAccess(contexts[peer].cu_ctx(), 0),
                |peer: usize| sys::cuCtxDisablePeerAccess(contexts[peer].cu_ctx()),
            )
        };
        assert_eq!(disable(1), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
        assert_eq!(enable(1), CUDA_SUCCESS);
        assert_eq!(enable(1), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
        assert_eq!(enable(0), CUDA_ERROR_INVALID_CONTEXT);
        assert_eq!(enable(2), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
        assert_eq!(disable(1), CUDA_SUCCESS);
    });
}

/// The functions that cudarc 0.19.10 calls, in its safe layer and in its module `result`.
const CALLED_BY_CUDARC: &str = "\
    cuCtxCreate_v3 cuCtxCreate_v4 cuCtxDestroy_v2 cuCtxGetCacheConfig cuCtxGetCurrent cuCtxGetLimit
    cuCtxGetStreamPriorityRange cuCtxSetCacheConfig cuCtxSetCurrent cuCtxSetFlags cuCtxSetLimit cuCtxSynchronize
    cuDestroyExternalMemory cuDeviceGet cuDeviceGetAttribute cuDeviceGetCount cuDeviceGetDefaultMemPool
    cuDeviceGetMemPool cuDeviceGetName cuDeviceGetUuid cuDeviceGetUuid_v2 cuDevicePrimaryCtxRelease_v2
    cuDevicePrimaryCtxRetain cuDeviceSetMemPool cuDeviceTotalMem_v2 cuEventCreate cuEventDestroy_v2
    cuEventElapsedTime cuEventElapsedTime_v2 cuEventQuery cuEventRecord cuEventSynchronize
    cuExternalMemoryGetMappedBuffer cuFuncGetAttribute cuFuncSetAttribute cuFuncSetCacheConfig cuGetErrorName
    cuGetErrorString cuGraphDestroy cuGraphExecDestroy cuGraphInstantiateWithFlags cuGraphLaunch cuGraphUpload
    cuImportExternalMemory cuInit cuLaunchCooperativeKernel cuLaunchHostFunc cuLaunchKernel cuMemAdvise_v2
    cuMemAllocAsync cuMemAllocFromPoolAsync cuMemAllocManaged cuMemAlloc_v2 cuMemFreeAsync cuMemFreeHost
    cuMemFree_v2 cuMemGetInfo_v2 cuMemHostAlloc cuMemPoolCreate cuMemPoolDestroy cuMemPoolGetAttribute
    cuMemPoolSetAttribute cuMemPoolTrimTo cuMemPrefetchAsync_v2 cuMemcpyDtoDAsync_v2 cuMemcpyDtoD_v2
    cuMemcpyDtoHAsync_v2 cuMemcpyDtoH_v2 cuMemcpyHtoDAsync_v2 cuMemcpyHtoD_v2 cuMemcpyPeerAsync cuMemsetD8Async
    cuMemsetD8_v2 cuModuleGetFunction cuModuleGetGlobal_v2 cuModuleLoad cuModuleLoadData cuModuleUnload
    cuOccupancyAvailableDynamicSMemPerBlock cuOccupancyMaxActiveBlocksPerMultiprocessor
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags cuOccupancyMaxActiveClusters
    cuOccupancyMaxPotentialBlockSize cuOccupancyMaxPotentialBlockSizeWithFlags cuOccupancyMaxPotentialClusterSize
    cuProfilerStart cuProfilerStop cuStreamAttachMemAsync cuStreamBeginCapture_v2 cuStreamCreate
    cuStreamCreateWithPriority cuStreamDestroy_v2 cuStreamEndCapture cuStreamIsCapturing cuStreamSynchronize
    cuStreamWaitEvent
";

#[test]
fn fake_driver_has_every_function_that_cudarc_calls() {
    Fakes::new().cuda().run(|| {
        for name in CALLED_BY_CUDARC.split_whitespace() {
            // SAFETY: the name is only looked up, and nothing is called.
            let found = unsafe { sys::culib().get::<unsafe extern "C" fn()>(name.as_bytes()).is_ok() };
            assert!(found, "the fake lacks {name}");
        }
    });
}
