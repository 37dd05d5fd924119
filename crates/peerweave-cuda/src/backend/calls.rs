//! The collectives that each PE of a machine has begun, in memory that all of them read, so that
//! ranks which make different calls are told both.
//!
//! A rank writes a few words of its own memory for each call, before it enqueues it. Nobody waits
//! for them: they are compared when a caller waits. A rank whose kernel has ended knows that the
//! others have begun their calls, since they have sent it something.
//!
//! Invariants: only its PE writes the words of a PE, one thread at a time. A word `chain` depends
//! on all calls of the team up to its own, so that one comparison covers all of them.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use peerweave_bootstrap::Rendezvous;
use peerweave_core::Error;
use peerweave_core::backend::{CollectiveKind, CollectiveShape};
use peerweave_types::{DType, KernelTeam, Pe, Rank, ReduceOp};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use super::teams::TeamOf;

/// Calls of a team that are remembered.
const CALLS: u64 = 64;
/// Words of one call: its number from 1 on, or 0 while it is written; what, elements, chain.
const CALL_WORDS: usize = 4;
/// Words before the calls of a team: which team, the number of its calls, whether a graph has some.
const HEAD_WORDS: usize = 8;
const TEAM_WORDS: usize = HEAD_WORDS + CALLS as usize * CALL_WORDS;

/// The words of all PEs.
pub(super) struct Calls {
    /// By PE.
    pages: Box<[Pages]>,
    me: usize,
    teams: usize,
}

/// A call as two words: all that ranks must agree on.
type Words = [u64; 2];

impl Calls {
    /// Maps the words of all PEs, each with room for so many teams. Collective over all PEs, which
    /// are on one machine.
    pub(super) fn new(rendezvous: &Rendezvous, teams: usize) -> Result<Self, Error> {
        const CALL: &str = "Cuda::new";
        let bytes = teams * TEAM_WORDS * size_of::<u64>();
        let members: Vec<Pe> = (0..rendezvous.n_pes()).map(Pe::new).collect();
        let own = file(bytes).map_err(|error| Error::setup(CALL, error))?;
        let files = rendezvous.exchange_descriptors(&members, own).map_err(|error| Error::setup(CALL, error))?;
        let pages = files.into_iter().map(|file| Pages::map(&file, bytes)).collect::<Result<_, _>>();
        let pages = pages.map_err(|error| Error::setup(CALL, error))?;
        Ok(Self { pages, me: rendezvous.pe().index(), teams })
    }

    /// The word of a PE at an index among those of a team.
    fn word(&self, pe: usize, team: KernelTeam, index: usize) -> &AtomicU64 {
        let team = team.index() as usize;
        assert!(team < self.teams && index < TEAM_WORDS, "peerweave-cuda bug: word {index} of team {team}");
        self.pages[pe].word(team * TEAM_WORDS + index)
    }

    /// The first word of a call.
    const fn at(number: u64) -> usize {
        HEAD_WORDS + (number % CALLS) as usize * CALL_WORDS
    }

    /// Forgets the calls of an earlier team of this number. No member of the new one has made a
    /// call yet.
    pub(super) fn begin(&self, team: &TeamOf) {
        let word = |index| self.word(self.me, team.number(), index);
        word(1).store(0, Ordering::Relaxed);
        word(2).store(0, Ordering::Relaxed);
        (0..CALLS).for_each(|number| word(Self::at(number)).store(0, Ordering::Relaxed));
        word(0).store(team.tag, Ordering::Release);
    }

    /// Writes a call of this PE that is about to be enqueued. The caller holds the order of the
    /// team.
    pub(super) fn write(&self, team: &TeamOf, shape: CollectiveShape) {
        let word = |index| self.word(self.me, team.number(), index);
        let number = word(1).load(Ordering::Relaxed);
        let chain = if number == 0 { 0 } else { word(Self::at(number - 1) + 3).load(Ordering::Relaxed) };
        let [what, count] = words_of(shape);
        let (at, chain) = (Self::at(number), mix(mix(chain ^ what) ^ count));
        word(at).store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        for (index, value) in [what, count, chain].into_iter().enumerate() {
            word(at + 1 + index).store(value, Ordering::Relaxed);
        }
        word(at).store(number + 1, Ordering::Release);
        word(1).store(number + 1, Ordering::Release);
    }

    /// Ends comparisons of a team: a graph has some of its calls, which run in an order that the
    /// host does not see.
    pub(super) fn end(&self, team: &TeamOf) {
        self.word(self.me, team.number(), 2).store(1, Ordering::Release);
    }

    /// A call of a rank, and its chain; `None` if it was overwritten.
    fn read(&self, pe: usize, team: KernelTeam, number: u64) -> Option<(Words, u64)> {
        let (word, at) = (|index| self.word(pe, team, index), Self::at(number));
        let is_it = |order| word(at).load(order) == number + 1;
        let found = is_it(Ordering::Acquire).then(|| [1, 2, 3].map(|index| word(at + index).load(Ordering::Relaxed)));
        fence(Ordering::Acquire);
        found.filter(|_| is_it(Ordering::Relaxed)).map(|[what, count, chain]| ([what, count], chain))
    }

    /// The first rank whose calls are known to differ from those of this rank, with the calls.
    pub(super) fn difference(&self, team: &TeamOf) -> Option<(Pe, String, String)> {
        let number = team.number();
        let head = |pe: usize, index| self.word(pe, number, index).load(Ordering::Acquire);
        let mine = head(self.me, 1);
        if head(self.me, 2) != 0 {
            return None;
        }
        team.members.iter().find_map(|pe| {
            let index = pe.index();
            if index == self.me || head(index, 0) != team.tag || head(index, 2) != 0 {
                return None;
            }
            let both = mine.min(head(index, 1));
            let calls = |call| Some((self.read(self.me, number, call)?, self.read(index, number, call)?));
            let ((_, my_chain), (_, their_chain)) = calls(both.checked_sub(1)?)?;
            if my_chain == their_chain {
                return None;
            }
            // The first that differs and is still remembered.
            (both.saturating_sub(CALLS)..both)
                .filter_map(calls)
                .find(|((mine, _), (theirs, _))| mine != theirs)
                .map(|((mine, _), (theirs, _))| (*pe, describe(mine), describe(theirs)))
        })
    }
}

fn words_of(shape: CollectiveShape) -> Words {
    let CollectiveShape { kind, dtype, op, root, count } = shape;
    [kind as u64 | (dtype as u64) << 8 | (op as u64) << 16 | u64::from(root.get()) << 32, count as u64]
}

fn describe([what, count]: Words) -> String {
    let (kind, dtype, op) = (what as u8, (what >> 8) as u8, (what >> 16) as u8);
    let known = (CollectiveKind::from_u8(kind), DType::from_u8(dtype), ReduceOp::from_u8(op));
    let (Some(kind), Some(dtype), Some(op)) = known else { return format!("an unknown operation ({what:#x})") };
    CollectiveShape { kind, dtype, op, root: Rank::new((what >> 32) as u32), count: count as usize }.to_string()
}

/// A bijection that spreads the bits of a word.
const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (word ^ (word >> 29)).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// A file of zeros in memory, whose size cannot change.
fn file(bytes: usize) -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("peerweave-calls", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, bytes as u64)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(file)
}

/// A mapping of the words of one PE.
struct Pages {
    base: *mut u64,
    words: usize,
}

// SAFETY: shared: words of a mapping. Synchronised: they are only accessed as atomics. Would be
// caught by: `collectives_of_other_kinds_or_lengths_mismatch` in tests/mismatches.rs.
unsafe impl Send for Pages {}
// SAFETY: shared: the same words, synchronised as above. Would be caught by:
// `collectives_of_other_kinds_or_lengths_mismatch` in tests/mismatches.rs.
unsafe impl Sync for Pages {}

impl Pages {
    fn map(file: &OwnedFd, bytes: usize) -> io::Result<Self> {
        let size = rustix::fs::fstat(file)?.st_size;
        let is_sealed = rustix::fs::fcntl_get_seals(file)?.contains(SealFlags::SHRINK);
        if u64::try_from(size).ok() != Some(bytes as u64) || !is_sealed {
            let text = format!("a file of {size} bytes (sealed: {is_sealed}), expected a sealed one of {bytes} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the system chooses; it replaces nothing.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, file.as_fd(), 0) }?;
        Ok(Self { base: base.cast(), words: bytes / size_of::<u64>() })
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.words, "peerweave-cuda bug: word {index} of {}", self.words);
        // SAFETY: the word lies in the mapping, which lives as long as this, is aligned, and is
        // accessed atomically alone. The file cannot shrink.
        unsafe { AtomicU64::from_ptr(self.base.add(index)) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: `map` mapped the range, and references to its words do not outlive this.
        let unmapped = unsafe { rustix::mm::munmap(self.base.cast(), self.words * size_of::<u64>()) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_call_describe_it() {
        let shape =
            CollectiveShape { kind: CollectiveKind::Reduce, dtype: DType::F32, op: ReduceOp::Max, root: Rank::new(3), count: 17 };
        assert_eq!(describe(words_of(shape)), "reduce of 17 elements of f32 by max with root 3");
        assert_eq!(describe([255, 0]), "an unknown operation (0xff)");
    }

    #[test]
    fn chains_of_calls_in_another_order_differ() {
        let chain = |calls: &[u64]| calls.iter().fold(0, |chain, call| mix(mix(chain ^ call) ^ 1));
        assert_ne!(chain(&[1, 2]), chain(&[2, 1]));
        assert_ne!(chain(&[1]), chain(&[1, 1]));
    }
}
