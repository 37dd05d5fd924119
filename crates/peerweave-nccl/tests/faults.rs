//! What goes wrong on the way: stuck collectives, asynchronous errors, ranks that die, windows that are not there.
#![cfg(target_os = "linux")]
#![allow(missing_docs, reason = "scenarios are named, not documented")]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::*;
use peerweave_driver::{DeviceBuffer, DeviceBufferMut};
use peerweave_nccl::{
    Communicator, Config, DeadState, Nccl, NcclError, NcclMem, OnExpiry, ReduceOp, ResultCode, ShrinkMode, Signal, SignalWait,
    Switch, UniqueId, Window, WindowKind,
};

#[test]
fn stuck_collective_ends_at_the_deadline_and_takes_all_communicators_with_it() {
    fakes(2).env("PEERWEAVE_FAKE_NCCL_STUCK", "ncclAllReduce:2").run(|| {
        let (comm, stream) = alone();
        let bystander = comm.split(Some(0), 0).expect("it splits").expect("a part");
        let mut buffer = floats(&stream, &[1.0]);
        comm.all_reduce_in_place(&stream, &mut buffer, ReduceOp::Sum).expect("the first works");
        comm.wait(&stream, DEADLINE).expect("it completes");
        comm.all_reduce_in_place(&stream, &mut buffer, ReduceOp::Sum).expect("the second is enqueued");
        let start = Instant::now();
        let error = comm.wait(&stream, Duration::from_millis(200)).expect_err("it is stuck");
        assert!((Duration::from_millis(200)..Duration::from_secs(5)).contains(&start.elapsed()));
        let NcclError::Timeout(timeout) = &error else { panic!("{error}") };
        assert_eq!((timeout.call, timeout.sequence), ("all_reduce_in_place", Some(3)));
        assert_eq!(timeout.communicator.as_deref(), Some(comm.name()));
        assert!(
            error.to_string().starts_with("all_reduce_in_place (call 3) on communicator #1 (rank 0 of 1): not complete after ")
        );
        for comm in [&comm, &bystander] {
            assert!(matches!(comm.async_error(), Err(NcclError::Dead { state: DeadState::Aborted, .. })));
        }
        // The stream goes on.
        assert!(peerweave_driver::wait(&stream, Instant::now() + DEADLINE).is_ok());
        drop((comm, bystander, buffer, stream));
        nothing_is_left();
    });
}

#[test]
fn asynchronous_error_ends_the_wait_at_once() {
    // Slow, so that the error comes when the call has returned.
    let fakes = fakes(1).env("PEERWEAVE_FAKE_NCCL_SLOW", "ncclAllReduce=100");
    fakes.env("PEERWEAVE_FAKE_NCCL_ASYNC_ERROR", "ncclAllReduce:1=6").run(|| {
        let (comm, stream) = alone();
        let mut buffer = floats(&stream, &[1.0]);
        comm.all_reduce_in_place(&stream, &mut buffer, ReduceOp::Sum).expect("it is enqueued");
        let start = Instant::now();
        let error = comm.wait_with(&stream, DEADLINE, OnExpiry::LeaveAlone).expect_err("a peer failed");
        assert!(start.elapsed() < Duration::from_secs(5));
        assert_eq!(error.code(), Some(ResultCode::REMOTE_ERROR));
        assert!(matches!(
            comm.all_reduce_in_place(&stream, &mut buffer, ReduceOp::Sum),
            Err(NcclError::Dead { state: DeadState::Failed, .. })
        ));
        assert_eq!(comm.async_error().expect("it can be asked"), Some(ResultCode::REMOTE_ERROR));
        comm.abort(DEADLINE).expect("it ends");
        drop((comm, buffer, stream));
        nothing_is_left();
    });
}

#[test]
fn call_that_fails_is_an_error_with_the_words_of_nccl_and_the_next_works() {
    fakes(1).env("PEERWEAVE_FAKE_NCCL_FAIL", "ncclAllGather:2=4").run(|| {
        let config = Config::new().blocking(Switch::On);
        let comm =
            Communicator::init_all(Nccl::load().expect("the fake"), &contexts(1), &config, DEADLINE).expect("made").remove(0);
        let stream = comm.context().new_stream().expect("a stream");
        let (send, mut recv) = (floats(&stream, &[1.0]), floats(&stream, &[0.0]));
        comm.all_gather(&stream, &send, &mut recv).expect("the first works");
        let error = comm.all_gather(&stream, &send, &mut recv).expect_err("the second does not");
        assert_eq!(error.code(), Some(ResultCode::INVALID_ARGUMENT));
        assert!(
            error.to_string().starts_with("all_gather on communicator #1 (rank 0 of 1): ncclInvalidArgument (4) (NCCL 2.32.3): "),
            "{error}"
        );
        let words = comm.last_error().expect("it is alive");
        assert_eq!(words.as_deref(), Some("ncclAllGather: a fault that the test asked for"));
        assert!(error.to_string().contains(&words.expect("just seen")), "{error}");
        comm.all_gather(&stream, &send, &mut recv).expect("the third works");
        comm.wait(&stream, DEADLINE).expect("it completes");
    });
}

#[test]
fn call_that_fails_ends_a_communicator_that_does_not_block() {
    // NCCL keeps the error with it, and every later call would only find that.
    fakes(1).env("PEERWEAVE_FAKE_NCCL_FAIL", "ncclAllGather:1=4,ncclAllReduce:1=4").run(|| {
        let (comm, stream) = alone();
        let (send, mut recv) = (floats(&stream, &[1.0]), floats(&stream, &[0.0]));
        let error = comm.all_gather(&stream, &send, &mut recv).expect_err("it does not work");
        assert_eq!(error.code(), Some(ResultCode::INVALID_ARGUMENT));
        let error = comm.all_gather(&stream, &send, &mut recv).expect_err("nothing does any more");
        assert!(matches!(error, NcclError::Dead { state: DeadState::Failed, .. }), "{error}");
        let (comm, stream) = alone();
        let error = comm.nccl().group(|group| group.all_reduce(&comm, &stream, &send, &mut recv, ReduceOp::Sum));
        assert_eq!(error.expect_err("it does not work").code(), Some(ResultCode::INVALID_ARGUMENT));
        let error = comm.all_gather(&stream, &send, &mut recv).expect_err("nothing does any more");
        assert!(matches!(error, NcclError::Dead { state: DeadState::Failed, .. }), "{error}");
        comm.abort(DEADLINE).expect("it can be ended");
    });
}

#[test]
fn abort_from_another_thread_ends_a_wait() {
    fakes(1).env("PEERWEAVE_FAKE_NCCL_STUCK", "ncclAllReduce:1").run(|| {
        let (comm, stream) = alone();
        let mut buffer = floats(&stream, &[1.0]);
        comm.all_reduce_in_place(&stream, &mut buffer, ReduceOp::Sum).expect("it is enqueued");
        let waiting = comm.clone();
        let waiter = std::thread::spawn(move || waiting.wait(&stream, DEADLINE));
        std::thread::sleep(Duration::from_millis(50));
        comm.abort(DEADLINE).expect("it ends");
        let waited = waiter.join().expect("no panic");
        assert!(matches!(waited, Err(NcclError::Dead { state: DeadState::Aborted, .. })), "{waited:?}");
    });
}

#[test]
fn killed_rank_is_named_and_the_others_go_on_without_it() {
    for death in ["hang", "error"] {
        fakes(3).env("PEERWEAVE_FAKE_NCCL_DEATH", death).run_many(3, |child| match child.rank {
            1 => victim(&child),
            _ => survivor(&child),
        });
    }
}

/// Forks the rank that dies, so that the scenario's own child does not.
fn victim(child: &peerweave_fakes::Child) {
    // SAFETY: this process has one thread yet, but for the harness's, which the fork does not need; nothing was loaded.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let (comm, rendezvous) = join(child);
        reduce(&comm).expect("the first works");
        rendezvous.barrier("the first is over").expect("all come");
        // SAFETY: of no memory concern: the process ends.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    let mut status = 0;
    // SAFETY: the pointer is to a live integer.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(libc::WIFSIGNALED(status), "it was killed: {status}");
    child.meet("the end");
}

fn join(child: &peerweave_fakes::Child) -> (Communicator, Arc<peerweave_bootstrap::Rendezvous>) {
    let rendezvous = rendezvous(child);
    let (nccl, context) = (Nccl::load().expect("the fake is there"), device(child.rank));
    let comm = Communicator::from_rendezvous(nccl, &context, &rendezvous, &Config::new(), DEADLINE).expect("all come");
    (comm, rendezvous)
}

fn reduce(comm: &Communicator) -> Result<f32, NcclError> {
    let stream = comm.context().new_stream().expect("a stream");
    let mut buffer = floats(&stream, &[comm.rank() as f32 + 1.0]);
    comm.all_reduce_in_place(&stream, &mut buffer, ReduceOp::Sum)?;
    comm.wait_with(&stream, Duration::from_secs(2), OnExpiry::LeaveAlone)?;
    Ok(buffer.to_vec(&stream)?[0])
}

/// A communicator of ranks 0 and 2.
fn anew(comm: &Communicator, rendezvous: &peerweave_bootstrap::Rendezvous) -> Communicator {
    const KEY: &str = "the id of those that are left";
    if comm.rank() == 0 {
        rendezvous.put(KEY, comm.nccl().unique_id().expect("an id").as_bytes()).expect("the server lives");
    }
    let end = Instant::now() + DEADLINE;
    let id = loop {
        match rendezvous.try_get(KEY).expect("the server lives") {
            Some(id) => break UniqueId::try_from(id.as_slice()).expect("an id"),
            None => assert!(Instant::now() < end, "rank 0 has made none"),
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    Communicator::init_rank(comm.nccl(), comm.context(), 2, &id, comm.rank() / 2, &Config::new(), DEADLINE).expect("both come")
}

/// Does not end before the others do: that, too, would look like a death.
fn survivor(child: &peerweave_fakes::Child) {
    let (comm, rendezvous) = join(child);
    assert_eq!(reduce(&comm).expect("the first works"), 6.0);
    rendezvous.barrier("the first is over").expect("all come");
    let error = reduce(&comm).expect_err("rank 1 is dead");
    let NcclError::PeerLost(lost) = &error else { panic!("{error}") };
    assert_eq!(lost.ranks, [1], "{error}");
    comm.set_deadline(DEADLINE);
    let fewer = match comm.shrink(&[1], ShrinkMode::Abort) {
        Ok(fewer) => fewer,
        // NCCL noticed the loss, and makes no children then.
        Err(error) => {
            assert_eq!(error.code(), Some(ResultCode::REMOTE_ERROR), "{error}");
            anew(&comm, &rendezvous)
        }
    };
    assert_eq!(reduce(&fewer).expect("it works"), 3.0);
    comm.abort(DEADLINE).expect("it ends");
    fewer.finalize(DEADLINE).expect("it ends");
    child.meet("the end");
}

#[test]
fn windows_are_put_into_by_every_rank() {
    fakes(3).run(|| {
        ranks(3, &Config::new(), |comm, stream| {
            let (n, rank) = (comm.n_ranks(), comm.rank());
            let memory = NcclMem::from_slice(comm.nccl(), &stream, &vec![0.0f32; n]).expect("memory");
            let source = NcclMem::from_slice(comm.nccl(), &stream, &[rank as f32 + 1.0]).expect("memory");
            let window =
                Window::register(&comm, &memory, WindowKind::SYMMETRIC).expect("all register").expect("the fake has windows");
            let of_source =
                Window::register(&comm, &source, WindowKind::SYMMETRIC).expect("all register").expect("the fake has windows");
            assert_eq!((0..n).map(|rank| window.len_of(rank).expect("a rank")).collect::<Vec<_>>(), [n; 3]);
            assert_eq!(window.user_address().expect("it is asked for"), memory.address());
            for peer in 0..n {
                comm.put_signal(&stream, &source, peer, &window, rank, Signal::default()).expect("it is enqueued");
            }
            let waits: Vec<_> = (0..n).map(|peer| SignalWait { peer, signal: Signal::default(), count: 1 }).collect();
            comm.wait_signal(&stream, &waits).expect("it is enqueued");
            comm.wait(&stream, DEADLINE).expect("it completes");
            assert_eq!(memory.to_vec(&stream).expect("it can be read"), [1.0, 2.0, 3.0]);
            window.deregister(&stream, DEADLINE).expect("all give it back");
            drop((of_source, source, memory));
        });
        nothing_is_left();
    });
}

#[test]
fn window_that_was_only_dropped_keeps_its_memory_until_the_communicator_ends() {
    fakes(1).run(|| {
        let (comm, stream) = alone();
        let memory = NcclMem::<f32>::alloc(comm.nccl(), comm.context(), 16).expect("memory");
        let registered = comm.register(&memory).expect("it is registered");
        let window = Window::register(&comm, &memory, WindowKind::SYMMETRIC).expect("it works").expect("the fake has windows");
        drop((window, registered, memory));
        peerweave_driver::settle(Instant::now() + DEADLINE);
        assert_eq!((counted("allocations"), counted("windows")), (1, 1));
        drop((comm, stream));
        assert!(Communicator::settle(DEADLINE));
        peerweave_driver::settle(Instant::now() + DEADLINE);
        assert_eq!((counted("allocations"), counted("communicators")), (0, 0));
    });
}

#[test]
fn windows_of_different_lengths_need_2_30_7() {
    for (version, is_right) in [("2.28.9", false), ("2.30.7", true)] {
        fakes_of(2, version).run(|| {
            ranks(2, &Config::new(), |comm, stream| {
                let memory = |len: usize| NcclMem::from_slice(comm.nccl(), &stream, &vec![0.0f32; len]).expect("memory");
                let (same, other) = (memory(8), memory(8 + comm.rank()));
                Window::register(&comm, &same, WindowKind::SYMMETRIC).expect("one length").expect("a window");
                let result = Window::register(&comm, &other, WindowKind::SYMMETRIC);
                assert_eq!(result.is_ok(), is_right, "{version}: {result:?}");
                if let Err(error) = result {
                    assert!(matches!(error, NcclError::Misuse(_)) && error.to_string().contains("2.30.7"), "{error}");
                }
            });
            nothing_is_left();
        });
    }
}

#[test]
fn null_window_is_none_on_every_rank() {
    fakes(2).env("PEERWEAVE_FAKE_NCCL_NULL_WINDOW", "1").run(|| {
        let all = all(2);
        let memories: Vec<_> =
            all.iter().map(|(comm, _)| NcclMem::<u8>::alloc(comm.nccl(), comm.context(), 64).expect("memory")).collect();
        let members: Vec<(&Communicator, &dyn peerweave_driver::DeviceBuffer<u8>)> =
            all.iter().zip(&memories).map(|((comm, _), memory)| (comm, memory as _)).collect();
        let windows = Window::register_all(&members, WindowKind::DEFAULT).expect("it is no error");
        assert!(windows.iter().all(Option::is_none));
        drop((memories, windows, all));
        nothing_is_left();
    });
}

#[test]
fn registration_that_is_given_back_on_a_stuck_stream_keeps_to_its_deadline() {
    fakes(1).env("PEERWEAVE_FAKE_NCCL_STUCK", "ncclAllReduce:1").run(|| {
        let (comm, stream) = alone();
        let memory = NcclMem::from_slice(comm.nccl(), &stream, &[0.0f32; 8]).expect("memory");
        let window = Window::register(&comm, &memory, WindowKind::DEFAULT).expect("it works").expect("the fake has windows");
        let registration = comm.register(&memory).expect("it is registered");
        let mut values = floats(&stream, &[1.0]);
        comm.all_reduce_in_place(&stream, &mut values, ReduceOp::Sum).expect("it is enqueued");
        let start = Instant::now();
        for result in
            [registration.deregister(&stream, Duration::from_millis(200)), window.deregister(&stream, Duration::from_millis(200))]
        {
            assert!(matches!(result, Err(NcclError::Timeout(_))), "{result:?}");
        }
        assert!((Duration::from_millis(400)..Duration::from_secs(5)).contains(&start.elapsed()));
        peerweave_driver::settle(Instant::now() + Duration::from_millis(50));
        assert_eq!((counted("allocations"), counted("windows")), (1, 1), "peers may still write there");
        comm.abort(DEADLINE).expect("it ends");
        drop((comm, memory, values, stream));
        nothing_is_left();
    });
}

#[test]
fn signals_are_counted_by_sender_and_by_number() {
    fakes(2).run(|| {
        ranks(2, &Config::new().num_rma_sig(2), |comm, stream| {
            let (rank, peer) = (comm.rank(), 1 - comm.rank());
            let memory = NcclMem::<f32>::alloc(comm.nccl(), comm.context(), 8).expect("memory");
            let window = Window::register(&comm, &memory, WindowKind::DEFAULT).expect("all register").expect("a window");
            let signal = Signal { index: 1, context: 0 };
            if rank == 0 {
                // Two at once, and a third by itself.
                comm.nccl()
                    .group(|group| {
                        group.signal(&comm, &stream, peer, signal)?;
                        group.signal(&comm, &stream, peer, signal)
                    })
                    .expect("they are enqueued");
                comm.signal(&stream, peer, signal).expect("it is enqueued");
            } else {
                comm.wait_signal(&stream, &[SignalWait { peer, signal, count: 3 }]).expect("it is enqueued");
            }
            comm.wait(&stream, DEADLINE).expect("it completes");
            if rank == 1 {
                // None is left of them, and none came to the other number.
                for (signal, count) in [(signal, 1), (Signal::default(), 1)] {
                    let other = comm.context().new_stream().expect("a stream");
                    comm.wait_signal(&other, &[SignalWait { peer, signal, count }]).expect("it is enqueued");
                    let error = comm.wait_with(&other, Duration::from_millis(50), OnExpiry::LeaveAlone).expect_err("none comes");
                    let NcclError::Timeout(timeout) = &error else { panic!("{error}") };
                    assert_eq!(timeout.call, "wait_signal");
                }
            }
            comm.abort(DEADLINE).expect("it ends");
            drop(window);
        });
        nothing_is_left();
    });
}

#[test]
fn registered_buffers_are_found_on_every_rank_where_only_the_root_has_one_to_give() {
    fakes(3).run(|| {
        ranks(3, &Config::new(), |comm, stream| {
            let (send, mut recv) = (floats(&stream, &[comm.rank() as f32 + 1.0; 2]), floats(&stream, &[0.0; 6]));
            let registrations =
                [comm.register(&send).expect("it is registered"), comm.register(&recv).expect("it is registered")];
            // Who is not the root gives nothing, and NCCL still has to find something registered.
            let given = (comm.rank() == 1).then_some(&send as &dyn DeviceBuffer<f32>);
            comm.broadcast(&stream, given, &mut recv.slice(0..2).expect("it is inside"), 1).expect("it is enqueued");
            assert_eq!(recv.to_vec(&stream).expect("it can be read")[..2], [2.0, 2.0]);
            comm.all_gather_v(&stream, &send, &mut recv, &[2, 2, 2]).expect("it is enqueued");
            assert_eq!(recv.to_vec(&stream).expect("it can be read"), [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]);
            recv.copy_from(&stream, &[0.0; 6]).expect("it is enqueued");
            // What the others give is not written, whether it is as long as the root's or not.
            let mut given = recv.slice(0..if comm.rank() == 2 { 5 } else { 6 }).expect("it is inside");
            comm.gather(&stream, &send, Some(&mut given as &mut dyn DeviceBufferMut<f32>), 1).expect("it is enqueued");
            let all = recv.clone();
            let expected = if comm.rank() == 1 { [1.0, 1.0, 2.0, 2.0, 3.0, 3.0] } else { [0.0; 6] };
            assert_eq!(all.to_vec(&stream).expect("it can be read"), expected);
            let given = (comm.rank() == 1).then_some(&all as &dyn DeviceBuffer<f32>);
            let mut part = floats(&stream, &[0.0; 2]);
            comm.scatter(&stream, given, &mut part, 1).expect("it is enqueued");
            assert_eq!(part.to_vec(&stream).expect("it can be read"), [comm.rank() as f32 + 1.0; 2]);
            for registration in registrations {
                registration.deregister(&stream, DEADLINE).expect("all give it back");
            }
            comm.finalize(DEADLINE).expect("all end");
        });
        nothing_is_left();
    });
}

#[test]
fn registered_buffer_is_given_back() {
    fakes(2).run(|| {
        ranks(2, &Config::new(), |comm, stream| {
            let buffer = floats(&stream, &[1.0; 1024]);
            let registration = comm.register(&buffer).expect("it is registered");
            let mut handle = buffer.clone();
            comm.all_reduce_in_place(&stream, &mut handle, ReduceOp::Sum).expect("it is enqueued");
            registration.deregister(&stream, DEADLINE).expect("all give it back");
            assert_eq!(counted("left_behind"), 0);
            comm.finalize(DEADLINE).expect("all end");
            assert_eq!(buffer.to_vec(&stream).expect("it can be read")[1023], 2.0);
        });
        nothing_is_left();
    });
}

#[test]
fn memory_that_was_dropped_is_there_for_the_next() {
    // Two of them do not fit, and what is dropped is freed by another thread.
    fakes(1).env("PEERWEAVE_FAKE_CUDA_MEMORY_BYTES", (64usize << 20).to_string()).run(|| {
        let (nccl, context) = (Nccl::load().expect("the fake is there"), contexts(1).remove(0));
        for round in 0..50 {
            let memory = NcclMem::<u8>::alloc(nccl, &context, 40 << 20);
            drop(memory.unwrap_or_else(|error| panic!("round {round}: {error}")));
        }
        let error = NcclMem::<u8>::alloc(nccl, &context, 80 << 20).expect_err("there is never so much");
        assert_eq!(error.code(), Some(ResultCode::UNHANDLED_CUDA_ERROR));
    });
}
