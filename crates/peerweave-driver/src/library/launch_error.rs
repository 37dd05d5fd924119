//! Errors of loading modules and launching kernels. If a launch returns such an error, nothing has
//! been enqueued.

use std::fmt;

use crate::CudaError;

/// The reason why a module was not loaded or a kernel was not launched.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The driver refused the image.
    #[error("{error}; driver log:\n{log}")]
    Image {
        /// The driver's error.
        error: CudaError,
        /// The driver's log, which may be empty.
        log: String,
    },
    /// The module has no kernel of this name.
    #[error("the module has no kernel named {kernel}")]
    NoKernel {
        /// Requested name of the kernel.
        kernel: String,
    },
    /// The number of arguments differs from the number of parameters.
    #[error("launch of {kernel}: {found} arguments, expected {expected}")]
    Count {
        /// Name of the kernel.
        kernel: String,
        /// Number of arguments that the caller passed.
        found: usize,
        /// Number of parameters that the kernel has.
        expected: usize,
    },
    /// The length or the offset of an argument differs from that of the kernel's parameter with the
    /// same index.
    #[error(
        "launch of {kernel}: argument {index} has {found_bytes} bytes at offset {found_offset}, expected {expected_bytes} bytes at offset {expected_offset}"
    )]
    Argument {
        /// Name of the kernel.
        kernel: String,
        /// Index of the argument, from 0.
        index: usize,
        /// Length of the argument in bytes.
        found_bytes: usize,
        /// Offset of the argument in bytes, computed from the alignments of the arguments.
        found_offset: usize,
        /// Length of the kernel's parameter in bytes.
        expected_bytes: usize,
        /// Offset of the kernel's parameter in bytes.
        expected_offset: usize,
    },
    /// The shape or an option of the launch is not supported.
    #[error("launch of {kernel}: {what} is {found}, expected {expected}")]
    Shape {
        /// Name of the kernel.
        kernel: String,
        /// Name of the property whose value is refused, such as "the grid".
        what: &'static str,
        /// Value of the refused property.
        found: String,
        /// Description of valid values.
        expected: String,
    },
    /// A cooperative grid has too many blocks to be resident at once.
    #[error(
        "launch of {kernel}: the cooperative grid has {found} blocks, expected at most {expected} (the number that can be resident at once)"
    )]
    NotResident {
        /// Name of the kernel.
        kernel: String,
        /// Number of blocks in the grid.
        found: u64,
        /// Number of blocks that can be resident at once on the device.
        expected: u64,
    },
}

impl fmt::Debug for LaunchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
