//! Copies the data of a put, a get or a point-to-point message.

use crate::ops::tuning::STREAMING_COPY;
use crate::simd;

/// Copies `bytes` bytes. A long copy bypasses the caches.
///
/// # Safety
/// As for [`simd::copy()`].
#[inline]
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if bytes >= STREAMING_COPY {
            simd::copy_streaming(to, from, bytes);
        } else {
            simd::copy(to, from, bytes);
        }
    }
}
