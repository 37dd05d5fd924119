//! Wait operations and test operations on memory words of this PE, as plain data.

use crate::backend::error::AwaitedWord;
use peerweave_types::{Compare, DType, SymOffset};
use std::sync::Arc;

/// A wait for contiguous words in this PE's symmetric memory, or a test of these words.
#[derive(Clone, Debug)]
pub struct WaitUntil {
    /// The offset of the first word in symmetric memory, a multiple of the size of a word.
    pub at: SymOffset,
    /// The number of words.
    pub count: usize,
    /// The type of the words: a signed or unsigned integer of 2, 4 or 8 bytes.
    pub dtype: DType,
    /// For each word, whether the word is ignored. `None` if no word is ignored.
    pub exclude: Option<Arc<[bool]>>,
    /// How each word is compared with its value in `values`.
    pub compare: Compare,
    /// The values with which the words are compared.
    pub values: WaitValues,
    /// How many words must satisfy the comparison.
    pub until: Until,
    /// The index of the word that [`Until::Any`] checks first. The index is less than `count`, or 0
    /// if there are no words.
    pub start: usize,
    /// Whether the operation waits for the condition or tests it once.
    pub mode: WaitMode,
}

/// The values with which a wait compares words. Each value is the bits of an integer of the words'
/// type, zero-extended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitValues {
    /// All words are compared with this value.
    Same(u64),
    /// Each word is compared with the value at its index.
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

    /// Returns whether the word at `index` satisfies the comparison. `word` contains the bits of
    /// that word, zero-extended to 64 bits.
    #[inline]
    pub fn holds(&self, index: usize, word: u64) -> bool {
        self.compare.holds_as(self.dtype, word, self.value(index))
    }

    /// Returns whether the word at `index` is ignored.
    #[inline]
    pub fn excludes(&self, index: usize) -> bool {
        self.exclude.as_ref().is_some_and(|exclude| exclude[index])
    }

    /// Returns a description of the first word that does not satisfy the comparison, or `None` if
    /// there is no such word. The error of a timed-out wait contains the description. `load(i)`
    /// returns the bits of word `i`, zero-extended.
    pub fn unsatisfied(&self, load: impl Fn(usize) -> u64) -> Option<AwaitedWord> {
        let words = (0..self.count).filter(|&i| !self.excludes(i)).map(|i| (i, load(i)));
        words.filter(|&(i, found)| !self.holds(i, found)).map(|(i, found)| self.awaited(i, found)).next()
    }

    /// Returns a description of the word at `index`, for the error of this wait. `found` contains
    /// the bits of that word, zero-extended to 64 bits.
    pub fn awaited(&self, index: usize, found: u64) -> AwaitedWord {
        AwaitedWord {
            index: (self.count > 1).then_some(index),
            offset: self.at.plus((index * self.dtype.size_bytes()) as u64),
            dtype: self.dtype,
            found,
            compare: self.compare,
            value: self.value(index),
        }
    }

    /// Returns the name of the wait call for this condition, such as `wait_until_all`. A test
    /// ([`WaitMode::Test`]) has the name of the wait for the same condition.
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

/// The condition on the words of a wait or test. Excluded words are ignored. If all words are
/// excluded, the condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// All words satisfy the comparison. If the wait is for one word, the outcome is the value of
    /// the word. Otherwise the outcome is unspecified.
    All,
    /// At least one word satisfies the comparison. The outcome is the index of one such word.
    /// Indices from [`WaitUntil::start`] to the end are checked first, then the indices before
    /// `start`.
    Any,
    /// At least one word satisfies the comparison. The outcome is the indices of all such words.
    Some,
}

/// Whether an operation waits for a condition or tests it once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitMode {
    /// The operation waits until the condition holds or the deadline passes.
    Wait,
    /// The operation tests the condition once. The outcome is
    /// [`Outcome::NotYet`](crate::backend::Outcome::NotYet) if the condition does not hold.
    Test,
}
