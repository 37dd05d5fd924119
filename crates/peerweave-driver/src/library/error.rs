//! What the driver can answer, with the call that it answered to.

use std::fmt;

use peerweave_dylib::{LoadError, MissingSymbol};

use crate::CudaCode;

/// An error code of CUDA's driver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} ({code}) from {call}: {text}")]
#[non_exhaustive]
pub struct CudaError {
    /// The driver's function, or for calls through cudarc what was asked for.
    pub call: &'static str,
    /// The driver's code. Those of a driver that is newer than this crate are here too.
    pub code: u32,
    /// The code's name, such as `CUDA_ERROR_OUT_OF_MEMORY`.
    pub name: String,
    /// The driver's own description.
    pub text: String,
}

impl CudaError {
    /// The error of `call`. Asks the driver for its name and description.
    #[cold]
    pub fn new(call: &'static str, code: CudaCode) -> Self {
        let (name, text) = crate::library::describe(code);
        Self { call, code: code.0, name, text }
    }

    /// Whether the driver answered with this code.
    pub fn is(&self, code: CudaCode) -> bool {
        self.code == code.0
    }

    /// Whether the device or the process has too little memory.
    pub fn is_out_of_memory(&self) -> bool {
        self.is(CudaCode::OUT_OF_MEMORY)
    }

    /// Whether the driver says that it, or the device, cannot do this.
    pub fn is_not_supported(&self) -> bool {
        self.is(CudaCode::NOT_SUPPORTED)
    }

    /// Turns a code into a result.
    ///
    /// # Errors
    /// The error of `call`, for every code but success.
    #[inline]
    pub fn check(call: &'static str, code: CudaCode) -> Result<(), Self> {
        if code == CudaCode::SUCCESS { Ok(()) } else { Err(Self::new(call, code)) }
    }

    /// Gives an error of cudarc its call.
    #[cold]
    pub fn of(call: &'static str) -> impl FnOnce(crate::cudarc::driver::DriverError) -> Self {
        move |error| Self::new(call, error.0.into())
    }
}

/// Why a call of the driver did not do what was asked.
///
/// `Debug` shows the message too, since that is what a `main` that returns an error, and `unwrap`,
/// show to people.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// There is no driver on this machine.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The driver is too old to have the function.
    #[error(transparent)]
    Missing(#[from] MissingSymbol),
    /// The driver refused.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// A module was not loaded, or a kernel not launched.
    #[error(transparent)]
    Launch(#[from] super::launch_error::LaunchError),
    /// There is no such device.
    #[error("{call}: device {ordinal} does not exist, there are {count}")]
    NoSuchDevice {
        /// What was called.
        call: &'static str,
        /// The device that was asked for.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },
    /// The memory belongs to another device.
    #[error("{call}: the memory is on device {found}, expected device {expected}")]
    WrongDevice {
        /// What was called.
        call: &'static str,
        /// Where the memory is.
        found: usize,
        /// Where it should be.
        expected: usize,
    },
    /// A number of elements is too large for the address space.
    #[error("{call}: {count} elements of {element_bytes} bytes exceed the address space")]
    TooLarge {
        /// What was called.
        call: &'static str,
        /// Elements asked for.
        count: usize,
        /// Bytes of one.
        element_bytes: usize,
    },
    /// The stream is being captured into a graph, and what was asked for is not work for a graph.
    #[error("{call}: the stream is being captured into a graph")]
    Capturing {
        /// What was called.
        call: &'static str,
    },
    /// Another thread began to capture the stream while work was being enqueued that is not for a
    /// graph. The capture was invalidated.
    #[error(
        "{call}: another thread began to capture the stream during the call, and a graph would replay it with memory that nothing keeps: the capture was invalidated"
    )]
    CaptureBegun {
        /// What was called.
        call: &'static str,
    },
    /// The stream in whose order the buffer is freed is being captured into a graph, so that it
    /// cannot be made to wait for work on another stream.
    #[error(
        "{call}: the buffer's own stream is being captured into a graph, and cannot wait for work on another stream: end the capture first, or use DeviceMemory"
    )]
    OwnerCapturing {
        /// What was called.
        call: &'static str,
    },
    /// The stream is another one in each thread, so that nobody else could wait for what it does.
    #[error("{call}: the per-thread stream cannot be used; make one by CudaContext::new_stream, or use default_stream")]
    PerThreadStream {
        /// What was called.
        call: &'static str,
    },
    /// What the stream had to do did not end in time.
    #[error("{call}: the stream was still busy after {waited:?}")]
    Timeout {
        /// What was called.
        call: &'static str,
        /// How long it was waited for.
        waited: std::time::Duration,
    },
    /// A copy between buffers of different lengths.
    #[error("{call}: {found} elements, expected {expected}")]
    WrongLength {
        /// What was called.
        call: &'static str,
        /// Elements given.
        found: usize,
        /// Elements expected.
        expected: usize,
    },
    /// A tensor of another framework that cannot be used as it is.
    #[error("{call}: the tensor's {what}: found {found}, expected {expected}")]
    Dlpack {
        /// What was called.
        call: &'static str,
        /// Which of its properties.
        what: &'static str,
        /// The value found.
        found: Box<str>,
        /// What can be used.
        expected: Box<str>,
    },
    /// A range that is not inside the memory.
    #[error("{call}: range {start}..{end} of {len} elements")]
    OutOfRange {
        /// What was called.
        call: &'static str,
        /// First element.
        start: usize,
        /// One past the last.
        end: usize,
        /// Elements that there are.
        len: usize,
    },
}

impl fmt::Debug for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
