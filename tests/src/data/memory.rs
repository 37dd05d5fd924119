//! Buffers of every kind, with guards on both sides that must not change.

use crate::data::sample::Sample;
use peerweave::{Buffer, Symmetric};

/// The kinds of buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A range of symmetric memory.
    Symmetric,
    /// A slice of the caller.
    Slice,
    /// A shared buffer.
    Buffer,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Symmetric, Self::Slice, Self::Buffer];
}

/// Number of guard elements on each side.
const GUARD: usize = 9;

/// One buffer.
#[derive(Debug)]
pub struct Mem<T> {
    pub(crate) store: Store<T>,
    len: usize,
}

/// The memory of a buffer's elements and guards.
#[derive(Debug)]
pub(crate) enum Store<T> {
    Symmetric {
        all: Symmetric<T>,
        inner: Symmetric<T>,
    },
    /// `shift` elements precede the first guard, for an unusual alignment.
    Slice {
        all: Vec<T>,
        shift: usize,
    },
    Buffer {
        all: Buffer<T>,
        inner: Buffer<T>,
    },
}

/// Returns how many elements of an arena a buffer of `len` elements may need.
pub const fn arena_len(len: usize) -> usize {
    len + 2 * GUARD + MOST_SHIFT
}

/// Maximum shift of a buffer from the start of its arena, in elements.
pub const MOST_SHIFT: usize = 40;

impl<T: Sample> Mem<T> {
    /// Creates a buffer of `kind` with these contents. Its first guard is `shift` elements (at most
    /// [`MOST_SHIFT`]) after an aligned address. A symmetric buffer is a part of `arena`.
    ///
    /// # Panics
    /// If the arena is too short.
    pub fn new(kind: Kind, arena: &Symmetric<T>, shift: usize, contents: &[T]) -> Self {
        assert!(shift <= MOST_SHIFT);
        let len = contents.len();
        let guarded: Vec<T> =
            (0..GUARD).map(guard).chain(contents.iter().copied()).chain((0..GUARD).map(|i| guard(i + GUARD))).collect();
        let store = match kind {
            Kind::Symmetric => {
                let all = arena.slice(shift..shift + guarded.len()).expect("the arena is long enough");
                all.copy_from(&guarded).expect("the memory is live");
                Store::Symmetric { inner: all.slice(GUARD..GUARD + len).expect("the range is inside the memory"), all }
            }
            Kind::Slice => {
                let all = std::iter::repeat_n(T::default(), shift).chain(guarded).collect();
                Store::Slice { all, shift }
            }
            Kind::Buffer => {
                let whole: Buffer<T> = std::iter::repeat_n(T::default(), shift).chain(guarded).collect();
                let all = whole.slice(shift..).expect("the range is inside the memory");
                Store::Buffer { inner: all.slice(GUARD..GUARD + len).expect("the range is inside the memory"), all }
            }
        };
        Self { store, len }
    }

    /// Returns the present contents.
    ///
    /// # Errors
    /// An error that names a guard element that changed.
    pub fn contents(&self) -> Result<Vec<T>, String> {
        let mut all = match &self.store {
            Store::Symmetric { all, .. } => all.to_vec().expect("the memory is live"),
            Store::Slice { all, shift } => all[*shift..].to_vec(),
            Store::Buffer { all, .. } => all.to_vec(),
        };
        let after = all.split_off(GUARD + self.len);
        let inner = all.split_off(GUARD);
        for (i, (found, side)) in all.iter().map(|&x| (x, "before")).chain(after.iter().map(|&x| (x, "after"))).enumerate() {
            if found.bits() != guard::<T>(i).bits() {
                return Err(format!("guard element {} {side} the buffer changed to {found:?}", i % GUARD));
            }
        }
        Ok(inner)
    }
}

impl<T> Store<T> {
    /// Returns the elements of a slice. Panics for memory of another kind.
    pub(crate) fn slice(&self, len: usize) -> &[T] {
        match self {
            Self::Slice { all, shift } => &all[shift + GUARD..shift + GUARD + len],
            _ => unreachable!("the buffer is a slice"),
        }
    }

    /// Returns the mutable elements of a slice. Panics for memory of another kind.
    pub(crate) fn slice_mut(&mut self, len: usize) -> &mut [T] {
        match self {
            Self::Slice { all, shift } => &mut all[*shift + GUARD..*shift + GUARD + len],
            _ => unreachable!("the buffer is a slice"),
        }
    }
}

impl<T> Mem<T> {
    /// Returns the handle of symmetric memory.
    ///
    /// # Panics
    /// If the memory is not symmetric.
    pub fn symmetric(&self) -> &Symmetric<T> {
        match &self.store {
            Store::Symmetric { inner, .. } => inner,
            _ => panic!("the buffer is not symmetric"),
        }
    }

    /// Returns the handle of a shared buffer.
    ///
    /// # Panics
    /// If the memory is not a shared buffer.
    pub fn buffer(&self) -> &Buffer<T> {
        match &self.store {
            Store::Buffer { inner, .. } => inner,
            _ => panic!("the buffer is not a shared buffer"),
        }
    }

    /// Returns the elements of a slice.
    ///
    /// # Panics
    /// If the memory is not a slice.
    pub fn slice(&self) -> &[T] {
        self.store.slice(self.len)
    }

    /// Returns the mutable elements of a slice.
    ///
    /// # Panics
    /// If the memory is not a slice.
    pub fn slice_mut(&mut self) -> &mut [T] {
        self.store.slice_mut(self.len)
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the buffer has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

fn guard<T: Sample>(index: usize) -> T {
    T::of_bits(0xa5a5_a5a5_a5a5_a500 | index as u64 | 0x40)
}

/// Returns the initial content of receive buffers: a value that results rarely have.
pub fn poison<T: Sample>(index: usize) -> T {
    T::of_bits(0xdead_beef_dead_be00 | (index as u64 & 0x3f))
}
