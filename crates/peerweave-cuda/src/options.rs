//! How a GPU of a job is set up.

use std::time::Duration;

/// How kernels reach the PEs of a job.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Transport {
    /// Virtual memory, mapped all to all on each machine. PEs of another machine are not reached.
    #[default]
    Mapped,
    /// NVSHMEM's heap: PEs whose memory it maps are reached directly, all others by its device library.
    Nvshmem(peerweave_nvshmem::Settings),
    /// NVSHMEM's device library for every PE but the own one, also where memory is mapped: for tests.
    Network(peerweave_nvshmem::Settings),
}

/// How a GPU of a job is set up: the same on all PEs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GpuOptions {
    /// Bytes of symmetric heap on each PE.
    pub heap_bytes: usize,
    /// How kernels reach the other PEs.
    pub transport: Transport,
    /// How long one wait of a kernel lasts at most, and how long the host waits for a stream.
    pub deadline: Duration,
    /// How many blocks of a kernel may synchronise with other PEs at a time; `None` for one on each multiprocessor.
    pub slots: Option<u32>,
}

impl GpuOptions {
    /// A heap of so many bytes on each PE, mapped all to all, with a deadline of 60 s.
    pub fn new(heap_bytes: usize) -> Self {
        Self { heap_bytes, transport: Transport::default(), deadline: Duration::from_secs(60), slots: None }
    }

    /// With this transport.
    #[must_use]
    pub fn transport(self, transport: Transport) -> Self {
        Self { transport, ..self }
    }

    /// With this deadline.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// With so many slots.
    #[must_use]
    pub fn slots(self, slots: u32) -> Self {
        Self { slots: Some(slots), ..self }
    }
}
