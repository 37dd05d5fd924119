//! Teams: ordered sets of PEs that make collective calls together.
//!
//! `split.rs` creates teams, and `ops` has their collectives.
//!
//! # Invariants
//! - **\[T1\]** Only members of a team have a handle to the team.
//! - **\[T2\]** No handle to a destroyed team exists, because `destroy` takes the last handle.

mod split;

use std::ffi::c_int;
use std::fmt;
use std::sync::Arc;

use peerweave_driver::{CudaStream, Keep, is_capturing};
use peerweave_types::{Pe, Rank};

use crate::comm::Comm;
use crate::comm::agree::{Members, arrive, split_outcome};
use crate::comm::enqueued::is_alone;
use crate::comm::entry::Entered;
use crate::comm::identity::{SEED, mix};
use crate::comm::order::{Order, Turn};
use crate::context::Context;
use crate::error::{MisuseKind, NvshmemError};
use crate::sys::{self, nvshmem_team_config_t, nvshmem_team_t};

/// An ordered set of PEs that includes this PE. The [`Rank`] of a PE is the PE's index in the set.
///
/// # Order
/// NVSHMEM has one set of counters for each team. Every PE must therefore call the collectives of a
/// team in the same order. The collectives include barriers, syncs, setup calls and splits. The
/// caller must ensure this order.
///
/// Two collectives of a team must never run concurrently in one process. This crate prevents
/// concurrent collectives by these rules:
///
/// - All handles to a team share one order, which is the order of the calls. Several threads may
///   call collectives of a team. NVSHMEM's predefined teams (world, shared, node, same index) all
///   share one order. The reason is that a collective of the world team may internally run
///   collectives of the other predefined teams.
/// - The stream of the team's last collective is the team's last stream. A collective on another
///   stream waits on the device for all earlier work on the last stream. The host waits only while
///   another thread is making a call on the same team. If the last stream waits for work that is
///   enqueued after the new collective, the two streams deadlock. To avoid this deadlock, use a
///   separate team for each independent stream.
/// - Setup calls allocate, free or register symmetric memory, create or destroy teams, or finalise
///   NVSHMEM. The PEs must make the setup calls that they have in common in the same order, over
///   all teams. Only one thread of a process makes a setup call at a time, and other threads wait
///   for that call. If the PEs make setup calls in different orders, these PEs wait for each other
///   outside of NVSHMEM until the deadline, and then get errors.
/// - Some calls first wait, within the context's deadline. Blocking calls wait for the team's last
///   stream. The same is true for calls that NVSHMEM runs on its own stream: those that allocate,
///   free or register memory. Calls that create or destroy a team, or finalise NVSHMEM, wait for
///   every stream that has been used with this context. The reason is that NVSHMEM waits for the
///   whole device in these calls. Other work on the device can therefore delay NVSHMEM, for example
///   work that waits for another PE. If this delay exceeds the deadline, the context becomes
///   unusable.
/// - A graph cannot wait for a stream outside of the graph. If a collective is captured while the
///   team's last stream is outside of the graph, the host therefore waits for the last stream.
///   While the last stream is being captured, other collectives are refused
///   ([`MisuseKind::Context`]), unless they are captured into the same graph. A program launches a
///   graph through CUDA, so this crate does not observe the launch. [`join`](Self::join) places the
///   launch in the order.
///
/// End every capture, even after an error. If a stream is dropped while it is being captured, the
/// last work on the stream never completes.
///
/// [`barrier_blocking`](Self::barrier_blocking) and [`sync_blocking`](Self::sync_blocking) run on
/// the context's own stream ([`Context::stream`]).
///
/// A destroyed team cannot be used, because [`destroy`](Self::destroy) takes the handle to the
/// team:
///
/// ```compile_fail
/// # fn f(team: peerweave_nvshmem::Team, stream: std::sync::Arc<peerweave_driver::CudaStream>) -> Result<(), peerweave_nvshmem::NvshmemError> {
/// team.destroy()?;
/// team.barrier(&stream)
/// # }
/// ```
///
/// Dropping a team that the program created is local: NVSHMEM keeps the team until NVSHMEM is
/// finalised. The number of teams is limited ([`Settings::max_teams`](crate::Settings::max_teams)),
/// so destroy teams that are no longer needed.
pub struct Team {
    pub(crate) comm: Arc<Comm>,
    core: Arc<Core>,
}

struct Core {
    handle: nvshmem_team_t,
    kind: TeamKind,
    members: Vec<Pe>,
    rank: Rank,
    /// Number that identifies the team, the same on every member.
    identity: u64,
    /// Whether the team was created by an id. NVSHMEM's own split function cannot split such a
    /// team.
    by_id: bool,
    /// The stream of the team's last collective, for which the next collective waits. All handles
    /// of the team share this value.
    order: Arc<Order>,
}

const TRANSLATE: &str = "nvshmem_team_translate_pe";

// Kinds of identities. The kind is mixed into a number, so that numbers of different kinds differ.
const PREDEFINED: u64 = 1;
const BY_ID: u64 = 2;
const CHILD: u64 = 3;

/// The kind of a team: one of NVSHMEM's predefined teams, or a team that the program created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TeamKind {
    /// All PEs.
    World,
    /// The PEs whose memory is mapped in this process.
    Shared,
    /// The PEs on this machine.
    Node,
    /// The PEs whose index on their machine is the same as the index of this PE on this machine.
    SameIndex,
    /// A team that the program created.
    Made,
}

/// Options for a new team.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TeamConfig {
    /// Number of communication contexts; `None` selects NVSHMEM's default.
    pub n_contexts: Option<u32>,
}

impl TeamConfig {
    /// Returns options that set the number of communication contexts to `n_contexts`.
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

/// An id with which PEs create a team that has no parent team. All members pass the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TeamId(u64);

impl TeamId {
    /// Converts a number that [`Self::to_u64`] has returned, usually on another PE, back to the id.
    pub const fn from_u64(number: u64) -> Self {
        Self(number)
    }

    /// Converts the id to a number, which the caller can send to the other members. They convert
    /// the number to the same id by [`Self::from_u64`].
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

    /// Returns the team that has the handle `handle` in NVSHMEM. This PE must be a member. Queries
    /// NVSHMEM for all members of the team.
    fn of_handle(
        comm: &Arc<Comm>,
        entered: &mut Entered<'_>,
        handle: nvshmem_team_t,
        kind: TeamKind,
        identity: u64,
        by_id: bool,
    ) -> Result<Self, NvshmemError> {
        let (rank, members) = entered.block(TRANSLATE, move |api, _| {
            // SAFETY: the handle is that of a team of this process.
            let (rank, count) = unsafe { (api.nvshmem_team_my_pe(handle)?, api.nvshmem_team_n_pes(handle)?) };
            let mut members = Vec::new();
            for index in 0..count {
                // SAFETY: the handle is that of a team of this process, and the rank is less than
                // the team's size.
                members.push(unsafe { api.nvshmem_team_translate_pe(handle, index, sys::NVSHMEM_TEAM_WORLD) }?);
            }
            Ok((rank, members))
        })?;
        let wrong = || {
            comm.nvshmem.failure(
                TRANSLATE,
                None,
                format!("NVSHMEM returned an invalid rank {rank} or invalid members {members:?} of team {handle}"),
            )
        };
        let pes: Vec<Pe> = members
            .iter()
            .map(|pe| u32::try_from(*pe).ok().filter(|pe| *pe < comm.n_pes).map(Pe::new))
            .collect::<Option<_>>()
            .ok_or_else(wrong)?;
        let rank = u32::try_from(rank).map_err(|_| wrong())?;
        if pes.get(rank as usize) != Some(&comm.pe) {
            return Err(wrong());
        }
        // `identity` already depends on the parent; the members are mixed in.
        let identity = pes.iter().fold(identity, |identity, pe| mix(identity, pe.get().into()));
        let order = if kind == TeamKind::Made { comm.enqueued.order(handle) } else { comm.enqueued.world_order() };
        let core = Core { handle, kind, members: pes, rank: Rank::new(rank), identity, by_id, order };
        Ok(Self { comm: Arc::clone(comm), core: Arc::new(core) })
    }

    /// Returns this PE's rank in the team.
    pub fn rank(&self) -> Rank {
        self.core.rank
    }

    /// Returns the number of PEs in the team.
    pub fn len(&self) -> usize {
        self.core.members.len()
    }

    /// Returns `false`, because a team has at least one PE.
    pub fn is_empty(&self) -> bool {
        self.core.members.is_empty()
    }

    /// Returns the PEs in the team, in rank order.
    pub fn members(&self) -> &[Pe] {
        &self.core.members
    }

    /// Returns the kind of the team.
    pub fn kind(&self) -> TeamKind {
        self.core.kind
    }

    /// Returns the PE that has rank `rank` in this team.
    ///
    /// # Errors
    /// [`MisuseKind::Rank`] if the team has no such rank.
    pub fn pe_of(&self, rank: Rank) -> Result<Pe, NvshmemError> {
        self.check_rank("Team::pe_of", "the rank", rank)?;
        Ok(self.core.members[rank.index()])
    }

    /// Converts a rank of this team to the rank of the same PE in `other`. Returns `None` if the PE
    /// is not a member of `other`.
    ///
    /// # Errors
    /// [`MisuseKind::Rank`] if this team has no such rank.
    pub fn translate(&self, rank: Rank, other: &Self) -> Result<Option<Rank>, NvshmemError> {
        let pe = self.pe_of(rank)?;
        let index = other.core.members.iter().position(|member| *member == pe);
        Ok(index.map(|index| Rank::new(index as u32)))
    }

    /// Returns NVSHMEM's handle to the team. Kernels pass this handle to NVSHMEM's device library.
    /// The handle is valid on this PE until the team is destroyed.
    pub fn raw(&self) -> i32 {
        self.handle()
    }

    /// Queries NVSHMEM for the options of the team.
    ///
    /// # Errors
    /// [`NvshmemError::Dead`] if NVSHMEM is unusable.
    pub fn config(&self) -> Result<TeamConfig, NvshmemError> {
        let mut raw = nvshmem_team_config_t::UNSET;
        let handle = self.handle();
        // SAFETY: the handle is live [T2], and the pointer is to a live struct.
        self.comm.issue("nvshmem_team_get_config", |api, _| unsafe { api.nvshmem_team_get_config(handle, &raw mut raw) })?;
        Ok(TeamConfig { n_contexts: u32::try_from(raw.num_contexts).ok() })
    }

    /// Waits until every stream that has been used with this context has completed, and then
    /// destroys a team that the program created.
    ///
    /// # Collective
    /// All PEs of the team must make this call.
    ///
    /// # Errors
    /// [`MisuseKind::Context`] for a predefined team. [`MisuseKind::InUse`] if a captured graph
    /// uses the team; in this case, the team stays alive without a handle. Other errors are the
    /// same as for [`split_strided`](Self::split_strided).
    pub fn destroy(self) -> Result<(), NvshmemError> {
        const CALL: &str = "nvshmem_team_destroy";
        if self.core.kind != TeamKind::Made {
            return Err(NvshmemError::misuse(
                CALL,
                MisuseKind::Context { why: "NVSHMEM's predefined teams cannot be destroyed" },
            ));
        }
        let _setup = self.comm.setup_turn(CALL)?;
        let able = match self.comm.unused_after_graphs(|| is_alone(&self.core)) {
            true => self.drain(CALL),
            false => Err(NvshmemError::misuse(CALL, MisuseKind::InUse { what: "the team", by: "a captured graph" })),
        };
        let (_turn, able) = split_outcome(able);
        let mut entered = self.arrive(CALL, "", able)?;
        let handle = self.handle();
        self.comm.enqueued.forget_order(handle);
        // SAFETY: the handle is live and no other handle exists [T2]. All PEs of the team call.
        entered.block(CALL, move |api, _| unsafe { api.nvshmem_team_destroy(handle) })
    }

    /// Makes `stream` wait for the team's last collective, and makes the team's next collective
    /// wait for `stream`. Call this function before launching a graph or a kernel that runs
    /// collectives of the team, because this crate does not observe such collectives.
    ///
    /// This call is not collective.
    ///
    /// # Errors
    /// [`MisuseKind::Context`] if the team's last stream is being captured. [`MisuseKind::Device`]
    /// if `stream` belongs to another device. [`NvshmemError::Dead`] if NVSHMEM is unusable.
    pub fn join(&self, stream: &Arc<CudaStream>) -> Result<(), NvshmemError> {
        const CALL: &str = "Team::join";
        self.comm.check_usable(CALL)?;
        self.comm.check_stream(CALL, stream)?;
        self.order().follow(CALL, &self.comm, stream, is_capturing(stream)?).map(drop)
    }

    /// Waits until every stream that has been used with this context has no pending work. While the
    /// returned value lives, this process starts no collective of this team.
    fn drain(&self, call: &'static str) -> Result<Turn<'_>, NvshmemError> {
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

    /// Checks that the team belongs to this context.
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
    /// Returns the team of all PEs.
    pub fn world(&self) -> Team {
        Team::world(&self.comm)
    }

    /// Returns the team of the PEs whose memory is mapped in this process.
    ///
    /// # Errors
    /// [`NvshmemError::Dead`] if NVSHMEM is unusable.
    pub fn shared(&self) -> Result<Team, NvshmemError> {
        Team::predefined(&self.comm, TeamKind::Shared)
    }

    /// Returns the team of the PEs on this machine.
    ///
    /// # Errors
    /// [`NvshmemError::Dead`] if NVSHMEM is unusable.
    pub fn node(&self) -> Result<Team, NvshmemError> {
        Team::predefined(&self.comm, TeamKind::Node)
    }

    /// Returns the team of the PEs that have the same index on their machine as this PE. For
    /// example, the first PEs of all machines form a team.
    ///
    /// # Errors
    /// [`NvshmemError::Dead`] if NVSHMEM is unusable.
    pub fn same_index(&self) -> Result<Team, NvshmemError> {
        Team::predefined(&self.comm, TeamKind::SameIndex)
    }
}
