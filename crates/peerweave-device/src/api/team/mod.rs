//! Barriers and syncs of teams, at each scope.
//!
//! The protocol is [`crate::barrier`]. Every rank announces its arrival to every member, in its own
//! line in each heap, and waits on its own memory. It announces by a store if the member is mapped,
//! and by a signal over the network otherwise. The threads of a scope share the work. Block `b` of
//! each member synchronises with block `b` of the others. Each block has its own slot, with an
//! epoch in memory of this device that outlives the kernel.
//!
//! Invariant: an epoch is read after a `sync` of the scope, and written after the next `sync` and
//! before the last one, so that all threads see one value.

mod collective;
pub mod combine;

use crate::api::context::Reach;
use crate::api::report::Report;
use crate::api::scope::{Block, Kind, Scope, Thread, Warp};
use crate::api::views::address;
use crate::api::{Context, Failed, network};
use crate::barrier::{self, Announce};
use crate::gpu::{self, Access, Fence, Gpu, Sys, Word64};
use crate::word::Words;
use crate::{Word as _, flag, word};
use core::mem::offset_of;
use peerweave_types::{FailureKind, KernelOp, KernelTeam, SignalOp, SymOffset, TeamEntry};

/// A team of which this PE is a member.
///
/// The methods take the context as an argument. If a team held a reference to the context, the
/// compiler would keep the whole context in memory instead of in registers.
#[derive(Clone, Copy)]
pub(crate) struct Team {
    entry: TeamEntry,
    index: u32,
}

/// The team that a thread used last, cached because each operation would otherwise load it again.
#[derive(Clone, Copy)]
pub(crate) struct TeamCache {
    index: u32,
    entry: TeamEntry,
}

impl TeamCache {
    pub(crate) const NOTHING: Self = Self { index: u32::MAX, entry: NO_TEAM };
}

/// The addresses by which a thread synchronises, if each thread of the scope has at most one other
/// member. Cached, because looking them up for each barrier takes half as long as the barrier's
/// messages.
#[derive(Clone, Copy)]
pub(crate) struct Meeting {
    /// The team and the scope ([`key`]); `u32::MAX` if nothing is cached.
    key: u32,
    /// The rank that this thread announces to and awaits.
    rank: u32,
    /// Address of the epoch of this block's slot.
    epoch: u64,
    /// Address of this PE's word in that rank's heap; 0 if this thread has no rank.
    theirs: u64,
    /// Address of that rank's word in this PE's heap.
    mine: u64,
}

impl Meeting {
    pub(crate) const NOTHING: Self = Self { key: u32::MAX, rank: 0, epoch: 0, theirs: 0, mine: 0 };
}

/// Returns the value of [`Meeting::key`] for a team and a scope.
#[inline(always)]
fn key<S: Scope>(team: u32) -> u32 {
    team << 2 | S::KIND as u32
}

/// The memory orders of a synchronisation, in addition to waiting for all members.
mod orders {
    /// Completes puts, and makes earlier writes of every member visible.
    #[derive(Clone, Copy)]
    pub(super) struct Complete;
    /// Makes earlier writes of every member visible; puts over a network may be incomplete.
    #[derive(Clone, Copy)]
    pub(super) struct Strong;
    /// Orders nothing.
    #[derive(Clone, Copy)]
    pub(super) struct Relaxed;

    pub(super) trait Order: Copy {
        const COMPLETES: bool;
        const ORDERS: bool;
    }
    impl Order for Complete {
        const COMPLETES: bool = true;
        const ORDERS: bool = true;
    }
    impl Order for Strong {
        const COMPLETES: bool = false;
        const ORDERS: bool = true;
    }
    impl Order for Relaxed {
        const COMPLETES: bool = false;
        const ORDERS: bool = false;
    }
}
use orders::Order;

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

impl Context {
    /// Returns the entry of a team, as the host wrote it.
    #[inline(always)]
    fn team_entry(&self, team: KernelTeam) -> Option<TeamEntry> {
        let raw = self.raw();
        if team.index() >= raw.n_teams {
            return None;
        }
        const { assert!(size_of::<TeamEntry>() == 48 && offset_of!(TeamEntry, slots) == 32) };
        let entry = address::<u64>(raw.teams + u64::from(team.index()) * size_of::<TeamEntry>() as u64).cast_const();
        // SAFETY: the context's table has as many entries as it says, each of six words, and nobody
        // writes them while the kernel runs.
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

    /// Returns a team, for an operation that all of its members call. Fails if the team does not
    /// exist, or this PE is not a member.
    #[inline(always)]
    pub(crate) fn team(&self, operation: KernelOp, team: KernelTeam) -> Result<Team, Failed> {
        let cache = self.last_team.get();
        if cache.index == team.index() {
            return Ok(Team { entry: cache.entry, index: cache.index });
        }
        match self.team_entry(team) {
            Some(entry) if entry.my_rank != TeamEntry::NOT_A_MEMBER => {
                self.last_team.set(TeamCache { index: team.index(), entry });
                Ok(Team { entry, index: team.index() })
            }
            _ => Err(self.fail(FailureKind::NoSuchPeer, Report { team: team.index(), ..Report::of(operation) })),
        }
    }

    /// Returns the rank of this PE in a team; `None` if it is not a member, or the team does not
    /// exist.
    #[inline]
    pub fn team_my_pe(&self, team: KernelTeam) -> Option<u32> {
        self.team_entry(team).map(|entry| entry.my_rank).filter(|rank| *rank != TeamEntry::NOT_A_MEMBER)
    }

    /// Returns the number of members of a team; 0 if the team does not exist.
    #[inline]
    pub fn team_n_pes(&self, team: KernelTeam) -> u32 {
        self.team_entry(team).map_or(0, |entry| entry.size)
    }

    /// Returns the PE that has a rank in a team; `None` if the rank or the team does not exist.
    #[inline]
    pub fn team_pe(&self, team: KernelTeam, rank: u32) -> Option<u32> {
        let entry = self.team_entry(team).filter(|entry| rank < entry.size)?;
        Some(Team { entry, index: team.index() }.member(rank))
    }

    /// Converts a rank in team `from` to the rank of the same PE in team `to`; `None` if the PE is
    /// not a member, or a team or the rank does not exist.
    #[inline]
    pub fn team_translate_pe(&self, from: KernelTeam, rank: u32, to: KernelTeam) -> Option<u32> {
        let (pe, size) = (self.team_pe(from, rank)?, self.team_n_pes(to));
        (0..size).find(|rank| self.team_pe(to, *rank) == Some(pe))
    }
}

impl Team {
    /// Returns the rank of this PE.
    #[inline(always)]
    pub(crate) fn my_rank(&self) -> u32 {
        self.entry.my_rank
    }

    /// Returns the number of members.
    #[inline(always)]
    pub(crate) fn size(&self) -> u32 {
        self.entry.size
    }

    /// Returns whether every member is mapped.
    #[inline(always)]
    pub(crate) fn all_mapped(&self) -> bool {
        self.entry.all_mapped != 0
    }

    /// Returns the PE with a rank below [`Self::size`].
    #[inline(always)]
    pub(crate) fn member(&self, rank: u32) -> u32 {
        // SAFETY: the table has an entry for each rank, and nobody writes it while the kernel runs.
        unsafe { gpu::load_constant_u32(address::<u32>(self.entry.members).cast_const().add(rank as usize)) }
    }

    /// Returns the address of a member's heap; 0 if it is not mapped.
    #[inline(always)]
    pub(crate) fn mapped_base(&self, context: &Context, rank: u32) -> u64 {
        context.base_of(self.member(rank))
    }

    /// Returns the path to a member.
    ///
    /// # Errors
    /// [`FailureKind::Unreachable`], written to the status.
    #[inline(always)]
    pub(crate) fn reach(&self, context: &Context, operation: KernelOp, rank: u32) -> Result<Reach, Failed> {
        context.reach(operation, self.member(rank))
    }

    /// Waits until every member has arrived. Earlier writes of every member are then visible, and
    /// its puts are complete. All threads of the scope call it.
    ///
    /// # Errors
    /// The same for all threads of the scope.
    #[inline(always)]
    pub(crate) fn meet<S: Scope>(&self, context: &Context, operation: KernelOp) -> Result<(), Failed> {
        self.meet_as::<S, orders::Complete>(context, operation)
    }

    /// Waits until every member has arrived, with the memory order `O`. All threads of the scope
    /// call it.
    ///
    /// # Errors
    /// The same for all threads of the scope.
    #[inline(always)]
    fn meet_as<S: Scope, O: Order>(&self, context: &Context, operation: KernelOp) -> Result<(), Failed> {
        let mut meeting = context.last_meeting.get();
        if meeting.key != key::<S>(self.index) {
            let slot = gpu::block_rank();
            if slot >= self.entry.slots {
                let (expected, found) = (u64::from(self.entry.slots), u64::from(slot));
                let report = Report { team: self.index, expected, found, ..Report::of(operation) };
                return Err(context.fail(FailureKind::NoSlot, report));
            }
            match self.arrange::<S>(context, slot) {
                Some(arranged) => meeting = arranged,
                None => {
                    return self.meet_by::<S, O>(context, |by| match by {
                        Kind::Thread => self.exchange::<Thread, O>(context, operation, slot),
                        _ => self.exchange::<Warp, O>(context, operation, slot),
                    });
                }
            }
            context.last_meeting.set(meeting);
        }
        self.meet_by::<S, O>(context, |by| match by {
            Kind::Thread => self.exchange_one::<Thread, O>(context, operation, meeting),
            _ => self.exchange_one::<Warp, O>(context, operation, meeting),
        })
    }

    /// Returns this thread's addresses, if each thread that takes part has at most one other
    /// member, and all members are mapped.
    #[inline(always)]
    fn arrange<S: Scope>(&self, context: &Context, slot: u32) -> Option<Meeting> {
        let entry = &self.entry;
        let others = entry.size.saturating_sub(1);
        let threads = if matches!(S::KIND, Kind::Block) { S::size().min(gpu::WARP_SIZE as usize) } else { S::size() } as u32;
        if others == 0 || others > threads || entry.all_mapped == 0 {
            return None;
        }
        let mut meeting = Meeting {
            key: key::<S>(self.index),
            epoch: entry.epochs + u64::from(slot) * size_of::<u64>() as u64,
            ..Meeting::NOTHING
        };
        let other = S::rank() as u32;
        if other < others {
            meeting.rank = other + u32::from(other >= entry.my_rank);
            meeting.theirs = self.mapped_base(context, meeting.rank) + entry.line(slot, entry.my_rank).0;
            meeting.mine = context.my_base() + entry.line(slot, meeting.rank).0;
        }
        Some(meeting)
    }

    /// Synchronises the scope, lets its first warp exchange arrivals, and returns the same outcome
    /// to all threads. One warp is sufficient: its lanes share the members, and its release
    /// includes what the other threads did before the sync.
    #[inline(always)]
    fn meet_by<S: Scope, O: Order>(
        &self,
        context: &Context,
        exchange: impl Fn(Kind) -> Result<(), Failed>,
    ) -> Result<(), Failed> {
        if O::ORDERS {
            context.finish_bulk();
        }
        S::sync();
        if O::COMPLETES && context.has_network() {
            // One thread completes the puts of all threads, because they have synchronised with it.
            if S::rank() == 0 {
                network::quiet(context.my_pe());
            }
            S::sync();
        }
        match S::KIND {
            Kind::Thread | Kind::Warp => exchange(S::KIND),
            Kind::Block => {
                let mut outcome = Ok(());
                if gpu::warp() == 0 {
                    outcome = exchange(Kind::Warp);
                }
                if S::any(outcome.is_err()) { outcome.and(Err(Failed::new(FailureKind::Aborted))) } else { Ok(()) }
            }
        }
    }

    /// Announces this PE to this thread's only other member, and waits for that member. All threads
    /// of the scope call it, after they have synchronised.
    ///
    /// The epoch is advanced before the wait, so that its store is complete by the next fence. If
    /// the wait fails, the epoch is restored, and a caller may synchronise again in the same epoch.
    #[inline(always)]
    fn exchange_one<S: Scope, O: Order>(&self, context: &Context, operation: KernelOp, meeting: Meeting) -> Result<(), Failed> {
        let before = epoch_of(meeting.epoch);
        let epoch = before.wrapping_add(1);
        if meeting.theirs != 0 {
            // SAFETY: the team's lines lie in every member's heap, aligned, and are accessed by
            // this protocol alone; the member is mapped.
            let theirs = word::from_fn(1, |_| unsafe { Word64::at(meeting.theirs) });
            announce::<O, _>(&theirs, epoch);
        }
        // Every thread has read the epoch.
        S::sync();
        if S::rank() == 0 {
            count(meeting.epoch, epoch);
        }
        let mut outcome = Ok(());
        if meeting.theirs != 0 {
            // SAFETY: as above, in this PE's heap.
            let mine = word::from_fn(1, |_| unsafe { Word64::at(meeting.mine) });
            outcome = wait::<O, _>(&mine, epoch, context)
                .map_err(|kind| self.missing(context, operation, kind, meeting.rank, meeting.mine, epoch));
        }
        self.agree::<S>(outcome, meeting.epoch, before)
    }

    /// Like [`Self::exchange_one`], for any number of other members of each thread, also if some
    /// are not mapped or cannot be reached.
    #[inline(always)]
    fn exchange<S: Scope, O: Order>(&self, context: &Context, operation: KernelOp, slot: u32) -> Result<(), Failed> {
        let entry = &self.entry;
        let epoch_address = entry.epochs + u64::from(slot) * size_of::<u64>() as u64;
        let before = epoch_of(epoch_address);
        let epoch = before.wrapping_add(1);
        // This thread's share of the other members: every `S::size()`th.
        let (first, step) = (S::rank() as u32, S::size() as u32);
        let others = entry.size.saturating_sub(1);
        let share = others.saturating_sub(first).div_ceil(step) as usize;
        let rank_of = |k: usize| {
            let other = first + k as u32 * step;
            other + u32::from(other >= entry.my_rank)
        };
        let mut outcome = Ok(());
        for k in 0..share {
            if self.mapped_base(context, rank_of(k)) == 0 {
                outcome = outcome.and(self.reach(context, operation, rank_of(k)).map(drop));
            }
        }
        let my_line = entry.line(slot, entry.my_rank).0;
        let line_of = |rank: u32| context.my_base() + entry.line(slot, rank).0;
        let theirs = Lines { len: share, post: |k, epoch| self.post(context, rank_of(k), my_line, epoch) };
        // SAFETY: the team's lines lie in this PE's heap, aligned, and are accessed by this
        // protocol alone.
        let mine = word::from_fn(share, |k| unsafe { Word64::at(line_of(rank_of(k))) });
        let takes_part = outcome.is_ok() && share > 0;
        if takes_part {
            announce::<O, _>(&theirs, epoch);
        } else if O::ORDERS && others == 0 {
            // Puts to PEs outside of the team are completed nevertheless.
            <Sys as Fence>::acq_rel();
        }
        // Every thread has read the epoch.
        S::sync();
        if S::rank() == 0 {
            count(epoch_address, epoch);
        }
        if takes_part {
            outcome = wait::<O, _>(&mine, epoch, context).map_err(|kind| {
                let rank = barrier::missing(&mine, epoch).next().map_or(rank_of(0), |k| rank_of(k.index()));
                self.missing(context, operation, kind, rank, line_of(rank), epoch)
            });
        }
        self.agree::<S>(outcome, epoch_address, before)
    }

    /// Writes this PE's epoch to its line in the heap of a member: a store, or a signal over the
    /// network. Orders nothing.
    #[inline(always)]
    fn post(&self, context: &Context, rank: u32, line: u64, epoch: u64) {
        match self.mapped_base(context, rank) {
            0 if network::available() => {
                let signal = network::Signal { word: context.my_base() + line, value: epoch, op: SignalOp::Set };
                network::signal(signal, self.member(rank));
            }
            // SAFETY: the team's lines lie in every member's heap, aligned, and are accessed by
            // this protocol alone; the member is mapped: the caller has checked that.
            base => flag::post_fenced(unsafe { Word64::at(base + line) }, epoch),
        }
    }

    /// Ends a synchronisation with the same outcome for all threads of the scope. After a failure
    /// the epoch is restored.
    #[inline(always)]
    fn agree<S: Scope>(&self, outcome: Result<(), Failed>, epoch: u64, before: u64) -> Result<(), Failed> {
        if !S::any(outcome.is_err()) {
            return Ok(());
        }
        if S::rank() == 0 {
            count(epoch, before);
        }
        outcome.and(Err(Failed::new(FailureKind::Aborted)))
    }

    /// Reports a member that has not arrived.
    #[cold]
    #[inline]
    fn missing(&self, context: &Context, operation: KernelOp, kind: FailureKind, rank: u32, line: u64, epoch: u64) -> Failed {
        // SAFETY: the member's line in this PE's heap, which this protocol alone accesses.
        let found = crate::Word::load_relaxed(unsafe { Word64::at(line) });
        let report = Report { pe: self.member(rank), team: self.index, expected: epoch, found, ..Report::of(operation) };
        context.fail(kind, report)
    }
}

/// This PE's lines in the heaps of other members, which are mapped or reached over the network.
struct Lines<F> {
    len: usize,
    post: F,
}

impl<F: Fn(usize, u64)> Announce for Lines<F> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    fn fence_release() {
        Word64::fence_release();
    }

    #[inline(always)]
    fn post(&self, index: usize, epoch: u64) {
        (self.post)(index, epoch);
    }
}

#[inline(always)]
fn announce<O: Order, A: Announce>(mine: &A, epoch: u64) {
    if O::ORDERS { barrier::announce(mine, epoch) } else { barrier::announce_relaxed(mine, epoch) }
}

#[inline(always)]
fn wait<O: Order, Ws: Words>(words: &Ws, epoch: u64, context: &Context) -> Result<(), FailureKind> {
    let mut spin = context.spin();
    if O::ORDERS { barrier::wait(words, epoch, &mut spin) } else { barrier::wait_relaxed(words, epoch, &mut spin) }
}

/// Returns the epoch of a slot, which lies in memory of this device that only kernels access.
#[inline(always)]
fn epoch_of(at: u64) -> u64 {
    // SAFETY: the team's table says where its epochs are; the host keeps them while kernels run.
    unsafe { <u64 as Access<Gpu>>::load_relaxed(address(at)) }
}

/// Writes the epoch of a slot.
#[inline(always)]
fn count(at: u64, epoch: u64) {
    // SAFETY: as in `epoch_of`.
    unsafe { <u64 as Access<Gpu>>::store_relaxed(address(at), epoch) };
}

impl Context {
    #[inline(always)]
    fn meet_any<S: Scope, O: Order>(&self, operation: KernelOp, team: KernelTeam) -> Result<(), Failed> {
        self.team(operation, team)?.meet_as::<S, O>(self, operation)
    }
}

/// Declares the public methods, one for each scope.
macro_rules! scoped {
    ($scope:ident, $words:literal: $barrier:ident, $barrier_all:ident, $sync:ident, $sync_all:ident,
        $sync_relaxed:ident, $sync_all_relaxed:ident) => {
        impl Context {
            #[doc = concat!("Completes all puts, then waits until every member of the team has arrived, by ", $words, ".")]
            /// Every member makes this call, from the same block index. Only one caller per block
            /// and team is allowed at a time.
            ///
            /// # Ordering
            /// Earlier puts and writes of every member are visible afterwards.
            ///
            /// # Errors
            /// [`FailureKind::Deadline`], and the status names the PE that did not arrive;
            /// [`FailureKind::Aborted`]; [`FailureKind::NoSlot`] if the team has no slot for this
            /// block; [`FailureKind::NoSuchPeer`].
            #[inline(always)]
            pub fn $barrier(&self, team: KernelTeam) -> Result<(), Failed> {
                self.meet_any::<$scope, orders::Complete>(KernelOp::Barrier, team)
            }

            #[doc = concat!("[`Self::", stringify!($barrier), "`] of all PEs.")]
            ///
            /// # Errors
            #[doc = concat!("As [`Self::", stringify!($barrier), "`].")]
            #[inline(always)]
            pub fn $barrier_all(&self) -> Result<(), Failed> {
                self.meet_any::<$scope, orders::Complete>(KernelOp::Barrier, KernelTeam::WORLD)
            }

            #[doc = concat!("Waits until every member of the team has arrived, by ", $words, "; puts over a network may be incomplete.")]
            /// Otherwise like a barrier.
            ///
            /// # Errors
            #[doc = concat!("As [`Self::", stringify!($barrier), "`].")]
            #[inline(always)]
            pub fn $sync(&self, team: KernelTeam) -> Result<(), Failed> {
                self.meet_any::<$scope, orders::Strong>(KernelOp::Sync, team)
            }

            #[doc = concat!("[`Self::", stringify!($sync), "`] of all PEs.")]
            ///
            /// # Errors
            #[doc = concat!("As [`Self::", stringify!($barrier), "`].")]
            #[inline(always)]
            pub fn $sync_all(&self) -> Result<(), Failed> {
                self.meet_any::<$scope, orders::Strong>(KernelOp::Sync, KernelTeam::WORLD)
            }

            #[doc = concat!("Waits until every member of the team has arrived, by ", $words, ", and orders nothing.")]
            /// Otherwise like a barrier, but without its two fences. Use it if members exchange no
            /// data by it, for example before they reuse a buffer that other signals guard.
            ///
            /// # Ordering
            /// None: earlier writes of members may not be visible afterwards, and puts may be
            /// incomplete.
            ///
            /// # Errors
            #[doc = concat!("As [`Self::", stringify!($barrier), "`].")]
            #[inline(always)]
            pub fn $sync_relaxed(&self, team: KernelTeam) -> Result<(), Failed> {
                self.meet_any::<$scope, orders::Relaxed>(KernelOp::Sync, team)
            }

            #[doc = concat!("[`Self::", stringify!($sync_relaxed), "`] of all PEs.")]
            ///
            /// # Errors
            #[doc = concat!("As [`Self::", stringify!($barrier), "`].")]
            #[inline(always)]
            pub fn $sync_all_relaxed(&self) -> Result<(), Failed> {
                self.meet_any::<$scope, orders::Relaxed>(KernelOp::Sync, KernelTeam::WORLD)
            }
        }
    };
}

scoped!(Thread, "this thread": barrier, barrier_all, sync, sync_all, sync_relaxed, sync_all_relaxed);
scoped!(Warp, "all threads of the warp": barrier_warp, barrier_all_warp, sync_warp, sync_all_warp, sync_relaxed_warp, sync_all_relaxed_warp);
scoped!(Block, "all threads of the block": barrier_block, barrier_all_block, sync_block, sync_all_block, sync_relaxed_block, sync_all_relaxed_block);
