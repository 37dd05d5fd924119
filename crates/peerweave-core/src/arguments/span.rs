//! The memory arguments of operations: the traits [`Source`] for memory that is read and [`Dest`]
//! for memory that is written, and the forms of these traits for stream-ordered operations.
//!
//! This module checks nothing. Invariant: while an argument lives, its [`Span`] refers to memory
//! that is valid for reads, and also for writes if the argument is a [`Dest`]. The traits are
//! sealed, so only types of this crate can break this invariant.
#![allow(private_interfaces, reason = "only methods of sealed traits use `Span`, so only this crate uses `Span`")]

use crate::arguments::buffer::{Buffer, Memory};
use crate::arguments::on_device::OnDevice;
use crate::arguments::symmetric::{Region, Symmetric};
use crate::arguments::view::SymmetricRange;
use crate::backend::{DeviceOwner, Held, Keep, Place};
use peerweave_types::{DType, Element, SingleElement};
use std::sync::Arc;

/// The memory of one argument, with the element type erased.
#[derive(Clone, Copy)]
pub(crate) struct Span<'a> {
    pub(crate) place: Place,
    /// The length of the memory, in elements.
    pub(crate) len: usize,
    pub(crate) dtype: DType,
    /// Number of values of type `dtype` in one element. An element such as an array or a complex
    /// number consists of several values.
    pub(crate) parts: usize,
    pub(crate) owner: Owner<'a>,
}

impl Span<'_> {
    /// Returns the size of an element, in bytes.
    #[inline(always)]
    pub(crate) fn element_bytes(&self) -> usize {
        self.parts * self.dtype.size_bytes()
    }

    #[inline(always)]
    pub(crate) fn bytes(&self) -> usize {
        self.len * self.element_bytes()
    }

    /// Returns the span of `count` elements, starting at element `start`. These elements must lie
    /// within this span.
    pub(crate) fn range(self, start: usize, count: usize) -> Self {
        // The start of an empty part may be any number, even one outside the span.
        let start = if count == 0 { 0 } else { start };
        Self { place: self.place.plus(start * self.element_bytes()), len: count, ..self }
    }

    /// Returns part `index` of this span, which consists of parts of `count` elements each.
    #[inline(always)]
    pub(crate) fn part(self, index: usize, count: usize) -> Self {
        Self { place: self.place.plus(index * count * self.element_bytes()), len: count, ..self }
    }

    /// Returns whether the two spans share a byte.
    #[inline(always)]
    pub(crate) fn overlaps(&self, other: &Span<'_>) -> bool {
        let (first, second) = match (self.place, other.place) {
            (Place::Symmetric(first), Place::Symmetric(second)) => (first.0, second.0),
            (Place::Private(first), Place::Private(second)) => (first as u64, second as u64),
            (Place::Device { address: first, ordinal: on }, Place::Device { address: second, ordinal }) if on == ordinal => {
                (first, second)
            }
            _ => return false,
        };
        let (first_end, second_end) = (first + self.bytes() as u64, second + other.bytes() as u64);
        first < second_end && second < first_end && first < first_end && second < second_end
    }
}

/// The owner that keeps the memory of an argument alive.
#[derive(Clone, Copy)]
pub(crate) enum Owner<'a> {
    /// The caller of a blocking call. The call borrows the memory from the caller until it returns,
    /// so nothing else must keep the memory alive. In an array of owners, `Caller` also marks an
    /// unused entry.
    Caller,
    Region(&'a Arc<Region>),
    Memory(&'a Arc<Memory>),
    Device(&'a Arc<dyn DeviceOwner>),
}

impl Owner<'_> {
    pub(crate) fn hold(self) -> Held {
        match self {
            Self::Caller => Held::Nothing,
            Self::Region(region) => Held::Memory(Arc::<Region>::clone(region)),
            Self::Memory(memory) => Held::Memory(Arc::<Memory>::clone(memory)),
            Self::Device(owner) => Held::Device(Arc::clone(owner)),
        }
    }
}

/// Returns a value that contains clones of `owners`. While a stream holds this value, the memory of
/// the owners stays allocated.
#[inline]
pub(crate) fn keep(owners: [Owner<'_>; 3]) -> Keep {
    Keep::few(owners.map(Owner::hold))
}

mod sealed {
    use super::Span;

    pub trait Argument<T> {
        #[doc(hidden)]
        fn span(&mut self) -> Span<'_>;
    }

    pub trait Maybe<T> {}
}

pub(crate) use sealed::Argument;

/// Memory that an operation reads: `&Symmetric<T>`, `&Buffer<T>` or `&OnDevice<T>`. Blocking forms
/// also take `&[T]`, `&Vec<T>`, `&[T; N]`, and `&x` for one element.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be read by an operation on elements of type `{T}`",
    note = "pass `&Symmetric<T>`, `&Buffer<T>` or `&OnDevice<T>`; blocking forms also accept `&[T]`, `&Vec<T>`, `&[T; N]` and `&T`"
)]
pub trait Source<T: Element>: sealed::Argument<T> {}

/// Memory that an operation writes: `&Symmetric<T>`, `&Buffer<T>` or `&OnDevice<T>`. Blocking forms
/// also take `&mut [T]`, `&mut Vec<T>`, `&mut [T; N]`, and `&mut x` for one element.
///
/// In-place forms, which read and write the same memory, take a `Dest`.
///
/// # Variables that are references
/// Passing a `&mut [T]` variable to a generic parameter moves the reference: Rust reborrows
/// automatically only if the parameter's declared type is a reference. To use the variable again
/// after the call, pass `&mut *buffer` or `&mut buffer`:
/// ```
/// use peerweave::{Rank, Team, World};
///
/// /// Receives the two halves of `into` from two ranks.
/// fn from_two(team: &Team, mut into: &mut [u32], [first, second]: [Rank; 2]) -> peerweave::Result<()> {
///     team.broadcast_in_place_blocking(&mut into, first)?;
///     team.broadcast_in_place_blocking(&mut into[2..], second)?;
///     team.broadcast_in_place_blocking(into, first) // the last use may move it
/// }
///
/// # fn main() -> peerweave::Result<()> {
/// let world = World::from_env()?;
/// let mut mine = [world.my_pe().get() + 1; 4];
/// from_two(world.team(), &mut mine, [Rank::new(0); 2])?;
/// let mut largest = mine[0]; // one element
/// world.team().broadcast_in_place_blocking(&mut largest, Rank::new(0))?;
/// assert_eq!((mine, largest), ([1; 4], 1));
/// assert!(world.finalize()?.is_clean());
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be written by an operation on elements of type `{T}`",
    note = "pass `&Symmetric<T>`, `&Buffer<T>` or `&OnDevice<T>`; blocking forms also accept `&mut [T]`, `&mut Vec<T>`, `&mut [T; N]` and `&mut T`"
)]
pub trait Dest<T: Element>: sealed::Argument<T> {}

/// Memory that a stream-ordered operation may read: `&Symmetric<T>`, `&Buffer<T>` or
/// `&OnDevice<T>`. The stream keeps the memory alive until the operation has ended.
///
/// Slices are not accepted, because the operation could outlive the borrow:
/// ```compile_fail,E0277
/// # use peerweave::{Rank, World};
/// # let world = World::from_env().unwrap();
/// # let (stream, x) = (world.stream().unwrap(), world.alloc::<f32>(2).unwrap());
/// world.team().put(&stream, &[1.0f32, 2.0], &x, Rank::new(0)).unwrap();
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be read by a stream-ordered operation on elements of type `{T}`",
    note = "a stream must keep the memory of its operations alive: pass `&Symmetric<T>`, `&Buffer<T>` or `&OnDevice<T>`, or call the `_blocking` form"
)]
pub trait StreamSource<T: Element>: Source<T> {}

/// Memory that a stream-ordered operation may write: `&Symmetric<T>`, `&Buffer<T>` or
/// `&OnDevice<T>`. The stream keeps the memory alive until the operation has ended.
///
/// Slices are not accepted, because the operation could outlive the borrow:
/// ```compile_fail,E0277
/// # use peerweave::{ReduceOp, World};
/// # let world = World::from_env().unwrap();
/// # let (stream, x) = (world.stream().unwrap(), world.alloc::<f32>(2).unwrap());
/// let mut sum = vec![0.0f32; 2];
/// world.team().all_reduce(&stream, &x, &mut sum, ReduceOp::Sum).unwrap();
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be written by a stream-ordered operation on elements of type `{T}`",
    note = "a stream must keep the memory of its operations alive: pass `&Symmetric<T>`, `&Buffer<T>` or `&OnDevice<T>`, or call the `_blocking` form"
)]
pub trait StreamDest<T: Element>: Dest<T> {}

/// Memory that only the root of an operation reads: any [`Source`], or an `Option` that contains a
/// [`Source`].
///
/// On other ranks, the operation ignores the argument, which may be [`none`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be read at the root of an operation on elements of type `{T}`",
    note = "pass `&Symmetric<T>`, `&Buffer<T>` or `&OnDevice<T>`; blocking forms also accept `&[T]`, `&Vec<T>`, `&[T; N]` and `&T`; each of these types may be inside an `Option`; ranks other than the root may pass `none()`"
)]
pub trait MaybeSource<T: Element>: sealed::Maybe<T> {
    /// Type of the memory that the root passes: `Self`, or the type inside the `Option`.
    type Argument: Source<T>;
    #[doc(hidden)]
    fn into_option(self) -> Option<Self::Argument>;
}

/// Memory that only the root of an operation writes: any [`Dest`], or an `Option` that contains a
/// [`Dest`].
///
/// On other ranks, the operation ignores the argument, which may be [`none`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be written at the root of an operation on elements of type `{T}`",
    note = "pass `&Symmetric<T>`, `&Buffer<T>` or `&OnDevice<T>`; blocking forms also accept `&mut [T]`, `&mut Vec<T>`, `&mut [T; N]` and `&mut T`; each of these types may be inside an `Option`; ranks other than the root may pass `none()`"
)]
pub trait MaybeDest<T: Element>: sealed::Maybe<T> {
    /// Type of the memory that the root passes: `Self`, or the type inside the `Option`.
    type Argument: Dest<T>;
    #[doc(hidden)]
    fn into_option(self) -> Option<Self::Argument>;
}

/// Returns a `None` that can be passed for an argument that only the root needs.
///
/// ```
/// use peerweave::{Rank, ReduceOp, World, none};
///
/// # fn main() -> peerweave::Result<()> {
/// let world = World::from_env()?;
/// let (team, root) = (world.team(), Rank::new(0));
/// let (mine, mut sum) = ([1.0f32; 8], [0.0; 8]);
/// if team.my_rank() == root {
///     team.reduce_blocking(&mine, &mut sum, ReduceOp::Sum, root)?;
///     assert_eq!(sum, [team.size() as f32; 8]);
/// } else {
///     team.reduce_blocking(&mine, none(), ReduceOp::Sum, root)?;
/// }
/// assert!(world.finalize()?.is_clean());
/// # Ok(())
/// # }
/// ```
pub fn none<T: Element>() -> Option<&'static Symmetric<T>> {
    None
}

macro_rules! source {
    ($([$($generics:tt)*] $t:ty, $self:ident => $span:expr;)*) => {$(
        impl<$($generics)*> sealed::Argument<T> for $t {
            #[inline(always)]
            fn span(&mut $self) -> Span<'_> {
                $span
            }
        }
        impl<$($generics)*> sealed::Maybe<T> for $t {}
    )*};
}

source! {
    [T: Element] &Symmetric<T>, self => Symmetric::span(self);
    [T: Element] &SymmetricRange<'_, T>, self => Symmetric::span(self);
    [T: Element] &Buffer<T>, self => Buffer::span(self);
    [T: Element] &OnDevice<T>, self => OnDevice::span(self);
    [T: Element] &[T], self => borrowed(self);
    [T: Element] &Vec<T>, self => borrowed(self);
    [T: Element, const N: usize] &[T; N], self => borrowed(self.as_slice());
    [T: SingleElement] &T, self => borrowed(std::slice::from_ref(*self));
    [T: Element] &mut [T], self => borrowed_mut(self);
    [T: Element] &mut &mut [T], self => borrowed_mut(self);
    [T: Element] &mut Vec<T>, self => borrowed_mut(self);
    [T: Element, const N: usize] &mut [T; N], self => borrowed_mut(self.as_mut_slice());
    [T: SingleElement] &mut T, self => borrowed_mut(std::slice::from_mut(*self));
}

#[inline(always)]
pub(crate) fn borrowed<T: Element>(slice: &[T]) -> Span<'_> {
    // [`Place::Private`] holds a `*mut` pointer, but operations only read a source.
    let place = Place::Private(slice.as_ptr().cast_mut().cast());
    Span { place, len: slice.len(), dtype: T::DTYPE, parts: T::PARTS, owner: Owner::Caller }
}

#[inline(always)]
pub(crate) fn borrowed_mut<T: Element>(slice: &mut [T]) -> Span<'_> {
    let place = Place::Private(slice.as_mut_ptr().cast());
    Span { place, len: slice.len(), dtype: T::DTYPE, parts: T::PARTS, owner: Owner::Caller }
}

macro_rules! maybe {
    ($maybe:ident as $direct:ident: $([$($generics:tt)*] $t:ty;)*) => {
        $(
            impl<$($generics)*> $direct<T> for $t {}
            impl<$($generics)*> $maybe<T> for $t {
                type Argument = Self;
                #[inline(always)]
                fn into_option(self) -> Option<Self> {
                    Some(self)
                }
            }
        )*
        impl<T: Element, A: $direct<T>> $maybe<T> for Option<A> {
            type Argument = A;
            #[inline(always)]
            fn into_option(self) -> Self {
                self
            }
        }
    };
}

maybe! { MaybeSource as Source:
    [T: Element] &Symmetric<T>;
    [T: Element] &SymmetricRange<'_, T>;
    [T: Element] &Buffer<T>;
    [T: Element] &OnDevice<T>;
    [T: Element] &[T];
    [T: Element] &Vec<T>;
    [T: Element, const N: usize] &[T; N];
    [T: SingleElement] &T;
}

maybe! { MaybeDest as Dest:
    [T: Element] &Symmetric<T>;
    [T: Element] &SymmetricRange<'_, T>;
    [T: Element] &Buffer<T>;
    [T: Element] &OnDevice<T>;
    [T: Element] &mut [T];
    [T: Element] &mut &mut [T];
    [T: Element] &mut Vec<T>;
    [T: Element, const N: usize] &mut [T; N];
    [T: SingleElement] &mut T;
}

impl<T, A> sealed::Maybe<T> for Option<A> {}

impl<T: Element> StreamSource<T> for &Symmetric<T> {}
impl<T: Element> StreamSource<T> for &SymmetricRange<'_, T> {}
impl<T: Element> StreamSource<T> for &Buffer<T> {}
impl<T: Element> StreamSource<T> for &OnDevice<T> {}
impl<T: Element> StreamDest<T> for &Symmetric<T> {}
impl<T: Element> StreamDest<T> for &SymmetricRange<'_, T> {}
impl<T: Element> StreamDest<T> for &Buffer<T> {}
impl<T: Element> StreamDest<T> for &OnDevice<T> {}

/// Returns the span of `argument`; `None` if the caller passed no argument.
#[inline(always)]
pub(crate) fn maybe_span<T, A: Argument<T>>(argument: &mut Option<A>) -> Option<Span<'_>> {
    argument.as_mut().map(A::span)
}
