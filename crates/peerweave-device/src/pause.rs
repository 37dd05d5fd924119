//! The pause of a waiter between two reads of shared memory.
//!
//! No clock and no scheduler is here: on the host, a waiter spins, yields, sleeps and compares
//! deadlines; a kernel reads its cycle counter. There is no pause that never ends a wait.

/// The pause of a waiter between two reads. An `Err` ends the wait, because a deadline has passed
/// or a peer has died.
///
/// A wait looks first and pauses only if the condition does not hold, so a condition that holds
/// ends it even after the deadline. `pause` is called once for every unsuccessful look; one value
/// may serve several waits, which then share its deadline.
pub trait Pause {
    /// Why the wait ended.
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

/// A pause by a closure. Made by [`from_fn`].
#[derive(Clone, Copy, Debug)]
pub struct FromFn<F>(F);

/// A pause that calls `between` between two looks.
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

/// Calls `look` until it returns something, and pauses after each call that does not.
#[inline]
pub(crate) fn until<T, P: Pause + ?Sized>(pause: &mut P, mut look: impl FnMut() -> Option<T>) -> Result<T, P::Error> {
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        pause.pause()?;
    }
}
