//! A range of this process's private memory, allocated by Rust's allocator.

use crate::platform::ShareError;
use peerweave_bootstrap::Rendezvous;
use peerweave_types::Pe;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::time::Duration;

/// A range of memory, which was initially zero.
///
/// The allocator takes a large range from the system. The system fills a page with zeros when the
/// page is first used. If the alignment of the range is large, the allocator writes the zeros
/// itself, and so uses all pages. To avoid this, this type allocates a larger range with a small
/// alignment, and aligns the start.
#[derive(Debug)]
pub(crate) struct Region {
    allocated: *mut u8,
    layout: Layout,
    base: *mut u8,
}

// SAFETY: the shared data are numbers that never change, so they need no synchronization. The
// memory is accessed through `Segments`, which has its own argument. The conformance tests on
// threads would catch an error.
unsafe impl Send for Region {}
// SAFETY: as for Send, because the same numbers are shared, without synchronization. The same tests
// would catch an error.
unsafe impl Sync for Region {}

impl Region {
    /// Allocates `bytes` bytes at an address that is a multiple of `align`. `what` describes the
    /// range, for error messages.
    pub(crate) fn own(bytes: usize, align: usize, what: &str) -> io::Result<Self> {
        let too_large = || {
            let text = format!("cannot allocate {bytes} bytes for {what}; set PEERWEAVE_HEAP_BYTES to a smaller value");
            io::Error::new(io::ErrorKind::OutOfMemory, text)
        };
        let layout = bytes.max(1).checked_add(align).and_then(|span| Layout::from_size_align(span, 16).ok());
        let layout = layout.ok_or_else(too_large)?;
        // SAFETY: the size is not zero.
        let allocated = unsafe { alloc_zeroed(layout) };
        if allocated.is_null() {
            return Err(too_large());
        }
        let base = allocated.wrapping_add(allocated.addr().next_multiple_of(align) - allocated.addr());
        Ok(Self { allocated, layout, base })
    }

    /// Returns an error, because processes cannot share memory on this platform. A job of several
    /// processes does not reach this function, because `Host::join` refuses it first.
    pub(crate) fn shared(
        _rendezvous: &Rendezvous,
        _members: &[Pe],
        _creates: bool,
        _size: (usize, usize),
        _what: &str,
        _within: Duration,
    ) -> Result<Self, ShareError> {
        Err(io::Error::from(io::ErrorKind::Unsupported).into())
    }

    /// Returns the address at which the range starts.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: `own` allocated the range with this layout. All pointers into the range belong to
        // values that own the `Mapping` of this region: `Shared` owns the `Mapping`, and threads
        // own a `Shared`.
        unsafe { dealloc(self.allocated, self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_for_a_too_large_heap_names_the_environment_variable() {
        let error = Region::own(usize::MAX / 4, 2 << 20, "a test").unwrap_err();
        assert!(error.to_string().contains("PEERWEAVE_HEAP_BYTES"), "{error}");
        assert!(Region::own(usize::MAX, 2 << 20, "a test").is_err());
    }
}
