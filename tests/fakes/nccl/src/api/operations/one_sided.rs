//! One-sided operations on windows: puts, signals and waits for signals.
//!
//! Module `groups` runs the operations. Invariant: the bounds of a put are checked before the put
//! is enqueued.

use core::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::Ordering;

use super::submit::{submit, without_work};
use crate::abi::{Code, Result, Stream, WaitSignalDesc, fail, invalid, not_null};
use crate::arithmetic::DType;
use crate::call::exports;
use crate::comm::window::{Window, of, windows};
use crate::comm::{Comm, CommPtr, counters};
use crate::groups::{OneSided, Work};
use crate::settings::{self, Noop};

fn check_signal(comm: &Comm, peer: c_int, signal: c_int, context: c_int) -> Result {
    comm.check_peer(peer, "peer")?;
    if signal < 0 || signal >= comm.config.num_rma_sig {
        return invalid(format!("invalid signal index {signal} (the communicator has {} signals)", comm.config.num_rma_sig));
    }
    if context < 0 || context >= comm.config.num_rma_ctx {
        return invalid(format!("invalid context {context} (the communicator has {} contexts)", comm.config.num_rma_ctx));
    }
    Ok(())
}

exports! {
    /// Writes into a rank's window and signals the rank.
    fn ncclPutSignal(localbuff: *const c_void, count: usize, datatype: c_int, peer: c_int, peer_win: *mut c_void,
        peer_win_offset: usize, sig_idx: c_int, ctx: c_int, flags: c_uint, comm: CommPtr, stream: Stream) {
        counters::COLLECTIVES.fetch_add(1, Ordering::Relaxed);
        if settings::get().noop != Noop::Off {
            return without_work(comm, stream);
        }
        let comm = comm.usable()?;
        check_signal(comm, peer, sig_idx, ctx)?;
        let window = of(comm, peer_win)?;
        let Some(bytes) = DType::from_number(datatype)?.size().checked_mul(count) else {
            return invalid(format!("count {count} is too large"));
        };
        let size = window.places[peer as usize].1;
        if flags != 0 || peer_win_offset.checked_add(bytes).is_none_or(|end| end > size) {
            return invalid(format!("{bytes} bytes at {peer_win_offset} are not in the peer's window of {size} bytes (flags {flags})"));
        }
        if bytes > 0 {
            not_null(localbuff, "localbuff")?;
        }
        let from = localbuff.expose_provenance();
        if !window.is_symmetric {
            return invalid("ncclPutSignal requires a window registered for RMA");
        }
        let holds = |own: &Window| {
            own.comm == window.comm && own.is_symmetric && own.base <= from && from + bytes <= own.base + own.bytes
        };
        if !windows().values().any(|own| holds(own)) {
            return invalid("the source of ncclPutSignal is in no symmetric window");
        }
        let put = OneSided::Put { from, bytes, peer, window: window.number, offset: peer_win_offset, signal: sig_idx, context: ctx };
        submit(comm, stream, Work::OneSided(put), None)
    }

    /// Signals a rank.
    fn ncclSignal(peer: c_int, sig_idx: c_int, ctx: c_int, flags: c_uint, comm: CommPtr, stream: Stream) {
        let comm = comm.usable()?;
        check_signal(comm, peer, sig_idx, ctx)?;
        if flags != 0 {
            return invalid(format!("invalid flags {flags}"));
        }
        submit(comm, stream, Work::OneSided(OneSided::Signal { peer, signal: sig_idx, context: ctx }), None)
    }

    /// Waits for signals, and consumes them.
    fn ncclWaitSignal(n_desc: c_int, signal_descs: *const WaitSignalDesc, comm: CommPtr, stream: Stream) {
        let comm = comm.usable()?;
        if n_desc < 1 {
            return invalid(format!("invalid number of signal descriptors: {n_desc}"));
        }
        not_null(signal_descs, "signalDescs")?;
        // SAFETY: the program promises this many descriptors there.
        let wanted = unsafe { std::slice::from_raw_parts(signal_descs, n_desc as usize) }.to_vec();
        for one in &wanted {
            check_signal(comm, one.peer, one.signal, one.context)?;
            if one.count < 1 {
                return fail(Code::InvalidArgument, format!("invalid number of signals to wait for: {}", one.count));
            }
        }
        submit(comm, stream, Work::OneSided(OneSided::Wait(wanted)), None)
    }
}
