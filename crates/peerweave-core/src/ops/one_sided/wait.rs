//! Calls that wait for memory words of this PE, and calls that test these words. Each call has one
//! value, and compares every word with this value. `wait_vector.rs` contains the calls that have a
//! separate value for each word.

use crate::arguments::WaitWord;
use crate::arguments::symmetric::Symmetric;
use crate::backend::{Until, WaitMode, WaitValues};
use crate::check::{self, Awaited};
use crate::world::stream::Stream;
use crate::world::team::Team;
use crate::world::ticket::{Ticket, decode};
use crate::{Result, call};
use peerweave_types::{Compare, Scalar as _, WaitElement};

/// Describes a wait or a test: the words, and the comparison of each word with `value`.
#[inline(always)]
fn awaited<'a, T: WaitElement>(
    words: &'a Symmetric<T>,
    exclude: Option<&'a [bool]>,
    compare: Compare,
    value: T,
    until: Until,
) -> Awaited<'a> {
    Awaited { name: "words", words: words.remote(), exclude, compare, values: WaitValues::Same(value.to_word()), until }
}

/// Waits and tests.
///
/// Waits and tests read memory words of this PE that other PEs change. A word is a signal word, or
/// an element of symmetric memory whose type `T` is a [`WaitElement`]. Words are compared as values
/// of `T`: an `i32` of -1 is less than 0.
///
/// A word often announces that data has arrived. Change such a word only in these ways, so that the
/// data is visible when the wait ends:
/// - by a signal,
/// - by a [`fence`](crate::World::fence), followed by an atomic operation or by [`Team::p`].
///
/// If an atomic operation or [`Team::p`] changes a word, a waiter sees either the old value or the
/// new value, and never a mixture.
///
/// # Any of several words
/// [`Team::wait_until_any`] and [`Team::test_any`] return the index of one word. If several words
/// satisfy the comparison, the call returns the index of any of them, and repeated calls vary the
/// choice. So a program that repeats the call gets the index of every word that stays satisfied,
/// even if other words are always satisfied. The program need not exclude a word whose index has
/// been returned. If several words satisfy a wait that has been captured into a graph, each replay
/// prefers the same word.
///
/// # Example
/// ```
/// use peerweave::{Compare, Rank, World};
///
/// # fn main() -> peerweave::Result<()> {
/// let world = World::from_env()?;
/// let team = world.team();
/// let right = Rank::new((team.my_rank().get() + 1) % team.size() as u32);
/// let temperatures = world.alloc_zeroed::<i32>(3)?;
/// team.p_blocking(&temperatures, 1, -40, right)?;
/// assert_eq!(team.wait_until_blocking((&temperatures, 1), Compare::Lt, -10)?, -40);
/// assert_eq!(team.wait_until_any_blocking(&temperatures, None, Compare::Lt, 0)?, Some(1));
/// assert_eq!(team.test_some(&temperatures, Some(&[false, false, true]), Compare::Le, 0)?, [0, 1]);
/// assert!(team.test_all_vector(&temperatures, None, Compare::Eq, &[0, -40, 0])?);
/// temperatures.release()?; // collective, like the allocation
/// assert!(world.finalize()?.is_clean());
/// # Ok(())
/// # }
/// ```
impl Team {
    /// Waits until a word of this PE satisfies the comparison with `value`, and returns the value
    /// of the word. Pass the word as `&Signal` or as `(&Symmetric<T>, index)`.
    ///
    /// # Ordering
    /// When the wait ends, data that was put to this PE before the word changed is visible. The
    /// data is visible to later operations of `stream`, and to any thread that has waited for the
    /// ticket.
    ///
    /// # Errors
    /// Before anything is enqueued: [`Misuse`](crate::Misuse) if the memory does not contain the
    /// word, or if the team, stream or memory belongs to another world or is no longer valid.
    ///
    /// From the ticket: [`Error::Timeout`](crate::Error::Timeout) at the deadline of the world, and
    /// [`Error::Peer`](crate::Error::Peer) if a PE that could change the word has died.
    pub fn wait_until<W: WaitWord>(
        &self,
        stream: &Stream,
        word: W,
        compare: Compare,
        value: W::Element,
    ) -> Result<Ticket<W::Element>> {
        const CALL: &str = "wait_until";
        let prepared = check::wait_for_one(CALL, self, word.word(), (compare, value.to_word()), WaitMode::Wait)?;
        call::submit(CALL, self, stream, prepared, decode::integer)
    }

    /// Like [`Team::wait_until`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::wait_until`]. The call itself returns the errors that the ticket would
    /// return.
    #[inline]
    pub fn wait_until_blocking<W: WaitWord>(&self, word: W, compare: Compare, value: W::Element) -> Result<W::Element> {
        const CALL: &str = "wait_until_blocking";
        let prepared = check::wait_for_one(CALL, self, word.word(), (compare, value.to_word()), WaitMode::Wait)?;
        call::run(&self.inner.shared, prepared).map(decode::integer)
    }

    /// Returns whether a word of this PE satisfies the comparison with `value` now. The test runs
    /// on the calling thread.
    ///
    /// # Ordering
    /// If the result is `true`, data is visible as after [`Team::wait_until_blocking`].
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) as for [`Team::wait_until`]; [`Error::Peer`](crate::Error::Peer)
    /// if the word does not satisfy the comparison and can no longer change: see
    /// [Dead targets](Team#dead-targets).
    #[inline]
    pub fn test<W: WaitWord>(&self, word: W, compare: Compare, value: W::Element) -> Result<bool> {
        let prepared = check::wait_for_one("test", self, word.word(), (compare, value.to_word()), WaitMode::Test)?;
        call::run(&self.inner.shared, prepared).map(decode::holds)
    }

    /// Waits until all words in `words` on this PE satisfy the comparison with `value`. Words for
    /// which `exclude` is `true` are ignored. If all words are excluded, the wait ends at once.
    ///
    /// # Ordering
    /// As for [`Team::wait_until`].
    ///
    /// # Errors
    /// As for [`Team::wait_until`]; [`Misuse`](crate::Misuse) if the length of `exclude` is not the
    /// number of words.
    pub fn wait_until_all<T: WaitElement>(
        &self,
        stream: &Stream,
        words: &Symmetric<T>,
        exclude: Option<&[bool]>,
        compare: Compare,
        value: T,
    ) -> Result<Ticket> {
        const CALL: &str = "wait_until_all";
        let awaited = awaited(words, exclude, compare, value, Until::All);
        call::submit(CALL, self, stream, check::wait(CALL, self, awaited, WaitMode::Wait)?, decode::nothing)
    }

    /// Like [`Team::wait_until_all`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::wait_until_all`].
    pub fn wait_until_all_blocking<T: WaitElement>(
        &self,
        words: &Symmetric<T>,
        exclude: Option<&[bool]>,
        compare: Compare,
        value: T,
    ) -> Result<()> {
        let awaited = awaited(words, exclude, compare, value, Until::All);
        call::run(&self.inner.shared, check::wait("wait_until_all_blocking", self, awaited, WaitMode::Wait)?).map(decode::nothing)
    }

    /// Waits until at least one word in `words` on this PE satisfies the comparison with `value`,
    /// and returns the index of [any such word](Team#any-of-several-words). Words for which
    /// `exclude` is `true` are ignored. If all words are excluded, the wait returns `None` at once.
    ///
    /// # Ordering
    /// As for [`Team::wait_until`], for the word at the returned index.
    ///
    /// # Errors
    /// As for [`Team::wait_until`]; [`Misuse`](crate::Misuse) if the length of `exclude` is not the
    /// number of words.
    pub fn wait_until_any<T: WaitElement>(
        &self,
        stream: &Stream,
        words: &Symmetric<T>,
        exclude: Option<&[bool]>,
        compare: Compare,
        value: T,
    ) -> Result<Ticket<Option<usize>>> {
        const CALL: &str = "wait_until_any";
        let awaited = awaited(words, exclude, compare, value, Until::Any);
        call::submit(CALL, self, stream, check::wait(CALL, self, awaited, WaitMode::Wait)?, decode::first)
    }

    /// Like [`Team::wait_until_any`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::wait_until_any`].
    pub fn wait_until_any_blocking<T: WaitElement>(
        &self,
        words: &Symmetric<T>,
        exclude: Option<&[bool]>,
        compare: Compare,
        value: T,
    ) -> Result<Option<usize>> {
        let awaited = awaited(words, exclude, compare, value, Until::Any);
        call::run(&self.inner.shared, check::wait("wait_until_any_blocking", self, awaited, WaitMode::Wait)?).map(decode::first)
    }

    /// Waits until at least one word in `words` on this PE satisfies the comparison with `value`.
    /// Returns the indices of all such words, in ascending order. Words for which `exclude` is
    /// `true` are ignored. If all words are excluded, the wait returns an empty list at once.
    ///
    /// # Ordering
    /// As for [`Team::wait_until`], for the words at the returned indices.
    ///
    /// # Errors
    /// As for [`Team::wait_until`]; [`Misuse`](crate::Misuse) if the length of `exclude` is not the
    /// number of words.
    pub fn wait_until_some<T: WaitElement>(
        &self,
        stream: &Stream,
        words: &Symmetric<T>,
        exclude: Option<&[bool]>,
        compare: Compare,
        value: T,
    ) -> Result<Ticket<Vec<usize>>> {
        const CALL: &str = "wait_until_some";
        let awaited = awaited(words, exclude, compare, value, Until::Some);
        call::submit(CALL, self, stream, check::wait(CALL, self, awaited, WaitMode::Wait)?, decode::indices)
    }

    /// Like [`Team::wait_until_some`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::wait_until_some`].
    pub fn wait_until_some_blocking<T: WaitElement>(
        &self,
        words: &Symmetric<T>,
        exclude: Option<&[bool]>,
        compare: Compare,
        value: T,
    ) -> Result<Vec<usize>> {
        let awaited = awaited(words, exclude, compare, value, Until::Some);
        call::run(&self.inner.shared, check::wait("wait_until_some_blocking", self, awaited, WaitMode::Wait)?)
            .map(decode::indices)
    }

    /// Returns whether all words in `words`, except for excluded words, satisfy the comparison with
    /// `value` now. The result is `true` if all words are excluded. The test runs on the calling
    /// thread.
    ///
    /// # Ordering
    /// If the result is `true`, data is visible as after [`Team::wait_until_all_blocking`].
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) as for [`Team::wait_until_all`];
    /// [`Error::Peer`](crate::Error::Peer) as for [`Team::test`].
    pub fn test_all<T: WaitElement>(
        &self,
        words: &Symmetric<T>,
        exclude: Option<&[bool]>,
        compare: Compare,
        value: T,
    ) -> Result<bool> {
        let awaited = awaited(words, exclude, compare, value, Until::All);
        call::run(&self.inner.shared, check::wait("test_all", self, awaited, WaitMode::Test)?).map(decode::holds)
    }

    /// Returns the index of [any word](Team#any-of-several-words) in `words` that is not excluded
    /// and that satisfies the comparison with `value` now. Returns `None` if no word does so. The
    /// test runs on the calling thread.
    ///
    /// # Ordering
    /// As for [`Team::wait_until_any_blocking`], for the word at the returned index.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) as for [`Team::wait_until_all`];
    /// [`Error::Peer`](crate::Error::Peer) as for [`Team::test`].
    pub fn test_any<T: WaitElement>(
        &self,
        words: &Symmetric<T>,
        exclude: Option<&[bool]>,
        compare: Compare,
        value: T,
    ) -> Result<Option<usize>> {
        let awaited = awaited(words, exclude, compare, value, Until::Any);
        call::run(&self.inner.shared, check::wait("test_any", self, awaited, WaitMode::Test)?).map(decode::first)
    }

    /// Returns the indices of all words in `words` that are not excluded and that satisfy the
    /// comparison with `value` now. The indices are in ascending order. The test runs on the
    /// calling thread.
    ///
    /// # Ordering
    /// As for [`Team::wait_until_some_blocking`], for the words at the returned indices.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) as for [`Team::wait_until_all`];
    /// [`Error::Peer`](crate::Error::Peer) as for [`Team::test`].
    pub fn test_some<T: WaitElement>(
        &self,
        words: &Symmetric<T>,
        exclude: Option<&[bool]>,
        compare: Compare,
        value: T,
    ) -> Result<Vec<usize>> {
        let awaited = awaited(words, exclude, compare, value, Until::Some);
        call::run(&self.inner.shared, check::wait("test_some", self, awaited, WaitMode::Test)?).map(decode::indices)
    }
}
