//! Export and import of physical memory, as a POSIX file descriptor or as a fabric handle.
//!
//! The caller sends the handles to the other process; the heap sends them through the rendezvous.
//! The calls for multicast objects are in `multicast`, and check that multicast is enabled.
//! Invariant: memory is imported only with the handle type and the length with which it was
//! exported.

pub(crate) mod history;
pub(crate) mod identity;
pub(crate) mod ipc;

use std::fmt;
use std::sync::Arc;

use peerweave_driver::CudaContext;
use peerweave_driver::cudarc::driver::sys::{CUmemAllocationHandleType, CUmemGenericAllocationHandle};

use crate::error::VmmError;
use crate::memory::buffer::wrong_value;
use crate::memory::descriptor::{self, Descriptor};
use crate::memory::physical::{Exportable, PhysicalMemory, check_supported};
use crate::raw;

/// A fabric handle: 64 bytes that identify memory on every machine of an NVLink domain.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct FabricHandle(pub [u8; 64]);

impl fmt::Debug for FabricHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FabricHandle({:02x}{:02x}..)", self.0[0], self.0[1])
    }
}

/// Exported memory, which can be sent to another process.
#[derive(Debug)]
#[non_exhaustive]
pub enum SharedMemory {
    /// A file descriptor, which a process on this machine can import.
    FileDescriptor {
        /// The descriptor. Pass the descriptor to
        /// [`share_descriptor`](peerweave_bootstrap::Rendezvous::share_descriptor), or send it
        /// through a Unix socket of the application.
        fd: Descriptor,
        /// Length of the memory in bytes.
        bytes: usize,
    },
    /// A fabric handle, which a process in the same NVLink domain can import.
    Fabric {
        /// The handle, which consists of plain bytes and can be sent by any transport.
        handle: FabricHandle,
        /// Length of the memory in bytes.
        bytes: usize,
    },
}

impl PhysicalMemory {
    /// Returns a file descriptor with which another process on this machine can import this memory.
    /// The memory stays allocated while such a descriptor is open.
    ///
    /// # Errors
    /// [`Misuse::Value`](crate::Misuse::Value) if file descriptors are not among the handle types
    /// with which the memory was created. [`VmmError::Driver`] if a driver call fails.
    pub fn export_file_descriptor(&self) -> Result<SharedMemory, VmmError> {
        let exportable = self.exportable();
        check_exportable("PhysicalMemory::export_file_descriptor", exportable, exportable.file_descriptor)?;
        Ok(SharedMemory::FileDescriptor { fd: export_file_descriptor(self.handle())?, bytes: self.bytes() })
    }

    /// Returns a fabric handle with which another process in the NVLink domain can import this
    /// memory. The handle is valid while the memory is allocated.
    ///
    /// # Errors
    /// [`Misuse::Value`](crate::Misuse::Value) if fabric handles are not among the handle types
    /// with which the memory was created. [`VmmError::Driver`] if a driver call fails.
    pub fn export_fabric(&self) -> Result<SharedMemory, VmmError> {
        let exportable = self.exportable();
        check_exportable("PhysicalMemory::export_fabric", exportable, exportable.fabric)?;
        Ok(SharedMemory::Fabric { handle: export_fabric(self.handle())?, bytes: self.bytes() })
    }

    /// Imports memory that another process or this process exported.
    ///
    /// # Errors
    /// [`VmmError::Unsupported`] if the device lacks virtual memory management.
    /// [`VmmError::Driver`] if a driver call fails.
    ///
    /// # Safety
    /// `shared` must have been exported as physical memory, not as a multicast object. The memory
    /// must have the length that `shared` contains.
    pub unsafe fn import(context: &Arc<CudaContext>, shared: SharedMemory) -> Result<Self, VmmError> {
        check_supported(context.ordinal())?;
        raw::bind(context)?;
        let (handle, bytes, exportable) = match shared {
            // The descriptor is closed after the driver has imported it.
            SharedMemory::FileDescriptor { fd, bytes } => (import_file_descriptor(&fd)?, bytes, Exportable::FILE_DESCRIPTOR),
            SharedMemory::Fabric { handle, bytes } => (import_fabric(handle)?, bytes, Exportable::FABRIC),
        };
        Ok(Self::own(handle, bytes, exportable, None, context))
    }
}

/// Returns the error of an export, unless `possible` is true. `possible` states whether the
/// exported memory or multicast object was created with the handle type that `call` exports.
/// `exportable` contains all handle types of this memory or object, for the error message.
pub(crate) fn check_exportable(call: &'static str, exportable: Exportable, possible: bool) -> Result<(), VmmError> {
    match possible {
        true => Ok(()),
        false => Err(wrong_value(
            call,
            "exportable",
            format!("{exportable:?}"),
            "the handle type that this call exports; request this type when you create the memory or the multicast object",
        )),
    }
}

/// Exports a handle of physical memory or of a multicast object as a file descriptor.
pub(crate) fn export_file_descriptor(handle: CUmemGenericAllocationHandle) -> Result<Descriptor, VmmError> {
    let mut fd: i32 = -1;
    // SAFETY: the handle is live, and for this handle type the driver stores an integer.
    let code = unsafe { raw::api()?.cuMemExportToShareableHandle((&raw mut fd).cast(), handle, raw::FILE_DESCRIPTOR, 0) };
    raw::done("cuMemExportToShareableHandle", code)?;
    descriptor::own(fd)
}

pub(crate) fn export_fabric(handle: CUmemGenericAllocationHandle) -> Result<FabricHandle, VmmError> {
    let mut fabric = FabricHandle([0; 64]);
    // SAFETY: the handle is live, and for this handle type the driver stores 64 bytes.
    let code = unsafe { raw::api()?.cuMemExportToShareableHandle((&raw mut fabric).cast(), handle, raw::FABRIC, 0) };
    raw::done("cuMemExportToShareableHandle", code)?;
    Ok(fabric)
}

pub(crate) fn import_file_descriptor(fd: &Descriptor) -> Result<CUmemGenericAllocationHandle, VmmError> {
    // For this handle type the driver expects the descriptor's number in place of a pointer.
    import(descriptor::as_pointer(fd), raw::FILE_DESCRIPTOR)
}

pub(crate) fn import_fabric(mut fabric: FabricHandle) -> Result<CUmemGenericAllocationHandle, VmmError> {
    import((&raw mut fabric).cast(), raw::FABRIC)
}

fn import(shared: *mut std::ffi::c_void, kind: CUmemAllocationHandleType) -> Result<CUmemGenericAllocationHandle, VmmError> {
    let mut handle = 0;
    // SAFETY: the pointer is to a live value of the form that the handle type requires.
    let code = unsafe { raw::api()?.cuMemImportFromShareableHandle(&raw mut handle, shared, kind) };
    raw::done("cuMemImportFromShareableHandle", code)?;
    Ok(handle)
}
