//! Errors of compiling and linking.

use std::fmt;
use std::path::PathBuf;

use peerweave_dylib::{LoadError, MissingSymbol, Version};

/// An error that occurs while kernels are compiled or linked. `Debug` prints the same message as
/// `Display`.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// NVRTC or nvJitLink could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// NVRTC or nvJitLink lacks a function.
    #[error(transparent)]
    Missing(#[from] MissingSymbol),
    /// NVRTC cannot compile a source.
    #[error("NVRTC {version:#} cannot compile {name} ({status}):\n{log}")]
    Compile {
        /// Name of the source.
        name: String,
        /// Version of NVRTC.
        version: Version,
        /// Error code that NVRTC returned, and its meaning.
        status: String,
        /// The complete log that NVRTC wrote.
        log: String,
    },
    /// nvJitLink cannot link the inputs.
    #[error("nvJitLink {version:#} cannot link {inputs} for {arch} ({status}):\n{log}")]
    Link {
        /// Names of the inputs, separated by commas.
        inputs: String,
        /// The architecture for which the inputs were linked.
        arch: String,
        /// Version of nvJitLink.
        version: Version,
        /// Error code that nvJitLink returned, and its name.
        status: String,
        /// The complete log that nvJitLink wrote.
        log: String,
    },
    /// A component has a version or an architecture that is not compatible with another component.
    #[error("{what} is {found}, expected {expected}")]
    VersionMismatch {
        /// Name of the incompatible component, often with its path. The component is, for example,
        /// NVRTC, nvJitLink, a cubin, or NVSHMEM's device library.
        what: String,
        /// Version or architecture of the component.
        found: String,
        /// Description of the compatible versions or architectures.
        expected: String,
    },
    /// The library does not support the requested architecture.
    #[error("{what} {version:#} does not support {arch}, expected one of {known}")]
    UnknownArch {
        /// Name of the library.
        what: &'static str,
        /// Version of the library.
        version: Version,
        /// The requested architecture.
        arch: String,
        /// Description of the supported architectures.
        known: String,
    },
    /// Headers or archives that a link needs were not found.
    #[error("{what} not found; {remedy}; tried:{}", tried.iter().map(|path| format!("\n  {}", path.display())).collect::<String>())]
    NotFound {
        /// Description of the missing files.
        what: &'static str,
        /// Advice: the package to install, or the variable to set.
        remedy: &'static str,
        /// The directories that were searched, in order.
        tried: Vec<PathBuf>,
    },
    /// The caller passed an invalid argument.
    #[error("{call}: {what} is {value}, expected {expected}")]
    Misuse {
        /// Name of the called function.
        call: &'static str,
        /// Name or description of the argument.
        what: &'static str,
        /// Value of the argument.
        value: String,
        /// Description of valid values.
        expected: &'static str,
    },
    /// nvJitLink did not return within the time limit, or the thread that calls nvJitLink could not
    /// be started. The process has only one such thread. After a timeout, later links return this
    /// error as long as the thread is still blocked.
    #[error("{what} did not return within {waited:?}: restart the process to link again")]
    Stuck {
        /// Name and path of the library.
        what: String,
        /// Time limit of a link, not the time that the call has waited. If the thread could not be
        /// started, the call has not waited at all.
        waited: std::time::Duration,
    },
    /// A file or directory could not be read.
    #[error("{}: {reason}", path.display())]
    Io {
        /// Path of the file or directory.
        path: PathBuf,
        /// The operating system's error message. If the file was read but lacks the expected
        /// content, a description of what is missing.
        reason: String,
    },
}

impl LinkError {
    pub(crate) fn io(path: impl Into<PathBuf>, error: &std::io::Error) -> Self {
        Self::Io { path: path.into(), reason: error.to_string() }
    }

    /// Returns the log that NVRTC or nvJitLink wrote; `None` if the error contains no log.
    pub fn log(&self) -> Option<&str> {
        match self {
            Self::Compile { log, .. } | Self::Link { log, .. } => Some(log),
            _ => None,
        }
    }
}

impl fmt::Debug for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
