//! Handles to signal words, and the changes that operations make to them.

use crate::arguments::span::{Owner, Span};
use crate::arguments::symmetric::{Region, Remote};
use crate::backend::Place;
use peerweave_types::{DType, SignalOp, SymOffset};
use std::sync::Arc;

/// One word of symmetric memory by which PEs tell each other of progress.
///
/// Made by [`Symmetric::<u64>::signal`](Symmetric::signal). A clone is the same word.
///
/// Change a word that is awaited only by signals and atomics: what puts and local stores do to it is not ordered after the data.
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

    /// Where the word lies in the segment of every PE, in bytes.
    #[inline]
    pub fn offset(&self) -> SymOffset {
        self.at
    }

    /// The change after which the word is `value`.
    #[inline]
    pub fn set(&self, value: u64) -> SignalUpdate<'_> {
        self.update(value, SignalOp::Set)
    }

    /// The change that adds `value` to the word; it wraps.
    #[inline]
    pub fn add(&self, value: u64) -> SignalUpdate<'_> {
        self.update(value, SignalOp::Add)
    }

    /// The change that `op` and `value` describe.
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

/// A change of a signal word: which, how, by what. Made by [`Signal::set`] and [`Signal::add`].
#[derive(Clone, Copy, Debug)]
#[must_use = "a change is made by `Team::signal` or `Team::put_signal`"]
pub struct SignalUpdate<'a> {
    pub(crate) signal: &'a Signal,
    pub(crate) value: u64,
    pub(crate) op: SignalOp,
}
