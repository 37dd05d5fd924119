//! Arrival of a whole team: each rank announces its arrival to every rank, and waits for all.
//!
//! Each rank has one word for every rank in its own memory, with one writer each. An arrival is one
//! store per rank and no read-modify-write; each rank polls memory near it and sees which ranks are
//! missing. This does not complete puts: a barrier is `quiet`, then this.
//!
//! Invariant: a rank arrives in epoch `k + 1` only after it has seen every rank arrive in `k`. So
//! no word is more than one epoch ahead, nothing is reset between epochs, and a fast rank cannot
//! overtake a slow one that still waits for `k`.

use crate::flag;
use crate::pause::Pause;
use crate::word::{Word as _, Words};
use peerweave_types::Rank;

/// The words of this rank at other ranks, as an announcement writes them. [`Words`] are written by
/// stores. A rank whose memory cannot be stored to is notified by a call instead: so this only
/// writes.
pub trait Announce {
    /// The number of words.
    fn len(&self) -> usize;

    /// Returns whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes each later [`post`](Self::post) release what this PE has read and written before.
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

/// Publishes to every rank that this rank has arrived, without waiting for the others. `mine`
/// holds, for each rank of the team, the word of this rank in the memory of that rank.
///
/// Every rank of the team calls it once per epoch, in order of epochs, after it has completed
/// [`wait`] for the epoch before.
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

/// Waits until every rank has arrived. Every rank of the team calls it, after its own [`announce`].
/// `words` holds one word for each rank, in the memory of the caller.
///
/// # Ordering
/// Acquire: writes of every rank before it arrived are visible afterwards.
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
/// visible yet.
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

/// The ranks that have not arrived, in order. Any PE may call it.
#[inline]
pub fn missing<Ws: Words + ?Sized>(words: &Ws, epoch: u64) -> impl Iterator<Item = Rank> + '_ {
    (0..words.len()).filter(move |&rank| !flag::reached(words.word(rank), epoch)).map(|rank| Rank::new(rank as u32))
}
