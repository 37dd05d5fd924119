//! Copies in device memory, which copy engines of the GPU carry out.

use peerweave_core::Error;
use peerweave_driver::{Api, CudaCode, CudaError, Driver, DriverError};

use super::Enqueue;
use crate::backend::error::driver;

impl Enqueue<'_> {
    /// Calls `enqueue`, and converts its errors. `enqueue` calls the CUDA driver function `name` to
    /// enqueue work on the operation's stream. `name` is used only in errors. The context of the
    /// stream must be current.
    pub(crate) fn drive(
        &self,
        name: &'static str,
        enqueue: impl FnOnce(&Api) -> Result<CudaCode, DriverError>,
    ) -> Result<(), Error> {
        let run = || -> Result<(), DriverError> { Ok(CudaError::check(name, enqueue(Driver::get()?.api())?)?) };
        run().map_err(|error| driver(self.call, error))
    }

    pub(crate) fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), Error> {
        if bytes == 0 || to == from {
            return Ok(());
        }
        // SAFETY: both ranges have `bytes` bytes, and stay allocated until the stream has completed
        // the copy, because they are recorded or held.
        self.drive("cuMemcpyAsync", |api| Ok(unsafe { api.cuMemcpyAsync(to, from, bytes, self.stream.cu_stream()) }?))
    }

    /// Enqueues a copy of `bytes` bytes at `from` to scratch memory of the device. The scratch
    /// memory lives as long as the operation. Returns the address of the scratch memory.
    pub(crate) fn copied(&mut self, from: u64, bytes: usize) -> Result<u64, Error> {
        let copy = self.scratch(bytes)?;
        self.copy(copy, from, bytes)?;
        Ok(copy)
    }
}
