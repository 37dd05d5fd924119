//! Errors for a missing plug-in, and for problems of the machine or of the job. All problems except
//! [`PreflightError::NotAlone`] are found before NVSHMEM is initialised.

use std::path::PathBuf;

use peerweave_types::Pe;

use crate::Version;

/// The error for a plug-in that NVSHMEM needs. The plug-in is missing or cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("NVSHMEM {version} needs the plug-in {plugin} in the directory {}; {found}", directory.display())]
#[non_exhaustive]
pub struct PluginError {
    /// File name of the plug-in.
    pub plugin: String,
    /// Directory that should contain the plug-in.
    pub directory: PathBuf,
    /// Description of the files that were found in the directory, or of the reason why the plug-in
    /// cannot be loaded.
    pub found: String,
    /// Version of the NVSHMEM library.
    pub version: Version,
}

/// The reason why NVSHMEM cannot work on this machine or in this job.
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
    /// Another PE uses the same GPU as this PE. NVSHMEM reported this only after NVSHMEM was
    /// initialised. Half of NVSHMEM's calls would now end the process, so this crate has finalised
    /// NVSHMEM.
    #[error(
        "{pe} shares device {device} with another PE: NVSHMEM needs one GPU for each PE; choose the device by the PE's index on its machine"
    )]
    NotAlone {
        /// This PE.
        pe: Pe,
        /// Ordinal of the shared device in this process.
        device: usize,
    },
    /// The PEs have different versions of the NVSHMEM library.
    #[error("{pe} has NVSHMEM {theirs}, this PE has {ours}, expected the same version on all PEs")]
    Versions {
        /// A PE whose version differs from the version of this PE.
        pe: Pe,
        /// NVSHMEM version on `pe`.
        theirs: String,
        /// NVSHMEM version on this PE.
        ours: Version,
    },
    /// The PEs have different values for settings that must be equal on all PEs.
    #[error("{pe} initialises with `{theirs}`, this PE initialises with `{ours}`, expected the same settings on all PEs")]
    Settings {
        /// A PE whose settings differ from the settings of this PE.
        pe: Pe,
        /// Settings with which `pe` initialises NVSHMEM.
        theirs: String,
        /// Settings with which this PE initialises NVSHMEM.
        ours: String,
    },
    /// Another PE cannot take part in the initialisation.
    #[error("{pe} cannot initialise NVSHMEM: {reason}")]
    Peer {
        /// The PE that cannot take part.
        pe: Pe,
        /// The reason why `pe` cannot take part.
        reason: String,
    },
    /// The settings or the environment select network interfaces by name, but no interface of this
    /// machine has a matching name.
    #[error("no network interface of this machine matches `{asked}`, expected one of {there}")]
    Interface {
        /// The value that selects the network interfaces. The value comes from the settings or from
        /// the environment.
        asked: String,
        /// Names of the network interfaces that this machine has.
        there: String,
    },
    /// The GPU is too old for NVSHMEM.
    #[error(
        "device {device} has compute capability {major}.{minor}, expected at least 7.0: NVSHMEM needs a GPU of the Volta generation or later"
    )]
    OldGpu {
        /// Ordinal of the device.
        device: usize,
        /// Major number of the device's compute capability.
        major: i32,
        /// Minor number of the device's compute capability.
        minor: i32,
    },
    /// /dev/shm has too little free memory, which is common in containers.
    #[error(
        "/dev/shm has {free_bytes} bytes free, expected about {needed_bytes} for NVSHMEM to start; enlarge /dev/shm (in a container, use --shm-size)"
    )]
    SharedMemory {
        /// Number of free bytes in /dev/shm.
        free_bytes: u64,
        /// Approximate number of bytes in /dev/shm that NVSHMEM needs.
        needed_bytes: u64,
    },
    /// The device has too little free memory for the symmetric heap.
    #[error("device {device} has {free_bytes} bytes free, expected at least {needed_bytes} for the symmetric heap")]
    DeviceMemory {
        /// Ordinal of the device.
        device: usize,
        /// Number of free bytes on the device.
        free_bytes: u64,
        /// Number of bytes that the symmetric heap needs.
        needed_bytes: u64,
    },
    /// The GPU of another PE cannot be accessed directly, and the settings disable the network.
    #[error(
        "device {device} cannot access the GPU of {pe} directly, expected direct access because NVSHMEM_REMOTE_TRANSPORT is none"
    )]
    Unreachable {
        /// The PE whose GPU cannot be accessed.
        pe: Pe,
        /// Ordinal of the device that this PE uses.
        device: usize,
    },
}
