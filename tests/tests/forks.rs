//! Checks that a forked child of a PE is not a PE: calls in the child return errors and do no harm.

use peerweave::{Compare, Error, MisuseKind, Rank, World};
use peerweave_tests::{Job, Seat, named};
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    peerweave_tests::main(named![in_a_child], named![calls_in_a_forked_child_are_refused])
}

/// Runs `body` in a forked child and asserts that it succeeds.
fn forked(what: &str, body: impl FnOnce()) {
    // SAFETY: the child uses locks of the parent's other threads only through `body`, which takes
    // only the allocator's lock. The C library makes that lock usable in a child. The child ends
    // with `_exit`.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: `alarm` ends a child that hangs. `_exit` ends the child without running the
            // exit handlers that the parent registered.
            unsafe {
                libc::alarm(20);
                let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
                libc::_exit(i32::from(ended.is_err()));
            }
        }
        child => {
            assert!(child > 0, "fork failed");
            let mut status = 0;
            // SAFETY: waits for a child of this process; `status` is valid for a write.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0, "{what}: the wait status of the child (a signal or an exit code)");
        }
    }
}

fn refused<T>(what: &str, made: peerweave::Result<T>) {
    match made {
        Err(Error::Misuse(misuse)) if matches!(misuse.kind, MisuseKind::Forked) => {}
        Err(other) => panic!("{what}: {other}"),
        Ok(_) => panic!("{what}: succeeded"),
    }
}

/// Forks PE 0 while a barrier and a wait are pending.
fn in_a_child(seat: &Seat) {
    let world = seat.join();
    let team = world.team().clone();
    let words = world.alloc_zeroed::<u64>(4).unwrap();
    if world.my_pe().get() == 0 {
        let stream = world.stream().unwrap();
        let ticket = team.barrier(&stream).unwrap();
        let event = stream.record().unwrap();
        assert!(!ticket.is_complete(), "the barrier must not be complete before PE 1 enters it");
        forked("describe", || assert!(world.describe().contains("forked child"), "{}", world.describe()));
        forked("wait of a ticket", || refused("wait", ticket.wait()));
        forked("wait_within of a ticket", || refused("wait", ticket.wait_within(Duration::from_millis(50))));
        forked("is_complete of a ticket", || assert!(!ticket.is_complete() && !event.is_complete() && !stream.is_idle()));
        forked("synchronize", || refused("synchronize", stream.synchronize_within(Duration::from_millis(50))));
        forked("wait of an event", || refused("wait", event.wait_within(Duration::from_millis(50))));
        forked("a collective", || refused("barrier", team.barrier_blocking()));
        forked("a collective on a stream", || refused("barrier", team.barrier(&stream)));
        forked("load and store", || {
            refused("load", words.load(0));
            refused("store", words.store(0, 1));
            refused("to_vec", words.to_vec());
            refused("fill", words.fill(0));
        });
        forked("signals", || {
            refused("signal", words.signal(0).and_then(|word| team.test(&word, Compare::Eq, 0)));
        });
        forked("split", || refused("split", team.split(Some(0), 0)));
        forked("alloc", || refused("alloc", world.alloc::<u8>(1)));
        forked("stream", || refused("stream", world.stream()));
        forked("release", || refused("release", words.clone().release()));
        forked("text of handles", || drop(format!("{world:?} {team:?} {words:?} {stream:?} {ticket:?} {event:?}")));
        let inherited = (world, words, stream, ticket, event);
        forked("drops", || {
            // SAFETY: the child ends with `_exit`, so this copy of the values is the only one that
            // the child drops.
            drop(unsafe { std::ptr::read(&inherited) });
        });
        let (world, words, _stream, ticket, event) = inherited;
        team.signal_blocking(words.signal(3).unwrap().set(1), Rank::new(1)).unwrap();
        ticket.wait().unwrap();
        event.wait().unwrap();
        end(world, words);
    } else {
        // PE 0 has forked all of its children.
        team.wait_until_blocking(&words.signal(3).unwrap(), Compare::Eq, 1).unwrap();
        team.barrier_blocking().unwrap();
        end(world, words);
    }
}

fn end(world: World, words: peerweave::Symmetric<u64>) {
    words.release().unwrap();
    let _ = world.finalize().unwrap();
}

fn calls_in_a_forked_child_are_refused() {
    Job::new("in_a_child", 2).on_processes();
}
