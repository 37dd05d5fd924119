//! Implements the main function of a test binary whose PEs are copies of itself.
//!
//! Without [`PROGRAM`] in its environment the binary runs its tests, called scenarios, one after
//! another, like the standard harness. It accepts the arguments of `cargo test` and `cargo
//! nextest`. With [`PROGRAM`], the binary is one PE: it runs that program, and exits.

use crate::run::job::Seat;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::Instant;

/// The function that each PE of a job runs.
pub type Program = fn(&Seat);

/// The variable that makes this binary a PE; its value is the program to run.
pub const PROGRAM: &str = "PEERWEAVE_TEST_PROGRAM";

/// Programs by name.
pub type Programs = &'static [(&'static str, Program)];

/// Scenarios (tests that start jobs) by name.
pub type Scenarios = &'static [(&'static str, fn())];

static PROGRAMS: OnceLock<Programs> = OnceLock::new();

/// Names functions: `named![f, g]` is `&[("f", f), ("g", g)]`.
#[macro_export]
macro_rules! named {
    ($($name:ident),* $(,)?) => { &[$((stringify!($name), $name as _)),*] };
}

/// Returns the program with this name.
///
/// # Panics
/// If there is no such program.
pub fn program(name: &str) -> Program {
    let programs = PROGRAMS.get().expect("`harness::main` was called");
    programs.iter().find(|program| program.0 == name).unwrap_or_else(|| panic!("unknown program {name}")).1
}

/// Runs the scenarios that the arguments select. In a PE, runs the PE's program instead.
pub fn main(programs: Programs, scenarios: Scenarios) -> ExitCode {
    PROGRAMS.get_or_init(|| programs);
    if let Ok(name) = std::env::var(PROGRAM) {
        program(&name)(&Seat::of_process());
        return ExitCode::SUCCESS;
    }
    let chosen = Choice::from(std::env::args().skip(1));
    let scenarios: Vec<_> = scenarios.iter().filter(|scenario| chosen.takes(scenario.0)).collect();
    if chosen.list {
        // Nextest lists ignored tests in a second call; there are none.
        if !chosen.ignored {
            scenarios.iter().for_each(|scenario| println!("{}: test", scenario.0));
        }
        return ExitCode::SUCCESS;
    }
    println!("\nrunning {} scenarios", scenarios.len());
    let mut failed = Vec::new();
    for &&(name, run) in &scenarios {
        let started = Instant::now();
        let ended = catch_unwind(AssertUnwindSafe(run));
        let seconds = started.elapsed().as_secs_f64();
        match ended {
            Ok(()) => println!("test {name} ... ok ({seconds:.2} s)"),
            Err(_) => {
                println!("test {name} ... FAILED ({seconds:.2} s)");
                failed.push(name);
            }
        }
    }
    if !failed.is_empty() {
        println!("\nfailures: {failed:?}");
    }
    let verdict = if failed.is_empty() { "ok" } else { "FAILED" };
    let passed = scenarios.len() - failed.len();
    println!("\ntest result: {verdict}. {passed} passed; {} failed; 0 ignored; 0 measured; 0 filtered out\n", failed.len());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(101) }
}

/// The selection of scenarios by the command-line arguments.
#[derive(Debug, Default)]
struct Choice {
    parts: Vec<String>,
    skip: Vec<String>,
    exact: bool,
    list: bool,
    ignored: bool,
}

impl Choice {
    fn from(mut arguments: impl Iterator<Item = String>) -> Self {
        let mut choice = Self::default();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--exact" => choice.exact = true,
                "--list" => choice.list = true,
                "--ignored" => choice.ignored = true,
                "--skip" => choice.skip.extend(arguments.next()),
                "--test-threads" | "--format" | "--color" => drop(arguments.next()),
                other if other.starts_with('-') => {}
                _ => choice.parts.push(argument),
            }
        }
        choice
    }

    fn takes(&self, name: &str) -> bool {
        let fits = |part: &String| if self.exact { name == part } else { name.contains(part.as_str()) };
        (self.parts.is_empty() || self.parts.iter().any(fits)) && !self.skip.iter().any(fits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(text: &str) -> Choice {
        Choice::from(text.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn tests_are_selected_by_substring_or_exact_name() {
        assert!(choice("").takes("a_put_arrives"));
        assert!(choice("put --nocapture").takes("a_put_arrives"));
        assert!(!choice("put --exact").takes("a_put_arrives"));
        assert!(choice("a_put_arrives --exact --test-threads 4").takes("a_put_arrives"));
        assert!(!choice("--skip put").takes("a_put_arrives"));
        assert!(choice("--list --format terse").list);
    }
}
