//! Multicast objects: one address at which a store reaches the memory of every device of a team.
//!
//! ```text
//!   Building   create or import; add_device       the driver would wait, without end, for who binds before all devices are there
//!      |       complete, complete_with
//!   Team       bind, bind_mapping -> Binding      memory of each device behind the object
//!      |       bound, bound_with
//!   Bound      map -> MulticastMapping            an address, once something is behind it on every device
//! ```
//! Each step is a type, so that one that is out of order is no program. What follows keeps what
//! precedes: a mapping its bindings, a binding its memory and the object; they go in that order,
//! when no stream uses the address any more.
//!
//! With [`collective`] a job's PEs go through the first steps together, and
//! [`SymmetricHeap::multicast`](crate::SymmetricHeap::multicast) does all for a heap.
//!
//! **Never created on a real GPU by the authors of this crate**, and forbidden by one variable: see
//! [`multicast_switch`]. Every step above, the granularity and an export ask it first, each anew:
//! what was begun before it was set goes no further. What there is already stays mapped until it is
//! dropped, and is then unmapped, unbound and released whatever the switch says. [`check_device`]
//! alone does not ask: it reads the driver's version and an attribute.
//!
//! Binding needs a complete team:
//! ```compile_fail,E0599
//! # use peerweave_vmm::{PhysicalMemory, multicast::Building};
//! fn too_early(building: Building, memory: &PhysicalMemory) {
//!     let _ = building.bind(memory, 0, 0, 1 << 21); // no such method
//! }
//! ```
//! Devices are added before the team is complete:
//! ```compile_fail,E0599
//! # use peerweave_vmm::multicast::Team;
//! fn too_late(team: Team, context: &std::sync::Arc<peerweave_driver::CudaContext>) {
//!     let _ = team.add_device(context); // no such method
//! }
//! ```
//! Mapping needs memory behind the object:
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
//! A multicast address is no buffer: a load that does not reduce, and a copy from it, mean nothing.
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

/// The version of CUDA that brought multicast objects.
const SINCE: Version = Version::new(12, 1, 0);

/// What a multicast object is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MulticastProperties {
    /// How many devices will be added: all of them before anything is bound.
    pub devices: u32,
    /// Its length in bytes: a multiple of the granularity.
    pub bytes: usize,
    /// By which ways it may leave its process.
    pub exportable: Exportable,
    /// The driver's flags; none are defined, so 0.
    pub flags: u64,
}

/// The steps in which memory is bound to a multicast object, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MulticastGranularity {
    /// Every length and offset is a multiple of it.
    pub minimum: usize,
    /// The multiple that works best.
    pub recommended: usize,
}

impl MulticastGranularity {
    /// The smallest multiple of the recommended granularity that holds `bytes`, at least one;
    /// `None` beyond the address space.
    pub fn round_up(&self, bytes: usize) -> Option<usize> {
        bytes.max(1).checked_next_multiple_of(self.recommended)
    }
}

impl MulticastProperties {
    /// The same, with the length rounded up to a multiple of the granularity that the driver
    /// recommends. Memory of that length is to be bound on every device.
    ///
    /// # Errors
    /// As [`granularity`](Self::granularity); [`Misuse::Value`] for a length beyond the address
    /// space.
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
            || wrong_value("MulticastProperties::rounded_up", "bytes", self.bytes, "a length inside the address space");
        Ok(Self { bytes: bytes.ok_or_else(too_long)?, ..self })
    }

    /// An object for so many devices that can be exported as a file descriptor.
    pub fn new(devices: u32, bytes: usize) -> Self {
        Self { devices, bytes, exportable: Exportable::FILE_DESCRIPTOR, flags: 0 }
    }

    /// In which steps memory is bound to such an object. Creates nothing.
    ///
    /// # Errors
    /// [`VmmError::MulticastDisabled`]; [`VmmError::Unsupported`] for an older driver; what the
    /// driver says.
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
                needs: "a granularity above 0 of which the recommended one is a multiple".into(),
                found: format!("minimum {minimum}, recommended {recommended}"),
            });
        }
        Ok(MulticastGranularity { minimum, recommended })
    }

    fn description(&self) -> MulticastDescription {
        let Self { devices, bytes, exportable, flags } = *self;
        MulticastDescription { devices, bytes, handles: u64::from(exportable.bits()), flags }
    }

    /// Checks what can be checked without the driver's help, and then the length; gives the
    /// granularity.
    fn check(&self, call: &'static str) -> Result<MulticastGranularity, VmmError> {
        if self.devices == 0 {
            return Err(wrong_value(call, "devices", 0, "at least 1"));
        }
        if self.flags != 0 {
            return Err(wrong_value(call, "flags", self.flags, "0: none are defined"));
        }
        let granularity = self.granularity()?;
        aligned(call, "bytes", self.bytes, granularity.minimum)?;
        if self.bytes == 0 {
            return Err(Misuse::Unaligned { call, what: "bytes", value: 0, multiple: granularity.minimum }.into());
        }
        Ok(granularity)
    }
}

/// That a device can take part in multicast objects, through this driver. Creates nothing, and does
/// not ask the switch.
///
/// # Errors
/// [`VmmError::Unsupported`] with the version of CUDA that it needs and the one that the driver
/// serves, or with the attribute that the device lacks.
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
            found: format!("device {ordinal} without it"),
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

/// A driver that says a version and lacks the functions is too old as well.
fn too_old(error: VmmError) -> VmmError {
    match error {
        VmmError::Driver(DriverError::Missing(missing)) => unsupported(missing.to_string()),
        error => error,
    }
}

fn aligned(call: &'static str, what: &'static str, value: usize, multiple: usize) -> Result<(), Misuse> {
    if value.is_multiple_of(multiple) { Ok(()) } else { Err(Misuse::Unaligned { call, what, value, multiple }) }
}
