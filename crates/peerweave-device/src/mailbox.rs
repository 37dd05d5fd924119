//! A ring of descriptors from one rank to another: one producer, one consumer, nobody else.
//!
//! Says where data lies, does not move it, and never waits: a rank polls several mailboxes at once. A descriptor that was pushed
//! is popped, acted upon (the consumer copies the data it names), then acknowledged, all in order; the producer's memory and the
//! line are free again when the acknowledgement is seen.
//!
//! Invariant: descriptor `t`, counted from 0, lies in line `t % K` under the sequence `t + 1`; the acknowledgement is the number
//! of descriptors that are done with; and `acknowledged <= popped <= pushed <= acknowledged + K`. The words start as zeros.
//! Counts may wrap, which is why `K` is a power of two.
//!
//! For speed the lines lie near the consumer and the acknowledgement near the producer: each then polls memory of its own.

use crate::flag;
use crate::line::Line;
use crate::word::Word;

/// The number of a descriptor in its mailbox: how many were pushed before it, wrapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(u64);

impl Ticket {
    /// How many descriptors were pushed before this one, wrapping.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// The memory of a mailbox, as both sides see it: borrowed, and without state.
pub struct Ring<'a, W, F> {
    capacity: usize,
    line: F,
    acknowledged: &'a W,
}

impl<'a, W: Word, F: Fn(usize) -> Line<'a, W>> Ring<'a, W, F> {
    /// The mailbox of `capacity` lines, of which `line` gives the one with an index below that, and the word that counts
    /// acknowledgements.
    ///
    /// # Panics
    /// Where the capacity is not a power of two.
    #[inline]
    pub fn new(capacity: usize, line: F, acknowledged: &'a W) -> Self {
        assert!(capacity.is_power_of_two(), "a mailbox of {capacity} lines: must be a power of two");
        Self { capacity, line, acknowledged }
    }

    /// How many descriptors can be under way at once.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    #[inline]
    fn line(&self, count: u64) -> Line<'a, W> {
        (self.line)(count as usize & (self.capacity - 1))
    }
}

/// The producer's side: what it has pushed. There is one for each mailbox, and it is always used with the same one.
#[derive(Debug, Default)]
pub struct Producer {
    pushed: u64,
}

impl Producer {
    /// The producer of a mailbox whose words are zeros.
    pub const fn new() -> Self {
        Self { pushed: 0 }
    }

    /// Takes over a mailbox in which `count` descriptors have been pushed, popped and acknowledged, wrapping.
    pub const fn resume(count: u64) -> Self {
        Self { pushed: count }
    }

    /// Pushes a descriptor; `None`, and nothing done, where the mailbox is full: until the consumer acknowledges.
    ///
    /// # Ordering
    /// Release: what this rank wrote before is visible to the consumer when it pops. Acquire of the acknowledgement that made the
    /// line free.
    ///
    /// # Panics
    /// Where the descriptor is longer than a line's payload.
    #[inline]
    pub fn try_push<'a, W: Word, F: Fn(usize) -> Line<'a, W>>(
        &mut self,
        ring: &Ring<'a, W, F>,
        descriptor: &[u64],
    ) -> Option<Ticket> {
        if self.in_flight(ring) >= ring.capacity as u64 {
            return None;
        }
        let ticket = self.pushed;
        self.pushed = ticket.wrapping_add(1);
        ring.line(ticket).write(self.pushed, descriptor);
        Some(Ticket(ticket))
    }

    /// Whether the consumer is done with this descriptor and with what it named.
    ///
    /// # Ordering
    /// Acquire, where the answer is yes: the consumer's reads are over, its writes visible.
    #[inline]
    pub fn is_acknowledged<'a, W: Word, F: Fn(usize) -> Line<'a, W>>(&self, ring: &Ring<'a, W, F>, ticket: Ticket) -> bool {
        flag::reached(ring.acknowledged, ticket.0.wrapping_add(1))
    }

    /// How many descriptors were pushed and are not acknowledged.
    ///
    /// # Ordering
    /// Acquire: the consumer is done with all the others.
    #[inline]
    pub fn in_flight<'a, W: Word, F: Fn(usize) -> Line<'a, W>>(&self, ring: &Ring<'a, W, F>) -> u64 {
        self.pushed.wrapping_sub(ring.acknowledged.load_acquire())
    }
}

/// The consumer's side: what it has popped and acknowledged. There is one for each mailbox, and it is always used with the same
/// one.
#[derive(Debug, Default)]
pub struct Consumer {
    popped: u64,
    acknowledged: u64,
}

impl Consumer {
    /// The consumer of a mailbox whose words are zeros.
    pub const fn new() -> Self {
        Self { popped: 0, acknowledged: 0 }
    }

    /// Takes over a mailbox in which `count` descriptors have been pushed, popped and acknowledged, wrapping.
    pub const fn resume(count: u64) -> Self {
        Self { popped: count, acknowledged: count }
    }

    /// Pops the next descriptor: fills `into` with its start; `None`, and nothing done, where there is none.
    ///
    /// # Ordering
    /// Acquire, where there is one: what the producer wrote before it pushed is visible.
    ///
    /// # Panics
    /// Where `into` is longer than a line's payload.
    #[inline]
    pub fn try_pop<'a, W: Word, F: Fn(usize) -> Line<'a, W>>(
        &mut self,
        ring: &Ring<'a, W, F>,
        into: &mut [u64],
    ) -> Option<Ticket> {
        let ticket = self.popped;
        let sequence = ticket.wrapping_add(1);
        if !ring.line(ticket).read(sequence, into) {
            return None;
        }
        self.popped = sequence;
        Some(Ticket(ticket))
    }

    /// How many descriptors were popped and are not acknowledged.
    #[inline]
    pub fn unacknowledged(&self) -> u64 {
        self.popped.wrapping_sub(self.acknowledged)
    }

    /// Tells the producer that this rank is done with this descriptor and all before it, and with what they named.
    ///
    /// # Ordering
    /// Release: what this rank read and wrote before is over when the producer sees it.
    ///
    /// # Panics
    /// Where the descriptor was acknowledged before, or never popped from this mailbox.
    #[inline]
    pub fn acknowledge<'a, W: Word, F: Fn(usize) -> Line<'a, W>>(&mut self, ring: &Ring<'a, W, F>, ticket: Ticket) {
        let ahead = ticket.0.wrapping_sub(self.acknowledged);
        assert!(
            ahead < self.unacknowledged(),
            "descriptor {} is acknowledged; those under way are {}..{}",
            ticket.0,
            self.acknowledged,
            self.popped
        );
        self.acknowledged = ticket.0.wrapping_add(1);
        flag::post(ring.acknowledged, self.acknowledged);
    }
}
