//! Calls that wait for memory words of this PE, and calls that test these words. Each call takes
//! one value for each word, and compares word `i` with value `i`.

use crate::arguments::symmetric::Symmetric;
use crate::backend::{Until, WaitMode, WaitValues};
use crate::check::{self, Awaited};
use crate::world::stream::Stream;
use crate::world::team::Team;
use crate::world::ticket::{Ticket, decode};
use crate::{Result, call};
use peerweave_types::{Compare, WaitElement};

/// Describes a wait or a test: the words, and the comparison of word `i` with `values[i]`.
fn awaited<'a, T: WaitElement>(
    words: &'a Symmetric<T>,
    exclude: Option<&'a [bool]>,
    compare: Compare,
    values: &[T],
    until: Until,
) -> Awaited<'a> {
    let values = WaitValues::Each(values.iter().map(|value| value.to_word()).collect());
    Awaited { name: "words", words: words.remote(), exclude, compare, values, until }
}

/// Waits and tests that compare each word with a separate value: see [waits and
/// tests](Team#any-of-several-words).
///
/// # Example
/// Each rank waits until the expected number of parts has arrived from every rank:
/// ```
/// use peerweave::{Compare, Rank, World};
///
/// # fn main() -> peerweave::Result<()> {
/// let world = World::from_env()?;
/// let team = world.team();
/// let me = team.my_rank().get();
/// let parts_of = |rank: u32| rank % 3 + 1;
/// let arrived = world.alloc_zeroed::<u32>(team.size())?;
/// for rank in 0..team.size() as u32 {
///     for _ in 0..parts_of(me) {
///         team.atomic_inc_blocking(&arrived, me as usize, Rank::new(rank))?;
///     }
/// }
/// let expected: Vec<u32> = (0..team.size() as u32).map(parts_of).collect();
/// team.wait_until_all_vector_blocking(&arrived, None, Compare::Ge, &expected)?;
/// assert_eq!(arrived.to_vec()?, expected);
/// arrived.release()?; // collective, like the allocation
/// assert!(world.finalize()?.is_clean());
/// # Ok(())
/// # }
/// ```
impl Team {
    /// Like [`Team::wait_until_all`], but compares word `i` with `values[i]`.
    ///
    /// # Ordering
    /// As for [`Team::wait_until_all`].
    ///
    /// # Errors
    /// As for [`Team::wait_until_all`]; [`Misuse`](crate::Misuse) if the length of `values` is not
    /// the number of words.
    pub fn wait_until_all_vector<T: WaitElement>(
        &self,
        stream: &Stream,
        words: &Symmetric<T>,
        exclude: Option<&[bool]>,
        compare: Compare,
        values: &[T],
    ) -> Result<Ticket> {
        const CALL: &str = "wait_until_all_vector";
        let awaited = awaited(words, exclude, compare, values, Until::All);
        call::submit(CALL, self, stream, check::wait(CALL, self, awaited, WaitMode::Wait)?, decode::nothing)
    }

    /// Like [`Team::wait_until_all_vector`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::wait_until_all_vector`].
    pub fn wait_until_all_vector_blocking<T: WaitElement>(
        &self,
        words: &Symmetric<T>,
        exclude: Option<&[bool]>,
        compare: Compare,
        values: &[T],
    ) -> Result<()> {
        let awaited = awaited(words, exclude, compare, values, Until::All);
        call::run(&self.inner.shared, check::wait("wait_until_all_vector_blocking", self, awaited, WaitMode::Wait)?)
            .map(decode::nothing)
    }

    /// Like [`Team::wait_until_any`], but compares word `i` with `values[i]`.
    ///
    /// # Ordering
    /// As for [`Team::wait_until_any`].
    ///
    /// # Errors
    /// As for [`Team::wait_until_any`]; [`Misuse`](crate::Misuse) if the length of `values` is not
    /// the number of words.
    pub fn wait_until_any_vector<T: WaitElement>(
        &self,
        stream: &Stream,
        words: &Symmetric<T>,
        exclude: Option<&[bool]>,
        compare: Compare,
        values: &[T],
    ) -> Result<Ticket<Option<usize>>> {
        const CALL: &str = "wait_until_any_vector";
        let awaited = awaited(words, exclude, compare, values, Until::Any);
        call::submit(CALL, self, stream, check::wait(CALL, self, awaited, WaitMode::Wait)?, decode::first)
    }

    /// Like [`Team::wait_until_any_vector`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::wait_until_any_vector`].
    pub fn wait_until_any_vector_blocking<T: WaitElement>(
        &self,
        words: &Symmetric<T>,
        exclude: Option<&[bool]>,
        compare: Compare,
        values: &[T],
    ) -> Result<Option<usize>> {
        let awaited = awaited(words, exclude, compare, values, Until::Any);
        call::run(&self.inner.shared, check::wait("wait_until_any_vector_blocking", self, awaited, WaitMode::Wait)?)
            .map(decode::first)
    }

    /// Like [`Team::wait_until_some`], but compares word `i` with `values[i]`.
    ///
    /// # Ordering
    /// As for [`Team::wait_until_some`].
    ///
    /// # Errors
    /// As for [`Team::wait_until_some`]; [`Misuse`](crate::Misuse) if the length of `values` is not
    /// the number of words.
    pub fn wait_until_some_vector<T: WaitElement>(
        &self,
        stream: &Stream,
        words: &Symmetric<T>,
        exclude: Option<&[bool]>,
        compare: Compare,
        values: &[T],
    ) -> Result<Ticket<Vec<usize>>> {
        const CALL: &str = "wait_until_some_vector";
        let awaited = awaited(words, exclude, compare, values, Until::Some);
        call::submit(CALL, self, stream, check::wait(CALL, self, awaited, WaitMode::Wait)?, decode::indices)
    }

    /// Like [`Team::wait_until_some_vector`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::wait_until_some_vector`].
    pub fn wait_until_some_vector_blocking<T: WaitElement>(
        &self,
        words: &Symmetric<T>,
        exclude: Option<&[bool]>,
        compare: Compare,
        values: &[T],
    ) -> Result<Vec<usize>> {
        let awaited = awaited(words, exclude, compare, values, Until::Some);
        call::run(&self.inner.shared, check::wait("wait_until_some_vector_blocking", self, awaited, WaitMode::Wait)?)
            .map(decode::indices)
    }

    /// Like [`Team::test_all`], but compares word `i` with `values[i]`.
    ///
    /// # Ordering
    /// As for [`Team::test_all`].
    ///
    /// # Errors
    /// As for [`Team::test_all`]; [`Misuse`](crate::Misuse) if the length of `values` is not the
    /// number of words.
    pub fn test_all_vector<T: WaitElement>(
        &self,
        words: &Symmetric<T>,
        exclude: Option<&[bool]>,
        compare: Compare,
        values: &[T],
    ) -> Result<bool> {
        let awaited = awaited(words, exclude, compare, values, Until::All);
        call::run(&self.inner.shared, check::wait("test_all_vector", self, awaited, WaitMode::Test)?).map(decode::holds)
    }

    /// Like [`Team::test_any`], but compares word `i` with `values[i]`.
    ///
    /// # Ordering
    /// As for [`Team::test_any`].
    ///
    /// # Errors
    /// As for [`Team::test_any`]; [`Misuse`](crate::Misuse) if the length of `values` is not the
    /// number of words.
    pub fn test_any_vector<T: WaitElement>(
        &self,
        words: &Symmetric<T>,
        exclude: Option<&[bool]>,
        compare: Compare,
        values: &[T],
    ) -> Result<Option<usize>> {
        let awaited = awaited(words, exclude, compare, values, Until::Any);
        call::run(&self.inner.shared, check::wait("test_any_vector", self, awaited, WaitMode::Test)?).map(decode::first)
    }

    /// Like [`Team::test_some`], but compares word `i` with `values[i]`.
    ///
    /// # Ordering
    /// As for [`Team::test_some`].
    ///
    /// # Errors
    /// As for [`Team::test_some`]; [`Misuse`](crate::Misuse) if the length of `values` is not the
    /// number of words.
    pub fn test_some_vector<T: WaitElement>(
        &self,
        words: &Symmetric<T>,
        exclude: Option<&[bool]>,
        compare: Compare,
        values: &[T],
    ) -> Result<Vec<usize>> {
        let awaited = awaited(words, exclude, compare, values, Until::Some);
        call::run(&self.inner.shared, check::wait("test_some_vector", self, awaited, WaitMode::Test)?).map(decode::indices)
    }
}
