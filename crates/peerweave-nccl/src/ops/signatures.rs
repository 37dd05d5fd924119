//! Tables of the collectives and transfers: the documentation, name and arguments of each call.
//!
//! A call can be issued immediately or recorded in a group, with or without a configuration. For
//! each of these forms, another module has a macro that generates methods from a table. `shapes.rs`
//! has the checks.
//!
//! Invariant: every form has the same calls with the same arguments.

/// Passes the table of collectives to a macro that generates methods.
macro_rules! collectives {
    ($form:ident) => {
        $form! {
            /// Reduces over all ranks. Every rank gets the result.
            ///
            /// Shape: `send` and `recv` have `n` elements, the same number on every rank.
            ///
            /// # Collective
            /// All ranks must make this call, with the same element type and matching lengths. The
            /// order of the calls on the communicator must be the same on every rank. A thread with
            /// several ranks issues the calls of these ranks in a group
            /// ([`Nccl::group`](crate::Nccl::group)).
            ///
            /// # Errors
            /// [`NcclError::Misuse`] for an invalid length, root, device or stream, or for borrowed
            /// memory on a stream that is being captured. In these cases nothing is enqueued.
            /// [`NcclError::Dead`], [`NcclError::Unsupported`], errors that NCCL returns.
            /// [`NcclError::Timeout`] if NCCL cannot connect the ranks by the
            /// [`deadline`](Communicator::deadline). In this case the communicator is aborted.
            AllReduce all_reduce(send: &'a impl DeviceBuffer<T>, recv: &'a mut impl DeviceBufferMut<T>, op: impl Reduction<T>);

            /// Copies the root's send buffer to the receive buffers of all ranks. Only the root
            /// must pass a send buffer; send buffers of other ranks are not read.
            ///
            /// If the receive buffers are registered or lie in windows, the root's send buffer must
            /// also be registered or lie in a window. NCCL assumes that no call uses both
            /// registered and unregistered memory.
            ///
            /// Shape: `recv` has `n` elements, the same number on every rank. The root's `send` has
            /// `n` elements.
            ///
            /// # Errors
            /// As for [`all_reduce`](Self::all_reduce).
            Broadcast broadcast(send: Option<&'a dyn DeviceBuffer<T>>, recv: &'a mut impl DeviceBufferMut<T>, root: Rank);

            /// Reduces over all ranks. The root gets the result. Only the root must pass a receive
            /// buffer; receive buffers of other ranks are not written.
            ///
            /// Shape: `send` has `n` elements, the same number on every rank. The root's `recv` has
            /// `n` elements.
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
            /// Shape: `send` has `n` elements, the same number on every rank. `recv` has `n`
            /// elements for each rank. The elements of rank `i` start at index `i * n` of `recv`.
            ///
            /// # Errors
            /// As for [`all_reduce`](Self::all_reduce).
            AllGather all_gather(send: &'a impl DeviceBuffer<T>, recv: &'a mut impl DeviceBufferMut<T>);

            /// Reduces over all ranks. Each rank gets its part of the result. The send buffer is as
            /// long as the receive buffers of all ranks together.
            ///
            /// Shape: `recv` has `n` elements, the same number on every rank. `send` has `n`
            /// elements for each rank. The elements for rank `i` start at index `i * n` of `send`.
            ///
            /// # Errors
            /// As for [`all_reduce`](Self::all_reduce).
            ReduceScatter reduce_scatter(
                send: &'a impl DeviceBuffer<T>,
                recv: &'a mut impl DeviceBufferMut<T>,
                op: impl Reduction<T>
            );

            /// Exchanges parts between all ranks: part `j` of `send` on rank `i` becomes part `i`
            /// of `recv` on rank `j`. Both buffers have one part for each rank. All parts have the
            /// same length.
            ///
            /// Before NCCL 2.28 this call is composed of sends and receives.
            ///
            /// Shape: `send` and `recv` have `n` elements for each rank, the same number on every
            /// rank. The elements for rank `i` start at index `i * n` of `send`. The elements from
            /// rank `i` start at index `i * n` of `recv`.
            ///
            /// # Errors
            /// As for [`all_reduce`](Self::all_reduce).
            AllToAll all_to_all(send: &'a impl DeviceBuffer<T>, recv: &'a mut impl DeviceBufferMut<T>);

            /// Concatenates the send buffers of all ranks, in rank order, on the root. Only the
            /// root must pass a receive buffer; receive buffers of other ranks are not written.
            ///
            /// With windows and [`CtaPolicy::Zero`](crate::CtaPolicy::Zero), all ranks must pass a
            /// receive buffer, at the same offset of their windows. NCCL computes the address in
            /// the root's window from the offset of this rank's own receive buffer.
            ///
            /// Before NCCL 2.28 this call is composed of sends and receives.
            ///
            /// Shape: `send` has `n` elements, the same number on every rank. The root's `recv` has
            /// `n` elements for each rank. The elements of rank `i` start at index `i * n` of
            /// `recv`.
            ///
            /// # Errors
            /// As for [`all_reduce`](Self::all_reduce).
            Gather gather(send: &'a impl DeviceBuffer<T>, recv: Option<&'a mut dyn DeviceBufferMut<T>>, root: Rank);

            /// Distributes the root's buffer: each rank gets its part. Only the root must pass a
            /// send buffer; send buffers of other ranks are not read.
            ///
            /// Before NCCL 2.28 this call is composed of sends and receives.
            ///
            /// Shape: `recv` has `n` elements, the same number on every rank. The root's `send` has
            /// `n` elements for each rank. The elements for rank `i` start at index `i * n` of
            /// `send`.
            ///
            /// # Errors
            /// As for [`all_reduce`](Self::all_reduce).
            Scatter scatter(send: Option<&'a dyn DeviceBuffer<T>>, recv: &'a mut impl DeviceBufferMut<T>, root: Rank);

            /// Reduces over all ranks. The result replaces the data on every rank.
            ///
            /// Shape: `buffer` has `n` elements, the same number on every rank.
            ///
            /// # Errors
            /// As for [`all_reduce`](Self::all_reduce).
            AllReduceInPlace all_reduce_in_place(buffer: &'a mut impl DeviceBufferMut<T>, op: impl Reduction<T>);

            /// Copies the root's buffer to the buffers of all ranks.
            ///
            /// Shape: `buffer` has `n` elements, the same number on every rank.
            ///
            /// # Errors
            /// As for [`all_reduce`](Self::all_reduce).
            BroadcastInPlace broadcast_in_place(buffer: &'a mut impl DeviceBufferMut<T>, root: Rank);

            /// Reduces over all ranks. The result replaces the data on the root. The buffers of the
            /// other ranks are only read.
            ///
            /// Shape: `buffer` has `n` elements, the same number on every rank.
            ///
            /// # Errors
            /// As for [`all_reduce`](Self::all_reduce).
            ReduceInPlace reduce_in_place(buffer: &'a mut impl DeviceBufferMut<T>, op: impl Reduction<T>, root: Rank);

            /// Gathers in place. The buffer has one part for each rank. This rank's part is sent to
            /// all other ranks, and the parts of the other ranks are received.
            ///
            /// Shape: `buffer` has `n` elements for each rank, the same number on every rank. The
            /// part of rank `i` starts at element `i * n`.
            ///
            /// # Errors
            /// As for [`all_reduce`](Self::all_reduce).
            AllGatherInPlace all_gather_in_place(buffer: &'a mut impl DeviceBufferMut<T>);

            /// Reduces in place. The buffer has one part for each rank. The part of this rank is
            /// replaced by the reduction of this part over all ranks. After the call, the contents
            /// of the other parts are unspecified.
            ///
            /// Shape: `buffer` has `n` elements for each rank, the same number on every rank. The
            /// part of rank `i` starts at element `i * n`.
            ///
            /// # Errors
            /// As for [`all_reduce`](Self::all_reduce).
            ReduceScatterInPlace reduce_scatter_in_place(buffer: &'a mut impl DeviceBufferMut<T>, op: impl Reduction<T>);

            /// Gathers on the root in place. The root's buffer has one part for each rank. The
            /// root's own part must already be in this buffer, and is unchanged. The other ranks
            /// pass buffers that are as long as one part. These buffers are only read.
            ///
            /// Shape: the root's `buffer` has `n` elements for each rank. The part of rank `i`
            /// starts at element `i * n`. The buffers of the other ranks have `n` elements.
            ///
            /// # Errors
            /// As for [`all_reduce`](Self::all_reduce).
            GatherInPlace gather_in_place(buffer: &'a mut impl DeviceBufferMut<T>, root: Rank);

            /// Distributes the root's buffer in place. The root's buffer has one part for each
            /// rank. The root's own part is unchanged. The other ranks pass buffers that are as
            /// long as one part.
            ///
            /// Shape: the root's `buffer` has `n` elements for each rank. The part of rank `i`
            /// starts at element `i * n`. The buffers of the other ranks have `n` elements.
            ///
            /// # Errors
            /// As for [`all_reduce`](Self::all_reduce).
            ScatterInPlace scatter_in_place(buffer: &'a mut impl DeviceBufferMut<T>, root: Rank);
        }
    };
}

/// Passes the table of transfers to a macro that generates methods. Transfers are sends, receives,
/// and calls that are composed of several NCCL operations. Transfers accept no configuration.
macro_rules! transfers {
    ($form:ident) => {
        $form! {
            /// Sends `buffer` to `peer`. The peer must [`recv`](Self::recv) the same number of
            /// elements of the same type.
            ///
            /// If two ranks send to each other, each rank must issue its send and its receive in
            /// one group, because a send may wait for the peer's receive.
            ///
            /// Shape: `buffer` has as many elements as the buffer of the peer's
            /// [`recv`](Self::recv).
            ///
            /// # Errors
            /// As for [`all_reduce`](Self::all_reduce).
            Send send(buffer: &'a impl DeviceBuffer<T>, peer: Rank);

            /// Receives elements from `peer` into `buffer`. The peer must [`send`](Self::send) the
            /// same number of elements of the same type.
            ///
            /// Shape: `buffer` has as many elements as the buffer of the peer's
            /// [`send`](Self::send).
            ///
            /// # Errors
            /// As for [`all_reduce`](Self::all_reduce).
            Recv recv(buffer: &'a mut impl DeviceBufferMut<T>, peer: Rank);

            /// Exchanges parts of different lengths between all ranks. `send` has `send_counts[i]`
            /// elements for rank `i`, in rank order. `recv` receives `recv_counts[i]` elements from
            /// rank `i`, in rank order. For each pair of ranks, the send count of the sender must
            /// equal the receive count of the receiver.
            ///
            /// The call is composed of sends and receives in one group.
            ///
            /// Shape: `send` has as many elements as the sum of `send_counts`. `recv` has as many
            /// elements as the sum of `recv_counts`. Both lists have one count for each rank.
            ///
            /// # Errors
            /// As for [`all_reduce`](Self::all_reduce).
            AllToAllV all_to_all_v(
                send: &'a impl DeviceBuffer<T>,
                send_counts: &[usize],
                recv: &'a mut impl DeviceBufferMut<T>,
                recv_counts: &[usize]
            );

            /// Concatenates the send buffers of all ranks, in rank order, on every rank. The send
            /// buffer of rank `i` has `counts[i]` elements. All ranks pass the same counts.
            ///
            /// The call is composed of broadcasts in one group.
            ///
            /// Shape: on rank `i`, `send` has `counts[i]` elements. `recv` has as many elements as
            /// the sum of `counts`. The list has one count for each rank.
            ///
            /// # Errors
            /// As for [`all_reduce`](Self::all_reduce).
            AllGatherV all_gather_v(send: &'a impl DeviceBuffer<T>, recv: &'a mut impl DeviceBufferMut<T>, counts: &[usize]);
        }
    };
}

pub(crate) use {collectives, transfers};
