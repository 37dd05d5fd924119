//! The errors of this crate. If a function of the driver fails, the error contains the name of the
//! function.

use std::fmt;

use peerweave_dylib::{LoadError, MissingSymbol};

use crate::CudaCode;

/// An error that CUDA's driver returned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} ({code}) from {call}: {text}")]
#[non_exhaustive]
pub struct CudaError {
    /// Name of the driver's function that failed. For a call through cudarc, name of the operation.
    pub call: &'static str,
    /// The driver's error code. If the driver is newer than this crate, the code may be unknown to
    /// this crate.
    pub code: u32,
    /// Name of the error code, such as `CUDA_ERROR_OUT_OF_MEMORY`.
    pub name: String,
    /// The driver's description of the error code.
    pub text: String,
}

impl CudaError {
    /// Creates the error for a failed call. Queries the driver for the name and the description of
    /// the code.
    #[cold]
    pub fn new(call: &'static str, code: CudaCode) -> Self {
        let (name, text) = crate::library::describe(code);
        Self { call, code: code.0, name, text }
    }

    /// Returns whether this error has the given code.
    pub fn is(&self, code: CudaCode) -> bool {
        self.code == code.0
    }

    /// Returns whether the device or the process is out of memory.
    pub fn is_out_of_memory(&self) -> bool {
        self.is(CudaCode::OUT_OF_MEMORY)
    }

    /// Checks `code`, the result code of the driver's function `call`.
    ///
    /// # Errors
    /// Returns an error for every code except success.
    #[inline]
    pub fn check(call: &'static str, code: CudaCode) -> Result<(), Self> {
        if code == CudaCode::SUCCESS { Ok(()) } else { Err(Self::new(call, code)) }
    }

    /// Returns a function that converts an error of cudarc to a [`CudaError`] that names `call`.
    #[cold]
    pub fn of(call: &'static str) -> impl FnOnce(crate::cudarc::driver::DriverError) -> Self {
        move |error| Self::new(call, error.0.into())
    }
}

/// An error of this crate.
///
/// `Debug` prints the message, because `unwrap` and a `main` that returns an error print `Debug`.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// CUDA's driver cannot be loaded, for example because this machine has no driver.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The driver lacks a function, because the driver is too old.
    #[error(transparent)]
    Missing(#[from] MissingSymbol),
    /// The driver returned an error.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// Loading a module or kernel, or launching a kernel, has failed.
    #[error(transparent)]
    Launch(#[from] super::launch_error::LaunchError),
    /// This process sees no device with the requested ordinal.
    #[error("{call}: device {ordinal} does not exist, expected an ordinal below {count}")]
    NoSuchDevice {
        /// Name of the call that returned this error.
        call: &'static str,
        /// Ordinal of the requested device.
        ordinal: usize,
        /// Number of devices that this process sees.
        count: usize,
    },
    /// The memory is on a different device than the stream. In a launch: the stream is on a
    /// different device than the kernel.
    #[error("{call}: the memory, or the stream of a launch, is on device {found}, expected device {expected}")]
    WrongDevice {
        /// Name of the call that returned this error.
        call: &'static str,
        /// Device ordinal of the memory in a copy, or of the stream in a kernel launch.
        found: usize,
        /// Device ordinal of the stream in a copy, or of the kernel in a kernel launch.
        expected: usize,
    },
    /// The size of the requested elements, in bytes, exceeds the address space.
    #[error("{call}: {count} elements of {element_bytes} bytes exceed the address space")]
    TooLarge {
        /// Name of the call that returned this error.
        call: &'static str,
        /// Number of elements that the caller requested.
        count: usize,
        /// Size of an element in bytes.
        element_bytes: usize,
    },
    /// The stream is being captured into a graph, but this call cannot be captured.
    #[error("{call}: the stream is being captured into a graph, expected a stream that is not being captured")]
    Capturing {
        /// Name of the call that returned this error.
        call: &'static str,
    },
    /// Another thread began to capture the stream while the call enqueued work that must not be
    /// captured. The capture was invalidated.
    #[error(
        "{call}: another thread began to capture the stream during the call; the capture was invalidated, because its graph would not keep alive the memory that this call uses"
    )]
    CaptureBegun {
        /// Name of the call that returned this error.
        call: &'static str,
    },
    /// The buffer belongs to a slice of cudarc, and the slice's own stream is being captured into a
    /// graph. The slice is freed in the order of its own stream, and that stream cannot wait for
    /// work on another stream during the capture.
    #[error(
        "{call}: the buffer's own stream is being captured into a graph and cannot wait for work on another stream; end the capture first, or use DeviceMemory"
    )]
    OwnerCapturing {
        /// Name of the call that returned this error.
        call: &'static str,
    },
    /// The stream is a per-thread stream. Each thread has its own per-thread stream, so no other
    /// thread can wait for the work on that stream.
    #[error("{call}: the per-thread stream cannot be used; create a stream by CudaContext::new_stream, or use default_stream")]
    PerThreadStream {
        /// Name of the call that returned this error.
        call: &'static str,
    },
    /// The work on the stream did not complete by the deadline.
    #[error("{call}: timed out after {waited:?}, the stream is still busy")]
    Timeout {
        /// Name of the call that returned this error.
        call: &'static str,
        /// Time for which the call waited.
        waited: std::time::Duration,
    },
    /// The source and the target of a copy have different lengths.
    #[error("{call}: the lengths differ: found {found} elements, expected {expected}")]
    WrongLength {
        /// Name of the call that returned this error.
        call: &'static str,
        /// Number of elements that the call would copy to or from the buffer.
        found: usize,
        /// Number of elements in the buffer. The call must copy all of them.
        expected: usize,
    },
    /// A tensor from another framework cannot be used as requested.
    #[error("{call}: the tensor has {what} {found}, expected {expected}")]
    Dlpack {
        /// Name of the call that returned this error.
        call: &'static str,
        /// Name of the tensor's unsupported property, such as "strides".
        what: &'static str,
        /// Value of the property.
        found: Box<str>,
        /// Description of valid values.
        expected: Box<str>,
    },
    /// The requested range of elements is not within the memory.
    #[error("{call}: the range is {start}..{end}, expected a range within {len} elements")]
    OutOfRange {
        /// Name of the call that returned this error.
        call: &'static str,
        /// Index of the first element of the range.
        start: usize,
        /// Index after the last element of the range.
        end: usize,
        /// Number of elements in the memory.
        len: usize,
    },
}

impl fmt::Debug for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
