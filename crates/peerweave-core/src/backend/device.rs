//! Device memory that another library owns.

use super::StreamBackend;
use crate::Error;
use std::any::Any;
use std::fmt;

/// The owner of device memory. The memory stays allocated while the owner lives.
///
/// A library that orders the uses of its memory by itself, such as cudarc for its slices, is
/// notified of each operation that uses the memory.
pub trait DeviceOwner: Any + Send + Sync + fmt::Debug {
    /// Prepares the memory for an operation that is about to be enqueued on `stream`, for example
    /// by making the stream wait for earlier work on the memory. For an operation without a stream,
    /// which runs on the calling thread, `stream` is `None`: earlier work must then have ended when
    /// this returns.
    ///
    /// # Errors
    /// The reason why the operation cannot use the memory. The operation is then not enqueued.
    fn before(&self, stream: Option<&dyn StreamBackend>) -> Result<(), Error> {
        let _ = stream;
        Ok(())
    }

    /// Called after the operation was enqueued on `stream`, or could not be enqueued. Later work of
    /// the owner on the memory must wait for the operation.
    fn after(&self, stream: &dyn StreamBackend) {
        let _ = stream;
    }
}

/// The owners of the memory of an operation.
pub trait KeptMemory: Send + Sync + fmt::Debug {
    /// Calls `with` for each owner of device memory, until a call fails.
    ///
    /// # Errors
    /// The first error of `with`.
    fn device_owners(&self, with: &mut dyn FnMut(&dyn DeviceOwner) -> Result<(), Error>) -> Result<(), Error>;
}
