//! Why something was not compiled or linked.

use std::fmt;
use std::path::PathBuf;

use peerweave_dylib::{LoadError, MissingSymbol, Version};

/// Why something was not compiled or linked. `Debug` shows the message too.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// A library was not found.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A library lacks a function.
    #[error(transparent)]
    Missing(#[from] MissingSymbol),
    /// The compiler refused a source.
    #[error("NVRTC {version:#} refused {name} ({status}):\n{log}")]
    Compile {
        /// The source's name.
        name: String,
        /// The compiler's version.
        version: Version,
        /// The compiler's code and its name.
        status: String,
        /// All that the compiler wrote.
        log: String,
    },
    /// The linker refused its inputs.
    #[error("nvJitLink {version:#} refused {inputs} for {arch} ({status}):\n{log}")]
    Link {
        /// The names of the inputs.
        inputs: String,
        /// The target.
        arch: String,
        /// The linker's version.
        version: Version,
        /// The linker's code and its name.
        status: String,
        /// All that the linker wrote.
        log: String,
    },
    /// Two things do not work together because of their versions.
    #[error("{what} is {found}, expected {expected}")]
    VersionMismatch {
        /// The thing whose version does not fit.
        what: String,
        /// Its version.
        found: String,
        /// Versions that fit, and because of what.
        expected: String,
    },
    /// The library does not know the architecture.
    #[error("{what} {version:#} does not know {arch}, expected one of {known}")]
    UnknownArch {
        /// The library.
        what: &'static str,
        /// Its version.
        version: Version,
        /// The architecture that was asked for.
        arch: String,
        /// Those that it knows.
        known: String,
    },
    /// Headers or archives that a source needs were not found.
    #[error("{what} not found; {remedy}; tried:{}", tried.iter().map(|path| format!("\n  {}", path.display())).collect::<String>())]
    NotFound {
        /// The thing that was looked for.
        what: &'static str,
        /// What to install or to set.
        remedy: &'static str,
        /// Directories that were looked at, in order.
        tried: Vec<PathBuf>,
    },
    /// An argument that cannot be.
    #[error("{call}: {what} is {value}, expected {expected}")]
    Misuse {
        /// What was called.
        call: &'static str,
        /// The argument.
        what: &'static str,
        /// Its value.
        value: String,
        /// Values that can be.
        expected: &'static str,
    },
    /// A library did not come back. The thread that called it is given up; later links fail in the same way.
    #[error("{what} did not come back within {waited:?}")]
    Stuck {
        /// The library.
        what: String,
        /// How long it was waited for.
        waited: std::time::Duration,
    },
    /// A file could not be read.
    #[error("{}: {reason}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's message.
        reason: String,
    },
}

impl LinkError {
    pub(crate) fn io(path: impl Into<PathBuf>, error: &std::io::Error) -> Self {
        Self::Io { path: path.into(), reason: error.to_string() }
    }

    /// The log of the compiler or of the linker, if it was one of them that refused.
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
