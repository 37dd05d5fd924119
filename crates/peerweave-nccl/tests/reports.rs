//! Tests of the reports that ranks exchange over the rendezvous after a timeout. Errors name lost
//! ranks and ranks that have issued fewer calls. Outdated reports are ignored.
#![cfg(target_os = "linux")]
#![allow(missing_docs, reason = "scenarios are named, not documented")]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::*;
use peerweave_bootstrap::Rendezvous;
use peerweave_driver::CudaStream;
use peerweave_fakes::Child;
use peerweave_nccl::{Communicator, Nccl, NcclError, OnExpiry, Rank, ReduceOp, Timeout};

fn join(child: &Child) -> (Communicator, Arc<Rendezvous>, Arc<CudaStream>) {
    let rendezvous = rendezvous(child);
    let (nccl, context) = (Nccl::load().expect("the fake library is found"), device(child.rank));
    let comm =
        Communicator::builder().nccl(nccl).deadline(DEADLINE).from_rendezvous(&context, &rendezvous).expect("all ranks join");
    let stream = context.new_stream().expect("a stream is created");
    (comm, rendezvous, stream)
}

fn timeout(result: Result<(), NcclError>) -> Box<Timeout> {
    match result {
        Err(NcclError::Timeout(timeout)) => timeout,
        other => panic!("the result is {other:?}, expected a timeout"),
    }
}

#[test]
fn ranks_report_their_last_calls_to_each_other() {
    fakes(3).run_many(3, |child| {
        let (comm, rendezvous, stream) = join(&child);
        let mut buffer = floats(&stream, &[1.0]);
        comm.broadcast_in_place(&stream, &mut buffer, Rank::new(0)).expect("the call is enqueued");
        comm.wait(&stream, DEADLINE).expect("the work completes");
        if child.rank == 2 {
            // This rank never calls the all-reduce, but reports its last call.
            comm.report().expect("the rendezvous is reachable");
            rendezvous.barrier("all ranks have issued their calls").expect("all ranks arrive");
            rendezvous.barrier("all other ranks have timed out").expect("all ranks arrive");
        } else {
            comm.all_reduce_in_place(&stream, &mut buffer, ReduceOp::Sum).expect("the call is enqueued");
            // Because of this report, a rank whose wait times out later is not named as missing.
            comm.report().expect("the rendezvous is reachable");
            rendezvous.barrier("all ranks have issued their calls").expect("all ranks arrive");
            let error = comm.wait(&stream, Duration::from_millis(500)).expect_err("rank 2 does not join");
            let text = error.to_string();
            let timeout = timeout(Err(error));
            assert_eq!(
                (timeout.call, timeout.sequence, timeout.missing.as_slice()),
                ("all_reduce_in_place", Some(2), &[Rank::new(2)][..])
            );
            assert!(text.contains("rank 2 did not arrive"), "{text}");
            assert!(text.contains("rank 2 last issued broadcast_in_place (call 1)"), "{text}");
            rendezvous.barrier("all other ranks have timed out").expect("all ranks arrive");
        }
    });
}

#[test]
fn stale_report_does_not_make_a_rank_count_as_missing() {
    // The second all-reduce never completes, even when all ranks arrive.
    fakes(2).env("PEERWEAVE_FAKE_NCCL_STUCK", "ncclAllReduce:2").run_many(2, |child| {
        let (comm, rendezvous, stream) = join(&child);
        let mut buffer = floats(&stream, &[1.0]);
        if child.rank == 1 {
            comm.report().expect("the rendezvous is reachable");
            rendezvous.barrier("rank 1 has reported").expect("all ranks arrive");
            rendezvous.barrier("the wait of rank 0 has timed out").expect("all ranks arrive");
        }
        comm.all_reduce_in_place(&stream, &mut buffer, ReduceOp::Sum).expect("the call is enqueued");
        if child.rank == 0 {
            rendezvous.barrier("rank 1 has reported").expect("all ranks arrive");
            let first = timeout(comm.wait_with(&stream, Duration::from_millis(200), OnExpiry::LeaveAlone));
            assert_eq!((first.sequence, first.missing.as_slice()), (Some(1), &[Rank::new(1)][..]));
            rendezvous.barrier("the wait of rank 0 has timed out").expect("all ranks arrive");
        }
        comm.wait_with(&stream, DEADLINE, OnExpiry::LeaveAlone).expect("rank 1 joins late");
        comm.all_reduce_in_place(&stream, &mut buffer, ReduceOp::Sum).expect("the call is enqueued");
        rendezvous.barrier("both ranks have issued the call").expect("all ranks arrive");
        // The earlier report of rank 1 is still stored when rank 0 reads the reports.
        let patience = Duration::from_millis(100 + 250 * child.rank as u64);
        let second = timeout(comm.wait_with(&stream, patience, OnExpiry::LeaveAlone));
        assert_eq!((second.sequence, second.missing.as_slice()), (Some(2), &[][..]), "{second}");
        assert_eq!(
            second.reports.iter().map(|report| (report.rank, report.sequence)).collect::<Vec<_>>(),
            [(Rank::new(1 - child.rank as u32), 2)]
        );
        comm.abort(DEADLINE).expect("the communicator ends");
        rendezvous.barrier("the end").expect("all ranks arrive");
    });
}

#[test]
fn timeout_error_names_no_ranks_if_ranks_joined_by_unique_id() {
    fakes(2).env("PEERWEAVE_FAKE_NCCL_STUCK", "ncclAllReduce").run_many(1, |child| {
        let (comm, _rendezvous, _) = join(&child);
        let (nccl, id) = (comm.nccl(), comm.grow_id().expect("an id is created"));
        let wait = |comm: Communicator| {
            let stream = comm.context().new_stream().expect("a stream is created");
            comm.all_reduce_in_place(&stream, &mut floats(&stream, &[1.0]), ReduceOp::Sum).expect("the call is enqueued");
            let expired = timeout(comm.wait_with(&stream, Duration::from_millis(100), OnExpiry::LeaveAlone));
            assert_eq!(
                (expired.missing.as_slice(), expired.reports.len()),
                (&[][..], 0),
                "the positions of ranks that joined by id are unknown"
            );
            assert_eq!(comm.report().expect("without a rendezvous the report is empty"), []);
            comm.abort(DEADLINE).expect("the communicator ends");
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                wait(
                    Communicator::builder()
                        .nccl(nccl)
                        .deadline(DEADLINE)
                        .join(&device(1), 2, &id, Rank::new(1))
                        .expect("all ranks join"),
                )
            });
            wait(comm.grow(2, Some(&id)).expect("all ranks join"));
        });
    });
}

#[test]
fn creation_error_names_a_rank_that_has_died() {
    fakes(2).run_many(2, |child| die_while_others_create_the_communicator(&child, Duration::from_secs(1)));
}

#[test]
fn creation_error_names_dead_rank_after_an_nccl_remote_error() {
    // NCCL loses its connection to the dead rank before the rendezvous detects the loss.
    let fakes = fakes(2).env("PEERWEAVE_FAKE_NCCL_FAIL", "ncclCommInitRankConfig:1=6");
    fakes.run_many(2, |child| die_while_others_create_the_communicator(&child, DEADLINE));
}

fn die_while_others_create_the_communicator(child: &Child, deadline: Duration) {
    if child.rank == 1 {
        // SAFETY: besides the harness, whose threads the child does not need, this process has one
        // thread. No library was loaded.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let rendezvous = rendezvous(child);
            rendezvous.exchange("peerweave-nccl/unique-id", b"").expect("both ranks exchange");
            // SAFETY: the call accesses no memory, and ends the process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        // SAFETY: a null status is allowed.
        assert_eq!(unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) }, pid);
        return;
    }
    let rendezvous = rendezvous(child);
    let (nccl, start) = (Nccl::load().expect("the fake library is found"), Instant::now());
    let made = Communicator::builder().nccl(nccl).deadline(deadline).from_rendezvous(&device(0), &rendezvous);
    let error = made.expect_err("rank 1 is dead");
    assert!(matches!(error, NcclError::Bootstrap { .. }) && error.to_string().contains("PE 1"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}
