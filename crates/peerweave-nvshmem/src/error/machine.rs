//! What this machine, or how the job was started, cannot do for NVSHMEM; found before it is called.

use std::path::PathBuf;

use peerweave_types::Pe;

use crate::Version;

/// A plug-in that the library will look for and not find, or find in another version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("NVSHMEM {version} needs {plugin} in {}, where the library is; {found}", directory.display())]
#[non_exhaustive]
pub struct PluginError {
    /// The plug-in's file name.
    pub plugin: String,
    /// Where it should be.
    pub directory: PathBuf,
    /// What is there instead.
    pub found: String,
    /// The version of the library.
    pub version: Version,
}

/// Why NVSHMEM would not work here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PreflightError {
    /// Several PEs were given one GPU.
    #[error(
        "{pes:?} share the GPU {uuid}: NVSHMEM needs one GPU for each PE; choose the device by the PE's index on its machine"
    )]
    SharedGpu {
        /// Who shares it.
        pes: Vec<Pe>,
        /// The GPU.
        uuid: String,
    },
    /// NVSHMEM found another PE on this PE's GPU, and would do without half of its calls.
    #[error(
        "another PE shares device {device} with {pe}: NVSHMEM needs one GPU for each PE; choose the device by the PE's index on its machine"
    )]
    NotAlone {
        /// This PE.
        pe: Pe,
        /// Its device.
        device: usize,
    },
    /// The PEs have different libraries.
    #[error("{pe} has NVSHMEM {theirs}, this PE has {ours}")]
    Versions {
        /// Another PE.
        pe: Pe,
        /// Its version.
        theirs: String,
        /// This PE's version.
        ours: Version,
    },
    /// The PEs were given different settings.
    #[error("{pe} initialises with `{theirs}`, this PE with `{ours}`")]
    Settings {
        /// Another PE.
        pe: Pe,
        /// Its settings.
        theirs: String,
        /// This PE's settings.
        ours: String,
    },
    /// Another PE cannot take part.
    #[error("{pe} cannot initialise: {reason}")]
    Peer {
        /// Who.
        pe: Pe,
        /// Its error.
        reason: String,
    },
    /// The network interface that the PEs shall meet by is not there.
    #[error("no network interface of this machine matches `{asked}`; there are {there}")]
    Interface {
        /// What was asked for, by the settings or the environment.
        asked: String,
        /// The interfaces.
        there: String,
    },
    /// The GPU is older than NVSHMEM can use.
    #[error(
        "device {device} has compute capability {major}.{minor}, expected at least 7.0: NVSHMEM needs a GPU of the Volta generation or a later one"
    )]
    OldGpu {
        /// The device.
        device: usize,
        /// Its compute capability: `6` of 6.1.
        major: i32,
        /// `1` of 6.1.
        minor: i32,
    },
    /// Too little shared memory in the filesystem, as containers have it.
    #[error(
        "/dev/shm has {free_bytes} bytes left, NVSHMEM needs about {needed_bytes} to start; give the container more (--shm-size)"
    )]
    SharedMemory {
        /// What is left.
        free_bytes: u64,
        /// What is needed.
        needed_bytes: u64,
    },
    /// Too little device memory for the symmetric heap.
    #[error("device {device} has {free_bytes} bytes left, the symmetric heap needs {needed_bytes}")]
    DeviceMemory {
        /// The device.
        device: usize,
        /// What is left.
        free_bytes: u64,
        /// What is needed.
        needed_bytes: u64,
    },
    /// A peer's GPU cannot be reached, and the network is switched off.
    #[error("{pe}'s GPU cannot be reached from this one (device {device}), and the remote transport is none")]
    Unreachable {
        /// The other PE.
        pe: Pe,
        /// This PE's device.
        device: usize,
    },
}
