//! Physical memory of a device, which has no address until it is mapped.
//!
//! The module `share` exports and imports physical memory; `reservation.rs` maps it. Invariant: the
//! driver's handle is released when the last handle and the last mapping of the memory are dropped.

use std::fmt;
use std::sync::Arc;

use peerweave_driver::cudarc::driver::sys::{CUmemAllocationGranularity_flags, CUmemGenericAllocationHandle};
use peerweave_driver::{CudaCode, CudaContext, Driver, alloc_when_freed, retire};

use crate::error::{Misuse, VmmError};
use crate::memory::descriptor;
use crate::raw::{self, AllocationProperties, Attribute};

/// The handle types by which physical memory can be exported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Exportable {
    /// Whether memory can be exported as POSIX file descriptors, to processes of this machine.
    pub file_descriptor: bool,
    /// Whether memory can be exported as fabric handles, to processes on all machines of an NVLink
    /// domain. Fabric handles need NVIDIA's IMEX service.
    pub fabric: bool,
}

impl Exportable {
    /// No handle type, so only this process can use the memory.
    pub const NOWHERE: Self = Self { file_descriptor: false, fabric: false };
    /// POSIX file descriptors only.
    pub const FILE_DESCRIPTOR: Self = Self { file_descriptor: true, fabric: false };
    /// Fabric handles only.
    pub const FABRIC: Self = Self { file_descriptor: false, fabric: true };

    /// Returns the handle types that a device reports in its attributes. Fabric handles may fail
    /// even if the device reports them. To know whether fabric handles work, create memory that
    /// can be exported as a fabric handle.
    ///
    /// # Errors
    /// [`VmmError::Driver`] if a driver call fails.
    pub fn of_device(ordinal: usize) -> Result<Self, VmmError> {
        Ok(Self {
            file_descriptor: descriptor::POSSIBLE && raw::has(ordinal, Attribute::FileDescriptor)?,
            fabric: raw::has(ordinal, Attribute::Fabric)?,
        })
    }

    pub(crate) fn bits(self) -> u32 {
        u32::from(self.file_descriptor) * raw::FILE_DESCRIPTOR.0 + u32::from(self.fabric) * raw::FABRIC.0
    }
}

/// The allocation granularity of physical memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granularity {
    /// Smallest unit, in bytes. Lengths and offsets must be multiples of this unit.
    pub minimum: usize,
    /// Unit that gives the best performance, in bytes. The unit is a multiple of `minimum`.
    pub recommended: usize,
}

impl Granularity {
    /// Returns the granularity of a device's memory. The granularity depends on `exportable`, the
    /// handle types by which the memory can be exported.
    ///
    /// # Errors
    /// [`VmmError::Unsupported`] if the device lacks virtual memory management.
    /// [`VmmError::Driver`] if a driver call fails.
    pub fn of_device(ordinal: usize, exportable: Exportable) -> Result<Self, VmmError> {
        check_supported(ordinal)?;
        let properties = AllocationProperties::on_device(ordinal, exportable.bits(), false);
        let ask = |which| {
            let mut bytes = 0;
            // SAFETY: both pointers are to live values.
            let code = unsafe { raw::api()?.cuMemGetAllocationGranularity(&raw mut bytes, properties.as_ptr(), which) };
            raw::done("cuMemGetAllocationGranularity", code).map(|()| bytes)
        };
        let minimum = ask(CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM)?;
        let recommended = ask(CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)?;
        if minimum == 0 || recommended % minimum != 0 {
            return Err(VmmError::Unsupported {
                feature: "virtual memory management",
                needs: "a positive minimum granularity that divides the recommended granularity".into(),
                found: format!("a minimum granularity of {minimum} and a recommended granularity of {recommended}"),
            });
        }
        Ok(Self { minimum, recommended })
    }

    /// Returns the smallest positive multiple of the recommended granularity that is at least
    /// `bytes`. Returns `None` if the multiple exceeds `usize`.
    pub fn round_up(&self, bytes: usize) -> Option<usize> {
        bytes.max(1).checked_next_multiple_of(self.recommended)
    }
}

/// Checks that a device has virtual memory management.
pub(crate) fn check_supported(ordinal: usize) -> Result<(), VmmError> {
    let count = Driver::get()?.device_count()?;
    if ordinal >= count {
        return Err(peerweave_driver::DriverError::NoSuchDevice { call: "peerweave-vmm", ordinal, count }.into());
    }
    if raw::has(ordinal, Attribute::Vmm)? {
        return Ok(());
    }
    Err(VmmError::Unsupported {
        feature: "virtual memory management",
        needs: "a device with CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED".into(),
        found: format!("device {ordinal}, which lacks the required attribute"),
    })
}

/// A handle to physical memory of one device. Clones are handles to the same memory.
///
/// The memory has no address until [`Reservation::map`](crate::Reservation::map) maps it. The
/// memory is released once the last handle and the last mapping have been dropped in every process.
///
/// ```no_run
/// use peerweave_vmm::{Exportable, Granularity, PhysicalMemory, Reservation, Rights};
///
/// let context = peerweave_driver::context(0)?;
/// let granularity = Granularity::of_device(0, Exportable::NOWHERE)?;
/// let memory = PhysicalMemory::create(&context, granularity.recommended, Exportable::NOWHERE)?;
/// let addresses = Reservation::new(&context, 4 * granularity.recommended, granularity.recommended)?;
/// let mapping = addresses.map(granularity.recommended, &memory, granularity.recommended)?;
/// mapping.allow(&[0], Rights::ReadWrite)?;
/// drop((memory, addresses)); // the mapping keeps both alive
/// # Ok::<(), peerweave_vmm::VmmError>(())
/// ```
#[derive(Clone)]
pub struct PhysicalMemory {
    pub(crate) inner: Arc<Inner>,
}

/// Owns the driver's handle of the memory. Dropping this value releases the handle.
pub(crate) struct Inner {
    handle: CUmemGenericAllocationHandle,
    bytes: usize,
    exportable: Exportable,
    /// The device; `None` for imported memory, whose device is unknown.
    device: Option<usize>,
    context: Arc<CudaContext>,
}

impl PhysicalMemory {
    /// Allocates `bytes` on the device of `context`.
    ///
    /// # Errors
    /// [`Misuse::Unaligned`] if `bytes` is not a positive multiple of the device's minimum
    /// granularity. [`VmmError::Unsupported`] if the device lacks virtual memory management, or if
    /// fabric handles are requested but do not work on the machine.
    ///
    /// [`VmmError::Driver`] if a driver call fails. If the device is out of memory, the call waits
    /// for up to one second until dropped memory has been freed, and tries again. If the second
    /// attempt also fails, the error contains `CUDA_ERROR_OUT_OF_MEMORY`.
    pub fn create(context: &Arc<CudaContext>, bytes: usize, exportable: Exportable) -> Result<Self, VmmError> {
        let ordinal = context.ordinal();
        let granularity = Granularity::of_device(ordinal, exportable)?;
        if bytes == 0 || !bytes.is_multiple_of(granularity.minimum) {
            let (call, what) = ("PhysicalMemory::create", "bytes");
            return Err(Misuse::Unaligned { call, what, value: bytes, multiple: granularity.minimum }.into());
        }
        raw::bind(context)?;
        let mut properties =
            AllocationProperties::on_device(ordinal, exportable.bits(), raw::has(ordinal, Attribute::RdmaWithVmm)?);
        let mut handle = 0;
        let mut create = |properties: &AllocationProperties| {
            // SAFETY: both pointers are to live values; no flags are defined.
            raw::done("cuMemCreate", unsafe { raw::api()?.cuMemCreate(&raw mut handle, bytes, properties.as_ptr(), 0) })
        };
        let mut made = alloc_when_freed(|| create(&properties), VmmError::is_out_of_memory);
        if made.as_ref().is_err_and(|error| error.is_code(&[CudaCode::NOT_SUPPORTED, CudaCode::INVALID_VALUE])) {
            // Some virtual machines report GPUDirect RDMA as supported, but refuse allocations that
            // request it.
            properties = AllocationProperties::on_device(ordinal, exportable.bits(), false);
            made = create(&properties);
        }
        match made {
            Ok(()) => Ok(Self::own(handle, bytes, exportable, Some(ordinal), context)),
            Err(error) if exportable.fabric && error.is_code(FABRIC_REFUSED) && !is_fabric_available(context, &granularity) => {
                Err(VmmError::Unsupported {
                    feature: "memory that can be exported as a fabric handle",
                    needs: "a running NVIDIA IMEX service that this user has permission to use".into(),
                    found: error.to_string(),
                })
            }
            Err(error) => Err(error),
        }
    }

    /// Takes ownership of a handle that the driver has just returned. `device` is `None` for
    /// imported memory.
    pub(crate) fn own(
        handle: CUmemGenericAllocationHandle,
        bytes: usize,
        exportable: Exportable,
        device: Option<usize>,
        context: &Arc<CudaContext>,
    ) -> Self {
        Self { inner: Arc::new(Inner { handle, bytes, exportable, device, context: Arc::clone(context) }) }
    }

    /// Returns the length of the memory in bytes.
    pub fn bytes(&self) -> usize {
        self.inner.bytes
    }

    /// Returns the handle types by which the memory can be exported.
    pub fn exportable(&self) -> Exportable {
        self.inner.exportable
    }

    /// Returns the ordinal of the device that owns the memory. Returns `None` for imported memory,
    /// because the device of imported memory is unknown and may be invisible to this process.
    pub fn device(&self) -> Option<usize> {
        self.inner.device
    }

    /// Returns the context in which the memory was created or imported. Imported memory may be on a
    /// device other than the context's device.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.inner.context
    }

    pub(crate) fn handle(&self) -> CUmemGenericAllocationHandle {
        self.inner.handle
    }
}

/// Codes that the driver returns for fabric handles if the device supports them but the IMEX
/// service is missing or not permitted.
pub(crate) const FABRIC_REFUSED: &[CudaCode] = &[CudaCode::NOT_PERMITTED, CudaCode::NOT_SUPPORTED, CudaCode::INVALID_VALUE];

/// Returns whether the driver can allocate memory that can be exported as a fabric handle. Tries to
/// allocate the minimum length. If this succeeds, fabric handles are not the reason why an earlier
/// allocation failed.
fn is_fabric_available(context: &Arc<CudaContext>, granularity: &Granularity) -> bool {
    let properties = AllocationProperties::on_device(context.ordinal(), raw::FABRIC.0, false);
    let mut handle = 0;
    // SAFETY: both pointers are to live values; no flags are defined.
    let code = raw::api().map(|api| unsafe { api.cuMemCreate(&raw mut handle, granularity.minimum, properties.as_ptr(), 0) });
    if code.and_then(|code| raw::done("cuMemCreate", code)).is_err() {
        return false;
    }
    drop(PhysicalMemory::own(handle, granularity.minimum, Exportable::FABRIC, Some(context.ordinal()), context));
    true
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: this value owned the handle, and every mapping of the memory kept this value
        // alive.
        unsafe { release(&self.context, self.handle) };
    }
}

/// Releases a handle of physical memory or of a multicast object. The driver is called on the
/// thread that frees memory, because the call may be slow.
///
/// # Safety
/// The handle is live, and nothing uses it any more.
pub(crate) unsafe fn release(context: &Arc<CudaContext>, handle: CUmemGenericAllocationHandle) {
    let release = move || {
        // SAFETY: by the contract of this function the handle is live, and nothing uses it any
        // more.
        let code = raw::api().map(|api| unsafe { api.cuMemRelease(handle) });
        if let Err(error) = code.and_then(|code| raw::done("cuMemRelease", code)) {
            tracing::warn!(%error, "a handle of memory or of a multicast object was not released");
        }
    };
    retire(context, [], Box::new(release));
}

impl fmt::Debug for PhysicalMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { bytes, exportable, context, .. } = &*self.inner;
        write!(f, "PhysicalMemory({bytes} bytes, context of device {}, {exportable:?})", context.ordinal())
    }
}
