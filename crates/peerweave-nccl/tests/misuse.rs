//! Tests that misuse of a call is reported before NCCL is called. Also tests the exact messages,
//! and the limits of each version.
#![cfg(target_os = "linux")]
#![allow(missing_docs, reason = "scenarios are named, not documented")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::*;
use peerweave_driver::{CudaContext, DeviceMemory, DriverError};
use peerweave_nccl::{
    CollConfig, Communicator, Config, Nccl, NcclError, NcclMem, PreMulSum, Rank, ReduceOp, ShrinkMode, Signal, SignalWait,
    Switch, Version, Window, WindowKind,
};
use peerweave_types::F8E4M3;

/// Checks that a call fails with this message, and that NCCL was not called.
#[track_caller]
fn says<T: std::fmt::Debug>(result: Result<T, NcclError>, text: &str) {
    let before = counted("collectives");
    assert_eq!(result.expect_err("the call is invalid").to_string(), text);
    assert_eq!(counted("collectives"), before);
}

#[test]
fn wrong_lengths_roots_and_peers_are_misuse() {
    fakes(3).run(|| {
        let all = all(3);
        let (comm, stream) = &all[0];
        let calls = counted("collectives");
        let (two, six) = (floats(stream, &[0.0; 2]), floats(stream, &[0.0; 6]));
        let (mut two_out, mut six_out, mut four) = (two.clone(), six.clone(), floats(stream, &[0.0; 4]));
        let (send, recv) = (floats(stream, &[0.0; 2]), floats(stream, &[0.0; 6]));
        says(
            comm.all_reduce(stream, &two, &mut six_out, ReduceOp::Sum),
            "all_reduce: the receive buffer has 6 elements, expected 2",
        );
        says(comm.all_gather(stream, &send, &mut four), "all_gather: the receive buffer has 4 elements, expected 6");
        says(
            comm.all_gather_in_place(stream, &mut four),
            "all_gather_in_place: the length of the buffer is 4, expected a multiple of the number of ranks",
        );
        says(
            comm.reduce_scatter(stream, &four.clone(), &mut two_out, ReduceOp::Max),
            "reduce_scatter: the send buffer has 4 elements, expected 6",
        );
        says(comm.all_to_all(stream, &recv, &mut four), "all_to_all: the receive buffer has 4 elements, expected 6");
        says(
            comm.all_to_all(stream, &four.clone(), &mut six_out),
            "all_to_all: the length of the send buffer is 4, expected a multiple of the number of ranks",
        );
        says(
            comm.broadcast(stream, Some(&two), &mut six_out, Rank::new(0)),
            "broadcast: the send buffer has 2 elements, expected 6",
        );
        says(
            comm.broadcast(stream, None, &mut six_out, Rank::new(0)),
            "broadcast: the send buffer: no buffer was passed, expected a buffer because this rank is the root",
        );
        says(
            comm.broadcast_in_place(stream, &mut six_out, Rank::new(3)),
            "broadcast_in_place: the root is 3, expected less than 3 (the number of ranks)",
        );
        says(
            comm.reduce(stream, &two, None, ReduceOp::Sum, Rank::new(0)),
            "reduce: the receive buffer: no buffer was passed, expected a buffer because this rank is the root",
        );
        says(comm.gather(stream, &two, Some(&mut four), Rank::new(0)), "gather: the receive buffer has 4 elements, expected 6");
        says(
            comm.scatter(stream, Some(&four), &mut two_out, Rank::new(0)),
            "scatter: the send buffer has 4 elements, expected 6",
        );
        says(comm.send(stream, &two, Rank::new(3)), "send: the peer is 3, expected less than 3 (the number of ranks)");
        says(
            comm.recv(stream, &mut two_out, Rank::new(u32::MAX)),
            format!("recv: the peer is {}, expected less than 3 (the number of ranks)", u32::MAX).as_str(),
        );
        says(
            comm.all_to_all_v(stream, &two, &[1, 1], &mut six_out, &[1, 1, 4]),
            "all_to_all_v: the list of send counts has 2 numbers, expected 3",
        );
        says(
            comm.all_to_all_v(stream, &two, &[1, 1, 1], &mut six_out, &[1, 1, 4]),
            "all_to_all_v: the send buffer has 2 elements, expected 3",
        );
        says(
            comm.all_to_all_v(stream, &two, &[1, 1, 0], &mut six_out, &[2, 2, 2]),
            "all_to_all_v: the data that this rank receives from itself has 2 elements, expected 1",
        );
        says(
            comm.all_gather_v(stream, &two, &mut six_out, &[2, usize::MAX, usize::MAX]),
            format!("all_gather_v: the receive buffer has 6 elements, expected {}", usize::MAX).as_str(),
        );
        says(comm.shrink(&[], ShrinkMode::Default), "shrink: the list of excluded ranks has 0 ranks, expected at least 1");
        says(
            comm.shrink(&[Rank::new(3)], ShrinkMode::Default),
            "shrink: an excluded rank is 3, expected less than 3 (the number of ranks)",
        );
        says(
            comm.shrink(&[Rank::new(1), Rank::new(1)], ShrinkMode::Default),
            "shrink: an excluded rank is 1, expected a rank that occurs only once in the list",
        );
        says(
            comm.shrink(&[Rank::new(0)], ShrinkMode::Abort),
            "shrink: an excluded rank is 0, expected a rank that does not make this call",
        );
        says(comm.split(Some(u32::MAX), 0), "split: the color is 4294967295, expected a number of at most 2147483647");
        says(
            Communicator::split_all(&[(comm, None, 0), (comm, None, 0)], None),
            "split: the communicators: one communicator is passed twice, expected each communicator once",
        );
        says(
            comm.grow(3, None),
            "grow: the number of ranks is 3, expected a number greater than the current number of ranks, and at most 2147483647",
        );
        assert_eq!((counted("collectives"), comm.sequence()), (calls, 0), "NCCL was not called");
    });
}

#[test]
fn overlapping_buffers_are_misuse() {
    fakes(1).run(|| {
        let (comm, stream) = alone();
        let memory = floats(&stream, &[0.0; 8]);
        let (low, mut high) = (
            memory.slice(0..5).expect("the range is inside the memory"),
            memory.slice(3..8).expect("the range is inside the memory"),
        );
        let error = comm.all_reduce(&stream, &low, &mut high, ReduceOp::Sum).expect_err("elements 3 and 4 are shared");
        let address = memory.address() + 12;
        assert_eq!(
            error.to_string(),
            format!(
                "all_reduce: the send buffer and the receive buffer overlap at {address:#x}; use the in-place form of the call"
            )
        );
        let (low, mut high) = (
            memory.slice(0..4).expect("the range is inside the memory"),
            memory.slice(4..8).expect("the range is inside the memory"),
        );
        comm.all_reduce(&stream, &low, &mut high, ReduceOp::Sum).expect("adjacent buffers do not overlap");
        let (mut empty, none) = (
            memory.slice(2..2).expect("the range is inside the memory"),
            memory.slice(2..2).expect("the range is inside the memory"),
        );
        comm.all_reduce(&stream, &none, &mut empty, ReduceOp::Sum).expect("empty buffers do not overlap");
    });
}

#[test]
fn gather_refuses_invalid_receive_buffers_on_non_root_ranks() {
    fakes(2).run(|| {
        let all = all(2);
        let ((comm, stream), (_, other_stream)) = (&all[0], &all[1]);
        let memory = floats(stream, &[0.0; 6]);
        let (send, mut shared) = (
            memory.slice(0..2).expect("the range is inside the memory"),
            memory.slice(1..5).expect("the range is inside the memory"),
        );
        // This receive buffer has the length that the root requires. So it is passed to NCCL, which
        // may use its offset.
        let error = comm.gather(stream, &send, Some(&mut shared), Rank::new(1)).expect_err("element 1 is read and written");
        assert!(error.to_string().contains("overlap at"), "{error}");
        says(
            comm.gather(stream, &send, Some(&mut floats(other_stream, &[0.0; 4])), Rank::new(1)),
            "gather: the receive buffer is on device 1, expected device 0",
        );
        // A receive buffer of a different length is not passed to NCCL.
        let mut longer = memory.slice(0..5).expect("the range is inside the memory");
        comm.gather(stream, &send, Some(&mut longer), Rank::new(1)).expect("the receive buffer is ignored");
        comm.abort(DEADLINE).expect("the communicator ends");
    });
}

#[test]
fn buffers_streams_and_reductions_of_another_rank_are_refused() {
    fakes(2).run(|| {
        let all = all(2);
        let ((comm, stream), (other, other_stream)) = (&all[0], &all[1]);
        let (mut mine, mut theirs) = (floats(stream, &[1.0]), floats(other_stream, &[1.0]));
        says(
            comm.all_reduce_in_place(stream, &mut theirs, ReduceOp::Sum),
            "all_reduce_in_place: the buffer is on device 1, expected device 0",
        );
        says(
            comm.all_reduce(stream, &theirs, &mut mine, ReduceOp::Sum),
            "all_reduce: the send buffer is on device 1, expected device 0",
        );
        says(
            comm.all_reduce_in_place(other_stream, &mut mine, ReduceOp::Sum),
            "all_reduce_in_place: the stream is on device 1, expected device 0",
        );
        says(comm.wait(other_stream, DEADLINE), "wait: the stream is on device 1, expected device 0");
        let scaled = PreMulSum::new(other, 2.0f32).expect("the reduction is created");
        let error = comm
            .all_reduce_in_place(stream, &mut mine, &scaled)
            .expect_err("the reduction belongs to another communicator")
            .to_string();
        assert_eq!(error, format!("all_reduce_in_place: the reduction belongs to {}, expected {}", other.name(), comm.name()));
        says(
            PreMulSum::from_device(comm, theirs.clone()),
            "PreMulSum::from_device: the scalar is on device 1, expected device 0",
        );
        says(
            PreMulSum::from_device(comm, floats(stream, &[1.0, 2.0])),
            "PreMulSum::from_device: the scalar has 2 elements, expected 1",
        );
    });
}

#[test]
fn stream_of_another_context_is_misuse() {
    fakes(1).run(|| {
        let (comm, stream) = alone();
        let mut values = floats(&stream, &[1.0]);
        let other = context_beside(comm.context()).new_stream().expect("a stream is created");
        let why = "the stream: the CUDA context differs from the communicator's context; use the primary context of the device for all CUDA objects and communicators";
        says(comm.all_reduce_in_place(&other, &mut values, ReduceOp::Sum), &format!("all_reduce_in_place: {why}"));
        says(comm.wait(&other, DEADLINE), &format!("wait: {why}"));
        let grouped = comm.nccl().group(|group| group.all_reduce_in_place(&comm, &other, &mut values, ReduceOp::Sum));
        says(grouped, &format!("all_reduce_in_place: {why}"));
        let registered = comm.register(&values).expect("the memory is registered");
        says(registered.deregister(&other, DEADLINE), &format!("Registration::deregister: {why}"));
    });
}

#[test]
fn per_thread_default_stream_is_refused_by_every_call() {
    fakes(1).run(|| {
        let (comm, stream) = alone();
        let own = comm.context().per_thread_stream();
        let (send, mut recv) = (floats(&stream, &[1.0]), floats(&stream, &[0.0]));
        let memory = NcclMem::from_slice(comm.nccl(), &stream, &[1.0f32; 4]).expect("memory is allocated");
        let window = Window::register(&comm, &memory, WindowKind::DEFAULT)
            .expect("the window is registered")
            .expect("the fake has windows");
        let registered = comm.register(&send).expect("the memory is registered");
        let config = CollConfig::new();
        // Registering the window has already issued a collective, which exchanges the lengths of
        // the windows.
        let before = (counted("collectives"), comm.sequence());
        let refused = [
            ("all_reduce", comm.all_reduce(&own, &send, &mut recv, ReduceOp::Sum)),
            ("all_reduce_in_place", comm.all_reduce_in_place(&own, &mut recv, ReduceOp::Sum)),
            ("all_to_all_v", comm.all_to_all_v(&own, &send, &[1], &mut recv, &[1])),
            ("broadcast", comm.with(&config).broadcast(&own, Some(&send), &mut recv, Rank::new(0))),
            ("send", comm.send(&own, &send, Rank::new(0))),
            ("recv", comm.nccl().group(|group| group.recv(&comm, &own, &mut recv, Rank::new(0)))),
            ("put_signal", comm.put_signal(&own, &memory, Rank::new(0), &window, 0, Signal::default())),
            ("signal", comm.signal(&own, Rank::new(0), Signal::default())),
            ("wait_signal", comm.wait_signal(&own, &[SignalWait { peer: Rank::new(0), signal: Signal::default(), count: 1 }])),
            ("wait", comm.wait(&own, DEADLINE)),
            ("Registration::deregister", registered.deregister(&own, DEADLINE)),
            ("Window::deregister", window.deregister(&own, DEADLINE)),
        ];
        for (call, result) in refused {
            let error = result.expect_err(call);
            let of_driver = matches!(&error, NcclError::Cuda(DriverError::PerThreadStream { call: told }) if *told == call);
            assert!(of_driver, "{call}: {error}");
        }
        let error = NcclMem::from_slice(comm.nccl(), &own, &[1.0f32; 4]).expect_err("per-thread streams are refused");
        assert!(matches!(error, NcclError::Cuda(DriverError::PerThreadStream { .. })), "{error}");
        assert_eq!((counted("collectives"), comm.sequence()), before, "nothing was enqueued");
    });
}

#[test]
fn calls_succeed_despite_a_stored_error_of_cudarc() {
    fakes(1).run(|| {
        let (comm, stream) = alone();
        // A failing destructor of cudarc stores its error in the context. The next call of cudarc
        // on any thread returns this error.
        let leave = || {
            let event = comm.context().new_event(None).expect("an event is created");
            fail_driver("cuEventDestroy_v2:1=709");
            drop(event);
        };
        let memory = NcclMem::from_slice(comm.nccl(), &stream, &[1.0f32; 4]).expect("memory is allocated");
        leave();
        let window = Window::register(&comm, &memory, WindowKind::SYMMETRIC)
            .expect("the window is registered")
            .expect("the fake has windows");
        let beside = peerweave_driver::PrivateStream::new(comm.context()).expect("a stream is created");
        comm.put_signal(&beside, &memory, Rank::new(0), &window, 0, Signal::default()).expect("the call is enqueued");
        window.deregister(&stream, DEADLINE).expect("the memory is unregistered");
        comm.all_reduce_in_place(&stream, &mut memory.slice(0..1).expect("the range is inside the memory"), ReduceOp::Sum)
            .expect("the call is enqueued");
        comm.wait(&stream, DEADLINE).expect("the work completes");
        assert!(comm.context().check_err().is_err(), "cudarc still stores the error");
    });
}

#[test]
fn invalid_ranks_and_devices_are_misuse() {
    fakes(2).run(|| {
        let nccl = Nccl::load().expect("the fake library is found");
        let (contexts, id, config) = (contexts(2), nccl.unique_id().expect("an id is created"), Config::new());
        let twice = [Arc::clone(&contexts[0]), Arc::clone(&contexts[0])];
        let none: [Arc<CudaContext>; 0] = [];
        says(
            Communicator::builder().nccl(nccl).config(config.clone()).deadline(DEADLINE).init_all(&none),
            "init_all: the number of ranks is 0, expected a number from 1 to 2147483647",
        );
        says(
            Communicator::builder().nccl(nccl).config(config.clone()).deadline(DEADLINE).init_all(&twice),
            "init_all: the device is 0, expected a device that occurs only once in the list",
        );
        says(
            Communicator::builder().nccl(nccl).config(config.clone()).deadline(DEADLINE).init_rank(
                &contexts[0],
                2,
                &id,
                Rank::new(2),
            ),
            "init_rank: the rank is 2, expected less than 2 (the number of ranks)",
        );
        let members = [0, 1].map(|ordinal| (Arc::clone(&contexts[ordinal]), Rank::new(1)));
        says(
            Communicator::builder().nccl(nccl).config(config.clone()).deadline(DEADLINE).init_ranks(&members, 2, &id),
            "init_ranks: the rank is 1, expected a rank that occurs only once in the list",
        );
        says(
            Communicator::builder().nccl(nccl).config(config.clone()).deadline(DEADLINE).init_rank_scalable(
                &contexts[0],
                2,
                &[],
                Rank::new(0),
            ),
            "init_rank_scalable: the number of ids is 0, expected a number from 1 to the number of ranks",
        );
        says(
            Communicator::builder().nccl(nccl).config(config.clone()).deadline(DEADLINE).init_rank_scalable(
                &contexts[0],
                1,
                &[id, id],
                Rank::new(0),
            ),
            "init_rank_scalable: the number of ids is 2, expected a number from 1 to the number of ranks",
        );
        let (comm, _) = alone_non_blocking();
        let blocking = Config::new().blocking(Switch::On);
        says(
            Communicator::split_all(&[(&comm, Some(0), 0)], Some(&blocking)),
            "split: Config::blocking: the value differs from the mode of the parent communicator; leave the value unset to use the mode of the parent",
        );
    });
}

#[test]
fn group_of_blocking_and_non_blocking_ranks_is_refused() {
    fakes(2).run(|| {
        let nccl = Nccl::load().expect("the fake library is found");
        let contexts = contexts(2);
        let make = |context: &Arc<CudaContext>, config: &Config| {
            Communicator::builder()
                .nccl(nccl)
                .config(config.clone())
                .deadline(DEADLINE)
                .init_all(std::slice::from_ref(context))
                .expect("the communicator is created")
                .remove(0)
        };
        let (one, two) =
            (make(&contexts[0], &Config::new().blocking(Switch::Off)), make(&contexts[1], &Config::new().blocking(Switch::On)));
        let streams = [contexts[0].default_stream(), contexts[1].default_stream()];
        let (mut first, mut second) = (floats(&streams[0], &[1.0]), floats(&streams[1], &[1.0]));
        says(
            nccl.group(|group| {
                group.all_reduce_in_place(&one, &streams[0], &mut first, ReduceOp::Sum)?;
                group.all_reduce_in_place(&two, &streams[1], &mut second, ReduceOp::Sum)
            }),
            "group: the communicators: some communicators are blocking and others are non-blocking, expected all blocking or all non-blocking",
        );
    });
}

#[test]
fn invalid_window_memory_and_put_ranges_are_misuse() {
    fakes(1).run(|| {
        let (comm, stream) = alone();
        let slice = stream.alloc_zeros::<f32>(8).expect("memory is allocated");
        let memory = NcclMem::from_slice(comm.nccl(), &stream, &[0.0f32; 8]).expect("memory is allocated");
        let error = Window::register(&comm, &slice, WindowKind::DEFAULT).expect_err("the memory is borrowed").to_string();
        assert!(error.starts_with("Window::register: registered memory must outlive the call"), "{error}");
        let error = Window::register(&comm, &memory.slice(1..8).expect("the range is inside the memory"), WindowKind::DEFAULT)
            .expect_err("the address is not aligned")
            .to_string();
        assert!(error.ends_with("expected a multiple of 4096"), "{error}");
        says(
            Window::register(&comm, &memory.slice(0..0).expect("the range is inside the memory"), WindowKind::DEFAULT),
            "Window::register: the memory has 0 elements, expected at least 1",
        );
        let window = Window::register(&comm, &memory, WindowKind::SYMMETRIC)
            .expect("the registration succeeds")
            .expect("the fake has windows");
        let source = memory.slice(0..4).expect("the range is inside the memory");
        says(
            comm.put_signal(&stream, &source, Rank::new(0), &window, 5, Signal::default()),
            "put_signal: the peer's window has 8 elements, expected at least 9",
        );
        says(
            comm.put_signal(&stream, &source, Rank::new(0), &window, usize::MAX, Signal::default()),
            &format!("put_signal: the peer's window has 8 elements, expected at least {}", usize::MAX),
        );
        says(
            comm.put_signal(&stream, &source, Rank::new(1), &window, 0, Signal::default()),
            "put_signal: the peer is 1, expected less than 1 (the number of ranks)",
        );
        says(comm.wait_signal(&stream, &[]), "wait_signal: the list of waits has 0 waits, expected at least 1");
        says(
            comm.wait_signal(&stream, &[SignalWait { peer: Rank::new(0), signal: Signal::default(), count: 0 }]),
            "wait_signal: the count is 0, expected a number of at least 1",
        );
        says(
            comm.wait_signal(
                &stream,
                &[SignalWait { peer: Rank::new(0), signal: Signal { index: u32::MAX, context: 0 }, count: 1 }],
            ),
            "wait_signal: the signal's index is 4294967295, expected a number of at most 2147483647",
        );
        let clone = window.clone();
        says(
            clone.deregister(&stream, DEADLINE),
            "Window::deregister: a clone, a recorded call or a captured graph still uses the window; drop all users of the window first",
        );
        let other = comm.split(Some(0), 0).expect("the split succeeds").expect("the rank is in a new communicator");
        let error = other
            .put_signal(&stream, &source, Rank::new(0), &window, 0, Signal::default())
            .expect_err("the window belongs to another communicator")
            .to_string();
        assert_eq!(error, format!("put_signal: the window belongs to {}, expected {}", comm.name(), other.name()));
    });
}

fn needs<T: std::fmt::Debug>(result: Result<T, NcclError>, what: &str, since: &str) {
    match result {
        Err(NcclError::Unsupported(error)) => assert_eq!((error.what, error.since), (what, since.parse().ok())),
        other => panic!("{what}: the result is {other:?}, expected NcclError::Unsupported"),
    }
}

#[test]
fn integers_of_16_bits_are_misuse_in_every_kind_of_call() {
    fakes(1).run(|| {
        let (comm, stream) = alone();
        let mut signed = DeviceMemory::from_slice(&stream, &[-1i16, 2]).expect("memory is allocated");
        let mut unsigned = DeviceMemory::from_slice(&stream, &[1u16, 2]).expect("memory is allocated");
        let (signed_in, unsigned_in) = (signed.clone(), unsigned.clone());
        let text = |call: &str| format!("{call}: NCCL has no 16-bit integers");
        says(comm.all_reduce(&stream, &signed_in, &mut signed, ReduceOp::Sum), &text("all_reduce"));
        says(comm.reduce_scatter_in_place(&stream, &mut unsigned, ReduceOp::Max), &text("reduce_scatter_in_place"));
        says(comm.broadcast_in_place(&stream, &mut signed, Rank::new(0)), &text("broadcast_in_place"));
        says(comm.all_gather(&stream, &unsigned_in, &mut unsigned), &text("all_gather"));
        says(comm.all_to_all(&stream, &unsigned_in, &mut unsigned), &text("all_to_all"));
        says(PreMulSum::new(&comm, 3i16).map(drop), &text("PreMulSum::new"));
        // The elements can be transferred as bytes.
        let mut bytes = DeviceMemory::from_slice(&stream, &[1u8, 2, 3, 4]).expect("memory is allocated");
        comm.broadcast_in_place(&stream, &mut bytes, Rank::new(0)).expect("bytes can be transferred");
        comm.wait(&stream, DEADLINE).expect("the work completes");
    });
}

#[test]
fn features_that_nccl_2_19_lacks_are_unsupported() {
    fakes_of(1, "2.19.3").run(|| {
        let (comm, stream) = alone();
        let nccl = comm.nccl();
        let mut values = floats(&stream, &[1.0]);
        needs(
            comm.with(&CollConfig::new()).all_reduce_in_place(&stream, &mut values, ReduceOp::Sum),
            "CollConfig (ncclCollConfig_t)",
            "2.31.0",
        );
        needs(nccl.simulate(|_| Ok(())), "SimInfo (ncclSimInfo_t)", "2.22.3");
        let id = nccl.unique_id().expect("an id is created");
        let scalable =
            Communicator::builder().nccl(nccl).deadline(DEADLINE).init_rank_scalable(comm.context(), 1, &[id], Rank::new(0));
        needs(scalable, "ncclCommInitRankScalable", "2.23.4");
        let mut bytes = DeviceMemory::from_slice(&stream, &[F8E4M3::from_bits(1)]).expect("memory is allocated");
        needs(comm.all_reduce_in_place(&stream, &mut bytes, ReduceOp::Sum), "ncclFloat8e4m3", "2.24.3");
        comm.broadcast_in_place(&stream, &mut bytes, Rank::new(0)).expect("bytes can be transferred");
        needs(Window::register(&comm, &values, WindowKind::DEFAULT), "ncclCommWindowRegister", "2.27.3");
        needs(comm.revoke(), "ncclCommRevoke", "2.28.7");
        needs(comm.suspend(), "ncclCommSuspend", "2.29.7");
        needs(comm.mem_stats(), "ncclCommMemStats", "2.29.7");
        needs(comm.grow_id(), "ncclCommGetUniqueId", "2.29.2");
        needs(comm.grow(2, None), "ncclCommGrow", "2.29.2");
        needs(comm.signal(&stream, Rank::new(0), Signal::default()), "ncclSignal", "2.29.2");
        needs(
            comm.wait_signal(&stream, &[SignalWait { peer: Rank::new(0), signal: Signal::default(), count: 1 }]),
            "ncclWaitSignal",
            "2.29.2",
        );
        let named = Communicator::builder()
            .nccl(nccl)
            .config(Config::new().name("x"))
            .deadline(Duration::from_secs(5))
            .init_all(&contexts(1));
        needs(named, "Config::name (ncclConfig_t.commName)", "2.27.0");
        comm.wait(&stream, DEADLINE).expect("the enqueued work completes");
    });
}

#[test]
fn nccl_before_2_31_has_only_one_signal() {
    fakes_of(1, "2.30.7").run(|| {
        let (comm, stream) = alone();
        comm.signal(&stream, Rank::new(0), Signal::default()).expect("the call is enqueued");
        let first = SignalWait { peer: Rank::new(0), signal: Signal::default(), count: 1 };
        comm.wait_signal(&stream, &[first]).expect("the call is enqueued");
        comm.wait(&stream, DEADLINE).expect("the signal arrives");
        for signal in [Signal { index: 1, context: 0 }, Signal { index: 0, context: 1 }] {
            for result in
                [comm.signal(&stream, Rank::new(0), signal), comm.wait_signal(&stream, &[SignalWait { signal, ..first }])]
            {
                let error = result.expect_err("NCCL 2.30 has only the first signal");
                let since =
                    matches!(&error, NcclError::Unsupported(unsupported) if unsupported.since == Some(Version::new(2, 31, 0)));
                assert!(since, "{error}");
            }
        }
        comm.signal(&stream, Rank::new(0), Signal::default()).expect("NCCL was not called and still works");
    });
}

#[test]
fn options_and_calls_are_refused_if_nccl_is_too_old() {
    for (version, has_window, has_revoke, has_config) in [
        ("2.22.3", false, false, false),
        ("2.27.7", true, false, false),
        ("2.28.9", true, true, false),
        ("2.30.7", true, true, false),
        ("2.32.3", true, true, true),
    ] {
        fakes_of(1, version).run(|| {
            let (comm, stream) = alone();
            let mut values = floats(&stream, &[1.0; 3]);
            let memory = NcclMem::from_slice(comm.nccl(), &stream, &[1.0f32; 4]).expect("NCCL 2.22 allocates memory");
            assert_eq!(Window::register(&comm, &memory, WindowKind::DEFAULT).is_ok(), has_window, "{version}");
            let config = CollConfig::new().max_ctas(4);
            assert_eq!(
                comm.with(&config).all_reduce_in_place(&stream, &mut values, ReduceOp::Sum).is_ok(),
                has_config,
                "{version}"
            );
            comm.wait(&stream, DEADLINE).expect("the enqueued work completes");
            assert_eq!(comm.revoke().is_ok(), has_revoke, "{version}");
        });
    }
}

#[test]
fn load_fails_if_nccl_is_not_found() {
    peerweave_fakes::Fakes::new().cuda().env("PEERWEAVE_NCCL_PATH", "/no/such/place").run(|| {
        let error = Nccl::load().expect_err("there is no library");
        assert!(matches!(error, NcclError::Load(_)), "{error}");
        assert!(error.to_string().contains("/no/such/place"), "{error}");
        assert!(matches!(Communicator::abort_all(DEADLINE), Ok(0)));
        assert!(Communicator::wait_for_dropped(Duration::ZERO));
    });
}

#[test]
fn reduction_that_nccl_lacks_fails_before_nccl_is_called() {
    fakes(1).run(|| {
        let (comm, stream) = alone();
        let mut values = DeviceMemory::from_slice(&stream, &[1u32]).expect("memory is allocated");
        for op in [ReduceOp::And, ReduceOp::Or, ReduceOp::Xor, ReduceOp::PreMulSum] {
            says(
                comm.all_reduce_in_place(&stream, &mut values, op),
                "all_reduce_in_place: the reduction: expected sum, prod, min, max or avg; NCCL has no bitwise reductions; for a PreMulSum, pass \
                 a reference to a PreMulSum value",
            );
        }
        assert_eq!(comm.sequence(), 0, "NCCL was not called");
    });
}
