//! Device memory that is not symmetric: allocated by other libraries or by the application.
//!
//! This module does not access the memory. Invariant: **\[D1\]** the elements of a handle stay
//! allocated while the owner of the memory lives. The caller of [`OnDevice::from_raw`] guarantees
//! this invariant.
#![allow(unsafe_code)]

use crate::arguments::span::{Owner, Span};
use crate::backend::{DeviceOwner, Place};
use crate::{Result, bounds};
use peerweave_types::Element;
use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::sync::Arc;

/// A handle to device memory that is not symmetric, such as memory that another library has
/// allocated. The handle can be passed to operations. The handle keeps the owner of the memory
/// alive.
///
/// A clone refers to the same memory. [`OnDevice::slice`] returns a handle to a part of the memory.
/// While an operation on the memory is pending, its stream also keeps the owner alive. The handles
/// can therefore be dropped before the operation ends. The memory must belong to the backend's
/// device ([`Caps::device`](crate::Caps::device)). Otherwise calls return an error and enqueue
/// nothing.
///
/// ```
/// use peerweave::backend::DeviceOwner;
/// use peerweave::{Error, OnDevice, ReduceOp, World};
/// use std::sync::Arc;
///
/// /// Frees the memory when it is dropped.
/// #[derive(Debug)]
/// struct Allocation;
/// impl DeviceOwner for Allocation {}
///
/// # fn main() -> peerweave::Result<()> {
/// let world = World::from_env()?;
/// // SAFETY: for this example nothing uses the memory: this world runs on the host.
/// let x = unsafe { OnDevice::<f32>::from_raw(0x1000, 4, 0, Arc::new(Allocation)) };
/// if world.caps().device.is_none() {
///     let refused = world.team().all_reduce_in_place_blocking(&x, ReduceOp::Sum).unwrap_err();
///     assert!(matches!(refused, Error::Unsupported { .. }));
/// }
/// assert!(world.finalize()?.is_clean());
/// # Ok(())
/// # }
/// ```
pub struct OnDevice<T> {
    owner: Arc<dyn DeviceOwner>,
    address: u64,
    /// The number of elements that this handle refers to.
    len: usize,
    ordinal: u32,
    element: PhantomData<fn() -> T>,
}

impl<T: Element> OnDevice<T> {
    /// Creates a handle to `len` elements at `address` on device `ordinal`. `owner` keeps the
    /// elements allocated.
    ///
    /// # Safety
    /// `address` points to `len` elements on that device, and is aligned for `T`. The elements stay
    /// allocated while `owner` or a clone of it lives. The caller allows device work to read and
    /// write the elements at any time between [`DeviceOwner::before`] and the end of an operation.
    pub unsafe fn from_raw(address: u64, len: usize, ordinal: u32, owner: Arc<dyn DeviceOwner>) -> Self {
        Self { owner, address, len, ordinal, element: PhantomData }
    }

    /// Returns the number of elements that the handle refers to.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the handle refers to no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the device address of the first element.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the ordinal of the device that holds the memory, as this process numbers devices.
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// Returns a handle to a range of the elements of this handle.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) if the range does not lie within this handle.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let (start, len) = bounds::range("slice", self.len, &range)?;
        let address = self.address + (start * size_of::<T>()) as u64;
        Ok(Self { owner: Arc::clone(&self.owner), address, len, ..*self })
    }

    #[inline]
    pub(crate) fn span(&self) -> Span<'_> {
        let place = Place::Device { address: self.address, ordinal: self.ordinal };
        Span { place, len: self.len, dtype: T::DTYPE, parts: T::PARTS, owner: Owner::Device(&self.owner) }
    }
}

/// Returns a new handle to the same elements.
impl<T> Clone for OnDevice<T> {
    fn clone(&self) -> Self {
        Self { owner: Arc::clone(&self.owner), ..*self }
    }
}

impl<T> fmt::Debug for OnDevice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, len, ordinal, .. } = self;
        let element = std::any::type_name::<T>();
        write!(f, "OnDevice({len} x {element} at {address:#x} of device {ordinal})")
    }
}
