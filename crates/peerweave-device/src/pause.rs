//! What a waiter does between two looks.
//!
//! No clock and no scheduler is here: the host backend spins, yields, sleeps and compares deadlines, a kernel reads its cycle
//! counter. There is, on purpose, no pause that never gives up.

/// What a waiter does between two looks. An `Err` ends the wait: a deadline has passed, a peer has died.
///
/// A wait looks first and pauses only where it found nothing, so that what is there already is taken even when the deadline has
/// passed. `pause` is called once for every unsuccessful look of the whole wait; one value may serve several waits, which then
/// share its deadline.
pub trait Pause {
    /// Why the wait was ended.
    type Error;

    /// Lets time pass: spins, yields, sleeps.
    ///
    /// # Errors
    /// Whatever ends the wait. The protocols return it as it is, with the words as they were found: the wait can be taken up
    /// again.
    fn pause(&mut self) -> Result<(), Self::Error>;
}

impl<P: Pause + ?Sized> Pause for &mut P {
    type Error = P::Error;

    #[inline]
    fn pause(&mut self) -> Result<(), P::Error> {
        P::pause(self)
    }
}

/// A pause that a closure makes. Made by [`from_fn`].
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

/// Looks until `look` finds something, pausing after each look that does not.
#[inline]
pub(crate) fn until<T, P: Pause + ?Sized>(pause: &mut P, mut look: impl FnMut() -> Option<T>) -> Result<T, P::Error> {
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        pause.pause()?;
    }
}
