//! Joins a job: starts the server of PE 0, connects to the server, and watches the processes of PEs
//! that have not joined.
//!
//! [`super`] sends the requests. [`super::siblings`] finds the process of each PE.
//!
//! Invariant: every function of this module returns by the deadline of the join, or a short time
//! later. The server may need the additional time to name missing PEs.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use peerweave_types::Pe;

use super::connection::{Answer, Attempt, Connection};
#[cfg(target_os = "linux")]
use super::siblings::Siblings;
use crate::error::{BootstrapError, Loss};
use crate::job::endpoint::Endpoint;
use crate::job::env::warn_of_public_token;
use crate::job::interface;
use crate::job::{Job, Served};
use crate::server::{Server, ServerOptions};
use crate::wire::proto::{Hello, JOIN_REQUEST};
use crate::wire::socket::is_loopback_only;

/// Interval between two checks whether a process has ended before its PE joined. The PE that runs
/// the server makes these checks.
const LOOK_AT_SIBLINGS: Duration = Duration::from_millis(10);

/// Maximum time for which PE 0 tries to bind the server's address. The first tries can fail,
/// because an earlier run of this job may still use the address.
const ADDRESS_TAKEN: Duration = Duration::from_secs(3);

/// Starts the server in the process of PE 0.
pub(super) fn serve(
    job: &Job,
    endpoint: &Endpoint,
    options: &ServerOptions,
    deadline: Instant,
) -> Result<Server, BootstrapError> {
    let start = Instant::now();
    let until = deadline.min(start + ADDRESS_TAKEN);
    if job.token_is_public {
        warn_of_public_token(endpoint);
    }
    let mut options = options.clone();
    if let (None, Endpoint::Tcp(host, _)) = (options.bind_address, endpoint) {
        if job.interface.is_some() {
            options.bind_address = Some(interface::advertise_address(job.interface.as_deref())?.address);
        } else if job.n_machines > 1 && is_loopback_only(host) {
            tracing::warn!(%endpoint, "the host name of the server resolves to a loopback address; the server listens on all interfaces");
            options.bind_address = Some(Ipv4Addr::UNSPECIFIED.into());
        }
    }
    loop {
        match Server::bind(endpoint, job.token, job.n_pes, options.clone()) {
            Err(BootstrapError::Io { kind: std::io::ErrorKind::AddrInUse, .. }) if Instant::now() < until => {
                thread::sleep(pause(start).min(until.saturating_duration_since(Instant::now())));
            }
            Err(BootstrapError::Io { call, kind: kind @ std::io::ErrorKind::AddrInUse, message }) => {
                let advice = "another job uses the address, or PE 0 has already joined this job; \
                              use another address, or share the handle of the first join";
                return Err(BootstrapError::Io { call, kind, message: format!("{message}: {advice}") });
            }
            result => return result,
        }
    }
}

/// Function that finds PEs that will not join. The argument is the list of PEs that have not joined
/// yet. The result contains the PEs that will not join, each with the reason.
pub(crate) type Ended<'a> = &'a mut dyn FnMut(&[Pe]) -> Vec<(Pe, String)>;

/// The code that watches the processes of the PEs that have not joined.
pub(super) enum Watched<'a> {
    /// No process is watched.
    Nothing,
    /// This crate watches the processes that the agent of torchrun started on this machine.
    #[cfg(target_os = "linux")]
    Siblings(Siblings),
    /// The caller watches the processes. This function of the caller returns the PEs that will not
    /// join.
    ByCaller(Ended<'a>),
}

impl Watched<'_> {
    /// Returns `Watched::Siblings` if the processes of `job` can be watched: see `Siblings::of`.
    /// Otherwise returns `Watched::Nothing`.
    pub(super) fn siblings_of(job: &Job) -> Self {
        #[cfg(target_os = "linux")]
        if let Some(found) = Siblings::of(job) {
            return Self::Siblings(found);
        }
        let _ = job;
        Self::Nothing
    }

    /// Returns the awaited PEs whose processes have ended since the last call, each with the
    /// reason.
    fn ended(&mut self, awaited: &[Pe]) -> Vec<(Pe, String)> {
        match self {
            Self::Nothing => Vec::new(),
            #[cfg(target_os = "linux")]
            Self::Siblings(found) => {
                let awaited: Vec<u32> = awaited.iter().map(|pe| pe.get()).collect();
                found.look(&awaited).into_iter().map(|(pe, why)| (Pe::new(pe), why)).collect()
            }
            Self::ByCaller(ended) => ended(awaited),
        }
    }

    /// Waits until the join completes or fails. During the wait, reports to the server each PE
    /// whose process ends before the PE has joined.
    pub(super) fn report_while_waiting(&mut self, server: &Server, connection: &Connection, deadline: Instant) -> Answer {
        while !matches!(self, Self::Nothing) && Instant::now() < deadline {
            for (pe, why) in self.ended(&server.state().awaited) {
                server.report_lost(pe, &why);
            }
            if let Some(answer) = connection.wait_until(JOIN_REQUEST, deadline.min(Instant::now() + LOOK_AT_SIBLINGS)) {
                return answer;
            }
        }
        connection.wait(JOIN_REQUEST, deadline)
    }
}

pub(super) fn connect(
    job: &Job,
    endpoint: &Endpoint,
    watched: &mut Watched<'_>,
    start: Instant,
    deadline: Instant,
) -> Result<Arc<Connection>, BootstrapError> {
    let hello = Hello { pe: job.pe.get(), n_pes: job.n_pes, pid: std::process::id(), token: job.token };
    loop {
        let error = match Connection::open(endpoint, &hello, deadline)? {
            Attempt::Joined(connection) => return Ok(connection),
            Attempt::Again(error) => error,
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            // If PE 0 runs the server, PE 0 is the missing PE.
            let missing = if job.served == Served::ByPe0 { vec![Pe::new(0)] } else { Vec::new() };
            let call = format!("join: connect to {endpoint} (last error: {error})");
            return Err(BootstrapError::Timeout { call, waited: start.elapsed(), missing });
        }
        // The server does not run yet, so no other PE can report the end of PE 0.
        if let Some((pe, why)) = watched.ended(&[Pe::new(0)]).pop() {
            let call = format!("join: connect to {endpoint} (last error: {error})");
            return Err(BootstrapError::PeLost { call, pe, cause: Loss::Reported(why) });
        }
        thread::sleep(pause(start).min(left));
    }
}

/// Returns the pause before the next attempt. The pause is an eighth of the time since `start`, but
/// at least 200 µs and at most 50 ms. The first pauses are short, because all PEs start at about
/// the same time.
pub(super) fn pause(start: Instant) -> Duration {
    (start.elapsed() / 8).clamp(Duration::from_micros(200), Duration::from_millis(50))
}
