//! The operations that are not known to be complete, and the resources that they use.

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
    /// The operations that are not known to be complete, oldest first.
    pub(super) operations: VecDeque<Held>,
    /// Number of operations in flight at which the driver is queried for complete operations.
    ask_at: usize,
    /// Bytes of pools that the operations use.
    pub(super) held_bytes: usize,
    /// Tickets of completed operations that have no other handle. Later operations reuse these
    /// tickets.
    free: Vec<Arc<Ticket>>,
    /// The first failure since the last synchronisation.
    pub(super) failed: Option<Error>,
}

/// Number of operations by which a stream's queue must grow after a query of the driver before the
/// next query.
const ASK_EACH: usize = 32;

/// Number of pool bytes above which every call of [`InFlight::prune`] queries the driver.
const HELD_BYTES: usize = 1 << 20;

/// Maximum number of tickets that a queue keeps for later operations.
const FREE_TICKETS: usize = 2 * ASK_EACH + 1;

/// One operation, with the resources that it uses.
pub(super) struct Held {
    pub(super) ticket: Arc<Ticket>,
    /// Bytes of pools that the operation uses.
    pub(super) bytes: usize,
    pub(super) _kept: (Keep, Uses),
}

/// Resources that an operation uses besides the memory of its operands.
#[derive(Default)]
pub(super) struct Uses {
    pub(super) _keep: Few<peerweave_driver::Keep>,
    _staged: Few<Staged>,
}

impl InFlight {
    /// Drops the oldest operation, which the stream has passed.
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

    /// Drops the oldest operations if their outcome is known. If there are many operations, or they
    /// use many bytes of pools, also queries the driver and drops operations that the stream has
    /// passed.
    pub(super) fn prune(&mut self) {
        while self.operations.front().is_some_and(|first| first.ticket.outcome.get().is_some()) {
            self.pop();
        }
        if self.operations.len() < self.ask_at.max(ASK_EACH) && self.held_bytes <= HELD_BYTES {
            return;
        }
        // A stream passes operations in order, so it has passed the first half if it has passed the
        // middle.
        let half = self.operations.len() / 2;
        if self.operations.get(half).is_some_and(|middle| middle.ticket.poll()) {
            (0..=half).for_each(|_| self.pop());
        } else if self.held_bytes > HELD_BYTES {
            self.prune_all();
        }
        self.ask_at = self.operations.len() + ASK_EACH;
    }

    /// Drops all operations that the stream has passed.
    pub(super) fn prune_all(&mut self) {
        while self.operations.front().is_some_and(|first| first.ticket.poll()) {
            self.pop();
        }
    }

    /// Drops the operations up to `last`, which the stream has passed.
    pub(super) fn prune_up_to(&mut self, last: Arc<Ticket>) {
        let count = self.operations.iter().rposition(|held| Arc::ptr_eq(&held.ticket, &last)).map_or(0, |at| at + 1);
        drop(last);
        (0..count).for_each(|_| self.pop());
    }

    /// Creates the ticket of an operation that was just enqueued, with an event recorded after the
    /// operation. On failure, also returns `made`.
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
            Arc::get_mut(&mut ticket).unwrap_or_else(|| unreachable!("peerweave-cuda bug: a free ticket has another handle"));
        if let Err(error) = unused.event.again(stream) {
            return Err((made, error));
        }
        Made { call: unused.call, team: unused.team, is_compared: unused.is_compared, source: unused.source } = made;
        Ok(ticket)
    }
}

/// The properties of an operation that its ticket stores.
pub(super) struct Made {
    pub(super) call: &'static str,
    pub(super) team: TeamName,
    pub(super) is_compared: bool,
    pub(super) source: Source,
}

/// Returns the team of an operation; the team of all PEs for operations without a team.
pub(super) fn team_of(state: &State, op: &Op) -> TeamName {
    match op {
        Op::Collective(op) => state.team_name(op.team),
        Op::PointToPoint(op) => state.team_name(op.team),
        Op::Group(ops) if !ops.is_empty() => team_of(state, &ops[0]),
        _ => state.team_name(TeamId::WORLD),
    }
}

/// Returns whether other ranks record a matching operation, so that the operations can be compared.
pub(super) fn is_compared(op: &Op) -> bool {
    matches!(op, Op::Collective(_) | Op::PointToPoint(_) | Op::Group(_))
}

/// Takes the resources of an operation from the [`Enqueue`] that enqueued the operation.
pub(super) fn uses_of(enqueue: &mut Enqueue<'_>) -> Uses {
    Uses { _keep: std::mem::take(&mut enqueue.keep), _staged: std::mem::take(&mut enqueue.staged) }
}

/// Holds the resources of an operation until the stream has completed its present work.
pub(super) fn hold_back(state: &State, stream: &Arc<CudaStream>, used: (Keep, Uses, Source)) {
    state.note_allocations(stream);
    retire(&state.context, [Arc::clone(stream)], Box::new(move || drop(used)));
}
