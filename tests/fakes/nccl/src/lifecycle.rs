//! Creates communicators from unique ids, and ends them.
//!
//! `derive` creates communicators from others. Invariant: the handle is returned before the ranks
//! have connected, so that a non-blocking program can abort an initialization.

use core::ffi::c_int;

use crate::abi::{Code, ConfigStruct, Result, UniqueId, fail, invalid, misuse};
use crate::bootstrap::{self, Members};
use crate::comm::{Comm, CommPtr, Out, not_null, undefined};
use crate::config::{self, Config};
use crate::{call, debug, driver, group, mailbox, settings, wire};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Applies the injected faults of this rank's initialization.
pub(crate) fn init_faults(comm: &Comm, rank: i32) -> Result {
    let settings = settings::get();
    let stopped = || comm.stopped();
    if settings.init_slow_ms > 0 {
        mailbox::wait_until(&stopped, Some(Duration::from_millis(settings.init_slow_ms)));
    }
    if settings.init_stuck.is_some_and(|only| only.is_none_or(|only| only == rank)) {
        mailbox::wait_until(&stopped, None);
    }
    if comm.stopped() { fail(Code::InternalError, "initialisation was aborted") } else { Ok(()) }
}

/// Returns the handle of a communicator whose members a job will set.
pub(crate) fn start(
    newcomm: *mut CommPtr,
    comm: &'static Comm,
    parent: Option<&'static Comm>,
    rank: i32,
    find: impl FnOnce(&'static Comm) -> Result<Members> + Send + 'static,
) -> Result {
    start_runtime();
    let handle = Out(newcomm);
    handle.set(comm.handle());
    let run = move || {
        init_faults(comm, rank)?;
        let members = find(comm)?;
        wire::flush(&members.addresses, &|| comm.stopped());
        let _ = comm.members.set(members);
        Ok(())
    };
    let job = group::Job { comm: Some(comm), parent, handle, run: Box::new(run) };
    // Like NCCL, returns the result of the job only if the communicator has no parent.
    if parent.is_some() { group::submit_job_silently(job) } else { group::submit_job(job) }
}

fn init_rank(newcomm: *mut CommPtr, ranks: c_int, ids: Vec<UniqueId>, rank: c_int, config: Config) -> Result {
    not_null(newcomm, "newcomm")?;
    let device = driver::chosen_device()?;
    if ranks < 1 || rank < 0 || rank >= ranks {
        return invalid(format!("Invalid rank requested : {rank}/{ranks}"));
    }
    ids.iter().try_for_each(bootstrap::check_id)?;
    driver::as_allocations_do()?;
    let comm = Comm::new(device, config);
    debug::say(
        debug::Level::Info,
        &format!("comm {:#x} rank {rank} nranks {ranks} cudaDev {} - Init START", comm.handle().address(), device.0),
    );
    start(newcomm, comm, None, rank, move |comm| bootstrap::join(&ids, ranks, rank, comm.device, &|| comm.stopped()))
}

fn destroy(comm: CommPtr) -> Result {
    if comm.is_null() {
        return Ok(());
    }
    let comm = comm.get()?;
    match comm.async_state() {
        Code::Success => {}
        Code::InProgress => return invalid("Attempt to use communicator before the previous operation returned ncclSuccess"),
        code => return fail(code, "the communicator has an asynchronous error: abort it"),
    }
    comm.drain();
    wait_for_graphs(comm);
    comm.release();
    Ok(())
}

/// Ends the process after a delay if graphs still hold operations of the communicator; NCCL waits
/// for these graphs forever.
fn wait_for_graphs(comm: &Comm) {
    let gone = || comm.persistent.load(Ordering::Acquire) == 0;
    if !mailbox::wait_until(&gone, Some(Duration::from_secs(5))) {
        undefined("a communicator ends while captured graphs still hold its operations: NCCL would wait forever");
    }
}

/// Whether the runtime inside NCCL has freed its state, at the end of the process.
static RUNTIME_GONE: AtomicBool = AtomicBool::new(false);

/// Initializes the runtime inside NCCL, which frees its state by a function at the end of the
/// process.
fn start_runtime() {
    extern "C" fn end() {
        RUNTIME_GONE.store(true, Ordering::Release);
    }
    static STARTED: Once = Once::new();
    // SAFETY: the function lives as long as the process, which never unloads this library.
    STARTED.call_once(|| assert_eq!(unsafe { libc::atexit(end) }, 0, "atexit failed"));
}

/// Ends the process if the runtime inside NCCL has freed its state.
fn needs_runtime(call: &str) {
    if RUNTIME_GONE.load(Ordering::Acquire) {
        undefined(&format!("{call} after the CUDA runtime inside NCCL has freed its state at the end of the process"));
    }
}

exports! {
    /// Creates an id, which this process serves.
    fn ncclGetUniqueId(unique_id: *mut UniqueId) {
        not_null(unique_id, "uniqueId")?;
        Out(unique_id).set(bootstrap::make_id()?);
        Ok(())
    }

    /// Creates a rank's communicator.
    fn ncclCommInitRank(comm: *mut CommPtr, nranks: c_int, comm_id: UniqueId, rank: c_int) {
        init_rank(comm, nranks, vec![comm_id], rank, Config::DEFAULT)
    }

    /// Creates a rank's communicator with a configuration.
    fn ncclCommInitRankConfig(comm: *mut CommPtr, nranks: c_int, comm_id: UniqueId, rank: c_int, config: *const ConfigStruct) {
        init_rank(comm, nranks, vec![comm_id], rank, config::read(config, Config::DEFAULT)?)
    }

    /// Creates a rank's communicator with several ids, each for a share of the ranks.
    fn ncclCommInitRankScalable(newcomm: *mut CommPtr, nranks: c_int, myrank: c_int, n_id: c_int, comm_ids: *const UniqueId,
        config: *const ConfigStruct) {
        if n_id < 1 || n_id > nranks {
            return invalid(format!("improper usage of ncclCommInitRankScalable: nId = {n_id}, nranks = {nranks}"));
        }
        not_null(comm_ids, "commId")?;
        // SAFETY: the program promises this many ids there.
        let ids = unsafe { std::slice::from_raw_parts(comm_ids, n_id as usize) };
        init_rank(newcomm, nranks, ids.to_vec(), myrank, config::read(config, Config::DEFAULT)?)
    }

    /// Creates the communicators of all devices of this process.
    fn ncclCommInitAll(comms: *mut CommPtr, ndev: c_int, devlist: *const c_int) {
        not_null(comms, "comms")?;
        if ndev < 0 {
            return invalid(format!("Invalid device count requested : {ndev}"));
        }
        let available = driver::device_count()?;
        let mut devices = Vec::new();
        for index in 0..ndev {
            // SAFETY: the program promises `ndev` devices if it gives a list.
            let device = if devlist.is_null() { index } else { unsafe { devlist.add(index as usize).read() } };
            if device < 0 || device >= available {
                return fail(Code::UnhandledCudaError, format!("Cuda failure 101 'invalid device ordinal': {device}"));
            }
            if devices.contains(&device) {
                return misuse(format!("device {device} is listed twice"));
            }
            devices.push(device);
        }
        let id = crate::random::wide();
        let addresses = vec![wire::own()?.clone(); devices.len()];
        for (rank, device) in devices.iter().enumerate() {
            let comm = Comm::new(driver::device_of_ordinal(*device)?, Config::DEFAULT);
            let members = Members { id, rank: rank as i32, addresses: addresses.clone(), devices: devices.clone() };
            init_faults(comm, members.rank)?;
            let _ = comm.members.set(members);
            // SAFETY: the program promises room for `ndev` handles.
            Out(unsafe { comms.add(rank) }).set(comm.handle());
        }
        Ok(())
    }

    /// Waits until all launches are complete; afterwards the communicator can only be destroyed.
    fn ncclCommFinalize(comm: CommPtr) {
        needs_runtime("ncclCommFinalize");
        let comm = comm.ready()?;
        if comm.revoked.load(Ordering::Acquire) {
            return misuse("a revoked communicator cannot be finalized");
        }
        if std::mem::replace(&mut comm.state().finalized, true) {
            return invalid("the communicator has already been finalized");
        }
        let stuck = call::take_effect().stuck;
        let finish = move || {
            comm.drain();
            if stuck {
                mailbox::wait_until(&|| comm.aborted.load(Ordering::Acquire), None);
            }
        };
        if comm.config.blocking {
            finish();
            return Ok(());
        }
        comm.pending.fetch_add(1, Ordering::AcqRel);
        std::thread::spawn(move || {
            finish();
            comm.pending.fetch_sub(1, Ordering::AcqRel);
            mailbox::interrupt();
        });
        crate::abi::in_progress()
    }

    /// Destroys a communicator after all launches are complete.
    fn ncclCommDestroy(comm: CommPtr) {
        needs_runtime("ncclCommDestroy");
        destroy(comm)
    }

    /// Destroys a communicator and everything that runs on it, without waiting.
    fn ncclCommAbort(comm: CommPtr) {
        needs_runtime("ncclCommAbort");
        if comm.is_null() {
            return Ok(());
        }
        let comm = comm.get()?;
        comm.abort();
        mailbox::wait_until(&|| !comm.state().running && comm.pending.load(Ordering::Acquire) == 0, None);
        wait_for_graphs(comm);
        comm.release();
        Ok(())
    }

    /// Stops everything that runs; afterwards the communicator can only be destroyed, split or
    /// shrunk.
    fn ncclCommRevoke(comm: CommPtr, revoke_flags: c_int) {
        let comm = comm.get()?;
        if revoke_flags != 0 {
            return invalid(format!("invalid revoke flags {revoke_flags}"));
        }
        if !comm.config.blocking && comm.pending.load(Ordering::Acquire) > 0 {
            undefined("a non-blocking communicator is revoked while a call is in progress: NCCL would free it twice");
        }
        if comm.revoked.swap(true, Ordering::AcqRel) {
            return misuse("the communicator was revoked before");
        }
        mailbox::interrupt();
        if call::take_effect().stuck {
            mailbox::wait_until(&|| comm.aborted.load(Ordering::Acquire), None);
        }
        mailbox::wait_until(&|| !comm.state().running, None);
        Ok(())
    }
}
