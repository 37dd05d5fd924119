//! Tests of faults: stuck collectives, asynchronous errors, lost ranks, and lack of memory.
#![cfg(target_os = "linux")]
#![allow(missing_docs, reason = "scenarios are named, not documented")]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::*;
use peerweave_driver::DriverError;
use peerweave_nccl::{
    Communicator, Config, DeadState, Nccl, NcclError, NcclMem, OnExpiry, Rank, ReduceOp, ResultCode, ShrinkMode, Switch, UniqueId,
};

#[test]
fn timed_out_wait_does_not_abort_other_communicators() {
    fakes(2).env("PEERWEAVE_FAKE_NCCL_STUCK", "ncclAllReduce:2").run(|| {
        let (comm, stream) = alone();
        let bystander = comm.split(Some(0), 0).expect("the split succeeds").expect("the rank is in a new communicator");
        let mut buffer = floats(&stream, &[1.0]);
        comm.all_reduce_in_place(&stream, &mut buffer, ReduceOp::Sum).expect("the first call succeeds");
        comm.wait(&stream, DEADLINE).expect("the work completes");
        comm.all_reduce_in_place(&stream, &mut buffer, ReduceOp::Sum).expect("the second call is enqueued");
        let start = Instant::now();
        let error = comm.wait(&stream, Duration::from_millis(200)).expect_err("the work is stuck");
        assert!((Duration::from_millis(200)..Duration::from_secs(20)).contains(&start.elapsed()));
        let NcclError::Timeout(timeout) = &error else { panic!("the error is {error}, expected a timeout") };
        assert_eq!((timeout.call, timeout.sequence), ("all_reduce_in_place", Some(3)));
        assert_eq!(timeout.communicator.as_deref(), Some(comm.name()));
        assert!(error.to_string().starts_with("all_reduce_in_place (call 3) on communicator #1 (rank 0 of 1): timed out after "));
        assert!(matches!(comm.async_error(), Err(NcclError::Dead { state: DeadState::Aborted, .. })));
        // The stream and the other communicator are not affected.
        assert!(peerweave_driver::wait(&stream, Instant::now() + DEADLINE).is_ok());
        assert_eq!(sum(&bystander, &stream).expect("the other communicator still works"), 1.0);
        drop((comm, bystander, buffer, stream));
        nothing_is_left();
    });
}

#[test]
fn timed_out_wait_aborts_every_communicator_if_requested() {
    fakes(1).env("PEERWEAVE_FAKE_NCCL_STUCK", "ncclAllReduce:1").run(|| {
        let (comm, stream) = alone();
        let bystander = comm.split(Some(0), 0).expect("the split succeeds").expect("the rank is in a new communicator");
        let mut buffer = floats(&stream, &[1.0]);
        comm.all_reduce_in_place(&stream, &mut buffer, ReduceOp::Sum).expect("the call is enqueued");
        let error = comm.wait_with(&stream, Duration::from_millis(200), OnExpiry::AbortAll).expect_err("the work is stuck");
        assert!(matches!(error, NcclError::Timeout(_)), "{error}");
        for comm in [&comm, &bystander] {
            assert_eq!(state_of(comm.split(Some(0), 0)), DeadState::Aborted);
        }
        drop((comm, bystander, buffer, stream));
        nothing_is_left();
    });
}

#[test]
fn timed_out_wait_aborts_all_ranks_of_the_communicator() {
    // One thread has all ranks, and the collective never completes.
    fakes(2).env("PEERWEAVE_FAKE_NCCL_STUCK", "ncclAllReduce@0:1").run(|| {
        let all = all(2);
        let mut buffers: Vec<_> = all.iter().map(|(_, stream)| floats(stream, &[1.0])).collect();
        let nccl = all[0].0.nccl();
        nccl.group(|group| {
            for ((comm, stream), buffer) in all.iter().zip(&mut buffers) {
                group.all_reduce_in_place(comm, stream, buffer, ReduceOp::Sum)?;
            }
            Ok(())
        })
        .expect("the call is enqueued");
        let error = all[0].0.wait(&all[0].1, Duration::from_millis(200)).expect_err("the work is stuck");
        assert!(matches!(error, NcclError::Timeout(_)), "{error}");
        let (other, stream) = &all[1];
        assert_eq!(state_of(other.split(Some(0), 0)), DeadState::Aborted);
        assert!(
            matches!(other.wait(stream, DEADLINE), Err(NcclError::Timeout(_))),
            "all ranks must return the reason of the abort"
        );
        drop((all, buffers));
        nothing_is_left();
    });
}

#[test]
fn asynchronous_error_of_nccl_ends_a_wait_before_the_deadline() {
    // The collective is slow, so the asynchronous error occurs after the call has returned.
    let fakes = fakes(1).env("PEERWEAVE_FAKE_NCCL_SLOW", "ncclAllReduce=100");
    fakes.env("PEERWEAVE_FAKE_NCCL_ASYNC_ERROR", "ncclAllReduce:1=6").run(|| {
        let (comm, stream) = alone();
        let mut buffer = floats(&stream, &[1.0]);
        comm.all_reduce_in_place(&stream, &mut buffer, ReduceOp::Sum).expect("the call is enqueued");
        let start = Instant::now();
        let error = comm.wait_with(&stream, DEADLINE, OnExpiry::LeaveAlone).expect_err("a peer failed");
        assert!(start.elapsed() < Duration::from_secs(20));
        assert_eq!(error.code(), Some(ResultCode::REMOTE_ERROR));
        assert!(matches!(
            comm.all_reduce_in_place(&stream, &mut buffer, ReduceOp::Sum),
            Err(NcclError::Dead { state: DeadState::Failed, .. })
        ));
        assert_eq!(comm.async_error().expect("the communicator can be queried"), Some(ResultCode::REMOTE_ERROR));
        comm.abort(DEADLINE).expect("the communicator ends");
        drop((comm, buffer, stream));
        nothing_is_left();
    });
}

#[test]
fn blocking_communicator_stays_usable_after_a_failed_call() {
    fakes(1).env("PEERWEAVE_FAKE_NCCL_FAIL", "ncclAllGather:2=4").run(|| {
        let config = Config::new().blocking(Switch::On);
        let comm = Communicator::builder()
            .nccl(Nccl::load().expect("the fake library is found"))
            .config(config.clone())
            .deadline(DEADLINE)
            .init_all(&contexts(1))
            .expect("the communicator is created")
            .remove(0);
        let stream = comm.context().new_stream().expect("a stream is created");
        let (send, mut recv) = (floats(&stream, &[1.0]), floats(&stream, &[0.0]));
        comm.all_gather(&stream, &send, &mut recv).expect("the first call succeeds");
        let error = comm.all_gather(&stream, &send, &mut recv).expect_err("the second call fails");
        assert_eq!(error.code(), Some(ResultCode::INVALID_ARGUMENT));
        assert!(
            error.to_string().starts_with("all_gather on communicator #1 (rank 0 of 1): ncclInvalidArgument (4) (NCCL 2.32.3): "),
            "{error}"
        );
        let words = comm.last_error().expect("the communicator is live");
        assert_eq!(words.as_deref(), Some("ncclAllGather: an injected fault"));
        assert!(error.to_string().contains(&words.expect("the text is not empty")), "{error}");
        comm.all_gather(&stream, &send, &mut recv).expect("the third call succeeds");
        comm.wait(&stream, DEADLINE).expect("the work completes");
    });
}

#[test]
fn failed_call_ends_a_non_blocking_communicator() {
    // NCCL stores the error with the communicator, and every later call would return this error.
    fakes(1).env("PEERWEAVE_FAKE_NCCL_FAIL", "ncclAllGather:1=4,ncclAllReduce:1=4").run(|| {
        let (comm, stream) = alone_non_blocking();
        let (send, mut recv) = (floats(&stream, &[1.0]), floats(&stream, &[0.0]));
        let error = comm.all_gather(&stream, &send, &mut recv).expect_err("the call fails");
        assert_eq!(error.code(), Some(ResultCode::INVALID_ARGUMENT));
        let error = comm.all_gather(&stream, &send, &mut recv).expect_err("the communicator has failed");
        assert!(matches!(error, NcclError::Dead { state: DeadState::Failed, .. }), "{error}");
        let (comm, stream) = alone_non_blocking();
        let error = comm.nccl().group(|group| group.all_reduce(&comm, &stream, &send, &mut recv, ReduceOp::Sum));
        assert_eq!(error.expect_err("the call fails").code(), Some(ResultCode::INVALID_ARGUMENT));
        let error = comm.all_gather(&stream, &send, &mut recv).expect_err("the communicator has failed");
        assert!(matches!(error, NcclError::Dead { state: DeadState::Failed, .. }), "{error}");
        comm.abort(DEADLINE).expect("a failed communicator can be aborted");
    });
}

#[test]
fn abort_from_another_thread_ends_a_wait() {
    fakes(1).env("PEERWEAVE_FAKE_NCCL_STUCK", "ncclAllReduce:1").run(|| {
        let (comm, stream) = alone();
        let mut buffer = floats(&stream, &[1.0]);
        comm.all_reduce_in_place(&stream, &mut buffer, ReduceOp::Sum).expect("the call is enqueued");
        let waiting = comm.clone();
        let waiter = std::thread::spawn(move || waiting.wait(&stream, DEADLINE));
        std::thread::sleep(Duration::from_millis(50));
        comm.abort(DEADLINE).expect("the communicator ends");
        let waited = waiter.join().expect("the thread does not panic");
        assert!(matches!(waited, Err(NcclError::Dead { state: DeadState::Aborted, .. })), "{waited:?}");
    });
}

#[test]
fn error_names_a_killed_rank_and_other_ranks_can_continue() {
    for death in ["hang", "error"] {
        // Shrinking takes longer than the time after which other calls fail because of the lost
        // rank.
        let fakes = fakes(3).env("PEERWEAVE_FAKE_NCCL_DEATH", death).env("PEERWEAVE_FAKE_NCCL_SLOW", "ncclCommShrink=1500");
        fakes.run_many(3, |child| match child.rank {
            1 => victim(&child),
            _ => survivor(&child),
        });
    }
}

/// Runs the rank that dies in a forked process, so that the child process of the test itself
/// survives.
fn victim(child: &peerweave_fakes::Child) {
    // SAFETY: besides the harness, whose threads the child does not need, this process has one
    // thread. No library was loaded.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let (comm, rendezvous) = join(child);
        reduce(&comm, DEADLINE).expect("the first call succeeds");
        rendezvous.barrier("the first is over").expect("all ranks arrive");
        // SAFETY: the call accesses no memory, and ends the process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    let mut status = 0;
    // SAFETY: the pointer is to a live integer.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(libc::WIFSIGNALED(status), "the process was not killed: {status}");
    child.meet("the end");
}

fn join(child: &peerweave_fakes::Child) -> (Communicator, Arc<peerweave_bootstrap::Rendezvous>) {
    let rendezvous = rendezvous(child);
    let (nccl, context) = (Nccl::load().expect("the fake library is found"), device(child.rank));
    let comm =
        Communicator::builder().nccl(nccl).deadline(DEADLINE).from_rendezvous(&context, &rendezvous).expect("all ranks join");
    (comm, rendezvous)
}

fn reduce(comm: &Communicator, within: Duration) -> Result<f32, NcclError> {
    let stream = comm.context().new_stream().expect("a stream is created");
    let mut buffer = floats(&stream, &[comm.rank().get() as f32 + 1.0]);
    comm.all_reduce_in_place(&stream, &mut buffer, ReduceOp::Sum)?;
    comm.wait_with(&stream, within, OnExpiry::LeaveAlone)?;
    Ok(buffer.to_vec(&stream)?[0])
}

/// Creates a communicator of ranks 0 and 2.
fn anew(comm: &Communicator, rendezvous: &peerweave_bootstrap::Rendezvous) -> Communicator {
    const KEY: &str = "the id of the remaining ranks";
    if comm.rank() == Rank::new(0) {
        rendezvous.put(KEY, comm.nccl().unique_id().expect("an id is created").as_bytes()).expect("the server is reachable");
    }
    let end = Instant::now() + DEADLINE;
    let id = loop {
        match rendezvous.try_get(KEY).expect("the server is reachable") {
            Some(id) => break UniqueId::try_from(id.as_slice()).expect("an id is created"),
            None => assert!(Instant::now() < end, "rank 0 has not published an id"),
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    Communicator::builder()
        .nccl(comm.nccl())
        .deadline(DEADLINE)
        .init_rank(comm.context(), 2, &id, Rank::new((comm.rank().index() / 2) as u32))
        .expect("both ranks join")
}

/// Runs a rank that survives. The process does not end before the other processes, because an early
/// end would look like a death.
fn survivor(child: &peerweave_fakes::Child) {
    let (comm, rendezvous) = join(child);
    assert_eq!(reduce(&comm, DEADLINE).expect("the first call succeeds"), 6.0);
    rendezvous.barrier("the first is over").expect("all ranks arrive");
    let error = reduce(&comm, Duration::from_secs(6)).expect_err("rank 1 is dead");
    let NcclError::PeerLost(lost) = &error else { panic!("the error is {error}, expected a lost rank") };
    assert_eq!(lost.ranks, [Rank::new(1)], "{error}");
    comm.set_deadline(DEADLINE);
    let fewer = match comm.shrink(&[Rank::new(1)], ShrinkMode::Abort) {
        Ok(fewer) => fewer,
        // NCCL has detected the loss, and refuses to create children.
        Err(error) => {
            assert_eq!(error.code(), Some(ResultCode::REMOTE_ERROR), "{error}");
            anew(&comm, &rendezvous)
        }
    };
    assert_eq!(reduce(&fewer, DEADLINE).expect("the all-reduce succeeds"), 3.0);
    comm.abort(DEADLINE).expect("the communicator ends");
    fewer.finalize(DEADLINE).expect("the communicator ends");
    child.meet("the end");
}

#[test]
fn allocation_waits_until_dropped_memory_is_freed() {
    // The device has memory for only one allocation, and another thread frees dropped memory.
    fakes(1).env("PEERWEAVE_FAKE_CUDA_MEMORY_BYTES", (64usize << 20).to_string()).run(|| {
        let (nccl, context) = (Nccl::load().expect("the fake library is found"), contexts(1).remove(0));
        for round in 0..50 {
            let memory = NcclMem::<u8>::alloc(nccl, &context, 40 << 20);
            drop(memory.unwrap_or_else(|error| panic!("round {round}: {error}")));
        }
        let error = NcclMem::<u8>::alloc(nccl, &context, 80 << 20).expect_err("the device is too small");
        assert_eq!(error.code(), Some(ResultCode::UNHANDLED_CUDA_ERROR));
    });
}

#[test]
fn failed_stream_query_aborts_no_communicator() {
    fakes(1).run(|| {
        let ((comm, stream), (other, beside)) = (alone(), alone());
        // Error codes for parameters, contexts, handles and captures do not mean that the work has
        // failed.
        for code in [1, 3, 4, 200, 201, 400, 401].into_iter().chain(900..=908) {
            fail_driver(&format!("cuStreamQuery:1={code}"));
            let result = comm.wait(&stream, DEADLINE);
            assert!(
                matches!(&result, Err(NcclError::Cuda(DriverError::Cuda(error))) if error.code == code),
                "{code}: {result:?}"
            );
        }
        assert_eq!(sum(&comm, &stream).expect("the communicator is live"), 1.0);
        assert_eq!(sum(&other, &beside).expect("the communicator is live"), 1.0);
        // This error code means that the work has failed.
        fail_driver("cuStreamQuery:1=719");
        let result = comm.wait(&stream, DEADLINE);
        assert!(matches!(&result, Err(NcclError::Cuda(DriverError::Cuda(error))) if error.code == 719), "{result:?}");
        assert_eq!(state_of(sum(&comm, &stream)), DeadState::Aborted);
        assert_eq!(sum(&other, &beside).expect("the communicator is live"), 1.0);
        drop((comm, stream, other, beside));
        nothing_is_left();
    });
}
