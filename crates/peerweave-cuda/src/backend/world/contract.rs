//! Implements the trait `Backend` of `peerweave-core` for GPUs.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use peerweave_bootstrap::end_process;
use peerweave_bootstrap::{Loss, Rendezvous};
use peerweave_core::Error;
use peerweave_core::backend::{
    Allocation, Backend, Caps, Fill, JobShape, Keep, LocalAddress, Op, Outcome, Place, Shrunk, SplitCall, SplitPart,
    StreamBackend, TeamId, TeamRecord,
};
use peerweave_driver::PrivateStream;
use peerweave_types::{HeapGeometry, KernelTeam, Pe, SymOffset};

use super::Cuda;
use super::agreement::exchange_of;
use super::split::{Made, path_of};
use crate::backend::error::{NAME, cause, driver, world};
use crate::backend::lock::lock;
use crate::backend::state::GRACE;
use crate::backend::streams::{CudaQueue, run};
use crate::backend::teams;
use crate::collective::random;
use crate::error::CudaError;

impl Cuda {
    /// Calls `access`, which copies data between the host and the `bytes` bytes at `at` of this
    /// PE's heap. The arguments of `access` are the stream for such copies, the allocation that
    /// contains these bytes, and their offset in the allocation.
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

// SAFETY: [B1] copies and kernels access the ranges of operations, which the core has checked. They
// access memory of the host only through pinned memory (`resources/staging.rs`). The calling
// thread, or a function in stream order, copies between pinned memory and other memory of the host.
// If `run` fails, no result is copied to memory of the host. [B2] `local` returns addresses of the
// device, whose heap lives as long as this value. [B3] signals, waits and barriers are kernels that
// release and acquire at the scope of the system, and a ticket completes when the stream has passed
// the operation. [B4] symmetric memory is accessed by the device alone. [B5] after finalize there
// is no GPU. [B7] `run` retires the memory that it holds together with its stream. [B8] `submit`
// and `run` notify the owners of device memory.
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
        // The heap returns zeroed memory, and a distinct offset even for an empty allocation.
        let gpu = self.state.gpu(CALL)?;
        let world = self.state.team(CALL, TeamId::WORLD)?;
        self.state.agree(gpu.rendezvous(), &world, CALL, &request.to_string())?;
        let memory = gpu.alloc_aligned(request.bytes.max(1), request.align).map_err(self.state.portable(CALL))?;
        let at = memory.offset();
        lock(&self.state.allocations).insert(at.0, memory);
        Ok(at)
    }

    fn release(&self, at: SymOffset) -> Result<(), Error> {
        const CALL: &str = "release";
        let (gpu, world) = (self.state.gpu(CALL)?, self.state.team(CALL, TeamId::WORLD)?);
        self.state.agree(gpu.rendezvous(), &world, CALL, &format!("release of the buffer at heap offset {:#x}", at.0))?;
        self.drain(CALL)?;
        let memory = lock(&self.state.allocations).remove(&at.0);
        let memory = memory.unwrap_or_else(|| panic!("peerweave-core bug: nothing is allocated at {at:?}"));
        gpu.free(memory).map_err(self.state.portable(CALL))
    }

    fn local(&self, at: SymOffset) -> LocalAddress {
        LocalAddress::Device { address: self.state.address(Place::Symmetric(at)), ordinal: self.state.context.ordinal() }
    }

    fn address_of(&self, pe: Pe, at: SymOffset) -> Option<LocalAddress> {
        let address = self.state.remote("address_of", pe, at).ok()?;
        Some(LocalAddress::Device { address, ordinal: self.state.context.ordinal() })
    }

    unsafe fn read_local(&self, at: SymOffset, into: *mut u8, bytes: usize) -> Result<(), Error> {
        if bytes == 0 {
            return Ok(());
        }
        let deadline = self.state.deadline;
        let read = self.access("to_vec", at, bytes, |stream, block, from| block.read(stream, from, bytes, deadline))?;
        // SAFETY: `into` is valid for writes of `bytes` bytes, the number of bytes that were read.
        unsafe { into.copy_from_nonoverlapping(read.as_ptr(), bytes) };
        Ok(())
    }

    unsafe fn write_local(&self, at: SymOffset, from: *const u8, bytes: usize) -> Result<(), Error> {
        if bytes == 0 {
            return Ok(());
        }
        let deadline = self.state.deadline;
        // SAFETY: `from` is valid for reads of `bytes` bytes, and is not symmetric memory.
        let values = unsafe { std::slice::from_raw_parts(from, bytes) };
        self.access("copy_from", at, bytes, |stream, block, to| block.write(stream, to, values, deadline))
    }

    unsafe fn fill_local(&self, at: SymOffset, bits: u64, element_bytes: usize, count: usize) -> Result<(), Error> {
        let op = Op::Fill(Fill { target: Place::Symmetric(at), bits, element_bytes, count });
        // SAFETY: the caller guarantees that the elements are allocated; the operation accesses no
        // memory of the host.
        unsafe { run(&self.state, &op, &Keep::nothing) }.map(drop)
    }

    fn team_split(&self, parent: TeamId, call: SplitCall, part: Option<SplitPart>) -> Result<Option<TeamRecord>, Error> {
        let (state, name) = (&*self.state, call.name());
        let (gpu, parent) = (state.gpu(name)?, state.team(name, parent)?);
        let rendezvous = gpu.rendezvous();
        // Only one split runs at a time, because each split takes a free team number.
        let mut splits = lock(&state.splits);
        let sentinel = random().map_err(state.portable(name))?;
        let attached: Vec<u8> = splits.to_le_bytes().into_iter().chain(sentinel).collect();
        let attached = state.agree_and_exchange(rendezvous, &parent, name, &call.to_string(), &attached)?;
        let calls = lock(&parent.agreements).to_owned();
        let label = format!("peerweave/{}/split/{calls}", parent.path);
        let exchange = exchange_of(rendezvous, &parent, label);
        let path = path_of(&parent.path, calls, part.map_or(0, |part| part.color));
        let made = Made { call: name, name: parent.name(), path };
        self.split_parent(&gpu, &parent, &exchange, made, &mut splits, &attached, part)
    }

    fn team_of(&self, members: &[Pe]) -> Result<TeamRecord, Error> {
        self.team_of_members(members)
    }

    fn team_destroy(&self, team: TeamId) -> Result<(), Error> {
        const CALL: &str = "destroy";
        let state = &*self.state;
        let (gpu, of) = (state.gpu(CALL)?, state.team(CALL, team)?);
        state.agree(gpu.rendezvous(), &of, CALL, CALL)?;
        self.drain(CALL)?;
        state.teams.remove(team);
        let entry = of.take_entry().unwrap_or_else(|| panic!("peerweave-core bug: {team:?} was destroyed"));
        drop(of);
        entry.destroy().map_err(state.portable(CALL))
    }

    fn kernel_team(&self, team: TeamId) -> KernelTeam {
        teams::number(team)
    }

    fn team_failure(&self, _: TeamId) -> Option<Error> {
        // A failure poisons all teams, because all teams share the words by which PEs synchronize.
        self.state.failure()
    }

    fn lost(&self, call: &'static str, pe: Pe) -> Option<Error> {
        let losses = self.state.gpu(call).ok()?.rendezvous().losses();
        // A PE that gave up in a wait is not lost: it still takes part in the job.
        let (_, loss) = losses.into_iter().find(|(lost, loss)| *lost == pe && !matches!(loss, Loss::GaveUp { .. }))?;
        Some(Error::Peer { call, team: world(self.state.job.n_pes), pe, cause: cause(&loss) })
    }

    fn stream(&self) -> Result<Arc<dyn StreamBackend>, Error> {
        Ok(self.adopt(CudaQueue::new(&self.state)?))
    }

    fn owns(&self, stream: &dyn StreamBackend) -> bool {
        let stream: &dyn Any = stream;
        stream.downcast_ref::<CudaQueue>().is_some_and(|stream| stream.is_of(&self.state))
    }

    unsafe fn run(&self, op: &Op, keep: &dyn Fn() -> Keep) -> Result<Outcome, Error> {
        // SAFETY: the caller guarantees the safety requirements of the called function.
        unsafe { run(&self.state, op, keep) }
    }

    fn abort(&self, code: u8) -> Error {
        let rendezvous = lock(&self.state.rendezvous).clone();
        let code = rendezvous.map_or(code, |rendezvous| rendezvous.abort(code).code);
        if let Some(launcher) = &*lock(&self.state.launcher) {
            launcher.abort(code);
        }
        end_process(code)
    }

    fn shrink(&self) -> Result<Shrunk, Error> {
        self.shrink_to_survivors()
    }

    fn finalize(&self) -> Result<(), Error> {
        const CALL: &str = "finalize";
        let state = &*self.state;
        let (drained, start) = (self.drain(CALL), Instant::now());
        let Some(gpu) = state.take_gpu(state.deadline.saturating_add(GRACE)) else {
            return Err(state.timed_out(CALL, state.world(), start.elapsed()));
        };
        // Another thread may have enqueued work while the streams were drained.
        let drained = drained.and_then(|()| self.drain(CALL));
        // NCCL is ended before the GPU, because NCCL frees memory of the GPU, and NCCL's kernels
        // must have ended by then.
        let has_failed = drained.is_err() || state.failure().is_some() || gpu.0.lost().is_some();
        let nccl = state.nccl.end(has_failed, state.deadline).map_err(|error| Error::setup(CALL, error));
        state.drop_streams();
        lock(&state.allocations).clear();
        let is_known = state.failure().is_some();
        let ended = match gpu.end().map_err(state.portable(CALL)) {
            // A ticket or a stream has already reported this failure.
            Err(Error::Kernel(_)) if is_known => Ok(()),
            ended => ended,
        };
        let rendezvous = lock(&state.rendezvous).take();
        let left = match rendezvous.and_then(Arc::into_inner) {
            Some(rendezvous) => rendezvous.leave().map_err(|error| Error::setup(CALL, error)),
            None => Ok(()),
        };
        let launcher = lock(&state.launcher).take();
        if let Some(Err(error)) = launcher.and_then(Arc::into_inner).map(Rendezvous::leave) {
            // PEs of that job that are not in this world have died, so an error is expected.
            tracing::debug!(%error, "an error occurred when this PE left the rendezvous of the launcher");
        }
        drained.and(nccl).and(ended).and(left)
    }

    fn describe(&self) -> String {
        let state = &*self.state;
        let pending: usize = self.live_queues().iter().map(|queue| queue.pending()).sum();
        let failure = state.failure().map_or_else(String::new, |error| format!("; poisoned: {error}"));
        let (pe, n) = (state.job.my_pe, state.job.n_pes);
        format!("{pe} of {n} on {}; pending operations: {pending}{failure}", state.caps.compute)
    }
}
