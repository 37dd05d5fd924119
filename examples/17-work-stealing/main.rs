//! Work stealing: each PE stores its range of tasks in one 64-bit word. A PE without tasks takes
//! half of the range of another PE by a compare-and-swap.
#![forbid(unsafe_code)]

use peerweave::{Error, Rank, ReduceOp, World};
use peerweave_examples::share;

/// Number of tasks of all PEs.
const TASKS: usize = 2000;

/// Packs a range of tasks into one word.
fn word(from: u64, to: u64) -> u64 {
    from << 32 | to
}

fn range(word: u64) -> (u64, u64) {
    (word >> 32, word & 0xffff_ffff)
}

/// Runs a task: counts the steps of the Collatz sequence. Later tasks take longer.
fn run(task: u64) -> u64 {
    let steps = |start: u64| {
        std::iter::successors(Some(start), |&x| Some(if x % 2 == 0 { x / 2 } else { 3 * x + 1 })).take_while(|&x| x > 1).count()
    };
    (1..=1 + task / 20).map(|i| steps(task * 100 + i) as u64).sum()
}

fn main() -> Result<(), Error> {
    let world = World::from_env()?;
    let team = world.team();
    let (me, n) = (team.my_rank(), team.size());

    // Each PE has its range of tasks in its own memory. Rank 0 also has the number of tasks that
    // are done.
    let (ranges, done) = (world.alloc_zeroed::<u64>(1)?, world.alloc_zeroed::<u64>(1)?);
    let mine = share(TASKS, me.index(), n);
    ranges.store(0, word(mine.start as u64, mine.end as u64))?;
    team.barrier_blocking()?; // no PE steals before every PE has its tasks

    let mut times = vec![0u64; TASKS];
    let mut total = 0u64;
    let mut victim = me;
    while team.atomic_fetch_blocking(&done, 0, Rank::new(0))? < TASKS as u64 {
        // Takes the first task of this PE's range. The swap fails if another PE has taken tasks of
        // the range in the meantime. Then this PE tries again.
        let old = team.atomic_fetch_blocking(&ranges, 0, me)?;
        let (from, to) = range(old);
        if from < to {
            if team.atomic_compare_swap_blocking(&ranges, 0, old, word(from + 1, to), me)? == old {
                times[from as usize] += 1;
                total += run(from);
                team.atomic_add_blocking(&done, 0, 1, Rank::new(0))?;
            }
            continue;
        }
        // Takes the second half of another range. No other PE changes an empty range, so this PE
        // may store its new range by an atomic set.
        victim = Rank::new((victim.get() + 1) % n as u32);
        let old = team.atomic_fetch_blocking(&ranges, 0, victim)?;
        let (from, to) = range(old);
        let half = from + (to - from) / 2;
        if victim != me && from < to && team.atomic_compare_swap_blocking(&ranges, 0, old, word(from, half), victim)? == old {
            team.atomic_set_blocking(&ranges, 0, word(half, to), me)?;
        }
    }

    team.all_reduce_in_place_blocking(&mut times, ReduceOp::Sum)?;
    team.all_reduce_in_place_blocking(&mut total, ReduceOp::Sum)?;
    assert!(times.iter().all(|&times| times == 1), "a task was not done exactly once");
    let alone: u64 = (0..TASKS as u64).map(run).sum();
    assert_eq!(total, alone, "the total of {n} PEs differs from that of one PE");
    if me.index() == 0 {
        println!("{TASKS} tasks, each done once; PEs: {n}");
        println!("{total} steps in total");
    }

    ranges.release()?;
    done.release()?;
    assert!(world.finalize()?.is_clean());
    Ok(())
}
