//! Sends and receives.
//!
//! Module `groups` runs the operations. Invariant: arguments that NCCL refuses are refused with its
//! code before anything is enqueued.

use core::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use super::submit::{submit, without_work};
use crate::abi::{Result, Stream, invalid, not_null};
use crate::arithmetic::DType;
use crate::call::exports;
use crate::comm::{Comm, CommPtr, counters};
use crate::groups::Work;
use crate::settings::{self, Noop};

/// Returns the bytes of a checked point-to-point call; `None` if the call has no effect.
fn point_to_point(
    comm: CommPtr,
    buffer: *const c_void,
    count: usize,
    datatype: c_int,
    peer: c_int,
    stream: Stream,
) -> Result<Option<(&'static Comm, usize)>> {
    counters::COLLECTIVES.fetch_add(1, Ordering::Relaxed);
    if settings::get().noop != Noop::Off {
        return without_work(comm, stream).map(|()| None);
    }
    let comm = comm.usable()?;
    comm.check_peer(peer, "peer")?;
    let Some(bytes) = DType::from_number(datatype)?.size().checked_mul(count) else {
        return invalid(format!("count {count} is too large"));
    };
    if bytes > 0 {
        not_null(buffer, "buffer")?;
    }
    Ok(Some((comm, bytes)))
}

exports! {
    /// Sends to a rank, which must receive the same number of elements.
    fn ncclSend(sendbuff: *const c_void, count: usize, datatype: c_int, peer: c_int, comm: CommPtr, stream: Stream) {
        match point_to_point(comm, sendbuff, count, datatype, peer, stream)? {
            Some((comm, bytes)) => submit(comm, stream, Work::Send { from: sendbuff.expose_provenance(), bytes, peer }, None),
            None => Ok(()),
        }
    }

    /// Receives from a rank.
    fn ncclRecv(recvbuff: *mut c_void, count: usize, datatype: c_int, peer: c_int, comm: CommPtr, stream: Stream) {
        match point_to_point(comm, recvbuff, count, datatype, peer, stream)? {
            Some((comm, bytes)) => submit(comm, stream, Work::Receive { to: recvbuff.expose_provenance(), bytes, peer }, None),
            None => Ok(()),
        }
    }
}
