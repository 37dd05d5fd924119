//! The teams of a PE: who is in them, and whose turn it is.
//!
//! A team occupies one slot of control words in the segments of all its members. Operations of a team run one at a time on each PE, in the
//! order in which they were issued, whatever stream they were issued on: they share the team's words.

use crate::shared::Shared;
use peerweave_core::backend::TeamId;
use peerweave_core::{Error, TeamName};
use peerweave_types::Pe;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};

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
            id: TeamId(slot as u32),
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

/// All teams of a PE.
#[derive(Debug)]
pub(crate) struct Teams {
    world: Arc<TeamState>,
    /// Epoch that the last team of each slot ended with.
    ended: Mutex<Vec<u32>>,
    others: RwLock<Vec<Option<Arc<TeamState>>>>,
}

impl Teams {
    pub(crate) fn new(n_pes: usize, me: usize, max_teams: usize) -> Self {
        Self {
            world: Arc::new(TeamState::new(0, (0..n_pes).collect(), me, 0)),
            ended: Mutex::new(vec![0; max_teams]),
            others: RwLock::new(vec![None; max_teams]),
        }
    }

    pub(crate) fn world(&self) -> &TeamState {
        &self.world
    }

    /// The team of a number that the core holds as live.
    #[inline]
    pub(crate) fn with<R>(&self, id: TeamId, f: impl FnOnce(&TeamState) -> R) -> R {
        if id == TeamId::WORLD { f(&self.world) } else { f(&self.get(id)) }
    }

    /// The same, to be kept.
    pub(crate) fn get(&self, id: TeamId) -> Arc<TeamState> {
        if id == TeamId::WORLD {
            return self.world.clone();
        }
        let others = self.others.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        others.get(id.0 as usize).cloned().flatten().expect("peerweave-core bug: a team that does not exist")
    }

    /// One bit per free slot.
    pub(crate) fn free_slots(&self) -> u64 {
        let others = self.others.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        others.iter().enumerate().skip(1).filter(|(_, team)| team.is_none()).fold(0, |bits, (slot, _)| bits | 1 << slot)
    }

    /// PEs that operations under way are waiting for.
    pub(crate) fn missing(&self, shared: &Shared) -> Vec<Pe> {
        let others = self.others.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let teams = std::iter::once(&self.world).chain(others.iter().flatten());
        let missing: BTreeSet<usize> = teams.flat_map(|team| team.missing(shared)).collect();
        missing.into_iter().map(|pe| Pe::new(pe as u32)).collect()
    }

    pub(crate) fn insert(&self, team: TeamState) {
        let mut others = self.others.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        let slot = team.slot;
        others[slot] = Some(Arc::new(team));
    }

    /// Forgets a team; its slot is free.
    pub(crate) fn remove(&self, id: TeamId) {
        let mut others = self.others.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(team) = others[id.0 as usize].take() {
            self.ended.lock().unwrap_or_else(|poisoned| poisoned.into_inner())[team.slot] = team.last_issued();
        }
    }

    /// What each slot's last team ended with.
    pub(crate) fn ended(&self) -> Vec<u32> {
        self.ended.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }
}
