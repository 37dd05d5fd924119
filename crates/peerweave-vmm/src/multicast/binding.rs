//! Memory bound to a multicast object. Dropping the binding unbinds the memory.
//!
//! Invariants: the memory and the object outlive the binding. A mapping of the object owns the
//! bindings of all memory that the mapping can access. Memory is therefore unbound only after these
//! mappings are dropped.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use peerweave_driver::cudarc::driver::sys::{CUdevice, CUdeviceptr};
use peerweave_driver::{CudaContext, Keep, multicast_switch, retire};

use super::aligned;
use super::object::{Object, Team};
use crate::error::{Misuse, VmmError};
use crate::memory::buffer::wrong_value;
use crate::memory::mapping::Mapping;
use crate::memory::physical::PhysicalMemory;
use crate::memory::reservation::range_of;
use crate::raw;

/// A binding of one device's memory to a range of a multicast object. Dropping the value unbinds
/// the memory.
#[must_use = "dropping the binding unbinds the memory"]
pub struct Binding {
    /// The occupied range of the object, and the owner of the memory. When the binding is dropped,
    /// a background thread unbinds the memory, and then drops both. Until then, the range stays
    /// occupied.
    parts: Option<(Place, Keep)>,
    device: usize,
    range: Range<usize>,
    context: Arc<CudaContext>,
}

/// A range of a multicast object that is occupied on one device. Dropping this value frees the
/// range.
struct Place {
    object: Arc<Object>,
    device: usize,
    range: Range<usize>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.object.vacate(self.device, self.range.start);
    }
}

impl Team {
    /// Binds a part of `memory` to a range of the multicast object. The part has `bytes` bytes, and
    /// starts at `memory_offset`. The range has the same length, and starts at `offset`. `offset`,
    /// `memory_offset` and `bytes` must be multiples of the granularity.
    ///
    /// # Errors
    /// [`MulticastDisabled`](super::MulticastDisabled) if multicast is disabled in this process.
    /// [`Misuse::Unaligned`](crate::Misuse::Unaligned) if `offset`, `memory_offset` or `bytes` is
    /// not a multiple of the granularity. [`Misuse::OutOfRange`](crate::Misuse::OutOfRange) if a
    /// range is empty, or exceeds the memory or the object.
    ///
    /// [`Misuse::Occupied`](crate::Misuse::Occupied) if a part of the object's range is already
    /// bound to memory of the same device as `memory`. Dropping a binding does not unbind its
    /// memory at once; [`peerweave_driver::drain_retired`] waits until the memory is unbound.
    ///
    /// [`Misuse::Value`](crate::Misuse::Value) if this process did not add the device of `memory`
    /// to the object, or if the memory lacks a handle type that the object has. The same error is
    /// returned for imported memory, because the device of imported memory is unknown.
    /// [`VmmError::Driver`] if a driver call fails.
    pub fn bind(&self, memory: &PhysicalMemory, offset: usize, memory_offset: usize, bytes: usize) -> Result<Binding, VmmError> {
        let call = "Team::bind";
        multicast_switch()?;
        range_of(call, memory_offset, bytes, memory.bytes())?;
        aligned(call, "memory_offset", memory_offset, self.granularity().minimum)?;
        let context = memory.context();
        let place = self.place(call, memory, offset, bytes)?;
        raw::bind(context)?;
        // SAFETY: both handles are live. The team is complete, so the call does not wait for
        // devices.
        let code =
            unsafe { raw::api()?.cuMulticastBindMem(self.object.handle(), offset, memory.handle(), memory_offset, bytes, 0) };
        raw::done("cuMulticastBindMem", code)?;
        Ok(Binding::new(place, Arc::new(memory.clone()), context))
    }

    /// Binds a range of mapped memory to a range of the multicast object, like
    /// [`bind`](Self::bind). The range of `mapping` starts at `mapping_offset`. The range of the
    /// multicast object starts at `offset`. Both ranges have `bytes` bytes.
    ///
    /// # Errors
    /// The errors of [`bind`](Self::bind). [`Misuse::Value`](crate::Misuse::Value) also if
    /// `mapping` is a mapping of a multicast object.
    pub fn bind_mapping(
        &self,
        mapping: &Mapping,
        offset: usize,
        mapping_offset: usize,
        bytes: usize,
    ) -> Result<Binding, VmmError> {
        let call = "Team::bind_mapping";
        multicast_switch()?;
        range_of(call, mapping_offset, bytes, mapping.bytes())?;
        aligned(call, "mapping_offset", mapping_offset, self.granularity().minimum)?;
        let Some(memory) = mapping.physical() else {
            return Err(wrong_value(call, "mapping", "a mapping of a multicast object", "a mapping of physical memory"));
        };
        let context = memory.context();
        let place = self.place(call, memory, offset, bytes)?;
        raw::bind(context)?;
        let address = mapping.address() + mapping_offset as u64;
        // SAFETY: the handle is live, and the team is complete. The binding keeps the mapping
        // alive, so the range stays mapped.
        let code = unsafe { raw::api()?.cuMulticastBindAddr(self.object.handle(), offset, address, bytes, 0) };
        raw::done("cuMulticastBindAddr", code)?;
        Ok(Binding::new(place, mapping.keep(), context))
    }

    /// Binds memory that another library has allocated, like [`bind`](Self::bind). The memory has
    /// `bytes` bytes at `address`, on the device of `context`.
    ///
    /// `keep` is dropped when the memory is unbound. By then, all mappings of the object that could
    /// access the memory have been dropped, and the streams that used these mappings have
    /// completed.
    ///
    /// # Errors
    /// [`MulticastDisabled`](super::MulticastDisabled) if multicast is disabled in this process.
    /// [`Misuse::Value`](crate::Misuse::Value) if this process did not add the device, or if the
    /// memory exceeds the address space. [`Misuse::Unaligned`](crate::Misuse::Unaligned) if
    /// `address`, `offset` or `bytes` is not a multiple of the granularity.
    /// [`Misuse::OutOfRange`](crate::Misuse::OutOfRange) and
    /// [`Misuse::Occupied`](crate::Misuse::Occupied) in the same cases as [`bind`](Self::bind).
    /// [`VmmError::Driver`] if a driver call fails.
    ///
    /// # Safety
    /// The memory must have been mapped by CUDA's virtual memory management. The physical memory
    /// must be on the device of `context`, and must have the handle types of the object. The memory
    /// must stay mapped while a clone of `keep` lives.
    pub unsafe fn bind_address(
        &self,
        context: &Arc<CudaContext>,
        offset: usize,
        address: CUdeviceptr,
        bytes: usize,
        keep: Keep,
    ) -> Result<Binding, VmmError> {
        let call = "Team::bind_address";
        multicast_switch()?;
        let granularity = self.granularity().minimum;
        aligned(call, "address", usize::try_from(address).unwrap_or(usize::MAX), granularity)?;
        if address.checked_add(bytes as u64).is_none() {
            return Err(wrong_value(call, "bytes", bytes, "a range inside the address space"));
        }
        let place = self.place_on(call, context.ordinal(), offset, bytes)?;
        raw::bind(context)?;
        // SAFETY: the handle is live, and the team is complete. The caller guarantees that the
        // range is mapped and stays mapped.
        let code = unsafe { raw::api()?.cuMulticastBindAddr(self.object.handle(), offset, address, bytes, 0) };
        raw::done("cuMulticastBindAddr", code)?;
        Ok(Binding::new(place, keep, context))
    }

    /// Unbinds the memory of `device` from the `bytes` bytes of the object that start at `offset`.
    /// This function is only for memory that the caller bound by a driver call, with the handle
    /// that [`as_raw`](Self::as_raw) returns. To unbind a [`Binding`], call [`Binding::unbind`] or
    /// drop the binding.
    ///
    /// This function works even if multicast is disabled.
    ///
    /// # Errors
    /// [`Misuse::Occupied`](crate::Misuse::Occupied) if a [`Binding`] of this process covers a part
    /// of the range. [`Misuse::Value`](crate::Misuse::Value) if this process did not add the
    /// device. [`Misuse::Unaligned`](crate::Misuse::Unaligned) if `offset` or `bytes` is not a
    /// multiple of the granularity. [`Misuse::OutOfRange`](crate::Misuse::OutOfRange) if the range
    /// is empty or exceeds the object. [`VmmError::Driver`] if a driver call fails, for example
    /// because no memory is bound to the range.
    ///
    /// # Safety
    /// Until memory is bound to the range again, no device of the team may run work that uses a
    /// multicast address of the range.
    pub unsafe fn unbind(&self, device: usize, offset: usize, bytes: usize) -> Result<(), VmmError> {
        let call = "Team::unbind";
        self.check_added(call, device)?;
        let range = range_of(call, offset, bytes, self.properties().bytes)?;
        aligned(call, "offset", offset, self.granularity().minimum)?;
        aligned(call, "bytes", bytes, self.granularity().minimum)?;
        self.object.check_vacant(call, device, &range)?;
        unbind(&self.object, device, &range)
    }

    fn check_added(&self, call: &'static str, device: usize) -> Result<(), Misuse> {
        match self.devices.contains(&device) {
            true => Ok(()),
            false => {
                let expected = format!("one of the devices that this process added ({:?})", self.devices);
                Err(Misuse::Value { call, what: "device", value: device.to_string(), expected })
            }
        }
    }

    /// Marks a range of the object as occupied on `device`. Fails if this process has not added
    /// `device` to the object.
    fn place_on(&self, call: &'static str, device: usize, offset: usize, bytes: usize) -> Result<Place, VmmError> {
        self.check_added(call, device)?;
        let range = self.object.occupy(call, device, offset, bytes)?;
        Ok(Place { object: Arc::clone(&self.object), device, range })
    }

    /// Checks that `memory` can be exported as every handle type that the multicast object
    /// supports.
    fn check_exportable(&self, call: &'static str, memory: &PhysicalMemory) -> Result<(), VmmError> {
        let (object, memory) = (self.properties().exportable, memory.exportable());
        let fits = (memory.file_descriptor || !object.file_descriptor) && (memory.fabric || !object.fabric);
        match fits {
            true => Ok(()),
            false => Err(wrong_value(
                call,
                "exportable",
                format!("{memory:?}"),
                &format!("the handle types of the object: {object:?}"),
            )),
        }
    }

    /// Checks that `memory` can be bound to the object, and occupies `bytes` bytes of the object,
    /// from `offset` on.
    fn place(&self, call: &'static str, memory: &PhysicalMemory, offset: usize, bytes: usize) -> Result<Place, VmmError> {
        self.check_exportable(call, memory)?;
        let Some(device) = memory.device().filter(|device| self.devices.contains(device)) else {
            let value = memory.device().map_or("imported memory".into(), |device| format!("memory of device {device}"));
            let expected = format!(
                "memory that this process created on one of the devices {:?} (the devices that this process added to the object)",
                self.devices
            );
            return Err(wrong_value(call, "memory", value, &expected));
        };
        self.place_on(call, device, offset, bytes)
    }
}

/// Unbinds the memory of `device` from a range of an object.
fn unbind(object: &Object, device: usize, range: &Range<usize>) -> Result<(), VmmError> {
    let number = CUdevice::try_from(device).unwrap_or(CUdevice::MAX);
    // SAFETY: the handle is live, and the driver refuses a range without bound memory. The caller
    // ensures that no device stores to the range any more.
    let code = unsafe { raw::api()?.cuMulticastUnbind(object.handle(), number, range.start, range.len()) };
    raw::done("cuMulticastUnbind", code)
}

impl Binding {
    fn new(place: Place, memory: Keep, context: &Arc<CudaContext>) -> Self {
        let (device, range) = (place.device, place.range.clone());
        Self { parts: Some((place, memory)), device, range, context: Arc::clone(context) }
    }

    /// Returns the ordinal of the device that owns the bound memory.
    pub fn device(&self) -> usize {
        self.device
    }

    /// Returns the range of the object, in bytes, to which the memory is bound.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Unbinds the memory immediately, and returns an error if unbinding fails. In contrast,
    /// dropping the binding unbinds the memory later, and only logs an error.
    ///
    /// # Errors
    /// [`VmmError::Driver`] if a driver call fails. In that case the memory is still bound, and
    /// both the memory and the object are leaked.
    pub fn unbind(mut self) -> Result<(), VmmError> {
        let Some((place, memory)) = self.parts.take() else { return Ok(()) };
        // No mapping can access the memory: a mapping keeps its bindings in a `Bound`, and this
        // binding is not in a `Bound`.
        let unbound = raw::bind(&self.context).and_then(|()| unbind(&place.object, place.device, &place.range));
        if unbound.is_err() {
            std::mem::forget((place, memory));
        }
        unbound
    }

    /// Returns whether this is a binding to `object`. Returns `false` after an unbind.
    pub(super) fn is_of(&self, object: &Arc<Object>) -> bool {
        self.parts.as_ref().is_some_and(|(place, _)| Arc::ptr_eq(&place.object, object))
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        let Some((place, memory)) = self.parts.take() else { return };
        retire(
            &self.context,
            [],
            Box::new(move || {
                // Every mapping that could access the memory kept this binding, and was dropped
                // after its streams had completed.
                match unbind(&place.object, place.device, &place.range) {
                    Ok(()) => drop((place, memory)),
                    Err(error) => {
                        // The memory is still bound, so the memory and the object must stay. They
                        // are forgotten before logging, because logging may panic.
                        std::mem::forget((place, memory));
                        tracing::warn!(%error, "a multicast binding that could not be unbound is leaked");
                    }
                }
            }),
        );
    }
}

impl fmt::Debug for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Binding({} bytes of device {} at offset {})", self.range.len(), self.device, self.range.start)
    }
}
