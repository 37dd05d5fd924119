//! Synchronisation of a team: every member waits until all members have arrived.
//!
//! The protocol is [`crate::barrier`]. The heap of each member contains one signal line for each
//! rank of the team: a 64-bit word that has its own line of memory. A rank announces its arrival to
//! a member by a write to the rank's signal line in that member's heap. For a mapped member, the
//! write is a store. For an unmapped member, the write is a signal over the network. A rank polls
//! only its own heap. The threads of a scope (a thread, warp or block) divide the members among
//! themselves.
//!
//! Block `b` of each member synchronises with block `b` of the other members. So each block index
//! has separate signal lines, and a separate epoch that counts the synchronisations. The signal
//! lines and the epoch of a block index are called a slot. The epoch is in memory of this device,
//! and keeps its value when the kernel ends.
//!
//! Kernels call barriers and collectives in many places. So only the common case of a barrier is
//! inlined: all members are mapped, and each thread synchronises with at most one other member.
//! Functions that are not inlined handle all other steps. [`arrange`] looks up the addresses of a
//! team. [`exchange_several`] handles unmapped members, and several members for each thread.
//! [`exchange_apart`] handles collectives.
//!
//! Invariant: all threads of the scope read the same epoch. The threads call [`Scope::sync`] before
//! they read the epoch, and again after they have read it. Only after the second of these calls
//! does one thread write the next epoch.

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

/// The addresses by which a thread synchronises with one other member of a team. Used if all
/// members are mapped, and each thread of the scope synchronises with at most one other member. The
/// context caches the addresses of its last synchronisation, because a lookup takes about half as
/// long as the messages of a barrier.
#[derive(Clone, Copy)]
pub(crate) struct Meeting {
    /// Team and scope for which the addresses in this struct were looked up, encoded by [`key`].
    /// `u32::MAX` if the struct contains no addresses.
    key: u32,
    /// Rank of the only member with which this thread synchronises. [`Self::SEVERAL`] if the team
    /// has no other member, if a thread may have to synchronise with several members, or if a
    /// member may be unmapped. With [`Self::SEVERAL`], the thread looks up the addresses in each
    /// synchronisation.
    rank: u32,
    /// Address, in memory of this device, of the epoch of this block: the number of
    /// synchronisations that the block has completed (see [`epoch_of`]).
    epoch: u64,
    /// Address of a word in the heap of the member `rank`. This PE writes the word to announce its
    /// own arrival. The address is 0 if this thread synchronises with no member.
    theirs: u64,
    /// Address of a word in this PE's heap. The member `rank` writes the word to announce its
    /// arrival.
    mine: u64,
}

impl Meeting {
    pub(crate) const NOTHING: Self = Self { key: u32::MAX, rank: 0, epoch: 0, theirs: 0, mine: 0 };
    const SEVERAL: u32 = u32::MAX;
}

/// Encodes a team and a scope as one number, for [`Meeting::key`].
#[inline(always)]
fn key<S: Scope>(team: KernelTeam) -> u32 {
    team.index() << 2 | S::KIND as u32
}

/// The memory order of a synchronisation, and whether its code is inlined.
pub(super) trait Order: Copy {
    /// Whether the synchronisation completes puts over the network.
    const COMPLETES: bool;
    /// Whether the synchronisation makes earlier writes of every member visible.
    const ORDERS: bool;
    /// Whether [`exchange_apart`], which is not inlined, executes the synchronisation. If false,
    /// the code is inlined into the kernel.
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
    /// Order for barriers: the synchronisation completes puts, and makes earlier writes of every
    /// member visible.
    Complete: true, true, false
);
order!(
    /// Order for collectives: like [`Complete`], but the code is not inlined, because a function
    /// call costs little compared with the collective's copies.
    Collective: true, true, true
);
order!(
    /// Order for syncs: the synchronisation makes earlier writes of every member visible. It does
    /// not complete puts over the network.
    Strong: false, true, false
);
order!(
    /// Order for relaxed syncs: the synchronisation makes no writes visible, and completes no puts.
    Relaxed: false, false, false
);

impl Context {
    /// Waits until every member of a team has arrived, with the memory order `O`. All threads of
    /// the scope call this method.
    ///
    /// # Errors
    /// If a member did not arrive before the deadline, or the kernel has failed on this PE. If one
    /// thread of the scope fails, all threads fail.
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
            // One thread completes the puts of all threads, because all threads have synchronised
            // with this thread.
            if S::rank() == 0 {
                network::quiet(self.my_pe());
            }
            S::sync();
        }
        // In a block only the first warp exchanges arrivals, and its lanes divide the members among
        // themselves. Its release covers the accesses of the other threads before the sync.
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

    /// Announces the arrival of this PE to all members, and waits until all members have arrived.
    /// All threads of the scope `S` call this method, after they have synchronised.
    #[inline(always)]
    fn exchange<S: Scope, O: Order>(&self, of: (KernelTeam, KernelOp), meeting: Meeting) -> Result<(), Failed> {
        let (raw, pes, bases) = self.parts();
        if meeting.rank == Meeting::SEVERAL {
            // SAFETY: the parts are from this context. `arrange` has checked that the context has
            // this team.
            return unsafe {
                if O::ORDERS {
                    exchange_several::<S, true>(raw, pes, bases, of)
                } else {
                    exchange_several::<S, false>(raw, pes, bases, of)
                }
            };
        }
        if O::APART {
            // SAFETY: the parts are from this context, and the addresses are from `arrange`.
            return unsafe {
                exchange_apart::<S>(raw, pes, bases, of, (meeting.theirs, meeting.mine), meeting.epoch, meeting.rank)
            };
        }
        if O::ORDERS { self.exchange_one::<S, true>(of, meeting) } else { self.exchange_one::<S, false>(of, meeting) }
    }

    /// Announces the arrival of this PE to the member with the rank [`Meeting::rank`], and waits
    /// until that member has arrived. If no member is assigned to this thread, the thread only
    /// synchronises with the other threads of the scope.
    ///
    /// The new epoch is stored before the wait, so that the store completes during the wait and
    /// does not delay the next fence. If the wait fails, the old epoch is stored again, so that the
    /// caller can repeat the synchronisation in the same epoch.
    #[inline(always)]
    fn exchange_one<S: Scope, const ORDERS: bool>(&self, of: (KernelTeam, KernelOp), meeting: Meeting) -> Result<(), Failed> {
        let before = epoch_of(meeting.epoch);
        let epoch = before.wrapping_add(1);
        if meeting.theirs != 0 {
            // SAFETY: the team's lines lie in every member's heap, are aligned, and only this
            // protocol accesses them. The member is mapped.
            let theirs = word::from_fn(1, |_| unsafe { Word64::at(meeting.theirs) });
            announce::<ORDERS, _>(&theirs, epoch);
        }
        // After this sync every thread of the scope has read the epoch.
        S::sync();
        if S::rank() == 0 {
            count(meeting.epoch, epoch);
        }
        let mut outcome = Ok(());
        if meeting.theirs != 0 {
            // SAFETY: as above; this line is in this PE's heap.
            let mine = word::from_fn(1, |_| unsafe { Word64::at(meeting.mine) });
            // SAFETY: as above. `arrange` has checked the team and the rank.
            outcome = wait::<ORDERS, _>(&mine, epoch, self)
                .map_err(|kind| unsafe { missing::<()>(self.raw(), of, kind, meeting.rank, meeting.mine, epoch) });
        }
        agree::<S>(outcome, meeting.epoch, before)
    }
}

/// Looks up the addresses with which this thread synchronises with the other members of a team.
/// Fails if the team does not exist, if this PE is not a member, or if the index of this block is
/// not less than the team's number of slots.
///
/// # Safety
/// `raw`, `pes` and `bases` are from one context of this thread.
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

/// Calls [`Context::exchange_one`], for a collective. This function is not inlined, so that the
/// code of a collective is smaller.
///
/// # Safety
/// `raw`, `pes` and `bases` are from one context of this thread, and the addresses are from
/// [`arrange`].
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

/// Announces this PE's arrival to this thread's share of the members, and waits until these members
/// have arrived. Handles any number of members, mapped or not. [`Context::exchange_one`] handles at
/// most one member, which must be mapped.
///
/// # Safety
/// `raw`, `pes` and `bases` are from one context of this thread. [`arrange`] has succeeded for this
/// context and team.
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
    // This thread synchronises with every `S::size()`th of the other members.
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
    // SAFETY: the team's lines lie in this PE's heap, are aligned, and only this protocol accesses
    // them.
    let mine = word::from_fn(share, |k| unsafe { Word64::at(line_of(rank_of(k))) });
    let takes_part = outcome.is_ok() && share > 0;
    if takes_part {
        announce::<ORDERS, _>(&theirs, epoch);
    } else if ORDERS && others == 0 {
        // The team has only this PE. Orders this thread's accesses, including puts to PEs outside
        // the team.
        <Sys as Fence>::acq_rel();
    }
    // After this sync every thread of the scope has read the epoch.
    S::sync();
    if S::rank() == 0 {
        count(epoch_address, epoch);
    }
    if takes_part {
        outcome = wait::<ORDERS, _>(&mine, epoch, context).map_err(|kind| {
            let rank = barrier::missing(&mine, epoch).next().map_or(rank_of(0), |k| rank_of(k.index()));
            // SAFETY: `line_of` returns the line of a rank of this team in this PE's heap.
            unsafe { missing::<()>(context.raw(), of, kind, rank, line_of(rank), epoch) }
        });
    }
    agree::<S>(outcome, epoch_address, before)
}

/// Writes `epoch` to this PE's signal line in the heap of the member with the rank `rank`. `line`
/// is the offset of the line. If the member is mapped, the write is a store. Otherwise it is a
/// signal over the network. Orders nothing.
#[inline(always)]
fn post(context: &Context, members: &Team, rank: u32, line: u64, epoch: u64) {
    match members.mapped_base(context, rank) {
        0 if network::available() => {
            let signal = network::Signal { word: context.my_base() + line, value: epoch, op: SignalOp::Set };
            network::signal(signal, members.member(rank));
        }
        // SAFETY: the team's lines lie in every member's heap, are aligned, and only this protocol
        // accesses them. The caller has checked that the member is mapped.
        base => flag::post_fenced(unsafe { Word64::at(base + line) }, epoch),
    }
}

/// Ends a synchronisation that had the result `outcome` on this thread. If the synchronisation
/// failed on any thread of the scope, returns an error on all threads. In this case, also restores
/// the old epoch: stores `before` at the address `epoch`.
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

/// Reports that a synchronisation has failed, and returns the error. The report names the member
/// with the rank `rank` as missing. The function is generic only so that the compiler generates its
/// code in the kernel's crate.
///
/// # Safety
/// `raw` satisfies the safety conditions of [`Context::enter`]. The team exists and has a member
/// with the rank `rank`. `line` is the address of that member's signal line in this PE's heap.
#[cold]
#[inline(never)]
#[expect(
    clippy::extra_unused_type_parameters,
    reason = "the type parameter makes the compiler generate the function in the kernel's crate"
)]
unsafe fn missing<Here>(
    raw: &KernelContext,
    (team, operation): (KernelTeam, KernelOp),
    kind: FailureKind,
    rank: u32,
    line: u64,
    epoch: u64,
) -> Failed {
    // SAFETY: the caller promises the address of a line, and only this protocol accesses lines.
    let found = unsafe { Word64::at(line) }.load_relaxed();
    let pe = entry_of(raw, team).map_or(u32::MAX, |entry| Team { entry, team }.member(rank));
    // SAFETY: the caller promises the context.
    unsafe { crate::api::report::write::<()>(raw, kind as u32, operation as u32, pe, team.index(), epoch, found) };
    Failed::new(kind)
}

/// The signal lines of this PE in the heaps of `len` other members, one line for each of these
/// members. This PE announces its arrival by writes to these lines. `post(i, epoch)` writes `epoch`
/// to the line in the heap of the member with the index `i`.
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

/// Returns the epoch at the address `at`. A team has one epoch for each block index. The epoch
/// counts the synchronisations of the block that has this index. Epochs are in memory of this
/// device, and only kernels access them.
#[inline(always)]
fn epoch_of(at: u64) -> u64 {
    // SAFETY: the address is from the team's table, and the host keeps the epochs allocated while
    // kernels run.
    unsafe { <u64 as Access<Gpu>>::load_relaxed(address(at)) }
}

/// Stores `epoch`, the new number of synchronisations, at the address `at` (see [`epoch_of`]).
#[inline(always)]
fn count(at: u64, epoch: u64) {
    // SAFETY: as in `epoch_of`.
    unsafe { <u64 as Access<Gpu>>::store_relaxed(address(at), epoch) };
}
