//! Creation and destruction of teams: splits, teams of listed PEs, and the team of all PEs on this
//! machine.

use crate::backend::error::{MisuseKind, misuse};
use crate::backend::{SplitCall, SplitPart};
use crate::world::team::Team;
use crate::world::world::World;
use crate::{Result, bounds, check};
use peerweave_types::{KernelTeam, Pe, Rank, TeamShape};
use std::sync::PoisonError;

impl World {
    /// Returns the team of all PEs on this machine, in PE order. Every call returns the same team.
    /// The team exists until the world ends.
    ///
    /// # Collective
    /// The first call on each PE is collective over all PEs of the job, like a split of the team
    /// that [`World::team`] returns. All PEs must make the collective calls of that team, including
    /// this first call, in the same order. Later calls on a PE are local.
    ///
    /// # Errors
    /// As for [`Team::split`].
    pub fn local_team(&self) -> Result<Team> {
        let mut cached = self.local_team.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(team) = &*cached {
            return Ok(team.clone());
        }
        let first = self.local_pes().first().copied().unwrap_or(self.my_pe());
        let team = self.team().split_for_world(first.get().into())?;
        Ok(cached.insert(team).clone())
    }

    /// Creates a team of the PEs in `members`: rank `r` of the team is PE `members[r]`. Only these
    /// PEs make the call, as in `MPI_Comm_create_group`. In contrast, every rank of the parent team
    /// must call [`Team::split`].
    ///
    /// # Collective
    /// All PEs in `members` must make the call, with the same list. A PE runs one call of `team_of`
    /// at a time: the call of a second thread waits until the first call has returned. So PEs that
    /// are members of several of these teams must create the teams in the same order, even from
    /// several threads.
    ///
    /// # Errors
    /// - [`Misuse`](crate::Misuse) if the list is empty, lacks this PE, contains a PE twice, or
    ///   contains a PE that is not in the job. Also [`Misuse`](crate::Misuse) if the world has been
    ///   finalized.
    /// - [`Error::Timeout`](crate::Error::Timeout) if a member has not made the call by the
    ///   deadline. The error names every member that has not made the call. The calls of all other
    ///   members fail too, and these members may repeat the call.
    /// - [`Error::Peer`](crate::Error::Peer) if a member has died or left the job.
    /// - [`Error::Mismatch`](crate::Error::Mismatch) if another member makes the call with a
    ///   different list that contains this PE. The calls of both PEs fail with this error.
    /// - [`Error::TooManyTeams`](crate::Error::TooManyTeams) on all members, if there is no team
    ///   number that is free on all members.
    ///
    /// ```
    /// use peerweave::{Pe, ReduceOp, World};
    ///
    /// # fn main() -> peerweave::Result<()> {
    /// let world = World::from_env()?;
    /// let even: Vec<Pe> = (0..world.n_pes() as u32).step_by(2).map(Pe::new).collect();
    /// if even.contains(&world.my_pe()) {
    ///     let team = world.team_of(&even)?; // the odd PEs do not call
    ///     let mut sum = [0u32];
    ///     team.all_reduce_blocking(&[1], &mut sum, ReduceOp::Sum)?;
    ///     assert_eq!(sum[0] as usize, even.len());
    ///     team.destroy()?;
    /// }
    /// assert!(world.finalize()?.is_clean());
    /// # Ok(())
    /// # }
    /// ```
    pub fn team_of(&self, members: &[Pe]) -> Result<Team> {
        check::members("team_of", &self.shared, members)?;
        let record = self.shared.backend.team_of(members)?;
        Ok(Team::new(&self.shared, record, false))
    }
}

impl Team {
    /// Returns the number that identifies this team in kernels. A launch accepts `&Team` for a
    /// `KernelTeam` parameter. Use this method to store a team in a struct that is passed to a
    /// kernel.
    ///
    /// The number is valid until the team is destroyed. A kernel that uses the number after the
    /// team has been destroyed fails, or uses a newer team that has the same number.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) if the team has been destroyed or the world has been finalized.
    ///
    /// ```
    /// use peerweave::World;
    /// use peerweave_device::prelude::*;
    ///
    /// /// Synchronizes the PEs of a team.
    /// #[kernel]
    /// fn meet(ctx: &Context, team: KernelTeam) -> Result<(), Failed> {
    ///     ctx.barrier_block(team)
    /// }
    ///
    /// # fn main() -> peerweave::Result<()> {
    /// let world = World::from_env()?;
    /// let pairs = world.team().split(Some(u64::from(world.my_pe().get() / 2)), 0)?.expect("a color was given");
    /// world.stream()?.launch(&meet::KERNEL, 1, 32, (&pairs,))?.wait()?;
    /// assert_eq!(world.team().kernel_team()?, KernelTeam::WORLD);
    /// assert!(world.finalize()?.is_clean());
    /// # Ok(())
    /// # }
    /// ```
    pub fn kernel_team(&self) -> Result<KernelTeam> {
        check::team("kernel_team", self)?;
        Ok(self.inner.shared.backend.kernel_team(self.inner.id))
    }

    /// Returns the PE that has rank `rank` in this team.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) if `rank` is not a rank of the team.
    pub fn pe_of(&self, rank: Rank) -> Result<Pe> {
        check::rank("pe_of", self, "rank", rank)
    }

    /// Splits the team into new teams. Ranks that pass the same color form one new team. The ranks
    /// of a new team are ordered by key. Ranks with equal keys are ordered by their rank in this
    /// team. A rank that passes no color gets `None`.
    ///
    /// # Collective
    /// Every rank must make the call. All ranks must make the collective calls of this team in the
    /// same order. Colors and keys may differ between ranks.
    ///
    /// # Errors
    /// - [`Misuse`](crate::Misuse) if the team has been destroyed or the world has been finalized.
    /// - [`Error::TooManyTeams`](crate::Error::TooManyTeams) if a PE already belongs to the maximum
    ///   number of teams.
    /// - [`Error::Mismatch`](crate::Error::Mismatch) if ranks have made different calls.
    /// - Errors of the backend.
    pub fn split(&self, color: Option<u64>, key: i64) -> Result<Option<Team>> {
        self.split_as(SplitCall::Colors, color.map(|color| SplitPart { color, key }))
    }

    /// Creates a new team of the ranks that `shape` contains, in the order of `shape`. Returns
    /// `None` on ranks that `shape` does not contain.
    ///
    /// # Collective
    /// Every rank must make the call, with the same shape. All ranks must make the collective calls
    /// of this team in the same order.
    ///
    /// # Errors
    /// As for [`Team::split`]. Also [`Error::Mismatch`](crate::Error::Mismatch) if ranks pass
    /// different shapes. Also [`Misuse`](crate::Misuse) if the shape is empty, contains a rank
    /// twice, or contains a rank that is not a rank of this team.
    pub fn split_strided(&self, shape: TeamShape) -> Result<Option<Team>> {
        const CALL: &str = "split_strided";
        check::team(CALL, self)?;
        let index = check::shape(CALL, self, shape)?;
        self.split_as(SplitCall::Strided(shape), index.map(|index| SplitPart { color: 0, key: index.into() }))
    }

    /// Splits the team twice: into rows of `x_range` ranks, and into columns. Returns the team of
    /// the row (x axis) that contains this rank, and the team of the column (y axis) that contains
    /// this rank.
    ///
    /// Ranks `r` with the same `r / x_range` form a row; ranks with the same `r % x_range` form a
    /// column. The last row may be shorter. If `x_range` exceeds the size of the team, there is one
    /// row.
    ///
    /// # Collective
    /// Every rank must make the call, with the same `x_range`. All ranks must make the collective
    /// calls of this team in the same order.
    ///
    /// # Errors
    /// As for [`Team::split_strided`]; [`Misuse`](crate::Misuse) if `x_range` is 0. If the split
    /// into columns fails, the teams of the rows are not destroyed.
    pub fn split_2d(&self, x_range: usize) -> Result<(Team, Team)> {
        const CALL: &str = "split_2d";
        check::team(CALL, self)?;
        bounds::positive(CALL, "x_range", x_range)?;
        let in_row = x_range.min(self.size());
        let x_range = in_row as u64;
        let rank = u64::from(self.my_rank().get());
        let (x, y) = (rank % x_range, rank / x_range);
        let axis = |columns, color, key: u64| -> Result<Team> {
            let call = SplitCall::TwoD { x_range: in_row, columns };
            let team = self.split_as(call, Some(SplitPart { color, key: key as i64 }))?;
            Ok(team.expect("backend bug: a rank that gave a color got no team"))
        };
        Ok((axis(false, y, x)?, axis(true, x, y)?))
    }

    fn split_as(&self, call: SplitCall, part: Option<SplitPart>) -> Result<Option<Team>> {
        check::team(call.name(), self)?;
        let record = self.inner.shared.backend.team_split(self.inner.id, call, part)?;
        Ok(record.map(|record| Team::new(&self.inner.shared, record, false)))
    }

    pub(crate) fn split_for_world(&self, color: u64) -> Result<Team> {
        check::team("local_team", self)?;
        let part = SplitPart { color, key: 0 };
        let record = self.inner.shared.backend.team_split(self.inner.id, SplitCall::Local, Some(part))?;
        Ok(Team::new(&self.inner.shared, record.expect("backend bug: a rank that gave a color got no team"), true))
    }

    /// Destroys the team. Later calls on clones of this handle fail.
    ///
    /// # Collective
    /// Every rank must make the call, after all of its other calls on this team. Before the call,
    /// all kernels that the rank launched with the team must have ended.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) for [`World::team`], for [`World::local_team`], and for a team
    /// that has already been destroyed; errors of the backend.
    pub fn destroy(self) -> Result<()> {
        const CALL: &str = "destroy";
        check::destroyable(CALL, &self, self.inner.of_world)?;
        if self.inner.set_destroyed(true) {
            return Err(misuse(CALL, MisuseKind::TeamDestroyed));
        }
        let outcome = self.inner.shared.backend.team_destroy(self.inner.id);
        if matches!(outcome, Err(crate::Error::Mismatch(_))) {
            // The ranks made different calls: the team stays usable through its clones.
            self.inner.set_destroyed(false);
        }
        outcome
    }
}
