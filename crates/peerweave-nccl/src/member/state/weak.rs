//! Tests of the gate under weak memory, with Miri. Miri lets a load return an old value if the
//! memory orders allow this.
//!
//! Command: `MIRIFLAGS="-Zmiri-many-seeds=0..16 -Zmiri-disable-isolation" cargo +nightly miri test
//! -p peerweave-nccl --lib state::weak`. Miri tests only the executions that the seeds select. In
//! CI, `model.rs` tests all executions with at most three preemptions. However, `model.rs` needs a
//! build in which the gate has additional fences.
//!
//! Invariant: the gate guards a value. In no execution is this value freed while a thread may still
//! use it.

use super::*;
use std::cell::UnsafeCell;
use std::sync::Arc;

/// Number of times that each test repeats its scenario, for one seed of Miri.
const ROUNDS: usize = 3;

/// A gate, and a flag that represents the value that the gate guards. The flag is true once the
/// value has been freed. Miri reports a data race if the flag is read and written without
/// synchronisation.
#[derive(Default)]
struct Guarded(Gate, UnsafeCell<bool>);

// SAFETY: the gate synchronises the shared cell. Miri watches the cell, so every test here checks
// that.
unsafe impl Sync for Guarded {}

impl Guarded {
    fn use_it(&self) {
        // SAFETY: a thread that uses the value is inside the gate, exclusively or as a reader.
        assert!(!unsafe { *self.1.get() }, "the value was used after it was freed");
    }

    /// Performs the steps of an abort: closes the gate, waits for the threads inside, and marks the
    /// guarded value as freed. The wait for threads that may be blocked in NCCL lasts at most
    /// `patience`.
    fn end(&self, patience: Duration) {
        self.0.close(State::Aborted).expect("no thread has closed the gate before");
        self.0.drain(patience);
        // SAFETY: no thread is inside any more, or a thread inside checks the gate before it uses
        // the value.
        unsafe { *self.1.get() = true };
    }
}

/// Runs `call` on a new thread while this thread performs an abort: closes the gate and frees the
/// guarded value ([`Guarded::end`]). The abort waits for at most `patience` for threads that may be
/// blocked in NCCL. Repeats this scenario [`ROUNDS`] times.
fn against_an_abort(patience: Duration, call: fn(&Guarded)) {
    for _ in 0..ROUNDS {
        let shared = Arc::new(Guarded::default());
        let theirs = Arc::clone(&shared);
        let calling = std::thread::spawn(move || call(&theirs));
        shared.end(patience);
        calling.join().expect("the thread does not panic");
    }
}

const LONG: Duration = Duration::from_secs(3_600);

#[test]
fn abort_during_try_lock_frees_no_communicator_in_use() {
    against_an_abort(LONG, |shared| {
        if let Some(_inside) = shared.0.try_enter_blocking() {
            shared.use_it();
        }
    });
}

#[test]
fn abort_during_a_blocking_call_frees_no_communicator_in_use() {
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
fn abort_during_a_shared_lock_frees_no_communicator_in_use() {
    against_an_abort(LONG, |shared| {
        if let Ok(reader) = shared.0.enter_shared(Allowed::OPEN) {
            shared.use_it();
            let _ = reader.enter_blocking(|| shared.use_it());
        }
    });
}

#[test]
fn abort_during_revoke_frees_no_communicator_in_use() {
    against_an_abort(LONG, |shared| {
        if let Ok(reader) = shared.0.enter_shared(Allowed::OPEN)
            && shared.0.set(State::Revoked).is_ok()
        {
            let _ = reader.enter_blocking(|| shared.use_it());
        }
    });
}

#[test]
fn abort_as_a_blocking_call_ends_frees_no_communicator_in_use() {
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
fn lock_holder_sees_all_writes_of_earlier_holders() {
    struct Counted(Gate, UnsafeCell<u32>);
    // SAFETY: the gate synchronises the shared cell. Miri watches the cell, so this test checks
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
        let all = mine + calling.join().expect("the thread does not panic");
        // SAFETY: the other thread has ended.
        assert_eq!(unsafe { *shared.1.get() }, all);
    }
}
