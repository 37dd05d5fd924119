//! The teams of one PE, with the state that operations need.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use peerweave_core::TeamName;
use peerweave_core::backend::TeamId;
use peerweave_driver::CudaStream;
use peerweave_types::{KernelTeam, Pe};

use super::state::lock;
use crate::collective::{Collectives, CollectivesOptions};
use crate::team::Team;

/// A team that this PE is in.
pub(super) struct TeamOf {
    pub(super) id: TeamId,
    /// The PEs in the order of ranks.
    pub(super) members: Box<[Pe]>,
    /// Rank of this PE in the team.
    pub(super) me: usize,
    /// Name of the team on the host. The same on all members, and different from all other teams of
    /// the job.
    pub(super) path: String,
    /// Digest of the team's name.
    pub(super) tag: u64,
    /// Number of host calls that the members have made together.
    pub(super) agreements: Mutex<u64>,
    /// The keys under which the rendezvous may still have values of this PE.
    pub(super) stored: Mutex<VecDeque<String>>,
    /// Kernels of the team's collectives; `None` if not all members are mapped, or the heap has no
    /// room for the staging memory.
    pub(super) collectives: Option<Collectives>,
    /// Stream of the team's last collective.
    pub(super) order: Mutex<Option<Arc<CudaStream>>>,
    /// Entry of the team in the tables of kernels; `None` for the team of all PEs.
    team: Mutex<Option<Team>>,
}

impl TeamOf {
    pub(super) fn new(
        id: TeamId,
        members: &[Pe],
        me: usize,
        path: String,
        collectives: Option<Collectives>,
        team: Option<Team>,
    ) -> Self {
        Self {
            id,
            members: members.into(),
            me,
            tag: digest(&path),
            path,
            agreements: Mutex::default(),
            stored: Mutex::default(),
            collectives,
            order: Mutex::default(),
            team: Mutex::new(team),
        }
    }

    pub(super) fn name(&self) -> TeamName {
        TeamName { id: self.id, size: self.members.len() }
    }

    /// Returns the team's number in the tables of kernels.
    pub(super) fn number(&self) -> KernelTeam {
        number(self.id)
    }

    /// Takes the team's entry in the tables of kernels, to destroy it.
    pub(super) fn take_entry(&self) -> Option<Team> {
        lock(&self.team).take()
    }
}

/// Returns a digest of a value. Equal values have the same digest on all PEs.
pub(super) fn digest(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// Returns the number of a team in the tables of kernels.
pub(super) fn number(team: TeamId) -> KernelTeam {
    KernelTeam::new(team.0 & 0xff)
}

/// Returns the id of the team with this number, which is team number `count` of those that its
/// members have created.
pub(super) fn id(number: KernelTeam, count: u32) -> TeamId {
    TeamId(number.index() | (count << 8))
}

/// The teams of one PE.
pub(super) struct Teams {
    world: RwLock<Option<Arc<TeamOf>>>,
    others: RwLock<Vec<Arc<TeamOf>>>,
}

impl Teams {
    pub(super) fn new(world: TeamOf) -> Self {
        Self { world: RwLock::new(Some(Arc::new(world))), others: RwLock::default() }
    }

    /// Returns the team with this id; `None` after the team was destroyed or after finalize.
    pub(super) fn find(&self, team: TeamId) -> Option<Arc<TeamOf>> {
        if team == TeamId::WORLD {
            return self.world.read().unwrap_or_else(PoisonError::into_inner).clone();
        }
        let others = self.others.read().unwrap_or_else(PoisonError::into_inner);
        others.iter().find(|other| other.id == team).map(Arc::clone)
    }

    pub(super) fn add(&self, team: TeamOf) {
        self.others.write().unwrap_or_else(PoisonError::into_inner).push(Arc::new(team));
    }

    pub(super) fn remove(&self, team: TeamId) -> Option<Arc<TeamOf>> {
        let mut others = self.others.write().unwrap_or_else(PoisonError::into_inner);
        let at = others.iter().position(|other| other.id == team)?;
        Some(others.swap_remove(at))
    }

    /// Calls `with` for each live team, until one fails.
    ///
    /// # Errors
    /// The first error of `with`.
    pub(super) fn try_each<E>(&self, mut with: impl FnMut(&TeamOf) -> Result<(), E>) -> Result<(), E> {
        self.world.read().unwrap_or_else(PoisonError::into_inner).as_deref().map_or(Ok(()), &mut with)?;
        let others = self.others.read().unwrap_or_else(PoisonError::into_inner);
        others.iter().try_for_each(|team| with(team))
    }

    /// Removes all teams, because they hold memory of the GPU.
    pub(super) fn clear(&self) {
        let world = self.world.write().unwrap_or_else(PoisonError::into_inner).take();
        let others = std::mem::take(&mut *self.others.write().unwrap_or_else(PoisonError::into_inner));
        drop((world, others));
    }
}

/// Returns the options for the staging memory of the team of all PEs: the fastest ones for which
/// the heap has room.
pub(super) fn options_of_world(heap_bytes: u64) -> CollectivesOptions {
    let options = CollectivesOptions::default();
    if heap_bytes >= 4 * options.heap_bytes() {
        return options;
    }
    let bank_bytes = (heap_bytes / 256).clamp(4096, 256 << 10) & !4095;
    let max_blocks = (heap_bytes / (1 << 20)).clamp(1, 16) as u32;
    CollectivesOptions { bank_bytes, slot_bytes: 4096, max_blocks, ..options }
}

/// Returns the options for the staging memory of one of `teams` other teams. All of them together
/// use at most an eighth of the heap if that is enough.
pub(super) fn options_of_others(heap_bytes: u64, teams: u64) -> CollectivesOptions {
    const KIB: u64 = 1 << 10;
    let share = heap_bytes / 8 / teams.max(1);
    let (max_blocks, slot_bytes) = match share / KIB {
        8192.. => (32, 16 * KIB),
        1024.. => (16, 4 * KIB),
        128.. => (4, KIB),
        _ => (1, KIB),
    };
    let rings = CollectivesOptions { bank_bytes: 0, slot_bytes, max_blocks, ..CollectivesOptions::default() }.heap_bytes();
    // Two banks, and channels of half a bank.
    let bank_bytes = ((share.saturating_sub(rings) / 8 * 3) & !4095).clamp(4096, 2048 * KIB);
    CollectivesOptions { bank_bytes, slot_bytes, max_blocks, ..CollectivesOptions::default() }
}

/// Returns options with at most this number of blocks.
pub(super) fn within(options: CollectivesOptions, max_blocks: Option<u32>) -> CollectivesOptions {
    CollectivesOptions { max_blocks: max_blocks.map_or(options.max_blocks, |most| options.max_blocks.min(most)), ..options }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn teams_take_an_eighth_of_a_large_heap_at_most() {
        for heap_bytes in [8 << 20, 64 << 20, 1 << 30, 1 << 40] {
            let options = options_of_others(heap_bytes, 15);
            assert!(15 * options.heap_bytes() <= heap_bytes / 8, "{heap_bytes}: {options:?}");
        }
        assert!(options_of_others(1 << 30, 15).bank_bytes >= 1 << 20);
        assert!(15 * options_of_others(1 << 20, 15).heap_bytes() < 1 << 19);
    }
}
