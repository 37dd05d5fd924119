//! The usual first program of one-sided communication: every PE puts its numbers to the next PE,
//! waits for all others, and checks the numbers that it received.
#![forbid(unsafe_code)]

use peerweave::{Error, Rank, World};

/// Number of elements that each PE puts.
const COUNT: usize = 1024;

fn main() -> Result<(), Error> {
    let world = World::from_env()?;
    let team = world.team();
    let (me, n) = (team.my_rank().index(), team.size());
    let (next, previous) = ((me + 1) % n, (me + n - 1) % n);

    // Both arrays are symmetric: every PE has a copy of each. In the put below, this PE's handle of
    // `target` refers to the next PE's memory.
    let source = world.alloc::<f32>(COUNT)?;
    let target = world.alloc::<f32>(COUNT)?;
    source.copy_from(&[me as f32; COUNT])?;

    team.put_blocking(&source, &target, Rank::new(next as u32))?;
    // All PEs have arrived, and all puts are visible.
    team.barrier_blocking()?;

    let received = target.to_vec()?;
    assert_eq!(received, [previous as f32; COUNT], "the received numbers are not those of the previous PE");
    println!("PE {me} of {n}: received {COUNT} times {} from PE {previous}", received[0]);

    source.release()?;
    target.release()?;
    assert!(world.finalize()?.is_clean());
    Ok(())
}
