//! Tests of the lists of streams over the fake driver: removal of streams, and the current context.
#![cfg(target_os = "linux")]

mod common;

use std::sync::Arc;
use std::time::Instant;

use peerweave_driver::{DeviceBuffer, DeviceBufferMut, DeviceMemory, Driver, PrivateStream, Streams, context, drain_retired};
use peerweave_fakes::Fakes;

use common::{LONG, block, calls, unblock};

#[test]
fn idle_streams_without_handles_are_removed_from_the_list() {
    Fakes::new().cuda().run(|| {
        let context = context(0).expect("the device exists");
        let whole = Arc::new(Streams::new());
        let part = Streams::within(&whole);
        let busy = context.new_stream().expect("the stream is created");
        block(&busy);
        part.note(&busy);
        let weak_busy = Arc::downgrade(&busy);
        drop(busy);
        let held: Vec<_> = (0..20).map(|_| context.new_stream().expect("the stream is created")).collect();
        held.iter().for_each(|stream| part.note(stream));
        for _ in 0..1000 {
            part.note(&context.new_stream().expect("the stream is created"));
            part.note(&context.default_stream());
        }
        for streams in [&part, &*whole] {
            let all = streams.all();
            assert!(all.len() <= 100, "the list has {} of 1022 streams, expected at most 100", all.len());
            assert!(weak_busy.upgrade().is_some_and(|busy| all.contains(&busy)), "a busy stream was removed");
            assert!(held.iter().all(|held| all.contains(held)), "a stream with a handle was removed");
            assert_eq!(
                all.iter().filter(|stream| stream.cu_stream().is_null()).count(),
                1,
                "the list must contain the default stream exactly once"
            );
        }
        // The outer list has every stream of the nested list, even after a weak handle was
        // upgraded.
        let again = part.all().into_iter().last().expect("the list has streams");
        part.note(&again);
        assert!(whole.all().contains(&again));
        unblock(&weak_busy.upgrade().expect("the list keeps the busy stream"));
    });
}

#[test]
fn idle_streams_in_several_lists_are_removed_from_each_list() {
    Fakes::new().cuda().run(|| {
        let context = context(0).expect("the device exists");
        let source = DeviceMemory::<u64>::alloc(&context, 64).expect("the device has enough memory");
        let mut target = DeviceMemory::<u64>::alloc(&context, 64).expect("the device has enough memory");
        let (whole, other) = (Arc::new(Streams::new()), Streams::new());
        let part = Streams::within(&whole);
        for round in 0..1000 {
            // cudarc destroys the streams that it created. This crate destroys a private stream
            // some time after its owner has dropped it.
            let (made, private);
            let stream = if round % 2 == 0 {
                made = context.new_stream().expect("the stream is created");
                &made
            } else {
                private = PrivateStream::new(&context).expect("the stream is created");
                &*private
            };
            drop((source.read(stream).expect("the stream is live"), target.write(stream).expect("the stream is live")));
            part.note(stream);
            other.note(stream);
        }
        for streams in [&part, &*whole, &other] {
            assert!(streams.all().len() <= 100, "the list has {} of 1000 streams, expected at most 100", streams.all().len());
        }
        drop(PrivateStream::new(&context).expect("the stream is created"));
        let (made, destroyed) = (calls("cuStreamCreate"), calls("cuStreamDestroy_v2"));
        assert!(
            destroyed >= made - 200,
            "{made} streams were created and {destroyed} destroyed, expected at most 200 not destroyed"
        );
        drop((source, target));
        assert!(drain_retired(Instant::now() + LONG));
    });
}

#[test]
fn adding_a_stream_to_a_list_keeps_the_current_context() {
    Fakes::new().cuda().run(|| {
        let (here, elsewhere) = (context(0).expect("the device exists"), context(1).expect("the device exists"));
        let streams = Streams::new();
        for _ in 0..100 {
            // Another context is current while the stream is recorded. Later the stream is queried
            // and destroyed in its own context.
            let stream = elsewhere.new_stream().expect("the stream is created");
            here.bind_to_thread().expect("the context is live");
            streams.note(&stream);
            let mut current = std::ptr::null_mut();
            // SAFETY: the pointer is to a live handle.
            let _ = unsafe { Driver::get().expect("the fake driver is loaded").api().cuCtxGetCurrent(&raw mut current) }
                .expect("the fake driver has the function");
            assert_eq!(current, here.cu_ctx());
        }
        assert!(calls("cuStreamDestroy_v2") > 0, "no stream was removed");
    });
}

#[test]
fn idle_stream_in_a_nested_list_stays_in_the_outer_list() {
    Fakes::new().cuda().run(|| {
        let context = context(0).expect("the device exists");
        let whole = Arc::new(Streams::new());
        let part = Streams::within(&whole);
        let stream = context.new_stream().expect("the stream is created");
        part.note(&stream);
        let weak = Arc::downgrade(&stream);
        drop(stream);
        for _ in 0..200 {
            whole.note(&context.new_stream().expect("the stream is created"));
        }
        let again = weak.upgrade().expect("the nested list keeps the stream");
        part.note(&again);
        assert!(whole.all().contains(&again));
    });
}
