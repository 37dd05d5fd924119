//! Suspended communicators, and the memory use of a communicator.
//!
//! Invariant: a suspended communicator is refused until it is resumed.

use core::ffi::c_int;
use std::sync::atomic::Ordering;

use crate::abi::{Code, Out, fail, invalid, misuse, not_null};
use crate::call::{exports, take_effect};
use crate::comm::CommPtr;
use crate::messages::mailbox;

exports! {
    /// Frees memory of a communicator; it cannot be used until it is resumed.
    fn ncclCommSuspend(comm: CommPtr, flags: c_int) {
        let comm = comm.usable()?;
        if flags != 1 {
            return invalid(format!("invalid suspend flags {flags}"));
        }
        comm.drain();
        comm.state().suspended = true;
        Ok(())
    }

    /// Resumes a suspended communicator.
    fn ncclCommResume(comm: CommPtr) {
        let comm = comm.ready()?;
        if !std::mem::replace(&mut comm.state().suspended, false) {
            return misuse("the communicator is not suspended");
        }
        Ok(())
    }

    /// Returns the memory use of a communicator: simulated numbers that add up as NCCL's do.
    fn ncclCommMemStats(comm: CommPtr, stat: c_int, value: *mut u64) {
        let comm = comm.ready()?;
        not_null(value, "value")?;
        const CAN_BE_SUSPENDED: u64 = 4 << 20;
        const PERSISTS: u64 = 1 << 20;
        if take_effect().stuck {
            mailbox::wait_until(&|| comm.aborted.load(Ordering::Acquire), None);
            return fail(Code::InternalError, "the communicator was aborted");
        }
        let suspended = comm.state().suspended;
        Out(value).set(match stat {
            0 => CAN_BE_SUSPENDED,
            1 => u64::from(suspended),
            2 => PERSISTS,
            // Suspending does not change the total.
            3 => PERSISTS + CAN_BE_SUSPENDED,
            other => return invalid(format!("unknown statistic {other}")),
        });
        Ok(())
    }
}
