//! Measures `p` of 8 bytes by each kind of handle to the same symmetric memory, with two PEs as
//! threads, and checks every value. Prints the medians in nanoseconds.
//!
//! Run it with `cargo run --release -p peerweave-tests --example p_by_handle`.

use peerweave::{Rank, Symmetric, Team, on_threads};
use std::time::Instant;

const WORDS: usize = 64;
const BATCHES: usize = 301;
const CALLS: usize = 4096;

/// Returns the median time of a call of `p`, which is passed an index and a value.
fn measure(team: &Team, received: &Symmetric<u64>, p: impl Fn(usize, u64) -> peerweave::Result<()>) -> peerweave::Result<f64> {
    let is_sender = team.my_rank().get() == 0;
    let mut samples = Vec::with_capacity(BATCHES);
    for batch in 0..BATCHES {
        let first = (batch * CALLS) as u64;
        team.barrier_blocking()?;
        if is_sender {
            let start = Instant::now();
            for call in 0..CALLS {
                p(call % WORDS, first + call as u64)?;
            }
            samples.push(start.elapsed().as_secs_f64() * 1e9 / CALLS as f64);
        }
        team.barrier_blocking()?; // completes the puts
        if !is_sender {
            let expected: Vec<u64> = (0..WORDS).map(|word| first + (CALLS - WORDS + word) as u64).collect();
            assert_eq!(received.to_vec()?, expected, "batch {batch}");
        }
    }
    samples.sort_by(f64::total_cmp);
    Ok(samples.get(samples.len() / 2).copied().unwrap_or_default())
}

fn main() -> peerweave::Result<()> {
    let times = on_threads(2, |world| -> peerweave::Result<Vec<(&'static str, f64)>> {
        let (team, to) = (world.team(), Rank::new(1));
        let bytes = world.alloc_zeroed::<u8>(WORDS * 8)?;
        let whole = bytes.cast::<u64>()?;
        let words = world.alloc_zeroed::<u64>(3 * WORDS)?;
        let slice = words.slice(WORDS..2 * WORDS)?;
        let at = world.symmetric_at::<u64>(slice.offset(), WORDS)?;
        let address = slice.as_ptr()?.cast_const();
        let of = world.symmetric_of::<u64>(address, WORDS)?;
        Ok(vec![
            ("slice", measure(team, &slice, |i, x| team.p_blocking(&slice, i, x, to))?),
            ("whole buffer, cast from bytes", measure(team, &whole, |i, x| team.p_blocking(&whole, i, x, to))?),
            ("handle from an offset", measure(team, &slice, |i, x| team.p_blocking(&at, i, x, to))?),
            ("handle from an address", measure(team, &slice, |i, x| team.p_blocking(&of, i, x, to))?),
            (
                "range made for each call",
                measure(team, &slice, |i, x| {
                    let range = words.range(WORDS + i..WORDS + i + 1)?;
                    team.p_blocking(&range, 0, x, to)
                })?,
            ),
            (
                "handle from an address made for each call",
                measure(team, &slice, |i, x| team.p_blocking(&world.symmetric_of(address.wrapping_add(i), 1)?, 0, x, to))?,
            ),
        ])
    })?;
    for (handle, nanoseconds) in times.into_iter().next().expect("there are two PEs")? {
        println!("{handle}: {nanoseconds:.1} ns");
    }
    Ok(())
}
