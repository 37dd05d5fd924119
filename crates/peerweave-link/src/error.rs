//! Errors of compiling and linking.

use std::fmt;
use std::path::PathBuf;

use peerweave_dylib::{LoadError, MissingSymbol, Version};

/// An error of compiling or linking. `Debug` prints the message.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// A library was not found.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A library lacks a function.
    #[error(transparent)]
    Missing(#[from] MissingSymbol),
    /// A source could not be compiled.
    #[error("NVRTC {version:#} refused {name} ({status}):\n{log}")]
    Compile {
        /// Name of the source.
        name: String,
        /// The compiler's version.
        version: Version,
        /// Code of the compiler, with its name.
        status: String,
        /// The compiler's whole log.
        log: String,
    },
    /// The inputs could not be linked.
    #[error("nvJitLink {version:#} refused {inputs} for {arch} ({status}):\n{log}")]
    Link {
        /// The names of the inputs.
        inputs: String,
        /// The target.
        arch: String,
        /// The linker's version.
        version: Version,
        /// Code of the linker, with its name.
        status: String,
        /// The linker's whole log.
        log: String,
    },
    /// Two components have incompatible versions.
    #[error("{what} is {found}, expected {expected}")]
    VersionMismatch {
        /// The component.
        what: String,
        /// Version of the component.
        found: String,
        /// Compatible versions, with the reason.
        expected: String,
    },
    /// The library does not support the architecture.
    #[error("{what} {version:#} does not support {arch}, expected one of {known}")]
    UnknownArch {
        /// The library.
        what: &'static str,
        /// Version of the library.
        version: Version,
        /// The requested architecture.
        arch: String,
        /// The supported architectures.
        known: String,
    },
    /// Headers or archives that a source needs were not found.
    #[error("{what} not found; {remedy}; tried:{}", tried.iter().map(|path| format!("\n  {}", path.display())).collect::<String>())]
    NotFound {
        /// The missing component.
        what: &'static str,
        /// Package to install or variable to set.
        remedy: &'static str,
        /// Directories searched, in order.
        tried: Vec<PathBuf>,
    },
    /// An argument is invalid: a bug in the caller.
    #[error("{call}: {what} is {value}, expected {expected}")]
    Misuse {
        /// The call.
        call: &'static str,
        /// The argument.
        what: &'static str,
        /// Value of the argument.
        value: String,
        /// Description of valid values.
        expected: &'static str,
    },
    /// A call of a library did not return in time. Its thread is abandoned, and later links also
    /// return this error.
    #[error("{what} did not return within {waited:?}; restart the process to link again")]
    Stuck {
        /// The library.
        what: String,
        /// Time waited.
        waited: std::time::Duration,
    },
    /// A file could not be read.
    #[error("{}: {reason}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The message of the operating system.
        reason: String,
    },
}

impl LinkError {
    pub(crate) fn io(path: impl Into<PathBuf>, error: &std::io::Error) -> Self {
        Self::Io { path: path.into(), reason: error.to_string() }
    }

    /// Returns the log of the compiler or linker, if the error comes from one of them.
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
