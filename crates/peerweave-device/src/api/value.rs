//! Loads and stores of single elements. An element of 1, 2, 4, 8 or 16 bytes with natural alignment
//! is transferred by one access. Other elements are transferred in pieces.

use crate::gpu::{self, Piece};
use core::mem::MaybeUninit;
use peerweave_types::Plain;

/// A kind of loads and stores. A copy uses one kind for its source and one for its target. A kind
/// determines which memory space the accesses can reach, and whether they are weak or relaxed.
pub(crate) trait Side: Copy {
    /// Loads an integer.
    ///
    /// # Safety
    /// `from` is aligned to the size of `P`. This thread can read the integer at `from` by the kind
    /// of access that `Self` stands for.
    unsafe fn load<P: Piece>(from: *const P) -> P;
    /// Stores an integer.
    ///
    /// # Safety
    /// `to` is aligned to the size of `P`. This thread can write the integer at `to` by the kind of
    /// access that `Self` stands for.
    unsafe fn store<P: Piece>(to: *mut P, value: P);
    /// Loads a vector of 16 bytes.
    ///
    /// # Safety
    /// `from` points to 16 bytes and is aligned to 16. This thread can read these bytes by the kind
    /// of access that `Self` stands for.
    unsafe fn load_vector(from: *const u8) -> gpu::Vector;
    /// Stores a vector of 16 bytes.
    ///
    /// # Safety
    /// `to` points to 16 bytes and is aligned to 16. This thread can write these bytes by the kind
    /// of access that `Self` stands for.
    unsafe fn store_vector(to: *mut u8, value: gpu::Vector);
}

macro_rules! side {
    ($(#[$doc:meta])* $name:ident: $load:ident, $store:ident, $load_vector:ident, $store_vector:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(crate) struct $name;

        impl Side for $name {
            #[inline(always)]
            unsafe fn load<P: Piece>(from: *const P) -> P {
                // SAFETY: the caller promises aligned, readable memory.
                unsafe { P::$load(from) }
            }

            #[inline(always)]
            unsafe fn store<P: Piece>(to: *mut P, value: P) {
                // SAFETY: the caller promises aligned, writable memory.
                unsafe { P::$store(to, value) }
            }

            #[inline(always)]
            unsafe fn load_vector(from: *const u8) -> gpu::Vector {
                // SAFETY: the caller promises aligned, readable memory.
                unsafe { gpu::$load_vector(from) }
            }

            #[inline(always)]
            unsafe fn store_vector(to: *mut u8, value: gpu::Vector) {
                // SAFETY: the caller promises aligned, writable memory.
                unsafe { gpu::$store_vector(to, value) }
            }
        }
    };
}

side!(
    /// Weak accesses (a term of the PTX memory model) to global memory: loads and stores of this
    /// GPU's memory, and stores to a peer's memory.
    Global: load_global, store_global, load_vector_global, store_vector_global
);
side!(
    /// Weak accesses to memory of any space, such as shared memory or local memory of a thread.
    Generic: load_generic, store_generic, load_vector_generic, store_vector_generic
);
side!(
    /// Relaxed accesses of system scope to a peer's memory, or to memory that peers write. The
    /// loads never return data from the L1 cache of this SM.
    Strong: load_strong, store_strong, load_vector_relaxed, store_vector_relaxed
);

/// Reads an element by accesses of kind `S`.
///
/// # Safety
/// `from` points to an aligned element that this thread can read by accesses of kind `S`.
#[inline(always)]
pub(crate) unsafe fn load<T: Plain, S: Side>(from: *const T) -> T {
    let mut value = MaybeUninit::<T>::uninit();
    let to = value.as_mut_ptr();
    // SAFETY: the caller promises the source. Each arm reads and writes exactly the bytes of the
    // element, by accesses that its alignment permits. All bytes are written before the value is
    // used, and every bit pattern is valid (`Plain`).
    unsafe {
        match (size_of::<T>(), align_of::<T>()) {
            (1, _) => to.cast::<u8>().write(S::load(from.cast::<u8>())),
            (2, 2..) => to.cast::<u16>().write(S::load(from.cast::<u16>())),
            (4, 4..) => to.cast::<u32>().write(S::load(from.cast::<u32>())),
            (8, 8..) => to.cast::<u64>().write(S::load(from.cast::<u64>())),
            (16, 16..) => to.cast::<gpu::Vector>().write(S::load_vector(from.cast())),
            (size, 8..) if size % 8 == 0 => pieces::<u64, S>(from.cast(), to.cast(), size / 8),
            (size, 4..) if size % 4 == 0 => pieces::<u32, S>(from.cast(), to.cast(), size / 4),
            (size, _) => pieces::<u8, S>(from.cast(), to.cast(), size),
        }
        value.assume_init()
    }
}

/// Reads `n` integers of type `P` by loads of kind `S`, and writes them to the thread's own memory.
///
/// # Safety
/// `from` points to `n` integers that accesses of kind `S` can read. `to` points to `n` writable
/// integers in the thread's own memory.
#[inline(always)]
unsafe fn pieces<P: Piece, S: Side>(from: *const P, to: *mut P, n: usize) {
    for index in 0..n {
        // SAFETY: the index is below the number of pieces.
        unsafe { to.add(index).write(S::load(from.add(index))) };
    }
}

/// Writes an element by accesses of kind `S`.
///
/// # Safety
/// `to` points to an aligned element that this thread can write by accesses of kind `S`.
#[inline(always)]
pub(crate) unsafe fn store<T: Plain, S: Side>(to: *mut T, value: T) {
    let from = &raw const value;
    // SAFETY: the caller promises the target. Each arm reads and writes exactly the bytes of the
    // element, by accesses that its alignment permits. All bytes are initialised (`Plain` has no
    // padding).
    unsafe {
        match (size_of::<T>(), align_of::<T>()) {
            (1, _) => S::store(to.cast::<u8>(), from.cast::<u8>().read()),
            (2, 2..) => S::store(to.cast::<u16>(), from.cast::<u16>().read()),
            (4, 4..) => S::store(to.cast::<u32>(), from.cast::<u32>().read()),
            (8, 8..) => S::store(to.cast::<u64>(), from.cast::<u64>().read()),
            (16, 16..) => S::store_vector(to.cast(), from.cast::<gpu::Vector>().read()),
            (size, 8..) if size % 8 == 0 => pieces_out::<u64, S>(from.cast(), to.cast(), size / 8),
            (size, 4..) if size % 4 == 0 => pieces_out::<u32, S>(from.cast(), to.cast(), size / 4),
            (size, _) => pieces_out::<u8, S>(from.cast(), to.cast(), size),
        }
    }
}

/// Reads `n` integers of type `P` from the thread's own memory, and writes them by stores of kind
/// `S`.
///
/// # Safety
/// `from` points to `n` readable integers in the thread's own memory. `to` points to `n` integers
/// that accesses of kind `S` can write.
#[inline(always)]
unsafe fn pieces_out<P: Piece, S: Side>(from: *const P, to: *mut P, n: usize) {
    for index in 0..n {
        // SAFETY: the index is below the number of pieces.
        unsafe { S::store(to.add(index), from.add(index).read()) };
    }
}
