//! Lifetime of communicators: non-blocking, derived, aborted and revoked ones, and use after the
//! end.

mod common;

use std::time::Duration;

use common::*;
use peerweave_fakes::child;

const I32: i32 = 2;

fn sum(comm: Handle, stream: Handle, value: i32) -> i32 {
    let data = buffer(&[value]);
    ok(ncclAllReduce(data, data, 1, I32, 0, comm, stream));
    assert_eq!(cuStreamSynchronize(stream), 0);
    read::<i32>(data, 1)[0]
}

#[test]
fn abort_ends_a_wait_for_a_missing_rank() {
    fakes().run(|| {
        ranks(2, |rank, comm, stream| {
            if rank == 0 {
                let data = buffer(&[1]);
                ok(ncclAllReduce(data, data, 1, I32, 0, comm, stream));
                std::thread::sleep(Duration::from_millis(50));
                assert_ne!(cuStreamQuery(stream), 0);
            }
            ok(ncclCommAbort(comm));
            assert_eq!(cuStreamSynchronize(stream), 0);
        });
        assert_eq!(count("communicators"), 0);
    });
}

#[test]
fn all_reduce_with_different_counts_hangs_until_the_abort() {
    fakes().run(|| {
        ranks(2, |rank, comm, stream| {
            let data = buffer(&[1, 2]);
            ok(ncclAllReduce(data, data, if rank == 0 { 1 } else { 2 }, I32, 0, comm, stream));
            std::thread::sleep(Duration::from_millis(100));
            assert_ne!(cuStreamQuery(stream), 0);
            ok(ncclCommAbort(comm));
            assert_eq!(cuStreamSynchronize(stream), 0);
        });
    });
}

#[test]
fn non_blocking_communicator_is_in_progress_until_ready() {
    fakes().env("PEERWEAVE_FAKE_NCCL_INIT_SLOW", "3000").run(|| {
        let mut id = UniqueId([0; 128]);
        ok(ncclGetUniqueId(&mut id));
        std::thread::scope(|scope| {
            for rank in 0..2 {
                scope.spawn(move || {
                    use_device(rank);
                    let (mut comm, mut number) = (0, 0);
                    let code = ncclCommInitRankConfig(&mut comm, 2, id, rank, &Config::non_blocking());
                    assert_eq!(code, 7);
                    assert_eq!(async_state(comm), 7);
                    assert_eq!(ncclCommCount(comm, &mut number), 4, "the communicator is not ready");
                    assert_eq!(settled(comm), 0);
                    ok(ncclCommCount(comm, &mut number));
                    assert_eq!(number, 2);
                    let (data, stream) = (buffer(&[rank + 1]), stream());
                    assert_eq!(ncclAllReduce(data, data, 1, I32, 0, comm, stream), 7);
                    assert_eq!(settled(comm), 0);
                    assert_eq!(cuStreamSynchronize(stream), 0);
                    assert_eq!(read::<i32>(data, 1), [3]);
                    let mut child = 0;
                    // The result of the group that the call itself ends is dropped, as in NCCL.
                    ok(ncclCommSplit(comm, 0, -rank, &mut child, std::ptr::null()));
                    assert_eq!(async_state(comm), 7);
                    assert_eq!((settled(comm), settled(child)), (0, 0));
                    ok(ncclCommUserRank(child, &mut number));
                    assert_eq!(number, 1 - rank);
                    assert_eq!(ncclCommFinalize(comm), 7);
                    assert_eq!(settled(comm), 0);
                    ok(ncclCommDestroy(comm));
                    ok(ncclCommDestroy(child));
                });
            }
        });
    });
}

#[test]
fn endless_initialisation_can_be_aborted() {
    fakes().run(|| {
        use_device(0);
        let mut id = UniqueId([0; 128]);
        ok(ncclGetUniqueId(&mut id));
        let mut comm = 0;
        assert_eq!(ncclCommInitRankConfig(&mut comm, 2, id, 0, &Config::non_blocking()), 7);
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(async_state(comm), 7);
        ok(ncclCommAbort(comm));
        assert_eq!(count("communicators"), 0);
    });
}

#[test]
fn split_without_a_color_returns_no_communicator() {
    fakes().run(|| {
        ranks(4, |rank, comm, stream| {
            let mut child = 1;
            let color = if rank == 3 { -1 } else { rank % 2 };
            ok(ncclCommSplit(comm, color, -rank, &mut child, std::ptr::null()));
            if rank == 3 {
                assert_eq!(child, 0);
            } else {
                let mut me = -1;
                ok(ncclCommUserRank(child, &mut me));
                assert_eq!(me, if rank == 0 { 1 } else { 0 });
                assert_eq!(sum(child, stream, 10 + rank), if rank == 1 { 11 } else { 22 });
                ok(ncclCommDestroy(child));
            }
            assert_eq!(sum(comm, stream, 1), 4);
            assert_eq!(ncclCommSplit(comm, -2, 0, &mut child, std::ptr::null()), 4);
            ok(ncclCommDestroy(comm));
        });
    });
}

#[test]
fn survivors_can_shrink_the_communicator_after_a_rank_aborts() {
    fakes().run(|| {
        ranks(3, |rank, comm, stream| {
            if rank == 1 {
                ok(ncclCommAbort(comm));
                return;
            }
            let data = buffer(&[1]);
            ok(ncclAllReduce(data, data, 1, I32, 0, comm, stream));
            let mut small = 0;
            assert_eq!(ncclCommShrink(comm, [5].as_ptr(), 1, &mut small, std::ptr::null(), 1), 4);
            assert_eq!(ncclCommShrink(comm, [1].as_ptr(), 1, &mut small, std::ptr::null(), 2), 4);
            ok(ncclCommShrink(comm, [1].as_ptr(), 1, &mut small, std::ptr::null(), 1));
            assert_eq!(sum(small, stream, rank + 1), 4);
            let mut me = -1;
            ok(ncclCommUserRank(small, &mut me));
            assert_eq!(me, rank / 2);
            ok(ncclCommAbort(comm));
            ok(ncclCommDestroy(small));
        });
    });
}

#[test]
fn new_ranks_join_a_growing_communicator() {
    fakes().run(|| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let receiver = std::sync::Mutex::new(receiver);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                ranks(2, |rank, comm, stream| {
                    let mut id = UniqueId([0; 128]);
                    let mut large = 0;
                    let given = if rank == 0 {
                        ok(ncclCommGetUniqueId(comm, &mut id));
                        assert_eq!(ncclCommGetUniqueId(comm, &mut id), 5, "the first id is still unused");
                        sender.send(id).expect("a thread waits for the id");
                        &raw const id
                    } else {
                        std::ptr::null()
                    };
                    ok(ncclCommGrow(comm, 3, given, -1, &mut large, std::ptr::null()));
                    assert_eq!(sum(large, stream, 1), 3);
                    ok(ncclCommDestroy(comm));
                    ok(ncclCommDestroy(large));
                });
            });
            scope.spawn(|| {
                let id = receiver.lock().expect("no thread has panicked").recv().expect("an id is sent");
                use_device(2);
                let mut large = 0;
                ok(ncclCommGrow(0, 3, &id, 2, &mut large, std::ptr::null()));
                assert_eq!(sum(large, stream(), 1), 3);
                ok(ncclCommDestroy(large));
            });
        });
    });
}

#[test]
fn revoked_and_suspended_communicators_refuse_to_communicate() {
    fakes().run(|| {
        ranks(2, |rank, comm, stream| {
            let (data, mut value) = (buffer(&[1]), 0);
            ok(ncclCommMemStats(comm, 3, &mut value));
            let before = value;
            assert_eq!(ncclCommResume(comm), 5);
            assert_eq!(ncclCommSuspend(comm, 0), 4);
            ok(ncclCommSuspend(comm, 1));
            ok(ncclCommMemStats(comm, 3, &mut value));
            assert_eq!(value, before, "suspending must not change the total memory use");
            assert_eq!(ncclAllReduce(data, data, 1, I32, 0, comm, stream), 5);
            ok(ncclCommResume(comm));
            assert_eq!(sum(comm, stream, 1), 2);
            if rank == 0 {
                ok(ncclAllReduce(data, data, 1, I32, 0, comm, stream));
            }
            assert_eq!(ncclCommRevoke(comm, 1), 4);
            ok(ncclCommRevoke(comm, 0));
            assert_eq!(cuStreamSynchronize(stream), 0);
            assert_eq!(ncclAllReduce(data, data, 1, I32, 0, comm, stream), 5);
            assert_eq!(ncclCommFinalize(comm), 5);
            let mut child = 0;
            ok(ncclCommSplit(comm, 0, 0, &mut child, std::ptr::null()));
            assert_eq!(sum(child, stream, 1), 2);
            ok(ncclCommDestroy(child));
            ok(ncclCommDestroy(comm));
        });
    });
}

#[test]
fn two_ranks_on_one_device_are_refused() {
    fakes().run(|| {
        let mut id = UniqueId([0; 128]);
        ok(ncclGetUniqueId(&mut id));
        use_device(0);
        let mut comms = [1; 2];
        ok(ncclGroupStart());
        for (rank, comm) in comms.iter_mut().enumerate() {
            ok(ncclCommInitRank(comm, 2, id, rank as i32));
        }
        assert_eq!(ncclGroupEnd(), 5);
        assert!(last_error().contains("Duplicate GPU"), "{}", last_error());
        assert_eq!((comms, count("communicators")), ([0, 0], 0));
    });
}

/// Runs a child that the library must end with a message that contains `words`.
fn ends_loudly(scenario: &str, words: &str) {
    let output = fakes().run_child(scenario);
    assert!(!output.timed_out && !output.status.success(), "{output}");
    assert!(output.stderr.contains(words), "{output}");
}

#[test]
fn use_of_a_destroyed_communicator_ends_the_process() {
    if child().is_some() {
        ranks(1, |_, comm, _| {
            ok(ncclCommDestroy(comm));
            let mut count = 0;
            ncclCommCount(comm, &mut count);
        });
        return;
    }
    ends_loudly("use_of_a_destroyed_communicator_ends_the_process", "fake nccl: use of a destroyed communicator");
}

#[test]
fn second_destroy_of_a_communicator_ends_the_process() {
    if child().is_some() {
        ranks(1, |_, comm, _| {
            ok(ncclCommAbort(comm));
            ncclCommDestroy(comm);
        });
        return;
    }
    ends_loudly("second_destroy_of_a_communicator_ends_the_process", "fake nccl: use of a destroyed communicator");
}

#[test]
fn destroying_a_communicator_used_by_a_graph_ends_the_process() {
    if child().is_some() {
        ranks(1, |_, comm, stream| {
            let (data, mut graph) = (buffer(&[1]), 0);
            assert_eq!(cuStreamBeginCapture_v2(stream, 1), 0);
            ok(ncclAllReduce(data, data, 1, I32, 0, comm, stream));
            assert_eq!(cuStreamEndCapture(stream, &mut graph), 0);
            ncclCommDestroy(comm);
        });
        return;
    }
    ends_loudly("destroying_a_communicator_used_by_a_graph_ends_the_process", "captured graphs still hold");
}
