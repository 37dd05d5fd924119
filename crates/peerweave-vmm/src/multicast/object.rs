//! A multicast object under construction, and the team of all its devices.
//!
//! `binding.rs` binds memory. Invariants: every function of this module that calls the driver first
//! checks that multicast is enabled, except for the release of a handle. A [`Team`] exists only
//! after every device has been added to its object, so binding does not wait for devices.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use peerweave_bootstrap::Rendezvous;
use peerweave_driver::cudarc::driver::sys::{CUdevice, CUmemGenericAllocationHandle, CUmulticastObjectProp};
use peerweave_driver::{CudaContext, multicast_switch};
use peerweave_types::Pe;

use super::{MulticastGranularity, MulticastProperties, aligned, check_device, too_old};
use crate::agree::agree;
use crate::error::{Misuse, VmmError};
use crate::memory::buffer::wrong_value;
use crate::memory::descriptor::Descriptor;
use crate::memory::physical::release;
use crate::memory::reservation::range_of;
use crate::raw;
use crate::share::{
    FabricHandle, check_exportable, export_fabric, export_file_descriptor, import_fabric, import_file_descriptor,
};

/// A multicast object: the driver's handle and the ranges to which memory is bound.
pub(super) struct Object {
    handle: CUmemGenericAllocationHandle,
    pub(super) properties: MulticastProperties,
    id: MulticastId,
    granularity: MulticastGranularity,
    context: Arc<CudaContext>,
    /// The ranges to which memory is bound. Maps the device and the start of each range to the end
    /// of the range, in bytes from the start of the object.
    bound: Mutex<BTreeMap<(usize, usize), usize>>,
}

/// The identity of a multicast object, which is the same in all processes. The id is a random
/// number that [`Building::create`] generates.
///
/// The id is sent together with the descriptor or the fabric handle. PEs compare the ids of their
/// objects to check that all PEs have the same object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MulticastId(pub [u8; 16]);

impl MulticastId {
    fn random(call: &'static str) -> Result<Self, VmmError> {
        let mut bytes = [0; 16];
        match getrandom::fill(&mut bytes) {
            Ok(()) => Ok(Self(bytes)),
            Err(error) => Err(VmmError::Unsupported {
                feature: call,
                needs: "random numbers from the operating system".into(),
                found: error.to_string(),
            }),
        }
    }
}

/// An exported multicast object, which can be sent to another process.
#[derive(Debug)]
#[non_exhaustive]
pub enum SharedMulticast {
    /// A file descriptor, which a process on this machine can import.
    FileDescriptor {
        /// The descriptor of the object. To send it to the other PEs, pass it to
        /// [`share_descriptor`](peerweave_bootstrap::Rendezvous::share_descriptor), or use a Unix
        /// socket of the application.
        fd: Descriptor,
        /// Properties with which the object was created.
        properties: MulticastProperties,
        /// Id of the object. PEs compare the ids of their objects to check that all PEs have the
        /// same object.
        id: MulticastId,
    },
    /// A fabric handle, which a process in the same NVLink domain can import.
    Fabric {
        /// The handle, which consists of plain bytes and can be sent by any transport.
        handle: FabricHandle,
        /// Properties with which the object was created.
        properties: MulticastProperties,
        /// Id of the object. PEs compare the ids of their objects to check that all PEs have the
        /// same object.
        id: MulticastId,
    },
}

/// A multicast object whose team is not complete: devices are still being added to the object.
pub struct Building {
    object: Arc<Object>,
    devices: Vec<usize>,
}

/// A handle to a multicast object to which all devices have been added. Clones are handles to the
/// same object.
#[derive(Clone)]
pub struct Team {
    pub(super) object: Arc<Object>,
    /// The devices that this process added.
    pub(super) devices: Arc<[usize]>,
    /// The PEs that share this object. `None` if these PEs are unknown; in that case all PEs of the
    /// job are assumed to share the object.
    pub(super) members: Option<Arc<[Pe]>>,
}

impl Building {
    /// Creates an object. This function does not add the device of `context`; call
    /// [`add_device`](Self::add_device) to add this device.
    ///
    /// # Errors
    /// [`VmmError::MulticastDisabled`] if multicast is disabled in this process; the driver is then
    /// not called. [`VmmError::Unsupported`] if the driver is too old, or if the device lacks the
    /// required attribute. [`Misuse`] if the properties are invalid. [`VmmError::Driver`] if a
    /// driver call fails.
    pub fn create(context: &Arc<CudaContext>, properties: MulticastProperties) -> Result<Self, VmmError> {
        multicast_switch()?;
        check_device(context.ordinal())?;
        let granularity = properties.check("Building::create")?;
        let id = MulticastId::random("Building::create")?;
        raw::bind(context)?;
        let description = properties.description();
        let mut handle = 0;
        let pointer = (&raw const description).cast::<CUmulticastObjectProp>();
        // SAFETY: both pointers are to live values of the driver's layout.
        let code = unsafe { raw::api()?.cuMulticastCreate(&raw mut handle, pointer) };
        raw::done("cuMulticastCreate", code).map_err(too_old)?;
        Ok(Self::own(handle, (properties, id), granularity, context))
    }

    /// Imports an object that another process or this process exported.
    ///
    /// # Errors
    /// The errors of [`create`](Self::create).
    ///
    /// # Safety
    /// The descriptor or handle in `shared` must be that of a multicast object. The object must
    /// have been created with the properties and the id in `shared`.
    pub unsafe fn import(context: &Arc<CudaContext>, shared: SharedMulticast) -> Result<Self, VmmError> {
        multicast_switch()?;
        check_device(context.ordinal())?;
        raw::bind(context)?;
        let (SharedMulticast::FileDescriptor { properties, id, .. } | SharedMulticast::Fabric { properties, id, .. }) = shared;
        let granularity = properties.check("Building::import")?;
        let handle = match shared {
            SharedMulticast::FileDescriptor { fd, .. } => import_file_descriptor(&fd)?,
            SharedMulticast::Fabric { handle, .. } => import_fabric(handle)?,
        };
        Ok(Self::own(handle, (properties, id), granularity, context))
    }

    fn own(
        handle: CUmemGenericAllocationHandle,
        (properties, id): (MulticastProperties, MulticastId),
        granularity: MulticastGranularity,
        context: &Arc<CudaContext>,
    ) -> Self {
        let object = Object { handle, properties, id, granularity, context: Arc::clone(context), bound: Mutex::default() };
        Self { object: Arc::new(object), devices: Vec::new() }
    }

    /// Adds the device of `context` to the object. Each device of the team must be added exactly
    /// once, by exactly one process.
    ///
    /// # Errors
    /// [`VmmError::MulticastDisabled`] if multicast is disabled in this process. [`Misuse::Value`]
    /// if this process has already added the device, or has already added as many devices as the
    /// team has. [`VmmError::Unsupported`] if the device does not support multicast.
    /// [`VmmError::Driver`] if a driver call fails.
    pub fn add_device(&mut self, context: &Arc<CudaContext>) -> Result<(), VmmError> {
        let call = "Building::add_device";
        multicast_switch()?;
        let ordinal = context.ordinal();
        if self.devices.contains(&ordinal) {
            return Err(wrong_value(call, "device", ordinal, "a device that this process has not added yet"));
        }
        if self.devices.len() >= self.object.properties.devices as usize {
            let expected = format!("no further device (the object was created for {} devices)", self.object.properties.devices);
            return Err(wrong_value(call, "device", ordinal, &expected));
        }
        check_device(ordinal)?;
        raw::bind(context)?;
        let device = CUdevice::try_from(ordinal).unwrap_or(CUdevice::MAX);
        // SAFETY: the handle is live; the driver checks the device.
        let code = unsafe { raw::api()?.cuMulticastAddDevice(self.object.handle, device) };
        raw::done("cuMulticastAddDevice", code).map_err(too_old)?;
        self.devices.push(ordinal);
        Ok(())
    }

    /// Returns a file descriptor with which another process on this machine can import the object
    /// and add its own devices.
    ///
    /// # Errors
    /// [`VmmError::MulticastDisabled`] if multicast is disabled in this process. [`Misuse::Value`]
    /// if file descriptors are not among the handle types with which the object was created.
    /// [`VmmError::Driver`] if a driver call fails.
    pub fn export_file_descriptor(&self) -> Result<SharedMulticast, VmmError> {
        multicast_switch()?;
        let Object { handle, properties, id, .. } = *self.object;
        check_exportable("Building::export_file_descriptor", properties.exportable, properties.exportable.file_descriptor)?;
        Ok(SharedMulticast::FileDescriptor { fd: export_file_descriptor(handle)?, properties, id })
    }

    /// Returns a fabric handle with which another process in the NVLink domain can import the
    /// object and add its own devices.
    ///
    /// # Errors
    /// [`VmmError::MulticastDisabled`] if multicast is disabled in this process. [`Misuse::Value`]
    /// if fabric handles are not among the handle types with which the object was created.
    /// [`VmmError::Driver`] if a driver call fails.
    pub fn export_fabric(&self) -> Result<SharedMulticast, VmmError> {
        multicast_switch()?;
        let Object { handle, properties, id, .. } = *self.object;
        check_exportable("Building::export_fabric", properties.exportable, properties.exportable.fabric)?;
        Ok(SharedMulticast::Fabric { handle: export_fabric(handle)?, properties, id })
    }

    /// Returns the properties of the object.
    pub fn properties(&self) -> MulticastProperties {
        self.object.properties
    }

    /// Returns the id of the object.
    pub fn id(&self) -> MulticastId {
        self.object.id
    }

    /// Returns the driver's handle to the object, for driver calls that this crate does not make.
    /// The handle is valid while this value lives, or while a value created from it lives, such as
    /// a [`Team`]. The caller must follow the driver's rules.
    pub fn as_raw(&self) -> CUmemGenericAllocationHandle {
        self.object.handle
    }

    /// Returns the number of devices that this process has added.
    pub fn devices_added(&self) -> usize {
        self.devices.len()
    }

    /// Returns the complete team, if this process has added all devices.
    ///
    /// # Errors
    /// [`VmmError::MulticastDisabled`] if multicast is disabled in this process. [`Misuse::Value`]
    /// if devices are missing. If the call fails, this value is dropped.
    pub fn complete(self) -> Result<Team, VmmError> {
        multicast_switch()?;
        let (found, expected) = (self.devices.len(), self.object.properties.devices);
        match found == expected as usize {
            true => Ok(self.into_team(None)),
            false => Err(wrong_value("Building::complete", "devices added", found, &format!("{expected}"))),
        }
    }

    /// Converts this value to a [`Team`]. The caller must have checked that the devices of all
    /// members have been added to the object.
    pub(super) fn into_team(self, members: Option<Arc<[Pe]>>) -> Team {
        Team { object: self.object, devices: self.devices.into(), members }
    }

    /// Waits for all PEs of the job. Returns the complete team, if the PEs have together added all
    /// devices.
    ///
    /// # Collective
    /// All PEs of the job call this function, each with a handle to the same object. `label` names
    /// the object, and must be the same on all PEs. If groups of PEs have separate objects, for
    /// example one object per machine, use [`collective`](super::collective) instead.
    ///
    /// # Errors
    /// [`VmmError::MulticastDisabled`] if multicast is disabled on this PE; the other PEs get
    /// [`VmmError::Peer`]. [`Misuse::Value`] on all PEs if devices are missing, or if two PEs added
    /// the same device. [`Misuse::Diverged`] on all PEs if the PEs have different objects.
    /// [`VmmError::Timeout`] if PEs do not arrive by the deadline; the error names these PEs.
    pub fn complete_with(self, rendezvous: &Rendezvous, label: &str) -> Result<Team, VmmError> {
        let Object { properties, id, .. } = *self.object;
        // The text includes the id, so the exchange fails if the PEs have different objects.
        let call = format!("Building::complete_with({label}, {id:?}, {properties:?})");
        // Devices are named by host and PCI address, because ordinals differ among processes. A
        // device that two PEs added counts once.
        let name =
            |device: &usize| raw::pci_address(*device).map(|address| format!("{:016x} {address}\n", rendezvous.host().number()));
        let allowed = multicast_switch().map_err(VmmError::from);
        let mine = allowed.and_then(|()| self.devices.iter().map(name).collect::<Result<String, VmmError>>());
        let round = format!("peerweave-vmm/multicast/{label}/complete");
        let names = agree(rendezvous, &round, &call, mine.map(String::into_bytes))?;
        let all: BTreeSet<&[u8]> = names.iter().flat_map(|names| names.split_inclusive(|byte| *byte == b'\n')).collect();
        let all = all.len() as u64;
        match all == u64::from(properties.devices) {
            true => Ok(self.into_team(None)),
            false => {
                let expected = format!("{}", properties.devices);
                Err(wrong_value("Building::complete_with", "the number of devices that all PEs have added", all, &expected))
            }
        }
    }
}

impl Team {
    /// Returns the properties of the object.
    pub fn properties(&self) -> MulticastProperties {
        self.object.properties
    }

    /// Returns the id of the object.
    pub fn id(&self) -> MulticastId {
        self.object.id
    }

    /// Returns the granularity of memory that can be bound to the object.
    pub fn granularity(&self) -> MulticastGranularity {
        self.object.granularity
    }

    /// Returns the driver's handle to the object, like [`Building::as_raw`]. This crate does not
    /// know memory that the caller binds through this handle: [`bound`](Self::bound) does not count
    /// the memory. To unbind the memory, call [`unbind`](Self::unbind).
    pub fn as_raw(&self) -> CUmemGenericAllocationHandle {
        self.object.handle
    }

    /// Returns the ordinals of the devices that this process has added.
    pub fn devices(&self) -> &[usize] {
        &self.devices
    }
}

impl Object {
    pub(super) fn handle(&self) -> CUmemGenericAllocationHandle {
        self.handle
    }

    pub(super) fn granularity(&self) -> MulticastGranularity {
        self.granularity
    }

    /// Marks a range of the object as occupied by a binding on `device`. Fails if a part of the
    /// range is already occupied on `device`.
    pub(super) fn occupy(&self, call: &'static str, device: usize, start: usize, bytes: usize) -> Result<Range<usize>, Misuse> {
        let range = range_of(call, start, bytes, self.properties.bytes)?;
        aligned(call, "offset", start, self.granularity.minimum)?;
        aligned(call, "bytes", bytes, self.granularity.minimum)?;
        let mut bound = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        let before = bound.range((device, 0)..(device, range.end)).next_back();
        if before.is_some_and(|(_, end)| *end > range.start) {
            return Err(Misuse::Occupied { call, start: range.start, end: range.end });
        }
        bound.insert((device, range.start), range.end);
        Ok(range)
    }

    /// Checks that no binding of this process covers a part of the range.
    pub(super) fn check_vacant(&self, call: &'static str, device: usize, range: &Range<usize>) -> Result<(), Misuse> {
        let bound = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        match bound.range((device, 0)..(device, range.end)).next_back() {
            Some((_, end)) if *end > range.start => Err(Misuse::Occupied { call, start: range.start, end: range.end }),
            _ => Ok(()),
        }
    }

    pub(super) fn vacate(&self, device: usize, start: usize) {
        self.bound.lock().unwrap_or_else(PoisonError::into_inner).remove(&(device, start));
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: this value owned the handle, and every binding and mapping of the object kept
        // this value alive.
        unsafe { release(&self.context, self.handle) };
    }
}

impl fmt::Debug for Building {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Building({:?}, devices {:?} added here)", self.object.properties, self.devices)
    }
}

impl fmt::Debug for Team {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Team({:?}, devices {:?} of this process)", self.object.properties, self.devices)
    }
}
