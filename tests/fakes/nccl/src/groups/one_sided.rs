//! Runs one-sided operations.
//!
//! Module `comm` handles arriving operations. Invariant: an operation that does not wait for other
//! ranks sends one message.

use super::work::OneSided;
use crate::abi::{WaitSignalDesc, read};
use crate::comm::Comm;
use crate::messages::{Channel, mailbox};

/// Runs a one-sided operation; `None` if it was stopped.
pub(super) fn run(comm: &Comm, work: &OneSided) -> Option<()> {
    let mut message = Vec::new();
    let head =
        |message: &mut Vec<u8>, words: [u64; 4]| words.iter().for_each(|word| message.extend_from_slice(&word.to_le_bytes()));
    let peer = match work {
        OneSided::Put { from, bytes, peer, window, offset, signal, context } => {
            head(&mut message, [*window, *offset as u64, *signal as u64, *context as u64]);
            message.extend_from_slice(&read(*from, *bytes));
            *peer
        }
        OneSided::Signal { peer, signal, context } => {
            head(&mut message, [0, 0, *signal as u64, *context as u64]);
            *peer
        }
        OneSided::Wait(wanted) => return wait(comm, wanted),
    };
    comm.send(peer, Channel::OneSided, 0, message.into());
    Some(())
}

fn wait(comm: &Comm, wanted: &[WaitSignalDesc]) -> Option<()> {
    for one in wanted {
        let key = (one.peer, one.signal, one.context);
        let came = || {
            let mut state = comm.state();
            let count = state.signals.entry(key).or_default();
            let enough = *count >= one.count as u64;
            if enough {
                *count -= one.count as u64;
            }
            enough
        };
        let got = std::cell::Cell::new(false);
        mailbox::wait_until(
            &|| {
                got.set(came());
                got.get() || comm.stopped()
            },
            None,
        );
        if !got.get() {
            return None;
        }
    }
    Some(())
}
