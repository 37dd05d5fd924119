//! Addresses in the symmetric heap: plain data with a fixed layout.
//!
//! A PE's segment is the shared memory that contains the PE's symmetric heap. Invariant: each
//! process maps the segments of all PEs into one reservation of addresses, at equal strides. So a
//! process computes the address of any segment from the start of its reservation. This module
//! dereferences no pointer.

use crate::Pe;

/// A byte offset from the start of a PE's segment, which contains the PE's symmetric heap. An
/// allocation's offset is the same on all PEs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct SymOffset(pub u64);

impl SymOffset {
    /// Returns the offset that is `bytes` bytes after this offset.
    #[inline]
    pub const fn plus(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

/// A signal: an aligned 64-bit word in symmetric memory. Signals are written with release order,
/// and read with acquire order.
pub type SignalWord = u64;

/// The addresses at which this process maps the segments of all PEs. The segment of a PE contains
/// the PE's symmetric heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct HeapGeometry {
    /// Address of PE 0's segment in this process.
    pub base: u64,
    /// Distance from one PE's segment to the next PE's segment, in bytes.
    pub stride: u64,
    /// Offset of the symmetric heap in each segment, in bytes. Control words of the library precede
    /// the heap.
    pub heap_start: u64,
    /// Size of the heap in each segment, in bytes.
    pub heap_bytes: u64,
    /// The number of this PE.
    pub my_pe: u32,
    /// Number of PEs whose segments are mapped.
    pub n_pes: u32,
}

impl HeapGeometry {
    /// Returns the address, in this process, of the byte at `offset` in the segment of `pe`.
    #[inline]
    pub const fn address(&self, pe: Pe, offset: SymOffset) -> u64 {
        self.base + self.stride * pe.get() as u64 + offset.0
    }

    /// Returns the PE and the offset to which an address belongs, the inverse of [`Self::address`].
    /// Returns `None` if the address lies outside all segments.
    #[inline]
    pub const fn locate(&self, address: u64) -> Option<(Pe, SymOffset)> {
        if address < self.base {
            return None;
        }
        let distance = address - self.base;
        let pe = distance / self.stride;
        if pe >= self.n_pes as u64 {
            return None;
        }
        Some((Pe::new(pe as u32), SymOffset(distance % self.stride)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heap_address_converts_back_to_the_same_pe_and_offset() {
        let heap = HeapGeometry { base: 1 << 40, stride: 1 << 30, heap_start: 4096, heap_bytes: 1 << 20, my_pe: 1, n_pes: 4 };
        for pe in 0..4 {
            for offset in [0, 1, 4096, (1 << 30) - 1] {
                let place = (Pe::new(pe), SymOffset(offset));
                assert_eq!(heap.locate(heap.address(place.0, place.1)), Some(place));
            }
        }
        assert_eq!(heap.locate((1 << 40) - 1), None);
        assert_eq!(heap.locate((1 << 40) + (4 << 30)), None);
    }

    #[test]
    fn heap_geometry_struct_has_a_size_of_40_bytes() {
        assert_eq!(size_of::<HeapGeometry>(), 40);
    }
}
