//! Handles to signal words, and updates of signal words.

use crate::arguments::span::{Owner, Span};
use crate::arguments::symmetric::{Region, Remote};
use crate::backend::Place;
use peerweave_types::{DType, SignalOp, SymOffset};
use std::sync::Arc;

/// A 64-bit word in symmetric memory that PEs update to notify each other.
///
/// [`Symmetric::<u64>::signal`](crate::Symmetric::signal) borrows a signal from a handle, at no
/// cost. A struct or thread that may outlive the handle stores a clone of the handle, and borrows
/// the signal from the clone.
///
/// If another PE waits for a word, change the word only by signals and atomics. The word usually
/// announces that data has arrived. After a put or a local store to the word, the other PE may see
/// the new value of the word before the data has arrived.
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

    /// Returns the byte offset of the word in symmetric memory. The offset is the same on every PE.
    #[inline]
    pub fn offset(&self) -> SymOffset {
        self.at
    }

    /// Returns an update that sets the word to `value`.
    #[inline]
    pub fn set(&self, value: u64) -> SignalUpdate<'a> {
        self.update(value, SignalOp::Set)
    }

    /// Returns an update that adds `value` to the word, wrapping on overflow.
    #[inline]
    pub fn add(&self, value: u64) -> SignalUpdate<'a> {
        self.update(value, SignalOp::Add)
    }

    /// Returns an update that applies `op` to the word, with the operand `value`.
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

/// An update of a signal word, created by [`Signal::set`], [`Signal::add`] or [`Signal::update`].
#[derive(Clone, Copy, Debug)]
#[must_use = "an update has no effect until it is passed to `Team::signal` or `Team::put_signal`"]
pub struct SignalUpdate<'a> {
    pub(crate) signal: Signal<'a>,
    pub(crate) value: u64,
    pub(crate) op: SignalOp,
}
