//! Errors of loading modules and launching kernels, detected before anything is enqueued.

use std::fmt;

use crate::CudaError;

/// The reason why a module was not loaded or a kernel not launched.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The driver refused the image.
    #[error("{error}; log of the driver:\n{log}")]
    Image {
        /// The driver's error.
        error: CudaError,
        /// Log of the driver; may be empty.
        log: String,
    },
    /// The module has no kernel of this name.
    #[error("the module has no kernel {kernel}")]
    NoKernel {
        /// The requested name.
        kernel: String,
    },
    /// A wrong number of arguments.
    #[error("launch of {kernel}: {found} arguments, expected {expected}")]
    Count {
        /// The kernel.
        kernel: String,
        /// Number of arguments.
        found: usize,
        /// Number of parameters of the kernel.
        expected: usize,
    },
    /// A wrong length or alignment of an argument.
    #[error(
        "launch of {kernel}: argument {index} has {found_bytes} bytes at offset {found_offset}, expected {expected_bytes} bytes at offset {expected_offset}"
    )]
    Argument {
        /// The kernel.
        kernel: String,
        /// Index of the argument, from 0.
        index: usize,
        /// Length of the argument in bytes.
        found_bytes: usize,
        /// Offset of the argument, computed from its alignment.
        found_offset: usize,
        /// Length of the kernel's parameter.
        expected_bytes: usize,
        /// Offset of the kernel's parameter.
        expected_offset: usize,
    },
    /// An invalid shape.
    #[error("launch of {kernel}: {what} is {found}, expected {expected}")]
    Shape {
        /// The kernel.
        kernel: String,
        /// The property of the shape.
        what: &'static str,
        /// Value of the property.
        found: String,
        /// Description of valid values.
        expected: String,
    },
    /// A cooperative grid with too many blocks to be resident at once.
    #[error(
        "launch of {kernel}: the cooperative grid has {found} blocks, expected at most {expected} (the number that can be resident at once)"
    )]
    NotResident {
        /// The kernel.
        kernel: String,
        /// Number of blocks of the grid.
        found: u64,
        /// Number of blocks that the device runs at once.
        expected: u64,
    },
}

impl fmt::Debug for LaunchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
