//! Exchanges of the library itself among the ranks of a communicator.
//!
//! Invariant: ranks that take part in the same exchange use the same tag.

use crate::abi::{Code, Result, fail};
use crate::comm::Comm;
use crate::messages::{Bytes, Channel, wire};

/// Returns the number of the next exchange among all ranks.
pub(crate) fn next_control(comm: &Comm) -> u64 {
    let mut state = comm.state();
    state.control += 1;
    state.control
}

/// Exchanges messages with some ranks. Returns the received messages in rank order.
pub(crate) fn exchange(comm: &Comm, with: &[i32], tag: u64, own: &[u8], stop: &dyn Fn() -> bool) -> Result<Vec<Bytes>> {
    let own: Bytes = own.into();
    for rank in with {
        comm.send(*rank, Channel::Control, tag, own.clone());
    }
    // The others may need what this rank sent after its process has ended.
    wire::flush(&comm.who().addresses, stop);
    let mut all = Vec::new();
    for rank in with {
        match comm.receive_until(*rank, Channel::Control, tag, stop) {
            Some(bytes) => all.push(bytes),
            None => return fail(Code::InternalError, "initialisation was aborted"),
        }
    }
    Ok(all)
}

/// Returns all ranks.
pub(crate) fn everybody(comm: &Comm) -> Vec<i32> {
    (0..comm.who().ranks()).collect()
}
