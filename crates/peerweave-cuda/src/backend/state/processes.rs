//! Detects the end of the processes of the other PEs, even if the server of the rendezvous has
//! died.

use peerweave_bootstrap::Rendezvous;

use crate::error::CudaError;

/// The processes of all PEs, as far as this process can watch them.
pub(crate) struct Processes {
    /// A descriptor of the process of each PE. `None` for this process, and for a process for which
    /// this process has no descriptor: only the rendezvous reports the end of such a process.
    #[cfg(target_os = "linux")]
    descriptors: Box<[Option<std::os::fd::OwnedFd>]>,
}

/// Returns the PID namespace of this process; 0 if the system does not report it. The PEs are on
/// one machine, so equal numbers mean the same namespace.
#[cfg(target_os = "linux")]
fn namespace() -> u64 {
    use std::os::linux::fs::MetadataExt;
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |found| found.st_ino())
}

impl Processes {
    /// Starts to watch the processes of all PEs. Collective over all PEs.
    #[cfg(target_os = "linux")]
    pub(crate) fn of_all(rendezvous: &Rendezvous) -> Result<Self, CudaError> {
        let mine = (std::process::id(), namespace());
        let blob: Vec<u8> = mine.0.to_le_bytes().into_iter().chain(mine.1.to_le_bytes()).collect();
        let all = rendezvous.exchange("peerweave-cuda/processes", &blob)?;
        let descriptor = |blob: &Vec<u8>| {
            let (pid, rest) = blob.split_first_chunk()?;
            let theirs = (u32::from_le_bytes(*pid), u64::from_le_bytes(rest.try_into().ok()?));
            if theirs.0 == mine.0 || theirs.1 != mine.1 || mine.1 == 0 {
                return None;
            }
            let pid = rustix::process::Pid::from_raw(i32::try_from(theirs.0).ok()?)?;
            rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
        };
        Ok(Self { descriptors: all.iter().map(descriptor).collect() })
    }

    /// Watches nothing: jobs of several PEs with GPUs need Linux.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn of_all(_rendezvous: &Rendezvous) -> Result<Self, CudaError> {
        Ok(Self {})
    }

    /// Returns whether the process of a PE is known to have ended.
    #[cfg(target_os = "linux")]
    pub(crate) fn has_ended(&self, pe: usize) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let Some(Some(descriptor)) = self.descriptors.get(pe) else { return false };
        let mut polled = [PollFd::new(descriptor, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0) && polled[0].revents().contains(PollFlags::IN)
    }

    /// Returns `false`: nothing is watched.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn has_ended(&self, _pe: usize) -> bool {
        false
    }
}
