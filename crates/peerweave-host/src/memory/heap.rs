//! Which parts of the symmetric heap are taken. The same on every PE: each runs this same deterministic algorithm on the same sequence
//! of collective calls, so that no PE has to ask another where memory lies.
//!
//! Does not touch the memory. Invariant: free ranges are disjoint, ascending, and no two of them touch.

use std::collections::BTreeMap;

/// The smallest unit of allocation: two cache lines, so that two buffers never share one.
pub(crate) const GRAIN: u64 = 128;

/// A first-fit allocator over offsets `start .. end`.
#[derive(Debug)]
pub(crate) struct HeapMap {
    free: BTreeMap<u64, u64>,
    taken: BTreeMap<u64, u64>,
    start: u64,
    end: u64,
    /// One past the highest byte that was ever taken.
    highest: u64,
}

impl HeapMap {
    /// All of `start .. end` is free; `start` is a multiple of every alignment that will be asked for, or the excess is lost to padding.
    pub(crate) fn new(start: u64, end: u64) -> Self {
        Self { free: BTreeMap::from([(start, end - start)]), taken: BTreeMap::new(), start, end, highest: start }
    }

    /// Takes `bytes` (rounded up to the grain, at least one) at a multiple of `align`; `None` where no free range is large enough.
    pub(crate) fn take(&mut self, bytes: u64, align: u64) -> Option<u64> {
        let bytes = bytes.max(1).checked_next_multiple_of(GRAIN)?;
        let align = align.max(GRAIN);
        let (from, len, at) = self.free.iter().find_map(|(&from, &len)| {
            let at = from.checked_next_multiple_of(align)?;
            (at - from <= len && len - (at - from) >= bytes).then_some((from, len, at))
        })?;
        self.free.remove(&from);
        if at > from {
            self.free.insert(from, at - from);
        }
        let rest = from + len - (at + bytes);
        if rest > 0 {
            self.free.insert(at + bytes, rest);
        }
        self.taken.insert(at, bytes);
        Some(at)
    }

    /// Gives back what [`HeapMap::take`] gave; returns its length, or `None` where nothing was taken there.
    pub(crate) fn give(&mut self, at: u64) -> Option<u64> {
        let bytes = self.taken.remove(&at)?;
        let (mut from, mut len) = (at, bytes);
        if let Some((&before, &before_len)) = self.free.range(..at).next_back()
            && before + before_len == at
        {
            self.free.remove(&before);
            from = before;
            len += before_len;
        }
        if let Some(after_len) = self.free.remove(&(at + bytes)) {
            len += after_len;
        }
        self.free.insert(from, len);
        Some(bytes)
    }

    /// Notes that memory is used up to `end`; returns up to where it was used before.
    pub(crate) fn note_use(&mut self, end: u64) -> u64 {
        let before = self.highest;
        self.highest = before.max(end);
        before
    }

    /// The largest request that would succeed now.
    pub(crate) fn largest_free(&self) -> u64 {
        self.free.values().copied().max().unwrap_or(0)
    }

    /// Bytes taken.
    pub(crate) fn taken_bytes(&self) -> u64 {
        self.taken.values().sum()
    }

    /// Bytes in all.
    pub(crate) fn capacity(&self) -> u64 {
        self.end - self.start
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_given_back_joins_its_neighbours() {
        let mut heap = HeapMap::new(4096, 4096 + 1024);
        let places: Vec<u64> = (0..8).map(|_| heap.take(100, 1).unwrap()).collect();
        assert_eq!(heap.take(1, 1), None);
        for &i in &[1, 3, 2, 0, 7, 5, 6, 4] {
            assert_eq!(heap.give(places[i]), Some(128));
        }
        assert_eq!(heap.give(places[0]), None, "given back twice");
        assert_eq!(heap.largest_free(), 1024);
        assert_eq!(heap.take(1024, 128), Some(4096));
    }

    proptest! {
        #[test]
        fn ranges_are_aligned_apart_and_all_come_back(
            requests in prop::collection::vec((0u64..5000, 0u32..13, any::<bool>(), any::<prop::sample::Index>()), 1..120)
        ) {
            let (start, end) = (8192, 8192 + (1 << 16));
            let mut heap = HeapMap::new(start, end);
            let mut live: Vec<(u64, u64)> = Vec::new();
            for (bytes, align, give, which) in requests {
                if give && !live.is_empty() {
                    let (at, _) = live.swap_remove(which.index(live.len()));
                    prop_assert!(heap.give(at).is_some());
                } else if let Some(at) = heap.take(bytes, 1 << align) {
                    let len = bytes.max(1).next_multiple_of(GRAIN);
                    prop_assert_eq!(at % (1u64 << align).max(GRAIN), 0);
                    prop_assert!(at >= start && at + len <= end);
                    for &(other, other_len) in &live {
                        prop_assert!(at + len <= other || other + other_len <= at);
                    }
                    live.push((at, len));
                }
                prop_assert_eq!(heap.taken_bytes(), live.iter().map(|&(_, len)| len).sum::<u64>());
            }
            for (at, _) in live {
                prop_assert!(heap.give(at).is_some());
            }
            prop_assert_eq!(heap.largest_free(), end - start);
            prop_assert_eq!(heap.capacity(), end - start);
        }

        #[test]
        fn two_pes_that_make_the_same_calls_get_the_same_places(
            requests in prop::collection::vec((1u64..3000, any::<bool>()), 1..60)
        ) {
            let mut heaps = [HeapMap::new(0, 1 << 15), HeapMap::new(0, 1 << 15)];
            let mut live = Vec::new();
            for (bytes, give) in requests {
                if give && let Some(at) = live.pop() {
                    prop_assert_eq!(heaps[0].give(at), heaps[1].give(at));
                } else {
                    let places = heaps.each_mut().map(|heap| heap.take(bytes, 64));
                    prop_assert_eq!(places[0], places[1]);
                    live.extend(places[0]);
                }
            }
        }
    }
}
