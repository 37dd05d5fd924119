//! The teams of a PE: who is in them, and whose turn it is.
//!
//! A team occupies one slot of control words in the segments of all its members. Operations of a team run one at a time on each PE, in the
//! order in which they were issued, whatever stream they were issued on: they share the team's words.

use crate::ops::shared::Shared;
use peerweave_core::backend::TeamId;
use peerweave_core::{Error, Misuse, MisuseKind, TeamName};
use peerweave_types::Pe;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// One team, as one of its members sees it.
#[derive(Debug)]
pub(crate) struct TeamState {
    pub(crate) id: TeamId,
    pub(crate) slot: usize,
    /// PE of each rank.
    pub(crate) members: Box<[usize]>,
    /// This PE's rank.
    pub(crate) rank: usize,
    /// Epoch of the operation that was issued last.
    issued: AtomicU32,
    /// Epoch of the operation that was completed last.
    completed: AtomicU32,
    /// Why this team runs no more collectives.
    broken: OnceLock<Error>,
    pub(crate) lanes: Box<[Lanes]>,
}

/// The two directions between this rank and another.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    pub(crate) send: Lane,
    pub(crate) receive: Lane,
}

/// One direction: messages are numbered, and operations take turns.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    pub(crate) issued: AtomicU64,
    pub(crate) turn: AtomicU64,
    /// Slots of the mailbox used so far; touched only by the operation whose turn it is.
    pub(crate) used: AtomicU64,
}

impl TeamState {
    /// Operations count from `epoch` on: no less than whatever any member counted in this slot before.
    pub(crate) fn new(slot: usize, members: Vec<usize>, rank: usize, epoch: u32) -> Self {
        let lanes = members.iter().map(|_| Lanes::default()).collect();
        Self {
            // The slot, and in which turn of its use: a number is not used again soon.
            id: TeamId(slot as u32 | epoch << 8),
            slot,
            members: members.into(),
            rank,
            issued: AtomicU32::new(epoch),
            completed: AtomicU32::new(epoch),
            broken: OnceLock::new(),
            lanes,
        }
    }

    pub(crate) fn size(&self) -> usize {
        self.members.len()
    }

    pub(crate) fn name(&self) -> TeamName {
        TeamName { id: self.id, size: self.size() }
    }

    /// The epoch of a new operation. Every one must be passed to [`TeamState::end`] in the end.
    #[inline]
    pub(crate) fn begin(&self) -> u32 {
        self.issued.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// The epoch of the operation that was issued last.
    pub(crate) fn last_issued(&self) -> u32 {
        self.issued.load(Ordering::Relaxed)
    }

    /// PEs that have not entered the operation that is next to complete; none where nothing is under way.
    fn missing(&self, shared: &Shared) -> Vec<usize> {
        let next = self.completed.load(Ordering::Acquire).wrapping_add(1);
        if next == self.issued.load(Ordering::Acquire).wrapping_add(1) {
            return Vec::new();
        }
        let entered = |pe: usize| shared.segments.team_words(pe, self.slot).entry[(next & 1) as usize].has(next);
        self.members.iter().copied().filter(|&pe| pe != shared.me && !entered(pe)).collect()
    }

    /// Whether the operations before `epoch` are complete on this PE.
    #[inline]
    pub(crate) fn is_turn(&self, epoch: u32) -> bool {
        self.completed.load(Ordering::Acquire) == epoch.wrapping_sub(1)
    }

    /// The operation of `epoch`, whose turn it was, is over.
    #[inline]
    pub(crate) fn end(&self, epoch: u32) {
        self.completed.store(epoch, Ordering::Release);
    }

    /// Why the team runs no more collectives, if it does not.
    #[inline]
    pub(crate) fn broken(&self) -> Option<&Error> {
        self.broken.get()
    }

    /// After this no collective of the team runs on this PE, and the others are told.
    #[cold]
    pub(crate) fn give_up(&self, shared: &Shared, error: &Error) {
        if self.broken.set(error.clone()).is_ok() {
            let word = shared.leave_word(error);
            shared.segments.team_words(self.members[self.rank], self.slot).broken.word.store(word, Ordering::Release);
        }
    }
}

/// What a slot is used for.
#[derive(Clone, Debug, Default)]
enum Slot {
    #[default]
    Free,
    /// A split under way will put a team here.
    Claimed,
    Team(Arc<TeamState>),
}

/// All teams of a PE.
#[derive(Debug)]
pub(crate) struct Teams {
    world: Arc<TeamState>,
    others: RwLock<Others>,
}

#[derive(Debug)]
struct Others {
    slots: Vec<Slot>,
    /// Epoch that the last team of each slot ended with.
    ended: Vec<u32>,
}

impl Teams {
    pub(crate) fn new(n_pes: usize, me: usize, max_teams: usize) -> Self {
        let others = Others { slots: vec![Slot::Free; max_teams], ended: vec![0; max_teams] };
        Self { world: Arc::new(TeamState::new(0, (0..n_pes).collect(), me, 0)), others: RwLock::new(others) }
    }

    fn read(&self) -> RwLockReadGuard<'_, Others> {
        self.others.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Others> {
        self.others.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn world(&self) -> &Arc<TeamState> {
        &self.world
    }

    /// The team of a number, for a short while.
    #[inline]
    pub(crate) fn with<R>(&self, call: &'static str, id: TeamId, f: impl FnOnce(&TeamState) -> R) -> Result<R, Error> {
        if id == TeamId::WORLD { Ok(f(&self.world)) } else { self.get(call, id).map(|team| f(&team)) }
    }

    /// The team of a number. The core has seen it live; but another thread may have destroyed it since, and made another one in its slot, which has
    /// another number.
    pub(crate) fn get(&self, call: &'static str, id: TeamId) -> Result<Arc<TeamState>, Error> {
        if id == TeamId::WORLD {
            return Ok(self.world.clone());
        }
        match self.read().slots.get(slot_of(id)) {
            Some(Slot::Team(team)) if team.id == id => Ok(team.clone()),
            _ => Err(Misuse { call, kind: MisuseKind::TeamDestroyed }.into()),
        }
    }

    /// One bit per free slot, and what each slot's last team ended with.
    pub(crate) fn free_slots(&self) -> (u64, Vec<u32>) {
        let others = self.read();
        let free = others.slots.iter().enumerate().skip(1).filter(|(_, slot)| matches!(slot, Slot::Free));
        (free.fold(0, |bits, (slot, _)| bits | 1 << slot), others.ended.clone())
    }

    /// The members of each team, by slot, up to the last slot in use; none for a free slot.
    pub(crate) fn members_by_slot(&self) -> Vec<Vec<u32>> {
        let members = |team: &TeamState| team.members.iter().map(|&pe| pe as u32).collect::<Vec<_>>();
        let others = self.read();
        let mut by_slot = vec![members(&self.world)];
        for slot in others.slots.iter().skip(1) {
            by_slot.push(if let Slot::Team(team) = slot { members(team) } else { Vec::new() });
        }
        while by_slot.last().is_some_and(Vec::is_empty) {
            by_slot.pop();
        }
        by_slot
    }

    /// PEs that operations under way are waiting for.
    pub(crate) fn missing(&self, shared: &Shared) -> Vec<Pe> {
        let others = self.read();
        let made = others.slots.iter().filter_map(|slot| if let Slot::Team(team) = slot { Some(team) } else { None });
        let teams = std::iter::once(&self.world).chain(made);
        let missing: BTreeSet<usize> = teams.flat_map(|team| team.missing(shared)).collect();
        missing.into_iter().map(|pe| Pe::new(pe as u32)).collect()
    }

    /// Takes a free slot for a team that is being made; `false` where it is not free any more.
    pub(crate) fn claim(&self, slot: usize) -> bool {
        let mut others = self.write();
        let free = matches!(others.slots[slot], Slot::Free);
        if free {
            others.slots[slot] = Slot::Claimed;
        }
        free
    }

    /// Gives a claimed slot back.
    pub(crate) fn disclaim(&self, slot: usize) {
        let mut others = self.write();
        debug_assert!(matches!(others.slots[slot], Slot::Claimed));
        others.slots[slot] = Slot::Free;
    }

    /// Puts a team into the slot that was claimed for it.
    pub(crate) fn insert(&self, team: TeamState) {
        let slot = team.slot;
        let mut others = self.write();
        debug_assert!(matches!(others.slots[slot], Slot::Claimed));
        others.slots[slot] = Slot::Team(Arc::new(team));
    }

    /// Forgets a team; its slot is free.
    pub(crate) fn remove(&self, team: &TeamState) {
        let mut others = self.write();
        others.slots[team.slot] = Slot::Free;
        others.ended[team.slot] = team.last_issued();
    }
}

/// The slot of a team: its number in the contexts of kernels too.
pub(crate) fn slot_of(id: TeamId) -> usize {
    (id.0 & 0xff) as usize
}
