//! A ring of slots from one rank to another: one sender, one receiver.
//!
//! A message describes data and its location. The ring does not transfer data, and no function
//! waits. The sender publishes message `n`, counted from 1, in slot `(n - 1) % capacity`. The
//! receiver reads it, copies the data that it names, and answers: it accepts or refuses the
//! message. When the sender has received the answer, the slot and the data are free again.
//!
//! A sender whose wait timed out can withdraw a message. A receiver that detects the withdrawal
//! after it has copied the data discards the copy.
//!
//! Invariant: message `n` is published after message `n - capacity` was answered. Its number is
//! written after its payload, and its answer after the last access to its data. The words are
//! initially zero. Numbers are less than 2^63.

use crate::word::Word;

/// Flag in the answer word for a message that the receiver refused.
const REFUSED: u64 = 1 << 63;

/// The first word of a payload after its message was withdrawn. No other message starts with it.
pub const WITHDRAWN: u64 = u64::MAX;

/// The receiver's answer to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The receiver has copied the data.
    Accepted,
    /// The receiver has not copied the data.
    Refused,
}

/// One slot of a ring, as used by both sides. The words are borrowed: the caller chooses their
/// location. For speed, the answer should have its own cache line.
#[derive(Debug)]
pub struct Slot<'a, W> {
    /// Number of the message in this slot. Written by the sender.
    pub number: &'a W,
    /// The message: at least one word. Written by the sender.
    pub payload: &'a [W],
    /// Number of the last message that was answered in this slot, and whether it was refused.
    /// Written by the receiver.
    pub answer: &'a W,
}

impl<W> Clone for Slot<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W> Copy for Slot<'_, W> {}

/// Returns the index of a message's slot in a ring of `capacity` slots.
///
/// # Panics
/// If `number` or `capacity` is 0.
#[inline]
pub const fn index(number: u64, capacity: usize) -> usize {
    (number - 1) as usize % capacity
}

impl<W: Word> Slot<'_, W> {
    /// Returns whether the sender may publish message `number` in this slot. Returns `None` until
    /// the receiver has answered the previous message of the slot, then that answer.
    ///
    /// # Ordering
    /// As for [`Slot::answered`].
    #[inline]
    pub fn free_for(&self, number: u64, capacity: usize) -> Option<Answer> {
        self.answered(number.saturating_sub(capacity as u64))
    }

    /// Publishes a message. The sender calls it after [`Slot::free_for`] has reported the slot as
    /// free.
    ///
    /// # Ordering
    /// Release: earlier writes of the sender are visible to the receiver when it reads the message.
    ///
    /// # Panics
    /// If `message` is longer than the payload of the slot.
    #[inline]
    pub fn publish(&self, number: u64, message: &[u64]) {
        let room = self.payload.len();
        assert!(message.len() <= room, "the message has {} words, expected at most {room} (the length of a slot)", message.len());
        for (word, value) in self.payload.iter().zip(message) {
            word.store_relaxed(*value);
        }
        self.number.store_release(number);
    }

    /// Withdraws the last message that the sender published in this slot.
    ///
    /// # Ordering
    /// The sender may change its data afterwards: a receiver that reads changed data finds by
    /// [`Slot::is_withdrawn`] that the message was withdrawn.
    #[inline]
    pub fn withdraw(&self) {
        self.payload[0].store_relaxed(WITHDRAWN);
        W::fence_release();
    }

    /// Returns the answer to message `number`; `None` if there is no answer yet. If a later message
    /// of this slot was already answered, the result is [`Answer::Accepted`].
    ///
    /// # Ordering
    /// Acquire, if there is an answer: the receiver no longer accesses the data of the message.
    #[inline]
    pub fn answered(&self, number: u64) -> Option<Answer> {
        let answer = self.answer.load_acquire();
        match answer & !REFUSED < number {
            true => None,
            false if answer == number | REFUSED => Some(Answer::Refused),
            false => Some(Answer::Accepted),
        }
    }

    /// Reads the start of message `number` into `message`. Returns `false` if the message has not
    /// been published.
    ///
    /// # Ordering
    /// Acquire, if the result is `true`: writes of the sender before it published the message are
    /// visible.
    ///
    /// # Panics
    /// If `message` is longer than the payload of the slot.
    #[inline]
    pub fn read(&self, number: u64, message: &mut [u64]) -> bool {
        let room = self.payload.len();
        assert!(message.len() <= room, "the message has {} words, expected at most {room} (the length of a slot)", message.len());
        if self.number.load_acquire() != number {
            return false;
        }
        for (value, word) in message.iter_mut().zip(self.payload) {
            *value = word.load_relaxed();
        }
        true
    }

    /// Returns whether the sender withdrew the message. The receiver calls it after it has copied
    /// the data and before it answers.
    ///
    /// # Ordering
    /// Acquire: if the result is `false`, the copied data is that at the time of publication.
    #[inline]
    pub fn is_withdrawn(&self) -> bool {
        W::fence_acquire();
        self.payload[0].load_relaxed() == WITHDRAWN
    }

    /// Answers message `number`. The receiver calls it once for each message, in order, after its
    /// last access to the data.
    ///
    /// # Ordering
    /// Release: the receiver's accesses are complete when the sender reads the answer.
    #[inline]
    pub fn respond(&self, number: u64, answer: Answer) {
        let refused = if answer == Answer::Refused { REFUSED } else { 0 };
        self.answer.store_release(number | refused);
    }
}
