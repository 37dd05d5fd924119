//! Records the collectives that each PE of a machine has begun, in memory that all PEs of the
//! machine can read. If ranks make different calls, each rank gets an error that describes both
//! calls.
//!
//! For each call, a rank writes a few words to its own memory before it enqueues the call. No rank
//! waits for these words. A caller that waits for a result compares the words of all ranks after
//! the kernel has ended. By then, each rank that has sent data to this kernel has recorded its
//! call.
//!
//! Invariants: only a PE itself writes its words, one thread at a time. Each recorded call has a
//! word `chain`, a hash of all calls of the team up to and including this call. So comparing one
//! `chain` compares all these calls.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use peerweave_bootstrap::Rendezvous;
use peerweave_bootstrap::survivors::SurvivorWords;
use peerweave_core::Error;
use peerweave_core::backend::{Collective, CollectiveKind, CollectiveShape};
use peerweave_types::{DType, KernelTeam, Pe, Rank, ReduceOp};

use super::messages;
use super::pages::Pages;
use crate::backend::teams::TeamOf;

/// Maximum number of call records that a PE keeps for each team. Later records overwrite the oldest
/// records.
const CALLS: u64 = 64;
/// Number of 64-bit words in the record of one call. Word 0 is the number of the call, counted from
/// 1, or 0 while a thread writes the record. Word 1 contains kind, type, reduction, root, and
/// whether a function of the caller reduces. Word 2 is the number of elements. Word 3 contains
/// parameters of some collectives. Word 4 is the chain: a hash of all calls of the team up to and
/// including this call.
const CALL_WORDS: usize = 5;
/// Number of 64-bit words before the call records of a team. Word 0 is the team's tag. Word 1 is
/// the number of calls of the team that this PE has begun. Word 2 is 1 if a graph of this PE has
/// captured calls of the team. The other words are unused.
const HEAD_WORDS: usize = 8;
/// Index, among the words of a team, of the first word of the message records. These records follow
/// the call records.
const MESSAGES_AT: usize = HEAD_WORDS + CALLS as usize * CALL_WORDS;
const TEAM_WORDS: usize = MESSAGES_AT + messages::WORDS;

/// Records of the collectives and messages that the PEs of this machine have begun, in shared
/// memory.
pub(crate) struct Calls {
    /// For each PE, the mapped memory in which the PE records the calls that it has begun.
    pages: Box<[Pages]>,
    pub(super) me: usize,
    teams: usize,
}

/// A collective call, encoded as three words. The words contain all arguments that must be the same
/// on all ranks.
type Words = [u64; 3];

impl Calls {
    /// Creates shared memory for the records of each PE, with room for `teams` teams, and maps the
    /// memory of all PEs. All PEs must call this function, and must be on one machine.
    pub(crate) fn new(rendezvous: &Rendezvous, teams: usize) -> Result<Self, Error> {
        let bytes = Self::survivors_at(teams) * size_of::<u64>() + size_of::<SurvivorWords>();
        let pages = Pages::of_all("Cuda::new", rendezvous, bytes)?;
        Ok(Self { pages, me: rendezvous.pe().index(), teams })
    }

    /// Returns the index of the first word of a PE's [`SurvivorWords`], by which the surviving PEs
    /// agree on a new job. These words follow the records of all teams.
    const fn survivors_at(teams: usize) -> usize {
        (teams * TEAM_WORDS).next_multiple_of(8)
    }

    /// Returns the [`SurvivorWords`] of PE `pe`. With these words, the surviving PEs agree on a new
    /// job.
    pub(crate) fn survivors(&self, pe: usize) -> &SurvivorWords {
        self.pages[pe].survivors(Self::survivors_at(self.teams))
    }

    /// Returns the word at `index` among the words of PE `pe` for `team`. These are the words
    /// before the call records ([`HEAD_WORDS`]), the call records, and the message records.
    fn word(&self, pe: usize, team: KernelTeam, index: usize) -> &AtomicU64 {
        let team = team.index() as usize;
        assert!(team < self.teams && index < TEAM_WORDS, "peerweave-cuda bug: word {index} of team {team} does not exist");
        self.pages[pe].word(team * TEAM_WORDS + index)
    }

    /// Returns the word at `index` among the words in which PE `pe` records its messages in `team`.
    pub(super) fn message_word(&self, pe: usize, team: KernelTeam, index: usize) -> &AtomicU64 {
        self.word(pe, team, MESSAGES_AT + index)
    }

    /// Returns whether this PE can compare its records for a team with the records of PE `pe`.
    /// Returns `false` if `pe` uses the team's number for a different team, or if a graph of this
    /// PE or of `pe` has captured calls on the team.
    pub(super) fn can_compare(&self, team: &TeamOf, pe: usize) -> bool {
        let head = |pe: usize, index| self.word(pe, team.number(), index).load(Ordering::Acquire);
        head(self.me, 2) == 0 && head(pe, 0) == team.tag && head(pe, 2) == 0
    }

    /// Returns the index, among the words of a team, at which the record of a call starts. `number`
    /// is the number of earlier calls of the team.
    const fn at(number: u64) -> usize {
        HEAD_WORDS + (number % CALLS) as usize * CALL_WORDS
    }

    /// Starts the records of the new team `team`. Deletes the records that a destroyed team with
    /// the same number has left. No member of the new team may have made a call yet.
    pub(crate) fn begin(&self, team: &TeamOf) {
        let word = |index| self.word(self.me, team.number(), index);
        word(1).store(0, Ordering::Relaxed);
        word(2).store(0, Ordering::Relaxed);
        (0..CALLS).for_each(|number| word(Self::at(number)).store(0, Ordering::Relaxed));
        self.begin_messages(team);
        word(0).store(team.tag, Ordering::Release);
    }

    /// Records a collective that this PE is about to enqueue. The caller holds the lock `order` of
    /// the team.
    pub(crate) fn write(&self, team: &TeamOf, op: &Collective) {
        let word = |index| self.word(self.me, team.number(), index);
        let number = word(1).load(Ordering::Relaxed);
        let chain = if number == 0 { 0 } else { word(Self::at(number - 1) + 4).load(Ordering::Relaxed) };
        let call @ [what, count, detail] = words_of(op.shape(), op.function().is_some());
        let (at, chain) = (Self::at(number), hash_of(chain, call));
        word(at).store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        for (index, value) in [what, count, detail, chain].into_iter().enumerate() {
            word(at + 1 + index).store(value, Ordering::Relaxed);
        }
        word(at).store(number + 1, Ordering::Release);
        word(1).store(number + 1, Ordering::Release);
    }

    /// Stops comparing the calls that this PE makes on a team with the calls of other PEs. Must be
    /// called when a graph captures calls of the team. The host does not know the order in which
    /// the graph runs these calls.
    pub(crate) fn end(&self, team: &TeamOf) {
        self.word(self.me, team.number(), 2).store(1, Ordering::Release);
    }

    /// Returns the record that PE `pe` has made of a call on a team. The first call on the team has
    /// the number 0. Also returns the hash of all calls up to and including this call. Returns
    /// `None` if the record does not exist, for example because a newer record has overwritten it.
    fn read(&self, pe: usize, team: KernelTeam, number: u64) -> Option<(Words, u64)> {
        let (word, at) = (|index| self.word(pe, team, index), Self::at(number));
        let is_it = |order| word(at).load(order) == number + 1;
        let found = is_it(Ordering::Acquire).then(|| [1, 2, 3, 4].map(|index| word(at + index).load(Ordering::Relaxed)));
        fence(Ordering::Acquire);
        found.filter(|_| is_it(Ordering::Relaxed)).map(|[what, count, detail, chain]| ([what, count, detail], chain))
    }

    /// Returns the members of a team that have recorded fewer collectives of the team than this PE.
    /// Omits members whose records cannot be compared.
    pub(crate) fn behind(&self, team: &TeamOf) -> Vec<Pe> {
        let number = team.number();
        let head = |pe: usize, index| self.word(pe, number, index).load(Ordering::Acquire);
        let mine = head(self.me, 1);
        let is_known = |pe: usize| head(pe, 0) == team.tag && head(pe, 2) == 0;
        let is_behind = |pe: &Pe| pe.index() != self.me && is_known(pe.index()) && head(pe.index(), 1) < mine;
        if is_known(self.me) { team.members.iter().copied().filter(is_behind).collect() } else { Vec::new() }
    }

    /// Returns the first member whose recorded calls or messages differ from the records of this
    /// PE. Also returns two descriptions of the first difference: the call or message of this PE,
    /// and the call or message of the member.
    pub(crate) fn difference(&self, team: &TeamOf) -> Option<(Pe, String, String)> {
        self.different_call(team).or_else(|| self.different_message(team))
    }

    fn different_call(&self, team: &TeamOf) -> Option<(Pe, String, String)> {
        let number = team.number();
        team.members.iter().find_map(|pe| {
            let index = pe.index();
            if index == self.me || !self.can_compare(team, index) {
                return None;
            }
            let count = |pe: usize| self.word(pe, number, 1).load(Ordering::Acquire);
            let both = count(self.me).min(count(index));
            let calls = |call| Some((self.read(self.me, number, call)?, self.read(index, number, call)?));
            first_difference(both, CALLS, calls).map(|(mine, theirs)| (*pe, describe(mine), describe(theirs)))
        })
    }
}

/// Compares each entry of a log with the entry of the same number in another log. Returns the first
/// two entries that differ. Returns `None` if all entries are equal, or if the entries that differ
/// have been overwritten.
///
/// - `both` is the number of entries to compare, from the first entry on. Both logs have at least
///   this number of entries.
/// - `kept` is the number of entries that a log stores. A new entry overwrites the oldest entry.
/// - `read` returns the entry with a given number from each log. Each entry is returned together
///   with the hash of all entries up to and including this entry. `read` returns `None` if one of
///   the two entries has been overwritten.
pub(super) fn first_difference<W: PartialEq>(
    both: u64,
    kept: u64,
    read: impl Fn(u64) -> Option<((W, u64), (W, u64))>,
) -> Option<(W, W)> {
    let ((_, my_hash), (_, their_hash)) = read(both.checked_sub(1)?)?;
    if my_hash == their_hash {
        return None;
    }
    let recorded = (both.saturating_sub(kept)..both).filter_map(read);
    recorded.map(|((mine, _), (theirs, _))| (mine, theirs)).find(|(mine, theirs)| mine != theirs)
}

/// Bit in word 1 of a call's record. The bit is set if the caller passed a function that combines
/// the elements, instead of a [`ReduceOp`].
const BY_FUNCTION: u64 = 1 << 24;

fn words_of(shape: CollectiveShape, by_function: bool) -> Words {
    let CollectiveShape { kind, dtype, op, root, count, detail } = shape;
    let what = kind as u64 | (dtype as u64) << 8 | (op as u64) << 16 | u64::from(root.get()) << 32;
    [what | if by_function { BY_FUNCTION } else { 0 }, count as u64, detail]
}

fn describe([what, count, detail]: Words) -> String {
    let (kind, dtype, op) = (what as u8, (what >> 8) as u8, (what >> 16) as u8);
    let known = (CollectiveKind::from_u8(kind), DType::from_u8(dtype), ReduceOp::from_u8(op));
    let (Some(kind), Some(dtype), Some(op)) = known else { return format!("an unknown operation ({what:#x})") };
    let shape = CollectiveShape { kind, dtype, op, root: Rank::new((what >> 32) as u32), count: count as usize, detail };
    if what & BY_FUNCTION == 0 { shape.to_string() } else { format!("{shape}, with a reduction function of the caller") }
}

/// Returns the hash of all calls up to a call. `earlier` is the hash of the calls before it. `call`
/// is the result of [`words_of`] for the call.
const fn hash_of(earlier: u64, [what, count, detail]: [u64; 3]) -> u64 {
    mix(mix(mix(earlier ^ what) ^ count) ^ detail)
}

/// Mixes the bits of a word, as one step of a hash. The function is one-to-one: different words
/// give different results.
pub(super) const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (word ^ (word >> 29)).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn description_of_a_collective_names_length_type_op_and_root() {
        let shape = CollectiveShape {
            kind: CollectiveKind::Reduce,
            dtype: DType::F32,
            op: ReduceOp::Max,
            root: Rank::new(3),
            count: 17,
            detail: 0,
        };
        assert_eq!(describe(words_of(shape, false)), "reduce of 17 elements of f32 by max with root 3");
        assert!(describe(words_of(shape, true)).ends_with(", with a reduction function of the caller"));
        assert_eq!(describe([255, 0, 0]), "an unknown operation (0xff)");
    }

    #[test]
    fn call_hash_depends_on_the_order_and_the_number_of_calls() {
        let hash = |calls: &[[u64; 3]]| calls.iter().fold(0, |earlier, &call| hash_of(earlier, call));
        let (one, other) = ([1, 2, 3], [1, 3, 2]);
        assert_ne!(hash(&[one]), hash(&[other]), "every word counts");
        assert_ne!(hash(&[one, other]), hash(&[other, one]));
        assert_ne!(hash(&[one]), hash(&[one, one]));
    }
}
