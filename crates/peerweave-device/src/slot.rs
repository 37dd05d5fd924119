//! A small payload from each rank, which every rank may read: two lines per rank, used in turn.
//!
//! Moves a few words, no bulk data. The line of a rank in epoch `k` is the one of parity `k & 1`.
//!
//! Invariant: **a rank publishes epoch `k` into parity `k & 1` only after it has seen every rank publish `k - 1`; seeing `k - 1`
//! from a rank proves that it has finished reading `k - 2`**, which is what lay in that line. So every rank publishes in every
//! epoch, be it an empty payload, and finishes reading an epoch before it publishes the next. Where an operation lets every rank
//! read every other, the reads are the proof; where it does not (a broadcast), [`ready`] is called before the next [`publish`].

use crate::flag;
use crate::line::Line;
use crate::pause::{self, Pause};
use crate::word::Word;
use core::marker::PhantomData;
use peerweave_types::Rank;

/// The lines of a team: two for each rank.
pub trait Slots {
    /// What a word is.
    type Word: Word;

    /// How many ranks.
    fn ranks(&self) -> usize;

    /// The line of this rank for epochs of this parity, 0 or 1. Always the same line for the same two.
    ///
    /// # Panics
    /// May panic where `rank >= ranks()` or `parity > 1`; the protocol never asks for it.
    fn slot(&self, rank: usize, parity: usize) -> Line<'_, Self::Word>;
}

impl<S: Slots + ?Sized> Slots for &S {
    type Word = S::Word;

    #[inline]
    fn ranks(&self) -> usize {
        S::ranks(self)
    }

    #[inline]
    fn slot(&self, rank: usize, parity: usize) -> Line<'_, S::Word> {
        S::slot(self, rank, parity)
    }
}

/// Lines that a closure finds. Made by [`from_fn`].
pub struct FromFn<'a, W, F> {
    ranks: usize,
    find: F,
    found: PhantomData<&'a W>,
}

/// The lines of `ranks` ranks, of which `find` gives the one of a rank and a parity.
#[inline]
pub fn from_fn<'a, W: Word + 'a, F: Fn(usize, usize) -> Line<'a, W>>(ranks: usize, find: F) -> FromFn<'a, W, F> {
    FromFn { ranks, find, found: PhantomData }
}

impl<'a, W: Word + 'a, F: Fn(usize, usize) -> Line<'a, W>> Slots for FromFn<'a, W, F> {
    type Word = W;

    #[inline]
    fn ranks(&self) -> usize {
        self.ranks
    }

    #[inline]
    fn slot(&self, rank: usize, parity: usize) -> Line<'_, W> {
        (self.find)(rank, parity)
    }
}

/// Which of a rank's two lines an epoch uses.
#[inline]
pub const fn parity(epoch: u64) -> usize {
    (epoch & 1) as usize
}

/// Publishes this rank's payload of an epoch. Every rank calls it once per epoch, in order of epochs, when it has finished
/// reading the epoch before and has seen every rank publish that one: see [`ready`].
///
/// # Ordering
/// The payload relaxed, then the sequence release: what this rank did before, too, is visible to whoever reads the payload.
///
/// # Panics
/// Where the payload is longer than the line's, or the rank is not below the number of ranks.
#[inline]
pub fn publish<S: Slots + ?Sized>(slots: &S, rank: Rank, epoch: u64, payload: &[u64]) {
    assert!(rank.index() < slots.ranks(), "{rank} published in a team of {}", slots.ranks());
    slots.slot(rank.index(), parity(epoch)).write(epoch, payload);
}

/// Reads the start of a rank's payload of an epoch if it is there: fills `into` and returns `true`. A rank may read an epoch
/// until it publishes the next.
///
/// # Ordering
/// Acquire, where the answer is yes.
///
/// # Panics
/// Where `into` is longer than the line's payload, or the rank is not below the number of ranks.
#[inline]
pub fn try_read<S: Slots + ?Sized>(slots: &S, rank: Rank, epoch: u64, into: &mut [u64]) -> bool {
    assert!(rank.index() < slots.ranks(), "{rank} read in a team of {}", slots.ranks());
    slots.slot(rank.index(), parity(epoch)).read(epoch, into)
}

/// Waits for a rank's payload of an epoch and reads its start. Otherwise as [`try_read`].
///
/// # Errors
/// The one of the pause; [`missing`] then names who has not published. The wait can be taken up again.
///
/// # Panics
/// Where `into` is longer than the line's payload, or the rank is not below the number of ranks.
#[inline]
pub fn read<S: Slots + ?Sized, P: Pause + ?Sized>(
    slots: &S,
    rank: Rank,
    epoch: u64,
    into: &mut [u64],
    pause: &mut P,
) -> Result<(), P::Error> {
    pause::until(pause, || try_read(slots, rank, epoch, into).then_some(()))
}

/// Waits until this rank may publish `epoch`: until every rank has published the epoch before, and so has finished reading the
/// one before that. Needed where this rank has not read every rank's payload of the epoch before; costs one load per rank where
/// they have all come.
///
/// # Ordering
/// Acquire: what every rank read and wrote before it published is done.
///
/// # Errors
/// The one of the pause; [`missing`] of the epoch before then names who has not published. The wait can be taken up again.
#[inline]
pub fn ready<S: Slots + ?Sized, P: Pause + ?Sized>(slots: &S, epoch: u64, pause: &mut P) -> Result<(), P::Error> {
    let before = epoch.wrapping_sub(1);
    for rank in 0..slots.ranks() {
        flag::wait(slots.slot(rank, parity(before)).sequence, before, pause)?;
    }
    Ok(())
}

/// Whether this rank may publish `epoch`; looks once. See [`ready`].
///
/// # Ordering
/// Acquire, where the answer is yes.
#[inline]
pub fn is_ready<S: Slots + ?Sized>(slots: &S, epoch: u64) -> bool {
    missing(slots, epoch.wrapping_sub(1)).next().is_none()
}

/// The ranks that have not published this epoch, in order, as each is looked at. Anybody may ask.
#[inline]
pub fn missing<S: Slots + ?Sized>(slots: &S, epoch: u64) -> impl Iterator<Item = Rank> + '_ {
    (0..slots.ranks())
        .filter(move |&rank| !flag::reached(slots.slot(rank, parity(epoch)).sequence, epoch))
        .map(|rank| Rank::new(rank as u32))
}
