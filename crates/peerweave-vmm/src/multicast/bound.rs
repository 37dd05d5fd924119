//! A multicast object with memory bound to all of it, and its addresses.
//!
//! Invariant: an address exists only while every device of this process has memory bound to every
//! byte of the object, by bindings that the value owns. A collective call establishes the same for
//! the other processes; after it, no process unbinds its memory on its own.

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

/// A multicast object with memory of every device. Clones are handles of the same object.
///
/// Dropping the last handle and mapping is local, and unbinds this process's memory. The other
/// processes must have stopped storing before: a store is a fault if some device has no memory
/// bound there.
#[derive(Clone)]
pub struct Bound {
    inner: Arc<Inner>,
}

/// The state that a mapping keeps alive.
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
    /// Returns the object with its bindings, if this process added all devices.
    ///
    /// # Errors
    /// [`MulticastDisabled`](super::MulticastDisabled). [`Misuse::Value`](crate::Misuse::Value) for
    /// a binding of another object, a device whose `bindings` leave a gap (other live bindings do
    /// not count), or a team with devices of other processes. The bindings are dropped after an
    /// error.
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

    /// Returns the object with its bindings, after all PEs of the job have bound their memory.
    ///
    /// # Collective
    /// All PEs of the job, also those with other objects. `label` is the same on all and names the
    /// objects.
    ///
    /// # Errors
    /// As for [`bound`](Self::bound), on all PEs. [`Misuse::Diverged`](crate::Misuse::Diverged) on
    /// all PEs if PEs that created an object together hold different ones. The bindings are dropped
    /// after these errors. As for every collective call: if this PE timed out, it cannot know
    /// whether another PE already stores, so its bindings are leaked.
    pub fn bound_with(self, rendezvous: &Rendezvous, label: &str, bindings: Vec<Binding>) -> Result<Bound, VmmError> {
        Ok(self.agree_on_bound(rendezvous, label, bindings)?)
    }

    /// Implements [`bound_with`](Self::bound_with). The error also tells whether other PEs know of
    /// it.
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
            // All PEs have the same data, and come to the same result.
            Ok(objects) => {
                check_objects(&call, &objects).map_err(Disagreement::Known)?;
                Ok(self.into_bound(bindings))
            }
            Err(Disagreement::Unknown(error)) if others_know => {
                tracing::warn!(%error, ?bindings, "multicast bindings are leaked, because other PEs may store there");
                // They keep the object alive too.
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

/// Returns the first byte of a device's part of an object of `bytes` that these bindings do not
/// cover. Other bindings do not count, because they may be dropped at any time.
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
    /// object unbinds the memory later, and only logs an error.
    ///
    /// The other processes must have stopped storing before this call.
    ///
    /// # Errors
    /// [`Misuse::Value`](crate::Misuse::Value) if other handles or mappings exist, or dropped ones
    /// are not released yet (wait with [`peerweave_driver::settle`]): this handle is then dropped,
    /// and this call unbinds nothing. Otherwise the first error of [`Binding::unbind`]; the other
    /// bindings are unbound in any case.
    pub fn unbind(self) -> Result<(), VmmError> {
        let handles = Arc::strong_count(&self.inner) - 1;
        let Some(inner) = Arc::into_inner(self.inner) else {
            let value = format!("used by {handles} other handles and mappings");
            return Err(wrong_value("Bound::unbind", "the object", value, "an object without other users"));
        };
        inner.bindings.into_iter().map(Binding::unbind).fold(Ok(()), Result::and)
    }

    /// Maps the first `bytes` of the object at `offset` of a reservation, readable and writable by
    /// these devices of this process.
    ///
    /// # Errors
    /// [`MulticastDisabled`](super::MulticastDisabled);
    /// [`Misuse::OutOfRange`](crate::Misuse::OutOfRange),
    /// [`Misuse::Unaligned`](crate::Misuse::Unaligned),
    /// [`Misuse::Occupied`](crate::Misuse::Occupied) as for [`Reservation::map`]; errors of the
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

    /// Like [`map`](Self::map), with the streams that unmapping must wait for.
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

/// Addresses at which a store reaches the memory of every device of the team, and a reducing load
/// reads all of them.
///
/// This is not a device buffer, because a plain load or a copy from it is undefined. Clones are
/// handles of the same mapping.
#[derive(Clone, Debug)]
pub struct MulticastMapping {
    mapping: Mapping,
}

impl MulticastMapping {
    /// Returns the first address, for kernels. It is valid while a handle of the mapping lives.
    pub fn address(&self) -> CUdeviceptr {
        self.mapping.address()
    }

    /// Returns its length in bytes.
    pub fn bytes(&self) -> usize {
        self.mapping.bytes()
    }

    /// Returns the address for work that is about to be enqueued on `stream`. The memory stays
    /// mapped until the stream has completed that work. If the work is captured into a graph, the
    /// graph must also hold the owner that [`keep`](Self::keep) returns.
    pub fn access(&self, stream: &Arc<CudaStream>) -> Access<'_> {
        self.mapping.note(stream);
        Access::new(self.address())
    }

    /// Returns an owner that keeps the address valid, for graphs.
    pub fn keep(&self) -> Keep {
        self.mapping.keep()
    }
}

impl fmt::Debug for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bound({:?})", self.inner.object.properties)
    }
}
