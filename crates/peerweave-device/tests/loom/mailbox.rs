//! A rendezvous: the producer's buffer is named by a descriptor, read by the consumer, and free again when acknowledged.

use crate::words::{Exact, NoAcquire, NoRelease, TestWord};
use crate::{Plain, Team, check, refuted, several};
use peerweave_device::mailbox::{Consumer, Producer, Ring};
use peerweave_device::{Line, Word};

/// Words of a line: the sequence and two of payload.
const LINE: usize = 3;

/// The memory of a mailbox, and as many of the producer's buffers as it has lines.
struct Box<W> {
    words: Vec<W>,
    buffers: Vec<Plain>,
}

impl<W: TestWord> Box<W> {
    fn new(capacity: usize) -> Self {
        Self { words: several(1 + LINE * capacity), buffers: several(capacity) }
    }

    fn ring<'a>(&'a self) -> Ring<'a, W, impl Fn(usize) -> Line<'a, W>> {
        let (acknowledged, lines) = self.words.split_first().unwrap();
        Ring::new(self.buffers.len(), |index| Line::from_words(&lines[index * LINE..][..LINE]), acknowledged)
    }

    /// Writes a buffer and pushes its name, when there is room; then waits until all is acknowledged and uses the buffers
    /// otherwise.
    fn produce(&self, messages: u64) {
        let (ring, mut producer) = (self.ring(), Producer::new());
        for message in 0..messages {
            while producer.in_flight(&ring) == ring.capacity() as u64 {
                loom::thread::yield_now();
            }
            let buffer = message % ring.capacity() as u64;
            self.buffers[buffer as usize].set(message + 50);
            let ticket = producer.try_push(&ring, &[buffer, !buffer]).expect("there is room");
            assert_eq!(ticket.get(), message);
            if message + 1 == messages {
                while !producer.is_acknowledged(&ring, ticket) {
                    loom::thread::yield_now();
                }
            }
        }
        self.buffers.iter().for_each(|buffer| buffer.set(0));
    }

    /// Pops the next message if there is one.
    fn consume(&self, consumer: &mut Consumer, message: u64) -> bool {
        let (ring, mut got) = (self.ring(), [0; 2]);
        let Some(ticket) = consumer.try_pop(&ring, &mut got) else { return false };
        assert_eq!(got[1], !got[0], "torn or overwritten");
        assert_eq!(self.buffers[got[0] as usize].get(), message + 50);
        consumer.acknowledge(&ring, ticket);
        true
    }
}

fn rendezvous<W: TestWord>(capacity: usize, messages: u64) {
    check(
        Team::PAIR,
        move || Box::<W>::new(capacity),
        move |rank, mailbox| {
            if rank == 0 {
                mailbox.produce(messages);
            } else {
                let mut consumer = Consumer::new();
                for message in 0..messages {
                    while !mailbox.consume(&mut consumer, message) {
                        loom::thread::yield_now();
                    }
                }
            }
            Ok(())
        },
    );
}

#[test]
fn messages_pass_one_at_a_time() {
    rendezvous::<Exact>(1, 3);
}

#[test]
fn messages_pass_two_under_way_and_lines_are_used_again() {
    rendezvous::<Exact>(2, 4);
}

refuted!(a_mailbox_that_does_not_release_is_refuted, "torn or overwritten", rendezvous::<NoRelease>(2, 3));
refuted!(a_mailbox_that_does_not_acquire_is_refuted, "torn or overwritten", rendezvous::<NoAcquire>(2, 3));

/// Acknowledges `early` or late; the producer waits for that before it writes its buffer again.
fn one_buffer(early: bool, wait_for_acknowledgement: bool) {
    check(
        Team::PAIR,
        || Box::<Exact>::new(1),
        move |rank, mailbox| {
            let ring = mailbox.ring();
            if rank == 0 {
                let mut producer = Producer::new();
                mailbox.buffers[0].set(1);
                let ticket = producer.try_push(&ring, &[0, !0]).unwrap();
                while wait_for_acknowledgement && !producer.is_acknowledged(&ring, ticket) {
                    loom::thread::yield_now();
                }
                mailbox.buffers[0].set(2);
            } else {
                let mut consumer = Consumer::new();
                let ticket = loop {
                    match consumer.try_pop(&ring, &mut []) {
                        Some(ticket) => break ticket,
                        None => loom::thread::yield_now(),
                    }
                };
                if early {
                    consumer.acknowledge(&ring, ticket);
                }
                assert_eq!(mailbox.buffers[0].get(), 1);
                if !early {
                    consumer.acknowledge(&ring, ticket);
                }
            }
            Ok(())
        },
    );
}

#[test]
fn a_buffer_is_free_when_its_message_is_acknowledged() {
    one_buffer(false, true);
}

refuted!(an_acknowledgement_before_the_read_is_refuted, one_buffer(true, true));
refuted!(a_buffer_used_again_before_the_acknowledgement_is_refuted, one_buffer(false, false));

// The producer believes that its first message is acknowledged, which nobody has popped.
refuted!(a_full_mailbox_that_takes_more_is_refuted, "torn or overwritten", {
    check(
        Team::PAIR,
        || (several::<Exact>(LINE), [Exact::default(), Exact::default()]),
        |rank, (line, acknowledged)| {
            let ring = |side: usize| Ring::new(1, |_| Line::from_words(line), &acknowledged[side]);
            if rank == 0 {
                let mut producer = Producer::new();
                for message in 0..2 {
                    producer.try_push(&ring(0), &[message, !message]).expect("believed to be free");
                    acknowledged[0].store_relaxed(message + 1);
                }
            } else {
                let mut got = [0; 2];
                if Consumer::new().try_pop(&ring(1), &mut got).is_some() {
                    assert_eq!(got, [0, !0], "torn or overwritten");
                }
            }
            Ok(())
        },
    )
});

/// One rank polls the mailboxes of two others, and blocks on neither.
#[test]
fn two_mailboxes_are_polled_at_once() {
    check(
        Team::of_three(3),
        || [Box::<Exact>::new(1), Box::new(1)],
        |rank, mailboxes| {
            if rank == 0 {
                let mut consumers = [Consumer::new(), Consumer::new()];
                let mut done = [false; 2];
                while done != [true; 2] {
                    let mut idle = true;
                    for ((mailbox, consumer), done) in mailboxes.iter().zip(&mut consumers).zip(&mut done) {
                        if !*done {
                            *done = mailbox.consume(consumer, 0);
                            idle &= !*done;
                        }
                    }
                    if idle {
                        loom::thread::yield_now();
                    }
                }
            } else {
                let mailbox = &mailboxes[rank - 1];
                mailbox.buffers[0].set(50);
                Producer::new().try_push(&mailbox.ring(), &[0, !0]).expect("there is room");
            }
            Ok(())
        },
    );
}
