//! Tests with faults of the fake library: resources that NVSHMEM, a stream or another PE uses are
//! kept, and no call blocks inside NVSHMEM.
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

/// Memory whose owners are counted: every owner has a clone of `owner`.
struct Counted<B> {
    memory: B,
    owner: Arc<()>,
}

impl Counted<DeviceMemory<u32>> {
    fn new(len: usize) -> Self {
        Self { memory: DeviceMemory::<u32>::alloc(&device(0), len).expect("the memory is allocated"), owner: Arc::default() }
    }
}

// SAFETY: all methods are those of `memory`; `keep` adds an owner.
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
fn memory_stays_allocated_while_a_registration_is_stuck() {
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_STUCK", "nvshmemx_buffer_register_symmetric").run_many(1, |child| {
        let here = start_within(&child, SHORT);
        let memory = Counted { memory: mapped(&here, 1), owner: Arc::default() };
        let error = here.context.register_symmetric(&memory).expect_err("the call does not return");
        assert!(matches!(error, NvshmemError::Timeout(_)), "{error}");
        let owner = Arc::clone(&memory.owner);
        drop(memory);
        assert!(Arc::strong_count(&owner) > 1, "memory that NVSHMEM uses was dropped");
        let error = here.context.alloc::<u8>(1).expect_err("another call is inside NVSHMEM");
        assert!(matches!(&error, NvshmemError::Dead { state: DeadState::Stuck { .. }, .. }), "{error}");
    });
}

#[test]
fn failed_unregister_leaks_memory_and_finalize_succeeds() {
    let fails = fakes().env("PEERWEAVE_FAKE_NVSHMEM_FAIL", "nvshmemx_buffer_unregister");
    fails.run_many(1, |child| {
        let here = start(&child);
        let memory = Counted::new(64);
        drop(here.context.register_local(&memory).expect("the memory is registered"));
        assert_eq!(Arc::strong_count(&memory.owner), 2, "memory that NVSHMEM did not unregister was dropped");
        here.end();
    });
}

#[test]
fn allocation_that_fails_on_one_pe_is_an_error_on_all_pes() {
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_FULL", "nvshmem_malloc@1:2").run_many(3, |child| {
        let here = common::start_with(&child, settings(DEADLINE).disable_cuda_vmm(true));
        let first = here.context.alloc::<u8>(100).expect("the memory is allocated");
        let error = here.context.alloc::<u8>(100).expect_err("PE 1 got no memory");
        assert!(matches!(error, NvshmemError::Disagree(_)), "{error}");
        // The heaps of the PEs differ now, so a put is refused.
        let dead = here.context.put(&first, &first, here.next(), &here.stream).expect_err("NVSHMEM can no longer be used");
        assert!(matches!(&dead, NvshmemError::Dead { state: DeadState::Broken { .. }, .. }), "{dead}");
        // PE 0 runs the server of the rendezvous, and must wait until the other PEs have their
        // responses.
        child.meet("told");
    });
}

#[test]
fn fixed_heap_is_usable_after_a_failed_allocation() {
    fakes().run_many(2, |child| {
        let here = common::start_with(&child, settings(DEADLINE).disable_cuda_vmm(true));
        let error = here.context.alloc::<u8>(1 << 30).expect_err("the heap is smaller than the request");
        assert!(matches!(error, NvshmemError::Nvshmem(_)), "{error}");
        let memory = here.context.alloc::<u8>(100).expect("the memory is allocated");
        here.context.free(memory).expect("all PEs free the memory");
        here.end();
    });
}

#[test]
fn signal_fetch_does_not_wait_for_the_default_stream() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        let hold = Hold::new(&here);
        let word = here.context.alloc_zeroed::<u64>(1).expect("the memory is allocated");
        let default = here.context.device().default_stream();
        hold.hold(&default);
        let began = Instant::now();
        assert_eq!(here.context.signal_fetch_blocking(&word).expect("the read completes"), 0);
        assert!(began.elapsed() < DEADLINE / 4, "{:?}", began.elapsed());
        hold.release();
        default.synchronize().expect("the stream completes");
        here.context.free(word).expect("all PEs free the memory");
        hold.free();
        here.end();
    });
}

#[test]
fn calls_succeed_while_another_thread_captures_a_stream() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        let captured = here.new_stream();
        captured.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).expect("the capture begins");
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let memory = here.context.alloc_zeroed::<u64>(8).expect("the memory is allocated");
                memory.copy_from(&here.stream, &[5; 8]).expect("the copy completes");
                assert_eq!(memory.to_vec(&here.stream).expect("the copy completes"), [5; 8]);
                assert_eq!(here.context.signal_fetch_blocking(&memory).expect("the read completes"), 5);
                here.context.quiet_blocking().expect("the quiet completes");
                here.context.world().barrier_blocking().expect("all PEs make the call");
                here.context.free(memory).expect("all PEs free the memory");
            });
            other.join().expect("the thread does not panic");
        });
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        captured.end_capture(flags).expect("the capture is valid");
        here.end();
    });
}

#[test]
fn split_times_out_while_a_stream_waits_for_a_signal() {
    fakes().run_many(2, |child| {
        let here = start_within(&child, SHORT);
        let hold = Hold::new(&here);
        // The stream is blocked, but not by a collective. NVSHMEM would wait for the whole device
        // inside the split.
        hold.hold(&here.stream);
        let error = here.context.world().split_strided(0, 1, 2, TeamConfig::default()).expect_err("the stream does not complete");
        assert!(matches!(error, NvshmemError::Timeout(_)), "{error}");
        hold.release();
        here.stream.synchronize().expect("the stream completes");
        here.rendezvous.barrier("released").expect("all PEs make the call");
        here.team_of_first(2).destroy().expect("all PEs destroy the team");
        hold.free();
        here.end();
    });
}

#[test]
fn start_is_refused_if_other_code_started_nvshmem() {
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_FAIL", "nvshmemx_init_status@0:1=2,nvshmemx_init_status:1=2").run(|| {
        let id = Context::unique_id(&settings(DEADLINE)).expect("the id is created");
        let refused = misuse(Context::from_unique_id(id, Pe::new(0), 1, &device(0), settings(DEADLINE)));
        assert!(matches!(refused, MisuseKind::AlreadyInitialized { what: "an initialisation", .. }), "{refused:?}");
        assert!(Context::current().is_none());
    });
}

#[test]
fn slow_malloc_times_out_and_makes_context_unusable() {
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_SLOW", "nvshmem_malloc=12000").run_many(1, |child| {
        let here = start_within(&child, SHORT);
        let error = here.context.alloc::<u8>(8).expect_err("the call exceeds the deadline");
        assert!(matches!(error, NvshmemError::Timeout(_)), "{error}");
        std::thread::sleep(2 * A_WHILE);
        let error = here.context.world().barrier(&here.stream).expect_err("the timed-out call made NVSHMEM unusable");
        assert!(matches!(error, NvshmemError::Dead { .. }), "{error}");
    });
}

#[test]
fn destroy_of_a_team_that_a_graph_uses_is_refused() {
    fakes().run_many(2, |child| {
        let here = start(&child);
        let make = || here.team_of_first(2);
        let team = make();
        here.stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("the capture begins");
        team.barrier(&here.stream).expect("the call is captured");
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = here.stream.end_capture(flags).expect("the capture ends").expect("the graph has nodes");
        let refused = misuse(team.destroy());
        assert!(matches!(refused, MisuseKind::InUse { what: "the team", .. }), "{refused:?}");
        graph.launch().expect("the graph keeps the team alive");
        here.stream.synchronize().expect("the stream completes");
        // NVSHMEM cannot be finalised while the graph exists.
        let refused = misuse(here.context.finalize());
        assert!(matches!(refused, MisuseKind::InUse { .. }), "{refused:?}");
        drop(graph);
        let context = Context::current().expect("NVSHMEM is still running");
        context.world().barrier_blocking().expect("all PEs make the call");
        context.finalize().expect("all PEs finalize NVSHMEM");
    });
}

#[test]
fn memory_used_by_a_graph_lives_as_long_as_the_graph() {
    fakes().run_many(2, |child| {
        let here = start(&child);
        let (target, word) = (
            here.context.alloc_zeroed::<u32>(64).expect("the memory is allocated"),
            here.context.alloc_zeroed::<u64>(1).expect("the memory is allocated"),
        );
        let values = [child.rank as u32 + 1; 64];
        let memory = DeviceMemory::from_slice(&here.stream, &values).expect("the memory is allocated");
        let source = Counted { memory, owner: Arc::default() };
        here.stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("the capture begins");
        let signal = Signal { word: &word, value: 1, op: SignalOp::Add };
        here.context.put_signal(&target, &source, &signal, here.next(), &here.stream).expect("the call is captured");
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = here.stream.end_capture(flags).expect("the capture ends").expect("the graph has nodes");
        let owner = Arc::clone(&source.owner);
        drop(source);
        assert_eq!(Arc::strong_count(&owner), 2, "the graph must own the source");
        let look = (target.slice(0..1).expect("the range is in bounds"), word.clone());
        for refused in [here.context.free(target), here.context.free(word)] {
            let refused = misuse(refused);
            assert!(matches!(refused, MisuseKind::InUse { what: "the buffer", .. }), "{refused:?}");
        }
        graph.launch().expect("the graph is launched");
        here.context.signal_wait(&look.1, Compare::Eq, 1, &here.stream).expect("the work is enqueued");
        assert_eq!(look.0.to_vec(&here.stream).expect("the copy completes"), [here.previous() + 1]);
        // From here on only the graph keeps the memory.
        drop(look);
        let refused = misuse(here.context.finalize());
        assert!(matches!(refused, MisuseKind::InUse { .. }), "{refused:?}");
        drop(graph);
        let context = Context::current().expect("NVSHMEM is still running");
        assert_eq!(context.finalize().expect("all PEs finalize NVSHMEM").leaked.len(), 2);
        assert!(Arc::strong_count(&owner) == 1);
        child.meet("ended");
    });
}

#[test]
fn free_of_memory_that_a_graph_uses_is_refused() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        let [source, target] = [8, 8].map(|len| here.context.alloc_zeroed::<u32>(len).expect("the memory is allocated"));
        here.stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("the capture begins");
        here.context.put(&target, &source, here.context.pe(), &here.stream).expect("the call is captured");
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = here.stream.end_capture(flags).expect("the capture ends").expect("the graph has nodes");
        for refused in [here.context.free(source), here.context.free(target)] {
            let refused = misuse(refused);
            assert!(matches!(refused, MisuseKind::InUse { what: "the buffer", .. }), "{refused:?}");
        }
        drop(graph);
        assert_eq!(here.context.finalize().expect("all PEs finalize NVSHMEM").leaked.len(), 2);
    });
}

#[test]
fn multicast_address_for_a_team_of_another_context_is_refused() {
    fakes().env_remove("PEERWEAVE_MULTICAST").env("PEERWEAVE_FAKE_NVSHMEM_MULTICAST", "1").run_many(1, |child| {
        let meeting = rendezvous(&child, DEADLINE);
        let start = || Context::from_rendezvous(&meeting, &device(0), settings(DEADLINE)).expect("NVSHMEM starts");
        let first = start();
        let old = first.world();
        first.finalize().expect("all PEs finalize NVSHMEM");
        let second = start();
        let memory = second.alloc::<u32>(100).expect("the memory is allocated");
        let whole =
            memory.multicast_address(&second.world()).expect("the call succeeds").expect("the memory has a multicast address");
        let part =
            memory.slice(10..20).expect("the range is in bounds").multicast_address(&second.world()).expect("the call succeeds");
        assert_eq!(part, Some(whole + 40));
        let refused = misuse(memory.multicast_address(&old));
        assert_eq!(refused, MisuseKind::WrongContext { what: "the team" });
        second.free(memory).expect("all PEs free the memory");
        second.finalize().expect("all PEs finalize NVSHMEM");
    });
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_MULTICAST", "1").env("PEERWEAVE_MULTICAST", "off").run_many(1, |child| {
        let here = start(&child);
        let memory = here.context.alloc::<u32>(100).expect("the memory is allocated");
        let refused = memory.multicast_address(&here.context.world()).expect_err("multicast is disabled");
        assert!(matches!(refused, NvshmemError::MulticastDisabled(_)), "{refused}");
        let disabled =
            here.context.info().settings.variables().any(|(name, value)| (name, value) == ("NVSHMEM_DISABLE_NVLS", "1"));
        assert!(disabled, "multicast must be disabled in NVSHMEM too");
        here.context.free(memory).expect("all PEs free the memory");
        here.end();
    });
}

#[test]
fn nvshmem_is_finalised_although_memory_cannot_be_released() {
    let fails = fakes().env("PEERWEAVE_FAKE_NVSHMEM_FAIL", "nvshmemx_buffer_unregister_symmetric");
    fails.run_many(1, |child| {
        let here = start(&child);
        let memory = Counted { memory: mapped(&here, 1), owner: Arc::default() };
        let owner = Arc::clone(&memory.owner);
        let outside = here.context.register_symmetric(&memory).expect("the memory is registered");
        drop(memory);
        let own = here.context.alloc::<u8>(100).expect("the memory is allocated");
        drop((outside, own));
        let error = here.context.finalize().expect_err("one allocation cannot be released");
        assert!(matches!(error, NvshmemError::Nvshmem(_)), "{error}");
        assert!(Context::current().is_none(), "NVSHMEM must be finalised after the error");
        assert_eq!(count("allocations"), 0);
        assert_eq!(Arc::strong_count(&owner), 2, "memory that NVSHMEM did not unregister was dropped");
        let again = Context::from_rendezvous(&here.rendezvous, &device(0), settings(DEADLINE)).expect("NVSHMEM starts again");
        again.finalize().expect("all PEs finalize NVSHMEM");
    });
}

/// A value whose destructor counts the call and then panics.
struct Bomb(Arc<AtomicUsize>);

impl Drop for Bomb {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        panic!("this destructor panics on purpose");
    }
}

/// A value whose destructor calls NVSHMEM, and counts the calls that succeed.
struct Quiet(Context, Arc<CudaStream>, Arc<AtomicUsize>);

impl Drop for Quiet {
    fn drop(&mut self) {
        if self.0.quiet(&self.1).is_ok() {
            self.2.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[test]
fn destructor_of_a_cuda_module_owner_may_panic_or_call_nvshmem() {
    let slow = fakes().env("PEERWEAVE_FAKE_NVSHMEM_ANY_MODULE", "1").env("PEERWEAVE_FAKE_NVSHMEM_SLOW", "nvshmem_fence=4000");
    slow.run_many(1, |child| {
        let here = start(&child);
        let tell = |address: usize, keep: Keep| {
            // SAFETY: the fake library does not read the module.
            unsafe { here.context.init_module(std::ptr::without_provenance_mut(address), keep) }
                .expect("the module is initialised")
        };
        let (bombs, quiets) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let quiet = Quiet(here.context.clone(), Arc::clone(&here.stream), Arc::clone(&quiets));
        let guards = [
            tell(0x1000, Arc::new(Bomb(Arc::clone(&bombs)))),
            tell(0x2000, Arc::new(Bomb(Arc::clone(&bombs)))),
            tell(0x3000, Arc::new(std::sync::Mutex::new(quiet))),
        ];
        std::thread::scope(|scope| {
            scope.spawn(|| here.context.fence_blocking().expect("the call returns"));
            std::thread::sleep(Duration::from_secs(1));
            drop(guards);
        });
        assert_eq!(count("modules"), 3, "a module was finalised although another call held the gate");
        here.context.quiet_blocking().expect("the quiet ignores errors of destructors");
        assert_eq!(count("modules"), 0);
        common::drain_retired();
        assert_eq!((bombs.load(Ordering::SeqCst), quiets.load(Ordering::SeqCst)), (2, 1));
        here.end();
    });
}

#[test]
fn finalize_waits_for_a_put_whose_memory_was_dropped() {
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_SLOW", "nvshmemx_putmem_on_stream=400").run_many(2, |child| {
        let here = start(&child);
        let source = here.context.alloc_zeroed::<u32>(64).expect("the memory is allocated");
        let target = here.context.alloc_zeroed::<u32>(64).expect("the memory is allocated");
        let began = Instant::now();
        here.context.put(&target, &source, here.next(), &here.stream).expect("the work is enqueued");
        drop((source, target));
        let report = here.context.finalize().expect("all PEs finalize NVSHMEM");
        assert!(began.elapsed() >= A_WHILE, "{:?}", began.elapsed());
        assert_eq!(report.leaked.len(), 2, "{report:?}");
    });
}

#[test]
fn blocking_quiet_waits_for_an_earlier_quiet_on_a_stream() {
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_NBI_DELAY_MS", "10000").run_many(1, |child| {
        let here = start(&child);
        let hold = Hold::new(&here);
        let source = here.context.alloc_zeroed::<u32>(64).expect("the memory is allocated");
        let target = here.context.alloc_zeroed::<u32>(64).expect("the memory is allocated");
        here.context.put_nbi(&target, &source, here.context.pe(), &here.new_stream()).expect("the transfer is enqueued");
        hold.hold(&here.stream);
        here.context.quiet(&here.stream).expect("the work is enqueued");
        let (quiet, took) = hold.release_after(A_WHILE, || here.context.quiet_blocking());
        quiet.expect("the quiet completes");
        assert!(took >= A_WHILE / 2, "the quiet took {took:?}, expected a wait for the held stream");
        here.context.free(source).expect("all PEs free the memory");
        here.context.free(target).expect("all PEs free the memory");
        hold.free();
        here.end();
    });
}
