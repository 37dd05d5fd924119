//! Problems of the machine or of the job's start, found before NVSHMEM is called.

use std::path::PathBuf;

use peerweave_types::Pe;

use crate::Version;

/// A plug-in that the library loads is missing, or has another version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("NVSHMEM {version} needs {plugin} in {}, beside the library; {found}", directory.display())]
#[non_exhaustive]
pub struct PluginError {
    /// File name of the plug-in.
    pub plugin: String,
    /// Directory in which the plug-in is expected.
    pub directory: PathBuf,
    /// Files that were found instead of the plug-in.
    pub found: String,
    /// The version of the library.
    pub version: Version,
}

/// The reason why NVSHMEM would not work on this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PreflightError {
    /// Several PEs use one GPU.
    #[error(
        "{pes:?} share the GPU {uuid}: NVSHMEM needs one GPU for each PE; choose the device by the PE's index on its machine"
    )]
    SharedGpu {
        /// PEs that share the GPU.
        pes: Vec<Pe>,
        /// UUID of the GPU.
        uuid: String,
    },
    /// NVSHMEM found another PE on this PE's GPU; half of its calls would fail.
    #[error(
        "another PE shares device {device} with {pe}: NVSHMEM needs one GPU for each PE; choose the device by the PE's index on its machine"
    )]
    NotAlone {
        /// This PE.
        pe: Pe,
        /// Ordinal of the shared device on this PE.
        device: usize,
    },
    /// The PEs have different versions of the library.
    #[error("{pe} has NVSHMEM {theirs}, this PE has {ours}, expected the same version on all PEs")]
    Versions {
        /// The other PE.
        pe: Pe,
        /// Version of the other PE.
        theirs: String,
        /// Version of this PE.
        ours: Version,
    },
    /// The PEs have different settings.
    #[error("{pe} initialises with `{theirs}`, this PE initialises with `{ours}`, expected the same on all PEs")]
    Settings {
        /// The other PE.
        pe: Pe,
        /// Settings of the other PE.
        theirs: String,
        /// Settings of this PE.
        ours: String,
    },
    /// Another PE cannot take part.
    #[error("{pe} cannot initialise: {reason}")]
    Peer {
        /// The PE that cannot take part.
        pe: Pe,
        /// Error message of that PE.
        reason: String,
    },
    /// The network interface that the PEs should use does not exist.
    #[error("no network interface of this machine matches `{asked}`, expected one of {there}")]
    Interface {
        /// The requested interface, from the settings or the environment.
        asked: String,
        /// The interfaces of this machine.
        there: String,
    },
    /// The GPU is too old for NVSHMEM.
    #[error(
        "device {device} has compute capability {major}.{minor}, expected at least 7.0: NVSHMEM needs a GPU of the Volta generation or a later one"
    )]
    OldGpu {
        /// The device.
        device: usize,
        /// Major number of the device's compute capability.
        major: i32,
        /// Minor number of the device's compute capability.
        minor: i32,
    },
    /// Too little shared memory, which is common in containers.
    #[error(
        "/dev/shm has {free_bytes} bytes free, expected about {needed_bytes} for NVSHMEM to start; give the container more (--shm-size)"
    )]
    SharedMemory {
        /// Number of free bytes.
        free_bytes: u64,
        /// Number of bytes needed.
        needed_bytes: u64,
    },
    /// Too little device memory for the symmetric heap.
    #[error("device {device} has {free_bytes} bytes free, expected {needed_bytes} for the symmetric heap")]
    DeviceMemory {
        /// The device.
        device: usize,
        /// Number of free bytes.
        free_bytes: u64,
        /// Number of bytes needed.
        needed_bytes: u64,
    },
    /// A peer's GPU cannot be accessed directly, and the network is disabled.
    #[error(
        "the GPU of {pe} cannot be accessed from device {device}, expected direct access because the remote transport is none"
    )]
    Unreachable {
        /// The other PE.
        pe: Pe,
        /// This PE's device.
        device: usize,
    },
}
