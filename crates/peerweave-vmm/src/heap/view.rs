//! The addresses of symmetric memory for kernels: plain data of a fixed layout.
//!
//! This module accesses no memory. Invariant: the layout is part of the interface, and is checked
//! below.

use peerweave_types::{Rank, SymOffset};

/// Bytes at the same offset of every PE's segment, with the addresses that a kernel uses.
///
/// PEs are identified by their rank on the machine: the index in
/// [`SymmetricHeap::members`](crate::SymmetricHeap::members).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct SymmetricView {
    /// Address of the bytes of rank 0.
    pub base: u64,
    /// Distance between the bytes of two PEs.
    pub stride: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// Address at which a store writes the memory of all PEs, and a reducing load reads all of it;
    /// 0 if there is none.
    pub multicast: u64,
    /// Rank of this PE.
    pub me: u32,
    /// Number of PEs.
    pub n_pes: u32,
}

impl SymmetricView {
    /// Returns the address of byte `offset` of the PE with this rank on the machine, which must be
    /// less than `n_pes`. (The rank of a PE is its index in
    /// [`SymmetricHeap::members`](crate::SymmetricHeap::members).)
    #[inline]
    pub const fn address(&self, rank: Rank, offset: SymOffset) -> u64 {
        self.base + self.stride * rank.get() as u64 + offset.0
    }

    /// Returns the multicast address of byte `offset`, if there is one.
    #[inline]
    pub const fn multicast_address(&self, offset: SymOffset) -> Option<u64> {
        match self.multicast {
            0 => None,
            base => Some(base + offset.0),
        }
    }

    /// Returns the view with a multicast address of its first byte.
    pub const fn with_multicast(self, multicast: u64) -> Self {
        Self { multicast, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_view_has_a_fixed_layout() {
        assert_eq!(size_of::<SymmetricView>(), 40);
        assert_eq!(core::mem::offset_of!(SymmetricView, multicast), 24);
        assert_eq!(core::mem::offset_of!(SymmetricView, n_pes), 36);
    }

    #[test]
    fn addresses_of_neighboring_pes_differ_by_the_stride() {
        let view = SymmetricView { base: 1 << 40, stride: 1 << 30, bytes: 64, multicast: 0, me: 1, n_pes: 4 };
        assert_eq!(view.address(Rank::new(3), SymOffset(8)), (1 << 40) + (3 << 30) + 8);
        assert_eq!(view.multicast_address(SymOffset(8)), None);
        assert_eq!(view.with_multicast(1 << 41).multicast_address(SymOffset(8)), Some((1 << 41) + 8));
    }
}
