//! How a GPU of a job is set up.

use std::time::Duration;

/// How kernels reach the PEs of a job.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Transport {
    /// Virtual memory, mapped all to all on each machine. PEs of another machine are not reached.
    #[default]
    Mapped,
    /// NVSHMEM's heap: PEs whose memory it maps are reached directly, all others by its device
    /// library.
    Nvshmem(peerweave_nvshmem::Settings),
    /// NVSHMEM's device library for every PE but the own one, also where memory is mapped: for
    /// tests.
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
    /// How many blocks of a kernel may synchronise with other PEs at a time; `None` for one on each
    /// multiprocessor.
    pub slots: Option<u32>,
    /// How many teams there may be at a time besides the team of all PEs: at most 63.
    pub teams: u32,
    /// Whether kernels get a multicast address of the heap, by which one access reaches all GPUs of
    /// the machine. It needs multicast objects of CUDA, or NVSHMEM's; `PEERWEAVE_MULTICAST=off`
    /// forbids them.
    pub multicast: bool,
}

impl GpuOptions {
    /// A heap of so many bytes on each PE, mapped all to all, with a deadline of 60 s, 15 teams and
    /// no multicast.
    pub fn new(heap_bytes: usize) -> Self {
        let deadline = Duration::from_secs(60);
        Self { heap_bytes, transport: Transport::default(), deadline, slots: None, teams: 15, multicast: false }
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
    /// With room for so many teams besides that of all PEs.
    #[must_use]
    pub fn teams(self, teams: u32) -> Self {
        Self { teams, ..self }
    }

    /// With or without a multicast address of the heap.
    #[must_use]
    pub fn multicast(self, multicast: bool) -> Self {
        Self { multicast, ..self }
    }
}
