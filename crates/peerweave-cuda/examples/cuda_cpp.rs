//! Runs a kernel in CUDA C++ that includes `peerweave.cuh`. NVRTC compiles the kernel when the
//! program runs. Each PE puts a number that depends on its PE into the memory of the next PE,
//! signals the next PE, and waits for the signal of the previous PE.
//!
//! With `peerweave run -n 2 cuda_cpp`, the PEs print "PE 0 received 17" and "PE 1 received 7".

use std::sync::Arc;

use peerweave_bootstrap::{Job, Options, Rendezvous};
use peerweave_cuda::{Gpu, GpuOptions, LaunchConfig};
use peerweave_driver::launch::{Image, Module};
use peerweave_link::{Linker, Source, peerweave_cuh};

const RING: &str = r#"
#include "peerweave.cuh"
using namespace peerweave;

extern "C" __global__ void ring(const Context* ctx, SymSlice<u64> word, SymSlice<u64> signal) {
    const u32 next = (ctx->my_pe + 1) % ctx->n_pes;
    p(ctx, word, u64(10 * ctx->my_pe + 7), next);
    signal_set(ctx, signal, 1, next);
    signal_wait_at_least(ctx, signal, 1, (ctx->my_pe + ctx->n_pes - 1) % ctx->n_pes);
}
"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let job = Job::from_env()?;
    let rendezvous = Arc::new(Rendezvous::join(&job, Options::default())?);
    let context = peerweave_driver::local_context(job.local_pe as usize)?;
    let gpu = Gpu::new(&rendezvous, &context, GpuOptions::new(1 << 20))?;

    let source = Source::new("ring.cu", RING).header("peerweave.cuh", peerweave_cuh()).option("-std=c++17");
    let linked = Linker::new(gpu.arch()).source(source).link()?;
    let kernel = Module::load(&context, Image::Binary(&linked.cubin))?.kernel("ring")?;

    let (word, signal) = (gpu.alloc::<u64>(1)?, gpu.alloc::<u64>(1)?);
    let stream = gpu.stream()?;
    gpu.barrier("loaded")?;
    // SAFETY: the kernel takes the context and these two slices, and accesses nothing else.
    unsafe { gpu.launch_loaded(&stream, &kernel, LaunchConfig::new(1, 1), (word.slice(), signal.slice())) }?;
    println!("{} received {}", gpu.pe(), word.read(&stream)?[0]);
    gpu.barrier("read")?;
    Ok(())
}
