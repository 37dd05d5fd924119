//! Listens, connects, and reads the credentials of peers, for abstract Unix sockets and TCP.
//!
//! The protocol is in [`crate::wire::proto`]. Invariants: no socket has a name in a file system. No
//! call blocks past its deadline. A connection to a Unix socket of another user is never returned.

use std::io::{self, Read};
use std::net::{self, SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

#[cfg(target_os = "linux")]
use std::os::unix::net as unix;

use crate::error::BootstrapError;
use crate::job::endpoint::Endpoint;

/// A listening socket.
pub(crate) enum Listener {
    #[cfg(target_os = "linux")]
    Unix(unix::UnixListener),
    Tcp(net::TcpListener),
}

/// The two addresses at which a listener can be reached.
pub(crate) struct Bound {
    /// The address at which other PEs reach the listener.
    pub(crate) published: Endpoint,
    /// The address at which the listening process itself connects to the listener. Unlike
    /// `published`, this address does not depend on name resolution.
    pub(crate) here: Endpoint,
}

/// One end of a blocking connection with time limits.
pub(crate) enum Stream {
    #[cfg(target_os = "linux")]
    Unix(unix::UnixStream),
    Tcp(net::TcpStream),
}

impl Listener {
    /// Binds a listening socket. Returns the socket and its addresses. If the endpoint has port 0,
    /// the addresses have the port that the system chose.
    ///
    /// If `interface` is `Some`, the socket is bound to this IP address instead of the endpoint's
    /// host. The address for other PEs still has the endpoint's host.
    pub(crate) fn bind(endpoint: &Endpoint, interface: Option<net::IpAddr>) -> Result<(Self, Bound), BootstrapError> {
        let failed = |error: &io::Error| BootstrapError::io_at("bind", endpoint, error);
        match endpoint {
            #[cfg(target_os = "linux")]
            Endpoint::Unix(name) => {
                use std::os::linux::net::SocketAddrExt;
                let address = unix::SocketAddr::from_abstract_name(name).map_err(|e| failed(&e))?;
                let listener = unix::UnixListener::bind_addr(&address).map_err(|e| failed(&e))?;
                Ok((Self::Unix(listener), Bound { published: endpoint.clone(), here: endpoint.clone() }))
            }
            #[cfg(not(target_os = "linux"))]
            Endpoint::Unix(_) => Err(failed(&no_unix())),
            Endpoint::Tcp(host, port) => {
                let listener = match interface {
                    Some(address) => net::TcpListener::bind((address, *port)),
                    None => net::TcpListener::bind((host.as_str(), *port)).or_else(|error| match error.kind() {
                        // Behind a network address translation, no interface of the machine has the
                        // address by which other machines reach it.
                        io::ErrorKind::AddrNotAvailable => {
                            tracing::warn!(%endpoint, "no interface of this machine has the address of the endpoint's host; the server listens on all interfaces instead");
                            net::TcpListener::bind((net::Ipv4Addr::UNSPECIFIED, *port))
                        }
                        _ => Err(error),
                    }),
                }
                .map_err(|e| failed(&e))?;
                let address = listener.local_addr().map_err(|e| failed(&e))?;
                let here = match address.ip() {
                    net::IpAddr::V4(ip) if ip.is_unspecified() => net::Ipv4Addr::LOCALHOST.into(),
                    net::IpAddr::V6(ip) if ip.is_unspecified() => net::Ipv6Addr::LOCALHOST.into(),
                    ip => ip,
                };
                let at = |host: String| Endpoint::Tcp(host, address.port());
                Ok((Self::Tcp(listener), Bound { published: at(host.clone()), here: at(here.to_string()) }))
            }
        }
    }
}

impl Stream {
    /// Connects to an endpoint. Returns an error at `deadline`.
    pub(crate) fn connect(endpoint: &Endpoint, deadline: Instant) -> io::Result<Self> {
        match endpoint {
            #[cfg(target_os = "linux")]
            Endpoint::Unix(name) => connect_unix(name, deadline).map(Self::Unix),
            #[cfg(not(target_os = "linux"))]
            Endpoint::Unix(_) => Err(no_unix()),
            Endpoint::Tcp(host, port) => {
                let mut last = io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address"));
                for address in (host.as_str(), *port).to_socket_addrs()? {
                    match connect_tcp(&address, deadline) {
                        Ok(stream) => return Ok(Self::Tcp(stream)),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }

    /// Reads available bytes. Waits until `deadline` if no bytes are available. Returns 0 if the
    /// peer has closed the connection.
    ///
    /// An error of kind `WouldBlock` or `TimedOut` means that the deadline passed.
    pub(crate) fn read_by(&self, buffer: &mut [u8], deadline: Instant) -> io::Result<usize> {
        let limit = Some(time_left(deadline)?);
        match self {
            #[cfg(target_os = "linux")]
            Self::Unix(stream) => {
                stream.set_read_timeout(limit)?;
                (&mut &*stream).read(buffer)
            }
            Self::Tcp(stream) => {
                stream.set_read_timeout(limit)?;
                (&mut &*stream).read(buffer)
            }
        }
    }

    /// Reads available bytes without waiting. Returns 0 if the peer has closed the connection, and
    /// an error of kind `WouldBlock` if no bytes are available.
    pub(crate) fn read_now(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            #[cfg(target_os = "linux")]
            Self::Unix(stream) => receive_now(stream, buffer),
            #[cfg(target_os = "linux")]
            Self::Tcp(stream) => receive_now(stream, buffer),
            #[cfg(not(target_os = "linux"))]
            Self::Tcp(_) => self.read_by(buffer, Instant::now() + Duration::from_millis(1)),
        }
    }

    /// Shuts down the connection. A thread that reads from the connection returns.
    pub(crate) fn shut_down(&self) {
        // An error means that the peer has already ended the connection.
        let _ = match self {
            #[cfg(target_os = "linux")]
            Self::Unix(stream) => stream.shutdown(net::Shutdown::Both),
            Self::Tcp(stream) => stream.shutdown(net::Shutdown::Both),
        };
    }

    /// Writes all of `bytes` by `deadline`. After an error, part of the bytes may have been
    /// written, so the connection is unusable.
    pub(crate) fn write_all_by(&self, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            let limit = Some(time_left(deadline)?);
            let written = match self {
                #[cfg(target_os = "linux")]
                Self::Unix(stream) => {
                    stream.set_write_timeout(limit)?;
                    send(stream, bytes)
                }
                Self::Tcp(stream) => {
                    stream.set_write_timeout(limit)?;
                    send(stream, bytes)
                }
            };
            match written {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Writes without raising SIGPIPE if the peer has closed the connection. SIGPIPE would end a
/// process whose runtime does not ignore the signal.
#[cfg(target_os = "linux")]
pub(crate) fn send(stream: &(impl std::os::fd::AsFd + ?Sized), bytes: &[u8]) -> io::Result<usize> {
    Ok(rustix::net::send(stream, bytes, rustix::net::SendFlags::NOSIGNAL)?)
}

#[cfg(target_os = "linux")]
fn receive_now(stream: &impl std::os::fd::AsFd, buffer: &mut [u8]) -> io::Result<usize> {
    let (len_bytes, _) = rustix::net::recv(stream, buffer, rustix::net::RecvFlags::DONTWAIT)?;
    Ok(len_bytes)
}

/// Writes without blocking.
#[cfg(not(target_os = "linux"))]
pub(crate) fn send<S>(stream: &S, bytes: &[u8]) -> io::Result<usize>
where
    for<'a> &'a S: io::Write,
{
    io::Write::write(&mut &*stream, bytes)
}

/// Returns whether a host name resolves only to loopback addresses. On many systems, the machine's
/// own name resolves to 127.0.1.1, which no other machine can reach.
pub(crate) fn is_loopback_only(host: &str) -> bool {
    let addresses = (host, 0).to_socket_addrs();
    addresses.is_ok_and(|addresses| addresses.map(|address| address.ip().is_loopback()).reduce(|a, b| a && b) == Some(true))
}

/// Returns whether this error of a socket means that the time limit of the operation has passed.
pub(crate) fn is_time_over(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Returns the time until the deadline. The result is never zero, because a zero time limit of a
/// socket would mean no limit. Returns an error of kind `TimedOut` if the deadline has passed.
fn time_left(deadline: Instant) -> io::Result<Duration> {
    match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
        left => Ok(left.max(Duration::from_micros(100))),
    }
}

fn connect_tcp(address: &SocketAddr, deadline: Instant) -> io::Result<net::TcpStream> {
    let stream = net::TcpStream::connect_timeout(address, time_left(deadline)?)?;
    tune_tcp(&stream)?;
    Ok(stream)
}

/// Sets options of a TCP socket: disables Nagle's algorithm, and enables keep-alive so that the
/// loss of a machine is detected within about 20 s.
#[cfg(target_os = "linux")]
pub(crate) fn tune_tcp(stream: &(impl std::os::fd::AsFd + ?Sized)) -> io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_tcp_nodelay(stream, true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(10))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(3))?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn tune_tcp(stream: &net::TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)
}

/// Connects to an abstract Unix socket, with a deadline. The standard library's connect waits
/// forever if the listener's queue is full and no thread accepts connections.
#[cfg(target_os = "linux")]
pub(crate) fn connect_unix(name: &str, deadline: Instant) -> io::Result<unix::UnixStream> {
    use rustix::net::{self as rx, sockopt};
    let address = rx::SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    let socket = rx::socket_with(rx::AddressFamily::UNIX, rx::SocketType::STREAM, rx::SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(time_left(deadline)?))?;
    rx::connect(&socket, &address)?;
    match may_speak(&socket)? {
        Some(_) => Ok(socket.into()),
        None => {
            let text = format!("the socket {name:?} belongs to another user, expected this user or the superuser");
            Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
        }
    }
}

/// Returns the process ID of the peer of a Unix connection. Returns `None` if the peer belongs to a
/// user who is neither this user nor the superuser.
///
/// The process ID is that of the process that called connect or listen (`SO_PEERCRED`). The process
/// ID 0 means a process in another PID namespace.
#[cfg(target_os = "linux")]
pub(crate) fn may_speak(socket: &(impl std::os::fd::AsFd + ?Sized)) -> io::Result<Option<u32>> {
    let peer = peer_credentials(socket.as_fd())?;
    let trusted = peer.uid == rustix::process::geteuid().as_raw() || peer.uid == 0;
    Ok(trusted.then_some(peer.pid.unsigned_abs()))
}

/// Returns the credentials of the peer. The kernel reports the process ID 0 for a peer in another
/// PID namespace. So this function uses `libc`, because the type of process IDs in `rustix` cannot
/// contain 0.
#[cfg(target_os = "linux")]
fn peer_credentials(socket: std::os::fd::BorrowedFd<'_>) -> io::Result<libc::ucred> {
    use std::os::fd::AsRawFd;
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let size = size_of::<libc::ucred>() as libc::socklen_t;
    let mut len = size;
    // SAFETY: `socket` is open while it is borrowed. The kernel writes at most `len` bytes to
    // `credentials`, and a length to `len`. Both are exclusively borrowed locals. `ucred` has three
    // integers, so any bytes are a valid value.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut credentials).cast(), &raw mut len)
    };
    match result {
        0 if len == size => Ok(credentials),
        0 => {
            let text = format!("SO_PEERCRED returned {len} bytes, expected {size}");
            Err(io::Error::new(io::ErrorKind::InvalidData, text))
        }
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(not(target_os = "linux"))]
fn no_unix() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "abstract Unix sockets exist only on Linux")
}
