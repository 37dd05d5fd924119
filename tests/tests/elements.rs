//! Checks element types that consist of several values, among threads and processes: every
//! operation that moves them, reductions of their values, and calls that must be refused.

use peerweave::{Team, World};
use peerweave_tests::check::conformance::{in_teams, shapes_for};
use peerweave_tests::check::elements;
use peerweave_tests::{Job, Seat, named};
use std::process::ExitCode;

fn main() -> ExitCode {
    peerweave_tests::main(
        named![movement, reductions, functions, refusals],
        named![
            every_operation_moves_composite_types,
            reduction_of_a_composite_type_reduces_each_component,
            reduction_functions_and_strides_accept_composite_types,
            invalid_arguments_for_composite_types_are_refused,
        ],
    )
}

/// Runs a check on a world. The check must release all symmetric memory.
fn check(seat: &Seat, check: impl FnOnce(&World)) {
    let world = seat.join();
    check(&world);
    assert!(world.finalize().unwrap().is_clean());
}

/// Runs a check in teams of several shapes. The check must release all symmetric memory.
fn check_teams(seat: &Seat, run: impl Fn(&World, &Team)) {
    check(seat, |world| in_teams(world, shapes_for(world.n_pes()), |team| run(world, team)));
}

fn movement(seat: &Seat) {
    // Numbers of elements that fit into one line, that span pages, and whose parts exceed the limit
    // for streaming copies.
    const COUNTS: [usize; 4] = [1, 7, 300, 5000];
    check_teams(seat, |world, team| {
        elements::move_one_sided(world, team, &COUNTS);
        elements::move_by_collectives(world, team, &COUNTS);
    });
}

fn every_operation_moves_composite_types() {
    for n in [1, 2, 3] {
        Job::new("movement", n).on_threads();
    }
    Job::new("movement", 2).on_processes();
    Job::new("movement", 4).everywhere();
    Job::new("movement", 5).on_processes();
}

fn reductions(seat: &Seat) {
    check_teams(seat, |world, team| elements::reduce(world, team, &[1, 33, 4000]));
}

fn reduction_of_a_composite_type_reduces_each_component() {
    for n in [1, 2, 3] {
        Job::new("reductions", n).on_threads();
    }
    Job::new("reductions", 2).on_processes();
    Job::new("reductions", 4).everywhere();
    Job::new("reductions", 5).on_processes();
}

fn functions(seat: &Seat) {
    // These numbers of elements are reduced in the entry line, staged, in rounds and, on symmetric
    // memory, divided among the ranks.
    check_teams(seat, |world, team| elements::combine_and_stride(world, team, &[1, 5, 700, 40_000]));
}

fn reduction_functions_and_strides_accept_composite_types() {
    for n in [1, 2, 3] {
        Job::new("functions", n).on_threads();
    }
    Job::new("functions", 2).on_processes();
    Job::new("functions", 4).everywhere();
    Job::new("functions", 5).on_processes();
}

fn refusals(seat: &Seat) {
    check(seat, elements::refuse);
}

fn invalid_arguments_for_composite_types_are_refused() {
    Job::new("refusals", 2).on_threads();
    Job::new("refusals", 2).on_processes();
}
