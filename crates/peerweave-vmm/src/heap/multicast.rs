//! Multicast addresses of the symmetric heap. A store to one multicast address writes the segments
//! (each PE's memory) of all PEs, at the same offset in each segment.
//!
//! Invariant: the offset of a location is the same in the range of multicast addresses and in the
//! segments.

use std::fmt;
use std::sync::{Arc, Weak};

use peerweave_driver::cudarc::driver::sys::CUdeviceptr;
use peerweave_types::{Element, SymOffset};

use crate::agree::{Disagreement, agree};
use crate::error::{Misuse, VmmError};
use crate::heap::HeapInner;
use crate::heap::symmetric::SymmetricMemory;
use crate::heap::view::SymmetricView;
use crate::memory::physical::PhysicalMemory;
use crate::memory::reservation::Reservation;
use crate::multicast::collective::create_together;
use crate::multicast::{MulticastMapping, MulticastView};
use crate::{SymmetricHeap, multicast_switch};

/// The multicast addresses of a heap's segments, up to the size that the heap had when this value
/// was created.
///
/// Dropping the value is not collective. The drop unbinds this PE's memory from the multicast
/// objects after this PE's streams have completed their work. The other PEs must have stopped
/// storing to the addresses before the drop. Synchronise the PEs by a barrier or another collective
/// call.
pub struct HeapMulticast {
    /// A weak reference to the heap. The reference does not keep the heap's memory allocated.
    heap: Weak<HeapInner>,
    addresses: Reservation,
    /// Offset and length of each chunk in bytes.
    chunks: Vec<(u64, u64)>,
    mappings: Vec<MulticastMapping>,
    bytes: u64,
}

impl SymmetricHeap {
    /// Creates a multicast object for each chunk of this heap, and maps each object at the offset
    /// of its chunk.
    ///
    /// Each object is as long as its chunk. The lengths are multiples of the driver's recommended
    /// granularity if the heap was created with
    /// [`HeapOptions::multicast`](crate::HeapOptions::multicast).
    ///
    /// # Collective
    /// All PEs of the job call this function.
    ///
    /// # Errors
    /// [`VmmError::MulticastDisabled`] if multicast is disabled on this PE; the driver is then not
    /// called, and the other PEs get [`VmmError::Peer`]. [`VmmError::Unsupported`] if a requirement
    /// of multicast is not met; the error describes the requirement. [`VmmError::Peer`] if another
    /// PE failed or was lost. [`VmmError::Timeout`] if PEs do not arrive by the deadline; the error
    /// names these PEs. [`VmmError::Driver`] if a driver call fails.
    ///
    /// If this PE cannot know how the call ended on the other PEs, the heap is unusable afterwards.
    /// Memory that is already bound is leaked, because another PE may store to it through a
    /// multicast address.
    pub fn multicast(&self) -> Result<HeapMulticast, VmmError> {
        const CALL: &str = "SymmetricHeap::multicast";
        self.collectively(CALL, |inner| {
            let chunks = self.physical();
            let bytes = chunks.last().map_or(0, |(start, memory)| start + memory.bytes() as u64);
            let rounds = Rounds { heap: self, inner, call: format!("{CALL}({bytes} bytes)") };
            // In the first exchange each PE reports whether multicast is enabled.
            let addresses = rounds.agree("reserved", self.reserve(bytes, inner.alignment_bytes()))?;
            let mut mappings = Vec::with_capacity(chunks.len());
            for (start, memory) in &chunks {
                match rounds.map(&addresses, *start, memory) {
                    Ok(mapping) => mappings.push(mapping),
                    Err(disagreement) => {
                        if let Disagreement::Unknown(_) = &disagreement {
                            // Another PE may have mapped all chunks, and may store to these
                            // addresses.
                            std::mem::forget(mappings);
                        }
                        return Err(disagreement);
                    }
                }
            }
            let chunks = chunks.iter().map(|(start, memory)| (*start, memory.bytes() as u64)).collect();
            Ok(HeapMulticast { heap: Arc::downgrade(inner), addresses, chunks, mappings, bytes })
        })
    }

    fn reserve(&self, bytes: u64, alignment_bytes: usize) -> Result<Reservation, VmmError> {
        multicast_switch()?;
        self.geometry()?;
        Reservation::new(self.context(), usize::try_from(bytes).unwrap_or(usize::MAX), alignment_bytes)
    }
}

/// The data of one call of `SymmetricHeap::multicast`. The call has several steps, and the PEs
/// exchange their outcomes after each step.
struct Rounds<'a> {
    heap: &'a SymmetricHeap,
    inner: &'a Arc<HeapInner>,
    call: String,
}

impl Rounds<'_> {
    /// Exchanges the outcomes of a step with the other PEs. Returns this PE's result if the step
    /// succeeded on all PEs.
    fn agree<R>(&self, what: &str, done: Result<R, VmmError>) -> Result<R, Disagreement> {
        let label = format!("peerweave-vmm/multicast/{:016x}/{what}", self.inner.id);
        let outcome = done.as_ref().map(|_| Vec::new()).map_err(Clone::clone);
        match (agree(&self.inner.rendezvous, &label, &self.call, outcome), done) {
            (Ok(_), Ok(done)) => Ok(done),
            (Err(disagreement), _) => Err(disagreement),
            (Ok(_), Err(error)) => Err(Disagreement::Known(error)),
        }
    }

    /// Creates a multicast object for one chunk, together with the other PEs. Then binds this PE's
    /// memory of the chunk to the object, and maps the object.
    fn map(&self, addresses: &Reservation, start: u64, memory: &PhysicalMemory) -> Result<MulticastMapping, Disagreement> {
        let (rendezvous, context, bytes) = (&self.inner.rendezvous, self.heap.context(), memory.bytes());
        let label = format!("{:016x}/{start}", self.inner.id);
        let team = create_together(rendezvous, context, self.heap.members(), &label, bytes)?;
        let binding = self.agree(&format!("{start}/binding"), team.bind(memory, 0, 0, bytes))?;
        let bound = team.agree_on_bound(rendezvous, &label, vec![binding])?;
        // The streams of the multicast addresses are recorded for the heap. Freeing memory of the
        // heap waits for these streams.
        let streams = Arc::clone(&self.inner.multicast);
        let mapped = bound.map_for(addresses, start as usize, bytes, &[context.ordinal()], streams);
        let kept = mapped.as_ref().ok().cloned();
        let agreed = self.agree(&format!("{start}/mapped"), mapped);
        if let Err(Disagreement::Unknown(error)) = &agreed {
            // Another PE may know that the object is mapped on all PEs, and may store to its
            // address.
            tracing::warn!(%error, "a multicast mapping of a heap is leaked, because another PE may store to its address");
            std::mem::forget(kept);
        }
        agreed
    }
}

impl HeapMulticast {
    /// Returns the multicast address of the byte at `offset` in the heap.
    ///
    /// # Errors
    /// [`Misuse::OutOfRange`] if the offset is between chunks, or is beyond the size that the heap
    /// had when this value was created.
    pub fn address_of(&self, offset: SymOffset) -> Result<CUdeviceptr, VmmError> {
        self.range("HeapMulticast::address_of", offset, 1)
    }

    /// Returns the addresses through which a kernel accesses `memory`: the address on each PE, and
    /// the multicast address. A store to the multicast address writes `memory` on all PEs.
    ///
    /// The result is valid while this value and a handle to the memory live. Before you enqueue
    /// work that uses the result, record the stream in two places. Call `read` or `write` on
    /// `memory`, and [`MulticastMapping::access`] on each of the [`mappings`](Self::mappings).
    ///
    /// # Errors
    /// The errors of [`address_of`](Self::address_of). [`Misuse::OtherHeap`] if the memory belongs
    /// to another heap.
    pub fn view<T: Element>(&self, memory: &SymmetricMemory<T>) -> Result<SymmetricView, VmmError> {
        // This check also refuses another PE's handle of the same heap, because that PE has other
        // addresses.
        if !std::ptr::eq(self.heap.as_ptr(), Arc::as_ptr(memory.block().heap())) {
            return Err(Misuse::OtherHeap { call: "HeapMulticast::view" }.into());
        }
        let view = memory.view()?;
        let multicast = self.range("HeapMulticast::view", memory.offset(), view.bytes)?;
        Ok(view.with_multicast(multicast))
    }

    /// Returns a view of the elements of `memory` at their multicast address, for kernels.
    ///
    /// # Errors
    /// The errors of [`view`](Self::view).
    pub fn elements<T: Element>(&self, memory: &SymmetricMemory<T>) -> Result<MulticastView<T>, VmmError> {
        Ok(MulticastView::new(self.view(memory)?.multicast, memory.len()))
    }

    /// Returns the mapping of each chunk. Call [`MulticastMapping::access`] to record each stream
    /// that uses a mapping. [`SymmetricHeap::free`] waits for all recorded streams.
    pub fn mappings(&self) -> &[MulticastMapping] {
        &self.mappings
    }

    fn range(&self, call: &'static str, offset: SymOffset, bytes: u64) -> Result<CUdeviceptr, VmmError> {
        match offset.0.checked_add(bytes) {
            Some(end) if covers(&self.chunks, offset.0, end) => Ok(self.addresses.base() + offset.0),
            _ => {
                let (start, len) = (offset.0 as usize, self.bytes as usize);
                Err(Misuse::OutOfRange { call, start, end: start.saturating_add(bytes as usize), len, unit: "bytes" }.into())
            }
        }
    }
}

/// Returns whether the chunks cover `start..end` without a gap. `chunks` has the offset and length
/// of each chunk, in ascending order.
fn covers(chunks: &[(u64, u64)], start: u64, end: u64) -> bool {
    let reached =
        chunks.iter().fold(start, |at, (chunk, bytes)| if (*chunk..chunk + bytes).contains(&at) { chunk + bytes } else { at });
    reached >= end && (start < end || chunks.iter().any(|(chunk, bytes)| (*chunk..=chunk + bytes).contains(&start)))
}

impl fmt::Debug for HeapMulticast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeapMulticast({} bytes at {:#x})", self.bytes, self.addresses.base())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heap_range_with_unmapped_bytes_has_no_multicast_address() {
        let chunks = [(0, 10), (10, 5), (20, 10)];
        for (start, end) in [(0, 10), (3, 15), (14, 15), (20, 30), (29, 30), (7, 7), (30, 30)] {
            assert!(covers(&chunks, start, end), "{start}..{end}");
        }
        for (start, end) in [(14, 16), (15, 20), (15, 16), (3, 21), (19, 21), (29, 31), (30, 31), (17, 17), (40, 40)] {
            assert!(!covers(&chunks, start, end), "{start}..{end}");
        }
    }
}
