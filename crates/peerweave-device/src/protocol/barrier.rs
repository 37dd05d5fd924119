//! Barrier of a team: each rank announces its arrival to every rank, and waits for the arrival of
//! every rank.
//!
//! In its own memory, each rank has one word for every rank. Each word has one writer. An arrival
//! is one store per rank, without read-modify-writes. Each rank polls only its own memory. The
//! words in this memory also show which ranks are missing. The protocol does not complete puts: the
//! barrier of the API first calls `quiet`.
//! Invariant: a rank arrives in epoch `k + 1` only after every rank has arrived in epoch `k`. So no
//! word is more than one epoch ahead of any other word. The words need not be reset between epochs.
//! A fast rank cannot overtake a slow rank that still waits for epoch `k`.

use crate::flag;
use crate::pause::Pause;
use crate::word::{Word as _, Words};
use peerweave_types::Rank;

/// The words by which this rank announces its arrival: one word in the memory of every rank. The
/// trait only writes these words.
///
/// Every type that implements [`Words`] implements this trait by stores. Other implementations can
/// reach ranks whose memory is not mapped, for example by network calls.
pub trait Announce {
    /// Returns the number of words.
    fn len(&self) -> usize;

    /// Returns whether there are no words.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Executes a release fence: earlier reads and writes of this PE are ordered before each later
    /// [`post`](Self::post).
    fn fence_release();

    /// Writes `epoch` to the word at `index`. Without an earlier
    /// [`fence_release`](Self::fence_release), the call orders nothing.
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

/// Announces to every rank that this rank has arrived, and does not wait. `mine` contains one word
/// for each rank `t` of the team: this rank's word in the memory of rank `t`.
///
/// Every rank of the team calls this function once per epoch, in the order of epochs. A rank must
/// first wait for the previous epoch by [`wait`].
///
/// # Ordering
/// Release, for each word, like [`flag::post`]. One fence is used for all words.
#[inline]
pub fn announce<A: Announce + ?Sized>(mine: &A, epoch: u64) {
    A::fence_release();
    announce_relaxed(mine, epoch);
}

/// Like [`announce`], but orders nothing. The arrival of this rank becomes visible. Earlier writes
/// of this rank are not necessarily visible.
#[inline]
pub fn announce_relaxed<A: Announce + ?Sized>(mine: &A, epoch: u64) {
    for target in 0..mine.len() {
        mine.post(target, epoch);
    }
}

/// Waits until every rank has arrived. Every rank of the team calls this function after its own
/// [`announce`]. `words` contains one word for each rank, in the caller's memory.
///
/// # Ordering
/// Acquire: earlier writes of every rank are visible after the call.
///
/// # Errors
/// The error that `pause` returns. After this error, [`missing`] returns the ranks that have not
/// arrived, and the caller can resume the wait.
#[inline]
pub fn wait<Ws: Words + ?Sized, P: Pause + ?Sized>(words: &Ws, epoch: u64, pause: &mut P) -> Result<(), P::Error> {
    for rank in 0..words.len() {
        flag::wait(words.word(rank), epoch, pause)?;
    }
    Ok(())
}

/// Like [`wait`], but orders nothing. After the call every rank has arrived. Earlier writes of the
/// ranks are not necessarily visible.
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

/// Returns the ranks that have not arrived in this epoch, in ascending order. Any PE may call this
/// function.
#[inline]
pub fn missing<Ws: Words + ?Sized>(words: &Ws, epoch: u64) -> impl Iterator<Item = Rank> + '_ {
    (0..words.len()).filter(move |&rank| !flag::reached(words.word(rank), epoch)).map(|rank| Rank::new(rank as u32))
}
