//! A flag: a word whose counter only increases, and a wait until the counter has reached an epoch.
//!
//! A flag carries no data. For data see [`crate::sealed`] and [`crate::put_signal`]. Invariant:
//! only one PE writes the word, and each written value is at or after the previous value.

use crate::pause::{self, Pause};
use crate::word::Word;

/// Returns whether `value` is at or after `epoch`: whether `value - epoch`, computed with wrapping,
/// is less than 2⁶³.
#[inline]
pub const fn at_or_after(value: u64, epoch: u64) -> bool {
    value.wrapping_sub(epoch) as i64 >= 0
}

/// Publishes that this PE has reached `epoch`. Only the single writer of the word may call this
/// function.
///
/// # Ordering
/// Release: a PE for which [`reached`] returns `true` for this epoch sees the earlier writes of
/// this PE. On x86, a release does not order non-temporal stores, so fence them before the
/// call.
///
/// # Panics
/// In debug builds, if `epoch` is before the epoch of the previous post.
#[inline]
pub fn post<W: Word + ?Sized>(word: &W, epoch: u64) {
    debug_assert!(at_or_after(epoch, word.load_relaxed()), "flag: the posted epoch decreased, expected the same or a later one");
    word.store_release(epoch);
}

/// Like [`post`], but without release order. The caller has called [`Word::fence_release`] once for
/// several posts.
#[inline]
pub(crate) fn post_fenced<W: Word + ?Sized>(word: &W, epoch: u64) {
    debug_assert!(at_or_after(epoch, word.load_relaxed()), "flag: the posted epoch decreased, expected the same or a later one");
    word.store_relaxed(epoch);
}

/// Returns whether the word has reached `epoch`. Any PE may call this function.
///
/// # Ordering
/// Acquire, if the result is true.
#[inline]
pub fn reached<W: Word + ?Sized>(word: &W, epoch: u64) -> bool {
    at_or_after(word.load_acquire(), epoch)
}

/// Like [`wait`], but orders nothing. After the call, earlier writes of the PE that wrote the word
/// are not necessarily visible.
///
/// # Errors
/// The error that `pause` returns.
#[inline]
pub(crate) fn wait_relaxed<W: Word + ?Sized, P: Pause + ?Sized>(word: &W, epoch: u64, pause: &mut P) -> Result<(), P::Error> {
    pause::until(pause, || at_or_after(word.load_relaxed(), epoch).then_some(()))
}

/// Waits until the word has reached `epoch`. Any number of PEs may wait for the word at the same
/// time.
///
/// # Ordering
/// Acquire, if the wait succeeds.
///
/// # Errors
/// The error that `pause` returns.
#[inline]
pub fn wait<W: Word + ?Sized, P: Pause + ?Sized>(word: &W, epoch: u64, pause: &mut P) -> Result<(), P::Error> {
    pause::until(pause, || reached(word, epoch).then_some(()))
}
