//! A line whose words validate themselves: each carries 32 bits of data and the 32-bit epoch it belongs to.
//!
//! No order among the stores of a line matters, and so no sequence word is needed: a backend may write the line by one vector
//! store, of which nothing is promised but that each aligned word is whole, and the line changes hands once. When a line may be
//! written again is told in [`crate::slot`]: the reuse rule, two lines per rank, is the same.
//!
//! Invariant: a reader takes a line only when it has found one epoch in all of its words; by the reuse rule no word is written
//! again before it has.
//!
//! The epoch is the low half of the operation's. Zeroed memory is a line of epoch 0: the first epoch that is published is 1.

use crate::word::Word;

/// The word that carries this piece of data in this epoch.
#[inline]
pub const fn seal(data: u32, epoch: u32) -> u64 {
    (epoch as u64) << 32 | data as u64
}

/// The words of a line. A backend that stores them by its own means does so after [`Word::fence_release`].
#[inline]
pub fn seal_line<const N: usize>(data: &[u32; N], epoch: u32) -> [u64; N] {
    data.map(|data| seal(data, epoch))
}

/// Publishes data in all words of a line. Its one writer calls it, in order of epochs, when the reuse rule of [`crate::slot`]
/// allows.
///
/// # Ordering
/// Release: what this PE did before is visible to whoever reads the line.
///
/// # Panics
/// Where there is not one piece of data for each word.
#[inline]
pub fn publish<W: Word>(line: &[W], epoch: u32, data: &[u32]) {
    assert_eq!(line.len(), data.len(), "every word of a sealed line is written");
    W::fence_release();
    for (word, data) in line.iter().zip(data) {
        word.store_relaxed(seal(*data, epoch));
    }
}

/// Reads the data of an epoch if it is there: fills `into` and returns `true`. Where the answer is no, `into` holds anything. Any
/// PE may call it until it publishes the next epoch.
///
/// # Ordering
/// Acquire, where the answer is yes.
///
/// # Panics
/// Where `into` has not one place for each word.
#[inline]
pub fn try_read<W: Word>(line: &[W], epoch: u32, into: &mut [u32]) -> bool {
    assert_eq!(line.len(), into.len(), "every word of a sealed line is read");
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

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU64;

    #[test]
    fn a_line_is_read_as_published_and_only_under_its_epoch() {
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
    fn a_line_with_one_word_of_another_epoch_is_not_read() {
        for odd in 0..3 {
            let line = seal_line(&[1, 2, 3], 5).map(AtomicU64::new);
            assert!(try_read(&line, 5, &mut [0; 3]));
            line[odd].store_relaxed(seal(9, 7));
            assert!(!try_read(&line, 5, &mut [0; 3]));
            assert!(!try_read(&line, 7, &mut [0; 3]));
        }
    }

    #[test]
    #[should_panic(expected = "every word of a sealed line is written")]
    fn a_line_is_never_written_in_part() {
        publish(&[AtomicU64::new(0), AtomicU64::new(0)], 1, &[1]);
    }
}
