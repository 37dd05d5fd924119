//! Multicast addresses of symmetric memory.

use peerweave_driver::multicast_switch;

#[cfg(doc)]
use crate::MisuseKind;
use crate::error::NvshmemError;
use crate::{SymmetricBuffer, Team};

impl<T> SymmetricBuffer<T> {
    /// Returns the multicast address at which kernels access this memory on all PEs of `team`.
    /// Returns `None` if NVSHMEM has no multicast address for the memory.
    ///
    /// # Errors
    /// [`NvshmemError::MulticastDisabled`] if multicast is disabled in this process; NVSHMEM is
    /// then not called. [`MisuseKind::WrongContext`] if `team` belongs to another context.
    /// [`NvshmemError::Dead`] if NVSHMEM is unusable.
    pub fn multicast_address(&self, team: &Team) -> Result<Option<u64>, NvshmemError> {
        const CALL: &str = "nvshmemx_mc_ptr";
        multicast_switch()?;
        let comm = &self.allocation.comm;
        team.check(CALL, comm)?;
        let (address, handle) = (std::ptr::without_provenance(self.address() as usize), team.handle());
        // SAFETY: the function only looks up the address in NVSHMEM's tables.
        let mapped = comm.issue(CALL, |api, _| unsafe { api.nvshmemx_mc_ptr(handle, address) })?;
        Ok(Some(mapped.addr() as u64).filter(|mapped| *mapped != 0))
    }
}
