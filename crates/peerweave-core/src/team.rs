//! Ordered sets of PEs. What a team can do is in `collective.rs`, `one_sided.rs`, `atomic.rs`, `signal.rs` and `group.rs`.
//!
//! Invariant: `members[r]` is the PE of rank `r`, `ranks[p]` its inverse, and this PE is a member.

use crate::backend::{SplitPart, TeamId, TeamRecord};
use crate::error::{MisuseKind, TeamName};
use crate::shared::Shared;
use crate::{Result, check};
use peerweave_types::{Pe, Rank, TeamShape};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An ordered set of PEs, this one among them. A clone is the same team.
///
/// Every operation takes ranks of the team it is called on. Collective operations of one team run in the order in which they are called, which
/// must be the same on every rank.
///
/// Dropping the last handle does not end the team, since that is collective ([`Team::destroy`]): its number stays taken until the world ends.
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
/// world.finalize()?;
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
    /// By PE: its rank, or `NOT_A_MEMBER`.
    ranks: Box<[u32]>,
    my_rank: Rank,
    /// Whether the world keeps it, so that it cannot be destroyed.
    of_world: bool,
    destroyed: AtomicBool,
}

const NOT_A_MEMBER: u32 = u32::MAX;

impl Inner {
    #[inline]
    pub(crate) fn is_destroyed(&self) -> bool {
        self.destroyed.load(Ordering::Acquire)
    }
}

impl Team {
    pub(crate) fn new(shared: &Arc<Shared>, record: TeamRecord, of_world: bool) -> Self {
        let mut ranks = vec![NOT_A_MEMBER; shared.n_pes].into_boxed_slice();
        for (rank, pe) in (0..).zip(&record.members) {
            ranks[pe.index()] = rank;
        }
        let my_rank = ranks[shared.my_pe.index()];
        assert_ne!(my_rank, NOT_A_MEMBER, "backend bug: a team without this PE");
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

    /// Number of ranks.
    #[inline]
    pub fn size(&self) -> usize {
        self.inner.members.len()
    }

    /// The rank of this PE.
    #[inline]
    pub fn my_rank(&self) -> Rank {
        self.inner.my_rank
    }

    /// The PEs, in rank order.
    pub fn members(&self) -> &[Pe] {
        &self.inner.members
    }

    /// How error reports name it.
    pub fn name(&self) -> TeamName {
        TeamName { id: self.inner.id, size: self.size() }
    }

    /// The PE of a rank.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) where the team has no such rank.
    pub fn pe_of(&self, rank: Rank) -> Result<Pe> {
        check::rank("pe_of", self, "rank", rank)
    }

    /// The rank of a PE; `None` where it is not of the team.
    pub fn rank_of(&self, pe: Pe) -> Option<Rank> {
        self.inner.ranks.get(pe.index()).copied().filter(|&rank| rank != NOT_A_MEMBER).map(Rank::new)
    }

    /// The rank in `other` of the PE that has `rank` here; `None` where there is none, or `other` is a team of another world.
    pub fn translate(&self, rank: Rank, other: &Team) -> Option<Rank> {
        if !Arc::ptr_eq(&self.inner.shared, &other.inner.shared) {
            return None;
        }
        other.rank_of(*self.inner.members.get(rank.index())?)
    }

    /// Splits the team: ranks that give the same color form a new team, ordered by key, then by rank here. A rank that gives `None` gets `None`.
    ///
    /// # Collective
    /// Every rank, in the same order as its other collective calls of this team. Colors and keys may differ.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) where the team is gone; [`Error::OutOfMemory`](crate::Error::OutOfMemory) where there is no number for another team; what the backend reports.
    pub fn split(&self, color: Option<u64>, key: i64) -> Result<Option<Team>> {
        self.split_as("split", color.map(|color| SplitPart { color, key }))
    }

    /// The ranks of `shape` as a new team, in its order; `None` for a rank that is not in it.
    ///
    /// # Collective
    /// Every rank, with the same shape, in the same order as its other collective calls of this team.
    ///
    /// # Errors
    /// As [`Team::split`]; [`Misuse`](crate::Misuse) where the shape names ranks that the team does not have, or none, or one twice.
    pub fn split_strided(&self, shape: TeamShape) -> Result<Option<Team>> {
        const CALL: &str = "split_strided";
        check::team(CALL, self)?;
        let index = check::shape(CALL, self, shape)?;
        self.split_as(CALL, index.map(|index| SplitPart { color: 0, key: index.into() }))
    }

    /// Lays the ranks out in rows of `x_range` and splits them twice: into rows (the x axis: ranks `r` with the same `r / x_range`) and into columns
    /// (the y axis: the same `r % x_range`). Gives this rank's row and column. The last row may be shorter; a range of more than the team means one row.
    ///
    /// # Collective
    /// As [`Team::split_strided`].
    ///
    /// # Errors
    /// As [`Team::split`]; [`Misuse`](crate::Misuse) where `x_range` is 0. Where the second split fails, the first team stays.
    pub fn split_2d(&self, x_range: usize) -> Result<(Team, Team)> {
        const CALL: &str = "split_2d";
        check::team(CALL, self)?;
        check::positive(CALL, "x_range", x_range)?;
        let x_range = x_range.min(self.size()) as u64;
        let rank = u64::from(self.my_rank().get());
        let (x, y) = (rank % x_range, rank / x_range);
        let axis = |color, key: u64| -> Result<Team> {
            let team = self.split_as(CALL, Some(SplitPart { color, key: key as i64 }))?;
            Ok(team.expect("backend bug: no team for a rank that gave a color"))
        };
        Ok((axis(y, x)?, axis(x, y)?))
    }

    fn split_as(&self, call: &'static str, part: Option<SplitPart>) -> Result<Option<Team>> {
        check::team(call, self)?;
        let record = self.inner.shared.backend.team_split(self.inner.id, part)?;
        Ok(record.map(|record| Team::new(&self.inner.shared, record, false)))
    }

    pub(crate) fn split_for_world(&self, color: u64) -> Result<Team> {
        check::team("local_team", self)?;
        let part = SplitPart { color, key: 0 };
        let record = self.inner.shared.backend.team_split(self.inner.id, Some(part))?;
        Ok(Team::new(&self.inner.shared, record.expect("backend bug: no team for a rank that gave a color"), true))
    }

    /// Ends the team. Clones of this handle fail from now on.
    ///
    /// # Collective
    /// Every rank, after its other calls of this team.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) for the world's own teams and for a team that is gone; what the backend reports.
    pub fn destroy(self) -> Result<()> {
        const CALL: &str = "destroy";
        check::destroyable(CALL, &self, self.inner.of_world)?;
        if self.inner.destroyed.swap(true, Ordering::AcqRel) {
            return Err(check::misuse(CALL, MisuseKind::TeamDestroyed));
        }
        let outcome = self.inner.shared.backend.team_destroy(self.inner.id);
        if matches!(outcome, Err(crate::Error::Mismatch(_))) {
            // Others called something else; the team works on, for its clones.
            self.inner.destroyed.store(false, Ordering::Release);
        }
        outcome
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
