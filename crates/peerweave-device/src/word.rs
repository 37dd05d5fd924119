//! A 64-bit word that several PEs access, and an array of such words.
//!
//! This module defines no protocol, only the operations that the memory must support. Invariant:
//! every access to a word is atomic, and is visible to all PEs that share the word. On a GPU such
//! an access has system scope.

use core::marker::PhantomData;

/// A 64-bit word that several PEs access.
///
/// The trait is implemented for [`core::sync::atomic::AtomicU64`], and for the model checker's
/// atomic under `--cfg loom`. Kernels on GPUs use the type [`Word64`](crate::gpu::Word64). The
/// memory orders are those of the C++20 memory model. The protocols need exactly the order that
/// each method states. [`Self::add_release`] is a read-modify-write, so it continues a release
/// sequence.
pub trait Word {
    /// Reads the word with relaxed order.
    fn load_relaxed(&self) -> u64;

    /// Reads the word with acquire order. If a release store wrote the value, the writes before
    /// that store are visible after the call.
    fn load_acquire(&self) -> u64;

    /// Writes the word with relaxed order.
    fn store_relaxed(&self, value: u64);

    /// Writes the word with release order. Earlier reads and writes of this PE are ordered before
    /// later accesses of a PE that acquires the value.
    fn store_release(&self, value: u64);

    /// Adds `value` to the word with release order; the sum wraps. Returns nothing, so a GPU need
    /// not wait for the result.
    fn add_release(&self, value: u64);

    /// A release fence. Each later relaxed store to a word releases the reads and writes before the
    /// fence.
    fn fence_release();

    /// An acquire fence. It makes each earlier relaxed load of a word an acquire: if the load has
    /// read a released value, the writes before the release are visible after the fence.
    fn fence_acquire();
}

/// A sequence of words with indices from 0. The words lie in a slice, at strides, or in the memory
/// of several PEs.
///
/// The protocols of a team use the rank as the index. [`from_fn`] creates a sequence from words
/// that are not contiguous.
pub trait Words {
    /// The type of a word.
    type Word: Word;

    /// Returns the number of words.
    fn len(&self) -> usize;

    /// Returns whether there are no words.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the word at an index. Calls with the same index return the same word.
    ///
    /// # Panics
    /// May panic if `index >= len()`. The protocols never pass such an index.
    fn word(&self, index: usize) -> &Self::Word;
}

impl<W: Word> Words for [W] {
    type Word = W;

    #[inline]
    fn len(&self) -> usize {
        <[W]>::len(self)
    }

    #[inline]
    fn word(&self, index: usize) -> &W {
        &self[index]
    }
}

impl<W: Word, const N: usize> Words for [W; N] {
    type Word = W;

    #[inline]
    fn len(&self) -> usize {
        N
    }

    #[inline]
    fn word(&self, index: usize) -> &W {
        &self[index]
    }
}

impl<T: Words + ?Sized> Words for &T {
    type Word = T::Word;

    #[inline]
    fn len(&self) -> usize {
        T::len(self)
    }

    #[inline]
    fn word(&self, index: usize) -> &T::Word {
        T::word(self, index)
    }
}

/// A sequence of words that calls a closure to find the word at an index. Created by [`from_fn`].
pub struct FromFn<'a, W, F> {
    len: usize,
    find: F,
    found: PhantomData<&'a W>,
}

/// Returns a sequence of `len` words. `find` takes an index less than `len`, and returns the word
/// at that index.
///
/// ```
/// use core::sync::atomic::AtomicU64;
/// use peerweave_device::word::{self, Words};
///
/// // One word per cache line: every eighth.
/// let memory = [const { AtomicU64::new(0) }; 32];
/// let words = word::from_fn(4, |rank| &memory[8 * rank]);
/// assert!(core::ptr::eq(words.word(3), &memory[24]));
/// ```
#[inline]
pub fn from_fn<'a, W: Word + 'a, F: Fn(usize) -> &'a W>(len: usize, find: F) -> FromFn<'a, W, F> {
    FromFn { len, find, found: PhantomData }
}

impl<'a, W: Word + 'a, F: Fn(usize) -> &'a W> Words for FromFn<'a, W, F> {
    type Word = W;

    #[inline]
    fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn word(&self, index: usize) -> &W {
        (self.find)(index)
    }
}
