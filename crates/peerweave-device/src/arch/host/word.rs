//! Implements [`Word`] for the atomics of Rust, in memory that threads or processes of this machine
//! share. The caller provides this memory.

use super::executor::executor;
use crate::Word;
use core::sync::atomic::{AtomicU64, Ordering, fence};

crate::arch::word_by_atomic!(AtomicU64, Ordering, fence);

/// A 64-bit word that several PEs access, for kernels on the host. Each access first calls
/// [`Executor::step`](super::Executor::step).
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Word64(AtomicU64);

impl Word64 {
    /// Returns the word at an address.
    ///
    /// # Safety
    /// `address` is the address of an aligned word that this thread can access for `'a`. During
    /// `'a` the word is accessed only atomically.
    #[inline]
    pub unsafe fn at<'a>(address: u64) -> &'a Self {
        // SAFETY: the caller promises an accessible word; an atomic allows other threads to change
        // the word.
        unsafe { &*core::ptr::with_exposed_provenance(address as usize) }
    }

    #[inline]
    fn word(&self) -> &AtomicU64 {
        executor().step();
        &self.0
    }
}

macro_rules! step_then {
    ($($name:ident($($value:ident),*) $(-> $result:ty)?;)*) => {$(
        #[inline]
        fn $name(&self, $($value: u64),*) $(-> $result)? {
            self.word().$name($($value),*)
        }
    )*};
}

impl Word for Word64 {
    step_then! {
        load_relaxed() -> u64;
        load_acquire() -> u64;
        store_relaxed(value);
        store_release(value);
        add_release(value);
    }

    #[inline]
    fn fence_release() {
        executor().step();
        fence(Ordering::Release);
    }

    #[inline]
    fn fence_acquire() {
        executor().step();
        fence(Ordering::Acquire);
    }
}
