//! The argument of a wait for one memory word: a signal word, or an element of symmetric memory.
#![allow(private_interfaces, reason = "the trait is sealed, so only this crate calls its method")]

use crate::arguments::signal::Signal;
use crate::arguments::symmetric::{Remote, Symmetric};
use peerweave_types::WaitElement;

mod sealed {
    use super::Remote;

    pub trait Word {
        /// Returns three values: the name of the parameter, for error messages; the memory that
        /// contains the word; and the index of the word in this memory, in elements.
        #[doc(hidden)]
        fn word(&self) -> (&'static str, Remote<'_>, usize);
    }
}

/// A memory word for which a PE can wait: `&Signal`, or `(&Symmetric<T>, index)` for an element of
/// symmetric memory.
#[diagnostic::on_unimplemented(
    message = "a PE cannot wait for `{Self}`",
    note = "pass a `&Signal`, or `(&symmetric, index)` for an element of an integer type of at least 16 bits"
)]
pub trait WaitWord: sealed::Word {
    /// The integer type of the word.
    type Element: WaitElement;
}

impl sealed::Word for &Signal<'_> {
    #[inline(always)]
    fn word(&self) -> (&'static str, Remote<'_>, usize) {
        ("signal", self.remote(), 0)
    }
}

impl WaitWord for &Signal<'_> {
    type Element = u64;
}

impl<T: WaitElement> sealed::Word for (&Symmetric<T>, usize) {
    #[inline(always)]
    fn word(&self) -> (&'static str, Remote<'_>, usize) {
        ("word", self.0.remote(), self.1)
    }
}

impl<T: WaitElement> WaitWord for (&Symmetric<T>, usize) {
    type Element = T;
}
