//! The receipt for an operation that was enqueued. Does not own what the operation uses: the queue does.

use crate::Result;
use crate::backend::{Outcome, Pending, Submitted};
use crate::error::{MisuseKind, misuse};
use crate::shared::Shared;
use peerweave_fork::ForkGuard;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The receipt for a stream-ordered operation that yields an `R`.
///
/// Dropping it neither cancels the operation nor waits for it; a failure then comes out of [`Stream::synchronize`](crate::Stream::synchronize).
/// It may be waited for more than once, and from any thread.
///
/// ```
/// use peerweave::{Compare, World};
///
/// # fn main() -> peerweave::Result<()> {
/// let world = World::from_env()?;
/// let stream = world.stream()?;
/// let words = world.alloc_zeroed::<u64>(1)?;
/// let ticket = world.team().wait_until(&stream, &words.signal(0)?, Compare::Eq, 0)?;
/// assert_eq!(ticket.wait()?, 0);
/// words.release()?; // collective, like the allocation
/// world.finalize()?;
/// # Ok(())
/// # }
/// ```
pub struct Ticket<R = ()> {
    state: State,
    decode: fn(Outcome) -> R,
}

enum State {
    Complete(Outcome),
    /// Holds no part of the world, so that a ticket that is kept does not keep the job.
    Queued {
        pending: Arc<dyn Pending>,
        deadline: Duration,
        guard: ForkGuard,
    },
}

impl<R> Ticket<R> {
    #[inline]
    pub(crate) fn new(submitted: Submitted, shared: &Shared, decode: fn(Outcome) -> R) -> Self {
        let state = match submitted {
            Submitted::Complete(outcome) => State::Complete(outcome),
            Submitted::Queued(pending) => State::Queued { pending, deadline: shared.deadline, guard: shared.guard() },
        };
        Self { state, decode }
    }

    /// Whether the operation has completed or failed.
    pub fn is_complete(&self) -> bool {
        match &self.state {
            State::Complete(_) => true,
            State::Queued { pending, .. } => pending.is_complete(),
        }
    }

    /// Waits until the operation is complete, for as long as the deadline of the world allows, and gives what it yields.
    ///
    /// # Errors
    /// What the operation failed with; [`Error::Skipped`](crate::Error::Skipped) where one before it in the stream had failed;
    /// [`Error::Timeout`](crate::Error::Timeout) where the deadline expired: the operation is then still under way;
    /// [`Misuse`](crate::Misuse) in a forked child, where an operation that was under way at the fork never ends.
    pub fn wait(&self) -> Result<R> {
        match &self.state {
            State::Complete(outcome) => Ok((self.decode)(outcome.clone())),
            State::Queued { deadline, .. } => self.wait_within(*deadline),
        }
    }

    /// As [`Ticket::wait`], for no longer than `limit`.
    ///
    /// # Errors
    /// As [`Ticket::wait`].
    pub fn wait_within(&self, limit: Duration) -> Result<R> {
        match &self.state {
            State::Complete(_) => self.wait(),
            State::Queued { guard, .. } if guard.is_forked() => Err(misuse("wait", MisuseKind::Forked)),
            State::Queued { pending, .. } => pending.wait(limit).map(self.decode),
        }
    }
}

impl<R> fmt::Debug for Ticket<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("is_complete", &self.is_complete()).finish_non_exhaustive()
    }
}

/// How what a backend reports becomes what a call yields. Anything else than what is expected is a mistake in the backend.
pub(crate) mod decode {
    use crate::backend::Outcome;
    use peerweave_types::{AtomicElement, Element};

    #[inline]
    pub(crate) fn nothing(_: Outcome) {}

    #[inline]
    pub(crate) fn word(outcome: Outcome) -> u64 {
        match outcome {
            Outcome::Word(word) => word,
            other => wrong(&other, "a word"),
        }
    }

    #[inline]
    pub(crate) fn number<T: AtomicElement>(outcome: Outcome) -> T {
        T::from_word(word(outcome))
    }

    /// An element whose bytes are the first of a word in memory.
    pub(crate) fn element<T: Element>(outcome: Outcome) -> T {
        crate::arguments::buffer::element_from_bytes(word(outcome).to_ne_bytes())
    }

    /// The lowest index; `None` where every word was excluded.
    pub(crate) fn first(outcome: Outcome) -> Option<usize> {
        match outcome {
            Outcome::Indices(indices) => indices.first().copied(),
            Outcome::Word(index) => Some(index as usize),
            Outcome::NotYet | Outcome::Done => None,
        }
    }

    pub(crate) fn indices(outcome: Outcome) -> Vec<usize> {
        match outcome {
            Outcome::Indices(indices) => indices,
            Outcome::NotYet | Outcome::Done => Vec::new(),
            other @ Outcome::Word(_) => wrong(&other, "indices"),
        }
    }

    pub(crate) fn holds(outcome: Outcome) -> bool {
        outcome != Outcome::NotYet
    }

    #[cold]
    #[inline(never)]
    fn wrong(outcome: &Outcome, due: &str) -> ! {
        panic!("backend bug: {outcome:?} where {due} was due")
    }
}
