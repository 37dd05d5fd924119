//! Tests of groups: calls that are issued together, simulated groups, and the state after errors.
#![cfg(target_os = "linux")]
#![allow(missing_docs, reason = "scenarios are named, not documented")]

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use common::*;
use peerweave_driver::cudarc::driver::CudaStream;
use peerweave_driver::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use peerweave_driver::{DeviceBuffer, DeviceMemory};
use peerweave_nccl::{Communicator, Config, DeadState, NcclError, NcclMem, Rank, ReduceOp, SimInfo, Switch, Window, WindowKind};

#[test]
fn group_issues_no_call_if_the_closure_fails() {
    fakes(2).run(|| {
        let all = all(2);
        let mut buffers: Vec<_> = all.iter().map(|(_, stream)| floats(stream, &[1.0; 4])).collect();
        let nccl = all[0].0.nccl();
        let result = nccl.group(|group| {
            for ((comm, stream), buffer) in all.iter().zip(&mut buffers) {
                group.all_reduce_in_place(comm, stream, buffer, ReduceOp::Sum)?;
            }
            group.broadcast_in_place(&all[0].0, &all[0].1, floats_forever(&all[0].1), Rank::new(9))
        });
        assert_eq!(
            result.expect_err("rank 9 does not exist").to_string(),
            "broadcast_in_place: the root is 9, expected less than 2 (the number of ranks)"
        );
        assert_eq!(counted("collectives"), 0);
        // The thread has left the group, so the next group succeeds.
        nccl.group(|group| {
            for ((comm, stream), buffer) in all.iter().zip(&mut buffers) {
                group.all_reduce_in_place(comm, stream, buffer, ReduceOp::Sum)?;
            }
            Ok(())
        })
        .expect("the group succeeds");
        for ((comm, stream), buffer) in all.iter().zip(&buffers) {
            comm.wait(stream, DEADLINE).expect("the work completes");
            assert_eq!(value(buffer, stream), 2.0);
            assert_eq!(comm.sequence(), 1);
        }
    });
}

/// Returns memory that outlives any group.
fn floats_forever(stream: &Arc<CudaStream>) -> &'static mut DeviceMemory<f32> {
    Box::leak(Box::new(floats(stream, &[0.0])))
}

#[test]
fn group_issues_no_call_if_the_closure_panics() {
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
        comm.all_reduce_in_place(&stream, &mut buffer, ReduceOp::Sum).expect("the group succeeds");
        comm.wait(&stream, DEADLINE).expect("the thread is in no group");
    });
}

#[test]
fn failed_nested_group_does_not_affect_other_nested_groups() {
    fakes(2).run(|| {
        let all = all(2);
        let sends: Vec<_> = all.iter().map(|(comm, stream)| floats(stream, &[comm.rank().get() as f32])).collect();
        let mut recvs: Vec<_> = all.iter().map(|(_, stream)| floats(stream, &[-1.0])).collect();
        let mut sums: Vec<_> = all.iter().map(|(_, stream)| floats(stream, &[3.0])).collect();
        let nccl = all[0].0.nccl();
        nccl.group(|group| {
            for (((comm, stream), send), recv) in all.iter().zip(&sends).zip(&mut recvs) {
                group.group(|group| {
                    group.send(comm, stream, send, Rank::new((1 - comm.rank().index()) as u32))?;
                    group.recv(comm, stream, recv, Rank::new((1 - comm.rank().index()) as u32))
                })?;
            }
            let failed = group.group(|group| {
                group.send(&all[0].0, &all[0].1, &sends[0], Rank::new(1))?;
                group.send(&all[0].0, &all[0].1, &sends[0], Rank::new(2))
            });
            assert!(failed.is_err());
            assert_eq!(group.len(), 4, "the calls of the failed inner group were removed");
            for ((comm, stream), sum) in all.iter().zip(&mut sums) {
                group.all_reduce_in_place(comm, stream, sum, ReduceOp::Prod)?;
            }
            Ok(())
        })
        .expect("the group succeeds");
        for (((comm, stream), recv), sum) in all.iter().zip(&recvs).zip(&sums) {
            comm.wait(stream, DEADLINE).expect("the work completes");
            assert_eq!((value(recv, stream), value(sum, stream)), (1.0 - comm.rank().get() as f32, 9.0));
        }
    });
}

#[test]
fn group_returns_the_error_of_a_call_that_nccl_refuses() {
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
            comm.abort(DEADLINE).expect("the communicator ends");
        }
        nothing_is_left();
    });
}

#[test]
fn error_during_a_launch_aborts_all_ranks_of_the_group() {
    fakes(2).without("ncclBroadcast").run(|| {
        let all = all(2);
        let ((one, first), (two, second)) = (&all[0], &all[1]);
        let (mut reduced, mut sent) =
            ([floats(first, &[1.0]), floats(second, &[1.0])], [floats(first, &[1.0]), floats(second, &[1.0])]);
        let ([reduced_one, reduced_two], [sent_one, sent_two]) = (&mut reduced, &mut sent);
        let result = one.nccl().group(|group| {
            group.all_reduce_in_place(one, first, reduced_one, ReduceOp::Sum)?;
            group.broadcast_in_place(one, first, sent_one, Rank::new(1))?;
            group.all_reduce_in_place(two, second, reduced_two, ReduceOp::Sum)?;
            group.broadcast_in_place(two, second, sent_two, Rank::new(1))
        });
        assert!(matches!(result, Err(NcclError::Unsupported(error)) if error.what == "ncclBroadcast"));
        // The other rank would never join the kernel of the first rank.
        for (comm, stream) in &all {
            assert!(matches!(comm.async_error(), Err(NcclError::Dead { state: DeadState::Aborted, .. })));
            peerweave_driver::wait(stream, std::time::Instant::now() + DEADLINE).expect("no work is running");
        }
        drop((all, reduced, sent));
        nothing_is_left();
    });
}

#[test]
fn failed_group_does_not_wait_for_the_deadline() {
    // The collective of the first rank waits for the collective of the second rank, which is never
    // issued.
    fakes(2).env("PEERWEAVE_FAKE_NCCL_CONNECT", "1").run(|| {
        let all = all(2);
        let mut buffers: Vec<_> = all.iter().map(|(_, stream)| floats(stream, &[1.0])).collect();
        let start = std::time::Instant::now();
        let result = all[0].0.nccl().group(|group| {
            for ((comm, stream), buffer) in all.iter().zip(&mut buffers) {
                group.all_reduce_in_place(comm, stream, buffer, ReduceOp::Sum)?;
            }
            // The context of the last rank is current. Each rank's context is made current once
            // before NCCL is called, and once for the call of the rank.
            all[1].0.context().bind_to_thread().expect("the context is live");
            fail_driver("cuCtxSetCurrent:4=709");
            Ok(())
        });
        assert!(matches!(result, Err(NcclError::Cuda(_))), "{result:?}");
        assert!(start.elapsed() < DEADLINE / 4, "no thread waits until the deadline");
        for (comm, _) in &all {
            assert!(matches!(comm.async_error(), Err(NcclError::Dead { state: DeadState::Aborted, .. })));
        }
        drop((all, buffers));
        nothing_is_left();
    });
}

#[test]
fn group_fails_if_another_thread_aborts_a_rank_during_launch() {
    fakes(2).run(|| {
        let all = all(2);
        let mut buffers: Vec<_> = all.iter().map(|(_, stream)| floats(stream, &[1.0])).collect();
        let second = all[1].0.clone();
        let aborting = std::thread::spawn(move || {
            while second.sequence() == 0 {
                std::thread::yield_now();
            }
            // After half a second, an abort stops waiting for a thread that seems to be blocked in
            // NCCL.
            second.abort(DEADLINE)
        });
        let result = all[0].0.nccl().group(|group| {
            for ((comm, stream), buffer) in all.iter().zip(&mut buffers) {
                group.all_reduce_in_place(comm, stream, buffer, ReduceOp::Sum)?;
            }
            all[1].0.context().bind_to_thread().expect("the context is live");
            fail_driver("cuCtxSetCurrent:4=5000ms");
            Ok(())
        });
        assert!(matches!(result, Err(NcclError::Dead { state: DeadState::Aborted, .. })), "{result:?}");
        aborting.join().expect("the thread does not panic").expect("the communicator ends");
        assert!(
            matches!(all[0].0.async_error(), Err(NcclError::Dead { state: DeadState::Aborted, .. })),
            "the first rank was not aborted, although the second rank cannot join"
        );
    });
}

#[test]
fn group_simulation_that_fails_aborts_no_communicator() {
    fakes(2).without("ncclReduce").run(|| {
        let all = all_blocking(2);
        let (comm, stream) = &all[0];
        let mut buffers: Vec<_> = all.iter().map(|(_, stream)| floats(stream, &[1.0])).collect();
        let result =
            comm.nccl().simulate(|group| group.reduce_in_place(comm, stream, &mut buffers[0], ReduceOp::Sum, Rank::new(0)));
        assert!(matches!(result, Err(NcclError::Unsupported(error)) if error.what == "ncclReduce"));
        sum_together(&all, &mut buffers);
        assert_eq!(value(&buffers[0], stream), 2.0, "the simulation must not launch calls or abort communicators");
    });
}

#[test]
fn unsupported_simulate_call_leaves_no_nccl_group_open() {
    fakes(2).without("ncclGroupSimulateEnd").run(|| {
        let all = all_blocking(2);
        let (comm, stream) = &all[0];
        let mut buffers: Vec<_> = all.iter().map(|(_, stream)| floats(stream, &[1.0])).collect();
        let result = comm.nccl().simulate(|group| group.all_reduce_in_place(comm, stream, &mut buffers[0], ReduceOp::Sum));
        assert!(matches!(result, Err(NcclError::Unsupported(error)) if error.what == "ncclGroupSimulateEnd"));
        sum_together(&all, &mut buffers);
        assert_eq!(value(&buffers[0], stream), 2.0, "the failed simulation must not leave a group open");
    });
}

#[test]
fn failed_window_registration_of_one_rank_aborts_all_ranks() {
    fakes(2).run(|| {
        let all = all(2);
        let memories: Vec<_> = all
            .iter()
            .map(|(comm, _)| NcclMem::<u8>::alloc(comm.nccl(), comm.context(), 64).expect("memory is allocated"))
            .collect();
        let members: Vec<(&Communicator, &dyn DeviceBuffer<u8>)> =
            all.iter().zip(&memories).map(|((comm, _), memory)| (comm, memory as _)).collect();
        // The context of the last rank is current. Each rank's context is made current once before
        // NCCL is called, and once for the call of the rank.
        fail_driver("cuCtxSetCurrent:4=709");
        let start = std::time::Instant::now();
        let error = Window::register_all(&members, WindowKind::DEFAULT).expect_err("the second rank cannot register");
        assert!(matches!(error, NcclError::Cuda(_)), "{error}");
        assert!(start.elapsed() < DEADLINE / 4, "no thread waits until the deadline");
        for (comm, _) in &all {
            assert!(matches!(comm.async_error(), Err(NcclError::Dead { state: DeadState::Aborted, .. })));
        }
    });
}

#[test]
fn simulated_group_returns_an_estimate_and_runs_no_call() {
    fakes(2).run(|| {
        let all = all_blocking(2);
        let mut buffers: Vec<_> = all.iter().map(|(_, stream)| floats(stream, &[1.0; 1024])).collect();
        let info = all[0].0.nccl().simulate(|group| {
            for ((comm, stream), buffer) in all.iter().zip(&mut buffers) {
                group.all_reduce_in_place(comm, stream, buffer, ReduceOp::Sum)?;
            }
            Ok(())
        });
        assert!(info.expect("NCCL returns an estimate").estimated_time.is_some());
        for ((comm, stream), buffer) in all.iter().zip(&buffers) {
            comm.wait(stream, DEADLINE).expect("no work is running");
            assert_eq!((comm.sequence(), value(buffer, stream)), (0, 1.0));
        }
    });
}

#[test]
fn group_simulation_refuses_calls_that_nccl_cannot_estimate() {
    fn refused(result: Result<SimInfo, NcclError>, words: &str) {
        let error = result.expect_err("the simulation is refused");
        assert!(matches!(&error, NcclError::Misuse(_)) && error.to_string().contains(words), "{error}");
    }
    fakes(2).run(|| {
        let alone = alone_non_blocking();
        let nccl = alone.0.nccl();
        let (send, mut recv, mut two) = (floats(&alone.1, &[1.0]), floats(&alone.1, &[0.0]), floats(&alone.1, &[0.0; 2]));
        let result = nccl.simulate(|group| group.all_reduce(&alone.0, &alone.1, &send, &mut recv, ReduceOp::Sum));
        refused(result, "non-blocking");
        let alone = all_blocking(1).remove(0);
        let result = nccl.simulate(|group| group.all_reduce(&alone.0, &alone.1, &send, &mut recv, ReduceOp::Sum));
        refused(result, "one rank");
        let all = all_blocking(2);
        let (comm, stream) = &all[0];
        refused(nccl.simulate(|group| group.send(comm, stream, &send, Rank::new(1))), "with the next group");
        refused(nccl.simulate(|group| group.recv(comm, stream, &mut recv, Rank::new(1))), "with the next group");
        let pair = floats(stream, &[1.0; 2]);
        refused(nccl.simulate(|group| group.all_to_all(comm, stream, &pair, &mut two)), "with the next group");
        refused(nccl.simulate(|group| group.broadcast_in_place(comm, stream, &mut recv, Rank::new(0))), "with the next group");
        refused(nccl.simulate(|group| group.all_gather_v(comm, stream, &send, &mut two, &[1, 1])), "with the next group");
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("the capture begins");
        let result = nccl.simulate(|group| group.all_reduce(comm, stream, &send, &mut recv, ReduceOp::Sum));
        drop(
            stream
                .end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)
                .expect("the capture ends"),
        );
        refused(result, "captured");
        let mut buffers: Vec<_> = all.iter().map(|(_, stream)| floats(stream, &[1.0])).collect();
        sum_together(&all, &mut buffers);
        assert_eq!((comm.sequence(), value(&buffers[0], stream)), (1, 2.0), "refused simulations must not leave calls in NCCL");
    });
    fakes_of(2, "2.28.9").run(|| {
        let all = all_blocking(2);
        let (comm, stream) = &all[0];
        let mut values = floats(stream, &[1.0]);
        let result = comm.nccl().simulate(|group| group.broadcast_in_place(comm, stream, &mut values, Rank::new(0)));
        assert!(result.expect("broadcasts can be simulated before 2.29.2").estimated_time.is_some());
    });
}

#[test]
fn panic_in_a_nested_group_discards_calls_of_the_nested_group() {
    fakes(1).run(|| {
        let (comm, stream) = alone();
        let (mut first, mut second) = (floats(&stream, &[1.0]), floats(&stream, &[1.0]));
        let (comm, stream, first, second) = (&comm, &stream, &mut first, &mut second);
        let group = comm.nccl().group(move |group| {
            group.all_reduce_in_place(comm, stream, first, ReduceOp::Sum)?;
            let inner = AssertUnwindSafe(|| {
                group.group(move |inner| -> Result<(), NcclError> {
                    inner.all_reduce_in_place(comm, stream, second, ReduceOp::Sum)?;
                    panic!("in an inner group")
                })
            });
            assert!(catch_unwind(inner).is_err());
            assert_eq!(group.len(), 1);
            Ok(())
        });
        group.expect("the call of the outer group is issued");
        comm.wait(stream, DEADLINE).expect("the work completes");
        assert_eq!(comm.sequence(), 1);
    });
}

#[test]
fn groups_with_ranks_in_opposite_order_do_not_deadlock() {
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
                        // Each thread issues the calls of both ranks in one group, so the order of
                        // the threads does not matter.
                        nccl.group(|group| {
                            for (comm, stream, buffer) in &mut members {
                                group.all_reduce_in_place(comm, stream, buffer, ReduceOp::Max)?;
                            }
                            Ok(())
                        })
                        .expect("the group succeeds");
                    }
                });
            }
        });
        for (comm, stream) in &all {
            comm.wait(stream, DEADLINE).expect("the work completes");
            assert_eq!(comm.sequence(), 200);
        }
    });
}

#[test]
fn cudarc_slices_can_be_dropped_before_the_work_completes() {
    fakes(2).run(|| {
        let all = all(2);
        let mut slices: Vec<_> = all
            .iter()
            .map(|(comm, stream)| stream.clone_htod(&[comm.rank().get() as f32 + 1.0; 6]).expect("memory is allocated"))
            .collect();
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
            .expect("views of slices are accepted");
        }
        for ((_, stream), slice) in all.iter().zip(&slices) {
            let rank = stream.context().ordinal() as f32 + 1.0;
            assert_eq!(stream.clone_dtoh(slice).expect("the memory can be read"), [rank, rank, 3.0, 3.0, 3.0, rank]);
        }
        let views: Vec<_> = slices.iter().map(|slice| slice.slice(2..5)).collect();
        nccl.group(|group| {
            for (((comm, stream), view), out) in all.iter().zip(&views).zip(&mut handles) {
                group.all_reduce(comm, stream, view, out, ReduceOp::Prod)?;
            }
            Ok(())
        })
        .expect("views of slices are accepted");
        drop(slices);
        for ((comm, stream), out) in all.iter().zip(&outs) {
            comm.wait(stream, DEADLINE).expect("the work completes");
            assert_eq!(value(out, stream), 9.0);
        }
        drop((outs, handles));
        Communicator::finalize_all(all.into_iter().map(|(comm, _)| comm).collect(), DEADLINE).expect("all communicators end");
    });
}

/// Delays the thread of a group between two of its calls, while another thread aborts one of the
/// ranks. The delay is longer than the time for which the abort waits for a blocked thread.
fn held_up(blocking: Switch) {
    let all = all_with(2, &Config::new().blocking(blocking));
    let mut buffers: Vec<_> = all.iter().map(|(_, stream)| floats(stream, &[1.0])).collect();
    let victim = all[0].0.clone();
    let aborting = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(150));
        victim.abort(DEADLINE)
    });
    let result = all[0].0.nccl().group(|group| {
        for ((comm, stream), buffer) in all.iter().zip(&mut buffers) {
            group.all_reduce_in_place(comm, stream, buffer, ReduceOp::Sum)?;
        }
        // Each rank's context is made current before NCCL is called, and again for the call of the
        // rank. So this fault delays the call of the second rank.
        all[1].0.context().bind_to_thread().expect("the context is live");
        fail_driver("cuCtxSetCurrent:4=4000ms");
        Ok(())
    });
    // The fake ends the process if the end of a group uses a freed rank.
    assert!(matches!(result, Err(NcclError::Dead { state: DeadState::Aborted, .. })), "{result:?}");
    aborting.join().expect("the thread does not panic").expect("the abort succeeds");
    drop((all, buffers));
    nothing_is_left();
}

#[test]
fn communicator_aborted_during_a_blocking_group_is_freed() {
    fakes(2).run(|| held_up(Switch::On));
}

#[test]
fn communicator_aborted_during_a_non_blocking_group_is_freed() {
    fakes(2).run(|| held_up(Switch::Off));
}
