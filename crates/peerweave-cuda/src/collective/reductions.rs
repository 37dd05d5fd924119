//! The collectives all_reduce, reduce and reduce_scatter.

use std::sync::Arc;

use peerweave_collectives::{Algorithm, Call, LINE_BYTES, Results, all_reduce, reduce_scatter};
use peerweave_core::backend::CollectiveKind;
use peerweave_driver::CudaStream;
use peerweave_driver::launch::LoadedKernel;
use peerweave_types::{DType, Rank, ReduceOp};

use super::Collectives;
use super::operands::{Operands, check_parts};
use crate::error::{CudaError, misuse};
use crate::route::{self, OwnPath, Route};

const CALL: &str = "all_reduce";

impl Collectives {
    /// Enqueues an all_reduce: every rank contributes `count` elements, and gets the reduction of
    /// the contributions of all ranks.
    ///
    /// `send` and `recv` are addresses of memory that this device can access. The memory need not
    /// be on the symmetric heap. Both addresses must be aligned to the size of an element. `recv`
    /// must be equal to `send`, or the ranges must not overlap. Inputs are combined in the order of
    /// ranks. 16-bit floats are combined in `f32`, and the result is rounded once.
    ///
    /// # Collective
    /// All ranks, with the same count, type and reduction.
    ///
    /// # Errors
    /// A call that returns [`CudaError::Misuse`] or [`CudaError::Failed`] enqueues no kernel.
    /// [`CudaError::Misuse`] for a reduction that the type does not support, for `PreMulSum` (use
    /// [`all_reduce_scaled`](Self::all_reduce_scaled)), and for ranges that are not aligned or that
    /// overlap. [`CudaError::Failed`] after a kernel has failed. Errors of the launch.
    ///
    /// # Safety
    /// Both ranges must be memory that this device can access. They must stay allocated until the
    /// stream has completed the call. If a graph has captured the call, they must stay allocated
    /// while the graph exists. During this time, no other code may write the input or access the
    /// result.
    pub unsafe fn all_reduce(
        &self,
        stream: &Arc<CudaStream>,
        send: u64,
        recv: u64,
        count: u64,
        dtype: DType,
        op: ReduceOp,
    ) -> Result<(), CudaError> {
        let route = self.all_reduce_route(count, dtype);
        // SAFETY: the caller guarantees the safety requirements of the called function.
        unsafe { self.all_reduce_by(route, stream, send, recv, count, dtype, op) }
    }

    /// Like [`all_reduce`](Self::all_reduce), but with the reduction `PreMulSum`: each rank
    /// multiplies its elements by its own scalar, and the products of all ranks are added. `scalar`
    /// holds the zero-extended bits of a value of type `dtype`. Each product is rounded to `dtype`.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce).
    ///
    /// # Safety
    /// As for [`all_reduce`](Self::all_reduce).
    pub unsafe fn all_reduce_scaled(
        &self,
        stream: &Arc<CudaStream>,
        send: u64,
        recv: u64,
        count: u64,
        dtype: DType,
        scalar: u64,
    ) -> Result<(), CudaError> {
        let route = self.all_reduce_route(count, dtype);
        let operands = Operands::new(send, recv, count, dtype, ReduceOp::PreMulSum, scalar);
        // SAFETY: the caller guarantees the safety requirements of the called function.
        unsafe { self.reduce_by(CALL, route, stream, &operands, Results::Every) }
    }

    /// Enqueues a reduce: every rank contributes `count` elements, and only the root gets the
    /// reduction of the contributions of all ranks. Other ranks ignore `recv`.
    ///
    /// # Collective
    /// All ranks, with the same count, type, reduction and root.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce), and [`CudaError::Misuse`] if no rank has the number
    /// `root`.
    ///
    /// # Safety
    /// As for [`all_reduce`](Self::all_reduce).
    #[expect(clippy::too_many_arguments, reason = "the function takes all arguments of all_reduce, and also a root")]
    pub unsafe fn reduce(
        &self,
        stream: &Arc<CudaStream>,
        send: u64,
        recv: u64,
        count: u64,
        dtype: DType,
        op: ReduceOp,
        root: Rank,
    ) -> Result<(), CudaError> {
        const CALL: &str = "reduce";
        let operands = Operands::without_scalar(CALL, send, recv, count, dtype, op)?;
        // SAFETY: the caller guarantees the safety requirements of the called function.
        unsafe { self.reduce_to(CALL, stream, root, operands) }
    }

    /// Like [`reduce`](Self::reduce), but with the reduction `PreMulSum`, as in
    /// [`all_reduce_scaled`](Self::all_reduce_scaled).
    ///
    /// # Errors
    /// As for [`reduce`](Self::reduce).
    ///
    /// # Safety
    /// As for [`reduce`](Self::reduce).
    #[expect(clippy::too_many_arguments, reason = "the function takes all arguments of all_reduce, and also a root")]
    pub unsafe fn reduce_scaled(
        &self,
        stream: &Arc<CudaStream>,
        send: u64,
        recv: u64,
        count: u64,
        dtype: DType,
        scalar: u64,
        root: Rank,
    ) -> Result<(), CudaError> {
        let operands = Operands::new(send, recv, count, dtype, ReduceOp::PreMulSum, scalar);
        // SAFETY: the caller guarantees the safety requirements of the called function.
        unsafe { self.reduce_to("reduce_scaled", stream, root, operands) }
    }

    /// Enqueues a reduce to the rank `root`. Errors contain `call`, the name of the call.
    ///
    /// # Safety
    /// As for [`reduce`](Self::reduce).
    unsafe fn reduce_to(
        &self,
        call: &'static str,
        stream: &Arc<CudaStream>,
        root: Rank,
        operands: Operands,
    ) -> Result<(), CudaError> {
        let is_root = self.root(call, root)? == self.rank.get() as usize;
        let operands = Operands { recv: if is_root { operands.recv } else { operands.send }, ..operands };
        let route = self.route_of(CollectiveKind::Reduce, operands.count, operands.dtype);
        // SAFETY: the caller guarantees the safety requirements of the called function.
        unsafe { self.reduce_by(call, route, stream, &operands, Results::Root(root.get())) }
    }

    /// Returns the route that [`all_reduce`](Self::all_reduce) takes for `count` elements of type
    /// `dtype`: the algorithm and the launch shape.
    pub fn all_reduce_route(&self, count: u64, dtype: DType) -> Route {
        self.route_of(CollectiveKind::AllReduce, count, dtype)
    }

    /// Returns the route of an all_reduce or a reduce: the algorithm and the launch shape.
    fn route_of(&self, kind: CollectiveKind, count: u64, dtype: DType) -> Route {
        let bytes = count.saturating_mul(dtype.size_bytes() as u64);
        self.routes.reduction(kind, bytes, &self.staging.limits).0
    }

    /// Like [`all_reduce`](Self::all_reduce), but the caller chooses the route. Intended for
    /// measurements.
    ///
    /// # Collective
    /// As for [`all_reduce`](Self::all_reduce). All ranks must also choose the same route.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce). Also [`CudaError::Misuse`] if the route does not
    /// fit into the staging memory, or if the route has too many blocks. Also [`CudaError::Misuse`]
    /// if the number of threads is not a multiple of 32.
    ///
    /// # Safety
    /// As for [`all_reduce`](Self::all_reduce).
    #[expect(clippy::too_many_arguments, reason = "the function takes all arguments of all_reduce, and also a route")]
    pub unsafe fn all_reduce_by(
        &self,
        route: Route,
        stream: &Arc<CudaStream>,
        send: u64,
        recv: u64,
        count: u64,
        dtype: DType,
        op: ReduceOp,
    ) -> Result<(), CudaError> {
        let operands = Operands::without_scalar(CALL, send, recv, count, dtype, op)?;
        // SAFETY: the caller guarantees the safety requirements of the called function.
        unsafe { self.reduce_by(CALL, route, stream, &operands, Results::Every) }
    }

    /// Enqueues an all_reduce or a reduce by the given route. `results` selects the ranks that get
    /// the result. Errors contain `name`, the name of the call.
    ///
    /// # Safety
    /// As for [`all_reduce`](Self::all_reduce).
    unsafe fn reduce_by(
        &self,
        name: &'static str,
        route: Route,
        stream: &Arc<CudaStream>,
        operands: &Operands,
        results: Results,
    ) -> Result<(), CudaError> {
        let Operands { send, recv, count, dtype, op, scalar } = *operands;
        operands.check(name)?;
        let limits = &self.staging.limits;
        let lines = (count * dtype.size_bytes() as u64).div_ceil(LINE_BYTES as u64);
        let fits = route::holds(route.algorithm, lines, limits);
        if !fits || route.blocks == 0 || route.blocks > limits.max_blocks || !route.threads.is_multiple_of(32) {
            let expected = format!(
                "an algorithm for {lines} 16-byte lines, 1 to {} blocks, and a multiple of 32 threads; the team has {limits:?}",
                limits.max_blocks
            );
            return Err(misuse(name, "route", format!("{route:?}"), &expected));
        }
        if count == 0 {
            return Ok(());
        }
        let common = if route.algorithm == Algorithm::Chunked { &self.staging.rings } else { &self.staging.banks };
        let bytes = count * dtype.size_bytes() as u64;
        // A rank that gets a whole result may let the other ranks store directly in its result
        // buffer.
        let can_offer = route.algorithm == Algorithm::Chunked && results != Results::OwnPart;
        let is_symmetric = u32::from(can_offer && self.can_offer(recv, bytes)?);
        let results = results.code();
        let call = Call { send, recv, count, scalar, op: op as u32, results, is_symmetric, ..*common };
        let kernel = self.kernel(route.algorithm, dtype, operands.are_plain())?;
        // SAFETY: the caller guarantees the operands; the areas belong to this team.
        unsafe { self.enqueue(name, stream, kernel, route, call, bytes) }
    }

    /// Enqueues a reduce_scatter: rank `r` gets the reduction of part `r` of all inputs. A part has
    /// `count` elements. `send` has one part for each rank. `recv` may be this rank's part of
    /// `send`.
    ///
    /// # Collective
    /// All ranks, with the same count, type and reduction.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce).
    ///
    /// # Safety
    /// As for [`all_reduce`](Self::all_reduce).
    pub unsafe fn reduce_scatter(
        &self,
        stream: &Arc<CudaStream>,
        send: u64,
        recv: u64,
        count: u64,
        dtype: DType,
        op: ReduceOp,
    ) -> Result<(), CudaError> {
        const CALL: &str = "reduce_scatter";
        let operands = Operands::without_scalar(CALL, send, recv, count, dtype, op)?;
        // SAFETY: the caller guarantees the safety requirements of the called function.
        unsafe { self.reduce_scatter_by(CALL, stream, &operands) }
    }

    /// Like [`reduce_scatter`](Self::reduce_scatter), but with the reduction `PreMulSum`, as in
    /// [`all_reduce_scaled`](Self::all_reduce_scaled).
    ///
    /// # Errors
    /// As for [`reduce_scatter`](Self::reduce_scatter).
    ///
    /// # Safety
    /// As for [`reduce_scatter`](Self::reduce_scatter).
    pub unsafe fn reduce_scatter_scaled(
        &self,
        stream: &Arc<CudaStream>,
        send: u64,
        recv: u64,
        count: u64,
        dtype: DType,
        scalar: u64,
    ) -> Result<(), CudaError> {
        let operands = Operands::new(send, recv, count, dtype, ReduceOp::PreMulSum, scalar);
        // SAFETY: the caller guarantees the safety requirements of the called function.
        unsafe { self.reduce_scatter_by("reduce_scatter_scaled", stream, &operands) }
    }

    /// Enqueues a reduce_scatter. Errors contain `name`, the name of the call.
    ///
    /// # Safety
    /// As for [`reduce_scatter`](Self::reduce_scatter).
    unsafe fn reduce_scatter_by(
        &self,
        name: &'static str,
        stream: &Arc<CudaStream>,
        operands: &Operands,
    ) -> Result<(), CudaError> {
        let Operands { send, recv, count, dtype, op, scalar, .. } = *operands;
        if !op.accepts(dtype) {
            return Err(misuse(name, "op", op, &format!("a reduction that is defined for {}", dtype.rust_name())));
        }
        let (ranks, size) = (u64::from(self.staging.limits.ranks), dtype.size_bytes() as u64);
        // In place, a thread reads its lines of this rank's part before it writes these lines.
        let own = send.checked_add(count.saturating_mul(size).saturating_mul(u64::from(self.rank.get())));
        let operands = if own == Some(recv) { [(send, ranks), (recv, 0)] } else { [(send, ranks), (recv, 1)] };
        let bytes = check_parts(name, operands, count, size)?;
        let is_plain = op == ReduceOp::Sum && (send | recv | bytes).is_multiple_of(LINE_BYTES as u64);
        if count == 0 {
            return Ok(());
        }
        let limits = &self.staging.limits;
        if let (OwnPath::Reduction(route), _, _) = self.routes.reduce_scatter(dtype, bytes, limits) {
            // The kernel with rings divides the input into the same parts as this call. It writes
            // this rank's part at the offset of that part in a whole result.
            let back = u64::from(self.rank.get()) * bytes;
            let (recv, results) = (recv.wrapping_sub(back), Results::OwnPart.code());
            let call = Call { send, recv, count: count * ranks, op: op as u32, scalar, results, ..self.staging.rings };
            let kernel = self.kernel(Algorithm::Chunked, dtype, is_plain)?;
            // SAFETY: the caller guarantees the operands; the areas belong to this team.
            return unsafe { self.enqueue(name, stream, kernel, route, call, bytes * ranks) };
        }
        let call = Call { send, recv, count, op: op as u32, scalar, stride: bytes, ..self.staging.banks };
        let kernel = self.scatter_kernel(dtype, is_plain)?;
        // SAFETY: the caller guarantees the operands; the areas belong to this team.
        unsafe { self.enqueue_in_pieces(name, stream, kernel, &call, size) }
    }

    /// Returns the loaded kernel of all_reduce for an algorithm and a type. Loads the kernel if
    /// necessary.
    pub(super) fn kernel(&self, algorithm: Algorithm, dtype: DType, is_plain: bool) -> Result<&LoadedKernel, CudaError> {
        let slot = &self.kernels[algorithm as usize][dtype as usize][usize::from(is_plain)];
        self.loaded(slot, CALL, Some(dtype), || all_reduce::kernel(algorithm, dtype, self.staging.limits.ranks, is_plain))
    }

    pub(super) fn scatter_kernel(&self, dtype: DType, is_plain: bool) -> Result<&LoadedKernel, CudaError> {
        let slot = &self.scatters[dtype as usize][usize::from(is_plain)];
        self.loaded(slot, "reduce_scatter", Some(dtype), || reduce_scatter::kernel(dtype, self.staging.limits.ranks, is_plain))
    }
}
