//! Reductions: five predefined reductions, and [`PreMulSum`]. A `PreMulSum` is created for one
//! communicator. Before the sum, it multiplies the elements of each rank by a scalar.
//!
//! Invariant: NCCL's number for a `PreMulSum` is valid only on one communicator. This module
//! returns such a number only together with that communicator.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use peerweave_driver::{CudaStream, DeviceBuffer, DeviceMemory};
use peerweave_types::{Element, ReduceOp};

use crate::Nccl;
use crate::comm::communicator::Communicator;
use crate::comm::teardown::run_or_defer;
use crate::library::error::{MisuseKind, NcclError};
use crate::member::membership::Inner;
use crate::member::spans;
use crate::member::state::Allowed;
use crate::ops::check::data_type;
use crate::sys::{ncclRedOp_t, ncclScalarResidence_t};

impl Nccl {
    /// The predefined reductions, which every communicator supports. In contrast, a [`PreMulSum`]
    /// is created for one communicator. NCCL has no bitwise reductions.
    ///
    /// ```
    /// use peerweave_nccl::{Nccl, ReduceOp};
    ///
    /// assert_eq!(Nccl::REDUCTIONS[0], ReduceOp::default());
    /// ```
    pub const REDUCTIONS: [ReduceOp; 5] = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::Avg];
}

/// Returns NCCL's number for a predefined reduction. Returns `None` for [`ReduceOp::PreMulSum`],
/// and for the bitwise reductions, which NCCL lacks.
#[inline]
const fn predefined(op: ReduceOp) -> Option<ncclRedOp_t> {
    Some(match op {
        ReduceOp::Sum => ncclRedOp_t::ncclSum,
        ReduceOp::Prod => ncclRedOp_t::ncclProd,
        ReduceOp::Min => ncclRedOp_t::ncclMin,
        ReduceOp::Max => ncclRedOp_t::ncclMax,
        ReduceOp::Avg => ncclRedOp_t::ncclAvg,
        _ => return None,
    })
}

mod sealed {
    use std::sync::Arc;

    /// Converts a reduction to the number by which NCCL identifies the reduction in a call.
    pub trait Resolve<T> {
        /// Returns NCCL's number for the reduction, or `None` if NCCL lacks the reduction. For a
        /// [`PreMulSum`](super::PreMulSum), also returns the value that owns NCCL's reduction. The
        /// number is valid as long as this value exists.
        fn resolve(&self) -> (Option<crate::sys::ncclRedOp_t>, Option<&Arc<super::Made>>);
    }
}

/// A reduction of elements of type `T`: a [`ReduceOp`], or a reference to a [`PreMulSum<T>`].
///
/// A call with a [`ReduceOp`] that is not in [`Nccl::REDUCTIONS`] fails with [`NcclError::Misuse`].
/// For 8-bit and 16-bit floats NCCL selects the type of the accumulator.
///
/// The trait is sealed, because a program must not pass arbitrary numbers to NCCL.
///
/// ```compile_fail,E0277
/// # use peerweave_nccl::{PreMulSum, Reduction};
/// fn takes(_: impl Reduction<f32>) {}
/// fn gives(scaled: &PreMulSum<f64>) {
///     takes(scaled); // a scalar of another type
/// }
/// ```
///
/// ```compile_fail,E0277
/// struct Forged(i32);
/// impl peerweave_nccl::Reduction<f32> for Forged {}
/// ```
pub trait Reduction<T>: sealed::Resolve<T> {}

impl<T: Element> sealed::Resolve<T> for ReduceOp {
    #[inline]
    fn resolve(&self) -> (Option<ncclRedOp_t>, Option<&Arc<Made>>) {
        (predefined(*self), None)
    }
}

impl<T: Element> Reduction<T> for ReduceOp {}

impl<T: Element> sealed::Resolve<T> for &PreMulSum<T> {
    fn resolve(&self) -> (Option<ncclRedOp_t>, Option<&Arc<Made>>) {
        (Some(self.made.op), Some(&self.made))
    }
}

impl<T: Element> Reduction<T> for &PreMulSum<T> {}

/// A sum over all ranks. Before the sum, the elements of each rank are multiplied by the scalar
/// that the same rank has passed.
///
/// The reduction is created for one communicator and one element type. NCCL's reduction is
/// destroyed once this value has been dropped and no recorded call uses the reduction any more.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use peerweave_nccl::{CudaStream, DeviceMemory};
/// # use peerweave_nccl::{Communicator, NcclError, PreMulSum};
/// # fn average(communicator: &Communicator, stream: &Arc<CudaStream>, gradients: &mut DeviceMemory<f32>) -> Result<(), NcclError> {
/// let scaled = PreMulSum::new(communicator, 1.0 / communicator.n_ranks() as f32)?;
/// communicator.all_reduce_in_place(stream, gradients, &scaled)?;
/// # Ok(())
/// # }
/// ```
pub struct PreMulSum<T> {
    made: Arc<Made>,
    _scalar: PhantomData<fn(T)>,
}

/// A reduction that NCCL has created. If the reduction's scalar is in device memory, this value
/// owns the scalar.
pub struct Made {
    communicator: Arc<Inner>,
    op: ncclRedOp_t,
    scalar: Option<Box<dyn Scalar>>,
}

/// The scalar of a reduction, in device memory. The trait hides the type of the scalar.
trait Scalar: Send + Sync {
    /// Records that work in the stream reads the scalar, so that the scalar's memory is freed only
    /// after this work.
    fn note(&self, stream: &Arc<CudaStream>);
}

impl<T: Element> Scalar for DeviceMemory<T> {
    fn note(&self, stream: &Arc<CudaStream>) {
        // Freeing this memory waits for the streams recorded here, so no guard must be kept.
        drop(DeviceBuffer::read(self, stream));
    }
}

impl<T: Element> PreMulSum<T> {
    /// Creates the reduction with a scalar that is passed by value.
    ///
    /// # Errors
    /// [`NcclError::Unsupported`] for 8-bit floats before NCCL 2.24.3. [`NcclError::Dead`]. Errors
    /// that NCCL returns.
    pub fn new(communicator: &Communicator, scalar: T) -> Result<Self, NcclError> {
        Self::make("PreMulSum::new", communicator, scalar, None)
    }

    /// Creates the reduction with a scalar in device memory. Each collective reads the scalar when
    /// the collective runs. The reduction keeps the scalar's memory alive.
    ///
    /// # Errors
    /// [`NcclError::Misuse`] if the memory does not have exactly one element, or is not on the
    /// communicator's device. All errors that [`new`](Self::new) returns.
    pub fn from_device(communicator: &Communicator, scalar: DeviceMemory<T>) -> Result<Self, NcclError> {
        const CALL: &str = "PreMulSum::from_device";
        if scalar.len() != 1 {
            let kind = MisuseKind::Length { what: "the scalar", found: scalar.len(), expected: 1, unit: "elements" };
            return Err(NcclError::misuse(CALL, kind));
        }
        let (found, expected) = (scalar.context().ordinal(), communicator.cuda_device());
        if found != expected {
            return Err(NcclError::misuse(CALL, MisuseKind::Device { what: "the scalar", found, expected }));
        }
        Self::make(CALL, communicator, T::zeroed(), Some(scalar))
    }

    fn make(
        call: &'static str,
        communicator: &Communicator,
        value: T,
        memory: Option<DeviceMemory<T>>,
    ) -> Result<Self, NcclError> {
        let inner = &communicator.inner;
        let _span = spans::of(inner, call);
        const {
            assert!(T::PARTS == 1, "NCCL has no type for elements that consist of several values; pass a buffer of single values")
        };
        let data_type = data_type(call, inner.nccl, T::DTYPE, true)?;
        let on_device = memory.as_ref().map(|memory| std::ptr::with_exposed_provenance_mut::<c_void>(memory.address() as usize));
        let (op, _) = inner.call_into(call, Allowed::LIVE, (ncclRedOp_t(0), value), |api, comm, place| {
            let (scalar, residence) = match on_device {
                Some(address) => (address, ncclScalarResidence_t::ncclScalarDevice),
                // SAFETY: the place is live.
                None => (unsafe { &raw mut (*place).1 }.cast(), ncclScalarResidence_t::ncclScalarHostImmediate),
            };
            // SAFETY: the handle is live inside the gate. A host scalar lies in `place`, beside the
            // number, and `place` lives until NCCL is done. A device scalar is kept alive by the
            // created object.
            unsafe { api.ncclRedOpCreatePreMulSum(&raw mut (*place).0, scalar, data_type, residence, comm) }
        })?;
        let scalar = memory.map(|memory| Box::new(memory) as Box<dyn Scalar>);
        let made = Made { communicator: Arc::clone(inner), op, scalar };
        Ok(Self { made: Arc::new(made), _scalar: PhantomData })
    }
}

impl<T> fmt::Debug for PreMulSum<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PreMulSum<{}> of {}", std::any::type_name::<T>(), self.made.communicator.name)
    }
}

impl Made {
    /// Fails if the reduction was created for a different communicator. If the reduction's scalar
    /// is in device memory, records that work on the stream reads the scalar.
    pub(crate) fn check(&self, call: &'static str, inner: &Arc<Inner>, stream: &Arc<CudaStream>) -> Result<(), NcclError> {
        if !Arc::ptr_eq(&self.communicator, inner) {
            let (found, expected) = (Arc::clone(&self.communicator.name), Arc::clone(&inner.name));
            return Err(NcclError::misuse(call, MisuseKind::WrongCommunicator { what: "the reduction", found, expected }));
        }
        if let Some(scalar) = &self.scalar {
            scalar.note(stream);
        }
        Ok(())
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let (inner, op) = (Arc::clone(&self.communicator), self.op);
        // NCCL frees the reduction together with its communicator. A destructor does not wait for
        // the gate.
        run_or_defer(inner, Allowed::OPEN, Duration::ZERO, move |inner| {
            // SAFETY: the communicator's handle is live inside the gate. The reduction belongs to
            // this communicator, and is destroyed only here.
            inner.nccl.code("ncclRedOpDestroy", |api| unsafe { api.ncclRedOpDestroy(op, inner.handle.get()) }).map(|_| ())
        });
    }
}
