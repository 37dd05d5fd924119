//! All that uses CUDA: the PEs of `bench` on GPUs, `bench p2p`, and what `info` finds.
//!
//! This is the only module of the command that names a crate of NVIDIA's libraries. Without the
//! feature `cuda`, `no_cuda.rs` stands in its place with the same functions.
//!
//! ```text
//!   nccl.rs       a PE with NCCL         nccl_calls.rs     its calls
//!   nvshmem.rs    a PE with NVSHMEM      nvshmem_calls.rs  its calls
//!   agreement.rs   barriers and agreement of PEs
//!   p2p.rs        bandwidth and latency between GPUs
//!   libraries.rs  NVIDIA's libraries     peers.rs          peer access between GPUs
//! ```

mod agreement;
mod libraries;
mod nccl;
mod nccl_calls;
mod nvshmem;
mod nvshmem_calls;
mod p2p;
mod peers;

pub(crate) use libraries::{look as libraries, multicast};
pub(crate) use nccl::run as nccl_pe;
pub(crate) use nvshmem::run as nvshmem_pe;
pub(crate) use p2p::run as measure_p2p;
pub(crate) use peers::look as peers;

/// Returns the number of GPUs; `None` if the driver does not tell.
pub(crate) fn device_count() -> Result<Option<usize>, String> {
    Ok(peerweave_driver::Driver::get().and_then(peerweave_driver::Driver::device_count).ok())
}
