//! `tracing` spans of calls. A span has the name `nccl`, and fields for the call and its
//! communicator.
//!
//! Events inside a call, such as the warning about an abort, belong to the span of the call. A call
//! that takes only nanoseconds creates a span only if a `tracing` subscriber records the level
//! TRACE.

use tracing::span::EnteredSpan;

use crate::member::membership::Inner;

/// Enters the span of a call on one communicator. Dropping the result leaves the span.
pub(crate) fn of(inner: &Inner, call: &'static str) -> EnteredSpan {
    tracing::trace_span!("nccl", call, communicator = inner.name.number, rank = inner.rank.get()).entered()
}

/// Enters the same span as [`of`], but only if a `tracing` subscriber records the level TRACE.
/// Otherwise returns `None`, at the cost of one load. Used for calls that take only nanoseconds.
#[inline]
pub(crate) fn if_enabled(inner: &Inner, call: &'static str) -> Option<EnteredSpan> {
    is_enabled().then(|| of(inner, call))
}

/// Enters the same span as [`of_many`], but only if a `tracing` subscriber records the level TRACE.
/// Otherwise returns `None`. Used for calls that take only nanoseconds.
#[inline]
pub(crate) fn of_many_if_enabled(call: &'static str, members: usize) -> Option<EnteredSpan> {
    is_enabled().then(|| of_many(call, members))
}

#[inline]
fn is_enabled() -> bool {
    tracing::level_filters::LevelFilter::current() >= tracing::level_filters::LevelFilter::TRACE
}

/// Enters the span of a call that this thread makes for several ranks. `members` is the number of
/// these ranks. Also usable before the communicators of the ranks exist.
pub(crate) fn of_many(call: &'static str, members: usize) -> EnteredSpan {
    tracing::trace_span!("nccl", call, members).entered()
}
