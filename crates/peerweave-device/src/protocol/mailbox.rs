//! A ring of slots from one rank to another: one sender, one receiver.
//!
//! A message says what is sent and where it lies; the ring does not move data, and nothing here
//! waits. The sender publishes message `n`, counted from 1, in slot `(n - 1) % capacity`. The
//! receiver reads it, copies the data that it names, and answers: it accepts or refuses the
//! message. The slot and the data of the sender are free again when the sender sees the answer.
//!
//! A sender that gives up can withdraw a message. A receiver that finds a message withdrawn after
//! it has copied the data discards the copy.
//!
//! Invariant: message `n` is published after message `n - capacity` was answered; its number is
//! written after its payload, and its answer after the last access to its data. The words start as
//! zeros. Numbers are less than 2^63.

use crate::word::Word;

/// Marks in the answer word a message that the receiver refused.
const REFUSED: u64 = 1 << 63;

/// The first word of a payload after its message was withdrawn. No other message starts with it.
pub const WITHDRAWN: u64 = u64::MAX;

/// What the receiver did with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It has taken the data.
    Accepted,
    /// It has not taken the data.
    Refused,
}

/// One slot of a ring, as both sides see it. Borrowed: the caller chooses where the words lie. For
/// speed, the answer lies on a cache line of its own.
#[derive(Debug)]
pub struct Slot<'a, W> {
    /// The number of the message that lies here. Written by the sender.
    pub number: &'a W,
    /// The message: at least one word. Written by the sender.
    pub payload: &'a [W],
    /// The number of the last message that was answered here, and whether it was refused. Written
    /// by the receiver.
    pub answer: &'a W,
}

impl<W> Clone for Slot<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W> Copy for Slot<'_, W> {}

/// The index of the slot of a message in a ring of `capacity` slots.
///
/// # Panics
/// If `number` or `capacity` is 0.
#[inline]
pub const fn index(number: u64, capacity: usize) -> usize {
    (number - 1) as usize % capacity
}

impl<W: Word> Slot<'_, W> {
    /// Returns whether the sender may publish message `number` here: `None` until the receiver has
    /// answered the message before it in this slot, then that answer.
    ///
    /// # Ordering
    /// As [`Slot::answered`].
    #[inline]
    pub fn free_for(&self, number: u64, capacity: usize) -> Option<Answer> {
        self.answered(number.saturating_sub(capacity as u64))
    }

    /// Publishes a message. The sender calls it after [`Slot::free_for`] has found the slot free.
    ///
    /// # Ordering
    /// Release: what the sender wrote before is visible to the receiver when it reads the message.
    ///
    /// # Panics
    /// If `message` is longer than the payload of the slot.
    #[inline]
    pub fn publish(&self, number: u64, message: &[u64]) {
        let room = self.payload.len();
        assert!(message.len() <= room, "a message of {} words for a slot of {room}", message.len());
        for (word, value) in self.payload.iter().zip(message) {
            word.store_relaxed(*value);
        }
        self.number.store_release(number);
    }

    /// Withdraws the message that the sender published last here.
    ///
    /// # Ordering
    /// The sender may change its data after this: a receiver that sees a change finds in
    /// [`Slot::is_withdrawn`] that the message was withdrawn.
    #[inline]
    pub fn withdraw(&self) {
        self.payload[0].store_relaxed(WITHDRAWN);
        W::fence_release();
    }

    /// The answer to message `number`, once there is one. After a later message was answered here,
    /// the answer is [`Answer::Accepted`].
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

    /// Reads the start of message `number` into `message`, and returns `true`; `false` if it is not
    /// there.
    ///
    /// # Ordering
    /// Acquire, if the answer is `true`: what the sender wrote before it published the message is
    /// visible.
    ///
    /// # Panics
    /// If `message` is longer than the payload of the slot.
    #[inline]
    pub fn read(&self, number: u64, message: &mut [u64]) -> bool {
        let room = self.payload.len();
        assert!(message.len() <= room, "{} words wanted of a slot of {room}", message.len());
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
    /// Acquire: if the answer is `false`, the copy holds the data as it was when the message was
    /// published.
    #[inline]
    pub fn is_withdrawn(&self) -> bool {
        W::fence_acquire();
        self.payload[0].load_relaxed() == WITHDRAWN
    }

    /// Tells the sender what became of message `number`. The receiver calls it once for each
    /// message, in order, after its last access to the data.
    ///
    /// # Ordering
    /// Release: the accesses of the receiver are over when the sender sees the answer.
    #[inline]
    pub fn respond(&self, number: u64, answer: Answer) {
        let refused = if answer == Answer::Refused { REFUSED } else { 0 };
        self.answer.store_release(number | refused);
    }
}
