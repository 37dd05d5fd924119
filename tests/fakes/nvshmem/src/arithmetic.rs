//! The arithmetic of reductions and atomics, for every type and operator of NVSHMEM.
//!
//! Module `collectives` passes the contributions in rank order. Invariant: each intermediate result
//! is rounded to the type, so that every PE computes the same bits.

use core::ops::{BitAnd, BitOr, BitXor};

use half::{bf16, f16};

/// A function that combines the elements of a PE with the elements of the total.
pub(crate) type Combine = fn(&mut [u8], &[u8]);

/// An element that can be added, multiplied and compared.
pub(crate) trait Number: Copy {
    fn sum(self, other: Self) -> Self;
    fn prod(self, other: Self) -> Self;
    fn least(self, other: Self) -> Self;
    fn most(self, other: Self) -> Self;
}

macro_rules! integers {
    ($($kind:ty),*) => {$(
        impl Number for $kind {
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn prod(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            fn least(self, other: Self) -> Self {
                Ord::min(self, other)
            }
            fn most(self, other: Self) -> Self {
                Ord::max(self, other)
            }
        }
    )*};
}
integers!(i8, u8, i16, u16, i32, u32, i64, u64, isize, usize);

macro_rules! floats {
    ($($kind:ty),*) => {$(
        impl Number for $kind {
            fn sum(self, other: Self) -> Self {
                self + other
            }
            fn prod(self, other: Self) -> Self {
                self * other
            }
            fn least(self, other: Self) -> Self {
                self.min(other)
            }
            fn most(self, other: Self) -> Self {
                self.max(other)
            }
        }
    )*};
}
floats!(f16, bf16, f32, f64);

fn each<T: Copy>(total: &mut [u8], next: &[u8], combine: impl Fn(T, T) -> T) {
    let size = size_of::<T>();
    for (left, right) in total.chunks_exact_mut(size).zip(next.chunks_exact(size)) {
        // SAFETY: both slices have the bytes of one element, and any bytes are a valid value of its
        // type.
        unsafe {
            let value = combine(left.as_ptr().cast::<T>().read_unaligned(), right.as_ptr().cast::<T>().read_unaligned());
            left.as_mut_ptr().cast::<T>().write_unaligned(value);
        }
    }
}

pub(crate) fn sum<T: Number>(total: &mut [u8], next: &[u8]) {
    each(total, next, T::sum);
}

pub(crate) fn prod<T: Number>(total: &mut [u8], next: &[u8]) {
    each(total, next, T::prod);
}

pub(crate) fn min<T: Number>(total: &mut [u8], next: &[u8]) {
    each(total, next, T::least);
}

pub(crate) fn max<T: Number>(total: &mut [u8], next: &[u8]) {
    each(total, next, T::most);
}

pub(crate) fn and<T: Copy + BitAnd<Output = T>>(total: &mut [u8], next: &[u8]) {
    each(total, next, |left: T, right: T| left & right);
}

pub(crate) fn or<T: Copy + BitOr<Output = T>>(total: &mut [u8], next: &[u8]) {
    each(total, next, |left: T, right: T| left | right);
}

pub(crate) fn xor<T: Copy + BitXor<Output = T>>(total: &mut [u8], next: &[u8]) {
    each(total, next, |left: T, right: T| left ^ right);
}
