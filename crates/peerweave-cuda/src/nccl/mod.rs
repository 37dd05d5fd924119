//! NCCL as an entry of the route table, for the team of all PEs.
//!
//! ```text
//!  mod.rs     set-up that all PEs agree on, ends
//!   calls.rs  the call of each collective, by addresses
//! ```
//!
//! NCCL's kernels have no deadline, and over NVLink they do not notice that a PE has died. So a
//! communicator is aborted, which ends them, when a PE is lost, when a wait reaches its deadline,
//! and when work is older than the deadline although no thread waits for it.

mod calls;

use std::sync::{Arc, Weak};
use std::time::Duration;

use peerweave_bootstrap::{Loss, Rendezvous};
use peerweave_driver::{CudaError as DeviceError, CudaStream, DriverError};
use peerweave_nccl::{Communicator, Nccl, NcclError, ResultCode};

pub(crate) use calls::Call;

use crate::error::CudaError;
use crate::gpu::Gpu;
use crate::route::{Libraries, Unfit};

/// Interval at which a thread looks for lost PEs, for work that no thread waits for.
const LOOK: Duration = Duration::from_millis(100);
/// Additional time for waits to reach their deadline and name the missing PEs, before late work is
/// aborted without a wait.
const LATE: Duration = Duration::from_secs(1);

/// NCCL of one PE, or the reason why it is not used. The same choice on all PEs.
pub(crate) struct Entry {
    communicator: Option<Communicator>,
    is_enabled: bool,
    unavailable: String,
    /// Keeps the thread that looks for lost PEs alive.
    watched: std::sync::Mutex<Option<Arc<()>>>,
}

impl Entry {
    /// Sets up NCCL if `is_enabled`, the same on all PEs. A library that is missing or fails on any
    /// PE is not used by any.
    ///
    /// # Collective
    /// All PEs of the GPU.
    ///
    /// # Errors
    /// [`CudaError::Bootstrap`] names a PE that is lost or does not arrive.
    pub(crate) fn set_up(gpu: &Gpu, is_enabled: bool) -> Result<Self, CudaError> {
        let without = |why: String| {
            if is_enabled {
                tracing::warn!(why, "NCCL is enabled and cannot be used; collectives use own kernels");
            }
            Self { communicator: None, is_enabled, unavailable: why, watched: std::sync::Mutex::default() }
        };
        if !is_enabled || gpu.n_pes() < 2 {
            return Ok(without("the job has one PE".to_owned()));
        }
        let (rendezvous, made) = (gpu.rendezvous(), gpu.0.next_collectives());
        // Every PE takes part in each exchange, also one that has failed.
        let agreed = |step: &str, failed: Option<String>| -> Result<Option<String>, CudaError> {
            let label = format!("peerweave-cuda/nccl/{made}/{step}");
            let all = rendezvous.exchange(&label, failed.unwrap_or_default().as_bytes())?;
            let first = all.iter().enumerate().find(|(_, text)| !text.is_empty());
            Ok(first.map(|(pe, text)| format!("PE {pe}: {}", String::from_utf8_lossy(text))))
        };
        let library = Nccl::load();
        let why = agreed("load", library.as_ref().err().map(ToString::to_string))?;
        let (Ok(library), None) = (library, &why) else { return Ok(without(why.unwrap_or_default())) };
        let uuid = gpu.context().uuid().map_err(DeviceError::of("cuDeviceGetUuid")).map_err(DriverError::from)?;
        let devices = rendezvous.exchange(&format!("peerweave-cuda/nccl/{made}/device"), &uuid.bytes.map(|byte| byte as u8))?;
        if devices.iter().enumerate().any(|(at, one)| devices[..at].contains(one)) {
            return Ok(without("PEs share a GPU, and NCCL refuses two ranks on one GPU".to_owned()));
        }
        let created = Communicator::builder().nccl(library).deadline(gpu.deadline()).from_rendezvous(gpu.context(), rendezvous);
        let why = agreed("created", created.as_ref().err().map(ToString::to_string))?;
        let communicator = match (created, why) {
            (Ok(communicator), None) => communicator,
            (created, why) => {
                if let Ok(communicator) = created {
                    let _ = communicator.abort(Duration::ZERO);
                }
                return Ok(without(why.unwrap_or_default()));
            }
        };
        communicator.set_work_deadline(gpu.deadline().saturating_add(LATE));
        let token = Arc::new(());
        watch(communicator.clone(), Arc::downgrade(rendezvous), Arc::downgrade(&token));
        let watched = std::sync::Mutex::new(Some(token));
        Ok(Self { communicator: Some(communicator), is_enabled, unavailable: String::new(), watched })
    }

    /// Returns whether calls may be issued.
    pub(crate) fn is_ready(&self) -> bool {
        self.communicator.is_some()
    }

    /// Returns what a team can use.
    pub(crate) fn libraries(&self, is_world: bool) -> Libraries {
        let nccl = match &self.communicator {
            None if !self.is_enabled => Err(Unfit::Off),
            None => Err(Unfit::Unavailable),
            Some(_) if is_world => Ok(()),
            Some(_) => Err(Unfit::Team),
        };
        Libraries { nccl }
    }

    /// Returns the reason why NCCL cannot be used.
    pub(crate) fn unavailable(&self) -> &str {
        &self.unavailable
    }

    /// Enqueues a call.
    ///
    /// # Errors
    /// Those of NCCL. Other ranks may have enqueued their calls, so the caller must fail the team.
    ///
    /// # Safety
    /// The operands are memory of this device, which stays allocated until the stream has passed
    /// the call; with `capturing`, while the graph lives.
    pub(crate) unsafe fn enqueue(&self, stream: &Arc<CudaStream>, capturing: bool, call: &Call) -> Result<(), NcclError> {
        let communicator = self.communicator.as_ref().unwrap_or_else(|| panic!("peerweave-cuda bug: no communicator"));
        // SAFETY: the caller guarantees it.
        unsafe { call.issue(communicator, stream, capturing) }
    }

    /// Returns whether the communicator has failed or was aborted: results of its work are then
    /// unspecified.
    pub(crate) fn has_failed(&self) -> bool {
        let Some(communicator) = &self.communicator else { return false };
        !matches!(communicator.async_error(), Ok(None | Some(ResultCode::IN_PROGRESS)))
    }

    /// Ends NCCL's running work, with unspecified results. Does not wait.
    pub(crate) fn abort(&self) {
        if let Some(communicator) = &self.communicator {
            // The thread that aborts logs its errors. An error here says that it goes on, or that
            // the communicator was ended before.
            let _ = communicator.abort(Duration::ZERO);
        }
    }

    /// Ends the communicator: in order, or by force after a failure.
    ///
    /// # Collective
    /// All PEs, unless `has_failed`.
    ///
    /// # Errors
    /// Those of [`Communicator::finalize`].
    pub(crate) fn end(&self, has_failed: bool, deadline: Duration) -> Result<(), NcclError> {
        drop(self.watched.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take());
        let Some(communicator) = &self.communicator else { return Ok(()) };
        if has_failed || self.has_failed() {
            // A communicator that was aborted before is reported by the failure.
            let _ = communicator.abort(ABORT);
            return Ok(());
        }
        communicator.clone().finalize(deadline)
    }
}

/// Time for which the end of a world waits for an abort.
const ABORT: Duration = Duration::from_secs(5);

/// Starts a thread that aborts the communicator when a PE is lost. Graphs replay calls for which
/// neither a ticket nor the watchdog of `peerweave-nccl` waits.
fn watch(communicator: Communicator, rendezvous: Weak<Rendezvous>, token: Weak<()>) {
    let look = move || {
        while token.strong_count() > 0 {
            let Some(losses) = rendezvous.upgrade().map(|rendezvous| rendezvous.losses()) else { return };
            // A PE that gave up in a wait still takes part.
            if losses.iter().any(|(_, loss)| !matches!(loss, Loss::GaveUp { .. } | Loss::Left)) {
                let _ = communicator.abort(Duration::ZERO);
                return;
            }
            std::thread::sleep(LOOK);
        }
    };
    if let Err(error) = std::thread::Builder::new().name("peerweave-nccl-watch".into()).spawn(look) {
        tracing::warn!(%error, "no thread looks for lost PEs; graphs with NCCL wait for them");
    }
}
