//! Checks collectives of one team on several streams and from several threads: NVSHMEM must run the
//! collectives one after the other.

use std::sync::Arc;

use peerweave_types::{Pe, ReduceOp};

use crate::Failure;
use crate::nvshmem::scenarios::Checks;

/// Number of rounds in [`two_streams`]. The two streams swap their roles after each round.
const ROUNDS: u32 = 50;

pub(crate) fn run(checks: &mut Checks<'_>) -> Result<(), Failure> {
    two_streams(checks)?;
    threads(checks)
}

/// Enqueues a sum on one stream and a broadcast of the sum on another stream. Barriers are enqueued
/// between the two calls. The host does not wait between the calls.
fn two_streams(checks: &mut Checks<'_>) -> Result<(), Failure> {
    let (context, n) = (checks.context, checks.n());
    let streams = [context.device().new_stream()?, context.device().new_stream()?];
    let source = context.alloc::<u64>(64)?;
    let sum = context.alloc::<u64>(64)?;
    let copy = context.alloc::<u64>(64)?;
    let (world, shared) = (context.world(), context.shared()?);
    source.copy_from(&streams[0], &[u64::from(checks.pe()) + 1; 64])?;
    for round in 0..ROUNDS {
        let [one, other] = if round % 2 == 0 { [&streams[0], &streams[1]] } else { [&streams[1], &streams[0]] };
        world.barrier(one)?;
        world.reduce(&sum, &source, ReduceOp::Sum, other)?;
        context.world().sync(one)?;
        shared.barrier(other)?;
        world.broadcast(&copy, &sum, peerweave_types::Rank::new(round % n), one)?;
        // The blocking calls use their own stream.
        if round % 10 == 0 {
            world.barrier_blocking()?;
        }
    }
    for stream in &streams {
        let found = copy.to_vec(stream)?;
        checks.same("two streams", &found, |_| u64::from(n) * u64::from(n + 1) / 2);
    }
    // A setup call waits for the work of the streams.
    for round in 0..4 {
        world.barrier(&streams[round % 2])?;
        let made = world.split_strided(0, 1, n, Default::default())?.ok_or("split_strided returned no team to a member")?;
        made.barrier(&streams[(round + 1) % 2])?;
        checks.check("two streams", made.members().len() == n as usize, || format!("{made:?}"));
        let memory = context.alloc::<u8>(1 << round)?;
        world.sync(&streams[round % 2])?;
        context.free(memory)?;
        made.destroy()?;
    }
    for memory in [source, sum, copy] {
        context.free(memory)?;
    }
    Ok(())
}

/// Enqueues barriers of the world team from several threads, each with its own stream. The threads
/// may run in a different order on each PE. All threads make the same calls, so every PE still
/// makes the same sequence of calls, as NVSHMEM requires.
fn threads(checks: &mut Checks<'_>) -> Result<(), Failure> {
    let context = checks.context;
    let next = Pe::new((checks.pe() + 1) % checks.n());
    let passed = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(move || -> Result<(), Failure> {
                    let (stream, world) = (context.device().new_stream()?, context.world());
                    for round in 0..25 {
                        world.barrier(&stream)?;
                        if round % 10 == 9 {
                            world.barrier_blocking()?;
                        }
                    }
                    Ok(stream.synchronize()?)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".into()))).collect::<Vec<_>>()
    });
    for result in passed {
        checks.check("threads", result.is_ok(), || format!("{result:?}"));
    }
    // The context that the threads shared is still usable.
    let word = context.alloc_zeroed::<u32>(1)?;
    let stream = Arc::clone(&checks.stream);
    context.put_value(&word, checks.pe(), next, &stream)?;
    context.world().barrier(&stream)?;
    let (found, previous) = (word.to_vec(&stream)?, checks.previous());
    checks.same("threads", &found, |_| previous);
    context.free(word)?;
    Ok(())
}
