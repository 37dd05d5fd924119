//! Synchronisation of a team: every member waits until all have arrived.
//!
//! The protocol is [`crate::barrier`]. Every rank announces its arrival to every member, in its own
//! line in each heap, and waits on its own memory. It announces by a store if the member is mapped,
//! and by a signal over the network otherwise. The threads of a scope share the work. Block `b` of
//! each member synchronises with block `b` of the others. Each block has its own slot, with an
//! epoch in memory of this device that outlives the kernel.
//!
//! A barrier inlines the steps of a thread that has at most one other member. Kernels call barriers
//! and collectives in many places, so all other steps are in functions that are not inlined: the
//! lookup at the first synchronisation, several members for each thread, members that are not
//! mapped, reports, and the exchange of a collective.
//!
//! Invariant: an epoch is read after a `sync` of the scope, and written after the next `sync` and
//! before the last one, so that all threads see one value.

use super::{Team, entry_of};
use crate::api::context::{Bases, Pes};
use crate::api::report::Report;
use crate::api::scope::{Block, Kind, Scope, Thread, Warp};
use crate::api::views::address;
use crate::api::{Context, Failed, network};
use crate::barrier::{self, Announce};
use crate::gpu::{self, Access, Fence, Gpu, Sys, Word64};
use crate::word::Words;
use crate::{Word as _, flag, word};
use peerweave_types::{FailureKind, KernelContext, KernelOp, KernelTeam, SignalOp};

/// The addresses by which a thread synchronises, if each thread of the scope has at most one other
/// member, and all are mapped. Cached, because looking them up for each barrier takes half as long
/// as the barrier's messages.
#[derive(Clone, Copy)]
pub(crate) struct Meeting {
    /// The team and the scope ([`key`]); `u32::MAX` if nothing is cached.
    key: u32,
    /// Rank to which this thread announces its arrival and for which it waits; [`Self::SEVERAL`] if
    /// it must look up each member.
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
    const SEVERAL: u32 = u32::MAX;
}

/// Returns the value of [`Meeting::key`] for a team and a scope.
#[inline(always)]
fn key<S: Scope>(team: KernelTeam) -> u32 {
    team.index() << 2 | S::KIND as u32
}

/// The memory order of a synchronisation, in addition to waiting for all members, and whether its
/// code is inlined.
pub(super) trait Order: Copy {
    /// Completes puts.
    const COMPLETES: bool;
    /// Makes earlier writes of every member visible.
    const ORDERS: bool;
    /// Whether the exchange is a function that is not inlined.
    const APART: bool;
}

macro_rules! order {
    ($(#[$doc:meta])* $name:ident: $completes:literal, $orders:literal, $apart:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(super) struct $name;

        impl Order for $name {
            const COMPLETES: bool = $completes;
            const ORDERS: bool = $orders;
            const APART: bool = $apart;
        }
    };
}

order!(
    /// Completes puts, and makes earlier writes of every member visible.
    Complete: true, true, false
);
order!(
    /// Like [`Complete`], for a collective. Not inlined, because a call costs little compared with
    /// the collective's copies.
    Collective: true, true, true
);
order!(
    /// Makes earlier writes of every member visible; puts over a network may be incomplete.
    Strong: false, true, false
);
order!(
    /// Orders nothing.
    Relaxed: false, false, false
);

impl Context {
    /// Waits until every member of a team has arrived, with the memory order `O`. All threads of
    /// the scope call it.
    ///
    /// # Errors
    /// A member did not arrive, or a kernel failed. All threads of the scope get the same outcome.
    #[inline(always)]
    pub(super) fn meet_as<S: Scope, O: Order>(&self, operation: KernelOp, team: KernelTeam) -> Result<(), Failed> {
        let mut meeting = self.last_meeting.get();
        if meeting.key != key::<S>(team) {
            let (raw, pes, bases) = self.parts();
            // SAFETY: the parts are from this context.
            meeting = unsafe { arrange::<S>(raw, pes, bases, (team, operation)) }?;
            self.last_meeting.set(meeting);
        }
        if O::ORDERS {
            self.finish_bulk();
        }
        S::sync();
        if O::COMPLETES && self.has_network() {
            // One thread completes the puts of all threads, because they have synchronised with it.
            if S::rank() == 0 {
                network::quiet(self.my_pe());
            }
            S::sync();
        }
        // One warp is sufficient for a block: its lanes share the members, and its release covers
        // the accesses of the other threads before the sync.
        match S::KIND {
            Kind::Thread => self.exchange::<Thread, O>((team, operation), meeting),
            Kind::Warp => self.exchange::<Warp, O>((team, operation), meeting),
            Kind::Block => {
                let mut outcome = Ok(());
                if gpu::warp() == 0 {
                    outcome = self.exchange::<Warp, O>((team, operation), meeting);
                }
                if Block::any(outcome.is_err()) { outcome.and(Err(Failed::new(FailureKind::Aborted))) } else { Ok(()) }
            }
        }
    }

    /// Exchanges arrivals. All threads of the scope call it, after they have synchronised.
    #[inline(always)]
    fn exchange<S: Scope, O: Order>(&self, of: (KernelTeam, KernelOp), meeting: Meeting) -> Result<(), Failed> {
        let (raw, pes, bases) = self.parts();
        if meeting.rank == Meeting::SEVERAL {
            // SAFETY: the parts are from this context, which has this team; `arrange` has checked
            // that.
            return unsafe {
                if O::ORDERS {
                    exchange_several::<S, true>(raw, pes, bases, of)
                } else {
                    exchange_several::<S, false>(raw, pes, bases, of)
                }
            };
        }
        if O::APART {
            // SAFETY: the parts are from this context, and the addresses from a meeting that
            // `arrange` made.
            return unsafe {
                exchange_apart::<S>(raw, pes, bases, of, (meeting.theirs, meeting.mine), meeting.epoch, meeting.rank)
            };
        }
        if O::ORDERS { self.exchange_one::<S, true>(of, meeting) } else { self.exchange_one::<S, false>(of, meeting) }
    }

    /// Announces this PE to this thread's only other member, and waits for that member.
    ///
    /// The epoch is advanced before the wait, so that its store is complete by the next fence. If
    /// the wait fails, the epoch is restored, and a caller may synchronise again in the same epoch.
    #[inline(always)]
    fn exchange_one<S: Scope, const ORDERS: bool>(&self, of: (KernelTeam, KernelOp), meeting: Meeting) -> Result<(), Failed> {
        let before = epoch_of(meeting.epoch);
        let epoch = before.wrapping_add(1);
        if meeting.theirs != 0 {
            // SAFETY: the team's lines lie in every member's heap, aligned, and are accessed by
            // this protocol alone; the member is mapped.
            let theirs = word::from_fn(1, |_| unsafe { Word64::at(meeting.theirs) });
            announce::<ORDERS, _>(&theirs, epoch);
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
            // SAFETY: as above; `arrange` found the team and the rank.
            outcome = wait::<ORDERS, _>(&mine, epoch, self)
                .map_err(|kind| unsafe { missing::<()>(self.raw(), of, kind, meeting.rank, meeting.mine, epoch) });
        }
        agree::<S>(outcome, meeting.epoch, before)
    }
}

/// Returns the addresses by which this thread synchronises with a team. Fails if the team does not
/// exist, this PE is not a member, or the team has no slot for this block.
///
/// # Safety
/// The parts are from one context of this thread.
#[cold]
#[inline(never)]
unsafe fn arrange<S: Scope>(
    raw: *const KernelContext,
    pes: Pes,
    bases: Bases,
    (team, operation): (KernelTeam, KernelOp),
) -> Result<Meeting, Failed> {
    // SAFETY: the caller promises the parts.
    let context = &unsafe { Context::again(raw, pes, bases) };
    let members = context.team(operation, team)?;
    let (entry, slot) = (&members.entry, gpu::block_rank());
    if slot >= entry.slots {
        let (expected, found) = (u64::from(entry.slots), u64::from(slot));
        let report = Report { team: team.index(), expected, found, ..Report::of(operation) };
        return Err(context.fail(FailureKind::NoSlot, report));
    }
    let mut meeting =
        Meeting { key: key::<S>(team), epoch: entry.epochs + u64::from(slot) * size_of::<u64>() as u64, ..Meeting::NOTHING };
    let others = entry.size.saturating_sub(1);
    let threads = if matches!(S::KIND, Kind::Block) { S::size().min(gpu::WARP_SIZE as usize) } else { S::size() } as u32;
    if others == 0 || others > threads || !members.all_mapped() {
        meeting.rank = Meeting::SEVERAL;
        return Ok(meeting);
    }
    let other = S::rank() as u32;
    if other < others {
        meeting.rank = other + u32::from(other >= entry.my_rank);
        meeting.theirs = members.mapped_base(context, meeting.rank) + entry.line(slot, entry.my_rank).0;
        meeting.mine = context.my_base() + entry.line(slot, meeting.rank).0;
    }
    Ok(meeting)
}

/// Calls [`Context::exchange_one`] for a collective.
///
/// # Safety
/// The parts are from one context of this thread, and the addresses are from [`arrange`].
#[inline(never)]
unsafe fn exchange_apart<S: Scope>(
    raw: *const KernelContext,
    pes: Pes,
    bases: Bases,
    of: (KernelTeam, KernelOp),
    (theirs, mine): (u64, u64),
    epoch: u64,
    rank: u32,
) -> Result<(), Failed> {
    // SAFETY: the caller promises the parts.
    let context = unsafe { Context::again(raw, pes, bases) };
    context.exchange_one::<S, true>(of, Meeting { key: key::<S>(of.0), rank, epoch, theirs, mine })
}

/// Like [`Context::exchange_one`], for any number of other members of each thread, also if some are
/// not mapped.
///
/// # Safety
/// The parts are from one context of this thread, for which [`arrange`] found this team.
#[inline(never)]
unsafe fn exchange_several<S: Scope, const ORDERS: bool>(
    raw: *const KernelContext,
    pes: Pes,
    bases: Bases,
    of: (KernelTeam, KernelOp),
) -> Result<(), Failed> {
    // SAFETY: the caller promises the parts.
    let context = &unsafe { Context::again(raw, pes, bases) };
    let (team, operation) = of;
    let members = context.team(operation, team)?;
    let (entry, slot) = (&members.entry, gpu::block_rank());
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
        if members.mapped_base(context, rank_of(k)) == 0 {
            outcome = outcome.and(members.reach(context, operation, rank_of(k)).map(drop));
        }
    }
    let my_line = entry.line(slot, entry.my_rank).0;
    let line_of = |rank: u32| context.my_base() + entry.line(slot, rank).0;
    let theirs = Lines { len: share, post: |k, epoch| post(context, &members, rank_of(k), my_line, epoch) };
    // SAFETY: the team's lines lie in this PE's heap, aligned, and are accessed by this protocol
    // alone.
    let mine = word::from_fn(share, |k| unsafe { Word64::at(line_of(rank_of(k))) });
    let takes_part = outcome.is_ok() && share > 0;
    if takes_part {
        announce::<ORDERS, _>(&theirs, epoch);
    } else if ORDERS && others == 0 {
        // Completes puts to PEs outside of the team.
        <Sys as Fence>::acq_rel();
    }
    // Every thread has read the epoch.
    S::sync();
    if S::rank() == 0 {
        count(epoch_address, epoch);
    }
    if takes_part {
        outcome = wait::<ORDERS, _>(&mine, epoch, context).map_err(|kind| {
            let rank = barrier::missing(&mine, epoch).next().map_or(rank_of(0), |k| rank_of(k.index()));
            // SAFETY: the line of a rank of this team in this PE's heap.
            unsafe { missing::<()>(context.raw(), of, kind, rank, line_of(rank), epoch) }
        });
    }
    agree::<S>(outcome, epoch_address, before)
}

/// Writes this PE's epoch to its line in the heap of a member: a store, or a signal over the
/// network. Orders nothing.
#[inline(always)]
fn post(context: &Context, members: &Team, rank: u32, line: u64, epoch: u64) {
    match members.mapped_base(context, rank) {
        0 if network::available() => {
            let signal = network::Signal { word: context.my_base() + line, value: epoch, op: SignalOp::Set };
            network::signal(signal, members.member(rank));
        }
        // SAFETY: the team's lines lie in every member's heap, aligned, and are accessed only by
        // this protocol; the caller has checked that the member is mapped.
        base => flag::post_fenced(unsafe { Word64::at(base + line) }, epoch),
    }
}

/// Ends a synchronisation with the same outcome for all threads of the scope. After a failure the
/// epoch is restored.
#[inline(always)]
fn agree<S: Scope>(outcome: Result<(), Failed>, epoch: u64, before: u64) -> Result<(), Failed> {
    if !S::any(outcome.is_err()) {
        return Ok(());
    }
    if S::rank() == 0 {
        count(epoch, before);
    }
    outcome.and(Err(Failed::new(FailureKind::Aborted)))
}

/// Reports a member that has not arrived. The type parameter makes the compiler place the function
/// in the crate of the kernel.
///
/// # Safety
/// The context is one that [`Context::enter`] takes; it has this team with this rank, whose line in
/// this PE's heap is `line`.
#[cold]
#[inline(never)]
#[expect(clippy::extra_unused_type_parameters, reason = "makes it generic, and so part of the kernel's crate")]
unsafe fn missing<Here>(
    raw: &KernelContext,
    (team, operation): (KernelTeam, KernelOp),
    kind: FailureKind,
    rank: u32,
    line: u64,
    epoch: u64,
) -> Failed {
    // SAFETY: the caller promises that this is a line, which only this protocol accesses.
    let found = unsafe { Word64::at(line) }.load_relaxed();
    let pe = entry_of(raw, team).map_or(u32::MAX, |entry| Team { entry, team }.member(rank));
    // SAFETY: the caller promises the context.
    unsafe { crate::api::report::write::<()>(raw, kind as u32, operation as u32, pe, team.index(), epoch, found) };
    Failed::new(kind)
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
fn announce<const ORDERS: bool, A: Announce>(mine: &A, epoch: u64) {
    if ORDERS { barrier::announce(mine, epoch) } else { barrier::announce_relaxed(mine, epoch) }
}

#[inline(always)]
fn wait<const ORDERS: bool, Ws: Words>(words: &Ws, epoch: u64, context: &Context) -> Result<(), FailureKind> {
    let mut spin = context.spin();
    if ORDERS { barrier::wait(words, epoch, &mut spin) } else { barrier::wait_relaxed(words, epoch, &mut spin) }
}

/// Returns the epoch of a slot, which lies in memory of this device that only kernels access.
#[inline(always)]
fn epoch_of(at: u64) -> u64 {
    // SAFETY: the address of the epochs is from the team's table; the host keeps them allocated
    // while kernels run.
    unsafe { <u64 as Access<Gpu>>::load_relaxed(address(at)) }
}

/// Writes the epoch of a slot.
#[inline(always)]
fn count(at: u64, epoch: u64) {
    // SAFETY: as in `epoch_of`.
    unsafe { <u64 as Access<Gpu>>::store_relaxed(address(at), epoch) };
}
