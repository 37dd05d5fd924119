//! Tests of the gate with the model checker loom, which runs the threads of each test in all
//! interleavings. The environment variable `LOOM_MAX_PREEMPTIONS` can limit the number of
//! preemptions. Durations of waits are not modelled.
//!
//! Command: `RUSTFLAGS="--cfg loom" cargo test -p peerweave-nccl --lib state::model`. Invariant:
//! the gate guards a value. In no interleaving is this value freed while a thread may still use it.

use super::*;
use loom::cell::UnsafeCell;
use loom::sync::Arc;

/// A gate, and a flag that represents the value that the gate guards. The flag is true once the
/// value has been freed. The model checker fails if the flag is read and written without
/// synchronisation.
#[derive(Default)]
struct Guarded(Gate, UnsafeCell<bool>);

// SAFETY: the gate synchronises the shared cell. The model checker watches the cell, so every test
// here checks that.
unsafe impl Sync for Guarded {}

impl Guarded {
    fn use_it(&self) {
        // SAFETY: a thread that uses the value is inside the gate, exclusively or as a reader.
        self.1.with(|is_freed| assert!(!unsafe { *is_freed }, "the value was used after it was freed"));
    }

    /// Performs the steps of an abort: closes the gate, waits without a limit until no thread is
    /// inside, and marks the guarded value as freed.
    fn end(&self) {
        self.0.close(State::Aborted).expect("no thread has closed the gate before");
        while self.0.occupancy() != Occupancy::Empty {
            loom::thread::yield_now();
        }
        // SAFETY: no thread is inside any more.
        self.1.with_mut(|is_freed| unsafe { *is_freed = true });
    }
}

/// Runs `call` on one thread while another thread closes the gate and frees the guarded value, as
/// an abort does.
fn against_an_abort(call: fn(&Guarded)) {
    loom::model(move || {
        let shared = Arc::new(Guarded::default());
        let theirs = Arc::clone(&shared);
        let calling = loom::thread::spawn(move || call(&theirs));
        shared.end();
        calling.join().expect("the thread does not panic");
        assert!(shared.0.try_enter_blocking().is_none());
        assert_eq!(shared.0.occupancy(), Occupancy::Empty);
    });
}

#[test]
fn abort_during_try_lock_frees_no_communicator_in_use() {
    against_an_abort(|shared| {
        if let Some(_inside) = shared.0.try_enter_blocking() {
            shared.use_it();
        }
    });
}

#[test]
fn abort_during_a_blocking_call_frees_no_communicator_in_use() {
    against_an_abort(|shared| {
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
    against_an_abort(|shared| {
        if let Ok(reader) = shared.0.enter_shared(Allowed::OPEN) {
            shared.use_it();
            let _ = reader.enter_blocking(|| shared.use_it());
        }
    });
}

/// Tests an abort while another thread returns from NCCL. That thread removes its mark as possibly
/// blocked (`leave_blocking`), checks the gate, and then uses the guarded value. The abort waits
/// only for threads inside the gate that are not marked.
#[test]
fn abort_as_a_blocking_call_ends_frees_no_communicator_in_use() {
    loom::model(|| {
        let shared = Arc::new(Guarded::default());
        let theirs = Arc::clone(&shared);
        let calling = loom::thread::spawn(move || {
            if let Ok(inside) = theirs.0.enter(Allowed::LIVE, || Duration::ZERO)
                && inside.enter_blocking().is_ok()
            {
                inside.leave_blocking();
                if !theirs.0.is_closed() {
                    theirs.use_it();
                }
            }
        });
        shared.0.close(State::Aborted).expect("no thread has closed the gate before");
        while shared.0.occupancy() == Occupancy::Brief {
            loom::thread::yield_now();
        }
        // SAFETY: a thread inside is marked as blocking, and checks the gate before it uses the
        // value.
        shared.1.with_mut(|is_freed| unsafe { *is_freed = true });
        calling.join().expect("the thread does not panic");
    });
}

/// Tests a revocation on one thread during an abort on another thread. The abort closes the gate
/// and frees the guarded value. `revoke` sets the state of the gate to revoked, and returns whether
/// this succeeded.
fn check_abort_during_revoke(revoke: fn(&Gate) -> bool) {
    loom::model(move || {
        let shared = Arc::new(Guarded::default());
        let theirs = Arc::clone(&shared);
        let revoking = loom::thread::spawn(move || {
            if let Ok(reader) = theirs.0.enter_shared(Allowed::OPEN)
                && revoke(&theirs.0)
            {
                let _ = reader.enter_blocking(|| theirs.use_it());
            }
        });
        shared.end();
        revoking.join().expect("the thread does not panic");
        assert_eq!(shared.0.state(), State::Aborted, "a closed gate must stay closed");
    });
}

#[test]
fn abort_during_revoke_frees_no_communicator_in_use() {
    check_abort_during_revoke(|gate| gate.set(State::Revoked).is_ok());
}

#[test]
fn abort_during_a_state_change_frees_no_communicator_in_use() {
    check_abort_during_revoke(|gate| gate.change(gate.state(), State::Revoked).is_ok());
}

/// Tests a finalization during a revocation. The revocation first changes the state, and then calls
/// NCCL as a reader that is marked as possibly blocked. The finalization does not wait for marked
/// readers. This is safe, because the finalization fails if the state has changed.
#[test]
fn finalize_during_revoke_frees_no_communicator_in_use() {
    loom::model(|| {
        let shared = Arc::new(Guarded::default());
        let theirs = Arc::clone(&shared);
        let revoking = loom::thread::spawn(move || {
            if let Ok(reader) = theirs.0.enter_shared(Allowed::OPEN)
                && theirs.0.set(State::Revoked).is_ok()
            {
                let _ = reader.enter_blocking(|| theirs.use_it());
            }
        });
        let closed = {
            let _inside = shared.0.enter(Allowed::LIVE, || Duration::ZERO);
            shared.0.close_from(State::Live, State::Finalized)
        };
        if closed.is_ok() {
            while shared.0.occupancy() == Occupancy::Brief {
                loom::thread::yield_now();
            }
            // SAFETY: a remaining reader finds the gate closed before it uses the value.
            shared.1.with_mut(|is_freed| unsafe { *is_freed = true });
        }
        revoking.join().expect("the thread does not panic");
        assert_eq!(shared.0.state(), if closed.is_ok() { State::Finalized } else { State::Revoked });
    });
}

#[test]
fn lock_holder_sees_all_writes_of_earlier_holders() {
    struct Counted(Gate, UnsafeCell<u32>);
    // SAFETY: the gate synchronises the shared cell. The model checker watches the cell, so this
    // test checks that.
    unsafe impl Sync for Counted {}
    fn call(shared: &Counted) -> u32 {
        let Some(_inside) = shared.0.try_enter_blocking() else { return 0 };
        // SAFETY: this thread is inside, alone.
        shared.1.with_mut(|calls| unsafe { *calls += 1 });
        1
    }
    loom::model(|| {
        let shared = Arc::new(Counted(Gate::default(), UnsafeCell::new(0)));
        let theirs = Arc::clone(&shared);
        let calling = loom::thread::spawn(move || call(&theirs) + call(&theirs));
        let mine = call(&shared);
        let all = mine + calling.join().expect("the thread does not panic");
        // SAFETY: the other thread has ended.
        assert_eq!(shared.1.with(|calls| unsafe { *calls }), all);
        assert!(all >= 1, "both threads found the gate occupied");
    });
}
