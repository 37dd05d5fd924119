//! Checks communication between the GPUs of a machine: through NCCL (`check nccl`), through NVSHMEM
//! (`check nvshmem`), through shared GPU memory (`check vmm`), or from inside kernels (`check
//! device`). Compares all results with results that the host computes.
//!
//! `launch.rs` starts processes, and `table.rs` prints results. Each other module contains the
//! checks of one of these subcommands. `check SUBCOMMAND --help` lists its options.
//! Invariant: every wait has a deadline, and so does the whole run. The last line of output is `OK
//! ...` with exit status 0, or `FAILED ...` with exit status 1. In a PE that a launcher started,
//! the number of the PE precedes `OK`, as in `PE 0: OK ...`.

mod device;
mod launch;
mod nccl;
mod nvshmem;
mod table;
mod vmm;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The error type of all checks.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Checks communication between the GPUs of this machine: through NCCL, through NVSHMEM, through
/// shared GPU memory, or from inside kernels.
///
/// The last line of output is `OK ...` with exit status 0, or `FAILED ...` with exit status 1.
#[derive(Parser)]
#[command(name = "check", max_term_width = 110)]
struct Arguments {
    #[command(subcommand)]
    part: Part,
}

#[derive(Subcommand)]
enum Part {
    /// Check NCCL: every collective, type and reduction, in and out of place
    Nccl(nccl::Arguments),
    /// Check NVSHMEM: every operation and type, on every kind of team
    Nvshmem(nvshmem::Arguments),
    /// Check shared GPU memory: a heap that every PE maps, grows and frees
    Vmm(vmm::Arguments),
    /// Check kernels that communicate: launches, waits, and every function that kernels can call
    Device(device::Arguments),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().part {
        Part::Nccl(arguments) => nccl::run(&arguments),
        Part::Nvshmem(arguments) => nvshmem::run(&arguments),
        Part::Vmm(arguments) => vmm::run(&arguments),
        Part::Device(arguments) => device::run(&arguments),
    };
    match outcome {
        Ok(verdict) => {
            println!("{verdict}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("FAILED {error}");
            ExitCode::FAILURE
        }
    }
}
