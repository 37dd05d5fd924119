//! Non-blocking sockets of the server, and the buffers of a connection. [`super::event_loop`]
//! decides when to read, write and close.
//!
//! Invariant: the bytes of an `Outbox` are sent exactly once, in the order in which they were
//! pushed.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Instant;

use mio::event::Source;
use mio::{Interest, Registry, Token as PollToken, net};

use crate::wire::socket::{self, Listener};

pub(super) enum Acceptor {
    #[cfg(target_os = "linux")]
    Unix(net::UnixListener),
    Tcp(net::TcpListener),
}

pub(super) enum Pipe {
    #[cfg(target_os = "linux")]
    Unix(net::UnixStream),
    Tcp(net::TcpStream),
}

impl Acceptor {
    pub(super) fn open(listener: Listener) -> io::Result<Self> {
        match listener {
            #[cfg(target_os = "linux")]
            Listener::Unix(listener) => {
                listener.set_nonblocking(true)?;
                Ok(Self::Unix(net::UnixListener::from_std(listener)))
            }
            Listener::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                Ok(Self::Tcp(net::TcpListener::from_std(listener)))
            }
        }
    }

    /// Accepts the next connection. Returns the connection, and the process ID of the peer if the
    /// system reports it. Closes a connection of another user, and returns `None` for it.
    pub(super) fn accept(&self) -> io::Result<Option<(Pipe, Option<u32>)>> {
        match self {
            #[cfg(target_os = "linux")]
            Self::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                let peer = socket::may_speak(&stream)?;
                Ok(peer.map(|pid| (Pipe::Unix(stream), Some(pid))))
            }
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                #[cfg(target_os = "linux")]
                socket::tune_tcp(&stream)?;
                #[cfg(not(target_os = "linux"))]
                stream.set_nodelay(true)?;
                Ok(Some((Pipe::Tcp(stream), None)))
            }
        }
    }

    pub(super) fn source(&mut self) -> &mut dyn Source {
        match self {
            #[cfg(target_os = "linux")]
            Self::Unix(listener) => listener,
            Self::Tcp(listener) => listener,
        }
    }
}

impl Pipe {
    pub(super) fn register(&mut self, registry: &Registry, token: PollToken) -> io::Result<()> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        match self {
            #[cfg(target_os = "linux")]
            Self::Unix(stream) => registry.register(stream, token, interest),
            Self::Tcp(stream) => registry.register(stream, token, interest),
        }
    }

    fn unregister(&mut self, registry: &Registry) -> io::Result<()> {
        match self {
            #[cfg(target_os = "linux")]
            Self::Unix(stream) => registry.deregister(stream),
            Self::Tcp(stream) => registry.deregister(stream),
        }
    }

    /// Reads available bytes. Returns `None` if no bytes are available.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            let result = match self {
                #[cfg(target_os = "linux")]
                Self::Unix(stream) => stream.read(buffer),
                Self::Tcp(stream) => stream.read(buffer),
            };
            match result {
                Ok(len_bytes) => return Ok(Some(len_bytes)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes bytes. Returns `None` if the buffer of the socket is full.
    fn write(&self, bytes: &[u8]) -> io::Result<Option<usize>> {
        loop {
            let result = match self {
                #[cfg(target_os = "linux")]
                Self::Unix(stream) => socket::send(stream, bytes),
                Self::Tcp(stream) => socket::send(stream, bytes),
            };
            match result {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(len_bytes) => return Ok(Some(len_bytes)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Bytes that are waiting to be sent on a connection.
#[derive(Default)]
pub(super) struct Outbox {
    queue: VecDeque<Arc<[u8]>>,
    /// Number of bytes that have already been sent from the first buffer in the queue.
    sent_len_bytes: usize,
    /// Total length, in bytes, of this connection's own buffers that were added since the queue was
    /// last empty. Buffers that other connections share do not count.
    own_len_bytes: usize,
}

impl Outbox {
    pub(super) fn push(&mut self, bytes: Arc<[u8]>) {
        if Arc::strong_count(&bytes) == 1 {
            self.own_len_bytes += bytes.len();
        }
        self.queue.push_back(bytes);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn own_len_bytes(&self) -> usize {
        self.own_len_bytes
    }

    /// Sends as much as possible without blocking.
    pub(super) fn flush(&mut self, pipe: &mut Pipe) -> io::Result<()> {
        while let Some(front) = self.queue.front() {
            let Some(sent) = pipe.write(&front[self.sent_len_bytes..])? else { return Ok(()) };
            self.sent_len_bytes += sent;
            if self.sent_len_bytes == front.len() {
                self.queue.pop_front();
                self.sent_len_bytes = 0;
            }
        }
        self.own_len_bytes = 0;
        Ok(())
    }
}

/// The state of a connection.
pub(super) enum Phase {
    /// The peer has not identified itself. The peer must identify itself by this time.
    Unidentified(Instant),
    Pe(u32),
    /// The connection is closing, and its frames are ignored. The connection is closed when its
    /// outbox is empty, or at this time at the latest.
    Closing(Instant),
}

pub(super) struct Connection {
    pub(super) pipe: Pipe,
    pub(super) phase: Phase,
    /// Process ID of the peer, if the system reports it.
    pub(super) pid: Option<u32>,
    /// Bytes that have been read but not decoded.
    pub(super) inbox: Vec<u8>,
    pub(super) outbox: Outbox,
    /// Process descriptor (pidfd) of the peer. The descriptor becomes readable when the process
    /// ends, even if a forked child keeps the socket open.
    #[cfg(target_os = "linux")]
    pub(super) process: Option<std::os::fd::OwnedFd>,
}

impl Connection {
    pub(super) fn new(pipe: Pipe, pid: Option<u32>, hello_by: Instant) -> Self {
        Self {
            pipe,
            phase: Phase::Unidentified(hello_by),
            pid,
            inbox: Vec::new(),
            outbox: Outbox::default(),
            #[cfg(target_os = "linux")]
            process: None,
        }
    }

    /// Stops polling the socket of this connection. Also stops polling the peer's process
    /// descriptor, if there is one.
    pub(super) fn unregister(&mut self, registry: &Registry) {
        // A failure means that the system does not watch the socket, which is the goal.
        let _ = self.pipe.unregister(registry);
        #[cfg(target_os = "linux")]
        if let Some(process) = &self.process {
            use std::os::fd::AsRawFd;
            let _ = registry.deregister(&mut mio::unix::SourceFd(&process.as_raw_fd()));
        }
    }
}
