//! The allocator of the symmetric heap. Every PE runs this deterministic algorithm on the same
//! sequence of collective calls, so all PEs get the same offsets without communication.
//!
//! The allocator does not access the memory. Invariant: free ranges are disjoint, ascending, and
//! not adjacent.

use std::collections::BTreeMap;

/// Unit of allocation, in bytes: the size of two cache lines. Two buffers never share a unit, so
/// they never share a cache line.
pub(crate) const GRAIN: u64 = 128;

/// A first-fit allocator of offsets in the range `start..end`.
#[derive(Debug)]
pub(crate) struct HeapMap {
    free: BTreeMap<u64, u64>,
    allocated: BTreeMap<u64, u64>,
    start: u64,
    end: u64,
    /// Highest end offset of all ranges that were in use at any time.
    highest: u64,
}

impl HeapMap {
    /// Creates a heap whose free range is `start..end`. `start` may have any alignment: an
    /// allocation with a larger alignment starts at a higher offset, and the range before it stays
    /// free.
    pub(crate) fn new(start: u64, end: u64) -> Self {
        Self { free: BTreeMap::from([(start, end - start)]), allocated: BTreeMap::new(), start, end, highest: start }
    }

    /// Allocates `bytes`, rounded up to [`GRAIN`], at a multiple of `align`, and returns the
    /// offset. Returns `None` if no free range is large enough.
    pub(crate) fn allocate(&mut self, bytes: u64, align: u64) -> Option<u64> {
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
        self.allocated.insert(at, bytes);
        Some(at)
    }

    /// Frees an allocation and returns its length in bytes. Returns `None` if no allocation starts
    /// at `at`.
    pub(crate) fn free(&mut self, at: u64) -> Option<u64> {
        let bytes = self.allocated.remove(&at)?;
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

    /// Records that the range of a new allocation ends at the offset `end`. Returns the highest end
    /// of all earlier allocations. The memory after the returned offset was not allocated before,
    /// so it is still zero.
    pub(crate) fn note_use(&mut self, end: u64) -> u64 {
        let before = self.highest;
        self.highest = before.max(end);
        before
    }

    /// Returns the size of the largest free range, in bytes.
    pub(crate) fn largest_free(&self) -> u64 {
        self.free.values().copied().max().unwrap_or(0)
    }

    /// Returns the number of allocated bytes.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        self.allocated.values().sum()
    }

    /// Returns the size of the heap, in bytes.
    pub(crate) fn capacity(&self) -> u64 {
        self.end - self.start
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn freed_ranges_merge_with_adjacent_free_ranges() {
        let mut heap = HeapMap::new(4096, 4096 + 1024);
        let places: Vec<u64> = (0..8).map(|_| heap.allocate(100, 1).unwrap()).collect();
        assert_eq!(heap.allocate(1, 1), None);
        for &i in &[1, 3, 2, 0, 7, 5, 6, 4] {
            assert_eq!(heap.free(places[i]), Some(128));
        }
        assert_eq!(heap.free(places[0]), None, "an allocation was freed twice");
        assert_eq!(heap.largest_free(), 1024);
        assert_eq!(heap.allocate(1024, 128), Some(4096));
    }

    proptest! {
        #[test]
        fn allocations_are_aligned_disjoint_and_can_be_freed(
            requests in prop::collection::vec((0u64..5000, 0u32..13, any::<bool>(), any::<prop::sample::Index>()), 1..120)
        ) {
            let (start, end) = (8192, 8192 + (1 << 16));
            let mut heap = HeapMap::new(start, end);
            let mut live: Vec<(u64, u64)> = Vec::new();
            for (bytes, align, give, which) in requests {
                if give && !live.is_empty() {
                    let (at, _) = live.swap_remove(which.index(live.len()));
                    prop_assert!(heap.free(at).is_some());
                } else if let Some(at) = heap.allocate(bytes, 1 << align) {
                    let len = bytes.max(1).next_multiple_of(GRAIN);
                    prop_assert_eq!(at % (1u64 << align).max(GRAIN), 0);
                    prop_assert!(at >= start && at + len <= end);
                    for &(other, other_len) in &live {
                        prop_assert!(at + len <= other || other + other_len <= at);
                    }
                    live.push((at, len));
                }
                prop_assert_eq!(heap.allocated_bytes(), live.iter().map(|&(_, len)| len).sum::<u64>());
            }
            for (at, _) in live {
                prop_assert!(heap.free(at).is_some());
            }
            prop_assert_eq!(heap.largest_free(), end - start);
            prop_assert_eq!(heap.capacity(), end - start);
        }

        #[test]
        fn pes_that_make_the_same_allocations_get_the_same_offsets(
            requests in prop::collection::vec((1u64..3000, any::<bool>()), 1..60)
        ) {
            let mut heaps = [HeapMap::new(0, 1 << 15), HeapMap::new(0, 1 << 15)];
            let mut live = Vec::new();
            for (bytes, give) in requests {
                if give && let Some(at) = live.pop() {
                    prop_assert_eq!(heaps[0].free(at), heaps[1].free(at));
                } else {
                    let places = heaps.each_mut().map(|heap| heap.allocate(bytes, 64));
                    prop_assert_eq!(places[0], places[1]);
                    live.extend(places[0]);
                }
            }
        }
    }
}
