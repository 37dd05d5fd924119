//! A multicast object with memory behind all of it, and its addresses.
//!
//! Invariant: an address exists only while every device of this process has memory bound behind
//! every byte of the object, by bindings that the value owns; that the other processes have is
//! learnt by a collective call, after which nobody who told so takes its own back by itself.

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

/// A multicast object with memory of every device behind it. Clones are handles of the same.
///
/// Dropping the last handle and mapping is local, and takes this process's memory out of the
/// object. Before that, the other processes must have stopped storing: a store that finds no memory
/// on some device is a fault.
#[derive(Clone)]
pub struct Bound {
    inner: Arc<Inner>,
}

/// What a mapping keeps.
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
    /// The object with what was bound to it, where this process added all devices.
    ///
    /// # Errors
    /// [`MulticastDisabled`](super::MulticastDisabled); [`Misuse::Value`](crate::Misuse::Value) for
    /// a binding of another object, a device with a gap in what `bindings` are behind (others do
    /// not count, though they live), or a team with devices of other processes. The bindings are
    /// dropped then.
    pub fn bound(self, bindings: Vec<Binding>) -> Result<Bound, VmmError> {
        let (here, all) = (self.devices.len(), self.properties().devices);
        if here != all as usize {
            return Err(wrong_value("Team::bound", "devices of this process", here, &format!("{all}, or Team::bound_with")));
        }
        self.check("Team::bound", &bindings)?;
        Ok(self.into_bound(bindings))
    }

    /// The object with what was bound to it, once all PEs of the job have bound theirs.
    ///
    /// # Collective
    /// All PEs of the job, also those that hold other objects. `label` is the same on all and names
    /// the objects.
    ///
    /// # Errors
    /// As [`bound`](Self::bound), told to all; [`Misuse::Diverged`](crate::Misuse::Diverged) on all
    /// where PEs that made an object together hold different ones; and the bindings are dropped; as
    /// every collective call. Where this PE cannot know whether the others were told that all is
    /// bound (it did not hear of them by the deadline), its bindings are leaked: another may store
    /// already.
    pub fn bound_with(self, rendezvous: &Rendezvous, label: &str, bindings: Vec<Binding>) -> Result<Bound, VmmError> {
        Ok(self.agree_on_bound(rendezvous, label, bindings)?)
    }

    /// The same, with what a failure means for the other PEs.
    pub(crate) fn agree_on_bound(
        self,
        rendezvous: &Rendezvous,
        label: &str,
        bindings: Vec<Binding>,
    ) -> Result<Bound, Disagreement> {
        let call = format!("Team::bound_with({label})");
        let checked = self.check("Team::bound_with", &bindings);
        let is_told_so = checked.is_ok();
        let members = self.members.clone().unwrap_or_else(|| (0..rendezvous.n_pes()).map(Pe::new).collect());
        let object = statement(&members, &format!("{:?}, {:?}", self.id(), self.properties()));
        match agree(rendezvous, &format!("peerweave-vmm/multicast/{label}/bound"), &call, checked.map(|()| object)) {
            // All read the same, and come to the same end.
            Ok(objects) => {
                check_objects(&call, &objects).map_err(Disagreement::Known)?;
                Ok(self.into_bound(bindings))
            }
            Err(Disagreement::Unknown(error)) if is_told_so => {
                tracing::warn!(%error, ?bindings, "multicast bindings are leaked, since others may store there");
                // They keep the object too.
                std::mem::forget(bindings);
                Err(Disagreement::Unknown(error))
            }
            Err(disagreement) => Err(disagreement),
        }
    }

    fn check(&self, call: &'static str, bindings: &[Binding]) -> Result<(), VmmError> {
        multicast_switch()?;
        if let Some(binding) = bindings.iter().find(|binding| !binding.is_of(&self.object)) {
            return Err(wrong_value(call, "a binding", format!("{binding:?} of another object"), "one of this object"));
        }
        for device in self.devices.iter() {
            if let Some(gap) = first_gap(bindings, *device, self.properties().bytes) {
                let found = format!("nothing at byte {gap}");
                return Err(wrong_value(call, "what is bound of a device", format!("{found} of device {device}"), "every byte"));
            }
        }
        Ok(())
    }

    fn into_bound(self, bindings: Vec<Binding>) -> Bound {
        Bound { inner: Arc::new(Inner { object: self.object, bindings }) }
    }
}

/// The first byte of a device's part of an object of `bytes` that none of these bindings is behind.
/// What is bound and was not handed over does not count: it may go at any moment.
fn first_gap(bindings: &[Binding], device: usize, bytes: usize) -> Option<usize> {
    let mut ranges: Vec<Range<usize>> =
        bindings.iter().filter(|binding| binding.device() == device).map(Binding::range).collect();
    ranges.sort_by_key(|range| range.start);
    let covered = ranges.iter().fold(0, |covered, range| if range.start <= covered { range.end.max(covered) } else { covered });
    (covered < bytes).then_some(covered)
}

impl Bound {
    /// The driver's handle, as [`Building::as_raw`](super::Building::as_raw).
    pub fn as_raw(&self) -> CUmemGenericAllocationHandle {
        self.inner.handle()
    }

    /// Takes this process's memory out of the object now, binding by binding, and says whether that
    /// worked; dropping does it later, and only logs.
    ///
    /// Before that, the other processes must have stopped storing.
    ///
    /// # Errors
    /// [`Misuse::Value`](crate::Misuse::Value) where there are other handles, or mappings, or what
    /// was dropped of them is not gone yet (wait by [`peerweave_driver::settle`]): then this handle
    /// is dropped, and nothing is unbound by this call. Otherwise the first error of
    /// [`Binding::unbind`]; the other bindings are unbound all the same.
    pub fn unbind(self) -> Result<(), VmmError> {
        let handles = Arc::strong_count(&self.inner) - 1;
        let Some(inner) = Arc::into_inner(self.inner) else {
            let value = format!("{handles} other handles and mappings");
            return Err(wrong_value("Bound::unbind", "what uses the object", value, "none"));
        };
        inner.bindings.into_iter().map(Binding::unbind).fold(Ok(()), Result::and)
    }

    /// Maps the first `bytes` of the object at `offset` of a reservation, for reading and writing
    /// by these devices of this process.
    ///
    /// # Errors
    /// [`MulticastDisabled`](super::MulticastDisabled);
    /// [`Misuse::OutOfRange`](crate::Misuse::OutOfRange),
    /// [`Misuse::Unaligned`](crate::Misuse::Unaligned),
    /// [`Misuse::Occupied`](crate::Misuse::Occupied) as by [`Reservation::map`]; what the driver
    /// says.
    pub fn map(
        &self,
        addresses: &Reservation,
        offset: usize,
        bytes: usize,
        devices: &[usize],
    ) -> Result<MulticastMapping, VmmError> {
        self.map_for(addresses, offset, bytes, devices, Arc::default())
    }

    /// As [`map`](Self::map), with the streams that unmapping must wait for.
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
/// reads them all.
///
/// No device buffer: a plain load or a copy from it means nothing. Clones are handles of the same
/// mapping.
#[derive(Clone, Debug)]
pub struct MulticastMapping {
    mapping: Mapping,
}

impl MulticastMapping {
    /// The first address. Using it is for kernels; it is valid while a handle of the mapping lives.
    pub fn address(&self) -> CUdeviceptr {
        self.mapping.address()
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.mapping.bytes()
    }

    /// The address for work that is about to be enqueued on `stream`: it stays mapped until the
    /// stream has passed that work. For work that is captured into a graph, the graph must have
    /// [`keep`](Self::keep) too.
    pub fn access(&self, stream: &Arc<CudaStream>) -> Access<'_> {
        self.mapping.note(stream);
        Access::new(self.address())
    }

    /// What keeps the address valid, for graphs.
    pub fn keep(&self) -> Keep {
        self.mapping.keep()
    }
}

impl fmt::Debug for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bound({:?})", self.inner.object.properties)
    }
}
