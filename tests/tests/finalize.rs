//! Finalizes a world that several threads of each PE share, while the threads use the world.

use peerweave::{Compare, Error, MisuseKind, PeerCause, Rank, Result, World};
use peerweave_tests::{Job, Seat, named};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    peerweave_tests::main(named![shared], named![finalize_ends_the_calls_of_other_threads_with_defined_errors])
}

/// Time within which every thread must get its error on a busy machine; less than the deadline of
/// the jobs.
const SOON: Duration = Duration::from_secs(25);

/// Returns whether a call that races with finalize may return this error.
fn is_of_the_end(error: &Error) -> bool {
    match error {
        Error::Misuse(misuse) => misuse.kind == MisuseKind::Finalized,
        // The call had begun, and waited for a PE that has finalized since.
        Error::Peer { cause, .. } => *cause == PeerCause::Left,
        _ => false,
    }
}

/// Finalizes a world while several threads use it. Argument: the number of rounds before finalize.
fn shared(seat: &Seat) {
    let world = Arc::new(seat.join());
    let rounds: usize = seat.arg(0);
    let data = world.alloc_zeroed::<u64>(64).unwrap();
    let words = world.alloc_zeroed::<u64>(2).unwrap();
    let right = Rank::new((world.my_pe().get() + 1) % world.n_pes() as u32);
    let counted = Arc::new(AtomicUsize::new(0));
    let ready = Arc::new(Barrier::new(7));
    type Act = fn(&World, &peerweave::Symmetric<u64>, &peerweave::Symmetric<u64>, Rank) -> Result<()>;
    // All threads run these operations concurrently, without a lock around the world.
    let acts: [Act; 6] = [
        |world, data, _, right| world.team().p_blocking(data, 0, 1, right),
        |world, data, _, right| {
            world.team().put_blocking(&[7; 16], &data.slice(..16)?, right).and_then(|()| world.fence_blocking())
        },
        |world, data, _, right| world.team().atomic_inc_blocking(data, 1, right).and_then(|()| world.quiet_blocking()),
        |world, data, _, right| world.team().put(&world.stream()?, &data.slice(..8)?, &data.slice(8..16)?, right).map(drop),
        |world, _, words, _| world.team().test(&words.signal(0)?, Compare::Ne, 0).map(drop),
        // No PE signals, so the wait lasts until all others have finalized. A single PE makes
        // fences instead.
        |world, _, words, _| match world.n_pes() {
            1 => world.fence_blocking(),
            _ => world.team().wait_until_blocking(&words.signal(1)?, Compare::Ne, 0).map(drop),
        },
    ];
    let threads: Vec<_> = acts
        .into_iter()
        .enumerate()
        .map(|(index, act)| {
            let (world, data, words, counted, ready) =
                (world.clone(), data.clone(), words.clone(), counted.clone(), ready.clone());
            std::thread::spawn(move || {
                ready.wait();
                loop {
                    match act(&world, &data, &words, right) {
                        Ok(()) if index < 5 => drop(counted.fetch_add(1, Ordering::Relaxed)),
                        Ok(()) => {}
                        Err(error) => return (error, Instant::now()),
                    }
                }
            })
        })
        .collect();
    ready.wait();
    while counted.load(Ordering::Relaxed) < rounds {
        std::thread::yield_now();
    }
    world.team().sync_blocking().unwrap();
    let began = Instant::now();
    let report = world.finalize().unwrap();
    assert_eq!(report.leaked.len(), 2);
    let again = world.finalize().unwrap_err();
    assert!(matches!(again.misuse(), Some(MisuseKind::Finalized)), "{again}");
    for thread in threads {
        let (error, at) = thread.join().unwrap();
        assert!(is_of_the_end(&error), "unexpected error during finalize: {error}");
        assert!(at.saturating_duration_since(began) < SOON, "returned later than {SOON:?}: {error}");
    }
}

fn finalize_ends_the_calls_of_other_threads_with_defined_errors() {
    for n_pes in [1, 2, 3] {
        Job::new("shared", n_pes).args("5000").on_threads();
        Job::new("shared", n_pes).args("5000").on_processes();
    }
    Job::new("shared", 8).args("500").on_threads();
}
