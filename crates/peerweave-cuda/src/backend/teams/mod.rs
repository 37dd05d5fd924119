//! The teams of one PE, with the state that operations need.

mod calls;
mod messages;
#[cfg(target_os = "linux")]
mod pages;
#[cfg(not(target_os = "linux"))]
#[path = "pages_elsewhere.rs"]
mod pages;

mod span;

pub(crate) use calls::Calls;
pub(crate) use messages::MessageRecord;
pub(crate) use span::Span;

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use peerweave_core::TeamName;
use peerweave_core::backend::TeamId;
use peerweave_driver::CudaStream;
use peerweave_types::{KernelTeam, Pe};

use crate::backend::lock::lock;
use crate::collective::Collectives;
use crate::team::Team;

/// The kernels of a team's collectives.
pub(crate) enum Kernels {
    /// This PE maps the memory of all members. `None` if the team has more than 8 members, or if
    /// the heap has no room for the staging memory.
    OneHost(Option<Collectives>),
    /// The members are on several hosts. The value lists the ranks of each host.
    Hosts(Span),
}

/// A team that this PE is in.
pub(crate) struct TeamOf {
    pub(crate) id: TeamId,
    /// The PEs in the order of ranks.
    pub(crate) members: Box<[Pe]>,
    /// Rank of this PE in the team.
    pub(crate) me: usize,
    /// Name of the team in exchanges on the host. The name is the same on all members, and differs
    /// from those of all other teams of the job.
    pub(crate) path: String,
    /// Digest of `path`.
    pub(crate) tag: u64,
    /// Number of host calls that the members have made together.
    pub(crate) agreements: Mutex<u64>,
    /// The keys under which the rendezvous may still have values of this PE.
    pub(crate) stored: Mutex<VecDeque<String>>,
    /// Kernels of the team's collectives. `None` if the members are on several hosts, if there are
    /// more than 8 members, or if the heap has no room for the staging memory.
    pub(crate) collectives: Option<Collectives>,
    /// The members by host, if they are on several hosts.
    pub(crate) span: Option<Span>,
    /// Stream of the team's last collective.
    pub(crate) order: Mutex<Option<Arc<CudaStream>>>,
    /// Entry of the team in the tables of kernels; `None` for the team of all PEs.
    team: Mutex<Option<Team>>,
}

impl TeamOf {
    pub(crate) fn new(id: TeamId, members: &[Pe], me: usize, path: String, kernels: Kernels, team: Option<Team>) -> Self {
        let (collectives, span) = match kernels {
            Kernels::OneHost(collectives) => (collectives, None),
            Kernels::Hosts(span) => (None, Some(span)),
        };
        Self {
            id,
            members: members.into(),
            me,
            tag: digest(&path),
            path,
            agreements: Mutex::default(),
            stored: Mutex::default(),
            collectives,
            span,
            order: Mutex::default(),
            team: Mutex::new(team),
        }
    }

    pub(crate) fn name(&self) -> TeamName {
        TeamName { id: self.id, size: self.members.len() }
    }

    /// Returns the team's number in the tables of kernels.
    pub(crate) fn number(&self) -> KernelTeam {
        number(self.id)
    }

    /// Takes the team's entry in the tables of kernels, so that the caller can destroy the entry.
    pub(crate) fn take_entry(&self) -> Option<Team> {
        lock(&self.team).take()
    }
}

/// Returns a digest of a value. Equal values have the same digest on all PEs.
pub(crate) fn digest(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// Returns the number of a team in the tables of kernels.
pub(crate) fn number(team: TeamId) -> KernelTeam {
    KernelTeam::new(team.0 & 0xff)
}

/// Returns the id of the team with this number in the tables of kernels. `count` is the number of
/// teams that its members have created, including this team. The count distinguishes teams that
/// reuse a number.
pub(crate) fn id(number: KernelTeam, count: u32) -> TeamId {
    TeamId(number.index() | (count << 8))
}

/// The teams of one PE.
pub(crate) struct Teams {
    world: RwLock<Option<Arc<TeamOf>>>,
    others: RwLock<Vec<Arc<TeamOf>>>,
}

impl Teams {
    pub(crate) fn new(world: TeamOf) -> Self {
        Self { world: RwLock::new(Some(Arc::new(world))), others: RwLock::default() }
    }

    /// Returns the team with this id; `None` after the team was destroyed or after finalize.
    pub(crate) fn find(&self, team: TeamId) -> Option<Arc<TeamOf>> {
        if team == TeamId::WORLD {
            return self.world.read().unwrap_or_else(PoisonError::into_inner).clone();
        }
        let others = self.others.read().unwrap_or_else(PoisonError::into_inner);
        others.iter().find(|other| other.id == team).map(Arc::clone)
    }

    pub(crate) fn add(&self, team: TeamOf) {
        self.others.write().unwrap_or_else(PoisonError::into_inner).push(Arc::new(team));
    }

    pub(crate) fn remove(&self, team: TeamId) -> Option<Arc<TeamOf>> {
        let mut others = self.others.write().unwrap_or_else(PoisonError::into_inner);
        let at = others.iter().position(|other| other.id == team)?;
        Some(others.swap_remove(at))
    }

    /// Calls `with` for each live team, until one fails.
    ///
    /// # Errors
    /// The first error of `with`.
    pub(crate) fn try_each<E>(&self, mut with: impl FnMut(&TeamOf) -> Result<(), E>) -> Result<(), E> {
        self.world.read().unwrap_or_else(PoisonError::into_inner).as_deref().map_or(Ok(()), &mut with)?;
        let others = self.others.read().unwrap_or_else(PoisonError::into_inner);
        others.iter().try_for_each(|team| with(team))
    }

    /// Removes all teams, because they hold memory of the GPU.
    pub(crate) fn clear(&self) {
        let world = self.world.write().unwrap_or_else(PoisonError::into_inner).take();
        let others = std::mem::take(&mut *self.others.write().unwrap_or_else(PoisonError::into_inner));
        drop((world, others));
    }
}
