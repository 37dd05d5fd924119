//! Overlaps a ring all-gather with computation inside a kernel: while a part is in flight, the PE
//! sums it up.
#![forbid(unsafe_code)]

use peerweave::{Error, World};
use peerweave_kernels::examples::all_gather;

/// Elements of the part of one PE.
const PART: usize = 1000;

fn main() -> Result<(), Error> {
    let world = World::from_env()?;
    let (me, n) = (world.my_pe().index(), world.n_pes());
    let stream = world.stream()?;
    let parts = world.alloc_zeroed::<u32>(PART * n)?;
    let arrived = world.alloc_zeroed::<u64>(1)?;
    let sums = world.alloc_zeroed::<u64>(n)?;
    let content = |pe: usize| (0..PART as u32).map(move |i| 1000 * pe as u32 + i);
    parts.slice(me * PART..(me + 1) * PART)?.copy_from(&content(me).collect::<Vec<_>>())?;

    stream.launch(&all_gather::KERNEL, 1, 128, (&parts, &arrived, &sums))?.wait()?;

    let sums_found = sums.to_vec()?;
    println!("PE {me} has the sums {sums_found:?}");
    assert_eq!(parts.to_vec()?, (0..n).flat_map(content).collect::<Vec<_>>());
    assert_eq!(sums_found, (0..n).map(|pe| content(pe).map(u64::from).sum()).collect::<Vec<u64>>());
    sums.release()?;
    arrived.release()?;
    parts.release()?;
    world.finalize()?;
    Ok(())
}
