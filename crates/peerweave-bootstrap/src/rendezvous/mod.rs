//! A PE's side of the rendezvous: joining, exchanging blobs, barriers, leaving.
//!
//! [`connection`] handles the sockets. [`crate::server`] is the server.
//!
//! Invariant: every call returns at most about a second after its deadline. The server needs this
//! time to name missing PEs. In a forked child of the process that joined, no call uses the
//! connection, and every call that returns a [`Result`] returns an error.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use peerweave_types::Pe;

use crate::error::{BootstrapError, Loss};
use crate::job::endpoint::Endpoint;
use crate::job::host::{Host, Hosts};
use crate::job::{Job, Served};
use crate::server::{Server, ServerOptions};
use crate::wire::proto::{Collective, Fault, Frame, JOIN_REQUEST, MAX_BLOB_LEN_BYTES, MAX_KEY_LEN_BYTES, ProtocolError};

mod abort;
mod connection;
mod join;
#[cfg(target_os = "linux")]
mod siblings;
mod store;

pub use abort::Aborted;
use connection::{Answer, Closed, Connection};
pub(crate) use join::Ended;
use join::{Watched, connect, pause, serve};

/// Options with which a PE joins a rendezvous.
///
/// ```
/// use std::time::Duration;
/// use peerweave_bootstrap::Options;
///
/// let patient = Options { deadline: Duration::from_secs(600), ..Options::default() };
/// # assert!(patient.deadline > Options::default().deadline);
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    /// Maximum time for joining, and for each later call.
    pub deadline: Duration,
    /// Options for the server, if this PE runs the server.
    pub server: ServerOptions,
    /// The host on which this PE runs. `None` means the host of this process. Set the host if the
    /// PEs are threads of one process but have different hosts.
    pub host: Option<Host>,
}

impl Default for Options {
    fn default() -> Self {
        Self { deadline: Duration::from_secs(60), server: ServerOptions::default(), host: None }
    }
}

/// The membership of this process in its job. Threads can share this value.
///
/// To end the membership, call [`leave`](Self::leave). Dropping this value only closes the
/// connection: PEs that wait for this PE get an error that says that this PE is lost.
///
/// ```
/// use peerweave_bootstrap::{Job, Options, Rendezvous};
///
/// let rendezvous = Rendezvous::join(&Job::single(), Options::default())?;
/// assert_eq!(rendezvous.exchange("who", b"me")?, [b"me"]);
/// rendezvous.put("color", b"blue")?;
/// assert_eq!(rendezvous.get("color")?, b"blue");
/// rendezvous.remove("color")?;
/// assert_eq!(rendezvous.try_get("color")?, None);
/// rendezvous.leave()?;
/// # Ok::<(), peerweave_bootstrap::BootstrapError>(())
/// ```
pub struct Rendezvous {
    pe: Pe,
    n_pes: u32,
    deadline: Duration,
    served: Served,
    host: Host,
    /// Process ID of the process that joined.
    pid: u32,
    /// Whether `when_aborted` has started a thread that waits for an abort of the job.
    watched: AtomicBool,
    /// The connection to the server, or the store of a job of one PE. This field is declared before
    /// `server`, so the connection closes before the server stops. The server of PE 0 can then
    /// still detect that PE 0 has left.
    link: Link,
    server: Option<Server>,
    #[cfg(target_os = "linux")]
    pub(crate) descriptor_calls: Mutex<HashMap<Vec<Pe>, DescriptorCalls>>,
}

/// State of this PE's calls of `share_descriptor` and `exchange_descriptors` for one list of
/// members.
#[cfg(target_os = "linux")]
#[derive(Debug, Default)]
pub(crate) struct DescriptorCalls {
    /// Number of calls of both functions that this PE has made with this list of members.
    pub(crate) count: u64,
    /// Key that this PE published as the leader of a failed call. The key stays in the key-value
    /// store, because other members may still have to read its value. This PE's next call with the
    /// same members removes the key.
    pub(crate) stale_key: Option<String>,
}

enum Link {
    /// A job of one PE, which has no server. The key-value store is in this process.
    Alone {
        store: Mutex<HashMap<String, Vec<u8>>>,
        news: Condvar,
    },
    Joined {
        connection: Arc<Connection>,
        endpoint: Endpoint,
    },
}

impl Rendezvous {
    /// Joins the job and returns when all PEs have joined.
    ///
    /// With [`Served::ByPe0`], PE 0 runs the server. A job of one PE opens no socket.
    ///
    /// # Joining twice
    /// A job has one rendezvous, and each PE joins it once. The server has one connection for each
    /// PE, and the connection shows whether the PE is alive. A second connection of the same PE
    /// would make this unclear. So the server refuses a PE that has joined before, even if the PE
    /// has left or died: [`BootstrapError::Refused`] with
    /// [`Refusal::AlreadyJoined`](crate::Refusal::AlreadyJoined). A program that needs the
    /// rendezvous in several places must share the value that the first call returned.
    ///
    /// With [`Served::ByPe0`], a second join of PE 0 starts a second server. As long as the first
    /// server runs, the join fails with [`BootstrapError::Io`], because the address is in use. The
    /// error is returned after 3 s at most. While the first server runs, it refuses other PEs
    /// that join again. After the first server has ended, all PEs can join again.
    ///
    /// In a job of one PE, each call creates an independent rendezvous.
    ///
    /// # Watched processes
    /// If the job was read from torchrun's variables and runs on one machine, the processes are
    /// also watched. If a PE's process was found in `/proc` and ends before the PE has joined, the
    /// PE is reported as lost half a second later. The README of the crate describes which
    /// processes are watched.
    ///
    /// # Collective
    /// All PEs of the job. Each PE joins once.
    ///
    /// # Errors
    /// [`BootstrapError::Timeout`] names the PEs that did not arrive. [`BootstrapError::PeLost`]
    /// names a PE that was lost during the join. [`BootstrapError::Refused`] if the server refuses
    /// this PE, for example because this PE has joined before, or because the server belongs to
    /// another job. [`BootstrapError::Misuse`] if the fields of `job` are inconsistent.
    /// [`BootstrapError::Io`] if this PE runs the server, and the address of the server is in use.
    pub fn join(job: &Job, options: Options) -> Result<Self, BootstrapError> {
        let start = Instant::now();
        // Ten years is practically unlimited, and adding it to the present time does not overflow.
        let options = Options { deadline: options.deadline.min(Duration::from_secs(10 * 365 * 86_400)), ..options };
        job.check("join")?;
        let deadline = start + options.deadline;
        let server = match (&job.rendezvous, job.served, job.pe.get()) {
            (Some(endpoint), Served::ByPe0, 0) if job.n_pes > 1 => Some(serve(job, endpoint, &options.server, deadline)?),
            _ => None,
        };
        Self::join_watching(job, server, Watched::siblings_of(job), (start, deadline), &options)
    }

    /// Joins a job whose server PE 0 has already started. PE 0 passes the server as `server`, and
    /// other PEs pass `None`. `ended` finds the PEs that will never join ([`Ended`]). `until` is
    /// the deadline of the join. `deadline` is the maximum time for each later call.
    pub(crate) fn join_served(
        job: &Job,
        server: Option<Server>,
        ended: Ended<'_>,
        until: Instant,
        deadline: Duration,
    ) -> Result<Self, BootstrapError> {
        job.check("join")?;
        let options = Options { deadline, ..Options::default() };
        Self::join_watching(job, server, Watched::ByCaller(ended), (Instant::now(), until), &options)
    }

    fn join_watching(
        job: &Job,
        server: Option<Server>,
        mut watched: Watched<'_>,
        (start, until): (Instant, Instant),
        options: &Options,
    ) -> Result<Self, BootstrapError> {
        let host = options.host.clone().unwrap_or_else(Host::here);
        let member = |link, server| Self {
            pe: job.pe,
            n_pes: job.n_pes,
            deadline: options.deadline,
            served: job.served,
            host: host.clone(),
            pid: std::process::id(),
            watched: AtomicBool::new(false),
            link,
            server,
            #[cfg(target_os = "linux")]
            descriptor_calls: Mutex::default(),
        };
        let endpoint = match &job.rendezvous {
            Some(endpoint) if job.n_pes > 1 => endpoint,
            _ => return Ok(member(Link::Alone { store: Mutex::default(), news: Condvar::new() }, None)),
        };
        let endpoint = server.as_ref().map_or(endpoint, Server::here).clone();
        let connection = connect(job, &endpoint, &mut watched, start, until)?;
        let answer = match &server {
            Some(server) => watched.report_while_waiting(server, &connection, until),
            None => connection.wait(JOIN_REQUEST, until),
        };
        let mut joined = member(Link::Joined { connection, endpoint }, server);
        match answer {
            Answer::Done(_) => {
                tracing::debug!(pe = job.pe.get(), n_pes = job.n_pes, waited = ?start.elapsed(), "joined");
                Ok(joined)
            }
            answer => {
                let error = joined.error("join".to_owned(), answer, start);
                // If this PE waited in vain for missing PEs, leaving reports those PEs as the
                // cause, not this PE.
                joined.notify_leaving(Instant::now() + LEAVE_TIMEOUT);
                if let Some(server) = joined.server.take() {
                    // A PE that starts now would wait for a server until its own deadline, and
                    // would then report this PE as missing. So the server runs a little longer.
                    let until = until.min(Instant::now() + LATECOMERS);
                    while !server.state().awaited.is_empty() && Instant::now() < until {
                        thread::sleep(Duration::from_millis(1));
                    }
                    server.shutdown();
                }
                Err(error)
            }
        }
    }

    /// Returns the number of this PE.
    pub fn pe(&self) -> Pe {
        self.pe
    }

    /// Returns the number of PEs in the job.
    pub fn n_pes(&self) -> u32 {
        self.n_pes
    }

    /// Returns the host of this PE.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Returns the hosts of all PEs. The result is the same on every PE.
    ///
    /// # Collective
    /// All PEs of the job.
    ///
    /// # Errors
    /// As for [`exchange`](Self::exchange).
    pub fn hosts(&self) -> Result<Hosts, BootstrapError> {
        let all = self.exchange("peerweave/hosts", &self.host.to_bytes())?;
        let all: Option<Vec<Host>> = all.iter().map(|bytes| Host::from_bytes(bytes)).collect();
        let source = ProtocolError::Field { field: "host" };
        all.map(|all| Hosts::new(&all)).ok_or(BootstrapError::Protocol { call: "hosts", source })
    }

    /// Returns the maximum time for each call.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Returns the server if this PE runs the server, otherwise `None`.
    pub fn server(&self) -> Option<&Server> {
        self.server.as_ref()
    }

    /// Sends a blob to all PEs and returns the blobs of all PEs, in the order of the PEs.
    ///
    /// # Collective
    /// All PEs must call this function with the same label, and make their collective calls in the
    /// same order. The blobs can have different lengths, each of up to 1 MiB.
    ///
    /// # Errors
    /// - [`BootstrapError::Mismatch`] on every PE if the labels or the calls differ.
    /// - [`BootstrapError::PeLost`] as soon as a PE is lost.
    /// - [`BootstrapError::Timeout`], which names the PEs that did not call in time.
    /// - [`BootstrapError::TooLarge`] if the blob or the label exceeds its size limit.
    pub fn exchange(&self, label: &str, blob: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
        self.collective(Collective::Exchange, label, blob, self.deadline)
    }

    /// Like [`exchange`](Self::exchange), but waits for at most `within`, which may be shorter or
    /// longer than [`deadline`](Self::deadline).
    ///
    /// # Errors
    /// As for [`exchange`](Self::exchange).
    pub fn exchange_within(&self, label: &str, blob: &[u8], within: Duration) -> Result<Vec<Vec<u8>>, BootstrapError> {
        self.collective(Collective::Exchange, label, blob, within)
    }

    /// Waits until all PEs have called `barrier` with the same label.
    ///
    /// # Collective
    /// As for [`exchange`](Self::exchange).
    ///
    /// # Errors
    /// As for [`exchange`](Self::exchange).
    pub fn barrier(&self, label: &str) -> Result<(), BootstrapError> {
        self.barrier_within(label, self.deadline)
    }

    /// Like [`barrier`](Self::barrier), but waits for at most `within`, which may be shorter or
    /// longer than [`deadline`](Self::deadline).
    ///
    /// # Errors
    /// As for [`exchange`](Self::exchange).
    pub fn barrier_within(&self, label: &str, within: Duration) -> Result<(), BootstrapError> {
        self.collective(Collective::Barrier, label, &[], within).map(|_| ())
    }

    /// Returns the process ID of each PE, in the order of the PEs. Each process ID is valid in the
    /// PID namespace of the PE to which it belongs.
    ///
    /// # Collective
    /// As for [`exchange`](Self::exchange).
    ///
    /// # Errors
    /// As for [`exchange`](Self::exchange).
    pub fn peers_pids(&self) -> Result<Vec<u32>, BootstrapError> {
        let pids = self.exchange("peerweave/pids", &self.pid.to_le_bytes())?;
        let read = |blob: Vec<u8>| blob.try_into().map(u32::from_le_bytes);
        let wrong = |_| BootstrapError::Protocol { call: "peers_pids", source: ProtocolError::Field { field: "pid" } };
        pids.into_iter().map(|blob| read(blob).map_err(wrong)).collect()
    }

    /// Returns the PEs that are known to be lost, in the order in which they were lost. Sends no
    /// request, because the server reports each loss to every PE. If the job has been aborted and
    /// this PE has called [`when_aborted`](Self::when_aborted), this call may sleep for a second.
    /// In this second, the function passed to `when_aborted` can end this process.
    ///
    /// Call this function regularly while the PE waits for peers outside of this crate, for example
    /// on shared memory. A PE that called [`leave`](Self::leave) is not lost.
    ///
    /// ```
    /// use peerweave_bootstrap::{Job, Options, Rendezvous};
    ///
    /// let rendezvous = Rendezvous::join(&Job::single(), Options::default())?;
    /// assert!(rendezvous.losses().is_empty());
    /// # Ok::<(), peerweave_bootstrap::BootstrapError>(())
    /// ```
    pub fn losses(&self) -> Vec<(Pe, Loss)> {
        let Link::Joined { connection, .. } = &self.link else { return Vec::new() };
        if self.check_process("losses").is_err() {
            return Vec::new();
        }
        let (faults, server_gone) = connection.losses();
        if !faults.is_empty() || server_gone {
            self.yield_to_abort();
        }
        let mut losses: Vec<(Pe, Loss)> = faults.iter().filter_map(|fault| Some((Pe::new(fault.pe()?), fault.loss()))).collect();
        let pe0 = Pe::new(0);
        if server_gone && self.served == Served::ByPe0 && self.pe != pe0 && losses.iter().all(|(pe, _)| *pe != pe0) {
            losses.push((pe0, Loss::Disconnected));
        }
        losses
    }

    /// Checks with one round trip to the server that no PE is lost. Call this function regularly
    /// while the PE waits for peers outside of this crate.
    ///
    /// A PE that called [`leave`](Self::leave) is not lost.
    ///
    /// # Errors
    /// [`BootstrapError::PeLost`] names the PE that was lost first.
    pub fn check(&self) -> Result<(), BootstrapError> {
        self.check_by(Instant::now() + self.deadline)
    }

    /// Like [`check`](Self::check), but with a time limit for the server's answer. The limit is the
    /// argument `deadline`, or the [`deadline`](Self::deadline) of the rendezvous if that is
    /// shorter.
    ///
    /// # Errors
    /// As for [`check`](Self::check), and [`BootstrapError::Timeout`] if the server has not
    /// answered in time.
    pub fn check_within(&self, deadline: Duration) -> Result<(), BootstrapError> {
        self.check_by(Instant::now() + deadline.min(self.deadline))
    }

    pub(crate) fn check_by(&self, deadline: Instant) -> Result<(), BootstrapError> {
        self.check_process("check")?;
        let Link::Joined { connection, .. } = &self.link else { return Ok(()) };
        let start = Instant::now();
        let request = connection.next_request();
        match connection.request_of_server(request, &Frame::Check { request }, deadline) {
            Answer::Done(_) => Ok(()),
            answer => Err(self.error("check".to_owned(), answer, start)),
        }
    }

    /// Records that this PE is about to end because of the PE `pe`. If this PE then drops its
    /// [`Rendezvous`] or exits, PEs that wait for this PE get `pe` as the cause. Does not wait for
    /// an answer.
    ///
    /// ```
    /// use peerweave_bootstrap::{Job, Options, Pe, Rendezvous};
    ///
    /// let rendezvous = Rendezvous::join(&Job::single(), Options::default())?;
    /// rendezvous.report_root_cause(Pe::new(3)); // a job of one PE: no PE is notified
    /// # Ok::<(), peerweave_bootstrap::BootstrapError>(())
    /// ```
    pub fn report_root_cause(&self, pe: Pe) {
        if let Link::Joined { connection, .. } = &self.link
            && self.check_process("report_root_cause").is_ok()
        {
            connection.send_only(&Frame::Blame { pe: pe.get() }, Instant::now() + LEAVE_TIMEOUT);
        }
    }

    /// Leaves the job, so that the later end of this process is not reported as the loss of a PE.
    ///
    /// If PE 0 runs the server, the call of PE 0 waits until the other PEs have left or are lost,
    /// because calls of the other PEs need the server.
    ///
    /// # Errors
    /// [`BootstrapError::Timeout`] on PE 0, if PE 0 runs the server. The error names the PEs that
    /// had not left by the deadline.
    pub fn leave(mut self) -> Result<(), BootstrapError> {
        self.check_process("leave")?;
        let start = Instant::now();
        self.notify_leaving(start + self.deadline.min(LEAVE_TIMEOUT));
        let Some(server) = self.server.take() else { return Ok(()) };
        let missing = loop {
            let still_there = server.state().joined;
            if still_there.is_empty() || start.elapsed() >= self.deadline {
                break still_there;
            }
            thread::sleep(pause(start));
        };
        server.shutdown();
        match missing.is_empty() {
            true => Ok(()),
            false => Err(BootstrapError::Timeout { call: "leave".to_owned(), waited: start.elapsed(), missing }),
        }
    }

    fn collective(
        &self,
        collective: Collective,
        label: &str,
        blob: &[u8],
        within: Duration,
    ) -> Result<Vec<Vec<u8>>, BootstrapError> {
        self.check_process(collective.name())?;
        let call = || format!("{}({label:?})", collective.name());
        check_len("label", label.len(), MAX_KEY_LEN_BYTES, call)?;
        check_len("blob", blob.len(), MAX_BLOB_LEN_BYTES, call)?;
        let Link::Joined { connection, .. } = &self.link else { return Ok(vec![blob.to_owned()]) };
        let start = Instant::now();
        let request = connection.next_round();
        let frame = Frame::Enter { request, collective, label: label.to_owned(), blob: blob.to_owned() };
        let n_blobs = if collective == Collective::Exchange { self.n_pes as usize } else { 0 };
        match connection.request(request, &frame, start + within.min(LONGEST_WAIT)) {
            Answer::Done(blobs) if blobs.len() == n_blobs => Ok(blobs),
            answer => Err(self.error(call(), answer, start)),
        }
    }

    pub(crate) fn check_process(&self, call: &'static str) -> Result<(), BootstrapError> {
        let called_by = std::process::id();
        match called_by == self.pid {
            true => Ok(()),
            false => Err(BootstrapError::Forked { call, joined_by: self.pid, called_by }),
        }
    }

    /// Notifies the server that this PE leaves, and waits until the server closes the connection.
    fn notify_leaving(&self, deadline: Instant) {
        if let Link::Joined { connection, .. } = &self.link {
            let request = connection.next_request();
            // The answer is the end of the connection. A late answer or an error no longer matters.
            let _ = connection.request(request, &Frame::Leave, deadline);
        }
    }

    fn error(&self, call: String, answer: Answer, start: Instant) -> BootstrapError {
        let waited = start.elapsed();
        if matches!(answer, Answer::Failed(_) | Answer::Closed(_)) {
            self.yield_to_abort();
        }
        match answer {
            Answer::Late(missing) => BootstrapError::Timeout { call, waited, missing: pes(missing) },
            Answer::Failed(Fault::GaveUp { missing, .. }) if !missing.contains(&self.pe.get()) => {
                BootstrapError::Timeout { call, waited, missing: pes(missing) }
            }
            Answer::Failed(Fault::Mismatch { one, one_call, other, other_call }) => {
                BootstrapError::Mismatch { call, one: one.into(), one_call, other: other.into(), other_call }
            }
            Answer::Failed(Fault::StoreFull { len_bytes, limit_bytes }) => {
                BootstrapError::TooLarge { call, what: "the data stored by the server", len_bytes, limit_bytes }
            }
            Answer::Failed(Fault::Closing) | Answer::Closed(Closed::ByServer) => self.server_gone(call),
            Answer::Failed(fault) => {
                let (Fault::Disconnected { pe } | Fault::Left { pe } | Fault::Reported { pe, .. } | Fault::GaveUp { pe, .. }) =
                    fault
                else {
                    return self.server_gone(call);
                };
                BootstrapError::PeLost { call, pe: pe.into(), cause: fault.loss() }
            }
            Answer::Closed(Closed::Broken(error)) => error,
            Answer::Done(_) | Answer::Value(_) | Answer::Absent => {
                BootstrapError::Protocol { call: "receive", source: ProtocolError::OutOfPlace { kind: "answer" } }
            }
        }
    }

    fn server_gone(&self, call: String) -> BootstrapError {
        match (&self.link, self.served) {
            (_, Served::ByPe0) => BootstrapError::PeLost { call, pe: Pe::new(0), cause: Loss::Disconnected },
            (Link::Joined { endpoint, .. }, _) => BootstrapError::ServerGone { call, endpoint: endpoint.to_string() },
            (Link::Alone { .. }, _) => BootstrapError::ServerGone { call, endpoint: String::new() },
        }
    }
}

impl fmt::Debug for Rendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rendezvous").field("pe", &self.pe).field("n_pes", &self.n_pes).finish_non_exhaustive()
    }
}

/// Maximum time limit of a call: one year. Longer limits are reduced to one year, because the sum
/// of the present time and a very long limit would overflow.
const LONGEST_WAIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// Time limit for notifying the server that this PE leaves. The limit can be short, because the
/// server only needs to read one frame.
const LEAVE_TIMEOUT: Duration = Duration::from_millis(500);

/// Time for which the server of PE 0 continues to run after a failed join. PEs that start a little
/// later than PE 0 can then still connect and get the cause of the failure.
const LATECOMERS: Duration = Duration::from_millis(1500);

fn check_len(
    what: &'static str,
    len_bytes: usize,
    limit_bytes: usize,
    call: impl FnOnce() -> String,
) -> Result<(), BootstrapError> {
    match len_bytes <= limit_bytes {
        true => Ok(()),
        false => {
            let (len_bytes, limit_bytes) = (len_bytes as u64, limit_bytes as u64);
            Err(BootstrapError::TooLarge { call: call(), what, len_bytes, limit_bytes })
        }
    }
}

fn pes(indices: Vec<u32>) -> Vec<Pe> {
    indices.into_iter().map(Pe::new).collect()
}
