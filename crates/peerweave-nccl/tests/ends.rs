//! Tests of the end of communicators: finalizing, aborting, and dropping in any order. Also tests
//! that an ended communicator refuses calls.
#![cfg(target_os = "linux")]
#![allow(missing_docs, reason = "scenarios are named, not documented")]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::*;
use peerweave_nccl::{
    Communicator, Config, DeadState, NcclError, NcclMem, OnExpiry, PreMulSum, Rank, ReduceOp, ShrinkMode, Switch,
};

#[test]
fn ended_communicator_refuses_every_call() {
    fakes(2).run(|| {
        for finalize in [true, false] {
            let mut all = all(2);
            let (kept, streams): (Vec<_>, Vec<_>) = all.iter().map(|(comm, stream)| (comm.clone(), Arc::clone(stream))).unzip();
            let scaled = PreMulSum::new(&kept[0], 2.0f32).expect("the reduction is created");
            let state = if finalize {
                Communicator::finalize_all(all.drain(..).map(|(comm, _)| comm).collect(), DEADLINE)
                    .expect("all communicators end");
                DeadState::Finalized
            } else {
                for (comm, _) in all.drain(..) {
                    comm.abort(DEADLINE).expect("the communicator ends");
                }
                DeadState::Aborted
            };
            for (comm, stream) in kept.iter().zip(&streams) {
                assert_eq!(state_of(sum(comm, stream)), state);
                assert_eq!(state_of(comm.split(Some(0), 0)), state);
                assert_eq!(state_of(comm.revoke()), state);
                assert_eq!(state_of(comm.suspend()), state);
                assert_eq!(state_of(comm.async_error()), state);
                assert_eq!(state_of(comm.last_error()), state);
                assert_eq!(state_of(comm.as_raw()), state);
                assert_eq!(state_of(comm.mem_stats()), state);
                assert_eq!(state_of(comm.properties()), state);
                assert_eq!(state_of(PreMulSum::new(comm, 1.0f32)), state);
                assert_eq!(state_of(comm.abort(DEADLINE)), state);
                assert_eq!(state_of(comm.clone().finalize(DEADLINE)), state);
                let mut values = floats(stream, &[1.0]);
                let grouped = comm.nccl().group(|group| group.all_reduce_in_place(comm, stream, &mut values, ReduceOp::Sum));
                assert_eq!(state_of(grouped), state);
            }
            drop(scaled);
            nothing_is_left();
        }
    });
}

#[test]
fn communicators_and_buffers_can_be_dropped_in_any_order() {
    fakes(2).run(|| {
        // Communicators, buffers, reductions and streams are dropped in each of the 24 possible
        // orders.
        for order in 0..24 {
            let all = all(2);
            let (mut comms, mut streams): (Vec<_>, Vec<_>) = all.into_iter().unzip();
            let mut buffers: Vec<_> = streams.iter().map(|stream| floats(stream, &[1.0; 64])).collect();
            let mut ops: Vec<_> =
                comms.iter().map(|comm| PreMulSum::new(comm, 3.0f32).expect("the reduction is created")).collect();
            comms[0]
                .nccl()
                .group(|group| {
                    for (((comm, stream), buffer), op) in comms.iter().zip(&streams).zip(&mut buffers).zip(&ops) {
                        group.all_reduce_in_place(comm, stream, buffer, op)?;
                    }
                    Ok(())
                })
                .expect("the call is enqueued");
            let mut left = vec![0, 1, 2, 3];
            let mut code = order;
            while !left.is_empty() {
                match left.remove(code % left.len()) {
                    0 => comms.clear(),
                    1 => streams.clear(),
                    2 => buffers.clear(),
                    _ => ops.clear(),
                }
                code /= left.len() + 1;
            }
            nothing_is_left();
        }
    });
}

#[test]
fn abort_ends_a_call_in_which_another_thread_is_blocked() {
    // A blocking rank waits inside NCCL for the other rank, which never calls split.
    fakes(2).run(|| {
        ranks(2, &Config::new().blocking(Switch::On), |comm, _| {
            if comm.rank() == Rank::new(0) {
                let stuck = comm.clone();
                let thread = std::thread::spawn(move || stuck.split(Some(0), 0).map(|_| ()));
                std::thread::sleep(Duration::from_millis(100));
                assert!(!thread.is_finished());
                comm.abort(DEADLINE).expect("the communicator ends");
                assert!(thread.join().expect("the thread does not panic").is_err());
                assert_eq!(state_of(comm.split(Some(0), 0)), DeadState::Aborted);
            }
        });
    });
}

#[test]
fn abort_unblocks_a_thread_stuck_in_a_query() {
    fakes(1).env("PEERWEAVE_FAKE_NCCL_STUCK", "ncclCommMemStats:1").run(|| {
        let (comm, _) = alone();
        let asking = comm.clone();
        let stuck = std::thread::spawn(move || asking.mem_stats());
        std::thread::sleep(Duration::from_millis(100));
        assert!(!stuck.is_finished());
        comm.abort(DEADLINE).expect("NCCL has freed the communicator");
        stuck.join().expect("the thread does not panic").expect_err("the communicator was aborted during the call");
        nothing_is_left();
    });
}

#[test]
fn abort_ends_a_revocation_in_which_another_thread_is_blocked() {
    fakes(1).env("PEERWEAVE_FAKE_NCCL_STUCK", "ncclCommRevoke:1").run(|| {
        let (comm, _) = alone();
        let revoking = comm.clone();
        let stuck = std::thread::spawn(move || revoking.revoke());
        std::thread::sleep(Duration::from_millis(100));
        assert!(!stuck.is_finished());
        let start = Instant::now();
        comm.abort(DEADLINE).expect("the communicator ends");
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
        stuck.join().expect("the thread does not panic").expect_err("the communicator was aborted during the call");
        nothing_is_left();
    });
}

#[test]
fn memory_is_freed_after_a_failed_finalize() {
    for (setting, fault) in
        [("PEERWEAVE_FAKE_NCCL_FAIL", "ncclCommFinalize:1=2"), ("PEERWEAVE_FAKE_NCCL_STUCK", "ncclCommFinalize:1")]
    {
        fakes(1).env(setting, fault).run(|| {
            let (comm, stream) = alone();
            let memory = NcclMem::<f32>::alloc(comm.nccl(), comm.context(), 16).expect("memory is allocated");
            drop(comm.register(&memory).expect("the memory is registered"));
            drop((memory, stream));
            peerweave_driver::drain_retired(Instant::now() + DEADLINE);
            assert_eq!(counted("allocations"), 1, "peers may still access the memory");
            comm.finalize(Duration::from_millis(200)).expect_err("the finalize fails");
            nothing_is_left();
        });
    }
}

#[test]
fn revoked_communicator_can_only_be_split_and_shrunk() {
    fakes(2).env("PEERWEAVE_FAKE_NCCL_STUCK", "ncclAllReduce@0:1").run(|| {
        ranks(2, &Config::new(), |comm, stream| {
            if comm.rank() == Rank::new(1) {
                return;
            }
            let mut values = floats(&stream, &[1.0]);
            comm.all_reduce_in_place(&stream, &mut values, ReduceOp::Sum).expect("the call is enqueued");
            let waiting = comm.clone();
            let waited = Arc::clone(&stream);
            let waiter = std::thread::spawn(move || waiting.wait_with(&waited, DEADLINE, OnExpiry::LeaveAlone));
            std::thread::sleep(Duration::from_millis(50));
            comm.revoke().expect("the revocation succeeds");
            // The stream is idle now, but the results of the work are invalid.
            assert_eq!(state_of(waiter.join().expect("the thread does not panic")), DeadState::Revoked);
            assert_eq!(state_of(sum(&comm, &stream)), DeadState::Revoked);
            assert_eq!(state_of(comm.suspend()), DeadState::Revoked);
            let fewer = comm.shrink(&[Rank::new(1)], ShrinkMode::Default).expect("a revoked communicator can be shrunk");
            assert_eq!(sum(&fewer, &stream).expect("the all-reduce succeeds"), 1.0);
            comm.abort(DEADLINE).expect("the communicator ends");
        });
        nothing_is_left();
    });
}

#[test]
fn exactly_one_of_two_concurrent_revocations_succeeds() {
    fakes(1).run(|| {
        for round in 0..50 {
            let (comm, stream) = alone();
            let others: Vec<_> = (0..2)
                .map(|_| {
                    let other = comm.clone();
                    std::thread::spawn(move || other.revoke())
                })
                .collect();
            let results: Vec<_> = others.into_iter().map(|other| other.join().expect("the thread does not panic")).collect();
            assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "round {round}: {results:?}");
            let late = results.into_iter().find(Result::is_err).expect("one revocation fails");
            assert_eq!(state_of(late), DeadState::Revoked);
            assert_eq!(state_of(sum(&comm, &stream)), DeadState::Revoked);
            comm.split(Some(0), 0).expect("a revoked communicator can be split");
        }
    });
}

#[test]
fn revoke_does_not_interrupt_a_stuck_non_blocking_call() {
    // Without the wait, NCCL would free the call twice.
    fakes(2).env("PEERWEAVE_FAKE_NCCL_CONNECT", "1").run(|| {
        ranks(2, &Config::new().blocking(Switch::Off), |comm, stream| {
            if comm.rank() == Rank::new(0) {
                comm.set_deadline(Duration::from_secs(3));
                let calling = comm.clone();
                let call = std::thread::spawn(move || sum(&calling, &stream));
                while comm.sequence() == 0 && !call.is_finished() {
                    std::thread::yield_now();
                }
                // Rank 1 never joins, so the call is aborted at its deadline.
                let error = comm.revoke().expect_err("a call of another thread holds the lock");
                assert!(matches!(error, NcclError::Timeout(_) | NcclError::Dead { state: DeadState::Aborted, .. }), "{error}");
                assert!(matches!(call.join().expect("the thread does not panic"), Err(NcclError::Timeout(_))));
            }
        });
        nothing_is_left();
    });
}

#[test]
fn wait_returns_an_error_if_shrink_has_aborted_the_work() {
    fakes(3).run(|| {
        ranks(3, &Config::new(), |comm, stream| {
            if comm.rank() == Rank::new(2) {
                return;
            }
            let mut values = floats(&stream, &[comm.rank().get() as f32 + 1.0]);
            comm.all_reduce_in_place(&stream, &mut values, ReduceOp::Sum).expect("the call is enqueued");
            let (other, theirs) = (comm.clone(), Arc::clone(&stream));
            let waiting = std::thread::spawn(move || other.wait_with(&theirs, DEADLINE, OnExpiry::LeaveAlone));
            std::thread::sleep(Duration::from_millis(100));
            let fewer = comm.shrink(&[Rank::new(2)], ShrinkMode::Abort).expect("the remaining ranks shrink");
            assert_eq!(state_of(waiting.join().expect("the thread does not panic")), DeadState::Failed);
            assert_eq!(state_of(comm.wait(&stream, DEADLINE)), DeadState::Failed);
            assert_eq!(state_of(comm.all_reduce_in_place(&stream, &mut values, ReduceOp::Sum)), DeadState::Failed);
            assert_eq!(sum(&fewer, &stream).expect("the all-reduce succeeds"), 3.0);
            comm.abort(DEADLINE).expect("the communicator ends");
        });
        nothing_is_left();
    });
}

#[test]
fn timed_out_call_is_not_launched_when_ranks_arrive_late() {
    // The first collective waits inside NCCL, on the host, for all ranks.
    fakes(2).env("PEERWEAVE_FAKE_NCCL_CONNECT", "1").run(|| {
        let all = all(2);
        let ((early, first), (late, second)) = (&all[0], &all[1]);
        let mut values = first.clone_htod(&[1.0f32; 4]).expect("memory is allocated");
        early.set_deadline(Duration::from_millis(100));
        let error = early.all_reduce_in_place(first, &mut values, ReduceOp::Sum).expect_err("no other rank joins");
        assert!(matches!(error, NcclError::Timeout(_)), "{error}");
        assert_eq!(counted("communicators"), 1, "NCCL has freed the communicator before the call returns");
        let mut theirs = floats(second, &[2.0; 4]);
        late.all_reduce_in_place(second, &mut theirs, ReduceOp::Sum).expect("the call of the late rank is enqueued");
        late.wait_with(second, Duration::from_millis(100), OnExpiry::LeaveAlone).expect_err("the other rank was aborted");
        assert_eq!(first.clone_dtoh(&values).expect("the memory can be read"), [1.0; 4]);
        late.abort(DEADLINE).expect("the communicator ends");
        drop((all, theirs));
        nothing_is_left();
    });
}

#[test]
fn memory_stays_allocated_if_nccl_cannot_free_the_communicator() {
    for faults in ["ncclCommFinalize:1=2,ncclCommAbort:1=2", "ncclCommDestroy:1=2"] {
        fakes(1).env("PEERWEAVE_FAKE_NCCL_FAIL", faults).run(|| {
            let (comm, stream) = alone();
            let memory = NcclMem::<f32>::alloc(comm.nccl(), comm.context(), 16).expect("memory is allocated");
            drop(comm.register(&memory).expect("the memory is registered"));
            drop((memory, stream));
            comm.finalize(DEADLINE).expect_err("NCCL refuses to free the communicator");
            peerweave_driver::drain_retired(Instant::now() + DEADLINE);
            assert_eq!((counted("communicators"), counted("allocations")), (1, 1), "peers may still access the memory");
        });
    }
}

#[test]
fn refused_revocation_leaves_the_communicator_unchanged() {
    fakes(1).env("PEERWEAVE_FAKE_NCCL_FAIL", "ncclCommRevoke:1=2,ncclCommRevoke:3=2").run(|| {
        for (comm, stream) in all(1).into_iter().chain(all_blocking(1)) {
            assert_eq!(comm.revoke().expect_err("NCCL refuses the call").code().map(|code| code.get()), Some(2));
            assert_eq!(sum(&comm, &stream).expect("the communicator is live"), 1.0);
            comm.revoke().expect("the revocation succeeds");
            assert_eq!(state_of(sum(&comm, &stream)), DeadState::Revoked);
        }
        nothing_is_left();
    });
}

#[test]
fn abort_waits_until_a_slow_query_has_returned() {
    // `mem_stats` queries four statistics. The fake ends the process if the communicator is freed
    // during the first, slow query.
    fakes(1).env("PEERWEAVE_FAKE_NCCL_SLOW", "ncclCommMemStats:1=100,ncclCommMemStats:5=100").run(|| {
        for (comm, _) in all(1).into_iter().chain(all_blocking(1)) {
            let asking = comm.clone();
            let slow = std::thread::spawn(move || asking.mem_stats());
            while counted("busy") == 0 && !slow.is_finished() {
                std::thread::yield_now();
            }
            comm.abort(DEADLINE).expect("the communicator ends");
            slow.join().expect("the thread does not panic").expect("the query returns before the abort");
        }
        nothing_is_left();
    });
}

#[test]
fn aborted_call_returns_after_nccl_stops_using_the_buffer() {
    fakes(1).run(|| {
        for _ in 0..20 {
            let (comm, stream) = alone_non_blocking();
            let mut values = floats(&stream, &[1.0; 4]);
            // The thread of NCCL is slow before it launches the work.
            let before = peerweave_fakes::entered("cuStreamIsCapturing");
            fail_driver("cuStreamIsCapturing:2=400ms");
            let other = comm.clone();
            let calling = std::thread::spawn(move || {
                let result = other.all_reduce_in_place(&stream, &mut values, ReduceOp::Sum);
                (result, counted("communicators"))
            });
            peerweave_fakes::wait_until_entered("cuStreamIsCapturing", before + 2);
            comm.abort(DEADLINE).expect("the abort succeeds");
            let (result, left) = calling.join().expect("the thread does not panic");
            if result.is_ok() {
                // This thread was suspended until the call had returned.
                continue;
            }
            assert_eq!(state_of(result), DeadState::Aborted);
            assert_eq!(left, 0, "NCCL must free the communicator before the call returns");
            return;
        }
        panic!("every call returned before its abort");
    });
}

#[test]
fn memory_stays_allocated_if_nccl_refuses_the_abort() {
    fakes(1).env("PEERWEAVE_FAKE_NCCL_FAIL", "ncclCommAbort:1=2").run(|| {
        let (comm, stream) = alone();
        let memory = NcclMem::<f32>::alloc(comm.nccl(), comm.context(), 16).expect("memory is allocated");
        drop(comm.register(&memory).expect("the memory is registered"));
        drop((memory, stream));
        comm.abort(DEADLINE).expect_err("NCCL refuses the call");
        drop(comm);
        std::thread::sleep(Duration::from_millis(100));
        peerweave_driver::drain_retired(Instant::now() + DEADLINE);
        assert_eq!((counted("communicators"), counted("allocations")), (1, 1), "peers may still access the memory");
    });
}

#[test]
fn timed_out_call_returns_only_after_a_slow_abort_has_finished() {
    // The abort takes longer than the time limit of all other waits for an abort.
    let slow = fakes(2).env("PEERWEAVE_FAKE_NCCL_CONNECT", "1").env("PEERWEAVE_FAKE_NCCL_SLOW", "ncclCommAbort@0=11500");
    slow.run(|| {
        let all = all_with(2, &Config::new().blocking(Switch::Off));
        let ((early, first), (late, second)) = (&all[0], &all[1]);
        let mut values = first.clone_htod(&[1.0f32; 4]).expect("memory is allocated");
        early.set_deadline(Duration::from_millis(100));
        let error = early.all_reduce_in_place(first, &mut values, ReduceOp::Sum).expect_err("no other rank joins");
        assert!(matches!(error, NcclError::Timeout(_)), "{error}");
        assert_eq!(counted("communicators"), 1, "NCCL must free the communicator before the call returns");
        // If the call of the first rank were still pending in NCCL, this call of the second rank
        // would let that call continue.
        let mut theirs = floats(second, &[2.0; 4]);
        late.set_deadline(Duration::from_millis(100));
        let _ = late.all_reduce_in_place(second, &mut theirs, ReduceOp::Sum);
        assert_eq!(first.clone_dtoh(&values).expect("the memory can be read"), [1.0; 4]);
    });
}
