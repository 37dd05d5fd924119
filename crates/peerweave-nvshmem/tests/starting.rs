//! Tests that a failed start of NVSHMEM returns a typed error within the deadline on every PE. Also
//! tests second starts.
#![cfg(target_os = "linux")]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{DEADLINE, SHORT, device, fakes, misuse, rendezvous, says, settings, start};
use peerweave_fakes::{Child, Fakes};
use peerweave_nvshmem::{
    Context, DeadState, MisuseKind, Nvshmem, NvshmemError, PreflightError, Settings, Status, UniqueId, Version,
};
use peerweave_types::Pe;

/// Returns the error of a start. Asserts that the error was returned well before the deadline.
#[track_caller]
fn start_error(child: &Child, ordinal: usize, settings: Settings) -> NvshmemError {
    let rendezvous = rendezvous(child, DEADLINE);
    let began = Instant::now();
    let error = Context::from_rendezvous(&rendezvous, &device(ordinal), settings).expect_err("NVSHMEM does not start");
    assert!(
        began.elapsed() < DEADLINE / 2,
        "the start failed after {:?}, expected less than half of the deadline: {error}",
        began.elapsed()
    );
    // PE 0 runs the server of the rendezvous, and must wait until the other PEs have their
    // responses.
    child.meet("told");
    error
}

/// Sets a variable of this child process before the variable is read.
fn set(name: &str, value: &str) {
    // SAFETY: this is the only thread of the child that reads the environment through C.
    unsafe { std::env::set_var(name, value) };
}

#[test]
fn start_error_for_a_missing_library_lists_every_tried_path() {
    let nowhere = Fakes::new().cuda().env("PEERWEAVE_NVSHMEM_PATH", "/nowhere/at/all");
    nowhere.run_many(2, |child| {
        let error = start_error(&child, child.rank, settings(DEADLINE));
        assert!(matches!(&error, NvshmemError::Load(load) if !load.tried.is_empty()), "{error}");
        assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
        says(Nvshmem::load(), &["PEERWEAVE_NVSHMEM_PATH"]);
        assert!(Context::current().is_none());
    });
}

#[test]
fn error_names_the_pe_on_which_the_library_is_missing() {
    fakes().run_many(3, |child| {
        if child.rank == 1 {
            set("PEERWEAVE_NVSHMEM_PATH", "/nowhere/at/all");
        }
        let error = start_error(&child, child.rank, settings(DEADLINE));
        match &error {
            NvshmemError::Load(_) => assert_eq!(child.rank, 1),
            NvshmemError::Preflight(inner) => assert!(
                matches!(&**inner, PreflightError::Peer { pe, reason } if pe.get() == 1 && reason.contains("/nowhere")),
                "{error}"
            ),
            _ => panic!("{error}"),
        }
        // No PE called NVSHMEM, so NVSHMEM can still be started.
        assert!(Context::current().is_none());
    });
}

#[test]
fn start_with_a_library_without_plugins_is_an_error() {
    fakes().run_many(2, |child| {
        let library = std::env::var("PEERWEAVE_NVSHMEM_PATH").expect("the fakes set the variable");
        let alone = child.directory.join(format!("alone-{}", child.rank));
        std::fs::create_dir(&alone).expect("the directory is created");
        let file = std::path::Path::new(&library).join("libnvshmem_host.so.3");
        std::fs::copy(file, alone.join("libnvshmem_host.so.3")).expect("the copy completes");
        set("PEERWEAVE_NVSHMEM_PATH", &alone.to_string_lossy());
        let error = start_error(&child, child.rank, settings(DEADLINE));
        assert!(matches!(error, NvshmemError::Plugin(_)), "{error}");
        let directory = alone.to_string_lossy().into_owned();
        says(Context::unique_id(&Settings::default()), &["nvshmem_bootstrap_uid.so.3", &directory, "no file of this plug-in"]);
        // NVSHMEM would load the transport of another version, and end the process.
        let plugin = alone.join("nvshmem_bootstrap_uid.so.3");
        std::fs::write(&plugin, "").expect("the file is written");
        std::fs::write(alone.join("nvshmem_transport_ibrc.so.2"), "").expect("the file is written");
        let nvshmem = Nvshmem::load().expect("the library is loaded");
        says(nvshmem.check_plugins("ibrc"), &["nvshmem_transport_ibrc.so.7", "different version"]);
        nvshmem.check_plugins("none").expect("no transport is requested");
    });
}

#[test]
fn error_for_a_too_old_nvshmem_names_both_versions() {
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_VERSION", "3.2.5").run_many(1, |_| {
        let error = says(Nvshmem::load(), &["needs NVSHMEM 3.3.0, found 3.2.5"]);
        assert!(matches!(error, NvshmemError::Unsupported(_)), "{error}");
    });
}

#[test]
fn missing_nvshmem_function_is_an_error_before_start() {
    fakes().without("nvshmem_team_n_pes").run_many(2, |child| {
        let error = start_error(&child, child.rank, settings(DEADLINE));
        assert!(matches!(&error, NvshmemError::Unsupported(it) if it.what == "nvshmem_team_n_pes"), "{error}");
        // NVSHMEM was not called, so it can still be started.
        let status = Nvshmem::load().and_then(Nvshmem::status).expect("the library reports its status");
        assert_eq!(status, Status::NotInitialized);
    });
}

#[test]
fn error_for_different_versions_names_the_other_pe() {
    fakes().run_many(2, |child| {
        set("PEERWEAVE_FAKE_NVSHMEM_VERSION", ["3.8.0", "3.6.5"][child.rank]);
        let error = start_error(&child, child.rank, settings(DEADLINE));
        let NvshmemError::Preflight(inner) = &error else { panic!("{error}") };
        let PreflightError::Versions { pe, theirs, ours } = &**inner else { panic!("{error}") };
        assert_eq!((pe.get(), theirs.as_str()), [(1, "3.6.5"), (0, "3.8.0")][child.rank]);
        assert_eq!(*ours, [Version::new(3, 8, 0), Version::new(3, 6, 5)][child.rank]);
    });
}

#[test]
fn error_for_different_settings_shows_both_values() {
    fakes().run_many(2, |child| {
        let error = start_error(&child, child.rank, settings(DEADLINE).max_teams(8 + child.rank as u64));
        assert!(
            matches!(&error, NvshmemError::Preflight(inner) if matches!(**inner, PreflightError::Settings { .. })),
            "{error}"
        );
        assert!(
            error.to_string().contains("NVSHMEM_MAX_TEAMS=8") && error.to_string().contains("NVSHMEM_MAX_TEAMS=9"),
            "{error}"
        );
    });
}

#[test]
fn start_succeeds_after_two_pes_no_longer_share_a_gpu() {
    fakes().run_many(3, |child| {
        let rendezvous = rendezvous(&child, DEADLINE);
        let shared = [0, 1, 0][child.rank];
        let error = Context::from_rendezvous(&rendezvous, &device(shared), settings(DEADLINE)).expect_err("two PEs share a GPU");
        let NvshmemError::Preflight(inner) = &error else { panic!("{error}") };
        assert!(matches!(&**inner, PreflightError::SharedGpu { pes, .. } if *pes == [Pe::new(0), Pe::new(2)]), "{error}");
        let context = Context::from_rendezvous(&rendezvous, &device(child.rank), settings(DEADLINE))
            .expect("NVSHMEM starts with separate GPUs");
        context.finalize().expect("all PEs finalize NVSHMEM");
    });
}

#[test]
fn heap_larger_than_the_device_is_refused_before_start() {
    fakes().run_many(2, |child| {
        let own = settings(DEADLINE).heap_step_bytes(1 << 50);
        let error = start_error(&child, child.rank, own);
        assert!(
            matches!(&error, NvshmemError::Preflight(inner) if matches!(**inner, PreflightError::DeviceMemory { .. })),
            "{error}"
        );
    });
}

#[test]
fn heap_size_with_a_unit_is_checked_before_start() {
    fakes().run_many(2, |child| {
        // With a heap of fixed size, NVSHMEM allocates the whole heap when it starts.
        let own = settings(DEADLINE).variable("NVSHMEM_DISABLE_CUDA_VMM", "true").variable("NVSHMEM_SYMMETRIC_SIZE", "1024T");
        let error = start_error(&child, child.rank, own);
        let NvshmemError::Preflight(inner) = &error else { panic!("{error}") };
        assert!(matches!(**inner, PreflightError::DeviceMemory { needed_bytes, .. } if needed_bytes == 1 << 50), "{error}");
    });
}

#[test]
fn start_error_at_the_deadline_names_the_missing_pe() {
    fakes().run_many(3, |child| {
        child.meet("started");
        let rendezvous = rendezvous(&child, SHORT);
        if child.rank == 2 {
            child.wait_for_file("done-0");
            child.wait_for_file("done-1");
            return;
        }
        let began = Instant::now();
        let error = Context::from_rendezvous(&rendezvous, &device(child.rank), settings(SHORT)).expect_err("PE 2 is missing");
        assert!(matches!(error, NvshmemError::Bootstrap { .. }), "{error}");
        assert!(error.to_string().contains("PE 2"), "{error}");
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        child.put_file(&format!("done-{}", child.rank), b"");
    });
}

#[test]
fn start_by_id_times_out_if_a_pe_is_missing() {
    fakes().run_many(1, |_| {
        let id = Context::unique_id(&settings(SHORT)).expect("the id is created");
        let began = Instant::now();
        let error = Context::from_unique_id(id, Pe::new(0), 2, &device(0), settings(SHORT)).expect_err("PE 1 does not start");
        assert!(matches!(error, NvshmemError::Timeout(_)), "{error}");
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        let error =
            Context::from_unique_id(id, Pe::new(0), 1, &device(0), settings(SHORT)).expect_err("a call is still inside NVSHMEM");
        assert!(matches!(&error, NvshmemError::Dead { state: DeadState::Stuck { .. }, .. }), "{error}");
        // The fake's own timeout is longer than this deadline, and would end the process.
    });
}

#[test]
fn failed_initialisation_on_one_pe_is_an_error_on_both_pes() {
    let fails = fakes().env("PEERWEAVE_FAKE_NVSHMEM_FAIL", "nvshmemx_hostlib_init_attr@1:1=5");
    fails.run_many(2, |child| {
        let rendezvous = rendezvous(&child, DEADLINE);
        let error = Context::from_rendezvous(&rendezvous, &device(child.rank), settings(SHORT)).expect_err("PE 1 fails");
        let state = if child.rank == 1 {
            assert!(matches!(&error, NvshmemError::Nvshmem(_)), "{error}");
            assert_eq!(error.code().map(|code| code.get()), Some(5));
            DeadState::InitFailed
        } else {
            assert!(matches!(&error, NvshmemError::Timeout(_)), "{error}");
            DeadState::Stuck { inside: "nvshmemx_hostlib_init_attr" }
        };
        child.meet("told");
        let again = Context::from_unique_id(UniqueId::from_bytes([0; 128]), Pe::new(0), 1, &device(child.rank), settings(SHORT));
        let error = again.expect_err("NVSHMEM can no longer be used");
        assert!(matches!(&error, NvshmemError::Dead { state: found, .. } if *found == state), "{error}");
    });
}

#[test]
fn second_start_returns_a_handle_if_the_arguments_are_equal() {
    fakes().run_many(2, |child| {
        let here = start(&child);
        let own = device(child.rank);
        let again = Context::from_rendezvous(&here.rendezvous, &own, settings(DEADLINE)).expect("the arguments are equal");
        assert_eq!(again.pe(), here.context.pe());
        let differs = |result: Result<Context, NvshmemError>, expected: &str| match misuse(result) {
            MisuseKind::AlreadyInitialized { what, .. } => assert_eq!(what, expected),
            other => panic!("{other}"),
        };
        let other = device(1 - child.rank);
        differs(Context::from_rendezvous(&here.rendezvous, &other, settings(DEADLINE)), "the device");
        differs(Context::from_rendezvous(&here.rendezvous, &own, settings(DEADLINE).max_teams(9)), "the settings");
        differs(Context::from_rendezvous(&here.rendezvous, &own, settings(SHORT)), "the settings");
        let id = UniqueId::from_bytes([7; 128]);
        differs(Context::from_unique_id(id, Pe::new(0), 2, &own, settings(DEADLINE)), "the bootstrap");
        differs(Context::from_launcher(&own, settings(DEADLINE)), "the bootstrap");
        // Handles are counted: only the release of the last one finalises NVSHMEM.
        let third = Context::current().expect("NVSHMEM is running");
        assert_eq!(third.finalize().expect("two other handles exist").other_handles, 2);
        assert_eq!(again.finalize().expect("one other handle exists").other_handles, 1);
        assert_eq!(here.context.status().expect("the library reports its status"), Status::Initialized);
        here.end();
        assert!(Context::current().is_none());
    });
}

#[test]
fn team_is_unusable_after_finalize_even_if_nvshmem_restarts() {
    fakes().run_many(2, |child| {
        let first = start(&child);
        let (team, world) = (first.context.world(), first.context.clone());
        let stream = first.stream.clone();
        drop(world);
        let rendezvous = Arc::clone(&first.rendezvous);
        first.context.finalize().expect("all PEs finalize NVSHMEM");
        let error = team.barrier(&stream).expect_err("the context was finalised");
        assert!(matches!(&error, NvshmemError::Dead { state: DeadState::Finalized, .. }), "{error}");
        let second =
            Context::from_rendezvous(&rendezvous, &device(child.rank), settings(DEADLINE)).expect("NVSHMEM starts again");
        let buffer = second.alloc::<u32>(8).expect("the memory is allocated");
        let error = buffer.multicast_address(&team).expect_err("multicast is disabled");
        assert!(matches!(error, NvshmemError::MulticastDisabled(_)), "{error}");
        assert!(matches!(team.barrier(&stream), Err(NvshmemError::Dead { .. })));
        second.world().barrier_blocking().expect("all PEs make the call");
        second.free(buffer).expect("all PEs free the memory");
        second.finalize().expect("all PEs finalize NVSHMEM");
    });
}

#[test]
fn start_refuses_invalid_arguments() {
    fakes().run_many(1, |_| {
        let own = device(0);
        let id = UniqueId::from_bytes([0; 128]);
        let refused = misuse(Context::from_unique_id(id, Pe::new(2), 2, &own, settings(DEADLINE)));
        assert_eq!(refused, MisuseKind::Pe { what: "this PE", found: Pe::new(2), n_pes: 2 });
        let refused = misuse(Context::from_unique_id(id, Pe::new(0), u32::MAX, &own, settings(DEADLINE)));
        assert!(matches!(refused, MisuseKind::Pe { .. }), "{refused}");
        for wrong in [settings(DEADLINE).variable("PATH", "x"), settings(DEADLINE).debug("a\0")] {
            let refused = misuse(Context::from_launcher(&own, wrong));
            assert!(matches!(refused, MisuseKind::Text { .. }), "{refused}");
        }
        assert!(Context::current().is_none());
        // NVSHMEM itself refuses an id that no process created.
        let error = Context::from_unique_id(id, Pe::new(0), 1, &own, settings(DEADLINE)).expect_err("no process created the id");
        assert!(matches!(error, NvshmemError::Nvshmem(_)), "{error}");
    });
}

#[test]
fn launcher_bootstrap_without_a_launcher_is_an_error() {
    fakes().env_remove("PMI_RANK").run_many(1, |_| {
        let error = Context::from_launcher(&device(0), settings(DEADLINE)).expect_err("no launcher started the process");
        assert!(matches!(error, NvshmemError::Nvshmem(_)), "{error}");
    });
    fakes().run_many(1, |_| {
        let communicator = std::ptr::dangling_mut::<u64>();
        // SAFETY: the fake library refuses MPI and does not read the communicator.
        let error =
            unsafe { Context::from_mpi(communicator.cast(), &device(0), settings(DEADLINE)) }.expect_err("the fake refuses MPI");
        assert!(matches!(error, NvshmemError::Nvshmem(_)), "{error}");
    });
}

#[test]
fn context_from_launcher_starts_nvshmem_without_a_rendezvous() {
    let place = tempfile::tempdir().expect("the directory is created");
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_DIR", place.path()).env("PMI_SIZE", "2").run_many(2, |child| {
        set("PMI_RANK", &child.rank.to_string());
        let context = Context::from_launcher(&device(child.rank), settings(DEADLINE)).expect("NVSHMEM starts");
        assert_eq!((context.pe().get() as usize, context.n_pes()), (child.rank, 2));
        assert_eq!(context.info().bootstrap, "the launcher");
        let memory = context.alloc_zeroed::<u64>(3).expect("the memory is allocated");
        assert_eq!(memory.to_vec(context.stream()).expect("the copy completes"), [0; 3]);
        let team = context.world().split_2d(1, Default::default()).expect("the team is split").1;
        team.barrier_blocking().expect("all PEs make the call");
        team.destroy().expect("all PEs destroy the team");
        context.free(memory).expect("all PEs free the memory");
        context.finalize().expect("all PEs finalize NVSHMEM");
        // A start by a launcher cannot be repeated in a process.
        let error = Context::from_launcher(&device(child.rank), settings(DEADLINE)).expect_err("NVSHMEM can no longer be used");
        assert!(matches!(&error, NvshmemError::Dead { state: DeadState::Finalized, .. }), "{error}");
    });
}

#[test]
fn start_with_an_id_from_the_caller_succeeds() {
    fakes().run_many(2, |child| {
        if child.rank == 0 {
            child.put_file("id", &Context::unique_id(&settings(DEADLINE)).expect("the id is created").to_bytes());
        }
        let bytes = std::fs::read(child.file("id")).expect("the file has the id");
        let id = UniqueId::try_from(bytes.as_slice()).expect("the id has 128 bytes");
        let context = Context::from_unique_id(id, Pe::new(child.rank as u32), 2, &device(child.rank), settings(DEADLINE));
        let context = context.expect("NVSHMEM starts");
        context.world().barrier_blocking().expect("all PEs make the call");
        context.finalize().expect("all PEs finalize NVSHMEM");
        child.meet("ended");
    });
}

#[test]
fn call_in_a_forked_child_is_refused() {
    fakes().run_many(1, |child| {
        let here = start(&child);
        let memory = here.context.alloc::<u8>(8).expect("the memory is allocated");
        // SAFETY: the child calls no function that needs the parent's threads, and ends by `_exit`.
        let process = unsafe { libc::fork() };
        if process == 0 {
            let forked = |result: Result<(), NvshmemError>| matches!(result, Err(NvshmemError::Forked { .. }));
            let right = forked(Nvshmem::load().map(drop))
                && forked(here.context.world().barrier(&here.stream))
                && forked(here.context.alloc::<u8>(1).map(drop))
                && forked(memory.to_vec(&here.stream).map(drop));
            // SAFETY: the call only ends the process.
            unsafe { libc::_exit(if right { 0 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: the process is a child of this process, and the pointer is to a live integer.
        assert_eq!(unsafe { libc::waitpid(process, &raw mut status, 0) }, process);
        assert_eq!(status, 0, "the call in the forked child was not refused");
        here.context.free(memory).expect("all PEs free the memory");
        here.end();
    });
}

#[test]
fn missing_interface_error_lists_the_existing_interfaces() {
    fakes().run_many(2, |child| {
        let error = start_error(&child, child.rank, settings(DEADLINE).bootstrap_interface("=wrong0"));
        let is_it = |inner: &PreflightError| matches!(inner, PreflightError::Interface { asked, .. } if asked == "=wrong0");
        assert!(matches!(&error, NvshmemError::Preflight(inner) if is_it(inner)), "{error}");
        says(Context::unique_id(&settings(DEADLINE).bootstrap_interface("wrong")), &["`wrong`", "lo"]);
    });
}

#[test]
fn start_without_peer_access_or_network_is_refused() {
    fakes().env("PEERWEAVE_FAKE_CUDA_NO_PEER", "0-1,1-0").run_many(2, |child| {
        let error = start_error(&child, child.rank, settings(DEADLINE));
        assert!(
            matches!(&error, NvshmemError::Preflight(inner) if matches!(&**inner, PreflightError::Unreachable { pe, .. } if pe.index() != child.rank)),
            "{error}"
        );
    });
}

#[test]
fn broken_id_plugin_is_refused_before_nvshmem_is_called() {
    fakes().run_many(1, |child| {
        let library = std::env::var("PEERWEAVE_NVSHMEM_PATH").expect("the fakes set the variable");
        let alone = child.directory.join("alone");
        std::fs::create_dir(&alone).expect("the directory is created");
        let file = std::path::Path::new(&library).join("libnvshmem_host.so.3");
        std::fs::copy(file, alone.join("libnvshmem_host.so.3")).expect("the copy completes");
        std::fs::write(alone.join("nvshmem_bootstrap_uid.so.3"), "no library").expect("the file is written");
        set("PEERWEAVE_NVSHMEM_PATH", &alone.to_string_lossy());
        says(Context::unique_id(&settings(DEADLINE)), &["nvshmem_bootstrap_uid.so.3", "cannot be loaded"]);
        // A plug-in that its variable selects is not checked.
        let named = settings(DEADLINE).variable("NVSHMEM_BOOTSTRAP_UID_PLUGIN", &format!("{library}/nvshmem_bootstrap_uid.so.3"));
        let id = Context::unique_id(&named).expect("the id is created");
        Context::from_unique_id(id, Pe::new(0), 1, &device(0), named)
            .expect("NVSHMEM starts")
            .finalize()
            .expect("all PEs finalize NVSHMEM");
    });
}

#[test]
fn unique_id_is_not_requested_again_after_a_failure() {
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_FAIL", "nvshmemx_get_uniqueid:1").run_many(1, |_| {
        let error = Context::unique_id(&settings(DEADLINE)).expect_err("the call fails");
        assert!(matches!(error, NvshmemError::Nvshmem(_)), "{error}");
        // In a second call, NVSHMEM would free its plug-in again.
        let again = Context::unique_id(&settings(DEADLINE)).expect_err("NVSHMEM can no longer be used");
        assert!(matches!(again, NvshmemError::Dead { state: DeadState::InitFailed, .. }), "{again}");
        let start = Context::from_launcher(&device(0), settings(DEADLINE)).expect_err("NVSHMEM can no longer be used");
        assert!(matches!(start, NvshmemError::Dead { state: DeadState::InitFailed, .. }), "{start}");
    });
}

#[test]
fn nvshmem_failure_after_pes_are_connected_is_an_error() {
    fakes().run_many(2, |child| {
        let gives_up = settings(DEADLINE).variable("NVSHMEM_MAX_TEAMS", "many");
        let error = start_error(&child, child.rank, gives_up.clone());
        assert!(matches!(error, NvshmemError::Nvshmem(_)), "{error}");
        assert!(error.to_string().contains("failed after the PEs were connected"), "{error}");
        assert!(Context::current().is_none());
        let again = Context::unique_id(&gives_up)
            .and_then(|id| Context::from_unique_id(id, Pe::new(0), 1, &device(child.rank), gives_up).map(drop));
        let again = again.expect_err("NVSHMEM cannot be started again");
        assert!(matches!(again, NvshmemError::Dead { state: DeadState::InitFailed, .. }), "{again}");
    });
}

#[test]
fn start_fails_immediately_if_one_pe_already_runs_nvshmem() {
    fakes().run_many(2, |child| {
        let meeting = rendezvous(&child, DEADLINE);
        let running = (child.rank == 1).then(|| {
            let id = Context::unique_id(&settings(DEADLINE)).expect("the id is created");
            Context::from_unique_id(id, Pe::new(0), 1, &device(1), settings(DEADLINE)).expect("NVSHMEM starts")
        });
        child.meet("ready");
        let began = Instant::now();
        let error = Context::from_rendezvous(&meeting, &device(child.rank), settings(DEADLINE)).expect_err("one PE cannot start");
        assert!(began.elapsed() < DEADLINE / 4, "{error} after {:?}", began.elapsed());
        assert!(error.to_string().contains("the bootstrap"), "{error}");
        if let Some(running) = running {
            running.finalize().expect("all PEs finalize NVSHMEM");
        }
        // All PEs have made the same rendezvous calls, so the rendezvous is usable.
        child.meet("ended");
        Context::from_rendezvous(&meeting, &device(child.rank), settings(DEADLINE))
            .expect("NVSHMEM starts")
            .finalize()
            .expect("all PEs finalize NVSHMEM");
    });
}

#[test]
fn settings_that_affect_collectives_must_be_equal_on_all_pes() {
    fakes().run_many(2, |child| {
        let own = match child.rank {
            0 => settings(DEADLINE).disable_nccl(true).debug_file("one"),
            _ => settings(DEADLINE).variable("NVSHMEM_REDUCE_ALGO", "2").debug_file("another"),
        };
        let error = start_error(&child, child.rank, own);
        let text = error.to_string();
        assert!(text.contains("NVSHMEM_DISABLE_NCCL=1") && text.contains("NVSHMEM_REDUCE_ALGO=2"), "{text}");
        assert!(!text.contains("DEBUG_FILE"), "{text}");
    });
}

#[test]
fn equal_heap_sizes_in_different_units_are_accepted() {
    fakes().run_many(2, |child| {
        let size = if child.rank == 0 { "64M" } else { "67108864" };
        let own =
            settings(DEADLINE).variable("NVSHMEM_SYMMETRIC_SIZE", size).nvtx(if child.rank == 0 { "off" } else { "common" });
        let meeting = rendezvous(&child, DEADLINE);
        Context::from_rendezvous(&meeting, &device(child.rank), own)
            .expect("NVSHMEM starts")
            .finalize()
            .expect("all PEs finalize NVSHMEM");
    });
}

#[test]
fn pes_that_cannot_reach_each_other_do_not_start_nvshmem() {
    fakes().run_many(2, |child| {
        let error = start_error(&child, child.rank, settings(DEADLINE).disable_p2p(true));
        let unreachable =
            matches!(&error, NvshmemError::Preflight(fault) if matches!(**fault, PreflightError::Unreachable { .. }));
        assert!(unreachable, "{error}");
        assert!(Context::current().is_none());
    });
}

#[test]
fn unknown_bootstrap_is_refused_before_nvshmem_is_called() {
    fakes().run_many(1, |_| {
        for bootstrap in ["UID", "plugin"] {
            let kind = misuse(Context::from_launcher(&device(0), settings(DEADLINE).bootstrap(bootstrap)));
            assert!(matches!(kind, MisuseKind::Text { what: "NVSHMEM_BOOTSTRAP", .. }), "{kind:?}");
        }
        let id = Context::unique_id(&settings(DEADLINE)).expect("the id is created");
        let context = Context::from_unique_id(id, Pe::new(0), 1, &device(0), settings(DEADLINE)).expect("NVSHMEM starts");
        let other = says(
            Context::from_unique_id(id, Pe::new(0), 1, &device(0), settings(SHORT)),
            &[format!("a deadline of {DEADLINE:?}").as_str(), &format!("a deadline of {SHORT:?}")],
        );
        assert!(other.misuse_kind().is_some(), "{other}");
        context.finalize().expect("all PEs finalize NVSHMEM");
    });
}

#[test]
fn multicast_stays_disabled_if_nvshmem_is_started_by_an_id() {
    let fakes = fakes().env("PEERWEAVE_FAKE_NVSHMEM_MULTICAST", "1").env_remove("NVSHMEM_DISABLE_NVLS");
    fakes.run_many(1, |_| {
        // NVSHMEM reads its settings in this call, and only once.
        let id = Context::unique_id(&settings(DEADLINE)).expect("the id is created");
        let context = Context::from_unique_id(id, Pe::new(0), 1, &device(0), settings(DEADLINE)).expect("NVSHMEM starts");
        let memory = context.alloc::<u8>(8).expect("the memory is allocated");
        // SAFETY: the fake's function takes a team and an address, and only looks up the address.
        let address = unsafe {
            let name = c"nvshmemx_mc_ptr";
            let function = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
            assert!(!function.is_null(), "the fake library must be loaded");
            let function = std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn(i32, u64) -> usize>(function);
            function(0, memory.address())
        };
        assert_eq!(address, 0, "multicast must be disabled");
        context.free(memory).expect("all PEs free the memory");
        context.finalize().expect("all PEs finalize NVSHMEM");
    });
}

#[test]
fn settings_changed_after_the_first_start_are_refused() {
    fakes().run_many(2, |child| {
        let meeting = rendezvous(&child, DEADLINE);
        let begin = |settings| Context::from_rendezvous(&meeting, &device(child.rank), settings);
        begin(settings(DEADLINE)).expect("NVSHMEM starts").finalize().expect("all PEs finalize NVSHMEM");
        let other = settings(DEADLINE).max_teams(64);
        let kind = misuse(begin(other));
        assert!(matches!(&kind, MisuseKind::AlreadyInitialized { asked, .. } if asked == "NVSHMEM_MAX_TEAMS=64"), "{kind:?}");
        begin(settings(SHORT)).expect("the deadline is not a setting of NVSHMEM").finalize().expect("all PEs finalize NVSHMEM");
    });
}

#[test]
fn start_with_new_settings_succeeds_after_a_refused_start() {
    fakes().run_many(2, |child| {
        let meeting = rendezvous(&child, DEADLINE);
        let begin = |settings| Context::from_rendezvous(&meeting, &device(child.rank), settings);
        begin(settings(DEADLINE).max_teams(20 + child.rank as u64)).map(drop).expect_err("the settings of the PEs differ");
        begin(settings(DEADLINE).max_teams(30)).expect("the settings are equal").finalize().expect("all PEs finalize NVSHMEM");
    });
}

#[test]
fn start_with_an_unexpected_number_of_pes_is_an_error() {
    fakes().env("PEERWEAVE_FAKE_NVSHMEM_FAIL", "nvshmem_n_pes=3").run_many(1, |_| {
        let id = Context::unique_id(&settings(DEADLINE)).expect("the id is created");
        let started = Context::from_unique_id(id, Pe::new(0), 1, &device(0), settings(DEADLINE));
        says(started, &["PE 0 of 3, expected PE 0 of 1"]);
        assert!(Context::current().is_none());
    });
}

#[test]
fn error_for_a_gpu_before_volta_names_the_capability() {
    fakes().env("PEERWEAVE_FAKE_CUDA_CAPABILITY", "6.1").run_many(1, |child| {
        let error =
            Context::from_rendezvous(&rendezvous(&child, DEADLINE), &device(0), settings(DEADLINE)).expect_err("the GPU is too old");
        assert!(matches!(&error, NvshmemError::Preflight(it) if matches!(**it, PreflightError::OldGpu { device: 0, major: 6, minor: 1 })), "{error}");
        assert!(error.to_string().contains("compute capability 6.1, expected at least 7.0"), "{error}");
        assert_eq!(Nvshmem::load().expect("the fake library is loaded").status().expect("the library reports its status"), Status::NotInitialized);
    });
}
