//! Creates teams: from some PEs of a team, from the rows and columns of a team, and from PEs that
//! pass the same id.

use std::ffi::c_int;
use std::sync::Arc;

use peerweave_types::Pe;

use super::{BY_ID, CHILD, Team, TeamConfig, TeamId, TeamKind};
use crate::comm::Comm;
use crate::comm::agree::{Counter, Members, arrive, split_outcome};
use crate::comm::entry::Entered;
use crate::comm::identity::{SEED, mix};
use crate::context::Context;
use crate::error::{MisuseKind, NvshmemError};
use crate::sys::{self, nvshmem_team_t};

impl Team {
    /// Creates a team of `count` PEs of this team: the PEs with the ranks `start`,
    /// `start + stride`, and so on, in this order. Returns `None` on a PE that is not a member of
    /// the new team.
    ///
    /// A negative stride counts down. NVSHMEM's own split supports only positive strides, so this
    /// crate creates a team with a negative stride by an id, as [`Context::team_of`] does.
    ///
    /// ```no_run
    /// # fn f(world: &peerweave_nvshmem::Team) -> Result<(), peerweave_nvshmem::NvshmemError> {
    /// let last = world.len() as u32 - 1;
    /// let reversed = world.split_strided(last, -1, last + 1, Default::default())?;
    /// let reversed = reversed.expect("every PE is a member");
    /// assert_eq!(reversed.members()[0], world.members()[last as usize]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Collective
    /// All PEs of this team must make this call with the same arguments.
    ///
    /// # Errors
    /// [`MisuseKind::Value`] or [`MisuseKind::Rank`] if `stride` or `count` is 0, or if this team
    /// does not have all of the ranks. [`NvshmemError::Nvshmem`] if there are too many teams
    /// ([`Settings::max_teams`](crate::Settings::max_teams)). With multicast, NVSHMEM counts each
    /// team several times, and ends the process if there are too many teams.
    /// [`NvshmemError::Disagree`] if the PEs pass different arguments. [`NvshmemError::Timeout`] or
    /// [`NvshmemError::Bootstrap`] if a PE does not arrive. These errors name the missing PEs if
    /// they are known.
    pub fn split_strided(&self, start: u32, stride: i32, count: u32, config: TeamConfig) -> Result<Option<Self>, NvshmemError> {
        const CALL: &str = "nvshmem_team_split_strided";
        let _setup = self.comm.setup_turn(CALL)?;
        let ranks = self.strided(CALL, start, stride, count);
        let able = ranks.as_ref().map(drop).map_err(Clone::clone);
        let (_turn, able) = split_outcome(able.and_then(|()| self.drain(CALL)));
        let mut entered = self.arrive(CALL, &format!("start {start}, stride {stride}, count {count}, {config:?}"), able)?;
        let (parent, identity) = (self.handle(), self.child(u64::from(start) << 32 | u64::from(stride.cast_unsigned())));
        let ranks = ranks?;
        // The stride of a team with one member has no effect.
        let stride = if count == 1 { 1 } else { stride };
        if self.core.by_id || stride < 0 {
            return self.part(CALL, &mut entered, ranks, identity, config);
        }
        let (code, handle) = entered.block(CALL, move |api, _| {
            let (raw, mask) = config.to_raw();
            let config = if mask == 0 { std::ptr::null() } else { &raw const raw };
            let mut handle = sys::NVSHMEM_TEAM_INVALID;
            let [start, count] = [start, count].map(|number| number as c_int);
            // SAFETY: the parent is live [T2], and all of its PEs call. The ranks are inside the
            // parent, and the pointers are to live values.
            let code = unsafe { api.nvshmem_team_split_strided(parent, start, stride, count, config, mask, &raw mut handle) }?;
            Ok((code, handle))
        })?;
        self.comm.nvshmem.check(CALL, code)?;
        let member = ranks.contains(&self.rank().get());
        self.made(CALL, &mut entered, handle, member, identity)
    }

    /// Returns the ranks that a strided split selects. Returns an error if `stride` or `count` is
    /// 0, or if this team does not have all of the ranks.
    fn strided(&self, call: &'static str, start: u32, stride: i32, count: u32) -> Result<Vec<u32>, NvshmemError> {
        let value = |what, found, expected| Err(NvshmemError::misuse(call, MisuseKind::Value { what, found, expected }));
        if stride == 0 {
            return value("the stride", 0, "a number other than 0");
        }
        if count == 0 {
            return value("the count", 0, "at least 1");
        }
        let last = i64::from(start) + i64::from(stride) * i64::from(count - 1);
        if last < 0 {
            return value(
                "the rank of the last member",
                last,
                "at least 0 (the last member has the rank start + stride * (count - 1))",
            );
        }
        // The first rank can be the highest only if the stride is negative or there is one rank.
        let highest = last.max(start.into());
        if highest >= self.len() as i64 {
            let (what, found) = (if highest == last { "the last member" } else { "the start" }, highest as usize);
            return Err(NvshmemError::misuse(call, MisuseKind::Rank { what, found, ranks: self.len() }));
        }
        Ok((0..i64::from(count)).map(|index| (i64::from(start) + index * i64::from(stride)) as u32).collect())
    }

    /// Arranges the ranks of this team in rows of length `width`, and creates a team for each row
    /// and for each column. Returns the team of the row and the team of the column that contain
    /// this PE.
    ///
    /// # Collective
    /// All PEs of this team must make this call with the same arguments.
    ///
    /// # Errors
    /// [`MisuseKind::Value`] if `width` is 0. Other errors are the same as for
    /// [`split_strided`](Self::split_strided).
    pub fn split_2d(&self, width: u32, config: TeamConfig) -> Result<(Self, Self), NvshmemError> {
        const CALL: &str = "nvshmem_team_split_2d";
        let _setup = self.comm.setup_turn(CALL)?;
        let able = match width {
            0 => Err(NvshmemError::misuse(CALL, MisuseKind::Value { what: "the width", found: 0, expected: "at least 1" })),
            _ => self.drain(CALL),
        };
        let (_turn, able) = split_outcome(able);
        let mut entered = self.arrive(CALL, &format!("width {width}, {config:?}"), able)?;
        let parent = self.handle();
        let (row_identity, column_identity) = (self.child(1), self.child(2));
        if self.core.by_id {
            let (len, rank) = (self.len() as u32, self.rank().get());
            let row: Vec<u32> = (rank - rank % width..len).take(width as usize).collect();
            let column: Vec<u32> = (rank % width..len).step_by(width as usize).collect();
            let mut part = |ranks: Vec<u32>, identity| {
                let identity = mix(identity, ranks[0].into());
                let team = self.part(CALL, &mut entered, ranks, identity, config)?;
                Ok::<_, NvshmemError>(team.expect("this PE is a member of its row and of its column"))
            };
            return Ok((part(row, row_identity)?, part(column, column_identity)?));
        }
        let (code, row, column) = entered.block(CALL, move |api, _| {
            let (raw, mask) = config.to_raw();
            let config = if mask == 0 { std::ptr::null() } else { &raw const raw };
            let (mut row, mut column) = (sys::NVSHMEM_TEAM_INVALID, sys::NVSHMEM_TEAM_INVALID);
            let width = c_int::try_from(width).unwrap_or(c_int::MAX);
            // SAFETY: the parent is live [T2], and all of its PEs call. The pointers are to live
            // values.
            let code =
                unsafe { api.nvshmem_team_split_2d(parent, width, config, mask, &raw mut row, config, mask, &raw mut column) }?;
            Ok((code, row, column))
        })?;
        self.comm.nvshmem.check(CALL, code)?;
        let mut made = |handle, identity| {
            let team = self.made(CALL, &mut entered, handle, true, identity)?;
            Ok::<_, NvshmemError>(team.expect("this PE is a member of its row and of its column"))
        };
        Ok((made(row, row_identity)?, made(column, column_identity)?))
    }

    /// Creates a team of the members of `self` whose ranks are in `ranks`, in this order. Returns
    /// `None` if this PE's rank is not in `ranks`. Creates the team by an id, because NVSHMEM's
    /// split functions support no negative strides, and read out of bounds if `self` was created by
    /// an id.
    fn part(
        &self,
        call: &'static str,
        entered: &mut Entered<'_>,
        ranks: Vec<u32>,
        identity: u64,
        config: TeamConfig,
    ) -> Result<Option<Self>, NvshmemError> {
        if !ranks.contains(&self.rank().get()) {
            return Ok(None);
        }
        let members: Vec<Pe> = ranks.iter().map(|rank| self.core.members[*rank as usize]).collect();
        // An id with all bits set represents no id.
        let id = TeamId(if identity == u64::MAX { 0 } else { identity });
        Self::by_id(&self.comm, call, entered, id, &members, config, identity).map(Some)
    }

    /// Creates a team of `members`, which include this PE. All members pass the same `id`, by which
    /// NVSHMEM matches their calls.
    fn by_id(
        comm: &Arc<Comm>,
        call: &'static str,
        entered: &mut Entered<'_>,
        id: TeamId,
        members: &[Pe],
        config: TeamConfig,
        identity: u64,
    ) -> Result<Self, NvshmemError> {
        let rank = members.iter().position(|pe| *pe == comm.pe).expect("the caller checked that this PE is a member") as c_int;
        let n_pes = members.len() as c_int;
        let (code, handle) = entered.block(call, move |api, _| {
            let (mut raw, mask) = config.to_raw();
            raw.uniqueid = id.0;
            let mask = mask | sys::NVSHMEM_TEAM_CONFIG_MASK_UNIQUEID;
            let mut handle = sys::NVSHMEM_TEAM_INVALID;
            // SAFETY: the pointers are to live values. All members call with the same id, each with
            // its own rank.
            let code = unsafe { api.nvshmemx_team_init(&raw mut handle, &raw mut raw, mask, n_pes, rank) }?;
            Ok((code, handle))
        })?;
        comm.nvshmem.check(call, code)?;
        if handle == sys::NVSHMEM_TEAM_INVALID {
            return Err(comm.nvshmem.failure(call, None, "NVSHMEM created no team".to_owned()));
        }
        Self::of_handle(comm, entered, handle, TeamKind::Made, identity, true)
    }

    /// Converts `handle`, which NVSHMEM returned for the new team, to a [`Team`]. Returns `None` if
    /// this PE is not a member of the new team.
    fn made(
        &self,
        call: &'static str,
        entered: &mut Entered<'_>,
        handle: nvshmem_team_t,
        member: bool,
        identity: u64,
    ) -> Result<Option<Self>, NvshmemError> {
        match (handle, member) {
            (sys::NVSHMEM_TEAM_INVALID, false) => Ok(None),
            (sys::NVSHMEM_TEAM_INVALID, true) => {
                let detail = "NVSHMEM created no team: NVSHMEM_MAX_TEAMS may be too small".to_owned();
                Err(self.comm.nvshmem.failure(call, None, detail))
            }
            _ => Self::of_handle(&self.comm, entered, handle, TeamKind::Made, identity, false).map(Some),
        }
    }

    /// Returns the identity of a new team that is being split from this team. The identity is a
    /// hash of this team's identity, a count of the calls of this function, and `salt`. `salt`
    /// differs for each team of a split, and for splits with different parameters. All members of
    /// this team get the same result.
    fn child(&self, salt: u64) -> u64 {
        let count = self.comm.count(Counter::Children(self.core.identity));
        mix(mix(mix(self.core.identity, CHILD), count), salt)
    }
}

impl Context {
    /// Creates an id for a team that has no parent team. The caller sends the id to the other
    /// members.
    ///
    /// # Errors
    /// [`NvshmemError::Nvshmem`] if NVSHMEM returns an error. [`NvshmemError::Dead`] if NVSHMEM is
    /// unusable.
    pub fn team_id(&self) -> Result<TeamId, NvshmemError> {
        const CALL: &str = "nvshmemx_team_get_uniqueid";
        let mut id = 0;
        // SAFETY: the pointer is to a live integer.
        self.comm.issue_status(CALL, |api, _| unsafe { api.nvshmemx_team_get_uniqueid(&raw mut id) })?;
        Ok(TeamId(id))
    }

    /// Creates a team of the PEs in `members`, in this order. All members must pass the same id.
    ///
    /// # Collective
    /// All members must make this call with the same list. The id determines which calls belong
    /// together, so members that pass different lists get [`NvshmemError::Disagree`].
    ///
    /// # Errors
    /// [`MisuseKind::Value`] if the list does not contain this PE, or contains a PE twice.
    /// [`MisuseKind::Pe`] if the list contains a PE that the job does not have.
    /// [`MisuseKind::Text`] if the id is invalid. Other errors are the same as for
    /// [`Team::split_strided`].
    pub fn team_of(&self, id: TeamId, members: &[Pe], config: TeamConfig) -> Result<Team, NvshmemError> {
        const CALL: &str = "nvshmemx_team_init";
        let comm = &self.comm;
        let checked = self.check_members(CALL, id, members);
        let own = [comm.pe];
        // A PE with an invalid list does not wait for the other PEs, which get its error.
        let present = if checked.is_ok() { members } else { &own };
        // The identity depends only on the id, so PEs with different lists get an error too.
        let identity = mix(mix(SEED, BY_ID), id.0);
        let _setup = comm.setup_turn(CALL)?;
        let able = checked.and_then(|()| comm.drain(CALL));
        let what = format!("members {members:?}, {config:?}");
        let mut entered = arrive(comm, CALL, Members::Team(present, identity), &what, able)?;
        Team::by_id(comm, CALL, &mut entered, id, members, config, identity)
    }

    fn check_members(&self, call: &'static str, id: TeamId, members: &[Pe]) -> Result<(), NvshmemError> {
        let value =
            |what, pe: &Pe, expected| NvshmemError::misuse(call, MisuseKind::Value { what, found: pe.get().into(), expected });
        for (index, pe) in members.iter().enumerate() {
            self.comm.check_pe(call, "a member", *pe)?;
            if members[..index].contains(pe) {
                return Err(value("a member", pe, "each PE only once"));
            }
        }
        if !members.contains(&self.comm.pe) {
            return Err(value("this PE", &self.comm.pe, "one of the members"));
        }
        if id.0 == u64::MAX {
            let kind = MisuseKind::Text { what: "the team's id", why: "a value with all bits set is not an id" };
            return Err(NvshmemError::misuse(call, kind));
        }
        Ok(())
    }
}
