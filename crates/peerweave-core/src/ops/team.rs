//! Creation and destruction of teams: splits, teams of listed PEs, and the team of this machine.

use crate::backend::error::{MisuseKind, misuse};
use crate::backend::{SplitCall, SplitPart};
use crate::world::team::Team;
use crate::world::world::World;
use crate::{Result, bounds, check};
use peerweave_types::{KernelTeam, Pe, Rank, TeamShape};
use std::sync::PoisonError;

impl World {
    /// Returns the team of the PEs of this machine, in PE order. Every call returns the same team,
    /// which ends with the world.
    ///
    /// # Collective
    /// The first call is collective: all PEs must make it, in the same order as other collective
    /// calls of [`World::team`]. Later calls are local.
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
    /// PEs call, as for `MPI_Comm_create_group`. In contrast, every rank of the parent must call
    /// [`Team::split`].
    ///
    /// # Collective
    /// All PEs of `members` must call with the same list, which contains the caller. A PE creates
    /// one such team at a time: a second thread that calls waits for the first. So PEs that share
    /// several such teams must create them in the same order, even from several threads.
    ///
    /// # Errors
    /// - [`Misuse`](crate::Misuse) if the list is empty, lacks this PE, contains a PE twice, or
    ///   contains a PE that the job does not have.
    /// - [`Error::Timeout`](crate::Error::Timeout) if a member did not call by the deadline. The
    ///   error names all such members. The members that called fail together, and may call again.
    /// - [`Error::Peer`](crate::Error::Peer) if a member has died or left.
    /// - [`Error::Mismatch`](crate::Error::Mismatch) if a member calls with a different list that
    ///   contains this PE. Both PEs get the error.
    /// - [`Error::TooManyTeams`](crate::Error::TooManyTeams) on all members, if no team number is
    ///   free on every member.
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
    /// `KernelTeam` parameter; use this method for a team inside a struct.
    ///
    /// The number is valid until the team is destroyed. A kernel that uses the number later fails,
    /// or uses a newer team that has the same number.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) if the team was destroyed or the world was finalized.
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

    /// Returns the PE of a rank.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) if the team does not have the rank.
    pub fn pe_of(&self, rank: Rank) -> Result<Pe> {
        check::rank("pe_of", self, "rank", rank)
    }

    /// Splits the team. Ranks with the same color form a new team, ordered by key, then by rank in
    /// this team. A rank that passes no color gets `None`.
    ///
    /// # Collective
    /// Every rank must call, in the same order as other collective calls of this team. Colors and
    /// keys may differ.
    ///
    /// # Errors
    /// - [`Misuse`](crate::Misuse) if the team was destroyed.
    /// - [`Error::TooManyTeams`](crate::Error::TooManyTeams) if a PE belongs to the maximum number
    ///   of teams.
    /// - [`Error::Mismatch`](crate::Error::Mismatch) if ranks made different calls.
    /// - Errors of the backend.
    pub fn split(&self, color: Option<u64>, key: i64) -> Result<Option<Team>> {
        self.split_as(SplitCall::Colors, color.map(|color| SplitPart { color, key }))
    }

    /// Creates a team of the ranks in `shape`, in the order of `shape`. Returns `None` on ranks
    /// outside `shape`.
    ///
    /// # Collective
    /// Every rank must call, with the same shape, in the same order as other collective calls of
    /// this team.
    ///
    /// # Errors
    /// As for [`Team::split`]. Also [`Error::Mismatch`](crate::Error::Mismatch) if ranks pass
    /// different shapes, and [`Misuse`](crate::Misuse) if the shape contains no ranks, a rank
    /// twice, or a rank that the team does not have.
    pub fn split_strided(&self, shape: TeamShape) -> Result<Option<Team>> {
        const CALL: &str = "split_strided";
        check::team(CALL, self)?;
        let index = check::shape(CALL, self, shape)?;
        self.split_as(SplitCall::Strided(shape), index.map(|index| SplitPart { color: 0, key: index.into() }))
    }

    /// Splits the team into rows of `x_range` ranks, and again into columns. Returns the team of
    /// the row (x axis) and the team of the column (y axis) of this rank.
    ///
    /// Ranks `r` with the same `r / x_range` form a row; ranks with the same `r % x_range` form a
    /// column. The last row may be shorter. If `x_range` exceeds the size of the team, there is one
    /// row.
    ///
    /// # Collective
    /// Every rank must call, with the same `x_range`, in the same order as other collective calls
    /// of this team.
    ///
    /// # Errors
    /// As for [`Team::split_strided`]; [`Misuse`](crate::Misuse) if `x_range` is 0. If the second
    /// split fails, the team of the row is not destroyed.
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
    /// Every rank must call, after its other calls of this team, and after the kernels that were
    /// launched with the team have ended.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) for [`World::team`], for [`World::local_team`], and for a team
    /// that was destroyed before; errors of the backend.
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
