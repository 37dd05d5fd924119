//! The teams of which this PE is a member, by handle: predefined teams and created teams.
//!
//! Module `resources` creates and destroys teams. Invariant: a handle is never used again, so that
//! the use of a destroyed team is detected.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::memory::{Memory, Place};
use crate::call::{self, undefined};
use crate::peers::Team;
use crate::peers::control::FIRST_MADE;

/// The teams of this PE.
pub(crate) struct Teams {
    by_handle: Mutex<BTreeMap<i32, Arc<Team>>>,
    next_handle: AtomicI32,
    /// Maximum number of teams, including the predefined ones.
    pub(crate) max: usize,
}

impl Teams {
    /// Creates the predefined teams of a job; `world` is the team of all PEs.
    pub(crate) fn new(world: &Arc<Team>, memory: &Memory, max: usize) -> Self {
        let all = || world.members.clone();
        let own = || vec![world.members[world.me]];
        let reaches = |pe: &i32| memory.given(*pe, Place { region: 0, offset: 0 }).is_some();
        let reached = || if world.members.iter().all(reaches) { all() } else { own() };
        // NVSHMEM implements operations of the world with the predefined teams and their counters.
        // All predefined teams therefore share one count of pending collectives.
        let team = |handle: i32, members| {
            let mut team = Team::new(world.control, handle, handle as usize, members, world.members[world.me]);
            team.flights = Arc::clone(&world.flights);
            (handle, Arc::new(team))
        };
        // SHARED, NODE, SAME_MYPE_NODE, SAME_GPU, GPU_LEADERS
        let kinds = [(1, reached()), (2, all()), (3, own()), (4, own()), (5, all())];
        let mut teams: BTreeMap<_, _> = kinds.into_iter().map(|(handle, members)| team(handle, members)).collect();
        teams.insert(0, Arc::clone(world));
        if memory.multicast != 0 {
            teams.extend([team(6, all())]);
        }
        Self { by_handle: Mutex::new(teams), next_handle: AtomicI32::new(FIRST_MADE as i32), max }
    }

    /// Locks the teams.
    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeMap<i32, Arc<Team>>> {
        self.by_handle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the team with this handle; ends the process if there is no such team.
    pub(crate) fn of(&self, handle: i32) -> Arc<Team> {
        if let Some(team) = self.lock().get(&handle) {
            return Arc::clone(team);
        }
        let was = (FIRST_MADE as i32..self.next_handle.load(Ordering::Relaxed)).contains(&handle);
        let why = if was { "was destroyed" } else { "is not a team of this PE" };
        undefined(&format!("{}: team {handle} {why}", call::function()))
    }

    /// Adds a team, and returns its new handle.
    pub(crate) fn add(&self, team: impl FnOnce(i32) -> Team) -> i32 {
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed);
        self.lock().insert(handle, Arc::new(team(handle)));
        handle
    }

    /// Returns the number of created teams that were not destroyed.
    pub(crate) fn made(&self) -> usize {
        self.lock().keys().filter(|handle| **handle >= FIRST_MADE as i32).count()
    }

    /// Returns whether the maximum number of teams is reached.
    pub(crate) fn is_full(&self) -> bool {
        self.made() + FIRST_MADE > self.max
    }
}
