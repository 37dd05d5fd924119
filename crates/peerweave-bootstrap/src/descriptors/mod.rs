//! Passes file descriptors among the PEs of one machine, for example to share memory.
//!
//! The rendezvous distributes the address of the socket and reports lost PEs. The first member, the
//! leader, listens on a socket with a random abstract name. The other members connect and send a
//! random token. If each member passes a descriptor, the leader first collects all descriptors, and
//! then sends them to all members.
//!
//! Invariants:
//! - [1] A descriptor is sent only to a process of this user (or the superuser) that has sent the
//!   token.
//! - [2] From any other process, the leader reads at most a hello. The leader closes the
//!   descriptors that such a process sends.
//! - [3] Nothing that a call creates has a name in a file system.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::PoisonError;
use std::thread;
use std::time::{Duration, Instant};

use peerweave_types::Pe;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::BootstrapError;
use crate::job::token::{TOKEN_LEN_BYTES, Token, fingerprint};
use crate::rendezvous::Rendezvous;
use crate::wire::proto::{MAX_PES, ProtocolError, cut};
use crate::wire::socket::connect_unix;

mod leader;
mod message;

use leader::Transfer;
use message::{receive, send};

const MAGIC: [u8; 8] = *b"peerw-fd";
const HELLO_LEN_BYTES: usize = MAGIC.len() + TOKEN_LEN_BYTES + 4;
/// First byte of a message with descriptors. The second byte is the number of descriptors.
const DESCRIPTORS: u8 = 1;
/// First byte of the message that lists the members that did not connect by the deadline.
const MISSING: u8 = 2;
/// First character of a value that reports a failure. A failed member stores such a value instead
/// of the leader's address. The index of the failed PE and its error message follow.
const FAILED: char = '!';
/// Interval at which a waiting member checks for lost PEs.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Additional time for which a member waits after the deadline. In this time, the member can still
/// receive the leader's list of missing members.
const GRACE: Duration = Duration::from_secs(1);

impl Rendezvous {
    /// Passes a file descriptor from the first member to all other members. Each call returns a
    /// descriptor of the same open file.
    ///
    /// `members` are PEs on this machine. Each member must pass the same list. The first member
    /// passes its descriptor as `fd`, and the call of the first member returns `fd` itself. All
    /// other members pass `None`. The returned descriptor is closed on exec.
    ///
    /// # Collective
    /// All `members`. If there are several calls with the same `members`, each member must make
    /// these calls in the same order.
    ///
    /// # Errors
    /// [`BootstrapError::Timeout`] names the members that did not arrive.
    /// [`BootstrapError::PeLost`] names a PE that was lost during the call.
    /// [`BootstrapError::PeFailed`] names a member that failed. [`BootstrapError::Misuse`] if the
    /// list lacks this PE, if the first member passes no descriptor, or if another member passes a
    /// descriptor.
    ///
    /// ```
    /// use std::os::fd::OwnedFd;
    /// use peerweave_bootstrap::{Job, Options, Rendezvous};
    ///
    /// let rendezvous = Rendezvous::join(&Job::single(), Options::default())?;
    /// let memory: OwnedFd = std::fs::File::open("/dev/zero").unwrap().into();
    /// let memory = rendezvous.share_descriptor(&[rendezvous.pe()], Some(memory))?;
    /// # drop(memory);
    /// # Ok::<(), peerweave_bootstrap::BootstrapError>(())
    /// ```
    pub fn share_descriptor(&self, members: &[Pe], fd: Option<OwnedFd>) -> Result<OwnedFd, BootstrapError> {
        self.share_descriptor_within(members, fd, self.deadline())
    }

    /// Like [`share_descriptor`](Self::share_descriptor), but with the time limit `within`. If
    /// [`deadline`](Self::deadline) is shorter, the limit is `deadline`.
    ///
    /// # Errors
    /// As for [`share_descriptor`](Self::share_descriptor).
    pub fn share_descriptor_within(
        &self,
        members: &[Pe],
        fd: Option<OwnedFd>,
        within: Duration,
    ) -> Result<OwnedFd, BootstrapError> {
        let call = Call::new(self, "share_descriptor", members, within.min(self.deadline()))?;
        let misuse = |value: &str, expected: &str| BootstrapError::Misuse {
            call: "share_descriptor",
            what: "fd",
            value: value.to_owned(),
            expected: expected.to_owned(),
        };
        match (call.leads(), fd) {
            (true, None) => Err(misuse("none", "a descriptor, because this PE is the first member")),
            (false, Some(_)) => Err(misuse("a descriptor", "none, because this PE is not the first member")),
            (true, Some(fd)) => {
                call.lead(Transfer::Share(fd.as_fd()))?;
                Ok(fd)
            }
            (false, None) => {
                let mut sent = call.follow(None, 1)?;
                sent.pop().ok_or_else(|| call.wrong("count"))
            }
        }
    }

    /// Passes a file descriptor from each member to all other members. Returns one descriptor for
    /// each member, in the order of `members`. The element for this PE is the descriptor `fd`
    /// itself. The returned descriptors are closed on exec.
    ///
    /// # Collective
    /// As for [`share_descriptor`](Self::share_descriptor).
    ///
    /// # Errors
    /// As for [`share_descriptor`](Self::share_descriptor). In addition, [`BootstrapError::Io`] if
    /// the process reaches its limit of open descriptors. Each member needs as many descriptors as
    /// there are members, and the first member needs twice as many. If one member reaches its
    /// limit, the other members get [`BootstrapError::PeFailed`]. A member that has already
    /// received all descriptors gets no error.
    pub fn exchange_descriptors(&self, members: &[Pe], fd: OwnedFd) -> Result<Vec<OwnedFd>, BootstrapError> {
        let call = Call::new(self, "exchange_descriptors", members, self.deadline())?;
        if call.leads() {
            let collected = call.lead(Transfer::Exchange(fd.as_fd()))?;
            return Ok(std::iter::once(fd).chain(collected).collect());
        }
        let mut sent = call.follow(Some(fd.as_fd()), members.len())?;
        sent[call.place] = fd;
        Ok(sent)
    }
}

/// A call that this PE makes: [`Rendezvous::share_descriptor`] or
/// [`Rendezvous::exchange_descriptors`].
struct Call<'a> {
    rendezvous: &'a Rendezvous,
    name: &'static str,
    members: &'a [Pe],
    /// This PE's index in `members`.
    place: usize,
    /// Key under which the leader stores its address.
    key: String,
    start: Instant,
    deadline: Instant,
}

/// The answer of the leader: descriptors, or the list of missing members.
struct Answer {
    fds: Vec<OwnedFd>,
    missing: Option<Vec<Pe>>,
}

impl<'a> Call<'a> {
    fn new(rendezvous: &'a Rendezvous, name: &'static str, members: &'a [Pe], within: Duration) -> Result<Self, BootstrapError> {
        rendezvous.check_process(name)?;
        let mut seen = HashSet::new();
        let fits = members.iter().all(|pe| pe.get() < rendezvous.n_pes() && seen.insert(pe.get()));
        let place = members.iter().position(|pe| *pe == rendezvous.pe());
        let (true, Some(place)) = (fits, place) else {
            return Err(BootstrapError::Misuse {
                call: name,
                what: "members",
                value: format!("{:?}", members.iter().map(|pe| pe.get()).collect::<Vec<_>>()),
                expected: format!(
                    "distinct PEs with numbers below {n_pes}, including this PE ({me})",
                    n_pes = rendezvous.n_pes(),
                    me = rendezvous.pe()
                ),
            });
        };
        let (number, stale_key) = {
            let mut calls = rendezvous.descriptor_calls.lock().unwrap_or_else(PoisonError::into_inner);
            let past = calls.entry(members.to_vec()).or_default();
            past.count += 1;
            (past.count, past.stale_key.take())
        };
        if let Some(key) = stale_key {
            rendezvous.remove_soon(&key);
        }
        let list: String = members.iter().map(|pe| format!("{} ", pe.get())).collect();
        let key = format!("peerweave/{name}/{:016x}{:016x}/{number}", fingerprint(&list, 1), fingerprint(&list, 2));
        let start = Instant::now();
        Ok(Self { rendezvous, name, members, place, key, start, deadline: start + within })
    }

    fn leads(&self) -> bool {
        self.place == 0
    }

    /// Runs the call on a member that is not the leader: connects to the leader, sends `fd` if it
    /// is `Some`, and receives `n_fds` descriptors.
    fn follow(&self, fd: Option<BorrowedFd<'_>>, n_fds: usize) -> Result<Vec<OwnedFd>, BootstrapError> {
        let place = self.rendezvous.get_by(&self.key, self.deadline).map_err(|error| match error {
            // The leader stores the key, so the leader is the missing member.
            BootstrapError::Timeout { .. } => self.timeout(vec![self.members[0]]),
            error => error,
        })?;
        let (mut name, mut token) = self.parse_address(&place)?;
        // If a connection ends early, either the leader has dropped the connection to accept newer
        // connections, or the leader has died.
        loop {
            let sent = match self.connect(&name, &token, fd) {
                Ok(stream) => self.receive_answer(&stream, n_fds),
                Err(error) if is_retryable(&error) => Err(error),
                Err(error) => {
                    self.notify_failure(&error.to_string());
                    return Err(BootstrapError::io(self.name, &error));
                }
            };
            match sent {
                Ok(Answer { missing: Some(missing), .. }) => return Err(self.timeout(missing)),
                Ok(Answer { fds, .. }) => return Ok(fds),
                Err(error) if is_retryable(&error) => {
                    self.check_for_losses()?;
                    if Instant::now() >= self.deadline {
                        return Err(self.timeout(vec![self.members[0]]));
                    }
                    thread::sleep((self.start.elapsed() / 8).clamp(Duration::from_micros(200), Duration::from_millis(20)));
                    if let Some(place) = self.rendezvous.try_get_by(&self.key, self.answer_by())? {
                        (name, token) = self.parse_address(&place)?;
                    }
                }
                // The leader already has this PE's descriptor, so this error does not delay the
                // other members.
                Err(error) => return Err(BootstrapError::io(self.name, &error)),
            }
        }
    }

    /// Parses the value that is stored under the key of the call. Returns the leader's address and
    /// the token if the value contains them. If the value reports the failure of a member, returns
    /// that failure as an error.
    fn parse_address(&self, value: &[u8]) -> Result<(String, Token), BootstrapError> {
        let value = str::from_utf8(value).map_err(|_| self.wrong("place"))?;
        match value.strip_prefix(FAILED) {
            None => {
                let (name, token) = value.split_once(' ').ok_or_else(|| self.wrong("place"))?;
                Ok((name.to_owned(), token.parse()?))
            }
            Some(failure) => {
                let (pe, message) = failure.split_once(' ').ok_or_else(|| self.wrong("place"))?;
                let pe: u32 = pe.parse().map_err(|_| self.wrong("place"))?;
                Err(BootstrapError::PeFailed { call: self.name, pe: Pe::new(pe), message: message.to_owned() })
            }
        }
    }

    /// Notifies all waiting members that this PE has failed.
    fn notify_failure(&self, why: &str) {
        let value = format!("{FAILED}{} {}", self.rendezvous.pe().get(), cut(why));
        if let Err(error) = self.rendezvous.put_by(&self.key, value.as_bytes(), self.answer_by()) {
            tracing::warn!(call = self.name, %error, "cannot notify the other members that this PE has failed");
        }
    }

    /// Connects to the leader and sends a hello. If `fd` is `Some`, the same message contains this
    /// descriptor.
    fn connect(&self, name: &str, token: &Token, fd: Option<BorrowedFd<'_>>) -> io::Result<UnixStream> {
        let stream = connect_unix(name, self.deadline)?;
        let mut hello = MAGIC.to_vec();
        hello.extend(token.as_bytes());
        hello.extend(self.rendezvous.pe().get().to_le_bytes());
        // The socket's buffer is empty, so these few bytes are sent completely or not at all.
        match send(stream.as_fd(), &hello, fd.as_slice())? == hello.len() {
            true => Ok(stream),
            false => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    /// Receives the leader's answer: either `n_fds` descriptors, or a list of missing members.
    fn receive_answer(&self, stream: &UnixStream, n_fds: usize) -> io::Result<Answer> {
        let mut sent = Answer { fds: Vec::with_capacity(n_fds), missing: None };
        while sent.fds.len() < n_fds {
            let mut head = [0; 2];
            let fds = self.read(stream, &mut head)?;
            match head {
                [MISSING, _] => {
                    let mut count = [0; 4];
                    self.read(stream, &mut count)?;
                    let count = u32::from_le_bytes(count).min(MAX_PES);
                    let mut missing = vec![0; 4 * count as usize];
                    self.read(stream, &mut missing)?;
                    let (words, _) = missing.as_chunks::<4>();
                    sent.missing = Some(words.iter().map(|word| Pe::new(u32::from_le_bytes(*word))).collect());
                    return Ok(sent);
                }
                // The kernel drops descriptors that exceed the limit of the process.
                [DESCRIPTORS, n] if usize::from(n) > fds.len() => return Err(descriptor_limit()),
                [DESCRIPTORS, n] if usize::from(n) == fds.len() && n > 0 && sent.fds.len() + fds.len() <= n_fds => {
                    sent.fds.extend(fds)
                }
                _ => {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "the first member sent an invalid message, expected descriptors or the list of missing members",
                    ));
                }
            }
        }
        Ok(sent)
    }

    /// Reads until `buffer` is full. Returns the descriptors that were sent with the bytes.
    fn read(&self, stream: &UnixStream, buffer: &mut [u8]) -> io::Result<Vec<OwnedFd>> {
        let mut fds = Vec::new();
        let mut filled = 0;
        while filled < buffer.len() {
            match receive(stream.as_fd(), &mut buffer[filled..], &mut fds) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len_bytes) => filled += len_bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let left = (self.deadline + GRACE).saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    let ready = wait(&mut [PollFd::new(stream, PollFlags::IN)], left.min(CHECK_INTERVAL))?;
                    // If a PE is lost, the leader does not wait for all members, so this member
                    // need not wait for the leader.
                    if !ready && self.check_for_losses().is_err() {
                        return Err(io::ErrorKind::ConnectionAborted.into());
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(fds)
    }

    /// Returns an error if a PE is lost. A timeout of the server is not an error.
    fn check_for_losses(&self) -> Result<(), BootstrapError> {
        match self.rendezvous.check_by(self.answer_by()) {
            Err(BootstrapError::Timeout { .. }) => Ok(()),
            outcome => outcome,
        }
    }

    /// Returns the deadline for a request to the server: the deadline of this call, or
    /// [`CHECK_INTERVAL`] from now, whichever is later. With a deadline in the past, sending the
    /// request would fail and close the connection.
    fn answer_by(&self) -> Instant {
        self.deadline.max(Instant::now() + CHECK_INTERVAL)
    }

    fn timeout(&self, missing: Vec<Pe>) -> BootstrapError {
        let call = format!("{call} among {n_members} PEs", call = self.name, n_members = self.members.len());
        BootstrapError::Timeout { call, waited: self.start.elapsed(), missing }
    }

    fn wrong(&self, field: &'static str) -> BootstrapError {
        BootstrapError::Protocol { call: self.name, source: ProtocolError::Field { field } }
    }
}

/// Waits until one of the sockets is ready. Returns `false` at the time limit or after a signal.
fn wait(sockets: &mut [PollFd<'_>], limit: Duration) -> io::Result<bool> {
    let limit = Timespec::try_from(limit).map_err(|_| io::ErrorKind::InvalidInput)?;
    match poll(sockets, Some(&limit)) {
        Ok(n_ready) => Ok(n_ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn descriptor_limit() -> io::Error {
    io::Error::other("the process has reached its limit of open descriptors; raise the limit with `ulimit -n`")
}

fn is_retryable(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset, TimedOut, UnexpectedEof, WouldBlock};
    matches!(
        error.kind(),
        BrokenPipe | ConnectionAborted | ConnectionRefused | ConnectionReset | TimedOut | UnexpectedEof | WouldBlock
    )
}
