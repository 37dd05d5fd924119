//! Uses NCCL for two purposes: for collectives of the team of all PEs on one host, if the route
//! table chooses NCCL, and for messages between hosts.
//!
//! ```text
//!  mod.rs      set-up that all PEs agree on, abort, end
//!   calls.rs    NCCL's call for each collective
//!   between.rs  messages between PEs of different hosts
//! ```
//!
//! NCCL's kernels have no deadline, and over NVLink they do not detect that a PE has died. So
//! Peerweave aborts the communicator, which ends NCCL's kernels, in three cases: a PE is lost, a
//! wait reaches its deadline, or work for which no thread waits is older than the deadline.

mod between;
mod calls;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use peerweave_bootstrap::{Loss, Rendezvous};
use peerweave_driver::{CudaError as DeviceError, CudaStream, DriverError};
use peerweave_nccl::{Communicator, Nccl, NcclError, ResultCode};

pub(crate) use between::{Between, Remote};
pub(crate) use calls::Call;

use crate::error::CudaError;
use crate::gpu::Gpu;
use crate::route::{Libraries, Unfit};

/// Interval at which the background thread that [`Watched::new`] starts checks for lost PEs.
const LOOK: Duration = Duration::from_millis(100);
/// Time by which NCCL's work may exceed the deadline before `peerweave-nccl` aborts the work. In
/// this time, a wait that has reached the deadline names the missing PEs. After the abort, the wait
/// could not name them.
const LATE: Duration = Duration::from_secs(1);
/// Maximum time between the deadline for the creation of an NCCL communicator and the resulting
/// error. In this time, `peerweave-nccl` asks the rendezvous which PEs are lost. If NCCL creates
/// the communicator after the deadline, `peerweave-nccl` aborts it.
const GIVEN_UP: Duration = Duration::from_secs(5);

/// The NCCL communicators of one PE: `communicator` for collectives, and `between` for messages.
/// `unavailable` is the reason why `communicator` is `None`. Either all PEs have a `communicator`
/// or none.
pub(crate) struct Entry {
    communicator: Option<Communicator>,
    is_enabled: bool,
    unavailable: String,
    watched: Option<Watched>,
    /// The communicators for messages between PEs on different hosts.
    pub(crate) between: Between,
}

impl Entry {
    /// Sets up NCCL for collectives if `is_enabled` is true and the job has one host, and for
    /// messages if the job has several hosts. All PEs must pass the same `is_enabled`. If NCCL is
    /// missing or fails on any PE, no PE uses it.
    ///
    /// # Collective
    /// All PEs of the GPU's rendezvous.
    ///
    /// # Errors
    /// [`CudaError::Bootstrap`] names a PE that is lost or did not arrive.
    pub(crate) fn set_up(gpu: &Gpu, is_enabled: bool) -> Result<Self, CudaError> {
        let between = Between::set_up(gpu)?;
        let without = |between, why: String| {
            if is_enabled {
                tracing::warn!(why, "NCCL is enabled but cannot be used: Peerweave's kernels carry out all collectives");
            }
            Self { communicator: None, is_enabled, unavailable: why, watched: None, between }
        };
        if !is_enabled {
            return Ok(without(between, "NCCL is not enabled".to_owned()));
        }
        if gpu.n_pes() < 2 {
            return Ok(without(between, "the job has one PE".to_owned()));
        }
        if gpu.0.hosts.len() > 1 {
            return Ok(without(between, "the PEs are on several hosts".to_owned()));
        }
        let rendezvous = gpu.rendezvous();
        let label = format!("peerweave-cuda/nccl/{}", gpu.0.next_collectives());
        // Every PE takes part in each exchange, even after a failure on this PE.
        let agreed = |step: &str, failed: Option<String>| agreed(rendezvous, &format!("{label}/{step}"), failed, limit(gpu));
        let library = Nccl::load();
        let why = agreed("load", library.as_ref().err().map(ToString::to_string))?;
        let (Ok(library), None) = (library, &why) else { return Ok(without(between, why.unwrap_or_default())) };
        if pes_share_a_gpu(gpu, &label)? {
            return Ok(without(between, "PEs share a GPU, and NCCL refuses two ranks on one GPU".to_owned()));
        }
        let created = communicator_of_all(gpu, library);
        let why = agreed("created", created.as_ref().err().map(ToString::to_string))?;
        let communicator = match (created, why) {
            (Ok(communicator), None) => communicator,
            (created, why) => {
                if let Ok(communicator) = created {
                    let _ = communicator.abort(Duration::ZERO);
                }
                return Ok(without(between, why.unwrap_or_default()));
            }
        };
        let watched = Some(Watched::new(&communicator, gpu));
        Ok(Self { communicator: Some(communicator), is_enabled, unavailable: String::new(), watched, between })
    }

    /// Returns all NCCL communicators of this PE: for collectives, and for messages between hosts.
    fn communicators(&self) -> impl Iterator<Item = &Communicator> {
        self.communicator.iter().chain(self.between.communicators())
    }

    /// Returns whether this PE has a communicator for collectives of the team of all PEs.
    pub(crate) fn is_ready(&self) -> bool {
        self.communicator.is_some()
    }

    /// Returns whether a team can use NCCL for collectives, or the reason why it cannot. `is_world`
    /// is `true` for the team of all PEs.
    pub(crate) fn libraries(&self, is_world: bool) -> Libraries {
        let nccl = match &self.communicator {
            None if !self.is_enabled => Err(Unfit::Off),
            None => Err(Unfit::Unavailable),
            Some(_) if is_world => Ok(()),
            Some(_) => Err(Unfit::Team),
        };
        Libraries { nccl }
    }

    /// Returns the reason why NCCL cannot carry out collectives. The text is empty if NCCL can be
    /// used.
    pub(crate) fn unavailable(&self) -> &str {
        &self.unavailable
    }

    /// Enqueues a collective that NCCL carries out.
    ///
    /// # Errors
    /// Errors of NCCL. Other ranks may have enqueued their calls, so after an error, the caller
    /// must poison the team.
    ///
    /// # Safety
    /// The operands are memory of this device. The memory stays allocated until the stream has
    /// completed the call. If `capturing` is true, it stays allocated while the graph exists.
    pub(crate) unsafe fn enqueue(&self, stream: &Arc<CudaStream>, capturing: bool, call: &Call) -> Result<(), NcclError> {
        let communicator = self.communicator.as_ref().unwrap_or_else(|| panic!("peerweave-cuda bug: NCCL has no communicator"));
        // SAFETY: the caller guarantees the safety requirements of the called function.
        unsafe { call.issue(communicator, stream, capturing) }
    }

    /// Returns whether any communicator has failed or was aborted. If so, the results of NCCL's
    /// work are unspecified.
    pub(crate) fn has_failed(&self) -> bool {
        let is_well = |of: &Communicator| matches!(of.async_error(), Ok(None | Some(ResultCode::IN_PROGRESS)));
        !self.communicators().all(is_well)
    }

    /// Aborts all communicators, which ends NCCL's running work with unspecified results. Does not
    /// wait.
    pub(crate) fn abort(&self) {
        for communicator in self.communicators() {
            // The thread that aborts logs its errors. An error here means that the abort is still
            // in progress, or that the communicator was ended before.
            let _ = communicator.abort(Duration::ZERO);
        }
    }

    /// Ends all communicators. Finalizes them if there was no failure, and otherwise aborts them.
    ///
    /// # Collective
    /// All PEs must call this function. After a failure, a PE may call it alone if `has_failed` is
    /// true: the PE then does not wait for other PEs.
    ///
    /// # Errors
    /// Errors of [`Communicator::finalize`].
    pub(crate) fn end(&self, has_failed: bool, deadline: Duration) -> Result<(), NcclError> {
        self.watched.iter().for_each(Watched::end);
        self.between.end_watches();
        if has_failed || self.has_failed() {
            self.abort();
            // An error of this abort is ignored, because the failure is reported elsewhere.
            self.communicators().for_each(|communicator| drop(communicator.abort(ABORT)));
            return Ok(());
        }
        // PEs finalize the communicators of pairs in the order in which they created them.
        self.communicators().try_for_each(|communicator| communicator.clone().finalize(deadline))
    }
}

/// Maximum time for which [`Entry::end`] waits until a communicator is aborted.
const ABORT: Duration = Duration::from_secs(5);

/// Returns whether two PEs on one host use the same GPU. NCCL refuses such PEs as ranks of one
/// communicator. The result is the same on all PEs.
fn pes_share_a_gpu(gpu: &Gpu, label: &str) -> Result<bool, CudaError> {
    let uuid = gpu.context().uuid().map_err(DeviceError::of("cuDeviceGetUuid")).map_err(DriverError::from)?;
    let mut place = gpu.0.hosts.of(gpu.pe()).to_le_bytes().to_vec();
    place.extend(uuid.bytes.map(|byte| byte as u8));
    let places = gpu.rendezvous().exchange(&format!("{label}/device"), &place)?;
    Ok(places.iter().enumerate().any(|(at, one)| places[..at].contains(one)))
}

/// Creates an NCCL communicator that contains all PEs of the job.
fn communicator_of_all(gpu: &Gpu, library: Nccl) -> Result<Communicator, NcclError> {
    Communicator::builder().nccl(library).deadline(gpu.deadline()).from_rendezvous(gpu.context(), gpu.rendezvous())
}

/// Exchanges among all PEs whether a step has failed. `failed` is the failure on this PE. Of the
/// PEs on which the step has failed, returns the failure on the PE with the lowest number. Returns
/// `None` if the step has failed on no PE. The result is the same on all PEs.
fn agreed(rendezvous: &Rendezvous, label: &str, failed: Option<String>, within: Duration) -> Result<Option<String>, CudaError> {
    let all = rendezvous.exchange_within(label, failed.unwrap_or_default().as_bytes(), within)?;
    let first = all.iter().enumerate().find(|(_, text)| !text.is_empty());
    Ok(first.map(|(pe, text)| format!("PE {pe}: {}", String::from_utf8_lossy(text))))
}

/// Returns the time limit of [`agreed`]: the longer of two deadlines, plus [`GIVEN_UP`]. If a step
/// fails at once on this PE, this PE calls `agreed` early. Other PEs may wait in NCCL beyond the
/// deadline, for at most [`GIVEN_UP`], before they call `agreed`.
fn limit(gpu: &Gpu) -> Duration {
    gpu.rendezvous().deadline().max(gpu.deadline()) + GIVEN_UP
}

/// The token of a thread that aborts a communicator when a PE has died. The thread ends soon after
/// the token is dropped. The thread ignores PEs that have left or given up. NCCL calls in graphs
/// need this thread: when a graph is replayed, neither a ticket nor a watchdog waits for its NCCL
/// calls.
struct Watched(Mutex<Option<Arc<()>>>);

impl Watched {
    /// Starts a thread that aborts a communicator when a PE has died. Also sets the deadline after
    /// which `peerweave-nccl` aborts late work of the communicator.
    fn new(communicator: &Communicator, gpu: &Gpu) -> Self {
        communicator.set_work_deadline(gpu.deadline().saturating_add(LATE));
        let token = Arc::new(());
        let (weak, rendezvous) = (Arc::downgrade(&token), Arc::downgrade(gpu.rendezvous()));
        let communicator = communicator.clone();
        let look = move || {
            while weak.strong_count() > 0 {
                let Some(losses) = rendezvous.upgrade().map(|rendezvous| rendezvous.losses()) else { return };
                // The losses `GaveUp` and `Left` mean that the PE has not died: it has left in
                // order, or has given up because of another PE.
                if losses.iter().any(|(_, loss)| !matches!(loss, Loss::GaveUp { .. } | Loss::Left)) {
                    let _ = communicator.abort(Duration::ZERO);
                    return;
                }
                std::thread::sleep(LOOK);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("peerweave-nccl-watch".into()).spawn(look) {
            tracing::warn!(%error, "cannot start the thread that detects lost PEs: a graph with NCCL calls will wait forever if a PE is lost");
        }
        Self(Mutex::new(Some(token)))
    }

    fn end(&self) {
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}
