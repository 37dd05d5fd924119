//! All orders in which calls, an abort and a look can meet, by the model checker. Not how long
//! anybody waits.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p peerweave-nccl --lib state::model`. Invariant: what is
//! guarded is freed in no order that lets anybody still use it.

use super::*;
use loom::cell::UnsafeCell;
use loom::sync::Arc;

/// A gate, and whether what it guards was freed: the model fails if that is looked at and written
/// in no order.
#[derive(Default)]
struct Guarded(Gate, UnsafeCell<bool>);

// SAFETY: shared is a cell that the model checker watches; synchronised by the gate, which is what
// every test here is about.
unsafe impl Sync for Guarded {}

impl Guarded {
    fn use_it(&self) {
        // SAFETY: whoever uses it is inside, or looks in.
        self.1.with(|is_freed| assert!(!unsafe { *is_freed }, "used after it was freed"));
    }

    /// As who aborts, with all the patience there is.
    fn end(&self) {
        self.0.close(State::Aborted).expect("it was open");
        while self.0.presence() != Presence::Nobody {
            loom::thread::yield_now();
        }
        // SAFETY: nobody is inside any more.
        self.1.with_mut(|is_freed| unsafe { *is_freed = true });
    }
}

fn against_an_abort(call: fn(&Guarded)) {
    loom::model(move || {
        let shared = Arc::new(Guarded::default());
        let theirs = Arc::clone(&shared);
        let calling = loom::thread::spawn(move || call(&theirs));
        shared.end();
        calling.join().expect("no panic");
        assert!(shared.0.plunge().is_none());
        assert_eq!(shared.0.presence(), Presence::Nobody);
    });
}

#[test]
fn plunging_meets_an_abort() {
    against_an_abort(|shared| {
        if let Some(_inside) = shared.0.plunge() {
            shared.use_it();
        }
    });
}

#[test]
fn entering_and_diving_meets_an_abort() {
    against_an_abort(|shared| {
        if let Ok(inside) = shared.0.enter(Allowed::LIVE, || Duration::ZERO)
            && inside.dive().is_ok()
        {
            shared.use_it();
            inside.surface();
            if !shared.0.is_closed() {
                shared.use_it();
            }
        }
    });
}

#[test]
fn looking_meets_an_abort() {
    against_an_abort(|shared| {
        if let Ok(looking) = shared.0.look(Allowed::OPEN) {
            shared.use_it();
            let _ = looking.dive(|| shared.use_it());
        }
    });
}

/// As who aborts with no patience at all: who may be stuck is not waited for, who has surfaced is.
#[test]
fn surfacing_meets_an_abort_that_gave_up() {
    loom::model(|| {
        let shared = Arc::new(Guarded::default());
        let theirs = Arc::clone(&shared);
        let calling = loom::thread::spawn(move || {
            if let Ok(inside) = theirs.0.enter(Allowed::LIVE, || Duration::ZERO)
                && inside.dive().is_ok()
            {
                inside.surface();
                if !theirs.0.is_closed() {
                    theirs.use_it();
                }
            }
        });
        shared.0.close(State::Aborted).expect("it was open");
        while shared.0.presence() == Presence::PassesThrough {
            loom::thread::yield_now();
        }
        // SAFETY: who is inside is stuck, and looks at the gate before it touches anything.
        shared.1.with_mut(|is_freed| unsafe { *is_freed = true });
        calling.join().expect("no panic");
    });
}

/// As who revokes, with either way to change the state.
fn revoking_meets_an_abort(revoke: fn(&Gate) -> bool) {
    loom::model(move || {
        let shared = Arc::new(Guarded::default());
        let theirs = Arc::clone(&shared);
        let revoking = loom::thread::spawn(move || {
            if let Ok(looking) = theirs.0.look(Allowed::OPEN)
                && revoke(&theirs.0)
            {
                let _ = looking.dive(|| theirs.use_it());
            }
        });
        shared.end();
        revoking.join().expect("no panic");
        assert_eq!(shared.0.state(), State::Aborted, "[G2]");
    });
}

#[test]
fn revoking_what_is_open_meets_an_abort() {
    revoking_meets_an_abort(|gate| gate.set(State::Revoked).is_ok());
}

#[test]
fn changing_what_was_seen_meets_an_abort() {
    revoking_meets_an_abort(|gate| gate.change(gate.state(), State::Revoked).is_ok());
}

/// Who finalizes frees at once, and waits for nobody who revokes.
#[test]
fn revoking_meets_who_finalizes() {
    loom::model(|| {
        let shared = Arc::new(Guarded::default());
        let theirs = Arc::clone(&shared);
        let revoking = loom::thread::spawn(move || {
            if let Ok(looking) = theirs.0.look(Allowed::OPEN)
                && theirs.0.set(State::Revoked).is_ok()
            {
                let _ = looking.dive(|| theirs.use_it());
            }
        });
        let closed = {
            let _inside = shared.0.enter(Allowed::LIVE, || Duration::ZERO);
            shared.0.close_from(State::Live, State::Finalized)
        };
        if closed.is_ok() {
            while shared.0.presence() == Presence::PassesThrough {
                loom::thread::yield_now();
            }
            // SAFETY: who still looks in finds the gate closed before it touches anything.
            shared.1.with_mut(|is_freed| unsafe { *is_freed = true });
        }
        revoking.join().expect("no panic");
        assert_eq!(shared.0.state(), if closed.is_ok() { State::Finalized } else { State::Revoked });
    });
}

#[test]
fn two_calls_take_turns_and_see_what_the_other_did() {
    struct Counted(Gate, UnsafeCell<u32>);
    // SAFETY: shared is a cell that the model checker watches; synchronised by the gate, which this
    // test is about.
    unsafe impl Sync for Counted {}
    fn call(shared: &Counted) -> u32 {
        let Some(_inside) = shared.0.plunge() else { return 0 };
        // SAFETY: this thread is inside, alone.
        shared.1.with_mut(|calls| unsafe { *calls += 1 });
        1
    }
    loom::model(|| {
        let shared = Arc::new(Counted(Gate::default(), UnsafeCell::new(0)));
        let theirs = Arc::clone(&shared);
        let calling = loom::thread::spawn(move || call(&theirs) + call(&theirs));
        let mine = call(&shared);
        let all = mine + calling.join().expect("no panic");
        // SAFETY: the other thread has ended.
        assert_eq!(shared.1.with(|calls| unsafe { *calls }), all);
        assert!(all >= 1, "not all of them find another inside");
    });
}
