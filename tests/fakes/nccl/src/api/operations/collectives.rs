//! The collectives: checks their arguments, and creates their operations.
//!
//! Module `groups` runs the operations. Invariant: arguments that NCCL refuses are refused with its
//! code before anything is enqueued.

use core::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use super::submit::{submit, without_work};
use super::{config, operators};
use crate::abi::{CollConfig, Result, Stream, invalid, not_null};
use crate::arithmetic::{DType, Op};
use crate::call::exports;
use crate::comm::{CommPtr, counters};
use crate::groups::{Collective, Kind, Work};
use crate::settings::{self, Noop};

/// The arguments of a collective; root and operator are zero if it has none.
struct Call {
    kind: Kind,
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    dtype: c_int,
    op: Option<c_int>,
    root: c_int,
    comm: CommPtr,
    stream: Stream,
}

fn collective(call: Call, config: Option<*const CollConfig>) -> Result {
    counters::COLLECTIVES.fetch_add(1, Ordering::Relaxed);
    if settings::get().noop != Noop::Off {
        return without_work(call.comm, call.stream);
    }
    let comm = call.comm.usable()?;
    let event = match config {
        Some(config) => config::read_call(config, comm.config.max_ctas)?,
        None => None,
    };
    comm.check_peer(call.root, "root")?;
    let dtype = DType::from_number(call.dtype)?;
    let op = call.op.map_or(Ok(Op::Sum), |op| operators::resolve(comm, op, dtype))?;
    let ranks = comm.who().ranks() as usize;
    if call.count.checked_mul(dtype.size()).and_then(|bytes| bytes.checked_mul(ranks)).is_none() {
        return invalid(format!("count {} is too large", call.count));
    }
    if call.count == 0 {
        return Ok(());
    }
    let me = comm.who().rank;
    let reads = !matches!(call.kind, Kind::Broadcast | Kind::Scatter) || me == call.root;
    let writes = !matches!(call.kind, Kind::Reduce | Kind::Gather) || me == call.root;
    if reads {
        not_null(call.send, "sendbuff")?;
    }
    if writes {
        not_null(call.receive, "recvbuff")?;
    }
    let gives_nothing = matches!(call.kind, Kind::Broadcast | Kind::Scatter) && call.send.is_null();
    if gives_nothing && !comm.state().registered.is_empty() {
        // NCCL (seen in 2.28.9 and 2.32.3) looks for both buffers of each rank among those that are
        // registered. Ranks that find them and ranks that do not use different paths and wait
        // forever. An error is better.
        return invalid("a rank with a null buffer never connects to ranks with registered buffers");
    }
    let (send, receive) = (call.send.expose_provenance(), call.receive.expose_provenance());
    let work = Collective { kind: call.kind, send, receive, count: call.count, dtype, op, root: call.root };
    submit(comm, call.stream, Work::Collective(work), event)
}

macro_rules! collectives {
    ($($(#[$doc:meta])* $kind:ident: $name:ident, $with_config:ident ($($extra:ident),*), $op:expr, $root:expr;)*) => {
        exports! {$(
            $(#[$doc])*
            fn $name(sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: c_int, $($extra: c_int,)*
                comm: CommPtr, stream: Stream) {
                let call = Call { kind: Kind::$kind, send: sendbuff, receive: recvbuff, count, dtype: datatype, op: $op, root: $root,
                    comm, stream };
                collective(call, None)
            }

            /// Like the function without `Config`, with a configuration for the call.
            fn $with_config(sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: c_int, $($extra: c_int,)*
                comm: CommPtr, stream: Stream, config: *const CollConfig) {
                let call = Call { kind: Kind::$kind, send: sendbuff, receive: recvbuff, count, dtype: datatype, op: $op, root: $root,
                    comm, stream };
                collective(call, Some(config))
            }
        )*}
    };
}

collectives! {
    /// Reduces the values of all ranks to all ranks.
    AllReduce: ncclAllReduce, ncclAllReduceConfig(op), Some(op), 0;
    /// Reduces the values of all ranks to the root.
    Reduce: ncclReduce, ncclReduceConfig(op, root), Some(op), root;
    /// Copies the root's values to all ranks.
    Broadcast: ncclBroadcast, ncclBroadcastConfig(root), None, root;
    /// Gathers the values of all ranks on all ranks.
    AllGather: ncclAllGather, ncclAllGatherConfig(), None, 0;
    /// Reduces the values of all ranks, and stores one part of the result on each rank.
    ReduceScatter: ncclReduceScatter, ncclReduceScatterConfig(op), Some(op), 0;
    /// Exchanges one part with each rank.
    AllToAll: ncclAlltoAll, ncclAlltoAllConfig(), None, 0;
    /// Gathers the values of all ranks on the root.
    Gather: ncclGather, ncclGatherConfig(root), None, root;
    /// Sends each rank a part of the root's values.
    Scatter: ncclScatter, ncclScatterConfig(root), None, root;
}

exports! {
    /// Broadcasts in place: the older form of `ncclBroadcast`.
    fn ncclBcast(buff: *mut c_void, count: usize, datatype: c_int, root: c_int, comm: CommPtr, stream: Stream) {
        let kind = Kind::Broadcast;
        collective(Call { kind, send: buff, receive: buff, count, dtype: datatype, op: None, root, comm, stream }, None)
    }
}
