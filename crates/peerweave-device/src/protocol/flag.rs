//! A counter word that only increases, and a wait until it has reached an epoch.
//!
//! A flag carries no data: see [`crate::sealed`] and [`crate::put_signal`]. Invariant: one PE
//! writes the word, and no written value is before the previous one.

use crate::pause::{self, Pause};
use crate::word::Word;

/// Returns whether `value` is at or after `epoch`: the distance from `epoch` is less than 2⁶³, so
/// that both may wrap.
#[inline]
pub const fn at_or_after(value: u64, epoch: u64) -> bool {
    value.wrapping_sub(epoch) as i64 >= 0
}

/// Publishes that this PE has reached `epoch`. Only the single writer of the word calls it.
///
/// # Ordering
/// Release: earlier writes of this PE are visible to a PE for which the word has [`reached`] the
/// epoch. On x86, a release does not order non-temporal stores: fence them first.
///
/// # Panics
/// In debug builds, if the epoch is before the last posted one.
#[inline]
pub fn post<W: Word + ?Sized>(word: &W, epoch: u64) {
    debug_assert!(at_or_after(epoch, word.load_relaxed()), "a flag never decreases");
    word.store_release(epoch);
}

/// Like [`post`], after a [`Word::fence_release`] that releases several posts together.
#[inline]
pub(crate) fn post_fenced<W: Word + ?Sized>(word: &W, epoch: u64) {
    debug_assert!(at_or_after(epoch, word.load_relaxed()), "a flag never decreases");
    word.store_relaxed(epoch);
}

/// Returns whether the word has reached `epoch`. Any PE may call it.
///
/// # Ordering
/// Acquire, if the result is true.
#[inline]
pub fn reached<W: Word + ?Sized>(word: &W, epoch: u64) -> bool {
    at_or_after(word.load_acquire(), epoch)
}

/// Like [`wait`], without ordering: earlier writes of the word's writer may not be visible.
///
/// # Errors
/// The error of the pause.
#[inline]
pub(crate) fn wait_relaxed<W: Word + ?Sized, P: Pause + ?Sized>(word: &W, epoch: u64, pause: &mut P) -> Result<(), P::Error> {
    pause::until(pause, || at_or_after(word.load_relaxed(), epoch).then_some(()))
}

/// Waits until the word has reached `epoch`. Any number of PEs may wait at once.
///
/// # Ordering
/// Acquire, if the wait succeeds.
///
/// # Errors
/// The error of the pause.
#[inline]
pub fn wait<W: Word + ?Sized, P: Pause + ?Sized>(word: &W, epoch: u64, pause: &mut P) -> Result<(), P::Error> {
    pause::until(pause, || reached(word, epoch).then_some(()))
}
