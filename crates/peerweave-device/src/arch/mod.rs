//! The memories that the protocols run on, one leaf each.
//!
//! No protocol is here. A leaf implements [`crate::Word`] for the atomic word of its memory and nothing else.

#[cfg(target_has_atomic = "64")]
mod host;
#[cfg(loom)]
mod loom;

/// Implements `Word` for an atomic type with the methods of `core::sync::atomic::AtomicU64`, given the `Ordering` that it takes
/// and the fence that goes with it.
macro_rules! word_by_atomic {
    ($atomic:ty, $ordering:ty, $fence:path) => {
        impl $crate::Word for $atomic {
            #[inline]
            fn load_relaxed(&self) -> u64 {
                self.load(<$ordering>::Relaxed)
            }

            #[inline]
            fn load_acquire(&self) -> u64 {
                self.load(<$ordering>::Acquire)
            }

            #[inline]
            fn store_relaxed(&self, value: u64) {
                self.store(value, <$ordering>::Relaxed);
            }

            #[inline]
            fn store_release(&self, value: u64) {
                self.store(value, <$ordering>::Release);
            }

            #[inline]
            fn fetch_add_acq_rel(&self, value: u64) -> u64 {
                self.fetch_add(value, <$ordering>::AcqRel)
            }

            #[inline]
            fn swap_acq_rel(&self, value: u64) -> u64 {
                self.swap(value, <$ordering>::AcqRel)
            }

            #[inline]
            fn compare_exchange_acq_rel(&self, current: u64, new: u64) -> Result<u64, u64> {
                self.compare_exchange(current, new, <$ordering>::AcqRel, <$ordering>::Acquire)
            }

            #[inline]
            fn fetch_and_acq_rel(&self, value: u64) -> u64 {
                self.fetch_and(value, <$ordering>::AcqRel)
            }

            #[inline]
            fn fetch_or_acq_rel(&self, value: u64) -> u64 {
                self.fetch_or(value, <$ordering>::AcqRel)
            }

            #[inline]
            fn fetch_xor_acq_rel(&self, value: u64) -> u64 {
                self.fetch_xor(value, <$ordering>::AcqRel)
            }

            #[inline]
            fn fence_release() {
                $fence(<$ordering>::Release);
            }

            #[inline]
            fn fence_acquire() {
                $fence(<$ordering>::Acquire);
            }
        }
    };
}
use word_by_atomic;
