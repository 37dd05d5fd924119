//! The teams of one PE, with the state that operations on each team need.

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

/// The collective kernels with which a [`TeamOf`] is created. For a team on several hosts, these
/// are the kernels for the members on this host.
pub(crate) enum Kernels {
    /// The kernels of a team on one host: this PE maps the memory of all members. `None` if the
    /// team has more than 8 members, or if the heap has no room for the staging memory.
    OneHost(Option<Collectives>),
    /// The members are on several hosts. The value lists the ranks of each host, and has the
    /// kernels for the members on this host.
    Hosts(Span),
}

/// A team of which this PE is a member, with the state that operations on the team need.
pub(crate) struct TeamOf {
    pub(crate) id: TeamId,
    /// The PEs of the team, in the order of ranks.
    pub(crate) members: Box<[Pe]>,
    /// Rank of this PE in the team.
    pub(crate) me: usize,
    /// Name of the team in exchanges through the rendezvous. All members use the same name. No
    /// other team of the job has the same name.
    pub(crate) path: String,
    /// Digest of `path`. It distinguishes the call records of this team from the records of other
    /// teams with the same number.
    pub(crate) tag: u64,
    /// Number of earlier host calls that all members made together, such as allocations and splits.
    /// The label of the next exchange contains this number.
    pub(crate) agreements: Mutex<u64>,
    /// The keys of values that this PE has stored in the rendezvous and has not removed yet.
    pub(crate) stored: Mutex<VecDeque<String>>,
    /// Kernels of the team's collectives. `None` if the members are on several hosts, if there are
    /// more than 8 members, or if the heap has no room for the staging memory.
    pub(crate) collectives: Option<Collectives>,
    /// The ranks of each host, if the members are on several hosts; otherwise `None`.
    pub(crate) span: Option<Span>,
    /// The stream in which this PE enqueued the team's last collective, send or receive. The lock
    /// is held while such an operation is enqueued.
    pub(crate) order: Mutex<Option<Arc<CudaStream>>>,
    /// The entry of the team in the team table that kernels read. `None` for the team of all PEs.
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

    /// Returns the team's number in the team table that kernels read.
    pub(crate) fn number(&self) -> KernelTeam {
        number(self.id)
    }

    /// Removes and returns the [`Team`] that owns this team's entry in the team table. Returns
    /// `None` for the team of all PEs, and after an earlier call. If the caller destroys the
    /// [`Team`], the entry becomes free.
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

/// Returns the number of the team with this id. The number is the team's index in the team table
/// that kernels read.
pub(crate) fn number(team: TeamId) -> KernelTeam {
    KernelTeam::new(team.0 & 0xff)
}

/// Returns the id of a team. `number` is the team's number in the team table that kernels read. A
/// later team can reuse this number. The id therefore also contains `count`, the value of
/// [`State::splits`](crate::backend::state::State::splits) after the split that created the team.
pub(crate) fn id(number: KernelTeam, count: u32) -> TeamId {
    TeamId(number.index() | (count << 8))
}

/// All teams of which this PE is a member.
pub(crate) struct Teams {
    world: RwLock<Option<Arc<TeamOf>>>,
    others: RwLock<Vec<Arc<TeamOf>>>,
}

impl Teams {
    pub(crate) fn new(world: TeamOf) -> Self {
        Self { world: RwLock::new(Some(Arc::new(world))), others: RwLock::default() }
    }

    /// Returns the team with this id. Returns `None` after the team was destroyed, and after
    /// finalize.
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

    /// Calls the function `with` for each existing team. Stops at the first call that fails.
    ///
    /// # Errors
    /// The first error of `with`.
    pub(crate) fn try_each<E>(&self, mut with: impl FnMut(&TeamOf) -> Result<(), E>) -> Result<(), E> {
        self.world.read().unwrap_or_else(PoisonError::into_inner).as_deref().map_or(Ok(()), &mut with)?;
        let others = self.others.read().unwrap_or_else(PoisonError::into_inner);
        others.iter().try_for_each(|team| with(team))
    }

    /// Removes all teams. Finalize calls this function, because teams hold memory of the GPU.
    pub(crate) fn clear(&self) {
        let world = self.world.write().unwrap_or_else(PoisonError::into_inner).take();
        let others = std::mem::take(&mut *self.others.write().unwrap_or_else(PoisonError::into_inner));
        drop((world, others));
    }
}
