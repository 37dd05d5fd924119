//! One call, checked and with its addresses: what a communicator issues at once and a group records.
//!
//! Which lengths each collective wants is in `requests.rs`. Nothing here waits.
//!
//! Invariant: while a [`Request`] lives, its memory stays allocated, and its stream's order with other streams holds.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use peerweave_driver::cudarc::driver::CudaEvent;
use peerweave_driver::{Access, CudaStream, DeviceBuffer, DeviceBufferMut, Keep, Keeper, keep_in_graph, refuse_capture_begun};
use peerweave_dylib::MissingSymbol;
use peerweave_types::{DType, Element};

use crate::config::of_call::RawCollConfig;
use crate::library::error::{MisuseKind, NcclError};
use crate::member::membership::Inner;
use crate::ops::reduction::{Made, Reduction};
use crate::sys::{
    Api, CUstream, ncclCollConfig_t, ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclWaitSignalDesc_t, ncclWindow_t,
};
use crate::{Call, CollConfig, Nccl, Version};

/// The library's number of an element type. Types that it does not know yet can still be moved, as bytes.
#[inline]
pub(crate) fn data_type(call: &'static str, nccl: Nccl, dtype: DType, reduces: bool) -> Result<ncclDataType_t, NcclError> {
    Ok(match dtype {
        DType::I8 => ncclDataType_t::ncclInt8,
        DType::U8 => ncclDataType_t::ncclUint8,
        DType::I32 => ncclDataType_t::ncclInt32,
        DType::U32 => ncclDataType_t::ncclUint32,
        DType::I64 => ncclDataType_t::ncclInt64,
        DType::U64 => ncclDataType_t::ncclUint64,
        DType::F16 => ncclDataType_t::ncclFloat16,
        DType::BF16 => ncclDataType_t::ncclBfloat16,
        DType::F32 => ncclDataType_t::ncclFloat32,
        DType::F64 => ncclDataType_t::ncclFloat64,
        DType::F8E4M3 | DType::F8E5M2 => return eight_bits(nccl, dtype, reduces),
        _ => return Err(NcclError::misuse(call, MisuseKind::Context { why: "NCCL has no such element type" })),
    })
}

fn eight_bits(nccl: Nccl, dtype: DType, reduces: bool) -> Result<ncclDataType_t, NcclError> {
    const SINCE: Version = Version::new(2, 24, 3);
    match dtype {
        _ if !nccl.version().at_least(SINCE) && !reduces => Ok(ncclDataType_t::ncclUint8),
        DType::F8E4M3 => nccl.needs("ncclFloat8e4m3", SINCE).map(|()| ncclDataType_t::ncclFloat8e4m3),
        _ => nccl.needs("ncclFloat8e5m2", SINCE).map(|()| ncclDataType_t::ncclFloat8e5m2),
    }
}

/// What NCCL is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    AllReduce(ncclRedOp_t),
    Broadcast(c_int),
    Reduce(ncclRedOp_t, c_int),
    AllGather,
    ReduceScatter(ncclRedOp_t),
    AllToAll,
    Gather(c_int),
    Scatter(c_int),
    Send(c_int),
    Recv(c_int),
    Signal { peer: c_int, index: c_int, context: c_int },
}

/// One call of NCCL, without communicator and stream. Addresses are 0 where there is no buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) kind: Kind,
    pub(crate) send: u64,
    pub(crate) recv: u64,
    pub(crate) count: usize,
    pub(crate) data_type: ncclDataType_t,
    pub(crate) element_bytes: usize,
}

/// A put, which has more to say than the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Put {
    pub(crate) source: u64,
    pub(crate) count: usize,
    pub(crate) data_type: ncclDataType_t,
    pub(crate) peer: c_int,
    pub(crate) window: ncclWindow_t,
    pub(crate) offset_bytes: usize,
    pub(crate) index: c_int,
    pub(crate) context: c_int,
}

/// One call of this crate: an operation of NCCL, or several that belong together.
#[derive(Debug)]
pub(crate) enum Operations {
    One(Operation),
    Put(Put),
    Many(Vec<Operation>),
    Wait(Vec<ncclWaitSignalDesc_t>),
}

impl Default for Operations {
    /// None. Allocates nothing.
    #[inline]
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

/// A call that was checked, with what it keeps.
pub(crate) struct Request<'a> {
    pub(crate) call: Call,
    pub(crate) stream: &'a Arc<CudaStream>,
    pub(crate) operations: Operations,
    /// Mostly nothing: a group that records many is small.
    holds: Option<Box<Holds<'a>>>,
    /// Of collectives only.
    config: Option<Box<RawCollConfig>>,
}

/// What a call keeps until it is issued, or for the graph that it is captured into. Filled where it lies: it is large, and mostly empty.
#[derive(Default)]
pub(crate) struct Holds<'a> {
    /// Of buffers whose owners are told when the work is enqueued: of the one that is read, and of the one that is written.
    guards: [Option<Access<'a>>; 2],
    /// Of buffers that are kept once it is known that the call is captured: of the same two.
    keepers: [Option<&'a dyn Keeper>; 2],
    /// Not empty exactly if the stream is known to be captured.
    keeps: Vec<Keep>,
    /// A reduction or a window.
    owner: Option<Keep>,
}

impl Holds<'_> {
    /// Whether the call is captured.
    #[inline]
    pub(crate) fn is_captured(&self) -> bool {
        !self.keeps.is_empty()
    }

    #[inline]
    fn is_empty(&self) -> bool {
        let has_no_buffer = self.guards.iter().all(Option::is_none) && self.keepers.iter().all(Option::is_none);
        has_no_buffer && self.keeps.is_empty() && self.owner.is_none()
    }

    /// Whether dropping this does nothing.
    #[inline]
    pub(crate) fn is_free_of_drops(&self) -> bool {
        self.guards.iter().all(Option::is_none) && self.keeps.capacity() == 0 && self.owner.is_none()
    }

    /// Notes that the call is captured. Never empty then, so that the communicator is kept too.
    fn set_captured(&mut self) {
        self.keeps.extend(self.keepers.iter_mut().filter_map(Option::take).map(|keeper| keeper.keep()));
        self.keeps.push(self.owner.clone().unwrap_or_else(|| Arc::new(())));
    }

    /// After NCCL was called without a question before, inside the gate: the stream is being captured, and the call is in the graph, or was run right
    /// before the capture began. Both are fine with a graph that keeps what the call uses.
    ///
    /// # Errors
    /// Where the graph does not take it: then the capture is invalidated. Had it ended, what the call uses is never freed.
    #[cold]
    pub(crate) fn keep_after_call(&mut self, inner: &Arc<Inner>, call: Call, stream: &Arc<CudaStream>) -> Result<(), NcclError> {
        self.set_captured();
        let Err(error) = keep_call(inner, stream, &self.keeps) else { return Ok(()) };
        std::mem::forget((GraphHold::new(inner), std::mem::take(&mut self.keeps)));
        // Its error is that the capture was invalidated, or that it had ended.
        let _ = refuse_capture_begun(call.name(), stream);
        Err(error)
    }
}

/// A captured call's hold on its communicator.
struct GraphHold(Arc<Inner>);

impl GraphHold {
    fn new(inner: &Arc<Inner>) -> Self {
        inner.graphs.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(inner))
    }
}

/// Ties what a captured call uses, and its communicator, to the graph.
fn keep_call(inner: &Arc<Inner>, stream: &Arc<CudaStream>, keeps: &[Keep]) -> Result<(), NcclError> {
    let mut keeps = keeps.to_vec();
    keeps.push(Arc::new(GraphHold::new(inner)));
    Ok(keep_in_graph(stream, keeps)?)
}

impl Drop for GraphHold {
    fn drop(&mut self) {
        self.0.graphs.fetch_sub(1, Ordering::Release);
    }
}

impl<'a> Request<'a> {
    /// A call that was checked.
    #[inline]
    pub(crate) fn new(call: Call, stream: &'a Arc<CudaStream>, operations: Operations, holds: Holds<'a>) -> Self {
        let holds = if holds.is_empty() { None } else { Some(Box::new(holds)) };
        Self { call, stream, operations, holds, config: None }
    }

    /// Whether the call is captured.
    #[inline]
    pub(crate) fn is_captured(&self) -> bool {
        self.holds.as_ref().is_some_and(|holds| holds.is_captured())
    }

    /// An error if the stream is captured now and was not when the buffers were taken, or the reverse.
    pub(crate) fn check_capture(&self, inner: &Inner) -> Result<(), NcclError> {
        if inner.is_capturing(self.stream)? == self.is_captured() {
            return Ok(());
        }
        let why = "whether the stream is being captured has changed since the call was recorded";
        Err(NcclError::misuse(self.call.name(), MisuseKind::Context { why }))
    }

    /// After NCCL was called: an error if a capture of the stream began or ended during the call. What the call uses is safe then too.
    pub(crate) fn is_captured_as_before(&self, inner: &Inner) -> Result<(), NcclError> {
        let Some(holds) = self.holds.as_ref().filter(|holds| holds.is_captured()) else {
            return inner.not_captured_meanwhile(self.call.name(), self.stream);
        };
        if matches!(inner.is_capturing(self.stream), Ok(true)) {
            return Ok(());
        }
        // The stream may run the work itself, and nothing says when that is done: leaked.
        std::mem::forget(holds.keeps.clone());
        let why = "another thread ended the capture of the stream during the call: what the call uses is never freed";
        Err(NcclError::misuse(self.call.name(), MisuseKind::Context { why }))
    }

    /// Ties what a captured call uses to the graph. Before it is issued.
    pub(crate) fn hand_to_graph(&self, inner: &Arc<Inner>) -> Result<(), NcclError> {
        let Some(holds) = self.holds.as_ref().filter(|holds| holds.is_captured()) else { return Ok(()) };
        keep_call(inner, self.stream, &holds.keeps)
    }

    /// Gives the call a configuration.
    ///
    /// # Errors
    /// [`NcclError::Unsupported`] and [`NcclError::Misuse`] for what is wrong with it.
    pub(crate) fn configure(&mut self, inner: &Inner, config: Option<&CollConfig>) -> Result<(), NcclError> {
        let Some(config) = config else { return Ok(()) };
        let config = config.to_raw(self.call.name(), inner)?;
        if let (Some(event), Some(holds)) = (config.event(), self.holds.as_mut().filter(|holds| holds.is_captured())) {
            holds.keeps.push(Arc::<CudaEvent>::clone(event));
        }
        self.config = Some(Box::new(config));
        Ok(())
    }

    /// Gives the call to NCCL.
    ///
    /// # Safety
    /// This thread is inside the communicator's gate.
    pub(crate) unsafe fn issue(&self, api: &Api, inner: &Inner) -> Result<ncclResult_t, MissingSymbol> {
        // It lives as long as this request.
        let config = self.config.as_ref().map_or(std::ptr::null(), |config| config.as_ptr());
        let (comm, stream) = (inner.handle.get(), self.stream.cu_stream());
        match &self.operations {
            // SAFETY: the handle is live inside the gate; the operation's buffers are as long as it says, since it was checked, and live while this
            // request does, and after it for as long as the stream needs them.
            Operations::One(operation) => unsafe { operation.issue(api, inner, comm, stream, config) },
            // SAFETY: the same; the part of the window was checked too.
            Operations::Put(put) => unsafe {
                let Put { count, data_type, peer, window, offset_bytes, index, context, .. } = *put;
                let source: *const c_void = std::ptr::with_exposed_provenance(put.source as usize);
                api.ncclPutSignal(source, count, data_type, peer, window, offset_bytes, index, context, 0, comm, stream)
            },
            // SAFETY: the handle is live inside the gate; NCCL only reads the list, during the call.
            Operations::Wait(waits) => unsafe {
                let count = c_int::try_from(waits.len()).unwrap_or(c_int::MAX);
                api.ncclWaitSignal(count, waits.as_ptr().cast_mut(), comm, stream)
            },
            // SAFETY: as above, for each.
            Operations::Many(operations) => unsafe {
                grouped(api, || operations.iter().map(|operation| operation.issue(api, inner, comm, stream, config)))
            },
        }
    }
}

/// Calls of NCCL as one. The first failure counts.
///
/// # Safety
/// As the calls.
unsafe fn grouped<I: Iterator<Item = Result<ncclResult_t, MissingSymbol>>>(
    api: &Api,
    calls: impl FnOnce() -> I,
) -> Result<ncclResult_t, MissingSymbol> {
    // SAFETY: it is ended below.
    let started = unsafe { api.ncclGroupStart() }?;
    if started != ncclResult_t::ncclSuccess {
        return Ok(started);
    }
    let is_bad = |result: &Result<ncclResult_t, MissingSymbol>| {
        !matches!(result, Ok(ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress))
    };
    let failed = calls().find(is_bad);
    // SAFETY: this thread started it.
    let ended = unsafe { api.ncclGroupEnd() };
    failed.unwrap_or(ended)
}

impl Operation {
    /// # Safety
    /// The handle is live and used by this thread alone; the buffers are as long as the operation says, and stay until the stream has passed it.
    #[inline]
    pub(crate) unsafe fn issue(
        &self,
        api: &Api,
        inner: &Inner,
        comm: ncclComm_t,
        stream: CUstream,
        config: *const ncclCollConfig_t,
    ) -> Result<ncclResult_t, MissingSymbol> {
        let (send, recv): (*const c_void, *mut c_void) =
            (std::ptr::with_exposed_provenance(self.send as usize), std::ptr::with_exposed_provenance_mut(self.recv as usize));
        let (count, kind) = (self.count, self.data_type);
        if !config.is_null() {
            // SAFETY: as above; the configuration is valid during the call.
            return unsafe {
                match self.kind {
                    Kind::AllReduce(op) => api.ncclAllReduceConfig(send, recv, count, kind, op, comm, stream, config),
                    Kind::Broadcast(root) => api.ncclBroadcastConfig(send, recv, count, kind, root, comm, stream, config),
                    Kind::Reduce(op, root) => api.ncclReduceConfig(send, recv, count, kind, op, root, comm, stream, config),
                    Kind::AllGather => api.ncclAllGatherConfig(send, recv, count, kind, comm, stream, config),
                    Kind::ReduceScatter(op) => api.ncclReduceScatterConfig(send, recv, count, kind, op, comm, stream, config),
                    Kind::AllToAll => api.ncclAlltoAllConfig(send, recv, count, kind, comm, stream, config),
                    Kind::Gather(root) => api.ncclGatherConfig(send, recv, count, kind, root, comm, stream, config),
                    Kind::Scatter(root) => api.ncclScatterConfig(send, recv, count, kind, root, comm, stream, config),
                    // Only collectives are configured.
                    _ => self.issue(api, inner, comm, stream, std::ptr::null()),
                }
            };
        }
        // SAFETY: as above. Before 2.28 the last three collectives are composed.
        unsafe {
            match self.kind {
                Kind::AllReduce(op) => api.ncclAllReduce(send, recv, count, kind, op, comm, stream),
                Kind::Broadcast(root) => api.ncclBroadcast(send, recv, count, kind, root, comm, stream),
                Kind::Reduce(op, root) => api.ncclReduce(send, recv, count, kind, op, root, comm, stream),
                Kind::AllGather => api.ncclAllGather(send, recv, count, kind, comm, stream),
                Kind::ReduceScatter(op) => api.ncclReduceScatter(send, recv, count, kind, op, comm, stream),
                Kind::Send(peer) => api.ncclSend(send, count, kind, peer, comm, stream),
                Kind::Recv(peer) => api.ncclRecv(recv, count, kind, peer, comm, stream),
                Kind::Signal { peer, index, context } => api.ncclSignal(peer, index, context, 0, comm, stream),
                Kind::AllToAll => match api.ncclAlltoAll(send, recv, count, kind, comm, stream) {
                    Err(_) => self.compose(api, inner, comm, stream),
                    native => native,
                },
                Kind::Gather(root) => match api.ncclGather(send, recv, count, kind, root, comm, stream) {
                    Err(_) => self.compose(api, inner, comm, stream),
                    native => native,
                },
                Kind::Scatter(root) => match api.ncclScatter(send, recv, count, kind, root, comm, stream) {
                    Err(_) => self.compose(api, inner, comm, stream),
                    native => native,
                },
            }
        }
    }

    /// A collective that the library lacks, by sends and receives.
    ///
    /// # Safety
    /// As [`issue`](Self::issue).
    #[cold]
    unsafe fn compose(
        &self,
        api: &Api,
        inner: &Inner,
        comm: ncclComm_t,
        stream: CUstream,
    ) -> Result<ncclResult_t, MissingSymbol> {
        let part = (self.count * self.element_bytes) as u64;
        let rank = inner.rank as c_int;
        let at = |address: u64, peer: c_int| address + part * u64::from(peer.unsigned_abs());
        let send = |peer, address| Operation { kind: Kind::Send(peer), send: address, ..*self };
        let recv = |peer, address| Operation { kind: Kind::Recv(peer), recv: address, ..*self };
        let peers = 0..inner.n_ranks as c_int;
        let mut parts = Vec::new();
        match self.kind {
            Kind::AllToAll => {
                parts.extend(peers.flat_map(|peer| [send(peer, at(self.send, peer)), recv(peer, at(self.recv, peer))]))
            }
            Kind::Gather(root) => {
                // What is in place already is not moved.
                let in_place = rank == root && at(self.recv, rank) == self.send;
                if !in_place {
                    parts.push(send(root, self.send));
                }
                if rank == root {
                    parts.extend(peers.filter(|peer| !(in_place && *peer == rank)).map(|peer| recv(peer, at(self.recv, peer))));
                }
            }
            Kind::Scatter(root) => {
                let in_place = rank == root && at(self.send, rank) == self.recv;
                if rank == root {
                    parts.extend(peers.filter(|peer| !(in_place && *peer == rank)).map(|peer| send(peer, at(self.send, peer))));
                }
                if !in_place {
                    parts.push(recv(root, self.recv));
                }
            }
            _ => {}
        }
        // SAFETY: each part lies inside the buffers of the whole.
        unsafe { grouped(api, || parts.iter().map(|part| part.issue(api, inner, comm, stream, std::ptr::null()))) }
    }
}

/// What a check gives. Errors are boxed: they are large, and what is small stays in registers.
pub(crate) type Checked<T> = Result<T, Box<NcclError>>;

/// Where a call is checked: on which communicator, for which stream; and what it keeps.
pub(crate) struct At<'c, 'a> {
    pub(crate) call: Call,
    pub(crate) inner: &'c Arc<Inner>,
    pub(crate) stream: &'a Arc<CudaStream>,
    /// Whether the stream is being captured; `None` where nobody has asked.
    pub(crate) capturing: Option<bool>,
    pub(crate) holds: &'c mut Holds<'a>,
    pub(crate) operations: &'c mut Operations,
}

/// That a call was checked, and its operations were noted.
pub(crate) struct Prepared(());

/// A buffer of a call.
#[derive(Clone, Copy)]
pub(crate) struct Operand {
    pub(crate) address: u64,
    len_bytes: u64,
}

/// Which of the buffers of a call.
const READ: usize = 0;
const WRITTEN: usize = 1;

impl<'c, 'a> At<'c, 'a> {
    /// For a stream that was checked. The device's context is the thread's.
    #[inline]
    pub(crate) fn new(
        call: Call,
        inner: &'c Arc<Inner>,
        stream: &'a Arc<CudaStream>,
        capturing: Option<bool>,
        holds: &'c mut Holds<'a>,
        operations: &'c mut Operations,
    ) -> Self {
        Self { call, inner, stream, capturing, holds, operations }
    }

    /// Notes what NCCL is asked for: the end of a check.
    #[inline(always)]
    pub(crate) fn prepared(&mut self, operations: Operations) -> Prepared {
        // There was none before: nothing to drop, and no time to find that out.
        std::mem::forget(std::mem::replace(self.operations, operations));
        Prepared(())
    }

    /// The library's number of an element type that is only moved.
    #[inline]
    pub(crate) fn moved<T: Element>(&self) -> Checked<ncclDataType_t> {
        Ok(data_type(self.call.name(), self.inner.nccl, T::DTYPE, false)?)
    }

    /// The library's numbers of an element type and of what reduces it. Keeps what that belongs to.
    #[inline]
    pub(crate) fn reduced<T: Element>(&mut self, op: &impl Reduction<T>) -> Checked<(ncclDataType_t, ncclRedOp_t)> {
        let data_type = data_type(self.call.name(), self.inner.nccl, T::DTYPE, true)?;
        let (op, made) = op.resolve();
        if let Some(made) = made {
            made.check(self.call.name(), self.inner, self.stream)?;
            self.own(Arc::<Made>::clone(made));
        }
        Ok((data_type, op))
    }

    /// Keeps a reduction or a window.
    pub(crate) fn own(&mut self, owner: Keep) {
        self.holds.owner = Some(owner);
    }

    /// A rank of the communicator, as NCCL wants it.
    #[inline]
    pub(crate) fn rank(&self, what: &'static str, rank: usize) -> Checked<c_int> {
        let ranks = self.inner.n_ranks;
        // There are at most `c_int::MAX` ranks.
        if rank < ranks { Ok(rank as c_int) } else { Err(misuse(self.call, MisuseKind::Rank { what, found: rank, ranks })) }
    }

    /// An error unless something has the length that it should have.
    #[inline]
    pub(crate) fn length(&self, what: &'static str, found: usize, expected: usize) -> Checked<()> {
        let wrong = || misuse(self.call, MisuseKind::Length { what, found, expected, unit: "elements" });
        if found == expected { Ok(()) } else { Err(wrong()) }
    }

    /// `count` elements for each rank. Saturates: no buffer has that length.
    #[inline]
    pub(crate) fn of_all(&self, count: usize) -> usize {
        count.saturating_mul(self.inner.n_ranks)
    }

    /// The part of each rank in a buffer that has one for each.
    #[inline]
    pub(crate) fn part(&self, what: &'static str, len: usize) -> Checked<usize> {
        let count = len / self.inner.n_ranks;
        if count * self.inner.n_ranks == len {
            return Ok(count);
        }
        let (found, expected) = (i64::try_from(len).unwrap_or(i64::MAX), "a multiple of the number of ranks");
        Err(misuse(self.call, MisuseKind::Value { what, found, expected }))
    }

    #[inline]
    fn device(&self, what: &'static str, found: usize) -> Checked<()> {
        let expected = self.inner.device();
        if found == expected { Ok(()) } else { Err(misuse(self.call, MisuseKind::Device { what, found, expected })) }
    }

    /// A buffer that is read. Last of the checks, since it may make the stream wait for another.
    #[inline(always)]
    pub(crate) fn read<T: Element, B: DeviceBuffer<T> + ?Sized>(
        &mut self,
        what: &'static str,
        buffer: &'a B,
    ) -> Checked<Operand> {
        self.device(what, buffer.device())?;
        let len_bytes = (buffer.len() * size_of::<T>()) as u64;
        let address = match self.must_keep(buffer.is_keepable())? {
            false => self.borrow(READ, buffer.read(self.stream).map_err(NcclError::from)?),
            true => kept(self.call, self.holds, buffer.keep())?,
        };
        Ok(Operand { address, len_bytes })
    }

    /// A buffer that is written.
    #[inline(always)]
    pub(crate) fn write<T: Element, B: DeviceBufferMut<T> + ?Sized>(
        &mut self,
        what: &'static str,
        buffer: &'a mut B,
    ) -> Checked<Operand> {
        self.device(what, buffer.device())?;
        let len_bytes = (buffer.len() * size_of::<T>()) as u64;
        let address = match self.must_keep(buffer.is_keepable())? {
            false => self.borrow(WRITTEN, buffer.write(self.stream).map_err(NcclError::from)?),
            true => kept(self.call, self.holds, buffer.keep())?,
        };
        Ok(Operand { address, len_bytes })
    }

    /// Whether a buffer has to be kept for a graph. What can be kept later is not asked for now.
    #[inline(always)]
    fn must_keep(&mut self, is_keepable: bool) -> Checked<bool> {
        match self.capturing {
            Some(capturing) => Ok(capturing),
            None if is_keepable => Ok(false),
            None => self.ask(),
        }
    }

    /// Asks the driver whether the stream is being captured.
    #[cold]
    pub(crate) fn ask(&mut self) -> Checked<bool> {
        let capturing = self.inner.is_capturing(self.stream)?;
        self.capturing = Some(capturing);
        Ok(capturing)
    }

    /// Has it known whether the call is captured: before anything else than issuing it at once.
    pub(crate) fn settle_capture(&mut self) -> Checked<()> {
        if self.capturing.is_none() && self.ask()? {
            self.holds.set_captured();
        }
        Ok(())
    }

    /// Memory that is borrowed during the call.
    #[inline(always)]
    fn borrow(&mut self, which: usize, access: Access<'a>) -> u64 {
        let address = access.address();
        self.holds.keepers[which] = access.keeper();
        if access.is_guarded() {
            self.holds.guards[which] = Some(access);
        } else {
            // Its owner waits for no word, so that dropping it does nothing; but that would be a call.
            std::mem::forget(access);
        }
        address
    }

    /// The last of the checks: that the buffers share no memory, and that taking them did not make the stream part of a capture.
    #[inline(always)]
    pub(crate) fn finish(&mut self, send: Option<Operand>, recv: Option<Operand>) -> Checked<()> {
        if let (Some(send), Some(recv)) = (send, recv) {
            let address = send.address.max(recv.address);
            if address < (send.address + send.len_bytes).min(recv.address + recv.len_bytes) {
                return Err(misuse(
                    self.call,
                    MisuseKind::Overlap { send: "the send buffer", recv: "the receive buffer", address },
                ));
            }
        }
        if self.capturing == Some(true) || self.holds.guards.iter().any(Option::is_some) {
            return finish_with_care(self.call, self.inner, self.stream, self.holds);
        }
        Ok(())
    }
}

#[cold]
fn misuse(call: Call, kind: MisuseKind) -> Box<NcclError> {
    Box::new(NcclError::misuse(call.name(), kind))
}

/// The address of memory that a graph keeps.
#[cold]
fn kept(call: Call, holds: &mut Holds<'_>, kept: Option<(u64, Keep)>) -> Checked<u64> {
    let Some((address, keep)) = kept else {
        let why = "the stream is being captured, and a graph replays after the call: give memory that can be kept alive, a DeviceMemory or \
                   a Raw, instead of a borrowed slice";
        return Err(misuse(call, MisuseKind::Context { why }));
    };
    holds.keeps.push(keep);
    Ok(address)
}

/// For a stream that is being captured, or buffers that made it wait for something.
#[inline(never)]
fn finish_with_care(call: Call, inner: &Inner, stream: &CudaStream, holds: &mut Holds<'_>) -> Checked<()> {
    if holds.guards.iter().all(Option::is_none) {
        holds.set_captured();
        return Ok(());
    }
    // Making the stream wait for an event that was captured makes it captured too.
    if !inner.is_capturing(stream)? {
        return Ok(());
    }
    let why =
        "a buffer's own events made the stream part of a capture; give memory that can be kept alive, a DeviceMemory or a Raw";
    Err(misuse(call, MisuseKind::Context { why }))
}
