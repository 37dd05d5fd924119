//! Traits of the Rust types that can be elements.
//!
//! A backend handles only values of a [`DType`]. An element consists of one or more such values.
//! The portable API counts elements. Where it passes a count to a backend, it multiplies the count
//! by [`Element::PARTS`], the number of values in an element.

use crate::{Bool, DType, F8E4M3, F8E5M2, ReduceOp};
use core::fmt::Debug;
use half::{bf16, f16};

/// A type whose values Peerweave transfers between PEs.
///
/// | type | reductions |
/// |---|---|
/// | `i8` to `i64`, `u8` to `u64`, `isize`, `usize` | all |
/// | `f16`, `bf16`, `f32`, `f64` | all that are not bitwise |
/// | [`Bool`], for `bool` | `And`, `Or`, `Xor`, `Min`, `Max` |
/// | `i128`, `u128` | `And`, `Or`, `Xor` |
/// | [`F8E4M3`], [`F8E5M2`] | none |
/// | `num_complex::Complex<f32>` and `Complex<f64>`, with the feature `num-complex` | `Sum`, `Avg` |
/// | `[T; N]` of elements | those of `T` except `PreMulSum`, on each element of the array |
/// | a struct with `#[derive(Element)]` and `#[element(reduce)]` | those of the type of its fields |
///
/// Atomics take integers of 32 and 64 bits; atomic fetch, set and swap also take `f32` and `f64`
/// ([`AtomicElement`], [`AtomicInteger`]). Waits take integers of 16 or more bits
/// ([`WaitElement`]).
///
/// `bool` is not an element type, because a peer could write a byte that is neither 0 nor 1. The
/// crate `peerweave` exports the derive macro, which requires `repr(C)` or `repr(transparent)`,
/// fields that are elements, and no padding.
///
/// ```
/// use peerweave_types::{DType, Element};
///
/// assert_eq!((<[f32; 3]>::DTYPE, <[f32; 3]>::PARTS), (DType::F32, 3));
/// assert_eq!(i16::zeroed(), 0);
/// ```
///
/// # Safety
/// An implementation guarantees: **\[E1\]** every bit pattern of `size_of::<Self>()` bytes is a
/// valid value, so memory that a peer may write at any time can be read without undefined
/// behaviour; **\[E2\]** the type has no padding; **\[E3\]** the type consists of [`Self::PARTS`]
/// values of [`Self::DTYPE`], at least one, which fill its size exactly; if the type implements
/// [`Number`], each of these values is a number of type [`Self::DTYPE`]; **\[E4\]** the type
/// contains no pointer; **\[E5\]** its alignment is at most 64.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an element type",
    label = "Peerweave does not transfer values of this type",
    note = "elements are integers, floats, `Bool`, complex numbers (feature `num-complex`), arrays of elements, and structs with `#[derive(Element)]` and `#[repr(C)]`",
    note = "`bool` and `char` are not elements, because some bit patterns are not valid for them: use `Bool` and `u32`"
)]
pub unsafe trait Element: Copy + PartialEq + Send + Sync + Debug + 'static {
    /// The type of the values that an element consists of.
    const DTYPE: DType;
    /// The number of values of [`Self::DTYPE`] in one element.
    const PARTS: usize;

    /// Returns the element whose bytes are all zero.
    #[inline]
    fn zeroed() -> Self {
        // SAFETY: [E1]: zero bytes are a valid value.
        unsafe { core::mem::zeroed() }
    }
}

/// An element type of which a single value `x` can be a buffer of one element: `&x` is a source,
/// and `&mut x` is a destination. Arrays do not implement this trait: if `x` is an array, `&x` is
/// already a buffer of the array's elements.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be passed as a single element",
    note = "arrays are buffers of their own elements, so `&x` is a buffer of one element only if `x` is not an array: pass a slice, such as `std::slice::from_ref(&x)`"
)]
pub trait SingleElement: Element {}

/// An element type for which reductions are defined.
#[diagnostic::on_unimplemented(
    message = "reductions are not defined for `{Self}`",
    note = "reductions are defined for integers, floats of 16 bits and more, `Bool`, complex numbers, arrays of these, and structs with `#[derive(Element)]` and `#[element(reduce)]`"
)]
pub trait Number: Element {
    /// Returns whether the reduction `op` is defined for this type. If an element consists of
    /// several values, a reduction combines each of these values separately.
    fn accepts(op: ReduceOp) -> bool {
        op.accepts(Self::DTYPE)
    }
}

/// An element that is a single integer or float, and not an array, a struct or a complex number.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a single integer or float",
    note = "pass an integer of at most 64 bits, `f16`, `bf16`, `f32` or `f64`"
)]
pub trait Scalar: Number + Default {
    /// Returns the bits of the value, zero-extended to 64 bits. Operations that are not generic
    /// pass values in this form.
    fn to_word(self) -> u64;
    /// Returns the value whose bits are the low bits of `word`, the inverse of `to_word`.
    fn from_word(word: u64) -> Self;
}

/// An integer element, which also supports bitwise reductions.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an integer element",
    note = "integer elements are the integers of 8 to 64 bits, including `isize` and `usize`"
)]
pub trait Integer: Scalar {}

/// An element that can be fetched, set and swapped atomically: `i32`, `u32`, `i64`, `u64`, `isize`,
/// `usize`, `f32` and `f64`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no atomic operations",
    note = "`i32`, `u32`, `i64`, `u64`, `isize` and `usize` have all atomic operations; `f32` and `f64` can only be fetched, set and swapped"
)]
pub trait AtomicElement: Scalar {}

/// An integer that supports all atomic operations: `i32`, `u32`, `i64`, `u64`, `isize` and `usize`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no atomic arithmetic",
    note = "`i32`, `u32`, `i64`, `u64`, `isize` and `usize` have atomic arithmetic; `f32` and `f64` can only be fetched, set and swapped"
)]
pub trait AtomicInteger: AtomicElement + Integer {}

/// An integer element for which a PE can wait. The wait ends when the value of the element
/// satisfies a comparison. A single load reads the whole element. The comparison is signed if the
/// element's type is signed, and unsigned otherwise.
#[diagnostic::on_unimplemented(
    message = "a PE cannot wait for elements of type `{Self}`",
    note = "a PE can wait for elements of type `i16`, `u16`, `i32`, `u32`, `i64`, `u64`, `isize` or `usize`"
)]
pub trait WaitElement: Integer {}

macro_rules! element {
    ($($t:ty => $dtype:ident * $parts:literal),* $(,)?) => {$(
        // SAFETY: [E1], [E2], [E4], [E5]: a primitive number, or a transparent wrapper of one.
        // [E3]: its size is checked by the constant below.
        unsafe impl Element for $t {
            const DTYPE: DType = DType::$dtype;
            const PARTS: usize = $parts;
        }
        impl SingleElement for $t {}
        const _: () = assert!(size_of::<$t>() == $parts * DType::$dtype.size_bytes());
    )*};
}

element!(i8 => I8 * 1, u8 => U8 * 1, i16 => I16 * 1, u16 => U16 * 1, i32 => I32 * 1, u32 => U32 * 1, i64 => I64 * 1,
    u64 => U64 * 1, f16 => F16 * 1, bf16 => BF16 * 1, f32 => F32 * 1, f64 => F64 * 1, F8E4M3 => F8E4M3 * 1,
    F8E5M2 => F8E5M2 * 1, Bool => U8 * 1, i128 => U64 * 2, u128 => U64 * 2);
#[cfg(target_pointer_width = "64")]
element!(isize => I64 * 1, usize => U64 * 1);

// SAFETY: an array consists of its elements, one after the other. The array therefore fulfils all
// guarantees that the elements fulfil.
unsafe impl<T: Element, const N: usize> Element for [T; N] {
    const DTYPE: DType = T::DTYPE;
    const PARTS: usize = {
        assert!(N > 0, "an element array has length 0, expected at least 1");
        N * T::PARTS
    };
}

impl<T: Number, const N: usize> Number for [T; N] {
    fn accepts(op: ReduceOp) -> bool {
        // `PreMulSum` is not defined for arrays, because its scalar would be an array.
        !matches!(op, ReduceOp::PreMulSum) && T::accepts(op)
    }
}

macro_rules! bitwise {
    ($($t:ty),*) => {$(
        impl Number for $t {
            fn accepts(op: ReduceOp) -> bool {
                op.is_bitwise()
            }
        }
    )*};
}

// Bitwise reductions of these types can be computed on each 64-bit half separately.
bitwise!(i128, u128);

impl Number for Bool {
    fn accepts(op: ReduceOp) -> bool {
        op.is_bitwise() || matches!(op, ReduceOp::Min | ReduceOp::Max)
    }
}

#[cfg(feature = "num-complex")]
macro_rules! complex {
    ($($t:ty => $dtype:ident),*) => {$(
        // SAFETY: this version of `num_complex` documents that `Complex<T>` is `repr(C)` and has
        // the layout of `[T; 2]`: two values of this type.
        unsafe impl Element for num_complex::Complex<$t> {
            const DTYPE: DType = DType::$dtype;
            const PARTS: usize = 2;
        }
        impl SingleElement for num_complex::Complex<$t> {}
        impl Number for num_complex::Complex<$t> {
            fn accepts(op: ReduceOp) -> bool {
                // Products mix the two values, and complex numbers have no order.
                matches!(op, ReduceOp::Sum | ReduceOp::Avg)
            }
        }
        const _: () = assert!(size_of::<num_complex::Complex<$t>>() == 2 * size_of::<$t>());
    )*};
}

#[cfg(feature = "num-complex")]
complex!(f32 => F32, f64 => F64);

macro_rules! integer {
    ($($t:ty as $unsigned:ty),*) => {$(
        impl Number for $t {}
        impl Scalar for $t {
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

integer!(i8 as u8, u8 as u8, i16 as u16, u16 as u16, i32 as u32, u32 as u32, i64 as u64, u64 as u64);
#[cfg(target_pointer_width = "64")]
integer!(isize as usize, usize as usize);

macro_rules! float {
    ($($t:ty as $bits:ty),*) => {$(
        impl Number for $t {}
        impl Scalar for $t {
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

macro_rules! atomic {
    ($($t:ty: $($kind:ident)*;)*) => {$($(impl $kind for $t {})*)*};
}

atomic! {
    i16: WaitElement;
    u16: WaitElement;
    i32: AtomicElement AtomicInteger WaitElement;
    u32: AtomicElement AtomicInteger WaitElement;
    i64: AtomicElement AtomicInteger WaitElement;
    u64: AtomicElement AtomicInteger WaitElement;
    f32: AtomicElement;
    f64: AtomicElement;
}
#[cfg(target_pointer_width = "64")]
atomic! {
    isize: AtomicElement AtomicInteger WaitElement;
    usize: AtomicElement AtomicInteger WaitElement;
}

/// Functions for the code that `#[derive(Element)]` generates. The generated code calls these
/// functions at compile time.
#[doc(hidden)]
pub mod derived {
    use crate::DType;

    /// Returns the [`DType`] of the values that represent a struct in a transfer. If all fields
    /// have the same type, the result is this type. Otherwise, the result is an unsigned integer
    /// type of `align` bytes, but at most `U64`. `align` is the alignment of the struct.
    pub const fn dtype(fields: &[DType], align: usize) -> DType {
        if is_uniform(fields) {
            return fields[0];
        }
        match align {
            1 => DType::U8,
            2 => DType::U16,
            4 => DType::U32,
            _ => DType::U64,
        }
    }

    /// Returns whether all fields of a struct have the same type. Returns `false` if there are no
    /// fields.
    pub const fn is_uniform(fields: &[DType]) -> bool {
        let mut index = 1;
        while index < fields.len() {
            if fields[index] as u8 != fields[0] as u8 {
                return false;
            }
            index += 1;
        }
        !fields.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalar_converted_to_a_word_and_back_has_the_same_value() {
        assert_eq!(i8::from_word((-3i8).to_word()), -3);
        assert_eq!(i32::from_word(i32::MIN.to_word()), i32::MIN);
        assert_eq!(u64::from_word(u64::MAX.to_word()), u64::MAX);
        assert_eq!(f32::from_word((-0.0f32).to_word()).to_bits(), (-0.0f32).to_bits());
        assert_eq!(bf16::from_word(bf16::from_f32(1.5).to_word()), bf16::from_f32(1.5));
        assert_eq!(i16::from_word((-3i16).to_word()), -3);
        assert_eq!(isize::from_word((-3isize).to_word()), -3);
        assert_eq!((-1i32).to_word(), 0xffff_ffff, "zero-extended, not sign-extended");
    }

    #[test]
    fn element_size_is_the_number_of_scalars_times_the_dtype_size() {
        fn fits<T: Element>(parts: usize) {
            assert_eq!((T::PARTS, size_of::<T>()), (parts, parts * T::DTYPE.size_bytes()));
        }
        fits::<usize>(1);
        fits::<Bool>(1);
        fits::<u128>(2);
        fits::<[[f32; 3]; 5]>(15);
        assert_eq!(<[[f32; 3]; 5]>::DTYPE, DType::F32);
        assert_eq!(<[u16; 2]>::zeroed(), [0; 2]);
    }

    #[test]
    fn accepted_reductions_depend_on_the_element_type() {
        assert!(<[f32; 2]>::accepts(ReduceOp::Prod) && !<[f32; 2]>::accepts(ReduceOp::PreMulSum));
        assert!(!<[f32; 2]>::accepts(ReduceOp::Xor) && <[u16; 2]>::accepts(ReduceOp::Xor));
        assert!(u128::accepts(ReduceOp::Or) && !u128::accepts(ReduceOp::Sum));
        assert!(Bool::accepts(ReduceOp::And) && Bool::accepts(ReduceOp::Max) && !Bool::accepts(ReduceOp::Sum));
        assert!(f32::accepts(ReduceOp::PreMulSum));
    }

    #[test]
    fn struct_with_mixed_field_types_is_transferred_as_integers() {
        assert_eq!(derived::dtype(&[DType::F32, DType::F32], 4), DType::F32);
        assert_eq!(derived::dtype(&[DType::F32, DType::U32], 4), DType::U32);
        assert_eq!(derived::dtype(&[DType::U8, DType::I8], 1), DType::U8);
        assert_eq!(derived::dtype(&[DType::F64, DType::U64], 16), DType::U64);
        assert!(!derived::is_uniform(&[]));
    }
}
