//! The symmetric heap: what is allocated and registered, the handles of it, and what it can have.
//!
//! Allocating, freeing and registering, all of it collective, is `ops`.
//!
//! # Invariants
//! - **\[H1\]** Memory is freed only where no handle, no captured graph and no stream uses it any
//!   more.
//! - **\[H2\]** The list of what is allocated is the same on every PE, in the same order.

pub(crate) mod allocation;
pub(crate) mod buffer;
pub(crate) mod handle;
pub(crate) mod limits;
pub(crate) mod registration;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use peerweave_types::Pe;

use crate::comm::Comm;
use crate::comm::agree::Counted;
use crate::comm::deferred::Held;
use crate::comm::entry::Entered;
use crate::error::{MisuseKind, NvshmemError};
use allocation::Allocation;
use handle::Handle;
use limits::Limits;
use registration::{Record, Registered, Registration};

/// What this process has of the symmetric heap.
pub(crate) struct Heap {
    pub(crate) comm: Arc<Comm>,
    pub(crate) limits: Limits,
    /// Symmetric memory that was not freed, in the order of allocation: the same on every PE.
    allocations: Mutex<Vec<Arc<Allocation>>>,
    /// Symmetric memory that was freed: how many pieces, and their bytes.
    freed: Mutex<(u64, u64)>,
    /// Outside memory that was registered as a source.
    registered: Mutex<Vec<Record>>,
    /// Which PEs' memory is mapped here.
    mapped: OnceLock<Vec<bool>>,
}

impl Heap {
    pub(crate) fn new(comm: Arc<Comm>, limits: Limits) -> Self {
        let (allocations, freed, registered) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { comm, limits, allocations, freed, registered, mapped: OnceLock::new() }
    }

    /// What is allocated.
    pub(crate) fn allocations(&self) -> MutexGuard<'_, Vec<Arc<Allocation>>> {
        self.allocations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn registered(&self) -> MutexGuard<'_, Vec<Record>> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds new memory to the list [H2].
    pub(crate) fn enlist(&self, address: u64, bytes: usize, outside: Option<Held>) -> Handle {
        let mut allocations = self.allocations();
        let id = self.comm.count(Counted::Allocations);
        let allocation = Arc::new(Allocation::new(&self.comm, address, bytes, id, outside));
        let handle = Handle::new(&allocation);
        allocations.push(allocation);
        handle
    }

    /// Takes memory off the list [H2].
    pub(crate) fn delist(&self, allocation: &Arc<Allocation>) {
        self.allocations().retain(|known| !Arc::ptr_eq(known, allocation));
    }

    /// Has NVSHMEM take memory back that is off the list. Collective; the caller has upheld [H1].
    pub(crate) fn release(&self, allocation: &Arc<Allocation>, entered: &mut Entered<'_>) -> Result<(), NvshmemError> {
        allocation.release(entered)?;
        let mut freed = self.freed.lock().unwrap_or_else(PoisonError::into_inner);
        *freed = (freed.0 + 1, freed.1 + allocation.bytes() as u64);
        Ok(())
    }

    /// Notes outside memory that NVSHMEM has registered.
    pub(crate) fn register(self: &Arc<Self>, address: u64, bytes: usize, held: Held) -> Registration {
        let registered = Arc::new(Registered::new(self, address, bytes, held));
        self.registered().push(Record { address, bytes, registered: Arc::downgrade(&registered) });
        Registration(registered)
    }

    /// This PE's own side of a transfer must be reachable by whatever moves it: the GPU's copy
    /// engines reach all of the machine, the network what is symmetric or registered. Gives the
    /// registration where it is one that the transfer needs.
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

    /// Which PEs' heaps are mapped here: asked once, by any address of the heap.
    pub(crate) fn mapped(&self, symmetric: u64) -> Result<&Vec<bool>, NvshmemError> {
        if let Some(known) = self.mapped.get() {
            return Ok(known);
        }
        let address = std::ptr::without_provenance(symmetric as usize);
        let found = self.comm.issue("nvshmem_ptr", |api, _| {
            // SAFETY: it only looks the address up.
            (0..self.comm.n_pes)
                .map(|pe| unsafe { api.nvshmem_ptr(address, pe as i32) }.map(|mapped| !mapped.is_null()))
                .collect()
        })?;
        Ok(self.mapped.get_or_init(|| found))
    }
}
