//! Runs one operation, and blocks the calling thread until the operation is complete.

use std::sync::{Arc, OnceLock};

use peerweave_core::Error;
use peerweave_core::backend::{Keep, Op, Outcome, Pending};
use peerweave_driver::bind;

use super::in_flight::{hold_back, is_compared, team_of, uses_of};
use super::ticket::Ticket;
use crate::backend::enqueue::{Enqueue, Source};
use crate::backend::error::driver;
use crate::backend::ops;
use crate::backend::resources::Copier;
use crate::backend::state::{Lane, State};

/// Runs an operation on a private stream of the backend. Blocks the calling thread until the
/// operation is complete, or until the deadline.
///
/// # Safety
/// The caller meets the requirements of [`Backend::run`](peerweave_core::backend::Backend::run).
pub(crate) unsafe fn run(state: &Arc<State>, op: &Op, keep: &dyn Fn() -> Keep) -> Result<Outcome, Error> {
    let call = op.call_name();
    let gpu = state.gpu(call)?;
    let kept = keep();
    kept.device_owners(&mut |owner| owner.before(None))?;
    let Lane { stream, event } = state.take_lane(call, &gpu)?;
    bind(stream.context()).map_err(|error| driver(call, error))?;
    let mut enqueue = Enqueue::new(state, &gpu, &stream, call, Copier::Caller, false);
    // SAFETY: the memory of the host is valid until this function returns, and only this thread
    // accesses it.
    let enqueued = unsafe { ops::enqueue(&mut enqueue, op) };
    let (uses, results) = (uses_of(&mut enqueue), std::mem::take(&mut enqueue.results));
    let source = match (enqueued, event.again(&stream)) {
        (Ok(source), Ok(())) => source,
        (Ok(source), Err(error)) => {
            hold_back(state, &stream, (kept, uses, source));
            return Err(driver(call, error));
        }
        (Err(error), _) => {
            hold_back(state, &stream, (kept, uses, Source::Copy));
            return Err(error);
        }
    };
    let (team, is_compared) = (team_of(state, op), is_compared(op));
    let ticket = Ticket { state: Arc::clone(state), call, team, is_compared, event, source, outcome: OnceLock::new() };
    let outcome = ticket.wait(state.deadline);
    if !ticket.is_complete() {
        // The work still runs. So its memory stays allocated, and no other operation reuses its
        // stream.
        hold_back(state, &stream, (kept, uses, ticket.source));
        return outcome;
    }
    if outcome.is_ok() {
        for staged in results.into_iter() {
            // SAFETY: the caller's memory is valid until this function returns, and the work has
            // ended.
            unsafe { staged.empty() };
        }
    }
    drop((kept, uses));
    state.give_back(Lane { stream, event: ticket.event });
    outcome
}
