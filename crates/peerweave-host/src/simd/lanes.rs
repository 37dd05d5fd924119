//! The content of a vector register, in two forms: the elements as memory stores them, and the
//! values for arithmetic. For example, arithmetic converts binary16 elements to `f32` values.
//!
//! This module accesses no memory. Its arrays are values, which the compiler keeps in registers.
//! Invariant: the value of an element does not depend on its lane or on the number of lanes. So the
//! same input has the same result bits on every instruction set.

use super::arch::{Arch, Vector};
use super::float16;

/// An array with one item for each lane of a vector register.
pub(super) trait Lanes: Copy {
    /// Type of one lane, which is one item of this array.
    type Lane: Copy;
    /// Number of lanes.
    const LEN: usize;
    /// Returns lanes that all have the value `value`.
    fn splat(value: Self::Lane) -> Self;
    /// Returns the values of all lanes.
    fn lanes(&self) -> &[Self::Lane];
    /// Returns the values of all lanes, for writing.
    fn lanes_mut(&mut self) -> &mut [Self::Lane];
}

impl<T: Copy, const N: usize> Lanes for [T; N] {
    type Lane = T;
    const LEN: usize = N;

    #[inline(always)]
    fn splat(value: T) -> Self {
        [value; N]
    }

    #[inline(always)]
    fn lanes(&self) -> &[T] {
        self
    }

    #[inline(always)]
    fn lanes_mut(&mut self) -> &mut [T] {
        self
    }
}

/// A type of elements as they are stored in memory.
///
/// # Safety
/// An implementation promises:
/// - **[T1]** The type has no padding, and every bit pattern is valid.
/// - **[T2]** `RawN` has exactly N bytes.
pub(super) unsafe trait Storage: Copy + 'static {
    /// The type in which arithmetic on these elements is done, such as `f32` for binary16.
    type Value: super::number::Number;
    /// The content of a 16-byte register, as an array of elements.
    type Raw16: Lanes<Lane = Self>;
    /// The content of a 32-byte register, as an array of elements.
    type Raw32: Lanes<Lane = Self>;
    /// The content of a 64-byte register, as an array of elements.
    type Raw64: Lanes<Lane = Self>;
    /// The elements of a 16-byte register (`Raw16`), converted to values for arithmetic.
    type Values16: Lanes<Lane = Self::Value>;
    /// The elements of a 32-byte register (`Raw32`), converted to values for arithmetic.
    type Values32: Lanes<Lane = Self::Value>;
    /// The elements of a 64-byte register (`Raw64`), converted to values for arithmetic.
    type Values64: Lanes<Lane = Self::Value>;
    /// The registers for the values of a whole register of elements. `V` is the type of a register.
    /// If a value is larger than its element, several registers are necessary. For example, the
    /// elements of one binary16 register become `f32` values in two registers.
    type Registers<V: Vector>: Copy;

    /// Converts the bits of one element to a value for arithmetic. The bits are the low bits of
    /// `word`.
    fn value_of_word(word: u64) -> Self::Value;

    /// Converts this element to a value for arithmetic.
    fn value(self) -> Self::Value;

    /// Converts one value to an element. Rounds like [`Storage::encode`].
    fn of_value(value: Self::Value) -> Self;

    /// Converts the elements of one register to values for arithmetic. The argument `raw` has the
    /// elements as memory stores them.
    ///
    /// # Safety
    /// The processor has the instruction set `A`.
    unsafe fn decode<A: Arch>(raw: A::Raw<Self>) -> A::Values<Self>;

    /// Converts values to elements, rounding to nearest, ties to even. A NaN value must be the
    /// canonical NaN.
    ///
    /// # Safety
    /// The processor has the instruction set `A`.
    unsafe fn encode<A: Arch>(values: A::Values<Self>) -> A::Raw<Self>;
}

/// Implements [`Storage`] for element types that arithmetic uses directly, without a conversion.
macro_rules! plain {
    ($($t:ty: $l16:literal $l32:literal $l64:literal, $of_word:expr);* $(;)?) => {$(
        // SAFETY: [T1] a primitive number; [T2] the lane counts, checked below.
        unsafe impl Storage for $t {
            type Value = Self;
            type Raw16 = [Self; $l16];
            type Raw32 = [Self; $l32];
            type Raw64 = [Self; $l64];
            type Values16 = [Self; $l16];
            type Values32 = [Self; $l32];
            type Values64 = [Self; $l64];
            type Registers<V: Vector> = V;

            #[inline(always)]
            fn value_of_word(word: u64) -> Self {
                $of_word(word)
            }

            #[inline(always)]
            fn value(self) -> Self {
                self
            }

            #[inline(always)]
            fn of_value(value: Self) -> Self {
                value
            }

            #[inline(always)]
            unsafe fn decode<A: Arch>(raw: A::Raw<Self>) -> A::Values<Self> {
                let mut values = A::Values::<Self>::splat(Self::default());
                values.lanes_mut().copy_from_slice(raw.lanes());
                values
            }

            #[inline(always)]
            unsafe fn encode<A: Arch>(values: A::Values<Self>) -> A::Raw<Self> {
                let mut raw = A::Raw::<Self>::splat(Self::default());
                raw.lanes_mut().copy_from_slice(values.lanes());
                raw
            }
        }
        const _: () = assert!(16 == $l16 * size_of::<$t>() && 32 == $l32 * size_of::<$t>() && 64 == $l64 * size_of::<$t>());
    )*};
}

plain!(
    i8: 16 32 64, |w| w as u8 as i8;
    u8: 16 32 64, |w| w as u8;
    i16: 8 16 32, |w| w as u16 as i16;
    u16: 8 16 32, |w| w as u16;
    i32: 4 8 16, |w| w as u32 as i32;
    u32: 4 8 16, |w| w as u32;
    i64: 2 4 8, |w| w as i64;
    u64: 2 4 8, |w| w;
    f32: 4 8 16, |w| f32::from_bits(w as u32);
    f64: 2 4 8, f64::from_bits;
);

/// The bits of a binary16.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct F16(u16);

/// The bits of a bfloat16.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Bf16(u16);

macro_rules! sixteen_bits {
    ($($t:ident, $of_bits:path, $to_bits:path);*) => {$(
        // SAFETY: [T1] transparent over u16; [T2] two bytes each.
        unsafe impl Storage for $t {
            type Value = f32;
            type Raw16 = [Self; 8];
            type Raw32 = [Self; 16];
            type Raw64 = [Self; 32];
            type Values16 = [f32; 8];
            type Values32 = [f32; 16];
            type Values64 = [f32; 32];
            type Registers<V: Vector> = [V; 2];

            #[inline(always)]
            fn value_of_word(word: u64) -> f32 {
                $of_bits(word as u16)
            }

            #[inline(always)]
            fn value(self) -> f32 {
                $of_bits(self.0)
            }

            #[inline(always)]
            fn of_value(value: f32) -> Self {
                Self($to_bits(value))
            }

            #[inline(always)]
            unsafe fn decode<A: Arch>(raw: A::Raw<Self>) -> A::Values<Self> {
                let mut values = A::Values::<Self>::splat(0.0);
                // SAFETY: the caller guarantees the instruction set.
                unsafe { Self::widen::<A>(&raw, &mut values) };
                values
            }

            #[inline(always)]
            unsafe fn encode<A: Arch>(values: A::Values<Self>) -> A::Raw<Self> {
                let mut raw = A::Raw::<Self>::splat(Self(0));
                // SAFETY: the caller guarantees the instruction set.
                unsafe { Self::narrow::<A>(&values, &mut raw) };
                raw
            }
        }
    )*};
}

sixteen_bits!(F16, float16::widen, float16::narrow; Bf16, float16::widen_bf16, float16::narrow_bf16);

impl F16 {
    /// Applies [`Arch::widen_f16`] to all lanes.
    ///
    /// # Safety
    /// The processor has the instruction set `A`.
    #[inline(always)]
    unsafe fn widen<A: Arch>(raw: &A::Raw<Self>, values: &mut A::Values<Self>) {
        let elements = raw.lanes();
        // SAFETY: `F16` is transparent over u16, so the slices have the same layout. The caller
        // guarantees the instruction set.
        unsafe { A::widen_f16(core::slice::from_raw_parts(elements.as_ptr().cast(), elements.len()), values.lanes_mut()) };
    }

    /// Applies [`Arch::narrow_f16`] to all lanes.
    ///
    /// # Safety
    /// The processor has the instruction set `A`.
    #[inline(always)]
    unsafe fn narrow<A: Arch>(values: &A::Values<Self>, raw: &mut A::Raw<Self>) {
        let elements = raw.lanes_mut();
        // SAFETY: as in `widen`.
        unsafe { A::narrow_f16(values.lanes(), core::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), elements.len())) };
    }
}

impl Bf16 {
    /// Applies [`float16::widen_bf16`] to all lanes.
    ///
    /// # Safety
    /// The processor has the instruction set `A`.
    #[inline(always)]
    unsafe fn widen<A: Arch>(raw: &A::Raw<Self>, values: &mut A::Values<Self>) {
        for i in 0..A::Raw::<Self>::LEN {
            values.lanes_mut()[i] = float16::widen_bf16(raw.lanes()[i].0);
        }
    }

    /// Applies [`float16::narrow_bf16`] to all lanes.
    ///
    /// # Safety
    /// The processor has the instruction set `A`.
    #[inline(always)]
    unsafe fn narrow<A: Arch>(values: &A::Values<Self>, raw: &mut A::Raw<Self>) {
        for i in 0..A::Raw::<Self>::LEN {
            raw.lanes_mut()[i].0 = float16::narrow_bf16(values.lanes()[i]);
        }
    }
}
