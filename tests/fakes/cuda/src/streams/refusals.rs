//! Refuses calls that are not allowed during captures, and invalidates the affected captures.

use core::cell::Cell;
use core::ffi::c_int;
use std::sync::Arc;
use std::thread;

use super::captures::{GLOBAL, RELAXED, any, check_mode, invalidate, position, with};
use super::stream::{ContextStreams, Kind, Stream};
use crate::abi::{Code, Result};
use crate::machine::context::Context;
use crate::machine::current::current;

thread_local! {
    static THREAD_MODE: Cell<c_int> = const { Cell::new(GLOBAL) };
}

/// Sets the capture mode of the calling thread, and returns the previous mode.
pub(crate) fn exchange_thread_mode(mode: c_int) -> Result<c_int> {
    check_mode(mode)?;
    Ok(THREAD_MODE.replace(mode))
}

/// Refuses an operation that a capture cannot contain, and invalidates the capture.
pub(crate) fn refuse(stream: &Arc<Stream>, code: Code) -> Result {
    invalidate(stream);
    Err(code)
}

/// Refuses to wait for, or query, an event that was recorded in a capture, and invalidates that
/// capture.
pub(crate) fn refuse_event(capture: u64) -> Result {
    with(|captures| captures.invalidate(capture));
    Err(Code::CAPTURED_EVENT)
}

/// Refuses to wait for, or query, a captured stream.
pub(crate) fn forbid_in_stream(stream: &Arc<Stream>) -> Result {
    forbid_legacy(stream)?;
    match position(stream)? {
        Some(_) => refuse(stream, Code::STREAM_CAPTURE_UNSUPPORTED),
        None => Ok(()),
    }
}

/// Refuses to wait for a context that has a captured stream.
pub(crate) fn forbid_in_context(context: &Context) -> Result {
    if !any() {
        return Ok(());
    }
    for stream in ContextStreams::of(context).live() {
        if position(&stream)?.is_some() {
            return refuse(&stream, Code::STREAM_CAPTURE_UNSUPPORTED);
        }
    }
    Ok(())
}

/// Refuses work on the legacy stream if it would wait for a captured blocking stream.
pub(crate) fn forbid_legacy(stream: &Arc<Stream>) -> Result {
    if stream.kind != Kind::Legacy || !any() {
        return Ok(());
    }
    match captured_blocking(stream)? {
        Some(other) => refuse(&other, Code::STREAM_CAPTURE_IMPLICIT),
        None => Ok(()),
    }
}

/// Returns a captured stream for which the legacy stream would wait.
pub(super) fn captured_blocking(stream: &Stream) -> Result<Option<Arc<Stream>>> {
    for other in stream.live_of_context() {
        if other.kind == Kind::Blocking && position(&other)?.is_some() {
            return Ok(Some(other));
        }
    }
    Ok(None)
}

/// Refuses calls that are unsafe during captures, by the modes of the captures and of the thread.
pub(crate) fn forbid_unsafe() -> Result {
    if !any() || THREAD_MODE.get() == RELAXED {
        return Ok(());
    }
    let (me, mode) = (thread::current().id(), THREAD_MODE.get());
    with(|captures| {
        let mut forbidden = false;
        for capture in captures.active.values_mut() {
            let mine = capture.thread == me && capture.mode != RELAXED;
            let anyones = capture.mode == GLOBAL && mode == GLOBAL;
            if mine || anyones {
                capture.invalid = true;
                forbidden = true;
            }
        }
        if forbidden { Err(Code::STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
    })
}

/// Returns the current context, for a call that has no stream argument and is unsafe during
/// captures.
pub(crate) fn outside_capture() -> Result<Arc<Context>> {
    forbid_unsafe()?;
    current()
}
