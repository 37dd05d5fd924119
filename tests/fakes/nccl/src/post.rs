//! Sends messages: into a mailbox of this process, over a socket, or to the handler that processes
//! them immediately.
//!
//! `mailbox` implements waiting. Invariant: a message to a rank of the same process never uses a
//! socket.

use crate::abi::{Code, Result};
use crate::mailbox::{self, Bytes, Channel, Slot};
use crate::wire::{self, Address};
use crate::{bootstrap, comm, settings, window};

/// Sends a message to the process at an address, which may be this one.
pub(crate) fn send(address: &Address, slot: Slot, bytes: Bytes) -> Result {
    if wire::own()? == address {
        arrived(slot, bytes);
        Ok(())
    } else {
        wire::send(address, slot, bytes)
    }
}

/// Handles a message for this process.
pub(crate) fn arrived(slot: Slot, bytes: Bytes) {
    match slot.channel {
        Channel::Join => bootstrap::joined(slot, &bytes),
        Channel::OneSided => window::apply(slot, &bytes),
        _ => mailbox::deliver(slot, bytes),
    }
}

/// Handles the end of a process that had sent messages. NCCL over shared memory would not detect
/// it; over a network it would.
pub(crate) fn process_died(address: &Address) {
    if settings::get().death_is_error {
        for comm in comm::live() {
            if comm.members.get().is_some_and(|members| members.addresses.contains(address)) {
                comm.set_async_error(Code::RemoteError);
            }
        }
    }
}
