//! Handles to signal words, and the changes that operations make to them.

use crate::arguments::span::{Owner, Span};
use crate::arguments::symmetric::{Region, Remote};
use crate::backend::Place;
use peerweave_types::{DType, SignalOp, SymOffset};
use std::sync::Arc;

/// One word of symmetric memory by which PEs notify each other.
///
/// [`Symmetric::<u64>::signal`](crate::Symmetric::signal) creates it. A clone is the same word.
///
/// If another PE waits for a word, change the word only by signals and atomics: puts and local
/// stores to it are not ordered after data.
#[derive(Clone, Debug)]
pub struct Signal {
    region: Arc<Region>,
    at: SymOffset,
}

impl Signal {
    #[inline]
    pub(crate) fn new(region: Arc<Region>, at: SymOffset) -> Self {
        Self { region, at }
    }

    /// Returns the offset of the word in the segment of every PE, in bytes.
    #[inline]
    pub fn offset(&self) -> SymOffset {
        self.at
    }

    /// Returns the update that sets the word to `value`.
    #[inline]
    pub fn set(&self, value: u64) -> SignalUpdate<'_> {
        self.update(value, SignalOp::Set)
    }

    /// Returns the update that adds `value` to the word, wrapping.
    #[inline]
    pub fn add(&self, value: u64) -> SignalUpdate<'_> {
        self.update(value, SignalOp::Add)
    }

    /// Returns the update that applies `op` with `value`.
    #[inline]
    pub fn update(&self, value: u64, op: SignalOp) -> SignalUpdate<'_> {
        SignalUpdate { signal: self, value, op }
    }

    #[inline]
    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    #[inline]
    pub(crate) fn span(&self) -> Span<'_> {
        Span { place: Place::Symmetric(self.at), len: 1, dtype: DType::U64, owner: Owner::Region(&self.region) }
    }

    #[inline]
    pub(crate) fn remote(&self) -> Remote<'_> {
        Remote { at: self.at, len: 1, dtype: DType::U64, region: &self.region }
    }
}

/// An update of a signal word. [`Signal::set`] and [`Signal::add`] create it.
#[derive(Clone, Copy, Debug)]
#[must_use = "an update takes effect only by `Team::signal` or `Team::put_signal`"]
pub struct SignalUpdate<'a> {
    pub(crate) signal: &'a Signal,
    pub(crate) value: u64,
    pub(crate) op: SignalOp,
}
