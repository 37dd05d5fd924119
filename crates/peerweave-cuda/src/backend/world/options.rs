//! Settings of the backend.

use std::path::PathBuf;
use std::time::Duration;

use crate::route::Forced;

/// Default size of the symmetric heap of each PE, in bytes.
pub(super) const DEFAULT_HEAP_BYTES: usize = 1 << 30;

/// Settings of the backend for GPUs. All PEs of a job pass the same values, except for `device`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CudaOptions {
    /// Deadline of every wait whose call sets no deadline. Default: 60 s.
    pub deadline: Duration,
    /// Size of the symmetric heap of each PE in bytes. Default: 1 GiB. The backend allocates
    /// additional memory for collectives: about a quarter of the default size.
    pub heap_bytes: Option<usize>,
    /// The device of this PE, by its ordinal in this process; may differ among PEs. Default: see
    /// [`Cuda::join`](crate::Cuda::join). PEs may share a device for tests: they take turns on it,
    /// so each wait of a kernel for another PE takes milliseconds.
    pub device: Option<usize>,
    /// File with the table of routes, which `peerweave tune` writes. Default: the built-in table of
    /// the GPUs' architecture.
    pub route_table: Option<PathBuf>,
    /// Methods that replace those of the route table, for measurements.
    pub forced: Forced,
    /// Maximum number of blocks of a kernel of a collective, and thus of multiprocessors that the
    /// kernel uses. Default: 256. Applies to every team.
    pub max_blocks: Option<u32>,
    /// Whether NCCL may carry out collectives of the team of all PEs. NCCL carries out those for
    /// which the table says that NCCL is faster, if its results have the same bits as those of
    /// Peerweave's kernels. Default: no. If NCCL cannot be used, Peerweave's kernels carry out all
    /// collectives, and [`Cuda::explain`](crate::Cuda::explain) returns the reason.
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
/// The driver was not found, or it reports no GPUs.
pub fn visible_gpus() -> Result<usize, crate::CudaError> {
    Ok(peerweave_driver::Driver::get()?.device_count()?)
}
