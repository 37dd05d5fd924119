//! Arrays of 32-bit words in pinned host memory, which the host and running kernels access.
//! Peerweave uses such words for reports of kernels and for abort requests.
//!
//! Invariant: host and kernels access each word by single accesses of 32 bits, never through a
//! reference to plain data. During a copy from words, no other code writes the words. During a copy
//! to words, no other code accesses the words.

use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use super::api::{api, done};
use crate::cudarc::driver::CudaContext;
use crate::cudarc::driver::sys::CUdeviceptr;
use crate::library::bind;
use crate::streams::reaper;
use crate::{CudaStream, DriverError, Keep, Streams, relaxed};

/// An array of 32-bit words in pinned host memory, initially zero. The host and kernels on one
/// device read and write the words. Clones are handles to the same words.
#[derive(Clone)]
pub struct MappedWords(Arc<Words>);

struct Words {
    host: Pinned,
    device: CUdeviceptr,
    len: usize,
    context: Arc<CudaContext>,
    streams: Streams,
}

#[derive(Clone, Copy)]
struct Pinned(NonNull<AtomicU32>);

// SAFETY: the shared values are atomic words and an address. The orderings of the atomic accesses
// synchronise threads. The test `mapped_words_are_visible_to_kernels_and_threads` would catch a
// violation.
unsafe impl Send for Pinned {}
// SAFETY: the shared values are the same words, synchronised as above. The test
// `mapped_words_are_visible_to_kernels_and_threads` would catch a violation.
unsafe impl Sync for Pinned {}

impl MappedWords {
    /// Allocates `len` words that kernels on the context's device can access. The words are aligned
    /// to at least 128 bytes.
    ///
    /// # Errors
    /// [`DriverError::TooLarge`] if the length in bytes overflows, or an error of the driver.
    pub fn new(context: &Arc<CudaContext>, len: usize) -> Result<Self, DriverError> {
        /// The flags `CU_MEMHOSTALLOC_PORTABLE` and `CU_MEMHOSTALLOC_DEVICEMAP`.
        const FLAGS: u32 = 1 | 2;
        const CALL: &str = "MappedWords::new";
        let bytes = len.max(1).checked_mul(size_of::<u32>());
        let bytes = bytes.ok_or(DriverError::TooLarge { call: CALL, count: len, element_bytes: size_of::<u32>() })?;
        let api = api()?;
        bind(context)?;
        let mut host: *mut c_void = std::ptr::null_mut();
        // SAFETY: the pointer is to a live pointer.
        done("cuMemHostAlloc", relaxed(|| unsafe { api.cuMemHostAlloc(&raw mut host, bytes, FLAGS) }))?;
        let mut device = 0;
        // SAFETY: the memory was just allocated, and the pointer is to a live address.
        let mapped = done("cuMemHostGetDevicePointer_v2", unsafe { api.cuMemHostGetDevicePointer_v2(&raw mut device, host, 0) });
        if let Err(error) = mapped {
            // SAFETY: the memory has no other user.
            let _ = unsafe { api.cuMemFreeHost(host) };
            return Err(error);
        }
        // SAFETY: the memory has `bytes` bytes, and no other user yet.
        unsafe { host.cast::<u8>().write_bytes(0, bytes) };
        let host = NonNull::new(host.cast()).expect("cuMemHostAlloc succeeded, so it returned an address");
        let context = Arc::clone(context);
        Ok(Self(Arc::new(Words { host: Pinned(host), device, len, context, streams: Streams::new() })))
    }

    /// Returns the word at `index`.
    ///
    /// # Panics
    /// If the index is out of range.
    pub fn word(&self, index: usize) -> &AtomicU32 {
        assert!(index < self.0.len, "the index of the word is {index}, expected less than {}", self.0.len);
        // SAFETY: the index is below the length. The memory lives as long as a handle, and is only
        // accessed atomically.
        unsafe { self.0.host.0.add(index).as_ref() }
    }

    /// Returns the host address of the byte range that starts at the offset `at` and has `bytes`
    /// bytes. Panics if the range is not within the words.
    fn range(&self, at: usize, bytes: usize) -> *mut u8 {
        let len = self.0.len * size_of::<u32>();
        assert!(
            at <= len && bytes <= len - at,
            "the byte range is {at}..{end}, expected a range within {len} bytes",
            end = at.saturating_add(bytes)
        );
        self.0.host.0.as_ptr().cast::<u8>().wrapping_add(at)
    }

    /// Copies `into.len()` bytes of the words to `into`. `at` is the byte offset of the first
    /// copied byte.
    ///
    /// # Panics
    /// If the range is not within the words.
    ///
    /// # Safety
    /// No kernel and no thread writes these bytes during the call.
    pub unsafe fn read_bytes(&self, at: usize, into: &mut [u8]) {
        let from = self.range(at, into.len());
        // SAFETY: the range is in the memory, which lives as long as a handle. The caller
        // guarantees that no other code writes the range.
        unsafe { from.copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) };
    }

    /// Copies the bytes `from` into the words. `at` is the byte offset of the first written byte.
    ///
    /// # Panics
    /// As for [`read_bytes`](Self::read_bytes).
    ///
    /// # Safety
    /// No kernel and no other thread accesses these bytes during the call.
    pub unsafe fn write_bytes(&self, at: usize, from: &[u8]) {
        // SAFETY: as in `read_bytes`; the caller guarantees that nothing else accesses the range.
        unsafe { self.range(at, from.len()).copy_from_nonoverlapping(from.as_ptr(), from.len()) };
    }

    /// Returns the address at which kernels access the word at `index`.
    ///
    /// # Panics
    /// As for [`word`](Self::word).
    pub fn device_address(&self, index: usize) -> CUdeviceptr {
        assert!(index < self.0.len, "the index of the word is {index}, expected less than {}", self.0.len);
        self.0.device + (index * size_of::<u32>()) as u64
    }

    /// Records that the caller is about to enqueue work on `stream` that uses the words. The words
    /// are freed only after that work has completed.
    pub fn note(&self, stream: &Arc<CudaStream>) {
        self.0.streams.note(stream);
    }

    /// Returns an owner that keeps the words allocated.
    pub fn keep(&self) -> Keep {
        Arc::<Words>::clone(&self.0)
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        let host = self.host;
        let free = move || {
            // Moves the whole `Pinned`, because the pointer in it is not `Send`.
            let whole: Pinned = host;
            // SAFETY: `MappedWords::new` allocated the memory, the last handle was dropped, and the
            // streams that used the memory have completed that work.
            let freed =
                api().and_then(|api| done("cuMemFreeHost", relaxed(|| unsafe { api.cuMemFreeHost(whole.0.as_ptr().cast()) })));
            if let Err(error) = freed {
                tracing::warn!(%error, "cannot free pinned memory, so the memory is leaked");
            }
        };
        reaper::retire(&self.context, self.streams.all(), Box::new(free));
    }
}

impl fmt::Debug for MappedWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "MappedWords({len} words, host address {host:p}, address {address:#x} on device {ordinal})",
            len = self.0.len,
            host = self.0.host.0,
            address = self.0.device,
            ordinal = self.0.context.ordinal()
        )
    }
}
