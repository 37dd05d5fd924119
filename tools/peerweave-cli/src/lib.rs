//! The `peerweave` command: starts programs as PEs, measures operations, reports what a machine
//! supports.
//!
//! Invariant: a command writes its result to standard output and everything else to standard error.
//! Its exit code is a constant of [`exit`] or the exit code of a PE that failed.

#![cfg(target_os = "linux")]

pub mod bench;
pub mod cli;
pub mod info;
pub mod launch;
pub mod logging;
pub mod machine;
pub mod p2p;
pub mod run;
pub mod tune;

use std::process::ExitCode;

use peerweave_bench::console::{exit, output};
use peerweave_bench::pe;

use crate::cli::{Cli, Command};

/// Runs the command and returns its exit code.
pub fn main() -> ExitCode {
    let cli = Cli::of_this_process();
    if let Err(message) = logging::start() {
        output::tell(&format!("peerweave: {message}"));
        return ExitCode::from(exit::USAGE);
    }
    ExitCode::from(match cli.command {
        Command::Run(args) => run::main(&args),
        Command::Bench(args) => bench::main(&args),
        Command::BenchP2p(args) => p2p::main(&args),
        Command::Info(args) => info::main(&args),
        Command::Tune(args) => tune::main(&args),
        Command::BenchPe { config } => pe::main(&config),
        Command::Guard => {
            launch::guard::main();
            exit::OK
        }
    })
}
