//! Pools of values that calls create and later calls reuse, so that a repeated call allocates
//! nothing.
//!
//! A value in a pool is free while only the pool has a handle to it. Operations hold handles to
//! values in use.

use crate::backend::{Kept, KeptPool, Op, Special, VectorCounts};
use std::cell::Cell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of values that a pool keeps.
const MOST: usize = 32;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A value is changed completely or dropped, so a panic leaves nothing inconsistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A pool of shared values. A free value is filled again and reused.
#[derive(Debug)]
pub(crate) struct Pool<T>(Mutex<Vec<Arc<T>>>);

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Pool<T> {
    /// Returns a value with no other user: a free value that `fill` has changed, or a new value.
    fn take_or(&self, fill: impl FnOnce(&mut T), new: impl FnOnce() -> T) -> Arc<T> {
        let mut all = lock(&self.0);
        // Values are ordered by the time of their last use. The oldest value is most likely free.
        if let Some(at) = all.iter_mut().position(|value| Arc::get_mut(value).is_some()) {
            let mut value = all.remove(at);
            fill(Arc::get_mut(&mut value).expect("a free value has no other handle"));
            all.push(Arc::clone(&value));
            return value;
        }
        let value = Arc::new(new());
        if all.len() < MOST {
            all.push(Arc::clone(&value));
        }
        value
    }

    /// Returns `value` in an `Arc`. If the pool has a free `Arc`, the call reuses it.
    pub(crate) fn share(&self, value: T) -> Arc<T> {
        let value = Cell::new(Some(value));
        let take = || value.take().expect("a value is stored once");
        self.take_or(|free| *free = take(), take)
    }
}

impl<T: Default> Pool<T> {
    /// Returns a value with no other user, after `fill` has changed it. `fill` gets the default
    /// value, or the content that an earlier call stored.
    pub(crate) fn take(&self, fill: impl Fn(&mut T)) -> Arc<T> {
        let new = || {
            let mut value = T::default();
            fill(&mut value);
            value
        };
        self.take_or(&fill, new)
    }
}

/// The memory of a send or receive in a group: kind of memory, start, end, and whether the
/// operation writes it.
pub(crate) type Range = (u8, u64, u64, bool);

/// The pools of a world.
#[derive(Debug, Default)]
pub(crate) struct Pools {
    /// Counts of collectives with parts of different lengths.
    pub(crate) counts: Pool<VectorCounts>,
    /// Distances of strided all-to-alls, and parameters of norms.
    pub(crate) specials: Pool<Special>,
    /// Members of groups.
    groups: Pool<Vec<Op>>,
    /// Owners of the memory of groups and norms.
    kept: Arc<KeptPool>,
    ranges: Mutex<Vec<Range>>,
}

impl Pools {
    /// Returns an empty list for the members of a group.
    pub(crate) fn members(&self) -> Vec<Op> {
        let mut all = lock(&self.groups.0);
        let mut members = all.iter_mut().find_map(Arc::get_mut).map(std::mem::take).unwrap_or_default();
        members.clear();
        members
    }

    /// Returns the members of a group in an `Arc` from the pool.
    pub(crate) fn group(&self, members: Vec<Op>) -> Arc<Vec<Op>> {
        self.groups.share(members)
    }

    /// Returns an empty list of owners.
    pub(crate) fn kept(&self) -> Kept {
        KeptPool::take(&self.kept)
    }

    /// Calls `with` with an empty list, whose memory is reused.
    pub(crate) fn with_ranges<R>(&self, with: impl FnOnce(&mut Vec<Range>) -> R) -> R {
        let mut ranges = lock(&self.ranges);
        ranges.clear();
        with(&mut ranges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pooled_value_is_reused_once_its_handle_is_dropped() {
        let pool = Pool::<Vec<u8>>::default();
        let first = pool.take(|list| list.push(1));
        let second = pool.take(|list| list.push(2));
        assert_eq!((&first[..], &second[..]), (&[1][..], &[2][..]));
        let at = Arc::as_ptr(&first);
        drop(first);
        let third = pool.take(|list| list.push(3));
        assert_eq!((Arc::as_ptr(&third), &third[..]), (at, &[1, 3][..]));
    }

    #[test]
    fn pool_keeps_a_limited_number_of_values() {
        let pool = Pool::<u8>::default();
        let held: Vec<_> = (0..2 * MOST).map(|_| pool.take(|value| *value += 1)).collect();
        assert_eq!(lock(&pool.0).len(), MOST);
        assert!(held.iter().all(|value| **value == 1));
    }
}
