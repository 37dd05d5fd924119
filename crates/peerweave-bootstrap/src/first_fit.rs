//! A first-fit allocator of offsets, for heaps in which an allocation has the same offset on every
//! PE. It only computes offsets, and accesses no memory.

use std::collections::BTreeMap;

/// The free ranges and the allocated ranges of a heap.
///
/// An allocation gets the lowest free range that fits. So if all PEs make the same calls in the
/// same order, they get the same offsets without communication.
///
/// ```
/// use peerweave_bootstrap::first_fit::FirstFit;
///
/// let mut heap = FirstFit::new(256);
/// heap.add(0, 1024);
/// assert_eq!(heap.allocate(100, 1), Some(0));
/// assert_eq!(heap.allocate(100, 512), Some(512));
/// assert_eq!(heap.allocate(512, 1), None); // The free ranges are 256..512 and 768..1024.
/// assert_eq!(heap.free(0), Some(256));
/// assert_eq!(heap.allocate(512, 1), Some(0));
/// ```
#[derive(Clone, Debug)]
pub struct FirstFit {
    unit_bytes: u64,
    // For the start of each range, a map contains the length of the range in bytes. Invariants:
    // free ranges neither touch nor overlap; the free and allocated ranges together are exactly the
    // ranges that were passed to `add`.
    free: BTreeMap<u64, u64>,
    allocated: BTreeMap<u64, u64>,
}

impl FirstFit {
    /// Creates a heap without memory. The start and the length of each allocation will be multiples
    /// of `unit_bytes`, which is a power of two. If the unit is at least as long as a cache line,
    /// no cache line has data of two allocations.
    ///
    /// # Panics
    /// If `unit_bytes` is not a power of two.
    #[must_use]
    pub fn new(unit_bytes: u64) -> Self {
        assert!(unit_bytes.is_power_of_two(), "FirstFit::new: unit_bytes is {unit_bytes}, expected a power of two");
        Self { unit_bytes, free: BTreeMap::new(), allocated: BTreeMap::new() }
    }

    /// Adds a free range of `bytes` bytes that begins at the offset `start`. The range may have any
    /// alignment, and must not overlap a range that was added before.
    pub fn add(&mut self, mut start: u64, mut bytes: u64) {
        if let Some((&before, &len)) = self.free.range(..start).next_back()
            && before + len == start
        {
            self.free.remove(&before);
            start = before;
            bytes += len;
        }
        if let Some(len) = self.free.remove(&(start + bytes)) {
            bytes += len;
        }
        if bytes > 0 {
            self.free.insert(start, bytes);
        }
    }

    /// Allocates `bytes` bytes, rounded up to whole units and to at least one unit. The offset is
    /// the lowest one that fits and is a multiple of `alignment`, a power of two. Returns `None` if
    /// no free range is large enough.
    #[must_use]
    pub fn allocate(&mut self, bytes: u64, alignment: u64) -> Option<u64> {
        let bytes = bytes.max(1).checked_next_multiple_of(self.unit_bytes)?;
        let alignment = alignment.max(self.unit_bytes);
        let (start, len, at) = self.free.iter().find_map(|(&start, &len)| {
            let at = start.checked_next_multiple_of(alignment)?;
            let skipped = at - start;
            (skipped <= len && len - skipped >= bytes).then_some((start, len, at))
        })?;
        self.free.remove(&start);
        if at > start {
            self.free.insert(start, at - start);
        }
        let rest = start + len - (at + bytes);
        if rest > 0 {
            self.free.insert(at + bytes, rest);
        }
        self.allocated.insert(at, bytes);
        Some(at)
    }

    /// Frees the allocation that begins at the offset `start`, and returns its length in bytes.
    /// Returns `None` if no allocation begins at `start`.
    pub fn free(&mut self, start: u64) -> Option<u64> {
        let bytes = self.allocated.remove(&start)?;
        self.add(start, bytes);
        Some(bytes)
    }

    /// Returns the number of free bytes, possibly in several ranges.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.free.values().sum()
    }

    /// Returns the length of the largest free range, in bytes. Returns 0 if no range is free.
    #[must_use]
    pub fn largest_free_bytes(&self) -> u64 {
        self.free.values().copied().max().unwrap_or(0)
    }

    /// Returns the number of allocated bytes.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.allocated.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UNIT: u64 = 256;

    fn heap_of(bytes: u64) -> FirstFit {
        let mut heap = FirstFit::new(UNIT);
        heap.add(0, bytes);
        heap
    }

    /// Checks that the free and the allocated ranges of a heap cover exactly `start..start +
    /// bytes`, without overlaps, and that no two free ranges touch.
    fn check(heap: &FirstFit, start: u64, bytes: u64) {
        let mut all: Vec<(u64, u64)> = heap.free.iter().chain(&heap.allocated).map(|(start, len)| (*start, *len)).collect();
        all.sort_unstable();
        let end = all.iter().fold(start, |end, (start, len)| {
            assert_eq!(end, *start, "a gap or an overlap among {all:?}");
            start + len
        });
        assert_eq!(end, start + bytes);
        let free: Vec<_> = heap.free.iter().collect();
        for pair in free.windows(2) {
            assert!(pair[0].0 + pair[0].1 < *pair[1].0, "free ranges touch: {pair:?}");
        }
        assert_eq!(heap.free_bytes() + heap.allocated_bytes(), bytes);
    }

    #[test]
    fn freed_neighbouring_ranges_merge_into_one_range() {
        let mut heap = heap_of(4096);
        let places: Vec<u64> = (0..4).map(|_| heap.allocate(1000, 1).expect("four allocations fit in the range")).collect();
        assert_eq!(places, [0, 1024, 2048, 3072]);
        assert_eq!(heap.allocate(1, 1), None);
        for at in [1024, 3072, 2048, 0] {
            assert_eq!(heap.free(at), Some(1024));
            assert_eq!(heap.free(at), None, "a range cannot be freed twice");
        }
        assert_eq!(heap.largest_free_bytes(), 4096);
        assert_eq!(heap.allocate(4096, 1), Some(0));
        assert_eq!(heap.largest_free_bytes(), 0);
    }

    #[test]
    fn only_adjacent_ranges_are_merged() {
        let mut heap = heap_of(4096);
        heap.add(4096, 4096);
        assert_eq!(heap.allocate(8192, 1), Some(0));
        heap.add(16384, 4096);
        heap.free(0);
        assert_eq!(heap.allocate(12288, 1), None);
        assert_eq!(heap.free_bytes(), 12288);
        assert_eq!(heap.largest_free_bytes(), 8192);
    }

    #[test]
    fn space_before_an_aligned_allocation_stays_free() {
        let mut heap = heap_of(1 << 20);
        assert_eq!(heap.allocate(10, 1), Some(0));
        assert_eq!(heap.allocate(10, 65536), Some(65536));
        assert_eq!(heap.allocate(10, 1), Some(256));
        check(&heap, 0, 1 << 20);
        assert_eq!(heap.allocate(u64::MAX, 1), None);
        assert_eq!(heap.allocate(1, 1 << 63), None);
    }

    #[test]
    fn allocation_from_an_unaligned_range_has_an_aligned_offset() {
        let mut heap = FirstFit::new(UNIT);
        heap.add(100, 1000);
        assert_eq!(heap.allocate(1, 1), Some(256));
        check(&heap, 100, 1000);
        assert_eq!(heap.free(256), Some(256));
        assert_eq!(heap.largest_free_bytes(), 1000);
    }

    #[test]
    #[should_panic(expected = "unit_bytes is 100, expected a power of two")]
    fn allocation_unit_that_is_not_a_power_of_two_panics() {
        let _ = FirstFit::new(100);
    }

    proptest! {
        #[test]
        fn equal_sequences_of_calls_return_equal_offsets(
            calls in proptest::collection::vec((0u64..20_000, 0u32..13, any::<prop::sample::Index>(), any::<bool>()), 1..120)
        ) {
            let mut one = heap_of(1 << 18);
            let mut other = one.clone();
            let mut live = Vec::new();
            for (bytes, shift, index, free) in calls {
                if free && !live.is_empty() {
                    let at = live.swap_remove(index.index(live.len()));
                    let freed = one.free(at);
                    prop_assert!(freed.is_some());
                    prop_assert_eq!(freed, other.free(at));
                } else {
                    let at = one.allocate(bytes, 1 << shift);
                    prop_assert_eq!(at, other.allocate(bytes, 1 << shift));
                    if let Some(at) = at {
                        prop_assert_eq!(at % (1u64 << shift).max(UNIT), 0);
                        prop_assert_eq!(one.allocated[&at], bytes.max(1).next_multiple_of(UNIT));
                        live.push(at);
                    }
                }
                check(&one, 0, 1 << 18);
            }
            for at in live {
                prop_assert!(one.free(at).is_some());
            }
            prop_assert_eq!(one.allocate(1 << 18, 1), Some(0));
        }
    }
}
