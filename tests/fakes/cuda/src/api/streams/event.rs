//! Creates, destroys, records and queries events, and waits for events.

use core::ffi::c_uint;
use std::sync::Arc;

use crate::abi::{Code, CuEvent, CuStream, Out, Result};
use crate::calls::exports;
use crate::machine::current::current;
use crate::machine::driver::driver;
use crate::streams::captures::position;
use crate::streams::recording::{add, join};
use crate::streams::refusals::{forbid_legacy, forbid_unsafe, refuse, refuse_event};
use crate::streams::stream::{Run, Stream, resolve};
use crate::work::event::{EVENTS, Event, State};
use crate::work::piece::Work;
use crate::work::shared_event::SharedEvent;

const DISABLE_TIMING: c_uint = 2;
const INTERPROCESS: c_uint = 4;

fn find(event: CuEvent) -> Result<Arc<Event>> {
    driver()?;
    EVENTS.find(event.0)
}

/// Records an event in a stream, or in the capture of the stream.
fn record(event: &Arc<Event>, stream: &Arc<Stream>, external: bool) -> Result {
    stream.context.check()?;
    if !Arc::ptr_eq(&event.context, &stream.context) {
        return Err(Code::INVALID_HANDLE);
    }
    forbid_legacy(stream)?;
    if external && let Some(captured) = add(stream, &Work::RecordEvent(Arc::clone(event))) {
        return captured.map(|_| ());
    }
    if let Some((capture, nodes)) = position(stream)? {
        event.set_captured(capture, nodes);
        return Ok(());
    }
    if let Some(shared) = &event.shared {
        let (shared, number) = (shared.clone(), shared.begin());
        stream.push(Run::Always(Box::new(move |_| shared.finish(number))));
        return Ok(());
    }
    let recording = event.begin_recording();
    stream.push(Run::Always(Box::new(move |_| recording.finish())));
    Ok(())
}

/// Makes a stream wait for the latest recording of an event.
fn make_wait(event: &Arc<Event>, stream: &Arc<Stream>, external: bool) -> Result {
    stream.context.check()?;
    forbid_legacy(stream)?;
    if external && let Some(captured) = add(stream, &Work::WaitEvent(Arc::clone(event))) {
        return captured.map(|_| ());
    }
    if let Some(shared) = &event.shared {
        if position(stream)?.is_some() {
            return refuse(stream, Code::STREAM_CAPTURE_ISOLATION);
        }
        let (shared, number) = (shared.clone(), shared.latest());
        stream.push(Run::Always(Box::new(move |_| shared.wait(number))));
        return Ok(());
    }
    match event.state() {
        State::Never => Ok(()),
        State::Captured { capture, nodes } => join(stream, capture, &nodes),
        State::Recorded(recording) => {
            if position(stream)?.is_some() {
                return refuse(stream, Code::STREAM_CAPTURE_ISOLATION);
            }
            stream.push(Run::Always(Box::new(move |_| recording.wait())));
            Ok(())
        }
    }
}

/// Returns an error unless the latest recording is complete. An event that was never recorded
/// counts as complete.
///
/// As in the driver, the query is one of the calls that are unsafe during captures.
fn query(event: &Event) -> Result {
    event.context.check()?;
    forbid_unsafe()?;
    let ready = match (&event.shared, event.state()) {
        (Some(shared), _) => shared.is_done(shared.latest()),
        (None, State::Never) => true,
        (None, State::Captured { capture, .. }) => return refuse_event(capture),
        (None, State::Recorded(recording)) => recording.time().is_some(),
    };
    if ready { event.context.check() } else { Err(Code::NOT_READY) }
}

fn elapsed(milliseconds: &Out<f32>, start: CuEvent, end: CuEvent) -> Result {
    milliseconds.required()?;
    let (start, end) = (find(start)?, find(end)?);
    if (start.flags | end.flags) & DISABLE_TIMING != 0 || !Arc::ptr_eq(&start.context, &end.context) {
        return Err(Code::INVALID_HANDLE);
    }
    start.context.check()?;
    match (start.state(), end.state()) {
        (State::Recorded(start), State::Recorded(end)) => {
            let (Some(start), Some(end)) = (start.time(), end.time()) else { return Err(Code::NOT_READY) };
            let seconds = match end.checked_duration_since(start) {
                Some(forward) => forward.as_secs_f64(),
                None => -start.duration_since(end).as_secs_f64(),
            };
            milliseconds.set((seconds * 1e3) as f32)
        }
        _ => Err(Code::INVALID_HANDLE),
    }
}

exports! {
    2000 fn cuEventCreate(event: Out<CuEvent>, flags: c_uint) {
        event.required()?;
        if flags > 7 || (flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0) {
            return Err(Code::INVALID_VALUE);
        }
        let context = current()?;
        let shared = if flags & INTERPROCESS != 0 { Some(SharedEvent::create(context.device)?) } else { None };
        event.set(CuEvent(EVENTS.add(Event::new(context, flags, shared))))
    }

    4000 fn cuEventDestroy_v2(event: CuEvent) {
        driver()?;
        EVENTS.remove(event.0).map(|_| ()).ok_or(Code::INVALID_HANDLE)
    }

    2000 fn cuEventRecord(event: CuEvent, stream: CuStream) {
        record(&find(event)?, &resolve(stream)?, false)
    }

    11010 fn cuEventRecordWithFlags(event: CuEvent, stream: CuStream, flags: c_uint) {
        if flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        record(&find(event)?, &resolve(stream)?, flags == 1)
    }

    3020 fn cuStreamWaitEvent(stream: CuStream, event: CuEvent, flags: c_uint) {
        if flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        make_wait(&find(event)?, &resolve(stream)?, flags == 1)
    }

    2000 fn cuEventQuery(event: CuEvent) {
        let event = find(event)?;
        query(&event)
    }

    2000 fn cuEventSynchronize(event: CuEvent) {
        let event = find(event)?;
        event.context.check()?;
        if event.shared.is_none()
            && let State::Captured { capture, .. } = event.state()
        {
            return refuse_event(capture);
        }
        event.wait_for_latest();
        event.context.check()
    }

    2000 fn cuEventElapsedTime(milliseconds: Out<f32>, start: CuEvent, end: CuEvent) {
        elapsed(&milliseconds, start, end)
    }

    12080 fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: CuEvent, end: CuEvent) {
        elapsed(&milliseconds, start, end)
    }
}
