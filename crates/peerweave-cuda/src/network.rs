//! Kernels that reach PEs through NVSHMEM: their PTX, linked with the device library of the NVSHMEM
//! that runs in this process.

use peerweave_link::{Arch, Linked};

use crate::error::CudaError;

pub(crate) fn link(nvshmem: &peerweave_nvshmem::Context, arch: Arch, ptx: &str) -> Result<Linked, CudaError> {
    let files = peerweave_link::nvshmem::DeviceLibrary::beside(nvshmem.library().path())?;
    files.check_host(nvshmem.library().version())?;
    Ok(files.link(arch, ptx)?)
}
