//! The addresses of symmetric memory for kernels, as plain data.
//!
//! This module accesses no memory. Invariant: kernels depend on the layout of [`SymmetricView`],
//! and a test below checks the layout.

use peerweave_types::{Rank, SymOffset};

/// The addresses through which a kernel accesses the same bytes in every PE's segment.
///
/// A rank in this view is the index of a PE in
/// [`SymmetricHeap::members`](crate::SymmetricHeap::members), which lists the PEs of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct SymmetricView {
    /// Address of the viewed bytes in the segment of rank 0.
    pub base: u64,
    /// Distance in bytes from any byte in the segment of a rank to the same byte in the segment of
    /// the next rank.
    pub stride: u64,
    /// Length of the view in bytes. The length is the same in the segment of each PE.
    pub bytes: u64,
    /// Multicast address of the viewed bytes; 0 if there is no multicast address. A store to the
    /// address writes the memory of all PEs, and a reducing load reads the memory of all PEs.
    pub multicast: u64,
    /// Rank of this PE among the PEs of its machine, in ascending order of PE numbers.
    pub me: u32,
    /// Number of PEs on the machine.
    pub n_pes: u32,
}

impl SymmetricView {
    /// Returns the address of byte `offset` on the PE with rank `rank`. `rank` must be less than
    /// `n_pes`, because it is an index in
    /// [`SymmetricHeap::members`](crate::SymmetricHeap::members).
    #[inline]
    pub const fn address(&self, rank: Rank, offset: SymOffset) -> u64 {
        self.base + self.stride * rank.get() as u64 + offset.0
    }

    /// Returns the multicast address of byte `offset`, or `None` if there is no multicast address.
    #[inline]
    pub const fn multicast_address(&self, offset: SymOffset) -> Option<u64> {
        match self.multicast {
            0 => None,
            base => Some(base + offset.0),
        }
    }

    /// Returns the view with `multicast` as the multicast address of the view's first byte.
    pub const fn with_multicast(self, multicast: u64) -> Self {
        Self { multicast, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symmetric_view_for_kernels_has_a_fixed_layout() {
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
