//! The server of a rendezvous, which is one thread with one poll loop for all connections.
//! [`board`] interprets the frames.
//!
//! Invariants:
//! - [1] For each connection that has not joined, the server stores at most
//!   [`HELLO_FRAME_LEN_BYTES`] bytes, for at most [`ServerOptions::hello_within`]. The number of
//!   such connections is at most [`ServerOptions::max_unidentified`] plus the number of missing
//!   PEs.
//! - [2] No connection delays another connection.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use mio::{Poll, Waker};
use peerweave_types::Pe;

use crate::error::{BootstrapError, Loss};
use crate::job::Job;
use crate::job::endpoint::Endpoint;
use crate::job::token::Token;
use crate::wire::proto::MAX_PES;
use crate::wire::socket::{Bound, Listener};

mod board;
mod event_loop;
mod wire;

use board::{Board, Seat};
use event_loop::{EventLoop, WAKER};

#[cfg(doc)]
use crate::wire::proto::HELLO_FRAME_LEN_BYTES;

/// Options for a [`Server`].
///
/// ```
/// use peerweave_bootstrap::ServerOptions;
///
/// let options = ServerOptions { max_unidentified: 8, ..ServerOptions::default() };
/// assert_eq!(options.hello_within.as_secs(), 5);
/// ```
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Time within which a connection must identify itself.
    pub hello_within: Duration,
    /// Maximum number of unidentified connections, not counting one connection for each missing PE.
    /// If a new connection would exceed the limit, the oldest unidentified connection is dropped.
    pub max_unidentified: usize,
    /// Maximum total size of the key-value store and the pending exchanges, in bytes.
    pub max_stored_bytes: usize,
    /// Maximum size, in bytes, of the answers that a PE has not read yet. If a PE exceeds the
    /// limit, the server drops the PE's connection.
    pub max_unread_bytes: usize,
    /// IP address on which the server listens, instead of the endpoint's host. Ignored for Unix
    /// sockets.
    pub bind_address: Option<std::net::IpAddr>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            hello_within: Duration::from_secs(5),
            max_unidentified: 64,
            max_stored_bytes: 1 << 30,
            max_unread_bytes: 64 << 20,
            bind_address: None,
        }
    }
}

/// The state of each PE, as the server knows it. Every PE is in exactly one of the four lists. Each
/// list is in ascending order of PEs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerState {
    /// PEs that have not joined yet.
    pub awaited: Vec<Pe>,
    /// PEs that have joined and are connected.
    pub joined: Vec<Pe>,
    /// PEs that have called [`Rendezvous::leave`](crate::Rendezvous::leave).
    pub left: Vec<Pe>,
    /// PEs that have been lost, each with the reason.
    pub lost: Vec<(Pe, Loss)>,
    /// Number of connections that the server dropped because they sent invalid data, belonged to
    /// another user, or did not identify themselves in time.
    pub dropped_connections: u64,
}

/// The server to which the PEs of a job connect. The server runs on its own thread.
///
/// The launcher or PE 0 runs the server. Dropping this value stops the thread immediately. PEs that
/// are waiting get an error that says that the server was stopped.
///
/// ```
/// use std::{thread, time::Duration};
/// use peerweave_bootstrap::{Options, Rendezvous, Server};
///
/// let (_server, jobs) = Server::on_this_machine(2)?;
///
/// let blobs = thread::scope(|scope| {
///     let greet = |job| {
///         let rendezvous = Rendezvous::join(job, Options::default())?;
///         rendezvous.exchange("greeting", format!("hello from {}", job.pe.get()).as_bytes())
///     };
///     let pes: Vec<_> = jobs.iter().map(|job| scope.spawn(move || greet(job))).collect();
///     pes.into_iter().map(|pe| pe.join().unwrap()).collect::<Result<Vec<_>, _>>()
/// })?;
/// assert_eq!(blobs[0], blobs[1]);
/// assert_eq!(blobs[0][1], b"hello from 1");
/// # Ok::<(), peerweave_bootstrap::BootstrapError>(())
/// ```
#[derive(Debug)]
pub struct Server {
    endpoint: Endpoint,
    here: Endpoint,
    shared: Arc<Shared>,
    commands: Sender<Command>,
    thread: Option<JoinHandle<()>>,
    /// ID of the process that runs the server's thread. A forked child does not have the thread.
    pid: u32,
}

enum Command {
    ReportLost(Pe, String),
    /// Makes the server's thread send `()` through this channel, after the thread has handled all
    /// earlier events.
    Sync(Sender<()>),
    End {
        linger: Duration,
    },
}

struct Shared {
    board: Mutex<Board>,
    waker: Waker,
    dropped_connections: AtomicU64,
    ended: AtomicBool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Server {
    /// Maximum time for which [`shutdown`](Self::shutdown) waits until the last frames to the PEs
    /// have been written to the sockets.
    const LINGER: Duration = Duration::from_millis(500);

    /// Starts a server at `endpoint` for `n_pes` PEs that know `token`.
    ///
    /// # Errors
    /// - [`BootstrapError::Misuse`] if `n_pes` is 0 or too large.
    /// - [`BootstrapError::Io`] if the address is in use or does not belong to this machine.
    pub fn bind(endpoint: &Endpoint, token: Token, n_pes: u32, options: ServerOptions) -> Result<Self, BootstrapError> {
        if n_pes == 0 || n_pes > MAX_PES {
            return Err(BootstrapError::Misuse {
                call: "Server::bind",
                what: "n_pes",
                value: n_pes.to_string(),
                expected: format!("1 to {MAX_PES}"),
            });
        }
        let hello_within = options.hello_within.min(Duration::from_secs(86_400));
        let options = ServerOptions { hello_within, ..options };
        let (listener, Bound { published: endpoint, here }) = Listener::bind(endpoint, options.bind_address)?;
        let failed = |error: std::io::Error| BootstrapError::io("Server::bind", &error);
        let poll = Poll::new().map_err(failed)?;
        let shared = Arc::new(Shared {
            board: Mutex::new(Board::new(token, n_pes, options.max_stored_bytes)),
            waker: Waker::new(poll.registry(), WAKER).map_err(failed)?,
            dropped_connections: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        });
        let (commands, inbox) = mpsc::channel();
        let event_loop = EventLoop::new(poll, listener, shared.clone(), inbox, options, n_pes).map_err(failed)?;
        let thread =
            thread::Builder::new().name("peerweave-rendezvous".to_owned()).spawn(move || event_loop.run()).map_err(failed)?;
        tracing::debug!(%endpoint, n_pes, "the rendezvous server accepts connections");
        Ok(Self { endpoint, here, shared, commands, thread: Some(thread), pid: std::process::id() })
    }

    /// Starts a server for `n_pes` PEs on this machine, with a random token. The server's endpoint
    /// has no name in the file system. Also returns the job of each PE, for threads or processes
    /// that the caller starts.
    ///
    /// # Errors
    /// As for [`bind`](Self::bind), and [`BootstrapError::Io`] if the system provides no random
    /// numbers.
    pub fn on_this_machine(n_pes: u32) -> Result<(Self, Vec<Job>), BootstrapError> {
        let token = Token::random()?;
        let server = Self::bind(&Endpoint::random_unix()?, token, n_pes, ServerOptions::default())?;
        let jobs = (0..n_pes).map(|pe| Job::on_one_machine(pe, n_pes, server.endpoint.clone(), token)).collect();
        Ok((server, jobs))
    }

    /// Returns the address of the server. If port 0 was requested, the address contains the port
    /// that the system chose.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Returns the address at which this process reaches the server.
    pub(crate) fn here(&self) -> &Endpoint {
        &self.here
    }

    /// Returns the state of each PE: not joined, connected, left, or lost. Also returns the number
    /// of connections that the server has dropped.
    pub fn state(&self) -> ServerState {
        let mut state = ServerState {
            dropped_connections: self.shared.dropped_connections.load(Ordering::Relaxed),
            ..ServerState::default()
        };
        let board = self.shared.board();
        for (pe, seat) in (0..).map(Pe::new).zip(board.seats()) {
            match seat {
                Seat::Empty => state.awaited.push(pe),
                Seat::Taken(_) => state.joined.push(pe),
                Seat::Left => state.left.push(pe),
                Seat::Lost(fault) => state.lost.push((pe, fault.loss())),
            }
        }
        state
    }

    /// Returns the PE that was lost first, and the reason why the PE is lost. Returns `None` while
    /// no PE is lost.
    ///
    /// Waits up to 200 ms until the server's thread has handled the events from before this call.
    /// So if the caller has noticed the end of one process, but another PE's connection closed
    /// earlier, the result is the other PE.
    pub fn first_loss(&self) -> Option<(Pe, Loss)> {
        self.sync();
        self.shared.board().first_loss().and_then(|fault| Some((Pe::new(fault.pe()?), fault.loss())))
    }

    /// Returns the PE that called [`Rendezvous::abort`](crate::Rendezvous::abort) first, and the
    /// exit code that this PE passed. Returns `None` if no PE has called `abort`. Waits up to 200
    /// ms until the server's thread has handled the events from before this call.
    pub fn aborted(&self) -> Option<(Pe, u8)> {
        self.sync();
        self.shared.board().aborted().map(|(pe, code)| (Pe::new(pe), code))
    }

    /// Waits until the server's thread has handled the events from before this call, and has
    /// written its answers to the sockets. Waits for at most 200 ms.
    pub(crate) fn sync(&self) {
        let (answer, answered) = mpsc::channel();
        self.command(Command::Sync(answer));
        let _ = answered.recv_timeout(Duration::from_millis(200));
    }

    /// Reports that the process of a PE has ended. On all PEs, current and later waits fail with
    /// [`BootstrapError::PeLost`], with `why` as the cause. Does nothing if `pe` has left or is
    /// already lost.
    pub fn report_lost(&self, pe: Pe, why: &str) {
        self.command(Command::ReportLost(pe, why.to_owned()));
    }

    /// Returns whether the server's thread has ended. While this value lives, the thread ends only
    /// if polling fails. In that case, the thread logs the error.
    pub fn has_ended(&self) -> bool {
        self.shared.ended.load(Ordering::Acquire)
    }

    /// Stops the server. Waiting PEs get an error. Waits until the last frames have been sent, for
    /// at most half a second.
    pub fn shutdown(mut self) {
        self.end(Self::LINGER);
    }

    fn end(&mut self, linger: Duration) {
        // A forked child has no thread to wait for, and the waker would wake the parent's thread.
        if self.pid != std::process::id() {
            self.thread = None;
        }
        if let Some(thread) = self.thread.take() {
            self.command(Command::End { linger });
            if thread.join().is_err() {
                tracing::error!("the thread of the rendezvous server panicked");
            }
        }
    }

    fn command(&self, command: Command) {
        if self.pid != std::process::id() {
            return;
        }
        // Sending fails only if the thread has ended. Then no PE is connected.
        let _ = self.commands.send(command);
        if let Err(error) = self.shared.waker.wake() {
            tracing::error!(%error, "cannot wake the thread of the rendezvous server");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}

impl Shared {
    fn board(&self) -> std::sync::MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Receiving end of the channel through which a [`Server`] sends commands to the poll loop.
type Inbox = Receiver<Command>;
