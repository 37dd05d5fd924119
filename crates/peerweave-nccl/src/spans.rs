//! Spans of calls for `tracing`, by the name `nccl`: which call, of which communicator.
//!
//! The collectives, which are counted in nanoseconds, make theirs themselves. Events inside, such as warnings of an abort, belong to the call's span.

use tracing::span::EnteredSpan;

use crate::communicator::Inner;

/// The span of a call on one communicator.
pub(crate) fn of(inner: &Inner, call: &'static str) -> EnteredSpan {
    tracing::trace_span!("nccl", call, communicator = inner.name.number, rank = inner.rank).entered()
}

/// The span of a call for several ranks of this thread, or for none yet.
pub(crate) fn of_many(call: &'static str, members: usize) -> EnteredSpan {
    tracing::trace_span!("nccl", call, members).entered()
}
