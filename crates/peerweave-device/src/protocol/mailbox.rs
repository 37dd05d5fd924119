//! A ring of message slots from one rank, the sender, to another rank, the receiver.
//!
//! A message describes data and the location of the data. The ring does not transfer the data, and
//! no function of this module waits. The sender publishes message `n`, counted from 1, in slot
//! `(n - 1) % capacity`. The receiver reads the message, copies the data, and answers. The answer
//! accepts or refuses the message. When the sender has received the answer, it may reuse the slot
//! and the data.
//!
//! A sender whose wait timed out can withdraw a message. After a receiver has copied the data, the
//! receiver checks whether the message was withdrawn. If so, the receiver discards the copy.
//!
//! Invariant: the sender publishes message `n` after the receiver has answered message
//! `n - capacity`. The sender writes the payload of a message before the number of the message. The
//! receiver answers after its last access to the data. The words are initially zero. Numbers of
//! messages are less than 2^63.

use crate::word::Word;

/// Bit of the answer word that is set if the receiver refused the message.
const REFUSED: u64 = 1 << 63;

/// The value of the first word of a payload after the sender has withdrawn the message. No message
/// may start with this value.
pub const WITHDRAWN: u64 = u64::MAX;

/// The receiver's answer to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The receiver has copied the data.
    Accepted,
    /// The receiver refuses the message, and has not copied the data.
    Refused,
}

/// One slot of a ring: references to the words of one message, and to the word of its answer. The
/// sender and the receiver each create a `Slot` for the same shared words. For speed, the cache
/// line of [`Slot::answer`] should contain no other word.
#[derive(Debug)]
pub struct Slot<'a, W> {
    /// The word that contains the number of the message in this slot. Written by the sender.
    pub number: &'a W,
    /// The words of the message, at least one. Written by the sender.
    pub payload: &'a [W],
    /// The word that contains the number of the last answered message in this slot. Bit 63 is set
    /// if the receiver has refused that message. Written by the receiver.
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
/// If `capacity` is 0. In builds with overflow checks, also if `number` is 0.
#[inline]
pub const fn index(number: u64, capacity: usize) -> usize {
    (number - 1) as usize % capacity
}

impl<W: Word> Slot<'_, W> {
    /// Returns the receiver's answer to the previous message in this slot, or `None` if there is no
    /// answer yet. After an answer, the slot is free for message `number`. Returns
    /// [`Answer::Accepted`] if there is no previous message.
    ///
    /// # Ordering
    /// As for [`Slot::answered`].
    #[inline]
    pub fn free_for(&self, number: u64, capacity: usize) -> Option<Answer> {
        self.answered(number.saturating_sub(capacity as u64))
    }

    /// Publishes a message. The sender calls this method after [`Slot::free_for`] has returned an
    /// answer.
    ///
    /// # Ordering
    /// Release: earlier writes of the sender are visible to the receiver after the receiver has
    /// read the message.
    ///
    /// # Panics
    /// If `message` is longer than the payload of the slot.
    #[inline]
    pub fn publish(&self, number: u64, message: &[u64]) {
        let room = self.payload.len();
        assert!(
            message.len() <= room,
            "the message has {} words, expected at most {room} (the length of the slot's payload)",
            message.len()
        );
        for (word, value) in self.payload.iter().zip(message) {
            word.store_relaxed(*value);
        }
        self.number.store_release(number);
    }

    /// Withdraws the last message that the sender published in this slot.
    ///
    /// # Ordering
    /// The sender may change the message's data after the call. If a receiver has copied changed
    /// data, [`Slot::is_withdrawn`] returns `true` on that receiver.
    #[inline]
    pub fn withdraw(&self) {
        self.payload[0].store_relaxed(WITHDRAWN);
        W::fence_release();
    }

    /// Returns the answer to message `number`; `None` if the receiver has not answered that
    /// message. If the receiver has already answered a later message of this slot, returns
    /// [`Answer::Accepted`].
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

    /// Reads the first `message.len()` words of message `number` into `message`. Returns `false` if
    /// the sender has not published the message.
    ///
    /// # Ordering
    /// Acquire, if the result is `true`: writes of the sender before the publication are visible.
    ///
    /// # Panics
    /// If `message` is longer than the payload of the slot.
    #[inline]
    pub fn read(&self, number: u64, message: &mut [u64]) -> bool {
        let room = self.payload.len();
        assert!(
            message.len() <= room,
            "the message has {} words, expected at most {room} (the length of the slot's payload)",
            message.len()
        );
        if self.number.load_acquire() != number {
            return false;
        }
        for (value, word) in message.iter_mut().zip(self.payload) {
            *value = word.load_relaxed();
        }
        true
    }

    /// Returns whether the sender has withdrawn the message. The receiver calls this method after
    /// the receiver has copied the data and before the receiver answers.
    ///
    /// # Ordering
    /// Acquire: if the result is `false`, the receiver has copied the data as it was when the
    /// message was published.
    #[inline]
    pub fn is_withdrawn(&self) -> bool {
        W::fence_acquire();
        self.payload[0].load_relaxed() == WITHDRAWN
    }

    /// Answers message `number`. The receiver calls this method once for each message, in the order
    /// of the messages' numbers, after the receiver's last access to the data.
    ///
    /// # Ordering
    /// Release: the receiver's accesses are complete when the sender reads the answer.
    #[inline]
    pub fn respond(&self, number: u64, answer: Answer) {
        let refused = if answer == Answer::Refused { REFUSED } else { 0 };
        self.answer.store_release(number | refused);
    }
}
