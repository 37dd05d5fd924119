//! The server of a rendezvous: one thread, one poll loop, any number of connections.
//!
//! What the frames mean is [`crate::board`]'s. This reads and writes, and keeps strangers cheap.
//!
//! Invariants: [1] from a connection that has not joined at most [`HELLO_FRAME_LEN_BYTES`] are ever held, for at most
//! [`ServerOptions::hello_within`], and at most [`ServerOptions::max_strangers`] of them beyond the PEs that are still
//! awaited; [2] nothing that a connection sends or fails to read delays another one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use mio::{Poll, Waker};
use peerweave_types::Pe;

use crate::board::{Board, Seat};
use crate::client::loss_of;
use crate::endpoint::Endpoint;
use crate::error::{BootstrapError, Loss};
use crate::proto::{Fault, MAX_PES};
use crate::socket::{Bound, Listener};
use crate::token::Token;

mod event_loop;
mod wire;

use event_loop::{EventLoop, WAKER};

#[cfg(doc)]
use crate::proto::HELLO_FRAME_LEN_BYTES;

/// How a [`Server`] treats connections.
///
/// ```
/// use peerweave_bootstrap::ServerOptions;
///
/// let options = ServerOptions { max_strangers: 8, ..ServerOptions::default() };
/// assert_eq!(options.hello_within.as_secs(), 5);
/// ```
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// How long a connection may take to say who it is before it is dropped.
    pub hello_within: Duration,
    /// How many connections may be undecided beyond one for each PE that is still awaited. The oldest goes first.
    pub max_strangers: usize,
    /// How many bytes the key-value store and the exchanges under way may hold together.
    pub max_stored_bytes: usize,
    /// How many bytes of single answers a PE may leave unread before its connection is dropped.
    pub max_unread_bytes: usize,
    /// The address to listen on where it is not the endpoint's own host. Ignored for Unix sockets.
    pub bind_address: Option<std::net::IpAddr>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            hello_within: Duration::from_secs(5),
            max_strangers: 64,
            max_stored_bytes: 1 << 30,
            max_unread_bytes: 64 << 20,
            bind_address: None,
        }
    }
}

/// Who is there, as the server sees it. Every PE is in exactly one of the four lists, in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerState {
    /// PEs that have not joined yet.
    pub awaited: Vec<Pe>,
    /// PEs that have joined and are still there.
    pub joined: Vec<Pe>,
    /// PEs that have left in order.
    pub left: Vec<Pe>,
    /// PEs that went without a farewell, and how.
    pub lost: Vec<(Pe, Loss)>,
    /// How many connections were dropped because of what they said, or did not say in time.
    pub strangers_dropped: u64,
}

/// The meeting place of a job's PEs, on a thread of its own.
///
/// The launcher holds it, or PE 0. Dropping it ends the thread at once; whoever still waits is told that the server ends.
///
/// ```
/// use std::{thread, time::Duration};
/// use peerweave_bootstrap::{Endpoint, Job, Options, Rendezvous, Server, ServerOptions, Token};
///
/// let token = Token::random()?;
/// let endpoint = Endpoint::Tcp("127.0.0.1".to_owned(), 0);
/// let server = Server::bind(&endpoint, token, 2, ServerOptions::default())?;
///
/// let blobs = thread::scope(|scope| {
///     let pes: Vec<_> = (0..2)
///         .map(|pe| {
///             let job = Job::on_one_machine(pe, 2, server.endpoint().clone(), token);
///             scope.spawn(move || {
///                 let rendezvous = Rendezvous::join(&job, Options::default())?;
///                 rendezvous.exchange("greeting", format!("hello from {pe}").as_bytes())
///             })
///         })
///         .collect();
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
    /// The process that has the thread: a forked child has only the memory.
    pid: u32,
}

enum Command {
    ReportLost(Pe, String),
    /// Answers once all that happened before is taken note of.
    Sync(Sender<()>),
    End {
        linger: Duration,
    },
}

struct Shared {
    board: Mutex<Board>,
    waker: Waker,
    strangers_dropped: AtomicU64,
    ended: AtomicBool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Server {
    /// How long [`shutdown`](Self::shutdown) lets PEs read what was sent to them.
    const LINGER: Duration = Duration::from_millis(500);

    /// Listens at `endpoint` for the `n_pes` PEs that know `token`.
    ///
    /// # Errors
    /// [`BootstrapError::Misuse`] for a number of PEs that is 0 or too large, [`BootstrapError::Io`] if the address is in
    /// use or not this machine's.
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
        let (listener, Bound { told: endpoint, here }) = Listener::bind(endpoint, options.bind_address)?;
        let failed = |error: std::io::Error| BootstrapError::io("Server::bind", &error);
        let poll = Poll::new().map_err(failed)?;
        let shared = Arc::new(Shared {
            board: Mutex::new(Board::new(token, n_pes, options.max_stored_bytes)),
            waker: Waker::new(poll.registry(), WAKER).map_err(failed)?,
            strangers_dropped: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        });
        let (commands, inbox) = mpsc::channel();
        let event_loop = EventLoop::new(poll, listener, shared.clone(), inbox, options, n_pes).map_err(failed)?;
        let thread =
            thread::Builder::new().name("peerweave-rendezvous".to_owned()).spawn(move || event_loop.run()).map_err(failed)?;
        tracing::debug!(%endpoint, n_pes, "the rendezvous is open");
        Ok(Self { endpoint, here, shared, commands, thread: Some(thread), pid: std::process::id() })
    }

    /// Where PEs connect, with the port that the system chose where none was asked for.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Where this process reaches it.
    pub(crate) fn here(&self) -> &Endpoint {
        &self.here
    }

    /// Who is there.
    pub fn state(&self) -> ServerState {
        let mut state =
            ServerState { strangers_dropped: self.shared.strangers_dropped.load(Ordering::Relaxed), ..ServerState::default() };
        let board = self.shared.board();
        for (pe, seat) in (0..).map(Pe::new).zip(board.seats()) {
            match seat {
                Seat::Empty => state.awaited.push(pe),
                Seat::Taken(_) => state.joined.push(pe),
                Seat::Left => state.left.push(pe),
                Seat::Lost(fault) => state.lost.push((pe, loss_of(fault))),
            }
        }
        state
    }

    /// The PE that was lost before any other, and how. `None` while no PE is lost.
    ///
    /// What happened before the call is taken note of first: a PE whose connection closed before another PE's process ended was lost
    /// before it. Waits for the server's thread for up to 200 ms.
    pub fn first_loss(&self) -> Option<(Pe, Loss)> {
        let (answer, answered) = mpsc::channel();
        self.command(Command::Sync(answer));
        let _ = answered.recv_timeout(Duration::from_millis(200));
        self.shared.board().first_loss().and_then(|fault| Some((Pe::new(fault.pe()?), loss_of(fault))))
    }

    /// Tells everybody that a PE is dead, as who watches its process knows. Whoever waits, or waits later, gets
    /// [`BootstrapError::PeLost`] with `why`. Of no effect for a PE that has left in order or is known to be lost.
    pub fn report_lost(&self, pe: Pe, why: &str) {
        self.command(Command::ReportLost(pe, why.to_owned()));
    }

    /// Whether the thread has ended: after a failure of the operating system's polling, which it logs.
    pub fn has_ended(&self) -> bool {
        self.shared.ended.load(Ordering::Acquire)
    }

    /// Ends the server once what was sent is on its way, or after half a second. Whoever still waits is told.
    pub fn shutdown(mut self) {
        self.end(Self::LINGER);
    }

    fn end(&mut self, linger: Duration) {
        // In a forked child there is no thread to wait for, and waking would reach the parent's.
        if self.pid != std::process::id() {
            self.thread = None;
        }
        if let Some(thread) = self.thread.take() {
            self.command(Command::End { linger });
            if thread.join().is_err() {
                tracing::error!("the thread of the rendezvous had panicked");
            }
        }
    }

    fn command(&self, command: Command) {
        if self.pid != std::process::id() {
            return;
        }
        // Both fail only when the thread has ended, and then nobody is left to be told.
        let _ = self.commands.send(command);
        if let Err(error) = self.shared.waker.wake() {
            tracing::error!(%error, "the thread of the rendezvous cannot be woken");
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

/// What the loop takes its orders from.
type Inbox = Receiver<Command>;

/// A loss for the log.
fn describe(fault: &Fault) -> String {
    loss_of(fault).to_string()
}
