//! Signals that notify a PE of data, and waits for one signal word or several signal words.
//!
//! The caller copies the data before it signals. Invariant: a signal word is changed by a store
//! with release order (set) or by a read-modify-write with release order (add). A waiter reads the
//! word with acquire order. So a PE that observes the signal sees the data.
//!
//! If several PEs signal one word, all of them must add. A set discards earlier additions, and
//! orders only the data of the PE that sets.

use crate::pause::{self, Pause};
use crate::word::{Word, Words};
use peerweave_types::{Compare, SignalOp};

/// Sets a signal word to `value`, or adds `value` to the word. Any PE may call this function.
///
/// # Ordering
/// Release: earlier writes of this PE are visible to a PE that observes the signal. On x86, a
/// release does not order non-temporal stores, so fence them before the call.
#[inline]
pub fn signal<W: Word + ?Sized>(word: &W, value: u64, op: SignalOp) {
    match op {
        SignalOp::Set => word.store_release(value),
        SignalOp::Add => word.add_release(value),
    }
}

/// Reads the word once, and compares it with `value`. `compare` selects the comparison. Returns the
/// value of the word if the comparison is true; `None` otherwise.
///
/// # Ordering
/// Acquire, if the result is not `None`.
#[inline]
pub fn test<W: Word + ?Sized>(word: &W, compare: Compare, value: u64) -> Option<u64> {
    let seen = word.load_acquire();
    compare.holds(seen, value).then_some(seen)
}

/// Compares the word with `value` by `compare`, and waits until the comparison is true. Returns the
/// value of the word.
///
/// # Ordering
/// Acquire: puts that precede the signal are visible after the wait.
///
/// # Errors
/// The error that `pause` returns.
#[inline]
pub fn wait_until<W: Word + ?Sized, P: Pause + ?Sized>(
    word: &W,
    compare: Compare,
    value: u64,
    pause: &mut P,
) -> Result<u64, P::Error> {
    pause::until(pause, || test(word, compare, value))
}

/// A value for [`Several::exclude`]: no word is excluded.
pub const EXCLUDE_NONE: fn(usize) -> bool = |_| false;

/// Several signal words that one call tests, or for which one call waits. Excluded words are
/// ignored. If all words are excluded, every wait returns immediately.
///
/// ```
/// use core::sync::atomic::AtomicU64;
/// use peerweave_device::put_signal::{EXCLUDE_NONE, Several};
/// use peerweave_types::Compare;
///
/// let words = [AtomicU64::new(0), AtomicU64::new(7)];
/// let seven = Several { words: &words, exclude: EXCLUDE_NONE, compare: Compare::Eq, value: 7 };
/// assert_eq!(seven.test_any(), Some(1));
/// assert!(!seven.test_all());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Several<Ws, X> {
    /// The signal words.
    pub words: Ws,
    /// Function that returns whether the word at an index is excluded. The result for an index must
    /// not change during a wait.
    pub exclude: X,
    /// The comparison of each word with `value`.
    pub compare: Compare,
    /// The value with which each word is compared.
    pub value: u64,
}

impl<Ws: Words, X: Fn(usize) -> bool> Several<Ws, X> {
    /// Returns whether the function `exclude` excludes every word. Returns true if there are no
    /// words.
    #[inline]
    pub fn all_excluded(&self) -> bool {
        self.watch().all_excluded()
    }

    /// Reads each word at most once. Returns whether all words that are not excluded satisfy the
    /// comparison.
    ///
    /// # Ordering
    /// Acquire, for each word that satisfies the comparison.
    #[inline]
    pub fn test_all(&self) -> bool {
        self.watch().test_all()
    }

    /// Reads each word at most once. Returns the lowest index of a word that is not excluded and
    /// satisfies the comparison; `None` if there is no such word.
    ///
    /// # Ordering
    /// Acquire, for the word at the returned index.
    #[inline]
    pub fn test_any(&self) -> Option<usize> {
        self.watch().test_any()
    }

    /// Reads every word once, except the excluded words. For each word that satisfies the
    /// comparison, calls `found` with the index and the value of the word. The calls are in
    /// ascending order of indices. Returns the number of calls.
    ///
    /// # Ordering
    /// Acquire, for each word that satisfies the comparison.
    #[inline]
    pub fn test_some(&self, found: impl FnMut(usize, u64)) -> usize {
        self.watch().test_some(found)
    }

    /// Waits for each word that is not excluded, in the order of indices, until that word satisfies
    /// the comparison. The words need not satisfy the comparison at the same time. Returns the
    /// value of the last word; `None` if all words are excluded.
    ///
    /// # Ordering
    /// Acquire, for each word.
    ///
    /// # Errors
    /// The error that `pause` returns.
    #[inline]
    pub fn wait_all<P: Pause + ?Sized>(&self, pause: &mut P) -> Result<Option<u64>, P::Error> {
        self.watch().wait_all(pause)
    }

    /// Waits until a word that is not excluded satisfies the comparison. Returns the lowest index
    /// of such a word. Returns `None` immediately if all words are excluded.
    ///
    /// # Ordering
    /// Acquire, for the word at the returned index.
    ///
    /// # Errors
    /// The error that `pause` returns.
    #[inline]
    pub fn wait_any<P: Pause + ?Sized>(&self, pause: &mut P) -> Result<Option<usize>, P::Error> {
        self.watch().wait_any(pause)
    }

    /// Waits until at least one word that is not excluded satisfies the comparison. Then calls
    /// `found` with the index and the value of each such word. Returns the number of calls. Returns
    /// 0 immediately if all words are excluded.
    ///
    /// # Ordering
    /// Acquire, for each word that satisfies the comparison.
    ///
    /// # Errors
    /// The error that `pause` returns.
    #[inline]
    pub fn wait_some<P: Pause + ?Sized>(&self, pause: &mut P, found: impl FnMut(usize, u64)) -> Result<usize, P::Error> {
        self.watch().wait_some(pause, found)
    }

    #[inline]
    fn watch(&self) -> Watch<impl Fn(usize) -> Option<u64> + '_, &X> {
        Watch {
            len: self.words.len(),
            look: |index| test(self.words.word(index), self.compare, self.value),
            exclude: &self.exclude,
        }
    }
}

/// Several words that one call tests, or for which one call waits. The methods are like those of
/// [`Several`], but the words may have any type, and each word has its own condition.
#[derive(Clone, Copy, Debug)]
pub struct Watch<L, X> {
    /// The number of words.
    pub len: usize,
    /// Function that reads the word at an index by an acquire load. It returns the word's value if
    /// the value satisfies the condition of the word, and `None` otherwise.
    pub look: L,
    /// Function that returns whether the word at an index is excluded, like [`Several::exclude`].
    pub exclude: X,
}

impl<V, L: Fn(usize) -> Option<V>, X: Fn(usize) -> bool> Watch<L, X> {
    /// Returns whether every word is excluded. Returns `true` if there are no words.
    #[inline]
    pub fn all_excluded(&self) -> bool {
        self.included().next().is_none()
    }

    /// Returns whether each word that is not excluded satisfies its condition.
    #[inline]
    pub fn test_all(&self) -> bool {
        self.included().all(|index| (self.look)(index).is_some())
    }

    /// Returns the lowest index of a word that is not excluded and satisfies its condition.
    #[inline]
    pub fn test_any(&self) -> Option<usize> {
        self.included().find(|&index| (self.look)(index).is_some())
    }

    /// Searches the words from `start` to the end, and then from 0. Returns the index of the first
    /// word that satisfies its condition; `None` if there is no such word. Excluded words
    /// ([`Watch::exclude`]) are not searched.
    ///
    /// If a caller repeats the search, `start` should be the last returned index plus 1. Otherwise,
    /// a word that always satisfies its condition would hide the words after it.
    #[inline]
    pub fn test_any_from(&self, start: usize) -> Option<usize> {
        let mut index = if start < self.len { start } else { 0 };
        for _ in 0..self.len {
            if !(self.exclude)(index) && (self.look)(index).is_some() {
                return Some(index);
            }
            index = if index + 1 == self.len { 0 } else { index + 1 };
        }
        None
    }

    /// Calls `found` with the index and the value of each word that is not excluded and satisfies
    /// its condition. Returns the number of calls.
    #[inline]
    pub fn test_some(&self, mut found: impl FnMut(usize, V)) -> usize {
        let mut count = 0;
        for index in self.included() {
            if let Some(seen) = (self.look)(index) {
                found(index, seen);
                count += 1;
            }
        }
        count
    }

    /// Waits for each word that is not excluded, in the order of indices, until that word satisfies
    /// its condition. Returns the value of the last word; `None` if all words are excluded.
    ///
    /// # Errors
    /// The error that `pause` returns.
    #[inline]
    pub fn wait_all<P: Pause + ?Sized>(&self, pause: &mut P) -> Result<Option<V>, P::Error> {
        let mut last = None;
        for index in self.included() {
            last = Some(pause::until(pause, || (self.look)(index))?);
        }
        Ok(last)
    }

    /// Waits until a word that is not excluded satisfies its condition. Returns the lowest index of
    /// such a word. Returns `None` immediately if all words are excluded.
    ///
    /// # Errors
    /// The error that `pause` returns.
    #[inline]
    pub fn wait_any<P: Pause + ?Sized>(&self, pause: &mut P) -> Result<Option<usize>, P::Error> {
        self.wait_any_from(0, pause)
    }

    /// Like [`Several::wait_any`], but each poll searches the words from `start` to the end, and
    /// then from 0. Returns the first index found.
    ///
    /// # Errors
    /// The error that `pause` returns.
    #[inline]
    pub fn wait_any_from<P: Pause + ?Sized>(&self, start: usize, pause: &mut P) -> Result<Option<usize>, P::Error> {
        if self.all_excluded() {
            return Ok(None);
        }
        pause::until(pause, || self.test_any_from(start)).map(Some)
    }

    /// Waits until at least one word that is not excluded satisfies its condition. Then calls
    /// `found` with the index and the value of each such word. Returns the number of calls.
    ///
    /// # Errors
    /// The error that `pause` returns.
    #[inline]
    pub fn wait_some<P: Pause + ?Sized>(&self, pause: &mut P, mut found: impl FnMut(usize, V)) -> Result<usize, P::Error> {
        if self.all_excluded() {
            return Ok(0);
        }
        pause::until(pause, || Some(self.test_some(&mut found)).filter(|&count| count > 0))
    }

    #[inline]
    fn included(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.len).filter(|&index| !(self.exclude)(index))
    }
}
