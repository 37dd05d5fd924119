//! Tests of calls that are captured into graphs: the resources that a graph keeps alive, and the
//! calls that fail during a capture.
#![cfg(target_os = "linux")]
#![allow(missing_docs, reason = "scenarios are named, not documented")]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::*;
use peerweave_driver::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use peerweave_driver::cudarc::driver::{CudaGraph, CudaStream, DevicePtrMut as _};
use peerweave_driver::{Access, DeviceBuffer, DeviceBufferMut, DeviceMemory, DriverError, Keep, Raw, drain_retired};
use peerweave_nccl::{
    CollConfig, Communicator, Config, DeadState, MisuseKind, Nccl, NcclError, NcclMem, PreMulSum, Rank, ReduceOp, ResultCode,
    Switch, Window, WindowKind,
};

/// Time limit of waits for graphs that are not destroyed.
const SHORT: Duration = Duration::from_millis(100);

#[test]
fn group_refused_during_a_capture_adds_no_call_to_the_graph() {
    fakes(1).run(|| {
        let ((comm, stream), (other, beside)) = (alone(), alone());
        let (mut values, mut more) = (floats(&stream, &[1.0]), floats(&beside, &[1.0]));
        let graph = captured(&stream, || {
            comm.all_reduce_in_place(&stream, &mut values.clone(), ReduceOp::Sum)?;
            let result = comm.nccl().group(|group| {
                group.all_reduce_in_place(&comm, &stream, &mut values, ReduceOp::Sum)?;
                group.all_reduce_in_place(&other, &beside, &mut more, ReduceOp::Sum)?;
                other.abort(DEADLINE)
            });
            assert!(matches!(result, Err(NcclError::Dead { state: DeadState::Aborted, .. })), "{result:?}");
            Ok(())
        });
        let error = comm.clone().finalize(SHORT).expect_err("a graph uses the communicator").to_string();
        assert_eq!(error, "finalize: captured graphs still use the communicator (1 captured calls); destroy the graphs first");
        drop(graph);
        comm.finalize(DEADLINE).expect("the graph was destroyed");
    });
}

#[test]
fn collective_refuses_a_slice_written_in_an_unfinished_capture() {
    fakes(1).run(|| {
        let (comm, stream) = alone();
        let (own, capturing) = (comm.context().new_stream().expect("a stream is created"), comm.context().new_stream().expect("a stream is created"));
        // The slice has not been used yet, so the capture does not depend on work outside of it.
        // SAFETY: the elements are never read.
        let mut values = unsafe { own.alloc::<f32>(4) }.expect("memory is allocated");
        own.synchronize().expect("the memory is allocated");
        capturing.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).expect("the capture begins");
        // A stream that waits for this write joins the capture.
        drop(values.device_ptr_mut(&capturing));
        let before = counted("collectives");
        let error = comm.all_reduce_in_place(&stream, &mut values, ReduceOp::Sum).expect_err("the stream would join the capture");
        assert_eq!(
            error.to_string(),
            "all_reduce_in_place: the stream has joined the capture of another stream, because the borrowed slice was last used in this capture; pass a DeviceMemory or a Raw instead of a borrowed slice"
        );
        assert_eq!(counted("collectives"), before, "nothing was captured");
        comm.abort(DEADLINE).expect("the communicator ends");
    });
}

#[test]
fn graph_keeps_buffers_and_communicator_of_a_call_alive() {
    fakes(1).run(|| {
        let (comm, stream) = alone();
        let result = floats(&stream, &[0.0]);
        let graph = {
            let send = floats(&stream, &[21.0]);
            let scalar = floats(&stream, &[2.0]);
            let scaled = PreMulSum::from_device(&comm, scalar).expect("the reduction is created");
            let mut recv = result.clone();
            captured(&stream, || comm.all_reduce(&stream, &send, &mut recv, &scaled))
        };
        assert_eq!(value(&result, &stream), 0.0, "captured calls must not run before the launch");
        let error = comm.clone().finalize(SHORT).expect_err("a graph uses the communicator").to_string();
        assert_eq!(error, "finalize: captured graphs still use the communicator (1 captured calls); destroy the graphs first");
        let other = comm.clone();
        drop(comm);
        for _ in 0..3 {
            graph.launch().expect("the graph is launched");
        }
        assert_eq!(value(&result, &stream), 42.0);
        assert_eq!(counted("communicators"), 1, "the graph keeps the communicator alive");
        drop((graph, result, stream));
        // The driver releases the graph's resources later. `finalize` waits for this release.
        other.finalize(DEADLINE).expect("the graph was destroyed");
        nothing_is_left();
    });
}

#[test]
fn every_call_of_a_captured_group_is_replayed() {
    fakes(1).run(|| {
        let (comm, stream) = alone();
        let (send, mut recv, mut sum) = (floats(&stream, &[5.0]), floats(&stream, &[0.0]), floats(&stream, &[7.0]));
        let kept = (recv.clone(), sum.clone());
        let graph = captured(&stream, || {
            comm.nccl().group(|group| {
                group.send(&comm, &stream, &send, Rank::new(0))?;
                group.recv(&comm, &stream, &mut recv, Rank::new(0))?;
                group.all_reduce_in_place(&comm, &stream, &mut sum, ReduceOp::Sum)
            })
        });
        drop((send, recv, sum));
        graph.launch().expect("the graph is launched");
        assert_eq!((value(&kept.0, &stream), value(&kept.1, &stream)), (5.0, 7.0));
    });
}

#[test]
fn borrowed_memory_is_refused_in_a_capture() {
    fakes(1).run(|| {
        let (comm, stream) = alone();
        let mut slice = stream.alloc_zeros::<f32>(4).expect("memory is allocated");
        let memory = floats(&stream, &[1.0]);
        let mut kept = memory.clone();
        let graph = captured(&stream, || {
            let error =
                comm.all_reduce_in_place(&stream, &mut slice, ReduceOp::Sum).expect_err("the memory is borrowed").to_string();
            assert!(
                error.starts_with(
                    "all_reduce_in_place: the stream is being captured, and the graph would access the borrowed slice after the call"
                ),
                "{error}"
            );
            let error = comm.wait(&stream, DEADLINE).expect_err("the stream is being captured").to_string();
            assert_eq!(error, "wait: the stream is being captured, so it has no running work to wait for; end the capture first");
            // The capture is still valid and the communicator still live after the refused calls.
            comm.all_reduce_in_place(&stream, &mut kept, ReduceOp::Sum)
        });
        graph.launch().expect("the graph is launched");
        comm.wait(&stream, DEADLINE).expect("the work completes");
        comm.all_reduce_in_place(&stream, &mut slice, ReduceOp::Sum).expect("borrowed memory is accepted without a capture");
        comm.wait(&stream, DEADLINE).expect("the work completes");
    });
}

#[test]
fn group_fails_if_the_closure_begins_a_capture_after_a_call() {
    fakes(1).run(|| {
        let (comm, stream) = alone();
        let mut slice = stream.alloc_zeros::<f32>(4).expect("memory is allocated");
        let result = comm.nccl().group(|group| {
            group.all_reduce_in_place(&comm, &stream, &mut slice, ReduceOp::Sum)?;
            stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("the capture begins");
            Ok(())
        });
        let error = result.expect_err("no graph can keep the slice alive").to_string();
        assert_eq!(error, "all_reduce_in_place: a stream capture began or ended between the checks and the launch of the call; keep the whole call or group either inside or outside the capture");
        assert_eq!(counted("collectives"), 0);
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        stream.end_capture(flags).expect("the capture is still valid");
    });
}

#[test]
fn wait_on_a_stream_does_not_end_a_capture_of_another_stream() {
    fakes(1).run(|| {
        let (comm, stream) = alone();
        let other = comm.context().new_stream().expect("a stream is created");
        let (memory, mut kept) = (floats(&stream, &[4.0]), floats(&stream, &[1.0]));
        other.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).expect("the capture begins");
        let waited = comm.wait(&stream, DEADLINE);
        let issued = comm.all_reduce_in_place(&other, &mut kept, ReduceOp::Sum);
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = other.end_capture(flags).expect("the capture is still valid").expect("the capture yields a graph");
        waited.expect("the stream is idle");
        issued.expect("the call is captured");
        graph.launch().expect("the graph is launched");
        assert_eq!(value(&memory, &stream), 4.0);
    });
}

#[test]
fn memory_and_communicators_can_be_created_during_a_capture() {
    for blocking in [Switch::Off, Switch::On] {
        fakes(1).env("BLOCKING", format!("{blocking:?}")).run(|| {
            let blocking = if std::env::var("BLOCKING").as_deref() == Ok("On") { Switch::On } else { Switch::Off };
            let config = Config::new().blocking(blocking);
            let (context, nccl) = (device(0), Nccl::load().expect("the fake library is found"));
            let make = || {
                Communicator::builder()
                    .nccl(nccl)
                    .config(config.clone())
                    .deadline(DEADLINE)
                    .init_all(std::slice::from_ref(&context))
                    .expect("the communicator is created")
            };
            let (comm, stream) = (make().remove(0), context.new_stream().expect("a stream is created"));
            let mut kept = floats(&stream, &[1.0]);
            let capturing = context.new_stream().expect("a stream is created");
            capturing.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).expect("the capture begins");
            // An allocation or a synchronisation on any thread invalidates a capture of this mode.
            let memory = NcclMem::from_slice(nccl, &stream, &[1.0f32; 8]);
            let registered = memory.as_ref().map(|memory| comm.register(memory));
            let window = memory.as_ref().map(|memory| Window::register(&comm, memory, WindowKind::DEFAULT));
            let other = make();
            let scaled = PreMulSum::new(&comm, 3.0f32);
            let issued = comm.all_reduce_in_place(&capturing, &mut kept, ReduceOp::Sum);
            let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
            let graph = capturing.end_capture(flags).expect("the capture is still valid").expect("the capture yields a graph");
            issued.expect("the call is captured");
            registered.expect("memory is allocated").expect("the memory is registered");
            window.expect("memory is allocated").expect("the memory is registered").expect("the fake has windows");
            scaled.expect("the reduction is created");
            graph.launch().expect("the graph is launched");
            drop(other);
        });
    }
}

#[test]
fn graph_records_the_launch_event_and_keeps_the_event_alive() {
    fakes(2).run(|| {
        let (comm, stream) = alone();
        let mut values = floats(&stream, &[1.0]);
        let there = device(1).new_event(None).expect("an event is created");
        let config = CollConfig::new().launch_completion_event(Arc::new(there));
        let error = comm
            .with(&config)
            .all_reduce_in_place(&stream, &mut values, ReduceOp::Sum)
            .expect_err("the event is on another device");
        assert_eq!(error.to_string(), "all_reduce_in_place: the launch completion event is on device 1, expected device 0");
        assert_eq!((counted("collectives"), comm.sequence()), (0, 0), "NCCL was not called");
        let here = Arc::new(comm.context().new_event(None).expect("an event is created"));
        let config = CollConfig::new().launch_completion_event(Arc::clone(&here));
        comm.with(&config).all_reduce_in_place(&stream, &mut values, ReduceOp::Sum).expect("the call is enqueued");
        comm.wait(&stream, DEADLINE).expect("the work completes");
        assert!(here.is_complete(), "the event was recorded");
        let held = Arc::downgrade(&here);
        let graph = captured(&stream, || comm.with(&config).all_reduce_in_place(&stream, &mut values, ReduceOp::Sum));
        drop((config, here));
        assert!(held.upgrade().is_some(), "the graph keeps the event alive");
        graph.launch().expect("the graph is launched");
        comm.wait(&stream, DEADLINE).expect("the work completes");
        drop(graph);
        let end = Instant::now() + DEADLINE;
        while held.upgrade().is_some() {
            assert!(Instant::now() < end, "the event is freed with the graph");
            drain_retired(end);
        }
    });
}

#[test]
fn aborted_communicator_is_freed_when_the_graph_is_destroyed() {
    fakes(1).run(|| {
        let (comm, stream) = alone();
        let mut buffer = floats(&stream, &[1.0]);
        let graph = captured(&stream, || comm.all_reduce_in_place(&stream, &mut buffer, ReduceOp::Sum));
        comm.abort(DEADLINE).expect("the abort does not wait for the graph");
        drop((graph, buffer, stream));
        assert!(drain_retired(Instant::now() + DEADLINE));
        drop(comm);
        nothing_is_left();
    });
}

#[test]
fn memory_that_a_graph_uses_cannot_be_unregistered() {
    fakes(1).run(|| {
        let (comm, stream) = alone();
        let memory = NcclMem::from_slice(comm.nccl(), &stream, &[1.0f32; 1024]).expect("memory is allocated");
        let window = Window::register(&comm, &memory, WindowKind::SYMMETRIC)
            .expect("the registration succeeds")
            .expect("the fake has windows");
        let registration = comm.register(&memory).expect("the registration succeeds");
        let mut inside = memory.clone();
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("the capture begins");
        comm.all_reduce_in_place(&stream, &mut inside, ReduceOp::Sum).expect("the call is captured");
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = stream.end_capture(flags).expect("the capture ends").expect("the capture yields a graph");
        // The call waits for graphs for at most the communicator's deadline.
        comm.set_deadline(5 * SHORT);
        for result in [window.deregister(&stream, DEADLINE), registration.deregister(&stream, DEADLINE)] {
            let error = result.expect_err("the graph uses the registered memory");
            assert!(matches!(error.misuse_kind(), Some(MisuseKind::Graphs { count: 1 })), "{error}");
        }
        comm.set_deadline(DEADLINE);
        graph.launch().expect("the graph is launched");
        comm.wait(&stream, DEADLINE).expect("the work completes");
        drop(graph);
        let window = Window::register(&comm, &memory, WindowKind::SYMMETRIC)
            .expect("the registration succeeds")
            .expect("the fake has windows");
        window.deregister(&stream, DEADLINE).expect("no graph uses the window");
    });
}

#[test]
fn finalize_fails_if_a_capture_begins_while_finalize_waits() {
    fakes(1).run(|| {
        let (comm, stream) = alone_non_blocking();
        let mut values = floats(&stream, &[1.0]);
        let ending = comm.clone();
        let finalizing = std::thread::spawn(move || {
            let start = Instant::now();
            // No graph uses the communicator yet, and the call that will be captured holds the
            // lock.
            while !matches!(ending.async_error(), Ok(Some(ResultCode::IN_PROGRESS))) {
                assert!(start.elapsed() < DEADLINE, "the call must acquire the lock");
                std::thread::sleep(Duration::from_millis(1));
            }
            ending.finalize(DEADLINE)
        });
        let graph = captured(&stream, || {
            // The call queries the stream twice before it acquires the lock, and a third time while
            // it holds the lock.
            fail_driver("cuStreamIsCapturing:3=4000ms");
            comm.all_reduce_in_place(&stream, &mut values, ReduceOp::Sum)
        });
        let error = finalizing.join().expect("the thread does not panic").expect_err("a graph uses the communicator");
        assert!(matches!(error.misuse_kind(), Some(MisuseKind::Graphs { count: 1 })), "{error}");
        graph.launch().expect("the graph is launched");
        drop((graph, values, stream));
        comm.finalize(DEADLINE).expect("the graph was destroyed");
        nothing_is_left();
    });
}

/// Borrowed memory. When a call acquires the memory, a capture of the call's stream begins.
struct Capturing(DeviceMemory<f32>);

// SAFETY: all methods forward to the memory, except that no graph can keep the memory alive.
unsafe impl DeviceBuffer<f32> for Capturing {
    fn len(&self) -> usize {
        DeviceBuffer::len(&self.0)
    }

    fn device(&self) -> usize {
        self.0.device()
    }

    fn read<'a>(&'a self, stream: &'a Arc<CudaStream>) -> Result<Access<'a>, DriverError> {
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).expect("the capture begins");
        self.0.read(stream)
    }

    fn keep(&self) -> Option<(u64, Keep)> {
        None
    }
}

// SAFETY: as above.
unsafe impl DeviceBufferMut<f32> for Capturing {
    fn write<'a>(&'a mut self, stream: &'a Arc<CudaStream>) -> Result<Access<'a>, DriverError> {
        self.read(stream)
    }
}

#[test]
fn call_fails_if_a_buffer_trait_method_begins_a_stream_capture() {
    fakes(1).run(|| {
        let (comm, stream) = alone();
        let mut values = Capturing(floats(&stream, &[1.0]));
        let (config, before) = (CollConfig::new(), comm.sequence());
        let result = comm.with(&config).all_reduce_in_place(&stream, &mut values, ReduceOp::Sum);
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        drop(stream.end_capture(flags).expect("the capture is still valid"));
        let error = result.expect_err("the call is refused, because a capture began after it was recorded").to_string();
        assert_eq!(error, "all_reduce_in_place: a stream capture began or ended between the checks and the launch of the call; keep the whole call or group either inside or outside the capture");
        assert_eq!((comm.sequence(), counted("collectives")), (before, 0), "NCCL was not called");
    });
}

/// Begins a capture of the stream while a driver function in a call on another thread is delayed.
/// `held_up` selects the function. Returns the result of the call, and the graph, if any.
fn captured_during<B: Send + 'static>(
    (comm, stream): (&Communicator, &Arc<CudaStream>),
    held_up: &str,
    mut values: B,
    call: impl FnOnce(&Communicator, &Arc<CudaStream>, &mut B) -> Result<(), NcclError> + Send + 'static,
) -> (Result<(), NcclError>, Option<CudaGraph>) {
    // The form of `held_up` is `function:call=time`.
    let (function, call_and_time) = held_up.split_once(':').expect("the fault has the form function:call=time");
    let nth: usize =
        call_and_time.split('=').next().and_then(|nth| nth.parse().ok()).expect("the fault contains the number of a call");
    let before = peerweave_fakes::entered(function);
    fail_driver(held_up);
    let (other, theirs) = (comm.clone(), Arc::clone(stream));
    let calling = std::thread::spawn(move || call(&other, &theirs, &mut values));
    peerweave_fakes::wait_until_entered(function, before + nth);
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).expect("the capture begins");
    let result = calling.join().expect("the thread does not panic");
    let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    (result, stream.end_capture(flags).ok().flatten())
}

/// Begins a capture during a call, like [`captured_during`]. Checks that the call fails and that
/// the capture yields no graph. The call queries the stream before it is issued.
fn refused_meanwhile(
    blocking: Switch,
    held_up: &str,
    call: impl FnOnce(&Communicator, &Arc<CudaStream>, &mut DeviceMemory<f32>) -> Result<(), NcclError> + Send + 'static,
) {
    let (comm, stream) = all_with(1, &Config::new().blocking(blocking)).remove(0);
    let values = floats(&stream, &[1.0; 4]);
    let (result, graph) = captured_during((&comm, &stream), held_up, values, call);
    let error = result.expect_err("the call may be in the graph").to_string();
    assert!(error.contains("began to capture the stream during the call"), "{error}");
    assert!(graph.is_none(), "the graph would use memory that is not kept alive");
    drop((comm, stream));
    nothing_is_left();
}

/// Fault that delays NCCL's query of the capture status, in a call that makes one such query before
/// NCCL is called.
const NCCL_IS_HELD_UP: &str = "cuStreamIsCapturing:2=400ms";

#[test]
fn call_on_raw_memory_fails_if_a_capture_begins_during_the_call() {
    fakes(1).run(|| {
        let (comm, stream) = alone();
        let values = floats(&stream, &[1.0; 4]);
        // SAFETY: the memory lives until the end of this test.
        let borrowed = unsafe { Raw::<f32>::new(values.address(), 4, 0, None) };
        let (result, graph) = captured_during((&comm, &stream), NCCL_IS_HELD_UP, borrowed, |comm, stream, borrowed| {
            comm.all_reduce_in_place(stream, borrowed, ReduceOp::Sum)
        });
        let error = result.expect_err("the call is refused, because a capture began after it was recorded").to_string();
        assert!(error.contains("began to capture the stream during the call"), "{error}");
        assert!(graph.is_none(), "the graph would use memory that is not kept alive");
    });
}

#[test]
fn capture_that_begins_during_a_call_is_invalid() {
    fakes(1).run(|| {
        // If NCCL's query is delayed, the call is captured. If the query after NCCL's query is
        // delayed, the call is not captured and runs.
        for held_up in [NCCL_IS_HELD_UP, "cuStreamIsCapturing:3=400ms"] {
            refused_meanwhile(Switch::On, held_up, |comm, stream, values| {
                comm.all_reduce_in_place(stream, values, ReduceOp::Sum)
            });
        }
    });
}

#[test]
fn capture_that_begins_during_a_non_blocking_call_is_invalid() {
    fakes(1).run(|| {
        refused_meanwhile(Switch::Off, NCCL_IS_HELD_UP, |comm, stream, values| {
            comm.all_reduce_in_place(stream, values, ReduceOp::Sum)
        });
    });
}

#[test]
fn capture_that_begins_during_a_call_with_a_config_is_invalid() {
    fakes(1).run(|| {
        // Before it calls NCCL, the slow path queries the stream one time more than the fast path.
        refused_meanwhile(Switch::On, "cuStreamIsCapturing:3=400ms", |comm, stream, values| {
            comm.with(&CollConfig::new()).all_reduce_in_place(stream, values, ReduceOp::Sum)
        });
    });
}

#[test]
fn group_fails_if_a_capture_begins_during_the_group_call() {
    fakes(1).run(|| {
        refused_meanwhile(Switch::On, "cuStreamIsCapturing:3=400ms", |comm, stream, values| {
            comm.nccl().group(|group| group.all_reduce_in_place(comm, stream, values, ReduceOp::Sum))
        });
    });
}

#[test]
fn call_fails_if_the_capture_ends_during_the_call() {
    fakes(1).run(|| {
        let (comm, stream) = alone();
        let mut values = floats(&stream, &[1.0]);
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).expect("the capture begins");
        // If the quick query finds a capture, the stream is queried again. So there are two queries
        // before the call, two before the lock, one query of NCCL, and one query after NCCL.
        let before = peerweave_fakes::entered("cuStreamIsCapturing");
        fail_driver("cuStreamIsCapturing:6=400ms");
        let (other, theirs) = (comm.clone(), Arc::clone(&stream));
        let calling = std::thread::spawn(move || other.all_reduce_in_place(&theirs, &mut values, ReduceOp::Sum));
        peerweave_fakes::wait_until_entered("cuStreamIsCapturing", before + 6);
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = stream.end_capture(flags).expect("the capture ends").expect("the capture yields a graph");
        let error =
            calling.join().expect("the thread does not panic").expect_err("the capture ended during the call").to_string();
        assert!(error.contains("another thread ended the stream capture during the call"), "{error}");
        graph.launch().expect("the graph is launched");
        comm.wait(&stream, DEADLINE).expect("the work completes");
    });
}

#[test]
fn nccl_is_not_called_if_the_graph_cannot_keep_memory_alive() {
    fakes(1).run(|| {
        let (comm, stream) = alone();
        let (mut values, before) = (floats(&stream, &[1.0]), comm.sequence());
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).expect("the capture begins");
        fail_driver("cuUserObjectCreate:1=2");
        let error =
            comm.all_reduce_in_place(&stream, &mut values, ReduceOp::Sum).expect_err("the graph does not accept the resources");
        assert!(error.to_string().contains("cuUserObjectCreate"), "{error}");
        assert_eq!((comm.sequence(), counted("collectives")), (before, 0), "the graph would use memory that is not kept alive");
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        drop(stream.end_capture(flags).expect("the capture is still valid"));
        comm.abort(DEADLINE).expect("the communicator ends");
    });
}

#[test]
fn capture_status_is_queried_before_and_after_the_nccl_call() {
    fakes(1).run(|| {
        let (comm, stream) = alone();
        let values = floats(&stream, &[1.0]);
        let before = peerweave_fakes::entered("cuStreamIsCapturing");
        comm.all_reduce_in_place(&stream, &mut values.clone(), ReduceOp::Sum).expect("the call is enqueued");
        assert_eq!(peerweave_fakes::entered("cuStreamIsCapturing") - before, 3, "one query of NCCL and two of this crate");
    });
}

#[test]
fn communicator_that_a_graph_uses_cannot_be_suspended() {
    fakes(1).run(|| {
        let (comm, stream) = alone();
        let mut values = floats(&stream, &[1.0]);
        let graph = captured(&stream, || comm.all_reduce_in_place(&stream, &mut values, ReduceOp::Sum));
        comm.set_deadline(SHORT);
        let error = comm.suspend().expect_err("the graph would use released memory");
        assert!(matches!(error.misuse_kind(), Some(MisuseKind::Graphs { count: 1 })), "{error}");
        graph.launch().expect("the graph is launched");
        comm.wait(&stream, DEADLINE).expect("the work completes");
        drop(graph);
        comm.set_deadline(DEADLINE);
        comm.suspend().expect("the graph was destroyed");
        comm.resume().expect("the communicator is resumed");
    });
}
