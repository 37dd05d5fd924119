//! A multicast object to which every device has bound memory, and its mappings.
//!
//! Invariant: a mapping exists only while every device of this process has memory bound to every
//! byte of the object. The mapping owns these bindings. A collective call ensures the same for the
//! other processes. After that call, a process may unbind its memory only when no other process
//! stores to the object.

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

/// A multicast object to which all devices have bound memory. Clones are handles of the same
/// object.
///
/// Dropping the last handle and mapping is local, and unbinds this process's memory. The other
/// processes must have stopped storing to the object before the drop: a store is a fault if a
/// device has no memory bound to that range.
#[derive(Clone)]
pub struct Bound {
    inner: Arc<Inner>,
}

/// The object and its bindings. A mapping keeps them alive.
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
    /// Returns the object with its bindings if this process added all devices.
    ///
    /// # Errors
    /// [`MulticastDisabled`](super::MulticastDisabled) if multicast is disabled in this process.
    /// [`Misuse::Value`](crate::Misuse::Value) for a binding of another object, for a device whose
    /// `bindings` leave a gap, or for a team with devices of other processes. Live bindings that
    /// are not in `bindings` do not count. The bindings are dropped after an error.
    pub fn bound(self, bindings: Vec<Binding>) -> Result<Bound, VmmError> {
        let (here, all) = (self.devices.len(), self.properties().devices);
        if here != all as usize {
            return Err(wrong_value(
                "Team::bound",
                "the number of devices of this process",
                here,
                &format!("{all}: use Team::bound_with"),
            ));
        }
        self.check("Team::bound", &bindings)?;
        Ok(self.into_bound(bindings))
    }

    /// Returns the object with its bindings after all PEs of the job have bound their memory.
    ///
    /// # Collective
    /// All PEs of the job, including PEs with separate objects. `label` is the same on all PEs and
    /// names the objects.
    ///
    /// # Errors
    /// As for [`bound`](Self::bound), on all PEs. [`Misuse::Diverged`](crate::Misuse::Diverged) on
    /// all PEs if PEs of one team have different objects. The bindings are dropped after these
    /// errors.
    ///
    /// [`VmmError::Timeout`] names the PEs that did not arrive. A PE that timed out cannot know
    /// whether another PE already stores to its memory, so its bindings are leaked.
    pub fn bound_with(self, rendezvous: &Rendezvous, label: &str, bindings: Vec<Binding>) -> Result<Bound, VmmError> {
        Ok(self.agree_on_bound(rendezvous, label, bindings)?)
    }

    /// Implements [`bound_with`](Self::bound_with). The error type tells whether the other PEs know
    /// of the error.
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
                let found = format!("without a binding at byte {gap}");
                return Err(wrong_value(
                    call,
                    "the bound memory",
                    format!("{found} of device {device}"),
                    "a binding of every byte",
                ));
            }
        }
        Ok(())
    }

    fn into_bound(self, bindings: Vec<Binding>) -> Bound {
        Bound { inner: Arc::new(Inner { object: self.object, bindings }) }
    }
}

/// Returns the first byte of an object of `bytes` to which `bindings` bind no memory of `device`.
/// Other bindings do not count, because they may be dropped at any time.
fn first_gap(bindings: &[Binding], device: usize, bytes: usize) -> Option<usize> {
    let mut ranges: Vec<Range<usize>> =
        bindings.iter().filter(|binding| binding.device() == device).map(Binding::range).collect();
    ranges.sort_by_key(|range| range.start);
    let covered = ranges.iter().fold(0, |covered, range| if range.start <= covered { range.end.max(covered) } else { covered });
    (covered < bytes).then_some(covered)
}

impl Bound {
    /// Returns the driver's handle, like [`Building::as_raw`](super::Building::as_raw).
    pub fn as_raw(&self) -> CUmemGenericAllocationHandle {
        self.inner.handle()
    }

    /// Unbinds this process's memory now and returns whether unbinding succeeded. Dropping the
    /// object instead unbinds the memory later, and only logs an error.
    ///
    /// The other processes must have stopped storing to the object before this call.
    ///
    /// # Errors
    /// [`Misuse::Value`](crate::Misuse::Value) if other handles or mappings exist, or dropped ones
    /// are not released yet; [`peerweave_driver::settle`] waits for that. This handle is then
    /// dropped, and this call unbinds no memory. If there are no other users, all bindings are
    /// unbound, and the first error of [`Binding::unbind`] is returned.
    pub fn unbind(self) -> Result<(), VmmError> {
        let handles = Arc::strong_count(&self.inner) - 1;
        let Some(inner) = Arc::into_inner(self.inner) else {
            let value = format!("used by {handles} other handles and mappings");
            return Err(wrong_value("Bound::unbind", "the object", value, "an object without other users"));
        };
        inner.bindings.into_iter().map(Binding::unbind).fold(Ok(()), Result::and)
    }

    /// Maps the first `bytes` of the object at `offset` of a reservation. `devices` of this process
    /// can read and write the mapping.
    ///
    /// # Errors
    /// [`MulticastDisabled`](super::MulticastDisabled) if multicast is disabled in this process.
    /// [`Misuse::OutOfRange`](crate::Misuse::OutOfRange),
    /// [`Misuse::Unaligned`](crate::Misuse::Unaligned) and
    /// [`Misuse::Occupied`](crate::Misuse::Occupied) as for [`Reservation::map`]. Errors of the
    /// driver.
    pub fn map(
        &self,
        addresses: &Reservation,
        offset: usize,
        bytes: usize,
        devices: &[usize],
    ) -> Result<MulticastMapping, VmmError> {
        self.map_for(addresses, offset, bytes, devices, Arc::default())
    }

    /// Maps like [`map`](Self::map). `streams` are the streams that unmapping must wait for.
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

/// A mapped multicast object. A store writes the memory of every device of the team, and a reducing
/// load reads the memory of every device.
///
/// This is not a device buffer, because a plain load or a copy from it is undefined. Clones are
/// handles of the same mapping.
#[derive(Clone, Debug)]
pub struct MulticastMapping {
    mapping: Mapping,
}

impl MulticastMapping {
    /// Returns the first address, for kernels. The address is valid while a handle of the mapping
    /// lives.
    pub fn address(&self) -> CUdeviceptr {
        self.mapping.address()
    }

    /// Returns the length of the mapping in bytes.
    pub fn bytes(&self) -> usize {
        self.mapping.bytes()
    }

    /// Returns the address for work that is about to be enqueued on `stream`. The memory stays
    /// mapped until the stream has completed that work. If the work is captured into a graph, the
    /// graph must also own the value of [`keep`](Self::keep).
    pub fn access(&self, stream: &Arc<CudaStream>) -> Access<'_> {
        self.mapping.note(stream);
        Access::new(self.address())
    }

    /// Returns an owner that keeps the address valid. A graph that uses the address must own it.
    pub fn keep(&self) -> Keep {
        self.mapping.keep()
    }
}

impl fmt::Debug for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bound({:?})", self.inner.object.properties)
    }
}
