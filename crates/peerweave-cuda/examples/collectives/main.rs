//! Checks and measures the collectives of `peerweave-cuda` on GPUs: one process for each GPU,
//! started by `peerweave run`.
//!
//! `--part check`: results of random calls, every type and reduction, graphs, several streams.
//! `--part bench`: microseconds of a call and of NCCL's call, in CUDA graphs of 20 calls,
//! alternated in one run. `--part sweep`: the best shapes of launches. Every wait is bounded; PE 0
//! prints tables.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use peerweave_bootstrap::{Job, Options, Rendezvous};
use peerweave_cuda::{Collectives, CollectivesOptions, Gpu, GpuOptions};

mod bench;
mod check;

#[derive(Parser)]
#[command(about = "Checks and measures collectives on GPUs; one process for each GPU")]
struct Arguments {
    /// The part to run.
    #[arg(long, value_enum, default_value_t = Part::Check)]
    part: Part,
    /// Time limit of a wait, in seconds.
    #[arg(long, default_value_t = 10)]
    deadline: u64,
    /// The largest message, in bytes.
    #[arg(long, default_value_t = 256 << 20)]
    max_bytes: usize,
    /// The smallest message, in bytes.
    #[arg(long, default_value_t = 1 << 10)]
    min_bytes: usize,
    /// Number of random calls.
    #[arg(long, default_value_t = 300)]
    calls: u64,
    /// Maximum number of blocks of a kernel.
    #[arg(long, default_value_t = 256)]
    max_blocks: u32,
    /// Bytes of a slot of a ring.
    #[arg(long, default_value_t = 32 << 10)]
    slot_bytes: u64,
    /// Start each kernel only after the previous kernel of the stream has ended.
    #[arg(long)]
    plain_start: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Part {
    /// Compare results with the expected ones.
    Check,
    /// Measure times, and NCCL's times for comparison.
    Bench,
    /// Measure times of many launch shapes.
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
    let context = peerweave_driver::context(job.local_pe as usize)?;
    let mut options = CollectivesOptions::default();
    (options.max_blocks, options.slot_bytes) = (arguments.max_blocks, arguments.slot_bytes);
    options.programmatic = !arguments.plain_start;
    let heap_bytes = options.heap_bytes() as usize + (16 << 20);
    let gpu = Gpu::new(&rendezvous, &context, GpuOptions::new(heap_bytes).deadline(Duration::from_secs(arguments.deadline)))?;
    let collectives = Collectives::world(&gpu, options)?;
    match arguments.part {
        Part::Check => check::run(&gpu, &collectives, arguments)?,
        Part::Bench => bench::run(&gpu, &collectives, arguments)?,
        Part::Sweep => bench::sweep(&gpu, &collectives, arguments)?,
    }
    // The driver releases the values kept by graphs on another thread.
    std::thread::sleep(Duration::from_millis(300));
    gpu.barrier("done")?;
    collectives.end()?;
    gpu.end()?;
    Arc::into_inner(rendezvous).ok_or("the GPU has ended, but the rendezvous still has another owner")?.leave()?;
    Ok(())
}
