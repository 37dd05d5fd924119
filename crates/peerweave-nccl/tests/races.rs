//! Tests of calls that end a communicator concurrently with other calls. NCCL must never get a
//! freed handle.
//!
//! Unit tests of `state.rs` check the guarantees of the communicator's lock.
#![cfg(target_os = "linux")]
#![allow(missing_docs, reason = "scenarios are named, not documented")]

mod common;

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use common::*;
use peerweave_nccl::{Communicator, DeadState, NcclError, ReduceOp};

/// Repeatedly revokes a communicator on another thread, with varying delays, while this thread
/// finalizes or aborts the communicator. Then passes the communicator and the result to `end`,
/// which returns whether the threads have raced in any round. Stops after four seconds, or at the
/// deadline if the threads have not raced.
fn beside_a_revocation(mut end: impl FnMut(usize, Communicator, Result<(), NcclError>) -> bool) {
    let (start, mut has_raced) = (Instant::now(), false);
    for round in 0.. {
        if start.elapsed() > if has_raced { Duration::from_secs(4) } else { DEADLINE } {
            break;
        }
        let (comm, _) = alone();
        let (other, barrier) = (comm.clone(), Arc::new(Barrier::new(2)));
        let theirs = Arc::clone(&barrier);
        let revoking = std::thread::spawn(move || {
            theirs.wait();
            (0..round % 61 * 20).for_each(|_| std::hint::spin_loop());
            other.revoke()
        });
        barrier.wait();
        if round % 2 == 0 {
            let finalized = comm.clone().finalize(DEADLINE);
            assert!(!matches!(finalized, Err(NcclError::Nccl(_))), "round {round}: a revoked communicator was finalized in NCCL");
            has_raced = end(round, comm, revoking.join().expect("the thread does not panic").and(finalized));
        } else {
            comm.abort(DEADLINE).expect("the abort succeeds");
            has_raced = end(round, comm, revoking.join().expect("the thread does not panic"));
        }
    }
}

#[test]
fn revoke_during_finalize_or_abort_leaves_a_consistent_state() {
    fakes(1).run(|| {
        let (mut revoked, mut late) = (0, 0);
        beside_a_revocation(|round, comm, result| {
            let state = format!("{comm:?}");
            match round % 2 {
                0 => assert!(
                    result.is_err() && (state.contains("Revoked") || state.contains("Finalized")),
                    "round {round}: the state is {state} and the result is {result:?}, expected Revoked or Finalized and an error"
                ),
                _ => assert!(state.contains("Aborted"), "round {round}: {state}: an aborted communicator stays aborted"),
            }
            if state.contains("Revoked") {
                revoked += 1
            } else {
                late += 1
            }
            revoked > 0 && late > 0
        });
        assert!(revoked > 0 && late > 0, "{revoked} revoked, {late} ended: the threads did not race");
        nothing_is_left();
    });
}

#[test]
fn communicator_stays_revoked_after_a_failed_call() {
    fakes(1).run(|| {
        let (comm, stream) = alone();
        let mut values = floats(&stream, &[1.0; 4]);
        // The thread of NCCL is slow before it launches the work. The launch then fails, as after a
        // revocation.
        let before = peerweave_fakes::entered("cuStreamIsCapturing");
        fail_driver("cuStreamIsCapturing:2=4000ms,cuLaunchHostFunc:1=999");
        let other = comm.clone();
        let calling = std::thread::spawn(move || other.all_reduce_in_place(&stream, &mut values, ReduceOp::Sum));
        peerweave_fakes::wait_until_entered("cuStreamIsCapturing", before + 2);
        assert!(!calling.is_finished(), "the call is in progress");
        comm.revoke().expect("the revocation succeeds");
        assert!(calling.join().expect("the thread does not panic").is_err());
        let error = comm.all_reduce_in_place(
            &comm.context().default_stream(),
            &mut floats(&comm.context().default_stream(), &[1.0]),
            ReduceOp::Sum,
        );
        assert!(
            matches!(error, Err(NcclError::Dead { state: DeadState::Revoked, .. })),
            "{error:?}: a revoked communicator stays revoked"
        );
    });
}

#[test]
fn abort_waits_until_a_concurrent_call_has_left_nccl() {
    fakes(1).run(|| {
        let start = Instant::now();
        for round in 0.. {
            if start.elapsed() > Duration::from_secs(2) {
                break;
            }
            let (comm, stream) = if round % 2 == 0 { alone() } else { all_blocking(1).remove(0) };
            let mut values = floats(&stream, &[1.0]);
            let (calling, reducing) = (comm.clone(), Arc::clone(&stream));
            let loops: [std::thread::JoinHandle<NcclError>; 2] = [
                std::thread::spawn(move || {
                    loop {
                        if let Err(error) = calling.all_reduce_in_place(&reducing, &mut values, ReduceOp::Max) {
                            return error;
                        }
                    }
                }),
                std::thread::spawn({
                    let asking = comm.clone();
                    move || {
                        loop {
                            if let Err(error) = asking.mem_stats() {
                                return error;
                            }
                        }
                    }
                }),
            ];
            while comm.sequence() == 0 {
                std::thread::yield_now();
            }
            (0..round % 61 * 20).for_each(|_| std::hint::spin_loop());
            comm.abort(DEADLINE).expect("the abort succeeds");
            for ended in loops {
                let error = ended.join().expect("the thread does not panic");
                assert!(matches!(error, NcclError::Dead { state: DeadState::Aborted, .. }), "round {round}: {error}");
            }
        }
        nothing_is_left();
    });
}
