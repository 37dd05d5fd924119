//! Enqueues operations for which no other PE makes a call: one-sided operations, copies and fills
//! in memory of this PE, and kernel launches.

use peerweave_core::Error;
use peerweave_core::backend::{Atomic, AtomicKind, Fill, Get, GetElement, Launch, Place, Put, PutElement, Signal};
use peerweave_driver::launch::LaunchConfig;
use peerweave_stream_kernels::atomic;
use peerweave_types::{DeviceSlice, SignalOp};

use crate::backend::enqueue::{Enqueue, Source};
use crate::backend::error::portable;
use crate::error::CudaError;

impl Enqueue<'_> {
    pub(super) fn put(&mut self, put: &Put) -> Result<Source, Error> {
        let to = self.state.remote(self.call, put.pe, put.target)?;
        let from = self.reading(put.source, put.bytes)?;
        self.note(put.target, put.bytes);
        self.copy(to, from, put.bytes)?;
        match put.signal {
            Some((at, value, op)) => self.signal(&Signal { pe: put.pe, at, value, op }),
            None => Ok(Source::Copy),
        }
    }

    pub(super) fn get(&mut self, get: &Get) -> Result<Source, Error> {
        let from = self.state.remote(self.call, get.pe, get.source)?;
        let (to, staged) = self.writing(get.target, get.bytes)?;
        self.note(get.source, get.bytes);
        self.copy(to, from, get.bytes)?;
        self.written(staged)?;
        Ok(Source::Copy)
    }

    /// Enqueues a kernel that stores an element in the memory of another PE.
    pub(super) fn put_element(&mut self, put: &PutElement) -> Result<Source, Error> {
        self.state.remote(self.call, put.pe, put.target)?;
        self.note(put.target, put.element_bytes);
        let element = self.view::<u8>(put.target, put.element_bytes);
        let arguments = (element, put.bits, put.element_bytes as u32, put.pe.get());
        self.kernel(|kernels| &kernels.put_element, arguments)?;
        Ok(Source::Kernel)
    }

    /// Enqueues a copy that loads an element from the memory of another PE.
    pub(super) fn get_element(&mut self, get: &GetElement) -> Result<Source, Error> {
        let from = self.state.remote(self.call, get.pe, get.source)?;
        let slot = self.slot(2)?;
        self.note(get.source, get.element_bytes);
        self.copy(slot.address(1), from, get.element_bytes)?;
        Ok(Source::Element(slot))
    }

    /// Enqueues a copy between two ranges of memory of this PE.
    pub(super) fn between(&mut self, target: Place, source: Place, bytes: usize) -> Result<Source, Error> {
        let from = self.reading(source, bytes)?;
        let (to, staged) = self.writing(target, bytes)?;
        self.copy(to, from, bytes)?;
        self.written(staged)?;
        Ok(Source::Copy)
    }

    pub(super) fn fill(&mut self, fill: &Fill) -> Result<Source, Error> {
        let bytes = fill.count * fill.element_bytes;
        if bytes == 0 {
            return Ok(Source::Copy);
        }
        let (to, staged) = self.writing(fill.target, bytes)?;
        let stream = self.stream.cu_stream();
        let first = fill.bits.to_ne_bytes()[0];
        if fill.bits.to_ne_bytes()[..fill.element_bytes].iter().all(|byte| *byte == first) {
            // SAFETY: the range has `bytes` bytes, and is recorded or held.
            self.drive("cuMemsetD8Async", |api| Ok(unsafe { api.cuMemsetD8Async(to, first, bytes, stream) }?))?;
        } else {
            const THREADS: usize = 256;
            let blocks = fill.count.div_ceil(THREADS).min(1024) as u32;
            // SAFETY: the range has `bytes` bytes, and is recorded or held.
            let elements = unsafe { DeviceSlice::<u8>::from_raw(to, bytes) };
            let arguments = (elements, fill.bits, fill.element_bytes as u32, fill.count as u64);
            self.launch_kernel(|kernels| &kernels.fill, LaunchConfig::new(blocks, THREADS as u32), arguments)?;
        }
        self.written(staged)?;
        Ok(Source::Copy)
    }

    /// Converts `error`, the reason why a kernel was not launched, to the portable error of the
    /// call.
    fn refused(&self, error: CudaError) -> Error {
        let team = self.state.world();
        match error {
            CudaError::Failed { .. } => match self.state.poisoned(self.call, team) {
                Err(poisoned) => poisoned,
                Ok(()) => self.state.kernel_failure(self.call, team),
            },
            error => portable(self.call, team, error),
        }
    }

    pub(super) fn signal(&mut self, signal: &Signal) -> Result<Source, Error> {
        self.state.remote(self.call, signal.pe, signal.at)?;
        self.note(signal.at, size_of::<u64>());
        let word = self.view::<u64>(signal.at, 1);
        let add = u32::from(signal.op == SignalOp::Add);
        self.kernel(|kernels| &kernels.signal, (word, signal.value, add, signal.pe.get()))?;
        Ok(Source::Kernel)
    }

    pub(super) fn atomic(&mut self, op: &Atomic) -> Result<Source, Error> {
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

    pub(super) fn launch(&mut self, launch: &Launch) -> Result<Source, Error> {
        let mut config = LaunchConfig::new(launch.grid, launch.block).shared_bytes(launch.shared_bytes as u32);
        if launch.cooperative {
            config = config.cooperative();
        }
        let launched = self.gpu.launch_bound(self.stream, &*launch.kernel, config);
        launched.map_err(|error| self.refused(error))?;
        Ok(Source::Launch)
    }
}
