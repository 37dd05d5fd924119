//! Passes blocks around a ring: each PE puts blocks into the memory of its right neighbour, and
//! signals the arrival of each block.
#![forbid(unsafe_code)]

use peerweave::{Compare, Error, Rank, ReduceOp, World};

/// Number of elements of a block.
const BLOCK: usize = 1000;

/// Returns the content of the block that starts at `rank`.
fn content(rank: usize) -> Vec<u32> {
    (0..BLOCK).map(|i| (rank * BLOCK + i) as u32).collect()
}

fn main() -> Result<(), Error> {
    let world = World::from_env()?;
    let team = world.team();
    let (me, n) = (team.my_rank().index(), team.size());
    let right = Rank::new(((me + 1) % n) as u32);

    // Memory for the block of every rank, and a signal word for each block. The words must be zero
    // on every PE before a neighbour can change them: `alloc_zeroed` returns when they are.
    let blocks = world.alloc::<u32>(n * BLOCK)?;
    let arrived = world.alloc_zeroed::<u64>(n)?;
    let block = |rank: usize| blocks.slice(rank * BLOCK..(rank + 1) * BLOCK);

    block(me)?.copy_from(&content(me))?;
    for step in 1..n {
        // Passes the block of the previous step to the right. In the first step, that is this PE's
        // own block.
        let pass = (me + n - (step - 1)) % n;
        team.put_signal_blocking(&block(pass)?, &block(pass)?, arrived.signal(pass)?.set(1), right)?;

        // The left neighbour passes the next block. Once the word of that block is set, its data is
        // visible.
        let next = (me + n - step) % n;
        team.wait_until_blocking(&arrived.signal(next)?, Compare::Eq, 1)?;
        if me == 0 {
            println!("step {step}: forwarded block {pass}, received block {next}");
        }
    }

    let mut complete = [0];
    for rank in 0..n {
        complete[0] += u32::from(block(rank)?.to_vec()? == content(rank));
    }
    team.all_reduce_in_place_blocking(&mut complete, ReduceOp::Sum)?;
    assert_eq!(complete[0] as usize, n * n, "the number of blocks that arrived unchanged is wrong");
    if me == 0 {
        println!("blocks on each PE: {n} of {n}, unchanged");
    }

    // A release waits until every PE has called it, since peers may still use the memory.
    blocks.release()?;
    arrived.release()?;
    assert!(world.finalize()?.is_clean());
    Ok(())
}
