//! Pools of values. One call creates a value, and later calls reuse the value, so a repeated call
//! allocates nothing.
//!
//! A value in a pool is free while only the pool has a handle to it. Operations hold handles to
//! values in use.

use crate::backend::{Kept, KeptPool, Op, Special, VectorCounts};
use std::cell::Cell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of values in a pool, free or in use.
const MOST: usize = 32;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A value is changed completely or dropped, so a panic leaves nothing inconsistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A pool of values in `Arc`s. A value is free if only the pool has a handle to the value. Calls
/// reuse free values, and create a new value only if no value is free.
#[derive(Debug)]
pub(crate) struct Pool<T>(Mutex<Vec<Arc<T>>>);

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Pool<T> {
    /// Returns a value that no other caller uses. If the pool has a free value, passes it to `fill`
    /// and returns it. Otherwise returns a value that `new` creates.
    fn take_or(&self, fill: impl FnOnce(&mut T), new: impl FnOnce() -> T) -> Arc<T> {
        let mut all = lock(&self.0);
        // Values are ordered by the time of their last use. The oldest value is most likely free.
        if let Some(at) = all.iter_mut().position(|value| Arc::get_mut(value).is_some()) {
            let mut value = all.remove(at);
            fill(Arc::get_mut(&mut value).expect("only the pool has a handle to a free value"));
            all.push(Arc::clone(&value));
            return value;
        }
        let value = Arc::new(new());
        if all.len() < MOST {
            all.push(Arc::clone(&value));
        }
        value
    }

    /// Returns an `Arc` that contains `value`. Reuses an `Arc` of the pool that no other caller
    /// uses, if there is one.
    pub(crate) fn share(&self, value: T) -> Arc<T> {
        let value = Cell::new(Some(value));
        let take = || value.take().expect("`take_or` calls only one of the two closures");
        self.take_or(|free| *free = take(), take)
    }
}

impl<T: Default> Pool<T> {
    /// Returns a value that no other caller uses, after a call of `fill` with the value. `fill`
    /// gets a default value, or a free value that still has the contents of its last use.
    pub(crate) fn take(&self, fill: impl Fn(&mut T)) -> Arc<T> {
        let new = || {
            let mut value = T::default();
            fill(&mut value);
            value
        };
        self.take_or(&fill, new)
    }
}

/// The memory range of a send or receive in a group, as a tuple: the number of the memory kind
/// (symmetric, private or device), the start, the end, and whether the operation writes the range.
pub(crate) type Range = (u8, u64, u64, bool);

/// Pools from which the operations of one world take parameters and lists, so that repeated calls
/// allocate no memory.
#[derive(Debug, Default)]
pub(crate) struct Pools {
    /// The counts and offsets of parts, for collectives whose parts have different lengths.
    pub(crate) counts: Pool<VectorCounts>,
    /// Parameters that only some collectives have: the strides of strided all-to-alls, and the
    /// parameters of RMSNorm in all-reduces.
    pub(crate) specials: Pool<Special>,
    /// Lists of operations: one list for each group of operations.
    groups: Pool<Vec<Op>>,
    /// Lists of owners, each of which keeps memory of an operation allocated. Only operations that
    /// may have many owners use these lists: groups, all-reduces with RMSNorm, and launches.
    kept: Arc<KeptPool>,
    ranges: Mutex<Vec<Range>>,
}

impl Pools {
    /// Returns an empty list for the operations of a new group. Reuses a free list of the pool, if
    /// there is one.
    pub(crate) fn members(&self) -> Vec<Op> {
        let mut all = lock(&self.groups.0);
        let mut members = all.iter_mut().find_map(Arc::get_mut).map(std::mem::take).unwrap_or_default();
        members.clear();
        members
    }

    /// Moves `members` into an `Arc` from the pool, and returns the `Arc`. `members` contains the
    /// operations of a group.
    pub(crate) fn group(&self, members: Vec<Op>) -> Arc<Vec<Op>> {
        self.groups.share(members)
    }

    /// Returns an empty list. The caller adds the owners of an operation's memory to the list.
    pub(crate) fn kept(&self) -> Kept {
        KeptPool::take(&self.kept)
    }

    /// Passes an empty list to the closure `with`, and returns the closure's result. All calls
    /// reuse one list, so a repeated call allocates nothing.
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
    fn pool_reuses_a_value_after_the_handle_is_dropped() {
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
