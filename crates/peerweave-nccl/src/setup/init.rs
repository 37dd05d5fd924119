//! Creation of communicators: calls NCCL, and waits until they are ready.
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

pub(crate) fn check_members(call: &'static str, members: &[(Arc<CudaContext>, Rank)], n_ranks: usize) -> Result<(), NcclError> {
    let value = |what, found: usize, expected| {
        Err(NcclError::misuse(call, MisuseKind::Value { what, found: i64::try_from(found).unwrap_or(i64::MAX), expected }))
    };
    if n_ranks == 0 || c_int::try_from(n_ranks).is_err() {
        return value("the number of ranks", n_ranks, "1 to 2147483647");
    }
    if members.is_empty() {
        return value("the number of ranks of this thread", 0, "at least 1");
    }
    for (index, (context, rank)) in members.iter().enumerate() {
        if rank.index() >= n_ranks {
            return Err(NcclError::misuse(call, MisuseKind::Rank { what: "the rank", found: *rank, ranks: n_ranks }));
        }
        for (other_context, other_rank) in &members[..index] {
            if rank == other_rank {
                return value("the rank", rank.index(), "each rank only once");
            }
            if context.ordinal() == other_context.ordinal() {
                return value("the device", context.ordinal(), "each device only once");
            }
        }
    }
    Ok(())
}

/// The communicator that the ranks of this thread join.
pub(crate) struct JoinRequest<'a> {
    pub(crate) nccl: Nccl,
    /// Device and rank of each member.
    pub(crate) members: &'a [(Arc<CudaContext>, Rank)],
    pub(crate) n_ranks: usize,
    pub(crate) ids: &'a [UniqueId],
    pub(crate) config: &'a Config,
    /// Start of the creation, which must end within `deadline`.
    pub(crate) began: Instant,
    pub(crate) deadline: Duration,
    pub(crate) world: Option<World>,
}

/// Joins with all ranks of this thread, after their checks.
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
            // SAFETY: `make` gives memory for the handle that lives as long as NCCL may write it,
            // and has made the device's context current; NCCL reads the configuration during the
            // call.
            [id] => unsafe { api.ncclCommInitRankConfig(out, n, *id, rank, config) },
            // SAFETY: as above; the ids are only read, during the call.
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

/// Makes communicators blocking unless the configuration sets the mode. Returns whether they block.
pub(crate) fn with_mode(config: Config) -> (Config, bool) {
    match config.blocking_set() {
        None => (config.blocking(Switch::On), true),
        Some(mode) => (config, mode == Switch::On),
    }
}

/// Creates communicators from all handles. If one fails, all are aborted.
pub(crate) fn adopt_all(
    handles: Vec<Option<Handle>>,
    contexts: &[Arc<CudaContext>],
    parts: impl Fn(Handle, Arc<CudaContext>) -> Parts,
) -> Result<Vec<Communicator>, NcclError> {
    let found = handles.into_iter().zip(contexts).filter_map(|(handle, context)| Some((handle?, Arc::clone(context))));
    // If one fails, the others are created too, and all are dropped, which ends them.
    let made: Vec<_> = found.map(|(handle, context)| Communicator::adopt(parts(handle, context))).collect();
    made.into_iter().collect()
}

/// Memory to which NCCL writes a handle, possibly from a thread of its own. It is freed only if
/// NCCL is known to have finished.
type Slot = ManuallyDrop<Box<AtomicPtr<ncclComm>>>;

/// Like [`make`], for ranks without parents.
///
/// NCCL's blocking initialization returns when all ranks have arrived. It has no deadline, and
/// cannot be aborted because it returns the handle only at the end. So another thread calls it, and
/// is abandoned at the deadline: a communicator that it creates later is ended immediately.
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
            let why = "the thread that called NCCL panicked; see its message on stderr";
            Err(NcclError::misuse(call, MisuseKind::Context { why }))
        }
    }
}

/// Handles created by a thread, until they are claimed. Dropping them aborts them.
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
            // Does not wait for the aborts: this may be the thread whose deadline has just expired.
            abort_handles(self.nccl, handles.collect(), Duration::ZERO);
        }
    }
}

/// Makes NCCL create handles, one for each context, and waits until they are ready. Several handles
/// are created in a group.
///
/// This thread is inside the gates of `parents`, because NCCL uses them too. A handle is `None` if
/// NCCL created none and reported no error.
pub(crate) fn make(
    call: &'static str,
    nccl: Nccl,
    contexts: &[Arc<CudaContext>],
    parents: &[(&Arc<Inner>, Inside<'_>)],
    deadline: Duration,
    mut start: impl FnMut(&'static Api, usize, *mut ncclComm_t) -> Result<ncclResult_t, MissingSymbol>,
) -> Result<Vec<Option<Handle>>, NcclError> {
    let (began, deadline) = (Instant::now(), bounded(deadline));
    // Checked before the driver is called, which does not work in a forked process either.
    nccl.not_forked(call)?;
    let _span = spans::of_many(call, contexts.len());
    let _current = Current::save()?;
    // Every step that can fail without NCCL comes before the first call of NCCL.
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
        // Inside a group NCCL only records a call. Outside of a group this thread may block in the
        // call.
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
            // Part of the group must not be launched: the other ranks would never join it.
            refuse_group(nccl);
        }
        // SAFETY: this thread started the group above.
        let ended = relaxed(|| nccl.code("ncclGroupEnd", |api| unsafe { api.ncclGroupEnd() }));
        let ended = ended.and_then(|code| accepted(nccl, call, code));
        result = result.and(ended);
    }
    // From here on this thread only queries the parents, which is brief.
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
            // Without a parent, NCCL stores a handle at once or soon.
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
    // Waits until the parents are idle, or a handle is stored. The handles found then are aborted;
    // NCCL frees the others with their parents.
    if in_progress && !parents.is_empty() {
        let over = wait_until(Instant::now() + PARENTS_LIMIT, || {
            let idle = |(parent, _): &(&Arc<Inner>, _)| {
                parent.gate.is_closed() || !matches!(parent.ask(), Ok(ncclResult_t::ncclInProgress))
            };
            Ok::<_, NcclError>(parents.iter().all(idle) || has_begun(&slots))
        });
        in_progress = !matches!(over, Ok(true));
    }
    tracing::debug!(call, in_progress, "communicators were not created");
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

/// Time for which a failed call waits until NCCL stops using a parent.
const PARENTS_LIMIT: Duration = Duration::from_secs(1);

fn made(slot: &Slot) -> Option<Handle> {
    Handle::new(slot.load(Ordering::Acquire))
}

fn has_begun(slots: &[Slot]) -> bool {
    slots.iter().all(|slot| made(slot).is_some())
}

/// Returns whether NCCL has finished with all handles.
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
        // SAFETY: NCCL created the handle and no other thread knows it; the pointer is to a live
        // value.
        nccl.call("ncclCommGetAsyncError", |api| unsafe { api.ncclCommGetAsyncError(handle.get(), &raw mut state) })?;
        match state {
            ncclResult_t::ncclSuccess => {}
            ncclResult_t::ncclInProgress => all = false,
            code => return Err(nccl.failure(call, code, None)),
        }
    }
    Ok(all)
}

/// Returns success for a code that means success or work in progress.
fn accepted(nccl: Nccl, call: &'static str, code: ncclResult_t) -> Result<ncclResult_t, NcclError> {
    match code {
        ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress => Ok(code),
        code => Err(nccl.failure(call, code, None)),
    }
}

/// The thread's context, which is restored when this value is dropped.
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
            // SAFETY: the context was current when the call began. If it was destroyed since, the
            // driver only returns an error.
            let _ = unsafe { driver.api().cuCtxSetCurrent(self.0) };
        }
    }
}

/// The initial value of an identity.
const SEED: u64 = 0xcbf2_9ce4_8422_2325;

/// Mixes bytes into an identity (FNV-1a). Every rank computes the same number without
/// communication.
pub(crate) fn mix(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
