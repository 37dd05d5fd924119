//! Small broadcasts. They do not synchronize the ranks: the root waits for no rank, and every other
//! rank waits only for the root.
//!
//! Each rank has a few entry lines. In an entry line, the rank publishes that it has entered an
//! operation. The number of these lines limits how many operations the root can be ahead: see
//! [`Step::wait_to_enter`]. With two PEs, a broadcast of 64 B takes about half as long as it would
//! take if the root waited.
//!
//! Every rank except the root compares its call with the call of the root. The root compares
//! nothing, so it can miss a mismatch. Therefore each rank has a
//! [history](crate::sync::team::TeamState::history): a digest of its small broadcasts. The history
//! is a part of the signature of the rank's next call. If the histories of two ranks differ, the
//! next collective that synchronizes the ranks fails on all ranks with a mismatch. This collective
//! also empties the histories, so the team stays usable.
//!
//! [`Step::wait_to_enter`]: crate::sync::step::Step::wait_to_enter

use super::{Algorithm, Purpose, Run};
use crate::memory::line::{self, Entry};
use crate::sync::step::With;
use crate::sync::wait::{Limit, Stop};
use peerweave_core::backend::CollectiveKind;

impl Run<'_> {
    /// Returns whether the collective is a small broadcast. Small means at most one cache line
    /// ([`line::BYTES`] bytes). Broadcasts that the backend runs as a part of other calls do not
    /// count.
    #[inline]
    pub(super) fn is_small_broadcast(&self) -> bool {
        self.op.kind == CollectiveKind::Broadcast
            && self.op.count * self.element_bytes() <= line::BYTES
            && self.purpose == Purpose::User
    }

    /// Completes a small broadcast. Before this call, the rank has published its entry `mine`.
    /// Every rank except the root waits for the root's entry and copies the data.
    #[inline]
    pub(super) fn small_broadcast(&self, algorithm: Algorithm, mine: Entry, limit: Limit) -> Result<(), Stop> {
        let root = self.op.root.index();
        let mut operand = mine;
        if self.me != root {
            operand = self.step.entry(root, With::Nothing, &mut None, limit)?;
            if operand.signature != mine.signature {
                // The history is empty after a mismatch, as it is on ranks that wait for all ranks.
                let outcome = self.compare_calls_of(root..root + 1);
                self.step.team.set_history(0);
                outcome?;
            }
        } else if algorithm == Algorithm::BehindLine {
            self.step.own_next_operand();
        }
        self.step.own_next_entry();
        self.step.team.set_history(history_after(mine.signature));
        self.consume_root(algorithm, &operand);
        Ok(())
    }
}

/// Returns the new history of a rank after a small broadcast. The history is a digest of all small
/// broadcasts of the rank so far. `signature` is the digest of the broadcast's call, which also
/// covers the previous history.
#[inline]
pub(super) fn history_after(signature: u64) -> u64 {
    signature.rotate_left(17).wrapping_mul(0xc2b2_ae3d_27d4_eb4f)
}
