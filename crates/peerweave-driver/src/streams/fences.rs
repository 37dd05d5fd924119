//! A pair of fences of which only the rare side pays: every call of a collective makes the light
//! one, who lets streams go makes the heavy one.
//!
//! Knows nothing of what is ordered. Invariant: for each light fence, what its thread did before it
//! is seen by whoever comes back from the heavy one, or what was done before the heavy one is seen
//! by what the thread does after it.

use std::sync::atomic::{Ordering, compiler_fence};

/// The side that is often. No instruction: the compiler alone is kept from moving memory accesses
/// over it, the processor by [`heavy`].
#[inline]
pub(crate) fn light() {
    compiler_fence(Ordering::SeqCst);
}

/// The side that is rare: the system has every thread of the process pass a fence. Microseconds.
/// `false` where it cannot, and nothing is ordered.
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) fn heavy() -> bool {
    use rustix::thread::{MembarrierCommand, membarrier};
    compiler_fence(Ordering::SeqCst);
    // A process says once that it will ask.
    let passed = membarrier(MembarrierCommand::PrivateExpedited).or_else(|_| {
        membarrier(MembarrierCommand::RegisterPrivateExpedited).and_then(|()| membarrier(MembarrierCommand::PrivateExpedited))
    });
    compiler_fence(Ordering::SeqCst);
    passed.is_ok()
}

#[cfg(any(not(target_os = "linux"), miri))]
pub(crate) fn heavy() -> bool {
    false
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn one_of_the_two_sides_sees_the_other() {
        // Each writes its own word and reads the other's: without a fence both may read what was
        // there before.
        let rounds = 5_000;
        let (often, rare) = (AtomicBool::new(false), AtomicBool::new(false));
        let (seen_by_often, barrier) = (AtomicBool::new(false), Barrier::new(2));
        let both_blind = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..rounds {
                    barrier.wait();
                    often.store(true, Ordering::Relaxed);
                    light();
                    seen_by_often.store(rare.load(Ordering::Relaxed), Ordering::Relaxed);
                    barrier.wait();
                    barrier.wait();
                }
            });
            for _ in 0..rounds {
                barrier.wait();
                rare.store(true, Ordering::Relaxed);
                assert!(heavy(), "this system has no membarrier");
                let seen_by_rare = often.load(Ordering::Relaxed);
                barrier.wait();
                both_blind.fetch_add(usize::from(!seen_by_rare && !seen_by_often.load(Ordering::Relaxed)), Ordering::Relaxed);
                often.store(false, Ordering::Relaxed);
                rare.store(false, Ordering::Relaxed);
                barrier.wait();
            }
        });
        assert_eq!(both_blind.into_inner(), 0);
    }
}
