//! Data, then a signal; and waits for one signal word or several.
//!
//! How data is copied is not decided here: the caller brings the copy. Invariant: a signal is changed by a release (set) or by a
//! read-modify-write that releases (add), and is awaited by an acquire, so that whoever sees the signal sees the
//! data.
//!
//! Several PEs may signal one word: all must then add. A set hides what was added before, and its sender's data alone is ordered
//! by it.

use crate::pause::{self, Pause};
use crate::word::{Word, Words};
use peerweave_types::{Compare, SignalOp};

/// Changes a signal word. Any PE may.
///
/// # Ordering
/// Release: all that this PE wrote before is visible to whoever waits for the signal and sees it. On x86, non-temporal stores are
/// not ordered by a release: fence them first.
#[inline]
pub fn signal<W: Word + ?Sized>(word: &W, value: u64, op: SignalOp) {
    match op {
        SignalOp::Set => word.store_release(value),
        SignalOp::Add => word.add_release(value),
    }
}

/// Runs the copy, then changes the signal word. The copy must have issued all of its stores from this thread when it returns, and
/// have fenced the non-temporal ones.
///
/// # Ordering
/// Whoever waits for the signal and sees it, sees the copied data and all that this PE wrote before.
#[inline]
pub fn put_with_signal<W: Word + ?Sized>(copy: impl FnOnce(), word: &W, value: u64, op: SignalOp) {
    copy();
    signal(word, value, op);
}

/// The word, if it compares so with `value`; looks once.
///
/// # Ordering
/// Acquire, where there is an answer.
#[inline]
pub fn test<W: Word + ?Sized>(word: &W, compare: Compare, value: u64) -> Option<u64> {
    let seen = word.load_acquire();
    compare.holds(seen, value).then_some(seen)
}

/// Waits until the word compares so with `value`, and returns it as it was seen then.
///
/// # Ordering
/// Acquire: what was put before the signal is visible after this.
///
/// # Errors
/// The one of the pause.
#[inline]
pub fn wait_until<W: Word + ?Sized, P: Pause + ?Sized>(
    word: &W,
    compare: Compare,
    value: u64,
    pause: &mut P,
) -> Result<u64, P::Error> {
    pause::until(pause, || test(word, compare, value))
}

/// Excludes no word: for [`Several::exclude`].
pub const EXCLUDE_NONE: fn(usize) -> bool = |_| false;

/// Several signal words that are awaited together. Words that are excluded are not looked at and count for nothing; where all
/// are, every wait is over at once.
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
    /// The words.
    pub words: Ws,
    /// Whether the word with this index is left out. Must answer the same for the same index throughout a wait.
    pub exclude: X,
    /// How a word is compared.
    pub compare: Compare,
    /// With what.
    pub value: u64,
}

impl<Ws: Words, X: Fn(usize) -> bool> Several<Ws, X> {
    /// Whether no word is left to look at.
    #[inline]
    pub fn all_excluded(&self) -> bool {
        self.watch().all_excluded()
    }

    /// Whether all words satisfy the comparison; looks once at each.
    ///
    /// # Ordering
    /// Acquire, for each word that satisfies.
    #[inline]
    pub fn test_all(&self) -> bool {
        self.watch().test_all()
    }

    /// The lowest index whose word satisfies the comparison; looks once. `None` where none does or all are excluded.
    ///
    /// # Ordering
    /// Acquire, for the word that satisfies.
    #[inline]
    pub fn test_any(&self) -> Option<usize> {
        self.watch().test_any()
    }

    /// Hands every index whose word satisfies the comparison to `found`, ascending, with the word as it was seen; looks once at
    /// each. Returns how many.
    ///
    /// # Ordering
    /// Acquire, for each word that satisfies.
    #[inline]
    pub fn test_some(&self, found: impl FnMut(usize, u64)) -> usize {
        self.watch().test_some(found)
    }

    /// Waits until every word has been seen to satisfy the comparison, one after the other: not all need to at one moment.
    /// Returns the last word as it was seen, `None` where all are excluded.
    ///
    /// # Ordering
    /// Acquire, for each word.
    ///
    /// # Errors
    /// The one of the pause.
    #[inline]
    pub fn wait_all<P: Pause + ?Sized>(&self, pause: &mut P) -> Result<Option<u64>, P::Error> {
        self.watch().wait_all(pause)
    }

    /// Waits until a word satisfies the comparison, and returns its index: the lowest, where one look finds several. `None`, at
    /// once, where all are excluded.
    ///
    /// # Ordering
    /// Acquire, for the word that satisfies.
    ///
    /// # Errors
    /// The one of the pause.
    #[inline]
    pub fn wait_any<P: Pause + ?Sized>(&self, pause: &mut P) -> Result<Option<usize>, P::Error> {
        self.watch().wait_any(pause)
    }

    /// Waits until at least one word satisfies the comparison, and hands all that do to `found`, as [`Several::test_some`].
    /// Returns how many; 0, at once, where all are excluded.
    ///
    /// # Ordering
    /// Acquire, for each word that satisfies.
    ///
    /// # Errors
    /// The one of the pause.
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

/// The loops of [`Several`], over whatever can be looked at: words of any type, with a value for each. `look` gives a word that
/// satisfies, by an acquiring load.
pub(crate) struct Watch<L, X> {
    pub(crate) len: usize,
    pub(crate) look: L,
    pub(crate) exclude: X,
}

impl<V, L: Fn(usize) -> Option<V>, X: Fn(usize) -> bool> Watch<L, X> {
    #[inline]
    pub(crate) fn all_excluded(&self) -> bool {
        self.included().next().is_none()
    }

    #[inline]
    pub(crate) fn test_all(&self) -> bool {
        self.included().all(|index| (self.look)(index).is_some())
    }

    #[inline]
    pub(crate) fn test_any(&self) -> Option<usize> {
        self.included().find(|&index| (self.look)(index).is_some())
    }

    #[inline]
    pub(crate) fn test_some(&self, mut found: impl FnMut(usize, V)) -> usize {
        let mut count = 0;
        for index in self.included() {
            if let Some(seen) = (self.look)(index) {
                found(index, seen);
                count += 1;
            }
        }
        count
    }

    #[inline]
    pub(crate) fn wait_all<P: Pause + ?Sized>(&self, pause: &mut P) -> Result<Option<V>, P::Error> {
        let mut last = None;
        for index in self.included() {
            last = Some(pause::until(pause, || (self.look)(index))?);
        }
        Ok(last)
    }

    #[inline]
    pub(crate) fn wait_any<P: Pause + ?Sized>(&self, pause: &mut P) -> Result<Option<usize>, P::Error> {
        if self.all_excluded() {
            return Ok(None);
        }
        pause::until(pause, || self.test_any()).map(Some)
    }

    #[inline]
    pub(crate) fn wait_some<P: Pause + ?Sized>(&self, pause: &mut P, mut found: impl FnMut(usize, V)) -> Result<usize, P::Error> {
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
