//! Overlaps a ring all-gather with computation inside a kernel: while a part is in flight, the PE
//! sums it up.
#![forbid(unsafe_code)]

use peerweave_examples::kernel_job::{KernelJob, Outcome};
use peerweave_kernels::examples::all_gather;

/// Number of elements of the part of one PE.
const PART: usize = 1000;

fn main() -> Outcome {
    let job = KernelJob::from_env()?; // on CPU threads; with `--gpu` on GPUs
    let (me, n) = (job.my_pe() as usize, job.n_pes() as usize);
    let parts = job.alloc_zeroed::<u32>(PART * n)?;
    let arrived = job.alloc_zeroed::<u64>(1)?;
    let sums = job.alloc_zeroed::<u64>(n)?;
    let content = |pe: usize| (0..PART as u32).map(move |i| 1000 * pe as u32 + i);
    job.write(&parts, me * PART, &content(me).collect::<Vec<_>>())?;

    job.launch(&all_gather::KERNEL, 1, 128, (parts.slice(), arrived.slice(), sums.slice()))?;

    let sums_found = job.read(&sums)?;
    println!("PE {me} has the sums {sums_found:?}");
    assert_eq!(job.read(&parts)?, (0..n).flat_map(content).collect::<Vec<_>>());
    assert_eq!(sums_found, (0..n).map(|pe| content(pe).map(u64::from).sum()).collect::<Vec<u64>>());
    job.free(sums)?;
    job.free(arrived)?;
    job.free(parts)?;
    job.finish()
}
