//! The memory words that store the state of a lock, and accesses to these words. All words are in
//! the symmetric memory of one PE.
//!
//! If the host can access that memory, the accesses are atomic instructions of the CPU. The memory
//! stays mapped when its PE dies, so the lock outlives that PE. If the host cannot access that
//! memory, the accesses are atomic operations of the backend.
#![allow(unsafe_code)]

use crate::Result;
use crate::arguments::symmetric::Symmetric;
use crate::backend::error::Error;
use crate::backend::{AtomicKind, LocalAddress};
use crate::world::team::Team;
use crate::world::ticket::decode;
use crate::{call, check};
use peerweave_types::{Pe, Rank, SymOffset};
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// The distance between two words of a lock, in elements of 8 bytes. Each word has its own cache
/// line.
const STRIDE: usize = 8;

/// The state of a lock. The first word of the lock encodes this state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Free,
    /// A PE holds the lock.
    Held(Pe),
    /// The last holder has passed the lock on to the given PE, which has not yet taken the lock.
    Passed(Pe),
}

const PASSED: u64 = 1 << 32;

impl State {
    fn to_word(self) -> u64 {
        match self {
            Self::Free => 0,
            Self::Held(pe) => u64::from(pe.get()) + 1,
            Self::Passed(pe) => (u64::from(pe.get()) + 1) | PASSED,
        }
    }

    fn from_word(word: u64) -> Self {
        match (word as u32).checked_sub(1) {
            None => Self::Free,
            Some(pe) if word & PASSED != 0 => Self::Passed(Pe::new(pe)),
            Some(pe) => Self::Held(Pe::new(pe)),
        }
    }

    /// Returns the PE that this state names: the holder, or the PE to which the holder has passed
    /// the lock on. Returns `None` if the lock is free.
    pub(super) fn pe(self) -> Option<Pe> {
        match self {
            Self::Free => None,
            Self::Held(pe) | Self::Passed(pe) => Some(pe),
        }
    }
}

/// The values of a PE's word. The word says whether the PE waits for the lock.
mod waiting {
    /// The PE does not wait for the lock. This is the initial value, and the value after the PE has
    /// stopped waiting or has been chosen as the next holder.
    pub(super) const NO: u64 = 0;
    /// The PE waits for the lock. When the holder chooses this PE as the next holder, the holder
    /// changes the word to [`NO`].
    pub(super) const YES: u64 = 1;
    /// The holder chose this PE as the next holder, but the PE gave up before the holder passed the
    /// lock on.
    pub(super) const GAVE_UP: u64 = 2;
}

/// The words of a lock: one word for the state, and for each PE a word that says whether that PE
/// waits.
#[derive(Debug)]
pub(super) struct Words {
    memory: Symmetric<u64>,
    team: Team,
    /// The rank, in the team of all PEs, of the PE that stores the words for all PEs. The copies on
    /// other PEs are unused.
    home: Rank,
}

impl Words {
    /// Returns the number of `u64` elements to allocate for a lock of `n_pes` PEs.
    pub(super) fn len(n_pes: usize) -> usize {
        (1 + n_pes) * STRIDE
    }

    /// Creates the words of a free lock. `memory` stores the words, and must have [`Words::len`]
    /// elements that are all 0. `team` is the team of all PEs.
    pub(super) fn new(memory: Symmetric<u64>, team: &Team) -> Self {
        // All PEs compute the same home. The homes of several locks are spread over the PEs.
        let home = Rank::new((memory.offset().0 / 64 % team.size() as u64) as u32);
        Self { memory, team: team.clone(), home }
    }

    pub(super) fn team(&self) -> &Team {
        &self.team
    }

    #[cfg(test)]
    pub(super) fn memory(&self) -> &Symmetric<u64> {
        &self.memory
    }

    pub(super) fn into_memory(self) -> Symmetric<u64> {
        self.memory
    }

    /// Returns the address of element `index` of `memory` on the PE `home`; `None` if the host
    /// cannot access the element.
    fn address(&self, index: usize) -> Option<*const AtomicU64> {
        let at = SymOffset(self.memory.offset().0 + (index * size_of::<u64>()) as u64);
        match self.team.inner.shared.backend.address_of(Pe::new(self.home.get()), at)? {
            LocalAddress::Host(address) => Some(address.cast_const().cast()),
            LocalAddress::Device { .. } => None,
        }
    }

    /// Performs an atomic operation on the word at `index`, and returns the result. If the host can
    /// access the word, `direct` performs the operation. Otherwise the backend performs `kind` with
    /// `operands`.
    fn access(
        &self,
        call: &'static str,
        index: usize,
        (kind, operands): (AtomicKind, [u64; 2]),
        direct: impl FnOnce(&AtomicU64) -> u64,
    ) -> Result<u64> {
        let shared = &*self.team.inner.shared;
        shared.usable(call)?;
        match self.address(index) {
            // SAFETY: the word lies in `memory`, which is allocated at the same offset on every PE
            // and aligned to 64 bytes. The memory stays mapped while `team` holds the backend
            // ([S3]). Only this module accesses the word, and always atomically.
            Some(address) => Ok(direct(unsafe { &*address })),
            None => {
                let prepared = check::atomic(call, &self.team, self.memory.remote(), index, kind, operands, self.home)?;
                call::run(shared, prepared).map(decode::word)
            }
        }
    }

    fn load(&self, call: &'static str, index: usize) -> Result<u64> {
        self.access(call, index, (AtomicKind::Fetch, [0, 0]), |word| word.load(Ordering::SeqCst))
    }

    /// Changes the word at `index` to `new` if the word is `old`. Returns the previous value of the
    /// word.
    fn compare_swap(&self, call: &'static str, index: usize, old: u64, new: u64) -> Result<u64> {
        self.access(call, index, (AtomicKind::CompareSwap, [new, old]), |word| {
            word.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst).unwrap_or_else(|found| found)
        })
    }

    pub(super) fn state(&self, call: &'static str) -> Result<State> {
        self.load(call, 0).map(State::from_word)
    }

    /// Changes the state of the lock to `new` if the state is `old`. Returns whether the state was
    /// changed.
    pub(super) fn change(&self, call: &'static str, old: State, new: State) -> Result<bool> {
        self.compare_swap(call, 0, old.to_word(), new.to_word()).map(|found| found == old.to_word())
    }

    fn place(pe: Pe) -> usize {
        (1 + pe.index()) * STRIDE
    }

    pub(super) fn waits(&self, call: &'static str, pe: Pe) -> Result<bool> {
        self.load(call, Self::place(pe)).map(|word| word == waiting::YES)
    }

    /// Records that this PE, `me`, waits for the lock. Other PEs change the word of this PE only
    /// while this PE waits.
    pub(super) fn start_waiting(&self, call: &'static str, me: Pe) -> Result<()> {
        let found = self.compare_swap(call, Self::place(me), waiting::NO, waiting::YES)?;
        if found == waiting::GAVE_UP {
            self.compare_swap(call, Self::place(me), waiting::GAVE_UP, waiting::YES)?;
        }
        Ok(())
    }

    /// Changes the word of `pe` from "waits for the lock" to "does not wait". Returns `false` if
    /// the word does not say that `pe` waits, because it has been changed before.
    pub(super) fn stop_waiting(&self, call: &'static str, pe: Pe) -> Result<bool> {
        let found = self.compare_swap(call, Self::place(pe), waiting::YES, waiting::NO)?;
        Ok(found == waiting::YES)
    }

    /// Records that this PE, `me`, no longer waits for the lock, although the holder has chosen
    /// this PE as the next holder.
    pub(super) fn give_up(&self, call: &'static str, me: Pe) -> Result<()> {
        self.compare_swap(call, Self::place(me), waiting::NO, waiting::GAVE_UP).map(drop)
    }

    /// Returns whether `pe` has given up: it stopped waiting for the lock, although the holder had
    /// already chosen `pe` as the next holder.
    pub(super) fn gave_up(&self, call: &'static str, pe: Pe) -> Result<bool> {
        self.load(call, Self::place(pe)).map(|word| word == waiting::GAVE_UP)
    }

    /// Orders this thread's earlier one-sided operations before its later changes of the lock's
    /// words. A PE that sees such a change also sees the effects of these operations.
    pub(super) fn publish(&self, call: &'static str) -> Result<()> {
        fence(Ordering::SeqCst);
        let shared = &*self.team.inner.shared;
        match self.address(0) {
            Some(_) => call::run_unit(shared, check::fence(call, shared)?),
            None => match call::run_unit(shared, check::quiet(call, shared)?) {
                // The operations are complete at all PEs except the dead PE.
                Err(Error::Peer { .. }) => Ok(()),
                done => done,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_state_converts_to_a_word_and_back() {
        for state in [0, 1, 70_000, u32::MAX - 1].map(Pe::new).into_iter().flat_map(|pe| [State::Held(pe), State::Passed(pe)]) {
            assert_eq!(State::from_word(state.to_word()), state);
            assert_ne!(state.to_word(), State::Free.to_word());
        }
        assert_eq!(State::from_word(0), State::Free, "zeroed memory is a free lock");
    }
}
