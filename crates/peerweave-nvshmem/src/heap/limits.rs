//! Limits of the heap. A request that NVSHMEM cannot satisfy is refused before NVSHMEM is called,
//! because NVSHMEM would end the process.

use std::sync::PoisonError;

use peerweave_driver::CudaError;

use super::Heap;
use crate::comm::enqueued::with_error_preserved;
use crate::error::NvshmemError;
use crate::library::Settings;

/// The settings that determine which requests NVSHMEM can satisfy: whether the heap can grow, by
/// which step, and up to which size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Whether the heap has a fixed size. If a request is too large for such a heap, NVSHMEM
    /// refuses the request, and the heap stays usable.
    pub(crate) fixed: bool,
    /// Step by which the heap grows, in bytes.
    pub(crate) step: u64,
    most_bytes: u64,
}

impl Limits {
    pub(crate) fn of(settings: &Settings) -> Self {
        /// The smallest step in bytes by which the heap can grow: the granularity of mapped device
        /// memory.
        const LEAST_STEP: u64 = 2 << 20;
        /// The largest step in bytes by which the heap can grow: NVSHMEM's constant
        /// `NVSHMEMI_MAX_HANDLE_LENGTH`.
        const MOST_STEP: u64 = 1 << 31;
        let bytes = |name, default| settings.bytes(name).unwrap_or(default);
        let step = bytes("NVSHMEM_CUMEM_GRANULARITY", 512 << 20).clamp(LEAST_STEP, MOST_STEP);
        let most_bytes = bytes("NVSHMEM_MAX_MEMORY_PER_GPU", 256 << 30).max(step).next_multiple_of(step);
        let on_host = settings.effective("NVSHMEM_HEAP_KIND").is_some_and(|kind| kind.eq_ignore_ascii_case("SYSMEM"));
        Self { fixed: on_host || settings.is_on("NVSHMEM_DISABLE_CUDA_VMM"), step, most_bytes }
    }
}

impl Heap {
    /// Checks that the heap can grow by `bytes`. If the heap could not grow, NVSHMEM would unmap
    /// the whole heap and end the process.
    ///
    /// The sizes of the heap's free blocks are unknown. If a free block may be large enough, the
    /// check succeeds.
    pub(crate) fn check_room(&self, call: &'static str, bytes: usize, alignment: usize) -> Result<(), NvshmemError> {
        let comm = &self.comm;
        let Limits { fixed: false, step, .. } = self.limits else { return Ok(()) };
        self.check_addresses(call, bytes)?;
        let pieces = self.allocations().len() as u64;
        let (freed_pieces, freed) = *self.freed.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = bytes as u64 + alignment as u64;
        // Upper bound of the free blocks: the freed bytes, and a remainder of each growth.
        let holes = freed + (pieces + freed_pieces + 1) * step;
        let (free, _) =
            with_error_preserved(&comm.context, || comm.context.mem_get_info()).map_err(CudaError::of("cuMemGetInfo_v2"))?;
        let grown = wanted.next_multiple_of(step);
        if grown > free as u64 && wanted > holes {
            let why = format!("the heap would have to grow by {grown} bytes, but the device has {free} bytes free");
            return Err(comm.nvshmem.failure(
                call,
                None,
                format!("the heap has no room for {bytes} bytes of symmetric memory, so NVSHMEM was not called: {why}"),
            ));
        }
        Ok(())
    }

    /// Checks that `bytes` bytes fit into the address range that NVSHMEM has reserved. NVSHMEM uses
    /// this range for the heap's own memory, and for memory from outside of the heap that was made
    /// symmetric.
    pub(crate) fn check_addresses(&self, call: &'static str, bytes: usize) -> Result<(), NvshmemError> {
        let Limits { fixed, most_bytes, .. } = self.limits;
        let held: u64 = self.allocations().iter().map(|allocation| allocation.bytes() as u64).sum();
        if fixed || held + (bytes as u64) < most_bytes {
            return Ok(());
        }
        let why = format!("{held} bytes are allocated, and NVSHMEM_MAX_MEMORY_PER_GPU allows {most_bytes} bytes");
        Err(self.comm.nvshmem.failure(
            call,
            None,
            format!("the heap has no room for {bytes} bytes of symmetric memory, so NVSHMEM was not called: {why}"),
        ))
    }
}
