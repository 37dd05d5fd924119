//! A pair of asymmetric memory fences. Every call of [`Streams::note`](super::Streams::note)
//! executes the light fence. The thread that removes streams from a list executes the heavy fence.
//!
//! Invariant: for each execution of the light fence and each execution of the heavy fence, one of
//! two orders is guaranteed. Either the accesses before the light fence are visible after the heavy
//! fence, or the accesses before the heavy fence are visible after the light fence.

use std::sync::atomic::{Ordering, compiler_fence};

/// Executes the light fence, which compiles to no instruction. The light fence only prevents the
/// compiler from reordering memory accesses. [`heavy`] orders the processor's accesses.
#[inline]
pub(crate) fn light() {
    compiler_fence(Ordering::SeqCst);
}

/// Executes the heavy fence: every running thread of the process executes a memory fence. This call
/// takes microseconds. If the operating system has no function for this purpose, this call orders
/// nothing and returns `false`.
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) fn heavy() -> bool {
    use rustix::thread::{MembarrierCommand, membarrier};
    compiler_fence(Ordering::SeqCst);
    // The first call fails in a process that has not registered yet.
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
    fn fence_pair_prevents_both_threads_from_reading_old_values() {
        // Each thread writes its own word and reads the word of the other thread. Without a fence
        // both threads may read the old value.
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
