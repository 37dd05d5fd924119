//! Teams: ordered sets of PEs that call collectives together.
//!
//! Making them is `split.rs`, their collectives are `ops`.
//!
//! # Invariants
//! - **\[T1\]** A handle is a member's: who is not in a team has none.
//! - **\[T2\]** A team that was destroyed cannot be named: destroying takes the last handle.

mod split;

use std::ffi::c_int;
use std::fmt;
use std::sync::Arc;

use peerweave_driver::{CudaStream, Keep, is_capturing};
use peerweave_types::{Pe, Rank};

use crate::comm::Comm;
use crate::comm::agree::{Members, arrive, taken};
use crate::comm::enqueued::is_alone;
use crate::comm::entry::Entered;
use crate::comm::identity::{SEED, mix};
use crate::comm::order::{Order, Turn};
use crate::context::Context;
use crate::error::{MisuseKind, NvshmemError};
use crate::sys::{self, nvshmem_team_config_t, nvshmem_team_t};

/// An ordered set of PEs, this one among them. [`Rank`]s are indexes in it.
///
/// # Order
/// NVSHMEM keeps one set of counters for each team. So the collectives of a team (barriers, syncs,
/// set-up calls and splits too) must come in the same order on every PE, which is the caller's to
/// hold, and never two at once in one process, which this crate holds:
///
/// - All handles of a team share one order, by the time of the call. Its collectives may come from
///   several threads. NVSHMEM's own teams (all PEs, those whose memory is mapped, those of a
///   machine, those of an index) share one order too: what NVSHMEM does for all PEs it does in
///   parts, as those.
/// - One on another stream than the team's last waits, on the device, for all that the last stream
///   had by then; on the host it waits only while another thread is in a call of the team that
///   does. A stream that waits for something that only comes after the new collective keeps both
///   forever: give streams that shall be independent a team each, made by the program.
/// - Set-up calls (allocating, freeing, registering, making and destroying teams, the end) come in
///   one order over all teams, on every PE that takes part, threads included: NVSHMEM lets one in
///   at a time. One thread of a process makes them at a time, the others wait for it. Threads that
///   make them in other orders on other PEs wait for each other until the deadline, outside of
///   NVSHMEM, and get errors.
/// - What NVSHMEM does on a stream of its own (allocating, freeing, registering) and the blocking
///   forms wait for the team's last stream first, at most for the context's deadline. Making and
///   destroying teams, and the end, wait for every stream that was used with this context: NVSHMEM
///   itself then waits for the whole device, so that other work there which waits for a PE keeps
///   it, and for longer than the deadline is the end of the context.
/// - A collective that is captured waits on the host for a last stream that is outside of the
///   graph, since a graph cannot. While the last stream is being captured, others are refused
///   ([`MisuseKind::Context`]), unless they are captured into the same graph. Launching a graph is
///   CUDA's call, which this crate does not see: [`join`](Self::join) orders it.
///
/// A stream that is dropped while it is captured is captured forever, since its last work is waited
/// for: end captures where an error leaves them, too.
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
/// Dropping a team that was made here is local: NVSHMEM keeps it until it is finalised, and there
/// are only so many ([`Settings::max_teams`](crate::Settings::max_teams)).
/// [`destroy`](Self::destroy) gives it back.
pub struct Team {
    pub(crate) comm: Arc<Comm>,
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
    pub(crate) fn world(comm: &Arc<Comm>) -> Self {
        let members = (0..comm.n_pes).map(Pe::new).collect();
        let rank = Rank::new(comm.pe.get());
        let core = Core {
            handle: sys::NVSHMEM_TEAM_WORLD,
            kind: TeamKind::World,
            members,
            rank,
            identity: SEED,
            by_id: false,
            order: comm.enqueued.world_order(),
        };
        Self { comm: Arc::clone(comm), core: Arc::new(core) }
    }

    pub(crate) fn predefined(comm: &Arc<Comm>, kind: TeamKind) -> Result<Self, NvshmemError> {
        let handle = match kind {
            TeamKind::Shared => sys::NVSHMEM_TEAM_SHARED,
            TeamKind::Node => sys::NVSHMEMX_TEAM_NODE,
            TeamKind::SameIndex => sys::NVSHMEMX_TEAM_SAME_MYPE_NODE,
            TeamKind::World | TeamKind::Made => return Ok(Self::world(comm)),
        };
        let mut entered = comm.enter_blocking(TRANSLATE)?;
        Self::of_handle(comm, &mut entered, handle, kind, mix(mix(SEED, PREDEFINED), handle as u64), false)
    }

    /// Asks NVSHMEM who is in a team that this PE is in.
    fn of_handle(
        comm: &Arc<Comm>,
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
        let wrong = || comm.nvshmem.failure(TRANSLATE, None, format!("rank {rank}, members {members:?} of team {handle}"));
        let pes: Vec<Pe> = members
            .iter()
            .map(|pe| u32::try_from(*pe).ok().filter(|pe| *pe < comm.n_pes).map(Pe::new))
            .collect::<Option<_>>()
            .ok_or_else(wrong)?;
        let rank = u32::try_from(rank).map_err(|_| wrong())?;
        if pes.get(rank as usize) != Some(&comm.pe) {
            return Err(wrong());
        }
        // What it is made of is part of what tells it apart.
        let identity = pes.iter().fold(identity, |identity, pe| mix(identity, pe.get().into()));
        let order = if kind == TeamKind::Made { comm.enqueued.order(handle) } else { comm.enqueued.world_order() };
        let core = Core { handle, kind, members: pes, rank: Rank::new(rank), identity, by_id, order };
        Ok(Self { comm: Arc::clone(comm), core: Arc::new(core) })
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

    /// NVSHMEM's handle of the team, for kernels that call its device library. It is valid on this
    /// PE until the team is destroyed.
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
        self.comm.issue("nvshmem_team_get_config", |api, _| unsafe { api.nvshmem_team_get_config(handle, &raw mut raw) })?;
        Ok(TeamConfig { n_contexts: u32::try_from(raw.num_contexts).ok() })
    }

    /// Ends a team that was made here, once the streams that its collectives are on have passed
    /// them.
    ///
    /// # Collective
    /// All PEs of the team.
    ///
    /// # Errors
    /// [`MisuseKind::Context`] for a team that NVSHMEM made; [`MisuseKind::InUse`] while a captured
    /// graph uses it; then it lives on, without a name. As [`split_strided`](Self::split_strided)
    /// otherwise.
    pub fn destroy(self) -> Result<(), NvshmemError> {
        const CALL: &str = "nvshmem_team_destroy";
        if self.core.kind != TeamKind::Made {
            return Err(NvshmemError::misuse(CALL, MisuseKind::Context { why: "NVSHMEM's own teams live as long as it does" }));
        }
        let _setup = self.comm.setup_turn(CALL)?;
        let able = match self.comm.gone_with_graphs(|| is_alone(&self.core)) {
            true => self.settle(CALL),
            false => Err(NvshmemError::misuse(CALL, MisuseKind::InUse { what: "the team", by: "a captured graph" })),
        };
        let (_turn, able) = taken(able);
        let mut entered = self.arrive(CALL, "", able)?;
        let handle = self.handle();
        self.comm.enqueued.forget_order(handle);
        // SAFETY: the handle is live, nobody else has it [T2], and all PEs of the team call.
        entered.block(CALL, move |api, _| unsafe { api.nvshmem_team_destroy(handle) })
    }

    /// Has `stream` wait for the team's last collective, and the team's next one for `stream`: to
    /// be called before work is put there that does collectives of the team and that this crate
    /// does not see, such as the launch of a graph or of a kernel.
    ///
    /// Local: other PEs need not call it.
    ///
    /// # Errors
    /// [`MisuseKind::Context`] where the team's last stream is being captured,
    /// [`MisuseKind::Device`], [`NvshmemError::Dead`].
    pub fn join(&self, stream: &Arc<CudaStream>) -> Result<(), NvshmemError> {
        const CALL: &str = "Team::join";
        self.comm.alive(CALL)?;
        self.comm.check_stream(CALL, stream)?;
        self.order().follow(CALL, &self.comm, stream, is_capturing(stream)?).map(drop)
    }

    /// Nothing is under way on the device, and nothing of this team will be while the result lives.
    fn settle(&self, call: &'static str) -> Result<Turn<'_>, NvshmemError> {
        self.comm.drain(call)?;
        self.order().drain(call, &self.comm)
    }

    fn arrive(&self, call: &'static str, arguments: &str, able: Result<(), NvshmemError>) -> Result<Entered<'_>, NvshmemError> {
        let members = match self.core.kind {
            TeamKind::World => Members::World,
            _ => Members::Team(&self.core.members, self.core.identity),
        };
        arrive(&self.comm, call, members, arguments, able)
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
    pub(crate) fn check(&self, call: &'static str, comm: &Arc<Comm>) -> Result<(), NvshmemError> {
        if Arc::ptr_eq(&self.comm, comm) {
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

impl fmt::Debug for Team {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Core { kind, members, rank, .. } = &*self.core;
        write!(f, "Team({kind:?}, {rank} of {}: {members:?})", members.len())
    }
}

impl Context {
    /// The team of all PEs.
    pub fn world(&self) -> Team {
        Team::world(&self.comm)
    }

    /// The team of the PEs whose memory is mapped here.
    ///
    /// # Errors
    /// [`NvshmemError::Dead`].
    pub fn shared(&self) -> Result<Team, NvshmemError> {
        Team::predefined(&self.comm, TeamKind::Shared)
    }

    /// The team of the PEs of this machine.
    ///
    /// # Errors
    /// [`NvshmemError::Dead`].
    pub fn node(&self) -> Result<Team, NvshmemError> {
        Team::predefined(&self.comm, TeamKind::Node)
    }

    /// The team of the PEs that have this PE's index on their machine.
    ///
    /// # Errors
    /// [`NvshmemError::Dead`].
    pub fn same_index(&self) -> Result<Team, NvshmemError> {
        Team::predefined(&self.comm, TeamKind::SameIndex)
    }
}
