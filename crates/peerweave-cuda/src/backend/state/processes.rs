//! Detects that the process of another PE has ended, even if the server of the rendezvous has died.

use peerweave_bootstrap::Rendezvous;
#[cfg(target_os = "linux")]
use peerweave_bootstrap::process::{Pid, Watch, pid_namespace};

use crate::error::CudaError;

/// A set of watches, one for the process of each other PE. A watch shows whether the watched
/// process has ended. There is no watch for a process that this process cannot observe.
pub(crate) struct Processes {
    /// For each PE, the [`Watch`] that shows whether the process of the PE has ended. `None` for
    /// this process. Also `None` for a process in another PID namespace: only the rendezvous
    /// reports the end of such a process.
    #[cfg(target_os = "linux")]
    watched: Box<[Option<Watch>]>,
}

impl Processes {
    /// Starts to watch the processes of all PEs. Collective over all PEs.
    #[cfg(target_os = "linux")]
    pub(crate) fn of_all(rendezvous: &Rendezvous) -> Result<Self, CudaError> {
        let (pid, namespace) = (std::process::id(), pid_namespace());
        let blob: Vec<u8> = pid.to_le_bytes().into_iter().chain(namespace.to_le_bytes()).collect();
        let all = rendezvous.exchange("peerweave-cuda/processes", &blob)?;
        let watch = |(pe, blob): (usize, &Vec<u8>)| {
            let (theirs, rest) = blob.split_first_chunk()?;
            let (theirs, of) = (u32::from_le_bytes(*theirs), u64::from_le_bytes(rest.try_into().ok()?));
            if theirs == pid || of != namespace || namespace == 0 {
                return None;
            }
            Some(Watch::of(pe, Pid::from_raw(theirs.try_into().ok()?)?))
        };
        Ok(Self { watched: all.iter().enumerate().map(watch).collect() })
    }

    /// Does nothing: jobs of several PEs with GPUs exist only on Linux.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn of_all(_rendezvous: &Rendezvous) -> Result<Self, CudaError> {
        Ok(Self {})
    }

    /// Returns whether the process of PE `pe` is known to have ended.
    #[cfg(target_os = "linux")]
    pub(crate) fn has_ended(&self, pe: usize) -> bool {
        self.watched.get(pe).and_then(Option::as_ref).and_then(Watch::has_ended).unwrap_or(false)
    }

    /// Returns `false`, because no process is watched on this system.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn has_ended(&self, _pe: usize) -> bool {
        false
    }
}
