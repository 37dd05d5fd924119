//! Options of `peerweave run`.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use crate::launch::OnFailure;
use peerweave_bench::console::parse::{parse_duration, parse_machines, parse_pes};

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
    /// What happens to the other PEs when one PE has failed
    #[arg(long, value_name = "ACTION", value_enum, default_value_t = OnFailure::Abort)]
    pub on_failure: OnFailure,
    /// Put `[PE]` before every line of output; default with two or more PEs
    #[arg(long, overrides_with = "no_tag")]
    pub tag: bool,
    /// Do not put `[PE]` before lines of output
    #[arg(long, overrides_with = "tag")]
    pub no_tag: bool,
    /// Number of machines that run this command, each with the same -n
    #[arg(long, value_name = "M", default_value_t = 1, value_parser = parse_machines)]
    pub nnodes: usize,
    /// Index of this machine, counted from 0
    #[arg(long, value_name = "R", default_value_t = 0, requires = "nnodes")]
    pub node_rank: usize,
    /// Address of machine 0 that all machines can reach
    #[arg(long, value_name = "HOST:PORT")]
    pub rendezvous: Option<String>,
    /// The program to start, and its arguments
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

When a PE fails, the others are notified at once. PEs still running after 2.5 s get SIGTERM, then SIGKILL. \
The exit code is the status of the PE that failed first.

With --on-failure=continue the other PEs continue. Use it for programs whose PEs call World::shrink after a failure. \
Each PE that fails is reported when it ends. The exit code is 0 if a PE of this machine succeeds, otherwise the status \
of the PE that ended last.

With several machines, PEERWEAVE_TOKEN (64 hexadecimal digits, the same on all) is the secret of the job. If it \
is unset, the command derives a token from --rendezvous and prints a warning: a derived token prevents accidental \
connections, but not attacks. PEERWEAVE_REQUIRE_TOKEN=1 makes an unset token an error.";
