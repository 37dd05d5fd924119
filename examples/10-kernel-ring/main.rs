//! Each PE puts its number into its neighbour's memory, from inside a kernel.
#![forbid(unsafe_code)]

use peerweave::{Error, World};
use peerweave_kernels::examples::ring;

fn main() -> Result<(), Error> {
    let world = World::from_env()?;
    let (me, n) = (world.my_pe().get() as i32, world.n_pes() as i32);
    let stream = world.stream()?;
    let dst = world.alloc_zeroed::<i32>(1)?;

    stream.launch(&ring::KERNEL, 1, 1, (&dst,))?.wait()?;

    let received = dst.load(0)?;
    println!("PE {me} received {received}");
    assert_eq!(received, (me + n - 1) % n, "the number of the PE before");
    dst.release()?;
    world.finalize()?;
    Ok(())
}
