//! The operations in flight of a stream, and the resources that they use. An operation is in flight
//! until this PE knows that the operation is complete.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use peerweave_core::backend::{Keep, Op, TeamId};
use peerweave_core::{Error, TeamName};
use peerweave_driver::{CudaStream, DriverError, retire};

use super::ticket::Ticket;
use crate::backend::enqueue::{Enqueue, Source};
use crate::backend::resources::{Few, Recorded, Staged};
use crate::backend::state::State;

/// The operations in flight of one stream.
#[derive(Default)]
pub(super) struct InFlight {
    /// The operations that this PE does not know to be complete, in the order in which they were
    /// enqueued.
    pub(super) operations: VecDeque<Held>,
    /// If at least this number of operations is in flight, [`Self::prune`] asks the driver which of
    /// them are complete.
    ask_at: usize,
    /// Number of bytes of temporary memory that all operations in flight use: the sum of
    /// [`Held::bytes`].
    pub(super) held_bytes: usize,
    /// Unused tickets, which later operations reuse. The operations of these tickets are complete,
    /// and no other handle of these tickets exists.
    free: Vec<Arc<Ticket>>,
    /// The first failure of an operation since the last synchronisation of the stream.
    pub(super) failed: Option<Error>,
}

/// Number of new operations after which [`InFlight::prune`] asks the driver again which operations
/// are complete.
const ASK_EACH: usize = 32;

/// Limit of the temporary memory that operations in flight use, in bytes. Above this limit, every
/// call of [`InFlight::prune`] asks the driver which operations are complete.
const HELD_BYTES: usize = 1 << 20;

/// Maximum number of unused tickets that a stream keeps for later operations.
const FREE_TICKETS: usize = 2 * ASK_EACH + 1;

/// One operation in flight, with the resources that it uses.
pub(super) struct Held {
    pub(super) ticket: Arc<Ticket>,
    /// Number of bytes of temporary memory that the operation uses: pinned memory and device memory
    /// from pools.
    pub(super) bytes: usize,
    pub(super) _kept: (Keep, Uses),
}

/// Handles that an operation in flight keeps alive, besides the owners of its operands' memory: the
/// fields `keep` and `staged` of [`Enqueue`].
#[derive(Default)]
pub(super) struct Uses {
    pub(super) _keep: Few<peerweave_driver::Keep>,
    _staged: Few<Staged>,
}

impl InFlight {
    /// Removes the oldest operation, which the stream has completed, and reads its outcome. Stores
    /// a failure in `failed` if no earlier failure is stored.
    fn pop(&mut self) {
        let Some(Held { mut ticket, bytes, _kept }) = self.operations.pop_front() else { return };
        if let Err(error) = ticket.read() {
            self.failed.get_or_insert_with(|| error.clone());
        }
        self.held_bytes -= bytes;
        if self.free.len() < FREE_TICKETS
            && let Some(unused) = Arc::get_mut(&mut ticket)
        {
            (unused.source, unused.outcome) = (Source::Copy, OnceLock::new());
            self.free.push(ticket);
        }
    }

    /// Removes the oldest operations whose outcome is known. Asks the driver about the others only
    /// if many operations are in flight, or if they use more than [`HELD_BYTES`] of temporary
    /// memory. If the older half is complete, removes this half. Otherwise, if the operations use
    /// more than [`HELD_BYTES`], removes all operations that the stream has completed.
    pub(super) fn prune(&mut self) {
        while self.operations.front().is_some_and(|first| first.ticket.outcome.get().is_some()) {
            self.pop();
        }
        if self.operations.len() < self.ask_at.max(ASK_EACH) && self.held_bytes <= HELD_BYTES {
            return;
        }
        // A stream completes operations in order. So if the operation in the middle is complete,
        // the first half is complete.
        let half = self.operations.len() / 2;
        if self.operations.get(half).is_some_and(|middle| middle.ticket.poll()) {
            (0..=half).for_each(|_| self.pop());
        } else if self.held_bytes > HELD_BYTES {
            self.prune_all();
        }
        self.ask_at = self.operations.len() + ASK_EACH;
    }

    /// Asks the driver which operations the stream has completed, and removes these operations.
    pub(super) fn prune_all(&mut self) {
        while self.operations.front().is_some_and(|first| first.ticket.poll()) {
            self.pop();
        }
    }

    /// Removes the operation of the ticket `last` and all earlier operations. The stream must have
    /// completed them.
    pub(super) fn prune_up_to(&mut self, last: Arc<Ticket>) {
        let count = self.operations.iter().rposition(|held| Arc::ptr_eq(&held.ticket, &last)).map_or(0, |at| at + 1);
        drop(last);
        (0..count).for_each(|_| self.pop());
    }

    /// Creates the ticket of the operation `made`, which was just enqueued, and records the
    /// ticket's event after the operation. If the event cannot be recorded, returns `made` and the
    /// error.
    pub(super) fn ticket(
        &mut self,
        state: &Arc<State>,
        stream: &Arc<CudaStream>,
        made: Made,
    ) -> Result<Arc<Ticket>, (Made, DriverError)> {
        let Some(mut ticket) = self.free.pop() else {
            return match Recorded::new(stream, false) {
                Ok(event) => {
                    let Made { call, team, is_compared, source } = made;
                    Ok(Arc::new(Ticket {
                        state: Arc::clone(state),
                        call,
                        team,
                        is_compared,
                        event,
                        source,
                        outcome: OnceLock::new(),
                    }))
                }
                Err(error) => Err((made, error)),
            };
        };
        let unused =
            Arc::get_mut(&mut ticket).unwrap_or_else(|| unreachable!("peerweave-cuda bug: a free ticket has a second handle"));
        if let Err(error) = unused.event.again(stream) {
            return Err((made, error));
        }
        Made { call: unused.call, team: unused.team, is_compared: unused.is_compared, source: unused.source } = made;
        Ok(ticket)
    }
}

/// The fields of a [`Ticket`] that describe the enqueued operation.
pub(super) struct Made {
    pub(super) call: &'static str,
    pub(super) team: TeamName,
    pub(super) is_compared: bool,
    pub(super) source: Source,
}

/// Returns the team of an operation, for errors. For an operation without a team, returns the team
/// of all PEs.
pub(super) fn team_of(state: &State, op: &Op) -> TeamName {
    match op {
        Op::Collective(op) => state.team_name(op.team),
        Op::PointToPoint(op) => state.team_name(op.team),
        Op::Group(ops) if !ops.is_empty() => team_of(state, &ops[0]),
        _ => state.team_name(TeamId::WORLD),
    }
}

/// Returns whether an operation is a collective, a message, or a group of such operations. PEs
/// record these operations, and compare the records to detect different calls.
pub(super) fn is_compared(op: &Op) -> bool {
    matches!(op, Op::Collective(_) | Op::PointToPoint(_) | Op::Group(_))
}

/// Takes the handles that an operation must keep alive from the [`Enqueue`] that enqueued the
/// operation.
pub(super) fn uses_of(enqueue: &mut Enqueue<'_>) -> Uses {
    Uses { _keep: std::mem::take(&mut enqueue.keep), _staged: std::mem::take(&mut enqueue.staged) }
}

/// Keeps `used`, the resources of an operation, until the stream has completed the work that was
/// enqueued before this call. The release of symmetric memory also waits for this work.
pub(super) fn hold_back(state: &State, stream: &Arc<CudaStream>, used: (Keep, Uses, Source)) {
    state.note_allocations(stream);
    retire(&state.context, [Arc::clone(stream)], Box::new(move || drop(used)));
}
