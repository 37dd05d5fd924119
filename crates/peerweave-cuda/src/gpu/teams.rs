//! The teams of one GPU by number. Making and ending them is `team.rs`.

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
    /// The team is being ended, or could not be.
    Ended,
}

/// The teams of one GPU by number; number 0 is the team of all PEs.
pub(crate) struct Teams {
    /// Held for a moment alone: launches look teams up.
    numbers: Mutex<Vec<Number>>,
    /// How many splits there were, for the labels of their exchanges. Held by the one that is under
    /// way.
    pub(crate) splits: Mutex<u64>,
}

impl Teams {
    /// How many teams there may be at a time besides that of all PEs: one bit each travels in a
    /// split.
    pub(crate) const MOST: u32 = 63;

    pub(crate) fn new(n_teams: u32) -> Self {
        Self { numbers: Mutex::new((0..n_teams).map(|_| Number::Free).collect()), splits: Mutex::default() }
    }

    pub(crate) fn numbers(&self) -> MutexGuard<'_, Vec<Number>> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One bit for each number that is free; that of the team of all PEs never is.
    pub(crate) fn free(&self) -> u64 {
        let numbers = self.numbers();
        let free = numbers.iter().enumerate().skip(1).filter(|(_, number)| matches!(number, Number::Free));
        free.fold(0, |bits, (number, _)| bits | 1 << number)
    }

    /// The live team of this number, if this PE is a member of one.
    pub(crate) fn find(&self, team: KernelTeam) -> Option<Arc<Members>> {
        match self.numbers().get(team.index() as usize)? {
            Number::Live(members) => Some(Arc::clone(members)),
            Number::Free | Number::Ended => None,
        }
    }

    /// Takes a team out, so that no launch finds it; `false` where something else than its one
    /// handle uses it.
    pub(crate) fn end(&self, number: u32, members: &Arc<Members>) -> bool {
        let mut numbers = self.numbers();
        // Two handles: that of the caller and that of the table.
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
    /// Notes that work which uses the team is about to be enqueued.
    pub(crate) fn note(&self, stream: &Arc<CudaStream>) {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if !streams.iter().any(|known| known.cu_stream() == stream.cu_stream()) {
            streams.push(Arc::clone(stream));
        }
    }
}
