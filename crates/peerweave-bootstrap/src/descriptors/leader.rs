//! The leader, the first member of a call that passes descriptors: it listens, collects and
//! distributes. [`super`] has the other members.
//!
//! Invariant: a connection is a member's only after its hello; until then it holds a few bytes and
//! at most one message of descriptors, for a limited time.

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
use super::{Call, GIVEN, HELLO_LEN_BYTES, LATE, LOOK_AROUND, MAGIC, no_room, wait};
use crate::endpoint::Endpoint;
use crate::error::BootstrapError;
use crate::socket::{Listener, may_speak};
use crate::token::Token;

/// Maximum number of unidentified connections beyond one for each member. The oldest is dropped
/// first.
const MAX_STRANGERS: usize = 32;
/// Time for which the leader continues without free descriptors. Other threads may close some.
const PATIENCE: Duration = Duration::from_secs(1);
/// Maximum number of connections accepted between two checks of the members and the clock.
const MAX_ACCEPTS: usize = 32;
/// Time within which a connection must send its hello.
const HELLO_WITHIN: Duration = Duration::from_secs(5);

/// Direction of the transfer.
#[derive(Clone, Copy)]
pub(super) enum Hand<'fd> {
    /// The leader's descriptor goes to all members.
    Out(BorrowedFd<'fd>),
    /// Every member sends one and receives all.
    Around(BorrowedFd<'fd>),
}

struct Stranger {
    stream: UnixStream,
    hello: Vec<u8>,
    fds: Vec<OwnedFd>,
    until: Instant,
}

/// A member that has connected, in the order of the call.
struct Guest {
    stream: UnixStream,
    fd: Option<OwnedFd>,
    /// Number of descriptors sent to it.
    given: usize,
}

impl Call<'_> {
    /// Waits for all other members and serves them. Returns their descriptors, in their order.
    pub(super) fn lead(&self, hand: Hand<'_>) -> Result<Vec<OwnedFd>, BootstrapError> {
        if self.members.len() == 1 {
            return Ok(Vec::new());
        }
        let led = self.lead_all(hand);
        match &led {
            // All have read the key, or no member can be served any more.
            Ok(_) | Err(BootstrapError::Timeout { .. } | BootstrapError::PeLost { .. }) => {
                self.rendezvous.remove_soon(&self.key);
            }
            Err(error) => {
                // A member that has failed has already reported it.
                if !matches!(error, BootstrapError::PeFailed { .. }) {
                    self.tell(&error.to_string());
                }
                let mut calls = self.rendezvous.descriptor_calls.lock().unwrap_or_else(PoisonError::into_inner);
                calls.entry(self.members.to_vec()).or_default().stale_key = Some(self.key.clone());
            }
        }
        led
    }

    fn lead_all(&self, hand: Hand<'_>) -> Result<Vec<OwnedFd>, BootstrapError> {
        let mut guests: Vec<Option<Guest>> = self.members[1..].iter().map(|_| None).collect();
        let token = Token::random()?;
        let endpoint = Endpoint::random_unix()?;
        let (Listener::Unix(door), _) = Listener::bind(&endpoint, None)? else { return Err(self.wrong("endpoint")) };
        door.set_nonblocking(true).map_err(|error| BootstrapError::io(self.name, &error))?;
        if let Endpoint::Unix(name) = &endpoint {
            self.rendezvous.put(&self.key, format!("{name} {}", token.to_hex()).as_bytes())?;
        }

        let mut strangers: Vec<Stranger> = Vec::new();
        let mut look_around_at = self.start + LOOK_AROUND;
        // Start of the time without free descriptors.
        let mut full_since: Option<Instant> = None;
        loop {
            let served = serve(&mut guests, hand).map_err(|error| BootstrapError::io(self.name, &error))?;
            if served {
                return Ok(guests.into_iter().flatten().filter_map(|guest| guest.fd).collect());
            }
            let now = Instant::now();
            // The others may have connected, but this PE cannot accept them.
            if full_since.is_some_and(|since| now >= self.deadline || now >= since + PATIENCE) {
                return Err(BootstrapError::io(self.name, &no_room()));
            }
            if now >= self.deadline {
                let absent = self.members[1..].iter().zip(&guests).filter(|(_, guest)| guest.is_none());
                let missing: Vec<Pe> = absent.map(|(pe, _)| *pe).collect();
                guests.iter().flatten().for_each(|guest| apologise(guest, &missing));
                return Err(self.timeout(missing));
            }
            // All have connected, but one has not read yet, or too many descriptors are in flight:
            // wait briefly.
            let all_there = guests.iter().all(Option::is_some);
            let pause = if all_there { Duration::from_millis(1) } else { LOOK_AROUND };
            let mut sockets: Vec<PollFd<'_>> = vec![PollFd::new(&door, PollFlags::IN)];
            sockets.extend(strangers.iter().map(|stranger| PollFd::new(&stranger.stream, PollFlags::IN)));
            wait(&mut sockets, pause.min(self.deadline - now)).map_err(|error| BootstrapError::io(self.name, &error))?;
            drop(sockets);
            if now >= look_around_at {
                self.look_around()?;
                if let Some(told) = self.rendezvous.try_get_by(&self.key, self.answer_by())? {
                    self.place_told(&told)?;
                }
                look_around_at = now + LOOK_AROUND;
            }
            let here = guests.iter().flatten().count();
            let mut is_full = !self.welcome(&door, &mut strangers);
            let is_cut = !self.listen(&mut strangers, &token, hand, &mut guests);
            if is_full {
                // Drops the oldest unidentified connection to free a descriptor; does not spin
                // otherwise.
                is_full = strangers.drain(..strangers.len().min(1)).next().is_none();
                thread::sleep(Duration::from_millis(5));
            }
            if guests.iter().flatten().count() > here {
                full_since = None;
            } else if is_full || is_cut {
                full_since.get_or_insert(now);
            }
        }
    }

    /// Accepts pending connections, up to a limit per turn. Returns `false` if no descriptor is
    /// free for one.
    fn welcome(&self, door: &std::os::unix::net::UnixListener, strangers: &mut Vec<Stranger>) -> bool {
        for _ in 0..MAX_ACCEPTS {
            let stream = match door.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted) => continue,
                // Probably no descriptor is free.
                Err(error) => {
                    tracing::warn!(call = self.name, %error, "cannot accept a connection");
                    return false;
                }
            };
            let trusted = matches!(may_speak(&stream), Ok(Some(_)));
            if !trusted || stream.set_nonblocking(true).is_err() {
                continue;
            }
            if strangers.len() >= MAX_STRANGERS + self.members.len() {
                strangers.remove(0);
            }
            let until = Instant::now() + HELLO_WITHIN;
            strangers.push(Stranger { stream, hello: Vec::new(), fds: Vec::new(), until });
        }
        true
    }

    /// Collects the members that have sent a complete hello. Other connections stay unidentified
    /// until their time limit. Returns `false` if no descriptor was free for that of a member.
    fn listen(&self, strangers: &mut Vec<Stranger>, token: &Token, hand: Hand<'_>, guests: &mut [Option<Guest>]) -> bool {
        let now = Instant::now();
        let mut has_room = true;
        for mut stranger in std::mem::take(strangers) {
            let mut buffer = [0; HELLO_LEN_BYTES];
            let room = HELLO_LEN_BYTES - stranger.hello.len();
            match receive(stranger.stream.as_fd(), &mut buffer[..room], &mut stranger.fds) {
                Ok(len_bytes) if len_bytes > 0 => stranger.hello.extend_from_slice(&buffer[..len_bytes]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                _ => continue,
            }
            let n_fds = match hand {
                Hand::Out(_) => 0,
                Hand::Around(_) => 1,
            };
            // A member sends its hello and its descriptor in one message.
            let hopeless = stranger.fds.len() > n_fds || now >= stranger.until;
            if stranger.hello.len() < HELLO_LEN_BYTES {
                if !hopeless {
                    strangers.push(stranger);
                }
                continue;
            }
            let place = self.place_of(&stranger.hello, token).and_then(|place| guests.get_mut(place - 1));
            match place {
                Some(seat @ None) if stranger.fds.len() == n_fds => {
                    *seat = Some(Guest { stream: stranger.stream, fd: stranger.fds.pop(), given: 0 });
                }
                // It sent one, but the kernel drops descriptors that exceed the limit of the
                // process. The member connects again.
                Some(None) if stranger.fds.len() < n_fds => has_room = false,
                _ => {
                    tracing::debug!(call = self.name, "dropped a connection that is not a member's, or a second one of a member")
                }
            }
        }
        has_room
    }

    /// Returns the member that sent this hello, if any.
    fn place_of(&self, hello: &[u8], token: &Token) -> Option<usize> {
        let (magic, rest) = hello.split_first_chunk::<{ MAGIC.len() }>()?;
        let (shown, pe) = rest.split_first_chunk()?;
        let pe = Pe::new(u32::from_le_bytes(pe.try_into().ok()?));
        let known = *magic == MAGIC && Token::from_bytes(*shown) == *token;
        self.members.iter().position(|member| *member == pe).filter(|place| known && *place > 0)
    }
}

/// Sends connected members the available descriptors. Returns `true` when all members have all of
/// them.
fn serve(guests: &mut [Option<Guest>], hand: Hand<'_>) -> io::Result<bool> {
    let fds: Vec<BorrowedFd<'_>> = match hand {
        Hand::Out(fd) => vec![fd],
        Hand::Around(_) if guests.iter().any(Option::is_none) => return Ok(false),
        Hand::Around(fd) => {
            let brought = guests.iter().flatten().filter_map(|guest| guest.fd.as_ref());
            std::iter::once(fd).chain(brought.map(AsFd::as_fd)).collect()
        }
    };
    let mut progress: Vec<Option<usize>> = Vec::with_capacity(guests.len());
    for guest in guests.iter() {
        progress.push(match guest {
            None => None,
            Some(guest) => Some(give(guest, &fds)?),
        });
    }
    let n_fds = fds.len();
    drop(fds);
    for (guest, given) in guests.iter_mut().zip(&progress) {
        if let (Some(guest), Some(given)) = (guest, given) {
            guest.given = *given;
        }
    }
    Ok(progress.iter().all(|given| *given == Some(n_fds)))
}

/// Sends a member its missing descriptors without blocking. Returns the number that it has then.
fn give(guest: &Guest, fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut given = guest.given;
    for chunk in fds[given..].chunks(PER_MESSAGE) {
        match send(guest.stream.as_fd(), &[GIVEN, chunk.len() as u8], chunk) {
            Ok(_) => given += chunk.len(),
            Err(error) if is_full(&error) => break,
            // The member has died; the rendezvous reports that to all.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe || error.kind() == io::ErrorKind::ConnectionReset => {
                return Ok(fds.len());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(given)
}

/// Returns whether the socket's buffer is full, or too many descriptors of this user are in flight.
fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || error.raw_os_error() == Some(Errno::TOOMANYREFS.raw_os_error())
}

/// Sends a member the list of missing members. If this fails, the member finds out at its own
/// deadline.
fn apologise(guest: &Guest, missing: &[Pe]) {
    let mut message = vec![LATE, 0];
    message.extend((missing.len() as u32).to_le_bytes());
    message.extend(missing.iter().flat_map(|pe| pe.get().to_le_bytes()));
    let _ = send(guest.stream.as_fd(), &message, &[]);
}
