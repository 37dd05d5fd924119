//! Traits for operations on a word that several threads access. `nvptx` and `host` implement these
//! traits.
//!
//! A type parameter states the scope of an operation: [`Cta`], [`Gpu`] or [`Sys`]. The scope is the
//! set of threads that may access the word concurrently. The name of the method or a second type
//! parameter ([`Relaxed`], [`Acquire`], [`Release`], [`AcqRel`]) states the memory order. The
//! orders are the orders of the C++20 memory model, as in PTX.

pub mod multimem;

/// The scope of one block.
#[derive(Clone, Copy, Debug)]
pub struct Cta;

/// The scope of one GPU.
#[derive(Clone, Copy, Debug)]
pub struct Gpu;

/// The scope of the system: the threads of every GPU and of the host.
#[derive(Clone, Copy, Debug)]
pub struct Sys;

/// The memory order that does not order any other access.
#[derive(Clone, Copy, Debug)]
pub struct Relaxed;

/// The memory order that acquires: if the writer of the value has released earlier writes, these
/// writes are visible after the operation.
#[derive(Clone, Copy, Debug)]
pub struct Acquire;

/// The memory order that releases: this thread's earlier reads and writes are ordered before the
/// operation.
#[derive(Clone, Copy, Debug)]
pub struct Release;

/// The memory order that combines [`Acquire`] and [`Release`].
#[derive(Clone, Copy, Debug)]
pub struct AcqRel;

/// Loads and stores of `u32` and `u64`, with the scope `R`.
///
/// # Safety
/// An implementation accesses exactly the word at the pointer, by one access. The access has the
/// scope `R`, and the order in the method's name.
pub unsafe trait Access<R>: Copy {
    /// Reads the word with relaxed memory order.
    ///
    /// # Safety
    /// `from` points to an aligned word in global memory that this thread can access.
    unsafe fn load_relaxed(from: *const Self) -> Self;

    /// Reads the word with acquire order. If the thread that wrote the value has released earlier
    /// writes, these writes are visible after the call.
    ///
    /// # Safety
    /// As for [`Self::load_relaxed`].
    unsafe fn load_acquire(from: *const Self) -> Self;

    /// Writes the word with relaxed memory order.
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

/// Fence operations whose scope is the type that implements this trait: [`Cta`], [`Gpu`] or
/// [`Sys`].
pub trait Fence {
    /// An acquire-release fence: orders this thread's earlier accesses before its later accesses.
    /// Another thread observes this order if the two threads synchronise by relaxed accesses and
    /// fences. On a GPU, the fence returns only when all earlier stores of this thread have been
    /// performed.
    fn acq_rel();

    /// A sequentially consistent fence: orders accesses like [`Self::acq_rel`]. In addition, all
    /// such fences have a single total order.
    fn seq_cst();
}

/// Read-modify-writes of `u32`, `u64`, `i32` and `i64` that return the previous value, with the
/// scope `R` and the order `O`.
///
/// # Safety
/// An implementation changes exactly the word at the pointer, by one atomic access with the scope
/// `R` and the order `O`.
pub unsafe trait Rmw<R, O>: Copy {
    /// Adds `value` to the word; the sum wraps.
    ///
    /// # Safety
    /// `word` points to an aligned word in global memory that this thread can access.
    unsafe fn fetch_add(word: *mut Self, value: Self) -> Self;
    /// Replaces the word by the bitwise AND of the word and `value`.
    ///
    /// # Safety
    /// As for [`Self::fetch_add`].
    unsafe fn fetch_and(word: *mut Self, value: Self) -> Self;
    /// Replaces the word by the bitwise OR of the word and `value`.
    ///
    /// # Safety
    /// As for [`Self::fetch_add`].
    unsafe fn fetch_or(word: *mut Self, value: Self) -> Self;
    /// Replaces the word by the bitwise XOR of the word and `value`.
    ///
    /// # Safety
    /// As for [`Self::fetch_add`].
    unsafe fn fetch_xor(word: *mut Self, value: Self) -> Self;
    /// Replaces the word by the minimum of the word and `value`. Values of signed types are
    /// compared as signed numbers.
    ///
    /// # Safety
    /// As for [`Self::fetch_add`].
    unsafe fn fetch_min(word: *mut Self, value: Self) -> Self;
    /// Replaces the word by the maximum of the word and `value`. Values of signed types are
    /// compared as signed numbers.
    ///
    /// # Safety
    /// As for [`Self::fetch_add`].
    unsafe fn fetch_max(word: *mut Self, value: Self) -> Self;
    /// Replaces the word by `value`.
    ///
    /// # Safety
    /// As for [`Self::fetch_add`].
    unsafe fn swap(word: *mut Self, value: Self) -> Self;
    /// Replaces the word by `new` if the word equals `current`. If the word differs from `current`,
    /// writes and releases nothing.
    ///
    /// # Safety
    /// As for [`Self::fetch_add`].
    unsafe fn compare_swap(word: *mut Self, current: Self, new: Self) -> Self;
}

/// Atomic addition to `f32`, `f64`, `f16` and `bf16` that returns the previous value, with the
/// scope `R` and the order `O`.
///
/// # Safety
/// As for [`Rmw`].
pub unsafe trait FloatAdd<R, O>: Copy {
    /// Adds `value` to the word; the sum is rounded to nearest.
    ///
    /// # Safety
    /// As for [`Rmw::fetch_add`].
    unsafe fn fetch_add(word: *mut Self, value: Self) -> Self;
}

/// Read-modify-writes of integers that return nothing, with the scope `R` and the order `O`. The
/// order is [`Relaxed`] or [`Release`].
///
/// # Safety
/// As for [`Rmw`].
pub unsafe trait Reduce<R, O>: Copy {
    /// Adds `value` to the word; the sum wraps.
    ///
    /// # Safety
    /// As for [`Rmw::fetch_add`].
    unsafe fn add(word: *mut Self, value: Self);
    /// Replaces the word by the bitwise AND of the word and `value`.
    ///
    /// # Safety
    /// As for [`Rmw::fetch_add`].
    unsafe fn and(word: *mut Self, value: Self);
    /// Replaces the word by the bitwise OR of the word and `value`.
    ///
    /// # Safety
    /// As for [`Rmw::fetch_add`].
    unsafe fn or(word: *mut Self, value: Self);
    /// Replaces the word by the bitwise XOR of the word and `value`.
    ///
    /// # Safety
    /// As for [`Rmw::fetch_add`].
    unsafe fn xor(word: *mut Self, value: Self);
    /// Replaces the word by the minimum of the word and `value`. Values of signed types are
    /// compared as signed numbers.
    ///
    /// # Safety
    /// As for [`Rmw::fetch_add`].
    unsafe fn min(word: *mut Self, value: Self);
    /// Replaces the word by the maximum of the word and `value`. Values of signed types are
    /// compared as signed numbers.
    ///
    /// # Safety
    /// As for [`Rmw::fetch_add`].
    unsafe fn max(word: *mut Self, value: Self);
}

/// Invokes the macro `$macro` once for each combination of scope and memory order for which [`Rmw`]
/// is implemented. Arguments: the scope's type and PTX name, then the order's type and PTX name.
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

/// Invokes the macro `$macro` once for each combination of scope and memory order for which
/// [`Reduce`] is implemented. Arguments: the scope's type and PTX name, then the order's type and
/// PTX name.
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
