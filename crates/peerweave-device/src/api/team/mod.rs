//! Teams: queries of ranks and members, barriers, syncs and collectives.

mod collective;
pub mod combine;
mod meet;

use crate::api::context::Reach;
use crate::api::report::Report;
use crate::api::scope::{Block, Thread, Warp};
use crate::api::views::address;
use crate::api::{Context, Failed};
use crate::gpu;
use core::mem::offset_of;
pub(crate) use meet::Meeting;
use meet::{Complete, Relaxed, Strong};
use peerweave_types::{FailureKind, KernelContext, KernelOp, KernelTeam, SymOffset, TeamEntry};

/// A team of which this PE is a member.
///
/// The methods take the context as an argument. If a team contained a reference to the context, the
/// compiler would place the context in memory, not in registers.
#[derive(Clone, Copy)]
pub(crate) struct Team {
    entry: TeamEntry,
    team: KernelTeam,
}

/// The table entry of the team that a thread used last. The cache avoids a load of the entry in
/// each operation.
#[derive(Clone, Copy)]
pub(crate) struct TeamCache {
    index: u32,
    entry: TeamEntry,
}

impl TeamCache {
    pub(crate) const NOTHING: Self = Self { index: u32::MAX, entry: NO_TEAM };
}

const NO_TEAM: TeamEntry = TeamEntry {
    my_rank: TeamEntry::NOT_A_MEMBER,
    size: 0,
    members: 0,
    sync: SymOffset(0),
    epochs: 0,
    slots: 0,
    nvshmem_team: TeamEntry::NO_HANDLE,
    all_mapped: 0,
    reserved: 0,
};

/// Returns the entry of a team in the table that the host has written; `None` if the index of the
/// team is outside this table.
#[inline(always)]
fn entry_of(raw: &KernelContext, team: KernelTeam) -> Option<TeamEntry> {
    if team.index() >= raw.n_teams {
        return None;
    }
    const { assert!(size_of::<TeamEntry>() == 48 && offset_of!(TeamEntry, slots) == 32) };
    let entry = address::<u64>(raw.teams + u64::from(team.index()) * size_of::<TeamEntry>() as u64).cast_const();
    // SAFETY: the table has `n_teams` entries of six words each, and nobody writes them while the
    // kernel runs.
    let [ranks, members, sync, epochs, slots, mapped] = unsafe { core::array::from_fn(|k| gpu::load_constant(entry.add(k))) };
    Some(TeamEntry {
        my_rank: ranks as u32,
        size: (ranks >> 32) as u32,
        members,
        sync: SymOffset(sync),
        epochs,
        slots: slots as u32,
        nvshmem_team: (slots >> 32) as i32,
        all_mapped: mapped as u32,
        reserved: 0,
    })
}

impl Context {
    /// Returns a team of which this PE is a member. `operation` is the operation that calls this
    /// method; a failure report contains the operation.
    ///
    /// # Errors
    /// [`FailureKind::NoSuchPeer`] if the team does not exist or this PE is not a member. The
    /// failure is written to the status.
    #[inline(always)]
    pub(crate) fn team(&self, operation: KernelOp, team: KernelTeam) -> Result<Team, Failed> {
        let cache = self.last_team.get();
        if cache.index == team.index() {
            return Ok(Team { entry: cache.entry, team });
        }
        match entry_of(self.raw(), team) {
            Some(entry) if entry.my_rank != TeamEntry::NOT_A_MEMBER => {
                self.last_team.set(TeamCache { index: team.index(), entry });
                Ok(Team { entry, team })
            }
            _ => Err(self.fail(FailureKind::NoSuchPeer, Report { team: team.index(), ..Report::of(operation) })),
        }
    }

    /// Returns the rank of this PE in `team`; `None` if this PE is not a member, or if the team
    /// does not exist.
    #[inline]
    pub fn team_my_pe(&self, team: KernelTeam) -> Option<u32> {
        entry_of(self.raw(), team).map(|entry| entry.my_rank).filter(|rank| *rank != TeamEntry::NOT_A_MEMBER)
    }

    /// Returns the number of members of a team; 0 if the team does not exist.
    #[inline]
    pub fn team_n_pes(&self, team: KernelTeam) -> u32 {
        entry_of(self.raw(), team).map_or(0, |entry| entry.size)
    }

    /// Returns the PE that has the rank `rank` in `team`; `None` if the rank or the team does not
    /// exist.
    #[inline]
    pub fn team_pe(&self, team: KernelTeam, rank: u32) -> Option<u32> {
        let entry = entry_of(self.raw(), team).filter(|entry| rank < entry.size)?;
        Some(Team { entry, team }.member(rank))
    }

    /// Converts a rank in team `from` to the rank of the same PE in team `to`. Returns `None` if
    /// the PE is not a member of `to`, or if a team or the rank does not exist.
    #[inline]
    pub fn team_translate_pe(&self, from: KernelTeam, rank: u32, to: KernelTeam) -> Option<u32> {
        let (pe, size) = (self.team_pe(from, rank)?, self.team_n_pes(to));
        (0..size).find(|rank| self.team_pe(to, *rank) == Some(pe))
    }
}

impl Team {
    /// Returns the handle of the team.
    #[inline(always)]
    fn team(&self) -> KernelTeam {
        self.team
    }

    /// Returns the rank of this PE in the team.
    #[inline(always)]
    pub(crate) fn my_rank(&self) -> u32 {
        self.entry.my_rank
    }

    /// Returns the number of members.
    #[inline(always)]
    pub(crate) fn size(&self) -> u32 {
        self.entry.size
    }

    /// Returns whether the heap of every member is mapped on this PE.
    #[inline(always)]
    pub(crate) fn all_mapped(&self) -> bool {
        self.entry.all_mapped != 0
    }

    /// Returns the number of the PE with this rank. `rank` must be less than [`Self::size`].
    #[inline(always)]
    pub(crate) fn member(&self, rank: u32) -> u32 {
        // SAFETY: the table has an entry for each rank, and nobody writes it while the kernel runs.
        unsafe { gpu::load_constant_u32(address::<u32>(self.entry.members).cast_const().add(rank as usize)) }
    }

    /// Returns the address of a member's heap; 0 if the heap is not mapped.
    #[inline(always)]
    pub(crate) fn mapped_base(&self, context: &Context, rank: u32) -> u64 {
        context.base_of(self.member(rank))
    }

    /// Returns the path by which this PE accesses a member.
    ///
    /// # Errors
    /// [`FailureKind::Unreachable`] if this PE cannot reach the member. The failure is written to
    /// the status.
    #[inline(always)]
    pub(crate) fn reach(&self, context: &Context, operation: KernelOp, rank: u32) -> Result<Reach, Failed> {
        context.reach(operation, self.member(rank))
    }
}

/// Declares the barriers and syncs of [`Context`] for one scope: a thread, a warp or a block.
/// `$words` names the threads that call the methods.
macro_rules! scoped {
    ($scope:ident, $words:literal: $barrier:ident, $barrier_all:ident, $sync:ident, $sync_all:ident,
        $sync_relaxed:ident, $sync_all_relaxed:ident) => {
        impl Context {
            #[doc = concat!("Completes all puts, then waits until every member of the team has arrived. Called by ", $words, ".")]
            /// Every member makes this call, in a block whose index is the same on all members. In
            /// each block, only one such call per team may be in progress at a time.
            ///
            /// # Ordering
            /// Earlier puts and writes of every member are visible after the call.
            ///
            /// # Errors
            /// [`FailureKind::Deadline`] if a member has not arrived in time; the status names that
            /// member. [`FailureKind::Aborted`] if another wait of this PE has failed.
            /// [`FailureKind::NoSlot`] if this block's index is at least the team's slot count.
            /// [`FailureKind::NoSuchPeer`] if the team does not exist or this PE is not a member.
            #[inline(always)]
            pub fn $barrier(&self, team: KernelTeam) -> Result<(), Failed> {
                self.meet_as::<$scope, Complete>(KernelOp::Barrier, team)
            }

            #[doc = concat!("Calls [`Self::", stringify!($barrier), "`] for the team of all PEs.")]
            /// [`KernelTeam::WORLD`] is the number of this team.
            ///
            /// # Errors
            /// As for [`Self::barrier`].
            #[inline(always)]
            pub fn $barrier_all(&self) -> Result<(), Failed> {
                self.meet_as::<$scope, Complete>(KernelOp::Barrier, KernelTeam::WORLD)
            }

            #[doc = concat!("Waits until every member of the team has arrived. Called by ", $words, ".")]
            /// Unlike a barrier, this call does not complete puts over the network. Earlier writes
            /// of every member, and earlier puts to mapped PEs, are visible after the call.
            ///
            /// # Errors
            /// As for [`Self::barrier`].
            #[inline(always)]
            pub fn $sync(&self, team: KernelTeam) -> Result<(), Failed> {
                self.meet_as::<$scope, Strong>(KernelOp::Sync, team)
            }

            #[doc = concat!("Calls [`Self::", stringify!($sync), "`] for the team of all PEs.")]
            /// [`KernelTeam::WORLD`] is the number of this team.
            ///
            /// # Errors
            /// As for [`Self::barrier`].
            #[inline(always)]
            pub fn $sync_all(&self) -> Result<(), Failed> {
                self.meet_as::<$scope, Strong>(KernelOp::Sync, KernelTeam::WORLD)
            }

            #[doc = concat!("Waits until every member of the team has arrived, and orders nothing. Called by ", $words, ".")]
            /// Unlike a barrier, this call has no fences. Use this call only where no data must be
            /// ordered, for example before the reuse of a buffer whose earlier accesses are already
            /// ordered.
            ///
            /// # Ordering
            /// None. After the call, earlier writes of the members are not necessarily visible, and
            /// puts may be incomplete.
            ///
            /// # Errors
            /// As for [`Self::barrier`].
            #[inline(always)]
            pub fn $sync_relaxed(&self, team: KernelTeam) -> Result<(), Failed> {
                self.meet_as::<$scope, Relaxed>(KernelOp::Sync, team)
            }

            #[doc = concat!("Calls [`Self::", stringify!($sync_relaxed), "`] for the team of all PEs.")]
            ///
            /// # Errors
            /// As for [`Self::barrier`].
            #[inline(always)]
            pub fn $sync_all_relaxed(&self) -> Result<(), Failed> {
                self.meet_as::<$scope, Relaxed>(KernelOp::Sync, KernelTeam::WORLD)
            }
        }
    };
}

scoped!(Thread, "this thread": barrier, barrier_all, sync, sync_all, sync_relaxed, sync_all_relaxed);
scoped!(Warp, "all threads of the warp": barrier_warp, barrier_all_warp, sync_warp, sync_all_warp, sync_relaxed_warp, sync_all_relaxed_warp);
scoped!(Block, "all threads of the block": barrier_block, barrier_all_block, sync_block, sync_all_block, sync_relaxed_block, sync_all_relaxed_block);
