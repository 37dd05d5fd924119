//! What a review of this crate found, one scenario for each finding: each failed before it was mended.
#![cfg(target_os = "linux")]

mod common;

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use common::{DEADLINE, Hold, count, device, fakes, misuse, rendezvous, settings, start};
use peerweave_driver::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use peerweave_fakes::Fakes;
use peerweave_nvshmem::{Context, MisuseKind, NvshmemError, Settings, Signal, TeamConfig};
use peerweave_types::{Pe, SignalOp};

const A_WHILE: Duration = Duration::from_millis(300);
const FLAGS: CUgraphInstantiate_flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
const MODE: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;

#[test]
fn teams_of_a_second_life_do_not_read_the_keys_of_the_first() {
    fakes().run_many(2, |child| {
        let meeting = rendezvous(&child, DEADLINE);
        for life in 0..2 {
            let context = Context::from_rendezvous(&meeting, &device(child.rank), settings(DEADLINE)).expect("it starts");
            let node = context.node().expect("the team");
            // PE 1 comes later, with the same arguments, which are others in each life.
            if child.rank == 1 {
                std::thread::sleep(A_WHILE);
            }
            let count = 2 - life;
            let part = node.split_strided(0, 1, count, TeamConfig::default());
            let part = part.unwrap_or_else(|error| panic!("life {life}: both came with the same arguments: {error}"));
            if let Some(part) = part {
                part.destroy().expect("it ends");
            }
            drop(node);
            context.finalize().expect("it ends");
        }
    });
}

#[test]
fn another_id_is_another_job() {
    fakes().run(|| {
        let quiet = || settings(DEADLINE);
        let (one, other) = (Context::unique_id(&quiet()).expect("an id"), Context::unique_id(&quiet()).expect("an id"));
        assert_ne!(one, other);
        let context = Context::from_unique_id(one, Pe::new(0), 1, &device(0), quiet()).expect("it starts");
        let again = Context::from_unique_id(one, Pe::new(0), 1, &device(0), quiet()).expect("the same again is a handle");
        let refused = misuse(Context::from_unique_id(other, Pe::new(0), 1, &device(0), quiet()));
        assert!(matches!(refused, MisuseKind::AlreadyInitialized { .. }), "{refused:?}");
        again.finalize().expect("a handle goes");
        context.finalize().expect("it ends");
    });
}

#[test]
fn two_threads_that_make_ids_leave_the_environment_as_it_was() {
    fakes().env_remove("NVSHMEM_DEBUG").env("PEERWEAVE_FAKE_NVSHMEM_SLOW", "nvshmemx_get_uniqueid=200").run(|| {
        std::thread::scope(|scope| {
            for after in [0, 100] {
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_millis(after));
                    Context::unique_id(&Settings::default().debug("WARN")).expect("an id");
                });
            }
        });
        assert_eq!(std::env::var("NVSHMEM_DEBUG").ok(), None, "it was not set before");
    });
}

#[test]
fn dropping_a_registration_does_not_wait_for_other_pes() {
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_SLOW", "nvshmem_malloc=3000").run_many(1, |child| {
        let here = start(&child);
        let memory = peerweave_driver::DeviceMemory::<u32>::alloc(here.context.device(), 64).expect("memory");
        let registration = here.context.register_local(&memory).expect("it is registered");
        std::thread::scope(|scope| {
            let context = here.context.clone();
            let allocating = scope.spawn(move || {
                let buffer = context.alloc_zeroed::<u8>(8).expect("memory");
                context.free(buffer).expect("it is freed");
            });
            std::thread::sleep(A_WHILE);
            drop(registration);
            let waited = allocating.is_finished();
            allocating.join().expect("it ends");
            assert!(!waited, "the destructor waited until the other thread was out of NVSHMEM");
        });
        here.context.quiet_blocking().expect("quiet");
        assert_eq!(count("registrations"), 0, "whoever came in next has told it");
        here.end();
    });
}

#[test]
fn memory_is_free_as_soon_as_its_graph_is_gone() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        for round in 0..100 {
            let buffer = here.context.alloc::<u32>(64).expect("memory");
            let (target, source) = (buffer.slice(0..32).expect("inside"), buffer.slice(32..64).expect("inside"));
            here.stream.begin_capture(MODE).expect("it can be captured");
            here.context.put(&target, &source, here.context.pe(), &here.stream).expect("it is captured");
            let graph = here.stream.end_capture(FLAGS).expect("a graph").expect("it has nodes");
            drop((target, source));
            drop(graph);
            here.context.free(buffer).unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
        here.end();
    });
}

#[test]
fn pes_that_allocate_other_types_disagree() {
    fakes().run_many(2, |child| {
        let here = start(&child);
        let error = match child.rank {
            0 => here.context.alloc::<f32>(2).err(),
            _ => here.context.alloc::<u64>(1).err(),
        };
        let error = error.expect("they have as many bytes and are not the same");
        assert!(matches!(error, NvshmemError::Disagree(_)), "{error}");
        here.end();
    });
}

#[test]
fn of_last_handles_that_go_at_once_one_ends_nvshmem() {
    fakes().limit(Duration::from_secs(120)).run_many(1, |child| {
        let meeting = rendezvous(&child, DEADLINE);
        for round in 0..400 {
            let context = Context::from_rendezvous(&meeting, &device(0), settings(DEADLINE)).expect("it starts");
            let together = Arc::new(Barrier::new(5));
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    let (handle, together) = (context.clone(), Arc::clone(&together));
                    std::thread::spawn(move || {
                        together.wait();
                        handle.finalize().expect("a handle goes").other_handles
                    })
                })
                .collect();
            drop(context);
            together.wait();
            let left: Vec<usize> = threads.into_iter().map(|thread| thread.join().expect("it ends")).collect();
            assert_eq!(left.iter().filter(|others| **others == 0).count(), 1, "round {round}: {left:?}");
            assert!(Context::current().is_none(), "round {round}");
        }
    });
}

/// What is freed while a transfer that another stream took over may still use it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Freed {
    Source,
    Target,
    Word,
}

#[test]
fn memory_of_nbi_transfers_waits_for_the_stream_of_the_quiet() {
    for (by_barrier, which) in [(false, Freed::Source), (true, Freed::Source), (false, Freed::Target), (true, Freed::Word)] {
        fakes().run_many(1, move |child| {
            let here = start(&child);
            let hold = Hold::new(&here);
            let (one, other) = (here.new_stream(), here.new_stream());
            let source = here.context.alloc_zeroed::<u32>(64).expect("memory");
            let target = here.context.alloc_zeroed::<u32>(64).expect("memory");
            let word = here.context.alloc_zeroed::<u64>(1).expect("memory");
            let complete = |stream| match by_barrier {
                true => here.context.node().expect("the team").barrier(stream).expect("it is enqueued"),
                false => here.context.quiet(stream).expect("it is enqueued"),
            };
            // What was taken over once is left again the next time.
            for stream in [&here.stream, &other] {
                let signal = Signal { word: &word, value: 1, op: SignalOp::Add };
                here.context.put_signal_nbi(&target, &source, &signal, here.context.pe(), &one).expect("it is left to NVSHMEM");
                here.context.put_nbi(&target, &source, here.context.pe(), &one).expect("it is left to NVSHMEM");
                if Arc::ptr_eq(stream, &other) {
                    hold.hold(&other);
                }
                // From here on NVSHMEM takes it for complete, and waits for it on this stream alone.
                complete(stream);
            }
            let (mut words, mut memory) = (Some(word), vec![(Freed::Source, source), (Freed::Target, target)]);
            let (freed, took) = hold.release_after(A_WHILE, || match memory.iter().position(|(what, _)| *what == which) {
                Some(index) => here.context.free(memory.swap_remove(index).1),
                None => here.context.free(words.take().expect("it is there")),
            });
            freed.expect("it is freed");
            assert!(took >= A_WHILE / 2, "it took {took:?}: the transfer may still use the {which:?}");
            memory.into_iter().for_each(|(_, memory)| here.context.free(memory).expect("it is freed"));
            words.into_iter().for_each(|word| here.context.free(word).expect("it is freed"));
            hold.free();
            here.end();
        });
    }
}

#[test]
fn quiet_and_barrier_are_not_captured_while_nbi_transfers_are_under_way() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        let (one, other) = (here.new_stream(), here.new_stream());
        let source = here.context.alloc_zeroed::<u32>(64).expect("memory");
        let target = here.context.alloc_zeroed::<u32>(64).expect("memory");
        here.context.put_nbi(&target, &source, here.context.pe(), &one).expect("it is left to NVSHMEM");
        other.begin_capture(MODE).expect("it can be captured");
        // NVSHMEM would have the captured stream wait for one outside of the graph, and end the process.
        for refused in [here.context.quiet(&other), here.context.world().barrier(&other)] {
            let refused = misuse(refused);
            assert!(matches!(refused, MisuseKind::Context { .. }), "{refused:?}");
        }
        drop(other.end_capture(FLAGS).expect("the capture was not spoiled"));
        here.context.quiet_blocking().expect("it is complete");
        other.begin_capture(MODE).expect("it can be captured");
        here.context.quiet(&other).expect("now there is nothing outside");
        drop(other.end_capture(FLAGS).expect("a graph"));
        peerweave_driver::settle(Instant::now() + DEADLINE);
        here.context.free(source).expect("it is freed");
        here.context.free(target).expect("it is freed");
        here.end();
    });
}

#[test]
fn a_flush_that_the_library_lacks_takes_nothing_over() {
    let old = Fakes::new().cuda().nvshmem_of("3.4.5").env("PEERWEAVE_MULTICAST", "off");
    old.env("PEERWEAVE_FAKE_NVSHMEM_NBI_DELAY_MS", "5000").run_many(1, |child| {
        let here = start(&child);
        let source = here.context.alloc_zeroed::<u32>(64).expect("memory");
        let target = here.context.alloc_zeroed::<u32>(64).expect("memory");
        here.context.put_nbi(&target, &source, here.context.pe(), &here.new_stream()).expect("it is left");
        let error = here.context.flush(&here.stream).expect_err("3.4.5 has none");
        assert!(matches!(error, NvshmemError::Unsupported(_)), "{error}");
        let stream = here.new_stream();
        stream.begin_capture(MODE).expect("a capture");
        // NVSHMEM would end the process: the graph would wait for a stream outside of it.
        let refused = misuse(here.context.quiet(&stream));
        assert!(matches!(refused, MisuseKind::Context { why } if why.contains("quiet_blocking")), "{refused:?}");
        drop(stream.end_capture(FLAGS).expect("it ends"));
        here.context.quiet_blocking().expect("quiet");
        here.context.free(source).expect("freed");
        here.context.free(target).expect("freed");
        here.end();
    });
}

#[test]
fn streams_that_are_done_are_not_kept_by_the_memory_that_they_used() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        let buffer = here.context.alloc_zeroed::<u32>(64).expect("memory");
        let mut known = Vec::new();
        for _ in 0..300 {
            let stream = here.new_stream();
            let (target, source) = (buffer.slice(0..32).expect("inside"), buffer.slice(32..64).expect("inside"));
            here.context.put(&target, &source, here.context.pe(), &stream).expect("it is enqueued");
            stream.synchronize().expect("it passes");
            known.push(Arc::downgrade(&stream));
        }
        let kept = known.iter().filter(|stream| stream.strong_count() > 0).count();
        assert!(kept < 100, "{kept} streams that are done are kept");
        here.context.free(buffer).expect("it is freed");
        here.end();
    });
}

#[test]
fn a_pe_that_comes_after_the_others_gave_up_does_not_call_alone() {
    fakes().run_many(2, |child| {
        let meeting = rendezvous(&child, Duration::from_secs(2));
        let deadline = Duration::from_secs(3);
        let context = Context::from_rendezvous(&meeting, &device(child.rank), settings(deadline)).expect("it starts");
        let node = context.node().expect("the team");
        if child.rank == 1 {
            std::thread::sleep(Duration::from_millis(3500));
        }
        let error = node.split_strided(0, 1, 2, TeamConfig::default()).expect_err("the other did not come in time");
        // NVSHMEM was called by nobody, so that it can still be used.
        let alive = context.quiet_blocking();
        // PE 0 stays until then: it has the server.
        std::fs::write(child.directory.join(child.rank.to_string()), "done").expect("a file");
        child.wait_for_file("0");
        child.wait_for_file("1");
        alive.unwrap_or_else(|dead| panic!("{dead}, after: {error}"));
    });
}

#[test]
fn the_end_is_refused_while_a_module_knows_nvshmem() {
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_ANY_MODULE", "1").run_many(1, |child| {
        let here = start(&child);
        let keep = Arc::new("module");
        // SAFETY: the fake never looks into a module.
        let guard = unsafe { here.context.init_module(std::ptr::without_provenance_mut(0x1000), Arc::clone(&keep) as _) };
        let guard = guard.expect("the module is told");
        // NVSHMEM keeps the module's address beyond its end, and writes there when it starts again.
        let refused = misuse(here.context.finalize());
        assert!(matches!(refused, MisuseKind::InUse { .. }), "{refused:?}");
        drop(guard);
        common::settle();
        assert_eq!(Arc::strong_count(&keep), 1);
        Context::current().expect("it goes on").finalize().expect("it ends");
    });
}

#[test]
fn pes_that_share_a_gpu_without_a_rendezvous_are_told() {
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_SHARE_GPU", "1").run_many(2, |child| {
        if child.rank == 0 {
            child.put_file("id", &Context::unique_id(&settings(DEADLINE)).expect("an id").to_bytes());
        }
        child.wait_for_file("id");
        let bytes = std::fs::read(child.directory.join("id")).expect("the id");
        let id = bytes.as_slice().try_into().expect("128 bytes");
        let started = Context::from_unique_id(id, Pe::new(child.rank as u32), 2, &device(0), settings(DEADLINE));
        // NVSHMEM would end the process at the first barrier.
        let refused = started.and_then(|context| context.world().barrier(context.stream()));
        let error = refused.expect_err("they share a GPU");
        assert!(matches!(error, NvshmemError::Preflight(_) | NvshmemError::Unsupported(_)), "{error}");
    });
}

#[test]
fn a_bad_alignment_on_one_pe_is_told_to_the_others() {
    fakes().run_many(2, |child| {
        let here = start(&child);
        let began = Instant::now();
        let error = here.context.alloc_aligned::<u8>(if child.rank == 0 { 64 } else { 3 }, 8).expect_err("one is wrong");
        match child.rank {
            0 => assert!(matches!(error, NvshmemError::Disagree(_)), "{error}"),
            _ => assert!(matches!(error, NvshmemError::Misuse(_)), "{error}"),
        }
        assert!(began.elapsed() < DEADLINE / 2, "it took {:?}", began.elapsed());
        let memory = here.context.alloc_aligned::<u8>(64, 8).expect("all are in step");
        here.context.free(memory).expect("it is freed");
        here.end();
    });
}

#[test]
fn a_pe_with_bad_settings_is_told_to_the_others() {
    fakes().run_many(2, |child| {
        let meeting = rendezvous(&child, DEADLINE);
        let wrong = match child.rank {
            0 => settings(DEADLINE),
            _ => settings(DEADLINE).variable("LD_PRELOAD", "x"),
        };
        let began = Instant::now();
        let error = Context::from_rendezvous(&meeting, &device(child.rank), wrong).expect_err("one is wrong");
        match child.rank {
            0 => assert!(matches!(error, NvshmemError::Preflight(_)), "{error}"),
            _ => assert!(matches!(error, NvshmemError::Misuse(_)), "{error}"),
        }
        assert!(began.elapsed() < DEADLINE / 2, "it took {:?}", began.elapsed());
        // Nobody called NVSHMEM.
        let context = Context::from_rendezvous(&meeting, &device(child.rank), settings(DEADLINE)).expect("all are in step");
        context.finalize().expect("it ends");
    });
}
