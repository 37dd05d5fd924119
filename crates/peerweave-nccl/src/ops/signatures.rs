//! The collectives and transfers, each once: its documentation, its name and its arguments.
//!
//! A form in which they are called (at once, configured, recorded in a group, both) is a macro that
//! gets a table from here. What is checked is in `shapes.rs`.
//!
//! Invariant: every form has the same calls with the same arguments.

/// Hands the collectives to a macro that makes methods of them.
macro_rules! collectives {
    ($form:ident) => {
        $form! {
            /// Reduces over all ranks; every rank gets the result.
            ///
            /// Shape: `send` and `recv` have `n` elements, the same on every rank.
            ///
            /// # Collective
            /// All ranks, in the same order of calls on the communicator, with the same element
            /// type and lengths that fit together. A thread that has several ranks issues their
            /// calls in a group ([`Nccl::group`](crate::Nccl::group)).
            ///
            /// # Errors
            /// [`NcclError::Misuse`] names what is wrong with a length, a root, a device, a stream,
            /// or with borrowed memory on a stream that is being captured; then nothing was
            /// enqueued. [`NcclError::Dead`], [`NcclError::Unsupported`], NCCL's own.
            /// [`NcclError::Timeout`] if NCCL cannot connect the ranks by the
            /// [`deadline`](Communicator::deadline); then the communicator is aborted.
            AllReduce all_reduce(send: &'a impl DeviceBuffer<T>, recv: &'a mut impl DeviceBufferMut<T>, op: impl Reduction<T>);

            /// Copies the root's buffer to every rank's. Only the root gives a send buffer; those
            /// of others are not read.
            ///
            /// Where receive buffers are registered, or lie in windows, the root's send buffer has
            /// to be as well: NCCL takes it that all are.
            ///
            /// Shape: `recv` has `n` elements, the same on every rank, and the root's `send` has as
            /// many.
            ///
            /// # Errors
            /// As [`all_reduce`](Self::all_reduce).
            Broadcast broadcast(send: Option<&'a dyn DeviceBuffer<T>>, recv: &'a mut impl DeviceBufferMut<T>, root: Rank);

            /// Reduces over all ranks; the root gets the result. Only the root gives a receive
            /// buffer; those of others are not written.
            ///
            /// Shape: `send` has `n` elements, the same on every rank, and the root's `recv` has as
            /// many.
            ///
            /// # Errors
            /// As [`all_reduce`](Self::all_reduce).
            Reduce reduce(
                send: &'a impl DeviceBuffer<T>,
                recv: Option<&'a mut dyn DeviceBufferMut<T>>,
                op: impl Reduction<T>,
                root: Rank
            );

            /// Gathers what all ranks sent, in the order of ranks, on every rank. The receive
            /// buffer is as many times longer than the send buffer as there are ranks.
            ///
            /// Shape: `send` has `n` elements, the same on every rank, and `recv` has `n` for each
            /// rank: those of rank `i` begin at element `i * n`.
            ///
            /// # Errors
            /// As [`all_reduce`](Self::all_reduce).
            AllGather all_gather(send: &'a impl DeviceBuffer<T>, recv: &'a mut impl DeviceBufferMut<T>);

            /// Reduces over all ranks; each rank gets its part of the result. The send buffer is as
            /// many times longer than the receive buffer as there are ranks.
            ///
            /// Shape: `recv` has `n` elements, the same on every rank, and `send` has `n` for each
            /// rank: those for rank `i` begin at element `i * n`.
            ///
            /// # Errors
            /// As [`all_reduce`](Self::all_reduce).
            ReduceScatter reduce_scatter(
                send: &'a impl DeviceBuffer<T>,
                recv: &'a mut impl DeviceBufferMut<T>,
                op: impl Reduction<T>
            );

            /// Exchanges parts: rank `i`'s part `j` becomes rank `j`'s part `i`. Both buffers have
            /// a part of equal length for each rank.
            ///
            /// Before NCCL 2.28 it is composed of sends and receives.
            ///
            /// Shape: `send` and `recv` have `n` elements for each rank, the same on every rank:
            /// those of rank `i` begin at element `i * n`.
            ///
            /// # Errors
            /// As [`all_reduce`](Self::all_reduce).
            AllToAll all_to_all(send: &'a impl DeviceBuffer<T>, recv: &'a mut impl DeviceBufferMut<T>);

            /// Gathers what all ranks sent on the root, in the order of ranks. Only the root has to
            /// give a receive buffer; those of others are not written.
            ///
            /// With windows and [`CtaPolicy::Zero`](crate::CtaPolicy::Zero) all have to, each at
            /// the same place of its window: NCCL's copy engines then write to where this rank's
            /// own buffer would be.
            ///
            /// Before NCCL 2.28 it is composed of sends and receives.
            ///
            /// Shape: `send` has `n` elements, the same on every rank, and the root's `recv` has
            /// `n` for each rank: those of rank `i` begin at element `i * n`.
            ///
            /// # Errors
            /// As [`all_reduce`](Self::all_reduce).
            Gather gather(send: &'a impl DeviceBuffer<T>, recv: Option<&'a mut dyn DeviceBufferMut<T>>, root: Rank);

            /// Scatters the root's buffer: each rank gets its part. Only the root gives a send
            /// buffer; those of others are not read.
            ///
            /// Before NCCL 2.28 it is composed of sends and receives.
            ///
            /// Shape: `recv` has `n` elements, the same on every rank, and the root's `send` has
            /// `n` for each rank: those for rank `i` begin at element `i * n`.
            ///
            /// # Errors
            /// As [`all_reduce`](Self::all_reduce).
            Scatter scatter(send: Option<&'a dyn DeviceBuffer<T>>, recv: &'a mut impl DeviceBufferMut<T>, root: Rank);

            /// Reduces over all ranks; every rank gets the result in place of what it gave.
            ///
            /// Shape: `buffer` has `n` elements, the same on every rank.
            ///
            /// # Errors
            /// As [`all_reduce`](Self::all_reduce).
            AllReduceInPlace all_reduce_in_place(buffer: &'a mut impl DeviceBufferMut<T>, op: impl Reduction<T>);

            /// Copies the root's buffer over every rank's.
            ///
            /// Shape: `buffer` has `n` elements, the same on every rank.
            ///
            /// # Errors
            /// As [`all_reduce`](Self::all_reduce).
            BroadcastInPlace broadcast_in_place(buffer: &'a mut impl DeviceBufferMut<T>, root: Rank);

            /// Reduces over all ranks; the root gets the result in place of what it gave. The
            /// others' buffers are only read.
            ///
            /// Shape: `buffer` has `n` elements, the same on every rank.
            ///
            /// # Errors
            /// As [`all_reduce`](Self::all_reduce).
            ReduceInPlace reduce_in_place(buffer: &'a mut impl DeviceBufferMut<T>, op: impl Reduction<T>, root: Rank);

            /// Gathers in place: the buffer has a part for each rank; this rank's part is sent to
            /// all, and the others' parts are received.
            ///
            /// Shape: `buffer` has `n` elements for each rank, the same on every rank: the part of
            /// rank `i` begins at element `i * n`.
            ///
            /// # Errors
            /// As [`all_reduce`](Self::all_reduce).
            AllGatherInPlace all_gather_in_place(buffer: &'a mut impl DeviceBufferMut<T>);

            /// Reduces in place: the buffer has a part for each rank; this rank's part becomes its
            /// reduction over all ranks. The other parts are unspecified afterwards.
            ///
            /// Shape: `buffer` has `n` elements for each rank, the same on every rank: the part of
            /// rank `i` begins at element `i * n`.
            ///
            /// # Errors
            /// As [`all_reduce`](Self::all_reduce).
            ReduceScatterInPlace reduce_scatter_in_place(buffer: &'a mut impl DeviceBufferMut<T>, op: impl Reduction<T>);

            /// Gathers on the root in place: the root's buffer has a part for each rank, its own in
            /// place; the others give buffers of the length of one part, which are only read.
            ///
            /// Shape: the root's `buffer` has `n` elements for each rank, where the part of rank
            /// `i` begins at element `i * n`; the others' have `n`.
            ///
            /// # Errors
            /// As [`all_reduce`](Self::all_reduce).
            GatherInPlace gather_in_place(buffer: &'a mut impl DeviceBufferMut<T>, root: Rank);

            /// Scatters from the root in place: the root's buffer has a part for each rank, and its
            /// own stays; the others give buffers of the length of one part.
            ///
            /// Shape: the root's `buffer` has `n` elements for each rank, where the part of rank
            /// `i` begins at element `i * n`; the others' have `n`.
            ///
            /// # Errors
            /// As [`all_reduce`](Self::all_reduce).
            ScatterInPlace scatter_in_place(buffer: &'a mut impl DeviceBufferMut<T>, root: Rank);
        }
    };
}

/// Hands what is between two ranks, and what is composed of that, to a macro that makes methods of
/// it. It has no configuration.
macro_rules! transfers {
    ($form:ident) => {
        $form! {
            /// Sends to a rank, which has to [`recv`](Self::recv) as many elements of the same
            /// type.
            ///
            /// Two ranks that send to each other do so in groups: a send may wait for its receive.
            ///
            /// Shape: `buffer` has `n` elements, and the peer's [`recv`](Self::recv) as many.
            ///
            /// # Errors
            /// As [`all_reduce`](Self::all_reduce).
            Send send(buffer: &'a impl DeviceBuffer<T>, peer: Rank);

            /// Receives from a rank, which has to [`send`](Self::send) as many elements of the same
            /// type.
            ///
            /// Shape: `buffer` has `n` elements, and the peer's [`send`](Self::send) as many.
            ///
            /// # Errors
            /// As [`all_reduce`](Self::all_reduce).
            Recv recv(buffer: &'a mut impl DeviceBufferMut<T>, peer: Rank);

            /// Sends to each rank its own number of elements: `send` holds them in the order of
            /// ranks, `send_counts[i]` for rank `i`; `recv` gets `recv_counts[i]` from rank `i`, in
            /// the order of ranks. What one rank sends to another is what that one receives.
            ///
            /// Composed of sends and receives in one group.
            ///
            /// Shape: `send` has as many elements as `send_counts` says together, `recv` as
            /// `recv_counts`; both lists have a number for each rank.
            ///
            /// # Errors
            /// As [`all_reduce`](Self::all_reduce).
            AllToAllV all_to_all_v(
                send: &'a impl DeviceBuffer<T>,
                send_counts: &[usize],
                recv: &'a mut impl DeviceBufferMut<T>,
                recv_counts: &[usize]
            );

            /// Gathers what all ranks sent, in the order of ranks, on every rank; `counts[i]`
            /// elements from rank `i`. All ranks give the same counts.
            ///
            /// Composed of broadcasts in one group.
            ///
            /// Shape: `send` has `counts[rank]` elements, `recv` as many as `counts` says together;
            /// the list has a number for each rank.
            ///
            /// # Errors
            /// As [`all_reduce`](Self::all_reduce).
            AllGatherV all_gather_v(send: &'a impl DeviceBuffer<T>, recv: &'a mut impl DeviceBufferMut<T>, counts: &[usize]);
        }
    };
}

pub(crate) use {collectives, transfers};
