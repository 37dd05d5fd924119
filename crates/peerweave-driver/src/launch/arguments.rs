//! The arguments of a kernel launch. [`Arguments`] borrows the arguments and stores their
//! addresses.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;

use peerweave_types::{KernelArg, KernelArgs};

/// The arguments of a kernel launch, in the order of the kernel's parameters. The arguments are
/// borrowed until the launch returns. The launch copies the values of the arguments.
///
/// ```
/// use peerweave_driver::launch::Arguments;
///
/// let (context, rest) = (0x1000_u64, (7_u32, 2.5_f64));
/// let arguments = Arguments::new().with(&context).with_all(&rest);
/// assert_eq!(arguments.len(), 3);
/// ```
#[derive(Clone)]
pub struct Arguments<'a> {
    few: [Place; FEW],
    /// Number of used elements of `few`.
    len: usize,
    /// All arguments, if there are more than [`FEW`]; otherwise empty.
    more: Vec<Place>,
    borrowed: PhantomData<&'a ()>,
}

/// Maximum number of arguments that are stored without a heap allocation.
pub(super) const FEW: usize = 12;

#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) address: *const c_void,
    pub(super) bytes: usize,
    pub(super) alignment: usize,
}

impl Default for Arguments<'_> {
    fn default() -> Self {
        const NONE: Place = Place { address: std::ptr::null(), bytes: 0, alignment: 1 };
        Self { few: [NONE; FEW], len: 0, more: Vec::new(), borrowed: PhantomData }
    }
}

impl<'a> Arguments<'a> {
    /// Creates an empty list of arguments.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one argument.
    #[must_use]
    pub fn with<T: KernelArg>(mut self, argument: &'a T) -> Self {
        let address = std::ptr::from_ref(argument).cast();
        self.push(Place { address, bytes: size_of::<T>(), alignment: align_of::<T>() });
        self
    }

    /// Adds each element of the tuple `arguments` as one argument.
    #[must_use]
    pub fn with_all<A: KernelArgs>(mut self, arguments: &'a A) -> Self {
        arguments.each(&mut |address, bytes, alignment| self.push(Place { address: address.cast(), bytes, alignment }));
        self
    }

    /// Adds the argument at `address`, which has the length `bytes` and the alignment `alignment`,
    /// both in bytes.
    ///
    /// # Safety
    /// While this value lives, `address` is the address of `bytes` initialised bytes with the
    /// layout of the kernel's parameter.
    #[must_use]
    pub unsafe fn with_raw(mut self, address: *const u8, bytes: usize, alignment: usize) -> Self {
        self.push(Place { address: address.cast(), bytes, alignment });
        self
    }

    fn push(&mut self, place: Place) {
        if self.more.is_empty() && self.len < FEW {
            self.few[self.len] = place;
            self.len += 1;
        } else {
            if self.more.is_empty() {
                self.more.extend_from_slice(&self.few);
            }
            self.more.push(place);
        }
    }

    /// Returns the number of arguments.
    pub fn len(&self) -> usize {
        self.places().len()
    }

    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn places(&self) -> &[Place] {
        if self.more.is_empty() { &self.few[..self.len] } else { &self.more }
    }
}

impl fmt::Debug for Arguments<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<usize> = self.places().iter().map(|place| place.bytes).collect();
        write!(f, "Arguments(sizes in bytes: {sizes:?})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_kept_for_any_number_of_kernel_arguments() {
        let values: Vec<u32> = (0..FEW as u32 + 3).collect();
        for len in [0, 1, FEW, FEW + 1, FEW + 3] {
            let arguments = values[..len].iter().fold(Arguments::new(), |arguments, value| arguments.with(value));
            let found: Vec<*const c_void> = arguments.places().iter().map(|place| place.address).collect();
            let expected: Vec<*const c_void> = values[..len].iter().map(|value| std::ptr::from_ref(value).cast()).collect();
            assert_eq!((found, arguments.len(), arguments.is_empty()), (expected, len, len == 0));
        }
    }
}
