//! Passes chunks through all PEs; PEs work on different chunks at the same time. Each PE runs one
//! kernel for all chunks.
#![forbid(unsafe_code)]

use peerweave::{Error, World};
use peerweave_kernels::examples::pipeline;

/// Elements of all chunks together.
const LEN: usize = 4096;

/// How many chunks.
const CHUNKS: u32 = 16;

fn main() -> Result<(), Error> {
    let world = World::from_env()?;
    let (me, n) = (world.my_pe().get(), world.n_pes() as u32);
    let stream = world.stream()?;
    let data = world.alloc_zeroed::<u32>(LEN)?;
    let arrived = world.alloc_zeroed::<u64>(1)?;
    if me == 0 {
        data.copy_from(&(0..LEN as u32).collect::<Vec<_>>())?;
    }

    stream.launch(&pipeline::KERNEL, 1, 64, (&data, &arrived, CHUNKS))?.wait()?;

    println!("PE {me} got {} chunks and added {}", arrived.load(0)?, me + 1);
    if me == n - 1 {
        let added = n * (n + 1) / 2;
        let right = data.to_vec()?.into_iter().zip(0..).filter(|&(found, i)| found == i + added).count();
        println!("{right} of {LEN} elements went through all {n} PEs");
        assert_eq!(right, LEN);
    }
    arrived.release()?;
    data.release()?;
    world.finalize()?;
    Ok(())
}
