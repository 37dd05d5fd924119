//! Traits of the Rust types that can be elements.
//!
//! The traits are sealed: a backend matches on [`DType`] and relies on the pairing below.

use crate::{DType, F8E4M3, F8E5M2};
use half::{bf16, f16};

mod sealed {
    pub trait Sealed {}
}

/// A type whose values Peerweave transfers between PEs.
///
/// # Safety
/// Sealed; implemented only in this crate. An implementation guarantees: **\[E1\]** every bit
/// pattern of `size_of::<Self>()` bytes is a valid value, so memory that a peer may write at any
/// time can be read without undefined behaviour; **\[E2\]** the type has no padding; **\[E3\]** its
/// size and meaning are those of [`Self::DTYPE`]; **\[E4\]** it is `Copy` and contains no pointer.
pub unsafe trait Element: sealed::Sealed + Copy + Default + PartialEq + Send + Sync + core::fmt::Debug + 'static {
    /// The run-time name of this type.
    const DTYPE: DType;
}

/// An element of which one value is a buffer of length 1: `&x` where an operation reads, `&mut x`
/// where it writes. All elements are, except arrays, which are buffers of their own elements.
pub trait SingleElement: Element {}

/// An element on which reductions are defined.
pub trait Number: Element {
    /// Returns the bits of the value, zero-extended: the form of scalars in a type-erased
    /// operation.
    fn to_word(self) -> u64;
    /// Returns the value whose bits are the low bits of `word`.
    fn from_word(word: u64) -> Self;
}

/// An integer element, which also supports bitwise reductions.
pub trait Integer: Number {}

/// An element that can be fetched, set and swapped atomically.
pub trait AtomicElement: Number {}

/// An integer element with all atomic operations.
pub trait AtomicInteger: AtomicElement + Integer {}

/// An integer element that a PE can wait for: it is read at once, and compared by the order of its
/// type.
#[diagnostic::on_unimplemented(
    message = "a PE cannot wait for elements of type `{Self}`",
    note = "waits and tests take words of `i32`, `u32`, `i64` and `u64`"
)]
pub trait WaitElement: Integer {}

macro_rules! element {
    ($($t:ty => $dtype:ident),* $(,)?) => {$(
        impl sealed::Sealed for $t {}
        // SAFETY: [E1]-[E4]: a primitive number, or a transparent wrapper of one, of exactly the
        // size that `DType::size_bytes` states for it (checked by the constant below).
        unsafe impl Element for $t {
            const DTYPE: DType = DType::$dtype;
        }
        impl SingleElement for $t {}
        const _: () = assert!(size_of::<$t>() == DType::$dtype.size_bytes());
    )*};
}

element!(i8 => I8, u8 => U8, i32 => I32, u32 => U32, i64 => I64, u64 => U64, f16 => F16, bf16 => BF16, f32 => F32, f64 => F64,
    F8E4M3 => F8E4M3, F8E5M2 => F8E5M2);

macro_rules! integer {
    ($($t:ty as $unsigned:ty),*) => {$(
        impl Number for $t {
            #[inline]
            fn to_word(self) -> u64 {
                self as $unsigned as u64
            }
            #[inline]
            fn from_word(word: u64) -> Self {
                word as $unsigned as $t
            }
        }
        impl Integer for $t {}
    )*};
}

integer!(i8 as u8, u8 as u8, i32 as u32, u32 as u32, i64 as u64, u64 as u64);

macro_rules! float {
    ($($t:ty as $bits:ty),*) => {$(
        impl Number for $t {
            #[inline]
            fn to_word(self) -> u64 {
                u64::from(self.to_bits())
            }
            #[inline]
            fn from_word(word: u64) -> Self {
                Self::from_bits(word as $bits)
            }
        }
    )*};
}

float!(f16 as u16, bf16 as u16, f32 as u32, f64 as u64);

impl AtomicElement for i32 {}
impl AtomicElement for u32 {}
impl AtomicElement for i64 {}
impl AtomicElement for u64 {}
impl AtomicElement for f32 {}
impl AtomicElement for f64 {}
impl AtomicInteger for i32 {}
impl AtomicInteger for u32 {}
impl AtomicInteger for i64 {}
impl AtomicInteger for u64 {}
impl WaitElement for i32 {}
impl WaitElement for u32 {}
impl WaitElement for i64 {}
impl WaitElement for u64 {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversion_to_words_keeps_sign_and_bits() {
        assert_eq!(i8::from_word((-3i8).to_word()), -3);
        assert_eq!(i32::from_word(i32::MIN.to_word()), i32::MIN);
        assert_eq!(u64::from_word(u64::MAX.to_word()), u64::MAX);
        assert_eq!(f32::from_word((-0.0f32).to_word()).to_bits(), (-0.0f32).to_bits());
        assert_eq!(bf16::from_word(bf16::from_f32(1.5).to_word()), bf16::from_f32(1.5));
        assert_eq!((-1i32).to_word(), 0xffff_ffff, "zero-extended, not sign-extended");
    }
}
