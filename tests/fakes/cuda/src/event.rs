//! Events: points in streams that others can wait for. Waits inside a capture are in
//! [`crate::capture`]. Invariant: a stream completes every recording that it has begun, even if the
//! context has failed.

use core::ffi::c_uint;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use crate::abi::{Code, CuEvent, CuStream, Out, Result};
use crate::calls::exports;
use crate::capture;
use crate::context::{Context, current};
use crate::driver::driver;
use crate::ipc::SharedEvent;
use crate::stream::{self, Run, Stream};
use crate::sync::lock;
use crate::work::Work;

const DISABLE_TIMING: c_uint = 2;
const INTERPROCESS: c_uint = 4;

/// One event.
pub(crate) struct Event {
    pub(crate) context: Arc<Context>,
    flags: c_uint,
    state: Mutex<State>,
    /// The recordings visible to other processes, for an interprocess event.
    pub(crate) shared: Option<SharedEvent>,
}

/// The state of an event.
#[derive(Clone)]
pub(crate) enum State {
    Never,
    Recorded(Arc<Recording>),
    /// Recorded in a captured stream: the capture, and the nodes before the event.
    Captured {
        capture: u64,
        nodes: Vec<usize>,
    },
}

/// One recording of an event.
#[derive(Default)]
pub(crate) struct Recording {
    done: Mutex<Option<Instant>>,
    changed: Condvar,
}

impl Recording {
    pub(crate) fn finish(&self) {
        *lock(&self.done) = Some(Instant::now());
        self.changed.notify_all();
    }

    fn time(&self) -> Option<Instant> {
        *lock(&self.done)
    }

    fn wait(&self) {
        let mut done = lock(&self.done);
        while done.is_none() {
            done = self.changed.wait(done).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Event {
    pub(crate) fn new(context: Arc<Context>, flags: c_uint, shared: Option<SharedEvent>) -> Event {
        Event { context, flags, state: Mutex::new(State::Never), shared }
    }

    pub(crate) fn state(&self) -> State {
        lock(&self.state).clone()
    }

    pub(crate) fn set_captured(&self, capture: u64, nodes: Vec<usize>) {
        *lock(&self.state) = State::Captured { capture, nodes };
    }

    /// Begins a recording, which replaces the previous one.
    pub(crate) fn begin_recording(&self) -> Arc<Recording> {
        let recording = Arc::new(Recording::default());
        *lock(&self.state) = State::Recorded(Arc::clone(&recording));
        recording
    }

    /// Waits on the calling thread for the recording that is the latest at the time of the call.
    pub(crate) fn wait_for_latest(&self) {
        if let Some(shared) = &self.shared {
            shared.wait(shared.latest());
        } else if let State::Recorded(recording) = self.state() {
            recording.wait();
        }
    }

    fn record(self: &Arc<Event>, stream: &Arc<Stream>, external: bool) -> Result {
        stream.context.check()?;
        if !Arc::ptr_eq(&self.context, &stream.context) {
            return Err(Code::INVALID_HANDLE);
        }
        capture::forbid_legacy(stream)?;
        if external && let Some(captured) = capture::add(stream, &Work::RecordEvent(Arc::clone(self))) {
            return captured.map(|_| ());
        }
        if let Some((capture, nodes)) = capture::position(stream)? {
            self.set_captured(capture, nodes);
            return Ok(());
        }
        if let Some(shared) = &self.shared {
            let (shared, number) = (shared.clone(), shared.begin());
            stream.push(Run::Always(Box::new(move |_| shared.finish(number))));
            return Ok(());
        }
        let recording = self.begin_recording();
        stream.push(Run::Always(Box::new(move |_| recording.finish())));
        Ok(())
    }

    fn make_wait(self: &Arc<Event>, stream: &Arc<Stream>, external: bool) -> Result {
        stream.context.check()?;
        capture::forbid_legacy(stream)?;
        if external && let Some(captured) = capture::add(stream, &Work::WaitEvent(Arc::clone(self))) {
            return captured.map(|_| ());
        }
        if let Some(shared) = &self.shared {
            if capture::position(stream)?.is_some() {
                return capture::refuse(stream, Code::STREAM_CAPTURE_ISOLATION);
            }
            let (shared, number) = (shared.clone(), shared.latest());
            stream.push(Run::Always(Box::new(move |_| shared.wait(number))));
            return Ok(());
        }
        match self.state() {
            State::Never => Ok(()),
            State::Captured { capture, nodes } => capture::join(stream, capture, &nodes),
            State::Recorded(recording) => {
                if capture::position(stream)?.is_some() {
                    return capture::refuse(stream, Code::STREAM_CAPTURE_ISOLATION);
                }
                stream.push(Run::Always(Box::new(move |_| recording.wait())));
                Ok(())
            }
        }
    }

    /// Returns whether the latest recording is complete; an event that was never recorded counts as
    /// complete.
    ///
    /// The driver counts the query among the calls that are unsafe during captures.
    fn query(&self) -> Result {
        self.context.check()?;
        capture::forbid_unsafe()?;
        let ready = match (&self.shared, self.state()) {
            (Some(shared), _) => shared.is_done(shared.latest()),
            (None, State::Never) => true,
            (None, State::Captured { capture, .. }) => return capture::refuse_event(capture),
            (None, State::Recorded(recording)) => recording.time().is_some(),
        };
        if ready { self.context.check() } else { Err(Code::NOT_READY) }
    }
}

fn by_handle(event: CuEvent) -> Result<Arc<Event>> {
    driver()?.events.get(event.0).ok_or(Code::INVALID_HANDLE)
}

pub(crate) fn find(event: CuEvent) -> Result<Arc<Event>> {
    by_handle(event)
}

fn elapsed(milliseconds: &Out<f32>, start: CuEvent, end: CuEvent) -> Result {
    milliseconds.required()?;
    let (start, end) = (by_handle(start)?, by_handle(end)?);
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
        event.set(CuEvent(driver()?.events.add(Event::new(context, flags, shared))))
    }

    4000 fn cuEventDestroy_v2(event: CuEvent) {
        driver()?.events.remove(event.0).map(|_| ()).ok_or(Code::INVALID_HANDLE)
    }

    2000 fn cuEventRecord(event: CuEvent, stream: CuStream) {
        by_handle(event)?.record(&stream::resolve(stream)?, false)
    }

    11010 fn cuEventRecordWithFlags(event: CuEvent, stream: CuStream, flags: c_uint) {
        if flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        by_handle(event)?.record(&stream::resolve(stream)?, flags == 1)
    }

    3020 fn cuStreamWaitEvent(stream: CuStream, event: CuEvent, flags: c_uint) {
        if flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        by_handle(event)?.make_wait(&stream::resolve(stream)?, flags == 1)
    }

    2000 fn cuEventQuery(event: CuEvent) {
        by_handle(event)?.query()
    }

    2000 fn cuEventSynchronize(event: CuEvent) {
        let event = by_handle(event)?;
        event.context.check()?;
        if event.shared.is_none()
            && let State::Captured { capture, .. } = event.state()
        {
            return capture::refuse_event(capture);
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
