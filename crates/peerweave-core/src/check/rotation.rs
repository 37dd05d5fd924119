//! Chooses which word is checked first by a wait for any of several words.
//!
//! If every wait checked word 0 first, and word 0 always satisfied the wait, no wait would return
//! another word. Therefore the waits of a thread begin with different words. Their indices follow a
//! Weyl sequence: the fractional parts of the multiples of an irrational number, scaled to the
//! number of words. The values of this sequence are spread evenly. The same is true of every second
//! value, every third value, and so on. So every word is checked first at short intervals, even if
//! a thread alternates between waits for several sets of words.

use std::cell::Cell;

/// The distance between consecutive values of the sequence: the fractional part of the golden
/// ratio, in units of 2^-64.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

thread_local! {
    static NEXT: Cell<u64> = const { Cell::new(0) };
}

/// Returns the index of the word that the next wait checks first. The wait is for `count` words.
/// The index is below `count`, or 0 if `count` is 0.
#[inline]
pub(super) fn start(count: usize) -> usize {
    let next = NEXT.replace(NEXT.get().wrapping_add(STEP));
    ((u128::from(next) * count as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls `start(count)` `calls` times. After each of these calls, calls [`start`] once for each
    /// count in `others`. Returns the maximum number of calls of `start(count)` from one return of
    /// an index to the next return of the same index. Also considers the intervals before the first
    /// return of an index and after its last return.
    fn longest_gap(count: usize, calls: usize, others: &[usize]) -> usize {
        let (mut last, mut longest) = (vec![0; count], 0);
        for call in 1..=calls {
            let index = start(count);
            longest = longest.max(call - last[index]);
            last[index] = call;
            others.iter().for_each(|&other| assert!(start(other) < other));
        }
        last.iter().fold(longest, |longest, last| longest.max(calls - last))
    }

    #[test]
    fn each_of_n_words_is_polled_first_at_least_once_in_3n_waits() {
        assert_eq!((start(0), start(1)), (0, 0));
        for count in [1, 2, 3, 8, 64, 1000] {
            assert!(longest_gap(count, 10 * count, &[]) <= 3 * count, "{count} words");
        }
    }

    #[test]
    fn interleaved_waits_poll_each_of_n_words_first_in_20n_waits() {
        for others in [&[2][..], &[2, 2], &[3, 5, 8], &[64; 7]] {
            for count in [2, 3, 8, 64] {
                let longest = longest_gap(count, 100 * count, others);
                assert!(longest <= 20 * count, "{count} words, in turn with {others:?}: {longest}");
            }
        }
    }
}
