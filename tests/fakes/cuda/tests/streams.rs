//! Streams, events and copies, through the safe layer of cudarc.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, CudaStream, sys};
use peerweave_fakes::Fakes;

fn fakes() -> Fakes {
    Fakes::new().cuda()
}

/// Enqueues a closure as a host function.
fn host(stream: &CudaStream, run: impl FnOnce() + Send + 'static) {
    /// # Safety
    /// `data` is a box that contains a closure, passed to exactly one call.
    unsafe extern "C" fn call(data: *mut core::ffi::c_void) {
        // SAFETY: `data` is the box below, which is passed to exactly one call.
        let run = unsafe { Box::from_raw(data.cast::<Box<dyn FnOnce() + Send>>()) };
        run();
    }
    let boxed: Box<Box<dyn FnOnce() + Send>> = Box::new(Box::new(run));
    // SAFETY: the box lives until the call, which happens once.
    let result = unsafe { sys::cuLaunchHostFunc(stream.cu_stream(), Some(call), Box::into_raw(boxed).cast()) };
    assert_eq!(result, sys::CUresult::CUDA_SUCCESS);
}

/// Waits for a condition that must hold soon.
fn soon(what: &str, is: impl Fn() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < Duration::from_secs(60), "timed out after 60 s waiting for {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[test]
fn devices_have_the_attributes_of_an_h200() {
    fakes().env("PEERWEAVE_FAKE_CUDA_DEVICES", "3").env("PEERWEAVE_FAKE_CUDA_MEMORY_BYTES", "1048576").run(|| {
        assert_eq!(CudaContext::device_count().unwrap(), 3);
        let contexts: Vec<_> = (0..3).map(|ordinal| CudaContext::new(ordinal).unwrap()).collect();
        assert_eq!(contexts[0].compute_capability().unwrap(), (9, 0));
        assert_eq!(contexts[2].total_mem().unwrap(), 1 << 20);
        assert_ne!(contexts[0].uuid().unwrap().bytes, contexts[1].uuid().unwrap().bytes);
        assert!(contexts[0].has_async_alloc());
        assert!(contexts[1].name().unwrap().contains("fake"));
        assert_eq!(CudaContext::new(3).unwrap_err().0, sys::CUresult::CUDA_ERROR_INVALID_DEVICE);
    });
}

#[test]
fn bytes_copied_to_the_device_are_read_back() {
    fakes().run(|| {
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        let data: Vec<u32> = (0..100_000).collect();
        let there = stream.clone_htod(&data).unwrap();
        let twice = stream.clone_dtod(&there).unwrap();
        assert_eq!(stream.clone_dtoh(&twice).unwrap(), data);
        let zeros = stream.alloc_zeros::<u64>(1000).unwrap();
        assert_eq!(stream.clone_dtoh(&zeros).unwrap(), vec![0; 1000]);
        context.check_err().unwrap();
    });
}

#[test]
fn work_of_one_stream_runs_in_order() {
    fakes().run(|| {
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        let mut buffer = stream.alloc_zeros::<u32>(1 << 16).unwrap();
        let order = Arc::new(AtomicU32::new(0));
        for step in 0..50_u32 {
            stream.memcpy_htod(&vec![step; 1 << 16], &mut buffer).unwrap();
            let order = Arc::clone(&order);
            host(&stream, move || assert_eq!(order.fetch_add(1, Ordering::SeqCst), step));
        }
        assert_eq!(stream.clone_dtoh(&buffer).unwrap(), vec![49; 1 << 16]);
        assert_eq!(order.load(Ordering::SeqCst), 50);
    });
}

#[test]
fn two_streams_run_at_the_same_time() {
    fakes().run(|| {
        let context = CudaContext::new(0).unwrap();
        let (one, two) = (context.new_stream().unwrap(), context.new_stream().unwrap());
        let flags: [Arc<AtomicBool>; 2] = Default::default();
        // Each host function waits for the other. If both were in one queue, neither would end.
        for (stream, mine, other) in [(&one, 0, 1), (&two, 1, 0)] {
            let (mine, other) = (Arc::clone(&flags[mine]), Arc::clone(&flags[other]));
            host(stream, move || {
                mine.store(true, Ordering::SeqCst);
                soon("the other stream", || other.load(Ordering::SeqCst));
            });
        }
        one.synchronize().unwrap();
        two.synchronize().unwrap();
    });
}

#[test]
fn stream_waits_for_an_event_of_another_stream() {
    fakes().run(|| {
        let context = CudaContext::new(0).unwrap();
        let (one, two) = (context.new_stream().unwrap(), context.new_stream().unwrap());
        let open = Arc::new(AtomicBool::new(false));
        let seen = Arc::new(AtomicBool::new(false));
        let gate = Arc::clone(&open);
        host(&one, move || soon("the gate", || gate.load(Ordering::SeqCst)));
        let event = one.record_event(None).unwrap();
        two.wait(&event).unwrap();
        let (passed, gate) = (Arc::clone(&seen), Arc::clone(&open));
        host(&two, move || passed.store(gate.load(Ordering::SeqCst), Ordering::SeqCst));
        assert!(!event.is_complete());
        std::thread::sleep(Duration::from_millis(20));
        open.store(true, Ordering::SeqCst);
        two.synchronize().unwrap();
        assert!(event.is_complete());
        assert!(seen.load(Ordering::SeqCst), "the second stream did not wait for the first");
    });
}

#[test]
fn legacy_stream_synchronizes_with_blocking_streams() {
    fakes().run(|| {
        let context = CudaContext::new(0).unwrap();
        context.bind_to_thread().unwrap();
        let mut raw = core::ptr::null_mut();
        // SAFETY: the pointer is valid for a handle.
        unsafe { sys::cuStreamCreate(&mut raw, 0) }.result().unwrap();
        // SAFETY: nothing destroys the stream before the end of the test.
        let blocking = unsafe { context.wrap_borrowed_stream(raw) };
        let free = context.new_stream().unwrap();
        let open = Arc::new(AtomicBool::new(false));
        let gate = Arc::clone(&open);
        host(&blocking, move || soon("the gate", || gate.load(Ordering::SeqCst)));
        let done = Arc::new(AtomicBool::new(false));
        let (flag, gate) = (Arc::clone(&done), Arc::clone(&open));
        host(&context.default_stream(), move || flag.store(gate.load(Ordering::SeqCst), Ordering::SeqCst));
        host(&free, || ());
        free.synchronize().unwrap();
        open.store(true, Ordering::SeqCst);
        context.default_stream().synchronize().unwrap();
        assert!(done.load(Ordering::SeqCst), "the legacy stream did not wait for the blocking stream");
    });
}

#[test]
fn two_events_measure_the_time_between_them() {
    fakes().run(|| {
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        let timed = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        let start = stream.record_event(timed).unwrap();
        host(&stream, || std::thread::sleep(Duration::from_millis(30)));
        let end = stream.record_event(timed).unwrap();
        let elapsed = start.elapsed_ms(&end).unwrap();
        assert!((30.0..60_000.0).contains(&elapsed), "{elapsed} ms between the events, expected at least 30 ms");
        let untimed = stream.record_event(None).unwrap();
        assert_eq!(start.elapsed_ms(&untimed).unwrap_err().0, sys::CUresult::CUDA_ERROR_INVALID_HANDLE);
    });
}

#[test]
fn host_function_that_calls_the_driver_gets_an_error() {
    fakes().run(|| {
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        let code = Arc::new(AtomicU32::new(0));
        let seen = Arc::clone(&code);
        host(&stream, move || {
            let mut count = 0;
            // SAFETY: the pointer is valid for a number.
            seen.store(unsafe { sys::cuDeviceGetCount(&mut count) } as u32, Ordering::SeqCst);
        });
        stream.synchronize().unwrap();
        assert_eq!(code.load(Ordering::SeqCst), sys::CUresult::CUDA_ERROR_NOT_PERMITTED as u32);
    });
}

#[test]
fn peer_copies_move_data_between_devices() {
    fakes().run(|| {
        let contexts: Vec<_> = (0..2).map(|ordinal| CudaContext::new(ordinal).unwrap()).collect();
        let streams: Vec<_> = contexts.iter().map(|context| context.new_stream().unwrap()).collect();
        let data: Vec<u16> = (0..5000).collect();
        let here = streams[0].clone_htod(&data).unwrap();
        streams[0].synchronize().unwrap();
        let there = streams[1].clone_dtod(&here).unwrap();
        assert_eq!(there.ordinal(), 1);
        assert_eq!(streams[1].clone_dtoh(&there).unwrap(), data);
    });
}

#[test]
fn blocked_stream_runs_no_work_until_unblocked() {
    fakes().run(|| {
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        // SAFETY: the fake has these functions with these types.
        let (block, unblock) = unsafe {
            type Function = unsafe extern "C" fn(sys::CUstream) -> core::ffi::c_int;
            let library = sys::culib();
            (
                *library.get::<Function>(b"peerweave_fake_stream_block").unwrap(),
                *library.get::<Function>(b"peerweave_fake_stream_unblock").unwrap(),
            )
        };
        // SAFETY: the stream is live.
        assert_eq!(unsafe { block(stream.cu_stream()) }, 0);
        let event = stream.record_event(None).unwrap();
        std::thread::sleep(Duration::from_millis(30));
        assert!(!event.is_complete());
        // SAFETY: the stream is live.
        assert_eq!(unsafe { unblock(stream.cu_stream()) }, 0);
        stream.synchronize().unwrap();
        assert!(event.is_complete());
    });
}

#[test]
fn stream_waits_for_a_word_that_another_stream_writes() {
    fakes().run(|| {
        let context = CudaContext::new(0).unwrap();
        let (one, two) = (context.new_stream().unwrap(), context.new_stream().unwrap());
        let words = one.alloc_zeros::<u64>(2).unwrap();
        one.synchronize().unwrap();
        let (address, _guard) = cudarc::driver::DevicePtr::device_ptr(&words, &one);
        let passed = Arc::new(AtomicBool::new(false));
        // SAFETY: the address is inside a live allocation.
        unsafe { sys::cuStreamWaitValue64_v2(one.cu_stream(), address + 8, 7, 1) }.result().unwrap();
        let flag = Arc::clone(&passed);
        host(&one, move || flag.store(true, Ordering::SeqCst));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!passed.load(Ordering::SeqCst));
        // SAFETY: as above.
        unsafe { sys::cuStreamWriteValue64_v2(two.cu_stream(), address + 8, 7, 0) }.result().unwrap();
        one.synchronize().unwrap();
        assert!(passed.load(Ordering::SeqCst));
        // SAFETY: the driver refuses the address, because it is not a multiple of 8.
        let code = unsafe { sys::cuStreamWriteValue64_v2(two.cu_stream(), address + 4, 7, 0) };
        assert_eq!(code, sys::CUresult::CUDA_ERROR_INVALID_VALUE);
    });
}

#[test]
fn pageable_source_may_change_after_the_copy_is_enqueued() {
    fakes().run(|| {
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        let mut there = stream.alloc_zeros::<u8>(1 << 20).unwrap();
        let mut pinned = {
            // SAFETY: the memory is written before it is read.
            unsafe { context.alloc_pinned::<u8>(1 << 20) }.unwrap()
        };
        pinned.as_mut_slice().unwrap().fill(1);
        host(&stream, || std::thread::sleep(Duration::from_millis(30)));
        let mut pageable = vec![2_u8; 1 << 20];
        stream.memcpy_htod(&pageable, &mut there).unwrap();
        pageable.fill(3);
        assert!(stream.clone_dtoh(&there).unwrap().iter().all(|byte| *byte == 2));
        stream.memcpy_htod(&pinned, &mut there).unwrap();
        assert!(stream.clone_dtoh(&there).unwrap().iter().all(|byte| *byte == 1));
    });
}

#[test]
fn copies_by_threads_that_share_devices_are_correct() {
    fakes().run(|| {
        let contexts: Vec<_> = (0..4).map(|ordinal| CudaContext::new(ordinal).unwrap()).collect();
        std::thread::scope(|scope| {
            for worker in 0..8_u32 {
                let context = Arc::clone(&contexts[worker as usize % 4]);
                scope.spawn(move || {
                    let streams = [context.new_stream().unwrap(), context.new_stream().unwrap()];
                    for round in 0..40_u32 {
                        let value = worker * 1000 + round;
                        let first = streams[0].clone_htod(&vec![value; 3000]).unwrap();
                        streams[1].join(&streams[0]).unwrap();
                        let second = streams[1].clone_dtod(&first).unwrap();
                        drop(first);
                        assert!(streams[1].clone_dtoh(&second).unwrap().iter().all(|word| *word == value));
                    }
                    context.check_err().unwrap();
                });
            }
        });
    });
}

#[test]
fn two_dimensional_copy_uses_both_pitches() {
    fakes().run(|| {
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        let from = stream.clone_htod(&(0..64_u8).collect::<Vec<_>>()).unwrap();
        let to = stream.alloc_zeros::<u8>(64).unwrap();
        stream.synchronize().unwrap();
        let (from_address, _from) = cudarc::driver::DevicePtr::device_ptr(&from, &stream);
        let (to_address, _to) = cudarc::driver::DevicePtr::device_ptr(&to, &stream);
        // SAFETY: zero is valid for the numbers and pointers, and the kinds of memory are set
        // before the value is used.
        let mut copy: sys::CUDA_MEMCPY2D = unsafe {
            let mut copy = std::mem::MaybeUninit::<sys::CUDA_MEMCPY2D>::zeroed();
            (*copy.as_mut_ptr()).srcMemoryType = sys::CUmemorytype::CU_MEMORYTYPE_DEVICE;
            (*copy.as_mut_ptr()).dstMemoryType = sys::CUmemorytype::CU_MEMORYTYPE_DEVICE;
            copy.assume_init()
        };
        copy.srcDevice = from_address;
        copy.dstDevice = to_address;
        (copy.srcPitch, copy.dstPitch, copy.srcXInBytes, copy.srcY) = (16, 8, 2, 1);
        (copy.WidthInBytes, copy.Height) = (3, 3);
        // SAFETY: all rows are inside two live allocations.
        unsafe { sys::cuMemcpy2DAsync_v2(&copy, stream.cu_stream()) }.result().unwrap();
        let got = stream.clone_dtoh(&to).unwrap();
        assert_eq!(got[..20], [18, 19, 20, 0, 0, 0, 0, 0, 34, 35, 36, 0, 0, 0, 0, 0, 50, 51, 52, 0]);
        copy.WidthInBytes = 9;
        // SAFETY: the driver refuses the copy, because a row is longer than its pitch.
        let code = unsafe { sys::cuMemcpy2DAsync_v2(&copy, stream.cu_stream()) };
        assert_eq!(code, sys::CUresult::CUDA_ERROR_INVALID_VALUE);
    });
}

#[test]
fn failed_context_runs_stream_callbacks_but_no_host_functions() {
    /// # Safety
    /// `data` is a live `AtomicU32`.
    unsafe extern "C" fn keep(_stream: sys::CUstream, status: sys::CUresult, data: *mut core::ffi::c_void) {
        // SAFETY: `data` is the counter below, which lives as long as the process.
        unsafe { &*data.cast::<AtomicU32>() }.store(status as u32, Ordering::SeqCst);
    }
    fakes().run(|| {
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        let seen: &'static AtomicU32 = Box::leak(Box::new(AtomicU32::new(12345)));
        let data = (seen as *const AtomicU32).cast_mut().cast();
        // SAFETY: the callback's data lives forever.
        unsafe { sys::cuStreamAddCallback(stream.cu_stream(), Some(keep), data, 0) }.result().unwrap();
        stream.synchronize().unwrap();
        assert_eq!(seen.load(Ordering::SeqCst), 0);
        let ran = Arc::new(AtomicBool::new(false));
        let (flag, inside) = (Arc::clone(&ran), Arc::clone(&context));
        host(&stream, || std::thread::sleep(Duration::from_secs(3)));
        host(&stream, move || flag.store(true, Ordering::SeqCst));
        // SAFETY: as above.
        unsafe { sys::cuStreamAddCallback(stream.cu_stream(), Some(keep), data, 0) }.result().unwrap();
        inside.bind_to_thread().unwrap();
        // SAFETY: the fake has this function with this type.
        unsafe {
            type Fail = unsafe extern "C" fn(core::ffi::c_int) -> core::ffi::c_int;
            assert_eq!((*sys::culib().get::<Fail>(b"peerweave_fake_context_fail").unwrap())(700), 0);
        }
        soon("the callback", || seen.load(Ordering::SeqCst) == 700);
        assert!(!ran.load(Ordering::SeqCst));
    });
}
