//! The grid shape and the arguments of a kernel launch.

use crate::{DeviceSlice, Plain, SymOffset, SymSlice};

/// The three dimensions of a grid or a block, or a position in a grid or a block.
///
/// ```
/// use peerweave_types::Dim3;
///
/// assert_eq!(Dim3::from(32), Dim3 { x: 32, y: 1, z: 1 });
/// assert_eq!(Dim3::from((8, 4)).count(), 32);
/// assert_eq!(Dim3::from((8, 4)).linear(Dim3 { x: 3, y: 2, z: 0 }), 19);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Dim3 {
    /// The first dimension, which varies fastest in a linear index.
    pub x: u32,
    /// The second dimension.
    pub y: u32,
    /// The third dimension, which varies slowest in a linear index.
    pub z: u32,
}

impl Dim3 {
    /// The first position in a grid or a block of any shape.
    pub const ZERO: Self = Self { x: 0, y: 0, z: 0 };
    /// The shape of a grid of one block, or of a block of one thread.
    pub const ONE: Self = Self { x: 1, y: 1, z: 1 };

    /// Returns whether a GPU supports a grid of this shape: 1 to (2³¹ - 1, 65535, 65535) blocks.
    #[inline]
    pub const fn is_grid(self) -> bool {
        self.count() > 0 && self.x <= i32::MAX as u32 && self.y <= 65535 && self.z <= 65535
    }

    /// Returns whether a GPU supports a block of this shape: 1 to (1024, 1024, 64) threads, and at
    /// most 1024 threads in total.
    #[inline]
    pub const fn is_block(self) -> bool {
        self.count() > 0 && self.x <= 1024 && self.y <= 1024 && self.z <= 64 && self.count() <= 1024
    }

    /// Returns the number of blocks or threads in this shape.
    #[inline]
    pub const fn count(self) -> u64 {
        self.x as u64 * self.y as u64 * self.z as u64
    }

    /// Returns the linear index of position `index` in this shape (x fastest, then y, then z).
    #[inline]
    pub const fn linear(self, index: Self) -> u32 {
        index.x + self.x * (index.y + self.y * index.z)
    }

    /// Returns the position that has this linear index, the inverse of [`Self::linear`].
    #[inline]
    pub const fn index(self, linear: u32) -> Self {
        Self { x: linear % self.x, y: linear / self.x % self.y, z: linear / self.x / self.y }
    }
}

impl core::fmt::Display for Dim3 {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "({}, {}, {})", self.x, self.y, self.z)
    }
}

impl From<u32> for Dim3 {
    #[inline]
    fn from(x: u32) -> Self {
        Self { x, y: 1, z: 1 }
    }
}

impl From<(u32, u32)> for Dim3 {
    #[inline]
    fn from((x, y): (u32, u32)) -> Self {
        Self { x, y, z: 1 }
    }
}

impl From<(u32, u32, u32)> for Dim3 {
    #[inline]
    fn from((x, y, z): (u32, u32, u32)) -> Self {
        Self { x, y, z }
    }
}

/// A team as a kernel argument: the team's index in the context's table of teams.
/// [`KernelTeam::WORLD`] is always valid. `peerweave_core::Team::kernel_team` and
/// `peerweave_cuda::Team::kernel_team` return the argument for any other team.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct KernelTeam(u32);

impl KernelTeam {
    /// The team of all PEs of the job.
    pub const WORLD: Self = Self(0);

    /// Creates the kernel argument for a team. `index` is the index of the team in the table
    /// [`KernelContext::teams`](crate::KernelContext).
    #[inline]
    pub const fn new(index: u32) -> Self {
        Self(index)
    }

    /// Returns the index of the team in the table [`KernelContext::teams`](crate::KernelContext).
    #[inline]
    pub const fn index(self) -> u32 {
        self.0
    }
}

/// A visitor of a kernel's arguments. The visitor is called once for each memory range and each
/// team in the arguments, before the launch is enqueued.
pub trait ArgVisitor {
    /// Visits a memory range of `bytes` bytes in symmetric memory. The range lies at `offset` in
    /// every PE's heap.
    fn symmetric(&mut self, offset: SymOffset, bytes: u64);

    /// Visits a memory range of `bytes` bytes at an address that the device can access.
    fn device(&mut self, address: u64, bytes: u64);

    /// Visits a team in the arguments: an argument of type [`KernelTeam`], or a field of an
    /// argument. By default, does nothing.
    fn team(&mut self, team: KernelTeam) {
        let _ = team;
    }
}

/// A type that a kernel takes as an argument, by value.
///
/// `#[derive(KernelArg)]` from `peerweave-macros` implements this trait for a `#[repr(C)]` struct
/// whose fields implement the trait.
///
/// # Safety
/// The layout of the type is the same on the host and in the kernel (`repr(C)` or a primitive
/// number). The type contains no reference and no host pointer. Its alignment is at most 16 bytes.
/// [`Self::visit`] passes every memory view and every team in the value to the visitor.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an argument of a kernel",
    note = "arguments are numbers, `SymSlice<T>`, `DeviceSlice<T>`, `KernelTeam`, arrays of these, and structs with `#[derive(KernelArg)]` and `#[repr(C)]`"
)]
pub unsafe trait KernelArg: Copy + Send + Sync + 'static {
    /// Passes each memory view and each team in this argument to the visitor, in order.
    fn visit(&self, visitor: &mut dyn ArgVisitor) {
        let _ = visitor;
    }
}

macro_rules! number_args {
    ($($t:ty),* $(,)?) => {$(
        // SAFETY: a primitive number, or a transparent wrapper of a number, has one layout
        // everywhere and refers to no memory.
        unsafe impl KernelArg for $t {}
    )*};
}

number_args!(
    i8,
    u8,
    i16,
    u16,
    i32,
    u32,
    i64,
    u64,
    i128,
    u128,
    f32,
    f64,
    bool,
    crate::f16,
    crate::bf16,
    crate::F8E4M3,
    crate::F8E5M2,
    crate::Pe,
    crate::Rank,
    SymOffset,
);

// SAFETY: a transparent wrapper of a number has one layout everywhere and refers to no memory.
// `visit` passes the team to the visitor.
unsafe impl KernelArg for KernelTeam {
    fn visit(&self, visitor: &mut dyn ArgVisitor) {
        visitor.team(*self);
    }
}

// SAFETY: an array of elements with one layout has one layout, and each element is visited.
unsafe impl<T: KernelArg, const N: usize> KernelArg for [T; N] {
    fn visit(&self, visitor: &mut dyn ArgVisitor) {
        for element in self {
            element.visit(visitor);
        }
    }
}

// SAFETY: `repr(C)`, two numbers of 64 bits; the view is visited.
unsafe impl<T: Plain> KernelArg for SymSlice<T> {
    fn visit(&self, visitor: &mut dyn ArgVisitor) {
        visitor.symmetric(self.offset(), self.size_bytes());
    }
}

// SAFETY: `repr(C)`, two numbers of 64 bits; the view is visited.
unsafe impl<T: Plain> KernelArg for DeviceSlice<T> {
    fn visit(&self, visitor: &mut dyn ArgVisitor) {
        visitor.device(self.address(), self.size_bytes());
    }
}

/// All arguments of a kernel: a tuple of up to 16 [`KernelArg`]s.
///
/// # Safety
/// Only tuples implement this trait. [`Self::each`] passes every element of the tuple once, in
/// order, with its address, size and alignment.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a tuple of arguments of a kernel",
    note = "a kernel has at most 16 arguments: pass more in a struct with `#[derive(KernelArg)]` and `#[repr(C)]`"
)]
pub unsafe trait KernelArgs: Copy + Send + Sync + 'static {
    /// Number of arguments of the kernel.
    const COUNT: usize;

    /// Calls `with(address, size, alignment)` for each argument, in order. The address points to
    /// the argument inside `self`. The size and the alignment are in bytes.
    fn each(&self, with: &mut dyn FnMut(*const u8, usize, usize));

    /// Passes each memory view and each team in the arguments to the visitor, in order.
    fn visit(&self, visitor: &mut dyn ArgVisitor);
}

macro_rules! tuple_args {
    ($($name:ident $index:tt),*) => {
        // SAFETY: each element of the tuple is given once, in order.
        unsafe impl<$($name: KernelArg),*> KernelArgs for ($($name,)*) {
            const COUNT: usize = [$($index),*].len();

            fn each(&self, with: &mut dyn FnMut(*const u8, usize, usize)) {
                let _ = &with;
                $(with(core::ptr::from_ref(&self.$index).cast(), size_of::<$name>(), align_of::<$name>());)*
            }

            fn visit(&self, visitor: &mut dyn ArgVisitor) {
                let _ = &visitor;
                $(self.$index.visit(visitor);)*
            }
        }
    };
}

// SAFETY: there is no argument.
unsafe impl KernelArgs for () {
    const COUNT: usize = 0;

    fn each(&self, _with: &mut dyn FnMut(*const u8, usize, usize)) {}

    fn visit(&self, _visitor: &mut dyn ArgVisitor) {}
}

tuple_args!(A0 0);
tuple_args!(A0 0, A1 1);
tuple_args!(A0 0, A1 1, A2 2);
tuple_args!(A0 0, A1 1, A2 2, A3 3);
tuple_args!(A0 0, A1 1, A2 2, A3 3, A4 4);
tuple_args!(A0 0, A1 1, A2 2, A3 3, A4 4, A5 5);
tuple_args!(A0 0, A1 1, A2 2, A3 3, A4 4, A5 5, A6 6);
tuple_args!(A0 0, A1 1, A2 2, A3 3, A4 4, A5 5, A6 6, A7 7);
tuple_args!(A0 0, A1 1, A2 2, A3 3, A4 4, A5 5, A6 6, A7 7, A8 8);
tuple_args!(A0 0, A1 1, A2 2, A3 3, A4 4, A5 5, A6 6, A7 7, A8 8, A9 9);
tuple_args!(A0 0, A1 1, A2 2, A3 3, A4 4, A5 5, A6 6, A7 7, A8 8, A9 9, A10 10);
tuple_args!(A0 0, A1 1, A2 2, A3 3, A4 4, A5 5, A6 6, A7 7, A8 8, A9 9, A10 10, A11 11);
tuple_args!(A0 0, A1 1, A2 2, A3 3, A4 4, A5 5, A6 6, A7 7, A8 8, A9 9, A10 10, A11 11, A12 12);
tuple_args!(A0 0, A1 1, A2 2, A3 3, A4 4, A5 5, A6 6, A7 7, A8 8, A9 9, A10 10, A11 11, A12 12, A13 13);
tuple_args!(A0 0, A1 1, A2 2, A3 3, A4 4, A5 5, A6 6, A7 7, A8 8, A9 9, A10 10, A11 11, A12 12, A13 13, A14 14);
tuple_args!(A0 0, A1 1, A2 2, A3 3, A4 4, A5 5, A6 6, A7 7, A8 8, A9 9, A10 10, A11 11, A12 12, A13 13, A14 14, A15 15);

#[cfg(test)]
mod tests {
    use super::*;

    /// A visitor for tests, which records up to four memory ranges. The second field is the number
    /// of recorded ranges. A range has three values: whether it is symmetric, its offset or
    /// address, and its length in bytes.
    #[derive(Default)]
    struct Seen([(bool, u64, u64); 4], usize);

    impl ArgVisitor for Seen {
        fn symmetric(&mut self, offset: SymOffset, bytes: u64) {
            self.0[self.1] = (true, offset.0, bytes);
            self.1 += 1;
        }

        fn device(&mut self, address: u64, bytes: u64) {
            self.0[self.1] = (false, address, bytes);
            self.1 += 1;
        }
    }

    #[test]
    fn tuple_of_kernel_arguments_is_visited_in_order() {
        // SAFETY: never handed to a kernel.
        let (sym, device) = unsafe { (SymSlice::<i32>::from_raw(SymOffset(8), 3), DeviceSlice::<u8>::from_raw(16, 5)) };
        let args = (1u8, sym, [device; 2], 2.5f64);
        let mut shapes = [(0, 0); 4];
        let mut n = 0;
        args.each(&mut |address, size, align| {
            assert_eq!(address as usize % align, 0);
            shapes[n] = (size, align);
            n += 1;
        });
        assert_eq!((n, shapes), (4, [(1, 1), (16, 8), (32, 8), (8, 8)]));
        let mut seen = Seen::default();
        KernelArgs::visit(&args, &mut seen);
        assert_eq!((seen.0, seen.1), ([(true, 8, 12), (false, 16, 5), (false, 16, 5), (false, 0, 0)], 3));
    }

    #[test]
    fn linear_indices_convert_back_to_positions() {
        let shape = Dim3::from((3, 4, 5));
        for linear in 0..60 {
            assert_eq!(shape.linear(shape.index(linear)), linear);
        }
    }
}
