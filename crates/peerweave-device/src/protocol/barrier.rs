//! Arrival of a whole team: each rank announces its arrival to every rank, and waits for all.
//!
//! Each rank has one word for every rank in its own memory; each word has one writer. An arrival is
//! one store per rank and no read-modify-write. Each rank polls its own memory and finds which
//! ranks are missing. This does not complete puts: a barrier is `quiet` followed by this.
//!
//! Invariant: a rank arrives in epoch `k + 1` only after every rank has arrived in `k`. So no word
//! is more than one epoch ahead, no word is reset between epochs, and a fast rank cannot overtake a
//! slow one that still waits for `k`.

use crate::flag;
use crate::pause::Pause;
use crate::word::{Word as _, Words};
use peerweave_types::Rank;

/// The words of this rank in the memory of other ranks, for writing only. [`Words`] are written by
/// stores. A rank whose memory cannot be stored to is notified by a call instead.
pub trait Announce {
    /// Returns the number of words.
    fn len(&self) -> usize;

    /// Returns whether there are no words.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes each later [`post`](Self::post) release earlier reads and writes of this PE.
    fn fence_release();

    /// Writes the epoch to the word with this index. Orders nothing by itself.
    fn post(&self, index: usize, epoch: u64);
}

impl<Ws: Words + ?Sized> Announce for Ws {
    #[inline(always)]
    fn len(&self) -> usize {
        Words::len(self)
    }

    #[inline(always)]
    fn fence_release() {
        Ws::Word::fence_release();
    }

    #[inline(always)]
    fn post(&self, index: usize, epoch: u64) {
        flag::post_fenced(self.word(index), epoch);
    }
}

/// Announces to every rank that this rank has arrived, without waiting for the others. `mine` has,
/// for each rank of the team, this rank's word in the memory of that rank.
///
/// Every rank of the team calls it once per epoch, in the order of epochs, after [`wait`] for the
/// previous epoch has returned.
///
/// # Ordering
/// Release, for each of the words: see [`flag::post`]. One fence releases all of them.
#[inline]
pub fn announce<A: Announce + ?Sized>(mine: &A, epoch: u64) {
    A::fence_release();
    announce_relaxed(mine, epoch);
}

/// Like [`announce`], without ordering: it reports the arrival of this rank, but not its earlier
/// writes.
#[inline]
pub fn announce_relaxed<A: Announce + ?Sized>(mine: &A, epoch: u64) {
    for target in 0..mine.len() {
        mine.post(target, epoch);
    }
}

/// Waits until every rank has arrived. Every rank of the team calls it after its own [`announce`].
/// `words` has one word for each rank, in the caller's memory.
///
/// # Ordering
/// Acquire: earlier writes of every rank are visible afterwards.
///
/// # Errors
/// The error of the pause; [`missing`] then names the ranks that have not arrived. The wait can be
/// resumed.
#[inline]
pub fn wait<Ws: Words + ?Sized, P: Pause + ?Sized>(words: &Ws, epoch: u64, pause: &mut P) -> Result<(), P::Error> {
    for rank in 0..words.len() {
        flag::wait(words.word(rank), epoch, pause)?;
    }
    Ok(())
}

/// Like [`wait`], without ordering: every rank has arrived, but its earlier writes may not be
/// visible.
///
/// # Errors
/// As for [`wait`].
#[inline]
pub fn wait_relaxed<Ws: Words + ?Sized, P: Pause + ?Sized>(words: &Ws, epoch: u64, pause: &mut P) -> Result<(), P::Error> {
    for rank in 0..words.len() {
        flag::wait_relaxed(words.word(rank), epoch, pause)?;
    }
    Ok(())
}

/// Returns the ranks that have not arrived, in order. Any PE may call it.
#[inline]
pub fn missing<Ws: Words + ?Sized>(words: &Ws, epoch: u64) -> impl Iterator<Item = Rank> + '_ {
    (0..words.len()).filter(move |&rank| !flag::reached(words.word(rank), epoch)).map(|rank| Rank::new(rank as u32))
}
