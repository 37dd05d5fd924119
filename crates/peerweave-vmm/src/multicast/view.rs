//! Elements at multicast addresses for kernels, as plain data.
//!
//! A view accesses no memory and keeps no memory alive. Invariants: kernels depend on the layout of
//! [`MulticastView`], and a test below checks the layout. A view returns only addresses of its
//! elements.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use peerweave_types::Element;

use super::MulticastMapping;
use crate::error::VmmError;
use crate::memory::mapping::elements_of;

/// Elements at a multicast address. A kernel's store to the address (`multimem.st` or a plain
/// store) writes the memory of every device of the team. A reducing load (`multimem.ld_reduce`)
/// reads the memory of every device. A plain load or a copy from the address is undefined.
///
/// The view is valid while its mapping lives. Before you enqueue work that uses the view, call
/// [`MulticastMapping::access`] to record the stream. The same is required for the mappings of a
/// heap, which [`HeapMulticast::mappings`](crate::HeapMulticast::mappings) returns.
#[repr(C)]
pub struct MulticastView<T> {
    address: u64,
    len: u64,
    _elements: PhantomData<fn() -> T>,
}

impl<T> MulticastView<T> {
    pub(crate) fn new(address: u64, len: usize) -> Self {
        Self { address, len: len as u64, _elements: PhantomData }
    }

    /// Returns the address of the first element.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns whether the view has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of the element at `index`, or `None` if `index` is out of range.
    pub fn address_of(&self, index: usize) -> Option<u64> {
        (index < self.len()).then(|| self.address + (index * size_of::<T>()) as u64)
    }

    /// Returns a view of a part of the elements. The indices in `range` are indices of elements.
    ///
    /// # Errors
    /// [`Misuse::OutOfRange`](crate::Misuse::OutOfRange) if the range exceeds the view.
    pub fn slice(&self, range: Range<usize>) -> Result<Self, VmmError> {
        let range = elements_of("MulticastView::slice", range, self.len())?;
        Ok(Self::new(self.address + (range.start * size_of::<T>()) as u64, range.len()))
    }
}

impl MulticastMapping {
    /// Returns a view of the mapping as whole elements, for kernels. If the length of the mapping
    /// is not a multiple of the element size, the view does not include the remaining bytes.
    pub fn view<T: Element>(&self) -> MulticastView<T> {
        MulticastView::new(self.address(), self.bytes() / size_of::<T>())
    }
}

impl<T> Clone for MulticastView<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for MulticastView<T> {}

impl<T> PartialEq for MulticastView<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.address, self.len) == (other.address, other.len)
    }
}

impl<T> Eq for MulticastView<T> {}

impl<T> fmt::Debug for MulticastView<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MulticastView({} x {} at {:#x})", self.len, std::any::type_name::<T>(), self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multicast_view_for_kernels_has_a_fixed_layout() {
        assert_eq!((size_of::<MulticastView<f64>>(), align_of::<MulticastView<u8>>()), (16, 8));
        assert_eq!(core::mem::offset_of!(MulticastView<u8>, len), 8);
    }

    #[test]
    fn multicast_view_refuses_indices_and_slices_out_of_bounds() {
        let view = MulticastView::<u32>::new(4096, 10);
        assert_eq!((view.address_of(9), view.address_of(10), view.address_of(usize::MAX)), (Some(4096 + 36), None, None));
        let part = view.slice(4..6).expect("the range is within the view");
        assert_eq!((part.address(), part.len(), part.address_of(2)), (4096 + 16, 2, None));
        assert!(view.slice(10..10).is_ok_and(|none| none.is_empty()));
        assert!(view.slice(4..11).is_err() && part.slice(0..3).is_err());
    }
}
