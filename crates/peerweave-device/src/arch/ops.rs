//! Operations of a machine on one word that several threads access: the names that all leaves
//! share.
//!
//! An operation states its *reach* (who may access the word meanwhile: [`Cta`], [`Gpu`], [`Sys`])
//! by a type parameter, and its *order* by its name or by a type parameter ([`Relaxed`],
//! [`Acquire`], [`Release`], [`AcqRel`]). The orders are those of the C++20 memory model, which PTX
//! follows.

pub mod multimem;

/// The threads of one block.
#[derive(Clone, Copy, Debug)]
pub struct Cta;

/// The threads of one GPU.
#[derive(Clone, Copy, Debug)]
pub struct Gpu;

/// All threads of the system: every GPU and the host.
#[derive(Clone, Copy, Debug)]
pub struct Sys;

/// Orders nothing.
#[derive(Clone, Copy, Debug)]
pub struct Relaxed;

/// Writes released by the writer of the value are visible after the operation.
#[derive(Clone, Copy, Debug)]
pub struct Acquire;

/// Earlier reads and writes of this thread complete before the operation.
#[derive(Clone, Copy, Debug)]
pub struct Release;

/// [`Acquire`] and [`Release`].
#[derive(Clone, Copy, Debug)]
pub struct AcqRel;

/// Loads and stores of the reach `R`: of `u32` and `u64`.
///
/// # Safety
/// An implementation accesses exactly the word at the pointer, by one access with the order and
/// reach that its name says.
pub unsafe trait Access<R>: Copy {
    /// Reads the word. Orders nothing.
    ///
    /// # Safety
    /// The pointer is that of an aligned word in global memory that this thread can access.
    unsafe fn load_relaxed(from: *const Self) -> Self;

    /// Reads the word; what its writer released before is visible after.
    ///
    /// # Safety
    /// As for [`Self::load_relaxed`].
    unsafe fn load_acquire(from: *const Self) -> Self;

    /// Writes the word. Orders nothing.
    ///
    /// # Safety
    /// As for [`Self::load_relaxed`].
    unsafe fn store_relaxed(to: *mut Self, value: Self);

    /// Writes the word, after all that this thread has read and written.
    ///
    /// # Safety
    /// As for [`Self::load_relaxed`].
    unsafe fn store_release(to: *mut Self, value: Self);
}

/// Fences of one reach.
pub trait Fence {
    /// Orders what this thread did before with what it does after, for threads that it synchronises
    /// with by relaxed accesses. On a GPU it returns when all stores of this thread before it have
    /// been performed.
    fn acq_rel();

    /// [`Self::acq_rel`], and takes a place in the one order of all such fences.
    fn seq_cst();
}

/// Read-modify-writes of the reach `R` and the order `O` that return what was there: of `u32`,
/// `u64`, `i32` and `i64`.
///
/// # Safety
/// An implementation changes exactly the word at the pointer, by one atomic access with the order
/// and reach of its parameters.
pub unsafe trait Rmw<R, O>: Copy {
    /// Adds, wrapping.
    ///
    /// # Safety
    /// The pointer is that of an aligned word in global memory that this thread can access.
    unsafe fn fetch_add(word: *mut Self, value: Self) -> Self;
    /// Bitwise and.
    ///
    /// # Safety
    /// As for [`Self::fetch_add`].
    unsafe fn fetch_and(word: *mut Self, value: Self) -> Self;
    /// Bitwise or.
    ///
    /// # Safety
    /// As for [`Self::fetch_add`].
    unsafe fn fetch_or(word: *mut Self, value: Self) -> Self;
    /// Bitwise exclusive or.
    ///
    /// # Safety
    /// As for [`Self::fetch_add`].
    unsafe fn fetch_xor(word: *mut Self, value: Self) -> Self;
    /// The smaller of both; signed for signed types.
    ///
    /// # Safety
    /// As for [`Self::fetch_add`].
    unsafe fn fetch_min(word: *mut Self, value: Self) -> Self;
    /// The larger of both; signed for signed types.
    ///
    /// # Safety
    /// As for [`Self::fetch_add`].
    unsafe fn fetch_max(word: *mut Self, value: Self) -> Self;
    /// Writes the value.
    ///
    /// # Safety
    /// As for [`Self::fetch_add`].
    unsafe fn swap(word: *mut Self, value: Self) -> Self;
    /// Writes `new` where the word is `current`; where it is not, nothing is released.
    ///
    /// # Safety
    /// As for [`Self::fetch_add`].
    unsafe fn compare_swap(word: *mut Self, current: Self, new: Self) -> Self;
}

/// Addition to `f32`, `f64`, `f16` and `bf16`, with the reach `R` and the order `O`, returning what
/// was there.
///
/// # Safety
/// As for [`Rmw`].
pub unsafe trait FloatAdd<R, O>: Copy {
    /// Adds, rounded to nearest.
    ///
    /// # Safety
    /// As for [`Rmw::fetch_add`].
    unsafe fn fetch_add(word: *mut Self, value: Self) -> Self;
}

/// Read-modify-writes that return nothing, of the reach `R` and the order `O`, which is [`Relaxed`]
/// or [`Release`].
///
/// # Safety
/// As for [`Rmw`].
pub unsafe trait Reduce<R, O>: Copy {
    /// Adds, wrapping.
    ///
    /// # Safety
    /// As for [`Rmw::fetch_add`].
    unsafe fn add(word: *mut Self, value: Self);
    /// Bitwise and.
    ///
    /// # Safety
    /// As for [`Rmw::fetch_add`].
    unsafe fn and(word: *mut Self, value: Self);
    /// Bitwise or.
    ///
    /// # Safety
    /// As for [`Rmw::fetch_add`].
    unsafe fn or(word: *mut Self, value: Self);
    /// Bitwise exclusive or.
    ///
    /// # Safety
    /// As for [`Rmw::fetch_add`].
    unsafe fn xor(word: *mut Self, value: Self);
    /// The smaller of both; signed for signed types.
    ///
    /// # Safety
    /// As for [`Rmw::fetch_add`].
    unsafe fn min(word: *mut Self, value: Self);
    /// The larger of both; signed for signed types.
    ///
    /// # Safety
    /// As for [`Rmw::fetch_add`].
    unsafe fn max(word: *mut Self, value: Self);
}

/// Applies a macro to each reach and order of read-modify-writes, with their names in PTX.
macro_rules! for_each_reach_and_order {
    ($macro:ident) => {
        $macro!(Cta "cta", Relaxed "relaxed");
        $macro!(Cta "cta", Acquire "acquire");
        $macro!(Cta "cta", Release "release");
        $macro!(Cta "cta", AcqRel "acq_rel");
        $macro!(Gpu "gpu", Relaxed "relaxed");
        $macro!(Gpu "gpu", Acquire "acquire");
        $macro!(Gpu "gpu", Release "release");
        $macro!(Gpu "gpu", AcqRel "acq_rel");
        $macro!(Sys "sys", Relaxed "relaxed");
        $macro!(Sys "sys", Acquire "acquire");
        $macro!(Sys "sys", Release "release");
        $macro!(Sys "sys", AcqRel "acq_rel");
    };
}
pub(crate) use for_each_reach_and_order;

/// Applies a macro to each reach and order of reductions without a result.
macro_rules! for_each_reach_and_reduce_order {
    ($macro:ident) => {
        $macro!(Cta "cta", Relaxed "relaxed");
        $macro!(Cta "cta", Release "release");
        $macro!(Gpu "gpu", Relaxed "relaxed");
        $macro!(Gpu "gpu", Release "release");
        $macro!(Sys "sys", Relaxed "relaxed");
        $macro!(Sys "sys", Release "release");
    };
}
pub(crate) use for_each_reach_and_reduce_order;
