//! Events of other processes that change communicators: puts and signals, and the end of a process.
//!
//! Module `messages` reports the events. Invariant: the handlers are set before the first
//! communicator can receive a message.

use super::communicator::Comm;
use super::live::live;
use super::window::windows;
use crate::abi::{Code, write};
use crate::messages::post::{self, Handlers};
use crate::messages::wire::Address;
use crate::messages::{Slot, mailbox};
use crate::report::undefined;
use crate::settings;

/// Starts to handle the events.
pub(super) fn handle() {
    post::set_handlers(Handlers { one_sided: apply, process_died });
}

/// Handles a put or signal for a rank of this process.
fn apply(slot: Slot, bytes: &[u8]) {
    let word = |index: usize| u64::from_le_bytes(bytes[index * 8..index * 8 + 8].try_into().expect("a word has eight bytes"));
    let matches = |comm: &&Comm| comm.members.get().is_some_and(|members| members.id == slot.comm && members.rank == slot.to);
    let Some(comm) = live().into_iter().find(matches) else { return };
    let data = &bytes[32..];
    if !data.is_empty() {
        let all = windows();
        let found = all.values().find(|window| window.comm == comm.handle().address() && window.number == word(0));
        let Some(window) = found else { undefined("a put into a deregistered window") };
        // The sender has checked the bounds. The lock prevents the window from being deregistered
        // during the write.
        write(window.base + word(1) as usize, data);
    }
    *comm.state().signals.entry((slot.from, word(2) as i32, word(3) as i32)).or_default() += 1;
    mailbox::interrupt();
}

/// Handles the end of a process that had sent messages. Depends on the setting `DEATH`, because
/// NCCL over shared memory would not detect the end, but over a network it would.
fn process_died(address: &Address) {
    if settings::get().death_is_error {
        for comm in live() {
            if comm.members.get().is_some_and(|members| members.addresses.contains(address)) {
                comm.set_async_error(Code::RemoteError);
            }
        }
    }
}
