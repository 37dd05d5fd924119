//! The allocator of the heap. It only computes offsets, and accesses no memory.
//!
//! An allocation gets the lowest free range that fits, so equal calls return equal offsets on every
//! PE. Invariants: free ranges neither touch nor overlap; the free and allocated ranges together
//! are exactly the ranges that the heap has passed to `Ranges::add`.

use std::collections::BTreeMap;

/// The free ranges and the allocated ranges of a heap. For the start of each range, a map contains
/// the length of the range in bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranges {
    free: BTreeMap<u64, u64>,
    taken: BTreeMap<u64, u64>,
}

impl Ranges {
    /// Unit of allocation in bytes: the start and the length of an allocated range are multiples of
    /// this number. The unit is as long as two cache lines of a GPU, so no cache line has data of
    /// two allocations.
    pub(crate) const UNIT_BYTES: u64 = 256;

    /// Adds a free range of `bytes` bytes that begins at offset `start`.
    pub(crate) fn add(&mut self, start: u64, bytes: u64) {
        self.put_back(start, bytes);
    }

    /// Allocates `bytes` bytes at the lowest offset that fits and is a multiple of `alignment` (a
    /// power of two). Returns `None` if no free range is large enough.
    pub(crate) fn take(&mut self, bytes: u64, alignment: u64) -> Option<u64> {
        let bytes = bytes.max(1).checked_next_multiple_of(Self::UNIT_BYTES)?;
        let alignment = alignment.max(Self::UNIT_BYTES);
        let (start, len, at) = self.free.iter().find_map(|(start, len)| {
            let at = start.checked_next_multiple_of(alignment)?;
            (at.checked_add(bytes)? <= start + len).then_some((*start, *len, at))
        })?;
        self.free.remove(&start);
        if at > start {
            self.free.insert(start, at - start);
        }
        if start + len > at + bytes {
            self.free.insert(at + bytes, start + len - at - bytes);
        }
        self.taken.insert(at, bytes);
        Some(at)
    }

    /// Frees the allocated range that begins at offset `start`. Returns `false` if no allocated
    /// range begins at `start`.
    pub(crate) fn give_back(&mut self, start: u64) -> bool {
        match self.taken.remove(&start) {
            Some(bytes) => {
                self.put_back(start, bytes);
                true
            }
            None => false,
        }
    }

    fn put_back(&mut self, mut start: u64, mut bytes: u64) {
        if let Some((before, len)) = self.free.range(..start).next_back().map(|(before, len)| (*before, *len))
            && before + len == start
        {
            self.free.remove(&before);
            start = before;
            bytes += len;
        }
        if let Some(len) = self.free.remove(&(start + bytes)) {
            bytes += len;
        }
        self.free.insert(start, bytes);
    }

    /// Returns the number of free bytes, possibly in several ranges.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.free.values().sum()
    }

    /// Returns the allocated ranges.
    #[cfg(test)]
    fn taken(&self) -> impl Iterator<Item = (u64, u64)> {
        self.taken.iter().map(|(start, bytes)| (*start, *bytes))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn consistent(ranges: &Ranges, total: &[(u64, u64)]) {
        let mut all: Vec<(u64, u64)> = ranges.free.iter().map(|(start, len)| (*start, *len)).chain(ranges.taken()).collect();
        all.sort_unstable();
        for pair in all.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "overlap: {pair:?}");
        }
        assert_eq!(all.iter().map(|range| range.1).sum::<u64>(), total.iter().map(|range| range.1).sum::<u64>());
        let free: Vec<_> = ranges.free.iter().collect();
        for pair in free.windows(2) {
            assert!(pair[0].0 + pair[0].1 < *pair[1].0, "free ranges touch: {pair:?}");
        }
    }

    #[test]
    fn freed_neighbouring_ranges_merge_into_one_range() {
        let mut ranges = Ranges::default();
        ranges.add(0, 4096);
        let places: Vec<u64> = (0..4).map(|_| ranges.take(1024, 1).expect("four allocations fit in the range")).collect();
        assert_eq!(places, [0, 1024, 2048, 3072]);
        assert_eq!(ranges.take(1, 1), None);
        for at in [1024, 3072, 2048, 0] {
            assert!(ranges.give_back(at));
            assert!(!ranges.give_back(at), "a range cannot be freed twice");
        }
        assert_eq!(ranges.take(4096, 1), Some(0));
    }

    #[test]
    fn only_adjacent_ranges_are_merged() {
        let mut ranges = Ranges::default();
        ranges.add(0, 4096);
        ranges.add(4096, 4096);
        assert_eq!(ranges.take(8192, 1), Some(0));
        ranges.add(16384, 4096);
        ranges.give_back(0);
        assert_eq!(ranges.take(12288, 1), None);
        assert_eq!(ranges.free_bytes(), 12288);
    }

    #[test]
    fn space_before_an_aligned_allocation_stays_free() {
        let mut ranges = Ranges::default();
        ranges.add(0, 1 << 20);
        assert_eq!(ranges.take(10, 1), Some(0));
        assert_eq!(ranges.take(10, 65536), Some(65536));
        assert_eq!(ranges.take(10, 1), Some(256));
        consistent(&ranges, &[(0, 1 << 20)]);
        assert_eq!(ranges.take(u64::MAX, 1), None);
    }

    proptest! {
        #[test]
        fn equal_sequences_of_calls_return_equal_offsets(
            calls in proptest::collection::vec((0u64..20_000, 0u32..12, any::<prop::sample::Index>(), any::<bool>()), 1..120)
        ) {
            let mut one = Ranges::default();
            one.add(0, 1 << 18);
            let mut other = one.clone();
            let mut live = Vec::new();
            for (bytes, shift, index, free) in calls {
                if free && !live.is_empty() {
                    let at = live.swap_remove(index.index(live.len()));
                    prop_assert!(one.give_back(at) && other.give_back(at));
                } else {
                    let (a, b) = (one.take(bytes, 1 << shift), other.take(bytes, 1 << shift));
                    prop_assert_eq!(a, b);
                    if let Some(at) = a {
                        prop_assert_eq!(at % (1 << shift), 0);
                        live.push(at);
                    }
                }
                consistent(&one, &[(0, 1 << 18)]);
            }
            live.into_iter().for_each(|at| { one.give_back(at); });
            prop_assert_eq!(one.take(1 << 18, 1), Some(0));
        }
    }
}
