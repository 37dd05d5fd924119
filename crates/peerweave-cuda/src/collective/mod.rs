//! Collectives by the kernels of `peerweave-collectives`.
//!
//! ```text
//!  route.rs      the algorithm and the shape, from what all ranks know
//!  staging.rs    areas on the symmetric heap, counters of launches
//!  transfers.rs  messages, and the collectives that are made of them
//! ```
//!
//! Every call takes the same path: check the operands, choose the route, wait for the team's last
//! stream, launch. Most calls enqueue one kernel.

pub(crate) mod route;
mod staging;
mod transfers;

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use peerweave_collectives::exchange::{self, Exchange};
use peerweave_collectives::transfer::Transfers;
use peerweave_collectives::{Algorithm, Call, LINE_BYTES, Results, all_reduce, reduce_scatter};
use peerweave_device::launch::Kernel;
use peerweave_driver::launch::{Arguments, LaunchConfig, LoadedKernel};
use peerweave_driver::{CudaStream, Keep, is_capturing, join};
use peerweave_types::{DType, KernelArgs, KernelOp, Pe, Rank, ReduceOp};

use crate::error::{CudaError, misuse};
use crate::gpu::Gpu;
use staging::{Staging, rank_of};

pub(crate) use staging::Room;

pub use route::Route;
pub use transfers::Message;

/// Options of a team's collectives. All PEs pass the same options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CollectivesOptions {
    /// Size in bytes of each of the two banks through which small and medium messages are sent. A
    /// call of `n` bytes by `r` ranks needs `n * r` bytes in one step, or `2 * n` bytes in two
    /// steps; larger calls use the rings.
    pub bank_bytes: u64,
    /// Size in bytes of a slot of a ring, a multiple of 1024. Each block has six slots.
    pub slot_bytes: u64,
    /// Maximum number of blocks of a kernel, and so of multiprocessors that it uses.
    pub max_blocks: u32,
    /// Whether the kernel of a call up to 1 MiB may begin before the previous kernel in the stream
    /// has ended, if the device supports that (compute capability 9.0 and later).
    pub programmatic: bool,
}

impl Default for CollectivesOptions {
    /// Returns banks of 32 MiB, slots of 32 KiB, at most 256 blocks, with programmatic start: 113
    /// MiB of heap.
    fn default() -> Self {
        Self { bank_bytes: 32 << 20, slot_bytes: 32 << 10, max_blocks: 256, programmatic: true }
    }
}

impl CollectivesOptions {
    /// Returns the number of bytes that the collectives of one team allocate on every PE's
    /// symmetric heap.
    pub fn heap_bytes(&self) -> u64 {
        staging::area_bytes(self)
    }

    fn check(&self, call: &'static str) -> Result<(), CudaError> {
        if self.bank_bytes < 4096 {
            return Err(misuse(call, "bank_bytes", self.bank_bytes, "at least 4096"));
        }
        if self.slot_bytes < 1024 || !self.slot_bytes.is_multiple_of(1024) {
            return Err(misuse(call, "slot_bytes", self.slot_bytes, "a multiple of 1024"));
        }
        if self.max_blocks == 0 || self.max_blocks > 1024 {
            return Err(misuse(call, "max_blocks", self.max_blocks, "1 to 1024"));
        }
        Ok(())
    }
}

/// The collectives of a team of GPUs whose memory is mapped. Calls enqueue kernels; operands may
/// have any length.
///
/// # Collective
/// All ranks make the same calls in the same order, with the same count, type and reduction. The
/// result has the same bits on every rank.
///
/// # Streams
/// Calls of one team run one after the other: a call on another stream than the last call waits for
/// the last call, on the device. During a capture the caller must order the streams. A graph and
/// calls outside of it may alternate, in the same order on all ranks.
///
/// # Failures
/// If a peer does not make the call, the kernel ends at the deadline of the GPU.
/// [`Gpu::wait`](crate::Gpu::wait) then names the PE. After [`Gpu::recover`] call
/// [`recover`](Self::recover).
///
/// ```no_run
/// # use std::sync::Arc;
/// # use peerweave_bootstrap::{Job, Options, Rendezvous};
/// # use peerweave_cuda::{Collectives, CollectivesOptions, Gpu, GpuOptions};
/// # use peerweave_types::{DType, ReduceOp};
/// # let job = Job::from_env()?;
/// # let rendezvous = Arc::new(Rendezvous::join(&job, Options::default())?);
/// # let context = peerweave_driver::context(job.local_pe as usize)?;
/// let options = CollectivesOptions::default();
/// let gpu = Gpu::new(&rendezvous, &context, GpuOptions::new(options.heap_bytes() as usize + (1 << 20)))?;
/// let collectives = Collectives::world(&gpu, options)?;
/// let (stream, values) = (gpu.stream()?, gpu.alloc_local::<f32>(1024)?);
/// let at = values.slice().address();
/// // SAFETY: the elements are initialised memory of this GPU, which lives until the stream has
/// // passed, and nothing else accesses it meanwhile.
/// unsafe { collectives.all_reduce(&stream, at, at, 1024, DType::F32, ReduceOp::Sum)? };
/// stream.wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Collectives {
    gpu: Gpu,
    members: Vec<Pe>,
    rank: Rank,
    staging: Staging,
    options: CollectivesOptions,
    /// Loaded kernels of all_reduce, by algorithm, type, and whether the call is plain.
    kernels: [[[OnceLock<LoadedKernel>; 2]; DType::ALL.len()]; Algorithm::ALL.len()],
    /// Loaded kernels of reduce_scatter, by type and whether the call is plain.
    scatters: [[OnceLock<LoadedKernel>; 2]; DType::ALL.len()],
    /// Loaded kernels of all_gather and all_to_all, by whether parts are whole lines.
    exchanges: [[OnceLock<LoadedKernel>; 2]; 2],
    /// Loaded kernels of messages, by form and whether all messages are whole lines.
    transfers: [[OnceLock<LoadedKernel>; 2]; 2],
    barriers: OnceLock<LoadedKernel>,
    /// Stream of the last call.
    last: Mutex<Option<Arc<CudaStream>>>,
}

impl Collectives {
    /// Sets up the collectives of all PEs.
    ///
    /// # Collective
    /// As for [`new`](Self::new).
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn world(gpu: &Gpu, options: CollectivesOptions) -> Result<Self, CudaError> {
        let members: Vec<Pe> = (0..gpu.n_pes()).map(Pe::new).collect();
        Self::new(gpu, &members, options)
    }

    /// Sets up the collectives of this PE's team. `members` are its PEs in the order of ranks,
    /// including this PE. Allocates [`CollectivesOptions::heap_bytes`] bytes of every PE's heap.
    ///
    /// # Collective
    /// All PEs of the GPU, each with the members of its own team, and the same options. A PE that
    /// is in no team passes itself as the only member.
    ///
    /// # Errors
    /// [`CudaError::Misuse`] for invalid options or members, and for a member whose memory is not
    /// mapped; errors of [`Gpu::alloc`].
    pub fn new(gpu: &Gpu, members: &[Pe], options: CollectivesOptions) -> Result<Self, CudaError> {
        const CALL: &str = "Collectives::new";
        options.check(CALL)?;
        let rank = rank_of(CALL, gpu, members)?;
        let inner = &*gpu.0;
        // The team uses the sentinel of its first member, which is random, so that no data is equal
        // to it.
        let made = inner.next_collectives();
        let mut blob = random()?.to_vec();
        blob.extend_from_slice(format!("{options:?}").as_bytes());
        let all = inner.rendezvous.exchange(&format!("peerweave-cuda/collectives/{made}"), &blob)?;
        if let Some(pe) = all.iter().position(|other| other.get(16..) != blob.get(16..)) {
            let found = String::from_utf8_lossy(all[pe].get(16..).unwrap_or_default()).into_owned();
            return Err(misuse(CALL, "options", format!("{options:?}"), &format!("the options of PE {pe}: {found}")));
        }
        let first = &all[members[0].get() as usize];
        let word = |at: usize| u64::from_le_bytes(first[at..at + 8].try_into().expect("eight bytes"));
        let room = Room { memory: Arc::new(gpu.alloc(options.heap_bytes() as usize)?), start: 0 };
        let made_here = Self::with(gpu, members, rank, options, [word(0), word(8)], room)?;
        // No PE writes into an area before all areas are filled.
        inner.rendezvous.barrier(&format!("peerweave-cuda/collectives/{made}/ready"))?;
        Ok(made_here)
    }

    /// Sets up the collectives of a team in memory that all PEs have allocated before, so that only
    /// members take part. Exchanges nothing: `options` and `sentinel` must be the same on all
    /// members, and no member may call a collective before this function has returned on all
    /// members.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub(crate) fn in_room(
        gpu: &Gpu,
        members: &[Pe],
        options: CollectivesOptions,
        sentinel: [u64; 2],
        room: Room,
    ) -> Result<Self, CudaError> {
        const CALL: &str = "Collectives::in_room";
        options.check(CALL)?;
        let rank = rank_of(CALL, gpu, members)?;
        Self::with(gpu, members, rank, options, sentinel, room)
    }

    fn with(
        gpu: &Gpu,
        members: &[Pe],
        rank: Rank,
        options: CollectivesOptions,
        sentinel: [u64; 2],
        room: Room,
    ) -> Result<Self, CudaError> {
        Ok(Self {
            gpu: gpu.clone(),
            members: members.to_vec(),
            rank,
            staging: Staging::new(gpu, members, rank, sentinel, &options, room)?,
            options,
            kernels: Default::default(),
            scatters: Default::default(),
            exchanges: Default::default(),
            transfers: Default::default(),
            barriers: OnceLock::new(),
            last: Mutex::default(),
        })
    }

    /// Returns the rank of this PE.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Returns the members in the order of ranks.
    pub fn members(&self) -> &[Pe] {
        &self.members
    }

    /// Loads the kernels for elements of a type. Otherwise the first call of each kernel loads it,
    /// and kernels of other PEs wait some tenths of a second while it is compiled.
    ///
    /// # Errors
    /// [`CudaError::Misuse`] for a type that cannot be reduced; errors of loading.
    pub fn load(&self, dtype: DType) -> Result<(), CudaError> {
        [false, true].into_iter().try_for_each(|is_plain| self.scatter_kernel(dtype, is_plain).map(drop))?;
        Algorithm::ALL
            .into_iter()
            .flat_map(|algorithm| [(algorithm, false), (algorithm, true)])
            .try_for_each(|(algorithm, is_plain)| self.kernel(algorithm, dtype, is_plain).map(drop))
    }

    /// Enqueues the reduction of `count` elements of every rank. Every rank gets the result.
    ///
    /// `send` and `recv` are addresses of this device's memory, on the heap or not, aligned to the
    /// elements; `recv` is `send`, or does not overlap it. Inputs are combined in the order of
    /// ranks. 16-bit floats are combined in `f32` and rounded once.
    ///
    /// # Collective
    /// All ranks, with the same count, type and reduction.
    ///
    /// # Errors
    /// Before anything is enqueued: [`CudaError::Misuse`] for a reduction that the type does not
    /// have, `PreMulSum` (which has a scalar: [`all_reduce_scaled`](Self::all_reduce_scaled)),
    /// addresses that are not aligned or overlap; [`CudaError::Failed`] after a kernel has failed;
    /// errors of the launch.
    ///
    /// # Safety
    /// Both ranges are memory that this device can access. They stay allocated until the stream has
    /// passed the call, or while a graph that captured the call lives. Until then, nothing else
    /// writes the input or accesses the result.
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
        // SAFETY: the caller guarantees it.
        unsafe { self.all_reduce_by(route, stream, send, recv, count, dtype, op) }
    }

    /// Like [`all_reduce`](Self::all_reduce), with the sum of products: each rank multiplies its
    /// elements by its own scalar. `scalar` has the bits of a value of type `dtype`, zero-extended.
    /// Each product is rounded to the type.
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
        let operands = Operands { scalar, ..Operands::new(send, recv, count, dtype, ReduceOp::PreMulSum) };
        // SAFETY: the caller guarantees it.
        unsafe { self.reduce_by(CALL, route, stream, &operands, Results::Every) }
    }

    /// Like [`all_reduce`](Self::all_reduce), with the result in symmetric memory. Results of long
    /// calls are stored directly at their place.
    ///
    /// # Collective
    /// As for [`all_reduce`](Self::all_reduce); all ranks call this function.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce), and for a `recv` that is not on the heap.
    ///
    /// # Safety
    /// As for [`all_reduce`](Self::all_reduce); `recv` is the same place of the heap on all ranks.
    pub unsafe fn all_reduce_symmetric(
        &self,
        stream: &Arc<CudaStream>,
        send: u64,
        recv: u64,
        count: u64,
        dtype: DType,
        op: ReduceOp,
    ) -> Result<(), CudaError> {
        const CALL: &str = "all_reduce_symmetric";
        if op == ReduceOp::PreMulSum {
            return Err(misuse(CALL, "op", op, "a reduction without a scalar (use all_reduce_scaled)"));
        }
        self.check_symmetric(CALL, recv, count.checked_mul(dtype.size_bytes() as u64))?;
        let operands = Operands { send, recv, count, dtype, op, scalar: 0, is_symmetric: true };
        let route = self.all_reduce_route(count, dtype);
        // SAFETY: the caller guarantees it.
        unsafe { self.reduce_by(CALL, route, stream, &operands, Results::Every) }
    }

    /// Enqueues the reduction of `count` elements of every rank. The root gets the result; `recv`
    /// of other ranks is not used.
    ///
    /// # Collective
    /// All ranks, with the same count, type, reduction and root.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce), and for an invalid root.
    ///
    /// # Safety
    /// As for [`all_reduce`](Self::all_reduce).
    #[expect(clippy::too_many_arguments, reason = "the arguments of all_reduce and the root")]
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
        if op == ReduceOp::PreMulSum {
            return Err(misuse(CALL, "op", op, "a reduction without a scalar (use reduce_scaled)"));
        }
        // SAFETY: the caller guarantees it.
        unsafe { self.reduce_to(CALL, stream, send, recv, root, Operands::new(send, recv, count, dtype, op)) }
    }

    /// Like [`reduce`](Self::reduce), with the sum of products as in
    /// [`all_reduce_scaled`](Self::all_reduce_scaled).
    ///
    /// # Errors
    /// As for [`reduce`](Self::reduce).
    ///
    /// # Safety
    /// As for [`reduce`](Self::reduce).
    #[expect(clippy::too_many_arguments, reason = "the arguments of all_reduce and the root")]
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
        let operands = Operands { scalar, ..Operands::new(send, recv, count, dtype, ReduceOp::PreMulSum) };
        // SAFETY: the caller guarantees it.
        unsafe { self.reduce_to("reduce_scaled", stream, send, recv, root, operands) }
    }

    /// # Safety
    /// As for [`reduce`](Self::reduce).
    unsafe fn reduce_to(
        &self,
        call: &'static str,
        stream: &Arc<CudaStream>,
        send: u64,
        recv: u64,
        root: Rank,
        operands: Operands,
    ) -> Result<(), CudaError> {
        let is_root = self.root(call, root)? == self.rank.get() as usize;
        let operands = Operands { recv: if is_root { recv } else { send }, ..operands };
        let route = self.all_reduce_route(operands.count, operands.dtype);
        // SAFETY: the caller guarantees it.
        unsafe { self.reduce_by(call, route, stream, &operands, Results::Root(root.get())) }
    }

    /// Returns the route that [`all_reduce`](Self::all_reduce) takes.
    pub fn all_reduce_route(&self, count: u64, dtype: DType) -> Route {
        route::all_reduce(dtype, count, &self.staging.limits)
    }

    /// Like [`all_reduce`](Self::all_reduce), by a route that the caller chooses, for measurements.
    ///
    /// # Collective
    /// As for [`all_reduce`](Self::all_reduce), and with the same route on all ranks.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce), and [`CudaError::Misuse`] if the staging memory has
    /// no room for the route.
    ///
    /// # Safety
    /// As for [`all_reduce`](Self::all_reduce).
    #[expect(clippy::too_many_arguments, reason = "the arguments of all_reduce and the route")]
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
        if op == ReduceOp::PreMulSum {
            return Err(misuse(CALL, "op", op, "a reduction without a scalar (use all_reduce_scaled)"));
        }
        // SAFETY: the caller guarantees it.
        unsafe { self.reduce_by(CALL, route, stream, &Operands::new(send, recv, count, dtype, op), Results::Every) }
    }

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
        let Operands { send, recv, count, dtype, op, scalar, is_symmetric } = *operands;
        operands.check(name)?;
        let limits = &self.staging.limits;
        let lines = (count * dtype.size_bytes() as u64).div_ceil(LINE_BYTES as u64);
        let fits = route::holds(route.algorithm, lines, limits);
        if !fits || route.blocks == 0 || route.blocks > limits.max_blocks || !route.threads.is_multiple_of(32) {
            let expected = format!("a route for {lines} lines that fits the staging memory: {limits:?}");
            return Err(misuse(name, "route", format!("{route:?}"), &expected));
        }
        if count == 0 {
            return Ok(());
        }
        let common = if route.algorithm == Algorithm::Chunked { &self.staging.rings } else { &self.staging.banks };
        // All ranks compute the same value, because they have the same count and the result at the
        // same place.
        let is_symmetric = is_symmetric && (recv | (count * dtype.size_bytes() as u64)).is_multiple_of(LINE_BYTES as u64);
        let (results, is_symmetric) = (results.code(), u32::from(is_symmetric));
        let call = Call { send, recv, count, scalar, op: op as u32, results, is_symmetric, ..*common };
        let kernel = self.kernel(route.algorithm, dtype, operands.are_plain())?;
        // SAFETY: the caller guarantees the operands; the areas belong to this team.
        unsafe { self.enqueue(name, stream, kernel, route, call, count * dtype.size_bytes() as u64) }
    }

    /// Enqueues a reduce-scatter: rank `r` gets the reduction of part `r` of all inputs. A part has
    /// `count` elements; `send` has one part for each rank. `recv` may be this rank's part of
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
        if op == ReduceOp::PreMulSum || !op.accepts(dtype) {
            return Err(misuse(CALL, "op", op, &format!("a reduction of {} without a scalar", dtype.rust_name())));
        }
        let (ranks, size) = (u64::from(self.staging.limits.ranks), dtype.size_bytes() as u64);
        // In place, a thread reads its lines of this rank's part before it writes them.
        let own = send.checked_add(count.saturating_mul(size).saturating_mul(u64::from(self.rank.get())));
        let operands = if own == Some(recv) { [(send, ranks), (recv, 0)] } else { [(send, ranks), (recv, 1)] };
        let bytes = check_parts(CALL, operands, count, size)?;
        let is_plain = op == ReduceOp::Sum && (send | recv | bytes).is_multiple_of(LINE_BYTES as u64);
        if count == 0 {
            return Ok(());
        }
        let limits = &self.staging.limits;
        let common = Call { op: op as u32, stride: bytes, ..self.staging.banks };
        if !route::scatters_by_lines(bytes, limits) && bytes.is_multiple_of(LINE_BYTES as u64) {
            // The ring has the same parts as this call. It writes this rank's part at its place in
            // a whole result.
            let back = u64::from(self.rank.get()) * bytes;
            let (recv, results) = (recv.wrapping_sub(back), Results::OwnPart.code());
            let call = Call { send, recv, count: count * ranks, op: op as u32, results, ..self.staging.rings };
            let kernel = self.kernel(Algorithm::Chunked, dtype, is_plain)?;
            let route = route::all_reduce(dtype, count * ranks, limits);
            let route = Route { algorithm: Algorithm::Chunked, ..route };
            // SAFETY: the caller guarantees the operands; the areas belong to this team.
            return unsafe { self.enqueue(CALL, stream, kernel, route, call, bytes * ranks) };
        }
        // The call is made in pieces of parts for which the banks have room on every rank.
        let most = self.most_part_bytes() / size;
        let kernel = self.scatter_kernel(dtype, is_plain)?;
        for start in (0..count).step_by(most as usize) {
            let (at, count) = (start * size, most.min(count - start));
            let call = Call { send: send + at, recv: recv + at, count, ..common };
            let route = route::parts(count * size, limits);
            // SAFETY: the caller guarantees the operands; the areas belong to this team.
            unsafe { self.enqueue(CALL, stream, kernel, route, call, count * size * ranks) }?;
        }
        Ok(())
    }

    /// Enqueues an all-gather: every rank gets one part of `bytes` bytes of every rank, in the
    /// order of ranks. `send` may be this rank's part of `recv`.
    ///
    /// # Collective
    /// All ranks, with the same length.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce).
    ///
    /// # Safety
    /// As for [`all_reduce`](Self::all_reduce).
    pub unsafe fn all_gather(&self, stream: &Arc<CudaStream>, send: u64, recv: u64, bytes: u64) -> Result<(), CudaError> {
        const CALL: &str = "all_gather";
        self.check_gather(CALL, send, recv, bytes)?;
        // SAFETY: the caller guarantees it.
        unsafe { self.exchange(CALL, Exchange::AllGather, stream, send, recv, bytes, false) }
    }

    /// Like [`all_gather`](Self::all_gather), with the result in symmetric memory. Long parts are
    /// stored directly at their place.
    ///
    /// # Collective
    /// As for [`all_gather`](Self::all_gather); all ranks call this function.
    ///
    /// # Errors
    /// As for [`all_gather`](Self::all_gather), and for a `recv` that is not on the heap.
    ///
    /// # Safety
    /// As for [`all_gather`](Self::all_gather); `recv` is the same place of the heap on all ranks.
    pub unsafe fn all_gather_symmetric(
        &self,
        stream: &Arc<CudaStream>,
        send: u64,
        recv: u64,
        bytes: u64,
    ) -> Result<(), CudaError> {
        const CALL: &str = "all_gather_symmetric";
        self.check_gather(CALL, send, recv, bytes)?;
        self.check_symmetric(CALL, recv, bytes.checked_mul(self.staging.limits.ranks.into()))?;
        // SAFETY: the caller guarantees it.
        unsafe { self.exchange(CALL, Exchange::AllGather, stream, send, recv, bytes, true) }
    }

    /// Checks the operands of a rank that gets the parts of all ranks in `recv`. Returns whether
    /// `send` is its own part of `recv`.
    fn check_gather(&self, call: &'static str, send: u64, recv: u64, bytes: u64) -> Result<bool, CudaError> {
        let ranks = u64::from(self.staging.limits.ranks);
        let is_own = recv.checked_add(bytes.saturating_mul(u64::from(self.rank.get()))) == Some(send);
        let operands = if is_own { [(recv, ranks), (recv, 0)] } else { [(send, 1), (recv, ranks)] };
        check_parts(call, operands, bytes, 1)?;
        Ok(is_own)
    }

    /// Enqueues an all-to-all: part `r` of `send`, `bytes` bytes long, becomes this rank's part of
    /// `recv` on rank `r`. `send` may be `recv`.
    ///
    /// # Collective
    /// All ranks, with the same length.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce).
    ///
    /// # Safety
    /// As for [`all_reduce`](Self::all_reduce).
    pub unsafe fn all_to_all(&self, stream: &Arc<CudaStream>, send: u64, recv: u64, bytes: u64) -> Result<(), CudaError> {
        const CALL: &str = "all_to_all";
        let ranks = u64::from(self.staging.limits.ranks);
        // In place, a thread sends its lines of all parts before it writes them.
        let operands = if send == recv { [(send, ranks), (recv, 0)] } else { [(send, ranks), (recv, ranks)] };
        check_parts(CALL, operands, bytes, 1)?;
        // SAFETY: the caller guarantees it.
        unsafe { self.exchange(CALL, Exchange::AllToAll, stream, send, recv, bytes, false) }
    }

    /// Like [`all_to_all`](Self::all_to_all), with the result in symmetric memory. Long parts are
    /// stored directly at their place.
    ///
    /// # Collective
    /// As for [`all_to_all`](Self::all_to_all); all ranks call this function.
    ///
    /// # Errors
    /// As for [`all_to_all`](Self::all_to_all), and for a `recv` that is not on the heap or is
    /// equal to `send`.
    ///
    /// # Safety
    /// As for [`all_to_all`](Self::all_to_all); `recv` is the same place of the heap on all ranks.
    pub unsafe fn all_to_all_symmetric(
        &self,
        stream: &Arc<CudaStream>,
        send: u64,
        recv: u64,
        bytes: u64,
    ) -> Result<(), CudaError> {
        const CALL: &str = "all_to_all_symmetric";
        let ranks = u64::from(self.staging.limits.ranks);
        check_parts(CALL, [(send, ranks), (recv, ranks)], bytes, 1)?;
        self.check_symmetric(CALL, recv, bytes.checked_mul(ranks))?;
        // SAFETY: the caller guarantees it.
        unsafe { self.exchange(CALL, Exchange::AllToAll, stream, send, recv, bytes, true) }
    }

    /// # Safety
    /// As for [`all_gather`](Self::all_gather) or [`all_to_all`](Self::all_to_all), or their forms
    /// for symmetric memory.
    #[expect(clippy::too_many_arguments, reason = "the arguments of a call, its kind, and the memory")]
    unsafe fn exchange(
        &self,
        name: &'static str,
        exchange: Exchange,
        stream: &Arc<CudaStream>,
        send: u64,
        recv: u64,
        bytes: u64,
        is_symmetric: bool,
    ) -> Result<(), CudaError> {
        let limits = &self.staging.limits;
        if !route::parts_by_lines(bytes, limits) {
            let (operation, stride) = match exchange {
                Exchange::AllGather => (KernelOp::AllGather, 0),
                Exchange::AllToAll => (KernelOp::AllToAll, bytes),
            };
            let sent = |rank: u64| send + rank * stride;
            // SAFETY: the caller guarantees it. In place, a block sends its chunk of a part before
            // it writes the chunk that it received.
            return unsafe { self.exchange_messages(name, operation, stream, sent, recv, bytes, is_symmetric) };
        }
        if bytes == 0 {
            return Ok(());
        }
        let is_whole = (send | recv | bytes).is_multiple_of(LINE_BYTES as u64);
        let slot = &self.exchanges[exchange as usize][usize::from(is_whole)];
        let kernel = self.loaded(slot, name, || exchange::kernel(exchange, limits.ranks, is_whole))?;
        let call = Call { send, recv, count: bytes, ..self.staging.banks };
        // SAFETY: the caller guarantees the operands; the areas belong to this team.
        unsafe { self.enqueue(name, stream, kernel, route::parts(bytes, limits), call, bytes * u64::from(limits.ranks)) }
    }

    /// Returns the maximum length of a part for which the banks have room, in bytes.
    pub(crate) fn most_part_bytes(&self) -> u64 {
        let limits = &self.staging.limits;
        limits.bank_bytes / u64::from(limits.ranks) / LINE_BYTES as u64 * LINE_BYTES as u64
    }

    /// Returns the kernel of all_reduce for an algorithm and a type.
    fn kernel(&self, algorithm: Algorithm, dtype: DType, is_plain: bool) -> Result<&LoadedKernel, CudaError> {
        let slot = &self.kernels[algorithm as usize][dtype as usize][usize::from(is_plain)];
        self.loaded(slot, CALL, || all_reduce::kernel(algorithm, dtype, self.staging.limits.ranks, is_plain))
    }

    fn scatter_kernel(&self, dtype: DType, is_plain: bool) -> Result<&LoadedKernel, CudaError> {
        let slot = &self.scatters[dtype as usize][usize::from(is_plain)];
        self.loaded(slot, "reduce_scatter", || reduce_scatter::kernel(dtype, self.staging.limits.ranks, is_plain))
    }

    /// Returns a kernel, and loads it at the first call.
    fn loaded<'a, A: KernelArgs + 'static>(
        &self,
        slot: &'a OnceLock<LoadedKernel>,
        call: &'static str,
        find: impl FnOnce() -> Option<&'static Kernel<A>>,
    ) -> Result<&'a LoadedKernel, CudaError> {
        if let Some(kernel) = slot.get() {
            return Ok(kernel);
        }
        let kernel = find().ok_or_else(|| misuse(call, "dtype", "an 8-bit float", "a type that can be reduced"))?;
        let loaded = self.gpu.0.entry(kernel.ptx(), kernel.name())?;
        Ok(slot.get_or_init(|| loaded))
    }

    /// # Safety
    /// As for [`all_reduce`](Self::all_reduce), for the operands of the call.
    unsafe fn enqueue(
        &self,
        name: &'static str,
        stream: &Arc<CudaStream>,
        kernel: &LoadedKernel,
        route: Route,
        call: Call,
        bytes: u64,
    ) -> Result<(), CudaError> {
        // SAFETY: the caller guarantees it.
        unsafe { self.enqueue_with(name, stream, kernel, route, &call, None, bytes) }
    }

    /// # Safety
    /// As for [`all_reduce`](Self::all_reduce), for the operands of the call; the kernel takes the
    /// call, and the messages if there are any.
    #[expect(clippy::too_many_arguments, reason = "the parts of a launch")]
    unsafe fn enqueue_with(
        &self,
        name: &'static str,
        stream: &Arc<CudaStream>,
        kernel: &LoadedKernel,
        route: Route,
        call: &Call,
        transfers: Option<&Transfers>,
        bytes: u64,
    ) -> Result<(), CudaError> {
        let inner = &*self.gpu.0;
        if let Some(failure) = &*inner.failed() {
            return Err(CudaError::Failed { call: name, failure: failure.clone() });
        }
        let capturing = is_capturing(stream)?;
        // The lock is held until the launch, so that two threads order and launch their calls in
        // the same order.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = last.as_ref().is_some_and(|last| last.cu_stream() == stream.cu_stream());
        let tables = inner.tables.lock().unwrap_or_else(PoisonError::into_inner);
        let mut keep: Vec<Keep> = Vec::new();
        if capturing {
            keep.extend(tables.keep());
            keep.push(inner.report.keep());
            keep.extend(self.staging.keep());
        } else if !is_same {
            if let Some(last) = last.as_ref()
                && !is_capturing(last)?
            {
                join(stream, last)?;
            }
            *last = Some(Arc::clone(stream));
            self.staging.note(stream);
            tables.note(stream);
            inner.report.note(stream);
        }
        let context = tables.address();
        drop(tables);
        let mut config = LaunchConfig::new(route.blocks, route.threads);
        config.programmatic = self.options.programmatic && bytes <= route::PROGRAMMATIC_UP_TO;
        let arguments = Arguments::new().with(&context).with(call);
        let arguments = match transfers {
            Some(transfers) => arguments.with(transfers),
            None => arguments,
        };
        // SAFETY: the kernel takes the context and a call; the areas are live memory of every
        // member, recorded with the stream or kept by the graph; the caller guarantees the
        // operands.
        unsafe { kernel.launch_into(stream, &config, &arguments, capturing.then_some(keep)) }?;
        Ok(())
    }

    /// Makes the collectives usable after [`Gpu::recover`].
    ///
    /// # Collective
    /// All PEs of the GPU. No kernel of this GPU may run.
    ///
    /// # Errors
    /// [`CudaError::Bootstrap`] names a PE that does not arrive; errors of the driver.
    pub fn recover(&self) -> Result<(), CudaError> {
        let inner = &*self.gpu.0;
        let made = inner.next_collectives();
        let barrier = |step: &str| inner.rendezvous.barrier(&format!("peerweave-cuda/collectives/{made}/{step}"));
        barrier("ended")?;
        self.staging.fill(&self.gpu)?;
        Ok(barrier("ready")?)
    }

    /// Ends the collectives and frees their memory when the streams of this PE have passed the work
    /// that uses it.
    ///
    /// # Collective
    /// All PEs of the GPU.
    ///
    /// # Errors
    /// [`CudaError::Misuse`] while a graph uses the collectives; errors of the heap.
    pub fn end(self) -> Result<(), CudaError> {
        let Self { gpu, staging, .. } = self;
        staging.free(&gpu)
    }
}

const CALL: &str = "all_reduce";

/// Operands of a call.
#[derive(Clone, Copy)]
struct Operands {
    send: u64,
    recv: u64,
    count: u64,
    dtype: DType,
    op: ReduceOp,
    scalar: u64,
    /// Whether the result is at the same place of the heap on all ranks.
    is_symmetric: bool,
}

impl Operands {
    fn new(send: u64, recv: u64, count: u64, dtype: DType, op: ReduceOp) -> Self {
        Self { send, recv, count, dtype, op, scalar: 0, is_symmetric: false }
    }

    /// Returns whether the kernels for sums of whole lines can run the call.
    fn are_plain(&self) -> bool {
        let bytes = self.count * self.dtype.size_bytes() as u64;
        self.op == ReduceOp::Sum && (self.send | self.recv | bytes).is_multiple_of(LINE_BYTES as u64)
    }

    fn check(&self, call: &'static str) -> Result<(), CudaError> {
        let Self { send, recv, count, dtype, op, .. } = *self;
        if !op.accepts(dtype) {
            return Err(misuse(call, "op", op, &format!("a reduction of {}", dtype.rust_name())));
        }
        let size = dtype.size_bytes() as u64;
        for (what, address) in [("send", send), ("recv", recv)] {
            if !address.is_multiple_of(size) || (address == 0 && count > 0) {
                return Err(misuse(call, what, format!("{address:#x}"), &format!("an address that is a multiple of {size}")));
            }
        }
        let bytes =
            count.checked_mul(size).filter(|bytes| send.checked_add(*bytes).is_some() && recv.checked_add(*bytes).is_some());
        let Some(bytes) = bytes else {
            return Err(misuse(call, "count", count, "a number of elements that fits in the address space"));
        };
        if send != recv && send < recv + bytes && recv < send + bytes {
            let value = format!("{recv:#x}, which overlaps send at {send:#x}");
            return Err(misuse(call, "recv", value, "send itself, or memory that does not overlap it"));
        }
        Ok(())
    }
}

/// Checks operands, each given by its address and its number of parts. A part has `count` elements
/// of `size` bytes. Returns the length of a part in bytes.
fn check_parts(call: &'static str, operands: [(u64, u64); 2], count: u64, size: u64) -> Result<u64, CudaError> {
    let end = |(at, parts): (u64, u64)| count.checked_mul(size)?.checked_mul(parts).and_then(|bytes| at.checked_add(bytes));
    let [Some(first), Some(second)] = operands.map(end) else {
        return Err(misuse(call, "the length", count, "a length that fits in the address space"));
    };
    for (what, (at, _)) in ["send", "recv"].into_iter().zip(operands) {
        if !at.is_multiple_of(size) || (at == 0 && count > 0) {
            return Err(misuse(call, what, format!("{at:#x}"), &format!("an address that is a multiple of {size}")));
        }
    }
    // An operand without parts, which a form in place has, overlaps nothing.
    let are_both = operands.iter().all(|(_, parts)| *parts > 0);
    if are_both && operands[0].0 < second && operands[1].0 < first {
        return Err(misuse(call, "recv", format!("{:#x}", operands[1].0), "memory that does not overlap send"));
    }
    Ok(count * size)
}

/// Returns 16 random bytes.
pub(crate) fn random() -> Result<[u8; 16], CudaError> {
    let hex = peerweave_bootstrap::Token::random()?.to_hex();
    let mut bytes = [0; 16];
    for (byte, pair) in bytes.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
        let text = std::str::from_utf8(pair).unwrap_or_default();
        *byte = u8::from_str_radix(text, 16).expect("a token is written in hexadecimal digits");
    }
    Ok(bytes)
}

impl fmt::Debug for Collectives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Collectives({} of {:?})", self.rank, self.members)
    }
}
