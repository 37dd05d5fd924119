//! Updates of signal words. `wait.rs` contains the calls that wait for signal words. `transfers.rs`
//! contains `put_signal`, which copies data before it updates a word.

use crate::arguments::{Signal, SignalUpdate};
use crate::backend::AtomicKind;
use crate::check;
use crate::world::stream::Stream;
use crate::world::team::Team;
use crate::world::ticket::{Ticket, decode};
use crate::{Result, call};
use peerweave_types::Rank;

/// Updates of signal words on other ranks, and reads of this PE's signal words.
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
    /// Changes a signal word on rank `rank`.
    ///
    /// # Ordering
    /// The signal runs after earlier operations of `stream`. To make earlier puts of this PE
    /// visible to a rank that has waited for the new value, separate the puts from the signal by a
    /// [`fence`](crate::World::fence) or [`quiet`](crate::World::quiet).
    /// [`put_signal`](Team::put_signal) needs no fence or quiet for its own data.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) if `rank` is not a rank of the team. Also
    /// [`Misuse`](crate::Misuse) if the team, stream or word belongs to another world or is no
    /// longer valid. [`Error::Peer`](crate::Error::Peer) if the target is known to have died or
    /// left the job: see [Dead targets](Team#dead-targets).
    pub fn signal(&self, stream: &Stream, update: SignalUpdate<'_>, rank: Rank) -> Result<Ticket> {
        const CALL: &str = "signal";
        call::submit(CALL, self, stream, check::signal(CALL, self, update, rank)?, decode::nothing)
    }

    /// Like [`Team::signal`], but runs on the calling thread.
    ///
    /// # Errors
    /// As for [`Team::signal`].
    #[inline]
    pub fn signal_blocking(&self, update: SignalUpdate<'_>, rank: Rank) -> Result<()> {
        call::run_unit(&self.inner.shared, check::signal("signal_blocking", self, update, rank)?)
    }

    /// Returns the current value of a signal word of this PE. The call does not order accesses to
    /// data. If data depends on the word, use a wait or a test, such as
    /// [`Team::wait_until_blocking`] or [`Team::test`].
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) as for [`Team::signal`].
    pub fn signal_fetch(&self, signal: &Signal<'_>) -> Result<u64> {
        let me = self.my_rank();
        let prepared = check::atomic("signal_fetch", self, signal.remote(), 0, AtomicKind::Fetch, [0, 0], me)?;
        call::run(&self.inner.shared, prepared).map(decode::word)
    }
}
