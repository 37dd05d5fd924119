//! Submits the work of a call to its group.

use crate::abi::{Result, Stream};
use crate::call::take_effect;
use crate::comm::{Comm, CommPtr};
use crate::groups::{Item, Operation, Work, group};

/// Submits an operation of a communicator.
pub(super) fn submit(comm: &'static Comm, stream: Stream, work: Work, event: Option<usize>) -> Result {
    let item = Item { work, effect: take_effect() };
    group::submit(Operation { comm, stream: stream.expose_provenance(), item, event })
}

/// Handles a call if the setting `NOOP` is set. On a non-blocking communicator the call is in
/// progress until a thread has processed it, as in NCCL.
pub(super) fn without_work(comm: CommPtr, stream: Stream) -> Result {
    match comm.peek().filter(|comm| !comm.config.blocking) {
        Some(_) => submit(comm.usable()?, stream, Work::Nothing, None),
        None => Ok(()),
    }
}
