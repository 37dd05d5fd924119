//! Checks on GPUs that kernels communicate. `peerweave run` starts one process for each GPU.
//!
//! `check_device` alone tests kernels by direct access. `--transport nvshmem` and
//! `--transport network` use NVSHMEM's heap; `network` never uses direct access. `--part checks`
//! tests every function that kernels call. With `--kill PE`, that PE ends itself while kernels of
//! the others wait for it. Every wait has a deadline. Each check prints a row.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use peerweave_bootstrap::{Job, Options, Rendezvous};
use peerweave_cuda::{Gpu, GpuOptions, Transport};

mod basics;
mod bench;
mod checks;
mod kill;
mod table;

use table::Table;

#[derive(Parser)]
#[command(about = "Checks on GPUs that kernels communicate; one process for each GPU")]
struct Arguments {
    /// The transport to other PEs.
    #[arg(long, value_enum, default_value_t = Kind::Mapped)]
    transport: Kind,
    /// The part to run.
    #[arg(long, value_enum, default_value_t = Part::Basics)]
    part: Part,
    /// PE that ends itself while kernels of the others wait for it.
    #[arg(long)]
    kill: Option<u32>,
    /// Runs only the checks whose names contain this text.
    #[arg(long, default_value = "")]
    only: String,
    /// Time limit of a wait, in seconds.
    #[arg(long, default_value_t = 10)]
    deadline: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    /// Virtual memory, mapped on all PEs.
    Mapped,
    /// NVSHMEM's heap, by direct access to PEs whose memory is mapped.
    Nvshmem,
    /// NVSHMEM's device library, even for PEs whose memory is mapped.
    Network,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Part {
    /// Launch, heap, context and waits.
    Basics,
    /// Every function that kernels call.
    Checks,
    /// `basics` and `checks`.
    All,
    /// Measurements from inside kernels: latencies and rates of one-sided operations.
    Bench,
}

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("check_device: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<bool, Box<dyn std::error::Error>> {
    let start = Instant::now();
    let job = Job::from_env()?;
    let rendezvous = Arc::new(Rendezvous::join(&job, Options::default())?);
    let context = peerweave_driver::context(job.local_pe as usize)?;
    let settings = peerweave_nvshmem::Settings::default;
    let transport = match arguments.transport {
        Kind::Mapped => Transport::Mapped,
        Kind::Nvshmem => Transport::Nvshmem(settings()),
        Kind::Network => Transport::Network(settings()),
    };
    let deadline = Duration::from_secs(arguments.deadline);
    let heap_bytes = if arguments.part == Part::Bench { bench::HEAP_BYTES } else { 32 << 20 };
    let options = GpuOptions::new(heap_bytes).transport(transport).deadline(deadline);
    let gpu = Gpu::new(&rendezvous, &context, options)?;
    let mut table = Table::new(&gpu, format!("{:?}", arguments.transport).to_lowercase(), start, &arguments.only);
    match arguments.kill {
        Some(victim) => kill::run(&gpu, &mut table, victim),
        None => {
            let wants = |part| arguments.part == part || arguments.part == Part::All;
            if wants(Part::Basics) {
                basics::run(&gpu, &mut table);
            }
            if wants(Part::Checks) {
                checks::run(&gpu, &mut table);
            }
            if arguments.part == Part::Bench {
                table.check("load all kernels of the measurements", || bench::load(&gpu));
                table.check("measurements", || bench::run(&gpu));
            }
        }
    }
    let passed = table.print();
    if passed && arguments.kill.is_none() {
        gpu.end()?;
        Arc::into_inner(rendezvous).ok_or("the GPU has ended, but the rendezvous still has another owner")?.leave()?;
    }
    Ok(passed)
}
