//! The `peerweave` command: starts programs as PEs, measures operations, says what a machine offers.
//!
//! Moves no data itself: that is the work of the `peerweave` crate. Invariant: a command writes its result to standard output and everything
//! else to standard error, and its exit code is one of [`exit`].

pub mod bench;
pub mod cli;
pub mod exit;
pub mod info;
pub mod launch;
pub mod logging;
pub mod rendezvous;
pub mod run;
pub mod size;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};

/// The command, from its arguments to its exit code.
pub fn main() -> ExitCode {
    let cli = Cli::parse_from(bench::p2p::joined(std::env::args_os()));
    if let Err(message) = logging::start() {
        eprintln!("peerweave: {message}");
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
