//! Spans of calls for `tracing`, by the name `nccl`: which call, of which communicator.
//!
//! Events inside, such as warnings of an abort, belong to the call's span. Calls that are counted
//! in nanoseconds create a span only if a subscriber is enabled.

use tracing::span::EnteredSpan;

use crate::member::membership::Inner;

/// The span of a call on one communicator.
pub(crate) fn of(inner: &Inner, call: &'static str) -> EnteredSpan {
    tracing::trace_span!("nccl", call, communicator = inner.name.number, rank = inner.rank.get()).entered()
}

/// As [`of`], for calls that are counted in nanoseconds: costs one load if no subscriber is
/// enabled. Creating a span would also load the state of its call site.
#[inline]
pub(crate) fn if_enabled(inner: &Inner, call: &'static str) -> Option<EnteredSpan> {
    is_enabled().then(|| of(inner, call))
}

/// As [`of_many`], for the same calls in groups.
#[inline]
pub(crate) fn of_many_if_enabled(call: &'static str, members: usize) -> Option<EnteredSpan> {
    is_enabled().then(|| of_many(call, members))
}

#[inline]
fn is_enabled() -> bool {
    tracing::level_filters::LevelFilter::current() >= tracing::level_filters::LevelFilter::TRACE
}

/// The span of a call for several ranks of this thread, or for none yet.
pub(crate) fn of_many(call: &'static str, members: usize) -> EnteredSpan {
    tracing::trace_span!("nccl", call, members).entered()
}
