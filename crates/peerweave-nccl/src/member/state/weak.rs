//! Tests of the gate under weak memory, with Miri: loads may return old values, as the memory
//! orders allow without a fence.
//!
//! `MIRIFLAGS="-Zmiri-many-seeds=0..16 -Zmiri-disable-isolation" cargo +nightly miri test -p
//! peerweave-nccl --lib state::weak`. Only the orders of the seeds are tested. Invariant: the same
//! as in `model.rs`. That module explores every order with few preemptions, but only with explicit
//! fences.

use super::*;
use std::cell::UnsafeCell;
use std::sync::Arc;

/// Number of runs of each scenario with one seed.
const ROUNDS: usize = 3;

/// A gate, and whether the value that it guards was freed. If that flag is read and written without
/// order, it is a data race.
#[derive(Default)]
struct Guarded(Gate, UnsafeCell<bool>);

// SAFETY: the shared cell is watched by Miri, and synchronised by the gate: every test here checks
// that.
unsafe impl Sync for Guarded {}

impl Guarded {
    fn use_it(&self) {
        // SAFETY: a thread that uses the value is inside the gate, exclusively or as a reader.
        assert!(!unsafe { *self.1.get() }, "the value was used after it was freed");
    }

    /// Aborts.
    fn end(&self, patience: Duration) {
        self.0.close(State::Aborted).expect("the gate was open");
        self.0.drain(patience);
        // SAFETY: no thread is inside any more, or it checks the gate before it touches anything.
        unsafe { *self.1.get() = true };
    }
}

fn against_an_abort(patience: Duration, call: fn(&Guarded)) {
    for _ in 0..ROUNDS {
        let shared = Arc::new(Guarded::default());
        let theirs = Arc::clone(&shared);
        let calling = std::thread::spawn(move || call(&theirs));
        shared.end(patience);
        calling.join().expect("no panic");
    }
}

const LONG: Duration = Duration::from_secs(3_600);

#[test]
fn abort_during_try_enter_blocking_is_safe() {
    against_an_abort(LONG, |shared| {
        if let Some(_inside) = shared.0.try_enter_blocking() {
            shared.use_it();
        }
    });
}

#[test]
fn abort_during_enter_blocking_is_safe() {
    against_an_abort(LONG, |shared| {
        if let Ok(inside) = shared.0.enter(Allowed::LIVE, || Duration::ZERO)
            && inside.enter_blocking().is_ok()
        {
            shared.use_it();
            inside.leave_blocking();
            if !shared.0.is_closed() {
                shared.use_it();
            }
        }
    });
}

#[test]
fn abort_during_shared_entry_is_safe() {
    against_an_abort(LONG, |shared| {
        if let Ok(reader) = shared.0.enter_shared(Allowed::OPEN) {
            shared.use_it();
            let _ = reader.enter_blocking(|| shared.use_it());
        }
    });
}

#[test]
fn abort_during_revoke_is_safe() {
    against_an_abort(LONG, |shared| {
        if let Ok(reader) = shared.0.enter_shared(Allowed::OPEN)
            && shared.0.set(State::Revoked).is_ok()
        {
            let _ = reader.enter_blocking(|| shared.use_it());
        }
    });
}

#[test]
fn leave_blocking_after_abort_gave_up_is_safe() {
    against_an_abort(Duration::ZERO, |shared| {
        if let Ok(inside) = shared.0.enter(Allowed::LIVE, || Duration::ZERO)
            && inside.enter_blocking().is_ok()
        {
            inside.leave_blocking();
            if !shared.0.is_closed() {
                shared.use_it();
            }
        }
    });
}

#[test]
fn calls_exclude_each_other_and_see_earlier_writes() {
    struct Counted(Gate, UnsafeCell<u32>);
    // SAFETY: the shared cell is watched by Miri, and synchronised by the gate: this test checks
    // that.
    unsafe impl Sync for Counted {}
    fn call(shared: &Counted) -> u32 {
        let Some(_inside) = shared.0.try_enter_blocking() else { return 0 };
        // SAFETY: this thread is inside, alone.
        unsafe { *shared.1.get() += 1 };
        1
    }
    for _ in 0..ROUNDS {
        let shared = Arc::new(Counted(Gate::default(), UnsafeCell::new(0)));
        let theirs = Arc::clone(&shared);
        let calling = std::thread::spawn(move || call(&theirs) + call(&theirs));
        let mine = call(&shared) + call(&shared);
        let all = mine + calling.join().expect("no panic");
        // SAFETY: the other thread has ended.
        assert_eq!(unsafe { *shared.1.get() }, all);
    }
}
