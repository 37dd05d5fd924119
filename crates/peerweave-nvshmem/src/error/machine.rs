//! Problems of the machine or of the job that are found before NVSHMEM is called.

use std::path::PathBuf;

use peerweave_types::Pe;

use crate::Version;

/// A plug-in that the library needs is missing, or has another version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("NVSHMEM {version} needs {plugin} in {}, beside the library; {found}", directory.display())]
#[non_exhaustive]
pub struct PluginError {
    /// File name of the plug-in.
    pub plugin: String,
    /// Directory in which the plug-in is expected.
    pub directory: PathBuf,
    /// Description of what was found in the directory instead of the plug-in.
    pub found: String,
    /// Version of the NVSHMEM library.
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
    /// NVSHMEM reports that another PE uses the GPU of this PE. Half of the NVSHMEM calls would
    /// then fail.
    #[error(
        "{pe} shares device {device} with another PE: NVSHMEM needs one GPU for each PE; choose the device by the PE's index on its machine"
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
        /// The PE with another version.
        pe: Pe,
        /// Version of the other PE.
        theirs: String,
        /// Version of this PE.
        ours: Version,
    },
    /// The PEs have different settings that must be equal on all PEs.
    #[error("{pe} initialises with `{theirs}`, this PE initialises with `{ours}`, expected the same on all PEs")]
    Settings {
        /// The PE with other settings.
        pe: Pe,
        /// Settings of the other PE.
        theirs: String,
        /// Settings of this PE.
        ours: String,
    },
    /// Another PE cannot take part in the initialisation.
    #[error("{pe} cannot initialise: {reason}")]
    Peer {
        /// The PE that cannot take part.
        pe: Pe,
        /// Error message of that PE.
        reason: String,
    },
    /// The network interface that the settings request does not exist on this machine.
    #[error("no network interface of this machine matches `{asked}`, expected one of {there}")]
    Interface {
        /// The requested interface, from the settings or the environment.
        asked: String,
        /// Names of the interfaces of this machine.
        there: String,
    },
    /// The GPU is too old for NVSHMEM.
    #[error(
        "device {device} has compute capability {major}.{minor}, expected at least 7.0: NVSHMEM needs a GPU of the Volta generation or later"
    )]
    OldGpu {
        /// The device.
        device: usize,
        /// Major number of the device's compute capability.
        major: i32,
        /// Minor number of the device's compute capability.
        minor: i32,
    },
    /// /dev/shm has too little free memory, which is common in containers.
    #[error(
        "/dev/shm has {free_bytes} bytes free, expected about {needed_bytes} for NVSHMEM to start; enlarge it, in a container by --shm-size"
    )]
    SharedMemory {
        /// Number of free bytes in /dev/shm.
        free_bytes: u64,
        /// Number of bytes that NVSHMEM needs.
        needed_bytes: u64,
    },
    /// The device has too little free memory for the symmetric heap.
    #[error("device {device} has {free_bytes} bytes free, expected {needed_bytes} for the symmetric heap")]
    DeviceMemory {
        /// The device.
        device: usize,
        /// Number of free bytes on the device.
        free_bytes: u64,
        /// Number of bytes that the symmetric heap needs.
        needed_bytes: u64,
    },
    /// The GPU of another PE cannot be accessed directly, and the settings disable the network.
    #[error(
        "the GPU of {pe} cannot be accessed from device {device}, expected direct access because the remote transport is none"
    )]
    Unreachable {
        /// The PE whose GPU cannot be accessed.
        pe: Pe,
        /// This PE's device.
        device: usize,
    },
}
