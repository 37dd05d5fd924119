//! The pause of a waiter between two polls of shared memory.
//!
//! This module uses no clock and no scheduler. On the host, a pause spins, yields, sleeps and
//! compares deadlines; in a kernel it reads the clock. No pause lets a wait run forever.

/// The pause of a waiter between two polls. An `Err` ends the wait, because a deadline has passed
/// or a peer has died.
///
/// A wait polls first, and pauses only if the condition does not hold. So it succeeds if the
/// condition holds, even after the deadline. `pause` is called once after every unsuccessful poll.
/// One value may serve several waits, which then share its deadline.
pub trait Pause {
    /// The reason why the wait ended.
    type Error;

    /// Pauses: spins, yields, sleeps.
    ///
    /// # Errors
    /// The reason that ends the wait. The protocols return it unchanged and leave the words
    /// unchanged, so the wait can be resumed.
    fn pause(&mut self) -> Result<(), Self::Error>;
}

impl<P: Pause + ?Sized> Pause for &mut P {
    type Error = P::Error;

    #[inline]
    fn pause(&mut self) -> Result<(), P::Error> {
        P::pause(self)
    }
}

/// A pause by a closure. Created by [`from_fn`].
#[derive(Clone, Copy, Debug)]
pub struct FromFn<F>(F);

/// Returns a pause that calls `between` between two polls.
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

/// Calls `look` until it returns a value, and pauses after each call that returns `None`.
#[inline]
pub(crate) fn until<T, P: Pause + ?Sized>(pause: &mut P, mut look: impl FnMut() -> Option<T>) -> Result<T, P::Error> {
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        pause.pause()?;
    }
}
