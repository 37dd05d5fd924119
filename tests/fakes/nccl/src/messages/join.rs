//! The content of the messages by which ranks join an id.
//!
//! Module `bootstrap` sends and answers the messages. Invariant: [`Join::read`] reads what
//! [`Join::bytes`] writes.

use super::wire::Address;

/// Adds a text to a message.
pub(super) fn put_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend_from_slice(&(text.len() as u32).to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
}

/// Reads numbers and texts from a message of another rank.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    /// Returns the next number.
    pub(super) fn number(&mut self) -> i32 {
        let (head, rest) = self.0.split_at(4);
        self.0 = rest;
        i32::from_le_bytes(head.try_into().expect("a number has four bytes"))
    }

    /// Returns the next text.
    pub(super) fn text(&mut self) -> String {
        let length = self.number() as usize;
        let (head, rest) = self.0.split_at(length);
        self.0 = rest;
        String::from_utf8_lossy(head).into_owned()
    }
}

/// The message by which a rank joins, to the process that serves the id.
pub(super) struct Join {
    pub(super) ranks: i32,
    /// Number of ranks that join by this id.
    pub(super) share: i32,
    pub(super) device: i32,
    /// Address of the rank.
    pub(super) address: Address,
    /// The first of the ids that were passed to the call. It identifies the communicator.
    pub(super) number: u128,
    /// Address of the process that serves this id.
    pub(super) first: Address,
}

impl Join {
    /// Returns the bytes of the message.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.number.to_le_bytes().to_vec();
        [self.ranks, self.share, self.device].iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
        put_text(&mut bytes, &self.address);
        put_text(&mut bytes, &self.first);
        bytes
    }

    /// Reads a message.
    pub(super) fn read(bytes: &[u8]) -> Self {
        let (number, rest) = bytes.split_at(16);
        let mut reader = Reader(rest);
        Self {
            ranks: reader.number(),
            share: reader.number(),
            device: reader.number(),
            address: reader.text(),
            number: u128::from_le_bytes(number.try_into().expect("an id has sixteen bytes")),
            first: reader.text(),
        }
    }
}
