//! Pools of temporary memory. Later operations reuse memory that an earlier operation no longer
//! uses.

use std::fmt;
use std::sync::{Arc, Mutex};

use crate::backend::lock::lock;

/// Minimum length of a piece of temporary memory, in bytes. A pool consists of pieces.
const LEAST: usize = 4096;
/// Maximum total length of the pieces that a pool keeps, in bytes. Pieces that operations use are
/// included.
const MOST: usize = 64 << 20;

/// Returns the length of the temporary memory that an operation gets if it needs `bytes` bytes: the
/// next power of two, at least [`LEAST`].
pub(crate) fn class_of(bytes: usize) -> usize {
    bytes.max(LEAST).checked_next_power_of_two().unwrap_or(bytes)
}

/// A pool of pieces of temporary memory, each with its length. A piece is free while only the pool
/// has a handle of the piece.
pub(crate) struct Pieces<T> {
    pieces: Mutex<Vec<(usize, Arc<T>)>>,
}

impl<T> Default for Pieces<T> {
    fn default() -> Self {
        Self { pieces: Mutex::default() }
    }
}

impl<T> Pieces<T> {
    /// Returns a free piece of memory of at least `bytes` bytes. If no such piece is free, creates
    /// a piece with `new`.
    pub(crate) fn take<E>(&self, bytes: usize, new: impl FnOnce() -> Result<T, E>) -> Result<Arc<T>, E> {
        let class = class_of(bytes);
        let mut pieces = lock(&self.pieces);
        let free = pieces.iter_mut().position(|(of, piece)| *of == class && Arc::get_mut(piece).is_some());
        if let Some(at) = free {
            // Pieces are ordered by the time of their last use, oldest first.
            let piece = pieces.remove(at);
            let taken = Arc::clone(&piece.1);
            pieces.push(piece);
            return Ok(taken);
        }
        let piece = Arc::new(new()?);
        let mut kept: usize = pieces.iter().map(|(class, _)| class).sum();
        while kept + class > MOST
            && let Some(at) = pieces.iter_mut().position(|(_, piece)| Arc::get_mut(piece).is_some())
        {
            kept -= pieces.remove(at).0;
        }
        // The pool keeps a new piece only if it fits beside the pieces that are in use. Another
        // piece is freed with its operation.
        if kept + class <= MOST {
            pieces.push((class, Arc::clone(&piece)));
        }
        Ok(piece)
    }

    /// Removes all memory from the pool. Memory that an operation still uses is freed after the
    /// operation's last use.
    pub(crate) fn clear(&self) {
        lock(&self.pieces).clear();
    }
}

impl<T> fmt::Debug for Pieces<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pieces({})", lock(&self.pieces).len())
    }
}

/// A list that stores its first four values without an allocation, because most operations need at
/// most four values.
#[derive(Debug)]
pub(crate) struct Few<T> {
    few: [Option<T>; 4],
    more: Vec<T>,
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self { few: [const { None }; 4], more: Vec::new() }
    }
}

impl<T> Few<T> {
    pub(crate) fn push(&mut self, value: T) {
        match self.few.iter_mut().find(|free| free.is_none()) {
            Some(free) => *free = Some(value),
            None => self.more.push(value),
        }
    }

    pub(crate) fn into_iter(self) -> impl Iterator<Item = T> {
        self.few.into_iter().flatten().chain(self.more)
    }
}

impl<T> Extend<T> for Few<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, values: I) {
        values.into_iter().for_each(|value| self.push(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(pool: &Pieces<usize>, bytes: usize) -> Arc<usize> {
        pool.take(bytes, || Ok::<_, ()>(class_of(bytes))).expect("the piece is created")
    }

    #[test]
    fn pool_reuses_memory_that_was_dropped() {
        let pool = Pieces::default();
        let (first, second) = (take(&pool, 5000), take(&pool, 8192));
        assert!(!Arc::ptr_eq(&first, &second));
        let at = Arc::as_ptr(&first);
        drop(first);
        assert_eq!(Arc::as_ptr(&take(&pool, 6000)), at);
        assert_ne!(Arc::as_ptr(&take(&pool, 9000)), at);
        assert_eq!(*second, 8192);
    }

    #[test]
    fn pool_keeps_at_most_the_maximum_number_of_bytes() {
        let pool = Pieces::default();
        let held: Vec<Arc<usize>> = (0..5).map(|_| take(&pool, MOST / 4)).collect();
        assert_eq!(lock(&pool.pieces).len(), 4);
        drop(held);
        let small = take(&pool, 1);
        let kept: usize = lock(&pool.pieces).iter().map(|(class, _)| class).sum();
        assert!(kept <= MOST && *small == LEAST, "{kept}");
        assert_eq!(*take(&pool, 2 * MOST), 2 * MOST);
    }
}
