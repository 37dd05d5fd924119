//! A multicast object to which memory of every device is bound, and the mappings of the object.
//!
//! Invariant: a mapping exists only while every device of this process has memory bound to every
//! byte of the object. The mapping owns the bindings of this memory. If other processes have
//! devices in the object, a collective call ensures that these processes have bound their memory
//! too. After that call, a process may unbind its memory only when no other process stores to the
//! object.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use peerweave_bootstrap::Rendezvous;
use peerweave_driver::cudarc::driver::sys::{CUdeviceptr, CUmemGenericAllocationHandle};
use peerweave_driver::{Access, CudaStream, Keep, Streams, multicast_switch};
use peerweave_types::Pe;

use super::aligned;
use super::binding::Binding;
use super::collective::{check_objects, statement};
use super::object::{Object, Team};
use crate::agree::{Disagreement, agree};
use crate::error::VmmError;
use crate::memory::access::Rights;
use crate::memory::buffer::wrong_value;
use crate::memory::mapping::{Mapping, Source};
use crate::memory::reservation::{Reservation, range_of};

/// A handle to a multicast object to which memory of every device is bound. Clones are handles to
/// the same object.
///
/// Dropping the last handle and the last mapping is not collective, and unbinds this process's
/// memory. The other processes must have stopped storing to the object before the drop. A store
/// faults if a device has no memory bound to the range that the store writes.
#[derive(Clone)]
pub struct Bound {
    inner: Arc<Inner>,
}

/// A multicast object and its bindings. Each mapping of the object keeps this value alive.
pub(crate) struct Inner {
    object: Arc<Object>,
    bindings: Vec<Binding>,
}

impl Inner {
    pub(crate) fn handle(&self) -> CUmemGenericAllocationHandle {
        self.object.handle()
    }
}

impl Team {
    /// Combines the object with its bindings, so that the object can be mapped. Requires that this
    /// process has added all devices of the team.
    ///
    /// # Errors
    /// [`MulticastDisabled`](super::MulticastDisabled) if multicast is disabled in this process.
    /// [`Misuse::Value`](crate::Misuse::Value) if a binding belongs to another object, or if
    /// another process added a device. [`Misuse::Value`](crate::Misuse::Value) also if `bindings`
    /// do not cover every byte of the object for each device. Live bindings that are not in
    /// `bindings` do not count. If the call fails, `bindings` are dropped.
    pub fn bound(self, bindings: Vec<Binding>) -> Result<Bound, VmmError> {
        let (here, all) = (self.devices.len(), self.properties().devices);
        if here != all as usize {
            return Err(wrong_value(
                "Team::bound",
                "the number of devices that this process added",
                here,
                &format!("{all}; if other processes added devices, use Team::bound_with"),
            ));
        }
        self.check("Team::bound", &bindings)?;
        Ok(self.into_bound(bindings))
    }

    /// Combines the object with its bindings, so that the object can be mapped. Waits until all PEs
    /// of the job have bound their memory.
    ///
    /// # Collective
    /// All PEs of the job call this function, even if groups of PEs have separate objects. `label`
    /// names the objects, and must be the same on all PEs.
    ///
    /// # Errors
    /// [`MulticastDisabled`](super::MulticastDisabled) if multicast is disabled on this PE.
    /// [`Misuse::Value`](crate::Misuse::Value) if a binding belongs to another object, or if
    /// `bindings` do not cover every byte of the object for each device of this PE. In either case,
    /// the other PEs get [`VmmError::Peer`]. All PEs get
    /// [`Misuse::Diverged`](crate::Misuse::Diverged) if PEs of one team have different objects. The
    /// bindings are dropped after these errors.
    ///
    /// [`VmmError::Timeout`] if PEs do not arrive by the deadline; the error names these PEs. A PE
    /// whose call timed out cannot know whether another PE already stores to its memory. The
    /// bindings of such a PE are therefore leaked.
    pub fn bound_with(self, rendezvous: &Rendezvous, label: &str, bindings: Vec<Binding>) -> Result<Bound, VmmError> {
        Ok(self.agree_on_bound(rendezvous, label, bindings)?)
    }

    /// Implements [`bound_with`](Self::bound_with). Returns [`Disagreement::Known`] if every PE
    /// knows that the call failed, and [`Disagreement::Unknown`] otherwise.
    pub(crate) fn agree_on_bound(
        self,
        rendezvous: &Rendezvous,
        label: &str,
        bindings: Vec<Binding>,
    ) -> Result<Bound, Disagreement> {
        let call = format!("Team::bound_with({label})");
        let checked = self.check("Team::bound_with", &bindings);
        let others_know = checked.is_ok();
        let members = self.members.clone().unwrap_or_else(|| (0..rendezvous.n_pes()).map(Pe::new).collect());
        let object = statement(&members, &format!("{:?}, {:?}", self.id(), self.properties()));
        match agree(rendezvous, &format!("peerweave-vmm/multicast/{label}/bound"), &call, checked.map(|()| object)) {
            // All PEs have the same statements, and reach the same result.
            Ok(objects) => {
                check_objects(&call, &objects).map_err(Disagreement::Known)?;
                Ok(self.into_bound(bindings))
            }
            Err(Disagreement::Unknown(error)) if others_know => {
                tracing::warn!(%error, ?bindings, "multicast bindings are leaked, because other PEs may store to the memory");
                // The forgotten bindings also keep the object alive.
                std::mem::forget(bindings);
                Err(Disagreement::Unknown(error))
            }
            Err(disagreement) => Err(disagreement),
        }
    }

    fn check(&self, call: &'static str, bindings: &[Binding]) -> Result<(), VmmError> {
        multicast_switch()?;
        if let Some(binding) = bindings.iter().find(|binding| !binding.is_of(&self.object)) {
            return Err(wrong_value(call, "a binding", format!("{binding:?} of another object"), "a binding of this object"));
        }
        for device in self.devices.iter() {
            if let Some(gap) = first_gap(bindings, *device, self.properties().bytes) {
                let found = format!("byte {gap}");
                return Err(wrong_value(
                    call,
                    "the bound memory",
                    format!("incomplete: no memory of device {device} is bound to {found}"),
                    "memory that is bound to every byte of the multicast object",
                ));
            }
        }
        Ok(())
    }

    fn into_bound(self, bindings: Vec<Binding>) -> Bound {
        Bound { inner: Arc::new(Inner { object: self.object, bindings }) }
    }
}

/// Returns the lowest offset in a multicast object at which no binding in `bindings` binds memory
/// of `device`. Returns `None` if these bindings cover all `bytes` bytes of the object. Other
/// bindings are ignored, because they may be dropped at any time.
fn first_gap(bindings: &[Binding], device: usize, bytes: usize) -> Option<usize> {
    let mut ranges: Vec<Range<usize>> =
        bindings.iter().filter(|binding| binding.device() == device).map(Binding::range).collect();
    ranges.sort_by_key(|range| range.start);
    let covered = ranges.iter().fold(0, |covered, range| if range.start <= covered { range.end.max(covered) } else { covered });
    (covered < bytes).then_some(covered)
}

impl Bound {
    /// Returns the driver's handle to the object. The rules for its use are the rules of
    /// [`Building::as_raw`](super::Building::as_raw).
    pub fn as_raw(&self) -> CUmemGenericAllocationHandle {
        self.inner.handle()
    }

    /// Unbinds this process's memory immediately, and returns an error if unbinding fails. In
    /// contrast, dropping the object unbinds the memory later, and only logs an error.
    ///
    /// The other processes must have stopped storing to the object before this call.
    ///
    /// # Errors
    /// [`Misuse::Value`](crate::Misuse::Value) if other handles or mappings exist, or if dropped
    /// mappings have not been released yet. In this case the call drops `self`, but unbinds no
    /// memory. [`peerweave_driver::drain_retired`] waits until dropped mappings have been released.
    ///
    /// In all other cases the call tries to unbind all bindings, and returns the first error of
    /// [`Binding::unbind`].
    pub fn unbind(self) -> Result<(), VmmError> {
        let handles = Arc::strong_count(&self.inner) - 1;
        let Some(inner) = Arc::into_inner(self.inner) else {
            let value = format!("used by {handles} other handles and mappings");
            return Err(wrong_value("Bound::unbind", "the object", value, "an object without other handles and mappings"));
        };
        inner.bindings.into_iter().map(Binding::unbind).fold(Ok(()), Result::and)
    }

    /// Maps the first `bytes` bytes of the object. The mapping starts at byte `offset` of the
    /// reservation. `devices` lists the devices that get read and write access, as ordinals in this
    /// process.
    ///
    /// # Errors
    /// [`MulticastDisabled`](super::MulticastDisabled) if multicast is disabled in this process.
    /// [`Misuse::OutOfRange`](crate::Misuse::OutOfRange) if `bytes` is 0, if `bytes` exceeds the
    /// object, or if `offset + bytes` exceeds the reservation.
    /// [`Misuse::Unaligned`](crate::Misuse::Unaligned) if `bytes` is not a multiple of the
    /// granularity. [`Misuse::Occupied`](crate::Misuse::Occupied) if a part of the range is still
    /// mapped. [`Misuse::Value`](crate::Misuse::Value) if `devices` is empty. [`VmmError::Driver`]
    /// if a driver call fails.
    pub fn map(
        &self,
        addresses: &Reservation,
        offset: usize,
        bytes: usize,
        devices: &[usize],
    ) -> Result<MulticastMapping, VmmError> {
        self.map_for(addresses, offset, bytes, devices, Arc::default())
    }

    /// Maps the object like [`map`](Self::map). The object is unmapped only after the work of
    /// `streams` has completed.
    pub(crate) fn map_for(
        &self,
        addresses: &Reservation,
        offset: usize,
        bytes: usize,
        devices: &[usize],
        streams: Arc<Streams>,
    ) -> Result<MulticastMapping, VmmError> {
        let call = "Bound::map";
        multicast_switch()?;
        let object = &self.inner.object;
        range_of(call, 0, bytes, object.properties.bytes)?;
        aligned(call, "bytes", bytes, object.granularity().minimum)?;
        let source = Source::Multicast { handle: self.inner.handle(), _keep: Arc::<Inner>::clone(&self.inner) };
        let mapping = addresses.map_source(call, offset, source, bytes, streams)?;
        mapping.allow(devices, Rights::ReadWrite)?;
        Ok(MulticastMapping { mapping })
    }
}

/// A handle to a mapped multicast object. A store to the mapping writes the memory of every device
/// of the team, and a reducing load reads the memory of every device.
///
/// A mapping is not a device buffer, because a plain load or a copy from a multicast address is
/// undefined. Clones are handles to the same mapping.
#[derive(Clone, Debug)]
pub struct MulticastMapping {
    mapping: Mapping,
}

impl MulticastMapping {
    /// Returns the first address of the mapping, for kernels. The address is valid while a handle
    /// to the mapping lives.
    pub fn address(&self) -> CUdeviceptr {
        self.mapping.address()
    }

    /// Returns the length of the mapping in bytes.
    pub fn bytes(&self) -> usize {
        self.mapping.bytes()
    }

    /// Returns the address for work that is about to be enqueued on `stream`. The memory stays
    /// mapped until the stream has completed this work. If the work is captured into a graph, the
    /// graph must also own the value that [`keep`](Self::keep) returns.
    pub fn access(&self, stream: &Arc<CudaStream>) -> Access<'_> {
        self.mapping.note(stream);
        Access::new(self.address())
    }

    /// Returns a value that keeps the address valid. A graph that uses the address must own this
    /// value.
    pub fn keep(&self) -> Keep {
        self.mapping.keep()
    }
}

impl fmt::Debug for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bound({:?})", self.inner.object.properties)
    }
}
