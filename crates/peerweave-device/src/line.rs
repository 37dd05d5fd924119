//! A sequence word and the payload that it announces: what a slot and a mailbox are made of.
//!
//! When a line may be written again is not decided here: that is the protocol of [`crate::slot`] and [`crate::mailbox`].
//! Invariant: the payload that belongs to a sequence number is complete before the number can be seen.

use crate::Word;

/// A sequence word and the payload that it announces. Borrowed: where the words lie is the caller's choice, one cache line by
/// preference.
#[derive(Debug)]
pub struct Line<'a, W> {
    /// Says which payload is there.
    pub sequence: &'a W,
    /// The payload.
    pub payload: &'a [W],
}

impl<W> Clone for Line<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W> Copy for Line<'_, W> {}

impl<'a, W: Word> Line<'a, W> {
    /// The line whose first word is the sequence and whose others are the payload.
    ///
    /// # Panics
    /// Where there is no word at all.
    #[inline]
    pub fn from_words(words: &'a [W]) -> Self {
        let (sequence, payload) = words.split_first().expect("a line has a sequence word");
        Self { sequence, payload }
    }

    /// Writes the payload, relaxed, then the sequence, release. Only the line's one writer calls this, when nobody reads the line
    /// any more.
    ///
    /// # Panics
    /// Where the payload is longer than the line's.
    #[inline]
    pub(crate) fn write(self, sequence: u64, payload: &[u64]) {
        assert!(payload.len() <= self.payload.len(), "a payload of {} words for a line of {}", payload.len(), self.payload.len());
        for (word, value) in self.payload.iter().zip(payload) {
            word.store_relaxed(*value);
        }
        self.sequence.store_release(sequence);
    }

    /// Reads the start of the payload of this sequence number: the sequence acquire, then the payload relaxed. `false`, and
    /// nothing read, where the line holds another.
    ///
    /// # Panics
    /// Where `into` is longer than the line's payload.
    #[inline]
    pub(crate) fn read(self, sequence: u64, into: &mut [u64]) -> bool {
        assert!(into.len() <= self.payload.len(), "{} words wanted of a line of {}", into.len(), self.payload.len());
        if self.sequence.load_acquire() != sequence {
            return false;
        }
        for (value, word) in into.iter_mut().zip(self.payload) {
            *value = word.load_relaxed();
        }
        true
    }
}
