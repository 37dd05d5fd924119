//! Tickets, which are handles to enqueued operations. The stream keeps the memory of an operation
//! alive; the ticket does not.

use crate::Result;
use crate::backend::error::{Error, MisuseKind, misuse};
use crate::backend::{Outcome, Pending, Submitted};
use crate::shared::Shared;
use peerweave_fork::ForkGuard;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A handle to a stream-ordered operation, which has a result of type `R`.
///
/// Dropping a ticket neither cancels the operation nor waits for the operation. If the operation
/// fails after its ticket has been dropped, [`Stream::synchronize`](crate::Stream::synchronize), or
/// at the latest [`World::finalize`](crate::World::finalize), returns the failure. Any thread may
/// wait for a ticket, any number of times.
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
/// assert!(world.finalize()?.is_clean());
/// # Ok(())
/// # }
/// ```
pub struct Ticket<R = ()> {
    state: State,
    decode: Decode<R>,
}

/// A function that computes the result of a ticket: from the outcome of the operation, or from
/// memory to which the operation has written.
enum Decode<R> {
    Outcome(fn(Outcome) -> R),
    /// The operation writes its result to memory. This function reads the result from that memory,
    /// and the outcome is ignored.
    Memory(Box<dyn Fn() -> R + Send + Sync>),
}

impl<R> Decode<R> {
    #[inline]
    fn result(&self, outcome: Outcome) -> R {
        match self {
            Self::Outcome(decode) => decode(outcome),
            Self::Memory(read) => read(),
        }
    }
}

enum State {
    Complete(Outcome),
    /// The operation was enqueued. This variant contains no handle to the world, so a ticket does
    /// not keep the job alive.
    Queued {
        pending: Arc<dyn Pending>,
        deadline: Duration,
        guard: ForkGuard,
    },
    /// The operation has been captured into a graph, and has not been enqueued.
    Captured,
}

/// A pending operation whose error is converted by the function `explain` before the caller gets
/// it.
struct Explained<F> {
    pending: Arc<dyn Pending>,
    explain: F,
}

impl<F> fmt::Debug for Explained<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pending.fmt(f)
    }
}

impl<F: Fn(Error) -> Error + Send + Sync> Pending for Explained<F> {
    fn is_complete(&self) -> bool {
        self.pending.is_complete()
    }

    fn wait(&self, within: Duration) -> Result<Outcome> {
        self.pending.wait(within).map_err(&self.explain)
    }
}

impl<R> Ticket<R> {
    #[inline]
    pub(crate) fn new(submitted: Submitted, shared: &Shared, decode: fn(Outcome) -> R) -> Self {
        let state = match submitted {
            Submitted::Complete(outcome) => State::Complete(outcome),
            Submitted::Queued(pending) => State::Queued { pending, deadline: shared.deadline, guard: shared.guard() },
            Submitted::Captured => State::Captured,
        };
        Self { state, decode: Decode::Outcome(decode) }
    }

    /// Returns a ticket for the same operation. The result of the new ticket is the result of
    /// `read`, which is called after the operation has completed.
    pub(crate) fn with_result<S>(self, read: impl Fn() -> S + Send + Sync + 'static) -> Ticket<S> {
        Ticket { state: self.state, decode: Decode::Memory(Box::new(read)) }
    }

    /// Returns a ticket for the same operation. If the operation fails, `explain` converts the
    /// error that the new ticket returns. A library can use this method to return errors that name
    /// the library's own calls.
    ///
    /// [`Stream::synchronize`](crate::Stream::synchronize) still returns the unconverted error.
    ///
    /// ```
    /// use peerweave::{Error, World};
    ///
    /// # fn main() -> peerweave::Result<()> {
    /// let world = World::from_env()?;
    /// let ticket = world.team().barrier(&world.stream()?)?;
    /// let ticket = ticket.map_err(|error| Error::system("load the model", std::io::Error::other(error)));
    /// ticket.wait()?; // has not failed
    /// assert!(world.finalize()?.is_clean());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn map_err(self, explain: impl Fn(Error) -> Error + Send + Sync + 'static) -> Self {
        let state = match self.state {
            State::Queued { pending, deadline, guard } => {
                State::Queued { pending: Arc::new(Explained { pending, explain }), deadline, guard }
            }
            state => state,
        };
        Self { state, decode: self.decode }
    }

    /// Returns whether the operation has been captured into a graph, and has therefore not been
    /// enqueued. The graph keeps the memory of a captured operation alive. The ticket of a captured
    /// operation never completes.
    pub fn is_captured(&self) -> bool {
        matches!(self.state, State::Captured)
    }

    /// Returns whether the operation has completed or failed.
    pub fn is_complete(&self) -> bool {
        match &self.state {
            State::Complete(_) => true,
            State::Captured => false,
            State::Queued { pending, .. } => pending.is_complete(),
        }
    }

    /// Waits until the operation is complete, at most until the world's deadline, and returns the
    /// operation's result.
    ///
    /// # Errors
    /// - The error with which the operation failed.
    /// - [`Error::Skipped`](crate::Error::Skipped) if an earlier operation on the stream has
    ///   failed. Operations after an [`Error::Mismatch`](crate::Error::Mismatch) are not skipped,
    ///   because the team of the failed operation stays usable.
    /// - [`Error::Timeout`](crate::Error::Timeout) if the operation is still pending at the
    ///   deadline.
    /// - [`Misuse`](crate::Misuse) if the operation has been captured into a graph, or if this
    ///   process is a forked child. In a forked child, operations that were pending at the fork
    ///   never complete.
    pub fn wait(&self) -> Result<R> {
        match &self.state {
            State::Complete(outcome) => Ok(self.decode.result(outcome.clone())),
            State::Queued { deadline, .. } => self.wait_within(*deadline),
            State::Captured => self.wait_within(Duration::ZERO),
        }
    }

    /// Like [`Ticket::wait`], but waits for at most `limit`. If `limit` is zero, the call tests
    /// once and does not wait.
    ///
    /// # Errors
    /// As for [`Ticket::wait`].
    pub fn wait_within(&self, limit: Duration) -> Result<R> {
        match &self.state {
            State::Complete(_) => self.wait(),
            State::Captured => Err(misuse("wait", MisuseKind::Captured)),
            State::Queued { guard, .. } if guard.is_forked() => Err(misuse("wait", MisuseKind::Forked)),
            State::Queued { pending, .. } => pending.wait(limit).map(|outcome| self.decode.result(outcome)),
        }
    }
}

impl<R> fmt::Debug for Ticket<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("is_complete", &self.is_complete()).finish_non_exhaustive()
    }
}

/// Functions that convert the outcome of an operation to the result of a call. They panic if the
/// backend has returned an unexpected outcome.
pub(crate) mod decode {
    use crate::backend::Outcome;
    use peerweave_types::{AtomicElement, Element, WaitElement};

    #[inline]
    pub(crate) fn nothing(_: Outcome) {}

    #[inline]
    pub(crate) fn word(outcome: Outcome) -> u64 {
        match outcome {
            Outcome::Word(word) => word,
            other => wrong(&other, "Outcome::Word"),
        }
    }

    #[inline]
    pub(crate) fn number<T: AtomicElement>(outcome: Outcome) -> T {
        T::from_word(word(outcome))
    }

    #[inline]
    pub(crate) fn integer<T: WaitElement>(outcome: Outcome) -> T {
        T::from_word(word(outcome))
    }

    /// Converts an [`Outcome::Word`] to an element: the first `size_of::<T>()` bytes of the word,
    /// in native byte order.
    pub(crate) fn element<T: Element>(outcome: Outcome) -> T {
        crate::arguments::buffer::element_from_bytes(word(outcome).to_ne_bytes())
    }

    /// Returns the first index in the outcome of a wait or test. Returns `None` if the outcome
    /// contains no index: either all words are excluded, or the call is a test and no word
    /// satisfies the comparison.
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
            other @ Outcome::Word(_) => wrong(&other, "Outcome::Indices"),
        }
    }

    pub(crate) fn holds(outcome: Outcome) -> bool {
        outcome != Outcome::NotYet
    }

    #[cold]
    #[inline(never)]
    fn wrong(outcome: &Outcome, due: &str) -> ! {
        panic!("backend bug: the outcome is {outcome:?}, expected {due}")
    }
}
