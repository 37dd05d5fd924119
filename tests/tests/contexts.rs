//! Checks contexts among threads and processes, and the death of a target.

use peerweave::{Error, Rank};
use peerweave_tests::job::say;
use peerweave_tests::{Job, Seat, contexts, named};
use std::process::ExitCode;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    peerweave_tests::main(
        named![operations, independent, finalized, death],
        named![
            every_operation_of_a_context_arrives,
            quiet_completes_its_own_context_alone,
            context_is_refused_after_finalize,
            quiet_names_a_pe_that_died,
        ],
    )
}

fn operations(seat: &Seat) {
    let world = seat.join();
    contexts::all_operations(&world);
    contexts::threads_use_contexts(&world);
    assert!(world.finalize().unwrap().is_clean());
}

fn every_operation_of_a_context_arrives() {
    for n_pes in [1, 2, 3, 8] {
        Job::new("operations", n_pes).on_threads();
        Job::new("operations", n_pes).on_processes();
    }
}

fn independent(seat: &Seat) {
    let world = seat.join();
    contexts::quiet_is_of_its_own_context(&world);
    assert!(world.finalize().unwrap().is_clean());
}

fn quiet_completes_its_own_context_alone() {
    for n_pes in [1, 3] {
        Job::new("independent", n_pes).on_threads();
        Job::new("independent", n_pes).on_processes();
    }
}

fn finalized(seat: &Seat) {
    contexts::no_use_after_finalize(seat.join());
}

fn context_is_refused_after_finalize() {
    Job::new("finalized", 2).everywhere();
}

/// PE 1 is killed; PE 0 repeats puts and quiets of a context.
fn death(seat: &Seat) {
    let world = seat.join();
    let data = world.alloc_zeroed::<u32>(1).unwrap();
    let context = world.team().context().unwrap();
    world.team().barrier_blocking().unwrap();
    say("ready");
    if world.my_pe().get() == 1 {
        std::thread::sleep(Duration::from_secs(60));
    }
    let start = Instant::now();
    let error = loop {
        let done = context.p(&data, 0, 1, Rank::new(1)).and_then(|()| context.quiet());
        match done {
            Ok(()) => assert!(start.elapsed() < Duration::from_secs(20), "the death was not reported"),
            Err(error) => break error,
        }
    };
    assert!(matches!(&error, Error::Peer { pe, .. } if pe.get() == 1), "{error}");
    say("named");
}

fn quiet_names_a_pe_that_died() {
    let mut running = Job::new("death", 2).start();
    running.all_say([0, 1], "ready");
    running.kill(1);
    running.all_say([0], "named");
    running.succeed([0]);
}
