//! Tests of memory on all kinds of streams, over the fake driver: streams that are recorded,
//! streams that are refused, and the errors of each.
#![cfg(target_os = "linux")]

mod common;

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::{Calls, context, fail, hold, settle, soon, threads};
use peerweave_bootstrap::{Job, Options, Rendezvous};
use peerweave_driver::cudarc::driver::DriverError as CudarcError;
use peerweave_driver::cudarc::driver::sys::{CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode};
use peerweave_driver::{CudaContext, DeviceBuffer, DriverError};
use peerweave_fakes::Fakes;
use peerweave_vmm::{
    Exportable, HeapOptions, IpcMemory, MappedMemory, Mapping, PhysicalMemory, Reservation, Rights, SymmetricHeap, VmmError,
    peer, read, write, zero,
};

const MIB: usize = 1 << 20;

fn mapped(context: &Arc<CudaContext>) -> (Mapping, MappedMemory<u64>) {
    let memory = PhysicalMemory::create(context, 2 * MIB, Exportable::NOWHERE).expect("room");
    let addresses = Reservation::new(context, 2 * MIB, 2 * MIB).expect("addresses");
    let mapping = addresses.map(0, &memory, 2 * MIB).expect("free");
    mapping.allow(&[context.ordinal()], Rights::ReadWrite).expect("the own device");
    let view = mapping.memory(context.ordinal()).expect("it has rights");
    (mapping, view)
}

#[test]
fn finished_streams_of_heap_memory_are_released() {
    Fakes::new().cuda().run(|| {
        threads(1, |me| {
            let heap = SymmetricHeap::new(&me.rendezvous, &me.context, HeapOptions::new(4 * MIB)).expect("a heap");
            let mut memory = heap.alloc::<u64>(1).expect("room");
            let mut seen = Vec::new();
            for value in 0..1000 {
                let stream = me.context.new_stream().expect("a stream");
                write(&stream, &mut memory, &[value], soon()).expect("written");
                seen.push(Arc::downgrade(&stream));
            }
            let kept = seen.iter().filter(|stream| stream.upgrade().is_some()).count();
            assert!(kept <= 100, "{kept} of 1000 streams are kept");
            // The heap keeps a stream that still has work, even after its memory was dropped.
            let busy = me.context.new_stream().expect("a stream");
            hold(&busy, true);
            zero(&busy, &mut memory).expect("enqueued");
            let weak_busy = Arc::downgrade(&busy);
            drop((busy, memory));
            drop(heap);
            std::thread::sleep(Duration::from_millis(100));
            assert_eq!(Calls::now().good("cuMemUnmap"), 0, "the stream has not come to its work yet");
            hold(&weak_busy.upgrade().expect("it is kept"), false);
            settle();
            assert!(Calls::now().good("cuMemUnmap") > 0);
        });
    });
}

#[test]
fn default_stream_work_runs_on_the_stream_of_its_device() {
    Fakes::new().cuda().run(|| {
        let (here, elsewhere) = (context(0), context(1));
        let (mapping, _) = mapped(&here);
        mapping.allow(&[1], Rights::ReadWrite).expect("the fake's devices are peers");
        let mut ours = mapping.memory::<u64>(0).expect("it has rights").slice(0..8).expect("inside");
        let theirs = mapping.memory::<u64>(1).expect("it has rights").slice(0..8).expect("inside");
        let default = here.default_stream();
        let look = elsewhere.new_stream().expect("a stream");
        write(&look, &mut theirs.clone(), &[5; 8], soon()).expect("written");
        // Which default stream the fake holds depends on the thread's context.
        here.bind_to_thread().expect("a live context");
        hold(&default, true);
        for _ in 0..32 {
            drop(theirs.read(&elsewhere.new_stream().expect("a stream")).expect("a live stream"));
        }
        zero(&default, &mut ours).expect("enqueued");
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(read(&look, &theirs, soon()).expect("read"), [5; 8], "the stream is held, and another one did its work");
        here.bind_to_thread().expect("a live context");
        hold(&default, false);
        assert!(peerweave_driver::wait(&default, soon()).expect("it goes on"));
        assert_eq!(read(&look, &theirs, soon()).expect("read"), [0; 8]);
    });
}

#[test]
fn default_stream_is_recorded_once_under_all_its_handles() {
    Fakes::new().cuda().run(|| {
        threads(1, |me| {
            let heap = SymmetricHeap::new(&me.rendezvous, &me.context, HeapOptions::new(4 * MIB)).expect("a heap");
            let mut memory = heap.alloc::<u64>(1).expect("room");
            for value in 0..1000 {
                write(&me.context.default_stream(), &mut memory, &[value], soon()).expect("written");
            }
            let count = Arc::strong_count(&me.context);
            assert!(count < 200, "{count} handles of the context are held");
            assert_eq!(read(&me.context.default_stream(), &memory, soon()).expect("read"), [999]);
        });
    });
}

#[test]
fn per_thread_streams_are_refused_by_heap_memory() {
    Fakes::new().cuda().run(|| {
        let context = context(0);
        let (mapping, mut view) = mapped(&context);
        let stream = context.per_thread_stream();
        let values = vec![0; view.len()];
        let refusals = [
            zero(&stream, &mut view),
            peerweave_vmm::copy(&stream, &mut view.clone(), &view),
            write(&stream, &mut view, &values, soon()),
            read(&stream, &view, soon()).map(drop),
        ];
        for refused in refusals {
            let error = refused.expect_err("another thread unmaps it");
            assert!(matches!(error, VmmError::Driver(DriverError::PerThreadStream { .. })), "{error}");
        }
        assert!(drop_elsewhere((view, mapping)), "nothing was enqueued, so that it is unmapped");
    });
}

/// Drops memory on another thread, and returns whether it is unmapped.
fn drop_elsewhere<T: Send>(kept: T) -> bool {
    let before = Calls::now().good("cuMemUnmap");
    std::thread::scope(|scope| scope.spawn(move || drop(kept)).join().expect("no panic"));
    settle();
    Calls::now().good("cuMemUnmap") > before
}

#[test]
fn memory_on_a_foreign_per_thread_stream_is_kept() {
    Fakes::new().cuda().run(|| {
        let context = context(0);
        let (mapping, view) = mapped(&context);
        // A call that accepts the memory as a buffer gets its address for work.
        drop(view.read(&context.per_thread_stream()).expect("an address"));
        assert!(!drop_elsewhere((view, mapping)), "the stream of this thread may still use it");
        threads(1, |me| {
            let heap = SymmetricHeap::new(&me.rendezvous, &me.context, HeapOptions::new(4 * MIB)).expect("a heap");
            let memory = heap.alloc::<u64>(1).expect("room");
            let offset = memory.offset();
            drop(memory.read(&me.context.per_thread_stream()).expect("an address"));
            let error = heap.free(memory).expect_err("nobody can wait for it");
            assert!(matches!(error, VmmError::Driver(DriverError::PerThreadStream { .. })), "{error}");
            assert_ne!(heap.alloc::<u64>(1).expect("room").offset(), offset, "it is not given out again");
        });
    });
}

#[test]
fn endless_foreign_work_delays_no_deadline() {
    Fakes::new().cuda().run(|| {
        let (send, receive) = channel();
        std::thread::spawn(move || {
            let options = Options { deadline: Duration::from_secs(2), ..Options::default() };
            let rendezvous = Arc::new(Rendezvous::join(&Job::single(), options).expect("alone"));
            let context = context(0);
            let default = context.default_stream();
            let (_mapping, mut view) = mapped(&context);
            hold(&default, true);
            zero(&default, &mut view).expect("enqueued");
            let made = SymmetricHeap::new(&rendezvous, &context, HeapOptions::new(4 * MIB));
            let allocated = made.as_ref().map_err(Clone::clone).and_then(|heap| heap.alloc::<u64>(8).map(drop));
            let checked = peer::check_pair(&context, &context, soon());
            let _ = send.send([made.map(drop), allocated, checked].map(|done| done.map_err(|error| error.to_string())));
            hold(&default, false);
        });
        let done = receive.recv_timeout(Duration::from_secs(10)).expect("they wait for what others do");
        assert_eq!(done, [const { Ok(()) }; 3]);
    });
}

#[test]
fn host_copies_on_a_stuck_stream_end_at_their_deadline() {
    Fakes::new().cuda().run(|| {
        let (send, receive) = channel();
        std::thread::spawn(move || {
            let context = context(0);
            let stuck = context.new_stream().expect("a stream");
            let (_mapping, mut view) = mapped(&context);
            let len = view.len();
            write(&stuck, &mut view, &vec![7; len], soon()).expect("nothing is in the way yet");
            hold(&stuck, true);
            zero(&stuck, &mut view).expect("enqueued");
            let shortly = || Instant::now() + Duration::from_millis(200);
            // The driver's copy to pageable memory returns when the copy is done, without a
            // deadline.
            let got = read(&stuck, &view, shortly()).map(drop);
            let put = write(&stuck, &mut view, &vec![8; len], shortly());
            hold(&stuck, false);
            let after = read(&stuck, &view, soon()).expect("it goes on");
            let _ = send.send(([got, put], after));
        });
        let (ends, after) = receive.recv_timeout(Duration::from_secs(10)).expect("there is a deadline");
        for end in ends {
            let error = end.expect_err("the stream is stuck");
            assert!(matches!(&error, VmmError::Timeout { missing, .. } if missing.is_empty()), "{error}");
        }
        assert!(after.iter().all(|word| *word == 0), "what was given up is not done later");
    });
}

#[test]
fn heap_creation_and_growth_do_not_break_a_capture() {
    for no_vmm in ["0", "1"] {
        Fakes::new().cuda().env("PEERWEAVE_FAKE_CUDA_NO_VMM", no_vmm).run_many(2, |child| {
            let me = common::process(&child);
            let ((begin, begun), (end, ended)) = (channel(), channel());
            let context = Arc::clone(&me.context);
            let capture = std::thread::spawn(move || {
                let stream = context.new_stream().expect("a stream");
                stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).expect("it begins");
                begin.send(()).expect("somebody waits");
                let () = ended.recv().expect("somebody says so");
                let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
                stream.end_capture(flags).map(drop)
            });
            begun.recv().expect("it has begun");
            let options = HeapOptions::new(4 * MIB).max_bytes(64 * MIB);
            let heap = SymmetricHeap::new(&me.rendezvous, &me.context, options).expect("a heap");
            let mut memory = heap.alloc::<u64>(8).expect("room");
            heap.grow(MIB).expect("room");
            write(&me.stream, &mut memory, &[1; 8], soon()).expect("written");
            me.barrier("used");
            heap.free(memory).expect("all free it");
            end.send(()).expect("it waits");
            capture.join().expect("no panic").expect("the capture is whole");
            // Closing what was opened by legacy IPC waits for the device, which no capture allows.
            heap.finalize().expect("all end it");
            settle();
            me.leave();
        });
    }
}

#[test]
fn free_succeeds_during_a_capture_on_a_former_stream() {
    Fakes::new().cuda().run(|| {
        threads(1, |me| {
            let heap = SymmetricHeap::new(&me.rendezvous, &me.context, HeapOptions::new(4 << 20)).expect("a heap");
            let mut memory = heap.alloc::<u64>(4).expect("room");
            write(&me.stream, &mut memory, &[1; 4], soon()).expect("it is copied");
            me.stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).expect("capture");
            let freed = std::thread::scope(|scope| {
                let freeing = scope.spawn(|| heap.free(memory));
                std::thread::sleep(Duration::from_millis(100));
                me.stream.end_capture(CUgraphInstantiate_flags(0)).expect("nobody spoiled it");
                freeing.join().expect("no panic")
            });
            freed.expect("the capture was for something else");
            assert!(heap.finalize().expect("all are through").is_clean());
        });
    });
}

#[test]
fn error_recorded_by_other_code_does_not_fail_calls() {
    Fakes::new().cuda().run(|| {
        threads(1, |me| {
            let theirs = || Err::<(), _>(CudarcError(CUresult::CUDA_ERROR_NOT_FOUND));
            me.context.record_err(theirs());
            let heap = SymmetricHeap::new(&me.rendezvous, &me.context, HeapOptions::new(4 * MIB)).expect("nothing is wrong");
            let mut memory = heap.alloc::<u64>(4).expect("nothing is wrong");
            write(&me.stream, &mut memory, &[1, 2, 3, 4], soon()).expect("nothing is wrong");
            heap.check_peers().expect("nothing is wrong");
            peer::check_pair(&me.context, &me.context, soon()).expect("nothing is wrong");
            heap.free(memory).expect("nothing is wrong");
            assert_eq!(me.context.check_err(), theirs(), "whose it is can still see it");
        });
    });
}

#[test]
fn memory_for_legacy_ipc_is_freed_while_others_are_stuck() {
    Fakes::new().cuda().run(|| {
        let context = context(0);
        let stuck = context.new_stream().expect("a stream");
        let free = common::free_bytes(&context);
        let memory = IpcMemory::alloc(&context, IpcMemory::STEP_BYTES).expect("room");
        hold(&stuck, true);
        // The driver's own freeing waits for the whole device, and no thread of the process can
        // launch meanwhile.
        drop(memory);
        assert!(peerweave_driver::settle(std::time::Instant::now() + Duration::from_secs(5)), "it is not waited for");
        assert_eq!(
            (common::free_bytes(&context), Calls::now().names().iter().filter(|name| **name == "cuMemFree_v2").count()),
            (free, 0)
        );
        hold(&stuck, false);
    });
}

#[test]
fn failed_stream_creation_is_an_error_with_its_call() {
    Fakes::new().cuda().run(|| {
        let context = context(0);
        fail("cuStreamCreate:1=201");
        let error = peer::check_pair(&context, &context, soon()).expect_err("by order");
        fail("");
        assert_eq!(common::cuda(&error), Some(("cuStreamCreate", 201)));
    });
}
