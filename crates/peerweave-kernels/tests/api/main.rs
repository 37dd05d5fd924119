//! What kernels call, on the host: every function at every scope, by several PEs on seeded
//! schedules.
//!
//! The oracle is computed on the host from the same inputs. Each test varies seeds, so that threads
//! and PEs meet in other orders.

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

/// PEs of most tests.
const PES: u32 = 3;

/// A job whose schedule follows the seed, with little patience.
fn job(seed: u64) -> Job {
    Job::with_heap(PES, 1 << 20).seed(seed).deadline(Duration::from_secs(20))
}

/// Runs a kernel of one block on all PEs, and panics with what failed.
#[track_caller]
fn go<A: KernelArgs>(job: &mut Job, kernel: &Kernel<A>, threads: u32, args: A) {
    job.launch(kernel, 1, threads, args).unwrap_or_else(|error| panic!("{}: {error}", kernel.name()));
}

/// The PE to the right.
fn right(ctx: &Context) -> u32 {
    (ctx.my_pe() + 1) % ctx.n_pes()
}
