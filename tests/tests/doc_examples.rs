//! Runs every example of the READMEs and of the documentation of the portable crates, as a job of
//! 1, 2, 3 and 8 processes.
//!
//! The build script collects the examples. Examples assert their results themselves. An example
//! that waits forever fails at the deadline.

use peerweave_tests::Job;
use std::fmt::Debug;
use std::process::ExitCode;

include!(concat!(env!("OUT_DIR"), "/doc_examples.rs"));

/// The return type of an example's `main`.
trait End {
    /// Panics if the example has failed.
    fn check(self);
}

impl End for () {
    fn check(self) {}
}

impl<E: Debug> End for Result<(), E> {
    fn check(self) {
        self.expect("the example succeeds");
    }
}

/// Runs the example at this place with each number of PEs.
fn run(place: &'static str) {
    for n_pes in [1, 2, 3, 8] {
        Job::new(place, n_pes).on_processes();
    }
}

fn main() -> ExitCode {
    peerweave_tests::main(PROGRAMS, SCENARIOS)
}
