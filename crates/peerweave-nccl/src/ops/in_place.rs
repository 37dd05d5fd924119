//! The collectives in one buffer, where NCCL allows that: calls of their own, since a buffer cannot be borrowed to read and to write.
//!
//! NCCL has no all-to-all in place. What is checked is in `shapes.rs`; errors and what else holds for all calls is at [`Communicator::all_reduce`].

use std::sync::Arc;

use peerweave_driver::{CudaStream, DeviceBufferMut};
use peerweave_types::Element;

use crate::Call;
use crate::comm::communicator::Communicator;
use crate::library::error::NcclError;
use crate::ops::reduction::Reduction;
use crate::ops::shapes;

/// Collectives in one buffer. What holds for [`all_reduce`](Self::all_reduce) and its siblings holds here.
impl Communicator {
    /// Reduces over all ranks; every rank gets the result in place of what it gave.
    ///
    /// Shape: `buffer` has `n` elements, the same on every rank.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn all_reduce_in_place<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        buffer: &mut impl DeviceBufferMut<T>,
        op: impl Reduction<T>,
    ) -> Result<(), NcclError> {
        self.run(Call::AllReduceInPlace, stream, None, |at| shapes::all_reduce_in_place(at, buffer, op))
    }

    /// Every rank's buffer becomes the root's.
    ///
    /// Shape: `buffer` has `n` elements, the same on every rank.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn broadcast_in_place<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        buffer: &mut impl DeviceBufferMut<T>,
        root: usize,
    ) -> Result<(), NcclError> {
        self.run(Call::BroadcastInPlace, stream, None, |at| shapes::broadcast_in_place(at, buffer, root))
    }

    /// Reduces over all ranks; the root gets the result in place of what it gave. The others' buffers are only read.
    ///
    /// Shape: `buffer` has `n` elements, the same on every rank.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn reduce_in_place<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        buffer: &mut impl DeviceBufferMut<T>,
        op: impl Reduction<T>,
        root: usize,
    ) -> Result<(), NcclError> {
        self.run(Call::ReduceInPlace, stream, None, |at| shapes::reduce_in_place(at, buffer, op, root))
    }

    /// The buffer has a part for each rank; this rank's part goes to all, and the others' parts are theirs.
    ///
    /// Shape: `buffer` has `n` elements for each rank, the same on every rank: the part of rank `i`
    /// begins at element `i * n`.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn all_gather_in_place<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        buffer: &mut impl DeviceBufferMut<T>,
    ) -> Result<(), NcclError> {
        self.run(Call::AllGatherInPlace, stream, None, |at| shapes::all_gather_in_place(at, buffer))
    }

    /// The buffer has a part for each rank; this rank's part becomes the reduction of it over all ranks. The other parts are unspecified afterwards.
    ///
    /// Shape: `buffer` has `n` elements for each rank, the same on every rank: the part of rank `i`
    /// begins at element `i * n`.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn reduce_scatter_in_place<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        buffer: &mut impl DeviceBufferMut<T>,
        op: impl Reduction<T>,
    ) -> Result<(), NcclError> {
        self.run(Call::ReduceScatterInPlace, stream, None, |at| shapes::reduce_scatter_in_place(at, buffer, op))
    }

    /// The root's buffer has a part for each rank, its own in place; the others give buffers of the length of one part, which are only read.
    ///
    /// Shape: the root's `buffer` has `n` elements for each rank, where the part of rank `i` begins
    /// at element `i * n`; the others' have `n`.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn gather_in_place<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        buffer: &mut impl DeviceBufferMut<T>,
        root: usize,
    ) -> Result<(), NcclError> {
        self.run(Call::GatherInPlace, stream, None, |at| shapes::gather_in_place(at, buffer, root))
    }

    /// The root's buffer has a part for each rank, and its own stays in place; the others give buffers of the length of one part.
    ///
    /// Shape: the root's `buffer` has `n` elements for each rank, where the part of rank `i` begins
    /// at element `i * n`; the others' have `n`.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn scatter_in_place<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        buffer: &mut impl DeviceBufferMut<T>,
        root: usize,
    ) -> Result<(), NcclError> {
        self.run(Call::ScatterInPlace, stream, None, |at| shapes::scatter_in_place(at, buffer, root))
    }
}
