//! Distributes tasks of unequal length by a counter, which all PEs increment atomically: an idle PE
//! takes the next task.
#![forbid(unsafe_code)]

use peerweave::{Error, Rank, ReduceOp, World};

/// Number of tasks; each counts the primes in a range of numbers.
const TASKS: u64 = 200;
/// Numbers per task. Later tasks take longer, so with equal shares the last PE would finish long
/// after the others.
const NUMBERS: u64 = 500;

fn is_prime(number: u64) -> bool {
    number >= 2 && (2..).take_while(|d| d * d <= number).all(|d| !number.is_multiple_of(d))
}

fn main() -> Result<(), Error> {
    let world = World::from_env()?;
    let team = world.team();
    let rank_0 = Rank::new(0);

    // Every PE has a counter at the same offset. Only the counter of rank 0 is used, as the queue.
    let next = world.alloc_zeroed::<u64>(1)?;
    let mut done = [0; TASKS as usize];
    let mut primes = [0];
    loop {
        // No other PE gets the same number. Rank 0 need not answer requests, so rank 0 also works
        // on tasks.
        let task = team.atomic_fetch_inc_blocking(&next, 0, rank_0)?;
        if task >= TASKS {
            break;
        }
        done[task as usize] += 1;
        primes[0] += (task * NUMBERS..(task + 1) * NUMBERS).filter(|&number| is_prime(number)).count() as u64;
    }

    team.all_reduce_in_place_blocking(&mut done, ReduceOp::Sum)?;
    team.all_reduce_in_place_blocking(&mut primes, ReduceOp::Sum)?;
    assert_eq!(done, [1; TASKS as usize], "a task was not done exactly once");
    assert_eq!(primes[0], 9592, "the number of primes below 100000 is wrong");
    // Every PE found the queue empty once.
    assert_eq!(team.atomic_fetch_blocking(&next, 0, rank_0)?, TASKS + team.size() as u64);
    if team.my_rank() == rank_0 {
        println!("{TASKS} tasks, each done once; PEs: {}", team.size());
        println!("{} primes below {}", primes[0], TASKS * NUMBERS);
    }

    next.release()?;
    assert!(world.finalize()?.is_clean());
    Ok(())
}
