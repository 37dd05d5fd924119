//! The contract of `peerweave-core`, fulfilled.

use crate::ops::collective::{Progress, Purpose, allocation_detail};
use crate::ops::shared::Shared;
use crate::ops::{Task, run_plain};
use crate::simd;
use crate::stream::HostStream;
use crate::sync::team::slot_of;
use crate::sync::wait::Limit;
use peerweave_bootstrap::Rendezvous;
use peerweave_core::Error;
use peerweave_core::backend::{Allocation, Backend, Caps, JobShape, Op, Outcome, SplitPart, StreamBackend, TeamId, TeamRecord};
use peerweave_types::{HeapGeometry, KernelTeam, Pe, SymOffset};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The backend of one machine's shared memory: one PE's part of it.
///
/// Made by [`Host::join`](crate::Host::join) in a process of a job, or by [`on_threads`](crate::on_threads) where PEs are threads.
#[derive(Debug)]
pub struct Host {
    pub(crate) shared: Arc<Shared>,
}

impl Host {
    /// The meeting place of the job, which outlives its set-up; `None` for a single PE, for PEs that are threads, and after finalize.
    pub fn rendezvous(&self) -> Option<Arc<Rendezvous>> {
        self.shared.rendezvous.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn heap(&self) -> MutexGuard<'_, crate::memory::heap::HeapMap> {
        self.shared.heap.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nothing of this PE is queued on any stream.
    fn drain(&self, call: &'static str) -> Result<(), Error> {
        let shared = &*self.shared;
        let started = Instant::now();
        while shared.queued.load(Ordering::Acquire) > 0 {
            let waited = started.elapsed();
            if waited >= shared.deadline {
                let missing = shared.teams.missing(shared);
                let team = shared.teams.world().name();
                return Err(Error::Timeout(Box::new(peerweave_core::Timeout { call, team, waited, missing })));
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    fn run_collective(&self, op: &peerweave_core::backend::Collective) -> Result<Outcome, Error> {
        let shared = &*self.shared;
        let done = shared.teams.with(op.kind.name(), op.team, |team| {
            Progress::begin(team).drive(shared, team, op, Limit::Deadline(shared.deadline))
        })?;
        debug_assert!(!matches!(done, Ok(None)), "a deadline is no budget");
        done.map(|_| Outcome::Done).map_err(|failure| *failure)
    }
}

// SAFETY: [B1] operations access what the core has checked, and private memory of others is only ever read, by the kernel, which fails where it
// is gone (`attach.rs`), or through staging areas; [B2] `Shared` owns the mapping; [B3] entries, phases, signals and mailboxes are
// published by releases and read by acquires; [B4] all access to the heap is atomic or by `simd`.
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

    fn geometry(&self) -> HeapGeometry {
        self.shared.segments.geometry(Pe::new(self.shared.me as u32))
    }

    fn deadline(&self) -> Duration {
        self.shared.deadline
    }

    fn allocate(&self, request: &Allocation) -> Result<SymOffset, Error> {
        let shared = &*self.shared;
        let world = shared.teams.world();
        let bytes = request.bytes as u64;
        let detail = allocation_detail(request);
        // All decide by the same number, the smallest that any of them sees.
        let mine = crate::memory::machine::available_bytes(request.bytes);
        let available = shared.gather_words(world, Purpose::Allocate, detail, &[mine])?.into_iter().min().unwrap_or(mine);
        if bytes.saturating_mul(shared.n_pes() as u64) > available {
            return Err(Error::OutOfMemory {
                call: "alloc",
                requested_bytes: request.bytes,
                available_bytes: (available / shared.n_pes() as u64) as usize,
                what: "of this machine's memory, for each PE",
            });
        }
        let mut heap = self.heap();
        let Some(at) = heap.take(bytes, request.align as u64) else {
            return Err(Error::OutOfMemory {
                call: "alloc",
                requested_bytes: request.bytes,
                available_bytes: heap.largest_free() as usize,
                what: "in one piece of the symmetric heap",
            });
        };
        let used_before = heap.note_use(at + bytes);
        drop(heap);
        if request.zeroed && at < used_before {
            // What lies beyond the highest use so far is still as the kernel gave it: zeros.
            let end = (at + bytes).min(used_before);
            // SAFETY: a fresh allocation of this PE's segment.
            unsafe { simd::fill_zero(shared.segments.symmetric(shared.me, SymOffset(at)), (end - at) as usize) };
        }
        // Nobody puts here before all have it, all at the same place.
        match shared.meet(world, Purpose::Place, at) {
            Ok(()) => Ok(SymOffset(at)),
            Err(error) => {
                self.heap().give(at);
                Err(error)
            }
        }
    }

    fn release(&self, at: SymOffset) -> Result<(), Error> {
        self.drain("release")?;
        self.shared.meet(self.shared.teams.world(), Purpose::Release, at.0)?;
        let given = self.heap().give(at.0);
        assert!(given.is_some(), "peerweave-core bug: nothing was allocated at {at:?}");
        Ok(())
    }

    fn local(&self, at: SymOffset) -> *mut u8 {
        self.shared.segments.symmetric(self.shared.me, at)
    }

    #[inline]
    unsafe fn read_local(&self, at: SymOffset, into: *mut u8, bytes: usize) {
        // SAFETY: the caller's promise; the two are apart since one is symmetric and the other is not.
        unsafe { simd::copy(into, self.local(at), bytes) };
    }

    #[inline]
    unsafe fn write_local(&self, at: SymOffset, from: *const u8, bytes: usize) {
        // SAFETY: as above.
        unsafe { simd::copy(self.local(at), from, bytes) };
    }

    fn team_split(&self, parent: TeamId, part: Option<SplitPart>) -> Result<Option<TeamRecord>, Error> {
        self.shared.team_split(parent, part)
    }

    fn team_destroy(&self, team: TeamId) -> Result<(), Error> {
        self.shared.team_destroy(team)
    }

    fn kernel_team(&self, team: TeamId) -> KernelTeam {
        KernelTeam::new(slot_of(team) as u32)
    }

    fn stream(&self) -> Result<Arc<dyn StreamBackend>, Error> {
        Ok(Arc::new(HostStream::new(self.shared.clone())))
    }

    #[inline]
    unsafe fn run(&self, op: &Op) -> Result<Outcome, Error> {
        let shared = &*self.shared;
        match op {
            Op::Collective(op) => self.run_collective(op),
            Op::PointToPoint(_) | Op::Group(_) | Op::Wait(_) | Op::Launch(_) => {
                let done = Task::begin(shared, op)?.drive(shared, Limit::Deadline(shared.deadline))?;
                Ok(done.expect("a deadline is no budget"))
            }
            plain => Ok(run_plain(shared, plain)),
        }
    }

    fn finalize(&self) -> Result<(), Error> {
        let shared = &*self.shared;
        self.drain("finalize")?;
        shared.meet(shared.teams.world(), Purpose::Finalize, 0)?;
        shared.finalized();
        let rendezvous = shared.rendezvous.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Whoever else holds it leaves when done with it. All PEs are here, so that one who serves the others does not wait for long.
        match rendezvous.and_then(Arc::into_inner) {
            Some(rendezvous) => rendezvous.leave().map_err(|error| Error::setup("finalize", error)),
            None => Ok(()),
        }
    }

    fn describe(&self) -> String {
        let shared = &*self.shared;
        let heap = self.heap();
        let mut text = format!(
            "PE {} of {}; heap {} of {} bytes taken; {} operations queued; waiting for {:?}",
            shared.me,
            shared.n_pes(),
            heap.taken_bytes(),
            heap.capacity(),
            shared.queued.load(Ordering::Relaxed),
            shared.teams.missing(shared)
        );
        let distant = shared.liveness.distant();
        if !distant.is_empty() {
            text += &format!("; watched over the rendezvous, since their process numbers mean nothing here: PEs {distant:?}");
        }
        text
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Local: says so in this PE's own page and to the rendezvous, and waits for nobody.
        self.shared.leave();
    }
}
