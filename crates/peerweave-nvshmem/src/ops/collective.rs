//! Collectives and barriers of a team, on a stream or blocking.
//!
//! A collective has no deadline. If a PE does not call the collective, the streams of the other PEs
//! stay blocked. A wait of the host for such a stream times out.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use peerweave_driver::{CudaStream, DriverError, is_capturing};
use peerweave_dylib::MissingSymbol;
use peerweave_types::{DType, Element, Number, Rank, ReduceOp};

use crate::comm::streams::wait_stream;
use crate::context::Context;
use crate::error::{MisuseKind, NvshmemError};
use crate::ops::enqueue::{Enqueue, by_width, check_apart, check_len, overlap, pointer};
use crate::sys::{self, CType, Families};
use crate::{SymmetricBuffer, Team};

/// Returns the C type in the names of NVSHMEM's reductions of `dtype` elements. Returns `None` if
/// NVSHMEM cannot reduce such elements.
fn reduced(dtype: DType) -> Option<CType> {
    Some(match dtype {
        DType::I8 => CType::Int8,
        DType::U8 => CType::Uint8,
        DType::I16 => CType::Int16,
        DType::U16 => CType::Uint16,
        DType::I32 => CType::Int32,
        DType::U32 => CType::Uint32,
        DType::I64 => CType::Int64,
        DType::U64 => CType::Uint64,
        DType::F16 => CType::Half,
        DType::BF16 => CType::Bfloat16,
        DType::F32 => CType::Float,
        DType::F64 => CType::Double,
        _ => return None,
    })
}

type Found = Result<sys::CollectiveOnStream, MissingSymbol>;

impl Context {
    /// Waits on the host until every PE has made this call (`nvshmem_barrier_all`). The barrier
    /// also completes this PE's `nbi` transfers, and the puts and gets that this PE made without a
    /// stream. This includes transfers over a network.
    ///
    /// The barrier does not wait for puts that this process enqueued on streams; [`Team::barrier`]
    /// completes such puts. The host waits inside NVSHMEM, so the context becomes unusable if a PE
    /// does not arrive by the deadline. With [`Team::barrier_blocking`], the barrier runs on the
    /// device, and the context stays usable.
    ///
    /// # Collective
    /// All PEs must make this call and the other collectives of the world team in the same order.
    ///
    /// # Errors
    /// [`NvshmemError::Timeout`] if a PE does not arrive by the deadline; the error reports PEs
    /// that were lost. [`NvshmemError::Dead`] if NVSHMEM is unusable. [`NvshmemError::Cuda`] if
    /// earlier work on the device failed.
    pub fn barrier_all_blocking(&self) -> Result<(), NvshmemError> {
        const CALL: &str = "nvshmem_barrier_all";
        let comm = &self.comm;
        comm.check_usable(CALL)?;
        let order = comm.enqueued.world_order();
        let _turn = order.drain(CALL, comm)?;
        // SAFETY: NVSHMEM is initialised, and this process has no other collective of all PEs in
        // progress.
        let barrier = || comm.block(CALL, |api, _| unsafe { api.nvshmem_barrier_all() });
        comm.enqueued.pending.complete(CALL, comm, barrier)?;
        comm.check_device_errors()
    }
}

impl Team {
    /// Enqueues a barrier of the team on `stream`. Once the barrier is complete, every PE of the
    /// team has arrived, and the puts that these PEs made before the barrier are visible.
    ///
    /// The barrier also completes transfers over a network. `stream` first waits for NVSHMEM's own
    /// streams, and then runs a kernel. Before this PE arrives at the barrier, the kernel completes
    /// this PE's network transfers on all queues of the device (`nvshmemi_transfer_quiet` in
    /// NVSHMEM's `barrier.cuh`).
    ///
    /// Network transfers that the host makes with [`put_blocking`](Context::put_blocking) use a
    /// different queue, which this barrier does not complete.
    /// [`barrier_blocking`](Self::barrier_blocking) also completes these transfers.
    ///
    /// # Collective
    /// All PEs of the team must make this call.
    ///
    /// # Errors
    /// [`MisuseKind::Device`] if `stream` belongs to another device. [`NvshmemError::Dead`] if
    /// NVSHMEM is unusable. [`NvshmemError::Nvshmem`] if NVSHMEM returns an error.
    /// [`MisuseKind::Context`] if the stream is being captured while `nbi` transfers are pending.
    pub fn barrier(&self, stream: &Arc<CudaStream>) -> Result<(), NvshmemError> {
        let mut enqueue = Enqueue::begin(&self.comm, "nvshmemx_barrier_on_stream", stream)?;
        let team = enqueue.team(self)?;
        enqueue.waits_for_nbi()?;
        // SAFETY: the team and the stream are live.
        enqueue.call_status(|api, _| unsafe { api.nvshmemx_barrier_on_stream(team, stream.cu_stream()) })
    }

    /// Makes later work on `stream` wait until every PE of the team has arrived. The call includes
    /// no quiet, so earlier puts may not be visible afterwards.
    ///
    /// # Collective
    /// All PEs of the team must make this call.
    ///
    /// # Errors
    /// Returns the same errors as [`barrier`](Self::barrier).
    pub fn sync(&self, stream: &Arc<CudaStream>) -> Result<(), NvshmemError> {
        let mut enqueue = Enqueue::begin(&self.comm, "nvshmemx_team_sync_on_stream", stream)?;
        let team = enqueue.team(self)?;
        // SAFETY: the team and the stream are live.
        enqueue.call_status(|api, _| unsafe { api.nvshmemx_team_sync_on_stream(team, stream.cu_stream()) })
    }

    /// Waits within the context's deadline until every PE of the team has made this call.
    /// Afterwards, the earlier puts of these PEs are visible. These include puts that a host made
    /// without a stream, even if these puts use a network.
    ///
    /// Exception: this call does not wait for puts that were enqueued on a stream other than
    /// [`Context::stream`]. Such puts may not be visible.
    ///
    /// # Collective
    /// All PEs of the team must make this call.
    ///
    /// # Errors
    /// [`NvshmemError::Timeout`] if a PE does not arrive by the deadline; the error reports PEs
    /// that were lost. Other errors are the same as for [`barrier`](Self::barrier).
    pub fn barrier_blocking(&self) -> Result<(), NvshmemError> {
        const CALL: &str = "nvshmemx_barrier_on_stream";
        if self.comm.enqueued.sent.load(Ordering::Relaxed) {
            // The barrier's kernel completes network transfers of the device's queues, but not
            // those of the host. Transfers on NVSHMEM's own streams are completed first, because
            // only a wait outside of NVSHMEM has a deadline.
            self.blocking("nvshmemx_quiet_on_stream", |team, stream| {
                let mut enqueue = Enqueue::begin(&team.comm, "nvshmemx_quiet_on_stream", stream)?;
                enqueue.waits_for_nbi()?;
                // SAFETY: NVSHMEM permits every stream of the device.
                enqueue.call(|api, _| unsafe { api.nvshmemx_quiet_on_stream(stream.cu_stream()) })
            })?;
            self.comm.quiet_host()?;
        }
        self.blocking(CALL, Self::barrier)
    }

    /// Waits within the context's deadline until every PE of the team has made this call.
    ///
    /// # Collective
    /// All PEs of the team must make this call.
    ///
    /// # Errors
    /// Returns the same errors as [`barrier_blocking`](Self::barrier_blocking).
    pub fn sync_blocking(&self) -> Result<(), NvshmemError> {
        self.blocking("nvshmemx_team_sync_on_stream", Self::sync)
    }

    /// Calls `enqueue` with the context's own stream, and waits until this stream has completed its
    /// work. Returns an error if the caller is capturing this stream.
    fn blocking(
        &self,
        call: &'static str,
        enqueue: fn(&Self, &Arc<CudaStream>) -> Result<(), NvshmemError>,
    ) -> Result<(), NvshmemError> {
        let stream = &self.comm.stream;
        self.comm.check_usable(call)?;
        if is_capturing(stream)? {
            return Err(DriverError::Capturing { call }.into());
        }
        enqueue(self, stream)?;
        wait_stream(call, &self.comm, stream)
    }

    /// Copies `source` from the PE with rank `root` to `target` on every PE of the team, including
    /// the root.
    ///
    /// # Collective
    /// All PEs of the team must make this call with the same length and root.
    ///
    /// # Errors
    /// [`MisuseKind::Length`] unless source and target have the same number of elements.
    /// [`MisuseKind::Rank`] if the team has no rank `root`. [`MisuseKind::Overlap`] if source and
    /// target overlap. [`MisuseKind::WrongContext`] if source or target belongs to another context.
    /// [`MisuseKind::Device`] if `stream` belongs to another device. [`NvshmemError::Dead`] if
    /// NVSHMEM is unusable. [`NvshmemError::Nvshmem`] if NVSHMEM returns an error.
    pub fn broadcast<T: Element>(
        &self,
        target: &SymmetricBuffer<T>,
        source: &SymmetricBuffer<T>,
        root: Rank,
        stream: &Arc<CudaStream>,
    ) -> Result<(), NvshmemError> {
        const CALL: &str = "nvshmemx_broadcast_on_stream";
        let root = self.check_rank(CALL, "the root", root)?;
        check_len(CALL, "the source", source.len(), target.len())?;
        let Some((enqueue, team, to, from)) = self.begin(CALL, target, source, InPlace::No, stream)? else { return Ok(()) };
        let count = target.len();
        enqueue.call_status(|_, families| {
            let function = families.broadcast_on_stream(by_width::<T>())?;
            // SAFETY: both ranges are inside the symmetric heap and are kept alive. The team is
            // live and contains the root.
            Ok(unsafe { function(team, pointer(to), pointer(from), count, root, stream.cu_stream()) })
        })
    }

    /// Concatenates the sources of all PEs of the team in rank order, and stores the result in
    /// `target` on each PE.
    ///
    /// # Collective
    /// All PEs of the team must make this call with the same length.
    ///
    /// # Errors
    /// [`MisuseKind::Length`] unless the target has as many elements as all sources together. Other
    /// errors are the same as for [`broadcast`](Self::broadcast).
    pub fn fcollect<T: Element>(
        &self,
        target: &SymmetricBuffer<T>,
        source: &SymmetricBuffer<T>,
        stream: &Arc<CudaStream>,
    ) -> Result<(), NvshmemError> {
        const CALL: &str = "nvshmemx_fcollect_on_stream";
        check_len(CALL, "the target", target.len(), source.len().saturating_mul(self.len()))?;
        let function = |families: &'static Families| families.fcollect_on_stream(by_width::<T>());
        self.run(CALL, target, source, source.len(), InPlace::No, stream, function)
    }

    /// Divides `source` into as many equal parts as the team has PEs, and sends part n to the PE
    /// with rank n. Stores the part that arrives from rank n as part n of `target`.
    ///
    /// # Collective
    /// All PEs of the team must make this call with the same length.
    ///
    /// # Errors
    /// [`MisuseKind::Length`] if source and target have different numbers of elements, or if the
    /// number is not a multiple of the team's size. Other errors are the same as for
    /// [`broadcast`](Self::broadcast).
    pub fn alltoall<T: Element>(
        &self,
        target: &SymmetricBuffer<T>,
        source: &SymmetricBuffer<T>,
        stream: &Arc<CudaStream>,
    ) -> Result<(), NvshmemError> {
        const CALL: &str = "nvshmemx_alltoall_on_stream";
        check_len(CALL, "the source", source.len(), target.len())?;
        let count = source.len() / self.len();
        check_len(CALL, "the source", source.len(), count * self.len())?;
        let function = |families: &'static Families| families.alltoall_on_stream(by_width::<T>());
        self.run(CALL, target, source, count, InPlace::No, stream, function)
    }

    /// Reduces the sources of all PEs of the team element by element, and stores the result in
    /// `target` on each PE. `target` may be the same memory as `source`.
    ///
    /// # Collective
    /// All PEs of the team must make this call with the same length and operation.
    ///
    /// # Errors
    /// [`MisuseKind::Reduction`] if NVSHMEM lacks the reduction, for example the mean, a scaled
    /// sum, or a bitwise operation on floats. [`MisuseKind::Overlap`] if source and target overlap
    /// without being the same memory. Other errors are the same as for
    /// [`broadcast`](Self::broadcast).
    pub fn reduce<T: Number>(
        &self,
        target: &SymmetricBuffer<T>,
        source: &SymmetricBuffer<T>,
        op: ReduceOp,
        stream: &Arc<CudaStream>,
    ) -> Result<(), NvshmemError> {
        const CALL: &str = "nvshmemx_reduce_on_stream";
        check_len(CALL, "the source", source.len(), target.len())?;
        let kind = reduction::<T>(CALL, op)?;
        let function = move |families: &'static Families| -> Found {
            match op {
                ReduceOp::Sum => families.sum_reduce_on_stream(kind),
                ReduceOp::Prod => families.prod_reduce_on_stream(kind),
                ReduceOp::Min => families.min_reduce_on_stream(kind),
                ReduceOp::Max => families.max_reduce_on_stream(kind),
                ReduceOp::And => families.and_reduce_on_stream(kind),
                ReduceOp::Or => families.or_reduce_on_stream(kind),
                _ => families.xor_reduce_on_stream(kind),
            }
        };
        self.run(CALL, target, source, target.len(), InPlace::Whole, stream, function)
    }

    /// Reduces the sources of all PEs of the team element by element. Divides the result into as
    /// many equal parts as the team has PEs. Stores part n of the result in `target` on the PE with
    /// rank n.
    ///
    /// # Collective
    /// All PEs of the team must make this call with the same length and operation.
    ///
    /// # Errors
    /// [`MisuseKind::Length`] unless the source has as many elements as all targets together.
    /// [`MisuseKind::Overlap`] if source and target overlap. Other errors are the same as for
    /// [`reduce`](Self::reduce).
    pub fn reduce_scatter<T: Number>(
        &self,
        target: &SymmetricBuffer<T>,
        source: &SymmetricBuffer<T>,
        op: ReduceOp,
        stream: &Arc<CudaStream>,
    ) -> Result<(), NvshmemError> {
        const CALL: &str = "nvshmemx_reducescatter_on_stream";
        check_len(CALL, "the source", source.len(), target.len().saturating_mul(self.len()))?;
        let kind = reduction::<T>(CALL, op)?;
        let function = move |families: &'static Families| -> Found {
            match op {
                ReduceOp::Sum => families.sum_reducescatter_on_stream(kind),
                ReduceOp::Prod => families.prod_reducescatter_on_stream(kind),
                ReduceOp::Min => families.min_reducescatter_on_stream(kind),
                ReduceOp::Max => families.max_reducescatter_on_stream(kind),
                ReduceOp::And => families.and_reducescatter_on_stream(kind),
                ReduceOp::Or => families.or_reducescatter_on_stream(kind),
                _ => families.xor_reducescatter_on_stream(kind),
            }
        };
        self.run(CALL, target, source, target.len(), InPlace::No, stream, function)
    }

    #[allow(clippy::too_many_arguments, reason = "these are the parameters that all collectives share")]
    fn run<T: Element>(
        &self,
        call: &'static str,
        target: &SymmetricBuffer<T>,
        source: &SymmetricBuffer<T>,
        count: usize,
        in_place: InPlace,
        stream: &Arc<CudaStream>,
        function: impl FnOnce(&'static Families) -> Found,
    ) -> Result<(), NvshmemError> {
        let Some((enqueue, team, to, from)) = self.begin(call, target, source, in_place, stream)? else { return Ok(()) };
        enqueue.call_status(|_, families| {
            let function = function(families)?;
            // SAFETY: both ranges are inside the symmetric heap and are kept alive. Their lengths
            // agree with the count and the team's size. The team is live.
            Ok(unsafe { function(team, pointer(to), pointer(from), count, stream.cu_stream()) })
        })
    }

    /// Makes the checks that all collectives have in common. Returns the prepared call, the team's
    /// handle, the target's address and the source's address. Returns `None` if a buffer has no
    /// elements.
    #[allow(clippy::type_complexity, reason = "the two callers destructure the result immediately")]
    fn begin<'a, T: Element>(
        &'a self,
        call: &'static str,
        target: &SymmetricBuffer<T>,
        source: &SymmetricBuffer<T>,
        in_place: InPlace,
        stream: &'a Arc<CudaStream>,
    ) -> Result<Option<(Enqueue<'a>, i32, u64, u64)>, NvshmemError> {
        let mut enqueue = Enqueue::begin(&self.comm, call, stream)?;
        let team = enqueue.team(self)?;
        let to = enqueue.symmetric("the target", target)?;
        let from = enqueue.symmetric("the source", source)?;
        if target.is_empty() || source.is_empty() {
            return Ok(None);
        }
        let (target_bytes, source_bytes) = (target.len() * size_of::<T>(), source.len() * size_of::<T>());
        let same = to == from && target_bytes == source_bytes && in_place == InPlace::Whole;
        if !same && overlap((from, source_bytes), (to, target_bytes)).is_some() {
            check_apart(call, ("the source", from, source_bytes), ("the target", to, target_bytes))?;
        }
        Ok(Some((enqueue, team, to, from)))
    }
}

/// Whether the target of a collective may be the same memory as the source.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InPlace {
    No,
    Whole,
}

fn reduction<T: Number>(call: &'static str, op: ReduceOp) -> Result<CType, NvshmemError> {
    const { assert!(T::PARTS == 1, "NVSHMEM has no type for elements that consist of several values: pass a buffer of single values") };
    let known = !matches!(op, ReduceOp::Avg | ReduceOp::PreMulSum) && op.accepts(T::DTYPE);
    reduced(T::DTYPE).filter(|_| known).ok_or_else(|| NvshmemError::misuse(call, MisuseKind::Reduction { op, dtype: T::DTYPE }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reductions_that_nvshmem_lacks_are_refused() {
        assert_eq!(reduction::<f32>("test", ReduceOp::Sum).expect("NVSHMEM sums floats"), CType::Float);
        assert_eq!(reduction::<i8>("test", ReduceOp::Xor).expect("NVSHMEM has bitwise operations on integers"), CType::Int8);
        for op in [ReduceOp::Avg, ReduceOp::PreMulSum, ReduceOp::And] {
            let error = reduction::<f32>("test", op).expect_err("NVSHMEM lacks the reduction");
            assert!(error.to_string().contains("NVSHMEM does not support the reduction"), "{error}");
        }
    }
}
