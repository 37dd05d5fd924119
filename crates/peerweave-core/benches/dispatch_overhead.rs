//! Measures the cost of the API itself, above a backend that does nothing. Prints nanoseconds per
//! call, the best of several batches.
//!
//! `cargo bench -p peerweave-core --bench dispatch_overhead [calls per batch]`

use peerweave_core::noop::Noop;
use peerweave_core::{Buffer, Compare, Rank, ReduceOp, Result, World};
use std::hint::black_box;
use std::time::Instant;

const BATCHES: usize = 300;

fn measure(name: &str, calls: u32, mut call: impl FnMut() -> Result<()>) -> Result<()> {
    let mut best = f64::INFINITY;
    for _ in 0..BATCHES {
        let start = Instant::now();
        for _ in 0..calls {
            call()?;
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(calls));
    }
    println!("{name:<40} {best:>8.2} ns");
    Ok(())
}

fn main() -> Result<()> {
    // cargo passes `--bench`; a number is an argument for this program.
    let calls = std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(20_000);
    let noop = Noop::new(0, 4);
    let world = World::new(noop.clone())?;
    let (team, stream, peer) = (world.team(), world.stream()?, Rank::new(1));
    let (x, y) = (world.alloc_zeroed::<u64>(1)?, world.alloc_zeroed::<u64>(1)?);
    let words = world.alloc_zeroed::<u64>(1)?;
    let signal = words.signal(0)?;
    let (from, into) = (Buffer::<u64>::zeroed(1), Buffer::<u64>::zeroed(1));
    let mut slice = [0u64];
    noop.set_recording(false);
    noop.set_inert(true);

    println!("8 bytes, a backend that does nothing, best of {BATCHES} batches of {calls} calls");
    measure("put_blocking, symmetric", calls, || black_box(team).put_blocking(black_box(&x), black_box(&y), black_box(peer)))?;
    measure("put_blocking, slice", calls, || black_box(team).put_blocking(black_box(&slice), black_box(&y), black_box(peer)))?;
    measure("get_blocking, slice", calls, || {
        black_box(team).get_blocking(black_box(&y), black_box(&mut slice), black_box(peer))
    })?;
    measure("p_blocking", calls, || black_box(team).p_blocking(black_box(&y), black_box(0), black_box(7), black_box(peer)))?;
    measure("put_signal_blocking", calls, || {
        black_box(team).put_signal_blocking(black_box(&x), black_box(&y), black_box(&signal).set(1), black_box(peer))
    })?;
    measure("all_reduce_blocking, symmetric", calls, || {
        black_box(team).all_reduce_blocking(black_box(&x), black_box(&y), black_box(ReduceOp::Sum))
    })?;
    measure("all_reduce_in_place_blocking, slice", calls, || {
        black_box(team).all_reduce_in_place_blocking(black_box(&mut slice), black_box(ReduceOp::Sum))
    })?;
    measure("barrier_blocking", calls, || black_box(team).barrier_blocking())?;
    measure("test", calls, || black_box(team).test(black_box(&signal), Compare::Eq, 1).map(|_| ()))?;
    measure("quiet_blocking", calls, || black_box(&world).quiet_blocking())?;
    measure("put, symmetric (stream, complete)", calls, || {
        black_box(team).put(black_box(&stream), black_box(&x), black_box(&y), black_box(peer)).map(drop)
    })?;
    measure("all_reduce, buffers (stream, complete)", calls, || {
        black_box(team).all_reduce(black_box(&stream), black_box(&from), black_box(&into), ReduceOp::Sum).map(drop)
    })?;
    measure("store", calls, || black_box(&x).store(black_box(0), 1))?;
    measure("load", calls, || black_box(&x).load(black_box(0)).map(|value| assert!(black_box(value) < 9)))?;
    Ok(())
}
