//! Settings of the backend.

use std::path::PathBuf;
use std::time::Duration;

use crate::route::Forced;

/// Default of [`CudaOptions::heap_bytes`], in bytes.
pub(super) const DEFAULT_HEAP_BYTES: usize = 1 << 30;

/// Settings of the backend for GPUs. All PEs of a job must pass the same values, except for
/// `device`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CudaOptions {
    /// Time limit for each wait of the backend, if the call sets no other limit. Default: 60 s.
    pub deadline: Duration,
    /// Size of the symmetric heap of each PE, in bytes. Default: 1 GiB. The backend allocates
    /// additional memory for collectives, about 300 MiB with the default heap size.
    pub heap_bytes: Option<usize>,
    /// Ordinal of this PE's device among the devices that this process sees. PEs may pass different
    /// values. Default: see [`Cuda::join`](crate::Cuda::join). In tests, several PEs may share a
    /// device. These PEs then take turns on the device, so a wait of a kernel for another PE takes
    /// milliseconds.
    pub device: Option<usize>,
    /// File with the route table, as `peerweave tune` writes it. Default: the built-in table for
    /// the architecture of the GPUs.
    pub route_table: Option<PathBuf>,
    /// For each operation, the method that replaces the choice of the route table. Intended for
    /// measurements. Default: no method is replaced.
    pub forced: Forced,
    /// Maximum number of blocks in the kernel of a collective. Each block runs on one SM, so the
    /// kernel uses at most this number of SMs. The limit applies to every team. Default: up to 256
    /// for the team of all PEs, and up to 32 for each other team.
    pub max_blocks: Option<u32>,
    /// Whether NCCL may carry out collectives of the team of all PEs. Default: no. If set, NCCL
    /// carries out a collective if the route table says that NCCL is faster, and if NCCL's result
    /// has the same bits as the result of Peerweave's kernels. If NCCL cannot be used, Peerweave's
    /// kernels carry out all collectives, and [`Cuda::explain`](crate::Cuda::explain) returns the
    /// reason.
    pub nccl: bool,
}

impl Default for CudaOptions {
    fn default() -> Self {
        let deadline = Duration::from_secs(60);
        Self {
            deadline,
            heap_bytes: None,
            device: None,
            route_table: None,
            forced: Forced::default(),
            max_blocks: None,
            nccl: false,
        }
    }
}

/// Returns the number of GPUs that this process sees.
///
/// # Errors
/// [`CudaError::Driver`](crate::CudaError::Driver) if the driver cannot be loaded, or if the driver
/// finds no GPU.
pub fn visible_gpus() -> Result<usize, crate::CudaError> {
    Ok(peerweave_driver::Driver::get()?.device_count()?)
}
