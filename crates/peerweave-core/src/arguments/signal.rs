//! Handles to signal words, and the changes that operations make to them.

use crate::arguments::span::{Owner, Span};
use crate::arguments::symmetric::{Region, Remote};
use crate::backend::Place;
use peerweave_types::{DType, SignalOp, SymOffset};
use std::sync::Arc;

/// One word of symmetric memory by which PEs notify each other.
///
/// [`Symmetric::<u64>::signal`](crate::Symmetric::signal) borrows a signal from a handle, at no
/// cost. A struct or thread that outlives the handle stores a clone of the handle, a
/// [`Symmetric<u64>`](crate::Symmetric), and borrows the signal from the clone.
///
/// If another PE waits for a word, change the word only by signals and atomics. A put or a local
/// store to the word is not ordered after the data that it announces.
///
/// ```
/// use peerweave::{Compare, World};
///
/// # fn main() -> peerweave::Result<()> {
/// let world = World::from_env()?;
/// let words = world.alloc_zeroed::<u64>(1)?;
/// let waiter = std::thread::spawn({
///     let (team, words) = (world.team().clone(), words.clone());
///     move || team.wait_until_blocking(&words.signal(0)?, Compare::Ge, 1)
/// });
/// let update = words.signal(0)?.add(1);
/// world.team().signal_blocking(update, world.team().my_rank())?;
/// assert_eq!(waiter.join().expect("it does not panic")?, 1);
/// words.release()?; // collective, like the allocation
/// assert!(world.finalize()?.is_clean());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Signal<'a> {
    region: &'a Arc<Region>,
    at: SymOffset,
}

impl<'a> Signal<'a> {
    #[inline]
    pub(crate) fn new(region: &'a Arc<Region>, at: SymOffset) -> Self {
        Self { region, at }
    }

    /// Returns the offset of the word in the segment of every PE, in bytes.
    #[inline]
    pub fn offset(&self) -> SymOffset {
        self.at
    }

    /// Returns the update that sets the word to `value`.
    #[inline]
    pub fn set(&self, value: u64) -> SignalUpdate<'a> {
        self.update(value, SignalOp::Set)
    }

    /// Returns the update that adds `value` to the word, wrapping.
    #[inline]
    pub fn add(&self, value: u64) -> SignalUpdate<'a> {
        self.update(value, SignalOp::Add)
    }

    /// Returns the update that applies `op` with `value` to the word.
    #[inline]
    pub fn update(&self, value: u64, op: SignalOp) -> SignalUpdate<'a> {
        SignalUpdate { signal: *self, value, op }
    }

    #[inline]
    pub(crate) fn region(self) -> &'a Region {
        self.region
    }

    #[inline]
    pub(crate) fn span(self) -> Span<'a> {
        Span { place: Place::Symmetric(self.at), len: 1, dtype: DType::U64, parts: 1, owner: Owner::Region(self.region) }
    }

    #[inline]
    pub(crate) fn remote(self) -> Remote<'a> {
        Remote { at: self.at, len: 1, dtype: DType::U64, parts: 1, region: self.region }
    }
}

/// An update of a signal word. [`Signal::set`], [`Signal::add`] and [`Signal::update`] create it.
#[derive(Clone, Copy, Debug)]
#[must_use = "an update has no effect until it is passed to `Team::signal` or `Team::put_signal`"]
pub struct SignalUpdate<'a> {
    pub(crate) signal: Signal<'a>,
    pub(crate) value: u64,
    pub(crate) op: SignalOp,
}
