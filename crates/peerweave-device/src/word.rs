//! A 64-bit word that several PEs access, and an array of such words.
//!
//! This module has no protocol, only the operations that the memory must support. Invariant: a word
//! is only accessed atomically, and every access is visible to all PEs that share the word (on a
//! GPU: system scope).

use core::marker::PhantomData;

/// A 64-bit word that several PEs access.
///
/// Implemented for [`core::sync::atomic::AtomicU64`], and for the model checker's atomic under
/// `--cfg loom`. Kernels have their own implementation. The orders are those of the C++20 memory
/// model, and the protocols need exactly those stated. An addition continues the release sequence
/// of the store that it replaces.
pub trait Word {
    /// Reads the word. Orders nothing.
    fn load_relaxed(&self) -> u64;

    /// Reads the word. Writes before the release store that wrote the value are visible afterwards.
    fn load_acquire(&self) -> u64;

    /// Writes the word. Orders nothing.
    fn store_relaxed(&self, value: u64);

    /// Writes the word. Earlier reads and writes of this PE are ordered before later accesses of a
    /// PE that acquires the value.
    fn store_release(&self, value: u64);

    /// Adds, wrapping, with release order. Has no result, so that a GPU need not wait for it.
    fn add_release(&self, value: u64);

    /// Makes each later relaxed store, to any word, release the reads and writes of this PE before
    /// the fence.
    fn fence_release();

    /// Makes each earlier relaxed load, of any word, acquire: writes released by its writer are
    /// visible after the fence.
    fn fence_acquire();
}

/// Words with indices from 0, in a slice, at strides, or in the segments of several PEs.
///
/// The words of a team are indexed by rank. See [`from_fn`] for words that are not contiguous.
pub trait Words {
    /// The type of a word.
    type Word: Word;

    /// Returns the number of words.
    fn len(&self) -> usize;

    /// Returns whether there are no words.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the word at an index. The same index always yields the same word.
    ///
    /// # Panics
    /// May panic if `index >= len()`, which the protocols never pass.
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

/// Words found by a closure. Created by [`from_fn`].
pub struct FromFn<'a, W, F> {
    len: usize,
    find: F,
    found: PhantomData<&'a W>,
}

/// Returns `len` words. `find` returns the word at an index, which is less than `len`.
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
