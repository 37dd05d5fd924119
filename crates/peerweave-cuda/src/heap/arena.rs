//! An arena: one allocation of NVSHMEM's heap, in which this crate allocates ranges.
//!
//! Invariant: the arena allocates a freed range again only after all work that used the range has
//! completed on all PEs.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use peerweave_bootstrap::Rendezvous;
use peerweave_bootstrap::agree::{Disagreement, Failure, Members, agree};
use peerweave_bootstrap::first_fit::FirstFit;
use peerweave_driver::{CudaStream, DeviceBuffer as _, Keep, Streams, deadline_after, drain_retired, wait, wait_until};
use peerweave_nvshmem::SymmetricBuffer;
use peerweave_types::Pe;

use super::{AFTER_GRAPHS, ALIGNMENT_BYTES, Question};
use crate::error::{CudaError, misuse};

const ALLOC: &str = "Gpu::alloc";
const FREE: &str = "Gpu::free";

/// One allocation of NVSHMEM's heap. All PEs allocate and free the same ranges in the same order,
/// so a range has the same offset on every PE.
pub(crate) struct Arena {
    context: peerweave_nvshmem::Context,
    whole: SymmetricBuffer<u8>,
    /// Whether kernels get the multicast address of this allocation.
    multicast: bool,
    rendezvous: Arc<Rendezvous>,
    state: Mutex<State>,
    /// Counts the users of the arena, by the reference count of this `Arc`. The users are the arena
    /// itself, its leases (allocated ranges), and the handles that [`Lease::keep`] has returned.
    kept: Arc<()>,
}

/// The allocated and free ranges of an arena, and the number of collective calls on the arena so
/// far. The label of the next call contains this number.
struct State {
    ranges: FirstFit,
    calls: u64,
}

/// An allocated range of an arena. If a lease is dropped without being freed, its range stays
/// allocated, because the range is still allocated on the other PEs.
pub(crate) struct Lease {
    buffer: SymmetricBuffer<u8>,
    offset: u64,
    /// The streams with work that uses the range.
    streams: Streams,
    /// Counts the users of the range, by the reference count of this `Arc`. The users are this
    /// `Lease`, and the handles that [`Self::keep`] has returned.
    handles: Arc<()>,
    /// A clone of [`Arena::kept`], by which this lease counts as a user of the arena.
    kept: Arc<()>,
    freed: bool,
}

impl Arena {
    pub(crate) fn new(
        context: peerweave_nvshmem::Context,
        rendezvous: &Arc<Rendezvous>,
        bytes: usize,
        multicast: bool,
    ) -> Result<Self, CudaError> {
        let bytes = bytes.checked_next_multiple_of(ALIGNMENT_BYTES as usize).unwrap_or(bytes);
        let whole = context.alloc_aligned::<u8>(ALIGNMENT_BYTES as usize, bytes)?;
        let mut ranges = FirstFit::new(ALIGNMENT_BYTES);
        ranges.add(0, whole.len() as u64);
        let state = Mutex::new(State { ranges, calls: 0 });
        Ok(Self { context, whole, multicast, rendezvous: Arc::clone(rendezvous), state, kept: Arc::default() })
    }

    pub(super) fn context(&self) -> &peerweave_nvshmem::Context {
        &self.context
    }

    pub(super) fn bytes(&self) -> u64 {
        self.whole.len() as u64
    }

    /// Returns the address of this PE's part of the arena.
    pub(super) fn address(&self) -> u64 {
        self.whole.address()
    }

    /// Returns the address at which this PE maps another PE's part of the arena. Returns `None` if
    /// that part is not mapped.
    pub(super) fn peer_address(&self, pe: Pe) -> Result<Option<u64>, CudaError> {
        Ok(self.whole.peer_address(pe)?)
    }

    /// Returns the multicast address of the arena. Returns 0 if the arena has no such address, or
    /// if the options disable multicast.
    pub(super) fn multicast_address(&self) -> Result<u64, CudaError> {
        if !self.multicast {
            return Ok(0);
        }
        Ok(self.whole.multicast_address(&self.context.world())?.unwrap_or(0))
    }

    /// Frees the arena, and drops its handle of the NVSHMEM library. All PEs must call this
    /// function. If this handle is the process's last, the library is finalised, and a [`Question`]
    /// is returned. The caller can then ask whether all threads have released NVSHMEM's context.
    pub(super) fn finalize(self) -> Result<Option<Question>, CudaError> {
        let Self { context, whole, kept, .. } = self;
        // If a graph still uses a range after this wait, `free` returns an error.
        let released = || Ok::<_, Infallible>(drain_retired(Instant::now()) && Arc::strong_count(&kept) == 1);
        let _ = wait_until(deadline_after(context.deadline().min(AFTER_GRAPHS)), released);
        context.free(whole)?;
        let gone: Question = Box::new(context.gone());
        let report = context.finalize()?;
        Ok((report.other_handles == 0).then_some(gone))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that all PEs make the same call, and that the call has not failed on any PE. Returns
    /// `outcome` if both are true. The caller holds the lock of `state`, so calls of several
    /// threads are serialised.
    fn agree<T>(&self, state: &mut State, name: &'static str, call: &str, outcome: Result<T, CudaError>) -> Result<T, CudaError> {
        let label = format!("peerweave-cuda/arena/{}", state.calls);
        state.calls += 1;
        let failure = |error: &CudaError| Failure { reason: error.to_string(), is_consequence: error.pe().is_some() };
        let mine = outcome.as_ref().map(|_| &[][..]).map_err(failure);
        match agree(&self.rendezvous, Members::All, &label, call, mine) {
            // This PE's own failure takes precedence over a failure of the rendezvous.
            Ok(_) | Err(Disagreement::Own) => outcome,
            Err(Disagreement::Rendezvous(error)) => outcome.and(Err(error.into())),
            Err(Disagreement::Failed { pe, reason }) => Err(CudaError::PeFailed { call: name, pe, message: reason }),
            Err(Disagreement::Diverged { one, one_has, other, other_has }) => {
                let (pe, theirs) = if one_has == call { (other, other_has) } else { (one, one_has) };
                Err(misuse(name, "the call of this PE", call, &format!("the call of {pe}: {theirs}")))
            }
        }
    }

    pub(super) fn lease(&self, stream: &Arc<CudaStream>, bytes: u64) -> Result<Lease, CudaError> {
        let mut state = self.state();
        let at = state.ranges.allocate(bytes, 1);
        let call = at.map_or_else(
            || format!("allocation of {bytes} bytes, for which the heap has no room"),
            |at| format!("allocation of {bytes} bytes at offset {at}"),
        );
        let agreed = self.agree(&mut state, ALLOC, &call, Ok(()));
        if agreed.is_err()
            && let Some(at) = at
        {
            state.ranges.free(at);
        }
        agreed?;
        let at = at.ok_or_else(|| {
            let largest = state.ranges.largest_free_bytes();
            let expected = format!("at most {largest} bytes, the largest free range of the heap");
            misuse(ALLOC, "the length", format!("{bytes} bytes"), &expected)
        })?;
        let zeroed = self.whole.slice(at as usize..(at + bytes) as usize).map_err(CudaError::from).and_then(|buffer| {
            let (handles, kept) = (Arc::default(), Arc::clone(&self.kept));
            let lease = Lease { buffer, offset: at, streams: Streams::new(), handles, kept, freed: false };
            peerweave_vmm::zero(stream, &mut lease.buffer(stream).clone())?;
            match wait(stream, deadline_after(self.context.deadline()))? {
                true => Ok(lease),
                false => Err(CudaError::Stuck { call: ALLOC, waited: self.context.deadline() }),
            }
        });
        // No PE may write to the memory before it is zero on all PEs.
        self.agree(&mut state, ALLOC, "zero-filling of the allocated memory", zeroed)
    }

    /// Frees a range on every PE, after the work that uses the range has completed. All PEs must
    /// call this function.
    pub(super) fn end(&self, mut lease: Lease) -> Result<(), CudaError> {
        let mut state = self.state();
        let outcome = lease.drain(self.context.deadline());
        self.agree(&mut state, FREE, &format!("release of the memory at offset {}", lease.offset), outcome)?;
        lease.freed = true;
        state.ranges.free(lease.offset);
        Ok(())
    }
}

impl Lease {
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the memory of the range, and records that later work on `stream` uses the range.
    pub(super) fn buffer(&self, stream: &Arc<CudaStream>) -> &SymmetricBuffer<u8> {
        self.streams.note(stream);
        drop(self.buffer.read(stream));
        &self.buffer
    }

    /// Returns whether this lease (an allocated range) is the only user of its range. This is the
    /// case if all handles that [`Self::keep`] has returned were dropped.
    pub(super) fn is_only_handle(&self) -> bool {
        Arc::strong_count(&self.handles) == 1
    }

    /// Returns a handle of the range. The range cannot be freed while the handle lives.
    pub(super) fn keep(&self) -> Keep {
        // The handle is in an `Arc` of its own, because a `Weak` of `handles` could be upgraded
        // after the last check of the count.
        Arc::new((Arc::clone(&self.handles), Arc::clone(&self.kept), self.buffer.keep()))
    }

    /// Waits until all work that uses the range has completed, for at most `longest`. Fails if
    /// other handles of the range exist.
    fn drain(&self, longest: Duration) -> Result<(), CudaError> {
        if !self.is_only_handle() {
            let handles = Arc::strong_count(&self.handles) - 1;
            return Err(misuse(
                FREE,
                "the memory",
                format!("used by {handles} graphs or launches"),
                "memory that no graph or launch uses",
            ));
        }
        let start = Instant::now();
        let late = self.streams.wait_for_all(FREE, deadline_after(longest))?;
        late.map_or(Ok(()), |_| Err(CudaError::Stuck { call: FREE, waited: start.elapsed() }))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.freed {
            tracing::debug!(offset = self.offset, "symmetric memory was dropped without Gpu::free and stays allocated");
        }
    }
}
