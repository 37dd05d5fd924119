//! Enqueues operations on a CUDA stream: copies run on copy engines, operations that synchronise
//! run as small kernels.
//!
//! Invariants: everything that work on the stream uses is recorded with the stream, or held by the
//! caller of [`Enqueue::op`], until the stream has passed the work. **\[G3\]** Memory of the host
//! that an operation names is valid for as long as its [`Copier`] needs; the caller of
//! [`Enqueue::op`] guarantees that.

use std::sync::Arc;

use peerweave_core::Error;
use peerweave_core::backend::{Atomic, AtomicKind, Collective, CollectiveKind, Fill, Get, Launch, Op, Place, Put, Signal};
use peerweave_driver::launch::LaunchConfig;
use peerweave_driver::{Api, CudaCode, CudaError, CudaStream, DeviceBuffer as _, DeviceMemory, Driver, DriverError, Keep};
use peerweave_stream_kernels::atomic;
use peerweave_types::{DeviceSlice, ReduceOp, SignalOp, SymOffset, SymSlice};

use super::collectives::{order, transfers_of};
use super::error::{driver, portable, unsupported};
use super::pools::{Few, class_of};
use super::slots::Slot;
use super::staging::{Copier, Pinned, Staged};
use super::state::{Live, State};
use super::teams::TeamOf;
use super::ticket::Source;
use crate::error::CudaError as GpuError;

/// One operation that is being enqueued.
pub(super) struct Enqueue<'a> {
    pub(super) state: &'a State,
    pub(super) gpu: &'a Live,
    pub(super) stream: &'a Arc<CudaStream>,
    pub(super) call: &'static str,
    pub(super) copier: Copier,
    pub(super) capturing: bool,
    /// Memory that the work uses and that the portable API does not keep alive.
    pub(super) keep: Few<Keep>,
    /// Pinned memory that the work uses.
    pub(super) staged: Few<Staged>,
    /// Bytes of pools that the work uses.
    pub(super) held_bytes: usize,
    /// Pinned memory with results, which the calling thread copies to the caller's memory when the
    /// work has ended.
    pub(super) results: Few<Staged>,
}

type Outcome<T = ()> = Result<T, Error>;

impl<'a> Enqueue<'a> {
    /// Prepares an operation on a stream whose context is current.
    pub(super) fn new(
        state: &'a State,
        gpu: &'a Live,
        stream: &'a Arc<CudaStream>,
        call: &'static str,
        copier: Copier,
        capturing: bool,
    ) -> Self {
        let (keep, staged, results) = (Few::default(), Few::default(), Few::default());
        Self { state, gpu, stream, call, copier, capturing, keep, staged, held_bytes: 0, results }
    }
}

impl Enqueue<'_> {
    /// Enqueues an operation. Returns the location of its outcome.
    ///
    /// # Safety
    /// The memory of the host that `op` names is valid for as long as the [`Copier`] needs.
    pub(super) unsafe fn op(&mut self, op: &Op) -> Outcome<Source> {
        match op {
            Op::Put(put) => self.put(put),
            Op::Get(get) => self.get(get),
            Op::Strided(op) => self.strided(op),
            Op::Copy(op) => self.between(op.target, op.source, op.bytes),
            Op::PutElement(put) => {
                self.state.remote(self.call, put.pe, put.target)?;
                self.note(put.target, put.element_bytes);
                let element = self.view::<u8>(put.target, put.element_bytes);
                let arguments = (element, put.bits, put.element_bytes as u32, put.pe.get());
                self.kernel(|kernels| &kernels.put_element, arguments)?;
                Ok(Source::Kernel)
            }
            Op::GetElement(get) => {
                let from = self.state.remote(self.call, get.pe, get.source)?;
                let slot = self.slot(2)?;
                self.note(get.source, get.element_bytes);
                self.copy(slot.address(1), from, get.element_bytes)?;
                Ok(Source::Element(slot))
            }
            Op::Fill(fill) => self.fill(fill),
            Op::Signal(signal) => self.signal(signal),
            Op::Wait(wait) => self.wait(wait),
            Op::Atomic(op) => self.atomic(op),
            Op::Launch(launch) => self.launch(launch),
            // A stream runs its work in order, and a copy or store is complete when the next work
            // starts.
            Op::Fence | Op::Quiet => Ok(Source::Copy),
            Op::Collective(op) => self.collective(op),
            Op::Group(ops) => {
                let mut source = self.transfers(transfers_of(ops))?;
                for op in ops.iter().filter(|op| !matches!(op, Op::PointToPoint(_))) {
                    // SAFETY: the caller guarantees it for all members of the group.
                    let next = unsafe { self.op(op) }?;
                    self.hold(std::mem::replace(&mut source, next));
                }
                Ok(source)
            }
            Op::PointToPoint(op) => self.transfers(std::iter::once(op)),
        }
    }

    // ---- memory ----

    /// During a capture, makes the graph keep symmetric memory alive. Outside of a capture,
    /// `release` waits for the work of every stream, and each stream keeps the heap alive.
    pub(super) fn note(&mut self, at: SymOffset, bytes: usize) {
        if self.capturing
            && let Some(block) = self.gpu.0.allocation(at, bytes as u64)
        {
            self.keep.extend(block.keep());
        }
    }

    fn note_place(&mut self, place: Place, bytes: usize) {
        if let Place::Symmetric(at) = place {
            self.note(at, bytes);
        }
    }

    pub(super) fn slot(&mut self, words: usize) -> Outcome<Slot> {
        let slot = self.state.slots.take(&self.state.context, words).map_err(|error| driver(self.call, error))?;
        slot.note(self.stream);
        Ok(slot)
    }

    /// Holds the slot of a part of an operation, because the operation reports the outcome of
    /// another part.
    pub(super) fn hold(&mut self, source: Source) {
        if !matches!(source, Source::Copy | Source::Kernel | Source::Nccl) {
            self.keep.push(Arc::new(source));
        }
    }

    /// Returns a view of symmetric memory whose range `peerweave-core` has checked.
    pub(super) fn view<T>(&self, at: SymOffset, len: usize) -> SymSlice<T> {
        // SAFETY: `peerweave-core` has checked that the elements are aligned and lie in one live
        // allocation; the queue holds the owner of the allocation.
        unsafe { SymSlice::from_raw(at, len) }
    }

    /// Returns pinned memory of at least `bytes` bytes for one operation.
    pub(super) fn pinned(&mut self, bytes: usize) -> Outcome<Arc<Pinned>> {
        let pinned = self.state.pinned(self.call, bytes)?;
        pinned.words.note(self.stream);
        self.held_bytes += class_of(bytes);
        self.keep.push(Arc::<Pinned>::clone(&pinned));
        Ok(pinned)
    }

    fn staged(&mut self, at: *mut u8, bytes: usize) -> Outcome<Staged> {
        if self.capturing {
            let why = "an operand is memory of the host, which cannot be captured into a graph; use symmetric memory or memory of the device";
            return Err(unsupported(self.call, why));
        }
        let staged = Staged::new(self.state.pinned(self.call, bytes)?, at, bytes);
        staged.note(self.stream);
        self.held_bytes += class_of(bytes);
        self.staged.push(staged.clone());
        Ok(staged)
    }

    /// Returns the device address of memory that work on the stream reads.
    pub(super) fn reading(&mut self, place: Place, bytes: usize) -> Outcome<u64> {
        self.note_place(place, bytes);
        let Place::Private(at) = place else { return Ok(self.state.address(place)) };
        let staged = self.staged(at, bytes)?;
        match self.copier {
            // SAFETY: [G3]: the caller of `op` guarantees that the memory is valid for reads now.
            Copier::Caller => unsafe { staged.fill() },
            // SAFETY: [G3]: the memory is valid until the stream has passed the operation.
            Copier::Stream => unsafe { staged.enqueue_fill(self.stream) }.map_err(|error| driver(self.call, error))?,
        }
        Ok(staged.address())
    }

    /// Returns the device address of memory that work on the stream writes, and the staged memory
    /// to pass to [`written`](Self::written).
    pub(super) fn writing(&mut self, place: Place, bytes: usize) -> Outcome<(u64, Option<Staged>)> {
        self.note_place(place, bytes);
        let Place::Private(at) = place else { return Ok((self.state.address(place), None)) };
        let staged = self.staged(at, bytes)?;
        Ok((staged.address(), Some(staged)))
    }

    /// Copies staged results to the caller's memory, or keeps them for the calling thread.
    pub(super) fn written(&mut self, staged: Option<Staged>) -> Outcome {
        match (staged, self.copier) {
            (None, _) => {}
            (Some(staged), Copier::Caller) => self.results.push(staged),
            (Some(staged), Copier::Stream) => {
                // SAFETY: [G3]: the memory is valid until the stream has passed the operation.
                unsafe { staged.enqueue_empty(self.stream) }.map_err(|error| driver(self.call, error))?;
            }
        }
        Ok(())
    }

    /// Returns device memory for one operation.
    pub(super) fn scratch(&mut self, bytes: usize) -> Result<u64, Error> {
        let new = || DeviceMemory::<u8>::alloc(&self.state.context, class_of(bytes));
        // A graph owns the memory that it uses.
        let memory = if self.capturing { new().map(Arc::new) } else { self.state.scratch.take(bytes, new) };
        let memory = memory.map_err(|error| driver(self.call, error))?;
        drop(memory.read(self.stream).map_err(|error| driver(self.call, error))?);
        let address = memory.address();
        self.held_bytes += class_of(bytes);
        self.keep.push(memory);
        Ok(address)
    }

    // ---- copies ----

    /// Calls a function of the driver that enqueues work on the stream, whose context is current.
    pub(super) fn drive(&self, name: &'static str, enqueue: impl FnOnce(&Api) -> Result<CudaCode, DriverError>) -> Outcome {
        let run = || -> Result<(), DriverError> { Ok(CudaError::check(name, enqueue(Driver::get()?.api())?)?) };
        run().map_err(|error| driver(self.call, error))
    }

    pub(super) fn copy(&self, to: u64, from: u64, bytes: usize) -> Outcome {
        if bytes == 0 || to == from {
            return Ok(());
        }
        // SAFETY: both ranges have that many bytes, and stay allocated until the stream has
        // completed the copy, because they are recorded or held.
        self.drive("cuMemcpyAsync", |api| Ok(unsafe { api.cuMemcpyAsync(to, from, bytes, self.stream.cu_stream()) }?))
    }

    fn put(&mut self, put: &Put) -> Outcome<Source> {
        let to = self.state.remote(self.call, put.pe, put.target)?;
        let from = self.reading(put.source, put.bytes)?;
        self.note(put.target, put.bytes);
        self.copy(to, from, put.bytes)?;
        match put.signal {
            Some((at, value, op)) => self.signal(&Signal { pe: put.pe, at, value, op }),
            None => Ok(Source::Copy),
        }
    }

    fn get(&mut self, get: &Get) -> Outcome<Source> {
        let from = self.state.remote(self.call, get.pe, get.source)?;
        let (to, staged) = self.writing(get.target, get.bytes)?;
        self.note(get.source, get.bytes);
        self.copy(to, from, get.bytes)?;
        self.written(staged)?;
        Ok(Source::Copy)
    }

    /// Enqueues a copy within this PE.
    fn between(&mut self, target: Place, source: Place, bytes: usize) -> Outcome<Source> {
        let from = self.reading(source, bytes)?;
        let (to, staged) = self.writing(target, bytes)?;
        self.copy(to, from, bytes)?;
        self.written(staged)?;
        Ok(Source::Copy)
    }

    fn fill(&mut self, fill: &Fill) -> Outcome<Source> {
        let bytes = fill.count * fill.element_bytes;
        if bytes == 0 {
            return Ok(Source::Copy);
        }
        let (to, staged) = self.writing(fill.target, bytes)?;
        let stream = self.stream.cu_stream();
        let first = fill.bits.to_ne_bytes()[0];
        if fill.bits.to_ne_bytes()[..fill.element_bytes].iter().all(|byte| *byte == first) {
            // SAFETY: the range has that many bytes, and is recorded or held.
            self.drive("cuMemsetD8Async", |api| Ok(unsafe { api.cuMemsetD8Async(to, first, bytes, stream) }?))?;
        } else {
            const THREADS: usize = 256;
            let blocks = fill.count.div_ceil(THREADS).min(1024) as u32;
            // SAFETY: as above.
            let elements = unsafe { DeviceSlice::<u8>::from_raw(to, bytes) };
            let arguments = (elements, fill.bits, fill.element_bytes as u32, fill.count as u64);
            self.launch_kernel(|kernels| &kernels.fill, LaunchConfig::new(blocks, THREADS as u32), arguments)?;
        }
        self.written(staged)?;
        Ok(Source::Copy)
    }

    // ---- kernels ----

    /// Converts the error of a launch that was not enqueued.
    fn refused(&self, error: GpuError) -> Error {
        let team = self.state.world();
        match error {
            GpuError::Failed { .. } => match self.state.poisoned(self.call, team) {
                Err(poisoned) => poisoned,
                Ok(()) => self.state.kernel_failure(self.call, team),
            },
            error => portable(self.call, team, error),
        }
    }

    pub(super) fn signal(&mut self, signal: &Signal) -> Outcome<Source> {
        self.state.remote(self.call, signal.pe, signal.at)?;
        self.note(signal.at, size_of::<u64>());
        let word = self.view::<u64>(signal.at, 1);
        let add = u32::from(signal.op == SignalOp::Add);
        self.kernel(|kernels| &kernels.signal, (word, signal.value, add, signal.pe.get()))?;
        Ok(Source::Kernel)
    }

    fn atomic(&mut self, op: &Atomic) -> Outcome<Source> {
        self.state.remote(self.call, op.pe, op.at)?;
        let (kind, operand) = match op.kind {
            AtomicKind::Fetch => (atomic::FETCH, op.operand),
            AtomicKind::Set => (atomic::SET, op.operand),
            AtomicKind::Swap => (atomic::SWAP, op.operand),
            AtomicKind::CompareSwap => (atomic::COMPARE_SWAP, op.operand),
            AtomicKind::Add | AtomicKind::FetchAdd => (atomic::ADD, op.operand),
            AtomicKind::Inc | AtomicKind::FetchInc => (atomic::ADD, 1),
            AtomicKind::And | AtomicKind::FetchAnd => (atomic::AND, op.operand),
            AtomicKind::Or | AtomicKind::FetchOr => (atomic::OR, op.operand),
            AtomicKind::Xor | AtomicKind::FetchXor => (atomic::XOR, op.operand),
        };
        let slot = self.slot(2)?;
        let bytes = op.dtype.size_bytes();
        self.note(op.at, bytes);
        // An element of 4 bytes gives a view of no words; the kernel uses only the view's offset.
        let element = self.view::<u64>(op.at, bytes / size_of::<u64>());
        let arguments = (element, bytes as u32, kind, operand, op.compare, op.pe.get(), slot.view(0, 2));
        self.kernel(|kernels| &kernels.atomic, arguments)?;
        use AtomicKind::{Add, And, Inc, Or, Set, Xor};
        Ok(if matches!(op.kind, Set | Add | Inc | And | Or | Xor) { Source::Done(slot) } else { Source::Word(slot) })
    }

    fn launch(&mut self, launch: &Launch) -> Outcome<Source> {
        let mut config = LaunchConfig::new(launch.grid, launch.block).shared_bytes(launch.shared_bytes as u32);
        if launch.cooperative {
            config = config.cooperative();
        }
        let launched = self.gpu.launch_bound(self.stream, &*launch.kernel, config);
        launched.map_err(|error| self.refused(error))?;
        Ok(Source::Kernel)
    }

    // ---- collectives ----

    fn collective(&mut self, op: &Collective) -> Outcome<Source> {
        let team = &*self.state.team(self.call, op.team)?;
        self.state.poisoned(self.call, team.name())?;
        let alone = team.members.len() == 1;
        let _order = order(&team.order, self.call, self.stream, self.capturing)?;
        self.compared(team, op);
        match op.kind {
            CollectiveKind::Barrier | CollectiveKind::Sync => self.barrier(team),
            CollectiveKind::AllToAllStrided => self.all_to_all_strided(team, op),
            CollectiveKind::AllReduceRmsNorm => self.norm(team, op),
            _ if alone => self.alone(team, op),
            _ if self.is_by_nccl(team, op) => self.by_nccl(team, op),
            _ if op.function().is_some() => self.by_function(team, op),
            kind if kind.has_counts() => self.vector(team, op),
            kind if kind.reduces() => self.reduce(team, op),
            _ => self.exchange(team, op),
        }
    }

    /// Records this call, which is about to be enqueued, so that other ranks can compare their
    /// calls with it. The caller holds the lock of the team's order.
    fn compared(&self, team: &TeamOf, op: &Collective) {
        match &self.state.calls {
            Some(calls) if team.members.len() > 1 && self.capturing => calls.end(team),
            Some(calls) if team.members.len() > 1 => calls.write(team, op),
            _ => {}
        }
    }

    /// Enqueues a barrier of the members of a team.
    fn barrier(&mut self, team: &TeamOf) -> Outcome<Source> {
        const THREADS: u32 = 32;
        if team.collectives.is_some() && team.members.len() > 1 {
            return self.meet(team);
        }
        let slot = self.slot(1)?;
        let arguments = (team.number(), slot.view(0, 1));
        self.launch_kernel(|kernels| &kernels.barrier, LaunchConfig::new(1, THREADS), arguments)?;
        Ok(Source::Collective(slot))
    }

    /// Enqueues a collective of a team with one member, whose result is a copy of its operand. An
    /// exclusive scan has no result there.
    fn alone(&mut self, team: &TeamOf, op: &Collective) -> Outcome<Source> {
        if op.kind == CollectiveKind::ExclusiveScan {
            return Ok(Source::Copy);
        }
        if op.kind.reduces() && op.op == ReduceOp::PreMulSum {
            return self.reduce(team, op);
        }
        let (Some(mut send), Some(mut recv)) = (op.send, op.recv) else { return Ok(Source::Copy) };
        let size = op.element_bytes();
        let mut count = op.count;
        if let Some(counts) = &op.counts {
            (send, recv) = (send.plus(counts.send_offsets[0] * size), recv.plus(counts.recv_offsets[0] * size));
            count = counts.recv_counts[0];
        }
        if send == recv {
            return Ok(Source::Copy);
        }
        self.between(recv, send, count * size)
    }
}
