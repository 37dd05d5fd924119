//! `peerweave bench p2p`: measures the bandwidth between every two GPUs of this machine and the
//! latency of a flag.
//!
//! ```text
//!   survey.rs     chooses the measurements
//!   probe.rs      one measurement        kernels.rs, kernels.ptx  its kernels
//!   report.rs     the results as text and JSON
//!   picture.rs    the results as SVG
//! ```

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use peerweave_bench::console::exit;
use peerweave_bench::console::output::{check_writable, print_line, tell, write_file};
use peerweave_bench::console::parse::{format_size, parse_duration, parse_picture, parse_size};

#[cfg(feature = "cuda")]
mod kernels;
mod picture;
#[cfg(feature = "cuda")]
pub mod probe;
mod report;
#[cfg(feature = "cuda")]
mod survey;

use report::Report;

/// The arguments of `peerweave bench p2p`.
#[derive(Args, Clone, Debug)]
#[command(override_usage = "peerweave bench p2p [OPTIONS]", after_help = HELP)]
pub struct P2pArgs {
    /// Bytes per copy
    #[arg(short, long, value_name = "BYTES", value_parser = parse_size, default_value = "256M")]
    pub bytes: usize,
    /// Number of consecutive copies that are timed together
    #[arg(long, value_name = "I", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub iters: u32,
    /// Number of round trips in each measurement of latency
    #[arg(long, value_name = "R", default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub rounds: u32,
    /// Deadline for each single measurement
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "10s")]
    pub wait: Duration,
    /// Write the result as JSON
    #[arg(short = 'J', long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write heat maps of the results as SVG
    #[arg(long, value_name = "FILE.svg", value_parser = parse_picture)]
    pub plot: Option<PathBuf>,
}

const HELP: &str = "\
In each table, the row is the GPU that makes the transfer, and the column is the GPU whose memory it accesses. \
Bandwidth is given for each direction separately, in GB/s (10^9 bytes per second), even if both directions run at \
once. Latency is half the round-trip time of a flag, in microseconds. The words at the start and at the end of the \
copied data are checked. The exit code is 1 if any word is wrong.";

/// Runs `peerweave bench p2p` and returns its exit code.
pub fn main(args: &P2pArgs) -> u8 {
    match start(args) {
        Ok(0) => exit::OK,
        Ok(_) => exit::WRONG_VALUES,
        Err((code, message)) => {
            tell(&format!("peerweave bench p2p: {message}"));
            code
        }
    }
}

fn start(args: &P2pArgs) -> Result<usize, (u8, String)> {
    args.json.iter().chain(&args.plot).try_for_each(|path| check_writable(path))?;
    let report = measure(args).map_err(|message| (exit::OPERATION_FAILED, message))?;
    print_line(report.text().trim_end());
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&report).map_err(|error| (exit::LAUNCHER, error.to_string()))?;
        write_file(path, &(text + "\n"))?;
    }
    if let Some(path) = &args.plot {
        write_file(path, &picture::svg(&report).map_err(|error| (exit::LAUNCHER, error))?)?;
    }
    Ok(report.wrong)
}

#[cfg(feature = "cuda")]
fn measure(args: &P2pArgs) -> Result<Report, String> {
    survey::run(args)
}

#[cfg(not(feature = "cuda"))]
fn measure(_: &P2pArgs) -> Result<Report, String> {
    Err(peerweave_bench::cuda::NOT_BUILT_IN.to_owned())
}

/// Returns a line that describes the measurement: sizes and repetitions of copies, and versions of
/// CUDA and Peerweave.
fn asked(report: &Report) -> String {
    format!(
        "{} transfers of {} each, CUDA {}, peerweave {}",
        report.iters,
        format_size(report.bytes),
        report.cuda,
        report.version
    )
}
