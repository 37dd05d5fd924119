//! Capture, graphs, and objects tied to the lifetime of graphs.

use core::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, sys};
use peerweave_fakes::Fakes;
use sys::CUresult::*;

/// Calls a function of the driver's C interface.
macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: the pointers are to live variables of the right types.
        unsafe { sys::$name($($argument),*) }
    };
}

const GLOBAL: sys::CUstreamCaptureMode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const RELAXED: sys::CUstreamCaptureMode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;

fn no_flags() -> sys::CUgraphInstantiate_flags {
    sys::CUgraphInstantiate_flags(0)
}

/// Counts a call.
///
/// # Safety
/// `data` is a live `AtomicU32`.
unsafe extern "C" fn count(data: *mut c_void) {
    // SAFETY: every caller in this file passes a counter that lives as long as the process.
    unsafe { &*data.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
}

fn counter() -> &'static AtomicU32 {
    Box::leak(Box::default())
}

fn data(counter: &'static AtomicU32) -> *mut c_void {
    (counter as *const AtomicU32).cast_mut().cast()
}

fn soon(what: &str, is: impl Fn() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < Duration::from_secs(60), "timed out after 60 s waiting for {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Checks that the cached result of the driver is invalidated by every change.
#[test]
fn cached_capture_status_is_updated_after_every_change() {
    Fakes::new().cuda().run(|| {
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        let ask = |stream: sys::CUstream| {
            let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED;
            let code = call!(cuStreamIsCapturing(stream, &raw mut status));
            (code, status as u32)
        };
        let handle = stream.cu_stream();
        for _ in 0..2 {
            assert_eq!((ask(handle), ask(handle)), ((CUDA_SUCCESS, 0), (CUDA_SUCCESS, 0)));
            stream.begin_capture(RELAXED).unwrap();
            assert_eq!(ask(handle), (CUDA_SUCCESS, 1));
            drop(stream.end_capture(no_flags()));
        }
        assert_eq!(ask(handle), (CUDA_SUCCESS, 0));
        let none = std::ptr::null_mut();
        assert_eq!((ask(none), ask(none)), ((CUDA_SUCCESS, 0), (CUDA_SUCCESS, 0)));
        assert_eq!(call!(cuCtxSetCurrent(none.cast())), CUDA_SUCCESS);
        assert_eq!(ask(none).0, CUDA_ERROR_INVALID_CONTEXT, "expected an error, because no context is current");
        context.bind_to_thread().unwrap();
        assert_eq!(ask(handle), (CUDA_SUCCESS, 0));
        drop(stream);
        assert_eq!(ask(handle).0, CUDA_ERROR_INVALID_HANDLE, "expected an error, because the stream was destroyed");
    });
}

#[test]
fn captured_work_runs_once_for_each_graph_launch() {
    Fakes::new().cuda().run(|| {
        let context = CudaContext::new(0).unwrap();
        // SAFETY: the test uses one stream only, so no events are needed. A captured stream must
        // not wait for an event that was recorded before the capture.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().unwrap();
        let mut from = stream.clone_htod(&[1_u32; 256]).unwrap();
        let mut to = stream.alloc_zeros::<u32>(256).unwrap();
        stream.synchronize().unwrap();
        let runs = counter();
        stream.begin_capture(RELAXED).unwrap();
        stream.memcpy_dtod(&from, &mut to).unwrap();
        assert_eq!(call!(cuLaunchHostFunc(stream.cu_stream(), Some(count), data(runs))), CUDA_SUCCESS);
        let graph = stream.end_capture(no_flags()).unwrap().expect("end_capture returns a graph");
        stream.synchronize().unwrap();
        assert_eq!(runs.load(Ordering::SeqCst), 0);
        let mut out = vec![9_u32; 256];
        for round in 2..5 {
            let fill = vec![round; 256];
            stream.memcpy_htod(&fill, &mut from).unwrap();
            graph.launch().unwrap();
            stream.memcpy_dtoh(&to, &mut out).unwrap();
            assert_eq!(out, fill);
            assert_eq!(runs.load(Ordering::SeqCst), round - 1);
        }
    });
}

#[test]
fn forked_stream_must_rejoin_before_the_capture_ends() {
    Fakes::new().cuda().run(|| {
        let context = CudaContext::new(0).unwrap();
        let (one, two) = (context.new_stream().unwrap(), context.new_stream().unwrap());
        let runs = counter();
        for comes_back in [true, false] {
            one.begin_capture(GLOBAL).unwrap();
            assert_eq!(call!(cuLaunchHostFunc(one.cu_stream(), Some(count), data(runs))), CUDA_SUCCESS);
            two.join(&one).unwrap();
            assert_eq!(two.capture_status().unwrap(), sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE);
            assert_eq!(call!(cuLaunchHostFunc(two.cu_stream(), Some(count), data(runs))), CUDA_SUCCESS);
            assert_eq!(call!(cuLaunchHostFunc(one.cu_stream(), Some(count), data(runs))), CUDA_SUCCESS);
            if comes_back {
                one.join(&two).unwrap();
                let graph = one.end_capture(no_flags()).unwrap().expect("end_capture returns a graph");
                graph.launch().unwrap();
                one.synchronize().unwrap();
                assert_eq!(runs.load(Ordering::SeqCst), 3);
            } else {
                let failed = one.end_capture(no_flags());
                assert_eq!(failed.err().map(|error| error.0), Some(CUDA_ERROR_STREAM_CAPTURE_UNJOINED));
            }
            assert_eq!(two.capture_status().unwrap(), sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE);
        }
    });
}

#[test]
fn branches_of_a_graph_run_at_the_same_time() {
    struct Meeting {
        here: AtomicU32,
    }
    /// # Safety
    /// `data` is a live `Meeting`.
    unsafe extern "C" fn meet(data: *mut c_void) {
        // SAFETY: `data` is the meeting below, which is leaked.
        let meeting = unsafe { &*data.cast::<Meeting>() };
        meeting.here.fetch_add(1, Ordering::SeqCst);
        soon("the other branch", || meeting.here.load(Ordering::SeqCst) >= 2);
    }
    Fakes::new().cuda().run(|| {
        let context = CudaContext::new(0).unwrap();
        let (one, two) = (context.new_stream().unwrap(), context.new_stream().unwrap());
        let meeting: &'static Meeting = Box::leak(Box::new(Meeting { here: AtomicU32::new(0) }));
        let data = (meeting as *const Meeting).cast_mut().cast::<c_void>();
        one.begin_capture(GLOBAL).unwrap();
        two.join(&one).unwrap();
        for stream in [&one, &two] {
            assert_eq!(call!(cuLaunchHostFunc(stream.cu_stream(), Some(meet), data)), CUDA_SUCCESS);
        }
        one.join(&two).unwrap();
        let graph = one.end_capture(no_flags()).unwrap().expect("end_capture returns a graph");
        graph.launch().unwrap();
        one.synchronize().unwrap();
    });
}

#[test]
fn uncapturable_call_invalidates_the_capture() {
    Fakes::new().cuda().run(|| {
        let context = CudaContext::new(0).unwrap();
        let (one, two) = (context.new_stream().unwrap(), context.new_stream().unwrap());
        one.begin_capture(GLOBAL).unwrap();
        assert_eq!(one.synchronize().unwrap_err().0, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        let end = one.end_capture(no_flags());
        assert_eq!(end.err().map(|error| error.0), Some(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));

        let before = two.record_event(None).unwrap();
        one.begin_capture(GLOBAL).unwrap();
        assert_eq!(one.wait(&before).unwrap_err().0, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
        assert!(one.end_capture(no_flags()).is_err());

        one.begin_capture(GLOBAL).unwrap();
        let mut pointer = 0;
        assert_eq!(call!(cuMemAlloc_v2(&mut pointer, 16)), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        assert!(one.end_capture(no_flags()).is_err());

        one.begin_capture(RELAXED).unwrap();
        assert_eq!(call!(cuMemAlloc_v2(&mut pointer, 16)), CUDA_SUCCESS);
        assert!(one.end_capture(no_flags()).is_ok());
        assert_eq!(call!(cuMemFree_v2(pointer)), CUDA_SUCCESS);

        // The default stream waits for blocking streams, so it cannot be used while such a stream
        // is captured.
        let mut plain = core::ptr::null_mut();
        assert_eq!(call!(cuStreamCreate(&mut plain, 0)), CUDA_SUCCESS);
        let event = context.new_event(None).unwrap();
        for uses in [
            |event| call!(cuEventRecord(event, core::ptr::null_mut())),
            |event| call!(cuStreamWaitEvent(core::ptr::null_mut(), event, 0)),
        ] {
            let mut graph = core::ptr::null_mut();
            assert_eq!(call!(cuStreamBeginCapture_v2(plain, RELAXED)), CUDA_SUCCESS);
            assert_eq!(uses(event.cu_event()), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
            assert_eq!(call!(cuStreamEndCapture(plain, &mut graph)), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        assert_eq!(call!(cuStreamDestroy_v2(plain)), CUDA_SUCCESS);

        for asks in [|event| call!(cuEventQuery(event)), |event| call!(cuEventSynchronize(event))] {
            let captured = context.new_event(None).unwrap();
            one.begin_capture(RELAXED).unwrap();
            captured.record(&one).unwrap();
            assert_eq!(asks(captured.cu_event()), CUDA_ERROR_CAPTURED_EVENT);
            assert!(one.end_capture(no_flags()).is_err());
            one.begin_capture(RELAXED).unwrap();
            assert_eq!(asks(captured.cu_event()), CUDA_ERROR_CAPTURED_EVENT, "the capture of the event has ended");
            assert!(one.end_capture(no_flags()).is_ok());
        }

        let end = one.end_capture(no_flags());
        assert_eq!(end.err().map(|error| error.0), Some(CUDA_ERROR_ILLEGAL_STATE));
        let default = context.default_stream();
        assert_eq!(default.begin_capture(GLOBAL).unwrap_err().0, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    });
}

#[test]
fn user_object_is_destroyed_with_the_last_graph() {
    Fakes::new().cuda().run(|| {
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        let destroyed = counter();
        stream.begin_capture(GLOBAL).unwrap();
        assert_eq!(call!(cuLaunchHostFunc(stream.cu_stream(), Some(count), data(counter()))), CUDA_SUCCESS);
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let mut graph = core::ptr::null_mut();
        let (mut nodes, mut length) = (core::ptr::null(), 0);
        let mut id = 0;
        assert_eq!(
            call!(cuStreamGetCaptureInfo_v3(
                stream.cu_stream(),
                &mut status,
                &mut id,
                &mut graph,
                &mut nodes,
                core::ptr::null_mut(),
                &mut length
            )),
            CUDA_SUCCESS
        );
        assert_eq!(status, sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE);
        assert_eq!(length, 1);
        let mut object = core::ptr::null_mut();
        assert_eq!(call!(cuUserObjectCreate(&mut object, data(destroyed), Some(count), 1, 1)), CUDA_SUCCESS);
        assert_eq!(call!(cuGraphRetainUserObject(graph, object, 1, 1)), CUDA_SUCCESS);
        let graph = stream.end_capture(no_flags()).unwrap().expect("end_capture returns a graph");
        graph.launch().unwrap();
        stream.synchronize().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(destroyed.load(Ordering::SeqCst), 0);
        drop(graph);
        soon("the destructor", || destroyed.load(Ordering::SeqCst) == 1);
        assert_eq!(call!(cuUserObjectRelease(object, 1)), CUDA_ERROR_INVALID_VALUE);
    });
}

#[test]
fn memory_of_a_captured_allocation_is_freed_with_the_graph() {
    Fakes::new().cuda().run(|| {
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        let before = context.mem_get_info().unwrap();
        stream.begin_capture(GLOBAL).unwrap();
        let mut pointer = 0;
        assert_eq!(call!(cuMemAllocAsync(&mut pointer, 1 << 20, stream.cu_stream())), CUDA_SUCCESS);
        assert_eq!(call!(cuMemsetD8Async(pointer, 1, 1 << 20, stream.cu_stream())), CUDA_SUCCESS);
        assert_eq!(call!(cuMemFreeAsync(pointer, stream.cu_stream())), CUDA_SUCCESS);
        let graph = stream.end_capture(no_flags()).unwrap().expect("end_capture returns a graph");
        for _ in 0..3 {
            graph.launch().unwrap();
        }
        stream.synchronize().unwrap();
        drop(graph);
        soon("the return of the memory", || context.mem_get_info().unwrap() == before);
    });
}

#[test]
fn handle_of_a_destroyed_graph_is_invalid() {
    Fakes::new().cuda().run(|| {
        let _context: Arc<CudaContext> = CudaContext::new(0).unwrap();
        let mut graph = core::ptr::null_mut();
        assert_eq!(call!(cuGraphCreate(&mut graph, 0)), CUDA_SUCCESS);
        let mut exec = core::ptr::null_mut();
        assert_eq!(call!(cuGraphInstantiateWithFlags(&mut exec, graph, 0)), CUDA_SUCCESS);
        assert_eq!(call!(cuGraphDestroy(graph)), CUDA_SUCCESS);
        assert_eq!(call!(cuGraphDestroy(graph)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(call!(cuGraphLaunch(exec, core::ptr::null_mut())), CUDA_SUCCESS);
        assert_eq!(call!(cuGraphExecDestroy(exec)), CUDA_SUCCESS);
        assert_eq!(call!(cuGraphLaunch(exec, core::ptr::null_mut())), CUDA_ERROR_INVALID_VALUE);
    });
}

#[test]
fn query_from_another_thread_invalidates_a_global_capture() {
    Fakes::new().cuda().run(|| {
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        let event = context.new_stream().unwrap().record_event(None).unwrap();
        for relaxed in [true, false] {
            stream.begin_capture(GLOBAL).unwrap();
            std::thread::scope(|scope| {
                let asked = scope.spawn(|| {
                    let mut mode = if relaxed { RELAXED } else { GLOBAL };
                    assert_eq!(call!(cuThreadExchangeStreamCaptureMode(&mut mode)), CUDA_SUCCESS);
                    event.try_is_complete().map_err(|error| error.0)
                });
                let answer = asked.join().unwrap();
                if relaxed {
                    assert!(answer.is_ok());
                } else {
                    assert_eq!(answer, Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
                }
            });
            assert_eq!(stream.end_capture(no_flags()).is_ok(), relaxed);
        }
    });
}
