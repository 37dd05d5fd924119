//! Checks at intervals that the targets of one-sided operations are alive.
//!
//! A one-sided operation waits for no PE. It accesses memory that stays mapped after the target PE
//! is gone. A program may spin on such operations, for example on a lock that a dead PE owns, and
//! must still end. So after every [`CALLS_PER_CHECK`] calls of a thread, the next call checks
//! whether its target is alive.

use crate::sync::peers::Peers;
use peerweave_core::backend::TeamId;
use peerweave_core::{Error, PeerCause, TeamName};
use std::cell::Cell;

/// Number of one-sided calls that a thread makes between two checks that the target is alive. The
/// number is a prime, so that a loop of several calls does not always check the same call. A check
/// takes about 300 ns, a call at least 10 ns.
const CALLS_PER_CHECK: u32 = 1021;

thread_local! {
    /// Number of calls until the next check. Each thread has its own count, so that threads share
    /// no cache line.
    static CALLS_LEFT: Cell<u32> = const { Cell::new(CALLS_PER_CHECK) };
}

/// Counts a one-sided call of this thread. Returns `false` for the first [`CALLS_PER_CHECK`] calls
/// after a call of [`checked`]. For every later call, returns `true`: the caller must then check
/// that its target PE is alive.
#[inline]
pub(crate) fn check_is_due() -> bool {
    CALLS_LEFT.with(|left| match left.get().checked_sub(1) {
        Some(rest) => {
            left.set(rest);
            false
        }
        None => true,
    })
}

/// Restarts the count of calls until the next check of a target. Called after a check that has
/// found no failure.
pub(crate) fn checked() {
    CALLS_LEFT.with(|left| left.set(CALLS_PER_CHECK));
}

impl Peers {
    /// Returns an error if PE `target` has died or left. The error names the PE whose failure came
    /// first. One-sided calls of a thread normally run this check at intervals
    /// ([`CALLS_PER_CHECK`]). After an error, every later one-sided call of this thread runs the
    /// check, until a check finds no failure.
    #[cold]
    pub(crate) fn check_target(&self, call: &'static str, target: usize) -> Result<(), Error> {
        match self.liveness.gone(target).filter(|_| target != self.me) {
            Some(cause) => Err(self.target_gone(call, target, cause)),
            None => {
                checked();
                Ok(())
            }
        }
    }

    /// Returns an error if any PE of the job has died. `quiet` calls this function, because `quiet`
    /// completes the operations on all PEs. A PE that left causes no error: other PEs may continue
    /// without that PE.
    #[cold]
    pub(crate) fn check_targets(&self, call: &'static str) -> Result<(), Error> {
        let died = |&pe: &usize| pe != self.me && self.liveness.gone(pe) == Some(PeerCause::Died);
        match (0..self.n_pes()).find(died) {
            Some(pe) => Err(self.target_gone(call, pe, PeerCause::Died)),
            None => {
                checked();
                Ok(())
            }
        }
    }

    fn target_gone(&self, call: &'static str, target: usize, cause: PeerCause) -> Error {
        let team = TeamName { id: TeamId::WORLD, size: self.n_pes() };
        self.record_outcome(self.peer_error(call, team, target, cause, 0))
    }
}
