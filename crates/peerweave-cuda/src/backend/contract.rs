//! Implements the contract of `peerweave-core`.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use peerweave_core::Error;
use peerweave_core::backend::{
    Allocation, Backend, Caps, Fill, JobShape, Keep, KeptMemory, LocalAddress, Op, Outcome, Place, SplitCall, SplitPart,
    StreamBackend, TeamId, TeamRecord,
};
use peerweave_driver::{PrivateStream, deadline_after, wait_until};
use peerweave_types::{HeapGeometry, KernelTeam, SymOffset};

use super::Cuda;
use super::error::{NAME, driver, portable, unsupported};
use super::queue::{CudaQueue, run};
use super::state::{State, lock};
use super::transfer;
use crate::error::CudaError;
use crate::team::Team;

/// Stands for the team of a PE that gets none.
const NO_TEAM: TeamId = TeamId(u32::MAX);

/// How long graphs that were destroyed may hold memory that is released.
const GRAPHS: Duration = Duration::from_secs(2);

/// Nothing: the operations of the host on this PE's memory hold none.
#[derive(Debug)]
struct Nothing;

impl KeptMemory for Nothing {
    fn device_owners(
        &self,
        _: &mut dyn FnMut(&dyn peerweave_core::backend::DeviceOwner) -> Result<(), Error>,
    ) -> Result<(), Error> {
        Ok(())
    }
}

impl Cuda {
    /// Waits until the streams of this PE have completed their work.
    fn drain(&self, call: &'static str) -> Result<(), Error> {
        let start = Instant::now();
        for queue in self.state.live_queues() {
            let rest = self.state.deadline.saturating_sub(start.elapsed());
            // Failures are those of the streams, which report them.
            if let Err(Error::Timeout(_)) = queue.synchronize(rest) {
                return Err(self.state.timed_out(call, self.state.world(), start.elapsed()));
            }
        }
        Ok(())
    }

    /// Sets the words of the mailboxes of a new team to zero.
    fn empty_mailboxes(&self, call: &'static str, team: &Team) -> Result<(), Error> {
        let number = team.kernel_team().index();
        lock(&self.state.chunks[number as usize]).clear();
        let words = transfer::words(&self.state, TeamId(number), team.size());
        let zeros = vec![0u8; (words.end - words.start) as usize];
        let deadline = self.state.deadline;
        self.access(call, SymOffset(words.start), zeros.len(), |stream, block, at| block.write(stream, at, &zeros, deadline))
    }

    /// Runs what accesses symmetric memory from the host, on the stream for that.
    fn access<R>(
        &self,
        call: &'static str,
        at: SymOffset,
        bytes: usize,
        access: impl FnOnce(&PrivateStream, &crate::heap::Block, usize) -> Result<R, CudaError>,
    ) -> Result<R, Error> {
        let state = &*self.state;
        let gpu = state.gpu(call)?;
        let block = gpu.0.allocation(at, bytes as u64);
        let block = block.unwrap_or_else(|| panic!("peerweave-core bug: {bytes} bytes at {at:?} are not allocated"));
        let mut stream = lock(&state.access);
        let stream = match &mut *stream {
            Some(stream) => stream,
            none => none.insert(PrivateStream::new(&state.context).map_err(|error| driver(call, error))?),
        };
        access(stream, &block, (at.0 - block.offset) as usize).map_err(state.portable(call))
    }
}

// SAFETY: [B1] copies and kernels access the ranges of operations, which the core has checked, and
// memory of the host only through pinned memory (`staging.rs`), which the calling thread or the
// stream in its order fills and empties; after a failure of `run` it is not emptied. [B2] `local`
// gives addresses of the device, whose heap lives as long as this. [B3] signals, waits and barriers
// are kernels that release and acquire at the scope of the system, and a ticket completes when the
// stream has passed the operation. [B4] symmetric memory is accessed by the device alone. [B5]
// after finalize there is no GPU. [B7] `run` retires what it holds with its stream. [B8] by
// `submit` and `run`.
unsafe impl Backend for Cuda {
    fn name(&self) -> &'static str {
        NAME
    }

    fn caps(&self) -> &Caps {
        &self.state.caps
    }

    fn job(&self) -> &JobShape {
        &self.state.job
    }

    fn geometry(&self) -> Option<HeapGeometry> {
        let (state, bases) = (&*self.state, &self.state.bases);
        let stride = if bases.len() > 1 { bases[1].checked_sub(bases[0])? } else { state.heap_bytes };
        let is_equal = bases.windows(2).all(|pair| pair[1].checked_sub(pair[0]) == Some(stride));
        (is_equal && !bases.contains(&0)).then(|| HeapGeometry {
            base: bases[0],
            stride,
            heap_start: 0,
            heap_bytes: state.heap_bytes,
            my_pe: state.job.my_pe.get(),
            n_pes: bases.len() as u32,
        })
    }

    fn deadline(&self) -> Duration {
        self.state.deadline
    }

    fn allocate(&self, request: &Allocation) -> Result<SymOffset, Error> {
        const CALL: &str = "alloc";
        // The heap gives zeros, and an empty allocation an offset of its own.
        let gpu = self.state.gpu(CALL)?;
        let memory = gpu.alloc_aligned(request.bytes.max(1), request.align).map_err(self.state.portable(CALL))?;
        let at = memory.offset();
        lock(&self.state.allocations).insert(at.0, memory);
        Ok(at)
    }

    fn release(&self, at: SymOffset) -> Result<(), Error> {
        const CALL: &str = "release";
        self.drain(CALL)?;
        let gpu = self.state.gpu(CALL)?;
        let memory = lock(&self.state.allocations).remove(&at.0);
        let memory = memory.unwrap_or_else(|| panic!("peerweave-core bug: nothing is allocated at {at:?}"));
        // A graph that was destroyed lets go of its memory a moment later, on another thread.
        let free = wait_until(deadline_after(GRAPHS), || Ok::<_, Error>(memory.is_only_handle()))?;
        tracing::debug!(free, ?at, "symmetric memory is released");
        gpu.free(memory).map_err(self.state.portable(CALL))
    }

    fn local(&self, at: SymOffset) -> LocalAddress {
        LocalAddress::Device { address: self.state.address(Place::Symmetric(at)), ordinal: self.state.context.ordinal() }
    }

    unsafe fn read_local(&self, at: SymOffset, into: *mut u8, bytes: usize) -> Result<(), Error> {
        if bytes == 0 {
            return Ok(());
        }
        let deadline = self.state.deadline;
        let read = self.access("to_vec", at, bytes, |stream, block, from| block.read(stream, from, bytes, deadline))?;
        // SAFETY: `into` is valid for writes of `bytes`, as many as were read.
        unsafe { into.copy_from_nonoverlapping(read.as_ptr(), bytes) };
        Ok(())
    }

    unsafe fn write_local(&self, at: SymOffset, from: *const u8, bytes: usize) -> Result<(), Error> {
        if bytes == 0 {
            return Ok(());
        }
        let deadline = self.state.deadline;
        // SAFETY: `from` is valid for reads of `bytes`, and not symmetric memory.
        let values = unsafe { std::slice::from_raw_parts(from, bytes) };
        self.access("copy_from", at, bytes, |stream, block, to| block.write(stream, to, values, deadline))
    }

    unsafe fn fill_local(&self, at: SymOffset, bits: u64, element_bytes: usize, count: usize) -> Result<(), Error> {
        let op = Op::Fill(Fill { target: Place::Symmetric(at), bits, element_bytes, count });
        // SAFETY: the caller's promise; no memory of the host takes part.
        unsafe { run(&self.state, &op, &|| Box::new(Nothing)) }.map(drop)
    }

    fn team_split(&self, parent: TeamId, call: SplitCall, part: Option<SplitPart>) -> Result<Option<TeamRecord>, Error> {
        let call = call.name();
        let state = &*self.state;
        if parent != TeamId::WORLD {
            return Err(unsupported(call, "only the team of all PEs can be split on GPUs: split it with other colors"));
        }
        let gpu = state.gpu(call)?;
        let mut splits = lock(&state.splits);
        *splits += 1;
        let made = gpu.split(part.map(|part| part.color), part.map_or(0, |part| part.key));
        let made = made.map_err(|error| match error {
            CudaError::Misuse { what: "the number of teams", .. } => {
                Error::TooManyTeams { call, max_teams: state.caps.max_teams }
            }
            error => portable(call, state.world(), error),
        })?;
        if let Some(team) = &made {
            self.empty_mailboxes(call, team)?;
        }
        // No member sends before the mailboxes of all are empty.
        gpu.barrier(&format!("backend/split/{splits}")).map_err(state.portable(call))?;
        // The number of the split makes it differ from those of earlier teams of this number.
        let id = |team: &Team| TeamId(team.kernel_team().index() | *splits << 8);
        if !state.bases.contains(&0) {
            let members = made.as_ref().map_or(vec![state.job.my_pe], |team| team.members().to_vec());
            // A PE that gets no team takes part with itself alone, and forgets it.
            let team = made.as_ref().map_or(NO_TEAM, id);
            state.make_collectives(call, &gpu, team, &members)?;
            lock(&state.collectives).remove(&NO_TEAM.0);
        }
        Ok(made.map(|team| {
            let id = id(&team);
            let members = team.members().to_vec();
            lock(&state.teams).insert(id.0, team);
            TeamRecord { id, members }
        }))
    }

    fn team_destroy(&self, team: TeamId) -> Result<(), Error> {
        const CALL: &str = "destroy";
        self.drain(CALL)?;
        // Its staging memory stays taken: freeing it would need all PEs.
        lock(&self.state.collectives).remove(&team.0);
        let taken: Option<Team> = lock(&self.state.teams).remove(&team.0);
        let taken = taken.unwrap_or_else(|| panic!("peerweave-core bug: no team {team:?}"));
        taken.destroy().map_err(self.state.portable(CALL))
    }

    fn kernel_team(&self, team: TeamId) -> KernelTeam {
        State::kernel_team(team)
    }

    fn team_failure(&self, _: TeamId) -> Option<Error> {
        // The words by which PEs meet are those of all teams.
        self.state.failure()
    }

    fn stream(&self) -> Result<Arc<dyn StreamBackend>, Error> {
        Ok(Arc::new(CudaQueue::new(&self.state)?))
    }

    fn owns(&self, stream: &dyn StreamBackend) -> bool {
        let stream: &dyn Any = stream;
        stream.downcast_ref::<CudaQueue>().is_some_and(|stream| stream.is_of(&self.state))
    }

    unsafe fn run(&self, op: &Op, keep: &dyn Fn() -> Keep) -> Result<Outcome, Error> {
        // SAFETY: the caller's promise.
        unsafe { run(&self.state, op, keep) }
    }

    fn finalize(&self) -> Result<(), Error> {
        const CALL: &str = "finalize";
        let state = &*self.state;
        let drained = self.drain(CALL);
        state.drop_streams();
        lock(&state.allocations).clear();
        lock(&state.teams).clear();
        let Some(gpu) = state.take_gpu() else { return Ok(()) };
        let is_known = state.failure().is_some();
        let ended = match gpu.end().map_err(state.portable(CALL)) {
            // A ticket or a stream has reported it.
            Err(Error::Kernel(_)) if is_known => Ok(()),
            ended => ended,
        };
        let rendezvous = lock(&state.rendezvous).take();
        let left = match rendezvous.and_then(Arc::into_inner) {
            Some(rendezvous) => rendezvous.leave().map_err(|error| Error::setup(CALL, error)),
            None => Ok(()),
        };
        drained.and(ended).and(left)
    }

    fn describe(&self) -> String {
        let state = &*self.state;
        let pending: usize = state.live_queues().iter().map(|queue| queue.pending()).sum();
        let failure = state.failure().map_or_else(String::new, |error| format!("; poisoned: {error}"));
        let (pe, n) = (state.job.my_pe, state.job.n_pes);
        format!("{pe} of {n} on {}; {pending} operations pending{failure}", state.caps.compute)
    }
}
