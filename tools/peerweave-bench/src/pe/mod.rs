//! A PE of `bench`: joins the job, runs the plan, sends its measurements to the command.
//!
//! ```text
//!   portable.rs    a PE with the portable API: runs the plan
//!   measure.rs     one case: check, time, check
//!   operands.rs    the buffers of one case, with their element type
//!   calls.rs       the calls that are timed
//!   special.rs     operations that need more than an input and a result
//!   memory.rs      filling and comparing
//!   compare.rs     a PE that alternates several libraries
//!   own.rs         the portable API on GPUs as one of these libraries
//! ```
//! The PEs that use NCCL or NVSHMEM directly are in `crate::cuda`.

pub mod calls;
#[cfg(feature = "cuda")]
mod compare;
pub mod measure;
pub mod memory;
pub mod operands;
#[cfg(feature = "cuda")]
mod own;
mod portable;
mod special;

use crate::console::exit;
use crate::console::output::tell;
use crate::cuda::{self, Failure};
use crate::workload::args::BackendName;
use crate::workload::config::Config;

/// Entry point of the subcommand `bench-pe`, which runs one PE of a measurement. Returns the exit
/// code.
pub fn main(config: &str) -> u8 {
    let config: Config = match serde_json::from_str(config) {
        Ok(config) => config,
        Err(error) => {
            tell(&format!(
                "peerweave bench-pe: invalid configuration: {error}; run `peerweave bench` instead, which starts this command"
            ));
            return exit::USAGE;
        }
    };
    let result: Result<(), Failure> = match config.backend {
        #[cfg(feature = "cuda")]
        BackendName::Cuda if !config.compare.is_empty() => compare::run(&config),
        BackendName::Nccl => cuda::nccl_pe(&config),
        BackendName::Nvshmem => cuda::nvshmem_pe(&config),
        BackendName::Host if config.threads => portable::run_on_threads(&config).map_err(Into::into),
        // The launcher has set PEERWEAVE_BACKEND to the backend of the measurement.
        BackendName::Host | BackendName::Cuda => portable::run_in_job(&config).map_err(Into::into),
    };
    match result {
        Ok(()) => exit::OK,
        Err(error) => {
            tell(&error.to_string());
            exit::OPERATION_FAILED
        }
    }
}
