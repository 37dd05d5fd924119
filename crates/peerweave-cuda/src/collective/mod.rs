//! Carries out collectives by the kernels of the crate `peerweave-collectives`.
//!
//! ```text
//!  options.rs      options of a team's collectives
//!  reductions.rs   all_reduce, reduce, reduce_scatter
//!  scans.rs        scan, exclusive_scan
//!  exchanges.rs    all_gather, all_to_all
//!  norms.rs        all_reduce with residual and RMSNorm
//!  transfers.rs    messages, and the collectives that consist of messages
//!   operands.rs    operands of a call, and their checks
//!   launch.rs      loads and enqueues kernels
//!    staging.rs    areas on the symmetric heap, counters of launches
//! ```
//!
//! Every call takes the same path: it checks the operands, chooses the route, makes its stream wait
//! for the stream of the team's previous call, and launches. Most calls enqueue one kernel.

mod exchanges;
mod launch;
mod norms;
mod operands;
mod options;
mod reductions;
mod scans;
mod staging;
mod transfers;

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};

use peerweave_collectives::{Algorithm, MAX_RANKS, rms_norm};
use peerweave_driver::CudaStream;
use peerweave_driver::launch::LoadedKernel;
use peerweave_types::{DType, Pe, Rank};

use crate::error::{CudaError, misuse};
use crate::gpu::Gpu;
use crate::route::{Explanation, Libraries, Provider, Query, RouteTable, Routes, Unfit};
use staging::{Staging, rank_of};

pub(crate) use staging::Room;

pub use norms::{RmsNormCall, RmsNormOutput};
pub use options::CollectivesOptions;
pub use transfers::Message;

/// The collectives of a team of GPUs that map each other's memory. Each call enqueues kernels.
/// Operands may have any length.
///
/// # Collective
/// All ranks make the same calls in the same order, with the same count, type and reduction. A
/// result that several ranks get has the same bits on all these ranks.
///
/// # Streams
/// The calls of one team run one after the other on the device. If a call uses a different stream
/// than the previous call, the stream of the new call waits for the previous call. During a
/// capture, the caller must order the streams. Launches of a captured graph may alternate with
/// other calls, in the same order on all ranks.
///
/// # Failures
/// If another rank does not make the call, the kernel fails at the deadline of the GPU. The error
/// of [`Gpu::wait`](crate::Gpu::wait) then names the PE of the missing rank. After
/// [`Gpu::recover`], call [`recover`](Self::recover).
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
/// // SAFETY: the elements are initialised memory of this GPU. The memory lives until the stream
/// // has completed the call, and nothing else accesses the memory meanwhile.
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
    routes: Arc<Routes>,
    /// Loaded kernels of all_reduce. The indices are the algorithm, the type, and whether the call
    /// is plain. A call is plain if its reduction is `Sum` and its operands are whole 16-byte
    /// lines.
    kernels: [[[OnceLock<LoadedKernel>; 2]; DType::ALL.len()]; Algorithm::ALL.len()],
    /// Loaded kernels of reduce_scatter. The indices are the type, and whether the call is plain: a
    /// sum of operands that are whole 16-byte lines.
    scatters: [[OnceLock<LoadedKernel>; 2]; DType::ALL.len()],
    /// Loaded kernels of scans, indexed by the element type.
    scans: [OnceLock<LoadedKernel>; DType::ALL.len()],
    /// Loaded kernels of all_gather and all_to_all. The first index selects the operation. The
    /// second index is 1 if all parts are whole 16-byte lines.
    exchanges: [[OnceLock<LoadedKernel>; 2]; 2],
    /// Loaded kernels that send messages. The first index tells how messages are sent: 0 as 16-byte
    /// lines, 1 in chunks through rings of slots. The second index is 1 if all messages are whole
    /// 16-byte lines.
    transfers: [[OnceLock<LoadedKernel>; 2]; 2],
    barriers: OnceLock<LoadedKernel>,
    /// Loaded kernels of all_reduce with RMSNorm. The indices are the algorithm and the type.
    norms: [[OnceLock<LoadedKernel>; DType::ALL.len()]; rms_norm::Algorithm::ALL.len()],
    /// The stream of the team's last call. If the next call uses a different stream, it waits for
    /// the last call.
    last: Mutex<Option<Arc<CudaStream>>>,
}

impl Collectives {
    /// Sets up the collectives of the team of all PEs.
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

    /// Sets up the collectives of the team of PEs on the host of this PE. All PEs must pass the
    /// same `routes`. If the host has more PEs than the kernels support, the team consists of this
    /// PE alone.
    ///
    /// # Collective
    /// All PEs that created their `Gpu` together, by the same rendezvous.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub(crate) fn here_by(gpu: &Gpu, options: CollectivesOptions, routes: &Arc<Routes>) -> Result<Self, CudaError> {
        let hosts = &gpu.0.hosts;
        let here: Vec<Pe> = hosts.pes(hosts.of(gpu.pe())).collect();
        let members = if here.len() <= MAX_RANKS { &here[..] } else { &[gpu.pe()] };
        Self::new_by(gpu, members, options, Some(routes))
    }

    /// Sets up the collectives of the team to which this PE belongs. `members` are the PEs of the
    /// team in the order of ranks, including this PE. Allocates [`CollectivesOptions::heap_bytes`]
    /// bytes on every PE's heap.
    ///
    /// # Collective
    /// All PEs that created their `Gpu` together, by the same rendezvous. Each PE passes the
    /// members of its own team, and all PEs pass the same options. A PE that is in no team passes
    /// itself as the only member.
    ///
    /// # Errors
    /// [`CudaError::Misuse`] for invalid options or members, and for a member whose memory is not
    /// mapped. Errors of [`Gpu::alloc`].
    pub fn new(gpu: &Gpu, members: &[Pe], options: CollectivesOptions) -> Result<Self, CudaError> {
        Self::new_by(gpu, members, options, None)
    }

    /// Like [`new`](Self::new), but uses the given `routes`. If `routes` is `None`, uses the
    /// built-in table for the architecture of the GPUs.
    fn new_by(gpu: &Gpu, members: &[Pe], options: CollectivesOptions, routes: Option<&Arc<Routes>>) -> Result<Self, CudaError> {
        const CALL: &str = "Collectives::new";
        options.check(CALL)?;
        let rank = rank_of(CALL, gpu, members)?;
        let inner = &*gpu.0;
        // The team uses the sentinel of its first member. The sentinel is random, so no data is
        // expected to be equal to it.
        let made = inner.next_collectives();
        let (mine, arch) = (format!("{options:?}"), gpu.arch().to_string());
        let mut blob = random()?.to_vec();
        blob.extend_from_slice(format!("{arch} {mine}").as_bytes());
        let all = inner.rendezvous.exchange(&format!("peerweave-cuda/collectives/{made}"), &blob)?;
        let texts = || all.iter().map(|blob| String::from_utf8_lossy(blob.get(16..).unwrap_or_default()).into_owned());
        let parts = || texts().map(|text| text.split_once(' ').map(|(arch, options)| (arch.to_owned(), options.to_owned())));
        for (pe, theirs) in parts().map(Option::unwrap_or_default).enumerate() {
            if theirs.1 != mine {
                return Err(misuse(CALL, "options", mine, &format!("the options of PE {pe}: {}", theirs.1)));
            }
        }
        // GPUs of different architectures must use the same table.
        let is_one = parts().flatten().all(|theirs| theirs.0 == arch);
        let builtin = || Arc::new(Routes::new(RouteTable::builtin(if is_one { &arch } else { "any" })));
        let routes = routes.map_or_else(builtin, Arc::clone);
        let first = &all[members[0].get() as usize];
        let word = |at: usize| u64::from_le_bytes(first[at..at + 8].try_into().expect("eight bytes fit the array"));
        let room = Room { memory: Arc::new(gpu.alloc(options.heap_bytes() as usize)?), start: 0 };
        let made_here = Self::with(gpu, members, rank, options, [word(0), word(8)], room, routes)?;
        // No PE may write into the area of another PE before all PEs have filled their areas.
        inner.rendezvous.barrier(&format!("peerweave-cuda/collectives/{made}/ready"))?;
        Ok(made_here)
    }

    /// Sets up the collectives of a team in `room`, a range of symmetric memory that is already
    /// allocated. Only the members of the team call this function. They exchange no data, so all
    /// members must pass the same `options` and `sentinel`. No member may call a collective before
    /// this function has returned on all members.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub(crate) fn in_room(
        gpu: &Gpu,
        members: &[Pe],
        options: CollectivesOptions,
        sentinel: [u64; 2],
        room: Room,
        routes: &Arc<Routes>,
    ) -> Result<Self, CudaError> {
        const CALL: &str = "Collectives::in_room";
        options.check(CALL)?;
        let rank = rank_of(CALL, gpu, members)?;
        Self::with(gpu, members, rank, options, sentinel, room, Arc::clone(routes))
    }

    fn with(
        gpu: &Gpu,
        members: &[Pe],
        rank: Rank,
        options: CollectivesOptions,
        sentinel: [u64; 2],
        room: Room,
        routes: Arc<Routes>,
    ) -> Result<Self, CudaError> {
        Ok(Self {
            gpu: gpu.clone(),
            members: members.to_vec(),
            rank,
            staging: Staging::new(gpu, members, rank, sentinel, &options, room)?,
            options,
            routes,
            kernels: Default::default(),
            scatters: Default::default(),
            scans: Default::default(),
            exchanges: Default::default(),
            transfers: Default::default(),
            barriers: OnceLock::new(),
            norms: Default::default(),
            last: Mutex::default(),
        })
    }

    /// Returns the rank of this PE in the team.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Returns the members of the team in the order of ranks.
    pub fn members(&self) -> &[Pe] {
        &self.members
    }

    /// Returns an explanation of a call: the algorithm that Peerweave's kernels would use, and the
    /// reason for this choice. All ranks get the same explanation. The shape of the launch is that
    /// of a call that is not in place.
    pub fn explain(&self, query: &Query) -> Explanation {
        self.explain_with(query, &Libraries { nccl: Err(Unfit::Off) }, "")
    }

    /// Like [`explain`](Self::explain), but considers NCCL too. `libraries` says whether the team
    /// can use NCCL, and why not. If this reason is [`Unfit::Unavailable`], `unavailable` is the
    /// text that describes the reason.
    pub(crate) fn explain_with(&self, query: &Query, libraries: &Libraries, unavailable: &str) -> Explanation {
        self.routes.explain(query, &self.staging.limits, libraries, unavailable)
    }

    /// Returns the provider that carries out a call: Peerweave's kernels or a library.
    pub(crate) fn provider(&self, query: &Query, libraries: &Libraries) -> Provider {
        self.routes.decide(query, &self.staging.limits, libraries).provider
    }

    /// Loads the kernels of all_reduce and reduce_scatter for one element type. Without this call,
    /// the first collective that needs a kernel loads the kernel. The driver may then compile it
    /// for some tenths of a second, while kernels of other PEs wait for this PE.
    ///
    /// # Errors
    /// [`CudaError::Misuse`] if the type cannot be reduced; errors from loading the kernels.
    pub fn load(&self, dtype: DType) -> Result<(), CudaError> {
        [false, true].into_iter().try_for_each(|is_plain| self.scatter_kernel(dtype, is_plain).map(drop))?;
        Algorithm::ALL
            .into_iter()
            .flat_map(|algorithm| [(algorithm, false), (algorithm, true)])
            .try_for_each(|(algorithm, is_plain)| self.kernel(algorithm, dtype, is_plain).map(drop))
    }

    /// Makes the collectives usable again after [`Gpu::recover`]: resets the staging memory and the
    /// counters.
    ///
    /// # Collective
    /// All PEs that created their `Gpu` together, by the same rendezvous. No kernel may be running
    /// on this GPU.
    ///
    /// # Errors
    /// [`CudaError::Bootstrap`] names a PE that did not arrive. Errors of the driver.
    pub fn recover(&self) -> Result<(), CudaError> {
        let inner = &*self.gpu.0;
        let made = inner.next_collectives();
        let barrier = |step: &str| inner.rendezvous.barrier(&format!("peerweave-cuda/collectives/{made}/{step}"));
        barrier("ended")?;
        self.staging.fill(&self.gpu)?;
        Ok(barrier("ready")?)
    }

    /// Ends the collectives, and frees their memory after the streams of this PE have completed the
    /// work that uses the memory.
    ///
    /// # Collective
    /// All PEs that created their `Gpu` together, by the same rendezvous.
    ///
    /// # Errors
    /// Errors of the heap, in particular [`CudaError::Vmm`] while a graph uses the collectives.
    pub fn end(self) -> Result<(), CudaError> {
        let Self { gpu, staging, .. } = self;
        staging.free(&gpu)
    }
}

/// Returns 16 random bytes.
pub(crate) fn random() -> Result<[u8; 16], CudaError> {
    let mut bytes = [0; 16];
    peerweave_bootstrap::fill_random(&mut bytes)?;
    Ok(bytes)
}

impl fmt::Debug for Collectives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Collectives({} of {:?})", self.rank, self.members)
    }
}
