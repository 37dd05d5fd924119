//! The command line, as clap reads it. Decides nothing: what an option does is told where it is used.
//!
//! Invariant: every value is checked here or by the parser of its type, so that the commands get no text that can be wrong.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::bench::config::BenchArgs;
use crate::bench::p2p::P2pArgs;
use crate::exit;
use crate::size::parse_duration;

/// Moves data among GPUs and processes: starts programs, measures, and says what this machine offers.
#[derive(Debug, Parser)]
#[command(name = "peerweave", version, after_help = exit::HELP, max_term_width = 110)]
pub struct Cli {
    /// What to do.
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
    /// Measure the ways between GPUs; `bench p2p` is the same
    #[command(name = "bench-p2p")]
    BenchP2p(P2pArgs),
    /// Say what this machine and this environment offer
    Info(InfoArgs),
    /// A PE of `bench`; started by it alone
    #[command(hide = true, name = "bench-pe")]
    BenchPe {
        /// The configuration, as JSON.
        config: String,
    },
    /// Ends process groups when its standard input closes; started by the launcher alone
    #[command(hide = true, name = "guard")]
    Guard,
}

/// The arguments of `peerweave run`.
#[derive(Args, Debug)]
#[command(after_help = RUN_HELP)]
pub struct RunArgs {
    /// Number of PEs on this machine; default: the number of CPUs that this process may use. Also `-np N`
    #[arg(short, long, visible_aliases = ["np", "nproc-per-node"], alias = "nproc_per_node", value_name = "N", value_parser = parse_pes)]
    pub n: Option<usize>,
    /// End everything after this time, such as 30, 500ms or 2m, with exit code 124
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub timeout: Option<Duration>,
    /// Put `[PE]` before every line of output; this is the default where there are two PEs or more
    #[arg(long, overrides_with = "no_tag")]
    pub tag: bool,
    /// Leave lines of output as they are
    #[arg(long, overrides_with = "tag")]
    pub no_tag: bool,
    /// Number of machines that run this command with the same --n
    #[arg(long, value_name = "M", default_value_t = 1, value_parser = parse_machines)]
    pub nnodes: usize,
    /// Which of them this is, counted from 0
    #[arg(long, value_name = "R", default_value_t = 0, requires = "nnodes")]
    pub node_rank: usize,
    /// Where the machines meet: an address of machine 0 that the others reach
    #[arg(long, value_name = "HOST:PORT")]
    pub rendezvous: Option<String>,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

const RUN_HELP: &str = "\
PROGRAM without a slash is looked for in PATH, then in the directory of the peerweave command, then in its `examples`.

Standard input goes to PE 0. Signals (INT, TERM, HUP, USR1, USR2) are passed on; a second INT or TERM (100 ms later or more) kills.

Every PE finds PEERWEAVE_PE and its companions in its environment, and, for programs of PyTorch and others, RANK, WORLD_SIZE, \
LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

When a PE fails, the others are told at once, get 2.5 s to end by themselves, then SIGTERM, then SIGKILL.

Several machines share the secret in PEERWEAVE_TOKEN (64 hexadecimal digits). Without it one is derived from the \
rendezvous, which guards against mix-ups and not against attackers, and the command says so; PEERWEAVE_REQUIRE_TOKEN=1 makes that an error.";

/// The arguments of `peerweave info`.
#[derive(Args, Debug)]
pub struct InfoArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Most PEs that one launcher starts: more is a typing error, and a costly one.
pub const MAX_LOCAL_PES: usize = 4096;

/// Reads a number of PEs.
pub(crate) fn parse_pes(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if (1..=MAX_LOCAL_PES).contains(&n) => Ok(n),
        _ => Err(format!("{text:?} is not a number of PEs; expected 1 to {MAX_LOCAL_PES}")),
    }
}

/// Reads the name of a picture: SVG is all that is drawn.
pub(crate) fn parse_picture(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension() {
        Some(extension) if extension != "svg" => Err("expected a name that ends with .svg".to_owned()),
        _ => Ok(path),
    }
}

fn parse_machines(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if (1..=65536).contains(&n) => Ok(n),
        _ => Err(format!("{text:?} is not a number of machines; expected 1 to 65536")),
    }
}

/// Writes `-np`, as other launchers call it, as clap reads it: a long option. Only where `run` or `bench` reads it, not among the arguments of the
/// program that is started.
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

/// The number of PEs where none is given: the CPUs that this process may use.
pub fn default_pes() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(MAX_LOCAL_PES)
}
