//! What can go wrong, sorted by who is at fault: the caller, the library, the machine, a peer, time.
//!
//! No call fails here. A message is a bug report: it names the call, the value, what was expected, and the library's code where it gave one.
//!
//! Invariant: the variants that carry much are boxed, so that a result stays small.

use std::ffi::c_int;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use peerweave_bootstrap::BootstrapError;
use peerweave_driver::{CudaError, DriverError, MulticastDisabled};
use peerweave_dylib::LoadError;
use peerweave_types::Pe;

use crate::{Version, sys};

/// Any failure of this crate.
///
/// `Debug` shows the message too, since that is what a `main` that returns an error, and `unwrap`, show to people.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum NvshmemError {
    /// The call is wrong: reading the code mends it. NVSHMEM was not called.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// The library that was found does not do this. NVSHMEM was not called.
    #[error(transparent)]
    Unsupported(Box<Unsupported>),
    /// NVSHMEM said no.
    #[error(transparent)]
    Nvshmem(Box<Failure>),
    /// There is no NVSHMEM, or it cannot be used.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The library was found, and not the plug-ins that it needs beside it.
    #[error(transparent)]
    Plugin(Box<PluginError>),
    /// This machine, or how the job was started, cannot serve NVSHMEM. It was not called: it would have ended the process, or hung.
    #[error(transparent)]
    Preflight(Box<PreflightError>),
    /// CUDA's driver is missing, or said no.
    #[error(transparent)]
    Cuda(#[from] DriverError),
    /// A deadline expired.
    #[error(transparent)]
    Timeout(Box<Timeout>),
    /// The PEs did not make the same collective call, or one of them could not make it. Nobody called NVSHMEM.
    #[error(transparent)]
    Disagree(Box<Disagree>),
    /// The process is a fork of the one that loaded NVSHMEM, whose threads did not follow it. Only the parent can use NVSHMEM.
    #[error("{call}: NVSHMEM was loaded by process {loaded_by}, and this is its fork {process}; start a new program instead")]
    Forked {
        /// The call.
        call: &'static str,
        /// The process that loaded it.
        loaded_by: u32,
        /// This process.
        process: u32,
    },
    /// NVSHMEM can no longer be used in this process, or not any more through this handle.
    #[error("{call}: {state}")]
    Dead {
        /// The call.
        call: &'static str,
        /// What became of it.
        state: DeadState,
    },
    /// Multicast objects are forbidden in this process. Neither NVSHMEM nor the driver was called.
    #[error(transparent)]
    MulticastDisabled(#[from] MulticastDisabled),
    /// The PEs did not find each other.
    #[error("{call}: {source}")]
    Bootstrap {
        /// The call.
        call: &'static str,
        /// What the rendezvous said.
        source: Arc<BootstrapError>,
    },
}

impl fmt::Debug for NvshmemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl NvshmemError {
    /// A mistake of the caller in `call`.
    #[cold]
    pub(crate) fn misuse(call: &'static str, kind: MisuseKind) -> Self {
        Misuse { call, kind }.into()
    }

    /// A failure of the rendezvous in `call`.
    pub(crate) fn bootstrap(call: &'static str) -> impl FnOnce(BootstrapError) -> Self {
        move |source| Self::Bootstrap { call, source: Arc::new(source) }
    }

    /// The kind of misuse, where it is one.
    pub fn misuse_kind(&self) -> Option<&MisuseKind> {
        match self {
            Self::Misuse(misuse) => Some(&misuse.kind),
            _ => None,
        }
    }

    /// NVSHMEM's code, where NVSHMEM spoke.
    pub fn code(&self) -> Option<StatusCode> {
        match self {
            Self::Nvshmem(failure) => failure.code,
            _ => None,
        }
    }
}

macro_rules! boxed {
    ($($Variant:ident($Inner:ident)),*) => {$(
        impl From<$Inner> for NvshmemError {
            fn from(error: $Inner) -> Self {
                Self::$Variant(Box::new(error))
            }
        }
    )*};
}
boxed!(
    Unsupported(Unsupported),
    Nvshmem(Failure),
    Plugin(PluginError),
    Preflight(PreflightError),
    Timeout(Timeout),
    Disagree(Disagree)
);

impl From<CudaError> for NvshmemError {
    fn from(error: CudaError) -> Self {
        Self::Cuda(error.into())
    }
}

/// A mistake of the caller: which call, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {kind}")]
#[non_exhaustive]
pub struct Misuse {
    /// The call.
    pub call: &'static str,
    /// What is wrong with it.
    pub kind: MisuseKind,
}

/// What is wrong with a call: the value that was found, and what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MisuseKind {
    /// A number outside of what is allowed.
    #[error("{what} is {found}, expected {expected}")]
    Value {
        /// Which argument or option.
        what: &'static str,
        /// Its value.
        found: i64,
        /// What is allowed.
        expected: &'static str,
    },
    /// Something of the wrong length.
    #[error("{what} has {found} {unit}, expected {expected}")]
    Length {
        /// What.
        what: &'static str,
        /// Its length.
        found: usize,
        /// The length that it should have.
        expected: usize,
        /// In what both are counted: elements, bytes.
        unit: &'static str,
    },
    /// A range that is not inside the memory.
    #[error("{what} is {start}..{end} of {len} elements")]
    OutOfRange {
        /// Which range.
        what: &'static str,
        /// First element.
        start: usize,
        /// One past the last.
        end: usize,
        /// Elements that there are.
        len: usize,
    },
    /// Text that cannot be what it should be.
    #[error("{what}: {why}")]
    Text {
        /// Which argument or option.
        what: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A PE that the job does not have.
    #[error("{what} is {found}, the job has {n_pes} PEs")]
    Pe {
        /// Which argument.
        what: &'static str,
        /// Its value.
        found: Pe,
        /// How many there are.
        n_pes: u32,
    },
    /// A rank that the team does not have.
    #[error("{what} is rank {found}, the team has {ranks}")]
    Rank {
        /// Which argument.
        what: &'static str,
        /// Its value.
        found: usize,
        /// How many there are.
        ranks: usize,
    },
    /// Memory or a stream of another device.
    #[error("{what} is on device {found}, expected device {expected}")]
    Device {
        /// Which argument.
        what: &'static str,
        /// Where it is.
        found: usize,
        /// Where it should be.
        expected: usize,
    },
    /// Symmetric memory, or a team, of another context, or of one that ended.
    #[error("{what} belongs to another NVSHMEM context")]
    WrongContext {
        /// Which argument.
        what: &'static str,
    },
    /// Something cannot be given up, since it is still used.
    #[error("{what} is still used by {by}")]
    InUse {
        /// What.
        what: &'static str,
        /// By whom.
        by: &'static str,
    },
    /// Outside memory that the other PE cannot be reached from.
    #[error("{what} is neither symmetric nor registered, and {pe} is not reachable without the network: register it first")]
    Unregistered {
        /// Which argument.
        what: &'static str,
        /// The other PE.
        pe: Pe,
    },
    /// Two buffers of a call share memory.
    #[error("{read} and {written} share memory at {address:#x}")]
    Overlap {
        /// The argument that is read.
        read: &'static str,
        /// The argument that is written.
        written: &'static str,
        /// The first address that both have.
        address: u64,
    },
    /// A reduction that is not defined for these elements, or that NVSHMEM does not have.
    #[error("{op} of {dtype} elements is not among NVSHMEM's reductions")]
    Reduction {
        /// The reduction.
        op: peerweave_types::ReduceOp,
        /// The elements' type.
        dtype: peerweave_types::DType,
    },
    /// This context is already initialised, with something else.
    #[error("NVSHMEM is one for each process and already runs with {what} {found}, not {asked}")]
    AlreadyInitialized {
        /// Which argument differs.
        what: &'static str,
        /// What it runs with.
        found: String,
        /// What was asked for.
        asked: String,
    },
    /// The call is not possible in this place.
    #[error("{why}")]
    Context {
        /// Why not, and what to do instead.
        why: &'static str,
    },
}

/// Something that the library found does not do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct Unsupported {
    /// The function or the option, by NVSHMEM's own name.
    pub call: &'static str,
    /// The version that brought it; `None` where no release that is known has it.
    pub since: Option<Version>,
    /// The version that was found.
    pub found: Version,
    /// Where it was found.
    pub path: Arc<Path>,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call, found, path, .. } = self;
        match self.since {
            Some(since) => write!(f, "{call} needs NVSHMEM {since}, found {found} ({})", path.display()),
            None => write!(f, "{call} is not implemented for the host by NVSHMEM {found} ({})", path.display()),
        }
    }
}

/// NVSHMEM's answer to a call that failed. What it knows about the cause it prints to the standard error stream; see
/// [`Settings::debug`](crate::Settings::debug).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct Failure {
    /// NVSHMEM's function.
    pub call: &'static str,
    /// Its code; `None` for a function that gives a null pointer.
    pub code: Option<StatusCode>,
    /// What was asked for, where that helps.
    pub detail: String,
    /// The version of the library.
    pub version: Version,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call, version, detail, .. } = self;
        match self.code {
            Some(code) => write!(f, "{call}: {code} (NVSHMEM {version})")?,
            None => write!(f, "{call}: null (NVSHMEM {version})")?,
        }
        if detail.is_empty() { Ok(()) } else { write!(f, "; {detail}") }
    }
}

/// A code that NVSHMEM's functions return.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct StatusCode(c_int);

impl StatusCode {
    /// An argument is invalid.
    pub const INVALID_VALUE: Self = Self(sys::NVSHMEMX_ERROR_INVALID_VALUE);
    /// Too little memory, of the device or of the symmetric heap.
    pub const OUT_OF_MEMORY: Self = Self(sys::NVSHMEMX_ERROR_OUT_OF_MEMORY);
    /// Not possible here.
    pub const NOT_SUPPORTED: Self = Self(sys::NVSHMEMX_ERROR_NOT_SUPPORTED);
    /// Something inside.
    pub const INTERNAL: Self = Self(sys::NVSHMEMX_ERROR_INTERNAL);

    pub(crate) const fn new(code: c_int) -> Self {
        Self(code)
    }

    /// The number.
    pub const fn get(self) -> i32 {
        self.0
    }

    /// NVSHMEM's name of it, if it has one.
    pub fn name(self) -> Option<&'static str> {
        const NAMES: [&str; 8] = [
            "NVSHMEMX_SUCCESS",
            "NVSHMEMX_ERROR_INVALID_VALUE",
            "NVSHMEMX_ERROR_OUT_OF_MEMORY",
            "NVSHMEMX_ERROR_NOT_SUPPORTED",
            "NVSHMEMX_ERROR_SYMMETRY",
            "NVSHMEMX_ERROR_GPU_NOT_SELECTED",
            "NVSHMEMX_ERROR_COLLECTIVE_LAUNCH_FAILED",
            "NVSHMEMX_ERROR_INTERNAL",
        ];
        usize::try_from(self.0).ok().and_then(|code| NAMES.get(code).copied())
    }
}

impl fmt::Display for StatusCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name().unwrap_or("unknown code"), self.0)
    }
}

impl fmt::Debug for StatusCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

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

/// What became of NVSHMEM in this process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeadState {
    /// It was finalised.
    Finalized,
    /// Initialisation failed, and NVSHMEM cannot try it twice in a process.
    InitFailed,
    /// A call did not come back by its deadline. Its thread is still inside NVSHMEM, which lets no other in.
    Stuck {
        /// The call that did not come back.
        inside: &'static str,
    },
    /// NVSHMEM reported an error that leaves it unusable.
    Broken {
        /// The call that failed.
        by: &'static str,
    },
}

impl fmt::Display for DeadState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Finalized => f.write_str("the context was finalised"),
            Self::InitFailed => f.write_str("initialisation failed before in this process, and NVSHMEM cannot try it twice"),
            Self::Stuck { inside } => write!(f, "{inside} has not come back from NVSHMEM; end the process"),
            Self::Broken { by } => write!(f, "NVSHMEM is unusable since {by} failed; end the process"),
        }
    }
}

/// A wait that ended by its deadline.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct Timeout {
    /// The call.
    pub call: &'static str,
    /// How long it was waited for.
    pub waited: Duration,
    /// This PE, where it is known.
    pub pe: Option<Pe>,
    /// Who had not arrived, where it is known.
    pub missing: Vec<Pe>,
    /// Who was lost meanwhile, in the rendezvous' words.
    pub lost: Option<String>,
}

impl fmt::Display for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call, waited, .. } = self;
        write!(f, "{call}: not done after {waited:.1?}")?;
        if let Some(pe) = self.pe {
            write!(f, " on {pe}")?;
        }
        if !self.missing.is_empty() {
            write!(f, "; not there: {}", list(&self.missing))?;
        }
        self.lost.as_ref().map_or(Ok(()), |lost| write!(f, "; {lost}"))
    }
}

fn list(pes: &[Pe]) -> String {
    pes.iter().map(Pe::to_string).collect::<Vec<_>>().join(", ")
}

/// PEs that made different collective calls.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {pe} came with `{theirs}`, this PE with `{ours}`")]
#[non_exhaustive]
pub struct Disagree {
    /// The call.
    pub call: &'static str,
    /// Another PE.
    pub pe: Pe,
    /// Its arguments, or why it could not call.
    pub theirs: String,
    /// This PE's.
    pub ours: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_stay_small() {
        assert!(size_of::<NvshmemError>() <= 104, "{}", size_of::<NvshmemError>());
    }

    #[test]
    fn messages_name_what_was_missing() {
        let timeout = Timeout {
            call: "nvshmem_malloc",
            waited: Duration::from_secs(20),
            pe: Some(Pe::new(1)),
            missing: vec![Pe::new(0), Pe::new(3)],
            lost: None,
        };
        assert_eq!(timeout.to_string(), "nvshmem_malloc: not done after 20.0s on PE 1; not there: PE 0, PE 3");
        let unsupported = Unsupported {
            call: "nvshmem_int32_atomic_add",
            since: None,
            found: Version::new(3, 8, 0),
            path: Path::new("/lib/libnvshmem_host.so.3").into(),
        };
        assert_eq!(
            unsupported.to_string(),
            "nvshmem_int32_atomic_add is not implemented for the host by NVSHMEM 3.8.0 (/lib/libnvshmem_host.so.3)"
        );
        assert_eq!(StatusCode::new(7).to_string(), "NVSHMEMX_ERROR_INTERNAL (7)");
        assert_eq!(StatusCode::new(42).to_string(), "unknown code (42)");
    }
}
