//! Operations of a machine on a word that several threads access: the names shared by all machine
//! modules.
//!
//! A type parameter states the scope of an operation, which is the set of threads that may access
//! the word concurrently: [`Cta`], [`Gpu`], [`Sys`]. The memory order is stated by the name or by a
//! type parameter ([`Relaxed`], [`Acquire`], [`Release`], [`AcqRel`]). The orders are the orders of
//! the C++20 memory model, as in PTX.

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

/// Loads and stores with the scope `R`, of `u32` and `u64`.
///
/// # Safety
/// An implementation accesses exactly the word at the pointer, by one access with the order and
/// scope stated by its name.
pub unsafe trait Access<R>: Copy {
    /// Reads the word. Orders nothing.
    ///
    /// # Safety
    /// `from` points to an aligned word in global memory that this thread can access.
    unsafe fn load_relaxed(from: *const Self) -> Self;

    /// Reads the word. Writes released by its writer are visible afterwards.
    ///
    /// # Safety
    /// As for [`Self::load_relaxed`].
    unsafe fn load_acquire(from: *const Self) -> Self;

    /// Writes the word. Orders nothing.
    ///
    /// # Safety
    /// As for [`Self::load_relaxed`].
    unsafe fn store_relaxed(to: *mut Self, value: Self);

    /// Writes the word after all earlier reads and writes of this thread.
    ///
    /// # Safety
    /// As for [`Self::load_relaxed`].
    unsafe fn store_release(to: *mut Self, value: Self);
}

/// Fences with one scope.
pub trait Fence {
    /// Orders earlier accesses of this thread before later ones, for threads with which it
    /// synchronises by relaxed accesses. On a GPU it returns when all earlier stores of this thread
    /// have been performed.
    fn acq_rel();

    /// Like [`Self::acq_rel`]; in addition, all such fences have a single total order.
    fn seq_cst();
}

/// Read-modify-writes with the scope `R` and the order `O` that return the previous value, of
/// `u32`, `u64`, `i32` and `i64`.
///
/// # Safety
/// An implementation changes exactly the word at the pointer, by one atomic access with the order
/// and scope of its parameters.
pub unsafe trait Rmw<R, O>: Copy {
    /// Adds, wrapping.
    ///
    /// # Safety
    /// `word` points to an aligned word in global memory that this thread can access.
    unsafe fn fetch_add(word: *mut Self, value: Self) -> Self;
    /// Replaces the word by its bitwise and with `value`.
    ///
    /// # Safety
    /// As for [`Self::fetch_add`].
    unsafe fn fetch_and(word: *mut Self, value: Self) -> Self;
    /// Replaces the word by its bitwise or with `value`.
    ///
    /// # Safety
    /// As for [`Self::fetch_add`].
    unsafe fn fetch_or(word: *mut Self, value: Self) -> Self;
    /// Replaces the word by its bitwise exclusive or with `value`.
    ///
    /// # Safety
    /// As for [`Self::fetch_add`].
    unsafe fn fetch_xor(word: *mut Self, value: Self) -> Self;
    /// Replaces the word by the minimum of it and `value`; signed for signed types.
    ///
    /// # Safety
    /// As for [`Self::fetch_add`].
    unsafe fn fetch_min(word: *mut Self, value: Self) -> Self;
    /// Replaces the word by the maximum of it and `value`; signed for signed types.
    ///
    /// # Safety
    /// As for [`Self::fetch_add`].
    unsafe fn fetch_max(word: *mut Self, value: Self) -> Self;
    /// Writes the value.
    ///
    /// # Safety
    /// As for [`Self::fetch_add`].
    unsafe fn swap(word: *mut Self, value: Self) -> Self;
    /// Writes `new` if the word equals `current`; otherwise writes and releases nothing.
    ///
    /// # Safety
    /// As for [`Self::fetch_add`].
    unsafe fn compare_swap(word: *mut Self, current: Self, new: Self) -> Self;
}

/// Addition to `f32`, `f64`, `f16` and `bf16`, with the scope `R` and the order `O`, that returns
/// the previous value.
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

/// Read-modify-writes without a result, with the scope `R` and the order `O`, which is [`Relaxed`]
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
    /// Replaces the word by its bitwise and with `value`.
    ///
    /// # Safety
    /// As for [`Rmw::fetch_add`].
    unsafe fn and(word: *mut Self, value: Self);
    /// Replaces the word by its bitwise or with `value`.
    ///
    /// # Safety
    /// As for [`Rmw::fetch_add`].
    unsafe fn or(word: *mut Self, value: Self);
    /// Replaces the word by its bitwise exclusive or with `value`.
    ///
    /// # Safety
    /// As for [`Rmw::fetch_add`].
    unsafe fn xor(word: *mut Self, value: Self);
    /// Replaces the word by the minimum of it and `value`; signed for signed types.
    ///
    /// # Safety
    /// As for [`Rmw::fetch_add`].
    unsafe fn min(word: *mut Self, value: Self);
    /// Replaces the word by the maximum of it and `value`; signed for signed types.
    ///
    /// # Safety
    /// As for [`Rmw::fetch_add`].
    unsafe fn max(word: *mut Self, value: Self);
}

/// Applies a macro to each scope and order of read-modify-writes, with their names in PTX.
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

/// Applies a macro to each scope and order of reductions without a result.
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
