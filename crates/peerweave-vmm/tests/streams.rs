//! Tests of memory on all kinds of streams, over the fake driver: which streams are recorded,
//! streams that are refused, and the errors of each.
#![cfg(target_os = "linux")]

mod common;

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::{Calls, context, drain_retired, fail, hold, soon, threads};
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
    let memory = PhysicalMemory::create(context, 2 * MIB, Exportable::NOWHERE).expect("there is enough memory");
    let addresses = Reservation::new(context, 2 * MIB, 2 * MIB).expect("the addresses are reserved");
    let mapping = addresses.map(0, &memory, 2 * MIB).expect("the addresses are free");
    mapping.allow(&[context.ordinal()], Rights::ReadWrite).expect("the device gets rights");
    let view = mapping.memory(context.ordinal()).expect("the device has rights");
    (mapping, view)
}

#[test]
fn heap_memory_does_not_keep_finished_streams_alive() {
    Fakes::new().cuda().run(|| {
        threads(1, |me| {
            let heap = SymmetricHeap::new(&me.rendezvous, &me.context, HeapOptions::new(4 * MIB)).expect("the heap is created");
            let mut memory = heap.alloc::<u64>(1).expect("the heap has room");
            let mut seen = Vec::new();
            for value in 0..1000 {
                let stream = me.context.new_stream().expect("the stream is created");
                write(&stream, &mut memory, &[value], soon()).expect("the write completes");
                seen.push(Arc::downgrade(&stream));
            }
            let kept = seen.iter().filter(|stream| stream.upgrade().is_some()).count();
            assert!(kept <= 100, "{kept} of 1000 streams are still recorded, expected at most 100");
            // The heap records a stream with pending work even after the memory was dropped.
            let busy = me.context.new_stream().expect("the stream is created");
            hold(&busy, true);
            zero(&busy, &mut memory).expect("the work is enqueued");
            let weak_busy = Arc::downgrade(&busy);
            drop((busy, memory));
            drop(heap);
            std::thread::sleep(Duration::from_millis(100));
            assert_eq!(Calls::now().good("cuMemUnmap"), 0, "the stream has not run its work yet");
            hold(&weak_busy.upgrade().expect("the stream is still recorded"), false);
            drain_retired();
            assert!(Calls::now().good("cuMemUnmap") > 0);
        });
    });
}

#[test]
fn default_stream_work_does_not_depend_on_the_current_context() {
    Fakes::new().cuda().run(|| {
        let (here, elsewhere) = (context(0), context(1));
        let (mapping, _) = mapped(&here);
        mapping.allow(&[1], Rights::ReadWrite).expect("the devices of the fake driver are peers");
        let mut ours = mapping.memory::<u64>(0).expect("the device has rights").slice(0..8).expect("the range is in bounds");
        let theirs = mapping.memory::<u64>(1).expect("the device has rights").slice(0..8).expect("the range is in bounds");
        let default = here.default_stream();
        let look = elsewhere.new_stream().expect("the stream is created");
        write(&look, &mut theirs.clone(), &[5; 8], soon()).expect("the write completes");
        // The fake driver finds the default stream by the thread's current context.
        here.bind_to_thread().expect("the context is live");
        hold(&default, true);
        for _ in 0..32 {
            drop(theirs.read(&elsewhere.new_stream().expect("the stream is created")).expect("the stream is live"));
        }
        zero(&default, &mut ours).expect("the work is enqueued");
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(
            read(&look, &theirs, soon()).expect("the read completes"),
            [5; 8],
            "the held stream's work ran on another stream"
        );
        here.bind_to_thread().expect("the context is live");
        hold(&default, false);
        assert!(peerweave_driver::wait(&default, soon()).expect("the stream continues"));
        assert_eq!(read(&look, &theirs, soon()).expect("the read completes"), [0; 8]);
    });
}

#[test]
fn default_stream_calls_do_not_accumulate_context_handles() {
    Fakes::new().cuda().run(|| {
        threads(1, |me| {
            let heap = SymmetricHeap::new(&me.rendezvous, &me.context, HeapOptions::new(4 * MIB)).expect("the heap is created");
            let mut memory = heap.alloc::<u64>(1).expect("the heap has room");
            for value in 0..1000 {
                write(&me.context.default_stream(), &mut memory, &[value], soon()).expect("the write completes");
            }
            let count = Arc::strong_count(&me.context);
            assert!(count < 200, "{count} handles of the context exist, expected fewer than 200");
            assert_eq!(read(&me.context.default_stream(), &memory, soon()).expect("the read completes"), [999]);
        });
    });
}

#[test]
fn copies_and_fills_on_per_thread_streams_are_refused() {
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
            let error = refused.expect_err("a per-thread stream is refused");
            assert!(matches!(error, VmmError::Driver(DriverError::PerThreadStream { .. })), "{error}");
        }
        assert!(drop_elsewhere((view, mapping)), "memory without enqueued work must be unmapped");
    });
}

/// Drops memory on another thread. Returns whether the memory was then unmapped.
fn drop_elsewhere<T: Send>(kept: T) -> bool {
    let before = Calls::now().good("cuMemUnmap");
    std::thread::scope(|scope| scope.spawn(move || drop(kept)).join().expect("the thread does not panic"));
    drain_retired();
    Calls::now().good("cuMemUnmap") > before
}

#[test]
fn memory_used_on_a_per_thread_stream_is_never_unmapped() {
    Fakes::new().cuda().run(|| {
        let context = context(0);
        let (mapping, view) = mapped(&context);
        // Acts like another library that accepts the memory as a buffer and gets the address for
        // its work.
        drop(view.read(&context.per_thread_stream()).expect("the memory has an address"));
        assert!(!drop_elsewhere((view, mapping)), "memory that this thread's stream may use was unmapped");
        threads(1, |me| {
            let heap = SymmetricHeap::new(&me.rendezvous, &me.context, HeapOptions::new(4 * MIB)).expect("the heap is created");
            let memory = heap.alloc::<u64>(1).expect("the heap has room");
            let offset = memory.offset();
            drop(memory.read(&me.context.per_thread_stream()).expect("the memory has an address"));
            let error = heap.free(memory).expect_err("no other thread can wait for the stream");
            assert!(matches!(error, VmmError::Driver(DriverError::PerThreadStream { .. })), "{error}");
            assert_ne!(
                heap.alloc::<u64>(1).expect("the heap has room").offset(),
                offset,
                "memory that was not freed was allocated again"
            );
        });
    });
}

#[test]
fn heap_calls_do_not_wait_for_stuck_work_on_unrelated_memory() {
    Fakes::new().cuda().run(|| {
        let (send, receive) = channel();
        std::thread::spawn(move || {
            let options = Options { deadline: Duration::from_secs(30), ..Options::default() };
            let rendezvous = Arc::new(Rendezvous::join(&Job::single(), options).expect("a job of one PE joins"));
            let context = context(0);
            let default = context.default_stream();
            let (_mapping, mut view) = mapped(&context);
            hold(&default, true);
            zero(&default, &mut view).expect("the work is enqueued");
            let made = SymmetricHeap::new(&rendezvous, &context, HeapOptions::new(4 * MIB));
            let allocated = made.as_ref().map_err(Clone::clone).and_then(|heap| heap.alloc::<u64>(8).map(drop));
            let checked = peer::check_pair(&context, &context, soon());
            let _ = send.send([made.map(drop), allocated, checked].map(|done| done.map_err(|error| error.to_string())));
            hold(&default, false);
        });
        let done = receive.recv_timeout(Duration::from_secs(100)).expect("the calls do not wait for foreign work");
        assert_eq!(done, [const { Ok(()) }; 3]);
    });
}

#[test]
fn host_copies_on_a_stuck_stream_time_out() {
    Fakes::new().cuda().run(|| {
        let (send, receive) = channel();
        std::thread::spawn(move || {
            let context = context(0);
            let stuck = context.new_stream().expect("the stream is created");
            let (_mapping, mut view) = mapped(&context);
            let len = view.len();
            write(&stuck, &mut view, &vec![7; len], soon()).expect("the stream is idle");
            hold(&stuck, true);
            zero(&stuck, &mut view).expect("the work is enqueued");
            let shortly = || Instant::now() + Duration::from_millis(200);
            // The driver's copy of pageable memory returns when the copy is complete, and has no
            // deadline.
            let got = read(&stuck, &view, shortly()).map(drop);
            let put = write(&stuck, &mut view, &vec![8; len], shortly());
            hold(&stuck, false);
            let after = read(&stuck, &view, soon()).expect("the stream continues");
            let _ = send.send(([got, put], after));
        });
        let (ends, after) = receive.recv_timeout(Duration::from_secs(100)).expect("the copies return by their deadline");
        for end in ends {
            let error = end.expect_err("the stream is stuck");
            assert!(matches!(&error, VmmError::Timeout { missing, .. } if missing.is_empty()), "{error}");
        }
        assert!(after.iter().all(|word| *word == 0), "a copy that timed out was performed later");
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
                let stream = context.new_stream().expect("the stream is created");
                stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).expect("the capture begins");
                begin.send(()).expect("the main thread waits");
                let () = ended.recv().expect("the main thread ends the capture");
                let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
                stream.end_capture(flags).map(drop)
            });
            begun.recv().expect("the capture has begun");
            let options = HeapOptions::new(4 * MIB).max_bytes(64 * MIB);
            let heap = SymmetricHeap::new(&me.rendezvous, &me.context, options).expect("the heap is created");
            let mut memory = heap.alloc::<u64>(8).expect("the heap has room");
            heap.grow(MIB).expect("there is enough memory");
            write(&me.stream, &mut memory, &[1; 8], soon()).expect("the write completes");
            me.barrier("used");
            heap.free(memory).expect("all PEs free the memory");
            end.send(()).expect("the capturing thread waits");
            capture.join().expect("the thread does not panic").expect("the capture is valid");
            // Closing memory of legacy IPC waits for the device, which is not permitted during a
            // capture.
            heap.finalize().expect("all PEs finalize the heap");
            drain_retired();
            me.leave();
        });
    }
}

#[test]
fn heap_memory_unused_by_an_active_capture_can_be_freed() {
    Fakes::new().cuda().run(|| {
        threads(1, |me| {
            let heap = SymmetricHeap::new(&me.rendezvous, &me.context, HeapOptions::new(4 << 20)).expect("the heap is created");
            let mut memory = heap.alloc::<u64>(4).expect("the heap has room");
            write(&me.stream, &mut memory, &[1; 4], soon()).expect("the write completes");
            me.stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).expect("the capture begins");
            let freed = std::thread::scope(|scope| {
                let freeing = scope.spawn(|| heap.free(memory));
                std::thread::sleep(Duration::from_millis(100));
                me.stream.end_capture(CUgraphInstantiate_flags(0)).expect("the capture is valid");
                freeing.join().expect("the thread does not panic")
            });
            freed.expect("the captured work does not use the memory");
            assert!(heap.finalize().expect("all PEs complete the call").is_clean());
        });
    });
}

#[test]
fn heap_calls_succeed_after_the_context_has_recorded_an_error() {
    Fakes::new().cuda().run(|| {
        threads(1, |me| {
            let theirs = || Err::<(), _>(CudarcError(CUresult::CUDA_ERROR_NOT_FOUND));
            me.context.record_err(theirs());
            let heap = SymmetricHeap::new(&me.rendezvous, &me.context, HeapOptions::new(4 * MIB))
                .expect("the recorded error does not affect this call");
            let mut memory = heap.alloc::<u64>(4).expect("the recorded error does not affect this call");
            write(&me.stream, &mut memory, &[1, 2, 3, 4], soon()).expect("the recorded error does not affect this call");
            heap.check_peers().expect("the recorded error does not affect this call");
            peer::check_pair(&me.context, &me.context, soon()).expect("the recorded error does not affect this call");
            heap.free(memory).expect("the recorded error does not affect this call");
            assert_eq!(me.context.check_err(), theirs(), "the recorded error must stay visible to the other code");
        });
    });
}

#[test]
fn ipc_memory_is_freed_while_unrelated_streams_are_stuck() {
    Fakes::new().cuda().run(|| {
        let context = context(0);
        let stuck = context.new_stream().expect("the stream is created");
        let free = common::free_bytes(&context);
        let memory = IpcMemory::alloc(&context, IpcMemory::STEP_BYTES).expect("there is enough memory");
        hold(&stuck, true);
        // `cuMemFree` waits for the whole device, and meanwhile no thread of the process can launch
        // work.
        drop(memory);
        assert!(
            peerweave_driver::drain_retired(std::time::Instant::now() + Duration::from_secs(60)),
            "freeing must not wait for the stuck stream"
        );
        assert_eq!(
            (common::free_bytes(&context), Calls::now().names().iter().filter(|name| **name == "cuMemFree_v2").count()),
            (free, 0)
        );
        hold(&stuck, false);
    });
}

#[test]
fn stream_creation_error_names_the_failed_driver_call() {
    Fakes::new().cuda().run(|| {
        let context = context(0);
        fail("cuStreamCreate:1=201");
        let error = peer::check_pair(&context, &context, soon()).expect_err("a fault is injected");
        fail("");
        assert_eq!(common::cuda(&error), Some(("cuStreamCreate", 201)));
    });
}
