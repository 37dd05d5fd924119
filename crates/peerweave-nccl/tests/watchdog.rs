//! Tests of the deadlines of blocked calls and of enqueued work. At a deadline the communicator is
//! aborted, and the error names the ranks that have not issued the call. Other communicators are
//! not affected.
#![cfg(target_os = "linux")]
#![allow(missing_docs, reason = "scenarios are named, not documented")]

mod common;

use std::sync::Arc;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use common::*;
use peerweave_driver::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use peerweave_nccl::{Communicator, CommunicatorBuilder, Config, DeadState, Nccl, NcclError, Rank, ReduceOp, Switch};

/// Deadline of waits that must time out.
const SHORT: Duration = Duration::from_millis(300);

/// Deadline of calls that succeed within milliseconds, also on a busy machine.
const PATIENT: Duration = Duration::from_secs(6);

/// Maximum time after which a late call or late work has ended. The time includes the query of the
/// other ranks, and the wait of the abort for threads inside NCCL.
const LATE: Duration = Duration::from_secs(20);

/// Returns a fake machine on which the first collective waits inside NCCL for all ranks.
fn connecting(devices: usize) -> peerweave_fakes::Fakes {
    fakes(devices).env("PEERWEAVE_FAKE_NCCL_CONNECT", "1")
}

fn builder(nccl: Nccl) -> CommunicatorBuilder {
    Communicator::builder().nccl(nccl).deadline(DEADLINE)
}

fn missing(error: &NcclError) -> &[Rank] {
    match error {
        NcclError::Timeout(timeout) => &timeout.missing,
        other => panic!("the error is {other}, expected a timeout"),
    }
}

#[test]
fn stuck_call_fails_at_the_deadline_and_names_late_ranks() {
    connecting(2).run(|| {
        for mode in [Switch::On, Switch::Off] {
            let is_over = Barrier::new(2);
            ranks(2, &Config::new().blocking(mode), |comm, stream| {
                if comm.rank() == Rank::new(0) {
                    let (bystander, beside) = all_with(1, &Config::new().blocking(mode)).remove(0);
                    comm.set_deadline(SHORT);
                    let mut values = floats(&stream, &[1.0]);
                    let start = Instant::now();
                    let error = comm.all_reduce_in_place(&stream, &mut values, ReduceOp::Sum).expect_err("rank 1 does not join");
                    assert!((SHORT..LATE).contains(&start.elapsed()), "{mode:?}: {:?}", start.elapsed());
                    assert_eq!(missing(&error), [Rank::new(1)], "{mode:?}");
                    assert!(error.to_string().starts_with("all_reduce_in_place (call 1) on communicator"), "{error}");
                    assert_eq!(state_of(sum(&comm, &stream)), DeadState::Aborted);
                    assert_eq!(sum(&bystander, &beside).expect("the other communicator still works"), 1.0);
                }
                is_over.wait();
            });
            nothing_is_left();
        }
    });
}

#[test]
fn every_rank_of_a_stuck_group_is_aborted_at_the_deadline() {
    connecting(3).run(|| {
        let nccl = Nccl::load().expect("the fake library is found");
        let (id, contexts) = (nccl.unique_id().expect("an id is created"), contexts(3));
        let is_over = Barrier::new(2);
        std::thread::scope(|scope| {
            let other = &contexts[2];
            scope.spawn(|| {
                let comm = builder(nccl).init_rank(other, 3, &id, Rank::new(2)).expect("all ranks join");
                is_over.wait();
                comm.abort(DEADLINE).expect("the communicator ends");
            });
            let members = [0, 1].map(|rank| (Arc::clone(&contexts[rank]), Rank::new(rank as u32)));
            let made = builder(nccl).init_ranks(&members, 3, &id).expect("all ranks join");
            let mine: Vec<_> =
                made.into_iter().map(|comm| (comm.context().new_stream().expect("a stream is created"), comm)).collect();
            let mut buffers: Vec<_> = mine.iter().map(|(stream, _)| floats(stream, &[1.0])).collect();
            mine[0].1.set_deadline(Duration::from_millis(100));
            mine[1].1.set_deadline(SHORT);
            let start = Instant::now();
            let result = nccl.group(|group| {
                for ((stream, comm), buffer) in mine.iter().zip(&mut buffers) {
                    group.all_reduce_in_place(comm, stream, buffer, ReduceOp::Sum)?;
                }
                Ok(())
            });
            let error = result.expect_err("rank 2 does not join");
            assert!((SHORT..LATE).contains(&start.elapsed()), "the longest deadline applies: {:?}", start.elapsed());
            assert_eq!(missing(&error), [Rank::new(2)]);
            for (stream, comm) in &mine {
                assert_eq!(state_of(sum(comm, stream)), DeadState::Aborted);
            }
            is_over.wait();
        });
        nothing_is_left();
    });
}

#[test]
fn abort_of_one_rank_aborts_all_ranks_of_a_blocked_group() {
    connecting(3).run(|| {
        let nccl = Nccl::load().expect("the fake library is found");
        let (id, contexts) = (nccl.unique_id().expect("an id is created"), contexts(3));
        let is_over = Barrier::new(2);
        std::thread::scope(|scope| {
            let other = &contexts[2];
            scope.spawn(|| {
                let _comm = builder(nccl).init_rank(other, 3, &id, Rank::new(2)).expect("all ranks join");
                is_over.wait();
            });
            let members = [0, 1].map(|rank| (Arc::clone(&contexts[rank]), Rank::new(rank as u32)));
            let made = builder(nccl).init_ranks(&members, 3, &id).expect("all ranks join");
            let victim = made[1].clone();
            scope.spawn(move || {
                std::thread::sleep(SHORT);
                victim.abort(DEADLINE).expect("the abort succeeds");
            });
            let streams: Vec<_> = made.iter().map(|comm| comm.context().new_stream().expect("a stream is created")).collect();
            let mut buffers: Vec<_> = streams.iter().map(|stream| floats(stream, &[1.0])).collect();
            let result = nccl.group(|group| {
                for ((comm, stream), buffer) in made.iter().zip(&streams).zip(&mut buffers) {
                    group.all_reduce_in_place(comm, stream, buffer, ReduceOp::Sum)?;
                }
                Ok(())
            });
            assert_eq!(state_of(result), DeadState::Aborted);
            for (comm, stream) in made.iter().zip(&streams) {
                assert_eq!(state_of(sum(comm, stream)), DeadState::Aborted);
            }
            is_over.wait();
        });
        nothing_is_left();
    });
}

#[test]
fn stuck_query_fails_at_the_deadline() {
    fakes(1).env("PEERWEAVE_FAKE_NCCL_STUCK", "ncclCommMemStats:1").run(|| {
        let (comm, _) = alone();
        comm.set_deadline(SHORT);
        let start = Instant::now();
        let error = comm.mem_stats().expect_err("the query never returns");
        assert!(matches!(error, NcclError::Timeout(_)), "{error}");
        assert!((SHORT..LATE).contains(&start.elapsed()), "{:?}", start.elapsed());
        drop(comm);
        nothing_is_left();
    });
}

#[test]
fn successive_calls_do_not_count_as_one_stuck_call() {
    // Each call queries four statistics, and the next call follows immediately. So a thread is
    // nearly always inside NCCL.
    fakes(1).env("PEERWEAVE_FAKE_NCCL_SLOW", "ncclCommMemStats=10").run(|| {
        let (comm, stream) = alone();
        comm.set_deadline(PATIENT);
        let start = Instant::now();
        while start.elapsed() < 2 * PATIENT {
            comm.mem_stats().expect("each call takes 40 ms");
        }
        assert_eq!(sum(&comm, &stream).expect("the communicator is live"), 1.0);
    });
}

#[test]
fn changed_deadline_applies_to_the_running_call() {
    connecting(2).run(|| {
        ranks(2, &Config::new(), |comm, stream| {
            if comm.rank() == Rank::new(0) {
                let other = comm.clone();
                let start = Instant::now();
                let calling = std::thread::spawn(move || sum(&other, &stream));
                std::thread::sleep(Duration::from_millis(200));
                assert!(!calling.is_finished());
                comm.set_deadline(SHORT);
                let error = calling.join().expect("the thread does not panic").expect_err("rank 1 does not join");
                assert!(matches!(error, NcclError::Timeout(_)), "{error}");
                assert!(start.elapsed() < LATE, "{:?}", start.elapsed());
            }
        });
    });
}

#[test]
fn stuck_work_is_aborted_at_the_work_deadline() {
    fakes(1).env("PEERWEAVE_FAKE_NCCL_STUCK", "ncclAllReduce:2").run(|| {
        let (comm, stream) = alone();
        let (bystander, beside) = alone();
        assert_eq!(comm.work_deadline(), Duration::from_secs(600));
        let mut values = floats(&stream, &[1.0]);
        comm.all_reduce_in_place(&stream, &mut values, ReduceOp::Sum).expect("the first call is enqueued");
        comm.wait(&stream, DEADLINE).expect("the first call completes");
        comm.set_work_deadline(SHORT);
        let start = Instant::now();
        comm.all_reduce_in_place(&stream, &mut values, ReduceOp::Sum).expect("the second call is enqueued");
        // This wait of the driver has no deadline.
        stream.synchronize().expect("the stream completes after the abort");
        assert!((SHORT / 2..LATE).contains(&start.elapsed()), "{:?}", start.elapsed());
        let error = comm.wait(&stream, DEADLINE).expect_err("the work was aborted");
        assert!(error.to_string().starts_with("all_reduce_in_place (call 2) on communicator #1"), "{error}");
        assert!(matches!(error, NcclError::Timeout(_)), "{error}");
        assert_eq!(state_of(comm.split(Some(0), 0)), DeadState::Aborted);
        assert_eq!(sum(&bystander, &beside).expect("the other communicator still works"), 1.0);
        drop((comm, stream, values, bystander, beside));
        nothing_is_left();
    });
}

#[test]
fn busy_stream_that_makes_progress_is_not_aborted() {
    fakes(1).env("PEERWEAVE_FAKE_NCCL_SLOW", "ncclAllReduce=5").run(|| {
        let (comm, stream) = alone();
        comm.set_work_deadline(PATIENT);
        let mut values = floats(&stream, &[1.0]);
        let start = Instant::now();
        while start.elapsed() < 2 * PATIENT {
            // The host is always several calls ahead of the device.
            comm.all_reduce_in_place(&stream, &mut values, ReduceOp::Sum).expect("the call is enqueued");
            std::thread::sleep(Duration::from_millis(5));
        }
        comm.wait(&stream, DEADLINE).expect("the work completes");
        assert_eq!(sum(&comm, &stream).expect("the communicator is live"), 1.0);
    });
}

#[test]
fn capture_stays_valid_while_the_watchdog_checks_the_work() {
    fakes(1).run(|| {
        let (comm, stream) = alone();
        comm.set_work_deadline(Duration::from_millis(80));
        let mut values = floats(&stream, &[1.0]);
        let graph = captured(&stream, || {
            comm.all_reduce_in_place(&stream, &mut values, ReduceOp::Sum)?;
            std::thread::sleep(SHORT);
            comm.all_reduce_in_place(&stream, &mut values, ReduceOp::Sum)
        });
        comm.set_work_deadline(DEADLINE);
        graph.launch().expect("the graph is launched");
        comm.wait(&stream, DEADLINE).expect("the work completes");
    });
}

#[test]
fn stuck_work_is_aborted_even_if_a_capture_follows() {
    fakes(1).env("PEERWEAVE_FAKE_NCCL_STUCK", "ncclAllReduce:1").run(|| {
        let (comm, stream) = alone();
        comm.set_work_deadline(SHORT);
        let mut values = floats(&stream, &[1.0]);
        comm.all_reduce_in_place(&stream, &mut values, ReduceOp::Sum).expect("the call is enqueued");
        // The watchdog cannot record an event in a stream that is being captured.
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).expect("the capture begins");
        std::thread::sleep(SHORT);
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        drop(stream.end_capture(flags).expect("the capture is valid"));
        // This wait of the driver has no deadline.
        stream.synchronize().expect("the stream completes after the abort");
        assert!(matches!(comm.wait(&stream, DEADLINE), Err(NcclError::Timeout(_))));
    });
}

#[test]
fn call_that_waits_for_a_killed_rank_names_the_rank() {
    connecting(2).run_many(2, |child| {
        if child.rank == 1 {
            // SAFETY: besides the harness, whose threads the child does not need, this process has
            // one thread. No library was loaded.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                let rendezvous = rendezvous(&child);
                let (nccl, context) = (Nccl::load().expect("the fake library is found"), device(1));
                let made = builder(nccl).from_rendezvous(&context, &rendezvous);
                let _comm = made.expect("all ranks join");
                // SAFETY: the call accesses no memory, and ends the process.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            }
            // SAFETY: a null status is allowed.
            assert_eq!(unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) }, pid);
            return;
        }
        let rendezvous = rendezvous(&child);
        let (nccl, context) = (Nccl::load().expect("the fake library is found"), device(0));
        let made = builder(nccl).from_rendezvous(&context, &rendezvous);
        let (comm, stream) = (made.expect("all ranks join"), context.new_stream().expect("a stream is created"));
        let start = Instant::now();
        let error = sum(&comm, &stream).expect_err("rank 1 is dead");
        assert!(matches!(&error, NcclError::PeerLost(lost) if lost.ranks == [Rank::new(1)]), "{error}");
        assert!(start.elapsed() < LATE, "the call ended after the deadline: {:?}", start.elapsed());
    });
}
