//! A line of words, each of which contains 32 bits of data and the 32-bit epoch of that data. So a
//! reader can check each word separately.
//!
//! The words of a line may be stored in any order, and the line has no sequence word. So one vector
//! store may write the whole line. The store need not be atomic for the line, but only for each
//! aligned word.
//!
//! Reuse rule: a rank has `N` lines, and publishes epoch `k` in line `k % N`. Every rank publishes
//! in every epoch. A rank may publish epoch `k` when two conditions are true:
//! - The rank has read all data of epoch `k - 1` that it needs.
//! - [`try_read`] or [`has_reached`] has shown that every rank has published epoch `k - N + 1`.
//!
//! Line `k % N` contains epoch `k - N` until epoch `k` overwrites this epoch. At that time, every
//! rank has published epoch `k - N + 1`, and therefore has read the data of epoch `k - N` that it
//! needs.
//!
//! Invariant: a reader accepts a line only if all words of the line have the expected epoch. Zeroed
//! memory is a line of epoch 0, and the first published epoch is 1.

use crate::word::Word;

/// Returns the word with `epoch` in its high half and `data` in its low half.
#[inline]
pub const fn seal(data: u32, epoch: u32) -> u64 {
    (epoch as u64) << 32 | data as u64
}

/// Returns the words that publish `data` for `epoch`. Use this function instead of [`publish`] to
/// store the words by vector instructions, for example. Call [`Word::fence_release`] before storing
/// the words.
#[inline]
pub fn seal_line<const N: usize>(data: &[u32; N], epoch: u32) -> [u64; N] {
    data.map(|data| seal(data, epoch))
}

/// Publishes data in all words of a line. Only the single writer of the line calls this function,
/// in the order of epochs. Each call must satisfy the reuse rule of this module.
///
/// # Ordering
/// Release: earlier writes of this PE are visible to a PE that reads the line.
///
/// # Panics
/// If `data` and `line` have different lengths.
#[inline]
pub fn publish<W: Word>(line: &[W], epoch: u32, data: &[u32]) {
    assert_eq!(line.len(), data.len(), "publish: the line and the data have different lengths");
    W::fence_release();
    for (word, data) in line.iter().zip(data) {
        word.store_relaxed(seal(*data, epoch));
    }
}

/// Reads the data of an epoch into `into`. Returns `false` if the line does not contain this epoch;
/// in this case the content of `into` is unspecified. A PE may call this function for an epoch only
/// until the PE itself publishes the next epoch.
///
/// # Ordering
/// Acquire, if the result is `true`.
///
/// # Panics
/// If `into` and `line` have different lengths.
#[inline]
pub fn try_read<W: Word>(line: &[W], epoch: u32, into: &mut [u32]) -> bool {
    assert_eq!(line.len(), into.len(), "try_read: the line and the buffer have different lengths");
    let mut whole = true;
    for (word, data) in line.iter().zip(into) {
        let value = word.load_relaxed();
        whole &= (value >> 32) as u32 == epoch;
        *data = value as u32;
    }
    if whole {
        W::fence_acquire();
    }
    whole
}

/// Returns whether the writer of the line has published `epoch` or a later epoch. `word` is any
/// word of the line. The writer must be less than `window` epochs ahead of `epoch`; otherwise the
/// result is wrong.
///
/// Unlike [`try_read`], this function reads no data. So the writer may publish the next epoch
/// during the call.
///
/// # Ordering
/// Acquire, if the result is `true`: later writes of this PE do not affect the reads that the
/// writer made before it published the epoch.
#[inline]
pub fn has_reached<W: Word>(word: &W, epoch: u32, window: u32) -> bool {
    let reached = ((word.load_relaxed() >> 32) as u32).wrapping_sub(epoch) < window;
    if reached {
        W::fence_acquire();
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU64;

    #[test]
    fn line_reaches_its_epoch_and_earlier_epochs_in_the_window() {
        let word = AtomicU64::new(seal(7, 2));
        assert!(has_reached(&word, 2, 4) && has_reached(&word, 1, 4) && has_reached(&word, u32::MAX, 4));
        assert!(!has_reached(&word, 3, 4), "the epoch is later than that of the line");
        assert!(!has_reached(&word, u32::MAX - 1, 4), "the epoch is outside the window");
    }

    #[test]
    fn reading_a_line_fails_if_all_words_have_another_epoch() {
        let line = [const { AtomicU64::new(0) }; 3];
        let mut got = [0; 3];
        publish(&line, u32::MAX, &[7, u32::MAX, 0]);
        assert!(try_read(&line, u32::MAX, &mut got));
        assert_eq!(got, [7, u32::MAX, 0]);
        assert!(!try_read(&line, 0, &mut got));
        publish(&line, 1, &[1, 2, 3]);
        assert!(!try_read(&line, u32::MAX, &mut got));
    }

    #[test]
    fn reading_a_line_fails_if_one_word_has_another_epoch() {
        for odd in 0..3 {
            let line = seal_line(&[1, 2, 3], 5).map(AtomicU64::new);
            assert!(try_read(&line, 5, &mut [0; 3]));
            line[odd].store_relaxed(seal(9, 7));
            assert!(!try_read(&line, 5, &mut [0; 3]));
            assert!(!try_read(&line, 7, &mut [0; 3]));
        }
    }

    #[test]
    #[should_panic(expected = "publish: the line and the data have different lengths")]
    fn publishing_panics_if_line_and_data_lengths_differ() {
        publish(&[AtomicU64::new(0), AtomicU64::new(0)], 1, &[1]);
    }
}
