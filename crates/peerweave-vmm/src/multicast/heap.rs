//! The symmetric heap at multicast addresses: a store at an offset reaches that offset of every PE's segment.
//!
//! Invariant: what is mapped here is bound to the very memory of the heap's chunks, at the same offsets.

use std::fmt;

use peerweave_driver::cudarc::driver::sys::CUdeviceptr;
use peerweave_types::{Element, SymOffset};

use super::bound::MulticastMapping;
use super::collective;
use crate::error::{Misuse, VmmError};
use crate::reservation::Reservation;
use crate::symmetric::SymmetricMemory;
use crate::view::SymmetricView;
use crate::{SymmetricHeap, multicast_switch};

/// A heap's segments at multicast addresses. Covers what the heap had when it was made.
///
/// Dropping it is local, and takes this PE's memory out of the objects once its own streams are through. Before that, the other PEs must have
/// stopped storing: meet them, by a barrier or another collective call.
pub struct HeapMulticast {
    addresses: Reservation,
    mappings: Vec<MulticastMapping>,
    bytes: u64,
}

impl SymmetricHeap {
    /// Makes a multicast object for each chunk of this heap and maps them at the chunks' offsets.
    ///
    /// # Collective
    /// All PEs of the job.
    ///
    /// # Errors
    /// [`VmmError::MulticastDisabled`] before any call of the driver, and [`VmmError::Peer`] on the others; [`VmmError::Unsupported`] with what it needs; as every collective call.
    pub fn multicast(&self) -> Result<HeapMulticast, VmmError> {
        let _no_other_call = self.begin("SymmetricHeap::multicast")?;
        // The first round of the first object tells the others of the switch; a heap always has a chunk.
        let (rendezvous, context, id) = self.for_multicast();
        let chunks = self.physical();
        let bytes = chunks.last().map_or(0, |(start, memory)| start + memory.bytes() as u64);
        let reserve = || {
            multicast_switch()?;
            self.geometry()?;
            Reservation::new(context, usize::try_from(bytes).unwrap_or(usize::MAX), 2 << 20)
        };
        let reserved = reserve();
        let label = format!("{id:016x}");
        let call = format!("SymmetricHeap::multicast({bytes} bytes)");
        let outcome = reserved.as_ref().map(|_| Vec::new()).map_err(Clone::clone);
        crate::agree::agree(rendezvous, &format!("peerweave-vmm/multicast/{label}/reserved"), &call, outcome)?;
        let addresses = reserved?;
        let mut mappings = Vec::new();
        for (start, memory) in &chunks {
            let label = format!("{label}/{start}");
            let team = collective(rendezvous, context, self.members(), &label, memory.bytes())?;
            let binding = team.bind(memory, 0, 0, memory.bytes());
            let outcome = binding.as_ref().map(|_| Vec::new()).map_err(Clone::clone);
            crate::agree::agree(rendezvous, &format!("peerweave-vmm/multicast/{label}/binding"), &call, outcome)?;
            let bound = team.bound_with(rendezvous, &label, vec![binding?])?;
            let mapped = bound.map(&addresses, *start as usize, memory.bytes(), &[context.ordinal()]);
            let outcome = mapped.as_ref().map(|_| Vec::new()).map_err(Clone::clone);
            crate::agree::agree(rendezvous, &format!("peerweave-vmm/multicast/{label}/mapped"), &call, outcome)?;
            mappings.push(mapped?);
        }
        Ok(HeapMulticast { addresses, mappings, bytes })
    }
}

impl HeapMulticast {
    /// The multicast address of an offset of the heap.
    ///
    /// # Errors
    /// [`Misuse::OutOfRange`] beyond what the heap had when this was made.
    pub fn address_of(&self, offset: SymOffset) -> Result<CUdeviceptr, VmmError> {
        self.range("HeapMulticast::address_of", offset, 1)
    }

    /// What a kernel needs to reach memory on every PE, one by one and all at once.
    ///
    /// Valid while this value and a handle of the memory live.
    ///
    /// # Errors
    /// As [`address_of`](Self::address_of).
    pub fn view<T: Element>(&self, memory: &SymmetricMemory<T>) -> Result<SymmetricView, VmmError> {
        let view = memory.view()?;
        let multicast = self.range("HeapMulticast::view", memory.offset(), view.bytes)?;
        Ok(view.with_multicast(multicast))
    }

    /// The mappings, chunk by chunk: to note the streams that use them.
    pub fn mappings(&self) -> &[MulticastMapping] {
        &self.mappings
    }

    fn range(&self, call: &'static str, offset: SymOffset, bytes: u64) -> Result<CUdeviceptr, VmmError> {
        match offset.0.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(self.addresses.base() + offset.0),
            _ => {
                let (start, len) = (offset.0 as usize, self.bytes as usize);
                Err(Misuse::OutOfRange { call, start, end: start.saturating_add(bytes as usize), len, unit: "bytes" }.into())
            }
        }
    }
}

impl fmt::Debug for HeapMulticast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeapMulticast({} bytes at {:#x})", self.bytes, self.addresses.base())
    }
}
