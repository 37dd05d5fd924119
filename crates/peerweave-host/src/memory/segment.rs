//! The memory of a job: one range with one segment for each PE. If PEs are processes, each process
//! maps the range. If PEs are threads, they share one mapping.
//!
//! `layout.rs` describes the content.

use crate::memory::layout::{Layout, Segments};
use crate::platform::{Region, ShareError};
use peerweave_bootstrap::Rendezvous;
use peerweave_types::Pe;
use std::io;
use std::time::Duration;

/// The memory of the segments of all PEs.
#[derive(Debug)]
pub(crate) struct Mapping {
    segments: Segments,
    /// The mapped memory, which stays mapped until this field is dropped.
    _region: Region,
}

impl Mapping {
    /// Allocates memory that is private to this process.
    pub(crate) fn own(layout: Layout) -> io::Result<Self> {
        Ok(Self::of(Region::own(layout.total_bytes(), layout.align(), &what(&layout))?, layout))
    }

    /// Maps the memory of a job whose PEs are processes. PE 0 creates the memory. Collective over
    /// all `members`.
    pub(crate) fn of_job(rendezvous: &Rendezvous, members: &[Pe], layout: Layout, within: Duration) -> Result<Self, ShareError> {
        let (creates, size) = (rendezvous.pe().get() == 0, (layout.total_bytes(), layout.align()));
        let region = Region::shared(rendezvous, members, creates, size, &what(&layout), within)?;
        Ok(Self::of(region, layout))
    }

    fn of(region: Region, layout: Layout) -> Self {
        // SAFETY: [L1] the region has the size and alignment of the layout, and was initially zero.
        // `Mapping` keeps the region mapped.
        let segments = unsafe { Segments::new(region.base(), layout) };
        Self { segments, _region: region }
    }

    /// Returns the addresses of the segments of all PEs in this mapping. A segment is the part of
    /// the mapping that belongs to one PE.
    pub(crate) fn segments(&self) -> Segments {
        self.segments
    }
}

/// Describes the memory, for error messages.
fn what(layout: &Layout) -> String {
    let Layout { n_pes, heap_bytes, .. } = layout;
    let plural = if *n_pes == 1 { "" } else { "s" };
    format!("{n_pes} PE{plural} with {heap_bytes} bytes of heap each")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn memory_is_aligned_and_initially_zero() {
        for heap_bytes in [1 << 20, 5 << 20, 100 << 20] {
            let layout = Layout::new(2, heap_bytes).unwrap();
            let mapping = Mapping::own(layout).unwrap();
            for pe in 0..2 {
                let page: *const _ = mapping.segments().page(pe);
                assert!(
                    page.addr().is_multiple_of(layout.align()),
                    "the page is at {page:?}, expected a multiple of {}",
                    layout.align()
                );
                assert_eq!(mapping.segments().page(pe).state.load(Ordering::Relaxed), 0);
            }
        }
    }
}
