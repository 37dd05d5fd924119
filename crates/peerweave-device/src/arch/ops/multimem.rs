//! Operations on a multicast address: the names that the leaves share. One access reaches the
//! memory of every GPU that is bound to it; all accesses are relaxed and of system scope.

/// Values that can be stored to all GPUs, and loaded from them combined.
///
/// # Safety
/// An implementation accesses exactly one value at the pointer, on each GPU, by one instruction.
pub unsafe trait Multimem: Copy {
    /// Writes the value on every GPU.
    ///
    /// # Safety
    /// The leaf's `AVAILABLE` is true; `to` is an aligned multicast address that this thread can
    /// access.
    unsafe fn store(to: *mut Self, value: Self);

    /// The sum of the values of all GPUs. 16-bit floats are added in f32.
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

/// Values of which the smallest and the largest can be found.
///
/// # Safety
/// As for [`Multimem`].
pub unsafe trait MultimemOrd: Multimem {
    /// The smallest of the values of all GPUs.
    ///
    /// # Safety
    /// As for [`Multimem::store`].
    unsafe fn load_min(from: *const Self) -> Self;

    /// The largest of the values of all GPUs.
    ///
    /// # Safety
    /// As for [`Multimem::store`].
    unsafe fn load_max(from: *const Self) -> Self;

    /// Replaces the value on every GPU by the smaller of it and `value`.
    ///
    /// # Safety
    /// As for [`Multimem::store`].
    unsafe fn reduce_min(to: *mut Self, value: Self);

    /// Replaces the value on every GPU by the larger of it and `value`.
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
    /// Bitwise and of the values of all GPUs.
    ///
    /// # Safety
    /// As for [`Multimem::store`].
    unsafe fn load_and(from: *const Self) -> Self;

    /// Bitwise or of the values of all GPUs.
    ///
    /// # Safety
    /// As for [`Multimem::store`].
    unsafe fn load_or(from: *const Self) -> Self;

    /// Bitwise exclusive or of the values of all GPUs.
    ///
    /// # Safety
    /// As for [`Multimem::store`].
    unsafe fn load_xor(from: *const Self) -> Self;
}

/// Four `f32`, as bits: what one access of 16 bytes moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct F32x4(pub [u32; 4]);

/// Eight `f16`, as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct F16x8(pub [u32; 4]);

/// Eight `bf16`, as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct Bf16x8(pub [u32; 4]);
