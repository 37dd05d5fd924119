//! Arrival of a whole team.
//!
//! Completes no puts: a barrier is quiet, then this. Two forms: one word per rank, of which each has one writer ([`arrive`],
//! [`wait`]): one store and `n` loads, no read-modify-write, and one sees who is missing; and one counter for all ([`Central`]),
//! for teams so large that `n` loads cost more than a contended counter.
//!
//! Invariant: a rank arrives in epoch `k + 1` only after it has seen every rank arrive in `k`. So no word is ever more than one
//! epoch ahead, nothing is reset between epochs, and a fast rank cannot overtake a slow one that still looks at `k`.

use crate::flag;
use crate::pause::{self, Pause};
use crate::word::{Word, Words};
use peerweave_types::Rank;

/// Says that this rank has arrived, without waiting for the others. Every rank of the team calls it once per epoch, in order of
/// epochs, and has completed [`wait`] for the epoch before. `words` holds one word per rank.
///
/// # Ordering
/// Release: see [`flag::post`].
///
/// # Panics
/// Where the rank is not below the number of words.
#[inline]
pub fn arrive<Ws: Words + ?Sized>(words: &Ws, rank: Rank, epoch: u64) {
    assert!(rank.index() < words.len(), "{rank} arrived in a team of {}", words.len());
    flag::post(words.word(rank.index()), epoch);
}

/// Says to every rank that this rank has arrived, where each rank has words of its own to look at: `mine` holds, for each rank of
/// the team, the word by which this rank is known there. `n` stores to peers, so that each waits on memory near it. Otherwise as
/// [`arrive`].
///
/// # Ordering
/// Release, for each of the words: see [`flag::post`]. One fence releases all of them.
#[inline]
pub fn announce<Ws: Words + ?Sized>(mine: &Ws, epoch: u64) {
    Ws::Word::fence_release();
    for target in 0..mine.len() {
        flag::post_fenced(mine.word(target), epoch);
    }
}

/// Waits until every rank has arrived. Every rank of the team calls it, after its own [`arrive`] or [`announce`]; looks at one
/// word until its rank has come, then at the next.
///
/// # Ordering
/// Acquire: what every rank did before it arrived is visible after this.
///
/// # Errors
/// The one of the pause; [`missing`] then names who has not arrived. The wait can be taken up again.
#[inline]
pub fn wait<Ws: Words + ?Sized, P: Pause + ?Sized>(words: &Ws, epoch: u64, pause: &mut P) -> Result<(), P::Error> {
    for rank in 0..words.len() {
        flag::wait(words.word(rank), epoch, pause)?;
    }
    Ok(())
}

/// [`arrive`], then [`wait`]. Collective: every rank of the team calls it, in order of epochs.
///
/// # Errors
/// The one of the pause. This rank has arrived nevertheless: take up the [`wait`], do not arrive again.
///
/// # Panics
/// Where the rank is not below the number of words.
#[inline]
pub fn sync<Ws: Words + ?Sized, P: Pause + ?Sized>(words: &Ws, rank: Rank, epoch: u64, pause: &mut P) -> Result<(), P::Error> {
    arrive(words, rank, epoch);
    wait(words, epoch, pause)
}

/// Whether every rank has arrived; looks once.
///
/// # Ordering
/// Acquire, where the answer is yes.
#[inline]
pub fn is_complete<Ws: Words + ?Sized>(words: &Ws, epoch: u64) -> bool {
    missing(words, epoch).next().is_none()
}

/// The ranks that have not arrived, in order, as each is looked at. Anybody may ask.
#[inline]
pub fn missing<Ws: Words + ?Sized>(words: &Ws, epoch: u64) -> impl Iterator<Item = Rank> + '_ {
    (0..words.len()).filter(move |&rank| !flag::reached(words.word(rank), epoch)).map(|rank| Rank::new(rank as u32))
}

/// A barrier by one counter and one generation word: each arrival is counted, the last one publishes the epoch.
///
/// Borrowed and without state of its own: each PE makes one from the same two words. The words start as zeros where the first
/// epoch is 1; in general `arrivals` starts as the number of ranks times the epoch that `generation` starts as, wrapping. They
/// should lie on two cache lines: arrivals would otherwise disturb those who wait.
#[derive(Debug)]
pub struct Central<'a, W> {
    /// Counts the arrivals of all epochs together. Written by everybody.
    pub arrivals: &'a W,
    /// The last complete epoch. Written by whoever arrives last.
    pub generation: &'a W,
    /// How many ranks the team has; 1 at least.
    pub ranks: u64,
}

impl<W> Clone for Central<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W> Copy for Central<'_, W> {}

impl<W: Word> Central<'_, W> {
    /// Says that a rank has arrived, without waiting. Every rank of the team calls it once per epoch, in order of epochs, and has
    /// completed [`Central::wait`] for the epoch before. `true` for the last to arrive: the barrier is then complete.
    ///
    /// # Ordering
    /// Acquire and release: the last to arrive has seen what all others did before, and releases it with the generation.
    #[inline]
    pub fn arrive(self, epoch: u64) -> bool {
        let arrived = self.arrivals.fetch_add_acq_rel(1).wrapping_add(1);
        let last = arrived == epoch.wrapping_mul(self.ranks);
        if last {
            flag::post(self.generation, epoch);
        }
        last
    }

    /// Waits until every rank has arrived. Every rank calls it, after its own [`Central::arrive`].
    ///
    /// # Ordering
    /// Acquire: what every rank did before it arrived is visible after this.
    ///
    /// # Errors
    /// The one of the pause; [`Central::arrived`] then tells how many have come, but nobody can tell who. The wait can be taken
    /// up again.
    #[inline]
    pub fn wait<P: Pause + ?Sized>(self, epoch: u64, pause: &mut P) -> Result<(), P::Error> {
        pause::until(pause, || self.is_complete(epoch).then_some(()))
    }

    /// [`Central::arrive`], then [`Central::wait`]. Collective: every rank of the team calls it, in order of epochs.
    ///
    /// # Errors
    /// The one of the pause. This rank has arrived nevertheless: take up the wait, do not arrive again.
    #[inline]
    pub fn sync<P: Pause + ?Sized>(self, epoch: u64, pause: &mut P) -> Result<(), P::Error> {
        if self.arrive(epoch) { Ok(()) } else { self.wait(epoch, pause) }
    }

    /// Whether every rank has arrived; looks once.
    ///
    /// # Ordering
    /// Acquire, where the answer is yes.
    #[inline]
    pub fn is_complete(self, epoch: u64) -> bool {
        flag::reached(self.generation, epoch)
    }

    /// How many ranks have arrived in this epoch, which is the one under way or the one before: for reports. Orders nothing.
    pub fn arrived(self, epoch: u64) -> u64 {
        let before = epoch.wrapping_sub(1).wrapping_mul(self.ranks);
        self.arrivals.load_relaxed().wrapping_sub(before).min(self.ranks)
    }
}
