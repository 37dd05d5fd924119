//! Passes chunks through all PEs; PEs work on different chunks at the same time. Each PE runs one
//! kernel for all chunks.
#![forbid(unsafe_code)]

use peerweave_examples::kernel_job::{KernelJob, Outcome};
use peerweave_kernels::examples::pipeline;

/// Number of elements of all chunks together.
const LEN: usize = 4096;

/// Number of chunks.
const CHUNKS: u32 = 16;

fn main() -> Outcome {
    let job = KernelJob::from_env()?; // on CPU threads; with `--gpu` on GPUs
    let (me, n) = (job.my_pe(), job.n_pes());
    let data = job.alloc_zeroed::<u32>(LEN)?;
    let arrived = job.alloc_zeroed::<u64>(1)?;
    if me == 0 {
        job.write(&data, 0, &(0..LEN as u32).collect::<Vec<_>>())?;
    }

    job.launch(&pipeline::KERNEL, 1, 64, (data.slice(), arrived.slice(), CHUNKS))?;

    println!("PE {me} got {} chunks and added {}", job.read(&arrived)?[0], me + 1);
    if me == n - 1 {
        let added = n * (n + 1) / 2;
        let right = job.read(&data)?.into_iter().zip(0..).filter(|&(found, i)| found == i + added).count();
        println!("{right} of {LEN} elements went through all {n} PEs");
        assert_eq!(right, LEN);
    }
    job.free(arrived)?;
    job.free(data)?;
    job.finish()
}
