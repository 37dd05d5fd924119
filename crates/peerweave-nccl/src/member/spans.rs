//! Spans of calls for `tracing` with the name `nccl`: the call, and its communicator.
//!
//! Events inside a call, such as warnings of an abort, belong to its span. Calls that take
//! nanoseconds create a span only if a subscriber is enabled.

use tracing::span::EnteredSpan;

use crate::member::membership::Inner;

/// Returns the span of a call on one communicator.
pub(crate) fn of(inner: &Inner, call: &'static str) -> EnteredSpan {
    tracing::trace_span!("nccl", call, communicator = inner.name.number, rank = inner.rank.get()).entered()
}

/// Like [`of`], for calls that take nanoseconds: costs one load if no subscriber is enabled.
/// Creating a span would also load the state of its call site.
#[inline]
pub(crate) fn if_enabled(inner: &Inner, call: &'static str) -> Option<EnteredSpan> {
    is_enabled().then(|| of(inner, call))
}

/// Like [`of_many`], for the same calls in groups.
#[inline]
pub(crate) fn of_many_if_enabled(call: &'static str, members: usize) -> Option<EnteredSpan> {
    is_enabled().then(|| of_many(call, members))
}

#[inline]
fn is_enabled() -> bool {
    tracing::level_filters::LevelFilter::current() >= tracing::level_filters::LevelFilter::TRACE
}

/// Returns the span of a call for several ranks of this thread, which need not have communicators
/// yet.
pub(crate) fn of_many(call: &'static str, members: usize) -> EnteredSpan {
    tracing::trace_span!("nccl", call, members).entered()
}
