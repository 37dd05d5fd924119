//! A GPU of a job: its heap, context and modules. Launches and waits are in `launch/`, and
//! allocations are in `memory/`.

mod end;
mod modules;
mod options;
mod parts;
pub(crate) mod teams;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use peerweave_bootstrap::{Hosts, Rendezvous};
use peerweave_driver::cudarc::driver::sys::CUdevice_attribute as Attribute;
use peerweave_driver::{CudaContext, DeviceMemory, Driver, PrivateStream, deadline_after, wait};
use peerweave_link::Arch;
use peerweave_types::{KernelContext, Pe, PeerEntry, SymOffset, TeamEntry, nvshmem};

use crate::context::report::Report;
use crate::context::tables::{Contents, Tables};
use crate::error::{CudaError, misuse};
use crate::heap::{Arena, Block, Heap};
use modules::Modules;
use teams::Teams;

use end::Gone;

pub use options::{GpuOptions, Transport};

/// A GPU of a job, set up for kernels that access the GPUs of other PEs. Clones are handles of the
/// same GPU.
///
/// # Collective
/// All PEs must call [`new`](Self::new), [`alloc`](Self::alloc), [`free`](Self::free),
/// [`split`](Self::split), [`barrier`](Self::barrier), [`recover`](Self::recover) and
/// [`end`](Self::end) in the same order and with the same arguments. Only the colors and keys of
/// [`split`](Self::split) may differ. Each call returns at the deadline of the rendezvous at the
/// latest. If PEs do not arrive by this deadline, the call returns an error that names these PEs.
///
/// ```no_run
/// use std::sync::Arc;
/// use peerweave_bootstrap::{Job, Options, Rendezvous};
/// use peerweave_cuda::{Gpu, GpuOptions};
///
/// let job = Job::from_env()?;
/// let rendezvous = Arc::new(Rendezvous::join(&job, Options::default())?);
/// let context = peerweave_driver::context(job.local_pe as usize)?;
/// let gpu = Gpu::new(&rendezvous, &context, GpuOptions::new(64 << 20))?;
/// let numbers = gpu.alloc::<i32>(1024)?;
/// println!("{gpu:?}: {numbers:?}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Gpu(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) rendezvous: Arc<Rendezvous>,
    pub(crate) context: Arc<CudaContext>,
    /// This GPU's private stream for set-up and copies.
    pub(crate) stream: PrivateStream,
    pub(crate) heap: Heap,
    pub(crate) arch: Arch,
    /// The host on which each PE runs.
    pub(crate) hosts: Hosts,
    /// Whether kernels are loaded in the PTX variant that calls NVSHMEM's device library.
    pub(crate) network: bool,
    pub(crate) report: Report,
    pub(crate) tables: Mutex<Tables>,
    pub(crate) teams: Teams,
    /// The symmetric memory in which the members of all teams announce their arrival at
    /// synchronisations.
    pub(crate) sync: Block,
    pub(crate) deadline: Duration,
    /// The options with which the GPU was set up.
    pub(crate) options: GpuOptions,
    pub(crate) modules: Modules,
    /// Live allocations of the symmetric heap. The key is the offset in the heap.
    allocations: Mutex<BTreeMap<u64, Weak<Block>>>,
    /// Live allocations of [`Gpu::alloc_local`] in this GPU's own memory. The key is the address.
    locals: Mutex<BTreeMap<u64, Weak<DeviceMemory<u8>>>>,
    /// The first failure since the GPU was set up or recovered; `None` if there was no failure.
    failed: Mutex<Option<String>>,
    recoveries: Mutex<u64>,
    /// Number of exchanges among all PEs so far, such as those in the set-up of collectives, of
    /// NCCL and of route tables. The label of the next exchange contains this number.
    collectives: AtomicU64,
    /// A guard whose drop waits until no thread holds the heap or NVSHMEM's context. Must be the
    /// last field, so that all other fields are dropped before the wait.
    pub(crate) gone: Gone,
}

impl Gpu {
    /// Sets up the device of `context` for kernels. Each PE should have its own device: PEs that
    /// share a device, for example in tests, take turns on that device.
    ///
    /// # Collective
    /// All PEs of the rendezvous.
    ///
    /// # Errors
    /// Errors of the heap. [`CudaError::Misuse`] for invalid options. Errors of the driver.
    pub fn new(rendezvous: &Arc<Rendezvous>, context: &Arc<CudaContext>, options: GpuOptions) -> Result<Self, CudaError> {
        const CALL: &str = "Gpu::new";
        let given = options.clone();
        let attribute = |attribute| Ok::<_, CudaError>(Driver::get()?.attribute(context.ordinal(), attribute)?.unsigned_abs());
        let arch = Arch::new(
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? as u8,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)? as u8,
        );
        let slots = match options.slots {
            Some(0) => return Err(misuse(CALL, "slots", 0, "at least 1")),
            Some(slots) => slots,
            None => attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        };
        if options.teams > Teams::MOST {
            return Err(misuse(CALL, "teams", options.teams, &format!("at most {}", Teams::MOST)));
        }
        let (me, n_pes, n_teams) = (rendezvous.pe(), rendezvous.n_pes(), options.teams + 1);
        let hosts = rendezvous.hosts()?;
        // Returns the index of a PE among the PEs on the same host.
        let place = |pe: Pe| hosts.pes(hosts.of(pe)).take_while(|other| *other < pe).count() as u32;
        let stream = PrivateStream::new(context)?;
        let sync_bytes = u64::from(n_teams) * Tables::sync_stride(n_pes, slots);
        let bytes = options.heap_bytes.saturating_add(sync_bytes as usize);
        let (heap, forced) = match options.transport {
            Transport::Mapped => (Heap::vmm(rendezvous, context, bytes, options.multicast)?, false),
            Transport::Nvshmem(settings) => (arena(rendezvous, context, settings, bytes, options.multicast)?, false),
            Transport::Network(settings) => (arena(rendezvous, context, settings, bytes, options.multicast)?, true),
        };
        let sync = heap.alloc(&stream, sync_bytes as usize)?;
        let entry = |pe: u32| heap.entry(me, Pe::new(pe), place(Pe::new(pe)), forced);
        let peers = (0..n_pes).map(entry).collect::<Result<Vec<_>, _>>()?;
        let network = peers.iter().any(|entry| entry.transport == PeerEntry::NETWORK);
        let report = Report::new(context)?;
        let tables = Tables::new(
            &stream,
            Contents {
                my_pe: me.get(),
                node_pe: place(me),
                node_n_pes: hosts.pes(hosts.of(me)).count() as u32,
                heap_bytes: heap.bytes(),
                peers,
                sync: SymOffset(sync.offset),
                slots,
                n_teams,
                nvshmem_team: if heap.nvshmem().is_some() { nvshmem::TEAM_WORLD } else { TeamEntry::NO_HANDLE },
                capabilities: if network { KernelContext::CAN_NETWORK } else { 0 },
                status: report.status_address(),
                abort: report.abort_address(),
                deadline_ns: u64::try_from(options.deadline.as_nanos()).unwrap_or(u64::MAX),
                multicast: heap.multicast_address()?,
            },
        )?;
        // No kernel of any PE may run before the synchronisation lines of all PEs are zero.
        rendezvous.barrier("peerweave-cuda/ready")?;
        let gone = Gone::new(heap.gone());
        Ok(Self(Arc::new(Inner {
            rendezvous: Arc::clone(rendezvous),
            context: Arc::clone(context),
            stream,
            heap,
            arch,
            hosts,
            network,
            report,
            tables: Mutex::new(tables),
            teams: Teams::new(n_teams),
            sync,
            deadline: options.deadline,
            options: given,
            modules: Modules::default(),
            allocations: Mutex::default(),
            locals: Mutex::default(),
            failed: Mutex::default(),
            recoveries: Mutex::default(),
            collectives: AtomicU64::new(0),
            gone,
        })))
    }

    /// Returns the number of this PE.
    pub fn pe(&self) -> Pe {
        self.0.rendezvous.pe()
    }

    /// Returns the number of PEs in the job.
    pub fn n_pes(&self) -> u32 {
        self.0.rendezvous.n_pes()
    }

    /// Returns the rendezvous with which this GPU was set up.
    pub fn rendezvous(&self) -> &Arc<Rendezvous> {
        &self.0.rendezvous
    }

    /// Returns the CUDA context of the GPU.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.0.context
    }

    /// Returns the architecture of the GPU, such as `sm_90`.
    pub fn arch(&self) -> Arch {
        self.0.arch
    }

    /// Returns whether kernels are linked with NVSHMEM's device library. They are linked with the
    /// library if kernels access at least one PE through it.
    pub fn uses_network(&self) -> bool {
        self.0.network
    }

    /// Returns the time limit for waits of kernels and of the host.
    pub fn deadline(&self) -> Duration {
        self.0.deadline
    }

    /// Waits on the host until all PEs have made this call. Does not wait for work on the device.
    ///
    /// # Errors
    /// [`CudaError::Bootstrap`] names the PEs that did not arrive.
    pub fn barrier(&self, label: &str) -> Result<(), CudaError> {
        Ok(self.0.rendezvous.barrier(&format!("peerweave-cuda/barrier/{label}"))?)
    }

    /// Makes the GPU usable for communication after a kernel has failed: resets the words by which
    /// teams synchronise. Symmetric memory keeps its content. Recovery is not possible once a PE
    /// has been lost: create a job without the lost PE instead.
    ///
    /// # Collective
    /// All PEs. No kernel may be running on this GPU.
    ///
    /// # Errors
    /// [`CudaError::Bootstrap`] names a PE that is lost or did not arrive; errors of the driver.
    pub fn recover(&self) -> Result<(), CudaError> {
        let mut recoveries = self.0.recoveries.lock().unwrap_or_else(PoisonError::into_inner);
        let barrier = |step: &str| self.0.rendezvous.barrier(&format!("peerweave-cuda/recover/{recoveries}/{step}"));
        // After this barrier, no peer writes to this PE's memory.
        barrier("ended")?;
        self.0.sync.zero(&self.0.stream)?;
        if !wait(&self.0.stream, deadline_after(self.0.deadline))? {
            return Err(CudaError::Stuck { call: "Gpu::recover", waited: self.0.deadline });
        }
        self.0.tables.lock().unwrap_or_else(PoisonError::into_inner).forget_epochs(&self.0.stream)?;
        self.0.report.clear();
        *self.0.failed() = None;
        barrier("ready")?;
        *recoveries += 1;
        Ok(())
    }
}

impl Inner {
    pub(crate) fn allocations(&self) -> MutexGuard<'_, BTreeMap<u64, Weak<Block>>> {
        self.allocations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn locals(&self) -> MutexGuard<'_, BTreeMap<u64, Weak<DeviceMemory<u8>>>> {
        let mut locals = self.locals.lock().unwrap_or_else(PoisonError::into_inner);
        locals.retain(|_, memory| memory.strong_count() > 0);
        locals
    }

    /// Returns the allocation that contains `address`, if [`Gpu::alloc_local`] has created it.
    /// Returns `None` for memory of another allocator.
    pub(crate) fn local(&self, address: u64) -> Option<Arc<DeviceMemory<u8>>> {
        let (_, memory) = self.locals().range(..=address).next_back().map(|(at, memory)| (*at, memory.clone()))?;
        let memory = memory.upgrade()?;
        (address < memory.address() + memory.len() as u64).then_some(memory)
    }

    /// Returns the address at which this device accesses the heap of a PE. Fails if that heap is
    /// not mapped.
    pub(crate) fn base_of(&self, pe: Pe) -> Result<u64, CudaError> {
        let base = self.tables.lock().unwrap_or_else(PoisonError::into_inner).base_of(pe);
        base.ok_or_else(|| {
            misuse("Collectives::new", "members", format!("a list with {pe}"), "only PEs whose memory this GPU maps")
        })
    }

    /// Returns the number of the next exchange among all PEs, for the label of this exchange. Such
    /// exchanges happen, for example, in the set-up of collectives, of NCCL and of route tables.
    /// All PEs make them in the same order, so the number is the same on all PEs.
    pub(crate) fn next_collectives(&self) -> u64 {
        self.collectives.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn failed(&self) -> MutexGuard<'_, Option<String>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the allocation of the symmetric heap that contains the range of `bytes` bytes at
    /// `offset`. Returns `None` if no live allocation contains the range.
    pub(crate) fn allocation(&self, offset: SymOffset, bytes: u64) -> Option<Arc<Block>> {
        let (_, block) = self.allocations().range(..=offset.0).next_back().map(|(at, block)| (*at, block.clone()))?;
        let block = block.upgrade()?;
        let end = offset.0.checked_add(bytes)?;
        (end <= block.offset + block.bytes).then_some(block)
    }
}

fn arena(
    rendezvous: &Arc<Rendezvous>,
    context: &Arc<CudaContext>,
    settings: peerweave_nvshmem::Settings,
    bytes: usize,
    multicast: bool,
) -> Result<Heap, CudaError> {
    let nvshmem = peerweave_nvshmem::Context::from_rendezvous(rendezvous, context, settings)?;
    Ok(Heap::Nvshmem(Arena::new(nvshmem, rendezvous, bytes, multicast)?))
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (device, kind) = (self.0.context.ordinal(), if self.0.heap.nvshmem().is_some() { "NVSHMEM" } else { "mapped" });
        write!(f, "Gpu({} of {} on device {device}, {}, {kind})", self.pe(), self.n_pes(), self.0.arch)
    }
}
