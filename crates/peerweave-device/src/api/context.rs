//! The context of a kernel: its creation, and queries that cost nothing.

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

/// Gives a kernel access to its peers: every operation of a kernel is a method of its context.
///
/// `#[kernel]` creates the context from the first parameter of the entry. A context is a few
/// numbers in registers; each thread has its own.
///
/// # Names
/// A method without a suffix is called by one thread. A method with the suffix `_warp` or `_block`
/// is called by all threads of a warp or a block together, with the same arguments. Each thread
/// gets the same outcome. Such a call waits for all of these threads before it returns, but not
/// before it starts: if other threads of the scope have written the source, synchronise first.
/// `_nbi` forms may return before the source has been read; [`Self::flush`] or [`Self::quiet`]
/// completes them. `_relaxed` forms do not order other accesses.
///
/// # Order
/// A put is complete at the peer after [`Self::quiet`] and before a barrier ends. [`Self::fence`]
/// orders puts to each PE. A signal releases the caller's earlier accesses, and a wait for the
/// signal acquires them.
///
/// # Failures
/// Calls that return nothing write a failure to the context's status, which ends the waits of all
/// threads of this PE; the host reports it. Calls that wait return [`Failed`].
pub struct Context {
    raw: *const KernelContext,
    pes: Pes,
    bases: Bases,
    /// The mapped PE that was looked up last, and the address of its heap. A fence empties the
    /// cache of the SM, and a load of the table after a fence takes a quarter of the time of a put.
    /// Invariant: the PE exists and is mapped, so a hit needs no other check.
    last: Cell<(u32, u64)>,
    /// The team that this thread synchronised last.
    pub(crate) last_team: Cell<TeamCache>,
    /// The addresses of this thread's last synchronisation of a team.
    pub(crate) last_meeting: Cell<Meeting>,
    pub(crate) lent: Cell<Lent>,
    pub(crate) bulk_pending: Cell<bool>,
    /// A context belongs to the thread that made it.
    local: PhantomData<*const ()>,
}

/// The number of this PE and the number of PEs.
#[derive(Clone, Copy)]
pub(crate) struct Pes {
    my_pe: u32,
    n_pes: u32,
}

/// Addresses by which this thread finds the heaps of all PEs.
#[derive(Clone, Copy)]
pub(crate) struct Bases {
    /// Address of the table of peers.
    peers: u64,
    /// Address of this PE's heap.
    mine: u64,
}

/// The means by which a PE's memory is accessed.
#[derive(Clone, Copy)]
pub(crate) enum Reach {
    /// Loads and stores: the PE's heap is mapped at this address.
    Mapped(u64),
    /// The network: NVSHMEM's device library.
    Network,
}

impl Context {
    /// Reads the context that the host has written. Fails for a context of another version. Called
    /// by the entry that `#[kernel]` creates.
    ///
    /// # Errors
    /// [`FailureKind::Version`]. The status is not written then, because its address is unknown.
    ///
    /// # Safety
    /// The pointer is that of a context in memory that this thread can read, whose addresses are
    /// valid here, and which is not written until the kernel has ended.
    #[inline(always)]
    pub unsafe fn enter(raw: *const KernelContext) -> Result<Self, Failed> {
        // SAFETY: the caller promises a readable context, which starts with its version and this PE
        // in every version.
        let first = unsafe { gpu::load_constant(raw.cast()) };
        if first as u32 != KernelContext::VERSION {
            return Err(Failed::new(FailureKind::Version));
        }
        // SAFETY: a context of this version, as the caller promises.
        Ok(unsafe { Self::enter_unchecked(raw) })
    }

    /// Like [`Self::enter`], but does not check the version, so that no field is read before it is
    /// used. Called by the entry of `#[kernel(unchecked)]`, whose launches compare the version on
    /// the host.
    ///
    /// # Safety
    /// As for [`Self::enter`]; the context is of this version.
    #[inline(always)]
    pub unsafe fn enter_unchecked(raw: *const KernelContext) -> Self {
        // SAFETY: a context of this version, readable and not written by anybody: the caller
        // promises it.
        let (first, second) = unsafe { (gpu::load_constant(raw.cast()), gpu::load_constant(raw.cast::<u64>().add(1))) };
        const {
            assert!(offset_of!(KernelContext, version) == 0 && offset_of!(KernelContext, my_pe) == 4);
            assert!(offset_of!(KernelContext, n_pes) == 8 && cfg!(target_endian = "little"));
        };
        let pes = Pes { my_pe: (first >> 32) as u32, n_pes: second as u32 };
        // SAFETY: the field lies in the context; the table has an entry for each PE, which begins
        // with its base.
        let bases = unsafe {
            let peers = gpu::load_constant(&raw const (*raw).peers);
            Bases { peers, mine: gpu::load_constant(entry(peers, pes.my_pe)) }
        };
        // SAFETY: read from that context.
        unsafe { Self::again(raw, pes, bases) }
    }

    /// Returns the constant parts of the context, from which a function that is not inlined creates
    /// [another context](Self::again). The parts are numbers, so the caller keeps its own context
    /// in registers. With a reference, the compiler would keep the context in memory for every
    /// operation of the kernel.
    #[inline(always)]
    pub(crate) fn parts(&self) -> (*const KernelContext, Pes, Bases) {
        (self.raw, self.pes, self.bases)
    }

    /// Creates a context from [`Self::parts`], without lent shared memory and with empty caches.
    ///
    /// # Safety
    /// The parts are from one context of this thread.
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

    /// Returns the number of PEs of the job.
    #[inline(always)]
    pub fn n_pes(&self) -> u32 {
        self.pes.n_pes
    }

    /// Returns the index of this PE among the PEs of its node.
    #[inline]
    pub fn node_pe(&self) -> u32 {
        self.raw().node_pe
    }

    /// Returns the number of PEs of this PE's node.
    #[inline]
    pub fn node_n_pes(&self) -> u32 {
        self.raw().node_n_pes
    }

    /// Returns the context as the host wrote it.
    #[inline(always)]
    pub(crate) fn raw(&self) -> &KernelContext {
        // SAFETY: `enter` was promised a context that is readable, and written by nobody, while the
        // kernel runs.
        unsafe { &*self.raw }
    }

    /// Returns the address of the heap of a PE below [`Self::n_pes`]; 0 if it is not mapped.
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

    /// Like [`Self::base_of`], but always reads the table.
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

    /// Returns the path to a PE. A failure is written to the status.
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

    /// Returns whether the memory of a PE is mapped here, so that [`Self::get_peer_array`] has a
    /// view of it.
    #[inline]
    pub fn is_mapped(&self, pe: u32) -> bool {
        pe < self.pes.n_pes && self.base_of(pe) != 0
    }

    /// Returns this PE's own elements of symmetric memory.
    #[inline(always)]
    pub fn local<T: Plain>(&self, of: SymSlice<T>) -> DeviceSlice<T> {
        // SAFETY: `SymSlice::from_raw` was promised elements in the heap of every PE, and this PE's
        // is mapped.
        unsafe { DeviceSlice::from_raw(self.my_base() + of.offset().0, of.len()) }
    }

    /// Returns a PE's elements of symmetric memory; `None` if the PE's memory is not mapped here,
    /// or the PE does not exist.
    ///
    /// Reads and writes through the view are weak: order them with the peer's accesses by signals,
    /// barriers and fences.
    #[inline(always)]
    pub fn get_peer_array<T: Plain>(&self, of: SymSlice<T>, pe: u32) -> Option<DeviceSlice<T>> {
        if pe >= self.pes.n_pes {
            return None;
        }
        match self.base_of(pe) {
            0 => None,
            // SAFETY: `SymSlice::from_raw` was promised elements in the heap of every PE, and this
            // one's is mapped.
            base => Some(unsafe { DeviceSlice::from_raw(base + of.offset().0, of.len()) }),
        }
    }
}

/// Returns the address of the entry of a PE, whose first word is the address of the PE's heap.
#[inline(always)]
fn entry(peers: u64, pe: u32) -> *const u64 {
    const { assert!(offset_of!(PeerEntry, base) == 0) };
    address(peers + u64::from(pe) * size_of::<PeerEntry>() as u64)
}

impl Drop for Context {
    /// Waits until no copy uses lent shared memory: the SM reuses it when the block ends.
    #[inline(always)]
    fn drop(&mut self) {
        if gpu::bulk::AVAILABLE && self.bulk_pending.get() {
            gpu::bulk::wait_read::<0>();
        }
    }
}
