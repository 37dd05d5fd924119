//! The correct word, and words with one weakened memory order.

use loom::sync::atomic::{AtomicU64, Ordering, fence};
use peerweave_device::Word;

/// A word type for a scenario.
pub(crate) trait TestWord: Word + Default + Send + Sync + 'static {}
impl<T: Word + Default + Send + Sync + 'static> TestWord for T {}

/// The word of the crate for the model checker, with the orders that it guarantees.
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
    /// Neither a read nor a fence acquires.
    NoAcquire, acquire: Relaxed, release: Release, rmw: AcqRel
);
weakened!(
    /// Neither a write nor a fence releases.
    NoRelease, acquire: Acquire, release: Relaxed, rmw: AcqRel
);
weakened!(
    /// A read-modify-write does not release.
    RmwNoRelease, acquire: Acquire, release: Release, rmw: Acquire
);
