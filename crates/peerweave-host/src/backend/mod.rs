//! Implements the trait `Backend` of `peerweave-core`. `join` joins a job. `shrink` creates a job
//! of the surviving PEs after a failure.

mod join;
mod shrink;

pub use join::HostOptions;

use crate::ops;
use crate::ops::collective::{Purpose, allocation_detail};
use crate::ops::shared::{COMPLETION_GRACE, Shared};
use crate::simd;
use crate::stream::HostStream;
use crate::sync::abort::JobAbort;
use crate::sync::team::slot_of;
use peerweave_bootstrap::{Rendezvous, end_process};
use peerweave_core::backend::{
    AbortWord, Allocation, Backend, Caps, Fill, JobShape, Keep, LocalAddress, Op, Outcome, Place, Shrunk, SplitCall, SplitPart,
    StreamBackend, TeamId, TeamRecord,
};
use peerweave_core::{Error, Timeout};
use peerweave_types::{HeapGeometry, KernelTeam, Pe, SymOffset};
use shrink::NextMemory;
use std::any::Any;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One PE's handle to the backend that uses the shared memory of one machine.
///
/// A process of a job calls [`Host::join`](crate::Host::join). [`on_threads`](crate::on_threads)
/// creates a handle for each thread.
#[derive(Debug)]
pub struct Host {
    pub(crate) shared: Arc<Shared>,
    options: HostOptions,
    /// Memory for the jobs that result from shrinking this job, if PEs are threads. `None` if PEs
    /// are processes.
    next: Option<Arc<NextMemory>>,
}

impl Host {
    /// Returns the rendezvous of the job, which stays open after the job has started. Returns
    /// `None` in a job of one PE, if the PEs are threads, and after the PE has finalised.
    pub fn rendezvous(&self) -> Option<Arc<Rendezvous>> {
        self.shared.rendezvous.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn heap(&self) -> MutexGuard<'_, crate::memory::heap::HeapMap> {
        self.shared.heap.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the queues of all streams of this PE are empty.
    fn drain(&self, call: &'static str) -> Result<(), Error> {
        let shared = &*self.shared;
        let started = Instant::now();
        // The wait is longer than the deadline. So an operation that was enqueued just before ends
        // at its own deadline, with an error that names the cause.
        let limit = shared.peers.deadline.saturating_add(COMPLETION_GRACE);
        while shared.queues.queued.load(Ordering::Acquire) > 0 {
            let waited = started.elapsed();
            if waited >= limit {
                let missing = shared.teams.missing(&shared.peers);
                let team = shared.teams.world().name();
                let running = shared.queues.pending_call();
                return Err(Timeout { running, ..Timeout::new(call, team, waited, missing) }.into());
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    /// Waits until all PEs have called finalize, and leaves the job.
    fn end(&self) -> Result<(), Error> {
        let shared = &*self.shared;
        shared.meet(shared.world(), Purpose::Finalize, 0)?;
        shared.finalized();
        let rendezvous = shared.rendezvous.lock().unwrap_or_else(PoisonError::into_inner).take();
        // If other code also has a handle, the rendezvous is left when that handle is dropped. All
        // PEs have finalized, so a PE that runs the server does not wait long.
        let left = match rendezvous.and_then(Arc::into_inner) {
            Some(rendezvous) => rendezvous.leave().map_err(|error| Error::setup("finalize", error)),
            None => Ok(()),
        };
        let launcher = shared.launcher.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(launcher) = launcher.and_then(Arc::into_inner)
            // The PEs of the launcher's job that are not in this world have died.
            && let Err(error) = launcher.leave()
        {
            tracing::debug!(%error, "this PE could not leave the launcher's rendezvous");
        }
        left
    }
}

// SAFETY: [B1] operations access memory that the core has checked. Private memory of other PEs is
// only read, either through staging areas or by the operating system, whose read fails if the
// memory is gone (`platform/linux/cross_memory.rs`). [B7] No work continues after an operation has
// failed. [B2] `Shared` owns the mapping. [B3] Entries, progress, signals and mailboxes are
// published by releases and read by acquires. [B4] All access to the heap is atomic or by `simd`.
unsafe impl Backend for Host {
    fn name(&self) -> &'static str {
        "host"
    }

    fn caps(&self) -> &Caps {
        &self.shared.caps
    }

    fn job(&self) -> &JobShape {
        &self.shared.job
    }

    fn geometry(&self) -> Option<HeapGeometry> {
        Some(self.shared.peers.segments.geometry(Pe::new(self.shared.peers.me as u32)))
    }

    fn deadline(&self) -> Duration {
        self.shared.peers.deadline
    }

    fn allocate(&self, request: &Allocation) -> Result<SymOffset, Error> {
        let shared = &*self.shared;
        let bytes = request.bytes as u64;
        let detail = allocation_detail(request);
        // All PEs decide with the same number, which is the smallest number that any PE sees.
        let mine = crate::memory::machine::available_bytes(request.bytes);
        let available =
            shared.gather_words(shared.world(), Purpose::Allocate, detail, &[mine])?.into_iter().min().unwrap_or(mine);
        if bytes.saturating_mul(shared.n_pes() as u64) > available {
            return Err(Error::OutOfMemory {
                call: "alloc",
                requested_bytes: request.bytes,
                available_bytes: (available / shared.n_pes() as u64) as usize,
                what: "this machine's free memory, divided by the number of PEs",
            });
        }
        let mut heap = self.heap();
        let Some(at) = heap.allocate(bytes, request.align as u64) else {
            return Err(Error::OutOfMemory {
                call: "alloc",
                requested_bytes: request.bytes,
                available_bytes: heap.largest_free() as usize,
                what: "the largest free range of the symmetric heap",
            });
        };
        let used_before = heap.note_use(at + bytes);
        drop(heap);
        if request.zeroed && at < used_before {
            // Memory that was never allocated before is still zero.
            let end = (at + bytes).min(used_before);
            // SAFETY: the range is part of a new allocation in the segment of this PE.
            unsafe { simd::fill_zero(shared.peers.segments.symmetric(shared.peers.me, SymOffset(at)), (end - at) as usize) };
        }
        // After this call, all PEs have the allocation at the same offset. No PE writes to the
        // allocation before.
        match shared.meet(shared.world(), Purpose::Place, at) {
            Ok(()) => Ok(SymOffset(at)),
            Err(error) => {
                self.heap().free(at);
                Err(error)
            }
        }
    }

    fn release(&self, at: SymOffset) -> Result<(), Error> {
        self.drain("release")?;
        self.shared.meet(self.shared.world(), Purpose::Release, at.0)?;
        let freed = self.heap().free(at.0);
        assert!(freed.is_some(), "peerweave-core bug: no allocation starts at {at:?}");
        Ok(())
    }

    fn local(&self, at: SymOffset) -> LocalAddress {
        LocalAddress::Host(self.shared.own(at))
    }

    fn address_of(&self, pe: Pe, at: SymOffset) -> Option<LocalAddress> {
        Some(LocalAddress::Host(self.shared.peers.segments.symmetric(pe.index(), at)))
    }

    #[inline]
    unsafe fn read_local(&self, at: SymOffset, into: *mut u8, bytes: usize) -> Result<(), Error> {
        // SAFETY: guaranteed by the caller. The ranges do not overlap, because only one of them is
        // in symmetric memory.
        unsafe { simd::copy(into, self.shared.own(at), bytes) };
        Ok(())
    }

    #[inline]
    unsafe fn write_local(&self, at: SymOffset, from: *const u8, bytes: usize) -> Result<(), Error> {
        // SAFETY: as above.
        unsafe { simd::copy(self.shared.own(at), from, bytes) };
        Ok(())
    }

    unsafe fn fill_local(&self, at: SymOffset, bits: u64, element_bytes: usize, count: usize) -> Result<(), Error> {
        self.shared.fill(&Fill { target: Place::Symmetric(at), bits, element_bytes, count });
        Ok(())
    }

    fn team_split(&self, parent: TeamId, call: SplitCall, part: Option<SplitPart>) -> Result<Option<TeamRecord>, Error> {
        self.shared.team_split(parent, call, part)
    }

    fn team_of(&self, members: &[Pe]) -> Result<TeamRecord, Error> {
        self.shared.team_of(members)
    }

    fn team_destroy(&self, team: TeamId) -> Result<(), Error> {
        self.shared.team_destroy(team)
    }

    fn kernel_team(&self, team: TeamId) -> KernelTeam {
        KernelTeam::new(slot_of(team) as u32)
    }

    fn team_failure(&self, team: TeamId) -> Option<Error> {
        self.shared.teams.get("failure", team).ok()?.failure().cloned()
    }

    fn lost(&self, call: &'static str, pe: Pe) -> Option<Error> {
        let peers = &self.shared.peers;
        if let Some(aborted) = peers.abort_error() {
            return Some(aborted);
        }
        let cause = peers.liveness.gone(pe.index())?;
        Some(peers.peer_error(call, self.shared.teams.world().name(), pe.index(), cause, 0))
    }

    fn record_loss(&self, error: Error) -> Error {
        self.shared.peers.record_outcome(error)
    }

    fn stream(&self) -> Result<Arc<dyn StreamBackend>, Error> {
        Ok(Arc::new(HostStream::new(self.shared.clone())))
    }

    fn owns(&self, stream: &dyn StreamBackend) -> bool {
        let stream: &dyn Any = stream;
        stream.downcast_ref::<HostStream>().is_some_and(|stream| stream.is_of(&self.shared))
    }

    // After an operation has failed, no thread runs it, so `keep` is not needed.
    #[inline]
    unsafe fn run(&self, op: &Op, _keep: &dyn Fn() -> Keep) -> Result<Outcome, Error> {
        ops::run(&self.shared, op)
    }

    fn abort(&self, code: u8) -> Error {
        let (by, code) = self.shared.peers.claim_abort(code);
        if let JobAbort::OfThreads(_) = self.shared.peers.job_abort {
            return Error::Aborted { by, code };
        }
        if let Some(rendezvous) = self.rendezvous() {
            rendezvous.abort(code);
        }
        if let Some(launcher) = &*self.shared.launcher.lock().unwrap_or_else(PoisonError::into_inner) {
            launcher.abort(code);
        }
        end_process(code)
    }

    fn abort_word(&self) -> AbortWord {
        match &self.shared.peers.job_abort {
            JobAbort::OfThreads(word) => word.clone(),
            JobAbort::OfProcesses => AbortWord::default(),
        }
    }

    fn shrink(&self) -> Result<Shrunk, Error> {
        self.shrink_to_survivors()
    }

    fn finalize(&self) -> Result<(), Error> {
        let drained = self.drain("finalize");
        let unreported = self.shared.queues.take_unreported();
        let ended = drained.and_then(|()| self.end());
        if ended.is_err() {
            // The world has ended even after an error. So a later exit of this process must not
            // count as a death.
            self.shared.leave();
        }
        // The first failure takes precedence, because it caused the later failures.
        unreported.map_or(ended, Err)
    }

    fn describe(&self) -> String {
        let shared = &*self.shared;
        let heap = self.heap();
        let mut text = format!(
            "PE {me} of {n_pes}; {allocated} of {capacity} bytes of the heap allocated; {queued} operations queued",
            me = shared.peers.me,
            n_pes = shared.n_pes(),
            allocated = heap.allocated_bytes(),
            capacity = heap.capacity(),
            queued = shared.queues.queued.load(Ordering::Relaxed),
        );
        if let Some(call) = shared.queues.pending_call() {
            text += &format!("; a stream runs {call}");
        }
        let missing = shared.teams.missing(&shared.peers);
        if !missing.is_empty() {
            text += &format!("; waiting for PEs {missing:?}");
        }
        let distant = shared.peers.liveness.distant();
        if !distant.is_empty() {
            text += &format!("; the rendezvous reports the end of PEs {distant:?}, because this process cannot monitor them");
        }
        text
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // This only writes to the page of this PE and drops the rendezvous. It does not wait.
        self.shared.leave();
    }
}
