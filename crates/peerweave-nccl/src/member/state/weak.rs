//! The gate under weak memory: with Miri, which lets loads see old values, as the orderings
//! themselves allow it and without a fence.
//!
//! `MIRIFLAGS="-Zmiri-many-seeds=0..16 -Zmiri-disable-isolation" cargo +nightly miri test -p
//! peerweave-nccl --lib state::weak`. Not every order: those of the seeds. Invariant: as `model.rs
//! `, which goes through every order of a few switches, but believes in fences only.

use super::*;
use std::cell::UnsafeCell;
use std::sync::Arc;

/// How often each scenario is run with one seed.
const ROUNDS: usize = 3;

/// A gate, and whether what it guards was freed: a data race if that is looked at and written in no
/// order.
#[derive(Default)]
struct Guarded(Gate, UnsafeCell<bool>);

// SAFETY: shared is a cell that Miri watches; synchronised by the gate, which is what every test
// here is about.
unsafe impl Sync for Guarded {}

impl Guarded {
    fn use_it(&self) {
        // SAFETY: whoever uses it is inside, or looks in.
        assert!(!unsafe { *self.1.get() }, "used after it was freed");
    }

    /// As who aborts.
    fn end(&self, patience: Duration) {
        self.0.close(State::Aborted).expect("it was open");
        self.0.drain(patience);
        // SAFETY: nobody is inside any more, or looks at the gate before it touches anything.
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
fn plunging_meets_an_abort() {
    against_an_abort(LONG, |shared| {
        if let Some(_inside) = shared.0.plunge() {
            shared.use_it();
        }
    });
}

#[test]
fn entering_and_diving_meets_an_abort() {
    against_an_abort(LONG, |shared| {
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
    against_an_abort(LONG, |shared| {
        if let Ok(looking) = shared.0.look(Allowed::OPEN) {
            shared.use_it();
            let _ = looking.dive(|| shared.use_it());
        }
    });
}

#[test]
fn revoking_meets_an_abort() {
    against_an_abort(LONG, |shared| {
        if let Ok(looking) = shared.0.look(Allowed::OPEN)
            && shared.0.set(State::Revoked).is_ok()
        {
            let _ = looking.dive(|| shared.use_it());
        }
    });
}

#[test]
fn surfacing_meets_an_abort_that_gave_up() {
    against_an_abort(Duration::ZERO, |shared| {
        if let Ok(inside) = shared.0.enter(Allowed::LIVE, || Duration::ZERO)
            && inside.dive().is_ok()
        {
            inside.surface();
            if !shared.0.is_closed() {
                shared.use_it();
            }
        }
    });
}

#[test]
fn two_calls_take_turns_and_see_what_the_other_did() {
    struct Counted(Gate, UnsafeCell<u32>);
    // SAFETY: shared is a cell that Miri watches; synchronised by the gate, which this test is
    // about.
    unsafe impl Sync for Counted {}
    fn call(shared: &Counted) -> u32 {
        let Some(_inside) = shared.0.plunge() else { return 0 };
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
