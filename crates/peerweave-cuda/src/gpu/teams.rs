//! The teams of a GPU by number. `team.rs` creates and destroys them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use peerweave_driver::CudaStream;
use peerweave_types::{KernelTeam, Pe, Rank};

/// The members of a team, and the streams with work that uses it.
pub(crate) struct Members {
    pub(crate) pes: Vec<Pe>,
    pub(crate) rank: Rank,
    pub(crate) nvshmem: Mutex<Option<peerweave_nvshmem::Team>>,
    pub(crate) streams: Mutex<Vec<Arc<CudaStream>>>,
}

/// The state of a team number on this PE.
pub(crate) enum Number {
    Free,
    Live(Arc<Members>),
    /// The team is being destroyed, or could not be destroyed.
    Ended,
}

/// The teams of a GPU by number; number 0 is the team of all PEs.
pub(crate) struct Teams {
    /// The state of each team number. Every launch looks up its teams here, so the lock is held
    /// only briefly.
    numbers: Mutex<Vec<Number>>,
    /// Number of splits so far, for the labels of their exchanges. Locked during a split.
    pub(crate) splits: Mutex<u64>,
}

impl Teams {
    /// Maximum number of teams besides the team of all PEs. A split exchanges one bit for each
    /// number, as a `u64`.
    pub(crate) const MOST: u32 = 63;

    pub(crate) fn new(n_teams: u32) -> Self {
        Self { numbers: Mutex::new((0..n_teams).map(|_| Number::Free).collect()), splits: Mutex::default() }
    }

    pub(crate) fn numbers(&self) -> MutexGuard<'_, Vec<Number>> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns one bit for each free number. The number of the team of all PEs is never free.
    pub(crate) fn free(&self) -> u64 {
        let numbers = self.numbers();
        let free = numbers.iter().enumerate().skip(1).filter(|(_, number)| matches!(number, Number::Free));
        free.fold(0, |bits, (number, _)| bits | 1 << number)
    }

    /// Returns the team of this number, if it exists and this PE is a member.
    pub(crate) fn find(&self, team: KernelTeam) -> Option<Arc<Members>> {
        match self.numbers().get(team.index() as usize)? {
            Number::Live(members) => Some(Arc::clone(members)),
            Number::Free | Number::Ended => None,
        }
    }

    /// Removes a team, so that no launch finds it. Returns `false` and keeps the team if there are
    /// users other than the caller's handle.
    pub(crate) fn end(&self, number: u32, members: &Arc<Members>) -> bool {
        let mut numbers = self.numbers();
        // Without other users there are two handles: the caller's handle and the table's handle.
        let alone = Arc::strong_count(members) == 2;
        if alone {
            numbers[number as usize] = Number::Ended;
        }
        alone
    }

    pub(crate) fn set(&self, number: u32, to: Number) {
        self.numbers()[number as usize] = to;
    }
}

impl Members {
    /// Records that work that uses the team is about to be enqueued on `stream`.
    pub(crate) fn note(&self, stream: &Arc<CudaStream>) {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if !streams.iter().any(|known| known.cu_stream() == stream.cu_stream()) {
            streams.push(Arc::clone(stream));
        }
    }
}
