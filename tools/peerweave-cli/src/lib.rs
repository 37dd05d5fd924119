//! The `peerweave` command: starts programs as PEs, measures operations, reports what a machine
//! supports.
//!
//! Invariant: a command writes its result to standard output and everything else to standard error,
//! and its exit code is one of [`exit`].

pub mod bench;
pub mod cli;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "no_cuda.rs"]
mod cuda;
pub mod exit;
pub mod info;
pub mod launch;
pub mod logging;
pub mod rendezvous;
pub mod run;
pub mod size;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};

/// Prints a line of the result. Exits if the line cannot be written; silently if the reader has
/// closed the pipe, as other commands do.
pub(crate) fn print_line(line: &str) {
    let Err(error) = writeln!(std::io::stdout().lock(), "{line}") else { return };
    if error.kind() == std::io::ErrorKind::BrokenPipe {
        std::process::exit(exit::of_signal(13).into());
    }
    tell(&format!("peerweave: standard output: {error}"));
    std::process::exit(exit::LAUNCHER.into());
}

/// Prints a message to standard error. Ignores write errors: the exit code still tells the outcome.
pub(crate) fn tell(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Runs the command and returns its exit code.
pub fn main() -> ExitCode {
    let cli = Cli::parse_from(cli::with_long_np(bench::p2p::joined(std::env::args_os())));
    if let Err(message) = logging::start() {
        tell(&format!("peerweave: {message}"));
        return ExitCode::from(exit::USAGE);
    }
    ExitCode::from(match cli.command {
        Command::Run(args) => run::main(&args),
        Command::Bench(args) => bench::main(&args),
        Command::BenchP2p(args) => bench::p2p::main(&args),
        Command::Info(args) => info::main(&args),
        Command::BenchPe { config } => bench::pe::main(&config),
        Command::Guard => {
            launch::guard::main();
            exit::OK
        }
    })
}
