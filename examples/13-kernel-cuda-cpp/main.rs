//! Puts the number of each PE into its neighbour's memory, from inside a kernel in CUDA C++.
//!
//! The host backend cannot run CUDA C++. It runs the Rust kernel of `kernel-ring` instead.

use peerweave_cuda::LaunchConfig;
use peerweave_driver::launch::{Image, Module};
use peerweave_examples::kernel_job::{KernelJob, Outcome};
use peerweave_kernels::examples::ring;
use peerweave_link::{Linker, Source, peerweave_cuh};

fn main() -> Outcome {
    let job = KernelJob::from_env()?; // on CPU threads; with `--gpu` on GPUs
    let (me, n) = (job.my_pe() as i32, job.n_pes() as i32);
    let dst = job.alloc_zeroed::<i32>(1)?;
    let arrived = job.alloc_zeroed::<u64>(1)?;

    match &job {
        KernelJob::Host { .. } => job.launch(&ring::KERNEL, 1, 1, (dst.slice(),))?,
        KernelJob::Gpu { gpu, stream } => {
            let source = Source::new("ring.cu", include_str!("ring.cu")).header("peerweave.cuh", peerweave_cuh());
            let linked = Linker::new(gpu.arch()).source(source.option("-std=c++17")).link()?; // by NVRTC, kept on disk
            let kernel = Module::load(gpu.context(), Image::Binary(&linked.cubin))?.kernel("ring_cpp")?;
            gpu.barrier("loaded")?;
            // SAFETY: the kernel takes the context and these two views by value, and accesses
            // nothing beyond them.
            unsafe { gpu.launch_loaded(stream, &kernel, LaunchConfig::new(1, 1), (dst.slice(), arrived.slice())) }?;
            stream.wait()?;
        }
    }

    let received = job.read(&dst)?[0];
    println!("PE {me} received {received}");
    assert_eq!(received, (me + n - 1) % n, "the received number is not that of the previous PE");
    job.free(arrived)?;
    job.free(dst)?;
    job.finish()
}
