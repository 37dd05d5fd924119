//! Element types that kernels access atomically, and the 32-bit and 64-bit words that contain the
//! elements.

use super::Context;
use super::network::call;
#[cfg(not(target_arch = "nvptx64"))]
use super::network::emulated;
use super::report::Report;
use crate::Pause;
use crate::gpu::{Access, AcqRel, FloatAdd, Reduce, Relaxed, Release, Rmw, Sys};
#[cfg(not(target_arch = "nvptx64"))]
use crate::network::call::Atomic;
use peerweave_types::{AtomicElement, AtomicInteger, Compare, KernelOp, Plain, Scalar, bf16, f16};

/// An element type that supports atomic additions in kernels: each type that implements
/// [`KernelAtomic`], and also `f16` and `bf16`. Other crates cannot implement this trait.
pub trait KernelAdd: Scalar + Plain {
    /// Atomically adds `value` to an element in mapped memory. Returns the previous value. The
    /// addition acquires and releases if `strong` is true, and is relaxed if `strong` is false.
    ///
    /// # Safety
    /// As for [`Rmw::fetch_add`].
    #[doc(hidden)]
    unsafe fn fetch_add_at(word: *mut Self, value: Self, strong: bool) -> Self;

    /// Atomically adds `value` to an element in mapped memory. Returns nothing. The addition
    /// releases if `strong` is true, and is relaxed if `strong` is false.
    ///
    /// # Safety
    /// As for [`Rmw::fetch_add`].
    #[doc(hidden)]
    unsafe fn add_at(word: *mut Self, value: Self, strong: bool);

    #[doc(hidden)]
    fn network_fetch_add(context: &Context, word: u64, value: Self, pe: u32) -> Self;
    #[doc(hidden)]
    fn network_add(context: &Context, word: u64, value: Self, pe: u32);
    #[doc(hidden)]
    const ONE: Self;
}

/// An element type that kernels access atomically: `i32`, `u32`, `i64`, `u64`, `f32` and `f64`.
/// Other crates cannot implement this trait.
pub trait KernelAtomic: AtomicElement + KernelAdd {
    /// The type of the word that contains the bits of an element.
    #[doc(hidden)]
    type Bits: Bits;
    #[doc(hidden)]
    fn to_bits(self) -> Self::Bits;
    #[doc(hidden)]
    fn from_bits(bits: Self::Bits) -> Self;
}

/// An integer type for elements that kernels wait for and combine bitwise: `i32`, `u32`, `i64` and
/// `u64`. Other crates cannot implement this trait.
pub trait KernelInteger: KernelAtomic + AtomicInteger {
    /// Compares `word` with `value` by `compare`, as numbers of this type. Returns whether the
    /// comparison is true.
    #[doc(hidden)]
    fn holds(compare: Compare, word: Self, value: Self) -> bool;
    /// Returns the number as 64 bits for a failure report. A negative number is sign-extended.
    #[doc(hidden)]
    fn report(self) -> u64;
}

/// An unsigned integer of 32 or 64 bits, for atomic operations. The functions with the prefix
/// `network_` access an integer on another PE over the network. Their parameter `word` is the
/// address in this PE's own heap that corresponds to the integer.
#[doc(hidden)]
pub trait Bits:
    Access<Sys> + Rmw<Sys, Relaxed> + Rmw<Sys, AcqRel> + Reduce<Sys, Relaxed> + Reduce<Sys, Release> + PartialEq + 'static
{
    fn network_fetch(word: u64, pe: i32) -> Self;
    fn network_set(word: u64, value: Self, pe: i32);
    fn network_swap(word: u64, value: Self, pe: i32) -> Self;
    fn network_compare_swap(word: u64, current: Self, value: Self, pe: i32) -> Self;
    fn network_fetch_add(word: u64, value: Self, pe: i32) -> Self;
    fn network_add(word: u64, value: Self, pe: i32);
    fn network_fetch_and(word: u64, value: Self, pe: i32) -> Self;
    fn network_fetch_or(word: u64, value: Self, pe: i32) -> Self;
    fn network_fetch_xor(word: u64, value: Self, pe: i32) -> Self;
    fn network_and(word: u64, value: Self, pe: i32);
    fn network_or(word: u64, value: Self, pe: i32);
    fn network_xor(word: u64, value: Self, pe: i32);
}

macro_rules! bits {
    ($t:ty: $fetch:ident $set:ident $swap:ident $compare_swap:ident $fetch_add:ident $add:ident $fetch_and:ident $fetch_or:ident
        $fetch_xor:ident $and:ident $or:ident $xor:ident) => {
        impl Bits for $t {
            #[inline]
            fn network_fetch(word: u64, pe: i32) -> Self {
                call!($fetch(word, pe); emulated::atomic(word, size_of::<Self>(), Atomic::Fetch, pe) as Self)
            }
            #[inline]
            fn network_set(word: u64, value: Self, pe: i32) {
                call!($set(word, value, pe); { emulated::atomic(word, size_of::<Self>(), Atomic::Set(value.into()), pe); })
            }
            #[inline]
            fn network_swap(word: u64, value: Self, pe: i32) -> Self {
                call!($swap(word, value, pe); emulated::atomic(word, size_of::<Self>(), Atomic::Swap(value.into()), pe) as Self)
            }
            #[inline]
            fn network_compare_swap(word: u64, current: Self, value: Self, pe: i32) -> Self {
                call!($compare_swap(word, current, value, pe); emulated::atomic(word, size_of::<Self>(), Atomic::CompareSwap(current.into(), value.into()), pe) as Self)
            }
            #[inline]
            fn network_fetch_add(word: u64, value: Self, pe: i32) -> Self {
                call!($fetch_add(word, value, pe); emulated::atomic(word, size_of::<Self>(), Atomic::FetchAdd(value.into()), pe) as Self)
            }
            #[inline]
            fn network_add(word: u64, value: Self, pe: i32) {
                call!($add(word, value, pe); { emulated::atomic(word, size_of::<Self>(), Atomic::Add(value.into()), pe); })
            }
            #[inline]
            fn network_fetch_and(word: u64, value: Self, pe: i32) -> Self {
                call!($fetch_and(word, value, pe); emulated::atomic(word, size_of::<Self>(), Atomic::FetchAnd(value.into()), pe) as Self)
            }
            #[inline]
            fn network_fetch_or(word: u64, value: Self, pe: i32) -> Self {
                call!($fetch_or(word, value, pe); emulated::atomic(word, size_of::<Self>(), Atomic::FetchOr(value.into()), pe) as Self)
            }
            #[inline]
            fn network_fetch_xor(word: u64, value: Self, pe: i32) -> Self {
                call!($fetch_xor(word, value, pe); emulated::atomic(word, size_of::<Self>(), Atomic::FetchXor(value.into()), pe) as Self)
            }
            #[inline]
            fn network_and(word: u64, value: Self, pe: i32) {
                call!($and(word, value, pe); { emulated::atomic(word, size_of::<Self>(), Atomic::And(value.into()), pe); })
            }
            #[inline]
            fn network_or(word: u64, value: Self, pe: i32) {
                call!($or(word, value, pe); { emulated::atomic(word, size_of::<Self>(), Atomic::Or(value.into()), pe); })
            }
            #[inline]
            fn network_xor(word: u64, value: Self, pe: i32) {
                call!($xor(word, value, pe); { emulated::atomic(word, size_of::<Self>(), Atomic::Xor(value.into()), pe); })
            }
        }
    };
}

bits!(u32: peerweave_nvshmem_atomic_fetch32 peerweave_nvshmem_atomic_set32 peerweave_nvshmem_atomic_swap32
    peerweave_nvshmem_atomic_compare_swap32 peerweave_nvshmem_atomic_fetch_add32 peerweave_nvshmem_atomic_add32 peerweave_nvshmem_atomic_fetch_and32
    peerweave_nvshmem_atomic_fetch_or32 peerweave_nvshmem_atomic_fetch_xor32 peerweave_nvshmem_atomic_and32
    peerweave_nvshmem_atomic_or32 peerweave_nvshmem_atomic_xor32);
bits!(u64: peerweave_nvshmem_atomic_fetch64 peerweave_nvshmem_atomic_set64 peerweave_nvshmem_atomic_swap64
    peerweave_nvshmem_atomic_compare_swap64 peerweave_nvshmem_atomic_fetch_add64 peerweave_nvshmem_atomic_add64 peerweave_nvshmem_atomic_fetch_and64
    peerweave_nvshmem_atomic_fetch_or64 peerweave_nvshmem_atomic_fetch_xor64 peerweave_nvshmem_atomic_and64
    peerweave_nvshmem_atomic_or64 peerweave_nvshmem_atomic_xor64);

macro_rules! integer {
    ($($t:ty as $bits:ty),*) => {$(
        impl KernelAtomic for $t {
            type Bits = $bits;

            #[inline(always)]
            fn to_bits(self) -> $bits {
                self as $bits
            }

            #[inline(always)]
            fn from_bits(bits: $bits) -> Self {
                bits as Self
            }
        }

        impl KernelAdd for $t {
            const ONE: Self = 1;

            #[inline(always)]
            unsafe fn fetch_add_at(word: *mut Self, value: Self, strong: bool) -> Self {
                // SAFETY: the caller promises the word.
                unsafe {
                    if strong {
                        <$t as Rmw<Sys, AcqRel>>::fetch_add(word, value)
                    } else {
                        <$t as Rmw<Sys, Relaxed>>::fetch_add(word, value)
                    }
                }
            }

            #[inline(always)]
            unsafe fn add_at(word: *mut Self, value: Self, strong: bool) {
                // SAFETY: the caller promises the word.
                unsafe {
                    if strong {
                        <$t as Reduce<Sys, Release>>::add(word, value);
                    } else {
                        <$t as Reduce<Sys, Relaxed>>::add(word, value);
                    }
                }
            }

            #[inline]
            fn network_add(_context: &Context, word: u64, value: Self, pe: u32) {
                <$bits as Bits>::network_add(word, value as $bits, pe as i32);
            }

            #[inline]
            fn network_fetch_add(_context: &Context, word: u64, value: Self, pe: u32) -> Self {
                <$bits as Bits>::network_fetch_add(word, value as $bits, pe as i32) as Self
            }
        }

        impl KernelInteger for $t {
            #[inline(always)]
            fn holds(compare: Compare, word: Self, value: Self) -> bool {
                match compare {
                    Compare::Eq => word == value,
                    Compare::Ne => word != value,
                    Compare::Gt => word > value,
                    Compare::Ge => word >= value,
                    Compare::Lt => word < value,
                    Compare::Le => word <= value,
                }
            }

            #[inline(always)]
            fn report(self) -> u64 {
                self as u64
            }
        }
    )*};
}

integer!(i32 as u32, u32 as u32, i64 as u64, u64 as u64);

/// Implements atomic operations for `f32` and `f64`, on words that are as wide as the float.
macro_rules! float {
    ($($t:ty as $bits:ty),*) => {$(
        impl KernelAtomic for $t {
            type Bits = $bits;

            #[inline(always)]
            fn to_bits(self) -> $bits {
                self.to_bits()
            }

            #[inline(always)]
            fn from_bits(bits: $bits) -> Self {
                Self::from_bits(bits)
            }
        }

        float_add!($t, $bits, 1.0, |bits, _shift| Self::from_bits(bits), |bits, value, _shift| {
            let _: $bits = bits;
            value.to_bits()
        });
    )*};
}

/// Implements atomic additions to floats. If the target PE's memory is mapped, the addition is an
/// operation of [`FloatAdd`]. NVSHMEM cannot add floats, so over the network a loop of
/// compare-and-swaps updates the word that contains the element.
macro_rules! float_add {
    ($t:ty, $bits:ty, $one:expr, |$bits_in:ident, $shift_in:ident| $take:expr, |$old:ident, $value:ident, $shift:ident| $replace:expr) => {
        impl KernelAdd for $t {
            const ONE: Self = $one;

            #[inline(always)]
            unsafe fn fetch_add_at(word: *mut Self, value: Self, strong: bool) -> Self {
                // SAFETY: the caller promises the word.
                unsafe {
                    if strong {
                        <$t as FloatAdd<Sys, AcqRel>>::fetch_add(word, value)
                    } else {
                        <$t as FloatAdd<Sys, Relaxed>>::fetch_add(word, value)
                    }
                }
            }

            #[inline(always)]
            unsafe fn add_at(word: *mut Self, value: Self, strong: bool) {
                // SAFETY: the caller promises the word.
                unsafe {
                    if strong {
                        <$t as FloatAdd<Sys, Release>>::fetch_add(word, value);
                    } else {
                        <$t as FloatAdd<Sys, Relaxed>>::fetch_add(word, value);
                    }
                }
            }

            #[inline]
            fn network_add(context: &Context, word: u64, value: Self, pe: u32) {
                <Self as KernelAdd>::network_fetch_add(context, word, value, pe);
            }

            #[inline]
            fn network_fetch_add(context: &Context, word: u64, value: Self, pe: u32) -> Self {
                let take = |$bits_in: $bits, $shift_in: u64| -> Self { $take };
                let replace = |$old: $bits, $value: Self, $shift: u64| -> $bits { $replace };
                // The address of the word that contains the element, and the position of the
                // element in that word, in bits.
                let within = word % size_of::<$bits>() as u64;
                let (word, shift) = (word - within, 8 * within);
                let mut spin = context.spin();
                let mut seen = <$bits as Bits>::network_fetch(word, pe as i32);
                loop {
                    let sum = replace(seen, take(seen, shift) + value, shift);
                    let found = <$bits as Bits>::network_compare_swap(word, seen, sum, pe as i32);
                    if found == seen {
                        return take(seen, shift);
                    }
                    seen = found;
                    if let Err(kind) = spin.pause() {
                        let _ = context.fail(kind, Report { pe, ..Report::of(KernelOp::Atomic) });
                        return take(seen, shift);
                    }
                }
            }
        }
    };
}

float!(f32 as u32, f64 as u64);

/// Implements atomic additions for 16-bit floats. Over the network, an addition accesses the 32-bit
/// word that contains the float and the neighbouring float.
macro_rules! half {
    ($($t:ty),*) => {$(
        float_add!($t, u32, <$t>::ONE, |bits, shift| <$t>::from_bits((bits >> shift) as u16), |old, value, shift| {
            old & !(0xffff << shift) | u32::from(value.to_bits()) << shift
        });
    )*};
}

half!(f16, bf16);
