//! Operations on signal words: updates, waits and tests. The word that travels with data is
//! `put_signal`, in `one_sided.rs`.

use crate::arguments::{Signal, SignalUpdate, Symmetric};
use crate::backend::{AtomicKind, Until, WaitMode};
use crate::check::{self, Awaited};
use crate::world::stream::Stream;
use crate::world::team::Team;
use crate::world::ticket::{Ticket, decode};
use crate::{Result, call};
use peerweave_types::{Compare, Rank};

/// Signals.
///
/// # Example
/// ```
/// use peerweave::{Compare, Rank, World};
///
/// # fn main() -> peerweave::Result<()> {
/// let world = World::from_env()?;
/// let team = world.team();
/// let words = world.alloc_zeroed::<u64>(2)?;
/// let (ready, done) = (words.signal(0)?, words.signal(1)?);
/// let right = Rank::new((team.my_rank().get() + 1) % team.size() as u32);
/// team.signal_blocking(ready.set(7), right)?;
/// assert_eq!(team.wait_until_blocking(&ready, Compare::Ge, 7)?, 7);
/// assert!(!team.test(&done, Compare::Ne, 0)?);
/// assert_eq!(team.test_any(&words, None, Compare::Gt, 0)?, Some(0));
/// words.release()?; // collective, like the allocation
/// assert!(world.finalize()?.is_clean());
/// # Ok(())
/// # }
/// ```
impl Team {
    /// Changes a signal word of a rank.
    ///
    /// # Ordering
    /// Runs after earlier operations of `stream`. A rank that waits for the new value sees earlier
    /// puts of this PE only if a [`fence`](crate::World::fence) or [`quiet`](crate::World::quiet)
    /// is in between. [`put_signal`](Team::put_signal) needs neither for its own data.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) if the team does not have the rank, or if the team, stream or word
    /// belongs to another world or is no longer valid.
    pub fn signal(&self, stream: &Stream, update: SignalUpdate<'_>, rank: Rank) -> Result<Ticket> {
        const CALL: &str = "signal";
        call::submit(CALL, self, stream, check::signal(CALL, self, update, rank)?, decode::nothing)
    }

    /// Like [`Team::signal`], on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::signal`].
    #[inline]
    pub fn signal_blocking(&self, update: SignalUpdate<'_>, rank: Rank) -> Result<()> {
        call::run_unit(&self.inner.shared, check::signal("signal_blocking", self, update, rank)?)
    }

    /// Waits until the comparison of a word of this PE with `value` holds, and returns the word.
    ///
    /// # Ordering
    /// Data that was put to this PE before the change that ends the wait is visible afterwards, to
    /// later operations of `stream` and to a thread that has waited for the ticket.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) as for [`Team::signal`];
    /// [`Error::Timeout`](crate::Error::Timeout), from the ticket, after the deadline of the world.
    pub fn wait_until(&self, stream: &Stream, signal: &Signal<'_>, compare: Compare, value: u64) -> Result<Ticket<u64>> {
        const CALL: &str = "wait_until";
        let prepared = check::wait(CALL, self, Awaited::word(*signal, compare, value), WaitMode::Wait)?;
        call::submit(CALL, self, stream, prepared, decode::word)
    }

    /// Like [`Team::wait_until`], on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::wait_until`], the timeout from the call itself.
    #[inline]
    pub fn wait_until_blocking(&self, signal: &Signal<'_>, compare: Compare, value: u64) -> Result<u64> {
        let awaited = Awaited::word(*signal, compare, value);
        let prepared = check::wait("wait_until_blocking", self, awaited, WaitMode::Wait)?;
        call::run(&self.inner.shared, prepared).map(decode::word)
    }

    /// Waits until the comparison with `value` holds for all words of this PE. Words for which
    /// `exclude` is true are ignored; if all are, the wait returns at once.
    ///
    /// # Ordering
    /// As [`Team::wait_until`].
    ///
    /// # Errors
    /// As for [`Team::wait_until`]; [`Misuse`](crate::Misuse) if `exclude` does not have one entry
    /// per word.
    pub fn wait_until_all(
        &self,
        stream: &Stream,
        words: &Symmetric<u64>,
        exclude: Option<&[bool]>,
        compare: Compare,
        value: u64,
    ) -> Result<Ticket> {
        const CALL: &str = "wait_until_all";
        let awaited = Awaited { name: "words", words: words.span(), exclude, compare, value, until: Until::All };
        call::submit(CALL, self, stream, check::wait(CALL, self, awaited, WaitMode::Wait)?, decode::nothing)
    }

    /// Like [`Team::wait_until_all`], on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::wait_until_all`].
    pub fn wait_until_all_blocking(
        &self,
        words: &Symmetric<u64>,
        exclude: Option<&[bool]>,
        compare: Compare,
        value: u64,
    ) -> Result<()> {
        let awaited = Awaited { name: "words", words: words.span(), exclude, compare, value, until: Until::All };
        call::run_unit(&self.inner.shared, check::wait("wait_until_all_blocking", self, awaited, WaitMode::Wait)?)
    }

    /// Waits until the comparison with `value` holds for one of the words of this PE, and returns
    /// the lowest index of such a word. Words for which `exclude` is true are ignored; if all are,
    /// the wait returns `None` at once.
    ///
    /// # Ordering
    /// As [`Team::wait_until`], for the word of the returned index.
    ///
    /// # Errors
    /// As for [`Team::wait_until_all`].
    pub fn wait_until_any(
        &self,
        stream: &Stream,
        words: &Symmetric<u64>,
        exclude: Option<&[bool]>,
        compare: Compare,
        value: u64,
    ) -> Result<Ticket<Option<usize>>> {
        const CALL: &str = "wait_until_any";
        let awaited = Awaited { name: "words", words: words.span(), exclude, compare, value, until: Until::Any };
        call::submit(CALL, self, stream, check::wait(CALL, self, awaited, WaitMode::Wait)?, decode::first)
    }

    /// Like [`Team::wait_until_any`], on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::wait_until_any`].
    pub fn wait_until_any_blocking(
        &self,
        words: &Symmetric<u64>,
        exclude: Option<&[bool]>,
        compare: Compare,
        value: u64,
    ) -> Result<Option<usize>> {
        let awaited = Awaited { name: "words", words: words.span(), exclude, compare, value, until: Until::Any };
        let prepared = check::wait("wait_until_any_blocking", self, awaited, WaitMode::Wait)?;
        call::run(&self.inner.shared, prepared).map(decode::first)
    }

    /// Waits until the comparison with `value` holds for at least one of the words of this PE, and
    /// returns the indices of all such words, ascending. Words for which `exclude` is true are
    /// ignored; if all are, the wait returns no indices at once.
    ///
    /// # Ordering
    /// As [`Team::wait_until`], for the words of the returned indices.
    ///
    /// # Errors
    /// As for [`Team::wait_until_all`].
    pub fn wait_until_some(
        &self,
        stream: &Stream,
        words: &Symmetric<u64>,
        exclude: Option<&[bool]>,
        compare: Compare,
        value: u64,
    ) -> Result<Ticket<Vec<usize>>> {
        const CALL: &str = "wait_until_some";
        let awaited = Awaited { name: "words", words: words.span(), exclude, compare, value, until: Until::Some };
        call::submit(CALL, self, stream, check::wait(CALL, self, awaited, WaitMode::Wait)?, decode::indices)
    }

    /// Like [`Team::wait_until_some`], on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::wait_until_some`].
    pub fn wait_until_some_blocking(
        &self,
        words: &Symmetric<u64>,
        exclude: Option<&[bool]>,
        compare: Compare,
        value: u64,
    ) -> Result<Vec<usize>> {
        let awaited = Awaited { name: "words", words: words.span(), exclude, compare, value, until: Until::Some };
        let prepared = check::wait("wait_until_some_blocking", self, awaited, WaitMode::Wait)?;
        call::run(&self.inner.shared, prepared).map(decode::indices)
    }

    /// Returns whether the comparison of a word of this PE with `value` holds now. Runs on the
    /// calling thread.
    ///
    /// # Ordering
    /// If the result is true, as [`Team::wait_until_blocking`].
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) as for [`Team::signal`]; [`Error::Peer`](crate::Error::Peer) if
    /// the comparison does not hold and the word can no longer change: see
    /// [Dead targets](Team#dead-targets).
    #[inline]
    pub fn test(&self, signal: &Signal<'_>, compare: Compare, value: u64) -> Result<bool> {
        let prepared = check::wait("test", self, Awaited::word(*signal, compare, value), WaitMode::Test)?;
        call::run(&self.inner.shared, prepared).map(decode::holds)
    }

    /// Returns whether the comparison with `value` holds now for all words that are not excluded;
    /// true if all are excluded. Runs on the calling thread.
    ///
    /// # Ordering
    /// If the result is true, as [`Team::wait_until_all_blocking`].
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) as for [`Team::wait_until_all`];
    /// [`Error::Peer`](crate::Error::Peer) as for [`Team::test`].
    pub fn test_all(&self, words: &Symmetric<u64>, exclude: Option<&[bool]>, compare: Compare, value: u64) -> Result<bool> {
        let awaited = Awaited { name: "words", words: words.span(), exclude, compare, value, until: Until::All };
        call::run(&self.inner.shared, check::wait("test_all", self, awaited, WaitMode::Test)?).map(decode::holds)
    }

    /// Returns the lowest index of a word that is not excluded and for which the comparison with
    /// `value` holds now. Runs on the calling thread.
    ///
    /// # Ordering
    /// For the word of the returned index, as [`Team::wait_until_any_blocking`].
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) as for [`Team::wait_until_all`];
    /// [`Error::Peer`](crate::Error::Peer) as for [`Team::test`].
    pub fn test_any(
        &self,
        words: &Symmetric<u64>,
        exclude: Option<&[bool]>,
        compare: Compare,
        value: u64,
    ) -> Result<Option<usize>> {
        let awaited = Awaited { name: "words", words: words.span(), exclude, compare, value, until: Until::Any };
        call::run(&self.inner.shared, check::wait("test_any", self, awaited, WaitMode::Test)?).map(decode::first)
    }

    /// Returns the indices of all words that are not excluded and for which the comparison with
    /// `value` holds now, in ascending order. Runs on the calling thread.
    ///
    /// # Ordering
    /// For the words of the returned indices, as [`Team::wait_until_some_blocking`].
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) as for [`Team::wait_until_all`];
    /// [`Error::Peer`](crate::Error::Peer) as for [`Team::test`].
    pub fn test_some(
        &self,
        words: &Symmetric<u64>,
        exclude: Option<&[bool]>,
        compare: Compare,
        value: u64,
    ) -> Result<Vec<usize>> {
        let awaited = Awaited { name: "words", words: words.span(), exclude, compare, value, until: Until::Some };
        call::run(&self.inner.shared, check::wait("test_some", self, awaited, WaitMode::Test)?).map(decode::indices)
    }

    /// Returns the current value of a word of this PE. The call orders nothing: use a wait or test
    /// if data depends on the word.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) as for [`Team::signal`].
    pub fn signal_fetch(&self, signal: &Signal<'_>) -> Result<u64> {
        let me = self.my_rank();
        let prepared = check::atomic("signal_fetch", self, signal.remote(), 0, AtomicKind::Fetch, [0, 0], me)?;
        call::run(&self.inner.shared, prepared).map(decode::word)
    }
}
