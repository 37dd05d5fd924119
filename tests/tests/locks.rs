//! Checks locks among threads and processes: one holder at a time, the order of waiters, deadlines,
//! and the death of holders and waiters.

use peerweave::{Error, Lock, PeerCause, Rank, Symmetric, World};
use peerweave_tests::check::locks;
use peerweave_tests::run::death::die;
use peerweave_tests::run::job::say;
use peerweave_tests::run::leftovers::Before;
use peerweave_tests::{Job, Seat, named};
use std::process::ExitCode;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    peerweave_tests::main(
        named![contend, turns, deadline, messages, holder_dies, waiter_dies, holder_leaves, any_instant, finalized],
        named![
            lock_has_one_holder_at_a_time,
            waiters_get_the_lock_in_turn,
            wait_for_a_lock_ends_at_its_deadline,
            take_over_and_release_timeouts_name_the_holder,
            exactly_one_pe_takes_over_the_lock_of_a_killed_holder,
            killed_waiter_does_not_block_other_waiters,
            error_names_a_lock_holder_that_left,
            lock_is_usable_after_a_pe_is_killed_at_any_instant,
            lock_is_refused_after_finalize,
        ],
    )
}

/// Time within which a waiter must notice the death of the holder on a busy machine; much less than
/// the deadline.
const SOON: Duration = Duration::from_secs(20);

/// Acquires one lock by all threads of all PEs. Arguments: the number of threads of each PE, and
/// how often each thread acquires the lock.
fn contend(seat: &Seat) {
    let world = seat.join();
    locks::one_holds_at_a_time(&world, seat.arg(0), seat.arg(1));
    assert!(world.finalize().unwrap().is_clean());
}

fn lock_has_one_holder_at_a_time() {
    Job::new("contend", 1).args("3 40").everywhere();
    for (n_pes, args) in [(2, "1 200"), (3, "1 100"), (8, "1 40"), (3, "3 20")] {
        Job::new("contend", n_pes).args(args).on_threads();
        Job::new("contend", n_pes).args(args).on_processes();
    }
}

fn turns(seat: &Seat) {
    let world = seat.join();
    locks::waiters_take_turns(&world, 3);
    assert!(world.finalize().unwrap().is_clean());
}

fn waiters_get_the_lock_in_turn() {
    for n_pes in [1, 2, 3, 8] {
        Job::new("turns", n_pes).on_threads();
        Job::new("turns", n_pes).on_processes();
    }
}

fn deadline(seat: &Seat) {
    let world = seat.join();
    locks::deadline_names_the_holder(&world);
    assert!(world.finalize().unwrap().is_clean());
}

fn wait_for_a_lock_ends_at_its_deadline() {
    for n_pes in [1, 3] {
        Job::new("deadline", n_pes).everywhere();
    }
}

/// Holds the lock on the last PE for longer than the deadline of five seconds.
fn messages(seat: &Seat) {
    let world = seat.join();
    let (n, lock) = (world.n_pes(), world.alloc_lock().unwrap());
    let last = n as u32 - 1;
    if world.my_pe().get() == last {
        let _guard = lock.lock().unwrap();
        world.team().barrier_blocking().unwrap();
        std::thread::sleep(Duration::from_secs(7));
        world.team().barrier_blocking().unwrap();
        std::thread::sleep(Duration::from_secs(10)); // the others release the lock
        return;
    }
    world.team().barrier_blocking().unwrap();
    let late = lock.take_over().map(drop).unwrap_err().to_string();
    let start = format!("take_over on the world ({n} PEs): timed out after ");
    assert!(late.starts_with(&start) && late.ends_with(&format!(" s; PE {last} holds the lock")), "{late}");
    world.team().barrier_blocking().unwrap();
    let late = lock.release().unwrap_err();
    assert_eq!(late.blamed(), [peerweave::Pe::new(last)], "{late}");
    let late = late.to_string();
    assert!(late.starts_with("release on the world") && late.ends_with(&format!("missing: PE {last}")), "{late}");
}

fn take_over_and_release_timeouts_name_the_holder() {
    Job::new("messages", 2).deadline(Duration::from_secs(5)).on_threads();
    Job::new("messages", 3).deadline(Duration::from_secs(5)).on_processes();
}

/// Asserts that an attempt failed because of PE `victim`.
fn assert_lost<T>(victim: u32, result: Result<T, Error>) {
    match result.map(drop) {
        Err(Error::Peer { pe, .. }) if pe.get() == victim => {}
        other => panic!("expected an error that names PE {victim}, found {other:?}"),
    }
}

/// Waits until all PEs except `victim` have called this function `calls` times each.
fn meet(world: &World, arrived: &Symmetric<u64>, victim: u32, calls: u64) {
    let (team, counter) = (world.team(), Rank::new((victim + 1) % world.n_pes() as u32));
    team.atomic_inc_blocking(arrived, 0, counter).unwrap();
    let due = calls * (world.n_pes() as u64 - 1);
    locks::until("all survivors have called meet", || team.atomic_fetch_blocking(arrived, 0, counter).unwrap() >= due);
}

/// Returns when this PE may end. The PE with the counter of [`meet`] ends last.
fn end_last(world: &World, arrived: &Symmetric<u64>, victim: u32) {
    let (team, counter) = (world.team(), Rank::new((victim + 1) % world.n_pes() as u32));
    if team.my_rank() != counter {
        team.atomic_inc_blocking(arrived, 1, counter).unwrap();
        return;
    }
    let due = world.n_pes() as u64 - 2;
    locks::until("the other survivors have ended", || team.atomic_fetch_blocking(arrived, 1, counter).unwrap() >= due);
}

/// Takes the lock after the death of `victim`; prints whether this PE took it over.
fn survive(world: &World, lock: &Lock, victim: u32, arrived: &Symmetric<u64>, calls: u64) {
    let start = Instant::now();
    assert_lost(victim, lock.lock());
    assert!(start.elapsed() < SOON, "the death was noticed after {:?}, expected less than {SOON:?}", start.elapsed());
    assert_lost(victim, lock.try_lock());
    assert_lost(victim, lock.lock());
    // No PE takes the lock over before all survivors have seen the error.
    meet(world, arrived, victim, calls);
    let guard = lock.take_over().unwrap();
    let from = guard.taken_from().map(|pe| pe.get());
    assert!(from.is_none_or(|pe| pe == victim));
    assert_eq!(lock.holder().unwrap(), Some(world.my_pe()));
    guard.unlock().unwrap();
    for _ in 0..50 {
        drop(lock.lock().unwrap());
    }
    say(if from.is_some() { "took it over" } else { "locked it" });
}

/// Kills a PE that holds two locks, whose words are in different PEs. Argument: the PE that dies.
fn holder_dies(seat: &Seat) {
    let (world, victim) = (seat.join(), seat.arg::<u32>(0));
    // The words of these locks are in the memory of different PEs.
    let locks: Vec<Lock> = (0..2).map(|_| world.alloc_lock().unwrap()).collect();
    if world.my_pe().get() == victim {
        locks.iter().for_each(|lock| std::mem::forget(lock.lock().unwrap()));
    }
    let arrived = world.alloc_zeroed::<u64>(2).unwrap();
    world.team().barrier_blocking().unwrap();
    if world.my_pe().get() == victim {
        die();
    }
    for (calls, lock) in (1..).zip(&locks) {
        survive(&world, lock, victim, &arrived, calls);
    }
    end_last(&world, &arrived, victim);
}

fn exactly_one_pe_takes_over_the_lock_of_a_killed_holder() {
    for n_pes in [2, 3, 8] {
        for victim in [0, n_pes / 2, n_pes - 1] {
            let before = Before::now();
            let mut running = Job::new("holder_dies", n_pes).args(victim.to_string()).start();
            let others: Vec<usize> = (0..n_pes).filter(|&pe| pe != victim).collect();
            for _ in 0..2 {
                let lines: Vec<String> = others.iter().map(|&pe| running.line(pe)).collect();
                let takers = lines.iter().filter(|line| *line == "took it over").count();
                assert_eq!(takers, 1, "{n_pes} PEs, of which PE {victim} died, printed {lines:?}");
            }
            running.succeed(others);
            let (socket, mark) = (running.socket.clone(), running.mark.clone());
            drop(running);
            before.assert_nothing_new(&socket, &mark);
        }
    }
}

/// Kills PE 1 while it waits for the lock. PEs 0 and 2 continue.
fn waiter_dies(seat: &Seat) {
    let world = seat.join();
    let lock = world.alloc_lock().unwrap();
    let guard = (world.my_pe().get() == 0).then(|| lock.lock().unwrap());
    world.team().barrier_blocking().unwrap();
    let waits = |due: usize| locks::until("PEs wait", || lock.waiters().unwrap().len() >= due);
    match world.my_pe().get() {
        0 => {
            waits(2);
            std::thread::sleep(Duration::from_secs(3));
            drop(guard); // passes the lock on to PE 1, which is dead
            drop(lock.lock().unwrap());
        }
        1 => std::thread::scope(|scope| {
            scope.spawn(|| {
                waits(2);
                die()
            });
            let _guard = lock.lock();
        }),
        _ => {
            let guard = lock.lock().unwrap();
            assert_eq!(guard.taken_from(), None, "PE 1 never held the lock");
        }
    }
    say("fine");
}

fn killed_waiter_does_not_block_other_waiters() {
    let mut running = Job::new("waiter_dies", 3).start();
    running.reap(1);
    running.all_say([0, 2], "fine");
    running.succeed([0, 2]);
}

fn holder_leaves(seat: &Seat) {
    locks::holder_that_leaves_is_named(seat.join(), PeerCause::Left);
}

fn error_names_a_lock_holder_that_left() {
    for n_pes in [2, 3] {
        Job::new("holder_leaves", n_pes).on_threads();
        Job::new("holder_leaves", n_pes).on_processes();
    }
}

/// Kills a PE while all PEs acquire a lock. Arguments: the PE that dies, and the microseconds after
/// which it dies.
fn any_instant(seat: &Seat) {
    let (world, victim, after) = (seat.join(), seat.arg::<u32>(0), seat.arg(1));
    let (lock, pair) = (world.alloc_lock().unwrap(), world.alloc_zeroed::<u64>(2).unwrap());
    let arrived = world.alloc_zeroed::<u64>(2).unwrap();
    let home = Rank::new((victim + 1) % world.n_pes() as u32);
    let is_victim = world.my_pe().get() == victim;
    world.team().barrier_blocking().unwrap();
    if is_victim {
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(after));
            die()
        });
    }
    for turn in 0.. {
        if turn == 200 && !is_victim {
            break;
        }
        let guard = match lock.lock() {
            Err(Error::Peer { pe, .. }) if pe.get() == victim => lock.take_over().unwrap(),
            other => other.unwrap(),
        };
        if guard.taken_from().is_some() {
            let both = [0, 1].map(|i| world.team().g_blocking(&pair, i, home).unwrap());
            let repaired = both[0].max(both[1]);
            world.team().put_blocking(&[repaired; 2], &pair, home).unwrap();
        }
        locks::step(&world, &pair, home);
    }
    meet(&world, &arrived, victim, 1);
    end_last(&world, &arrived, victim);
}

fn lock_is_usable_after_a_pe_is_killed_at_any_instant() {
    for kill in 0..12u64 {
        let (victim, after) = (kill % 3, 300 + kill * 700);
        let mut running = Job::new("any_instant", 3).args(format!("{victim} {after}")).start();
        running.reap(victim as usize);
        running.succeed((0..3).filter(|&pe| pe != victim as usize));
    }
}

fn finalized(seat: &Seat) {
    locks::no_use_after_finalize(seat.join());
}

fn lock_is_refused_after_finalize() {
    Job::new("finalized", 1).everywhere();
    Job::new("finalized", 2).everywhere();
}
