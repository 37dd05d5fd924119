//! Word types for the scenarios: the correct word, and words with a weakened memory order.

use loom::sync::atomic::{AtomicU64, Ordering, fence};
use peerweave_device::Word;

/// A word type with which a scenario can run.
pub(crate) trait TestWord: Word + Default + Send + Sync + 'static {}
impl<T: Word + Default + Send + Sync + 'static> TestWord for T {}

/// The correct word: the atomic of loom, for which the crate implements [`Word`].
pub(crate) type Exact = AtomicU64;

macro_rules! weakened {
    ($(#[$doc:meta])* $name:ident, acquire: $acquire:ident, release: $release:ident, rmw: $rmw:ident) => {
        $(#[$doc])*
        #[derive(Default)]
        pub(crate) struct $name(AtomicU64);

        impl Word for $name {
            fn load_relaxed(&self) -> u64 {
                self.0.load(Ordering::Relaxed)
            }
            fn load_acquire(&self) -> u64 {
                self.0.load(Ordering::$acquire)
            }
            fn store_relaxed(&self, value: u64) {
                self.0.store(value, Ordering::Relaxed);
            }
            fn store_release(&self, value: u64) {
                self.0.store(value, Ordering::$release);
            }
            fn add_release(&self, value: u64) {
                let releases = matches!(Ordering::$rmw, Ordering::AcqRel | Ordering::Release);
                self.0.fetch_add(value, if releases { Ordering::Release } else { Ordering::Relaxed });
            }
            fn fence_release() {
                if Ordering::$release == Ordering::Release {
                    fence(Ordering::Release);
                }
            }
            fn fence_acquire() {
                if Ordering::$acquire == Ordering::Acquire {
                    fence(Ordering::Acquire);
                }
            }
        }
    };
}

weakened!(
    /// A word whose loads and fences do not acquire.
    NoAcquire, acquire: Relaxed, release: Release, rmw: AcqRel
);
weakened!(
    /// A word whose stores and fences do not release.
    NoRelease, acquire: Acquire, release: Relaxed, rmw: AcqRel
);
weakened!(
    /// A word whose read-modify-writes do not release.
    RmwNoRelease, acquire: Acquire, release: Release, rmw: Acquire
);
