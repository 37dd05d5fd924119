//! Detects calls of two threads on one communicator at the same time.

use super::values::Arguments;
use crate::comm::Comm;
use crate::settings;

/// Functions that may run on a communicator at the same time as other functions.
const BESIDE_OTHERS: &[&str] = &["ncclCommAbort", "ncclCommRevoke", "ncclGetLastError"];

/// A running call that must be the only one on its communicators: NCCL does not allow two threads
/// to make such calls at the same time. Ends the process if two threads do.
pub(super) struct Alone(Vec<(&'static Comm, bool)>);

impl Alone {
    pub(super) fn new(function: &'static str, arguments: Arguments<'_>) -> Self {
        if BESIDE_OTHERS.contains(&function) || settings::get().noop != settings::Noop::Off {
            return Self(Vec::new());
        }
        // On a blocking communicator the query only reads; on a non-blocking one it frees the job
        // of the last group.
        let reads = |comm: &Comm| function == "ncclCommGetAsyncError" && comm.config.blocking;
        let comms = arguments.iter().filter_map(|(_, argument)| argument.comm()?.peek()).filter(|comm| !reads(comm));
        Self(comms.map(|comm| (comm, comm.come_alone(function))).collect())
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        for (comm, _) in self.0.iter().filter(|(_, is_first)| *is_first) {
            comm.leave();
        }
    }
}
