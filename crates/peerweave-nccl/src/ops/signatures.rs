//! The collectives and transfers, each once: its documentation, its name and its arguments.
//!
//! Each form of the calls (immediate, configured, recorded in a group, or both) is a macro that
//! expands a table of this module. `shapes.rs` has the checks.
//!
//! Invariant: every form has the same calls with the same arguments.

/// Passes the collectives to a macro that generates methods.
macro_rules! collectives {
    ($form:ident) => {
        $form! {
            /// Reduces over all ranks. Every rank gets the result.
            ///
            /// Shape: `send` and `recv` have `n` elements, the same on every rank.
            ///
            /// # Collective
            /// All ranks, in the same order of calls on the communicator, with the same element
            /// type and matching lengths. A thread with several ranks issues their calls in a group
            /// ([`Nccl::group`](crate::Nccl::group)).
            ///
            /// # Errors
            /// [`NcclError::Misuse`] for an invalid length, root, device or stream, or for borrowed
            /// memory on a stream that is being captured; nothing is enqueued then.
            /// [`NcclError::Dead`], [`NcclError::Unsupported`], errors of NCCL.
            /// [`NcclError::Timeout`] if NCCL cannot connect the ranks by the
            /// [`deadline`](Communicator::deadline); the communicator is then aborted.
            AllReduce all_reduce(send: &'a impl DeviceBuffer<T>, recv: &'a mut impl DeviceBufferMut<T>, op: impl Reduction<T>);

            /// Copies the root's send buffer to the receive buffers of all ranks. Only the root
            /// must pass a send buffer; send buffers of other ranks are not read.
            ///
            /// If receive buffers are registered or lie in windows, the root's send buffer must be
            /// registered or lie in a window too, because NCCL assumes the same for all buffers.
            ///
            /// Shape: `recv` has `n` elements, the same on every rank, and the root's `send` has
            /// the same number.
            ///
            /// # Errors
            /// As for [`all_reduce`](Self::all_reduce).
            Broadcast broadcast(send: Option<&'a dyn DeviceBuffer<T>>, recv: &'a mut impl DeviceBufferMut<T>, root: Rank);

            /// Reduces over all ranks. The root gets the result. Only the root must pass a receive
            /// buffer; receive buffers of other ranks are not written.
            ///
            /// Shape: `send` has `n` elements, the same on every rank, and the root's `recv` has
            /// the same number.
            ///
            /// # Errors
            /// As for [`all_reduce`](Self::all_reduce).
            Reduce reduce(
                send: &'a impl DeviceBuffer<T>,
                recv: Option<&'a mut dyn DeviceBufferMut<T>>,
                op: impl Reduction<T>,
                root: Rank
            );

            /// Concatenates the send buffers of all ranks, in rank order, on every rank. The
            /// receive buffer is as long as the send buffers of all ranks together.
            ///
            /// Shape: `send` has `n` elements, the same on every rank, and `recv` has `n` for each
            /// rank: the elements of rank `i` start at `i * n`.
            ///
            /// # Errors
            /// As for [`all_reduce`](Self::all_reduce).
            AllGather all_gather(send: &'a impl DeviceBuffer<T>, recv: &'a mut impl DeviceBufferMut<T>);

            /// Reduces over all ranks. Each rank gets its part of the result. The send buffer is as
            /// long as the receive buffers of all ranks together.
            ///
            /// Shape: `recv` has `n` elements, the same on every rank, and `send` has `n` for each
            /// rank: the elements for rank `i` start at `i * n`.
            ///
            /// # Errors
            /// As for [`all_reduce`](Self::all_reduce).
            ReduceScatter reduce_scatter(
                send: &'a impl DeviceBuffer<T>,
                recv: &'a mut impl DeviceBufferMut<T>,
                op: impl Reduction<T>
            );

            /// Exchanges parts: part `j` of rank `i` becomes part `i` of rank `j`. Both buffers
            /// have a part of equal length for each rank.
            ///
            /// Before NCCL 2.28 this call is composed of sends and receives.
            ///
            /// Shape: `send` and `recv` have `n` elements for each rank, the same on every rank:
            /// the elements for or from rank `i` start at `i * n`.
            ///
            /// # Errors
            /// As for [`all_reduce`](Self::all_reduce).
            AllToAll all_to_all(send: &'a impl DeviceBuffer<T>, recv: &'a mut impl DeviceBufferMut<T>);

            /// Concatenates the send buffers of all ranks, in rank order, on the root. Only the
            /// root must pass a receive buffer; receive buffers of other ranks are not written.
            ///
            /// With windows and [`CtaPolicy::Zero`](crate::CtaPolicy::Zero) all ranks must pass a
            /// receive buffer, at the same offset of their windows: NCCL's copy engines compute the
            /// root's address from the offset of this rank's own buffer.
            ///
            /// Before NCCL 2.28 this call is composed of sends and receives.
            ///
            /// Shape: `send` has `n` elements, the same on every rank, and the root's `recv` has
            /// `n` for each rank: the elements of rank `i` start at `i * n`.
            ///
            /// # Errors
            /// As for [`all_reduce`](Self::all_reduce).
            Gather gather(send: &'a impl DeviceBuffer<T>, recv: Option<&'a mut dyn DeviceBufferMut<T>>, root: Rank);

            /// Distributes the root's buffer: each rank gets its part. Only the root must pass a
            /// send buffer; send buffers of other ranks are not read.
            ///
            /// Before NCCL 2.28 this call is composed of sends and receives.
            ///
            /// Shape: `recv` has `n` elements, the same on every rank, and the root's `send` has
            /// `n` for each rank: the elements for rank `i` start at `i * n`.
            ///
            /// # Errors
            /// As for [`all_reduce`](Self::all_reduce).
            Scatter scatter(send: Option<&'a dyn DeviceBuffer<T>>, recv: &'a mut impl DeviceBufferMut<T>, root: Rank);

            /// Reduces over all ranks. The result replaces the data on every rank.
            ///
            /// Shape: `buffer` has `n` elements, the same on every rank.
            ///
            /// # Errors
            /// As for [`all_reduce`](Self::all_reduce).
            AllReduceInPlace all_reduce_in_place(buffer: &'a mut impl DeviceBufferMut<T>, op: impl Reduction<T>);

            /// Copies the root's buffer to the buffers of all ranks.
            ///
            /// Shape: `buffer` has `n` elements, the same on every rank.
            ///
            /// # Errors
            /// As for [`all_reduce`](Self::all_reduce).
            BroadcastInPlace broadcast_in_place(buffer: &'a mut impl DeviceBufferMut<T>, root: Rank);

            /// Reduces over all ranks. The result replaces the data on the root; the buffers of
            /// other ranks are only read.
            ///
            /// Shape: `buffer` has `n` elements, the same on every rank.
            ///
            /// # Errors
            /// As for [`all_reduce`](Self::all_reduce).
            ReduceInPlace reduce_in_place(buffer: &'a mut impl DeviceBufferMut<T>, op: impl Reduction<T>, root: Rank);

            /// Gathers in place. The buffer has a part for each rank: this rank's part is sent to
            /// all ranks, and the parts of the others are received.
            ///
            /// Shape: `buffer` has `n` elements for each rank, the same on every rank: the part of
            /// rank `i` starts at element `i * n`.
            ///
            /// # Errors
            /// As for [`all_reduce`](Self::all_reduce).
            AllGatherInPlace all_gather_in_place(buffer: &'a mut impl DeviceBufferMut<T>);

            /// Reduces in place. The buffer has a part for each rank: this rank's part is replaced
            /// by its reduction over all ranks. The other parts are unspecified afterwards.
            ///
            /// Shape: `buffer` has `n` elements for each rank, the same on every rank: the part of
            /// rank `i` starts at element `i * n`.
            ///
            /// # Errors
            /// As for [`all_reduce`](Self::all_reduce).
            ReduceScatterInPlace reduce_scatter_in_place(buffer: &'a mut impl DeviceBufferMut<T>, op: impl Reduction<T>);

            /// Gathers on the root in place. The root's buffer has a part for each rank, including
            /// its own. The other ranks pass buffers of the length of one part, which are only
            /// read.
            ///
            /// Shape: the root's `buffer` has `n` elements for each rank, and the part of rank `i`
            /// starts at element `i * n`; the buffers of the other ranks have `n` elements.
            ///
            /// # Errors
            /// As for [`all_reduce`](Self::all_reduce).
            GatherInPlace gather_in_place(buffer: &'a mut impl DeviceBufferMut<T>, root: Rank);

            /// Distributes the root's buffer in place. The root's buffer has a part for each rank;
            /// the root's own part is unchanged. The other ranks pass buffers of the length of one
            /// part.
            ///
            /// Shape: the root's `buffer` has `n` elements for each rank, and the part of rank `i`
            /// starts at element `i * n`; the buffers of the other ranks have `n` elements.
            ///
            /// # Errors
            /// As for [`all_reduce`](Self::all_reduce).
            ScatterInPlace scatter_in_place(buffer: &'a mut impl DeviceBufferMut<T>, root: Rank);
        }
    };
}

/// Passes the transfers between two ranks, and the calls composed of them, to a macro that
/// generates methods. They have no configuration.
macro_rules! transfers {
    ($form:ident) => {
        $form! {
            /// Sends to a rank, which must [`recv`](Self::recv) the same number of elements of the
            /// same type.
            ///
            /// Two ranks that send to each other must do so in groups, because a send may wait for
            /// its receive.
            ///
            /// Shape: `buffer` has `n` elements, and so has the buffer of the peer's
            /// [`recv`](Self::recv).
            ///
            /// # Errors
            /// As for [`all_reduce`](Self::all_reduce).
            Send send(buffer: &'a impl DeviceBuffer<T>, peer: Rank);

            /// Receives from a rank, which must [`send`](Self::send) the same number of elements of
            /// the same type.
            ///
            /// Shape: `buffer` has `n` elements, and so has the buffer of the peer's
            /// [`send`](Self::send).
            ///
            /// # Errors
            /// As for [`all_reduce`](Self::all_reduce).
            Recv recv(buffer: &'a mut impl DeviceBufferMut<T>, peer: Rank);

            /// Sends a different number of elements to each rank. `send` has `send_counts[i]`
            /// elements for rank `i`, in rank order; `recv` gets `recv_counts[i]` elements from
            /// rank `i`, in rank order. The send count of one rank must equal the receive count of
            /// the other.
            ///
            /// Composed of sends and receives in one group.
            ///
            /// Shape: `send` has as many elements as the sum of `send_counts`, `recv` as the sum of
            /// `recv_counts`; both lists have a count for each rank.
            ///
            /// # Errors
            /// As for [`all_reduce`](Self::all_reduce).
            AllToAllV all_to_all_v(
                send: &'a impl DeviceBuffer<T>,
                send_counts: &[usize],
                recv: &'a mut impl DeviceBufferMut<T>,
                recv_counts: &[usize]
            );

            /// Concatenates the send buffers of all ranks, in rank order, on every rank, with
            /// `counts[i]` elements of rank `i`. All ranks pass the same counts.
            ///
            /// Composed of broadcasts in one group.
            ///
            /// Shape: `send` has `counts[rank]` elements, `recv` as many as the sum of `counts`;
            /// the list has a count for each rank.
            ///
            /// # Errors
            /// As for [`all_reduce`](Self::all_reduce).
            AllGatherV all_gather_v(send: &'a impl DeviceBuffer<T>, recv: &'a mut impl DeviceBufferMut<T>, counts: &[usize]);
        }
    };
}

pub(crate) use {collectives, transfers};
