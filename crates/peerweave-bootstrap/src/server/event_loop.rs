//! The poll loop of the server. [`super::board`] interprets frames, and [`super::wire`] sends and
//! receives their bytes.
//!
//! Invariant: `connections` contains exactly the connections whose sockets are open and registered.
//! When a connection of a PE is removed, [`super::board`] is notified in the same step.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mio::{Events, Interest, Poll, Token as PollToken};

use crate::error::Refusal;
use crate::server::board::{Action, Link};
use crate::server::wire::{Acceptor, Connection, Phase};
use crate::server::{Command, Inbox, ServerOptions, Shared};
use crate::wire::proto::{self, Frame, HELLO_FRAME_LEN_BYTES, ProtocolError};
use crate::wire::socket::Listener;

const LISTENER: PollToken = PollToken(0);
pub(super) const WAKER: PollToken = PollToken(1);
/// Number of the first connection. Connection `n` uses two poll tokens: `2 * n` for its socket, and
/// `2 * n + 1` for the process of its peer.
const FIRST_LINK: Link = 1;
/// Maximum time for which a closing connection stays open, so that the peer can read the last
/// frames that the server has sent.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);
/// Pause after an attempt to accept a connection has failed because the process has no free
/// descriptor.
const NO_DESCRIPTORS: Duration = Duration::from_millis(10);
/// Maximum number of connections accepted in one iteration of the loop, before the PEs, the
/// commands and the clock are checked again.
const MAX_ACCEPTS: usize = 32;
/// Maximum number of reads from one connection in one iteration of the loop.
const MAX_READS: usize = 32;
/// Maximum number of reads from a connection whose process has ended. This number of reads is
/// enough to read all bytes that a socket buffer can contain.
const MAX_LAST_READS: usize = 4096;

pub(super) struct EventLoop {
    poll: Poll,
    acceptor: Acceptor,
    shared: Arc<Shared>,
    inbox: Inbox,
    options: ServerOptions,
    n_pes: usize,
    n_joined: usize,
    connections: HashMap<Link, Connection>,
    next_link: Link,
    /// Unidentified connections in the order of their arrival. The list may also contain
    /// connections that have been identified or closed in the meantime. The loop ignores and
    /// removes these.
    unidentified: VecDeque<Link>,
    n_unidentified: usize,
    /// Connections that are closing, in the order of their deadlines.
    leaving: VecDeque<Link>,
    retry_accept_at: Option<Instant>,
    /// Whether connections may still be waiting to be accepted after the last iteration of the
    /// loop. These connections cause no new event.
    more_to_accept: bool,
    /// Connections whose data was not completely read in the last iteration of the loop. The rest
    /// of the data causes no new event.
    unfinished: Vec<Link>,
    scratch: Box<[u8]>,
}

impl EventLoop {
    pub(super) fn new(
        poll: Poll,
        listener: Listener,
        shared: Arc<Shared>,
        inbox: Inbox,
        options: ServerOptions,
        n_pes: u32,
    ) -> io::Result<Self> {
        let mut acceptor = Acceptor::open(listener)?;
        poll.registry().register(acceptor.source(), LISTENER, Interest::READABLE)?;
        Ok(Self {
            poll,
            acceptor,
            shared,
            inbox,
            options,
            n_pes: n_pes as usize,
            n_joined: 0,
            connections: HashMap::new(),
            next_link: FIRST_LINK,
            unidentified: VecDeque::new(),
            n_unidentified: 0,
            leaving: VecDeque::new(),
            retry_accept_at: None,
            more_to_accept: false,
            unfinished: Vec::new(),
            scratch: vec![0; 64 << 10].into_boxed_slice(),
        })
    }

    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(256);
        let linger = loop {
            let sleep = self.sleep();
            if let Err(error) = self.poll.poll(&mut events, sleep) {
                if error.kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                tracing::error!(%error, "the rendezvous server stops, because polling failed");
                break Duration::ZERO;
            }
            let mut has_commands = false;
            let mut accepts = self.more_to_accept;
            for link in std::mem::take(&mut self.unfinished) {
                self.read_and_write(link, true);
            }
            for event in &events {
                match event.token() {
                    // New connections are accepted after the events of joined PEs have been
                    // handled.
                    LISTENER => accepts = true,
                    WAKER => has_commands = true,
                    PollToken(token) => {
                        let link = (token / 2) as Link;
                        if token % 2 == 1 {
                            self.process_ended(link);
                        } else {
                            self.read_and_write(link, event.is_readable() || event.is_read_closed() || event.is_error());
                        }
                    }
                }
            }
            if has_commands && let Some(linger) = self.run_commands() {
                break linger;
            }
            if accepts {
                self.accept_pending();
            }
            self.check_deadlines();
        };
        self.finish(linger, &mut events);
        self.shared.ended.store(true, Ordering::Release);
    }

    /// Returns the maximum time for which the loop may sleep without missing a deadline. Returns
    /// `None` if there is no deadline.
    fn sleep(&mut self) -> Option<Duration> {
        if self.more_to_accept || !self.unfinished.is_empty() {
            return Some(Duration::ZERO);
        }
        // Removes connections that were identified or closed since the last iteration. The front is
        // then the connection that expires next.
        while let Some(link) = self.unidentified.front() {
            match self.connections.get(link) {
                Some(Connection { phase: Phase::Unidentified(_), .. }) => break,
                _ => self.unidentified.pop_front(),
            };
        }
        let due = |link: Option<&Link>| match self.connections.get(link?)?.phase {
            Phase::Unidentified(by) | Phase::Closing(by) => Some(by),
            Phase::Pe(_) => None,
        };
        let next =
            [due(self.unidentified.front()), due(self.leaving.front()), self.retry_accept_at].into_iter().flatten().min()?;
        // Rounded up, because the system's polling counts whole milliseconds. Without rounding, the
        // loop would spin during the last millisecond.
        Some(next.saturating_duration_since(Instant::now()) + Duration::from_millis(1))
    }

    fn check_deadlines(&mut self) {
        let now = Instant::now();
        while let Some(link) = self.unidentified.front().copied() {
            match self.connections.get(&link).map(|connection| &connection.phase) {
                Some(Phase::Unidentified(by)) if *by > now => break,
                Some(Phase::Unidentified(_)) => self.drop_connection(link, "the connection sent no hello within the time limit"),
                _ => {}
            }
            self.unidentified.pop_front();
        }
        while let Some(link) = self.leaving.front().copied() {
            match self.connections.get(&link).map(|connection| &connection.phase) {
                Some(Phase::Closing(by)) if *by > now => break,
                Some(_) => self.remove(link),
                None => {}
            }
            self.leaving.pop_front();
        }
        if self.retry_accept_at.is_some_and(|at| at <= now) {
            self.retry_accept_at = None;
            self.accept_pending();
        }
    }

    /// Accepts pending connections, at most [`MAX_ACCEPTS`].
    fn accept_pending(&mut self) {
        self.more_to_accept = false;
        for _ in 0..MAX_ACCEPTS {
            match self.acceptor.accept() {
                Ok(Some((pipe, pid))) => {
                    let hello_by = Instant::now() + self.options.hello_within;
                    self.admit(Connection::new(pipe, pid, hello_by));
                }
                Ok(None) => self.count_dropped("the peer belongs to another user"),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset => {}
                    // The most likely cause is that no descriptor is free. Drop a connection, and
                    // try again later, because there will be no new event.
                    _ => {
                        tracing::warn!(%error, "the rendezvous server cannot accept a connection");
                        self.drop_oldest_unidentified();
                        self.retry_accept_at = Some(Instant::now() + NO_DESCRIPTORS);
                        return;
                    }
                },
            }
        }
        self.more_to_accept = true;
    }

    fn admit(&mut self, mut connection: Connection) {
        if self.n_unidentified >= self.options.max_unidentified + self.n_pes.saturating_sub(self.n_joined) {
            self.drop_oldest_unidentified();
        }
        let link = self.next_link;
        self.next_link += 1;
        if let Err(error) = connection.pipe.register(self.poll.registry(), PollToken(2 * link as usize)) {
            tracing::warn!(%error, "the rendezvous server cannot watch a connection");
            return;
        }
        self.connections.insert(link, connection);
        self.unidentified.push_back(link);
        self.n_unidentified += 1;
        // The hello of a local PE has usually arrived already.
        self.read_and_write(link, true);
    }

    fn drop_oldest_unidentified(&mut self) {
        while let Some(link) = self.unidentified.pop_front() {
            if matches!(self.connections.get(&link), Some(Connection { phase: Phase::Unidentified(_), .. })) {
                return self.drop_connection(link, "too many connections have sent no hello, and this connection is the oldest");
            }
        }
    }

    /// Reads from a connection if `readable` is true, then sends the pending data. Does not block.
    fn read_and_write(&mut self, link: Link, readable: bool) {
        if readable {
            self.read(link, MAX_READS);
        }
        self.flush(link);
    }

    fn read(&mut self, link: Link, limit: usize) {
        for _ in 0..limit {
            let Some(connection) = self.connections.get_mut(&link) else { return };
            let room = match connection.phase {
                Phase::Unidentified(_) => HELLO_FRAME_LEN_BYTES - connection.inbox.len(),
                Phase::Pe(_) | Phase::Closing(_) => self.scratch.len(),
            };
            let scratch = &mut self.scratch[..room];
            match connection.pipe.read(scratch) {
                Ok(None) => return,
                Ok(Some(0)) => return self.remove(link),
                Err(error) => {
                    tracing::debug!(%error, link, "a connection to the rendezvous server failed");
                    return self.remove(link);
                }
                Ok(Some(len_bytes)) => {
                    if !matches!(connection.phase, Phase::Closing(_)) {
                        connection.inbox.extend_from_slice(&scratch[..len_bytes]);
                        self.decode(link);
                    }
                }
            }
        }
        self.unfinished.push(link);
    }

    /// Decodes every complete frame of a connection's inbox and passes it to the state machine
    /// [`super::board`].
    fn decode(&mut self, link: Link) {
        let mut used = 0;
        let mut out = Vec::new();
        loop {
            let Some(connection) = self.connections.get_mut(&link) else { return };
            let frame = match proto::decode(&connection.inbox[used..]) {
                Ok(Some((frame, len_bytes))) => {
                    used += len_bytes;
                    frame
                }
                Ok(None) => {
                    // A hello has exactly this length, so the data can never become a valid hello.
                    if matches!(connection.phase, Phase::Unidentified(_)) && connection.inbox.len() >= HELLO_FRAME_LEN_BYTES {
                        self.misbehaved(link, ProtocolError::OutOfPlace { kind: "long" });
                    } else {
                        connection.inbox.drain(..used);
                    }
                    return;
                }
                Err(error) => return self.misbehaved(link, error),
            };
            match connection.phase {
                Phase::Closing(_) => return,
                Phase::Unidentified(_) => {
                    let Frame::Hello(hello) = frame else {
                        return self.misbehaved(link, ProtocolError::OutOfPlace { kind: frame.kind() });
                    };
                    connection.phase = Phase::Pe(hello.pe);
                    let answer = self.shared.board().hello(link, &hello, &mut out);
                    self.n_unidentified -= 1;
                    match answer {
                        Ok(()) => self.seated(link, hello.pe),
                        Err(reason) => {
                            self.count_dropped(&format!("PE {}: {reason}", hello.pe));
                            return self.refuse(link, reason);
                        }
                    }
                }
                Phase::Pe(pe) => {
                    let answer = self.shared.board().frame(pe, frame, &mut out);
                    if let Err(error) = answer {
                        return self.misbehaved(link, error);
                    }
                }
            }
            self.perform(std::mem::take(&mut out));
        }
    }

    fn seated(&mut self, link: Link, pe: u32) {
        self.n_joined += 1;
        tracing::debug!(pe, n_joined = self.n_joined, n_pes = self.n_pes, "a PE has joined");
        #[cfg(target_os = "linux")]
        if let Some(connection) = self.connections.get_mut(&link) {
            connection.process = watch(self.poll.registry(), link, connection.pid);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = link;
    }

    fn process_ended(&mut self, link: Link) {
        // The last frames of the process may not have been read.
        self.read(link, MAX_LAST_READS);
        if let Some(connection) = self.connections.get(&link) {
            tracing::debug!(
                pid = connection.pid,
                "the process of a PE has ended, but another process keeps the PE's socket open"
            );
            self.remove(link);
        }
    }

    fn misbehaved(&mut self, link: Link, error: ProtocolError) {
        match self.connections.get(&link).map(|connection| &connection.phase) {
            Some(Phase::Pe(pe)) => {
                tracing::warn!(pe, %error, "a PE sent invalid data; its connection is closed");
                self.remove(link);
            }
            Some(Phase::Unidentified(_)) if matches!(error, ProtocolError::Version { .. }) => {
                self.n_unidentified -= 1;
                self.count_dropped(&error.to_string());
                self.refuse(link, Refusal::Version);
            }
            _ => self.drop_connection(link, &error.to_string()),
        }
    }

    /// Sends the reason why a hello is refused, and closes the connection.
    fn refuse(&mut self, link: Link, reason: Refusal) {
        let refused = Frame::Refused { reason }.to_bytes().into();
        self.perform(vec![Action::Send(link, refused), Action::Close(link)]);
    }

    fn drop_connection(&mut self, link: Link, why: &str) {
        if self.connections.contains_key(&link) {
            self.count_dropped(why);
            self.remove(link);
        }
    }

    fn count_dropped(&self, why: &str) {
        self.shared.dropped_connections.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(why, "the rendezvous server dropped a connection");
    }

    /// Executes actions that [`super::board`] returned: sends frames, and closes connections. If a
    /// connection fails, its PE is lost. In this case, also executes the actions that
    /// [`super::board`] returns for the loss.
    fn perform(&mut self, mut out: Vec<Action>) {
        let mut touched: Vec<Link> = Vec::new();
        while !out.is_empty() {
            for action in out.drain(..) {
                let (link, bytes) = match action {
                    Action::Send(link, bytes) => (link, Some(bytes)),
                    Action::Close(link) => (link, None),
                };
                let Some(connection) = self.connections.get_mut(&link) else { continue };
                match bytes {
                    Some(bytes) => connection.outbox.push(bytes),
                    None => {
                        connection.phase = Phase::Closing(Instant::now() + CLOSE_TIMEOUT);
                        self.leaving.push_back(link);
                    }
                }
                touched.push(link);
            }
            touched.sort_unstable();
            touched.dedup();
            for link in touched.drain(..) {
                if !self.sends(link) {
                    self.close(link, &mut out);
                }
            }
        }
    }

    fn flush(&mut self, link: Link) {
        if !self.sends(link) {
            self.remove(link);
        }
    }

    /// Sends pending data without blocking. Returns `false` if the connection must be closed.
    fn sends(&mut self, link: Link) -> bool {
        let Some(connection) = self.connections.get_mut(&link) else { return true };
        let sent = connection.outbox.flush(&mut connection.pipe).is_ok();
        let reads = connection.outbox.own_len_bytes() <= self.options.max_unread_bytes;
        let stays = !(matches!(connection.phase, Phase::Closing(_)) && connection.outbox.is_empty());
        sent && reads && stays
    }

    fn remove(&mut self, link: Link) {
        let mut out = Vec::new();
        self.close(link, &mut out);
        self.perform(out);
    }

    /// Closes a connection. If the connection belonged to a PE that had not left, the PE is lost.
    fn close(&mut self, link: Link, out: &mut Vec<Action>) {
        let Some(mut connection) = self.connections.remove(&link) else { return };
        // The descriptors are unregistered explicitly, because a process forked from this process
        // may have copies of the descriptors. The copies would still cause events.
        connection.unregister(self.poll.registry());
        match connection.phase {
            Phase::Unidentified(_) => self.n_unidentified -= 1,
            Phase::Closing(_) => {}
            Phase::Pe(pe) => {
                if let Some(fault) = self.shared.board().closed(pe, out) {
                    tracing::info!(pe, why = %fault.loss(), "a PE is lost");
                }
            }
        }
    }

    /// Executes the commands that have arrived. If a command stops the server, returns the maximum
    /// time for which the server may still write pending answers to the sockets.
    fn run_commands(&mut self) -> Option<Duration> {
        let mut end = None;
        let mut out = Vec::new();
        while let Ok(command) = self.inbox.try_recv() {
            match command {
                Command::ReportLost(pe, why) => self.shared.board().report_lost(pe.get(), &why, &mut out),
                Command::Sync(answer) => {
                    // Sending fails if the receiver has timed out, which is harmless.
                    let _ = answer.send(());
                }
                Command::End { linger } => end = Some(linger),
            }
        }
        self.perform(out);
        end
    }

    /// Handles frames that have already arrived, and then fails all pending requests. Waits up to
    /// `linger` until the answers have been written to the sockets.
    fn finish(&mut self, linger: Duration, events: &mut Events) {
        // Frames that were sent before the end are still handled. For example, PE 0 may just have
        // given up, and the other PEs need the reason. Connections of PEs in this process are read
        // last. If such a PE ended because another PE was lost, the loss of the other PE must be
        // recorded first.
        let mut links: Vec<Link> = self.connections.keys().copied().collect();
        let own = Some(std::process::id());
        links.sort_by_key(|link| self.connections.get(link).is_some_and(|connection| connection.pid == own));
        links.into_iter().for_each(|link| self.read_and_write(link, true));
        let mut out = Vec::new();
        self.shared.board().end(&mut out);
        self.perform(out);
        let until = Instant::now() + linger;
        while self.connections.values().any(|connection| !connection.outbox.is_empty()) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.poll.poll(events, Some(left)).is_err() {
                break;
            }
            let links: Vec<Link> = self.connections.keys().copied().collect();
            links.into_iter().for_each(|link| self.flush(link));
        }
    }
}

/// Watches the process of a PE by a process descriptor. The end of the connection is not enough,
/// because a forked child may keep the socket open after the death of the process.
#[cfg(target_os = "linux")]
fn watch(registry: &mio::Registry, link: Link, pid: Option<u32>) -> Option<std::os::fd::OwnedFd> {
    use std::os::fd::AsRawFd;

    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    // A PE in the server's own process ends with the server, so it needs no watch. Process ID 0
    // means a process of another PID namespace.
    let pid = pid.filter(|pid| *pid != 0 && *pid != std::process::id())?;
    let watched = pidfd_open(Pid::from_raw(pid.cast_signed())?, PidfdFlags::empty()).and_then(|process| {
        let token = PollToken(2 * link as usize + 1);
        let result = registry.register(&mut mio::unix::SourceFd(&process.as_raw_fd()), token, Interest::READABLE);
        result.map(|()| process).map_err(|_| rustix::io::Errno::INVAL)
    });
    // Old kernels and some sandboxes do not support this call. In that case the end of the
    // connection shows that the process has ended.
    watched.inspect_err(|error| tracing::debug!(pid, %error, "the process of a PE cannot be watched")).ok()
}
