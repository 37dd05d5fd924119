//! Queries of a communicator.
//!
//! Properties for kernels are in module `device_comm`. Invariant: a result that depends on the
//! ranks is available only after they have connected.

use core::ffi::c_int;
use std::sync::atomic::Ordering;

use crate::abi::{Code, Out, not_null};
use crate::call::exports;
use crate::comm::CommPtr;

exports! {
    /// Returns the asynchronous error of a communicator, or whether an operation is pending.
    fn ncclCommGetAsyncError(comm: CommPtr, async_error: *mut c_int) {
        let comm = comm.get()?;
        not_null(async_error, "asyncError")?;
        let fewer = |questions: u32| questions.checked_sub(1);
        let is_pretended = comm.questions.fetch_update(Ordering::AcqRel, Ordering::Acquire, fewer).is_ok();
        let state = if is_pretended { Code::InProgress } else { comm.async_state() };
        Out(async_error).set(state as c_int);
        Ok(())
    }

    /// Returns the number of ranks.
    fn ncclCommCount(comm: CommPtr, count: *mut c_int) {
        let comm = comm.ready()?;
        not_null(count, "count")?;
        Out(count).set(comm.who().ranks());
        Ok(())
    }

    /// Returns the device's ordinal.
    fn ncclCommCuDevice(comm: CommPtr, device: *mut c_int) {
        let comm = comm.ready()?;
        not_null(device, "device")?;
        Out(device).set(comm.device);
        Ok(())
    }

    /// Returns this rank.
    fn ncclCommUserRank(comm: CommPtr, rank: *mut c_int) {
        let comm = comm.ready()?;
        not_null(rank, "rank")?;
        Out(rank).set(comm.who().rank);
        Ok(())
    }
}
