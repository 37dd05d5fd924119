//! Defines the command line of `peerweave` for clap, the parser of command lines.
//!
//! Invariant: every value is checked here or by the parser of its type, so that commands get only
//! valid values.

use std::ffi::OsString;

use clap::{CommandFactory, Parser, Subcommand};

use crate::info::InfoArgs;
use crate::p2p::P2pArgs;
use crate::run::args::RunArgs;
use crate::tune::TuneArgs;
use peerweave_bench::console::exit;
use peerweave_bench::workload::args::BenchArgs;

/// Starts programs as PEs of a job, measures communication, and reports what this machine supports.
#[derive(Debug, Parser)]
#[command(name = "peerweave", version, after_help = exit::HELP, max_term_width = 110)]
pub struct Cli {
    /// Subcommand with its arguments.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands of `peerweave`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a program as N PEs of one job
    Run(RunArgs),
    /// Measure an operation and check every element of its result
    Bench(Box<BenchArgs>),
    /// Measure bandwidth and latency between GPUs; same as `bench p2p`
    #[command(name = "bench-p2p")]
    BenchP2p(P2pArgs),
    /// Report GPUs, libraries, limits and settings of this machine
    Info(InfoArgs),
    /// Measure the fastest algorithm of each collective on the GPUs of this machine, and write a
    /// route table
    Tune(TuneArgs),
    /// Run one PE of `bench`; only for use by `bench`
    #[command(hide = true, name = "bench-pe")]
    BenchPe {
        /// Configuration of the measurement, as JSON
        config: String,
    },
    /// Kill process groups when standard input closes; only for use by the launcher
    #[command(hide = true, name = "guard")]
    Guard,
}

impl Cli {
    /// Parses the command line of this process. Exits the process after `--help`, `--version` or an
    /// error.
    pub fn of_this_process() -> Self {
        Self::parse_from(with_long_np(with_p2p_as_one_word(std::env::args_os().collect())))
    }
}

/// Replaces the option `-np` of other launchers with `--np`, because clap has no short options of
/// two letters. Changes only the options of the subcommand, not the arguments of the program that
/// is started.
fn with_long_np(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let command = Cli::command();
    let Some(command) = arguments.get(1).and_then(|name| command.find_subcommand(name)) else { return arguments };
    let takes_value = |option: &str| {
        let named = |argument: &&clap::Arg| {
            let short = argument.get_short().is_some_and(|short| option == format!("-{short}"));
            let mut names = argument.get_long().into_iter().chain(argument.get_all_aliases().unwrap_or_default());
            short || option.strip_prefix("--").is_some_and(|long| names.any(|name| name == long))
        };
        command.get_arguments().find(named).is_some_and(|argument| argument.get_action().takes_values())
    };
    let starts_program = command.get_arguments().any(clap::Arg::is_trailing_var_arg_set);
    let mut at = 2;
    while let Some(word) = arguments.get(at).and_then(|word| word.to_str()).filter(|word| *word != "--") {
        match word {
            "-np" => {
                arguments[at] = "--np".into();
                at += 2;
            }
            // This argument is the program to start. The arguments after it belong to the program.
            word if !word.starts_with('-') && starts_program => break,
            option => at += if takes_value(option) { 2 } else { 1 },
        }
    }
    arguments
}

/// Joins the words `bench p2p` to `bench-p2p`, which is a separate subcommand with its own options.
fn with_p2p_as_one_word(mut arguments: Vec<OsString>) -> Vec<OsString> {
    if arguments.get(1).is_some_and(|word| word == "bench") && arguments.get(2).is_some_and(|word| word == "p2p") {
        arguments.splice(1..3, [OsString::from("bench-p2p")]);
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<OsString> {
        with_p2p_as_one_word(words.iter().map(OsString::from).collect())
    }

    #[test]
    fn short_np_option_is_accepted_before_and_after_the_operation() {
        let np = |words: &[&str]| with_long_np(words.iter().map(OsString::from).collect());
        assert_eq!(np(&["peerweave", "bench", "put", "-np", "2"]), ["peerweave", "bench", "put", "--np", "2"]);
        assert_eq!(np(&["peerweave", "bench", "-np", "2", "put"]), ["peerweave", "bench", "--np", "2", "put"]);
        assert_eq!(np(&["peerweave", "bench", "-d", "-np", "put"]), ["peerweave", "bench", "-d", "-np", "put"]);
        assert_eq!(np(&["peerweave", "run", "echo", "-np"]), ["peerweave", "run", "echo", "-np"]);
    }

    #[test]
    fn arguments_bench_and_p2p_become_one_subcommand() {
        assert_eq!(words(&["peerweave", "bench", "p2p", "--iters", "3"]), ["peerweave", "bench-p2p", "--iters", "3"]);
        assert_eq!(words(&["peerweave", "bench", "put"]), ["peerweave", "bench", "put"]);
        assert_eq!(words(&["peerweave"]), ["peerweave"]);
    }
}
