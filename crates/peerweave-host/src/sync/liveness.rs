//! Detects whether the other PEs are alive. The sources are the processes of the PEs (`platform`),
//! the reports of the rendezvous, and the state that each PE publishes in its page.
//!
//! A waiter performs this check only after it has waited for milliseconds. One-sided operations
//! perform the check at intervals (see `target.rs`). A process ID is used only if it surely
//! identifies the process of the PE (see `process.rs`).

use crate::memory::layout::{Segments, state};
use crate::platform::Watch;
use crate::sync::process::Identity;
use peerweave_bootstrap::{Loss, Rendezvous};
use peerweave_core::PeerCause;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};

/// The state by which this process detects whether the other PEs are alive: their processes, the
/// states that they publish in their pages, and the reports of the rendezvous.
#[derive(Debug)]
pub(crate) struct Liveness {
    segments: Segments,
    processes: Box<[Process]>,
    /// Reports of the rendezvous about lost PEs, for processes that this process cannot watch.
    reports: Reports,
}

#[derive(Debug)]
enum Process {
    /// The PE is this PE, or another thread of this process. Its process has not ended, so only the
    /// state in the page of the PE shows whether the PE has left.
    Own,
    /// The PE is another process, which this process watches.
    Watched(Watch),
    /// The PE is a process whose process ID is not valid in this process, for example because the
    /// PE is in another PID namespace. The rendezvous reports the end of the PE.
    Distant,
}

#[derive(Debug, Default)]
struct Reports {
    rendezvous: Option<Weak<Rendezvous>>,
    lost: Mutex<BTreeSet<usize>>,
}

impl Liveness {
    /// Starts to watch all PEs. All PEs must have published their identities in their pages.
    pub(crate) fn new(segments: Segments, rendezvous: Option<&Arc<Rendezvous>>) -> Self {
        let own = Identity::own();
        let processes = (0..segments.layout().n_pes).map(|pe| {
            let theirs = Identity::read(segments.page(pe));
            if theirs == own {
                return Process::Own;
            }
            match own.number_of(&theirs) {
                Ok(pid) => Process::Watched(Watch::of(pe, pid)),
                Err(why) => {
                    tracing::warn!(pe, %why, "this process cannot detect the end of the PE; the rendezvous will report the end of the PE");
                    Process::Distant
                }
            }
        });
        let processes = processes.collect();
        Self { segments, processes, reports: Reports { rendezvous: rendezvous.map(Arc::downgrade), lost: Mutex::default() } }
    }

    /// Returns the PEs that this process cannot watch. Only the rendezvous reports the end of these
    /// PEs.
    pub(crate) fn distant(&self) -> Vec<usize> {
        let distant = self.processes.iter().enumerate().filter(|(_, process)| matches!(process, Process::Distant));
        distant.map(|(pe, _)| pe).collect()
    }

    /// Returns the reason why a PE no longer participates in the job. Returns `None` while the PE
    /// participates.
    pub(crate) fn gone(&self, pe: usize) -> Option<PeerCause> {
        match self.segments.page(pe).state.load(Ordering::Acquire) {
            state::FINALIZED | state::LEFT => return Some(PeerCause::Left),
            _ => {}
        }
        let ended = match &self.processes[pe] {
            Process::Own => false,
            Process::Watched(process) => process.has_ended().unwrap_or_else(|| self.reports.has_lost(pe)),
            Process::Distant => self.reports.has_lost(pe),
        };
        // Since the state was read, the PE may have left normally and its process may have ended.
        match self.segments.page(pe).state.load(Ordering::Acquire) {
            state::FINALIZED | state::LEFT => Some(PeerCause::Left),
            state::LEAVING if ended => Some(PeerCause::Left),
            _ if ended => Some(PeerCause::Died),
            _ => None,
        }
    }
}

impl Reports {
    /// Returns whether the rendezvous has reported PE `pe` as lost. A lost PE has ended, but did
    /// not leave the job.
    fn has_lost(&self, pe: usize) -> bool {
        let mut lost = self.lost.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(rendezvous) = self.rendezvous.as_ref().and_then(Weak::upgrade) {
            let losses = rendezvous.losses().into_iter();
            lost.extend(
                losses.filter(|(_, loss)| matches!(loss, Loss::Disconnected | Loss::Reported(_))).map(|(pe, _)| pe.index()),
            );
        }
        lost.contains(&pe)
    }
}
