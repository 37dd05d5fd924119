//! Resources that a process prepares before it starts NVSHMEM: the worker thread, the streams and
//! the id.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use peerweave_bootstrap::Rendezvous;
use peerweave_driver::{CudaContext, CudaError, CudaStream, PrivateStream};
use peerweave_types::Pe;

use super::unique_id::UniqueId;
use crate::comm::enqueued::with_error_preserved;
use crate::comm::gate::{Gate, NoAnswer, Sent, Worker};
use crate::comm::identity::{SEED, mix};
use crate::error::{DeadState, MisuseKind, NvshmemError, Timeout};
use crate::library::{Nvshmem, Settings};
use crate::sys;

/// The gate, which is the lock for all calls of NVSHMEM in this process.
pub(super) static GATE: LazyLock<Arc<Gate>> = LazyLock::new(Arc::default);

/// Returns a hash that identifies an id without disclosing the id.
pub(super) fn number_of(id: &UniqueId) -> u64 {
    id.to_bytes().iter().fold(SEED, |hash, byte| mix(hash, (*byte).into()))
}

pub(super) fn start_worker(call: &'static str) -> Result<Worker, NvshmemError> {
    Worker::start().map_err(|error| {
        tracing::error!(%error, "cannot start the thread that calls NVSHMEM");
        NvshmemError::misuse(call, MisuseKind::Context { why: "the operating system cannot start a thread" })
    })
}

/// The resources that this process needs to start NVSHMEM. This PE acquires all of them before it
/// reports to the other PEs that it is ready.
pub(super) struct Ready {
    pub(super) nvshmem: Nvshmem,
    pub(super) worker: Worker,
    pub(super) stream: Arc<CudaStream>,
    pub(super) side: PrivateStream,
}

impl Ready {
    pub(super) fn new(
        call: &'static str,
        nvshmem: Nvshmem,
        device: &Arc<CudaContext>,
        settings: &Settings,
    ) -> Result<Self, NvshmemError> {
        let (worker, context) = (start_worker(call)?, Arc::clone(device));
        // The caller also gets this stream, so it must be a stream of cudarc. cudarc's first
        // `new_stream` waits for the whole device without a deadline, so the call runs on the
        // worker thread.
        let made = worker.run((), settings.deadline_set(), move || with_error_preserved(&context, || context.new_stream()));
        let stream =
            made.map_err(|error| no_answer(call, "cuCtxSynchronize", error, None))?.0.map_err(CudaError::of("cuStreamCreate"))?;
        Ok(Self { nvshmem, worker, stream, side: PrivateStream::new(device)? })
    }
}

pub(super) fn make_id(
    call: &'static str,
    nvshmem: Nvshmem,
    settings: &Settings,
    worker: &Worker,
) -> Result<UniqueId, NvshmemError> {
    const FUNCTION: &str = "nvshmemx_get_uniqueid";
    nvshmem.not_forked(call)?;
    let inside = enter(call, settings.deadline_set())?;
    let environment = settings.apply();
    let made = worker.run(inside, settings.deadline_set(), move || {
        let mut id = sys::nvshmemx_uniqueid_t::EMPTY;
        // SAFETY: the pointer is to a live struct, which states the version of its layout.
        nvshmem.code(FUNCTION, |api| unsafe { api.nvshmemx_get_uniqueid(&raw mut id) }).map(|code| (code, id))
    });
    match made {
        Ok((result, _inside)) => {
            environment.restore();
            let (code, id) = result?;
            nvshmem.check(FUNCTION, code).inspect_err(|_| ID_FAILED.store(true, Ordering::Relaxed))?;
            Ok(UniqueId::from_raw(&id))
        }
        Err(error) => {
            environment.leave();
            Err(no_answer(call, FUNCTION, error, None))
        }
    }
}

/// Whether an attempt to create an id has failed in this process. If so, NVSHMEM is not called
/// again. The reason is that NVSHMEM 3.4.5 frees its plug-in when the attempt fails, and that a
/// second attempt may free the plug-in again.
static ID_FAILED: AtomicBool = AtomicBool::new(false);

pub(super) fn can_still_start(call: &'static str) -> Result<(), NvshmemError> {
    if ID_FAILED.load(Ordering::Relaxed) { Err(NvshmemError::Dead { call, state: DeadState::InitFailed }) } else { Ok(()) }
}

/// Acquires the gate, which is the lock for calls of NVSHMEM. Returns an error if the gate is not
/// free within `patience`.
pub(super) fn enter(call: &'static str, patience: Duration) -> Result<Sent, NvshmemError> {
    let start = Instant::now();
    let inside = GATE.enter(call, patience).map_err(|inside| {
        tracing::warn!(call, inside, "timed out: another call is still inside NVSHMEM");
        // It is unknown whether the other call will return. If not, the context of the other call
        // reports the timeout.
        Timeout { call, waited: start.elapsed(), pe: None, missing: Vec::new(), lost: None }
    })?;
    Ok(inside.send(&GATE))
}

pub(super) fn no_answer(
    call: &'static str,
    function: &'static str,
    error: NoAnswer,
    world: Option<(&Rendezvous, Vec<Pe>)>,
) -> NvshmemError {
    match error {
        NoAnswer::Late(waited) => {
            let (pe, missing, lost) = match world {
                Some((world, missing)) => (Some(world.pe()), missing, world.check().err().map(|error| error.to_string())),
                None => (None, Vec::new(), None),
            };
            Timeout { call: function, waited, pe, missing, lost }.into()
        }
        NoAnswer::Panicked => NvshmemError::Dead { call, state: DeadState::Broken { by: function } },
    }
}
