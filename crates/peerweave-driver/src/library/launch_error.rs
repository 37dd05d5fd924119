//! Launches that are refused before anything is enqueued.

use std::fmt;

use crate::CudaError;

/// Why a module was not loaded or a kernel not launched.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The driver refused the image.
    #[error("{error}; the driver's log:\n{log}")]
    Image {
        /// The driver's answer.
        error: CudaError,
        /// All that it wrote; empty where it wrote nothing.
        log: String,
    },
    /// The module has no such kernel.
    #[error("no kernel {kernel} in the module")]
    NoKernel {
        /// The name that was asked for.
        kernel: String,
    },
    /// The number of arguments.
    #[error("launch of {kernel}: {found} arguments, expected {expected}")]
    Count {
        /// The kernel.
        kernel: String,
        /// Arguments given.
        found: usize,
        /// Parameters of the kernel.
        expected: usize,
    },
    /// The place of an argument.
    #[error(
        "launch of {kernel}: argument {index} has {found_bytes} bytes at offset {found_offset}, expected {expected_bytes} bytes at offset {expected_offset}"
    )]
    Argument {
        /// The kernel.
        kernel: String,
        /// Which argument, from 0.
        index: usize,
        /// Its length in bytes.
        found_bytes: usize,
        /// Where its alignment puts it.
        found_offset: usize,
        /// The length of the kernel's parameter.
        expected_bytes: usize,
        /// Where the kernel has it.
        expected_offset: usize,
    },
    /// A shape that cannot be.
    #[error("launch of {kernel}: {what} is {found}, expected {expected}")]
    Shape {
        /// The kernel.
        kernel: String,
        /// The part of the shape.
        what: &'static str,
        /// Its value.
        found: String,
        /// Values that can be.
        expected: String,
    },
    /// A cooperative grid that cannot be resident at once.
    #[error(
        "launch of {kernel}: a cooperative grid of {found} blocks, expected at most {expected}: so many are resident at once"
    )]
    NotResident {
        /// The kernel.
        kernel: String,
        /// Blocks asked for.
        found: u64,
        /// Blocks that the device runs at once.
        expected: u64,
    },
}

impl fmt::Debug for LaunchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
