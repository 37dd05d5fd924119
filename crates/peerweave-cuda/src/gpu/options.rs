//! Options of `Gpu::new`, such as the heap size, the transport and the deadline.

use std::time::Duration;

/// The transport by which kernels access the symmetric memory of other PEs.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Transport {
    /// The heap is virtual memory that all PEs of a machine map. PEs on other machines are
    /// unreachable.
    #[default]
    Mapped,
    /// The heap is NVSHMEM's heap. Kernels access the memory of a PE directly if NVSHMEM maps this
    /// memory, and otherwise through NVSHMEM's device library.
    Nvshmem(peerweave_nvshmem::Settings),
    /// The heap is NVSHMEM's heap. Kernels access all other PEs through NVSHMEM's device library,
    /// even if the memory of those PEs is mapped. Intended for tests.
    Network(peerweave_nvshmem::Settings),
}

/// Options for [`Gpu::new`](crate::Gpu::new). All PEs must pass the same options.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GpuOptions {
    /// Size of the symmetric heap of each PE, in bytes.
    pub heap_bytes: usize,
    /// The transport by which kernels access the symmetric memory of other PEs.
    pub transport: Transport,
    /// Time limit for each wait: when a kernel waits for another PE, and when the host waits. Only
    /// [`Gpu::wait`](crate::Gpu::wait) waits longer, for at most twice this time.
    pub deadline: Duration,
    /// In each kernel, the maximum number of blocks that may synchronise with other PEs at the same
    /// time. `None` means one block per SM.
    pub slots: Option<u32>,
    /// Maximum number of teams besides the team of all PEs. Must be at most 63.
    pub teams: u32,
    /// Whether kernels get a multicast address of the heap, by which one access reaches all GPUs of
    /// the machine. Requires multicast objects, either of CUDA or of NVSHMEM.
    /// `PEERWEAVE_MULTICAST=off` disables multicast.
    pub multicast: bool,
}

impl GpuOptions {
    /// Returns options for a heap of `heap_bytes` bytes on each PE, with mapped memory, a deadline
    /// of 60 s, 15 teams and no multicast address.
    pub fn new(heap_bytes: usize) -> Self {
        let deadline = Duration::from_secs(60);
        Self { heap_bytes, transport: Transport::default(), deadline, slots: None, teams: 15, multicast: false }
    }

    /// Sets the transport by which kernels access other PEs.
    #[must_use]
    pub fn transport(self, transport: Transport) -> Self {
        Self { transport, ..self }
    }

    /// Sets the time limit for waits of kernels and of the host.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// Sets the maximum number of blocks that may synchronise with other PEs at the same time. The
    /// limit applies to each kernel.
    #[must_use]
    pub fn slots(self, slots: u32) -> Self {
        Self { slots: Some(slots), ..self }
    }
    /// Sets the maximum number of teams besides the team of all PEs.
    #[must_use]
    pub fn teams(self, teams: u32) -> Self {
        Self { teams, ..self }
    }

    /// Sets whether kernels get a multicast address of the heap.
    #[must_use]
    pub fn multicast(self, multicast: bool) -> Self {
        Self { multicast, ..self }
    }
}
