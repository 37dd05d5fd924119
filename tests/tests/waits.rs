//! Checks waits and tests on words of every type among threads and processes: results, fairness,
//! deadlines, and a PE that leaves while another PE waits.

use peerweave::host::{HostOptions, on_threads};
use peerweave::{Compare, Error, World};
use peerweave_tests::check::conformance::{in_teams, shapes_for};
use peerweave_tests::check::waits;
use peerweave_tests::run::job::say;
use peerweave_tests::{Job, Seat, named};
use std::process::ExitCode;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    peerweave_tests::main(
        named![types, fairness, death],
        named![
            comparisons_in_waits_follow_the_order_of_the_type,
            repeated_wait_until_any_returns_every_satisfied_word,
            waits_of_every_kind_end_at_the_deadline,
            waits_of_every_kind_name_a_pe_that_left,
        ],
    )
}

fn types(seat: &Seat) {
    let world = seat.join();
    in_teams(&world, shapes_for(world.n_pes()), |team| waits::of_every_type(&world, team));
    assert!(world.finalize().unwrap().is_clean());
}

fn comparisons_in_waits_follow_the_order_of_the_type() {
    for n_pes in [1, 2, 3, 4, 8] {
        Job::new("types", n_pes).on_threads();
        Job::new("types", n_pes).on_processes();
    }
}

fn fairness(seat: &Seat) {
    let world = seat.join();
    in_teams(&world, shapes_for(world.n_pes()), |team| waits::any_is_fair(&world, team));
    assert!(world.finalize().unwrap().is_clean());
}

fn repeated_wait_until_any_returns_every_satisfied_word() {
    Job::new("fairness", 1).everywhere();
    Job::new("fairness", 2).everywhere();
}

/// A wait that is never satisfied, with its name.
type InVain = (&'static str, fn(&World) -> Result<(), Error>);

/// Calls that wait for a change of 16 words that stay 0.
const IN_VAIN: [InVain; 11] = [
    ("wait_until", |w| w.team().wait_until_blocking((&w.alloc_zeroed::<i32>(16)?, 3), Compare::Lt, 0).map(drop)),
    ("wait_until", |w| w.team().wait_until(&w.stream()?, (&w.alloc_zeroed::<i64>(16)?, 3), Compare::Gt, 0)?.wait().map(drop)),
    ("wait_until", |w| w.team().wait_until_blocking((&w.alloc_zeroed::<u16>(16)?, 5), Compare::Eq, 1).map(drop)),
    ("wait_until_any", |w| w.team().wait_until_any_blocking(&w.alloc_zeroed::<i16>(16)?, None, Compare::Lt, 0).map(drop)),
    ("wait_until_all", |w| w.team().wait_until_all(&w.stream()?, &w.alloc_zeroed::<usize>(16)?, None, Compare::Ne, 0)?.wait()),
    ("wait_until_all", |w| w.team().wait_until_all_blocking(&w.alloc_zeroed::<u32>(16)?, None, Compare::Ne, 0)),
    ("wait_until_any", |w| w.team().wait_until_any_blocking(&w.alloc_zeroed::<i64>(16)?, None, Compare::Lt, 0).map(drop)),
    ("wait_until_some", |w| {
        w.team().wait_until_some(&w.stream()?, &w.alloc_zeroed::<i32>(16)?, None, Compare::Lt, 0)?.wait().map(drop)
    }),
    ("wait_until_all_vector", |w| {
        w.team().wait_until_all_vector_blocking(&w.alloc_zeroed::<i32>(16)?, None, Compare::Lt, &[-1; 16])
    }),
    ("wait_until_any_vector", |w| {
        let ticket = w.team().wait_until_any_vector(&w.stream()?, &w.alloc_zeroed::<u32>(16)?, None, Compare::Gt, &[0; 16])?;
        ticket.wait().map(drop)
    }),
    ("wait_until_some_vector", |w| {
        w.team().wait_until_some_vector_blocking(&w.alloc_zeroed::<u64>(16)?, None, Compare::Gt, &[7; 16]).map(drop)
    }),
];

fn waits_of_every_kind_end_at_the_deadline() {
    let mut options = HostOptions::default();
    options.deadline = Duration::from_millis(50);
    on_threads(1, &options, |world| {
        let world = World::from(world);
        for (name, wait) in IN_VAIN {
            let error = wait(&world).unwrap_err();
            assert!(matches!(&error, Error::Timeout(timeout) if timeout.call == name), "{name}: {error}");
        }
    })
    .expect("the PEs can share memory");
}

/// Makes PE 0 leave while the other PE waits. Argument: the number of the wait in [`IN_VAIN`].
fn death(seat: &Seat) {
    let world = seat.join();
    let call: usize = seat.arg(0);
    let (name, wait) = IN_VAIN[call];
    if world.my_pe().get() == 0 {
        // The calls allocate, which is collective. PE 0 takes part in the allocation, and leaves.
        match call {
            2 => drop(world.alloc_zeroed::<u16>(16)),
            3 => drop(world.alloc_zeroed::<i16>(16)),
            4 => drop(world.alloc_zeroed::<usize>(16)),
            5 | 9 => drop(world.alloc_zeroed::<u32>(16)),
            1 | 6 => drop(world.alloc_zeroed::<i64>(16)),
            10 => drop(world.alloc_zeroed::<u64>(16)),
            _ => drop(world.alloc_zeroed::<i32>(16)),
        }
        return;
    }
    let started = Instant::now();
    let error = wait(&world).unwrap_err();
    assert!(matches!(&error, Error::Peer { pe, .. } if pe.get() == 0), "{name}: {error}");
    assert!(started.elapsed() < Duration::from_secs(20), "{name}: failed after {:?}, expected less than 20 s", started.elapsed());
    say("named");
}

fn waits_of_every_kind_name_a_pe_that_left() {
    for call in 0..IN_VAIN.len() {
        Job::new("death", 2).args(call.to_string()).everywhere();
    }
}
