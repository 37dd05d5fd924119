//! The allocator of the symmetric heap. All PEs make the same allocations in the same order, so
//! they get the same offsets without communication.

use peerweave_bootstrap::first_fit::FirstFit;

/// Unit of allocation, in bytes: the size of two cache lines. Two buffers never share a unit, so
/// they never share a cache line.
const UNIT_BYTES: u64 = 128;

/// The free and allocated ranges of the symmetric heap. This type does not access the memory of the
/// heap.
#[derive(Debug)]
pub(crate) struct HeapMap {
    ranges: FirstFit,
    /// Size of the heap, in bytes.
    capacity: u64,
    /// Highest end offset of all allocations so far, including freed allocations. Initially the
    /// start of the heap.
    highest: u64,
}

impl HeapMap {
    /// Creates a heap whose free range is `start..end`. `start` may have any alignment: an
    /// allocation with a larger alignment starts at a higher offset, and the range before it stays
    /// free.
    pub(crate) fn new(start: u64, end: u64) -> Self {
        let mut ranges = FirstFit::new(UNIT_BYTES);
        ranges.add(start, end - start);
        Self { ranges, capacity: end - start, highest: start }
    }

    /// Allocates `bytes` at a multiple of `align`, and returns the offset. Returns `None` if no
    /// free range is large enough.
    pub(crate) fn allocate(&mut self, bytes: u64, align: u64) -> Option<u64> {
        self.ranges.allocate(bytes, align)
    }

    /// Frees an allocation and returns its length in bytes. Returns `None` if no allocation starts
    /// at `at`.
    pub(crate) fn free(&mut self, at: u64) -> Option<u64> {
        self.ranges.free(at)
    }

    /// Records the end of a new allocation, as an offset. Returns the highest end of all earlier
    /// allocations. Memory at or after the returned offset has never been allocated, so it is still
    /// zero.
    pub(crate) fn note_use(&mut self, end: u64) -> u64 {
        let before = self.highest;
        self.highest = before.max(end);
        before
    }

    /// Returns the size of the largest free range, in bytes.
    pub(crate) fn largest_free(&self) -> u64 {
        self.ranges.largest_free_bytes()
    }

    /// Returns the number of allocated bytes.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        self.ranges.allocated_bytes()
    }

    /// Returns the size of the heap, in bytes.
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn highest_used_offset_is_unchanged_by_freeing_and_reuse() {
        let mut heap = HeapMap::new(4096, 4096 + 1024);
        let first = heap.allocate(100, 1).unwrap();
        assert_eq!(heap.note_use(first + 100), 4096);
        let second = heap.allocate(100, 1).unwrap();
        assert_eq!(heap.note_use(second + 100), first + 100);
        assert_eq!(heap.free(second), Some(UNIT_BYTES));
        assert_eq!(heap.allocate(50, 1), Some(second));
        assert_eq!(heap.note_use(second + 50), second + 100, "the range was in use before");
        assert_eq!(heap.note_use(second + 50), second + 100);
        assert_eq!((heap.allocated_bytes(), heap.largest_free(), heap.capacity()), (256, 768, 1024));
    }
}
