//! Waits with a deadline for enqueued work, and finds the ranks that have not issued the matching
//! calls. `lifecycle.rs` ends communicators whose work is stuck.
//!
//! Invariant: a rank publishes its last call only after a wait, a call or enqueued work of this
//! rank has passed its deadline, or in [`Communicator::report`]. So this module adds no cost to
//! collectives that complete in time.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use peerweave_bootstrap::{BootstrapError, Rendezvous};
use peerweave_driver::{CudaCode, CudaError, CudaStream, DriverError, deadline_after, is_capturing, relaxed, wait_until};

use crate::Rank;
use crate::comm::abort::{ABORT_LIMIT, abort_together};
use crate::comm::communicator::Communicator;
use crate::comm::siblings::{self, LeftOut};
use crate::library::error::{MisuseKind, NcclError, PeerLost, RankReport, Timeout};
use crate::member::membership::{self, Inner, PROBE_TIMEOUT};
use crate::member::spans;
use crate::member::state::State;
use crate::sys::ncclResult_t;

/// Selects how [`Communicator::wait_with`] handles pending work after a timeout or an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnExpiry {
    /// Aborts all ranks that the communicator has in this process. Other communicators are not
    /// affected.
    #[default]
    Abort,
    /// Aborts every communicator in the process. This is useful if stuck work blocks other
    /// communicators on the same device.
    AbortAll,
    /// Aborts nothing. The work and its stream stay stuck until the caller ends the work. For
    /// example, [`Communicator::revoke`] ends the work, and so does [`Communicator::shrink`] with
    /// [`ShrinkMode::Abort`](crate::ShrinkMode::Abort).
    LeaveAlone,
}

/// Interval at which NCCL is queried for asynchronous errors.
const ASK_EVERY: Duration = Duration::from_millis(2);

/// Interval at which a waiter queries the rendezvous for lost ranks.
const WATCH_EVERY: Duration = Duration::from_millis(50);
/// Time limit of one query that asks the rendezvous for lost ranks. The rendezvous usually responds
/// within 0.1 ms.
const WATCH_PATIENCE: Duration = Duration::from_millis(20);

/// Time for which a wait continues after the rendezvous has reported a lost rank. The lost rank may
/// have done its part of the awaited work before the loss. The work can then still complete within
/// this time.
const LAST_WORK: Duration = Duration::from_millis(500);

/// Maximum time for which a rank waits for the reports of the other ranks after a wait has failed.
/// A report contains the last call of a rank. Also the time limit of a query that asks the
/// rendezvous for lost ranks, and of the polling that repeats this query after an error of NCCL.
const REPORTS: Duration = Duration::from_millis(500);

impl Communicator {
    /// Waits until all work enqueued in the stream is complete. Polls the communicator for errors
    /// while waiting. Another thread that is blocked in a call on the communicator does not delay
    /// this call.
    ///
    /// After a timeout, or if the work fails, **the communicator is aborted**. All of its ranks in
    /// this process are aborted, each on a separate thread. Other communicators are not affected.
    /// [`wait_with`](Self::wait_with) can instead abort nothing, or abort all communicators in the
    /// process.
    ///
    /// # Errors
    /// - [`NcclError::Timeout`] at the deadline. The error names the last call and its number. It
    ///   also names the ranks that have issued fewer calls, or have published no report of their
    ///   last call. Ranks of other processes are named only if the communicator has a rendezvous.
    /// - [`MisuseKind::NotInGroup`] if this thread also drives another rank of the communicator,
    ///   and has not issued the call for that rank. If the deadline is longer than half a second,
    ///   this error is returned before the deadline.
    /// - [`NcclError::PeerLost`] half a second after the rendezvous reports that a rank has died,
    ///   or at an earlier deadline.
    /// - [`NcclError::Nccl`] if NCCL reports an asynchronous error.
    /// - [`NcclError::Misuse`] if the stream is being captured or does not belong to the
    ///   communicator's device.
    /// - [`NcclError::Dead`] if another thread ended the communicator during the wait.
    /// - [`NcclError::Cuda`] if the work failed.
    pub fn wait(&self, stream: &Arc<CudaStream>, deadline: Duration) -> Result<(), NcclError> {
        self.wait_with(stream, deadline, OnExpiry::default())
    }

    /// Waits like [`wait`](Self::wait), for at most the communicator's own
    /// [`deadline`](Self::deadline).
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub fn synchronize(&self, stream: &Arc<CudaStream>) -> Result<(), NcclError> {
        self.wait(stream, self.deadline())
    }

    /// Waits like [`wait`](Self::wait). `on_expiry` selects how pending work is handled after a
    /// timeout or an error.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub fn wait_with(&self, stream: &Arc<CudaStream>, deadline: Duration, on_expiry: OnExpiry) -> Result<(), NcclError> {
        const CALL: &str = "wait";
        let inner = &self.inner;
        inner.nccl.not_forked(CALL)?;
        let _span = spans::of(inner, CALL);
        inner.check_stream(CALL, stream)?;
        // The query itself would invalidate the capture.
        if is_capturing(stream)? {
            let why = "the stream is being captured, so it has no running work to wait for; end the capture first";
            return Err(NcclError::misuse(CALL, MisuseKind::Context { why }));
        }
        inner.bind()?;
        let (start, mut asked) = (Instant::now(), Instant::now());
        let (mut watch, mut left_out) = (Watch::default(), LeftOut::new(deadline));
        let done = wait_until(deadline_after(deadline), || {
            // SAFETY: the stream lives as long as the `Arc` that holds it.
            let code = relaxed(|| unsafe { inner.driver.api().cuStreamQuery(stream.cu_stream()) }).map_err(DriverError::from);
            let is_done = match code.map_err(|error| Stop::Unasked(error.into()))? {
                CudaCode::SUCCESS => true,
                CudaCode::NOT_READY => false,
                code if is_about_asking(code) => return Err(Stop::Unasked(CudaError::new("cuStreamQuery", code).into())),
                code => return Err(Stop::Failed(CudaError::new("cuStreamQuery", code).into())),
            };
            if is_done || asked.elapsed() >= ASK_EVERY {
                asked = Instant::now();
                look(inner, CALL, if is_done { PROBE_TIMEOUT } else { Duration::ZERO })?;
                if !is_done {
                    watch.look(inner, start.elapsed()).map_err(Stop::Failed)?;
                    left_out.look(CALL, inner, start.elapsed()).map_err(Stop::Failed)?;
                }
            }
            Ok(is_done)
        });
        let error = match done {
            Ok(true) => return Ok(()),
            Ok(false) => expired(inner, start.elapsed()),
            Err(Stop::Unasked(error)) => return Err(error),
            Err(Stop::Failed(error)) => root_cause(inner, error),
        };
        let aborted = match on_expiry {
            OnExpiry::Abort => siblings::of_process(inner),
            OnExpiry::AbortAll => membership::all(),
            OnExpiry::LeaveAlone => return Err(error),
        };
        for other in aborted.iter().filter(|other| !Arc::ptr_eq(other, inner) && other.identity == inner.identity) {
            // Waits of other threads on the same communicator fail for the same reason.
            let _ = other.abort_reason.set(error.clone());
        }
        match abort_together(&aborted, ABORT_LIMIT) {
            Ok(count) => tracing::error!(%error, count, "aborted communicators of this process, because a wait failed"),
            Err(late) => {
                tracing::error!(%error, %late, "a wait failed, and at least one communicator of this process could not be aborted")
            }
        }
        Err(error)
    }

    /// Publishes this rank's last call to the other ranks, and returns the reports that the other
    /// ranks have already published. Returns an empty list if the communicator has no rendezvous,
    /// or if its rendezvous has been dropped.
    ///
    /// # Errors
    /// [`NcclError::Bootstrap`] if the rendezvous fails; [`NcclError::Forked`].
    pub fn report(&self) -> Result<Vec<RankReport>, NcclError> {
        const CALL: &str = "report";
        let inner = &self.inner;
        inner.nccl.not_forked(CALL)?;
        let Some(rendezvous) = inner.world.as_ref().and_then(|world| world.rendezvous.upgrade()) else { return Ok(Vec::new()) };
        publish(inner, &rendezvous).map_err(NcclError::bootstrap(CALL))?;
        let others = others(inner).into_iter();
        others.filter_map(|rank| reported(inner, &rendezvous, rank).map_err(NcclError::bootstrap(CALL)).transpose()).collect()
    }
}

/// The reason why a wait ends before its deadline.
enum Stop {
    /// It is unknown whether the work has failed. Either a query of the work's state failed, or the
    /// communicator had already become unusable, for example by an abort on another thread.
    Unasked(NcclError),
    /// The work has failed.
    Failed(NcclError),
}

/// Returns whether an error code of `cuStreamQuery` describes a failure of the query itself, and
/// not a failure of the work in the stream.
fn is_about_asking(code: CudaCode) -> bool {
    // Errors of parameters, contexts, handles and captures.
    matches!(code.0, 1 | 3 | 4 | 200 | 201 | 400 | 401) || (900..=908).contains(&code.0)
}

/// Fails if the work of the communicator has failed: if NCCL reports an asynchronous error, or if
/// the communicator is neither live nor suspended. A query of the stream is not sufficient: after a
/// revocation or an abort, the stream looks complete although the work failed.
///
/// On a non-blocking communicator, only the thread that holds the communicator's lock may query
/// NCCL. This function waits for the lock for at most `patience`. If another thread holds the lock
/// for longer, this function succeeds without a query. That thread then detects the asynchronous
/// errors in its own NCCL calls.
fn look(inner: &Arc<Inner>, call: &'static str, patience: Duration) -> Result<(), Stop> {
    let state = inner.gate.state();
    if state != State::Live && state != State::Suspended {
        // The recorded reason of an abort names the call whose work was late.
        return Err(Stop::Unasked(inner.abort_reason.get().cloned().unwrap_or_else(|| inner.dead(call, state))));
    }
    let because = |error| inner.abort_reason.get().cloned().unwrap_or(error);
    match inner.async_code(call, patience).map_err(|error| Stop::Unasked(because(error)))? {
        ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress => Ok(()),
        code => {
            let error = inner.failure(inner.last().1, code);
            let _ = inner.gate.change(State::Live, State::Failed);
            Err(Stop::Failed(error))
        }
    }
}

/// Returns the other ranks of the communicator.
fn others(inner: &Inner) -> Vec<Rank> {
    (0..inner.n_ranks as u32).map(Rank::new).filter(|rank| *rank != inner.rank).collect()
}

fn key(inner: &Inner, rank: Rank) -> String {
    format!("peerweave-nccl/{:016x}/{}", inner.identity, rank.get())
}

fn publish(inner: &Inner, rendezvous: &Rendezvous) -> Result<(), BootstrapError> {
    let (sequence, call) = inner.last();
    rendezvous.put(&key(inner, inner.rank), format!("{sequence} {call}").as_bytes())
}

fn reported(inner: &Inner, rendezvous: &Rendezvous, rank: Rank) -> Result<Option<RankReport>, BootstrapError> {
    let Some(text) = rendezvous.try_get(&key(inner, rank))? else { return Ok(None) };
    let text = String::from_utf8_lossy(&text).into_owned();
    let (sequence, call) = text.split_once(' ').unwrap_or((&text, ""));
    Ok(sequence.parse().ok().map(|sequence| RankReport { rank, sequence, call: call.to_owned() }))
}

/// State of a search for lost ranks. The search queries the rendezvous repeatedly during a wait.
/// Over NVLink, NCCL does not detect that a rank has died. Without the search, the wait would last
/// until the deadline.
#[derive(Default)]
pub(crate) struct Watch {
    /// Time at which the rendezvous is queried next, counted from the start of the wait. `None`
    /// before the first check.
    next: Option<Duration>,
    /// The lost ranks, and the time at which the rendezvous reported the loss.
    gone: Option<(Vec<Rank>, Instant)>,
}

impl Watch {
    /// Called repeatedly during a wait. Asks the rendezvous at intervals whether ranks were lost.
    /// After a loss was reported, the wait may continue for [`LAST_WORK`]. Once this time has
    /// passed, this function fails.
    pub(crate) fn look(&mut self, inner: &Arc<Inner>, waited: Duration) -> Result<(), NcclError> {
        if let Some((ranks, since)) = &mut self.gone {
            if since.elapsed() < LAST_WORK {
                return Ok(());
            }
            let ((_, call), communicator) = (inner.last(), Some(Arc::clone(&inner.name)));
            return Err(PeerLost { call, communicator, ranks: std::mem::take(ranks), last_error: String::new() }.into());
        }
        if self.is_due(waited)
            && let Some(rendezvous) = inner.world.as_ref().and_then(|world| world.rendezvous.upgrade())
        {
            let start = Instant::now();
            let gone = PeerReports::gone_within(inner, &rendezvous, WATCH_PATIENCE);
            self.answered(waited, start.elapsed(), gone);
        }
        Ok(())
    }

    fn is_due(&mut self, waited: Duration) -> bool {
        waited >= *self.next.get_or_insert(WATCH_EVERY)
    }

    /// Stores `gone`, the lost ranks that the rendezvous has reported, and sets the time of the
    /// next query. `took` is the duration of the current query. The pause until the next query is
    /// at least ten times as long, so that queries to a slow server take at most a tenth of the
    /// waiting time.
    fn answered(&mut self, waited: Duration, took: Duration, gone: Vec<Rank>) {
        self.next = Some(waited + took * 10 + WATCH_EVERY);
        self.gone = (!gone.is_empty()).then(|| (gone, Instant::now()));
    }
}

/// Queries the rendezvous on a separate thread, because a lost or blocked server must not delay the
/// calling thread beyond its deadline. Returns the default value if there is no rendezvous or no
/// answer within one second.
fn ask_rendezvous<R: Default + Send + 'static>(
    inner: &Arc<Inner>,
    ask: impl FnOnce(&Inner, &Rendezvous) -> R + Send + 'static,
) -> R {
    let Some(rendezvous) = inner.world.as_ref().and_then(|world| world.rendezvous.upgrade()) else { return R::default() };
    let (sender, receiver) = channel();
    let asking = Arc::clone(inner);
    let body = move || {
        let _ = sender.send(ask(&asking, &rendezvous));
    };
    match std::thread::Builder::new().name("peerweave-reports".into()).spawn(body) {
        Ok(_) => receiver.recv_timeout(2 * REPORTS).unwrap_or_default(),
        Err(_) => R::default(),
    }
}

/// Converts an error of NCCL to [`NcclError::PeerLost`] if the rendezvous reports a lost rank.
/// Called without the communicator's lock, because the query may take half a second or more.
#[cold]
pub(crate) fn root_cause(inner: &Arc<Inner>, error: NcclError) -> NcclError {
    let NcclError::Nccl(failure) = &error else { return error };
    if !failure.code.may_be_a_loss() {
        return error;
    }
    // NCCL detects a closed connection immediately. The rendezvous detects the dead process a
    // little later, so this thread polls the rendezvous.
    let gone = ask_rendezvous(inner, |inner, rendezvous| {
        let mut gone = Vec::new();
        let _ = wait_until(Instant::now() + REPORTS, || {
            gone = PeerReports::gone(inner, rendezvous);
            Ok::<_, BootstrapError>(!gone.is_empty())
        });
        gone
    });
    if gone.is_empty() {
        return error;
    }
    let (communicator, last_error) = (failure.communicator.clone(), failure.last_error.clone());
    PeerLost { call: failure.call, communicator, ranks: gone, last_error }.into()
}

/// Returns the error of a wait that timed out, with the reports of the other ranks.
#[cold]
pub(crate) fn expired(inner: &Arc<Inner>, waited: Duration) -> NcclError {
    let (sequence, call) = inner.last();
    let call = if call.is_empty() { "wait" } else { call };
    let reports_of_peers = ask_rendezvous(inner, PeerReports::gather);
    let communicator = Some(Arc::clone(&inner.name));
    let reports_of_peers = reports_of_peers.with(siblings::reports(inner), sequence);
    if !reports_of_peers.gone.is_empty() {
        let last_error = inner.nccl.last_error_text(std::ptr::null_mut());
        return PeerLost { call, communicator, ranks: reports_of_peers.gone, last_error }.into();
    }
    Timeout {
        call,
        sequence: Some(sequence),
        waited,
        communicator,
        missing: reports_of_peers.missing,
        reports: reports_of_peers.reports,
    }
    .into()
}

/// Information about the other ranks. `gone` contains the lost ranks. `missing` contains the ranks
/// that have issued fewer calls than this rank, or have published no report. `reports` contains the
/// last calls that the other ranks have reported.
#[derive(Default)]
struct PeerReports {
    gone: Vec<Rank>,
    missing: Vec<Rank>,
    reports: Vec<RankReport>,
}

impl PeerReports {
    /// Returns the ranks that the rendezvous reports as lost.
    fn gone(inner: &Inner, rendezvous: &Rendezvous) -> Vec<Rank> {
        Self::gone_within(inner, rendezvous, REPORTS)
    }

    fn gone_within(inner: &Inner, rendezvous: &Rendezvous, patience: Duration) -> Vec<Rank> {
        if !inner.world.as_ref().is_some_and(|world| world.ranks_are_pes) {
            return Vec::new();
        }
        match rendezvous.check_within(patience) {
            Err(lost @ BootstrapError::PeLost { .. }) => lost.blamed().into_iter().map(|pe| Rank::new(pe.get())).collect(),
            _ => Vec::new(),
        }
    }

    /// Replaces the published reports of the other ranks in this process by `known`, the current
    /// reports of these ranks. Also updates `missing` for these ranks: a rank is missing if the
    /// number of its last call is below `sequence`.
    fn with(mut self, known: Vec<RankReport>, sequence: u64) -> Self {
        for report in known {
            self.missing.retain(|rank| *rank != report.rank);
            self.reports.retain(|other| other.rank != report.rank);
            if report.sequence < sequence {
                self.missing.push(report.rank);
            }
            self.reports.push(report);
        }
        self.missing.sort_unstable();
        self.reports.sort_unstable_by_key(|report| report.rank);
        self
    }

    fn gather(inner: &Inner, rendezvous: &Rendezvous) -> Self {
        let mut reports_of_peers = Self { gone: Self::gone(inner, rendezvous), ..Self::default() };
        if !reports_of_peers.gone.is_empty() {
            return reports_of_peers;
        }
        if publish(inner, rendezvous).is_err() {
            return reports_of_peers;
        }
        let (sequence, _) = inner.last();
        // The waits of the other ranks time out at about the same time, and these ranks then
        // publish their reports.
        let others = others(inner);
        let all = wait_until(Instant::now() + REPORTS, || {
            let found = others.iter().map(|rank| reported(inner, rendezvous, *rank));
            reports_of_peers.reports = found.filter_map(Result::transpose).collect::<Result<_, _>>()?;
            // A rank that reported an earlier call may still publish a newer report.
            let is_new = |report: &RankReport| report.sequence >= sequence;
            Ok::<_, BootstrapError>(reports_of_peers.reports.len() == others.len() && reports_of_peers.reports.iter().all(is_new))
        });
        if let Ok(false) = all {
            reports_of_peers.missing =
                others.into_iter().filter(|rank| reports_of_peers.reports.iter().all(|report| report.rank != *rank)).collect();
        }
        // A rank whose last call is an earlier call is behind.
        reports_of_peers
            .missing
            .extend(reports_of_peers.reports.iter().filter(|report| report.sequence < sequence).map(|report| report.rank));
        reports_of_peers.missing.sort_unstable();
        reports_of_peers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_rendezvous_is_polled_less_often_than_a_fast_one() {
        for (took, most) in [(Duration::ZERO, 40), (WATCH_PATIENCE, 8)] {
            let mut watch = Watch::default();
            let mut asked = 0;
            // Two seconds of polling.
            for look in 0..1000 {
                let waited = ASK_EVERY * look;
                if watch.is_due(waited) {
                    asked += 1;
                    watch.answered(waited, took, Vec::new());
                }
            }
            assert!((most - 1..=most).contains(&asked), "{asked} queries of {took:?} each, expected {most} or one fewer");
        }
    }
}
