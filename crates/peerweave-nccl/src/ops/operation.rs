//! Operations of NCCL, and functions that issue these operations. Each call of this crate becomes
//! one call of NCCL, or several calls of NCCL in one group.
//!
//! This module neither checks arguments nor waits.

use std::ffi::{c_int, c_void};

use peerweave_dylib::MissingSymbol;

use crate::member::membership::Inner;
use crate::sys::{
    Api, CUstream, ncclCollConfig_t, ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclWaitSignalDesc_t, ncclWindow_t,
};

/// Kind of an NCCL operation. The fields of a variant are the reduction, the root or the peer.
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

/// Arguments of one call of NCCL, except communicator and stream. If the call has no send buffer or
/// no receive buffer, the address of this buffer is 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) kind: Kind,
    pub(crate) send: u64,
    pub(crate) recv: u64,
    pub(crate) count: usize,
    pub(crate) data_type: ncclDataType_t,
    pub(crate) element_bytes: usize,
}

/// Arguments of `ncclPutSignal`, except communicator and stream.
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

/// The operations of one call of this crate: one operation of NCCL, or several operations in one
/// group.
#[derive(Debug)]
pub(crate) enum Operations {
    One(Operation),
    Put(Put),
    Many(Vec<Operation>),
    Wait(Vec<ncclWaitSignalDesc_t>),
}

impl Default for Operations {
    /// Returns an empty list of operations. Allocates nothing.
    #[inline]
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

/// Makes several calls of NCCL in one group. After the first failure makes no further call, and
/// returns this failure. If no call fails, returns the result of `ncclGroupEnd`.
///
/// # Safety
/// The caller satisfies the safety contract of every call.
pub(super) unsafe fn grouped<I: Iterator<Item = Result<ncclResult_t, MissingSymbol>>>(
    api: &Api,
    calls: impl FnOnce() -> I,
) -> Result<ncclResult_t, MissingSymbol> {
    // SAFETY: the group is ended below.
    let started = unsafe { api.ncclGroupStart() }?;
    if started != ncclResult_t::ncclSuccess {
        return Ok(started);
    }
    let is_bad = |result: &Result<ncclResult_t, MissingSymbol>| {
        !matches!(result, Ok(ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress))
    };
    let failed = calls().find(is_bad);
    // SAFETY: this thread started the group.
    let ended = unsafe { api.ncclGroupEnd() };
    failed.unwrap_or(ended)
}

impl Operation {
    /// Issues the operation. If `config` is null, calls the NCCL function that takes no
    /// configuration.
    ///
    /// # Safety
    /// The handle is live and used only by this thread. The buffers are as long as the operation
    /// requires, and stay allocated until the stream has completed the operation.
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
        // SAFETY: as above. Before NCCL 2.28 the last three collectives are composed of sends and
        // receives.
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

    /// Issues an all-to-all, gather or scatter as sends and receives, for versions of NCCL that
    /// lack these collectives.
    ///
    /// # Safety
    /// As for [`issue`](Self::issue).
    #[cold]
    unsafe fn compose(
        &self,
        api: &Api,
        inner: &Inner,
        comm: ncclComm_t,
        stream: CUstream,
    ) -> Result<ncclResult_t, MissingSymbol> {
        let part = (self.count * self.element_bytes) as u64;
        let rank = inner.rank.get() as c_int;
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
                // The root's own part is not transferred if it is already at its place in the
                // receive buffer.
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
        // SAFETY: each part lies inside the buffers of the collective.
        unsafe { grouped(api, || parts.iter().map(|part| part.issue(api, inner, comm, stream, std::ptr::null()))) }
    }
}
