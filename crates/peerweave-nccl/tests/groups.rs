//! Groups, and calls that are captured into graphs: what is issued, what is kept, and what errors leave behind.
#![cfg(target_os = "linux")]
#![allow(missing_docs, reason = "scenarios are named, not documented")]

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use common::*;
use peerweave_driver::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use peerweave_driver::cudarc::driver::{CudaGraph, CudaStream};
use peerweave_driver::{DeviceBuffer, DeviceMemory, settle};
use peerweave_nccl::{
    CollConfig, Communicator, Config, DeadState, Nccl, NcclError, NcclMem, PreMulSum, ReduceOp, SimInfo, Switch, Window,
    WindowKind,
};

fn value(memory: &DeviceMemory<f32>, stream: &Arc<CudaStream>) -> f32 {
    memory.to_vec(stream).expect("it can be read")[0]
}

#[test]
fn error_in_the_closure_issues_nothing() {
    fakes(2).run(|| {
        let all = all(2);
        let mut buffers: Vec<_> = all.iter().map(|(_, stream)| floats(stream, &[1.0; 4])).collect();
        let nccl = all[0].0.nccl();
        let result = nccl.group(|group| {
            for ((comm, stream), buffer) in all.iter().zip(&mut buffers) {
                group.all_reduce_in_place(comm, stream, buffer, ReduceOp::Sum)?;
            }
            group.broadcast_in_place(&all[0].0, &all[0].1, floats_forever(&all[0].1), 9)
        });
        assert_eq!(result.expect_err("rank 9").to_string(), "broadcast_in_place: the root is rank 9, the communicator has 2");
        assert_eq!(counted("collectives"), 0);
        // The thread is in no group now.
        nccl.group(|group| {
            for ((comm, stream), buffer) in all.iter().zip(&mut buffers) {
                group.all_reduce_in_place(comm, stream, buffer, ReduceOp::Sum)?;
            }
            Ok(())
        })
        .expect("it works");
        for ((comm, stream), buffer) in all.iter().zip(&buffers) {
            comm.wait(stream, DEADLINE).expect("it completes");
            assert_eq!(value(buffer, stream), 2.0);
            assert_eq!(comm.sequence(), 1);
        }
    });
}

/// What lives as long as any group.
fn floats_forever(stream: &Arc<CudaStream>) -> &'static mut DeviceMemory<f32> {
    Box::leak(Box::new(floats(stream, &[0.0])))
}

#[test]
fn panic_in_the_closure_issues_nothing() {
    fakes(1).run(|| {
        let (comm, stream) = alone();
        let mut buffer = floats(&stream, &[1.0]);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            comm.nccl().group(|group| {
                group.all_reduce_in_place(&comm, &stream, &mut buffer, ReduceOp::Sum)?;
                if group.len() == 1 {
                    panic!("in a group");
                }
                Ok(())
            })
        }));
        assert!(panicked.is_err());
        assert_eq!(counted("collectives"), 0);
        comm.all_reduce_in_place(&stream, &mut buffer, ReduceOp::Sum).expect("it works");
        comm.wait(&stream, DEADLINE).expect("it is in no group");
    });
}

#[test]
fn groups_within_groups_are_issued_together_and_fail_by_themselves() {
    fakes(2).run(|| {
        let all = all(2);
        let sends: Vec<_> = all.iter().map(|(comm, stream)| floats(stream, &[comm.rank() as f32])).collect();
        let mut recvs: Vec<_> = all.iter().map(|(_, stream)| floats(stream, &[-1.0])).collect();
        let mut sums: Vec<_> = all.iter().map(|(_, stream)| floats(stream, &[3.0])).collect();
        let nccl = all[0].0.nccl();
        nccl.group(|group| {
            for (((comm, stream), send), recv) in all.iter().zip(&sends).zip(&mut recvs) {
                group.group(|group| {
                    group.send(comm, stream, send, 1 - comm.rank())?;
                    group.recv(comm, stream, recv, 1 - comm.rank())
                })?;
            }
            let failed = group.group(|group| {
                group.send(&all[0].0, &all[0].1, &sends[0], 1)?;
                group.send(&all[0].0, &all[0].1, &sends[0], 2)
            });
            assert!(failed.is_err());
            assert_eq!(group.len(), 4, "what failed was taken out");
            for ((comm, stream), sum) in all.iter().zip(&mut sums) {
                group.all_reduce_in_place(comm, stream, sum, ReduceOp::Prod)?;
            }
            Ok(())
        })
        .expect("it works");
        for (((comm, stream), recv), sum) in all.iter().zip(&recvs).zip(&sums) {
            comm.wait(stream, DEADLINE).expect("it completes");
            assert_eq!((value(recv, stream), value(sum, stream)), (1.0 - comm.rank() as f32, 9.0));
        }
    });
}

#[test]
fn call_that_nccl_refuses_ends_the_group_with_its_error() {
    fakes(2).env("PEERWEAVE_FAKE_NCCL_FAIL", "ncclAllReduce:2=5").run(|| {
        let all = all(2);
        let mut buffers: Vec<_> = all.iter().map(|(_, stream)| floats(stream, &[1.0])).collect();
        let result = all[0].0.nccl().group(|group| {
            for ((comm, stream), buffer) in all.iter().zip(&mut buffers) {
                group.all_reduce_in_place(comm, stream, buffer, ReduceOp::Sum)?;
            }
            Ok(())
        });
        let error = result.expect_err("the second call fails");
        assert_eq!(error.code().map(|code| code.get()), Some(5), "{error}");
        for (comm, _) in &all {
            comm.abort(DEADLINE).expect("it ends");
        }
        nothing_is_left();
    });
}

#[test]
fn error_of_ours_in_the_middle_of_a_group_ends_the_part_that_was_issued() {
    fakes(2).without("ncclBroadcast").run(|| {
        let all = all(2);
        let ((one, first), (two, second)) = (&all[0], &all[1]);
        let (mut reduced, mut sent) = (floats(first, &[1.0]), floats(second, &[1.0]));
        let result = one.nccl().group(|group| {
            group.all_reduce_in_place(one, first, &mut reduced, ReduceOp::Sum)?;
            group.broadcast_in_place(two, second, &mut sent, 1)
        });
        assert!(matches!(result, Err(NcclError::Unsupported(error)) if error.what == "ncclBroadcast"));
        // Nobody would come to meet the first rank's kernel.
        for (comm, stream) in &all {
            assert!(matches!(comm.async_error(), Err(NcclError::Dead { state: DeadState::Aborted, .. })));
            peerweave_driver::wait(stream, std::time::Instant::now() + DEADLINE).expect("nothing runs");
        }
        drop((all, reduced, sent));
        nothing_is_left();
    });
}

#[test]
fn part_of_a_group_that_is_in_progress_is_not_waited_for() {
    // The first rank's collective waits for the second's, which does not come.
    fakes(2).env("PEERWEAVE_FAKE_NCCL_CONNECT", "1").run(|| {
        let all = all(2);
        let mut buffers: Vec<_> = all.iter().map(|(_, stream)| floats(stream, &[1.0])).collect();
        let start = std::time::Instant::now();
        let result = all[0].0.nccl().group(|group| {
            for ((comm, stream), buffer) in all.iter().zip(&mut buffers) {
                group.all_reduce_in_place(comm, stream, buffer, ReduceOp::Sum)?;
            }
            // The last one's context is current: each is made current once before NCCL is asked, and once for its call.
            fail_driver("cuCtxSetCurrent:4=709");
            Ok(())
        });
        assert!(matches!(result, Err(NcclError::Cuda(_))), "{result:?}");
        assert!(start.elapsed() < DEADLINE / 4, "nobody waits for what cannot come");
        for (comm, _) in &all {
            assert!(matches!(comm.async_error(), Err(NcclError::Dead { state: DeadState::Aborted, .. })));
        }
        drop((all, buffers));
        nothing_is_left();
    });
}

#[test]
fn rank_that_is_aborted_in_the_middle_of_a_group_is_not_used_any_more() {
    fakes(2).run(|| {
        let all = all(2);
        let mut buffers: Vec<_> = all.iter().map(|(_, stream)| floats(stream, &[1.0])).collect();
        let second = all[1].0.clone();
        let aborting = std::thread::spawn(move || {
            while second.sequence() == 0 {
                std::thread::yield_now();
            }
            // Whoever seems to be stuck in NCCL is given up after half a second.
            second.abort(DEADLINE)
        });
        let result = all[0].0.nccl().group(|group| {
            for ((comm, stream), buffer) in all.iter().zip(&mut buffers) {
                group.all_reduce_in_place(comm, stream, buffer, ReduceOp::Sum)?;
            }
            fail_driver("cuCtxSetCurrent:4=1500ms");
            Ok(())
        });
        assert!(matches!(result, Err(NcclError::Dead { state: DeadState::Aborted, .. })), "{result:?}");
        aborting.join().expect("no panic").expect("it ends");
        assert!(matches!(all[0].0.async_error(), Err(NcclError::Dead { state: DeadState::Aborted, .. })), "nobody would meet it");
    });
}

#[test]
fn captured_group_that_is_refused_leaves_nothing_in_the_graph() {
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
        let error = comm.clone().finalize(DEADLINE).expect_err("a graph uses it").to_string();
        assert_eq!(error, "finalize: captured graphs still use the communicator (1 captured calls); destroy them first");
        drop(graph);
        comm.finalize(DEADLINE).expect("the graph is gone");
    });
}

/// All of them together, as real work.
fn sum_together(all: &[(Communicator, Arc<CudaStream>)], buffers: &mut [DeviceMemory<f32>]) {
    let together = all[0].0.nccl().group(|group| {
        for ((comm, stream), buffer) in all.iter().zip(buffers) {
            group.all_reduce_in_place(comm, stream, buffer, ReduceOp::Sum)?;
        }
        Ok(())
    });
    together.expect("it is launched");
    all.iter().for_each(|(comm, stream)| comm.wait(stream, DEADLINE).expect("it completes"));
}

#[test]
fn error_of_ours_in_the_middle_of_a_simulation_ends_nothing() {
    fakes(2).without("ncclReduce").run(|| {
        let all = all_blocking(2);
        let (comm, stream) = &all[0];
        let mut buffers: Vec<_> = all.iter().map(|(_, stream)| floats(stream, &[1.0])).collect();
        let result = comm.nccl().simulate(|group| group.reduce_in_place(comm, stream, &mut buffers[0], ReduceOp::Sum, 0));
        assert!(matches!(result, Err(NcclError::Unsupported(error)) if error.what == "ncclReduce"));
        sum_together(&all, &mut buffers);
        assert_eq!(value(&buffers[0], stream), 2.0, "nothing was launched, and nothing ended");
    });
}

#[test]
fn simulation_that_the_library_lacks_begins_no_group() {
    fakes(2).without("ncclGroupSimulateEnd").run(|| {
        let all = all_blocking(2);
        let (comm, stream) = &all[0];
        let mut buffers: Vec<_> = all.iter().map(|(_, stream)| floats(stream, &[1.0])).collect();
        let result = comm.nccl().simulate(|group| group.all_reduce_in_place(comm, stream, &mut buffers[0], ReduceOp::Sum));
        assert!(matches!(result, Err(NcclError::Unsupported(error)) if error.what == "ncclGroupSimulateEnd"));
        sum_together(&all, &mut buffers);
        assert_eq!(value(&buffers[0], stream), 2.0, "it was launched by its own end of a group");
    });
}

#[test]
fn error_of_ours_in_the_middle_of_a_registration_ends_it() {
    fakes(2).run(|| {
        let all = all(2);
        let memories: Vec<_> =
            all.iter().map(|(comm, _)| NcclMem::<u8>::alloc(comm.nccl(), comm.context(), 64).expect("memory")).collect();
        let members: Vec<(&Communicator, &dyn DeviceBuffer<u8>)> =
            all.iter().zip(&memories).map(|((comm, _), memory)| (comm, memory as _)).collect();
        // The last one's context is current: each is made current once before NCCL is asked, and once for its call.
        fail_driver("cuCtxSetCurrent:4=709");
        let start = std::time::Instant::now();
        let error = Window::register_all(&members, WindowKind::DEFAULT).expect_err("the second rank cannot register");
        assert!(matches!(error, NcclError::Cuda(_)), "{error}");
        assert!(start.elapsed() < DEADLINE / 4, "nobody waits for what cannot come");
        for (comm, _) in &all {
            assert!(matches!(comm.async_error(), Err(NcclError::Dead { state: DeadState::Aborted, .. })));
        }
    });
}

#[test]
fn simulated_group_gives_a_time_and_runs_nothing() {
    fakes(2).run(|| {
        let all = all_blocking(2);
        let mut buffers: Vec<_> = all.iter().map(|(_, stream)| floats(stream, &[1.0; 1024])).collect();
        let info = all[0].0.nccl().simulate(|group| {
            for ((comm, stream), buffer) in all.iter().zip(&mut buffers) {
                group.all_reduce_in_place(comm, stream, buffer, ReduceOp::Sum)?;
            }
            Ok(())
        });
        assert!(info.expect("an estimate").estimated_time.is_some());
        for ((comm, stream), buffer) in all.iter().zip(&buffers) {
            comm.wait(stream, DEADLINE).expect("nothing runs");
            assert_eq!((comm.sequence(), value(buffer, stream)), (0, 1.0));
        }
    });
}

#[test]
fn what_nccl_would_launch_is_not_simulated() {
    fn refused(result: Result<SimInfo, NcclError>, words: &str) {
        let error = result.expect_err("it is refused");
        assert!(matches!(&error, NcclError::Misuse(_)) && error.to_string().contains(words), "{error}");
    }
    fakes(2).run(|| {
        let alone = alone();
        let nccl = alone.0.nccl();
        let (send, mut recv, mut two) = (floats(&alone.1, &[1.0]), floats(&alone.1, &[0.0]), floats(&alone.1, &[0.0; 2]));
        let result = nccl.simulate(|group| group.all_reduce(&alone.0, &alone.1, &send, &mut recv, ReduceOp::Sum));
        refused(result, "do not block");
        let alone = all_blocking(1).remove(0);
        let result = nccl.simulate(|group| group.all_reduce(&alone.0, &alone.1, &send, &mut recv, ReduceOp::Sum));
        refused(result, "a rank does alone");
        let all = all_blocking(2);
        let (comm, stream) = &all[0];
        refused(nccl.simulate(|group| group.send(comm, stream, &send, 1)), "with the next group");
        refused(nccl.simulate(|group| group.recv(comm, stream, &mut recv, 1)), "with the next group");
        let pair = floats(stream, &[1.0; 2]);
        refused(nccl.simulate(|group| group.all_to_all(comm, stream, &pair, &mut two)), "with the next group");
        refused(nccl.simulate(|group| group.broadcast_in_place(comm, stream, &mut recv, 0)), "with the next group");
        refused(nccl.simulate(|group| group.all_gather_v(comm, stream, &send, &mut two, &[1, 1])), "with the next group");
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("it captures");
        let result = nccl.simulate(|group| group.all_reduce(comm, stream, &send, &mut recv, ReduceOp::Sum));
        drop(stream.end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH).expect("it ends"));
        refused(result, "captured");
        let mut buffers: Vec<_> = all.iter().map(|(_, stream)| floats(stream, &[1.0])).collect();
        sum_together(&all, &mut buffers);
        assert_eq!((comm.sequence(), value(&buffers[0], stream)), (1, 2.0), "nothing is left of the others");
    });
    fakes_of(2, "2.28.9").run(|| {
        let all = all_blocking(2);
        let (comm, stream) = &all[0];
        let mut values = floats(stream, &[1.0]);
        let result = comm.nccl().simulate(|group| group.broadcast_in_place(comm, stream, &mut values, 0));
        assert!(result.expect("it is forgotten then").estimated_time.is_some());
    });
}

#[test]
fn panic_in_an_inner_group_takes_its_calls_back() {
    fakes(1).run(|| {
        let (comm, stream) = alone();
        let (mut first, mut second) = (floats(&stream, &[1.0]), floats(&stream, &[1.0]));
        let (comm, stream, first, second) = (&comm, &stream, &mut first, &mut second);
        let group = comm.nccl().group(move |group| {
            group.all_reduce_in_place(comm, stream, first, ReduceOp::Sum)?;
            let inner = AssertUnwindSafe(|| {
                group.group(move |inner| -> Result<(), NcclError> {
                    inner.all_reduce_in_place(comm, stream, second, ReduceOp::Sum)?;
                    panic!("inside")
                })
            });
            assert!(catch_unwind(inner).is_err());
            assert_eq!(group.len(), 1);
            Ok(())
        });
        group.expect("the outer call is issued");
        comm.wait(stream, DEADLINE).expect("it completes");
        assert_eq!(comm.sequence(), 1);
    });
}

#[test]
fn threads_whose_groups_take_communicators_in_another_order_do_not_wait_for_each_other() {
    fakes(2).run(|| {
        let all = all(2);
        let nccl = all[0].0.nccl();
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let all = &all;
                scope.spawn(move || {
                    for _ in 0..100 {
                        let mut members: Vec<_> =
                            all.iter().map(|(comm, stream)| (comm, stream, floats(stream, &[1.0]))).collect();
                        if thread == 1 {
                            members.reverse();
                        }
                        // Alone on its communicator each: the order between threads does not matter then.
                        nccl.group(|group| {
                            for (comm, stream, buffer) in &mut members {
                                group.all_reduce_in_place(comm, stream, buffer, ReduceOp::Max)?;
                            }
                            Ok(())
                        })
                        .expect("it works");
                    }
                });
            }
        });
        for (comm, stream) in &all {
            comm.wait(stream, DEADLINE).expect("it completes");
            assert_eq!(comm.sequence(), 200);
        }
    });
}

fn captured(stream: &Arc<CudaStream>, body: impl FnOnce() -> Result<(), NcclError>) -> CudaGraph {
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("it captures");
    let result = body();
    let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream.end_capture(flags).expect("it ends").expect("a graph");
    result.expect("the call is captured");
    graph
}

#[test]
fn graph_keeps_what_it_uses_and_its_communicator() {
    fakes(1).run(|| {
        let (comm, stream) = alone();
        let result = floats(&stream, &[0.0]);
        let graph = {
            let send = floats(&stream, &[21.0]);
            let scalar = floats(&stream, &[2.0]);
            let scaled = PreMulSum::from_device(&comm, scalar).expect("it is made");
            let mut recv = result.clone();
            captured(&stream, || comm.all_reduce(&stream, &send, &mut recv, &scaled))
        };
        assert_eq!(value(&result, &stream), 0.0, "nothing ran");
        let error = comm.clone().finalize(DEADLINE).expect_err("a graph uses it").to_string();
        assert_eq!(error, "finalize: captured graphs still use the communicator (1 captured calls); destroy them first");
        let other = comm.clone();
        drop(comm);
        for _ in 0..3 {
            graph.launch().expect("it is replayed");
        }
        assert_eq!(value(&result, &stream), 42.0);
        assert_eq!(counted("communicators"), 1, "the graph keeps it");
        drop((graph, result, stream));
        // What the graph used is let go of some time after: that is waited for.
        other.finalize(DEADLINE).expect("the graph is gone");
        nothing_is_left();
    });
}

#[test]
fn group_is_captured_as_one() {
    fakes(1).run(|| {
        let (comm, stream) = alone();
        let (send, mut recv, mut sum) = (floats(&stream, &[5.0]), floats(&stream, &[0.0]), floats(&stream, &[7.0]));
        let kept = (recv.clone(), sum.clone());
        let graph = captured(&stream, || {
            comm.nccl().group(|group| {
                group.send(&comm, &stream, &send, 0)?;
                group.recv(&comm, &stream, &mut recv, 0)?;
                group.all_reduce_in_place(&comm, &stream, &mut sum, ReduceOp::Sum)
            })
        });
        drop((send, recv, sum));
        graph.launch().expect("it is replayed");
        assert_eq!((value(&kept.0, &stream), value(&kept.1, &stream)), (5.0, 7.0));
    });
}

#[test]
fn borrowed_memory_is_not_captured_nor_is_a_capture_waited_for() {
    fakes(1).run(|| {
        let (comm, stream) = alone();
        let mut slice = stream.alloc_zeros::<f32>(4).expect("memory");
        let memory = floats(&stream, &[1.0]);
        let mut kept = memory.clone();
        let graph = captured(&stream, || {
            let error = comm.all_reduce_in_place(&stream, &mut slice, ReduceOp::Sum).expect_err("it is borrowed").to_string();
            assert!(
                error.starts_with("all_reduce_in_place: the stream is being captured, and a graph replays after the call"),
                "{error}"
            );
            let error = comm.wait(&stream, DEADLINE).expect_err("it is being captured").to_string();
            assert_eq!(error, "wait: the stream is being captured: nothing runs that could be waited for");
            // Neither spoiled the capture, nor ended the communicator.
            comm.all_reduce_in_place(&stream, &mut kept, ReduceOp::Sum)
        });
        graph.launch().expect("it is replayed");
        comm.wait(&stream, DEADLINE).expect("it completes");
        comm.all_reduce_in_place(&stream, &mut slice, ReduceOp::Sum).expect("without a capture it is fine");
        comm.wait(&stream, DEADLINE).expect("it completes");
    });
}

#[test]
fn capture_that_begins_while_a_group_is_recorded_is_an_error() {
    fakes(1).run(|| {
        let (comm, stream) = alone();
        let mut slice = stream.alloc_zeros::<f32>(4).expect("memory");
        let result = comm.nccl().group(|group| {
            group.all_reduce_in_place(&comm, &stream, &mut slice, ReduceOp::Sum)?;
            stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("it captures");
            Ok(())
        });
        let error = result.expect_err("the slice cannot be kept").to_string();
        assert_eq!(error, "all_reduce_in_place: whether the stream is being captured has changed since the call was recorded");
        assert_eq!(counted("collectives"), 0);
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        stream.end_capture(flags).expect("the capture was not touched");
    });
}

#[test]
fn wait_on_one_stream_does_not_spoil_the_capture_of_another() {
    fakes(1).run(|| {
        let (comm, stream) = alone();
        let other = comm.context().new_stream().expect("a stream");
        let (memory, mut kept) = (floats(&stream, &[4.0]), floats(&stream, &[1.0]));
        other.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).expect("it captures");
        let waited = comm.wait(&stream, DEADLINE);
        let issued = comm.all_reduce_in_place(&other, &mut kept, ReduceOp::Sum);
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = other.end_capture(flags).expect("the capture is whole").expect("a graph");
        waited.expect("the stream is idle");
        issued.expect("it is captured");
        graph.launch().expect("it is replayed");
        assert_eq!(value(&memory, &stream), 4.0);
    });
}

#[test]
fn memory_and_communicators_are_made_while_a_capture_goes_on() {
    for blocking in [Switch::Off, Switch::On] {
        fakes(1).env("BLOCKING", format!("{blocking:?}")).run(|| {
            let blocking = if std::env::var("BLOCKING").as_deref() == Ok("On") { Switch::On } else { Switch::Off };
            let config = Config::new().blocking(blocking);
            let (context, nccl) = (device(0), Nccl::load().expect("the fake is there"));
            let make = || Communicator::init_all(nccl, std::slice::from_ref(&context), &config, DEADLINE).expect("it is made");
            let (comm, stream) = (make().remove(0), context.new_stream().expect("a stream"));
            let mut kept = floats(&stream, &[1.0]);
            let capturing = context.new_stream().expect("a stream");
            capturing.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).expect("it captures");
            // What allocates or synchronises would spoil the capture of this mode, whichever thread does it.
            let memory = NcclMem::from_slice(nccl, &stream, &[1.0f32; 8]);
            let registered = memory.as_ref().map(|memory| comm.register(memory));
            let window = memory.as_ref().map(|memory| Window::register(&comm, memory, WindowKind::DEFAULT));
            let other = make();
            let scaled = PreMulSum::new(&comm, 3.0f32);
            let issued = comm.all_reduce_in_place(&capturing, &mut kept, ReduceOp::Sum);
            let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
            let graph = capturing.end_capture(flags).expect("the capture is whole").expect("a graph");
            issued.expect("it is captured");
            registered.expect("memory").expect("it is registered");
            window.expect("memory").expect("it is registered").expect("the fake has windows");
            scaled.expect("it is made");
            graph.launch().expect("it is replayed");
            drop(other);
        });
    }
}

#[test]
fn event_of_a_launch_is_recorded_there_and_kept_by_a_graph() {
    fakes(2).run(|| {
        let (comm, stream) = alone();
        let mut values = floats(&stream, &[1.0]);
        let there = device(1).new_event(None).expect("an event");
        let config = CollConfig::new().launch_completion_event(Arc::new(there));
        let error = comm.with(&config).all_reduce_in_place(&stream, &mut values, ReduceOp::Sum).expect_err("another device's");
        assert_eq!(error.to_string(), "all_reduce_in_place: the launch completion event is on device 1, expected device 0");
        assert_eq!((counted("collectives"), comm.sequence()), (0, 0), "NCCL heard of nothing");
        let here = Arc::new(comm.context().new_event(None).expect("an event"));
        let config = CollConfig::new().launch_completion_event(Arc::clone(&here));
        comm.with(&config).all_reduce_in_place(&stream, &mut values, ReduceOp::Sum).expect("it is enqueued");
        comm.wait(&stream, DEADLINE).expect("it completes");
        assert!(here.is_complete(), "it was recorded");
        let held = Arc::downgrade(&here);
        let graph = captured(&stream, || comm.with(&config).all_reduce_in_place(&stream, &mut values, ReduceOp::Sum));
        drop((config, here));
        assert!(held.upgrade().is_some(), "the graph keeps it");
        graph.launch().expect("it is replayed");
        comm.wait(&stream, DEADLINE).expect("it completes");
        drop(graph);
        let end = std::time::Instant::now() + DEADLINE;
        while held.upgrade().is_some() {
            assert!(std::time::Instant::now() < end, "the graph is gone, and the event with it");
            settle(end);
        }
    });
}

#[test]
fn aborted_communicator_is_freed_with_its_graph() {
    fakes(1).run(|| {
        let (comm, stream) = alone();
        let mut buffer = floats(&stream, &[1.0]);
        let graph = captured(&stream, || comm.all_reduce_in_place(&stream, &mut buffer, ReduceOp::Sum));
        comm.abort(DEADLINE).expect("NCCL waits for the graph, this does not");
        drop((graph, buffer, stream));
        assert!(settle(std::time::Instant::now() + DEADLINE));
        drop(comm);
        nothing_is_left();
    });
}

#[test]
fn slices_of_cudarc_are_reduced_and_may_be_dropped_at_once() {
    fakes(2).run(|| {
        let all = all(2);
        let mut slices: Vec<_> =
            all.iter().map(|(comm, stream)| stream.clone_htod(&[comm.rank() as f32 + 1.0; 6]).expect("memory")).collect();
        let outs: Vec<_> = all.iter().map(|(_, stream)| floats(stream, &[0.0; 3])).collect();
        let mut handles = outs.clone();
        let nccl = all[0].0.nccl();
        {
            let mut views: Vec<_> = slices.iter_mut().map(|slice| slice.slice_mut(2..5)).collect();
            nccl.group(|group| {
                for ((comm, stream), view) in all.iter().zip(&mut views) {
                    group.all_reduce_in_place(comm, stream, view, ReduceOp::Sum)?;
                }
                Ok(())
            })
            .expect("views work");
        }
        for ((_, stream), slice) in all.iter().zip(&slices) {
            let rank = stream.context().ordinal() as f32 + 1.0;
            assert_eq!(stream.clone_dtoh(slice).expect("it can be read"), [rank, rank, 3.0, 3.0, 3.0, rank]);
        }
        let views: Vec<_> = slices.iter().map(|slice| slice.slice(2..5)).collect();
        nccl.group(|group| {
            for (((comm, stream), view), out) in all.iter().zip(&views).zip(&mut handles) {
                group.all_reduce(comm, stream, view, out, ReduceOp::Prod)?;
            }
            Ok(())
        })
        .expect("views work");
        drop(slices);
        for ((comm, stream), out) in all.iter().zip(&outs) {
            comm.wait(stream, DEADLINE).expect("it completes");
            assert_eq!(value(out, stream), 9.0);
        }
        drop((outs, handles));
        Communicator::finalize_all(all.into_iter().map(|(comm, _)| comm).collect(), DEADLINE).expect("all end");
    });
}
