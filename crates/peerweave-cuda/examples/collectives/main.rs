//! Checks and measures the collectives of `peerweave-cuda` on GPUs: one process for each GPU,
//! started by `peerweave run`.
//!
//! `--part check`: results of random calls, every type and reduction, graphs, several streams.
//! `--part bench`: microseconds beside NCCL's, plain, with windows, and by copy engines, in CUDA
//! graphs of 20 calls, alternated in one run.
//! `--part norm`: all_reduce with RMSNorm as one kernel and as two.
//! `--part sweep`: the best shapes of launches. Every wait is bounded; PE 0 prints tables.

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
    /// The part to run.
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
    /// Number of rounds of three calls without a wait. GPUs that several PEs share need few.
    #[arg(long, default_value_t = 20_000)]
    repeats: u64,
    /// Maximum number of blocks of a kernel.
    #[arg(long, default_value_t = 256)]
    max_blocks: u32,
    /// Size of a slot of a ring, in bytes.
    #[arg(long, default_value_t = 32 << 10)]
    slot_bytes: u64,
    /// Operations to compare; default: all.
    #[arg(long, value_enum, value_delimiter = ',')]
    operations: Vec<kinds::Operation>,
    /// Number of measurements of each compared form.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Kernels begin after the previous kernel in the stream has ended.
    #[arg(long)]
    plain_start: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Part {
    /// Checks results.
    Check,
    /// Compares times with NCCL's.
    Bench,
    /// Checks and measures all_reduce with residual and RMSNorm, beside two kernels.
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
    // Checks the results of calls with symmetric memory.
    let heap_bytes = options.heap_bytes() as usize + arguments.max_bytes + (16 << 20);
    let gpu = Gpu::new(&rendezvous, &context, GpuOptions::new(heap_bytes).deadline(Duration::from_secs(arguments.deadline)))?;
    let collectives = Collectives::world(&gpu, options)?;
    match arguments.part {
        Part::Check => check::run(&gpu, &collectives, arguments)?,
        Part::Bench => compare::run(&gpu, &collectives, arguments)?,
        Part::Norm => norms::run(&gpu, &collectives, arguments)?,
        Part::Sweep => bench::sweep(&gpu, &collectives, arguments)?,
    }
    // The driver drops the resources of graphs on a separate thread.
    std::thread::sleep(Duration::from_millis(300));
    gpu.barrier("done")?;
    collectives.end()?;
    gpu.end()?;
    Arc::into_inner(rendezvous).ok_or("the GPU has ended and something holds the rendezvous")?.leave()?;
    Ok(())
}
