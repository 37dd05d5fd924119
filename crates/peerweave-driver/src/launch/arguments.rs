//! The arguments of a launch, passed by address.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;

use peerweave_types::{KernelArg, KernelArgs};

/// The arguments of a kernel in order, borrowed until the launch returns. The driver copies them.
///
/// ```
/// use peerweave_driver::launch::Arguments;
///
/// let (context, rest) = (0x1000_u64, (7_u32, 2.5_f64));
/// let arguments = Arguments::new().with(&context).with_all(&rest);
/// assert_eq!(arguments.len(), 3);
/// ```
#[derive(Clone, Default)]
pub struct Arguments<'a> {
    places: Vec<Place>,
    borrowed: PhantomData<&'a ()>,
}

#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) address: *const c_void,
    pub(super) bytes: usize,
    pub(super) alignment: usize,
}

impl<'a> Arguments<'a> {
    /// Creates an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an argument.
    #[must_use]
    pub fn with<T: KernelArg>(mut self, argument: &'a T) -> Self {
        let address = std::ptr::from_ref(argument).cast();
        self.places.push(Place { address, bytes: size_of::<T>(), alignment: align_of::<T>() });
        self
    }

    /// Adds the arguments of a tuple.
    #[must_use]
    pub fn with_all<A: KernelArgs>(mut self, arguments: &'a A) -> Self {
        arguments.each(&mut |address, bytes, alignment| self.places.push(Place { address: address.cast(), bytes, alignment }));
        self
    }

    /// Adds an argument by its address, length and alignment in bytes.
    ///
    /// # Safety
    /// There are `bytes` initialised bytes at `address` while this value lives, with the layout of
    /// the kernel's parameter.
    #[must_use]
    pub unsafe fn with_raw(mut self, address: *const u8, bytes: usize, alignment: usize) -> Self {
        self.places.push(Place { address: address.cast(), bytes, alignment });
        self
    }

    /// Returns the number of arguments.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub(super) fn places(&self) -> &[Place] {
        &self.places
    }
}

impl fmt::Debug for Arguments<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<usize> = self.places.iter().map(|place| place.bytes).collect();
        write!(f, "Arguments(of {sizes:?} bytes)")
    }
}
