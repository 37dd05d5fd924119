//! Views of symmetric memory: ranges that borrow a handle, and casts of a handle to another element
//! type.
//!
//! Invariant: a view refers to aligned elements within the allocation of its handle. \[S1\] in
//! `symmetric.rs` requires the same of all handles.
#![allow(unsafe_code)]

use crate::arguments::symmetric::Symmetric;
use crate::{Result, bounds};
use peerweave_types::Element;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, RangeBounds};

/// A range of symmetric memory that borrows a handle: see [`Symmetric::range`].
///
/// If `view` is a variable, `&view` is accepted wherever a `&Symmetric<T>` is accepted. For a view
/// that is created in the argument list, write `&*x.range(0..2)?`: because of the `?`, the compiler
/// does not convert `&x.range(0..2)?` to a `&Symmetric<T>`.
///
/// ```
/// use peerweave::{Rank, World};
///
/// # fn main() -> peerweave::Result<()> {
/// let world = World::from_env()?;
/// let (team, x) = (world.team(), world.alloc_zeroed::<u32>(4)?);
/// let view = x.range(2..4)?;
/// team.put_blocking(&[3, 4], &view, Rank::new(0))?;
/// team.put_blocking(&[1, 2], &*x.range(0..2)?, Rank::new(0))?;
/// team.barrier_blocking()?;
/// assert_eq!(x.to_vec()?, if world.my_pe().get() == 0 { [1, 2, 3, 4] } else { [0; 4] });
/// x.release()?; // collective, like the allocation
/// assert!(world.finalize()?.is_clean());
/// # Ok(())
/// # }
/// ```
pub struct SymmetricRange<'a, T> {
    /// A bitwise copy of the borrowed handle, narrowed to the range. The copy does not increment
    /// the allocation's reference count, so it must never be dropped.
    handle: ManuallyDrop<Symmetric<T>>,
    borrowed: PhantomData<&'a Symmetric<T>>,
}

impl<T> Deref for SymmetricRange<'_, T> {
    type Target = Symmetric<T>;

    #[inline(always)]
    fn deref(&self) -> &Symmetric<T> {
        &self.handle
    }
}

impl<T> fmt::Debug for SymmetricRange<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: Element> Symmetric<T> {
    /// Borrows a range of this handle's elements, for an operation.
    ///
    /// Unlike [`Symmetric::slice`], this call does not change the reference count of the
    /// allocation. Loops over small ranges are therefore faster, especially if several threads run
    /// them. To keep a handle to a range, use `slice`.
    ///
    /// ```
    /// use peerweave::World;
    ///
    /// # fn main() -> peerweave::Result<()> {
    /// let world = World::from_env()?;
    /// let team = world.team();
    /// let all = world.alloc_zeroed::<u32>(4 * team.size())?;
    /// let mine = 4 * team.my_rank().index();
    /// let part = all.range(mine..mine + 4)?;
    /// part.fill(7)?; // the elements of this PE alone
    /// team.all_gather_in_place_blocking(&all)?;
    /// assert_eq!(all.to_vec()?, vec![7; 4 * team.size()]);
    /// all.release()?; // collective, like the allocation
    /// assert!(world.finalize()?.is_clean());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) if the range does not lie within this handle.
    #[inline]
    pub fn range(&self, range: impl RangeBounds<usize>) -> Result<SymmetricRange<'_, T>> {
        let (start, len) = bounds::range("range", self.len(), &range)?;
        // SAFETY: the copy of this handle is never dropped, and no method moves the copy out of the
        // view. The copy shares the reference to the allocation that `self` owns, and `self`
        // outlives the view, which borrows it.
        let mut handle = ManuallyDrop::new(unsafe { std::ptr::read(self) });
        handle.narrow(start, len);
        Ok(SymmetricRange { handle, borrowed: PhantomData })
    }

    /// Returns a handle to the same bytes, as elements of type `U`.
    ///
    /// Every bit pattern is a value of every element type, so a cast is always safe.
    /// [`Symmetric::release`] accepts the result if the result covers the whole allocation.
    ///
    /// ```
    /// use peerweave::{ReduceOp, World};
    ///
    /// # fn main() -> peerweave::Result<()> {
    /// let world = World::from_env()?;
    /// let bytes = world.alloc_zeroed::<u8>(64)?; // one buffer for a header and numbers
    /// let (header, numbers) = (bytes.slice(..8)?.cast::<u64>()?, bytes.slice(8..)?.cast::<f32>()?);
    /// header.store(0, 3)?;
    /// numbers.fill(0.5)?;
    /// world.team().all_reduce_in_place_blocking(&numbers, ReduceOp::Sum)?;
    /// assert_eq!(numbers.load(13)?, 0.5 * world.n_pes() as f32);
    /// assert_eq!(bytes.load(0)?, 3_u64.to_ne_bytes()[0]);
    /// bytes.release()?; // collective, like the allocation
    /// assert!(world.finalize()?.is_clean());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) if the size of the memory is not a multiple of the size of `U`.
    /// Also [`Misuse`](crate::Misuse) if the offset of the memory is not a multiple of the
    /// alignment of `U`.
    pub fn cast<U: Element>(&self) -> Result<Symmetric<U>> {
        const CALL: &str = "cast";
        let (bytes, size) = (self.len() * size_of::<T>(), size_of::<U>());
        if !bytes.is_multiple_of(size) {
            let found = format!("{bytes} bytes long (a new element has {size} bytes)");
            return Err(bounds::wrong_value(CALL, "self", found, "a multiple of the size of a new element"));
        }
        let (offset, align) = (self.offset().0, align_of::<U>());
        if !offset.is_multiple_of(align as u64) {
            let found = format!("at offset {offset} (a new element has an alignment of {align} bytes)");
            return Err(bounds::wrong_value(CALL, "self", found, "an offset that is a multiple of this alignment"));
        }
        Ok(self.retyped(bytes / size))
    }
}
