//! Runs a pipeline over two streams: at the same time, it gathers one chunk, reduces the next
//! chunk, and computes the chunk after that.
#![forbid(unsafe_code)]

use peerweave::{Error, ReduceOp, World};

/// Number of chunks that pass through the pipeline.
const CHUNKS: usize = 6;
/// Number of elements of a chunk that each PE reduces.
const PART: usize = 20_000;

/// Returns element `i` of chunk `chunk`, as `rank` computes it. Elements are small integers, so
/// that sums are exact.
fn element(rank: usize, chunk: usize, i: usize) -> f32 {
    ((rank + 1) * (chunk + 1) + i % 16) as f32
}

fn main() -> Result<(), Error> {
    let world = World::from_env()?;
    let (me, n) = (world.team().my_rank().index(), world.n_pes());
    let count = n * PART;

    // The collectives of one team run one after the other, even on different streams. So each
    // stream uses its own team of the same ranks. The collectives of the two teams can overlap.
    let split = |color| Ok::<_, Error>(world.team().split(Some(color), 0)?.expect("a rank that passes a color gets a team"));
    let (reducing, gathering) = (split(0)?, split(0)?);
    let (first, second) = (world.stream()?, world.stream()?);

    let given = world.alloc::<f32>(CHUNKS * count)?;
    let sums = world.alloc::<f32>(CHUNKS * count)?;
    for chunk in 0..CHUNKS {
        // This thread computes while both streams work on earlier chunks.
        let mine: Vec<f32> = (0..count).map(|i| element(me, chunk, i)).collect();
        let given = given.slice(chunk * count..(chunk + 1) * count)?;
        let sums = sums.slice(chunk * count..(chunk + 1) * count)?;
        given.copy_from(&mine)?;

        // Reduce-scatter writes each rank's part of the sum to where all-gather expects it.
        let part = sums.slice(me * PART..(me + 1) * PART)?;
        reducing.reduce_scatter(&first, &given, &part, ReduceOp::Sum)?;

        // The second stream waits for this point of the first; this thread does not wait.
        second.wait_event(&first.record()?)?;
        gathering.all_gather_in_place(&second, &sums)?;
    }

    // Waits for the end of both streams and returns their errors.
    first.synchronize()?;
    second.synchronize()?;

    // Reduce-scatter and all-gather together have the result of an all-reduce.
    let expected = world.alloc::<f32>(CHUNKS * count)?;
    world.team().all_reduce_blocking(&given, &expected, ReduceOp::Sum)?;
    assert_eq!(sums.to_vec()?, expected.to_vec()?);
    let by_hand: f32 = (0..n).map(|rank| element(rank, CHUNKS - 1, count - 1)).sum();
    assert_eq!(sums.load(CHUNKS * count - 1)?, by_hand);
    if me == 0 {
        println!("{CHUNKS} chunks of {count} elements went through reduce-scatter and all-gather");
        println!("the last element is {by_hand}, and all elements equal those of one all-reduce");
    }

    for buffer in [given, sums, expected] {
        buffer.release()?;
    }
    reducing.destroy()?;
    gathering.destroy()?;
    assert!(world.finalize()?.is_clean());
    Ok(())
}
