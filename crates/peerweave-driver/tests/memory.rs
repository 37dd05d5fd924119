//! Tests of device memory and its lifetimes in stream order, over the fake driver.
#![cfg(target_os = "linux")]

mod common;

use std::sync::Arc;
use std::time::Instant;

use peerweave_driver::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use peerweave_driver::{
    CudaCode, DeviceBuffer, DeviceBufferMut, DeviceMemory, Driver, DriverError, context, drain_retired, is_capturing,
    keep_in_graph, retire, wait,
};
use peerweave_fakes::Fakes;

use common::{LONG, SHORT, block, device, fail, free_bytes, unblock};

#[test]
fn values_copied_to_a_device_are_read_back() {
    Fakes::new().cuda().run(|| {
        let (context, stream) = device();
        let values: Vec<f32> = (0..1000).map(|i| i as f32).collect();
        let mut memory = DeviceMemory::from_slice(&stream, &values).expect("the device has enough memory");
        assert_eq!(memory.to_vec(&stream).expect("the copy ends"), values);
        memory.slice(10..20).expect("the range is within the memory").copy_from(&stream, &[7.0; 10]).expect("the copy ends");
        let part = memory.slice(9..21).expect("the range is within the memory").to_vec(&stream).expect("the copy ends");
        assert_eq!(part, [&[9.0][..], &[7.0; 10], &[20.0]].concat());
        assert_eq!(
            DeviceMemory::<u64>::zeroed(&stream, 5)
                .expect("the device has enough memory")
                .to_vec(&stream)
                .expect("the copy ends"),
            [0; 5]
        );
        assert!(
            DeviceMemory::<u8>::alloc(&context, 0)
                .expect("an empty allocation succeeds")
                .to_vec(&stream)
                .expect("an empty copy succeeds")
                .is_empty()
        );
        assert_eq!((memory.device(), DeviceBuffer::len(&memory)), (0, 1000));
        let address = memory.read(&stream).expect("the stream is live").address();
        assert_eq!(memory.write(&stream).expect("the stream is live").address(), address);
    });
}

#[test]
fn caller_memory_is_not_read_after_the_copy_returns_an_error() {
    Fakes::new().cuda().run(|| {
        let (context, stream) = device();
        let mut memory = DeviceMemory::<u64>::zeroed(&stream, 4).expect("the device has enough memory");
        assert!(wait(&stream, Instant::now() + LONG).expect("the memory is filled"));
        // SAFETY: the memory is filled before it is read.
        let mut pinned = unsafe { context.alloc_pinned::<u64>(4) }.expect("the device has enough memory");
        let values = pinned.as_mut_slice().expect("the pinned memory is idle");
        values.fill(1);
        // The stream is stuck before the copy is enqueued. So the caller cannot know whether the
        // copy has been executed.
        let before = peerweave_fakes::entered("cuMemcpyHtoDAsync_v2");
        fail("cuMemcpyHtoDAsync_v2:1=400ms,cuStreamQuery:2=999,cuStreamSynchronize:1=999");
        let error = std::thread::scope(|scope| {
            scope.spawn(|| {
                peerweave_fakes::wait_until_entered("cuMemcpyHtoDAsync_v2", before + 1);
                block(&stream);
            });
            memory.copy_from(&stream, values).expect_err("the fake driver fails this call")
        });
        assert!(matches!(&error, DriverError::Cuda(error) if error.is(CudaCode(999))), "{error}");
        values.fill(9);
        fail("");
        unblock(&stream);
        assert_eq!(memory.to_vec(&stream).expect("the copy ends"), [1; 4], "the caller's values were read after the call");
    });
}

#[test]
fn wrong_lengths_ranges_and_devices_return_typed_errors() {
    Fakes::new().cuda().run(|| {
        let (context, stream) = device();
        let mut memory = DeviceMemory::<u32>::alloc(&context, 8).expect("the device has enough memory");
        let error = memory.copy_from(&stream, &[1; 7]).expect_err("the lengths differ");
        assert_eq!(error.to_string(), "DeviceMemory::copy_from: the lengths differ: found 7 elements, expected 8");
        let backwards = std::ops::Range { start: 5, end: 4 };
        assert_eq!(
            memory.slice(backwards).expect_err("the range is reversed").to_string(),
            "DeviceMemory::slice: the range is 5..4, expected a range within 8 elements"
        );
        assert!(matches!(memory.slice(0..9), Err(DriverError::OutOfRange { end: 9, len: 8, .. })));
        let elsewhere = peerweave_driver::context(1).expect("device 1 exists").new_stream().expect("the stream is created");
        let error = memory.to_vec(&elsewhere).expect_err("the memory is on another device");
        assert_eq!(
            error.to_string(),
            "DeviceMemory::to_vec: the memory, or the stream of a launch, is on device 0, expected device 1"
        );
        assert!(matches!(DeviceMemory::<u64>::alloc(&context, usize::MAX / 4), Err(DriverError::TooLarge { .. })));
        assert!(matches!(peerweave_driver::context(8), Err(DriverError::NoSuchDevice { ordinal: 8, count: 8, .. })));
    });
}

#[test]
fn memory_is_freed_after_stream_work_completes() {
    Fakes::new().cuda().run(|| {
        let (context, stream) = device();
        let before = free_bytes(&context);
        block(&stream);
        let memory = DeviceMemory::<u8>::zeroed(&stream, 1 << 20).expect("the device has enough memory");
        let while_used = free_bytes(&context);
        assert!(while_used + (1 << 20) <= before);
        let start = Instant::now();
        drop(memory);
        assert!(start.elapsed() < LONG, "the destructor waited for the stuck stream");
        assert!(!drain_retired(Instant::now() + SHORT), "the memory was freed before its stream filled it");
        assert_eq!(free_bytes(&context), while_used);
        unblock(&stream);
        assert!(drain_retired(Instant::now() + LONG));
        assert_eq!(free_bytes(&context), before);
    });
}

#[test]
fn stuck_device_does_not_delay_other_devices() {
    Fakes::new().cuda().run(|| {
        let (_, stuck) = device();
        let elsewhere = context(1).expect("device 1 exists");
        let other = elsewhere.new_stream().expect("the stream is created");
        block(&stuck);
        let held = DeviceMemory::<u8>::zeroed(&stuck, 1 << 20).expect("the device has enough memory");
        let before = free_bytes(&elsewhere);
        let free = DeviceMemory::<u8>::zeroed(&other, 1 << 20).expect("the device has enough memory");
        drop(held);
        drop(free);
        let came_back = peerweave_driver::wait_until::<()>(Instant::now() + LONG, || Ok(free_bytes(&elsewhere) == before));
        assert_eq!(came_back, Ok(true));
        unblock(&stuck);
        assert!(drain_retired(Instant::now() + LONG));
    });
}

#[test]
fn allocation_on_a_full_device_waits_for_dropped_memory() {
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_MEMORY_BYTES", (4 << 20).to_string()).run(|| {
        let (context, stream) = device();
        for round in 0..20 {
            let memory = DeviceMemory::<u8>::zeroed(&stream, 3 << 20).unwrap_or_else(|error| panic!("round {round}: {error}"));
            drop(memory);
        }
        let error = DeviceMemory::<u8>::alloc(&context, 5 << 20).expect_err("the device has less memory");
        assert!(
            matches!(&error, DriverError::Cuda(error) if error.is_out_of_memory() && error.call == "cuMemAlloc_v2"),
            "{error}"
        );
        assert!(error.to_string().contains("CUDA_ERROR_OUT_OF_MEMORY"), "{error}");
    });
}

#[test]
fn wait_for_a_stream_ends_at_the_deadline() {
    Fakes::new().cuda().run(|| {
        let (_, stream) = device();
        assert!(wait(&stream, Instant::now()).expect("the stream is idle"));
        block(&stream);
        let memory = DeviceMemory::<u32>::zeroed(&stream, 4).expect("the device has enough memory");
        let start = Instant::now();
        assert!(!wait(&stream, start + SHORT).expect("the work has not failed"));
        assert!((SHORT..LONG).contains(&start.elapsed()));
        let error = memory.to_vec_within(&stream, SHORT).expect_err("the stream is stuck");
        assert!(matches!(error, DriverError::Timeout { call: "DeviceMemory::to_vec", waited } if waited >= SHORT), "{error}");
        unblock(&stream);
        assert!(wait(&stream, Instant::now() + LONG).expect("the stream completes"));
    });
}

#[test]
fn captured_graph_keeps_used_memory_allocated() {
    Fakes::new().cuda().run(|| {
        let (context, stream) = device();
        let before = free_bytes(&context);
        let memory = DeviceMemory::<u32>::alloc(&context, 1 << 18).expect("the device has enough memory");
        let raw = memory.address();
        assert!(!is_capturing(&stream).expect("the stream is live"));
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("the capture begins");
        assert!(is_capturing(&stream).expect("the stream is live"));
        assert!(matches!(memory.to_vec(&stream), Err(DriverError::Capturing { .. })));
        let (address, keep) = memory.keep().expect("owned memory returns an owner");
        assert_eq!(address, raw);
        // SAFETY: the range is allocated, and the graph keeps it.
        let code = unsafe {
            Driver::get().expect("the fake driver is loaded").api().cuMemsetD32Async(address, 7, 1 << 18, stream.cu_stream())
        };
        assert_eq!(code, Ok(CudaCode::SUCCESS));
        keep_in_graph(&stream, vec![keep]).expect("the stream is being captured");
        let graph = stream.end_capture(CUgraphInstantiate_flags(0)).expect("the capture is valid").expect("the graph has work");
        drop(memory);
        assert!(drain_retired(Instant::now() + LONG));
        assert!(free_bytes(&context) < before, "the memory was freed while the graph uses it");
        graph.launch().expect("the graph is launched");
        stream.synchronize().expect("the wait succeeds");
        drop(graph);
        let came_back = peerweave_driver::wait_until::<()>(Instant::now() + LONG, || Ok(free_bytes(&context) == before));
        assert_eq!(came_back, Ok(true));
    });
}

#[test]
fn values_are_dropped_if_a_graph_cannot_keep_the_values_alive() {
    Fakes::new().cuda().without("cuUserObjectCreate").run(|| {
        let (_, stream) = device();
        let value: peerweave_driver::Keep = Arc::new(1);
        let error = keep_in_graph(&stream, vec![Arc::clone(&value)]).expect_err("the stream is not being captured");
        assert!(error.to_string().contains("CUDA_ERROR_ILLEGAL_STATE"), "{error}");
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("the capture begins");
        let error = keep_in_graph(&stream, vec![Arc::clone(&value)]).expect_err("the driver lacks the function");
        assert!(
            matches!(&error, DriverError::Missing(missing) if missing.name == "cuUserObjectCreate" && missing.since == "11.3"),
            "{error}"
        );
        assert_eq!(Arc::strong_count(&value), 1, "a value that no graph keeps was not dropped");
        drop(stream.end_capture(CUgraphInstantiate_flags(0)));
    });
}

#[test]
fn memory_that_cannot_be_freed_safely_is_leaked() {
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_FAIL", "cuEventRecord:2=2").run(|| {
        let (context, stream) = device();
        let other = context.new_stream().expect("the stream is created");
        let log = std::env::var_os("PEERWEAVE_FAKE_CUDA_LOG").expect("the test harness sets the variable");
        let count = |name: &str| {
            let log = std::fs::read_to_string(&log).expect("the fake driver writes the log");
            log.lines().filter(|line| line.split_whitespace().nth(1) == Some(name)).count()
        };
        let (made, gone) = (count("cuEventCreate"), count("cuEventDestroy_v2"));
        let freed = Arc::new(());
        let token = Arc::clone(&freed);
        retire(&context, [Arc::clone(&stream), other], Box::new(move || drop(token)));
        assert_eq!((count("cuEventCreate"), count("cuEventDestroy_v2")), (made + 2, gone + 2), "the events are leaked");
        assert!(drain_retired(Instant::now() + LONG));
        assert_eq!(Arc::strong_count(&freed), 2, "the value was not leaked");
        let token = Arc::clone(&freed);
        retire(&context, [stream], Box::new(move || drop(token)));
        assert!(drain_retired(Instant::now() + LONG));
        assert_eq!(Arc::strong_count(&freed), 2, "the next value is not freed");
    });
}

#[test]
fn missing_driver_error_lists_the_paths_tried() {
    Fakes::new().run(|| {
        // The test applies only to machines without a driver.
        match Driver::get() {
            Err(DriverError::Load(error)) => {
                assert_eq!(
                    error.tried.iter().map(|attempt| attempt.path.to_str()).collect::<Vec<_>>(),
                    [Some("libcuda.so"), Some("libcuda.so.1")]
                );
            }
            Err(DriverError::Cuda(error)) => assert_eq!(error.call, "cuInit"),
            Err(error) => panic!("{error}"),
            Ok(driver) => assert!(driver.version().is_ok()),
        }
    });
}

#[test]
fn driver_initialisation_failure_is_an_error() {
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_FAIL", "cuInit:*=100").run(|| {
        for _ in 0..2 {
            let error = Driver::get().expect_err("cuInit fails");
            assert!(error.to_string().starts_with("CUDA_ERROR_NO_DEVICE (100) from cuInit"), "{error}");
        }
    });
}

#[test]
fn unknown_driver_code_is_an_error_with_the_number() {
    // Codes of a driver that is newer than every compiled list of codes.
    let newer = "cuMemAlloc_v2:1=4242,cuStreamQuery:1=4242,cuEventQuery:1=-1";
    Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_FAIL", newer).run(|| {
        let (context, stream) = device();
        let unknown = |error: DriverError, call: &str| match error {
            DriverError::Cuda(error) => {
                assert_eq!((error.call, error.code), (call, 4242));
                assert!(error.is(CudaCode(4242)) && !error.is_out_of_memory());
                assert!(error.to_string().contains("4242"), "{error}");
            }
            other => panic!("{other}"),
        };
        unknown(DeviceMemory::<u32>::alloc(&context, 4).expect_err("the fake driver fails this call"), "cuMemAlloc_v2");
        let memory = DeviceMemory::<u32>::zeroed(&stream, 4).expect("only the first call fails");
        unknown(wait(&stream, Instant::now() + LONG).expect_err("the fake driver fails this call"), "cuStreamQuery");
        assert!(wait(&stream, Instant::now() + LONG).expect("only the first call fails"));
        let before = free_bytes(&context);
        drop(memory);
        assert!(drain_retired(Instant::now() + LONG));
        assert_eq!(free_bytes(&context), before, "memory in an unknown state was freed");
    });
}
