//! The teams of a PE: their members, and the order of their operations.
//!
//! A team occupies one slot of control words in the segments of all its members. The operations of
//! a team share these words. So on each PE, the operations run one at a time, in the order in which
//! they were issued. This is true even for operations on different streams.

use crate::memory::layout::{Segments, TeamBlock};
use crate::sync::peers::Peers;
use crate::sync::root_cause;
use crate::sync::step::line_of;
use peerweave_core::backend::TeamId;
use peerweave_core::{Error, Misuse, MisuseKind, TeamName};
use peerweave_types::Pe;
use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

/// Maximum time for which a PE searches for the PE at fault after the deadline of an operation. The
/// search reads the failure words of the missing PEs for the team. Such a word names a PE for which
/// the missing PE has waited for a long time, or because of which it has timed out.
pub(crate) const REPORT_GRACE: Duration = Duration::from_millis(500);
/// Time after which the search for the PE at fault ends early, before [`REPORT_GRACE`]. The search
/// ends if it has found the same single PE for this time, and this PE is not simply the missing PE.
const STABLE: Duration = Duration::from_millis(150);

/// The state of a team on one of its members.
#[derive(Debug)]
pub(crate) struct TeamState {
    pub(crate) id: TeamId,
    pub(crate) slot: usize,
    /// PE of each rank.
    pub(crate) members: Box<[usize]>,
    /// The control words and staging areas of each rank.
    pub(crate) blocks: Box<[TeamBlock]>,
    /// This PE's rank.
    pub(crate) rank: usize,
    /// Epoch (number in the team) of the operation that was issued last.
    issued: AtomicU32,
    /// Epoch (number in the team) of the operation that ended last.
    completed: AtomicU32,
    /// Epoch of the latest operation that every rank has entered, as far as this rank knows.
    entered_by_all: AtomicU32,
    /// Digest of the small broadcasts (at most 64 bytes) that this rank has called since its last
    /// other operation. The root of a small broadcast does not wait for the other ranks. So it does
    /// not detect in this call that another rank has called a different operation. But the digests
    /// of the two ranks then differ. The digest is a part of the signature of every call, so the
    /// ranks detect the difference in a later call.
    history: AtomicU64,
    /// The failure of the team on this PE, if the team has failed. After a failure, the team runs
    /// no collectives on this PE.
    failure: OnceLock<Error>,
    /// For each rank of the team, the channels for messages between that rank and this PE.
    pub(crate) channels: Box<[Channels]>,
}

/// The channels between this rank and another rank, one for each direction.
#[derive(Debug, Default)]
pub(crate) struct Channels {
    pub(crate) send: Channel,
    pub(crate) receive: Channel,
}

/// The sends of this rank to one peer in a team, or the receives of this rank from that peer.
/// Operations of a channel run one at a time, in the order in which they were issued.
#[derive(Debug, Default)]
pub(crate) struct Channel {
    /// Number of operations that this PE has issued in the channel.
    pub(crate) issued: AtomicU64,
    /// Number of operations that have ended. If this number is `n`, the operation at position `n`
    /// may run. Positions start at 0.
    pub(crate) ended: AtomicU64,
    /// Number of operations that ended before they could run, because the team had failed. `ended`
    /// does not count them.
    pub(crate) skipped: AtomicU64,
    /// Number of messages that this rank has transferred through the mailbox of this channel. In a
    /// channel of sends, these are the published messages. In a channel of receives, these are the
    /// messages that were read. Only the running operation of the channel changes this number.
    pub(crate) messages: AtomicU64,
}

impl Channel {
    /// Returns whether all operations that this PE has issued in the channel have ended.
    pub(crate) fn is_idle(&self) -> bool {
        let ended = self.ended.load(Ordering::Acquire) + self.skipped.load(Ordering::Acquire);
        ended == self.issued.load(Ordering::Acquire)
    }
}

/// A reference that an operation holds to its team. Operations of the team of all PEs borrow the
/// team, so that they change no reference count.
#[derive(Debug)]
pub(crate) enum TeamRef<'a> {
    Borrowed(&'a Arc<TeamState>),
    Owned(Arc<TeamState>),
}

impl TeamRef<'_> {
    pub(crate) fn into_arc(self) -> Arc<TeamState> {
        match self {
            Self::Borrowed(team) => team.clone(),
            Self::Owned(team) => team,
        }
    }

    pub(crate) fn into_owned(self) -> TeamRef<'static> {
        TeamRef::Owned(self.into_arc())
    }
}

impl Deref for TeamRef<'_> {
    type Target = TeamState;

    #[inline]
    fn deref(&self) -> &TeamState {
        match self {
            Self::Borrowed(team) => team,
            Self::Owned(team) => team,
        }
    }
}

impl TeamState {
    /// Creates a team whose first operation has the epoch `epoch + 1`. `epoch` must be at least the
    /// last epoch that any member has used in the slot.
    pub(crate) fn new(segments: &Segments, slot: usize, members: Vec<usize>, rank: usize, epoch: u32) -> Self {
        let channels = members.iter().map(|_| Channels::default()).collect();
        Self {
            blocks: members.iter().map(|&pe| segments.block(pe, slot)).collect(),
            // The epoch makes the number different from the numbers of earlier teams in the slot.
            id: TeamId(slot as u32 | epoch << 8),
            slot,
            members: members.into(),
            rank,
            issued: AtomicU32::new(epoch),
            completed: AtomicU32::new(epoch),
            entered_by_all: AtomicU32::new(epoch),
            history: AtomicU64::new(0),
            failure: OnceLock::new(),
            channels,
        }
    }

    pub(crate) fn size(&self) -> usize {
        self.members.len()
    }

    pub(crate) fn name(&self) -> TeamName {
        TeamName { id: self.id, size: self.size() }
    }

    /// Returns the epoch of a new operation. The caller must eventually pass the epoch to
    /// [`TeamState::end_epoch`].
    #[inline]
    pub(crate) fn issue_epoch(&self) -> u32 {
        self.issued.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// Returns the epoch of the operation that was issued last.
    pub(crate) fn last_issued(&self) -> u32 {
        self.issued.load(Ordering::Relaxed)
    }

    /// Returns the PEs at fault (see [`Self::at_fault`]) if some PEs have not entered the first
    /// pending operation of the team. The list is empty if no operation is pending.
    fn missing(&self, peers: &Peers) -> Vec<usize> {
        let next = self.completed.load(Ordering::Acquire).wrapping_add(1);
        if next == self.issued.load(Ordering::Acquire).wrapping_add(1) {
            return Vec::new();
        }
        let entered = |block: &TeamBlock| block.words().entry[line_of(next)].has(next);
        let ranks = self.members.iter().copied().zip(&self.blocks);
        let missing: Vec<usize> = ranks.filter(|&(pe, block)| pe != peers.me && !entered(block)).map(|(pe, _)| pe).collect();
        self.at_fault(peers, &missing, true)
    }

    /// Returns the PEs that are at fault if the PEs `missing` have not arrived. If the word of a
    /// missing PE names another PE for which it waits, that other PE is at fault instead. The
    /// function follows the words from PE to PE. If the words lead in a circle, or in a collective
    /// to a PE that has arrived, they do not show which PE is at fault: the result is then the
    /// missing PE.
    fn at_fault(&self, peers: &Peers, missing: &[usize], is_collective: bool) -> Vec<usize> {
        let awaited = |pe: usize| {
            let rank = self.members.iter().position(|&member| member == pe)?;
            let word = self.blocks[rank].words().failure.word.load(Ordering::Acquire);
            // A PE that has ended while it waited is itself at fault.
            let is_stale = word & root_cause::PROVISIONAL != 0 && peers.liveness.gone(pe).is_some();
            root_cause::pe_of(word).map(Pe::index).filter(|_| !is_stale)
        };
        let cause = |pe: usize| {
            let mut seen = vec![peers.me, pe];
            loop {
                let last = seen[seen.len() - 1];
                match awaited(last).filter(|&next| next != last) {
                    Some(next) if seen.contains(&next) => return pe,
                    Some(next) => seen.push(next),
                    None if is_collective && !missing.contains(&last) => return pe,
                    None => return last,
                }
            }
        };
        let mut at_fault: Vec<usize> = missing.iter().copied().map(cause).collect();
        at_fault.sort_unstable();
        at_fault.dedup();
        at_fault
    }

    /// Returns `error`, the failure of a collective or of a send or receive of the team. If `error`
    /// is a timeout, replaces the missing PEs by the PEs at fault. If the team had already failed,
    /// returns `error` unchanged.
    ///
    /// A missing PE may itself wait for another PE, and publishes that PE only if the wait is long.
    /// So this function reads the words of the missing PEs repeatedly, until the words lead to one
    /// PE at fault, but for at most [`REPORT_GRACE`]. Meanwhile, the word of this PE names a
    /// missing PE.
    ///
    /// If only one PE is missing from a collective, that PE is at fault, because all PEs for which
    /// it may wait have arrived. In this case, this function does not search.
    #[cold]
    pub(crate) fn name_cause(&self, peers: &Peers, error: Error, is_collective: bool) -> Error {
        let Error::Timeout(mut timeout) = error else { return error };
        let missing: Vec<usize> = timeout.missing.iter().map(|pe| pe.index()).collect();
        if missing.is_empty() || is_collective && missing.len() == 1 || self.failure().is_some() {
            return Error::Timeout(timeout);
        }
        let word = &self.blocks[self.rank].words().failure.word;
        let own = root_cause::encode(&Error::Timeout(timeout.clone()), peers.me) | root_cause::PROVISIONAL;
        let at_fault_now = || {
            // The word may contain the report of another wait of this PE, until that wait ends.
            let _ = word.compare_exchange(0, own, Ordering::Release, Ordering::Relaxed);
            self.at_fault(peers, &missing, is_collective)
        };
        let start = Instant::now();
        let (mut at_fault, mut since) = (at_fault_now(), start);
        // The PE at fault according to the words so far may itself publish another PE soon.
        let is_known =
            |at_fault: &[usize], since: Instant| at_fault.len() == 1 && at_fault != missing && since.elapsed() >= STABLE;
        while start.elapsed() < REPORT_GRACE && !is_known(&at_fault, since) {
            std::thread::sleep(Duration::from_millis(1));
            let now = at_fault_now();
            if now != at_fault {
                (at_fault, since) = (now, Instant::now());
            }
        }
        timeout.missing = at_fault.into_iter().map(|pe| Pe::new(pe as u32)).collect();
        Error::Timeout(timeout)
    }

    /// Returns whether the operations before `epoch` are complete on this PE.
    #[inline]
    pub(crate) fn may_run(&self, epoch: u32) -> bool {
        self.completed.load(Ordering::Acquire) == epoch.wrapping_sub(1)
    }

    /// Marks the operation with the epoch `epoch` as ended. All earlier operations of the team must
    /// have ended on this PE.
    #[inline]
    pub(crate) fn end_epoch(&self, epoch: u32) {
        self.completed.store(epoch, Ordering::Release);
    }

    /// Returns the epoch of the latest operation that every rank has entered, as far as this rank
    /// knows. Only the running operation of the team calls this function.
    #[inline]
    pub(crate) fn entered_by_all(&self) -> u32 {
        self.entered_by_all.load(Ordering::Relaxed)
    }

    /// Records that every rank has entered the operation of `epoch`.
    #[inline]
    pub(crate) fn set_entered_by_all(&self, epoch: u32) {
        self.entered_by_all.store(epoch, Ordering::Relaxed);
    }

    /// Returns a digest of the small broadcasts (at most 64 bytes) that this rank has called since
    /// its last other operation. Returns 0 if there are none. The digest is a part of the signature
    /// of every call. So ranks that have called different small broadcasts detect the difference in
    /// the next call that waits for all ranks.
    #[inline]
    pub(crate) fn history(&self) -> u64 {
        self.history.load(Ordering::Relaxed)
    }

    /// Sets the digest of this rank's small broadcasts (see [`TeamState::history`]).
    #[inline]
    pub(crate) fn set_history(&self, history: u64) {
        self.history.store(history, Ordering::Relaxed);
    }

    /// Returns the failure of the team on this PE. After a failure, the team runs no collectives on
    /// this PE. Returns `None` if the team has not failed.
    #[inline]
    pub(crate) fn failure(&self) -> Option<&Error> {
        self.failure.get()
    }

    /// Returns the error of a call that cannot run because the team has failed. Returns `None` if
    /// the team has not failed.
    #[inline]
    pub(crate) fn poisoned(&self, call: &'static str) -> Option<Error> {
        self.failure().map(|failure| self.poisoned_by(failure, call))
    }

    #[cold]
    fn poisoned_by(&self, failure: &Error, call: &'static str) -> Error {
        Error::Poisoned { call, team: self.name(), because: Arc::new(failure.clone()) }
    }

    /// Records that the team has failed on this PE, and publishes the failure to the other members.
    /// Later collectives of the team then fail on this PE.
    #[cold]
    pub(crate) fn fail(&self, peers: &Peers, error: &Error) {
        if self.failure.set(error.clone()).is_ok() {
            let word = peers.record_failure(error);
            self.blocks[self.rank].words().failure.word.store(word, Ordering::Release);
        }
    }
}

/// The state of a team slot on this PE.
#[derive(Clone, Debug, Default)]
enum Slot {
    #[default]
    Free,
    /// A call that creates a team has reserved the slot.
    Claimed,
    Team(Arc<TeamState>),
}

/// All teams of a PE.
#[derive(Debug)]
pub(crate) struct Teams {
    world: Arc<TeamState>,
    slots: RwLock<Slots>,
}

#[derive(Debug)]
struct Slots {
    states: Vec<Slot>,
    /// For each slot: the epoch of the last operation that was issued by the previous team in the
    /// slot. 0 if no team in the slot has been destroyed yet.
    last_epochs: Vec<u32>,
}

impl Teams {
    pub(crate) fn new(segments: &Segments, me: usize, max_teams: usize) -> Self {
        let members = (0..segments.layout().n_pes).collect();
        let slots = Slots { states: vec![Slot::Free; max_teams], last_epochs: vec![0; max_teams] };
        Self { world: Arc::new(TeamState::new(segments, 0, members, me, 0)), slots: RwLock::new(slots) }
    }

    fn read(&self) -> RwLockReadGuard<'_, Slots> {
        self.slots.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Slots> {
        self.slots.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn world(&self) -> &Arc<TeamState> {
        &self.world
    }

    /// Returns the team with the number `id`. `peerweave-core` has checked that the team exists,
    /// but another thread may have destroyed it since then. A new team in the same slot has a
    /// different number.
    #[inline]
    pub(crate) fn get(&self, call: &'static str, id: TeamId) -> Result<TeamRef<'_>, Error> {
        if id == TeamId::WORLD {
            return Ok(TeamRef::Borrowed(&self.world));
        }
        match self.read().states.get(slot_of(id)) {
            Some(Slot::Team(team)) if team.id == id => Ok(TeamRef::Owned(team.clone())),
            _ => Err(Misuse { call, kind: MisuseKind::TeamDestroyed }.into()),
        }
    }

    /// Returns the free slots as a word with one bit for each slot. The bit is set if the slot is
    /// free. Also returns a list with one epoch for each slot. This is the last epoch of the
    /// previous team in the slot.
    pub(crate) fn free_slots(&self) -> (u64, Vec<u32>) {
        let slots = self.read();
        let free = slots.states.iter().enumerate().skip(1).filter(|(_, slot)| matches!(slot, Slot::Free));
        (free.fold(0, |bits, (slot, _)| bits | 1 << slot), slots.last_epochs.clone())
    }

    /// Returns the members of the team in each slot, up to the last slot in use. The list of a free
    /// slot is empty.
    pub(crate) fn members_by_slot(&self) -> Vec<Vec<u32>> {
        let members = |team: &TeamState| team.members.iter().map(|&pe| pe as u32).collect::<Vec<_>>();
        let slots = self.read();
        let mut by_slot = vec![members(&self.world)];
        for slot in slots.states.iter().skip(1) {
            by_slot.push(if let Slot::Team(team) = slot { members(team) } else { Vec::new() });
        }
        while by_slot.last().is_some_and(Vec::is_empty) {
            by_slot.pop();
        }
        by_slot
    }

    /// Calls `each` for every team of this PE, starting with the team of all PEs.
    fn for_each(&self, each: impl FnMut(&Arc<TeamState>)) {
        let slots = self.read();
        let made = slots.states.iter().filter_map(|slot| if let Slot::Team(team) = slot { Some(team) } else { None });
        std::iter::once(&self.world).chain(made).for_each(each);
    }

    /// Records that all teams have failed on this PE, and publishes the failure to the members of
    /// these teams.
    pub(crate) fn fail(&self, peers: &Peers, error: &Error) {
        self.for_each(|team| team.fail(peers, error));
    }

    /// Returns the PEs for which pending collectives of this PE wait.
    pub(crate) fn missing(&self, peers: &Peers) -> Vec<Pe> {
        let mut missing = BTreeSet::new();
        self.for_each(|team| missing.extend(team.missing(peers)));
        missing.into_iter().map(|pe| Pe::new(pe as u32)).collect()
    }

    /// Reserves a slot for a team that is being created. Returns `false` if the slot is not free.
    pub(crate) fn claim(&self, slot: usize) -> bool {
        let mut slots = self.write();
        let free = matches!(slots.states[slot], Slot::Free);
        if free {
            slots.states[slot] = Slot::Claimed;
        }
        free
    }

    /// Frees a reserved slot.
    pub(crate) fn unclaim(&self, slot: usize) {
        let mut slots = self.write();
        debug_assert!(matches!(slots.states[slot], Slot::Claimed));
        slots.states[slot] = Slot::Free;
    }

    /// Puts a team into its reserved slot.
    pub(crate) fn insert(&self, team: TeamState) {
        let slot = team.slot;
        let mut slots = self.write();
        debug_assert!(matches!(slots.states[slot], Slot::Claimed));
        slots.states[slot] = Slot::Team(Arc::new(team));
    }

    /// Removes a team and frees its slot.
    pub(crate) fn remove(&self, team: &TeamState) {
        let mut slots = self.write();
        slots.states[team.slot] = Slot::Free;
        slots.last_epochs[team.slot] = team.last_issued();
    }
}

/// Returns the slot of a team. Kernels identify the team by the same number.
pub(crate) fn slot_of(id: TeamId) -> usize {
    (id.0 & 0xff) as usize
}
