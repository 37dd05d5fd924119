//! Checks all-reduces with residual and RMSNorm on the host backend: every element type, among
//! threads and processes, in teams, with rows of any length, and calls that differ among ranks.

use peerweave_tests::check::conformance::team_of;
use peerweave_tests::check::norms;
use peerweave_tests::{Job, Seat, named};
use std::process::ExitCode;

fn main() -> ExitCode {
    peerweave_tests::main(
        named![every_type, in_a_team, disagree],
        named![
            norms_equal_separate_steps_bit_for_bit,
            norms_in_teams_equal_separate_steps_bit_for_bit,
            norm_arguments_that_differ_among_ranks_are_a_mismatch,
        ],
    )
}

/// Shapes: the number of rows, and the number of elements of a row. The host backend selects a
/// transport by the size of the rows.
const SHAPES: [(usize, usize); 7] = [(0, 4), (1, 1), (2, 5), (1, 64), (7, 300), (1, 6144), (8, 4100)];

fn every_type(seat: &Seat) {
    let world = seat.join();
    norms::of_every_type(&world, Some(world.team()), &SHAPES, 1);
    assert!(world.finalize().expect("all PEs finalize").is_clean());
}

fn norms_equal_separate_steps_bit_for_bit() {
    for n_pes in [1, 2, 3, 4, 8] {
        Job::new("every_type", n_pes).heap_bytes(32 << 20).on_threads();
    }
    Job::new("every_type", 2).heap_bytes(32 << 20).on_processes();
    Job::new("every_type", 3).heap_bytes(32 << 20).without_attach().on_processes();
}

/// Compares norms in a team with separate steps. Argument: the shape of the team.
fn in_a_team(seat: &Seat) {
    let world = seat.join();
    let team = team_of(&world, &seat.arg::<String>(0));
    norms::of_every_type(&world, team.as_ref(), &[(3, 40), (1, 3000)], 2);
    team.map_or(Ok(()), |team| team.destroy()).expect("all PEs destroy the team");
    let _ = world.finalize().expect("all PEs finalize");
}

fn norms_in_teams_equal_separate_steps_bit_for_bit() {
    for shape in ["reversed", "all_but_one"] {
        Job::new("in_a_team", 3).args(shape).on_threads();
    }
}

fn disagree(seat: &Seat) {
    let world = seat.join();
    norms::mismatches_are_errors(&world);
    let _ = world.finalize().expect("all PEs finalize");
}

fn norm_arguments_that_differ_among_ranks_are_a_mismatch() {
    Job::new("disagree", 2).everywhere();
    Job::new("disagree", 3).on_threads();
}
