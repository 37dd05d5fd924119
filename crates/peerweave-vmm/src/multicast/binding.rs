//! Memory behind a multicast object: bound while the value lives.
//!
//! Invariants: the memory and the object outlive the binding; it is unbound after every mapping of the object that could reach it is gone, since those keep it.

use std::fmt;
use std::sync::Arc;

use peerweave_driver::cudarc::driver::sys::CUdevice;
use peerweave_driver::{CudaContext, Keep, retire};

use super::aligned;
use super::object::{Object, Team};
use crate::buffer::wrong_value;
use crate::error::{Misuse, VmmError};
use crate::mapping::Mapping;
use crate::physical::PhysicalMemory;
use crate::raw;
use crate::reservation::range_of;

/// Memory of one device behind a part of a multicast object. Dropping it unbinds.
#[must_use = "dropping it unbinds the memory"]
pub struct Binding {
    place: Place,
    /// Taken when it is dropped.
    memory: Option<Keep>,
    context: Arc<CudaContext>,
}

/// A part of a device's share of an object that is taken. Dropping it makes room again.
struct Place {
    object: Arc<Object>,
    device: usize,
    start: usize,
    bytes: usize,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.object.vacate(self.device, self.start);
    }
}

impl Team {
    /// Puts `bytes` of `memory`, from `memory_offset` on, behind the object at `offset`. All in bytes, all multiples of the granularity.
    ///
    /// # Errors
    /// [`Misuse::Unaligned`], [`Misuse::OutOfRange`], [`Misuse::Occupied`]; [`Misuse::Value`] for memory of a device that this process did not add, or that is less exportable than the object; what the driver says.
    pub fn bind(&self, memory: &PhysicalMemory, offset: usize, memory_offset: usize, bytes: usize) -> Result<Binding, VmmError> {
        let call = "Team::bind";
        range_of(call, memory_offset, bytes, memory.bytes())?;
        aligned(call, "memory_offset", memory_offset, self.granularity().minimum)?;
        let context = memory.context();
        self.check_exportable(call, memory)?;
        let place = self.place(call, context.ordinal(), offset, bytes)?;
        raw::bind(context)?;
        // SAFETY: both handles are live, and the team is complete, so that the call does not wait for devices.
        let code =
            unsafe { raw::api()?.cuMulticastBindMem(self.object.handle(), offset, memory.handle(), memory_offset, bytes, 0) };
        raw::done("cuMulticastBindMem", code)?;
        Ok(Binding { place, memory: Some(Arc::new(memory.clone())), context: Arc::clone(context) })
    }

    /// As [`bind`](Self::bind), for memory that is mapped: `bytes` of `mapping`, from `mapping_offset` on.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn bind_mapping(
        &self,
        mapping: &Mapping,
        offset: usize,
        mapping_offset: usize,
        bytes: usize,
    ) -> Result<Binding, VmmError> {
        let call = "Team::bind_mapping";
        range_of(call, mapping_offset, bytes, mapping.bytes())?;
        aligned(call, "mapping_offset", mapping_offset, self.granularity().minimum)?;
        let Some(memory) = mapping.physical() else {
            return Err(wrong_value(call, "mapping", "of a multicast object", "a mapping of physical memory"));
        };
        self.check_exportable(call, memory)?;
        let context = Arc::clone(memory.context());
        let place = self.place(call, context.ordinal(), offset, bytes)?;
        raw::bind(&context)?;
        let address = mapping.address() + mapping_offset as u64;
        // SAFETY: the handle is live and the range is mapped while the mapping lives, which the binding keeps; the team is complete.
        let code = unsafe { raw::api()?.cuMulticastBindAddr(self.object.handle(), offset, address, bytes, 0) };
        raw::done("cuMulticastBindAddr", code)?;
        Ok(Binding { place, memory: Some(mapping.keep()), context })
    }

    /// What other processes may import must not hold memory that they may not.
    fn check_exportable(&self, call: &'static str, memory: &PhysicalMemory) -> Result<(), VmmError> {
        let (object, memory) = (self.properties().exportable, memory.exportable());
        let fits = (memory.file_descriptor || !object.file_descriptor) && (memory.fabric || !object.fabric);
        match fits {
            true => Ok(()),
            false => Err(wrong_value(call, "exportable", format!("{memory:?}"), &format!("what the object is: {object:?}"))),
        }
    }

    fn place(&self, call: &'static str, device: usize, offset: usize, bytes: usize) -> Result<Place, Misuse> {
        if !self.devices.contains(&device) {
            let (value, expected) =
                (format!("of device {device}"), format!("of one of the devices {:?}, which this process added", self.devices));
            return Err(Misuse::Value { call, what: "memory", value, expected });
        }
        let range = self.object.occupy(call, device, offset, bytes)?;
        Ok(Place { object: Arc::clone(&self.object), device, start: range.start, bytes })
    }
}

impl Binding {
    /// The device whose memory it is.
    pub fn device(&self) -> usize {
        self.place.device
    }

    /// Whether it belongs to this object.
    pub(super) fn is_of(&self, object: &Arc<Object>) -> bool {
        Arc::ptr_eq(&self.place.object, object)
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        let Place { ref object, device, start, bytes } = self.place;
        // The range stays taken until it is unbound, so the place goes along.
        let place = Place { object: Arc::clone(object), device, start, bytes };
        let number = CUdevice::try_from(device).unwrap_or(CUdevice::MAX);
        retire(
            &self.context,
            [],
            Box::new(move || {
                let handle = place.object.handle();
                // SAFETY: this value bound that range; every mapping that reached it kept it, and is gone with its streams' work.
                let code = raw::api().map(|api| unsafe { api.cuMulticastUnbind(handle, number, start, bytes) });
                match code.and_then(|code| raw::done("cuMulticastUnbind", code)) {
                    Ok(()) => drop((place, memory)),
                    Err(error) => {
                        // Still bound: the memory and the object must stay.
                        tracing::warn!(%error, "a multicast binding is leaked");
                        std::mem::forget((place, memory));
                    }
                }
            }),
        );
    }
}

impl fmt::Debug for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { device, start, bytes, .. } = self.place;
        write!(f, "Binding({bytes} bytes of device {device} at offset {start})")
    }
}
