//! The table of a GPU's teams, by team number. The functions in `team.rs` create and destroy teams.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use peerweave_driver::CudaStream;
use peerweave_types::{KernelTeam, Pe, Rank};

/// A live team: its members, and the streams with work that uses the team.
pub(crate) struct Members {
    pub(crate) pes: Vec<Pe>,
    pub(crate) rank: Rank,
    pub(crate) nvshmem: Mutex<Option<peerweave_nvshmem::Team>>,
    pub(crate) streams: Mutex<Vec<Arc<CudaStream>>>,
}

/// The state of a team number on this PE: free, used by a live team, or blocked. A number is
/// blocked if its team is being destroyed or could not be destroyed.
pub(crate) enum Number {
    Free,
    Live(Arc<Members>),
    /// The number is blocked: the team with this number is being destroyed, or could not be
    /// destroyed.
    Ended,
}

/// The teams of a GPU, by number. Number 0 is the team of all PEs.
pub(crate) struct Teams {
    /// The state of each team number. The index is the number. Every launch locks this list to look
    /// up the launch's teams, so all code holds the lock only briefly.
    numbers: Mutex<Vec<Number>>,
    /// Number of earlier splits. The next split uses this number in the labels of its exchanges
    /// with other PEs. A split holds the lock while it runs.
    pub(crate) splits: Mutex<u64>,
}

impl Teams {
    /// Maximum number of teams besides the team of all PEs. In a split, each PE sends a `u64` with
    /// one bit for each team number, so 64 numbers are possible.
    pub(crate) const MOST: u32 = 63;

    pub(crate) fn new(n_teams: u32) -> Self {
        Self { numbers: Mutex::new((0..n_teams).map(|_| Number::Free).collect()), splits: Mutex::default() }
    }

    pub(crate) fn numbers(&self) -> MutexGuard<'_, Vec<Number>> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a bit mask of the free team numbers. The number of the team of all PEs is never
    /// free.
    pub(crate) fn free(&self) -> u64 {
        let numbers = self.numbers();
        let free = numbers.iter().enumerate().skip(1).filter(|(_, number)| matches!(number, Number::Free));
        free.fold(0, |bits, (number, _)| bits | 1 << number)
    }

    /// Returns the live team with this number. Returns `None` if there is no such team, or if this
    /// PE is not a member.
    pub(crate) fn find(&self, team: KernelTeam) -> Option<Arc<Members>> {
        match self.numbers().get(team.index() as usize)? {
            Number::Live(members) => Some(Arc::clone(members)),
            Number::Free | Number::Ended => None,
        }
    }

    /// Ends a team if only the caller uses it: sets the state of its number to [`Number::Ended`],
    /// so that no launch finds the team, and returns `true`. If the team has other users, changes
    /// nothing and returns `false`.
    pub(crate) fn end(&self, number: u32, members: &Arc<Members>) -> bool {
        let mut numbers = self.numbers();
        // If the team has no other users, there are two handles: the caller's handle and the
        // table's handle.
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
    /// Records that work of the caller on `stream` uses the team. The team is destroyed only after
    /// this work has completed.
    pub(crate) fn note(&self, stream: &Arc<CudaStream>) {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if !streams.iter().any(|known| known.cu_stream() == stream.cu_stream()) {
            streams.push(Arc::clone(stream));
        }
    }
}
