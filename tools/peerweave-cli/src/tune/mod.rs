//! `peerweave tune`: measures the thresholds of the route table on the GPUs of this machine, and
//! writes a file that the backend reads (`PEERWEAVE_ROUTE_TABLE`).
//!
//! For each operation, runs one comparison of `bench`, which checks the results. Its contenders are
//! NCCL and the methods (algorithms) of Peerweave's kernels, and their batches alternate. A pure
//! function of `peerweave-cuda` computes the table from the median times.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use peerweave_bench::console::output::tell;
use peerweave_bench::console::parse::{parse_duration, parse_pes, parse_size};
use peerweave_bench::workload::op::BenchOp;

#[cfg(feature = "cuda")]
mod measure;

/// The arguments of `peerweave tune`.
#[derive(Args, Clone, Debug)]
#[command(after_help = HELP)]
pub struct TuneArgs {
    /// File to write; if the file already exists, its rows for other numbers of PEs are kept
    #[arg(short = 'o', long, value_name = "FILE", default_value = "peerweave.routes")]
    pub output: PathBuf,
    /// Number of PEs, 2 to 8, each with its own GPU; default: the number of GPUs, but at most 8
    #[arg(short, long, visible_aliases = ["np"], value_name = "N", value_parser = parse_pes)]
    pub n: Option<usize>,
    /// Operations to measure; default: all operations that have more than one method
    #[arg(long, value_enum, value_delimiter = ',', value_name = "OPS")]
    pub ops: Vec<BenchOp>,
    /// Smallest size in bytes
    #[arg(short = 'b', long, value_name = "MIN", value_parser = parse_size, default_value = "1K")]
    pub min_bytes: usize,
    /// Largest size in bytes
    #[arg(short = 'e', long, value_name = "MAX", value_parser = parse_size, default_value = "256M")]
    pub max_bytes: usize,
    /// Factor from one size to the next
    #[arg(short = 'f', long, value_name = "FACTOR", default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=1024))]
    pub step_factor: u32,
    /// Number of batches of each method; the result is the median of the batches
    #[arg(long, value_name = "B", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub batches: u32,
    /// Calls per batch; default: as many as run in 3 milliseconds
    #[arg(long, value_name = "I", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub iters: Option<u64>,
    /// Measure calls that are enqueued one by one, instead of CUDA graphs of 20 calls
    #[arg(long)]
    pub eager: bool,
    /// Stop the measurement of an operation after this time, with exit code 124
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub timeout: Option<Duration>,
}

const HELP: &str = "\
The command writes a route table, which selects the algorithm of each collective. To use the table, set \
PEERWEAVE_ROUTE_TABLE or CudaOptions::route_table to the path of the file. `peerweave bench OP --backend cuda --explain` \
shows what the table selects. The file is valid for all GPUs of the same architecture as the GPUs of this machine. To \
add rows for a different number of PEs, run the command again with that number (-n).

The command measures, with elements of type bfloat16:
- the fastest algorithm of all_reduce for each size; reduce uses the same algorithm
- the size up to which all_gather and all_to_all send data in lines of 16 bytes instead of messages
- the sizes at which NCCL is faster than Peerweave's kernels
Rows that were not measured keep the values of the existing file, or of the built-in table if there is no file.";

/// Runs `peerweave tune` and returns its exit code.
pub fn main(args: &TuneArgs) -> u8 {
    match start(args) {
        Ok(code) => code,
        Err((code, message)) => {
            tell(&format!("peerweave tune: {message}"));
            code
        }
    }
}

#[cfg(feature = "cuda")]
fn start(args: &TuneArgs) -> Result<u8, (u8, String)> {
    measure::run(args)
}

#[cfg(not(feature = "cuda"))]
fn start(_: &TuneArgs) -> Result<u8, (u8, String)> {
    Err((peerweave_bench::console::exit::USAGE, peerweave_bench::cuda::NOT_BUILT_IN.to_owned()))
}
