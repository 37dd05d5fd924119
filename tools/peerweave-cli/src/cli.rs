//! Definition of the command line for clap.
//!
//! Invariant: every value is checked here or by the parser of its type, so that commands get only
//! valid values.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::bench::config::BenchArgs;
use crate::bench::p2p::P2pArgs;
use crate::exit;
use crate::size::parse_duration;

/// Starts programs as PEs of a job, measures communication, and reports what this machine supports.
#[derive(Debug, Parser)]
#[command(name = "peerweave", version, after_help = exit::HELP, max_term_width = 110)]
pub struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
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
    /// Run one PE of `bench`; only for use by `bench`
    #[command(hide = true, name = "bench-pe")]
    BenchPe {
        /// The configuration, as JSON.
        config: String,
    },
    /// Kill process groups when standard input closes; only for use by the launcher
    #[command(hide = true, name = "guard")]
    Guard,
}

/// The arguments of `peerweave run`.
#[derive(Args, Debug)]
#[command(after_help = RUN_HELP)]
pub struct RunArgs {
    /// Number of PEs on this machine; default: the number of CPUs that this process may use. Also
    /// `-np N`
    #[arg(short, long, visible_aliases = ["np", "nproc-per-node"], alias = "nproc_per_node", value_name = "N", value_parser = parse_pes)]
    pub n: Option<usize>,
    /// Stop the job after this time, such as 30, 500ms or 2m, with exit code 124
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub timeout: Option<Duration>,
    /// Put `[PE]` before every line of output; default with two or more PEs
    #[arg(long, overrides_with = "no_tag")]
    pub tag: bool,
    /// Do not put `[PE]` before lines of output
    #[arg(long, overrides_with = "tag")]
    pub no_tag: bool,
    /// Number of machines that run this command with the same --n
    #[arg(long, value_name = "M", default_value_t = 1, value_parser = parse_machines)]
    pub nnodes: usize,
    /// Index of this machine, counted from 0
    #[arg(long, value_name = "R", default_value_t = 0, requires = "nnodes")]
    pub node_rank: usize,
    /// Address of machine 0 that all machines can reach
    #[arg(long, value_name = "HOST:PORT")]
    pub rendezvous: Option<String>,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

const RUN_HELP: &str = "\
PROGRAM without a slash is searched in PATH, then in the directory of the peerweave command, then in its \
`examples` directory.

PE 0 reads standard input. Signals (INT, TERM, HUP, USR1, USR2) are forwarded to all PEs; a second INT or TERM, \
at least 100 ms later, kills them.

The launcher sets PEERWEAVE_PE and the other variables of a PE and, for PyTorch and similar programs, RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, \
MASTER_ADDR and MASTER_PORT.

When a PE fails, the others are notified at once. Those still running after 2.5 s get SIGTERM, then SIGKILL.

With several machines, PEERWEAVE_TOKEN (64 hexadecimal digits, the same on all) is the secret of the job. If it \
is unset, the command derives a token from --rendezvous and warns: this prevents accidental connections, but not \
attacks. PEERWEAVE_REQUIRE_TOKEN=1 makes an unset token an error.";

/// The arguments of `peerweave info`.
#[derive(Args, Debug)]
pub struct InfoArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Maximum number of PEs that one launcher starts; a larger number is most likely a typing error.
pub const MAX_LOCAL_PES: usize = 4096;

/// Parses a number of PEs.
pub(crate) fn parse_pes(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if (1..=MAX_LOCAL_PES).contains(&n) => Ok(n),
        _ => Err(format!("{text:?} is not a valid number of PEs, expected 1 to {MAX_LOCAL_PES}")),
    }
}

/// Parses the file name of a plot; only SVG is supported.
pub(crate) fn parse_picture(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension() {
        Some(extension) if extension != "svg" => Err("expected a file name that ends with .svg".to_owned()),
        _ => Ok(path),
    }
}

fn parse_machines(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if (1..=65536).contains(&n) => Ok(n),
        _ => Err(format!("{text:?} is not a valid number of machines, expected 1 to 65536")),
    }
}

/// Replaces `-np`, as other launchers name it, by `--np`, because clap has no short options of two
/// letters. Changes only arguments of `run` and `bench`, not those of the program that is started.
pub fn with_long_np(mut arguments: Vec<OsString>) -> Vec<OsString> {
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
    let mut at = 2;
    while let Some(option) =
        arguments.get(at).and_then(|word| word.to_str()).filter(|word| word.starts_with('-') && *word != "--")
    {
        if option == "-np" {
            arguments[at] = "--np".into();
            at += 2;
        } else {
            at += if takes_value(option) { 2 } else { 1 };
        }
    }
    arguments
}

/// Returns the default number of PEs: the number of CPUs that this process may use.
pub fn default_pes() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(MAX_LOCAL_PES)
}
