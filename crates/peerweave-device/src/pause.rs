//! The pause of a waiter between two polls of shared memory.
//!
//! This module itself uses no clock and no scheduler. A pause of the host backend spins, yields,
//! sleeps and compares deadlines. A pause in a kernel reads the GPU's clock. Both end the wait at a
//! deadline.

/// A pause that a waiter makes between two polls. The pause can end the wait by returning `Err`,
/// for example if a deadline has passed or a peer has died.
///
/// A wait polls first, and calls `pause` once after every unsuccessful poll. So the wait succeeds
/// if its condition is true, even after the deadline. One pause may be used for several waits.
/// These waits then share the deadline of the pause.
pub trait Pause {
    /// The reason why the wait failed.
    type Error;

    /// Lets time pass before the next poll: spins, yields or sleeps.
    ///
    /// # Errors
    /// The error ends the wait, and states the reason. The protocols return this error to their
    /// caller, and leave the words unchanged. So the caller can resume the wait.
    fn pause(&mut self) -> Result<(), Self::Error>;
}

impl<P: Pause + ?Sized> Pause for &mut P {
    type Error = P::Error;

    #[inline]
    fn pause(&mut self) -> Result<(), P::Error> {
        P::pause(self)
    }
}

/// A pause that calls a closure. Created by [`from_fn`].
#[derive(Clone, Copy, Debug)]
pub struct FromFn<F>(F);

/// Returns a pause that calls the closure `between` after each unsuccessful poll.
#[inline]
pub fn from_fn<E, F: FnMut() -> Result<(), E>>(between: F) -> FromFn<F> {
    FromFn(between)
}

impl<E, F: FnMut() -> Result<(), E>> Pause for FromFn<F> {
    type Error = E;

    #[inline]
    fn pause(&mut self) -> Result<(), E> {
        (self.0)()
    }
}

/// Calls `look` until `look` returns a value, and pauses after each call that returns `None`.
#[inline]
pub(crate) fn until<T, P: Pause + ?Sized>(pause: &mut P, mut look: impl FnMut() -> Option<T>) -> Result<T, P::Error> {
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        pause.pause()?;
    }
}
