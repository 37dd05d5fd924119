//! `check nccl`, `check nvshmem`, `check vmm`, `check device`: checks the GPUs of a machine through
//! one library, or with kernels, and compares all results with results that the host computes.
//!
//! `launch.rs` starts processes and `table.rs` prints results, for all parts. Each other module
//! holds the checks of one part. `check PART --help` lists the options of a part.
//!
//! Invariant: every wait has a deadline, and so does the whole run. The last line of output is `OK
//! ...` or `FAILED ...`, and the exit status agrees with it.

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

/// Checks the GPUs of this machine through one library, or with kernels.
///
/// The last line of output is `OK ...` or `FAILED ...`, and the exit status agrees with it.
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
    /// Check kernels that communicate: launches, waits, every function that kernels call
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
