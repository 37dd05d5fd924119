//! One-sided operations: puts that are followed by a signal, signals without data, and waits for
//! signals. Requires NCCL 2.29.2.
//!
//! `window.rs` has windows. Invariant: a put stays inside the target rank's window.

use std::ffi::c_int;
use std::sync::Arc;

use peerweave_driver::{CudaStream, DeviceBuffer};
use peerweave_types::{Element, Rank};

use crate::comm::communicator::Communicator;
use crate::library::error::{MisuseKind, NcclError};
use crate::ops::check::{CallBuilder, Checked, Prepared};
use crate::ops::group::Group;
use crate::ops::operation::{Kind, Operation, Operations, Put};
use crate::sys::{ncclDataType_t, ncclWaitSignalDesc_t};
use crate::{Call, Version, Window};

/// Index and context that identify a signal. A signal is a counter on each rank, which other ranks
/// increment.
///
/// [`Config::num_rma_ctx`](crate::Config::num_rma_ctx) sets the number of contexts, and
/// [`Config::num_rma_sig`](crate::Config::num_rma_sig) sets the number of signals in each context.
/// The first signal (index 0 of context 0) exists if both numbers are at least 1. Before NCCL 2.31
/// the first signal is the only signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signal {
    /// Index of the signal.
    pub index: u32,
    /// Index of the signal's context. Operations in different contexts are not ordered relative to
    /// each other.
    pub context: u32,
}

/// Describes one wait: the signal, the rank that increments the signal, and the number of
/// increments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalWait {
    /// The rank that increments the signal.
    pub peer: Rank,
    /// The signal to wait for.
    pub signal: Signal,
    /// Number of increments to wait for. Only increments by `peer` count. Must be at least 1. Each
    /// increment counts for only one wait.
    pub count: u32,
}

/// One-sided operations. The documentation of [`all_reduce`](Self::all_reduce) applies, except that
/// one-sided operations are not collective. One-sided operations require NCCL 2.29.2.
///
/// Before NCCL 2.31 the first one-sided operation on a communicator is collective. NCCL then
/// prepares all ranks, and waits for every rank to call a one-sided operation. NCCL has further
/// rules, which this crate does not check. A call that breaks such a rule makes a non-blocking
/// communicator unusable: each later call returns [`NcclError::Dead`].
impl Communicator {
    /// Writes `source` to the peer's window, starting at element `offset`, and then increments the
    /// peer's signal. The write and the increment happen in stream order.
    ///
    /// Lengths: `offset` plus the length of `source` is at most [`Window::len_of`] for the peer.
    /// `offset` must also be less than [`Window::len_of`] for this rank, because NCCL compares the
    /// offset with the length of this rank's window.
    ///
    /// NCCL requires both the target and the source to be in windows that were registered with
    /// [`WindowKind::SYMMETRIC`](crate::WindowKind::SYMMETRIC).
    ///
    /// In a captured graph, a put waits until the peer has waited for the signal of the previous
    /// put. So the peer must wait for the signal of each put in a separate
    /// [`wait_signal`](Self::wait_signal). One wait for the signals of two puts never ends, because
    /// the second put waits for this wait.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce). [`NcclError::Unsupported`] before NCCL 2.29.2.
    pub fn put_signal<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        source: &impl DeviceBuffer<T>,
        peer: Rank,
        window: &Window<T>,
        offset: usize,
        signal: Signal,
    ) -> Result<(), NcclError> {
        self.run(Call::PutSignal, stream, None, |builder| put_signal(builder, source, peer, window, offset, signal))
    }

    /// Increments a signal on the peer, in stream order.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce). [`NcclError::Unsupported`] before NCCL 2.29.2.
    pub fn signal(&self, stream: &Arc<CudaStream>, peer: Rank, signal: Signal) -> Result<(), NcclError> {
        self.run(Call::Signal, stream, None, |builder| raise(builder, peer, signal))
    }

    /// Makes the stream wait, for each entry of `waits`, until the entry's peer has incremented the
    /// entry's signal on this rank. The entry's `count` is the number of increments to wait for.
    /// Later work in the stream sees the data of the puts that preceded these increments.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce). [`NcclError::Unsupported`] before NCCL 2.29.2.
    pub fn wait_signal(&self, stream: &Arc<CudaStream>, waits: &[SignalWait]) -> Result<(), NcclError> {
        self.run(Call::WaitSignal, stream, None, |builder| wait_signal(builder, waits))
    }
}

/// Methods that record one-sided operations in the group. NCCL receives the operations when the
/// group is launched. [`Communicator`] has methods that issue the same operations immediately.
impl<'env> Group<'env> {
    /// Records [`Communicator::put_signal`]. The call is issued when the group is launched.
    ///
    /// # Errors
    /// [`Communicator::put_signal`] lists the possible errors. This method returns an error that is
    /// detected before the launch. The group then does not contain the call.
    /// [`Nccl::group`](crate::Nccl::group) returns an error that is detected later.
    #[allow(
        clippy::too_many_arguments,
        reason = "the method takes a communicator and the arguments of `Communicator::put_signal`"
    )]
    pub fn put_signal<T: Element>(
        &mut self,
        communicator: &Communicator,
        stream: &'env Arc<CudaStream>,
        source: &'env impl DeviceBuffer<T>,
        peer: Rank,
        window: &Window<T>,
        offset: usize,
        signal: Signal,
    ) -> Result<(), NcclError> {
        self.record(Call::PutSignal, communicator, stream, None, |builder| {
            put_signal(builder, source, peer, window, offset, signal)
        })
    }

    /// Records [`Communicator::signal`]. The call is issued when the group is launched.
    ///
    /// # Errors
    /// [`Communicator::signal`] lists the possible errors. This method returns an error that is
    /// detected before the launch. The group then does not contain the call.
    /// [`Nccl::group`](crate::Nccl::group) returns an error that is detected later.
    pub fn signal(
        &mut self,
        communicator: &Communicator,
        stream: &'env Arc<CudaStream>,
        peer: Rank,
        signal: Signal,
    ) -> Result<(), NcclError> {
        self.record(Call::Signal, communicator, stream, None, |builder| raise(builder, peer, signal))
    }

    /// Records [`Communicator::wait_signal`]. The call is issued when the group is launched.
    ///
    /// # Errors
    /// [`Communicator::wait_signal`] lists the possible errors. This method returns an error that
    /// is detected before the launch. The group then does not contain the call.
    /// [`Nccl::group`](crate::Nccl::group) returns an error that is detected later.
    pub fn wait_signal(
        &mut self,
        communicator: &Communicator,
        stream: &'env Arc<CudaStream>,
        waits: &[SignalWait],
    ) -> Result<(), NcclError> {
        self.record(Call::WaitSignal, communicator, stream, None, |builder| wait_signal(builder, waits))
    }
}

/// First version of NCCL with one-sided operations.
const SINCE: Version = Version::new(2, 29, 2);

fn number(builder: &CallBuilder<'_, '_>, what: &'static str, found: u32) -> Checked<c_int> {
    c_int::try_from(found).map_err(|_| {
        let (found, expected) = (i64::from(found), "a number of at most 2147483647");
        NcclError::misuse(builder.call.name(), MisuseKind::Value { what, found, expected }).into()
    })
}

/// Converts the index and the context of a signal to NCCL's integers. Fails if the library has only
/// the first signal and `signal` is a different signal.
fn numbers(builder: &CallBuilder<'_, '_>, signal: Signal) -> Checked<(c_int, c_int)> {
    if signal != Signal::default() {
        // Before NCCL 2.31 only the first signal of the first context exists.
        builder.inner.nccl.needs("a signal whose index or context is not 0", Version::new(2, 31, 0))?;
    }
    Ok((number(builder, "the signal's index", signal.index)?, number(builder, "the signal's context", signal.context)?))
}

fn put_signal<'a, T: Element>(
    builder: &mut CallBuilder<'_, 'a>,
    source: &'a impl DeviceBuffer<T>,
    peer: Rank,
    window: &Window<T>,
    offset: usize,
    signal: Signal,
) -> Checked<Prepared> {
    builder.inner.nccl.needs("ncclPutSignal", SINCE)?;
    let (raw_peer, count, data_type) = (builder.rank("the peer", peer)?, source.len(), builder.moved::<T>()?);
    let handle = window.inner.used(builder.call.name(), builder.inner)?;
    let room = window.len_of(peer)?;
    if offset.checked_add(count).is_none_or(|end| end > room) {
        let found = offset.saturating_add(count);
        let kind = MisuseKind::TooShort { what: "the peer's window", found: room, at_least: found, unit: "elements" };
        return Err(NcclError::misuse(builder.call.name(), kind).into());
    }
    let own = window.len_of(builder.inner.rank)?;
    if offset >= own.max(1) {
        // For peers on the same machine, NCCL also compares the offset with the length of this
        // rank's window.
        let (found, expected) = (
            i64::try_from(offset).unwrap_or(i64::MAX),
            "less than the length of this rank's own window, because NCCL may check the offset in both windows",
        );
        return Err(NcclError::misuse(builder.call.name(), MisuseKind::Value { what: "the offset", found, expected }).into());
    }
    let (index, context) = numbers(builder, signal)?;
    let source = builder.read("the source", source)?;
    builder.own(Arc::<crate::memory::window::Registered>::clone(&window.inner));
    builder.finish(Some(source), None)?;
    let (source, peer, window, offset_bytes) = (source.address, raw_peer, handle, offset * size_of::<T>());
    Ok(builder.prepared(Operations::Put(Put { source, count, data_type, peer, window, offset_bytes, index, context })))
}

fn raise(builder: &mut CallBuilder<'_, '_>, peer: Rank, signal: Signal) -> Checked<Prepared> {
    builder.inner.nccl.needs("ncclSignal", SINCE)?;
    let peer = builder.rank("the peer", peer)?;
    let (index, context) = numbers(builder, signal)?;
    let kind = Kind::Signal { peer, index, context };
    let operation = Operation { kind, send: 0, recv: 0, count: 0, data_type: ncclDataType_t::ncclUint8, element_bytes: 1 };
    builder.finish(None, None)?;
    Ok(builder.prepared(Operations::One(operation)))
}

fn wait_signal(builder: &mut CallBuilder<'_, '_>, waits: &[SignalWait]) -> Checked<Prepared> {
    builder.inner.nccl.needs("ncclWaitSignal", SINCE)?;
    let mut list = Vec::new();
    for wait in waits {
        if wait.count == 0 {
            let kind = MisuseKind::Value { what: "the count", found: 0, expected: "a number of at least 1" };
            return Err(NcclError::misuse(builder.call.name(), kind).into());
        }
        let (index, context) = numbers(builder, wait.signal)?;
        list.push(ncclWaitSignalDesc_t {
            opCnt: number(builder, "the count", wait.count)?,
            peer: builder.rank("the peer", wait.peer)?,
            sigIdx: index,
            ctx: context,
        });
    }
    if list.is_empty() {
        let kind = MisuseKind::TooShort { what: "the list of waits", found: 0, at_least: 1, unit: "waits" };
        return Err(NcclError::misuse(builder.call.name(), kind).into());
    }
    builder.finish(None, None)?;
    Ok(builder.prepared(Operations::Wait(list)))
}
