//! A PE's connection to the server, shared by the threads of its process.
//!
//! This module matches answers to requests, and [`super`] interprets the answers. There is no
//! reader thread. One of the waiting threads reads for all of them (`reading`). When this thread
//! has received its own answer, another waiting thread continues to read.
//!
//! Invariants:
//! - [1] A pending request has an entry in `State::slots`. Frames for a request without an entry
//!   are dropped.
//! - [2] While `State::reading` is set, exactly one thread reads from the stream, so bytes are
//!   appended in order.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::BootstrapError;
use crate::job::endpoint::Endpoint;
use crate::wire::proto::{self, Fault, Frame, Hello, JOIN_REQUEST, ProtocolError, ROUND_BIT};
use crate::wire::socket::{Stream, is_time_over};

/// Outcome of a request.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The request is complete. Contains the blobs if the request was an exchange.
    Done(Vec<Vec<u8>>),
    Value(Vec<u8>),
    Absent,
    /// The deadline passed. Contains the PEs that were missing.
    Late(Vec<u32>),
    Failed(Fault),
    /// The connection closed before the answer.
    Closed(Closed),
}

/// The reason why a connection closed.
#[derive(Clone, Debug)]
pub(crate) enum Closed {
    /// The server closed the connection or died.
    ByServer,
    /// Sending or receiving failed in this process, or the data was invalid.
    Broken(BootstrapError),
}

/// The reason why [`Connection::wait_for_abort`] returned although no PE has ended the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotAborted {
    Late,
    Closed,
}

pub(crate) struct Connection {
    stream: Stream,
    /// Lock that a thread holds while it writes a frame.
    writer: Mutex<()>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    slots: HashMap<u64, Slot>,
    closed: Option<Closed>,
    /// Losses of PEs, in the order in which the server reported them. The server reports each loss
    /// without a request. If the server dies later, a pending request fails with the first loss.
    lost: Vec<Fault>,
    /// The PE that has ended the job, with its exit code.
    aborted: Option<(u32, u8)>,
    reading: bool,
    /// Bytes that were read but not yet decoded.
    inbox: Vec<u8>,
    /// Buffer into which the reading thread receives bytes, before they are added to `inbox`.
    scratch: Vec<u8>,
    next_request: u64,
    next_round: u64,
}

#[derive(Default)]
struct Slot {
    parts: Vec<Vec<u8>>,
    answer: Option<Answer>,
}

/// Outcome of an attempt to join.
pub(crate) enum Attempt {
    Joined(Arc<Connection>),
    /// No server answered, or the server closed the connection without an answer. The caller should
    /// try again.
    Again(io::Error),
}

/// Additional time for which this PE waits after a deadline. In this time, the server can still
/// name the missing PEs.
const GRACE: Duration = Duration::from_secs(1);

impl Connection {
    /// Connects, sends a hello, and waits until the server accepts the hello. In the returned
    /// connection, the answer to [`JOIN_REQUEST`] is still pending.
    pub(crate) fn open(endpoint: &Endpoint, hello: &Hello, deadline: Instant) -> Result<Attempt, BootstrapError> {
        let stream = match Stream::connect(endpoint, deadline) {
            Ok(stream) => stream,
            Err(error) if is_final(&error) => return Err(BootstrapError::io_at("connect", endpoint, &error)),
            Err(error) => return Ok(Attempt::Again(error)),
        };
        if let Err(error) = stream.write_all_by(&Frame::Hello(*hello).to_bytes(), deadline) {
            return Ok(Attempt::Again(error));
        }
        let state = State {
            slots: HashMap::from([(JOIN_REQUEST, Slot::default())]),
            closed: None,
            lost: Vec::new(),
            aborted: None,
            reading: false,
            inbox: Vec::new(),
            scratch: vec![0; 64 << 10],
            next_request: JOIN_REQUEST + 1,
            next_round: 0,
        };
        let connection = Self { stream, writer: Mutex::new(()), state: Mutex::new(state), changed: Condvar::new() };
        // A server of this crate answers a hello without waiting for other PEs.
        let mut inbox = Vec::new();
        let mut buffer = [0; 256];
        loop {
            match proto::decode(&inbox).map_err(|source| BootstrapError::Protocol { call: "join", source })? {
                Some((Frame::Welcome, used)) => {
                    inbox.drain(..used);
                    break;
                }
                Some((Frame::Refused { reason }, _)) => {
                    let endpoint = endpoint.to_string();
                    return Err(BootstrapError::Refused { endpoint, pe: hello.pe.into(), reason });
                }
                Some((frame, _)) => {
                    let source = ProtocolError::OutOfPlace { kind: frame.kind() };
                    return Err(BootstrapError::Protocol { call: "join", source });
                }
                None => {}
            }
            match connection.stream.read_by(&mut buffer, deadline) {
                Ok(0) => return Ok(Attempt::Again(io::ErrorKind::UnexpectedEof.into())),
                Ok(len_bytes) => inbox.extend_from_slice(&buffer[..len_bytes]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Ok(Attempt::Again(error)),
            }
        }
        {
            let mut state = connection.lock();
            state.inbox = inbox;
            state.dispatch();
        }
        Ok(Attempt::Joined(Arc::new(connection)))
    }

    /// Returns an ID for the next request that is not collective.
    pub(crate) fn next_request(&self) -> u64 {
        let mut state = self.lock();
        state.next_request += 1;
        state.next_request - 1
    }

    /// Returns the ID of the next collective request: the number of the call, with [`ROUND_BIT`]
    /// set.
    pub(crate) fn next_round(&self) -> u64 {
        let mut state = self.lock();
        state.next_round += 1;
        (state.next_round - 1) | ROUND_BIT
    }

    /// Sends a request and waits for its outcome until `deadline`. At the deadline, waits up to
    /// [`GRACE`] longer for the list of missing PEs.
    pub(crate) fn request(&self, request: u64, frame: &Frame, deadline: Instant) -> Answer {
        self.lock().slots.insert(request, Slot::default());
        // If sending fails, the connection is closed, but earlier frames of the server are still
        // read.
        self.send(frame, deadline);
        self.wait(request, deadline)
    }

    /// Sends a request that the server answers without waiting for other PEs. Waits until
    /// `deadline` for the outcome.
    pub(crate) fn request_of_server(&self, request: u64, frame: &Frame, deadline: Instant) -> Answer {
        self.lock().slots.insert(request, Slot::default());
        self.send(frame, deadline);
        self.wait_with(request, deadline, Duration::ZERO)
    }

    /// Sends a frame without waiting for an answer.
    pub(crate) fn send_only(&self, frame: &Frame, deadline: Instant) {
        self.send(frame, deadline);
    }

    /// Waits until `deadline` for the outcome of a request that has been sent. At the deadline,
    /// waits up to [`GRACE`] longer for the list of missing PEs.
    pub(crate) fn wait(&self, request: u64, deadline: Instant) -> Answer {
        self.wait_with(request, deadline, GRACE)
    }

    /// Waits until `deadline` for the outcome of a request. If there is no outcome by then and
    /// `grace` is not zero, cancels the request, and waits up to `grace` for the list of missing
    /// PEs.
    fn wait_with(&self, request: u64, deadline: Instant, grace: Duration) -> Answer {
        if let Some(answer) = self.wait_until(request, deadline) {
            return answer;
        }
        if !grace.is_zero() {
            let until = Instant::now() + grace;
            self.send(&Frame::Cancel { request }, until);
            if let Some(answer) = self.wait_until(request, until) {
                return answer;
            }
        }
        self.lock().slots.remove(&request);
        Answer::Late(Vec::new())
    }

    /// Waits until `until` for the outcome of a request. Returns `None` if there is no outcome by
    /// then. The request then stays pending.
    pub(crate) fn wait_until(&self, request: u64, until: Instant) -> Option<Answer> {
        self.read_until(until, |state| {
            if let Some(answer) = state.slots.get_mut(&request).and_then(|slot| slot.answer.take()) {
                state.slots.remove(&request);
                return Some(answer);
            }
            let closed = state.closed.clone()?;
            state.slots.remove(&request);
            Some(match (closed, state.lost.first()) {
                // The server died after it had reported the loss, perhaps because of the loss.
                (Closed::ByServer, Some(fault)) => Answer::Failed(fault.clone()),
                (closed, _) => Answer::Closed(closed),
            })
        })
    }

    /// Waits until a PE has ended the job, and returns that PE and its exit code.
    ///
    /// # Errors
    /// [`NotAborted::Late`] at `until`, or [`NotAborted::Closed`] if the connection has closed.
    pub(crate) fn wait_for_abort(&self, until: Instant) -> Result<(u32, u8), NotAborted> {
        let look = |state: &mut State| match (state.aborted, &state.closed) {
            (Some(aborted), _) => Some(Ok(aborted)),
            (None, Some(_)) => Some(Err(NotAborted::Closed)),
            (None, None) => None,
        };
        self.read_until(until, look).unwrap_or(Err(NotAborted::Late))
    }

    /// Returns whether a PE has ended the job, according to the frames read until now. Does not
    /// wait.
    pub(crate) fn is_aborted(&self) -> bool {
        self.lock().aborted.is_some()
    }

    /// Shuts down the connection. Threads that wait on the connection return.
    pub(crate) fn shut_down(&self) {
        self.stream.shut_down();
    }

    /// Waits until `look` returns a value, but at most until the time `until`. During the wait,
    /// reads frames unless another thread is reading.
    fn read_until<T>(&self, until: Instant, mut look: impl FnMut(&mut State) -> Option<T>) -> Option<T> {
        let mut state = self.lock();
        loop {
            if let Some(found) = look(&mut state) {
                return Some(found);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            } else if state.reading {
                state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            } else {
                state.reading = true;
                let mut scratch = std::mem::take(&mut state.scratch);
                drop(state);
                let result = self.stream.read_by(&mut scratch, until);
                state = self.lock();
                state.take_in(&scratch, result);
                state.scratch = scratch;
                state.reading = false;
                self.changed.notify_all();
            }
        }
    }

    /// Returns the losses that the server has reported, in the order of the reports, and whether
    /// the server has died. Does not wait.
    pub(crate) fn losses(&self) -> (Vec<Fault>, bool) {
        let mut state = self.lock();
        // If another thread is reading, that thread records the losses.
        if !state.reading && state.closed.is_none() {
            let mut scratch = std::mem::take(&mut state.scratch);
            let result = self.stream.read_now(&mut scratch);
            state.take_in(&scratch, result);
            state.scratch = scratch;
            self.changed.notify_all();
        }
        (state.lost.clone(), matches!(state.closed, Some(Closed::ByServer)))
    }

    fn send(&self, frame: &Frame, deadline: Instant) {
        let bytes = frame.to_bytes();
        let result = {
            let _writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
            self.stream.write_all_by(&bytes, deadline)
        };
        // If the server has died, the reading thread reads the last frames of the server and then
        // detects the end of the connection. After any other failure the stream may end in a
        // partial frame, so nothing more can be sent.
        if let Err(error) = result
            && !is_gone(&error)
        {
            let mut state = self.lock();
            state.closed.get_or_insert(Closed::Broken(BootstrapError::io("send", &error)));
            self.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn take_in(&mut self, scratch: &[u8], result: io::Result<usize>) {
        match result {
            Ok(0) => self.closed = Some(Closed::ByServer),
            Ok(len_bytes) => {
                self.inbox.extend_from_slice(&scratch[..len_bytes]);
                self.dispatch();
            }
            Err(error) if is_time_over(&error) || error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if is_gone(&error) => self.closed = Some(Closed::ByServer),
            Err(error) => self.closed = Some(Closed::Broken(BootstrapError::io("receive", &error))),
        }
    }

    /// Decodes and handles every complete frame of the inbox.
    fn dispatch(&mut self) {
        let mut used = 0;
        loop {
            match proto::decode(&self.inbox[used..]) {
                Ok(None) => break,
                Ok(Some((frame, len_bytes))) => {
                    used += len_bytes;
                    self.answer(frame);
                }
                Err(source) => {
                    self.closed = Some(Closed::Broken(BootstrapError::Protocol { call: "receive", source }));
                    break;
                }
            }
        }
        self.inbox.drain(..used);
    }

    fn answer(&mut self, frame: Frame) {
        let (request, answer) = match frame {
            Frame::Part { request, blob } => {
                if let Some(slot) = self.slots.get_mut(&request) {
                    slot.parts.push(blob);
                }
                return;
            }
            Frame::Done { request } => {
                let parts = self.slots.get_mut(&request).map(|slot| std::mem::take(&mut slot.parts));
                (request, Answer::Done(parts.unwrap_or_default()))
            }
            Frame::Value { request, value } => (request, Answer::Value(value)),
            Frame::Absent { request } => (request, Answer::Absent),
            Frame::Late { request, missing } => (request, Answer::Late(missing)),
            Frame::Failed { request, fault } => (request, Answer::Failed(fault)),
            Frame::Lost { fault } => {
                self.lost.push(fault);
                return;
            }
            Frame::Aborted { pe, code } => {
                self.aborted.get_or_insert((pe, code));
                return;
            }
            other => {
                let source = ProtocolError::OutOfPlace { kind: other.kind() };
                self.closed = Some(Closed::Broken(BootstrapError::Protocol { call: "receive", source }));
                return;
            }
        };
        if let Some(slot) = self.slots.get_mut(&request) {
            slot.answer.get_or_insert(answer);
        }
    }
}

/// Returns whether the error means that the peer has closed the connection.
fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | UnexpectedEof)
}

/// Returns whether a further attempt to connect would be useless, because it would fail with the
/// same error.
fn is_final(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, PermissionDenied, Unsupported};
    matches!(error.kind(), InvalidInput | PermissionDenied | Unsupported)
}
