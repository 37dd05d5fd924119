//! Waits for words of this PE.

use crate::backend::error::AwaitedWord;
use peerweave_types::{Compare, DType, SymOffset};
use std::sync::Arc;

/// A wait for contiguous words of this PE.
#[derive(Clone, Debug)]
pub struct WaitUntil {
    /// The first word, aligned to its size.
    pub at: SymOffset,
    /// The number of words.
    pub count: usize,
    /// Element type of the words: an integer of 2, 4 or 8 bytes, signed or unsigned.
    pub dtype: DType,
    /// Whether each word is ignored, one entry per word; `None` if no word is ignored.
    pub exclude: Option<Arc<[bool]>>,
    /// The comparison.
    pub compare: Compare,
    /// The values to compare with.
    pub values: WaitValues,
    /// The condition of the wait.
    pub until: Until,
    /// The index of the word that [`Until::Any`] looks at first, less than `count`; 0 if there are
    /// no words.
    pub start: usize,
    /// Whether the operation waits or tests once.
    pub mode: WaitMode,
}

/// The values with which a wait compares words: bits of the words' type, zero-extended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitValues {
    /// One value for all words.
    Same(u64),
    /// A value for each word.
    Each(Arc<[u64]>),
}

impl WaitUntil {
    /// Returns the value with which the word at `index` is compared.
    #[inline]
    pub fn value(&self, index: usize) -> u64 {
        match &self.values {
            WaitValues::Same(value) => *value,
            WaitValues::Each(values) => values[index],
        }
    }

    /// Returns whether the comparison of the word at `index`, whose zero-extended bits are `word`,
    /// holds.
    #[inline]
    pub fn holds(&self, index: usize, word: u64) -> bool {
        self.compare.holds_as(self.dtype, word, self.value(index))
    }

    /// Returns whether the word at `index` is ignored.
    #[inline]
    pub fn excludes(&self, index: usize) -> bool {
        self.exclude.as_ref().is_some_and(|exclude| exclude[index])
    }

    /// Returns the first word that does not satisfy the comparison, for the error of a deadline.
    /// `load` reads the word at an index, zero-extended.
    pub fn unsatisfied(&self, load: impl Fn(usize) -> u64) -> Option<AwaitedWord> {
        let words = (0..self.count).filter(|&i| !self.excludes(i)).map(|i| (i, load(i)));
        words.filter(|&(i, found)| !self.holds(i, found)).map(|(i, found)| self.awaited(i, found)).next()
    }

    fn awaited(&self, index: usize, found: u64) -> AwaitedWord {
        AwaitedWord {
            index: (self.count > 1).then_some(index),
            offset: self.at.plus((index * self.dtype.size_bytes()) as u64),
            dtype: self.dtype,
            found,
            compare: self.compare,
            value: self.value(index),
        }
    }

    /// Returns the name of the call that waits. For a test, returns the name of the wait for the
    /// same condition.
    pub fn call_name(&self) -> &'static str {
        match (self.until, &self.values) {
            (Until::All, WaitValues::Same(_)) if self.count == 1 => "wait_until",
            (Until::All, WaitValues::Same(_)) => "wait_until_all",
            (Until::Any, WaitValues::Same(_)) => "wait_until_any",
            (Until::Some, WaitValues::Same(_)) => "wait_until_some",
            (Until::All, WaitValues::Each(_)) => "wait_until_all_vector",
            (Until::Any, WaitValues::Each(_)) => "wait_until_any_vector",
            (Until::Some, WaitValues::Each(_)) => "wait_until_some_vector",
        }
    }
}

/// The condition of a wait for several words. Excluded words are ignored. If all words are
/// excluded, the condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// All words satisfy the comparison. The outcome of a wait for one word is the value of the
    /// word. The outcome of a wait for several words is unspecified.
    All,
    /// One word satisfies the comparison. The outcome is its index: the first one at or after
    /// [`WaitUntil::start`]; if there is none, the first one before it.
    Any,
    /// At least one word satisfies the comparison. The outcome is the indices of all such words.
    Some,
}

/// Whether an operation waits or tests once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitMode {
    /// Waits until the condition holds or the deadline passes.
    Wait,
    /// Tests once. The outcome is [`Outcome::NotYet`](crate::backend::Outcome::NotYet) if the
    /// condition does not hold.
    Test,
}
