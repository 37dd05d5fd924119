//! Joins a PE to a job. The PEs of a job are processes, which meet at the rendezvous, or threads of
//! this process.

use super::Host;
use super::shrink::NextMemory;
use crate::memory::heap::HeapMap;
use crate::memory::layout::{Layout, MAX_PES, MAX_TEAMS, state};
use crate::memory::machine;
use crate::memory::segment::Mapping;
use crate::ops::collective::Purpose;
use crate::ops::launch::Kernels;
use crate::ops::point_to_point::TransferLists;
use crate::ops::queues::Queues;
use crate::ops::shared::{self, Shared};
use crate::platform::{self, ShareError};
use crate::simd;
use crate::sync::abort::{self, JobAbort};
use crate::sync::liveness::Liveness;
use crate::sync::peers::Peers;
use crate::sync::process::Identity;
use crate::sync::root_cause;
use crate::sync::team::Teams;
use peerweave_bootstrap::{Aborted, BootstrapError, Job, Rendezvous, end_process};
use peerweave_core::backend::{
    AbortWord, AccumulatorType, CallChecking, Caps, JobShape, NanRule, PrivateBuffers, ReductionOrder, TeamId,
};
use peerweave_core::{Error, Mismatch, Misuse, MisuseKind, PeerCause, TeamName, Timeout};
use peerweave_fork::ForkGuard;
use peerweave_types::{DType, Pe};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Settings of the host backend. All PEs of a job must pass the same values.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostOptions {
    /// Time limit for every wait for which the caller passes no deadline. A wait may end up to 0.7
    /// s later: after the limit, PEs exchange which PEs they wait for, so that the error names the
    /// PE that caused the timeout.
    pub deadline: Duration,
    /// Size of the symmetric heap of each PE, in bytes. `None` means the size of the machine's
    /// memory on Linux, but at most 16 TiB for all PEs together. On other systems, `None` means 256
    /// MiB. A page takes no memory until the page is accessed.
    pub heap_bytes: Option<usize>,
    /// Whether ranks compare the full parameters of every collective. If `false`, ranks compare
    /// 64-bit signatures of the parameters. In this case, ranks compare the full parameters only in
    /// collectives in which a rank may access the buffers of other ranks.
    pub check_calls: bool,
    /// Whether a PE reads the private buffers of other processes directly, if the system permits
    /// such reads.
    pub cross_memory_attach: bool,
    /// Seed of the order in which the threads of kernels run, as described at
    /// `peerweave_grid::Options::seed`. With a seed other than 0, each launch on each PE has a
    /// different order, which is derived from the seed.
    pub kernel_seed: u64,
}

impl HostOptions {
    /// Default of the field [`deadline`](HostOptions::deadline).
    pub const DEADLINE: Duration = Duration::from_secs(60);
}

impl Default for HostOptions {
    fn default() -> Self {
        Self { deadline: Self::DEADLINE, heap_bytes: None, check_calls: false, cross_memory_attach: true, kernel_seed: 0 }
    }
}

impl Host {
    /// Joins the job that `job` describes. This call is collective over all PEs of the job. All PEs
    /// must be on this machine. In a job of several PEs, each PE joins once: see [joining
    /// twice](peerweave_bootstrap::Rendezvous#joining-twice).
    ///
    /// # Errors
    /// [`Error::Timeout`] names the missing PEs. [`Error::Peer`] names a PE that died.
    /// [`Error::Mismatch`] names a PE with a different heap size. [`Error::Setup`] if the
    /// rendezvous fails for another reason, for example because this PE has joined before.
    /// [`Error::Misuse`] if the job has too many PEs, or if the heaps are too large.
    /// [`Error::Unsupported`] if the job spans several machines, or if the job has several PEs on a
    /// system other than Linux. [`Error::System`] if the memory cannot be mapped.
    pub fn join(job: &Job, options: &HostOptions) -> Result<Self, Error> {
        const CALL: &str = JOIN;
        if !job.is_on_one_machine() {
            return Err(Error::Unsupported {
                call: CALL,
                backend: "host",
                why: "the job spans several machines, but shared memory does not: start all PEs on one machine",
            });
        }
        if let (Err(why), 2..) = (platform::PROCESSES, job.n_pes) {
            return Err(Error::Unsupported { call: CALL, backend: "host", why });
        }
        let until = deadline_after(options.deadline);
        let n_pes = job.n_pes as usize;
        let layout = layout(n_pes, options)?;
        if n_pes == 1 {
            return Self::single(CALL, options, until);
        }
        let meeting = peerweave_bootstrap::Options { deadline: options.deadline, ..Default::default() };
        let rendezvous = Rendezvous::join(job, meeting).map_err(|error| meeting_failed(CALL, n_pes, error))?;
        Self::meet(CALL, Arc::new(rendezvous), layout, options, until)
    }

    /// Creates the backend of a job with only this PE.
    pub(super) fn single(call: &'static str, options: &HostOptions, until: Instant) -> Result<Self, Error> {
        let mapping = Arc::new(Mapping::own(layout(1, options)?).map_err(|error| Error::system(call, error))?);
        announce(&mapping, 0);
        Self::new(0, mapping, options, None, None, until)
    }

    /// Creates the memory of a job, and the backend of this PE. The PEs of the job are processes
    /// that have joined `rendezvous`. All these PEs must call this function.
    pub(super) fn meet(
        call: &'static str,
        rendezvous: Arc<Rendezvous>,
        layout: Layout,
        options: &HostOptions,
        until: Instant,
    ) -> Result<Self, Error> {
        let left = || until.saturating_duration_since(Instant::now());
        let n_pes = layout.n_pes;
        let setup = |error: BootstrapError| meeting_failed(call, n_pes, error);
        let system = |error| Error::system(call, error);
        // A PE that fails because of another PE reports that PE. The PEs that wait for the failing
        // PE then also name the root cause.
        let report_root_cause = |error: &Error| {
            if let (false, Some(pe)) = (matches!(error, Error::Mismatch(_)), error.blamed().first()) {
                rendezvous.report_root_cause(*pe);
            }
        };
        agree_on_heap(&rendezvous, &layout, left())
            .map_err(|error| match error {
                Disagreement::Rendezvous(error) => setup(error),
                Disagreement::Heap(mismatch) => Error::Mismatch(Box::new(mismatch)),
            })
            .inspect_err(report_root_cause)?;
        let members: Vec<Pe> = (0..n_pes as u32).map(Pe::new).collect();
        let mapping = Mapping::of_job(&rendezvous, &members, layout, left()).map_err(|error| match error {
            ShareError::System(error) => system(error),
            ShareError::Rendezvous(error) => setup(error),
        });
        let mapping = Arc::new(mapping.inspect_err(report_root_cause)?);
        let me = rendezvous.pe().index();
        announce(&mapping, me);
        // The mapping is referenced weakly, because the thread that waits for an abort may live
        // longer than the world.
        let memory = Arc::downgrade(&mapping);
        let end = move |aborted: Aborted| match memory.upgrade() {
            Some(memory) => abort::end_notified(&memory.segments(), aborted.by, aborted.code),
            None => end_process(aborted.code),
        };
        if let Err(error) = rendezvous.when_aborted(end) {
            tracing::warn!(%error, "this PE cannot be notified of an abort; if the job is aborted, this PE ends only at its next wait");
        }
        // After this barrier, the control words of all PEs are filled in.
        let met = rendezvous.barrier_within("peerweave-host", left()).map_err(setup);
        met.and_then(|()| Self::new(me, mapping.clone(), options, Some(rendezvous.clone()), None, until))
            // The process may exit now, but the PE did not die. Other PEs then report the root
            // cause that this PE records.
            .inspect_err(|error| withdraw(&mapping, me, error, Some(rendezvous)))
    }

    /// Returns the backends of `n_pes` PEs that are threads of this process, in the order of the
    /// PEs. Each backend must be used by a separate thread.
    ///
    /// # Errors
    /// [`Error::Misuse`] if `n_pes` is 0 or too large, or if the heaps are too large.
    /// [`Error::System`] if the memory cannot be mapped.
    pub fn threads(n_pes: usize, options: &HostOptions) -> Result<Vec<Self>, Error> {
        const CALL: &str = "Host::threads";
        let layout = layout(n_pes, options)?;
        let mapping = Arc::new(Mapping::own(layout).map_err(|error| Error::system(CALL, error))?);
        (0..n_pes).for_each(|pe| announce(&mapping, pe));
        // The backends are created one after the other, so the collective that ends a join is
        // omitted.
        let aborted = JobAbort::OfThreads(AbortWord::default());
        let alone = |pe| Shared::alone(pe, mapping.clone(), options, None, aborted.clone(), Err(THREADS.into()));
        let next = Arc::new(NextMemory::default());
        let host = |pe| Self { shared: Arc::new(alone(pe)), options: options.clone(), next: Some(next.clone()) };
        Ok((0..n_pes).map(host).collect())
    }

    /// Creates the backend of PE `me` in a job whose PEs are threads. `mapping` is the memory that
    /// all PEs of the job share. All PEs of the job must call this function.
    pub(super) fn of_thread(
        me: usize,
        mapping: Arc<Mapping>,
        options: &HostOptions,
        (word, next): (AbortWord, Arc<NextMemory>),
        until: Instant,
    ) -> Result<Self, Error> {
        Self::new(me, mapping.clone(), options, None, Some((word, next)), until)
            .inspect_err(|error| withdraw(&mapping, me, error, None))
    }

    /// Completes the join of this PE. All PEs have already initialized their control words.
    /// `threads` is the state that all PEs share if they are threads; `None` if PEs are processes.
    fn new(
        me: usize,
        mapping: Arc<Mapping>,
        options: &HostOptions,
        rendezvous: Option<Arc<Rendezvous>>,
        threads: Option<(AbortWord, Arc<NextMemory>)>,
        until: Instant,
    ) -> Result<Self, Error> {
        let segments = mapping.segments();
        let readable = if threads.is_some() {
            Err(THREADS.to_owned())
        } else if !options.cross_memory_attach {
            Err("cross_memory_attach is false in the options".to_owned())
        } else {
            let own = Identity::own();
            (0..segments.layout().n_pes)
                .filter(|&pe| pe != me)
                .try_for_each(|pe| own.can_read(&Identity::read(segments.page(pe))).map_err(|why| format!("PE {pe}: {why}")))
        };
        let (job_abort, next) = match threads {
            Some((word, next)) => (JobAbort::OfThreads(word), Some(next)),
            None => (JobAbort::OfProcesses, None),
        };
        let joining = HostOptions { deadline: until.saturating_duration_since(Instant::now()), ..options.clone() };
        let mut shared = Shared::alone(me, mapping, &joining, rendezvous, job_abort, readable);
        // All PEs must choose the same algorithms, so either all PEs or no PE uses cross-memory
        // reads.
        let mine = u64::from(shared.cross_memory);
        let heap_bytes = shared.peers.segments.layout().heap_bytes as u64;
        let all = shared.gather_words(shared.world(), Purpose::Join, heap_bytes, &[mine])?.into_iter().all(|word| word == 1);
        shared.peers.deadline = options.deadline;
        shared.cross_memory = all && shared.n_pes() > 1;
        if !shared.cross_memory {
            shared.caps.private_buffers = PrivateBuffers::Staged;
        }
        Ok(Self { shared: Arc::new(shared), options: options.clone(), next })
    }
}

impl Shared {
    /// Returns the state of PE `me` before the PE communicates with other PEs. `readable` is `Ok`
    /// if this PE can read private buffers of the other PEs' processes. Otherwise, it contains the
    /// reason why this PE does not read them.
    fn alone(
        me: usize,
        mapping: Arc<Mapping>,
        options: &HostOptions,
        rendezvous: Option<Arc<Rendezvous>>,
        job_abort: JobAbort,
        readable: Result<(), String>,
    ) -> Self {
        let segments = mapping.segments();
        let layout = *segments.layout();
        let n_pes = layout.n_pes;
        let mut caps = Caps::new(layout.heap_bytes, MAX_TEAMS, format!("CPU, {}", simd::isa()));
        caps.call_checking = CallChecking::Always;
        caps.max_align_bytes = layout.align();
        caps.reduce_functions = true;
        caps.reductions = Caps::reductions_with(|reduction| {
            reduction.order = ReductionOrder::Rank;
            reduction.same_bits = true;
            reduction.nan = NanRule::IgnoredByMinMaxCanonical;
            if matches!(reduction.dtype, DType::F16 | DType::BF16) {
                reduction.accumulator = AccumulatorType::F32RoundedOnce;
            }
        });
        caps.private_buffers = match &readable {
            Ok(()) => PrivateBuffers::CrossMemoryAttach,
            Err(why) => {
                tracing::debug!(
                    why,
                    "this PE does not read the private memory of other PEs; private buffers are copied through staging areas"
                );
                PrivateBuffers::Staged
            }
        };
        let heap = HeapMap::new(layout.heap_start(), layout.heap_start() + layout.heap_bytes as u64);
        let job = JobShape { my_pe: Pe::new(me as u32), n_pes, local: (0..n_pes as u32).map(Pe::new).collect() };
        let liveness = Liveness::new(segments, rendezvous.as_ref());
        Self {
            peers: Peers::new(segments, me, options.deadline, liveness, job_abort, n_pes > machine::processors()),
            job,
            caps,
            compare_calls: options.check_calls,
            cross_memory: readable.is_ok(),
            teams: Teams::new(&segments, me, MAX_TEAMS),
            team_calls: Mutex::default(),
            heap: Mutex::new(heap),
            kernels: Kernels::new(options.kernel_seed),
            queues: Queues::default(),
            transfers: TransferLists::default(),
            guard: ForkGuard::new(),
            rendezvous: Mutex::new(rendezvous),
            launcher: Mutex::default(),
            _mapping: mapping,
        }
    }
}

/// Reason, for the log, why this PE does not read private buffers of other PEs directly. A direct
/// read copies memory of another process by a call of the operating system. Without direct reads,
/// the data of private buffers passes through staging areas.
const THREADS: &str = "the PEs are threads of one process";

/// Name of the failed call in the errors of [`Host::join`]. This is the name of the function that
/// creates a world, because that function calls [`Host::join`].
const JOIN: &str = "World::from_env";

/// Returns the point in time that is `within` after now. If the clock cannot represent this point,
/// returns the point one year after now.
pub(super) fn deadline_after(within: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(within).unwrap_or(now + Duration::from_secs(365 * 86_400))
}

/// Converts the error of a rendezvous to the error of the call `call`. The result names the PEs
/// that caused the error, if they are known.
pub(super) fn meeting_failed(call: &'static str, n_pes: usize, error: BootstrapError) -> Error {
    let team = TeamName { id: TeamId::WORLD, size: n_pes };
    match error {
        BootstrapError::PeLost { pe, .. } => Error::Peer { call, team, pe, cause: PeerCause::Died },
        BootstrapError::Timeout { waited, missing, .. } if !missing.is_empty() => {
            Timeout::new(call, team, waited, missing).into()
        }
        error => Error::setup(call, error),
    }
}

/// Publishes that PE `me` leaves the job because its join failed with `error`. The caller must have
/// called [`announce`] for this PE.
fn withdraw(mapping: &Mapping, me: usize, error: &Error, rendezvous: Option<Arc<Rendezvous>>) {
    let segments = mapping.segments();
    let page = segments.page(me);
    let _ = page.failure.compare_exchange(0, root_cause::encode(error, me), Ordering::Release, Ordering::Relaxed);
    shared::leave(page, rendezvous);
}

/// The reason why the PEs could not agree on the layout of the memory.
enum Disagreement {
    Rendezvous(BootstrapError),
    Heap(Mismatch),
}

/// Compares the sizes of the heaps, which determine the layout, before any PE maps the memory.
/// Returns an error that names the first PE with a different size.
fn agree_on_heap(rendezvous: &Rendezvous, layout: &Layout, within: Duration) -> Result<(), Disagreement> {
    let heap_bytes = |blob: &[u8]| blob.try_into().map_or(0, u64::from_le_bytes);
    let mine = layout.heap_bytes as u64;
    let all = rendezvous.exchange_within("peerweave-host heap", &mine.to_le_bytes(), within).map_err(Disagreement::Rendezvous)?;
    let other = all.iter().map(|blob| heap_bytes(blob)).enumerate().find(|&(_, theirs)| theirs != mine);
    other.map_or(Ok(()), |(pe, theirs)| {
        let call = |bytes| format!("{JOIN} with {bytes} bytes of symmetric heap for each PE (PEERWEAVE_HEAP_BYTES)");
        let team = TeamName { id: TeamId::WORLD, size: layout.n_pes };
        let mismatch = Mismatch { team, pe: Pe::new(pe as u32), mine: call(mine), theirs: call(theirs) };
        Err(Disagreement::Heap(mismatch))
    })
}

/// Publishes, in the control words of a PE, that the PE is alive and belongs to this process.
pub(super) fn announce(mapping: &Mapping, pe: usize) {
    let segments = mapping.segments();
    let page = segments.page(pe);
    Identity::own().publish(page);
    page.state.store(state::ALIVE, Ordering::Release);
}

/// Returns the layout of the memory of a job with these options.
pub(super) fn layout(n_pes: usize, options: &HostOptions) -> Result<Layout, Error> {
    let value = |argument: &'static str, found: String, expected: &'static str| {
        Error::Misuse(Misuse { call: JOIN, kind: MisuseKind::Value { argument, found, expected } })
    };
    if n_pes == 0 || n_pes > MAX_PES {
        return Err(value("n_pes", n_pes.to_string(), "1 to 4096 PEs on one machine"));
    }
    // The default is the memory of the machine, limited by the address space.
    let default = || (machine::memory_bytes() as usize).min((1 << 44) / n_pes);
    let heap_bytes = options.heap_bytes.or(platform::DEFAULT_HEAP_BYTES).unwrap_or_else(default);
    let layout = heap_bytes.checked_next_multiple_of(4096).and_then(|heap_bytes| Layout::new(n_pes, heap_bytes));
    layout.ok_or_else(|| value("heap_bytes", heap_bytes.to_string(), "less than 64 TiB for all PEs together"))
}
