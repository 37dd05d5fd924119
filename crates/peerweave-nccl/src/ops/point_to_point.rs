//! Between two ranks, and what is composed of that: all-to-all and all-gather with a count for each rank.
//!
//! What is checked is in `shapes.rs`; errors and what else holds for all calls is at [`Communicator::all_reduce`].

use std::sync::Arc;

use peerweave_driver::{CudaStream, DeviceBuffer, DeviceBufferMut};
use peerweave_types::Element;

use crate::Call;
use crate::comm::communicator::Communicator;
use crate::library::error::NcclError;
use crate::ops::shapes;

/// Sends and receives. What holds for [`all_reduce`](Self::all_reduce) and its siblings holds here.
impl Communicator {
    /// Sends to a rank, which has to [`recv`](Self::recv) as many elements of the same type.
    ///
    /// Two ranks that send to each other do so in groups: a send may wait for its receive.
    ///
    /// Shape: `buffer` has `n` elements, and the peer's [`recv`](Self::recv) as many.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn send<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        buffer: &impl DeviceBuffer<T>,
        peer: usize,
    ) -> Result<(), NcclError> {
        self.run(Call::Send, stream, None, |at| shapes::send(at, buffer, peer))
    }

    /// Receives from a rank, which has to [`send`](Self::send) as many elements of the same type.
    ///
    /// Shape: `buffer` has `n` elements, and the peer's [`send`](Self::send) as many.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn recv<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        buffer: &mut impl DeviceBufferMut<T>,
        peer: usize,
    ) -> Result<(), NcclError> {
        self.run(Call::Recv, stream, None, |at| shapes::recv(at, buffer, peer))
    }

    /// Sends to each rank its own number of elements: `send` holds them in the order of ranks, `send_counts[i]` for rank `i`; `recv` gets
    /// `recv_counts[i]` from rank `i`, in the order of ranks. What one rank sends to another is what that one receives.
    ///
    /// Composed of sends and receives in one group.
    ///
    /// Shape: `send` has as many elements as `send_counts` says together, `recv` as `recv_counts`;
    /// both lists have a number for each rank.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn all_to_all_v<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        send: &impl DeviceBuffer<T>,
        send_counts: &[usize],
        recv: &mut impl DeviceBufferMut<T>,
        recv_counts: &[usize],
    ) -> Result<(), NcclError> {
        self.run(Call::AllToAllV, stream, None, |at| shapes::all_to_all_v(at, send, send_counts, recv, recv_counts))
    }

    /// Every rank gets what all sent, in the order of ranks; `counts[i]` elements from rank `i`. All ranks give the same counts.
    ///
    /// Composed of broadcasts in one group.
    ///
    /// Shape: `send` has `counts[rank]` elements, `recv` as many as `counts` says together; the
    /// list has a number for each rank.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn all_gather_v<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        send: &impl DeviceBuffer<T>,
        recv: &mut impl DeviceBufferMut<T>,
        counts: &[usize],
    ) -> Result<(), NcclError> {
        self.run(Call::AllGatherV, stream, None, |at| shapes::all_gather_v(at, send, recv, counts))
    }
}
