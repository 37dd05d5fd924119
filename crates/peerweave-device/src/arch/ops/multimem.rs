//! Traits for operations on a multicast address. `nvptx` and `host` implement these traits. One
//! access reaches the memory of every GPU that is bound to the address. All accesses are relaxed
//! and have system scope.

/// Values that one instruction can store to all GPUs, or load from all GPUs and combine.
///
/// # Safety
/// An implementation accesses exactly the value at the pointer on each GPU, by one instruction.
pub unsafe trait Multimem: Copy {
    /// Replaces the value at `to` by `value` on every GPU.
    ///
    /// # Safety
    /// The module's `AVAILABLE` is true, and `to` is an aligned multicast address that this thread
    /// can access.
    unsafe fn store(to: *mut Self, value: Self);

    /// Returns the sum of the values at `from` on all GPUs. 16-bit floats are added in `f32`.
    ///
    /// # Safety
    /// As for [`Self::store`].
    unsafe fn load_add(from: *const Self) -> Self;

    /// Adds `value` to the value at `to` on every GPU.
    ///
    /// # Safety
    /// As for [`Self::store`].
    unsafe fn reduce_add(to: *mut Self, value: Self);
}

/// Values for which the GPU has minimum and maximum operations at a multicast address.
///
/// # Safety
/// As for [`Multimem`].
pub unsafe trait MultimemOrd: Multimem {
    /// Returns the minimum of the values at `from` on all GPUs.
    ///
    /// # Safety
    /// As for [`Multimem::store`].
    unsafe fn load_min(from: *const Self) -> Self;

    /// Returns the maximum of the values at `from` on all GPUs.
    ///
    /// # Safety
    /// As for [`Multimem::store`].
    unsafe fn load_max(from: *const Self) -> Self;

    /// On every GPU, replaces the value at `to` by the minimum of that value and `value`.
    ///
    /// # Safety
    /// As for [`Multimem::store`].
    unsafe fn reduce_min(to: *mut Self, value: Self);

    /// On every GPU, replaces the value at `to` by the maximum of that value and `value`.
    ///
    /// # Safety
    /// As for [`Multimem::store`].
    unsafe fn reduce_max(to: *mut Self, value: Self);
}

/// Values for which the GPU has bitwise operations at a multicast address.
///
/// # Safety
/// As for [`Multimem`].
pub unsafe trait MultimemBits: Multimem {
    /// Returns the bitwise AND of the values at `from` on all GPUs.
    ///
    /// # Safety
    /// As for [`Multimem::store`].
    unsafe fn load_and(from: *const Self) -> Self;

    /// Returns the bitwise OR of the values at `from` on all GPUs.
    ///
    /// # Safety
    /// As for [`Multimem::store`].
    unsafe fn load_or(from: *const Self) -> Self;

    /// Returns the bitwise XOR of the values at `from` on all GPUs.
    ///
    /// # Safety
    /// As for [`Multimem::store`].
    unsafe fn load_xor(from: *const Self) -> Self;
}

/// The bits of four `f32`, transferred by one access of 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct F32x4(pub [u32; 4]);

/// The bits of eight `f16`, transferred by one access of 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct F16x8(pub [u32; 4]);

/// The bits of eight `bf16`, transferred by one access of 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct Bf16x8(pub [u32; 4]);
