//! The context of a kernel. This module creates the context, and has the methods that return
//! numbers of PEs and addresses.

use super::Failed;
use super::memory::bulk::Lent;
use super::report::Report;
use super::team::{Meeting, TeamCache};
use super::views::address;
use crate::gpu;
use core::cell::Cell;
use core::marker::PhantomData;
use core::mem::offset_of;
use peerweave_types::{DeviceSlice, FailureKind, KernelContext, KernelOp, PeerEntry, Plain, SymSlice};

/// The context of a kernel. All operations that a kernel calls are methods of its context.
///
/// `#[kernel]` creates the context from the first parameter of the kernel entry. Each thread has
/// its own context, which consists of a few numbers in registers.
///
/// # Names
/// A method without a suffix is called by one thread. A method with the suffix `_warp` or `_block`
/// is called by all threads of a warp or block together, with the same arguments. Such a call
/// succeeds on all these threads or fails on all of them. Before it returns, the call synchronises
/// these threads. The call need not synchronise these threads before it starts. So if other threads
/// have written the source, synchronise before the call.
///
/// `_nbi` methods may return before the source has been read. [`Self::flush`] waits until the
/// sources can be reused, and [`Self::quiet`] completes the operations. `_relaxed` methods do not
/// order other accesses.
///
/// # Order
/// A put is complete at the peer when [`Self::quiet`] or a barrier returns. [`Self::fence`] orders
/// puts to the same PE. A signal releases the caller's earlier accesses, and a wait for the signal
/// acquires them.
///
/// # Failures
/// A failed operation writes a report to the context's status, which the host reads. The failure
/// also makes every wait on this PE fail. A waiting operation that fails returns [`Failed`].
pub struct Context {
    raw: *const KernelContext,
    pes: Pes,
    bases: Bases,
    /// The mapped PE whose heap was looked up last, and the address of that heap. Without this
    /// cache, the lookup after a fence would take a quarter of the time of a put, because a fence
    /// empties the L1 cache of the SM. Invariant: the PE exists and is mapped, so a cache hit needs
    /// no further check.
    last: Cell<(u32, u64)>,
    /// A cache of the table of teams. It contains the entry of the team that this thread used last.
    pub(crate) last_team: Cell<TeamCache>,
    /// A cache of the addresses for the last synchronisation of this thread: see [`Meeting`].
    pub(crate) last_meeting: Cell<Meeting>,
    pub(crate) lent: Cell<Lent>,
    pub(crate) bulk_pending: Cell<bool>,
    /// Makes the type neither `Send` nor `Sync`: a context belongs to the thread that created it.
    local: PhantomData<*const ()>,
}

/// The number of this PE, and the number of PEs in the job.
#[derive(Clone, Copy)]
pub(crate) struct Pes {
    my_pe: u32,
    n_pes: u32,
}

/// Addresses from which this thread computes the addresses of all heaps.
#[derive(Clone, Copy)]
pub(crate) struct Bases {
    /// Address of a table with one `PeerEntry` for each PE. An entry contains the address of that
    /// PE's heap, or 0 if the heap is not mapped.
    peers: u64,
    /// Address of this PE's heap.
    mine: u64,
}

/// The path by which this PE accesses the memory of a PE.
#[derive(Clone, Copy)]
pub(crate) enum Reach {
    /// The PE's heap is mapped at this address. This PE accesses the heap by loads and stores.
    Mapped(u64),
    /// The PE's heap is not mapped. This PE accesses the heap over the network: on GPUs by calls of
    /// NVSHMEM's device library, and on the host by calls of the executor, which emulates a
    /// network.
    Network,
}

impl Context {
    /// Creates a thread's `Context` from the [`KernelContext`] that the host has written. The
    /// kernel entry that `#[kernel]` generates calls this function.
    ///
    /// # Errors
    /// [`FailureKind::Version`] if the version of the host's context is not
    /// [`KernelContext::VERSION`]. This failure is not written to the status, because the address
    /// of the status is unknown.
    ///
    /// # Safety
    /// `raw` points to a context in memory that this thread can read. The addresses in the context
    /// are valid in this thread. The context is not written until the kernel has ended.
    #[inline(always)]
    pub unsafe fn enter(raw: *const KernelContext) -> Result<Self, Failed> {
        // SAFETY: the caller promises a readable context. Contexts of all versions start with the
        // version and the number of this PE.
        let first = unsafe { gpu::load_constant(raw.cast()) };
        if first as u32 != KernelContext::VERSION {
            return Err(Failed::new(FailureKind::Version));
        }
        // SAFETY: a context of this version, as the caller promises.
        Ok(unsafe { Self::enter_unchecked(raw) })
    }

    /// Like [`Self::enter`], but does not check the version, so a thread starts without waiting for
    /// the load of the version. The kernel entry that `#[kernel(unchecked)]` generates calls this
    /// function. The host checks the version when it launches such a kernel.
    ///
    /// # Safety
    /// As for [`Self::enter`]. In addition, the context has the version [`KernelContext::VERSION`].
    #[inline(always)]
    pub unsafe fn enter_unchecked(raw: *const KernelContext) -> Self {
        // SAFETY: the caller promises a context of this version, which this thread can read and
        // nobody writes.
        let (first, second) = unsafe { (gpu::load_constant(raw.cast()), gpu::load_constant(raw.cast::<u64>().add(1))) };
        const {
            assert!(offset_of!(KernelContext, version) == 0 && offset_of!(KernelContext, my_pe) == 4);
            assert!(offset_of!(KernelContext, n_pes) == 8 && cfg!(target_endian = "little"));
        };
        let pes = Pes { my_pe: (first >> 32) as u32, n_pes: second as u32 };
        // SAFETY: the field lies in the context. The table has an entry for each PE, which begins
        // with the base address of its heap.
        let bases = unsafe {
            let peers = gpu::load_constant(&raw const (*raw).peers);
            Bases { peers, mine: gpu::load_constant(entry(peers, pes.my_pe)) }
        };
        // SAFETY: the parts were read from this context.
        unsafe { Self::again(raw, pes, bases) }
    }

    /// Returns the constant parts of the context, which are plain numbers. A function that is not
    /// inlined takes these numbers as arguments, and creates [another context](Self::again) from
    /// them. So the caller's context stays in registers. If such a function took a reference to the
    /// context, the compiler would place the context in memory for every operation of the kernel.
    #[inline(always)]
    pub(crate) fn parts(&self) -> (*const KernelContext, Pes, Bases) {
        (self.raw, self.pes, self.bases)
    }

    /// Creates a context from [`Self::parts`]. The context has empty caches, and no shared memory
    /// for bulk copies ([`Self::lend_shared`]).
    ///
    /// # Safety
    /// `raw`, `pes` and `bases` are the [parts](Self::parts) of one context of this thread.
    #[inline(always)]
    pub(crate) unsafe fn again(raw: *const KernelContext, pes: Pes, bases: Bases) -> Self {
        Self {
            raw,
            pes,
            bases,
            last: Cell::new((pes.my_pe, bases.mine)),
            last_team: Cell::new(TeamCache::NOTHING),
            last_meeting: Cell::new(Meeting::NOTHING),
            lent: Cell::new(Lent::NOTHING),
            bulk_pending: Cell::new(false),
            local: PhantomData,
        }
    }

    /// Returns the number of this PE.
    #[inline(always)]
    pub fn my_pe(&self) -> u32 {
        self.pes.my_pe
    }

    /// Returns the number of PEs in the job.
    #[inline(always)]
    pub fn n_pes(&self) -> u32 {
        self.pes.n_pes
    }

    /// Returns the index of this PE among the PEs on its node.
    #[inline]
    pub fn node_pe(&self) -> u32 {
        self.raw().node_pe
    }

    /// Returns the number of PEs on this PE's node.
    #[inline]
    pub fn node_n_pes(&self) -> u32 {
        self.raw().node_n_pes
    }

    /// Returns the context as the host wrote it.
    #[inline(always)]
    pub(crate) fn raw(&self) -> &KernelContext {
        // SAFETY: the caller of `enter` promised a context that is readable, and that nobody
        // writes, while the kernel runs.
        unsafe { &*self.raw }
    }

    /// Returns the address of a PE's heap; 0 if the heap is not mapped. `pe` must be less than
    /// [`Self::n_pes`].
    #[inline(always)]
    pub(crate) fn base_of(&self, pe: u32) -> u64 {
        let (last, base) = self.last.get();
        if pe == last {
            return base;
        }
        let base = self.table_base(pe);
        if base != 0 {
            self.last.set((pe, base));
        }
        base
    }

    /// Like [`Self::base_of`], but reads the table of peers and does not use the cache.
    #[inline(always)]
    pub(crate) fn table_base(&self, pe: u32) -> u64 {
        // SAFETY: the context's table has an entry for each PE, and nobody writes it while the
        // kernel runs.
        unsafe { gpu::load_constant(entry(self.bases.peers, pe)) }
    }

    /// Returns the address of this PE's heap.
    #[inline(always)]
    pub(crate) fn my_base(&self) -> u64 {
        self.bases.mine
    }

    /// Returns the path by which this PE accesses the memory of `pe`: loads and stores, or the
    /// network.
    ///
    /// # Errors
    /// If the PE does not exist or cannot be reached. The failure is written to the status.
    #[inline(always)]
    pub(crate) fn reach(&self, operation: KernelOp, pe: u32) -> Result<Reach, Failed> {
        let (last, base) = self.last.get();
        if pe == last {
            return Ok(Reach::Mapped(base));
        }
        if pe < self.pes.n_pes {
            let base = self.base_of(pe);
            if base != 0 {
                return Ok(Reach::Mapped(base));
            }
            if self.has_network() {
                return Ok(Reach::Network);
            }
        }
        Err(self.unreachable(operation, pe))
    }

    #[cold]
    #[inline]
    fn unreachable(&self, operation: KernelOp, pe: u32) -> Failed {
        let kind = if pe < self.pes.n_pes { FailureKind::Unreachable } else { FailureKind::NoSuchPeer };
        self.fail(kind, Report { pe, expected: u64::from(self.pes.n_pes), ..Report::of(operation) })
    }

    /// Returns whether the memory of `pe` is mapped on this PE. If it is mapped,
    /// [`Self::get_peer_array`] returns a view of that memory.
    #[inline]
    pub fn is_mapped(&self, pe: u32) -> bool {
        pe < self.pes.n_pes && self.base_of(pe) != 0
    }

    /// Returns a view of the elements of `of` in this PE's own memory.
    #[inline(always)]
    pub fn local<T: Plain>(&self, of: SymSlice<T>) -> DeviceSlice<T> {
        // SAFETY: the caller of `SymSlice::from_raw` promised elements in the heap of every PE, and
        // this PE's heap is mapped.
        unsafe { DeviceSlice::from_raw(self.my_base() + of.offset().0, of.len()) }
    }

    /// Returns a view of the elements of `of` in the memory of `pe`. Returns `None` if that memory
    /// is not mapped on this PE, or if `pe` does not exist.
    ///
    /// Reads and writes through the view are weak. To order them with the peer's accesses, use
    /// signals, barriers or fences.
    #[inline(always)]
    pub fn get_peer_array<T: Plain>(&self, of: SymSlice<T>, pe: u32) -> Option<DeviceSlice<T>> {
        if pe >= self.pes.n_pes {
            return None;
        }
        match self.base_of(pe) {
            0 => None,
            // SAFETY: the caller of `SymSlice::from_raw` promised elements in the heap of every PE,
            // and the heap of `pe` is mapped.
            base => Some(unsafe { DeviceSlice::from_raw(base + of.offset().0, of.len()) }),
        }
    }
}

/// Returns the address of a PE's entry in the table of peers. The first word of the entry is the
/// address of the PE's heap.
#[inline(always)]
fn entry(peers: u64, pe: u32) -> *const u64 {
    const { assert!(offset_of!(PeerEntry, base) == 0) };
    address(peers + u64::from(pe) * size_of::<PeerEntry>() as u64)
}

impl Drop for Context {
    /// Waits until bulk copies have read their sources in shared memory. Without this wait, the SM
    /// could reuse the shared memory of an ended block too early.
    #[inline(always)]
    fn drop(&mut self) {
        if gpu::bulk::AVAILABLE && self.bulk_pending.get() {
            gpu::bulk::wait_read::<0>();
        }
    }
}
