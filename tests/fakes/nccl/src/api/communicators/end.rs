//! Ends communicators.
//!
//! Invariant: a handle becomes invalid only after everything that runs on the communicator has
//! ended.

use core::ffi::c_int;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::runtime::needs_runtime;
use crate::abi::{Code, Result, fail, in_progress, invalid, misuse};
use crate::call::{exports, take_effect};
use crate::comm::{Comm, CommPtr};
use crate::messages::mailbox;
use crate::report::undefined;

fn destroy(comm: CommPtr) -> Result {
    if comm.is_null() {
        return Ok(());
    }
    let comm = comm.get()?;
    match comm.async_state() {
        Code::Success => {}
        Code::InProgress => return invalid("Attempt to use communicator before the previous operation returned ncclSuccess"),
        code => return fail(code, "the communicator has an asynchronous error: abort it"),
    }
    comm.drain();
    wait_for_graphs(comm);
    comm.release();
    Ok(())
}

/// Ends the process after a delay if graphs still hold operations of the communicator; NCCL waits
/// for these graphs forever.
fn wait_for_graphs(comm: &Comm) {
    let gone = || comm.persistent.load(Ordering::Acquire) == 0;
    if !mailbox::wait_until(&gone, Some(Duration::from_secs(5))) {
        undefined("a communicator ends while captured graphs still hold its operations: NCCL would wait forever");
    }
}

exports! {
    /// Waits until all launches are complete; afterwards the communicator can only be destroyed.
    fn ncclCommFinalize(comm: CommPtr) {
        needs_runtime("ncclCommFinalize");
        let comm = comm.ready()?;
        if comm.revoked.load(Ordering::Acquire) {
            return misuse("a revoked communicator cannot be finalized");
        }
        if std::mem::replace(&mut comm.state().finalized, true) {
            return invalid("the communicator has already been finalized");
        }
        let stuck = take_effect().stuck;
        let finish = move || {
            comm.drain();
            if stuck {
                mailbox::wait_until(&|| comm.aborted.load(Ordering::Acquire), None);
            }
        };
        if comm.config.blocking {
            finish();
            return Ok(());
        }
        comm.pending.fetch_add(1, Ordering::AcqRel);
        std::thread::spawn(move || {
            finish();
            comm.pending.fetch_sub(1, Ordering::AcqRel);
            mailbox::interrupt();
        });
        in_progress()
    }

    /// Destroys a communicator after all launches are complete.
    fn ncclCommDestroy(comm: CommPtr) {
        needs_runtime("ncclCommDestroy");
        destroy(comm)
    }

    /// Destroys a communicator and everything that runs on it, without waiting.
    fn ncclCommAbort(comm: CommPtr) {
        needs_runtime("ncclCommAbort");
        if comm.is_null() {
            return Ok(());
        }
        let comm = comm.get()?;
        comm.abort();
        mailbox::wait_until(&|| !comm.state().running && comm.pending.load(Ordering::Acquire) == 0, None);
        wait_for_graphs(comm);
        comm.release();
        Ok(())
    }

    /// Stops everything that runs; afterwards the communicator can only be destroyed, split or
    /// shrunk.
    fn ncclCommRevoke(comm: CommPtr, revoke_flags: c_int) {
        let comm = comm.get()?;
        if revoke_flags != 0 {
            return invalid(format!("invalid revoke flags {revoke_flags}"));
        }
        if !comm.config.blocking && comm.pending.load(Ordering::Acquire) > 0 {
            undefined("a non-blocking communicator is revoked while a call is in progress: NCCL would free it twice");
        }
        if comm.revoked.swap(true, Ordering::AcqRel) {
            return misuse("the communicator was revoked before");
        }
        mailbox::interrupt();
        if take_effect().stuck {
            mailbox::wait_until(&|| comm.aborted.load(Ordering::Acquire), None);
        }
        mailbox::wait_until(&|| !comm.state().running, None);
        Ok(())
    }
}
