//! Tests that errors or pending work of other code in the process, on the device or in the job
//! cause at most an error.
#![cfg(target_os = "linux")]

mod common;

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use common::{DEADLINE, Here, Hold, SHORT, device, fakes, misuse, rendezvous, says, settings, start, start_within};
use peerweave_driver::cudarc::driver::DriverError;
use peerweave_driver::cudarc::driver::sys::{CUresult, CUstream};
use peerweave_fakes::driver;
use peerweave_nvshmem::{Context, DeadState, MisuseKind, ModuleGuard, NvshmemError, Signal, TeamConfig};
use peerweave_types::{Compare, Pe, SignalOp};

const A_WHILE: Duration = Duration::from_millis(200);
const DEFAULT_STREAM: CUstream = std::ptr::null_mut();

/// Records an error in the context, as the destructor of another object does.
fn leave_an_error(here: &Arc<peerweave_driver::CudaContext>) {
    here.record_err::<()>(Err(DriverError(CUresult::CUDA_ERROR_LAUNCH_FAILED)));
}

#[test]
fn calls_succeed_if_other_code_left_an_error_in_the_context() {
    fakes().run_many(2, |child| {
        let meeting = rendezvous(&child, DEADLINE);
        let gpu = device(child.rank);
        let mine = child.rank == 1;
        let left = || {
            if mine {
                leave_an_error(&gpu);
            }
        };
        left();
        let context = Context::from_rendezvous(&meeting, &gpu, settings(DEADLINE)).expect("NVSHMEM starts");
        assert_eq!(gpu.check_err().is_err(), mine, "the recorded error was lost during the start");
        let here = Here { stream: gpu.new_stream().expect("the stream is created"), context, rendezvous: meeting };
        let other = here.new_stream();
        left();
        let source = here.context.alloc_zeroed::<u32>(64).expect("the memory is allocated");
        let target = here.context.alloc::<u32>(64).expect("the memory is allocated");
        left();
        source.copy_from(&here.stream, &[child.rank as u32; 64]).expect("the copy completes");
        left();
        here.context.put(&target, &source, here.next(), &here.stream).expect("the work is enqueued");
        here.context.world().barrier(&here.stream).expect("the work is enqueued");
        left();
        // The next barrier is on another stream, which must wait for the first stream.
        here.context.world().barrier(&other).expect("the work is enqueued");
        left();
        assert_eq!(target.to_vec(&other).expect("the copy completes"), [here.previous(); 64]);
        left();
        here.team_of_first(2).destroy().expect("all PEs destroy the team");
        here.context.free(source).expect("all PEs free the memory");
        here.context.free(target).expect("all PEs free the memory");
        assert_eq!(gpu.check_err().is_err(), mine, "the recorded error was lost during the calls");
        here.end();
    });
}

#[test]
fn alloc_zeroed_fills_memory_while_default_stream_is_busy() {
    fakes().run_many(2, |child| {
        let here = start(&child);
        let hold = Hold::new(&here);
        let default = here.context.device().default_stream();
        hold.hold(&default);
        let memory = here.context.alloc_zeroed::<u32>(64).expect("the memory is allocated");
        assert_eq!(memory.to_vec(&here.stream).expect("the copy completes"), [0; 64]);
        here.context.world().barrier_blocking().expect("all PEs have compared the data");
        let source = here.context.alloc::<u32>(64).expect("the memory is allocated");
        source.copy_from(&here.stream, &[7; 64]).expect("the copy completes");
        here.context.put(&memory, &source, here.next(), &here.stream).expect("the work is enqueued");
        here.context.world().barrier(&here.stream).expect("the work is enqueued");
        here.stream.synchronize().expect("all PEs have put their data");
        hold.release();
        default.synchronize().expect("the stream completes");
        assert_eq!(memory.to_vec(&here.stream).expect("the copy completes"), [7; 64], "the zeros overwrote data that was put");
        [memory, source].into_iter().for_each(|memory| here.context.free(memory).expect("all PEs free the memory"));
        hold.free();
        here.end();
    });
}

#[test]
fn alloc_zeroed_returns_only_after_zeros_are_on_all_pes() {
    fakes().env("PEERWEAVE_FAKE_CUDA_LOG", "").run_many(2, |child| {
        if child.rank == 0 {
            child.put_file("id", &Context::unique_id(&settings(DEADLINE)).expect("the id is created").to_bytes());
        }
        let bytes = std::fs::read(child.file("id")).expect("the file has the id");
        let id = peerweave_nvshmem::UniqueId::try_from(bytes.as_slice()).expect("the id has 128 bytes");
        let gpu = device(child.rank);
        let context =
            Context::from_unique_id(id, Pe::new(child.rank as u32), 2, &gpu, settings(DEADLINE)).expect("NVSHMEM starts");
        if child.rank == 1 {
            // PE 1 writes its zeros with a delay.
            driver::fail("cuMemsetD8Async:*=300ms");
        }
        let memory = context.alloc_zeroed::<u64>(1).expect("the memory is allocated");
        if child.rank == 0 {
            context.put_value_blocking(&memory, 7, Pe::new(1)).expect("the put completes");
        }
        context.world().barrier_blocking().expect("all PEs make the call");
        assert_eq!(memory.to_vec(context.stream()).expect("the copy completes"), [if child.rank == 1 { 7 } else { 0 }]);
        context.free(memory).expect("all PEs free the memory");
        context.finalize().expect("all PEs finalize NVSHMEM");
        child.meet("ended");
    });
}

#[test]
fn copy_does_not_wait_for_work_enqueued_after_the_copy_began() {
    fakes().run_many(1, |child| {
        let here = start_within(&child, SHORT);
        let hold = Hold::new(&here);
        let memory = here.context.alloc_zeroed::<u32>(64).expect("the memory is allocated");
        driver::fail("cuMemcpyHtoDAsync_v2:*=300ms,cuMemcpyDtoHAsync_v2:*=300ms");
        let meanwhile = |function: &str, copy: &(dyn Fn() + Sync)| {
            let before = peerweave_fakes::entered(function);
            std::thread::scope(|scope| {
                let copying = scope.spawn(copy);
                // The stream was idle when the copy began.
                peerweave_fakes::wait_until_entered(function, before + 1);
                hold.hold(&here.stream);
                let end = Instant::now() + DEADLINE / 2;
                while !copying.is_finished() && Instant::now() < end {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let done = copying.is_finished();
                hold.release();
                copying.join().expect("the thread does not panic");
                assert!(done, "the copy waited without a deadline for work of another thread");
            });
            here.stream.synchronize().expect("the stream completes");
        };
        meanwhile("cuMemcpyHtoDAsync_v2", &|| memory.copy_from(&here.stream, &[7; 64]).expect("the copy completes"));
        hold.reset();
        meanwhile("cuMemcpyDtoHAsync_v2", &|| assert_eq!(memory.to_vec(&here.stream).expect("the copy completes"), [7; 64]));
        here.context.free(memory).expect("all PEs free the memory");
        hold.free();
        here.end();
    });
}

#[test]
fn nvshmem_start_times_out_while_the_device_is_busy() {
    fakes().run_many(1, |child| {
        let meeting = rendezvous(&child, DEADLINE);
        let gpu = device(0);
        gpu.bind_to_thread().expect("the context becomes current");
        driver::block(DEFAULT_STREAM);
        let began = Instant::now();
        says(Context::from_rendezvous(&meeting, &gpu, settings(SHORT)), &["cuCtxSynchronize"]);
        assert!(began.elapsed() < DEADLINE / 2, "{:?}", began.elapsed());
        driver::unblock(DEFAULT_STREAM);
        // No PE called NVSHMEM, so NVSHMEM can still be started.
        Context::from_rendezvous(&meeting, &gpu, settings(DEADLINE))
            .expect("NVSHMEM starts")
            .finalize()
            .expect("all PEs finalize NVSHMEM");
    });
}

fn init_module(context: &Context, keep: &Arc<String>) -> Result<ModuleGuard, NvshmemError> {
    // SAFETY: the fake library does not read the module.
    unsafe { context.init_module(std::ptr::without_provenance_mut(0x1000), Arc::clone(keep) as _) }
}

#[test]
fn module_init_times_out_while_the_device_is_busy() {
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_ANY_MODULE", "1").run_many(1, |child| {
        let here = start_within(&child, SHORT);
        let hold = Hold::new(&here);
        let keep = Arc::new("module".to_owned());
        // Inside the call, NVSHMEM would wait for the whole device.
        hold.hold(&here.stream);
        let error = init_module(&here.context, &keep).expect_err("the stream does not complete");
        assert!(matches!(error, NvshmemError::Timeout(_)), "{error}");
        hold.release();
        here.stream.synchronize().expect("the stream completes");
        // NVSHMEM's copies wait for all work of the default stream, including work of other code.
        here.context.device().bind_to_thread().expect("the context becomes current");
        driver::block(DEFAULT_STREAM);
        let error = init_module(&here.context, &keep).expect_err("the default stream does not complete");
        assert!(matches!(error, NvshmemError::Timeout(_)), "{error}");
        driver::unblock(DEFAULT_STREAM);
        common::drain_retired();
        assert_eq!(Arc::strong_count(&keep), 1);
        drop(init_module(&here.context, &keep).expect("the device is idle"));
        common::drain_retired();
        assert_eq!(Arc::strong_count(&keep), 1);
        hold.free();
        here.end();
    });
}

#[test]
fn module_stays_loaded_while_nvshmem_init_is_stuck() {
    let stuck =
        fakes().env("PEERWEAVE_FAKE_NVSHMEM_ANY_MODULE", "1").env("PEERWEAVE_FAKE_NVSHMEM_STUCK", "nvshmemx_cumodule_init");
    stuck.run_many(1, |child| {
        let here = start_within(&child, SHORT);
        let keep = Arc::new("module".to_owned());
        let error = init_module(&here.context, &keep).expect_err("the call does not return");
        assert!(matches!(error, NvshmemError::Timeout(_)), "{error}");
        assert_eq!(Arc::strong_count(&keep), 2, "a module that NVSHMEM uses was unloaded");
    });
}

#[test]
fn module_that_cannot_be_finalized_is_never_unloaded() {
    let fails = fakes().env("PEERWEAVE_FAKE_NVSHMEM_ANY_MODULE", "1");
    fails.env("PEERWEAVE_FAKE_NVSHMEM_FAIL", "nvshmemx_cumodule_finalize").run_many(1, |child| {
        let here = start(&child);
        let keep = Arc::new("module".to_owned());
        drop(init_module(&here.context, &keep).expect("the module is initialised"));
        assert_eq!(Arc::strong_count(&keep), 2, "a module that NVSHMEM did not finalise was unloaded");
        here.end();
    });
}

#[test]
fn call_queued_behind_slow_calls_of_other_threads_times_out() {
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_SLOW", "nvshmem_putmem=1500").run_many(1, |child| {
        let here = start_within(&child, Duration::from_secs(4));
        let memory = here.context.alloc::<u32>(128).expect("the memory is allocated");
        let (target, source) =
            (memory.slice(0..64).expect("the range is in bounds"), memory.slice(64..128).expect("the range is in bounds"));
        let together = Barrier::new(6);
        // Each call returns well within its own deadline, but the last calls time out at the gate.
        let put = || {
            together.wait();
            here.context.put_blocking(&target, &source, here.context.pe())
        };
        let results: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..6).map(|_| scope.spawn(put)).collect();
            threads.into_iter().map(|thread| thread.join().expect("the thread does not panic")).collect()
        });
        let late: Vec<_> = results.into_iter().filter_map(Result::err).collect();
        assert!(!late.is_empty());
        for error in late {
            assert!(matches!(error, NvshmemError::Timeout(_)), "{error}");
        }
        // After the timeouts, the gate is free again.
        here.context.put_blocking(&target, &source, here.context.pe()).expect("NVSHMEM is usable");
        drop((target, source));
        here.context.free(memory).expect("all PEs free the memory");
        here.end();
    });
}

#[test]
fn call_after_finalize_is_an_error() {
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_SLOW", "nvshmemx_hostlib_finalize=6000").run_many(1, |child| {
        let here = start(&child);
        let team = here.context.world();
        let Here { context, .. } = here;
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| {
                std::thread::sleep(Duration::from_secs(3));
                team.config()
            });
            context.finalize().expect("all PEs finalize NVSHMEM");
            let error = asked.join().expect("the thread does not panic").expect_err("NVSHMEM was finalised");
            assert!(matches!(&error, NvshmemError::Dead { state: DeadState::Finalized, .. }), "{error}");
        });
    });
}

#[test]
fn start_by_launcher_succeeds_without_the_unique_id_plugin() {
    let place = tempfile::tempdir().expect("the directory is created");
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_DIR", place.path()).env("PMI_SIZE", "1").env("PMI_RANK", "0").run_many(1, |child| {
        let library = std::env::var("PEERWEAVE_NVSHMEM_PATH").expect("the fakes set the variable");
        let alone = child.directory.join("alone");
        std::fs::create_dir(&alone).expect("the directory is created");
        let file = std::path::Path::new(&library).join("libnvshmem_host.so.3");
        std::fs::copy(file, alone.join("libnvshmem_host.so.3")).expect("the copy completes");
        // SAFETY: the process has no other thread.
        unsafe { std::env::set_var("PEERWEAVE_NVSHMEM_PATH", &alone) };
        assert!(matches!(Context::unique_id(&settings(DEADLINE)), Err(NvshmemError::Plugin(_))));
        Context::from_launcher(&device(0), settings(DEADLINE))
            .expect("NVSHMEM starts")
            .finalize()
            .expect("all PEs finalize NVSHMEM");
    });
}

#[test]
fn broken_launcher_plugin_is_an_error_before_start() {
    let place = tempfile::tempdir().expect("the directory is created");
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_DIR", place.path()).env("PMI_SIZE", "1").env("PMI_RANK", "0").run_many(1, |child| {
        let library = std::env::var("PEERWEAVE_NVSHMEM_PATH").expect("the fakes set the variable");
        let own = child.directory.join("own");
        std::fs::create_dir(&own).expect("the directory is created");
        let file = std::path::Path::new(&library).join("libnvshmem_host.so.3");
        std::fs::copy(file, own.join("libnvshmem_host.so.3")).expect("the copy completes");
        for plugin in ["pmix", "pmi2", "mpi"] {
            std::fs::write(own.join(format!("nvshmem_bootstrap_{plugin}.so.3")), "no library").expect("the file is written");
        }
        // SAFETY: the process has no other thread.
        unsafe { std::env::set_var("PEERWEAVE_NVSHMEM_PATH", &own) };
        let by = |bootstrap: &str, pmi: &str| settings(DEADLINE).bootstrap(bootstrap).bootstrap_pmi(pmi);
        for (bootstrap, pmi, plugin) in [("PMI", "PMIX", "pmix"), ("pmi", "PMI-2", "pmi2"), ("MPI", "PMI", "mpi")] {
            let error = Context::from_launcher(&device(0), by(bootstrap, pmi)).expect_err("the plug-in cannot be loaded");
            let NvshmemError::Plugin(fault) = &error else { panic!("{error}") };
            assert_eq!(fault.plugin, format!("nvshmem_bootstrap_{plugin}.so.3"));
            assert!(fault.found.contains("cannot be loaded: ") && fault.found.contains(&fault.plugin), "{error}");
        }
        // SAFETY: the call fails before it uses MPI.
        let error = unsafe { Context::from_mpi(std::ptr::null_mut(), &device(0), settings(DEADLINE)) }
            .expect_err("the plug-in cannot be loaded");
        assert!(matches!(error, NvshmemError::Plugin(_)), "{error}");
        // The requested plug-in is not in this directory, and NVSHMEM may find it elsewhere.
        Context::from_launcher(&device(0), by("PMI", "PMI"))
            .expect("NVSHMEM starts")
            .finalize()
            .expect("all PEs finalize NVSHMEM");
    });
}

#[test]
fn blocking_quiet_reports_an_earlier_device_error() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        let memory = here.context.alloc::<u32>(8).expect("the memory is allocated");
        here.context.quiet_blocking().expect("the device has no error");
        here.context.device().bind_to_thread().expect("the context becomes current");
        driver::fail_context(700);
        let error = here.context.quiet_blocking().expect_err("the device has an error");
        assert!(matches!(error, NvshmemError::Cuda(_)), "{error}");
        assert!(error.to_string().contains("ILLEGAL_ADDRESS"), "{error}");
        drop(memory);
    });
}

#[test]
fn invalid_team_member_list_is_an_immediate_error_on_all_pes() {
    fakes().run_many(3, |child| {
        let here = start(&child);
        let all: Vec<Pe> = (0..3).map(Pe::new).collect();
        let team = |number: u64, members: &[Pe]| {
            here.context.team_of(peerweave_nvshmem::TeamId::from_u64(number), members, TeamConfig::default())
        };
        let began = Instant::now();
        if child.rank == 1 {
            // This list contains a PE twice.
            assert!(matches!(misuse(team(1, &[all[0], all[1], all[1]])), MisuseKind::Value { .. }));
            // This list does not contain the calling PE.
            assert!(matches!(misuse(team(2, &[all[0], all[2]])), MisuseKind::Value { .. }));
        } else {
            says(team(1, &all), &["could not make the call", "each PE only once"]);
            says(team(2, &all), &["could not make the call", "one of the members"]);
        }
        // The same PEs in another order are a different team.
        let mine = if child.rank == 2 { [all[0], all[2], all[1]] } else { [all[0], all[1], all[2]] };
        assert!(matches!(team(3, &mine), Err(NvshmemError::Disagree(_))));
        assert!(began.elapsed() < DEADLINE / 2, "a PE waited for the deadline: {:?}", began.elapsed());
        team(4, &all).expect("all PEs pass the same list").destroy().expect("all PEs destroy the team");
        child.meet("told");
        here.end();
    });
}

#[test]
fn allocation_size_that_overflows_is_refused() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        let most = isize::MAX as usize;
        for (alignment, len) in [(1 << 63, most), (1 << 62, most), (1 << 63, 0), (8, most)] {
            let error = here.context.alloc_aligned::<u8>(alignment, len).expect_err("the size overflows");
            assert!(matches!(error, NvshmemError::Cuda(_)), "{error}");
        }
        let error = here.context.alloc_aligned::<u8>(1 << 40, 8).expect_err("the alignment exceeds the heap");
        assert!(matches!(error, NvshmemError::Nvshmem(_)), "{error}");
        here.end();
    });
}

#[test]
fn team_split_makes_no_nvshmem_call_after_one_pe_has_timed_out() {
    const PATIENCE: Duration = Duration::from_secs(4);
    fakes().run_many(3, |child| {
        child.meet("started");
        let meeting = rendezvous(&child, PATIENCE * if child.rank == 0 { 1 } else { 4 });
        let context = Context::from_rendezvous(&meeting, &device(child.rank), settings(DEADLINE)).expect("NVSHMEM starts");
        let node = context.node().expect("the team exists");
        child.meet("together");
        // PE 0 calls first and times out. PE 1 calls while PE 0 waits. PE 2 calls after PE 0 has
        // timed out.
        std::thread::sleep(PATIENCE * [0, 4, 14][child.rank] / 8);
        let began = Instant::now();
        let error = node.split_strided(0, 1, 3, TeamConfig::default()).expect_err("the PEs never called at the same time");
        match child.rank {
            0 => assert!(matches!(error, NvshmemError::Timeout(_)), "{error}"),
            _ => assert!(matches!(error, NvshmemError::Disagree(_)), "{error}"),
        }
        assert!(began.elapsed() < PATIENCE * 3, "{:?}: {error}", began.elapsed());
        child.meet("told");
        // No PE called NVSHMEM, so the context is usable.
        let memory = context.alloc::<u8>(8).expect("NVSHMEM is usable");
        context.free(memory).expect("all PEs free the memory");
        context.finalize().expect("all PEs finalize NVSHMEM");
        child.meet("ended");
    });
}

#[test]
fn timeout_error_names_all_missing_members_of_a_team_call() {
    fakes().run_many(3, |child| {
        child.meet("started");
        let meeting = rendezvous(&child, SHORT);
        let context = Context::from_rendezvous(&meeting, &device(child.rank), settings(DEADLINE)).expect("NVSHMEM starts");
        let node = context.node().expect("the team exists");
        if child.rank == 0 {
            let error = node.split_strided(0, 1, 2, TeamConfig::default()).expect_err("the other PEs do not make the call");
            assert!(matches!(error, NvshmemError::Timeout(_)), "{error}");
            says::<()>(Err(error), &["PE 1", "PE 2"]);
        }
        std::thread::sleep(A_WHILE);
        child.meet("told");
    });
}

#[test]
fn signal_wait_compares_unsigned_numbers_and_never_ends_early() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        let (word, stream) = (here.context.alloc_zeroed::<u64>(1).expect("the memory is allocated"), here.new_stream());
        let set = |value| {
            let signal = Signal { word: &word, value, op: SignalOp::Set };
            here.context.signal(&signal, here.context.pe(), &here.stream).expect("the work is enqueued");
            here.stream.synchronize().expect("the stream completes");
        };
        let passed =
            || peerweave_driver::wait(&stream, Instant::now() + Duration::from_millis(100)).expect("the stream can be queried");
        let (far, most) = ((1 << 63) | 1, u64::MAX);
        for value in [1, 1 << 62, far, most] {
            set(0);
            here.context.signal_wait(&word, Compare::Ge, value, &stream).expect("the work is enqueued");
            assert!(!passed(), "the wait for {value} or more ended at 0");
            set(value - 1);
            assert!(!passed(), "the wait for {value} or more ended at {}", value - 1);
            set(value);
            stream.synchronize().expect("the comparison becomes true");
        }
        set(most);
        here.context.signal_wait(&word, Compare::Ge, 0, &stream).expect("the comparison is always true");
        here.context.signal_wait(&word, Compare::Gt, 0, &stream).expect("the work is enqueued");
        stream.synchronize().expect("the comparison is true");
        here.context.free(word).expect("all PEs free the memory");
        here.end();
    });
}
