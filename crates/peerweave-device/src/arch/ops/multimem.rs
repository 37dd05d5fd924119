//! Operations on a multicast address: the names shared by all machine modules. One access reaches
//! the memory of every GPU that is bound to it. All accesses are relaxed and of system scope.

/// Values that can be stored to all GPUs, or loaded from all GPUs and combined.
///
/// # Safety
/// An implementation accesses exactly one value at the pointer, on each GPU, by one instruction.
pub unsafe trait Multimem: Copy {
    /// Writes the value on every GPU.
    ///
    /// # Safety
    /// The module's `AVAILABLE` is true, and `to` is an aligned multicast address that this thread
    /// can access.
    unsafe fn store(to: *mut Self, value: Self);

    /// Returns the sum of the values of all GPUs. 16-bit floats are added in f32.
    ///
    /// # Safety
    /// As for [`Self::store`].
    unsafe fn load_add(from: *const Self) -> Self;

    /// Adds to the value on every GPU.
    ///
    /// # Safety
    /// As for [`Self::store`].
    unsafe fn reduce_add(to: *mut Self, value: Self);
}

/// Values with a minimum and a maximum.
///
/// # Safety
/// As for [`Multimem`].
pub unsafe trait MultimemOrd: Multimem {
    /// Returns the minimum of the values of all GPUs.
    ///
    /// # Safety
    /// As for [`Multimem::store`].
    unsafe fn load_min(from: *const Self) -> Self;

    /// Returns the maximum of the values of all GPUs.
    ///
    /// # Safety
    /// As for [`Multimem::store`].
    unsafe fn load_max(from: *const Self) -> Self;

    /// Replaces the value on every GPU by the minimum of it and `value`.
    ///
    /// # Safety
    /// As for [`Multimem::store`].
    unsafe fn reduce_min(to: *mut Self, value: Self);

    /// Replaces the value on every GPU by the maximum of it and `value`.
    ///
    /// # Safety
    /// As for [`Multimem::store`].
    unsafe fn reduce_max(to: *mut Self, value: Self);
}

/// Values on which bitwise reductions are defined.
///
/// # Safety
/// As for [`Multimem`].
pub unsafe trait MultimemBits: Multimem {
    /// Returns the bitwise and of the values of all GPUs.
    ///
    /// # Safety
    /// As for [`Multimem::store`].
    unsafe fn load_and(from: *const Self) -> Self;

    /// Returns the bitwise or of the values of all GPUs.
    ///
    /// # Safety
    /// As for [`Multimem::store`].
    unsafe fn load_or(from: *const Self) -> Self;

    /// Returns the bitwise exclusive or of the values of all GPUs.
    ///
    /// # Safety
    /// As for [`Multimem::store`].
    unsafe fn load_xor(from: *const Self) -> Self;
}

/// Four `f32` as bits, transferred by one access of 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct F32x4(pub [u32; 4]);

/// Eight `f16` as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct F16x8(pub [u32; 4]);

/// Eight `bf16` as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct Bf16x8(pub [u32; 4]);
