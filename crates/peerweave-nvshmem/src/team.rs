//! Teams: ordered sets of PEs that call collectives together.
//!
//! Their collectives are `collective.rs`.
//!
//! # Invariants
//! - **\[T1\]** A handle is a member's: who is not in a team has none.
//! - **\[T2\]** A team that was destroyed cannot be named: destroying takes the last handle.

use std::ffi::c_int;
use std::fmt;
use std::sync::Arc;

use peerweave_driver::{CudaStream, Keep, is_capturing};
use peerweave_types::{Pe, Rank};

use crate::agree::{Counted, Members, SEED, arrive, mix, taken};
use crate::context::{Context, Entered, Inner, is_alone};
use crate::error::{MisuseKind, NvshmemError};
use crate::order::{Order, Turn};
use crate::sys::{self, nvshmem_team_config_t, nvshmem_team_t};

/// An ordered set of PEs, this one among them. [`Rank`]s are indexes in it.
///
/// # Order
/// NVSHMEM keeps one set of counters for each team. So the collectives of a team (barriers, syncs, set-up calls and splits too) must come in the same
/// order on every PE, which is the caller's to hold, and never two at once in one process, which this crate holds:
///
/// - All handles of a team share one order, by the time of the call. Its collectives may come from several threads. NVSHMEM's own teams (all PEs, those whose
///   memory is mapped, those of a machine, those of an index) share one order too: what NVSHMEM does for all PEs it does in parts, as those.
/// - One on another stream than the team's last waits, on the device, for all that the last stream had by then; on the host it waits only while another
///   thread is in a call of the team that does. A stream that waits for something that only comes after the new collective keeps both for ever: give
///   streams that shall be independent a team each, made by the program.
/// - Set-up calls (allocating, freeing, registering, making and destroying teams, the end) come in one order over all teams, on every PE that takes part, threads
///   included: NVSHMEM lets one in at a time. One thread of a process makes them at a time, the others wait for it. Threads that make them in other orders on other
///   PEs wait for each other until the deadline, outside of NVSHMEM, and get errors.
/// - What NVSHMEM does on a stream of its own (allocating, freeing, registering) and the blocking forms wait for the team's last stream first, at most for the
///   context's deadline. Making and destroying teams, and the end, wait for every stream that was used with this context: NVSHMEM itself then waits for the
///   whole device, so that other work there which waits for a PE keeps it, and for longer than the deadline is the end of the context.
/// - A collective that is captured waits on the host for a last stream that is outside of the graph, since a graph cannot. While the last stream is being
///   captured, others are refused ([`MisuseKind::Context`]), unless they are captured into the same graph. Launching a graph is CUDA's call, which this
///   crate does not see: [`join`](Self::join) orders it.
///
/// A stream that is dropped while it is captured is captured for ever, since its last work is waited for: end captures where an error leaves them, too.
///
/// The blocking forms use the context's own stream ([`Context::stream`]).
///
/// A team that was destroyed has no name any more:
///
/// ```compile_fail
/// # fn f(team: peerweave_nvshmem::Team, stream: std::sync::Arc<peerweave_driver::CudaStream>) -> Result<(), peerweave_nvshmem::NvshmemError> {
/// team.destroy()?;
/// team.barrier(&stream)
/// # }
/// ```
///
/// Dropping a team that was made here is local: NVSHMEM keeps it until it is finalised, and there are only so many
/// ([`Settings::max_teams`](crate::Settings::max_teams)). [`destroy`](Self::destroy) gives it back.
pub struct Team {
    pub(crate) inner: Arc<Inner>,
    core: Arc<Core>,
}

struct Core {
    handle: nvshmem_team_t,
    kind: TeamKind,
    members: Vec<Pe>,
    rank: Rank,
    /// Tells teams apart, the same on every member.
    identity: u64,
    /// Whether it was made by an id: NVSHMEM keeps no stride of it.
    by_id: bool,
    /// What its collectives are ordered by; one for all handles of the team.
    order: Arc<Order>,
}

const TRANSLATE: &str = "nvshmem_team_translate_pe";

// What identities are of, so that no number of one kind is that of another.
const PREDEFINED: u64 = 1;
const BY_ID: u64 = 2;
const CHILD: u64 = 3;

/// Where a team comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TeamKind {
    /// All PEs.
    World,
    /// The PEs whose memory is mapped here.
    Shared,
    /// The PEs of this machine.
    Node,
    /// The PEs of the same index on every machine.
    SameIndex,
    /// Made by the program.
    Made,
}

/// Options of a team that is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TeamConfig {
    /// How many communication contexts NVSHMEM shall provide for; `None` leaves it to NVSHMEM.
    pub n_contexts: Option<u32>,
}

impl TeamConfig {
    /// With so many communication contexts.
    pub fn with_contexts(n_contexts: u32) -> Self {
        Self { n_contexts: Some(n_contexts) }
    }

    fn to_raw(self) -> (nvshmem_team_config_t, std::ffi::c_long) {
        let mut raw = nvshmem_team_config_t::UNSET;
        match self.n_contexts {
            Some(count) => {
                raw.num_contexts = c_int::try_from(count).unwrap_or(c_int::MAX);
                (raw, sys::NVSHMEM_TEAM_CONFIG_MASK_NUM_CONTEXTS)
            }
            None => (raw, 0),
        }
    }
}

/// An id that the members of a team have in common, to make it without a parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TeamId(u64);

impl TeamId {
    /// The id of this number.
    pub const fn from_u64(number: u64) -> Self {
        Self(number)
    }

    /// The number, to be sent to the other members.
    pub const fn to_u64(self) -> u64 {
        self.0
    }
}

impl Team {
    pub(crate) fn world(inner: &Arc<Inner>) -> Self {
        let members = (0..inner.n_pes).map(Pe::new).collect();
        let rank = Rank::new(inner.pe.get());
        let core = Core {
            handle: sys::NVSHMEM_TEAM_WORLD,
            kind: TeamKind::World,
            members,
            rank,
            identity: SEED,
            by_id: false,
            order: inner.world_order(),
        };
        Self { inner: Arc::clone(inner), core: Arc::new(core) }
    }

    pub(crate) fn predefined(inner: &Arc<Inner>, kind: TeamKind) -> Result<Self, NvshmemError> {
        let handle = match kind {
            TeamKind::Shared => sys::NVSHMEM_TEAM_SHARED,
            TeamKind::Node => sys::NVSHMEMX_TEAM_NODE,
            TeamKind::SameIndex => sys::NVSHMEMX_TEAM_SAME_MYPE_NODE,
            TeamKind::World | TeamKind::Made => return Ok(Self::world(inner)),
        };
        let mut entered = inner.go_in(TRANSLATE)?;
        Self::of_handle(inner, &mut entered, handle, kind, mix(mix(SEED, PREDEFINED), handle as u64), false)
    }

    /// Asks NVSHMEM who is in a team that this PE is in.
    fn of_handle(
        inner: &Arc<Inner>,
        entered: &mut Entered<'_>,
        handle: nvshmem_team_t,
        kind: TeamKind,
        identity: u64,
        by_id: bool,
    ) -> Result<Self, NvshmemError> {
        let (rank, members) = entered.block(TRANSLATE, move |api, _| {
            // SAFETY: the handle is one of a team of this process.
            let (rank, count) = unsafe { (api.nvshmem_team_my_pe(handle)?, api.nvshmem_team_n_pes(handle)?) };
            let mut members = Vec::new();
            for index in 0..count {
                // SAFETY: as above, and the rank is one of the team's.
                members.push(unsafe { api.nvshmem_team_translate_pe(handle, index, sys::NVSHMEM_TEAM_WORLD) }?);
            }
            Ok((rank, members))
        })?;
        let wrong = || inner.nvshmem.failure(TRANSLATE, None, format!("rank {rank}, members {members:?} of team {handle}"));
        let pes: Vec<Pe> = members
            .iter()
            .map(|pe| u32::try_from(*pe).ok().filter(|pe| *pe < inner.n_pes).map(Pe::new))
            .collect::<Option<_>>()
            .ok_or_else(wrong)?;
        let rank = u32::try_from(rank).map_err(|_| wrong())?;
        if pes.get(rank as usize) != Some(&inner.pe) {
            return Err(wrong());
        }
        // What it is made of is part of what tells it apart.
        let identity = pes.iter().fold(identity, |identity, pe| mix(identity, pe.get().into()));
        let order = if kind == TeamKind::Made { inner.order(handle) } else { inner.world_order() };
        let core = Core { handle, kind, members: pes, rank: Rank::new(rank), identity, by_id, order };
        Ok(Self { inner: Arc::clone(inner), core: Arc::new(core) })
    }

    /// This PE's rank.
    pub fn rank(&self) -> Rank {
        self.core.rank
    }

    /// How many PEs it has.
    pub fn len(&self) -> usize {
        self.core.members.len()
    }

    /// False: this PE is in it.
    pub fn is_empty(&self) -> bool {
        self.core.members.is_empty()
    }

    /// Its PEs, in the order of ranks.
    pub fn members(&self) -> &[Pe] {
        &self.core.members
    }

    /// Where it comes from.
    pub fn kind(&self) -> TeamKind {
        self.core.kind
    }

    /// The PE of a rank.
    ///
    /// # Errors
    /// [`MisuseKind::Rank`].
    pub fn pe_of(&self, rank: Rank) -> Result<Pe, NvshmemError> {
        self.check_rank("Team::pe_of", "the rank", rank)?;
        Ok(self.core.members[rank.index()])
    }

    /// The rank in another team of the PE that has this rank here, if it is in that one.
    ///
    /// # Errors
    /// [`MisuseKind::Rank`].
    pub fn translate(&self, rank: Rank, other: &Self) -> Result<Option<Rank>, NvshmemError> {
        let pe = self.pe_of(rank)?;
        let index = other.core.members.iter().position(|member| *member == pe);
        Ok(index.map(|index| Rank::new(index as u32)))
    }

    /// NVSHMEM's handle of the team, for kernels that call its device library. It is valid on this PE until the team is destroyed.
    pub fn raw(&self) -> i32 {
        self.handle()
    }

    /// NVSHMEM's options of the team.
    ///
    /// # Errors
    /// [`NvshmemError::Dead`].
    pub fn config(&self) -> Result<TeamConfig, NvshmemError> {
        let mut raw = nvshmem_team_config_t::UNSET;
        let handle = self.handle();
        // SAFETY: the handle is live [T2] and the pointer is to a live struct.
        self.inner.issue("nvshmem_team_get_config", |api, _| unsafe { api.nvshmem_team_get_config(handle, &raw mut raw) })?;
        Ok(TeamConfig { n_contexts: u32::try_from(raw.num_contexts).ok() })
    }

    /// A team of `count` of this team's PEs: ranks `start`, `start + stride`, and so on, in that order. `None` where this PE is not among them.
    ///
    /// A negative stride counts down. NVSHMEM's own split takes positive ones alone, so such a team is made by an id, as [`Context::team_of`] does.
    ///
    /// ```no_run
    /// # fn f(world: &peerweave_nvshmem::Team) -> Result<(), peerweave_nvshmem::NvshmemError> {
    /// let last = world.len() as u32 - 1;
    /// let reversed = world.split_strided(last, -1, last + 1, Default::default())?.expect("all are in it");
    /// assert_eq!(reversed.members()[0], world.members()[last as usize]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Collective
    /// All PEs of this team, with the same arguments.
    ///
    /// # Errors
    /// [`MisuseKind::Value`] for ranks that this team does not have; [`NvshmemError::Nvshmem`] where there are too many teams
    /// ([`Settings::max_teams`](crate::Settings::max_teams)), unless multicast is on: then each team takes many places, and NVSHMEM ends the process where
    /// they run out; [`NvshmemError::Disagree`], [`NvshmemError::Timeout`], [`NvshmemError::Bootstrap`].
    pub fn split_strided(&self, start: u32, stride: i32, count: u32, config: TeamConfig) -> Result<Option<Self>, NvshmemError> {
        const CALL: &str = "nvshmem_team_split_strided";
        let _setup = self.inner.setup_turn(CALL)?;
        let ranks = self.strided(CALL, start, stride, count);
        let able = ranks.as_ref().map(drop).map_err(Clone::clone);
        let (_turn, able) = taken(able.and_then(|()| self.settle(CALL)));
        let mut entered = self.arrive(CALL, &format!("start {start}, stride {stride}, count {count}, {config:?}"), able)?;
        let (parent, identity) = (self.handle(), self.child(u64::from(start) << 32 | u64::from(stride.cast_unsigned())));
        let ranks = ranks?;
        // One member is reached by any stride.
        let stride = if count == 1 { 1 } else { stride };
        if self.core.by_id || stride < 0 {
            return self.part(CALL, &mut entered, ranks, identity, config);
        }
        let (code, handle) = entered.block(CALL, move |api, _| {
            let (raw, mask) = config.to_raw();
            let config = if mask == 0 { std::ptr::null() } else { &raw const raw };
            let mut handle = sys::NVSHMEM_TEAM_INVALID;
            let [start, count] = [start, count].map(|number| number as c_int);
            // SAFETY: the parent is live [T2], the numbers are inside it, and the pointers are to live values; all of its PEs call.
            let code = unsafe { api.nvshmem_team_split_strided(parent, start, stride, count, config, mask, &raw mut handle) }?;
            Ok((code, handle))
        })?;
        self.inner.nvshmem.check(CALL, code)?;
        let member = ranks.contains(&self.rank().get());
        self.made(CALL, &mut entered, handle, member, identity)
    }

    /// The ranks of a part of this team, which has them all.
    fn strided(&self, call: &'static str, start: u32, stride: i32, count: u32) -> Result<Vec<u32>, NvshmemError> {
        let value = |what, found, expected| Err(NvshmemError::misuse(call, MisuseKind::Value { what, found, expected }));
        if stride == 0 {
            return value("the stride", 0, "a number above or below 0");
        }
        if count == 0 {
            return value("the count", 0, "at least 1");
        }
        let last = i64::from(start) + i64::from(stride) * i64::from(count - 1);
        if last < 0 {
            return value("the last member", last, "at least 0: counted down from the start by the stride");
        }
        // The first is beyond the team only where it is counted down.
        let highest = last.max(start.into());
        if highest >= self.len() as i64 {
            let (what, found) = (if highest == last { "the last member" } else { "the start" }, highest as usize);
            return Err(NvshmemError::misuse(call, MisuseKind::Rank { what, found, ranks: self.len() }));
        }
        Ok((0..i64::from(count)).map(|index| (i64::from(start) + index * i64::from(stride)) as u32).collect())
    }

    /// Teams of the rows and the columns of this team, laid out in rows of `width`: the row and the column that this PE is in.
    ///
    /// # Collective
    /// All PEs of this team, with the same arguments.
    ///
    /// # Errors
    /// As [`split_strided`](Self::split_strided).
    pub fn split_2d(&self, width: u32, config: TeamConfig) -> Result<(Self, Self), NvshmemError> {
        const CALL: &str = "nvshmem_team_split_2d";
        let _setup = self.inner.setup_turn(CALL)?;
        let able = match width {
            0 => Err(NvshmemError::misuse(CALL, MisuseKind::Value { what: "the width", found: 0, expected: "at least 1" })),
            _ => self.settle(CALL),
        };
        let (_turn, able) = taken(able);
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
                Ok::<_, NvshmemError>(team.expect("this PE is in its row and its column"))
            };
            return Ok((part(row, row_identity)?, part(column, column_identity)?));
        }
        let (code, row, column) = entered.block(CALL, move |api, _| {
            let (raw, mask) = config.to_raw();
            let config = if mask == 0 { std::ptr::null() } else { &raw const raw };
            let (mut row, mut column) = (sys::NVSHMEM_TEAM_INVALID, sys::NVSHMEM_TEAM_INVALID);
            let width = c_int::try_from(width).unwrap_or(c_int::MAX);
            // SAFETY: the parent is live [T2] and the pointers are to live values; all of its PEs call.
            let code =
                unsafe { api.nvshmem_team_split_2d(parent, width, config, mask, &raw mut row, config, mask, &raw mut column) }?;
            Ok((code, row, column))
        })?;
        self.inner.nvshmem.check(CALL, code)?;
        let mut made = |handle, identity| {
            let team = self.made(CALL, &mut entered, handle, true, identity)?;
            Ok::<_, NvshmemError>(team.expect("a member has a team, or an error"))
        };
        Ok((made(row, row_identity)?, made(column, column_identity)?))
    }

    /// A part of a team that was made by an id. NVSHMEM's own split of such teams reads beyond its tables, so the part is made by an id too.
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
        // All ones stands for no id.
        let id = TeamId(if identity == u64::MAX { 0 } else { identity });
        Self::by_id(&self.inner, call, entered, id, &members, config, identity).map(Some)
    }

    /// Has NVSHMEM make a team of these PEs, this one among them.
    fn by_id(
        inner: &Arc<Inner>,
        call: &'static str,
        entered: &mut Entered<'_>,
        id: TeamId,
        members: &[Pe],
        config: TeamConfig,
        identity: u64,
    ) -> Result<Self, NvshmemError> {
        let rank = members.iter().position(|pe| *pe == inner.pe).expect("who calls has looked") as c_int;
        let n_pes = members.len() as c_int;
        let (code, handle) = entered.block(call, move |api, _| {
            let (mut raw, mask) = config.to_raw();
            raw.uniqueid = id.0;
            let mask = mask | sys::NVSHMEM_TEAM_CONFIG_MASK_UNIQUEID;
            let mut handle = sys::NVSHMEM_TEAM_INVALID;
            // SAFETY: the pointers are to live values, and all members call with the same id and their own rank.
            let code = unsafe { api.nvshmemx_team_init(&raw mut handle, &raw mut raw, mask, n_pes, rank) }?;
            Ok((code, handle))
        })?;
        inner.nvshmem.check(call, code)?;
        if handle == sys::NVSHMEM_TEAM_INVALID {
            return Err(inner.nvshmem.failure(call, None, "no team was made".to_owned()));
        }
        Self::of_handle(inner, entered, handle, TeamKind::Made, identity, true)
    }

    /// The team behind a new handle.
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
                let detail = "no team was made: NVSHMEM_MAX_TEAMS may be too small".to_owned();
                Err(self.inner.nvshmem.failure(call, None, detail))
            }
            _ => Self::of_handle(&self.inner, entered, handle, TeamKind::Made, identity, false).map(Some),
        }
    }

    /// Ends a team that was made here, once the streams that its collectives are on have passed them.
    ///
    /// # Collective
    /// All PEs of the team.
    ///
    /// # Errors
    /// [`MisuseKind::Context`] for a team that NVSHMEM made; [`MisuseKind::InUse`] while a captured graph uses it; then it lives on, without a name.
    /// As [`split_strided`](Self::split_strided) otherwise.
    pub fn destroy(self) -> Result<(), NvshmemError> {
        const CALL: &str = "nvshmem_team_destroy";
        if self.core.kind != TeamKind::Made {
            return Err(NvshmemError::misuse(CALL, MisuseKind::Context { why: "NVSHMEM's own teams live as long as it does" }));
        }
        let _setup = self.inner.setup_turn(CALL)?;
        let able = match self.inner.gone_with_graphs(|| is_alone(&self.core)) {
            true => self.settle(CALL),
            false => Err(NvshmemError::misuse(CALL, MisuseKind::InUse { what: "the team", by: "a captured graph" })),
        };
        let (_turn, able) = taken(able);
        let mut entered = self.arrive(CALL, "", able)?;
        let handle = self.handle();
        self.inner.forget_order(handle);
        // SAFETY: the handle is live, nobody else has it [T2], and all PEs of the team call.
        entered.block(CALL, move |api, _| unsafe { api.nvshmem_team_destroy(handle) })
    }

    /// Has `stream` wait for the team's last collective, and the team's next one for `stream`: to be called before work is put there that does collectives of
    /// the team and that this crate does not see, such as the launch of a graph or of a kernel.
    ///
    /// Local: other PEs need not call it.
    ///
    /// # Errors
    /// [`MisuseKind::Context`] where the team's last stream is being captured, [`MisuseKind::Device`], [`NvshmemError::Dead`].
    pub fn join(&self, stream: &Arc<CudaStream>) -> Result<(), NvshmemError> {
        const CALL: &str = "Team::join";
        self.inner.alive(CALL)?;
        self.inner.check_stream(CALL, stream)?;
        self.order().follow(CALL, &self.inner, stream, is_capturing(stream)?).map(drop)
    }

    /// Nothing is under way on the device, and nothing of this team will be while the result lives.
    fn settle(&self, call: &'static str) -> Result<Turn<'_>, NvshmemError> {
        self.inner.settle(call)?;
        self.order().settle(call, &self.inner)
    }

    /// The number for the next child, the same on every member.
    fn child(&self, salt: u64) -> u64 {
        let count = self.inner.count(Counted::Children(self.core.identity));
        mix(mix(mix(self.core.identity, CHILD), count), salt)
    }

    fn arrive(&self, call: &'static str, arguments: &str, able: Result<(), NvshmemError>) -> Result<Entered<'_>, NvshmemError> {
        let members = match self.core.kind {
            TeamKind::World => Members::World,
            _ => Members::Team(&self.core.members, self.core.identity),
        };
        arrive(&self.inner, call, members, arguments, able)
    }

    pub(crate) fn handle(&self) -> nvshmem_team_t {
        self.core.handle
    }

    pub(crate) fn order(&self) -> &Order {
        &self.core.order
    }

    pub(crate) fn keep_handle(&self) -> Keep {
        Arc::<Core>::clone(&self.core)
    }

    /// An error unless the team is one of that context.
    pub(crate) fn check(&self, call: &'static str, inner: &Arc<Inner>) -> Result<(), NvshmemError> {
        if Arc::ptr_eq(&self.inner, inner) {
            Ok(())
        } else {
            Err(NvshmemError::misuse(call, MisuseKind::WrongContext { what: "the team" }))
        }
    }

    pub(crate) fn check_rank(&self, call: &'static str, what: &'static str, rank: Rank) -> Result<c_int, NvshmemError> {
        if rank.index() < self.len() {
            Ok(rank.get() as c_int)
        } else {
            Err(NvshmemError::misuse(call, MisuseKind::Rank { what, found: rank.index(), ranks: self.len() }))
        }
    }
}

impl Context {
    /// A new id for a team that is made without a parent. It reaches the other members by the caller's care.
    ///
    /// # Errors
    /// [`NvshmemError::Nvshmem`], [`NvshmemError::Dead`].
    pub fn team_id(&self) -> Result<TeamId, NvshmemError> {
        const CALL: &str = "nvshmemx_team_get_uniqueid";
        let mut id = 0;
        // SAFETY: the pointer is to a live number.
        self.inner.issue_status(CALL, |api, _| unsafe { api.nvshmemx_team_get_uniqueid(&raw mut id) })?;
        Ok(TeamId(id))
    }

    /// A team of any PEs in any order, which all have the id.
    ///
    /// # Collective
    /// The members, with the same list. They meet by the id: those that come with other lists get [`NvshmemError::Disagree`].
    ///
    /// # Errors
    /// [`MisuseKind::Value`] for a list that does not have this PE, or one PE twice; [`MisuseKind::Pe`]. As [`Team::split_strided`] otherwise.
    pub fn team_of(&self, id: TeamId, members: &[Pe], config: TeamConfig) -> Result<Team, NvshmemError> {
        const CALL: &str = "nvshmemx_team_init";
        let inner = &self.inner;
        let checked = self.check_members(CALL, id, members);
        let own = [inner.pe];
        // Who has a list that cannot be waits for nobody; the others are to see why.
        let present = if checked.is_ok() { members } else { &own };
        // They meet by the id alone, so that those whose lists differ meet too.
        let identity = mix(mix(SEED, BY_ID), id.0);
        let _setup = inner.setup_turn(CALL)?;
        let able = checked.and_then(|()| inner.settle(CALL));
        let what = format!("members {members:?}, {config:?}");
        let mut entered = arrive(inner, CALL, Members::Team(present, identity), &what, able)?;
        Team::by_id(inner, CALL, &mut entered, id, members, config, identity)
    }

    fn check_members(&self, call: &'static str, id: TeamId, members: &[Pe]) -> Result<(), NvshmemError> {
        let value =
            |what, pe: &Pe, expected| NvshmemError::misuse(call, MisuseKind::Value { what, found: pe.get().into(), expected });
        for (index, pe) in members.iter().enumerate() {
            self.inner.check_pe(call, "a member", *pe)?;
            if members[..index].contains(pe) {
                return Err(value("a member", pe, "each PE once"));
            }
        }
        if !members.contains(&self.inner.pe) {
            return Err(value("this PE", &self.inner.pe, "one of the members"));
        }
        if id.0 == u64::MAX {
            let kind = MisuseKind::Text { what: "the team's id", why: "all ones stands for no id" };
            return Err(NvshmemError::misuse(call, kind));
        }
        Ok(())
    }
}

impl fmt::Debug for Team {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Core { kind, members, rank, .. } = &*self.core;
        write!(f, "Team({kind:?}, {rank} of {}: {members:?})", members.len())
    }
}
