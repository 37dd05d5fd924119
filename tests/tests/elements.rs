//! Checks element types that consist of several values, among threads and processes: every
//! operation that moves them, reductions of their values, and calls that must be refused.

use peerweave::World;
use peerweave_tests::{Job, Seat, elements, named};
use std::process::ExitCode;

fn main() -> ExitCode {
    peerweave_tests::main(
        named![movement, reductions, functions, refusals],
        named![
            every_operation_moves_composite_types,
            reductions_of_composite_types_match_their_components,
            reduction_functions_and_strides_accept_composite_types,
            wrong_use_of_composite_types_is_refused,
        ],
    )
}

/// Runs a check on a world. The check must release all symmetric memory.
fn check(seat: &Seat, check: impl FnOnce(&World)) {
    let world = seat.join();
    check(&world);
    assert!(world.finalize().unwrap().is_clean());
}

fn movement(seat: &Seat) {
    // Numbers of elements that fit into one line, that span pages, and whose parts exceed the limit
    // for streaming copies.
    const COUNTS: [usize; 4] = [1, 7, 300, 5000];
    check(seat, |world| {
        elements::move_one_sided(world, world.team(), &COUNTS);
        elements::move_by_collectives(world, world.team(), &COUNTS);
    });
}

fn every_operation_moves_composite_types() {
    for n in [1, 2, 3] {
        Job::new("movement", n).on_threads();
    }
    Job::new("movement", 2).on_processes();
    Job::new("movement", 5).on_processes();
}

fn reductions(seat: &Seat) {
    check(seat, |world| elements::reduce(world, world.team(), &[1, 33, 4000]));
}

fn reductions_of_composite_types_match_their_components() {
    for n in [1, 2, 3] {
        Job::new("reductions", n).on_threads();
    }
    Job::new("reductions", 2).on_processes();
    Job::new("reductions", 5).on_processes();
}

fn functions(seat: &Seat) {
    // These numbers of elements are reduced in the entry line, staged, in rounds and, on symmetric
    // memory, divided among the ranks.
    check(seat, |world| elements::combine_and_stride(world, world.team(), &[1, 5, 700, 40_000]));
}

fn reduction_functions_and_strides_accept_composite_types() {
    for n in [1, 2, 3] {
        Job::new("functions", n).on_threads();
    }
    Job::new("functions", 2).on_processes();
    Job::new("functions", 5).on_processes();
}

fn refusals(seat: &Seat) {
    check(seat, elements::refuse);
}

fn wrong_use_of_composite_types_is_refused() {
    Job::new("refusals", 2).on_threads();
    Job::new("refusals", 2).on_processes();
}
