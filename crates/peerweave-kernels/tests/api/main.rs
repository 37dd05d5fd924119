//! Tests, on the host, of the functions that kernels call: every function at every scope, by
//! several PEs on seeded schedules.
//!
//! The host computes the expected results from the same inputs. Each test varies seeds, so threads
//! and PEs run in different orders.

mod atomics;
mod collectives;
mod failures;
mod measurements;
mod rma;
mod signals;

use peerweave_device::launch::Kernel;
use peerweave_device::prelude::*;
use peerweave_device::types::KernelArgs;
use peerweave_grid::Job;
use std::time::Duration;

/// Number of PEs of most tests.
const PES: u32 = 3;

/// Returns a job with this seed and a deadline of 60 seconds.
fn job(seed: u64) -> Job {
    Job::with_heap(PES, 1 << 20).seed(seed).deadline(Duration::from_secs(60))
}

/// Runs a kernel of one block on all PEs, and panics with the error if the launch fails.
#[track_caller]
fn go<A: KernelArgs>(job: &mut Job, kernel: &Kernel<A>, threads: u32, args: A) {
    job.launch(kernel, 1, threads, args).unwrap_or_else(|error| panic!("{}: {error}", kernel.name()));
}

/// Returns the next PE.
fn right(ctx: &Context) -> u32 {
    (ctx.my_pe() + 1) % ctx.n_pes()
}
