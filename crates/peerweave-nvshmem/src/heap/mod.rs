//! The symmetric heap: allocations, registrations, their handles and the heap's limits.
//!
//! `ops` has the collective calls that allocate, free and register memory.
//!
//! # Invariants
//! - **\[H1\]** Memory is freed only when no handle, no captured graph and no stream uses it.
//! - **\[H2\]** The list of allocations is the same on every PE, in the same order.

pub(crate) mod allocation;
pub(crate) mod buffer;
pub(crate) mod handle;
pub(crate) mod limits;
pub(crate) mod registration;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use peerweave_types::Pe;

use crate::comm::Comm;
use crate::comm::agree::Counter;
use crate::comm::deferred::Held;
use crate::comm::entry::Entered;
use crate::error::{MisuseKind, NvshmemError};
use allocation::Allocation;
use handle::Handle;
use limits::Limits;
use registration::{Record, Registered, Registration};

/// The symmetric heap in this process.
pub(crate) struct Heap {
    pub(crate) comm: Arc<Comm>,
    pub(crate) limits: Limits,
    /// Allocations that have not been freed, in the order of allocation, which is the same on every
    /// PE.
    allocations: Mutex<Vec<Arc<Allocation>>>,
    /// Number of freed allocations, and their total size in bytes.
    freed: Mutex<(u64, u64)>,
    /// Memory that this PE has registered for its network transfers.
    registered: Mutex<Vec<Record>>,
    /// One value for each PE: whether this process has mapped the memory of that PE. The first
    /// query sets all values.
    mapped: OnceLock<Vec<bool>>,
}

impl Heap {
    pub(crate) fn new(comm: Arc<Comm>, limits: Limits) -> Self {
        let (allocations, freed, registered) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { comm, limits, allocations, freed, registered, mapped: OnceLock::new() }
    }

    /// Returns the list of allocations, locked.
    pub(crate) fn allocations(&self) -> MutexGuard<'_, Vec<Arc<Allocation>>> {
        self.allocations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn registered(&self) -> MutexGuard<'_, Vec<Record>> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds new memory to the list of allocations, and returns the first handle to the memory.
    /// Every PE adds allocations in the same order (invariant [H2]).
    pub(crate) fn add_allocation(&self, address: u64, bytes: usize, outside: Option<Held>) -> Handle {
        let mut allocations = self.allocations();
        let id = self.comm.count(Counter::Allocations);
        let allocation = Arc::new(Allocation::new(&self.comm, address, bytes, id, outside));
        let handle = Handle::new(&allocation);
        allocations.push(allocation);
        handle
    }

    /// Removes memory from the list of allocations. Every PE removes the same memory (invariant
    /// [H2]).
    pub(crate) fn remove_allocation(&self, allocation: &Arc<Allocation>) {
        self.allocations().retain(|known| !Arc::ptr_eq(known, allocation));
    }

    /// Gives memory back to NVSHMEM. The memory is no longer in the list of allocations. All PEs
    /// must make this call. The caller has ensured that no handle, captured graph or stream uses
    /// the memory (invariant [H1]).
    pub(crate) fn release(&self, allocation: &Arc<Allocation>, entered: &mut Entered<'_>) -> Result<(), NvshmemError> {
        allocation.release(entered)?;
        let mut freed = self.freed.lock().unwrap_or_else(PoisonError::into_inner);
        *freed = (freed.0 + 1, freed.1 + allocation.bytes() as u64);
        Ok(())
    }

    /// Records memory that NVSHMEM has registered, and returns the handle for the caller.
    pub(crate) fn register(self: &Arc<Self>, address: u64, bytes: usize, held: Held) -> Registration {
        let registered = Arc::new(Registered::new(self, address, bytes, held));
        self.registered().push(Record { address, bytes, registered: Arc::downgrade(&registered) });
        Registration(registered)
    }

    /// Checks that NVSHMEM can transfer data between two ranges of memory: `local` (address and
    /// length in bytes) on this PE, and `remote` on PE `pe`. If this process has mapped the memory
    /// of `pe`, `local` may be any memory. Otherwise the transfer uses the network, and `local`
    /// must be symmetric or registered. Returns the registration that the transfer needs, or
    /// `None`.
    pub(crate) fn check_reach(
        &self,
        call: &'static str,
        what: &'static str,
        local: (u64, usize),
        remote: u64,
        pe: Pe,
    ) -> Result<Option<Arc<Registered>>, NvshmemError> {
        if self.mapped(remote)?.get(pe.index()).copied().unwrap_or(false) {
            return Ok(None);
        }
        let inside = |address: u64, bytes: usize| address <= local.0 && local.0 + local.1 as u64 <= address + bytes as u64;
        if self.allocations().iter().any(|allocation| inside(allocation.address, allocation.bytes())) {
            return Ok(None);
        }
        let found =
            self.registered().iter().find(|record| inside(record.address, record.bytes)).map(|record| record.registered.clone());
        match found.as_ref().and_then(Weak::upgrade) {
            Some(found) => Ok(Some(found)),
            None => Err(NvshmemError::misuse(call, MisuseKind::Unregistered { what, pe })),
        }
    }

    /// Returns, for each PE, whether this process has mapped the heap of that PE. The first call
    /// queries NVSHMEM, and later calls return the same result. The query needs an address in the
    /// heap: `symmetric` is any such address.
    pub(crate) fn mapped(&self, symmetric: u64) -> Result<&Vec<bool>, NvshmemError> {
        if let Some(known) = self.mapped.get() {
            return Ok(known);
        }
        let address = std::ptr::without_provenance(symmetric as usize);
        let found = self.comm.issue("nvshmem_ptr", |api, _| {
            // SAFETY: the function only looks up the address in NVSHMEM's tables.
            (0..self.comm.n_pes)
                .map(|pe| unsafe { api.nvshmem_ptr(address, pe as i32) }.map(|mapped| !mapped.is_null()))
                .collect()
        })?;
        Ok(self.mapped.get_or_init(|| found))
    }
}
