//! Accesses of 1 to 16 bytes for copies: weak accesses, and relaxed accesses of system scope to
//! memory that peers access.
//!
//! A vector is 16 bytes in two registers. Functions named `global` take addresses of global memory;
//! functions named `generic` take any address. Memory that a weak access reads or writes must not
//! be written concurrently.

use core::arch::asm;

/// 16 bytes as two words, the low half first.
pub type Vector = [u64; 2];

macro_rules! vector_access {
    ($load:ident $load_text:literal, $store:ident $store_text:literal, $space:literal) => {
        #[doc = concat!("Reads 16 bytes from ", $space, ".")]
        ///
        /// # Safety
        /// `from` points to 16 bytes, aligned to 16, that this thread can read. The bytes are in
        /// global memory, unless the name of the function ends in `generic`.
        #[inline(always)]
        pub unsafe fn $load(from: *const u8) -> Vector {
            let (low, high): (u64, u64);
            // SAFETY: the caller promises aligned, readable memory of this space.
            unsafe {
                asm!(concat!($load_text, " {{{low}, {high}}}, [{p}];"), low = out(reg64) low, high = out(reg64) high,
                    p = in(reg64) from, options(nostack));
            }
            [low, high]
        }

        #[doc = concat!("Writes 16 bytes to ", $space, ".")]
        ///
        /// # Safety
        /// `to` points to 16 bytes, aligned to 16, that this thread can write. The bytes are in
        /// global memory, unless the name of the function ends in `generic`.
        #[inline(always)]
        pub unsafe fn $store(to: *mut u8, value: Vector) {
            // SAFETY: the caller promises aligned, writable memory of this space.
            unsafe {
                asm!(concat!($store_text, " [{p}], {{{low}, {high}}};"), low = in(reg64) value[0], high = in(reg64) value[1],
                    p = in(reg64) to, options(nostack));
            }
        }
    };
}

vector_access!(load_vector_global "ld.global.v2.b64", store_vector_global "st.global.v2.b64", "global memory");
vector_access!(load_vector_generic "ld.v2.b64", store_vector_generic "st.v2.b64", "memory of any kind");
vector_access!(load_vector_relaxed "ld.relaxed.sys.global.v2.b64", store_vector_relaxed "st.relaxed.sys.global.v2.b64",
    "global memory, by two relaxed 8-byte accesses of system scope");

/// An integer of 1, 2, 4 or 8 bytes, the unit in which copies access memory. The `strong` methods
/// make relaxed accesses of system scope; the other methods make weak accesses.
///
/// # Safety
/// Each method of an implementation accesses exactly the value at the pointer.
pub unsafe trait Piece: Copy {
    /// Reads a value from global memory.
    ///
    /// # Safety
    /// `from` points to global memory, aligned to the size of the value, that this thread can read.
    unsafe fn load_global(from: *const Self) -> Self;
    /// Reads a value from memory of any kind.
    ///
    /// # Safety
    /// The pointer is aligned to the size of the value, and this thread can read the value.
    unsafe fn load_generic(from: *const Self) -> Self;
    /// Reads a value from global memory by a relaxed access of system scope.
    ///
    /// # Safety
    /// As for [`Self::load_global`].
    unsafe fn load_strong(from: *const Self) -> Self;
    /// Writes a value to global memory.
    ///
    /// # Safety
    /// `to` points to global memory, aligned to the size of the value, that this thread can write.
    unsafe fn store_global(to: *mut Self, value: Self);
    /// Writes a value to memory of any kind.
    ///
    /// # Safety
    /// The pointer is aligned to the size of the value, and this thread can write the value.
    unsafe fn store_generic(to: *mut Self, value: Self);
    /// Writes a value to global memory by a relaxed access of system scope.
    ///
    /// # Safety
    /// As for [`Self::store_global`].
    unsafe fn store_strong(to: *mut Self, value: Self);
}

macro_rules! piece_load {
    ($name:ident, $text:literal, $carrier:ty, $class:ident) => {
        /// # Safety
        /// As for the method of [`Piece`] that this function implements.
        #[inline(always)]
        unsafe fn $name(from: *const Self) -> Self {
            let value: $carrier;
            // SAFETY: the caller promises aligned, readable memory of this space.
            unsafe { asm!(concat!($text, " {v}, [{p}];"), v = out($class) value, p = in(reg64) from, options(nostack)) };
            value as Self
        }
    };
}

macro_rules! piece_store {
    ($name:ident, $text:literal, $carrier:ty, $class:ident) => {
        /// # Safety
        /// As for the method of [`Piece`] that this function implements.
        #[inline(always)]
        unsafe fn $name(to: *mut Self, value: Self) {
            // SAFETY: the caller promises aligned, writable memory of this space.
            unsafe { asm!(concat!($text, " [{p}], {v};"), v = in($class) value as $carrier, p = in(reg64) to, options(nostack)) };
        }
    };
}

/// Implements [`Piece`]. A byte is passed in a 16-bit register, because inline assembly for NVPTX
/// has no class of 8-bit registers.
macro_rules! piece {
    ($t:ty, $carrier:ty, $class:ident: $load:literal $load_generic:literal $load_strong:literal
        $store:literal $store_generic:literal $store_strong:literal) => {
        // SAFETY: one instruction each, of the width of the type.
        unsafe impl Piece for $t {
            piece_load!(load_global, $load, $carrier, $class);
            piece_load!(load_generic, $load_generic, $carrier, $class);
            piece_load!(load_strong, $load_strong, $carrier, $class);
            piece_store!(store_global, $store, $carrier, $class);
            piece_store!(store_generic, $store_generic, $carrier, $class);
            piece_store!(store_strong, $store_strong, $carrier, $class);
        }
    };
}

piece!(u8, u16, reg16: "ld.global.b8" "ld.b8" "ld.relaxed.sys.global.b8" "st.global.b8" "st.b8" "st.relaxed.sys.global.b8");
piece!(u16, u16, reg16: "ld.global.b16" "ld.b16" "ld.relaxed.sys.global.b16" "st.global.b16" "st.b16" "st.relaxed.sys.global.b16");
piece!(u32, u32, reg32: "ld.global.b32" "ld.b32" "ld.relaxed.sys.global.b32" "st.global.b32" "st.b32" "st.relaxed.sys.global.b32");
piece!(u64, u64, reg64: "ld.global.b64" "ld.b64" "ld.relaxed.sys.global.b64" "st.global.b64" "st.b64" "st.relaxed.sys.global.b64");

/// Reads a word that is not written while the kernel runs. The compiler may move the load out of
/// loops.
///
/// The load is weak, and does not use the read-only cache (`.nc`). ptxas would move a `.nc` load
/// into loops, which saves registers but costs an access to the L2 cache after each fence.
///
/// # Safety
/// `from` points to an aligned word in global memory that this thread can read. The word is not
/// written until the kernel ends.
#[inline(always)]
pub unsafe fn load_constant(from: *const u64) -> u64 {
    let value: u64;
    // SAFETY: the caller promises a readable word that does not change, so the compiler may merge
    // two reads.
    unsafe {
        asm!("ld.global.b64 {v}, [{p}];", v = out(reg64) value, p = in(reg64) from, options(pure, nomem, nostack));
    }
    value
}

/// Reads a word of 32 bits that is not written while the kernel runs. The compiler may move the
/// load out of loops.
///
/// # Safety
/// As for [`load_constant`].
#[inline(always)]
pub unsafe fn load_constant_u32(from: *const u32) -> u32 {
    let value: u32;
    // SAFETY: the caller promises a readable word that does not change, so the compiler may merge
    // two reads.
    unsafe {
        asm!("ld.global.b32 {v}, [{p}];", v = out(reg32) value, p = in(reg64) from, options(pure, nomem, nostack));
    }
    value
}

/// Returns the pointer that is `bytes` bytes after `pointer`. The compiler does not move this
/// addition to another place.
#[inline(always)]
pub fn advance(pointer: *mut u8, bytes: usize) -> *mut u8 {
    let sum: u64;
    // SAFETY: an addition; touches no memory. Not marked `pure`, so that the compiler neither moves
    // the addition out of a loop nor merges it with another addition.
    unsafe {
        asm!("add.s64 {sum}, {p}, {n};", sum = out(reg64) sum, p = in(reg64) pointer, n = in(reg64) bytes, options(nomem, nostack));
    }
    sum as *mut u8
}
