//! Creation of communicators: calls NCCL, and waits until the new communicators are ready.
//!
//! `builder.rs` has the public methods. `split.rs` creates children of a communicator.
//!
//! Invariant: NCCL writes a new handle to memory that lives until NCCL is done, even after an error
//! or a timeout.

use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use peerweave_driver::cudarc::driver::sys::CUcontext;
use peerweave_driver::{CudaContext, CudaError, Driver, DriverError, relaxed, wait_until};
use peerweave_dylib::MissingSymbol;

use crate::comm::abort::{ABORT_LIMIT, abort_handles};
use crate::comm::communicator::Communicator;
use crate::comm::complete::{enter_blocking_all, leave_blocking_all, refuse_group};
use crate::comm::teardown::no_thread_error;
use crate::config::of_communicator::RawConfig;
use crate::library::error::{CommunicatorName, MisuseKind, NcclError, Timeout};
use crate::member::membership::{Handle, Inner, Parts, World, bounded, set_current};
use crate::member::spans;
use crate::member::state::Inside;
use crate::sys::{Api, ncclComm, ncclComm_t, ncclResult_t};
use crate::{Config, Nccl, Rank, Switch, UniqueId};

/// Checks the arguments with which communicators are created. Fails if the number of ranks is
/// invalid, if a rank is out of range, or if a rank or a device is repeated.
pub(crate) fn check_members(call: &'static str, members: &[(Arc<CudaContext>, Rank)], n_ranks: usize) -> Result<(), NcclError> {
    let value = |what, found: usize, expected| {
        Err(NcclError::misuse(call, MisuseKind::Value { what, found: i64::try_from(found).unwrap_or(i64::MAX), expected }))
    };
    if n_ranks == 0 || c_int::try_from(n_ranks).is_err() {
        return value("the number of ranks", n_ranks, "a number from 1 to 2147483647");
    }
    if members.is_empty() {
        return value("the number of ranks of this thread", 0, "a number of at least 1");
    }
    for (index, (context, rank)) in members.iter().enumerate() {
        if rank.index() >= n_ranks {
            return Err(NcclError::misuse(call, MisuseKind::Rank { what: "the rank", found: *rank, ranks: n_ranks }));
        }
        for (other_context, other_rank) in &members[..index] {
            if rank == other_rank {
                return value("the rank", rank.index(), "a rank that occurs only once in the list");
            }
            if context.ordinal() == other_context.ordinal() {
                return value("the device", context.ordinal(), "a device that occurs only once in the list");
            }
        }
    }
    Ok(())
}

/// Arguments with which the ranks of this thread join a communicator.
pub(crate) struct JoinRequest<'a> {
    pub(crate) nccl: Nccl,
    /// The ranks that this thread adds to the communicator, each with its CUDA context.
    pub(crate) members: &'a [(Arc<CudaContext>, Rank)],
    pub(crate) n_ranks: usize,
    pub(crate) ids: &'a [UniqueId],
    pub(crate) config: &'a Config,
    /// Time when the call began. The communicators must be ready within `deadline` after this time.
    pub(crate) began: Instant,
    pub(crate) deadline: Duration,
    pub(crate) world: Option<World>,
}

/// Creates the communicators of all ranks of this thread. The caller has checked the arguments.
pub(crate) fn init(call: &'static str, joining: JoinRequest<'_>) -> Result<Vec<Communicator>, NcclError> {
    let JoinRequest { nccl, members, n_ranks, ids, config, began, deadline, world } = joining;
    let (config, blocking) = with_mode(config.clone());
    let mut raw: Vec<RawConfig> = Vec::new();
    for _ in members {
        raw.push(config.to_raw(call, nccl)?);
    }
    let mut raw_ids: Vec<_> = ids.iter().map(|id| id.to_raw()).collect();
    let contexts: Vec<_> = members.iter().map(|(context, _)| Arc::clone(context)).collect();
    let n = c_int::try_from(n_ranks).unwrap_or(c_int::MAX);
    let ranks: Vec<_> = members.iter().map(|(_, rank)| c_int::try_from(rank.get()).unwrap_or(c_int::MAX)).collect();
    let rest = bounded(deadline).saturating_sub(began.elapsed());
    let handles = make_first(call, nccl, &contexts, blocking, rest, move |api, index, out| {
        let (rank, config) = (ranks[index], raw[index].as_mut_ptr());
        match raw_ids.as_mut_slice() {
            // SAFETY: `out` points to memory for the handle that lives as long as NCCL may write to
            // it. `make` has made the device's context current. NCCL reads the configuration only
            // during the call.
            [id] => unsafe { api.ncclCommInitRankConfig(out, n, *id, rank, config) },
            // SAFETY: as above. NCCL only reads the ids, during the call.
            ids => unsafe {
                let n_ids = c_int::try_from(ids.len()).unwrap_or(c_int::MAX);
                api.ncclCommInitRankScalable(out, n, rank, n_ids, ids.as_mut_ptr(), config)
            },
        }
    })?;
    let identity = ids.iter().fold(SEED, |hash, id| mix(hash, id.as_bytes()));
    adopt_all(handles, &contexts, |handle, context| Parts {
        nccl,
        handle,
        context,
        name: config.name_set().map(str::to_owned),
        identity,
        blocking,
        deadline,
        world: world.clone(),
    })
}

/// Switches [`Config::blocking`] on if `config` does not set this option. Returns the resulting
/// configuration, and whether its communicators are blocking.
pub(crate) fn with_mode(config: Config) -> (Config, bool) {
    match config.blocking_set() {
        None => (config.blocking(Switch::On), true),
        Some(mode) => (config, mode == Switch::On),
    }
}

/// Creates a communicator from each handle. If one creation fails, ends all of the new
/// communicators and returns the error.
pub(crate) fn adopt_all(
    handles: Vec<Option<Handle>>,
    contexts: &[Arc<CudaContext>],
    parts: impl Fn(Handle, Arc<CudaContext>) -> Parts,
) -> Result<Vec<Communicator>, NcclError> {
    let found = handles.into_iter().zip(contexts).filter_map(|(handle, context)| Some((handle?, Arc::clone(context))));
    // Even if one creation fails, the other communicators are created. All of them are then
    // dropped, which ends them.
    let made: Vec<_> = found.map(|(handle, context)| Communicator::adopt(parts(handle, context))).collect();
    made.into_iter().collect()
}

/// Memory in which NCCL stores the handle of a new communicator. A thread of NCCL may store the
/// handle after [`make`] has returned an error, so the slot is leaked after an error.
type Slot = ManuallyDrop<Box<AtomicPtr<ncclComm>>>;

/// Creates handles like [`make`], for communicators that are not created from other communicators.
/// The deadline also applies to blocking communicators.
///
/// NCCL's blocking initialization returns when all ranks have arrived. The initialization has no
/// deadline. It cannot be aborted, because NCCL returns the handle only at the end. So another
/// thread calls NCCL. At the deadline this function returns an error. If NCCL creates the
/// communicators later, the other thread aborts them.
pub(crate) fn make_first(
    call: &'static str,
    nccl: Nccl,
    contexts: &[Arc<CudaContext>],
    blocking: bool,
    deadline: Duration,
    start: impl FnMut(&'static Api, usize, *mut ncclComm_t) -> Result<ncclResult_t, MissingSymbol> + Send + 'static,
) -> Result<Vec<Option<Handle>>, NcclError> {
    if !blocking {
        return make(call, nccl, contexts, &[], deadline, start);
    }
    nccl.not_forked(call)?;
    let (began, deadline) = (Instant::now(), bounded(deadline));
    let (sender, receiver) = channel();
    let (contexts, span) = (contexts.to_vec(), tracing::Span::current());
    let body = move || {
        let made = span.in_scope(|| make(call, nccl, &contexts, &[], deadline, start));
        // The receiver may have given up.
        let _ = sender.send(Unclaimed { nccl, contexts, made: Some(made) });
    };
    std::thread::Builder::new().name("peerweave-init".into()).spawn(body).map_err(|_| no_thread_error(call))?;
    match receiver.recv_timeout(deadline) {
        Ok(mut unclaimed) => unclaimed.made.take().unwrap_or_else(|| Ok(Vec::new())),
        Err(RecvTimeoutError::Timeout) => Err(late(call, began, None)),
        Err(RecvTimeoutError::Disconnected) => {
            let why = "the thread that called NCCL panicked; see the panic message on stderr";
            Err(NcclError::misuse(call, MisuseKind::Context { why }))
        }
    }
}

/// The handles that a separate thread creates for a caller of [`make_first`]. The caller takes the
/// handles out of this value. If the caller has given up, for example because its deadline has
/// passed, dropping this value aborts the handles.
struct Unclaimed {
    nccl: Nccl,
    contexts: Vec<Arc<CudaContext>>,
    made: Option<Result<Vec<Option<Handle>>, NcclError>>,
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        if let Some(Ok(handles)) = self.made.take() {
            let handles =
                handles.into_iter().zip(self.contexts.drain(..)).filter_map(|(handle, context)| Some((handle?, context)));
            // Does not wait for the aborts, because this may be the calling thread, whose deadline
            // has expired.
            abort_handles(self.nccl, handles.collect(), Duration::ZERO);
        }
    }
}

/// Makes NCCL create one handle for each context, and waits until the handles are ready. Several
/// handles are created in one group of NCCL.
///
/// `parents` contains the communicators that are split, shrunk or grown. This thread holds their
/// locks, because NCCL also uses the parents. The result has `None` for a context if NCCL returned
/// success without a handle. This is the case for a rank that joins no new communicator in a split.
pub(crate) fn make(
    call: &'static str,
    nccl: Nccl,
    contexts: &[Arc<CudaContext>],
    parents: &[(&Arc<Inner>, Inside<'_>)],
    deadline: Duration,
    mut start: impl FnMut(&'static Api, usize, *mut ncclComm_t) -> Result<ncclResult_t, MissingSymbol>,
) -> Result<Vec<Option<Handle>>, NcclError> {
    let (began, deadline) = (Instant::now(), bounded(deadline));
    // This check precedes calls of the driver, which fail in a forked process.
    nccl.not_forked(call)?;
    let _span = spans::of_many(call, contexts.len());
    let _current = Current::save()?;
    // Every step of this crate that can fail precedes the first call of NCCL.
    contexts.iter().try_for_each(|context| set_current(context))?;
    let slots: Vec<Slot> = contexts.iter().map(|_| Slot::default()).collect();
    let grouped = contexts.len() > 1;
    if grouped {
        // SAFETY: the group is ended below on every path.
        nccl.call("ncclGroupStart", |api| unsafe { api.ncclGroupStart() })?;
    }
    let mut result: Result<ncclResult_t, NcclError> = Ok(ncclResult_t::ncclSuccess);
    for (index, (context, slot)) in contexts.iter().zip(&slots).enumerate() {
        // NCCL's allocations must not invalidate a capture of another thread.
        let mut call_nccl = || relaxed(|| nccl.code(call, |api| start(api, index, slot.as_ptr())));
        // Inside a group NCCL only records the call. Outside of a group this thread may block in
        // the call.
        let may_call = || if grouped { Ok(()) } else { enter_blocking_all(call, parents) };
        let ready = set_current(context).and_then(|()| may_call());
        result = ready.and_then(|()| call_nccl()).and_then(|code| accepted(nccl, call, code));
        if result.is_err() {
            break;
        }
    }
    if grouped {
        result = result.and_then(|code| enter_blocking_all(call, parents).map(|()| code));
        if result.is_err() {
            // NCCL must not launch only some calls of the group, because NCCL would wait forever
            // for the other calls.
            refuse_group(nccl);
        }
        // SAFETY: this thread started the group above.
        let ended = relaxed(|| nccl.code("ncclGroupEnd", |api| unsafe { api.ncclGroupEnd() }));
        let ended = ended.and_then(|code| accepted(nccl, call, code));
        result = result.and(ended);
    }
    // From here on this thread only makes short queries on the parents.
    leave_blocking_all(parents);
    // Non-blocking parents may still be in progress, whatever NCCL has returned: see
    // `Inner::complete_started`.
    let mut in_progress = match result {
        Ok(code) => code == ncclResult_t::ncclInProgress || parents.iter().any(|(parent, _)| !parent.blocking),
        Err(_) => false,
    };
    let mut done = true;
    if result.is_ok() {
        let ready = wait_until(began + deadline, || {
            // Without parents, NCCL always stores a handle, immediately or soon.
            let started = !parents.is_empty() || has_begun(&slots);
            Ok(started && ready(nccl, call, parents, slots.iter().filter_map(made))?)
        });
        match ready {
            Ok(ready) => done = ready,
            Err(error) => result = Err(error),
        }
    }
    if done && result.is_ok() {
        let handles = slots.iter().map(made).collect();
        // NCCL has finished with the slots.
        slots.into_iter().for_each(|slot| drop(ManuallyDrop::into_inner(slot)));
        return Ok(handles);
    }
    // Waits until NCCL has finished with the parents, or has stored all handles. Stored handles are
    // aborted below. NCCL frees all other handles together with the parents.
    if in_progress && !parents.is_empty() {
        let over = wait_until(Instant::now() + PARENTS_LIMIT, || {
            let idle = |(parent, _): &(&Arc<Inner>, _)| {
                parent.gate.is_closed() || !matches!(parent.ask(), Ok(ncclResult_t::ncclInProgress))
            };
            Ok::<_, NcclError>(parents.iter().all(idle) || has_begun(&slots))
        });
        in_progress = !matches!(over, Ok(true));
    }
    tracing::debug!(call, in_progress, "could not create communicators");
    let half_made: Vec<_> =
        slots.iter().zip(contexts).filter_map(|(slot, context)| Some((made(slot)?, Arc::clone(context)))).collect();
    abort_handles(nccl, half_made, ABORT_LIMIT);
    result?;
    let communicator = parents.first().map(|(parent, _)| Arc::clone(&parent.name));
    Err(late(call, began, communicator))
}

fn late(call: &'static str, began: Instant, communicator: Option<Arc<CommunicatorName>>) -> NcclError {
    Timeout { call, sequence: None, waited: began.elapsed(), communicator, missing: Vec::new(), reports: Vec::new() }.into()
}

/// Maximum time to wait for NCCL after a split, shrink or grow has failed or timed out. The wait
/// ends when NCCL has finished its work on the parents, or has stored the handles of the new
/// communicators.
const PARENTS_LIMIT: Duration = Duration::from_secs(1);

/// Returns the handle of the communicator that NCCL has stored in a slot, or `None` if the slot is
/// still empty.
fn made(slot: &Slot) -> Option<Handle> {
    Handle::new(slot.load(Ordering::Acquire))
}

/// Returns whether NCCL has stored the handle of a communicator in every slot.
fn has_begun(slots: &[Slot]) -> bool {
    slots.iter().all(|slot| made(slot).is_some())
}

/// Returns whether NCCL has finished its work on all communicators. `parents` contains existing
/// communicators, `handles` contains communicators that are being created.
fn ready(
    nccl: Nccl,
    call: &'static str,
    parents: &[(&Arc<Inner>, Inside<'_>)],
    handles: impl Iterator<Item = Handle>,
) -> Result<bool, NcclError> {
    let mut all = true;
    for (parent, _) in parents {
        if parent.gate.is_closed() {
            return Err(parent.dead(call, parent.gate.state()));
        }
        match parent.ask()? {
            ncclResult_t::ncclSuccess => {}
            ncclResult_t::ncclInProgress => all = false,
            code => return Err(parent.failure(call, code)),
        }
    }
    for handle in handles {
        let mut state = ncclResult_t::ncclSuccess;
        // SAFETY: NCCL created the handle, and no other thread knows the handle. The pointer is to
        // a live value.
        nccl.call("ncclCommGetAsyncError", |api| unsafe { api.ncclCommGetAsyncError(handle.get(), &raw mut state) })?;
        match state {
            ncclResult_t::ncclSuccess => {}
            ncclResult_t::ncclInProgress => all = false,
            code => return Err(nccl.failure(call, code, None)),
        }
    }
    Ok(all)
}

/// Returns the code if the code is success or in progress. Returns an error for all other codes.
fn accepted(nccl: Nccl, call: &'static str, code: ncclResult_t) -> Result<ncclResult_t, NcclError> {
    match code {
        ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress => Ok(code),
        code => Err(nccl.failure(call, code, None)),
    }
}

/// The context that was current in this thread before communicators were created. Dropping this
/// value makes the context current again.
struct Current(CUcontext);

impl Current {
    fn save() -> Result<Self, NcclError> {
        let mut current: CUcontext = std::ptr::null_mut();
        // SAFETY: the pointer is to a live handle.
        let code = unsafe { Driver::get()?.api().cuCtxGetCurrent(&raw mut current) }.map_err(DriverError::from)?;
        CudaError::check("cuCtxGetCurrent", code)?;
        Ok(Self(current))
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        if let Ok(driver) = Driver::get() {
            // SAFETY: the context was current when the call began. If the context has been
            // destroyed, the driver only returns an error.
            let _ = unsafe { driver.api().cuCtxSetCurrent(self.0) };
        }
    }
}

/// Initial value of the hash that identifies a communicator.
const SEED: u64 = 0xcbf2_9ce4_8422_2325;

/// Mixes bytes into the hash that identifies a communicator (FNV-1a). Every rank computes the same
/// hash without communication.
pub(crate) fn mix(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
