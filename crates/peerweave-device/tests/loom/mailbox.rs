//! Model of a sender whose messages contain the index of a buffer, and a receiver that reads the
//! buffer and answers.

use crate::words::{Exact, NoAcquire, NoRelease, TestWord};
use crate::{Plain, Team, check, refuted, several};
use peerweave_device::Word;
use peerweave_device::mailbox::{self, Answer, Slot};

/// Number of words of a slot: the number of the message, two words of payload, the answer.
const SLOT: usize = 4;

/// The memory of a ring, and one buffer of the sender for each slot.
struct Ring<W> {
    words: Vec<W>,
    buffers: Vec<Plain>,
}

impl<W: TestWord> Ring<W> {
    fn new(capacity: usize) -> Self {
        Self { words: several(SLOT * capacity), buffers: several(capacity) }
    }

    fn capacity(&self) -> usize {
        self.buffers.len()
    }

    fn slot(&self, number: u64) -> Slot<'_, W> {
        slot(&self.words[mailbox::index(number, self.capacity()) * SLOT..][..SLOT])
    }

    /// Sends `messages` messages. For each message waits for a free slot, writes a buffer, and
    /// publishes the index of the buffer. At the end waits for all answers and writes all buffers.
    fn send(&self, messages: u64) {
        for number in 1..=messages {
            while self.slot(number).free_for(number, self.capacity()).is_none() {
                loom::thread::yield_now();
            }
            let buffer = (number - 1) % self.capacity() as u64;
            self.buffers[buffer as usize].set(number + 50);
            self.slot(number).publish(number, &[buffer, !buffer]);
        }
        for number in messages.saturating_sub(self.capacity() as u64 - 1)..=messages {
            while self.slot(number).answered(number).is_none() {
                loom::thread::yield_now();
            }
        }
        self.buffers.iter().for_each(|buffer| buffer.set(0));
    }

    /// Receives and answers a message. Returns `false` if the message has not been published.
    fn receive(&self, number: u64) -> bool {
        let mut got = [0; 2];
        if !self.slot(number).read(number, &mut got) {
            return false;
        }
        assert_eq!(got[1], !got[0], "message is torn or overwritten");
        assert_eq!(self.buffers[got[0] as usize].get(), number + 50);
        self.slot(number).respond(number, Answer::Accepted);
        true
    }
}

fn slot<W>(words: &[W]) -> Slot<'_, W> {
    Slot { number: &words[0], payload: &words[1..3], answer: &words[3] }
}

fn messages_pass<W: TestWord>(capacity: usize, messages: u64) {
    check(
        Team::PAIR,
        move || Ring::<W>::new(capacity),
        move |rank, ring| {
            if rank == 0 {
                ring.send(messages);
            } else {
                for number in 1..=messages {
                    while !ring.receive(number) {
                        loom::thread::yield_now();
                    }
                }
            }
            Ok(())
        },
    );
}

#[test]
fn messages_arrive_intact_in_a_ring_of_one_slot() {
    messages_pass::<Exact>(1, 3);
}

#[test]
fn messages_arrive_intact_when_slots_are_reused() {
    messages_pass::<Exact>(2, 4);
}

refuted!(mailbox_without_release_is_refuted, "message is torn or overwritten", messages_pass::<NoRelease>(2, 3));
refuted!(mailbox_without_acquire_is_refuted, "message is torn or overwritten", messages_pass::<NoAcquire>(2, 3));

/// Sends one message. If `early` is true, the receiver answers before it reads the buffer,
/// otherwise after it has read the buffer. If `wait_for_answer` is true, the sender waits for the
/// answer before it writes the buffer again.
fn one_buffer(early: bool, wait_for_answer: bool, answer: Answer) {
    check(
        Team::PAIR,
        || Ring::<Exact>::new(1),
        move |rank, ring| {
            let slot = ring.slot(1);
            if rank == 0 {
                ring.buffers[0].set(1);
                slot.publish(1, &[0, !0]);
                while wait_for_answer {
                    match slot.answered(1) {
                        Some(found) => {
                            assert_eq!(found, answer, "wrong answer");
                            break;
                        }
                        None => loom::thread::yield_now(),
                    }
                }
                ring.buffers[0].set(2);
            } else {
                while !slot.read(1, &mut []) {
                    loom::thread::yield_now();
                }
                if early {
                    slot.respond(1, answer);
                }
                assert_eq!(ring.buffers[0].get(), 1);
                if !early {
                    slot.respond(1, answer);
                }
            }
            Ok(())
        },
    );
}

#[test]
fn sender_can_reuse_the_buffer_of_an_accepted_message() {
    one_buffer(false, true, Answer::Accepted);
}

#[test]
fn sender_can_reuse_the_buffer_of_a_refused_message() {
    one_buffer(false, true, Answer::Refused);
}

refuted!(answer_before_the_copy_is_refuted, one_buffer(true, true, Answer::Accepted));
refuted!(buffer_reused_before_the_answer_is_refuted, one_buffer(false, false, Answer::Accepted));

/// The sender publishes a message, withdraws it, and changes its data. The receiver must either
/// detect the withdrawal or read the unchanged data. The data is a word that both sides may access
/// concurrently.
fn withdrawn<W: TestWord>(withdraw: fn(&Slot<'_, W>), is_withdrawn: fn(&Slot<'_, W>) -> bool) {
    check(
        Team::PAIR,
        || several::<W>(SLOT + 1),
        move |rank, words| {
            let (data, slot) = (&words[SLOT], slot(&words[..SLOT]));
            if rank == 0 {
                data.store_relaxed(1);
                slot.publish(1, &[7, 0]);
                withdraw(&slot);
                data.store_relaxed(2);
            } else {
                let mut got = [0];
                if slot.read(1, &mut got) && got[0] != mailbox::WITHDRAWN {
                    let copy = data.load_relaxed();
                    assert!(is_withdrawn(&slot) || copy == 1, "withdrawal is not detected");
                }
            }
            Ok(())
        },
    );
}

#[test]
fn receiver_detects_a_withdrawal_or_reads_unchanged_data() {
    withdrawn::<Exact>(|slot| slot.withdraw(), |slot| slot.is_withdrawn());
}

refuted!(
    withdrawal_without_a_fence_is_refuted,
    "withdrawal is not detected",
    withdrawn::<Exact>(|slot| slot.payload[0].store_relaxed(mailbox::WITHDRAWN), |slot| slot.is_withdrawn())
);
refuted!(
    withdrawal_check_without_a_fence_is_refuted,
    "withdrawal is not detected",
    withdrawn::<Exact>(|slot| slot.withdraw(), |slot| slot.payload[0].load_relaxed() == mailbox::WITHDRAWN)
);

// The sender publishes a second message in the same slot, although the receiver has not answered
// the first message.
refuted!(publishing_into_a_full_ring_is_refuted, "message is torn or overwritten", {
    check(
        Team::PAIR,
        || several::<Exact>(SLOT),
        |rank, words| {
            let slot = slot(words);
            if rank == 0 {
                for number in 1..=2 {
                    slot.publish(number, &[number, !number]);
                }
            } else {
                let mut got = [0; 2];
                if slot.read(1, &mut got) {
                    assert_eq!(got, [1, !1], "message is torn or overwritten");
                }
            }
            Ok(())
        },
    )
});

/// Rank 0 receives from two rings, and polls them alternately.
#[test]
fn receiver_polls_two_rings_without_blocking() {
    check(
        Team::of_three(3),
        || [Ring::<Exact>::new(1), Ring::new(1)],
        |rank, rings| {
            if rank == 0 {
                let mut done = [false; 2];
                while done != [true; 2] {
                    let mut idle = true;
                    for (ring, done) in rings.iter().zip(&mut done).filter(|(_, done)| !**done) {
                        *done = ring.receive(1);
                        idle &= !*done;
                    }
                    if idle {
                        loom::thread::yield_now();
                    }
                }
            } else {
                let ring = &rings[rank - 1];
                ring.buffers[0].set(51);
                ring.slot(1).publish(1, &[0, !0]);
            }
            Ok(())
        },
    );
}
