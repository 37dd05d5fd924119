//! Checks and measures the collectives of `peerweave-cuda` on GPUs. Start it with `peerweave run`,
//! one process for each GPU.
//!
//! - `--part check` checks the results of random calls, of every type and reduction, of graphs, and
//!   of calls on several streams.
//! - `--part bench` compares the times of Peerweave's calls with the times of NCCL's calls without
//!   windows, with windows, and with copy engines. It alternates CUDA graphs of 20 calls in one
//!   run.
//! - `--part norm` measures all_reduce with RMSNorm as one kernel and as two kernels.
//! - `--part sweep` finds the best shapes of launches.
//!
//! Every wait has a deadline. PE 0 prints the results.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use peerweave_bootstrap::{Job, Options, Rendezvous};
use peerweave_cuda::{Collectives, CollectivesOptions, Gpu, GpuOptions};

mod bench;
mod check;
mod compare;
mod kinds;
mod moves;
mod norms;

#[derive(Parser)]
#[command(about = "Checks and measures collectives on GPUs; one process for each GPU")]
struct Arguments {
    /// The part to run: a check or a measurement.
    #[arg(long, value_enum, default_value_t = Part::Check)]
    part: Part,
    /// Time limit of each wait, in seconds.
    #[arg(long, default_value_t = 10)]
    deadline: u64,
    /// Size of the largest message, in bytes.
    #[arg(long, default_value_t = 256 << 20)]
    max_bytes: usize,
    /// Size of the smallest message, in bytes.
    #[arg(long, default_value_t = 1 << 10)]
    min_bytes: usize,
    /// Number of random calls.
    #[arg(long, default_value_t = 300)]
    calls: u64,
    /// Number of rounds of three calls without a wait. Choose a small number if PEs share a GPU.
    #[arg(long, default_value_t = 20_000)]
    repeats: u64,
    /// Maximum number of blocks of a kernel.
    #[arg(long, default_value_t = 256)]
    max_blocks: u32,
    /// Size of a slot of a ring, in bytes.
    #[arg(long, default_value_t = 32 << 10)]
    slot_bytes: u64,
    /// Operations to compare. Default: all.
    #[arg(long, value_enum, value_delimiter = ',')]
    operations: Vec<kinds::Operation>,
    /// Number of measurements of each compared implementation.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Disable programmatic dependent launch. Each kernel then begins after the previous kernel in
    /// the stream has ended.
    #[arg(long)]
    plain_start: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Part {
    /// Checks results.
    Check,
    /// Compares the times of Peerweave's calls with the times of NCCL's calls.
    Bench,
    /// Checks and measures all_reduce with residual and RMSNorm, as one kernel and as two kernels.
    Norm,
    /// Measures many shapes of launches.
    Sweep,
}

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("collectives: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Outcome {
    let job = Job::from_env()?;
    let rendezvous = Arc::new(Rendezvous::join(&job, Options::default())?);
    let context = peerweave_driver::local_context(job.local_pe as usize)?;
    let mut options = CollectivesOptions::default();
    (options.max_blocks, options.slot_bytes) = (arguments.max_blocks, arguments.slot_bytes);
    options.programmatic = !arguments.plain_start;
    // The heap also has room for the results that `compare` stores in symmetric memory.
    let heap_bytes = options.heap_bytes() as usize + arguments.max_bytes + (16 << 20);
    let gpu = Gpu::new(&rendezvous, &context, GpuOptions::new(heap_bytes).deadline(Duration::from_secs(arguments.deadline)))?;
    let collectives = Collectives::world(&gpu, options)?;
    match arguments.part {
        Part::Check => check::run(&gpu, &collectives, arguments)?,
        Part::Bench => compare::run(&gpu, &collectives, arguments)?,
        Part::Norm => norms::run(&gpu, &collectives, arguments)?,
        Part::Sweep => bench::sweep(&gpu, &collectives, arguments)?,
    }
    // The driver releases the resources of graphs on a separate thread. This sleep gives the thread
    // time.
    std::thread::sleep(Duration::from_millis(300));
    gpu.barrier("done")?;
    collectives.end()?;
    gpu.end()?;
    Arc::into_inner(rendezvous).ok_or("the rendezvous still has another owner after the end of the GPU")?.leave()?;
    Ok(())
}
