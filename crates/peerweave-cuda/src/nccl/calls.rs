//! Issues NCCL's call for each collective, for operands whose element type is known only at run
//! time.

use std::sync::Arc;

use peerweave_core::backend::CollectiveKind;
use peerweave_driver::{CudaStream, Keep, Raw};
use peerweave_nccl::{Communicator, NcclError};
use peerweave_types::{DType, Element, Rank, ReduceOp, bf16, f16};

/// A collective that NCCL carries out for all ranks of a communicator. `send` and `recv` are
/// addresses of this device's memory, or 0 if this rank does not have the operand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) kind: CollectiveKind,
    pub(crate) dtype: DType,
    pub(crate) op: ReduceOp,
    pub(crate) root: Rank,
    pub(crate) send: u64,
    pub(crate) recv: u64,
    /// Number of elements. For collectives in which each rank has a part, the number of elements in
    /// one part.
    pub(crate) count: usize,
}

impl Call {
    /// Issues the call to NCCL.
    ///
    /// # Safety
    /// The operands have the length that the collective needs. They stay allocated until the stream
    /// has completed the call. If `capturing` is true, they stay allocated while the graph exists.
    /// An all_to_all or a reduce_scatter is not in place.
    pub(super) unsafe fn issue(
        &self,
        communicator: &Communicator,
        stream: &Arc<CudaStream>,
        capturing: bool,
    ) -> Result<(), NcclError> {
        // The caller guarantees that the memory outlives the graph, so the graph needs no real
        // owner.
        let keep: Option<Keep> = if capturing { Some(Arc::new(())) } else { None };
        // SAFETY: the caller guarantees the operands, whatever their type is.
        unsafe {
            if !self.kind.reduces() {
                let bytes = self.count * self.dtype.size_bytes();
                return self.moving(communicator, stream, bytes, keep);
            }
            match self.dtype {
                DType::I8 => self.reducing::<i8>(communicator, stream, keep),
                DType::U8 => self.reducing::<u8>(communicator, stream, keep),
                DType::I32 => self.reducing::<i32>(communicator, stream, keep),
                DType::U32 => self.reducing::<u32>(communicator, stream, keep),
                DType::I64 => self.reducing::<i64>(communicator, stream, keep),
                DType::U64 => self.reducing::<u64>(communicator, stream, keep),
                DType::F16 => self.reducing::<f16>(communicator, stream, keep),
                DType::BF16 => self.reducing::<bf16>(communicator, stream, keep),
                DType::F32 => self.reducing::<f32>(communicator, stream, keep),
                DType::F64 => self.reducing::<f64>(communicator, stream, keep),
                other => unreachable!("peerweave-cuda bug: the route table chose NCCL, which does not reduce {other}"),
            }
        }
    }

    /// Issues a collective that reduces elements of type `T`.
    ///
    /// # Safety
    /// As for [`issue`](Self::issue).
    unsafe fn reducing<T: Element>(&self, c: &Communicator, s: &Arc<CudaStream>, keep: Option<Keep>) -> Result<(), NcclError> {
        let Self { kind, op, root, send, recv, count, .. } = *self;
        // SAFETY: the caller guarantees that the elements are allocated for as long as the call, or
        // the graph, needs them.
        let raw = |at: u64, len: usize| unsafe { Raw::<T>::new(at, len, c.cuda_device(), keep.clone()) };
        match kind {
            CollectiveKind::AllReduce if send == recv => c.all_reduce_in_place(s, &mut raw(recv, count), op),
            CollectiveKind::AllReduce => c.all_reduce(s, &raw(send, count), &mut raw(recv, count), op),
            CollectiveKind::Reduce if c.rank() != root => c.reduce(s, &raw(send, count), None, op, root),
            CollectiveKind::Reduce if send == recv => c.reduce_in_place(s, &mut raw(recv, count), op, root),
            CollectiveKind::Reduce => c.reduce(s, &raw(send, count), Some(&mut raw(recv, count)), op, root),
            CollectiveKind::ReduceScatter => c.reduce_scatter(s, &raw(send, count * c.n_ranks()), &mut raw(recv, count), op),
            other => unreachable!("peerweave-cuda bug: the route table chose NCCL for {}, which has no NCCL call", other.name()),
        }
    }

    /// Issues a collective that moves data without reducing it. A part has `bytes` bytes.
    ///
    /// # Safety
    /// As for [`issue`](Self::issue).
    unsafe fn moving(&self, c: &Communicator, s: &Arc<CudaStream>, bytes: usize, keep: Option<Keep>) -> Result<(), NcclError> {
        let Self { kind, root, send, recv, .. } = *self;
        let (is_root, all, own) = (c.rank() == root, bytes * c.n_ranks(), (c.rank().index() * bytes) as u64);
        // SAFETY: as in `reducing`.
        let raw = |at: u64, len: usize| unsafe { Raw::<u8>::new(at, len, c.cuda_device(), keep.clone()) };
        match kind {
            CollectiveKind::Broadcast if !is_root => c.broadcast(s, None, &mut raw(recv, bytes), root),
            CollectiveKind::Broadcast if send == recv => c.broadcast_in_place(s, &mut raw(recv, bytes), root),
            CollectiveKind::Broadcast => c.broadcast(s, Some(&raw(send, bytes)), &mut raw(recv, bytes), root),
            CollectiveKind::AllGather if send == recv + own => c.all_gather_in_place(s, &mut raw(recv, all)),
            CollectiveKind::AllGather => c.all_gather(s, &raw(send, bytes), &mut raw(recv, all)),
            CollectiveKind::AllToAll => c.all_to_all(s, &raw(send, all), &mut raw(recv, all)),
            CollectiveKind::Gather if !is_root => c.gather(s, &raw(send, bytes), None, root),
            CollectiveKind::Gather if send == recv + own => c.gather_in_place(s, &mut raw(recv, all), root),
            CollectiveKind::Gather => c.gather(s, &raw(send, bytes), Some(&mut raw(recv, all)), root),
            CollectiveKind::Scatter if !is_root => c.scatter(s, None, &mut raw(recv, bytes), root),
            CollectiveKind::Scatter if recv == send + own => c.scatter_in_place(s, &mut raw(send, all), root),
            CollectiveKind::Scatter => c.scatter(s, Some(&raw(send, all)), &mut raw(recv, bytes), root),
            other => unreachable!("peerweave-cuda bug: the route table chose NCCL for {}, which has no NCCL call", other.name()),
        }
    }
}
