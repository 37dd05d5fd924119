//! Runs the leader of a call that passes file descriptors. The leader is the first member of the
//! call: it listens, collects the descriptors and distributes them. The code of the other members
//! is in [`super`].
//!
//! Invariant: a connection is assigned to a member only after the member's hello has arrived. Until
//! then the leader stores a few bytes of the connection and the descriptors of at most one message,
//! for a limited time.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::PoisonError;
use std::thread;
use std::time::{Duration, Instant};

use peerweave_types::Pe;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use super::message::{PER_MESSAGE, receive, send};
use super::{CHECK_INTERVAL, Call, DESCRIPTORS, HELLO_LEN_BYTES, MAGIC, MISSING, descriptor_limit, wait};
use crate::error::BootstrapError;
use crate::job::endpoint::Endpoint;
use crate::job::token::Token;
use crate::wire::socket::{Listener, may_speak};

/// The leader keeps at most this number of unidentified connections, plus one for each member. An
/// unidentified connection has not sent a valid hello. If there are more such connections, the
/// leader drops the oldest.
const MAX_UNIDENTIFIED: usize = 32;
/// Maximum time for which the leader waits for a free descriptor of this process. Another thread
/// may close a descriptor during that time.
const DESCRIPTOR_WAIT: Duration = Duration::from_secs(1);
/// Maximum number of connections that the leader accepts before it checks the members and the
/// deadline again.
const MAX_ACCEPTS: usize = 32;
/// Time within which a connection must send its hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// The kind of a call: either only the leader sends a file descriptor, or each member sends one.
/// Both variants contain the leader's own file descriptor.
#[derive(Clone, Copy)]
pub(super) enum Transfer<'fd> {
    /// The leader sends its descriptor to all other members.
    Share(BorrowedFd<'fd>),
    /// Every member sends one descriptor and receives the descriptors of all members.
    Exchange(BorrowedFd<'fd>),
}

struct Unidentified {
    stream: UnixStream,
    hello: Vec<u8>,
    fds: Vec<OwnedFd>,
    until: Instant,
}

/// A member that has connected to the leader. The leader itself is member 0 of the call, and has no
/// entry in the list of connected members. Member `i` therefore has index `i - 1` in that list.
struct Member {
    stream: UnixStream,
    fd: Option<OwnedFd>,
    /// Number of descriptors that the leader has sent to the member.
    sent: usize,
}

impl Call<'_> {
    /// Waits for all other members, and sends them the descriptors. Returns the descriptors that
    /// the other members sent, in the order of the members.
    pub(super) fn lead(&self, transfer: Transfer<'_>) -> Result<Vec<OwnedFd>, BootstrapError> {
        if self.members.len() == 1 {
            return Ok(Vec::new());
        }
        let led = self.lead_all(transfer);
        match &led {
            // Here either all members have read the key, or the call has failed and the leader
            // serves no member.
            Ok(_) | Err(BootstrapError::Timeout { .. } | BootstrapError::PeLost { .. }) => {
                self.rendezvous.remove_soon(&self.key);
            }
            Err(error) => {
                // A member that has failed has already reported its failure.
                if !matches!(error, BootstrapError::PeFailed { .. }) {
                    self.notify_failure(&error.to_string());
                }
                let mut calls = self.rendezvous.descriptor_calls.lock().unwrap_or_else(PoisonError::into_inner);
                calls.entry(self.members.to_vec()).or_default().stale_key = Some(self.key.clone());
            }
        }
        led
    }

    fn lead_all(&self, transfer: Transfer<'_>) -> Result<Vec<OwnedFd>, BootstrapError> {
        let mut connected: Vec<Option<Member>> = self.members[1..].iter().map(|_| None).collect();
        let token = Token::random()?;
        let endpoint = Endpoint::random_unix()?;
        let (Listener::Unix(listener), _) = Listener::bind(&endpoint, None)? else { return Err(self.wrong("endpoint")) };
        listener.set_nonblocking(true).map_err(|error| BootstrapError::io(self.name, &error))?;
        if let Endpoint::Unix(name) = &endpoint {
            self.rendezvous.put(&self.key, format!("{name} {}", token.to_hex()).as_bytes())?;
        }

        let mut unidentified: Vec<Unidentified> = Vec::new();
        let mut check_at = self.start + CHECK_INTERVAL;
        // Time since which this process has had no free descriptor.
        let mut full_since: Option<Instant> = None;
        loop {
            let is_complete =
                send_descriptors(&mut connected, transfer).map_err(|error| BootstrapError::io(self.name, &error))?;
            if is_complete {
                return Ok(connected.into_iter().flatten().filter_map(|member| member.fd).collect());
            }
            let now = Instant::now();
            // Other members may have connected, but this PE cannot accept their connections.
            if full_since.is_some_and(|since| now >= self.deadline || now >= since + DESCRIPTOR_WAIT) {
                return Err(BootstrapError::io(self.name, &descriptor_limit()));
            }
            if now >= self.deadline {
                let absent = self.members[1..].iter().zip(&connected).filter(|(_, member)| member.is_none());
                let missing: Vec<Pe> = absent.map(|(pe, _)| *pe).collect();
                connected.iter().flatten().for_each(|member| report_missing(member, &missing));
                return Err(self.timeout(missing));
            }
            // If all members have connected, the leader waits only for a member that has not read
            // yet, or because too many descriptors are in flight. In this case, the pause is short.
            let all_there = connected.iter().all(Option::is_some);
            let pause = if all_there { Duration::from_millis(1) } else { CHECK_INTERVAL };
            let mut sockets: Vec<PollFd<'_>> = vec![PollFd::new(&listener, PollFlags::IN)];
            sockets.extend(unidentified.iter().map(|connection| PollFd::new(&connection.stream, PollFlags::IN)));
            wait(&mut sockets, pause.min(self.deadline - now)).map_err(|error| BootstrapError::io(self.name, &error))?;
            drop(sockets);
            if now >= check_at {
                self.check_for_losses()?;
                if let Some(value) = self.rendezvous.try_get_by(&self.key, self.answer_by())? {
                    self.parse_address(&value)?;
                }
                check_at = now + CHECK_INTERVAL;
            }
            let here = connected.iter().flatten().count();
            let mut is_full = !self.accept(&listener, &mut unidentified);
            let is_cut = !self.read_hellos(&mut unidentified, &token, transfer, &mut connected);
            if is_full {
                // Drops the oldest unidentified connection to free a descriptor. Pauses so that
                // this loop does not spin.
                is_full = unidentified.drain(..unidentified.len().min(1)).next().is_none();
                thread::sleep(Duration::from_millis(5));
            }
            if connected.iter().flatten().count() > here {
                full_since = None;
            } else if is_full || is_cut {
                full_since.get_or_insert(now);
            }
        }
    }

    /// Accepts pending connections, at most [`MAX_ACCEPTS`]. Returns `false` if this process has no
    /// free descriptor for a connection.
    fn accept(&self, listener: &std::os::unix::net::UnixListener, unidentified: &mut Vec<Unidentified>) -> bool {
        for _ in 0..MAX_ACCEPTS {
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted) => continue,
                // The most likely cause is that no descriptor is free.
                Err(error) => {
                    tracing::warn!(call = self.name, %error, "the leader cannot accept a connection");
                    return false;
                }
            };
            let trusted = matches!(may_speak(&stream), Ok(Some(_)));
            if !trusted || stream.set_nonblocking(true).is_err() {
                continue;
            }
            if unidentified.len() >= MAX_UNIDENTIFIED + self.members.len() {
                unidentified.remove(0);
            }
            let until = Instant::now() + HELLO_TIMEOUT;
            unidentified.push(Unidentified { stream, hello: Vec::new(), fds: Vec::new(), until });
        }
        true
    }

    /// Reads the hellos of unidentified connections, and records the members that have sent a
    /// complete hello. A connection without a complete hello stays unidentified until its time
    /// limit. Returns `false` if a member sent a descriptor, but this process had no free
    /// descriptor to receive it.
    fn read_hellos(
        &self,
        unidentified: &mut Vec<Unidentified>,
        token: &Token,
        transfer: Transfer<'_>,
        connected: &mut [Option<Member>],
    ) -> bool {
        let now = Instant::now();
        let mut has_room = true;
        for mut connection in std::mem::take(unidentified) {
            let mut buffer = [0; HELLO_LEN_BYTES];
            let room = HELLO_LEN_BYTES - connection.hello.len();
            match receive(connection.stream.as_fd(), &mut buffer[..room], &mut connection.fds) {
                Ok(len_bytes) if len_bytes > 0 => connection.hello.extend_from_slice(&buffer[..len_bytes]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                _ => continue,
            }
            let n_fds = match transfer {
                Transfer::Share(_) => 0,
                Transfer::Exchange(_) => 1,
            };
            // A member sends its hello and its descriptor in one message.
            let is_invalid = connection.fds.len() > n_fds || now >= connection.until;
            if connection.hello.len() < HELLO_LEN_BYTES {
                if !is_invalid {
                    unidentified.push(connection);
                }
                continue;
            }
            let place = self.place_of(&connection.hello, token).and_then(|place| connected.get_mut(place - 1));
            match place {
                Some(seat @ None) if connection.fds.len() == n_fds => {
                    *seat = Some(Member { stream: connection.stream, fd: connection.fds.pop(), sent: 0 });
                }
                // The member sent a descriptor, but the kernel drops descriptors that exceed the
                // limit of this process. The member will connect again.
                Some(None) if connection.fds.len() < n_fds => has_room = false,
                _ => {
                    tracing::debug!(
                        call = self.name,
                        "the leader dropped a connection: invalid hello, member already connected, or too many descriptors"
                    )
                }
            }
        }
        has_room
    }

    /// Returns the index of the member that sent this hello. Returns `None` if the hello is
    /// invalid.
    fn place_of(&self, hello: &[u8], token: &Token) -> Option<usize> {
        let (magic, rest) = hello.split_first_chunk::<{ MAGIC.len() }>()?;
        let (shown, pe) = rest.split_first_chunk()?;
        let pe = Pe::new(u32::from_le_bytes(pe.try_into().ok()?));
        let known = *magic == MAGIC && Token::from_bytes(*shown) == *token;
        self.members.iter().position(|member| *member == pe).filter(|place| known && *place > 0)
    }
}

/// Sends descriptors to the connected members, without blocking. In an exchange, sends nothing
/// until all members have connected. Returns whether all descriptors have been sent to all members.
fn send_descriptors(connected: &mut [Option<Member>], transfer: Transfer<'_>) -> io::Result<bool> {
    let fds: Vec<BorrowedFd<'_>> = match transfer {
        Transfer::Share(fd) => vec![fd],
        Transfer::Exchange(_) if connected.iter().any(Option::is_none) => return Ok(false),
        Transfer::Exchange(fd) => {
            let received = connected.iter().flatten().filter_map(|member| member.fd.as_ref());
            std::iter::once(fd).chain(received.map(AsFd::as_fd)).collect()
        }
    };
    let mut progress: Vec<Option<usize>> = Vec::with_capacity(connected.len());
    for member in connected.iter() {
        progress.push(match member {
            None => None,
            Some(member) => Some(send_outstanding(member, &fds)?),
        });
    }
    let n_fds = fds.len();
    drop(fds);
    for (member, sent) in connected.iter_mut().zip(&progress) {
        if let (Some(member), Some(sent)) = (member, sent) {
            member.sent = *sent;
        }
    }
    Ok(progress.iter().all(|sent| *sent == Some(n_fds)))
}

/// Sends the remaining descriptors in `fds` to a member, without blocking. Returns the number of
/// descriptors that the leader has sent to the member so far. If the member has died, returns
/// `fds.len()`, so that the leader does not wait for the member.
fn send_outstanding(member: &Member, fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut sent = member.sent;
    for chunk in fds[sent..].chunks(PER_MESSAGE) {
        match send(member.stream.as_fd(), &[DESCRIPTORS, chunk.len() as u8], chunk) {
            Ok(_) => sent += chunk.len(),
            Err(error) if is_full(&error) => break,
            // The member has died. The rendezvous reports the loss to all PEs.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe || error.kind() == io::ErrorKind::ConnectionReset => {
                return Ok(fds.len());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(sent)
}

/// Returns whether the error means that the socket's buffer is full, or that too many descriptors
/// of this user are in flight.
fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || error.raw_os_error() == Some(Errno::TOOMANYREFS.raw_os_error())
}

/// Sends the list of missing members to a member. If sending fails, the member times out at its own
/// deadline.
fn report_missing(member: &Member, missing: &[Pe]) {
    let mut message = vec![MISSING, 0];
    message.extend((missing.len() as u32).to_le_bytes());
    message.extend(missing.iter().flat_map(|pe| pe.get().to_le_bytes()));
    let _ = send(member.stream.as_fd(), &message, &[]);
}
