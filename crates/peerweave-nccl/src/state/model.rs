//! All orders in which calls, an abort and a look can meet, by the model checker. Not how long anybody waits.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p peerweave-nccl --lib state::model`. Invariant: what is guarded is freed in no order that lets anybody still use it.

use super::*;
use loom::cell::UnsafeCell;
use loom::sync::Arc;

/// A gate, and whether what it guards was freed: the model fails if that is looked at and written in no order.
#[derive(Default)]
struct Guarded(Gate, UnsafeCell<bool>);

// SAFETY: shared is a cell that the model checker watches; synchronised by the gate, which is what every test here is about.
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

#[test]
fn two_calls_take_turns_and_see_what_the_other_did() {
    struct Counted(Gate, UnsafeCell<u32>);
    // SAFETY: shared is a cell that the model checker watches; synchronised by the gate, which this test is about.
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
