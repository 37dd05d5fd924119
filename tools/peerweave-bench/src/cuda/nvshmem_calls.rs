//! Maps each operation of `bench` to its NVSHMEM call, and holds the memory that the calls use.
//!
//! Invariant: the call count `Calls::made` is the same on all PEs. A PE that makes no calls adds
//! the number of calls that PE 0 makes. So each PE knows the expected value of the word that the
//! calls change.

use std::ops::Range;
use std::sync::Arc;

use peerweave_driver::{CudaStream, DeviceMemory, DriverError};
use peerweave_nvshmem::{Context, NvshmemError, Signal, SymmetricBuffer, Team};
use peerweave_types::{Compare, F8E4M3, F8E5M2, Pe, Rank, ReduceOp, SignalOp, bf16, f16};

use crate::workload::geometry::{Placement, View};
use crate::workload::op::BenchOp;
use crate::workload::pattern::G_DUE;
use crate::workload::pattern::Sample;

/// An element type that NVSHMEM can transfer. NVSHMEM reduces all of these types except 8-bit
/// floats. The plan contains no reduction of 8-bit floats.
pub(crate) trait Reduced: Sample {
    /// Calls [`Team::reduce`]. Panics for 8-bit floats.
    fn reduce(on: On<'_, Self>) -> Result<(), NvshmemError>;
    /// Calls [`Team::reduce_scatter`]. Panics for 8-bit floats.
    fn reduce_scatter(on: On<'_, Self>) -> Result<(), NvshmemError>;
}

/// Arguments of a reduction or a reduce-scatter on a team.
pub(crate) struct On<'a, T> {
    team: &'a Team,
    target: &'a SymmetricBuffer<T>,
    source: &'a SymmetricBuffer<T>,
    op: ReduceOp,
    stream: &'a Arc<CudaStream>,
}

macro_rules! reduced {
    ($($t:ty),*) => {$(
        impl Reduced for $t {
            fn reduce(on: On<'_, Self>) -> Result<(), NvshmemError> {
                on.team.reduce(on.target, on.source, on.op, on.stream)
            }
            fn reduce_scatter(on: On<'_, Self>) -> Result<(), NvshmemError> {
                on.team.reduce_scatter(on.target, on.source, on.op, on.stream)
            }
        }
    )*};
}
reduced!(i8, u8, i32, u32, i64, u64, f16, bf16, f32, f64);

macro_rules! not_reduced {
    ($($t:ty),*) => {$(
        impl Reduced for $t {
            fn reduce(on: On<'_, Self>) -> Result<(), NvshmemError> {
                unreachable!("peerweave bug: the reduction {} was requested for 8-bit floats, but NVSHMEM does not reduce 8-bit floats", on.op)
            }
            fn reduce_scatter(on: On<'_, Self>) -> Result<(), NvshmemError> {
                Self::reduce(on)
            }
        }
    )*};
}
not_reduced!(F8E4M3, F8E5M2);

/// Symmetric or private memory of this PE.
pub(crate) enum Memory<T> {
    /// Memory of the symmetric heap.
    Symmetric(SymmetricBuffer<T>),
    /// Memory allocated with the CUDA driver, for the local side of puts and gets.
    Device(DeviceMemory<T>),
}

impl<T: Sample> Memory<T> {
    pub(super) fn slice(&self, range: Range<usize>) -> Result<Self, NvshmemError> {
        Ok(match self {
            Self::Symmetric(buffer) => Self::Symmetric(buffer.slice(range)?),
            Self::Device(memory) => Self::Device(memory.slice(range)?),
        })
    }

    pub(super) fn write(&mut self, stream: &Arc<CudaStream>, values: &[T]) -> Result<(), NvshmemError> {
        match self {
            Self::Symmetric(buffer) => buffer.copy_from(stream, values),
            Self::Device(memory) => Ok(memory.copy_from(stream, values)?),
        }
    }

    pub(super) fn read(&self, stream: &Arc<CudaStream>) -> Result<Vec<T>, NvshmemError> {
        match self {
            Self::Symmetric(buffer) => buffer.to_vec(stream),
            Self::Device(memory) => Ok(memory.to_vec(stream)?),
        }
    }

    /// Returns the symmetric memory. Panics for private memory, which collectives and nbi calls do
    /// not support.
    fn symmetric(&self) -> &SymmetricBuffer<T> {
        match self {
            Self::Symmetric(buffer) => buffer,
            Self::Device(_) => {
                unreachable!(
                    "peerweave bug: a call that requires symmetric memory got private memory, but `--buffers private` must be refused for this call"
                )
            }
        }
    }
}

/// Makes the calls of one operation, and owns the memory that the calls use.
pub(crate) struct Calls<'a, T> {
    pub(super) context: &'a Context,
    pub(super) world: &'a Team,
    pub(super) stream: &'a Arc<CudaStream>,
    pub(super) view: View,
    pub(super) redop: Option<ReduceOp>,
    /// Whether puts and gets are nonblocking (nbi) and completed by a quiet.
    pub(super) nbi: bool,
    /// Memory of the input; unused by the in-place form.
    pub(super) send: Memory<T>,
    /// Memory of the result. In the in-place form, also memory of the input.
    pub(super) recv: Memory<T>,
    /// Symmetric memory for one-sided operations, which access it on the other PE.
    pub(super) target: SymmetricBuffer<T>,
    /// Symmetric word of the operation: the target of signals, or the word that atomic operations
    /// change.
    pub(super) word: SymmetricBuffer<u64>,
    /// Number of calls so far. A PE that makes no calls counts the calls of PE 0 instead, so the
    /// number is the same on every PE.
    pub(super) made: u64,
    /// Number of wrong words that the calls have returned since this number was last reset.
    pub(super) wrong: u64,
}

impl<T: Reduced> Calls<'_, T> {
    /// Returns whether this PE makes calls. In one-sided operations, most PEs make no calls and
    /// only take part in the barriers.
    pub(super) fn acts(&self) -> bool {
        match self.view.op {
            BenchOp::PingPong => self.view.rank < 2,
            op => !op.is_one_sided() || self.view.rank == 0,
        }
    }

    /// Makes `times` calls. On a PE that makes no calls ([`Self::acts`]), only adds `times` to
    /// `made`.
    pub(super) fn make(&mut self, times: u64) -> Result<(), NvshmemError> {
        if !self.acts() {
            self.made += times;
            return Ok(());
        }
        for _ in 0..times {
            self.made += 1;
            if self.view.op.is_one_sided() { self.one_sided() } else { self.collective() }?;
        }
        Ok(())
    }

    /// Enqueues a quiet if the calls are nonblocking (nbi).
    pub(super) fn complete(&self) -> Result<(), NvshmemError> {
        if self.nbi && self.acts() { self.context.quiet(self.stream) } else { Ok(()) }
    }

    fn collective(&self) -> Result<(), NvshmemError> {
        let Self { world, stream, view, .. } = self;
        if view.op.is_synchronization() {
            return if view.op == BenchOp::Sync { world.sync(stream) } else { world.barrier(stream) };
        }
        let target = self.recv.symmetric();
        let source = if view.placement == Placement::InPlace { target } else { self.send.symmetric() };
        let on = |op| On { team: world, target, source, op, stream };
        match (view.op, self.redop) {
            (BenchOp::AllReduce, Some(op)) => T::reduce(on(op)),
            (BenchOp::ReduceScatter, Some(op)) => T::reduce_scatter(on(op)),
            (BenchOp::Broadcast, _) => world.broadcast(target, source, Rank::new(view.root as u32), stream),
            (BenchOp::AllGather, _) => world.fcollect(target, source, stream),
            (BenchOp::AllToAll, _) => world.alltoall(target, source, stream),
            (other, _) => {
                unreachable!("NVSHMEM has no operation {} on streams; the configuration should have refused it", other.name())
            }
        }
    }

    /// Enqueues a one-sided call: PE 0 accesses the memory of PE 1, and in a ping-pong PE 1 also
    /// accesses the memory of PE 0.
    fn one_sided(&mut self) -> Result<(), NvshmemError> {
        let Self { context, stream, target, made, .. } = self;
        let peer = Pe::new(1 - self.view.rank as u32);
        match (self.view.op, self.nbi) {
            (BenchOp::Put, false) => match &self.send {
                Memory::Symmetric(source) => context.put(target, source, peer, stream),
                Memory::Device(source) => context.put(target, source, peer, stream),
            },
            (BenchOp::Put, true) => context.put_nbi(target, self.send.symmetric(), peer, stream),
            (BenchOp::Get, false) => match &mut self.recv {
                Memory::Symmetric(into) => context.get(into, target, peer, stream),
                Memory::Device(into) => context.get(into, target, peer, stream),
            },
            (BenchOp::Get, true) => context.get_nbi(self.recv.symmetric(), target, peer, stream),
            (BenchOp::PutSignal, nbi) => self.put_signal(1, SignalOp::Add, peer, nbi),
            (BenchOp::P, _) => context.put_value(target, T::from_bits64(*made), peer, stream),
            (BenchOp::G, _) => {
                let got = context.get_value_blocking(target, peer)?;
                self.wrong += u64::from(got.bits64() != T::from_bits64(G_DUE).bits64());
                Ok(())
            }
            (BenchOp::PingPong, _) => {
                let round = *made;
                if self.view.rank == 0 {
                    self.put_signal(round, SignalOp::Set, peer, false)?;
                }
                self.context.signal_wait(&self.word, Compare::Ge, round, self.stream)?;
                if self.view.rank == 1 {
                    self.put_signal(round, SignalOp::Set, peer, false)?;
                }
                Ok(())
            }
            (other, _) => {
                unreachable!("{} is not one-sided, expected an operation for which BenchOp::is_one_sided is true", other.name())
            }
        }
    }

    fn put_signal(&self, value: u64, op: SignalOp, peer: Pe, nbi: bool) -> Result<(), NvshmemError> {
        let Self { context, stream, target, .. } = self;
        let signal = Signal { word: &self.word, value, op };
        match &self.send {
            source if nbi => context.put_signal_nbi(target, source.symmetric(), &signal, peer, stream),
            Memory::Symmetric(source) => context.put_signal(target, source, &signal, peer, stream),
            Memory::Device(source) => context.put_signal(target, source, &signal, peer, stream),
        }
    }
}

/// Allocates device memory of `len` elements.
pub(super) fn device<T: Sample>(context: &Context, len: usize) -> Result<Memory<T>, DriverError> {
    DeviceMemory::alloc(context.device(), len).map(Memory::Device)
}
