//! Events: points in a stream for which other streams and threads can wait. Invariant: a recording
//! that has begun becomes complete, even if the context has failed.

use core::ffi::c_uint;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use super::shared_event::SharedEvent;
use crate::abi::Code;
use crate::machine::context::Context;
use crate::sync::{lock, wait_while};
use crate::table::Table;

/// All events that are not destroyed.
pub(crate) static EVENTS: Table<Event> = Table::new(0x53, Code::INVALID_HANDLE);

/// One event.
pub(crate) struct Event {
    pub(crate) context: Arc<Context>,
    pub(crate) flags: c_uint,
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

    pub(crate) fn time(&self) -> Option<Instant> {
        *lock(&self.done)
    }

    pub(crate) fn wait(&self) {
        drop(wait_while(&self.changed, lock(&self.done), |done| done.is_none()));
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
}
