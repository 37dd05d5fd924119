//! Puts the number of each PE into its neighbour's memory, from inside a kernel.
#![forbid(unsafe_code)]

use peerweave_examples::kernel_job::{KernelJob, Outcome};
use peerweave_kernels::examples::ring;

fn main() -> Outcome {
    let job = KernelJob::from_env()?; // on CPU threads; with `--gpu` on GPUs
    let (me, n) = (job.my_pe() as i32, job.n_pes() as i32);
    let dst = job.alloc_zeroed::<i32>(1)?;

    job.launch(&ring::KERNEL, 1, 1, (dst.slice(),))?;

    let received = job.read(&dst)?[0];
    println!("PE {me} received {received}");
    assert_eq!(received, (me + n - 1) % n, "the received number is not that of the previous PE");
    job.free(dst)?;
    job.finish()
}
