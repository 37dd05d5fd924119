//! Checks contexts among threads and processes, and the death of a target.

use peerweave::Rank;
use peerweave_tests::check::contexts;
use peerweave_tests::run::job::say;
use peerweave_tests::{Job, Seat, named};
use std::process::ExitCode;

fn main() -> ExitCode {
    peerweave_tests::main(
        named![operations, independent, finalized, death],
        named![
            every_operation_of_a_context_has_the_right_result,
            quiet_of_a_context_completes_only_that_context,
            context_is_refused_after_finalize,
            quiet_error_names_a_pe_that_died,
        ],
    )
}

fn operations(seat: &Seat) {
    let world = seat.join();
    contexts::all_operations(&world);
    contexts::threads_use_contexts(&world);
    assert!(world.finalize().unwrap().is_clean());
}

fn every_operation_of_a_context_has_the_right_result() {
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

fn quiet_of_a_context_completes_only_that_context() {
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

/// Kills the last PE while all PEs repeat an operation of a context. Argument: the operation.
fn death(seat: &Seat) {
    let world = seat.join();
    let how: String = seat.arg(0);
    let victim = Rank::new(world.n_pes() as u32 - 1);
    contexts::quiet_names_the_dead(&world, &how, victim, || say("ready"));
    say("named");
}

fn quiet_error_names_a_pe_that_died() {
    for how in contexts::REPEATED {
        for n_pes in [2, 3] {
            let mut running = Job::new("death", n_pes).args(how).start();
            running.all_say([n_pes - 1], "ready");
            running.kill(n_pes - 1);
            running.all_say(0..n_pes - 1, "named");
            running.succeed(0..n_pes - 1);
        }
    }
}
