//! Reductions by a function of the program, instead of a predefined operator such as a sum.
#![allow(unsafe_code)]

use crate::backend::{Combine, Special};
use peerweave_types::Element;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

/// A function that combines two elements, for [`all_reduce_with`](crate::Team::all_reduce_with),
/// [`reduce_with`](crate::Team::reduce_with), [`scan_with`](crate::Team::scan_with) and
/// [`exclusive_scan_with`](crate::Team::exclusive_scan_with).
///
/// The function must be associative. The function need not be commutative: the element of a lower
/// rank is always the first argument. The function may be called on any thread, and more than once
/// for each element. A clone refers to the same function.
///
/// # On GPUs
/// The function runs on the host. On every PE, the GPU backend first gathers the elements of all
/// ranks in pinned memory. On a PE that gets a result, a thread of the CUDA driver then calls the
/// function, in stream order. After that, the backend copies the result to its destination.
///
/// A reduction by a function is slower than one by a [`ReduceOp`](crate::ReduceOp), especially for
/// large operands. If `r` ranks pass operands of `n` bytes each, every rank moves `r * n` bytes to
/// the host. A rank that gets a result moves `n` bytes back, and combines all operands of the
/// result on a single thread.
///
/// The function must neither call CUDA nor wait for other PEs, because all streams of the GPU may
/// share the thread that runs the function. If the function panics, the operation fails on this PE,
/// and the team stays usable. If the stream is being captured, a call that takes a `ReduceFn` fails
/// with [`Error::Unsupported`](crate::Error::Unsupported).
///
/// If a function on the host is too slow, or if the reduction must be part of a graph, combine the
/// elements on the GPU. Gather the elements with [`all_gather`](crate::Team::all_gather). Then
/// launch, on the same stream, a kernel that combines them
/// ([`Stream::launch`](crate::Stream::launch)).
///
/// ```
/// use peerweave::{ReduceFn, World};
///
/// # fn main() -> peerweave::Result<()> {
/// let world = World::from_env()?;
/// let team = world.team();
/// // The composition of functions `x -> a * x + b`, as the element `a << 32 | b`.
/// let compose = ReduceFn::new(|f: u64, g: u64| {
///     let (a, b, c, d) = (f >> 32, f & 0xffff_ffff, g >> 32, g & 0xffff_ffff);
///     (c * a & 0xffff_ffff) << 32 | (c * b + d & 0xffff_ffff)
/// });
/// let mine = 2 << 32 | u64::from(team.my_rank().get()); // x -> 2 * x + rank
/// let mut all = [0];
/// team.all_reduce_with_blocking(&[mine], &mut all, &compose)?;
/// let expected = (0..team.size() as u64).fold(0, |x, rank| 2 * x + rank);
/// assert_eq!(all[0] & 0xffff_ffff, expected); // all functions applied to 0, in rank order
/// assert!(world.finalize()?.is_clean());
/// # Ok(())
/// # }
/// ```
pub struct ReduceFn<T> {
    function: Arc<Special>,
    _element: PhantomData<fn(T, T) -> T>,
}

impl<T: Element> ReduceFn<T> {
    /// Creates a reduction that combines elements with `function`.
    pub fn new(function: impl Fn(T, T) -> T + Send + Sync + 'static) -> Self {
        let function = Box::new(Function { function, _element: PhantomData });
        Self { function: Arc::new(Special::Function(function)), _element: PhantomData }
    }

    pub(crate) fn erased(&self) -> Arc<Special> {
        Arc::clone(&self.function)
    }
}

impl<T> Clone for ReduceFn<T> {
    fn clone(&self) -> Self {
        Self { function: Arc::clone(&self.function), _element: PhantomData }
    }
}

impl<T> fmt::Debug for ReduceFn<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReduceFn({})", std::any::type_name::<T>())
    }
}

struct Function<T, F> {
    function: F,
    _element: PhantomData<fn(T, T) -> T>,
}

impl<T, F> fmt::Debug for Function<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a function that combines elements of type {}", std::any::type_name::<T>())
    }
}

impl<T: Element, F: Fn(T, T) -> T + Send + Sync> Combine for Function<T, F> {
    fn element_bytes(&self) -> usize {
        size_of::<T>()
    }

    fn combine(&self, accumulator: &mut [u8], operand: &[u8]) {
        let size = size_of::<T>();
        for (a, b) in accumulator.chunks_exact_mut(size).zip(operand.chunks_exact(size)) {
            // SAFETY: `a` and `b` have the size of a `T`; every bit pattern of an element is valid.
            let (left, right) = unsafe { (a.as_ptr().cast::<T>().read_unaligned(), b.as_ptr().cast::<T>().read_unaligned()) };
            let combined = (self.function)(left, right);
            // SAFETY: `a` has the size of a `T`; elements have no padding.
            unsafe { a.as_mut_ptr().cast::<T>().write_unaligned(combined) };
        }
    }
}
