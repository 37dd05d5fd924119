//! Sorts keys that are spread over all PEs: samples divide the range of keys into one part per PE,
//! and an all-to-all-v delivers each key to the PE of its part.
#![forbid(unsafe_code)]

use peerweave::{Error, ReduceOp, World};
use peerweave_examples::{SplitMix64, share};

/// Number of keys of all PEs.
const KEYS: usize = 100_000;
/// Number of samples that each PE takes for each part.
const OVERSAMPLING: usize = 32;

fn main() -> Result<(), Error> {
    let world = World::from_env()?;
    let team = world.team();
    let (me, n) = (team.my_rank().index(), team.size());

    // All PEs together have the same keys, for any number of PEs. Small numbers are frequent.
    let key = |index| {
        let random = SplitMix64::new(index as u64).next_u64();
        random >> (random % 48)
    };
    let mut keys: Vec<u64> = share(KEYS, me, n).map(key).collect();
    let sum = |keys: &[u64]| keys.iter().fold(0u64, |sum, key| sum.wrapping_add(*key));
    let mut sums = [sum(&keys), 0];
    keys.sort_unstable();

    // Gathers samples of all PEs, taken at equal distances. `starts` has the first key of each part
    // except the first part.
    let samples: Vec<u64> = (0..n * OVERSAMPLING).map(|i| keys[i * keys.len() / (n * OVERSAMPLING)]).collect();
    let mut all = vec![0; n * samples.len()];
    team.all_gather_blocking(&samples, &mut all)?;
    all.sort_unstable();
    let starts: Vec<u64> = (1..n).map(|part| all[part * all.len() / n]).collect();

    // Counts the keys for each PE, gets the number of keys from each PE, and delivers the keys.
    let mut ends: Vec<usize> = starts.iter().map(|start| keys.partition_point(|key| key < start)).collect();
    ends.push(keys.len());
    let sent: Vec<usize> = ends.iter().scan(0, |from, &to| Some(to - std::mem::replace(from, to))).collect();
    let counts = team.exchange_counts(&sent)?;
    let mut mine = vec![0; counts.recv_end()];
    team.all_to_all_v_blocking(&keys, &mut mine, counts)?;
    mine.sort_unstable();

    // Checks that no key was lost, and that the parts are in order.
    sums[1] = sum(&mine);
    team.all_reduce_in_place_blocking(&mut sums, ReduceOp::Sum)?;
    assert_eq!(sums[0], sums[1], "the sort has changed the sum of all keys");
    let ends = [mine.first().copied().unwrap_or(u64::MAX), mine.last().copied().unwrap_or(0), mine.len() as u64];
    let mut parts = vec![0; 3 * n];
    team.all_gather_blocking(&ends, &mut parts)?;
    let parts: Vec<&[u64]> = parts.chunks_exact(3).collect();
    assert!(
        mine.is_sorted() && parts.windows(2).all(|pair| pair[0][1] <= pair[1][0]),
        "the keys are not sorted; first key, last key and number of keys of each part: {parts:?}"
    );
    assert_eq!(parts.iter().map(|part| part[2]).sum::<u64>(), KEYS as u64);
    if me == 0 {
        let longest = parts.iter().map(|part| part[2]).max().unwrap_or(0);
        println!("{KEYS} keys, from {} to {}", parts[0][0], parts[n - 1][1]);
        println!("the longest of {n} parts has {longest} keys");
    }

    assert!(world.finalize()?.is_clean());
    Ok(())
}
