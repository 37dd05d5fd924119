//! Teams, which are ordered sets of PEs. `ops/` defines the operations of a team.
//!
//! Invariant: `members[r]` is the PE of rank `r`. `ranks` maps the number of each PE to its rank.
//! This PE is a member of the team.

use crate::backend::error::{Error, TeamName};
use crate::backend::{TeamId, TeamRecord};
use crate::shared::Shared;
use peerweave_types::{Pe, Rank};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An ordered set of PEs that includes this PE. A clone refers to the same team.
///
/// Rank arguments of an operation are ranks in the team on which the operation is called. A team's
/// collective operations run in the order in which they are called. This order must be the same on
/// every rank.
///
/// Dropping the last handle does not destroy the team, because destroying a team is a collective
/// call ([`Team::destroy`]). The number of a team that is dropped without a call to `destroy` stays
/// in use until the world ends.
///
/// ```
/// use peerweave::World;
///
/// # fn main() -> peerweave::Result<()> {
/// let world = World::from_env()?;
/// let team = world.team();
/// assert_eq!((team.size(), team.my_rank().get()), (world.n_pes(), world.my_pe().get()));
///
/// let row = team.split(Some(u64::from(team.my_rank().get() / 2)), 0)?.expect("a color was given"); // pairs
/// assert!(row.size() <= 2);
/// row.barrier_blocking()?;
/// row.destroy()?;
/// assert!(world.finalize()?.is_clean());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Team {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) shared: Arc<Shared>,
    pub(crate) id: TeamId,
    pub(crate) members: Box<[Pe]>,
    /// The rank of each PE of the job; `NOT_A_MEMBER` for PEs outside the team.
    ranks: Box<[u32]>,
    my_rank: Rank,
    /// Whether the team is the team of all PEs or of this machine's PEs. The program cannot destroy
    /// these teams.
    pub(crate) of_world: bool,
    destroyed: AtomicBool,
}

const NOT_A_MEMBER: u32 = u32::MAX;

impl Inner {
    #[inline]
    pub(crate) fn is_destroyed(&self) -> bool {
        self.destroyed.load(Ordering::Acquire)
    }

    /// Sets whether the team counts as destroyed, and returns the previous value.
    pub(crate) fn set_destroyed(&self, destroyed: bool) -> bool {
        self.destroyed.swap(destroyed, Ordering::AcqRel)
    }
}

impl Team {
    pub(crate) fn new(shared: &Arc<Shared>, record: TeamRecord, of_world: bool) -> Self {
        let mut ranks = vec![NOT_A_MEMBER; shared.n_pes].into_boxed_slice();
        for (rank, pe) in (0..).zip(&record.members) {
            ranks[pe.index()] = rank;
        }
        let my_rank = ranks[shared.my_pe.index()];
        assert_ne!(my_rank, NOT_A_MEMBER, "backend bug: the team does not contain this PE");
        let inner = Inner {
            shared: Arc::clone(shared),
            id: record.id,
            members: record.members.into(),
            ranks,
            my_rank: Rank::new(my_rank),
            of_world,
            destroyed: AtomicBool::new(false),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Returns the number of ranks in the team.
    #[inline]
    pub fn size(&self) -> usize {
        self.inner.members.len()
    }

    /// Returns the rank that this PE has in the team.
    #[inline]
    pub fn my_rank(&self) -> Rank {
        self.inner.my_rank
    }

    /// Returns the PEs that are members of the team, in rank order.
    pub fn members(&self) -> &[Pe] {
        &self.inner.members
    }

    /// Returns the name by which error messages refer to the team.
    pub fn name(&self) -> TeamName {
        TeamName { id: self.inner.id, size: self.size() }
    }

    /// Returns the reason why operations of this team fail from now on; `None` if the team has not
    /// failed.
    ///
    /// After a failed operation, for example because a PE has died, the ranks of a team may
    /// disagree on which operation is next. In this case, the team has failed. Later collectives,
    /// sends and receives of the team fail with [`Error::Poisoned`], which contains the error that
    /// this method returns. [`Caps::after_failure`] describes what streams do after a failure.
    ///
    /// [`Caps::after_failure`]: crate::Caps::after_failure
    pub fn failure(&self) -> Option<Error> {
        if self.inner.is_destroyed() || self.inner.shared.is_forked() {
            return None;
        }
        self.inner.shared.backend.team_failure(self.inner.id)
    }

    /// Returns the rank of `pe` in the team; `None` if `pe` is not a member.
    pub fn rank_of(&self, pe: Pe) -> Option<Rank> {
        self.inner.ranks.get(pe.index()).copied().filter(|&rank| rank != NOT_A_MEMBER).map(Rank::new)
    }

    /// Converts a rank of this team to a rank of `other`: returns the rank that the same PE has in
    /// `other`. Returns `None` if this team has no rank `rank`, if the PE is not a member of
    /// `other`, or if `other` belongs to another world.
    pub fn translate(&self, rank: Rank, other: &Team) -> Option<Rank> {
        if !Arc::ptr_eq(&self.inner.shared, &other.inner.shared) {
            return None;
        }
        other.rank_of(*self.inner.members.get(rank.index())?)
    }
}

impl fmt::Debug for Team {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Team")
            .field("id", &self.inner.id.0)
            .field("my_rank", &self.inner.my_rank.get())
            .field("members", &self.inner.members)
            .finish_non_exhaustive()
    }
}
