//! Sends messages: into a mailbox of this process, over a socket, or to the handler that processes
//! them immediately.
//!
//! Module `mailbox` implements waiting. Invariant: a message to a rank of the same process never
//! uses a socket.

use std::sync::OnceLock;

use super::bootstrap;
use super::mailbox::{self, Bytes, Channel, Slot};
use super::wire::{self, Address};
use crate::abi::Result;

/// The functions that handle events of other processes.
#[derive(Clone, Copy)]
pub(crate) struct Handlers {
    /// Handles a put or signal for a rank of this process.
    pub(crate) one_sided: fn(Slot, &[u8]),
    /// Handles the end of a process that had sent messages.
    pub(crate) process_died: fn(&Address),
}

static HANDLERS: OnceLock<Handlers> = OnceLock::new();

/// Sets the handlers; only the first call has an effect. A process without communicators has no
/// handlers, and no events to handle.
pub(crate) fn set_handlers(handlers: Handlers) {
    let _ = HANDLERS.set(handlers);
}

/// Sends a message to the process at an address, which may be this process.
pub(crate) fn send(address: &Address, slot: Slot, bytes: Bytes) -> Result {
    if wire::own()? == address {
        arrived(slot, bytes);
        Ok(())
    } else {
        wire::send(address, slot, bytes)
    }
}

/// Handles a message for this process.
pub(super) fn arrived(slot: Slot, bytes: Bytes) {
    match slot.channel {
        Channel::Join => bootstrap::joined(slot, &bytes),
        Channel::OneSided => {
            if let Some(handlers) = HANDLERS.get() {
                (handlers.one_sided)(slot, &bytes);
            }
        }
        _ => mailbox::deliver(slot, bytes),
    }
}

/// Handles the end of a process that had sent messages.
pub(super) fn process_died(address: &Address) {
    if let Some(handlers) = HANDLERS.get() {
        (handlers.process_died)(address);
    }
}
