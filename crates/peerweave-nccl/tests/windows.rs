//! Tests of registered memory: windows, puts to windows, registered buffers, and unregistering.
#![cfg(target_os = "linux")]
#![allow(missing_docs, reason = "scenarios are named, not documented")]

mod common;

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use common::*;
use peerweave_driver::{DeviceBuffer, DeviceBufferMut};
use peerweave_nccl::{
    Communicator, Config, NcclError, NcclMem, OnExpiry, Rank, ReduceOp, Signal, SignalWait, Window, WindowKind,
};

#[test]
fn every_rank_puts_to_every_window() {
    fakes(3).run(|| {
        ranks(3, &Config::new(), |comm, stream| {
            let (n, rank) = (comm.n_ranks(), comm.rank());
            let memory = NcclMem::from_slice(comm.nccl(), &stream, &vec![0.0f32; n]).expect("memory is allocated");
            let source = NcclMem::from_slice(comm.nccl(), &stream, &[rank.get() as f32 + 1.0]).expect("memory is allocated");
            let window = Window::register(&comm, &memory, WindowKind::SYMMETRIC)
                .expect("all ranks register")
                .expect("the fake has windows");
            let of_source = Window::register(&comm, &source, WindowKind::SYMMETRIC)
                .expect("all ranks register")
                .expect("the fake has windows");
            assert_eq!(
                (0..n).map(|rank| window.len_of(Rank::new(rank as u32)).expect("the rank exists")).collect::<Vec<_>>(),
                [n; 3]
            );
            assert_eq!(window.user_address().expect("NCCL returns the address"), memory.address());
            for peer in 0..n as u32 {
                comm.put_signal(&stream, &source, Rank::new(peer), &window, rank.index(), Signal::default())
                    .expect("the call is enqueued");
            }
            let waits: Vec<_> =
                (0..n as u32).map(|peer| SignalWait { peer: Rank::new(peer), signal: Signal::default(), count: 1 }).collect();
            comm.wait_signal(&stream, &waits).expect("the call is enqueued");
            comm.wait(&stream, DEADLINE).expect("the work completes");
            assert_eq!(memory.to_vec(&stream).expect("the memory can be read"), [1.0, 2.0, 3.0]);
            window.deregister(&stream, DEADLINE).expect("all ranks unregister");
            drop((of_source, source, memory));
        });
        nothing_is_left();
    });
}

#[test]
fn communicator_keeps_memory_of_dropped_registrations_alive() {
    fakes(1).run(|| {
        let (comm, stream) = alone();
        let memory = || NcclMem::<f32>::alloc(comm.nccl(), comm.context(), 16).expect("memory is allocated");
        let completed = || {
            peerweave_driver::drain_retired(Instant::now() + DEADLINE);
            (counted("allocations"), counted("windows"), counted("registrations"))
        };
        // The dropped window and the dropped registration must keep their memory allocated.
        drop(
            Window::register(&comm, &memory(), WindowKind::SYMMETRIC)
                .expect("the registration succeeds")
                .expect("the fake has windows"),
        );
        assert_eq!(completed(), (1, 1, 0), "peers may still put into the window");
        drop(comm.register(&memory()).expect("the memory is registered"));
        assert_eq!(completed(), (2, 1, 1), "peers may still access the buffer");
        drop((comm, stream));
        assert!(Communicator::wait_for_dropped(DEADLINE));
        peerweave_driver::drain_retired(Instant::now() + DEADLINE);
        assert_eq!((counted("allocations"), counted("communicators")), (0, 0));
    });
}

#[test]
fn windows_of_different_lengths_require_nccl_2_30_7() {
    for (version, is_right) in [("2.28.9", false), ("2.30.7", true)] {
        fakes_of(2, version).run(|| {
            ranks(2, &Config::new(), |comm, stream| {
                let memory =
                    |len: usize| NcclMem::from_slice(comm.nccl(), &stream, &vec![0.0f32; len]).expect("memory is allocated");
                let (same, other) = (memory(8), memory(8 + comm.rank().index()));
                Window::register(&comm, &same, WindowKind::SYMMETRIC)
                    .expect("all ranks pass the same length")
                    .expect("the fake has windows");
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
fn put_offset_beyond_the_window_of_the_calling_rank_is_misuse() {
    fakes(2).run(|| {
        // The peer has enqueued its wait, and enqueues nothing else until the last put.
        let is_waiting = Barrier::new(2);
        ranks(2, &Config::new(), |comm, stream| {
            let memory = |len: usize| NcclMem::from_slice(comm.nccl(), &stream, &vec![1.0f32; len]).expect("memory is allocated");
            let target = memory(if comm.rank() == Rank::new(0) { 8 } else { 64 });
            let window = Window::register(&comm, &target, WindowKind::SYMMETRIC)
                .expect("all ranks register")
                .expect("the fake has windows");
            if comm.rank() == Rank::new(0) {
                let put = |offset| comm.put_signal(&stream, &target, Rank::new(1), &window, offset, Signal::default());
                // The puts at offsets 7, 8 and 56 are inside the peer's window.
                let first = put(7);
                is_waiting.wait();
                first.expect("the offset is inside this rank's window");
                let before = counted("collectives");
                for offset in [8, 56] {
                    assert_eq!(
                        put(offset).expect_err("NCCL also checks the length of this rank's window").to_string(),
                        format!("put_signal: the offset is {offset}, expected less than the length of this rank's own window, because NCCL may check the offset in both windows")
                    );
                }
                assert_eq!(
                    put(57).expect_err("the offset is outside of the peer's window").to_string(),
                    "put_signal: the peer's window has 64 elements, expected at least 65"
                );
                assert_eq!(counted("collectives"), before, "nothing was enqueued");
                put(7).expect("the offset is inside this rank's window");
            } else {
                let wait = SignalWait { peer: Rank::new(0), signal: Signal::default(), count: 2 };
                let enqueued = comm.wait_signal(&stream, &[wait]);
                is_waiting.wait();
                enqueued.expect("the call is enqueued");
            }
            comm.wait(&stream, DEADLINE).expect("the work completes");
            window.deregister(&stream, DEADLINE).expect("all ranks unregister");
        });
        nothing_is_left();
    });
}

#[test]
fn window_registration_returns_none_if_nccl_gives_a_null_window() {
    fakes(2).env("PEERWEAVE_FAKE_NCCL_NULL_WINDOW", "1").run(|| {
        let all = all(2);
        let memories: Vec<_> = all
            .iter()
            .map(|(comm, _)| NcclMem::<u8>::alloc(comm.nccl(), comm.context(), 64).expect("memory is allocated"))
            .collect();
        let members: Vec<(&Communicator, &dyn peerweave_driver::DeviceBuffer<u8>)> =
            all.iter().zip(&memories).map(|((comm, _), memory)| (comm, memory as _)).collect();
        let windows = Window::register_all(&members, WindowKind::DEFAULT).expect("a null window is not an error");
        assert!(windows.iter().all(Option::is_none));
        drop((memories, windows, all));
        nothing_is_left();
    });
}

#[test]
fn deregister_on_a_stuck_stream_times_out() {
    fakes(1).env("PEERWEAVE_FAKE_NCCL_STUCK", "ncclAllReduce:1").run(|| {
        let (comm, stream) = alone();
        let memory = NcclMem::from_slice(comm.nccl(), &stream, &[0.0f32; 8]).expect("memory is allocated");
        let window = Window::register(&comm, &memory, WindowKind::DEFAULT)
            .expect("the registration succeeds")
            .expect("the fake has windows");
        let registration = comm.register(&memory).expect("the memory is registered");
        let mut values = floats(&stream, &[1.0]);
        comm.all_reduce_in_place(&stream, &mut values, ReduceOp::Sum).expect("the call is enqueued");
        let start = Instant::now();
        for result in
            [registration.deregister(&stream, Duration::from_millis(200)), window.deregister(&stream, Duration::from_millis(200))]
        {
            assert!(matches!(result, Err(NcclError::Timeout(_))), "{result:?}");
        }
        assert!((Duration::from_millis(400)..Duration::from_secs(20)).contains(&start.elapsed()));
        peerweave_driver::drain_retired(Instant::now() + Duration::from_millis(50));
        assert_eq!((counted("allocations"), counted("windows")), (1, 1), "peers may still write to the memory");
        comm.abort(DEADLINE).expect("the communicator ends");
        drop((comm, memory, values, stream));
        nothing_is_left();
    });
}

#[test]
fn signals_are_counted_separately_for_each_index() {
    fakes(2).run(|| {
        ranks(2, &Config::new().num_rma_sig(2), |comm, stream| {
            let (rank, peer) = (comm.rank().index(), 1 - comm.rank().index());
            let memory = NcclMem::<f32>::alloc(comm.nccl(), comm.context(), 8).expect("memory is allocated");
            let window =
                Window::register(&comm, &memory, WindowKind::DEFAULT).expect("all ranks register").expect("the fake has windows");
            let signal = Signal { index: 1, context: 0 };
            if rank == 0 {
                // Sends two signals in one group, and a third signal without a group.
                comm.nccl()
                    .group(|group| {
                        group.signal(&comm, &stream, Rank::new(peer as u32), signal)?;
                        group.signal(&comm, &stream, Rank::new(peer as u32), signal)
                    })
                    .expect("the calls are enqueued");
                comm.signal(&stream, Rank::new(peer as u32), signal).expect("the call is enqueued");
            } else {
                comm.wait_signal(&stream, &[SignalWait { peer: Rank::new(peer as u32), signal, count: 3 }])
                    .expect("the call is enqueued");
            }
            comm.wait(&stream, DEADLINE).expect("the work completes");
            if rank == 1 {
                // All signals of this index were consumed, and no signal has arrived at the other
                // index.
                for (signal, count) in [(signal, 1), (Signal::default(), 1)] {
                    let other = comm.context().new_stream().expect("a stream is created");
                    comm.wait_signal(&other, &[SignalWait { peer: Rank::new(peer as u32), signal, count }])
                        .expect("the call is enqueued");
                    let error = comm
                        .wait_with(&other, Duration::from_millis(50), OnExpiry::LeaveAlone)
                        .expect_err("no further signal arrives");
                    let NcclError::Timeout(timeout) = &error else { panic!("the error is {error}, expected a timeout") };
                    assert_eq!(timeout.call, "wait_signal");
                }
            }
            comm.abort(DEADLINE).expect("the communicator ends");
            drop(window);
        });
        nothing_is_left();
    });
}

#[test]
fn broadcast_gather_and_scatter_accept_registered_buffers() {
    fakes(3).run(|| {
        ranks(3, &Config::new(), |comm, stream| {
            let (send, mut recv) = (floats(&stream, &[comm.rank().get() as f32 + 1.0; 2]), floats(&stream, &[0.0; 6]));
            let registrations = [
                comm.register(&send).expect("the memory is registered"),
                comm.register(&recv).expect("the memory is registered"),
            ];
            // The ranks other than the root pass no send buffer, but NCCL must still get a
            // registered address.
            let given = (comm.rank() == Rank::new(1)).then_some(&send as &dyn DeviceBuffer<f32>);
            comm.broadcast(&stream, given, &mut recv.slice(0..2).expect("the range is inside the memory"), Rank::new(1))
                .expect("the call is enqueued");
            assert_eq!(recv.to_vec(&stream).expect("the memory can be read")[..2], [2.0, 2.0]);
            comm.all_gather_v(&stream, &send, &mut recv, &[2, 2, 2]).expect("the call is enqueued");
            assert_eq!(recv.to_vec(&stream).expect("the memory can be read"), [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]);
            recv.copy_from(&stream, &[0.0; 6]).expect("the call is enqueued");
            // Receive buffers of other ranks are not written, whatever their length.
            let mut given =
                recv.slice(0..if comm.rank() == Rank::new(2) { 5 } else { 6 }).expect("the range is inside the memory");
            comm.gather(&stream, &send, Some(&mut given as &mut dyn DeviceBufferMut<f32>), Rank::new(1))
                .expect("the call is enqueued");
            let all = recv.clone();
            let expected = if comm.rank() == Rank::new(1) { [1.0, 1.0, 2.0, 2.0, 3.0, 3.0] } else { [0.0; 6] };
            assert_eq!(all.to_vec(&stream).expect("the memory can be read"), expected);
            let given = (comm.rank() == Rank::new(1)).then_some(&all as &dyn DeviceBuffer<f32>);
            let mut part = floats(&stream, &[0.0; 2]);
            comm.scatter(&stream, given, &mut part, Rank::new(1)).expect("the call is enqueued");
            assert_eq!(part.to_vec(&stream).expect("the memory can be read"), [comm.rank().get() as f32 + 1.0; 2]);
            for registration in registrations {
                registration.deregister(&stream, DEADLINE).expect("all ranks unregister");
            }
            comm.finalize(DEADLINE).expect("all communicators end");
        });
        nothing_is_left();
    });
}

#[test]
fn registered_buffer_can_be_deregistered_after_use() {
    fakes(2).run(|| {
        ranks(2, &Config::new(), |comm, stream| {
            let buffer = floats(&stream, &[1.0; 1024]);
            let registration = comm.register(&buffer).expect("the memory is registered");
            let mut handle = buffer.clone();
            comm.all_reduce_in_place(&stream, &mut handle, ReduceOp::Sum).expect("the call is enqueued");
            registration.deregister(&stream, DEADLINE).expect("all ranks unregister");
            assert_eq!(counted("left_behind"), 0);
            comm.finalize(DEADLINE).expect("all communicators end");
            assert_eq!(buffer.to_vec(&stream).expect("the memory can be read")[1023], 2.0);
        });
        nothing_is_left();
    });
}

#[test]
fn window_does_not_keep_streams_of_earlier_calls_alive() {
    fakes(1).run(|| {
        let (comm, _) = alone();
        let memory = NcclMem::<f32>::alloc(comm.nccl(), comm.context(), 64).expect("memory is allocated");
        let window = Window::register(&comm, &memory, WindowKind::SYMMETRIC)
            .expect("the registration succeeds")
            .expect("the fake has windows");
        let handles = || Arc::strong_count(comm.context());
        let before = handles();
        for _ in 0..300 {
            let stream = comm.context().default_stream();
            comm.put_signal(&stream, &memory, Rank::new(0), &window, 0, Signal::default()).expect("the call is enqueued");
        }
        assert!(
            handles() < before + 100,
            "the context had {before} handles before the calls and {} afterwards, expected fewer than 100 more",
            handles()
        );
    });
}

#[test]
fn deregister_starts_no_collective_if_a_put_is_stuck() {
    fakes(1).env("PEERWEAVE_FAKE_NCCL_STUCK", "ncclPutSignal:1").run(|| {
        let (comm, stream) = alone();
        let beside = comm.context().new_stream().expect("a stream is created");
        let memory = NcclMem::from_slice(comm.nccl(), &stream, &[0.0f32; 8]).expect("memory is allocated");
        let window = Window::register(&comm, &memory, WindowKind::SYMMETRIC)
            .expect("the registration succeeds")
            .expect("the fake has windows");
        comm.put_signal(&beside, &memory, Rank::new(0), &window, 0, Signal::default()).expect("the call is enqueued");
        let before = comm.sequence();
        let error = window.deregister(&stream, Duration::from_millis(100)).expect_err("the put never completes");
        assert!(matches!(error, NcclError::Timeout(_)), "{error}");
        // The ranks have not started the collective that synchronises them, and the stream does not
        // wait for the stream of the put.
        assert_eq!(comm.sequence(), before);
        peerweave_driver::wait(&stream, Instant::now() + DEADLINE).expect("the stream is idle");
        comm.abort(DEADLINE).expect("the communicator ends");
        drop((comm, memory, stream, beside));
        nothing_is_left();
    });
}
