//! Tests that resources still used by NVSHMEM, a stream or another PE are kept, and that no call
//! blocks inside NVSHMEM, with faults of the fake library.
#![cfg(target_os = "linux")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{DEADLINE, Hold, SHORT, count, device, fakes, mapped, misuse, rendezvous, settings, start, start_within};
use peerweave_driver::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use peerweave_driver::{Access, CudaStream, DeviceBuffer, DeviceMemory, DriverError, Keep};
use peerweave_nvshmem::{Context, DeadState, MisuseKind, NvshmemError, Signal, TeamConfig};
use peerweave_types::{Compare, Pe, SignalOp};

const A_WHILE: Duration = Duration::from_millis(200);

/// Memory with counted owners: every owner has a clone of `owner`.
struct Counted<B> {
    memory: B,
    owner: Arc<()>,
}

impl Counted<DeviceMemory<u32>> {
    fn new(len: usize) -> Self {
        Self { memory: DeviceMemory::<u32>::alloc(&device(0), len).expect("memory"), owner: Arc::default() }
    }
}

// SAFETY: all methods are those of the inner memory, with one more owner.
unsafe impl<B: DeviceBuffer<u32>> DeviceBuffer<u32> for Counted<B> {
    fn len(&self) -> usize {
        self.memory.len()
    }

    fn device(&self) -> usize {
        self.memory.device()
    }

    fn read<'a>(&'a self, stream: &'a Arc<CudaStream>) -> Result<Access<'a>, DriverError> {
        self.memory.read(stream)
    }

    fn keep(&self) -> Option<(u64, Keep)> {
        let (address, keep) = self.memory.keep()?;
        Some((address, Arc::new((keep, Arc::clone(&self.owner)))))
    }
}

#[test]
fn outside_memory_stays_while_its_registration_is_stuck() {
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_STUCK", "nvshmemx_buffer_register_symmetric").run_many(1, |child| {
        let here = start_within(&child, SHORT);
        let memory = Counted { memory: mapped(&here, 1), owner: Arc::default() };
        let error = here.context.register_symmetric(&memory).expect_err("it never comes back");
        assert!(matches!(error, NvshmemError::Timeout(_)), "{error}");
        let owner = Arc::clone(&memory.owner);
        drop(memory);
        assert!(Arc::strong_count(&owner) > 1, "NVSHMEM still has it");
        let error = here.context.alloc::<u8>(1).expect_err("a call is inside");
        assert!(matches!(&error, NvshmemError::Dead { state: DeadState::Stuck { .. }, .. }), "{error}");
    });
}

#[test]
fn failed_unregister_leaks_memory_and_finalize_succeeds() {
    let fails = fakes().env("PEERWEAVE_FAKE_NVSHMEM_FAIL", "nvshmemx_buffer_unregister");
    fails.run_many(1, |child| {
        let here = start(&child);
        let memory = Counted::new(64);
        drop(here.context.register_local(&memory).expect("it is registered"));
        assert_eq!(Arc::strong_count(&memory.owner), 2, "NVSHMEM said no, and still has it");
        here.end();
    });
}

#[test]
fn memory_missing_on_one_pe_is_an_error_on_all() {
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_FULL", "nvshmem_malloc@1:2").run_many(3, |child| {
        let here = common::start_with(&child, settings(DEADLINE).disable_cuda_vmm(true));
        let first = here.context.alloc::<u8>(100).expect("memory");
        let error = here.context.alloc::<u8>(100).expect_err("PE 1 got none");
        assert!(matches!(error, NvshmemError::Disagree(_)), "{error}");
        // The heaps differ now, so no put is allowed.
        let dead = here.context.put(&first, &first, here.next(), &here.stream).expect_err("it is over");
        assert!(matches!(&dead, NvshmemError::Dead { state: DeadState::Broken { .. }, .. }), "{dead}");
        // PE 0 runs the server of the rendezvous, and the others may not have their response yet.
        child.meet("told");
    });
}

#[test]
fn failed_allocation_of_a_fixed_heap_leaves_it_usable() {
    fakes().run_many(2, |child| {
        let here = common::start_with(&child, settings(DEADLINE).disable_cuda_vmm(true));
        let error = here.context.alloc::<u8>(1 << 30).expect_err("the heap is smaller");
        assert!(matches!(error, NvshmemError::Nvshmem(_)), "{error}");
        let memory = here.context.alloc::<u8>(100).expect("memory");
        here.context.free(memory).expect("freed");
        here.end();
    });
}

#[test]
fn signal_fetch_does_not_wait_for_the_default_stream() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        let hold = Hold::new(&here);
        let word = here.context.alloc_zeroed::<u64>(1).expect("memory");
        let default = here.context.device().default_stream();
        hold.hold(&default);
        let began = Instant::now();
        assert_eq!(here.context.signal_fetch_blocking(&word).expect("a look"), 0);
        assert!(began.elapsed() < DEADLINE / 4, "{:?}", began.elapsed());
        hold.release();
        default.synchronize().expect("it passes");
        here.context.free(word).expect("freed");
        hold.free();
        here.end();
    });
}

#[test]
fn capture_of_another_thread_is_neither_refused_nor_broken() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        let captured = here.new_stream();
        captured.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).expect("it can be captured");
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let memory = here.context.alloc_zeroed::<u64>(8).expect("memory");
                memory.copy_from(&here.stream, &[5; 8]).expect("a copy");
                assert_eq!(memory.to_vec(&here.stream).expect("a copy"), [5; 8]);
                assert_eq!(here.context.signal_fetch_blocking(&memory).expect("a look"), 5);
                here.context.quiet_blocking().expect("quiet");
                here.context.world().barrier_blocking().expect("all come");
                here.context.free(memory).expect("freed");
            });
            other.join().expect("nothing was refused");
        });
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        captured.end_capture(flags).expect("the capture was not spoilt");
        here.end();
    });
}

#[test]
fn split_is_refused_while_a_stream_waits_for_a_signal() {
    fakes().run_many(2, |child| {
        let here = start_within(&child, SHORT);
        let hold = Hold::new(&here);
        // A blocked stream without a collective: NVSHMEM would wait for the whole device inside the
        // split.
        hold.hold(&here.stream);
        let error = here.context.world().split_strided(0, 1, 2, TeamConfig::default()).expect_err("the stream does not pass");
        assert!(matches!(error, NvshmemError::Timeout(_)), "{error}");
        hold.release();
        here.stream.synchronize().expect("it passes");
        here.rendezvous.barrier("released").expect("all come");
        let team =
            here.context.world().split_strided(0, 1, 2, TeamConfig::default()).expect("now it is split").expect("a member");
        team.destroy().expect("it ends");
        hold.free();
        here.end();
    });
}

#[test]
fn foreign_nvshmem_in_the_process_is_refused() {
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_FAIL", "nvshmemx_init_status@0:1=2,nvshmemx_init_status:1=2").run(|| {
        let id = Context::unique_id(&settings(DEADLINE)).expect("an id");
        let refused = misuse(Context::from_unique_id(id, Pe::new(0), 1, &device(0), settings(DEADLINE)));
        assert!(matches!(refused, MisuseKind::AlreadyInitialized { what: "NVSHMEM", .. }), "{refused:?}");
        assert!(Context::current().is_none());
    });
}

#[test]
fn slow_malloc_times_out_and_ends_the_context() {
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_SLOW", "nvshmem_malloc=4000").run_many(1, |child| {
        let here = start_within(&child, SHORT);
        let error = here.context.alloc::<u8>(8).expect_err("it takes too long");
        assert!(matches!(error, NvshmemError::Timeout(_)), "{error}");
        std::thread::sleep(2 * A_WHILE);
        let error = here.context.world().barrier(&here.stream).expect_err("who knows what that call did");
        assert!(matches!(error, NvshmemError::Dead { .. }), "{error}");
    });
}

#[test]
fn team_that_a_graph_uses_is_not_destroyed() {
    fakes().run_many(2, |child| {
        let here = start(&child);
        let make = || here.context.world().split_strided(0, 1, 2, TeamConfig::default()).expect("split").expect("a member");
        let team = make();
        here.stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("it can be captured");
        team.barrier(&here.stream).expect("it is captured");
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = here.stream.end_capture(flags).expect("a graph").expect("it has nodes");
        let refused = misuse(team.destroy());
        assert!(matches!(refused, MisuseKind::InUse { what: "the team", .. }), "{refused:?}");
        graph.launch().expect("the team lives on, without a name");
        here.stream.synchronize().expect("it passes");
        // Finalising is refused while the graph exists.
        let refused = misuse(here.context.finalize());
        assert!(matches!(refused, MisuseKind::InUse { .. }), "{refused:?}");
        drop(graph);
        let context = Context::current().expect("it goes on");
        context.world().barrier_blocking().expect("all come");
        context.finalize().expect("it ends");
    });
}

#[test]
fn memory_used_by_a_graph_lives_as_long_as_the_graph() {
    fakes().run_many(2, |child| {
        let here = start(&child);
        let (target, word) =
            (here.context.alloc_zeroed::<u32>(64).expect("memory"), here.context.alloc_zeroed::<u64>(1).expect("memory"));
        let values = [child.rank as u32 + 1; 64];
        let memory = DeviceMemory::from_slice(&here.stream, &values).expect("memory");
        let source = Counted { memory, owner: Arc::default() };
        here.stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("it can be captured");
        let signal = Signal { word: &word, value: 1, op: SignalOp::Add };
        here.context.put_signal(&target, &source, &signal, here.next(), &here.stream).expect("it is captured");
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = here.stream.end_capture(flags).expect("a graph").expect("it has nodes");
        let owner = Arc::clone(&source.owner);
        drop(source);
        assert_eq!(Arc::strong_count(&owner), 2, "the graph has the source");
        let look = (target.slice(0..1).expect("a part"), word.clone());
        for refused in [here.context.free(target), here.context.free(word)] {
            let refused = misuse(refused);
            assert!(matches!(refused, MisuseKind::InUse { what: "the buffer", .. }), "{refused:?}");
        }
        graph.launch().expect("all of it is there");
        here.context.signal_wait(&look.1, Compare::Eq, 1, &here.stream).expect("it is enqueued");
        assert_eq!(look.0.to_vec(&here.stream).expect("a copy"), [here.previous() + 1]);
        // Only the graph keeps the memory now.
        drop(look);
        let refused = misuse(here.context.finalize());
        assert!(matches!(refused, MisuseKind::InUse { .. }), "{refused:?}");
        drop(graph);
        let context = Context::current().expect("it goes on");
        assert_eq!(context.finalize().expect("it ends").leaked.len(), 2);
        assert!(Arc::strong_count(&owner) == 1);
        child.meet("ended");
    });
}

#[test]
fn graph_alone_keeps_its_memory_from_being_freed() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        let [source, target] = [8, 8].map(|len| here.context.alloc_zeroed::<u32>(len).expect("memory"));
        here.stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("it can be captured");
        here.context.put(&target, &source, here.context.pe(), &here.stream).expect("it is captured");
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = here.stream.end_capture(flags).expect("a graph").expect("it has nodes");
        for refused in [here.context.free(source), here.context.free(target)] {
            let refused = misuse(refused);
            assert!(matches!(refused, MisuseKind::InUse { what: "the buffer", .. }), "{refused:?}");
        }
        drop(graph);
        assert_eq!(here.context.finalize().expect("it ends").leaked.len(), 2);
    });
}

#[test]
fn multicast_addresses_require_team_and_memory_of_one_context() {
    fakes().env_remove("PEERWEAVE_MULTICAST").env("PEERWEAVE_FAKE_NVSHMEM_MULTICAST", "1").run_many(1, |child| {
        let meeting = rendezvous(&child, DEADLINE);
        let start = || Context::from_rendezvous(&meeting, &device(0), settings(DEADLINE)).expect("it starts");
        let first = start();
        let old = first.world();
        first.finalize().expect("it ends");
        let second = start();
        let memory = second.alloc::<u32>(100).expect("memory");
        let whole = memory.multicast_address(&second.world()).expect("it is asked").expect("there is one");
        let part = memory.slice(10..20).expect("inside").multicast_address(&second.world()).expect("it is asked");
        assert_eq!(part, Some(whole + 40));
        let refused = misuse(memory.multicast_address(&old));
        assert_eq!(refused, MisuseKind::WrongContext { what: "the team" });
        second.free(memory).expect("freed");
        second.finalize().expect("it ends");
    });
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_MULTICAST", "1").env("PEERWEAVE_MULTICAST", "off").run_many(1, |child| {
        let here = start(&child);
        let memory = here.context.alloc::<u32>(100).expect("memory");
        let refused = memory.multicast_address(&here.context.world()).expect_err("it is forbidden");
        assert!(matches!(refused, NvshmemError::MulticastDisabled(_)), "{refused}");
        let disabled =
            here.context.info().settings.variables().any(|(name, value)| (name, value) == ("NVSHMEM_DISABLE_NVLS", "1"));
        assert!(disabled, "NVSHMEM is told too");
        here.context.free(memory).expect("freed");
        here.end();
    });
}

#[test]
fn unreleasable_memory_does_not_stop_finalize() {
    let fails = fakes().env("PEERWEAVE_FAKE_NVSHMEM_FAIL", "nvshmemx_buffer_unregister_symmetric");
    fails.run_many(1, |child| {
        let here = start(&child);
        let memory = Counted { memory: mapped(&here, 1), owner: Arc::default() };
        let owner = Arc::clone(&memory.owner);
        let outside = here.context.register_symmetric(&memory).expect("it is registered");
        drop(memory);
        let own = here.context.alloc::<u8>(100).expect("memory");
        drop((outside, own));
        let error = here.context.finalize().expect_err("one of them cannot be released");
        assert!(matches!(error, NvshmemError::Nvshmem(_)), "{error}");
        assert!(Context::current().is_none(), "it has ended nevertheless");
        assert_eq!(count("allocations"), 0);
        assert_eq!(Arc::strong_count(&owner), 2, "NVSHMEM said no, and others may still store there");
        let again = Context::from_rendezvous(&here.rendezvous, &device(0), settings(DEADLINE)).expect("it starts again");
        again.finalize().expect("it ends");
    });
}

/// Counts its drops, and panics in each.
struct Bomb(Arc<AtomicUsize>);

impl Drop for Bomb {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        panic!("a destructor that panics on purpose");
    }
}

/// Calls NVSHMEM when it is dropped, and records whether the call returned.
struct Quiet(Context, Arc<CudaStream>, Arc<AtomicUsize>);

impl Drop for Quiet {
    fn drop(&mut self) {
        if self.0.quiet(&self.1).is_ok() {
            self.2.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[test]
fn destructor_of_a_keeper_may_panic_or_call_nvshmem() {
    let slow = fakes().env("PEERWEAVE_FAKE_NVSHMEM_ANY_MODULE", "1").env("PEERWEAVE_FAKE_NVSHMEM_SLOW", "nvshmem_fence=500");
    slow.run_many(1, |child| {
        let here = start(&child);
        let tell = |address: usize, keep: Keep| {
            // SAFETY: the fake never looks into a module.
            unsafe { here.context.init_module(std::ptr::without_provenance_mut(address), keep) }.expect("it is told")
        };
        let (bombs, quiets) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let quiet = Quiet(here.context.clone(), Arc::clone(&here.stream), Arc::clone(&quiets));
        let guards = [
            tell(0x1000, Arc::new(Bomb(Arc::clone(&bombs)))),
            tell(0x2000, Arc::new(Bomb(Arc::clone(&bombs)))),
            tell(0x3000, Arc::new(std::sync::Mutex::new(quiet))),
        ];
        std::thread::scope(|scope| {
            scope.spawn(|| here.context.fence_blocking().expect("it comes back"));
            std::thread::sleep(A_WHILE);
            drop(guards);
        });
        assert_eq!(count("modules"), 3, "the gate was shut");
        here.context.quiet_blocking().expect("what destructors do is not its own");
        assert_eq!(count("modules"), 0);
        common::settle();
        assert_eq!((bombs.load(Ordering::SeqCst), quiets.load(Ordering::SeqCst)), (2, 1));
        here.end();
    });
}

#[test]
fn memory_dropped_in_use_lives_until_its_stream_completes() {
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_SLOW", "nvshmemx_putmem_on_stream=400").run_many(2, |child| {
        let here = start(&child);
        let source = here.context.alloc_zeroed::<u32>(64).expect("memory");
        let target = here.context.alloc_zeroed::<u32>(64).expect("memory");
        here.context.put(&target, &source, here.next(), &here.stream).expect("it is enqueued");
        drop((source, target));
        let began = Instant::now();
        let report = here.context.finalize().expect("it ends");
        assert!(began.elapsed() >= A_WHILE, "{:?}", began.elapsed());
        assert_eq!(report.leaked.len(), 2, "{report:?}");
    });
}

#[test]
fn blocking_quiet_waits_for_a_quiet_queued_before() {
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_NBI_DELAY_MS", "10000").run_many(1, |child| {
        let here = start(&child);
        let hold = Hold::new(&here);
        let source = here.context.alloc_zeroed::<u32>(64).expect("memory");
        let target = here.context.alloc_zeroed::<u32>(64).expect("memory");
        here.context.put_nbi(&target, &source, here.context.pe(), &here.new_stream()).expect("it is left");
        hold.hold(&here.stream);
        here.context.quiet(&here.stream).expect("it is enqueued");
        let (quiet, took) = hold.release_after(A_WHILE, || here.context.quiet_blocking());
        quiet.expect("quiet");
        assert!(took >= A_WHILE / 2, "it took {took:?}");
        here.context.free(source).expect("freed");
        here.context.free(target).expect("freed");
        hold.free();
        here.end();
    });
}
