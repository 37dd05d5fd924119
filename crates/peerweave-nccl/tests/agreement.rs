//! Tests of errors in the calls of several ranks of one process: calls in a group that do not
//! match, and ranks that a thread omitted from a group.
#![cfg(target_os = "linux")]
#![allow(missing_docs, reason = "scenarios are named, not documented")]

mod common;

use std::time::{Duration, Instant};

use common::*;
use peerweave_nccl::{Communicator, Config, DeviceMemory, Group, MisuseKind, NcclError, OnExpiry, PreMulSum, Rank, ReduceOp};

/// Checks that a group fails with this message, before NCCL is called.
#[track_caller]
fn refused<'env>(
    all: &[(Communicator, std::sync::Arc<peerweave_nccl::CudaStream>)],
    record: impl FnOnce(&mut Group<'env>) -> Result<(), NcclError>,
    text: &str,
) {
    let before = counted("collectives");
    let error = all[0].0.nccl().group(record).expect_err("the ranks disagree");
    assert_eq!(error.to_string(), text);
    assert!(matches!(error.misuse_kind(), Some(MisuseKind::Disagreement { .. })));
    assert_eq!(counted("collectives"), before, "nothing was issued");
}

#[test]
fn collectives_of_different_lengths_in_a_group_are_refused() {
    fakes(2).run(|| {
        let all = all(2);
        let ((one, first), (two, second)) = (&all[0], &all[1]);
        let (mut short, mut long) = (floats(first, &[1.0; 4]), floats(second, &[1.0; 8]));
        refused(
            &all,
            |group| {
                group.all_reduce_in_place(one, first, &mut short, ReduceOp::Sum)?;
                group.all_reduce_in_place(two, second, &mut long, ReduceOp::Sum)
            },
            "all_reduce_in_place: rank 1 calls all_reduce_in_place of 8 f32 elements by sum, \
             but rank 0 in the same group calls all_reduce_in_place of 4 f32 elements by sum",
        );
        // The communicators can still be used after the refused group.
        let mut long = long.slice(0..4).expect("the range is inside the memory");
        let issued = one.nccl().group(|group| {
            group.all_reduce_in_place(one, first, &mut short, ReduceOp::Sum)?;
            group.all_reduce_in_place(two, second, &mut long, ReduceOp::Sum)
        });
        issued.expect("the lengths are equal now");
        one.wait(first, DEADLINE).expect("the work completes");
        assert_eq!(value(&short, first), 2.0);
    });
}

#[test]
fn mismatched_calls_of_two_ranks_in_a_group_are_refused() {
    fakes(2).run(|| {
        let all = all(2);
        let ((one, first), (two, second)) = (&all[0], &all[1]);
        let mut floats_of_one = floats(first, &[1.0; 4]);
        let mut floats_of_two = floats(second, &[1.0; 4]);
        let mut integers = DeviceMemory::from_slice(second, &[1u32; 4]).expect("memory is allocated");
        refused(
            &all,
            |group| {
                group.reduce_in_place(one, first, &mut floats_of_one, ReduceOp::Max, Rank::new(1))?;
                group.reduce_in_place(two, second, &mut integers, ReduceOp::Max, Rank::new(1))
            },
            "reduce_in_place: rank 1 calls reduce_in_place of 4 u32 elements by max with root 1, \
             but rank 0 in the same group calls reduce_in_place of 4 f32 elements by max with root 1",
        );
        refused(
            &all,
            |group| {
                group.broadcast_in_place(one, first, &mut floats_of_one, Rank::new(0))?;
                group.broadcast_in_place(two, second, &mut floats_of_two, Rank::new(1))
            },
            "broadcast_in_place: rank 1 calls broadcast_in_place of 4 f32 elements with root 1, \
             but rank 0 in the same group calls broadcast_in_place of 4 f32 elements with root 0",
        );
        refused(
            &all,
            |group| {
                group.all_gather_in_place(two, second, &mut floats_of_two)?;
                group.all_reduce_in_place(one, first, &mut floats_of_one, ReduceOp::Min)
            },
            "all_reduce_in_place: rank 0 calls all_reduce_in_place of 4 f32 elements by min, \
             but rank 1 in the same group calls all_gather_in_place of 2 f32 elements",
        );
        let scaled = PreMulSum::new(one, 2.0f32).expect("the reduction is created");
        refused(
            &all,
            |group| {
                group.all_reduce_in_place(one, first, &mut floats_of_one, &scaled)?;
                group.all_reduce_in_place(two, second, &mut floats_of_two, ReduceOp::Sum)
            },
            "all_reduce_in_place: rank 1 calls all_reduce_in_place of 4 f32 elements by sum, \
             but rank 0 in the same group calls all_reduce_in_place of 4 f32 elements by a custom reduction",
        );
    });
}

#[test]
fn send_and_receive_of_different_lengths_are_refused() {
    fakes(2).run(|| {
        let all = all(2);
        let ((one, first), (two, second)) = (&all[0], &all[1]);
        let (four, mut eight) = (floats(first, &[1.0; 4]), floats(second, &[1.0; 8]));
        let (six, mut six_of_one) = (floats(second, &[1.0; 6]), floats(first, &[1.0; 6]));
        refused(
            &all,
            |group| {
                group.send(one, first, &four, Rank::new(1))?;
                group.recv(two, second, &mut eight, Rank::new(0))
            },
            "recv: rank 1 calls recv of 8 f32 elements, but rank 0 in the same group calls send of 4 f32 elements",
        );
        refused(
            &all,
            |group| {
                group.all_to_all_v(one, first, &four, &[2, 2], &mut six_of_one, &[2, 4])?;
                group.all_to_all_v(two, second, &six, &[4, 2], &mut eight, &[6, 2])
            },
            "all_to_all_v: rank 1 calls all_to_all_v, which sends 4 elements to rank 0 and receives 6 elements from rank 0, \
             but rank 0 in the same group calls all_to_all_v, which sends 2 elements to rank 1 and receives 4 elements from rank 1",
        );
        refused(
            &all,
            |group| {
                group.all_gather_v(one, first, &four, &mut six_of_one, &[4, 2])?;
                group.all_gather_v(two, second, &six, &mut eight, &[2, 6])
            },
            "all_gather_v: rank 1 calls all_gather_v with these (rank, number of elements) pairs: [(0, 2), (1, 6)], \
             but rank 0 in the same group calls all_gather_v with these (rank, number of elements) pairs: [(0, 4), (1, 2)]",
        );
        assert_eq!((one.sequence(), two.sequence()), (0, 0));
    });
}

#[test]
fn group_accepts_unequal_lengths_of_unrelated_calls() {
    fakes(2).run(|| {
        let all = all(2);
        let ((one, first), (two, second)) = (&all[0], &all[1]);
        let (mut four, eight) = (floats(first, &[1.0; 4]), floats(first, &[1.0; 8]));
        let (mut four_of_two, mut eight_of_two) = (floats(second, &[2.0; 4]), floats(second, &[2.0; 8]));
        // Rank 0 issues its first collective and its first send without a group. Rank 1 issues its
        // calls in groups, which also contain later calls of rank 0.
        one.all_reduce_in_place(first, &mut four, ReduceOp::Sum).expect("the call is enqueued");
        one.send(first, &four, Rank::new(1)).expect("the call is enqueued");
        let issued = one.nccl().group(|group| {
            group.all_reduce_in_place(two, second, &mut four_of_two, ReduceOp::Sum)?;
            Ok(())
        });
        issued.expect("the calls of both ranks match");
        // A transfer with a different type but the same number of bytes is accepted.
        let mut bytes = DeviceMemory::from_slice(second, &[0u8; 16]).expect("memory is allocated");
        let issued = one.nccl().group(|group| {
            group.recv(two, second, &mut bytes, Rank::new(0))?;
            group.send(one, first, &eight, Rank::new(1))
        });
        issued.expect("the receive matches the earlier send");
        two.recv(second, &mut eight_of_two, Rank::new(0)).expect("the call is enqueued");
        for (comm, stream) in &all {
            comm.wait(stream, DEADLINE).expect("the work completes");
        }
        assert_eq!((value(&four_of_two, second), value(&eight_of_two, second)), (3.0, 1.0));
    });
}

/// Checks that a call fails because these ranks were omitted. Returns the message.
#[track_caller]
fn left_out(result: Result<(), NcclError>, expected: &[u32]) -> String {
    let error = result.expect_err("a rank was omitted");
    match error.misuse_kind() {
        Some(MisuseKind::NotInGroup { ranks, .. }) => {
            assert_eq!(ranks.iter().map(|rank| rank.get()).collect::<Vec<_>>(), expected, "{error}")
        }
        _ => panic!("the error is {error}, expected NotInGroup"),
    }
    error.to_string()
}

#[test]
fn wait_error_names_the_rank_whose_call_was_not_issued() {
    fakes(2).run(|| {
        let all = all(2);
        let (one, first) = &all[0];
        let mut values = floats(first, &[1.0]);
        let start = Instant::now();
        one.all_reduce_in_place(first, &mut values, ReduceOp::Sum).expect("the call is enqueued");
        let text = left_out(one.wait(first, Duration::from_secs(20)), &[1]);
        assert_eq!(
            text,
            format!(
                "all_reduce_in_place: call 1 on {} cannot complete, because the waiting thread has not issued the call for rank 1; \
                 issue the calls of all ranks of a thread in one Nccl::group",
                one.name()
            )
        );
        assert!(
            start.elapsed() < Duration::from_secs(19),
            "the error came after {:?}, expected before the deadline",
            start.elapsed()
        );
    });
}

#[test]
fn wait_fails_early_if_a_group_omits_a_rank_of_the_same_thread() {
    fakes(3).run(|| {
        let all = all(3);
        let mut buffers: Vec<_> = all.iter().map(|(_, stream)| floats(stream, &[1.0])).collect();
        let start = Instant::now();
        let issued = all[0].0.nccl().group(|group| {
            for ((comm, stream), buffer) in all[..2].iter().zip(&mut buffers) {
                group.all_reduce_in_place(comm, stream, buffer, ReduceOp::Sum)?;
            }
            Ok(())
        });
        issued.expect("the calls are enqueued");
        left_out(all[0].0.wait(&all[0].1, DEADLINE), &[2]);
        assert!(start.elapsed() < DEADLINE / 2, "the error came after {:?}, expected long before the deadline", start.elapsed());
    });
}

#[test]
fn blocked_call_fails_early_and_names_the_rank_without_a_call() {
    // The first collective waits inside NCCL until all ranks have joined.
    fakes(2).env("PEERWEAVE_FAKE_NCCL_CONNECT", "1").run(|| {
        let all = all(2);
        let (one, first) = &all[0];
        one.set_deadline(Duration::from_secs(20));
        let mut values = floats(first, &[1.0]);
        let start = Instant::now();
        left_out(one.all_reduce_in_place(first, &mut values, ReduceOp::Sum), &[1]);
        assert!(
            start.elapsed() < Duration::from_secs(19),
            "the error came after {:?}, expected before the deadline",
            start.elapsed()
        );
    });
}

#[test]
fn wait_for_a_late_rank_of_another_thread_succeeds() {
    fakes(2).run(|| {
        ranks(2, &Config::new(), |comm, stream| {
            sum(&comm, &stream).expect("both ranks join");
            if comm.rank() == Rank::new(1) {
                std::thread::sleep(Duration::from_millis(1500));
            }
            // Each thread has only used its own rank, so no rank counts as omitted.
            let mut values = floats(&stream, &[1.0]);
            comm.all_reduce_in_place(&stream, &mut values, ReduceOp::Sum).expect("the call is enqueued");
            comm.wait(&stream, DEADLINE).expect("the other rank joins late");
            comm.finalize(DEADLINE).expect("all communicators end");
        });
    });
}

#[test]
fn timeout_names_late_ranks_of_other_threads() {
    fakes(3).run(|| {
        let (have_called, is_over) = (std::sync::Barrier::new(2), std::sync::Barrier::new(3));
        ranks(3, &Config::new(), |comm, stream| {
            sum(&comm, &stream).expect("all ranks join");
            if comm.rank() == Rank::new(2) {
                is_over.wait();
                return;
            }
            let mut values = floats(&stream, &[1.0]);
            comm.all_reduce_in_place(&stream, &mut values, ReduceOp::Sum).expect("the call is enqueued");
            have_called.wait();
            let late =
                comm.wait_with(&stream, Duration::from_millis(400), OnExpiry::LeaveAlone).expect_err("rank 2 does not join");
            let NcclError::Timeout(timeout) = &late else { panic!("the error is {late}, expected a timeout") };
            assert_eq!(timeout.missing, [Rank::new(2)], "{late}");
            assert!(late.to_string().contains("rank 2 last issued all_reduce_in_place (call 1)"), "{late}");
            is_over.wait();
            comm.abort(DEADLINE).expect("the communicator ends");
        });
    });
}
