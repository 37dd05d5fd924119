//! Records the messages between each two ranks of a team, in the same memory as the team's calls.
//! If a send and the matching receive differ in length or type, both ranks get an error that
//! describes the send and the receive.
//!
//! Only the sender and the receiver make a call for a message, so the team has no common count of
//! messages. Each pair of ranks has a *channel* for each direction. The sender and the receiver
//! count and record the messages of the channel.

use std::sync::atomic::{Ordering, fence};

use peerweave_collectives::MAX_RANKS;
use peerweave_core::backend::{CollectiveKind, Direction};
use peerweave_types::{DType, Pe};

use super::calls::{Calls, first_difference, mix};
use crate::backend::teams::TeamOf;

/// Number of messages whose records are kept for each channel. A channel is one direction of a pair
/// of ranks. Newer messages overwrite the records of older messages.
const MESSAGES: u64 = 16;
/// Number of 64-bit words that record the messages of one channel. Word 0 is the number of
/// messages. Each message has two words: its length and type, and a hash of all messages of the
/// channel up to and including this message.
const CHANNEL_WORDS: usize = 1 + 2 * MESSAGES as usize;
/// Number of 64-bit words that record the messages of a PE in one team, for both directions and
/// every peer.
pub(super) const WORDS: usize = 2 * MAX_RANKS * CHANNEL_WORDS;

/// A message of this PE that is about to be enqueued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageRecord {
    pub(crate) direction: Direction,
    /// Rank of the PE to which the message is sent, or from which it is received.
    pub(crate) peer: usize,
    pub(crate) dtype: DType,
    /// Number of elements in the message.
    pub(crate) count: usize,
    /// The collective to which the message belongs. `None` if the message belongs to a send or a
    /// receive.
    pub(crate) collective: Option<CollectiveKind>,
}

impl MessageRecord {
    /// Returns a word that encodes three properties of the message: its number of elements, its
    /// element type, and the collective to which it belongs.
    fn word(&self) -> u64 {
        let collective = self.collective.map_or(NO_COLLECTIVE, |kind| kind as u64);
        (self.count as u64) << 16 | collective << 8 | self.dtype as u64
    }
}

/// The number in [`MessageRecord::word`] that stands for "no collective". The message then belongs
/// to a send or a receive.
const NO_COLLECTIVE: u64 = 0xff;

/// Returns the description of the message that `word` encodes. Rank `me` sends the message to rank
/// `peer`, or receives it from rank `peer`.
fn describe(word: u64, direction: Direction, me: usize, peer: usize) -> String {
    let (count, kind, dtype) = (word >> 16, (word >> 8) as u8, DType::from_u8(word as u8));
    let dtype = dtype.map_or("an unknown type", |dtype| dtype.rust_name());
    match (CollectiveKind::from_u8(kind), direction) {
        (Some(kind), Direction::Send) => {
            format!("{} in which rank {me} sends {count} elements of {dtype} to rank {peer}", kind.name())
        }
        (Some(kind), Direction::Receive) => {
            format!("{} in which rank {me} receives {count} elements of {dtype} from rank {peer}", kind.name())
        }
        (None, Direction::Send) => format!("send of {count} elements of {dtype}"),
        (None, Direction::Receive) => format!("recv of {count} elements of {dtype}"),
    }
}

/// Returns the index at which the records of a channel start. Index 0 is the first word of the
/// team's message records. A channel consists of the messages in one direction between this rank
/// and rank `peer`.
const fn channel(direction: Direction, peer: usize) -> usize {
    let sends = matches!(direction, Direction::Send) as usize;
    (sends * MAX_RANKS + peer) * CHANNEL_WORDS
}

/// Returns the index of the first word that records message `number` of a channel. Index 0 is the
/// first word of the channel.
const fn at(number: u64) -> usize {
    1 + 2 * (number % MESSAGES) as usize
}

impl Calls {
    /// Deletes this PE's message records that are stored under the number of the new team `team`.
    /// These records are from a destroyed team, which had the same number.
    pub(super) fn begin_messages(&self, team: &TeamOf) {
        for peer in 0..MAX_RANKS {
            for direction in [Direction::Send, Direction::Receive] {
                self.message_word(self.me, team.number(), channel(direction, peer)).store(0, Ordering::Relaxed);
            }
        }
    }

    /// Records a message that this PE is about to enqueue. The caller holds the lock `order` of the
    /// team. Does not record a message of a rank to itself.
    pub(crate) fn write_message(&self, team: &TeamOf, message: &MessageRecord) {
        if message.peer == team.me || message.peer >= MAX_RANKS {
            return;
        }
        let channel = channel(message.direction, message.peer);
        let word = |index| self.message_word(self.me, team.number(), channel + index);
        let number = word(0).load(Ordering::Relaxed);
        let chain = if number == 0 { 0 } else { word(at(number - 1) + 1).load(Ordering::Relaxed) };
        // A reader that finds a word of this message also finds the number of messages before it.
        fence(Ordering::Release);
        word(at(number)).store(message.word(), Ordering::Relaxed);
        word(at(number) + 1).store(mix(chain ^ message.word()), Ordering::Relaxed);
        word(0).store(number + 1, Ordering::Release);
    }

    /// Returns two words that PE `pe` has recorded for message `number` of a channel. The first
    /// word describes the message (see [`MessageRecord::word`]). The second word is the hash of all
    /// messages of the channel up to and including this message. Returns `None` if the record was
    /// overwritten.
    fn read_message(&self, pe: usize, team: &TeamOf, channel: usize, number: u64) -> Option<(u64, u64)> {
        let word = |index| self.message_word(pe, team.number(), channel + index);
        let found = [0, 1].map(|index| word(at(number) + index).load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        // A record is overwritten by the message that follows `MESSAGES` messages later.
        (word(0).load(Ordering::Relaxed) < number + MESSAGES).then_some((found[0], found[1]))
    }

    /// Compares the messages between this PE and each other member, as both PEs recorded them.
    /// Returns the first member with a record that differs. Also returns two descriptions of the
    /// first message for which the records differ: as this PE recorded it, and as the member
    /// recorded it.
    pub(super) fn different_message(&self, team: &TeamOf) -> Option<(Pe, String, String)> {
        let others = team.members.iter().enumerate().filter(|(rank, _)| *rank != team.me && *rank < MAX_RANKS);
        others.filter(|(_, pe)| self.can_compare(team, pe.index())).find_map(|(rank, pe)| {
            let sent = || self.different_messages_with(team, rank, Direction::Send, Direction::Receive);
            let received = || self.different_messages_with(team, rank, Direction::Receive, Direction::Send);
            sent().or_else(received).map(|(mine, theirs)| (*pe, mine, theirs))
        })
    }

    /// Finds the first message between this PE and rank `peer` for which the records of the two PEs
    /// differ. Returns two descriptions of this message: the record of this PE, and the record of
    /// the peer. `mine` is the direction of the message on this PE, and `theirs` is the direction
    /// on the peer.
    fn different_messages_with(
        &self,
        team: &TeamOf,
        peer: usize,
        mine: Direction,
        theirs: Direction,
    ) -> Option<(String, String)> {
        let ours = (self.me, channel(mine, peer));
        let peers = (team.members[peer].index(), channel(theirs, team.me));
        let count = |(pe, channel)| self.message_word(pe, team.number(), channel).load(Ordering::Acquire);
        let message = |(pe, channel), number| self.read_message(pe, team, channel, number);
        let both = |number| Some((message(ours, number)?, message(peers, number)?));
        let (my_word, their_word) = first_difference(count(ours).min(count(peers)), MESSAGES, both)?;
        Some((describe(my_word, mine, team.me, peer), describe(their_word, theirs, peer, team.me)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn description_of_a_message_has_direction_length_and_type() {
        let mut message = MessageRecord { direction: Direction::Send, peer: 2, dtype: DType::F32, count: 7, collective: None };
        assert_eq!(describe(message.word(), Direction::Send, 0, 2), "send of 7 elements of f32");
        assert_eq!(describe(message.word(), Direction::Receive, 0, 2), "recv of 7 elements of f32");
        message.collective = Some(CollectiveKind::AllToAllV);
        assert_eq!(
            describe(message.word(), Direction::Receive, 0, 2),
            "all_to_all_v in which rank 0 receives 7 elements of f32 from rank 2"
        );
    }
}
