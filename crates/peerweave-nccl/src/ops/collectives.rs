//! The collectives of a communicator, each with a buffer to read and one to write.
//!
//! In one buffer is `in_place.rs`; between two ranks, and with a count for each rank, `point_to_point.rs`; recorded in groups, `group.rs`; with a
//! configuration, `configured.rs`. What is checked is in `shapes.rs`.
//!
//! Invariant: a call is issued inside the gate, after everything about it has been checked.

use std::sync::Arc;

use peerweave_driver::{CudaStream, DeviceBuffer, DeviceBufferMut};
use peerweave_types::Element;

use crate::comm::communicator::Communicator;
use crate::library::error::NcclError;
use crate::member::spans;
use crate::ops::check::{At, Checked, Prepared};
use crate::ops::holds::Holds;
use crate::ops::operation::Operations;
use crate::ops::reduction::Reduction;
use crate::ops::shapes;
use crate::{Call, CollConfig};

/// Collectives. What stands at [`all_reduce`](Self::all_reduce) holds for all calls that enqueue work.
///
/// They return when the work is enqueued, and not when it is done: [`Communicator::wait`] waits for that. Buffers may be dropped at any time after the
/// call; their memory stays until the stream has passed the work. Counts are in elements.
impl Communicator {
    /// Reduces over all ranks; every rank gets the result.
    ///
    /// Shape: `send` and `recv` have `n` elements, the same on every rank.
    ///
    /// # Collective
    /// All ranks, in the same order of calls on the communicator, with the same element type and lengths that fit together. A thread that has
    /// several ranks issues their calls in a group ([`Nccl::group`](crate::Nccl::group)).
    ///
    /// # Errors
    /// [`NcclError::Misuse`] names what is wrong with a length, a root, a device, a stream, or with borrowed memory on a stream that is being captured; then
    /// nothing was enqueued. [`NcclError::Dead`], [`NcclError::Unsupported`], NCCL's own. [`NcclError::Timeout`] if NCCL cannot connect the ranks by the
    /// [`deadline`](Communicator::deadline); then the communicator is aborted.
    pub fn all_reduce<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        send: &impl DeviceBuffer<T>,
        recv: &mut impl DeviceBufferMut<T>,
        op: impl Reduction<T>,
    ) -> Result<(), NcclError> {
        self.run(Call::AllReduce, stream, None, |at| shapes::all_reduce(at, send, recv, op))
    }

    /// Copies the root's buffer to every rank's. Only the root gives a send buffer; what others give is not read.
    ///
    /// Where receive buffers are registered, or lie in windows, the root's send buffer has to be as well: NCCL takes it that all are.
    ///
    /// Shape: `recv` has `n` elements, the same on every rank, and the root's `send` has as many.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn broadcast<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        send: Option<&dyn DeviceBuffer<T>>,
        recv: &mut impl DeviceBufferMut<T>,
        root: usize,
    ) -> Result<(), NcclError> {
        self.run(Call::Broadcast, stream, None, |at| shapes::broadcast(at, send, recv, root))
    }

    /// Reduces over all ranks; the root gets the result. Only the root gives a receive buffer; what others give is not written.
    ///
    /// Shape: `send` has `n` elements, the same on every rank, and the root's `recv` has as many.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn reduce<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        send: &impl DeviceBuffer<T>,
        recv: Option<&mut dyn DeviceBufferMut<T>>,
        op: impl Reduction<T>,
        root: usize,
    ) -> Result<(), NcclError> {
        self.run(Call::Reduce, stream, None, |at| shapes::reduce(at, send, recv, op, root))
    }

    /// Every rank gets what all sent, in the order of ranks. The receive buffer is as many times longer than the send buffer as there are ranks.
    ///
    /// Shape: `send` has `n` elements, the same on every rank, and `recv` has `n` for each rank:
    /// those of rank `i` begin at element `i * n`.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn all_gather<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        send: &impl DeviceBuffer<T>,
        recv: &mut impl DeviceBufferMut<T>,
    ) -> Result<(), NcclError> {
        self.run(Call::AllGather, stream, None, |at| shapes::all_gather(at, send, recv))
    }

    /// Reduces over all ranks; each rank gets its part of the result. The send buffer is as many times longer than the receive buffer as there are
    /// ranks.
    ///
    /// Shape: `recv` has `n` elements, the same on every rank, and `send` has `n` for each rank:
    /// those for rank `i` begin at element `i * n`.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn reduce_scatter<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        send: &impl DeviceBuffer<T>,
        recv: &mut impl DeviceBufferMut<T>,
        op: impl Reduction<T>,
    ) -> Result<(), NcclError> {
        self.run(Call::ReduceScatter, stream, None, |at| shapes::reduce_scatter(at, send, recv, op))
    }

    /// Rank `i`'s part `j` becomes rank `j`'s part `i`. Both buffers have a part of equal length for each rank.
    ///
    /// Before NCCL 2.28 it is composed of sends and receives.
    ///
    /// Shape: `send` and `recv` have `n` elements for each rank, the same on every rank: those of
    /// rank `i` begin at element `i * n`.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn all_to_all<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        send: &impl DeviceBuffer<T>,
        recv: &mut impl DeviceBufferMut<T>,
    ) -> Result<(), NcclError> {
        self.run(Call::AllToAll, stream, None, |at| shapes::all_to_all(at, send, recv))
    }

    /// The root gets what all sent, in the order of ranks. Only the root has to give a receive buffer; what others give is not written.
    ///
    /// With windows and [`CtaPolicy::Zero`](crate::CtaPolicy::Zero) all have to, each at the same place of its window: NCCL's copy engines then
    /// write to where this rank's own buffer would be.
    ///
    /// Before NCCL 2.28 it is composed of sends and receives.
    ///
    /// Shape: `send` has `n` elements, the same on every rank, and the root's `recv` has `n` for
    /// each rank: those of rank `i` begin at element `i * n`.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn gather<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        send: &impl DeviceBuffer<T>,
        recv: Option<&mut dyn DeviceBufferMut<T>>,
        root: usize,
    ) -> Result<(), NcclError> {
        self.run(Call::Gather, stream, None, |at| shapes::gather(at, send, recv, root))
    }

    /// Each rank gets its part of the root's buffer. Only the root gives a send buffer; what others give is not read.
    ///
    /// Before NCCL 2.28 it is composed of sends and receives.
    ///
    /// Shape: `recv` has `n` elements, the same on every rank, and the root's `send` has `n` for
    /// each rank: those for rank `i` begin at element `i * n`.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn scatter<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        send: Option<&dyn DeviceBuffer<T>>,
        recv: &mut impl DeviceBufferMut<T>,
        root: usize,
    ) -> Result<(), NcclError> {
        self.run(Call::Scatter, stream, None, |at| shapes::scatter(at, send, recv, root))
    }

    /// Checks, issues and counts one call.
    ///
    /// All checks come before the turn is taken, as they do in groups: so where nobody else is inside and nothing is captured, one step takes the turn and
    /// dives, right before NCCL is called. Only what depends on the types of the buffers is compiled for each of them: NCCL's own work takes the processor's
    /// caches, so that what this crate adds is mostly the time to fetch its instructions. For the same reason what is rare is in functions of its own.
    #[inline]
    pub(crate) fn run<'a>(
        &self,
        call: Call,
        stream: &'a Arc<CudaStream>,
        config: Option<&CollConfig>,
        prepare: impl FnOnce(&mut At<'_, 'a>) -> Checked<Prepared>,
    ) -> Result<(), NcclError> {
        let inner = &self.inner;
        let span = spans::if_heard(inner, call.name());
        let (mut holds, mut operations) = (Holds::default(), Operations::default());
        let mut at = At::new(call, inner, stream, None, &mut holds, &mut operations);
        if !inner.needs_no_care(stream) {
            at.begin().map_err(|error| *error)?;
        }
        prepare(&mut at).map_err(|error| *error)?;
        let issued = at.issue(config);
        // Dropping them would be two calls of functions.
        if holds.is_free_of_drops() && span.is_none() {
            std::mem::forget(holds);
            std::mem::forget(span);
        }
        issued.map_err(|error| *error)
    }
}
