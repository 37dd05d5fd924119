//! Multicast objects: a store to one address writes the memory of every device of a team.
//!
//! ```text
//!   Building   create or import; add_device       no bind yet: it would wait for missing devices
//!      |       complete, complete_with
//!   Team       bind, bind_mapping -> Binding      binds memory of each device to the object
//!      |       bound, bound_with
//!   Bound      map -> MulticastMapping            an address; needs memory of every device
//! ```
//! Each step is a type, so steps in the wrong order do not compile. Each step keeps the previous
//! steps alive: a mapping keeps its bindings, and a binding keeps its memory and the object. When
//! no stream uses the address any more, the mapping, the bindings and the object are released in
//! this order.
//!
//! [`collective`] creates an object and adds the devices on all PEs of a job.
//! [`SymmetricHeap::multicast`](crate::SymmetricHeap::multicast) performs all steps for a heap.
//!
//! **The authors of this crate have never tested multicast on a real GPU.** Environment variables
//! disable multicast: see [`multicast_switch`]. Each step above first checks that multicast is
//! enabled. The granularity query and each export also check this. A mapping that exists when
//! multicast is disabled stays until it is dropped, and is then unmapped, unbound and released.
//! Unbinding ignores the variables. [`check_device`] also ignores the variables, because it only
//! reads the driver's version and an attribute.
//!
//! Memory can be bound only to a complete team:
//! ```compile_fail,E0599
//! # use peerweave_vmm::{PhysicalMemory, multicast::Building};
//! fn too_early(building: Building, memory: &PhysicalMemory) {
//!     let _ = building.bind(memory, 0, 0, 1 << 21); // no such method
//! }
//! ```
//! Devices can be added only before the team is complete:
//! ```compile_fail,E0599
//! # use peerweave_vmm::multicast::Team;
//! fn too_late(team: Team, context: &std::sync::Arc<peerweave_driver::CudaContext>) {
//!     let _ = team.add_device(context); // no such method
//! }
//! ```
//! An object can be mapped only after memory is bound to it:
//! ```compile_fail,E0599
//! # use peerweave_vmm::{Reservation, multicast::Team};
//! fn nothing_there(team: Team, addresses: &Reservation) {
//!     let _ = team.map(addresses, 0, 1 << 21, &[0]); // no such method
//! }
//! ```
//! A completed object cannot be completed again:
//! ```compile_fail,E0382
//! # use peerweave_vmm::multicast::Building;
//! fn twice(building: Building) {
//!     let _team = building.complete();
//!     let _again = building.complete(); // moved
//! }
//! ```
//! A multicast address is not a buffer, because a plain load or a copy from the address is
//! undefined:
//! ```compile_fail,E0277
//! # use peerweave_vmm::multicast::MulticastMapping;
//! fn as_a_buffer(mapping: &MulticastMapping) -> &dyn peerweave_driver::DeviceBuffer<f32> {
//!     mapping
//! }
//! ```

use peerweave_driver::cudarc::driver::sys::{CUmulticastGranularity_flags, CUmulticastObjectProp};
use peerweave_driver::{Driver, DriverError};
use peerweave_dylib::Version;

use crate::error::{Misuse, VmmError};
use crate::memory::buffer::wrong_value;
use crate::memory::physical::Exportable;
use crate::raw::{self, Attribute, MulticastDescription};

mod binding;
pub(crate) mod bound;
pub(crate) mod collective;
mod object;
mod view;

pub use binding::Binding;
pub use bound::{Bound, MulticastMapping};
pub use collective::collective;
pub use object::{Building, MulticastId, SharedMulticast, Team};
pub use peerweave_driver::{MulticastDisabled, multicast_switch};
pub use view::MulticastView;

/// The first version of CUDA that supports multicast objects.
const SINCE: Version = Version::new(12, 1, 0);

/// The properties with which a multicast object is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MulticastProperties {
    /// Number of devices in the team. All devices must be added before memory is bound.
    pub devices: u32,
    /// Length of the object in bytes: a multiple of the granularity.
    pub bytes: usize,
    /// The handle types by which the object can be exported.
    pub exportable: Exportable,
    /// Flags for the driver. The driver defines no flags, so the value must be 0.
    pub flags: u64,
}

/// The granularity of memory that is bound to a multicast object, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MulticastGranularity {
    /// Smallest unit, in bytes. Lengths and offsets must be multiples of this unit.
    pub minimum: usize,
    /// Unit that gives the best performance, in bytes. The unit is a multiple of `minimum`.
    pub recommended: usize,
}

impl MulticastGranularity {
    /// Returns the smallest positive multiple of the recommended granularity that is at least
    /// `bytes`. Returns `None` if the multiple exceeds `usize`.
    pub fn round_up(&self, bytes: usize) -> Option<usize> {
        bytes.max(1).checked_next_multiple_of(self.recommended)
    }
}

impl MulticastProperties {
    /// Returns the properties with `bytes` rounded up to a multiple of the recommended granularity.
    /// Memory of the rounded length must be bound on every device.
    ///
    /// # Errors
    /// The errors of [`granularity`](Self::granularity). [`Misuse::Value`] if the rounded length
    /// exceeds the address space.
    ///
    /// ```no_run
    /// use peerweave_vmm::multicast::{Building, MulticastProperties};
    ///
    /// let context = peerweave_driver::context(0)?;
    /// let building = Building::create(&context, MulticastProperties::new(8, 100_000_000).rounded_up()?)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rounded_up(self) -> Result<Self, VmmError> {
        let bytes = self.granularity()?.round_up(self.bytes);
        let too_long =
            || wrong_value("MulticastProperties::rounded_up", "bytes", self.bytes, "a length within the address space");
        Ok(Self { bytes: bytes.ok_or_else(too_long)?, ..self })
    }

    /// Returns the properties of an object with `bytes` bytes for `devices` devices. The object can
    /// be exported as a file descriptor.
    pub fn new(devices: u32, bytes: usize) -> Self {
        Self { devices, bytes, exportable: Exportable::FILE_DESCRIPTOR, flags: 0 }
    }

    /// Returns the granularity of memory that can be bound to an object with these properties.
    /// Creates no object.
    ///
    /// # Errors
    /// [`VmmError::MulticastDisabled`] if multicast is disabled in this process.
    /// [`VmmError::Unsupported`] if the driver is too old for multicast objects.
    /// [`VmmError::Driver`] if a driver call fails.
    pub fn granularity(&self) -> Result<MulticastGranularity, VmmError> {
        multicast_switch()?;
        check_version()?;
        let description = self.description();
        let ask = |which| {
            let mut bytes = 0;
            let pointer = (&raw const description).cast::<CUmulticastObjectProp>();
            // SAFETY: both pointers are to live values of the driver's layout.
            let code = unsafe { raw::api()?.cuMulticastGetGranularity(&raw mut bytes, pointer, which) };
            raw::done("cuMulticastGetGranularity", code).map(|()| bytes)
        };
        let minimum = ask(CUmulticastGranularity_flags::CU_MULTICAST_GRANULARITY_MINIMUM).map_err(too_old)?;
        let recommended = ask(CUmulticastGranularity_flags::CU_MULTICAST_GRANULARITY_RECOMMENDED).map_err(too_old)?;
        if minimum == 0 || recommended == 0 || recommended % minimum != 0 {
            return Err(VmmError::Unsupported {
                feature: "the use of multicast objects",
                needs: "a positive minimum granularity that divides the recommended granularity".into(),
                found: format!("a minimum granularity of {minimum} and a recommended granularity of {recommended}"),
            });
        }
        Ok(MulticastGranularity { minimum, recommended })
    }

    fn description(&self) -> MulticastDescription {
        let Self { devices, bytes, exportable, flags } = *self;
        MulticastDescription { devices, bytes, handles: u64::from(exportable.bits()), flags }
    }

    /// Checks the number of devices, the flags and the length, which must be a positive multiple of
    /// the minimum granularity. Returns the granularity that the driver reports.
    fn check(&self, call: &'static str) -> Result<MulticastGranularity, VmmError> {
        if self.devices == 0 {
            return Err(wrong_value(call, "devices", 0, "at least 1 device"));
        }
        if self.flags != 0 {
            return Err(wrong_value(call, "flags", self.flags, "0, because the driver defines no flags"));
        }
        let granularity = self.granularity()?;
        aligned(call, "bytes", self.bytes, granularity.minimum)?;
        if self.bytes == 0 {
            return Err(Misuse::Unaligned { call, what: "bytes", value: 0, multiple: granularity.minimum }.into());
        }
        Ok(granularity)
    }
}

/// Checks that the driver and a device support multicast objects. This function creates no object,
/// and works even if multicast is disabled.
///
/// # Errors
/// [`VmmError::Unsupported`] if the driver is too old, or if the device lacks the required
/// attribute. The error contains the required and the found CUDA version, or the name of the
/// attribute. [`VmmError::Driver`] if a driver call fails.
pub fn check_device(ordinal: usize) -> Result<(), VmmError> {
    check_version()?;
    let count = Driver::get()?.device_count()?;
    if ordinal >= count {
        return Err(DriverError::NoSuchDevice { call: "multicast::check_device", ordinal, count }.into());
    }
    match raw::has(ordinal, Attribute::Multicast)? {
        true => Ok(()),
        false => Err(VmmError::Unsupported {
            feature: "the use of multicast objects",
            needs: "a device with CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED".into(),
            found: format!("device {ordinal}, which lacks the required attribute"),
        }),
    }
}

fn check_version() -> Result<(), VmmError> {
    let found = Driver::get()?.version()?;
    match found >= SINCE {
        true => Ok(()),
        false => Err(unsupported(format!("a driver for CUDA {found:#}"))),
    }
}

fn unsupported(found: String) -> VmmError {
    VmmError::Unsupported {
        feature: "the use of multicast objects",
        needs: format!("a driver for CUDA {SINCE:#} or later"),
        found,
    }
}

/// If `error` says that a multicast function is missing, returns the error for a driver that is too
/// old. Returns other errors unchanged. A driver may lack the functions although it reports a
/// version that has them.
fn too_old(error: VmmError) -> VmmError {
    match error {
        VmmError::Driver(DriverError::Missing(missing)) => unsupported(missing.to_string()),
        error => error,
    }
}

fn aligned(call: &'static str, what: &'static str, value: usize, multiple: usize) -> Result<(), Misuse> {
    if value.is_multiple_of(multiple) { Ok(()) } else { Err(Misuse::Unaligned { call, what, value, multiple }) }
}
