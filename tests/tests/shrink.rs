//! Checks `World::shrink`, by which PEs continue after other PEs have died.
//!
//! `PEERWEAVE_KILLS` is the number of random kills (default 20).

use peerweave::host::{HostOptions, on_threads};
use peerweave::{Compare, Error, MisuseKind, PeerCause, Rank, ReduceOp, Result, World};
use peerweave_tests::data::sample::hash;
use peerweave_tests::repeat::survival::Survival;
use peerweave_tests::repeat::workload::Workload;
use peerweave_tests::run::death::{die, die_in};
use peerweave_tests::run::job::{named_by, say};
use peerweave_tests::run::leftovers::Before;
use peerweave_tests::{Job, Seat, named};
use rustix::process::Signal;
use std::cell::Cell;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    peerweave_tests::main(
        named![survive, intact, absent, waiting, copy_to_the_new_world, ending, stopped],
        named![
            shrink_excludes_a_killed_pe,
            shrink_excludes_several_killed_pes,
            shrink_excludes_a_pe_killed_during_the_call,
            second_shrink_excludes_a_pe_killed_after_the_first,
            last_pe_continues_alone_after_all_other_pes_died,
            shrink_without_a_dead_pe_keeps_all_pes,
            shrink_timeout_names_a_late_pe_which_may_call_later,
            waits_for_a_pe_that_called_shrink_fail_soon,
            shrink_error_names_a_stopped_pe_at_the_deadline,
            memory_of_the_old_world_is_readable_until_handles_drop,
            finalize_and_abort_of_the_new_world_end_every_process,
            shrink_excludes_threads_that_panic_or_return,
            operations_of_concurrent_worlds_do_not_mix,
            survivors_of_random_kills_compute_right_results,
        ],
    )
}

/// Time within which the survivors must continue on a machine whose processors are all busy; less
/// than the deadline.
const SOON: Duration = Duration::from_secs(25);

/// The death of a PE, in microseconds after all PEs are ready, or after the PE has begun the shrink
/// with the number `in_shrink`.
#[derive(Clone, Copy)]
struct Death {
    pe: u32,
    in_shrink: Option<u32>,
    microseconds: u64,
}

impl Death {
    /// Parses `PE@TIME`, or `PE@SHRINK@TIME`.
    fn parse(text: &str) -> Self {
        let mut parts = text.split('@').map(|part| part.parse::<u64>().expect("each part of a death is a number"));
        let mut next = || parts.next();
        let (pe, second, third) = (next().expect("a death has a PE"), next().expect("a death has a time"), next());
        match third {
            None => Self { pe: pe as u32, in_shrink: None, microseconds: second },
            Some(microseconds) => Self { pe: pe as u32, in_shrink: Some(second as u32), microseconds },
        }
    }
}

/// Runs the mixture, and continues with the survivors. Arguments: the rounds after the last death,
/// the seed, and the deaths.
fn survive(seat: &Seat) {
    let (rounds, seed): (u64, u64) = (seat.arg(0), seat.arg(1));
    let deaths: Vec<Death> = seat.args.split(' ').skip(2).filter(|text| !text.is_empty()).map(Death::parse).collect();
    let world = seat.join();
    let me = world.my_pe().get();
    let left = world.n_pes() - deaths.len();
    world.team().barrier_blocking().expect("no PE has died");
    say("ready");
    let own = deaths.iter().find(|death| death.pe == me);
    if let Some(Death { in_shrink: None, microseconds, .. }) = own {
        die_in(*microseconds);
    }
    let shrinks = Cell::new(0);
    let mut survival = Survival::new(world);
    let outcome = survival.run(seed, left, rounds, || {
        shrinks.set(shrinks.get() + 1);
        if let Some(Death { in_shrink: Some(number), microseconds, .. }) = own
            && *number == shrinks.get()
        {
            die_in(*microseconds);
        }
    });
    if let Err(error) = outcome {
        say(format!("lost {:?} | {error}", named_by(&error)));
        return;
    }
    let dead: Vec<u32> = deaths.iter().map(|death| death.pe).collect();
    for (named, message) in &survival.failures {
        assert!(
            !named.is_empty() && named.iter().all(|pe| dead.contains(pe)),
            "PEs {dead:?} died, but the error names {named:?}: {message}"
        );
    }
    // Each survivor adds a bit for its number in the first world.
    let (world, mut sum) = (&survival.world, [0u64]);
    world.team().all_reduce_blocking(&[1 << me], &mut sum, ReduceOp::Sum).expect("no survivor has died");
    assert_eq!(sum[0], survival.first.iter().map(|pe| 1 << pe).sum::<u64>());
    world.finalize().map(drop).expect("no survivor has died");
    say(format!("left {:?}", survival.first));
}

/// Runs a job in which these PEs die. Asserts that the other PEs continue and leave nothing behind.
/// Returns the time until all of them have finished.
fn go_on(job: Job, n_pes: usize, deaths: &str, seed: u64) -> Duration {
    let before = Before::now();
    let mut running = job.args(format!("12 {seed} {deaths}")).start();
    let victims: Vec<usize> = deaths.split_whitespace().map(|death| Death::parse(death).pe as usize).collect();
    running.all_say(0..n_pes, "ready");
    let start = Instant::now();
    let left: Vec<usize> = (0..n_pes).filter(|pe| !victims.contains(pe)).collect();
    running.all_say(left.clone(), &format!("left {left:?}"));
    let took = start.elapsed();
    running.succeed(left);
    for pe in victims {
        running.reap(pe);
    }
    let (socket, mark) = (running.socket.clone(), running.mark.clone());
    drop(running);
    before.assert_nothing_new(&socket, &mark);
    took
}

fn shrink_excludes_a_killed_pe() {
    for (n_pes, victim) in [(2, 0), (2, 1), (3, 0), (3, 1), (4, 0), (4, 3), (8, 0), (8, 5)] {
        let took = go_on(Job::new("survive", n_pes), n_pes, &format!("{victim}@3000"), 1);
        assert!(took < SOON, "PE {victim} of {n_pes} died; the others continued after {took:?}, expected less than {SOON:?}");
    }
    go_on(Job::new("survive", 4).without_attach(), 4, "1@2000", 2);
}

fn shrink_excludes_several_killed_pes() {
    for (n_pes, deaths) in [(3, "0@2000 1@2000"), (4, "0@0 3@0"), (4, "0@1000 1@1800"), (8, "0@3000 1@3050 7@4000")] {
        let took = go_on(Job::new("survive", n_pes), n_pes, deaths, 3);
        assert!(took < SOON, "deaths {deaths} of {n_pes} PEs: the job took {took:?}, expected less than {SOON:?}");
    }
}

fn shrink_excludes_a_pe_killed_during_the_call() {
    // The first survivor leads the shrink and serves the others. The last one only follows.
    for (n_pes, first, second) in [(3, 0, 1), (4, 0, 1), (4, 0, 3), (4, 3, 0), (4, 1, 2)] {
        for microseconds in [0, 150, 400, 1000, 2500, 5000, 9000] {
            let deaths = format!("{first}@1000 {second}@1@{microseconds}");
            let took = go_on(Job::new("survive", n_pes), n_pes, &deaths, 4);
            assert!(took < SOON, "deaths {deaths} of {n_pes} PEs: the job took {took:?}, expected less than {SOON:?}");
        }
    }
    // PE 1, which leads the shrink, dies, and then PE 2, which leads after it.
    go_on(Job::new("survive", 4), 4, "0@500 1@1@300 2@1@1500", 4);
}

fn second_shrink_excludes_a_pe_killed_after_the_first() {
    // PE 1, which leads the first shrink, dies in the second world.
    let took = go_on(Job::new("survive", 4), 4, "0@1000 1@400000", 5);
    assert!(took < SOON, "the job took {took:?}, expected less than {SOON:?}");
    let took = go_on(Job::new("survive", 5), 5, "4@1000 2@300000 0@2@700", 5);
    assert!(took < SOON, "the job took {took:?}, expected less than {SOON:?}");
}

fn last_pe_continues_alone_after_all_other_pes_died() {
    let took = go_on(Job::new("survive", 4), 4, "0@1000 1@1200 2@1@100", 6);
    assert!(took < SOON, "the job took {took:?}, expected less than {SOON:?}");
}

/// Shrinks a world in which no PE has died, several times.
fn intact(seat: &Seat) {
    let mut world = seat.join();
    let n = world.n_pes();
    let kept = world.alloc::<u32>(3).unwrap();
    kept.fill(world.my_pe().get()).unwrap();
    for _ in 0..3 {
        let next = world.shrink().expect("all PEs call shrink");
        assert_eq!((next.n_pes(), next.my_pe()), (n, world.my_pe()));
        assert!(next.former_pes().iter().enumerate().all(|(at, pe)| pe.index() == at));
        assert!(matches!(world.alloc::<u8>(1).unwrap_err().misuse(), Some(MisuseKind::Shrunk)));
        let mut mixture = Workload::new(&next);
        (0..20).try_for_each(|_| mixture.step()).expect("no PE has died");
        drop(mixture);
        world = next;
    }
    assert_eq!(kept.to_vec().unwrap(), [world.my_pe().get(); 3]);
    // Memory of the old world is not an operand in the new world.
    let foreign = world.team().broadcast_in_place_blocking(&kept, Rank::new(0)).unwrap_err();
    assert!(matches!(foreign.misuse(), Some(MisuseKind::ForeignBuffer { .. })), "{foreign}");
    assert!(world.finalize().unwrap().is_clean());
}

fn shrink_without_a_dead_pe_keeps_all_pes() {
    for n_pes in [1, 2, 4, 8] {
        Job::new("intact", n_pes).on_threads();
        Job::new("intact", n_pes).on_processes();
    }
    Job::new("intact", 3).without_attach().on_processes();
    Job::new("intact", 3).check_calls().heap_bytes(64 << 20).on_processes();
}

/// Shrinks while the last PE calls only after the deadline. Argument: the deadline in seconds.
fn absent(seat: &Seat) {
    let deadline = Duration::from_secs_f64(seat.arg(0));
    let world = seat.join();
    let (me, n) = (world.my_pe().index(), world.n_pes());
    let last = n - 1;
    if me == last {
        std::thread::sleep(deadline * 3 / 2);
    } else {
        let start = Instant::now();
        let error = world.shrink().unwrap_err();
        let Error::Timeout(late) = &error else { panic!("{error}") };
        assert_eq!((late.call, &*late.missing), ("shrink", &[peerweave::Pe::new(last as u32)][..]), "{error}");
        assert!(start.elapsed() >= deadline, "{error}");
        // The world has not ended, but its teams have failed.
        let failed = world.team().barrier_blocking().unwrap_err();
        assert!(matches!(failed, Error::Poisoned { .. }), "{failed}");
    }
    let world = world.shrink().expect("all PEs call shrink");
    assert_eq!(world.n_pes(), n);
    world.team().barrier_blocking().unwrap();
    assert!(world.finalize().unwrap().is_clean());
}

fn shrink_timeout_names_a_late_pe_which_may_call_later() {
    for n_pes in [2, 4] {
        let job = Job::new("absent", n_pes).args("6").deadline(Duration::from_secs(6));
        job.on_processes();
        job.on_threads();
    }
}

/// The deadline of jobs in which a PE is stopped.
const STOPPED: Duration = Duration::from_secs(5);

/// Shrinks repeatedly. Argument: the PE that the scenario stops at a random instant.
fn stopped(seat: &Seat) {
    let (mut world, victim) = (seat.join(), seat.arg::<u32>(0));
    let me = world.my_pe().get();
    world.team().barrier_blocking().unwrap();
    say("ready");
    let mut failures = 0;
    while failures < 2 {
        match world.shrink() {
            Ok(smaller) => world = smaller,
            Err(error) => {
                failures += 1;
                say(format!("lost {:?} | {error}", named_by(&error)));
            }
        }
        if failures > 0 && me == victim {
            return;
        }
    }
    // Stays alive, so that the others do not report the end of this PE.
    std::thread::sleep(STOPPED);
}

fn shrink_error_names_a_stopped_pe_at_the_deadline() {
    for round in 0..6u64 {
        let (n_pes, victim) = (3, (round % 3) as usize);
        let mut running = Job::new("stopped", n_pes).args(victim.to_string()).deadline(STOPPED).start();
        running.all_say(0..n_pes, "ready");
        std::thread::sleep(Duration::from_micros(hash(&[round]) % 60_000));
        running.signal(victim, Signal::STOP);
        let mut since = Instant::now();
        for time in 0..2 {
            for pe in (0..n_pes).filter(|&pe| pe != victim) {
                let (at, line) = running.timed_line(pe);
                assert!(line.starts_with(&format!("lost [Pe({victim})] |")), "round {round}, PE {pe}: {line}");
                assert!(at.saturating_duration_since(since) < STOPPED + SOON, "round {round}, PE {pe}, failure {time}: {line}");
            }
            since = Instant::now();
        }
        running.signal(victim, Signal::CONT);
    }
}

/// Shrinks on PE 0 while the other PEs wait for PE 0 in another call. Argument: the call in which
/// the other PEs wait.
fn waiting(seat: &Seat) {
    let world = seat.join();
    let (team, me) = (world.team().clone(), world.my_pe().get());
    let words = world.alloc_zeroed::<u64>(1).unwrap();
    let half = team.split(Some(0), 0).unwrap().expect("a rank that passes a color gets a team");
    let stream = world.stream().unwrap();
    team.barrier_blocking().unwrap();
    let start = Instant::now();
    if me > 0 {
        let mut word = [0u64];
        let failure = match seat.arg::<String>(0).as_str() {
            "signal" => team.wait_until_blocking(&words.signal(0).unwrap(), Compare::Ne, 0).map(drop),
            "barrier" => half.barrier_blocking(),
            "recv" => team.recv_blocking(&mut word, Rank::new(0)),
            "alloc" => world.alloc::<u8>(7).map(drop),
            "team_of" => world.team_of(&[peerweave::Pe::new(0), world.my_pe()]).map(drop),
            "stream" => half.barrier(&stream).and_then(|ticket| ticket.wait().map(drop)),
            "finalize" => world.finalize().map(drop),
            other => panic!("unknown wait {other:?}"),
        };
        let error = failure.unwrap_err();
        assert!(matches!(error, Error::Peer { cause: PeerCause::Shrinks, .. }), "{error}");
        assert_eq!(error.blamed(), [peerweave::Pe::new(0)], "{error}");
        assert!(start.elapsed() < SOON, "ended after {:?}, expected less than {SOON:?}", start.elapsed());
        if let "finalize" = seat.arg::<String>(0).as_str() {
            // The world has ended for this PE, which drops it now. The others wait for that.
            return;
        }
    } else {
        std::thread::sleep(Duration::from_millis(100));
    }
    let smaller = world.shrink().expect("all PEs call shrink");
    smaller.team().barrier_blocking().unwrap();
    smaller.finalize().map(drop).unwrap();
}

fn waits_for_a_pe_that_called_shrink_fail_soon() {
    for how in ["signal", "barrier", "recv", "alloc", "team_of", "stream", "finalize"] {
        Job::new("waiting", 2).args(how).on_processes();
        Job::new("waiting", 2).args(how).on_threads();
    }
    Job::new("waiting", 4).args("barrier").on_processes();
}

/// Returns the number of mappings of job memory in this process.
fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux has /proc/self/maps");
    maps.lines().filter(|line| line.contains("memfd:peerweave")).count()
}

/// Kills PE 0. The other PEs copy their data into the new world.
fn copy_to_the_new_world(seat: &Seat) {
    let world = seat.join();
    let (me, n) = (world.my_pe().get(), world.n_pes());
    let data = world.alloc_zeroed::<u64>(1000).unwrap();
    data.fill(u64::from(me) + 5).unwrap();
    let stream = world.stream().unwrap();
    world.team().barrier_blocking().unwrap();
    if me == 0 {
        die();
    }
    let error = world.team().all_reduce(&stream, &data, &data.clone(), ReduceOp::Max).map(drop).unwrap_err();
    assert!(error.misuse().is_some(), "one buffer as source and destination is misuse: {error}");
    let failed = world.team().barrier_blocking().unwrap_err();
    assert_eq!(failed.blamed(), [peerweave::Pe::new(0)], "{failed}");
    assert_eq!(mappings(), 1);
    let smaller = world.shrink().unwrap();
    assert_eq!((mappings(), smaller.n_pes()), (2, n - 1));
    drop((world, stream, failed));
    // The buffer keeps the old memory alive.
    let carried = smaller.alloc::<u64>(1000).unwrap();
    carried.copy_from(&data.to_vec().unwrap()).unwrap();
    data.store(0, 1).unwrap();
    assert_eq!((data.load(0).unwrap(), data.load(999).unwrap()), (1, u64::from(me) + 5));
    assert!(matches!(data.release().unwrap_err().misuse(), Some(MisuseKind::Shrunk)));
    assert_eq!(mappings(), 1, "the last handle of the old world was released");
    smaller.team().all_reduce_in_place_blocking(&carried, ReduceOp::Sum).unwrap();
    assert_eq!(carried.load(500).unwrap(), (1..n as u64).map(|pe| pe + 5).sum::<u64>());
    carried.release().unwrap();
    assert!(smaller.finalize().unwrap().is_clean());
    drop(smaller);
    assert_eq!(mappings(), 0);
    say("carried");
}

fn memory_of_the_old_world_is_readable_until_handles_drop() {
    for n_pes in [2, 4] {
        let mut running = Job::new("copy_to_the_new_world", n_pes).start();
        running.reap(0);
        running.all_say(1..n_pes, "carried");
        running.succeed(1..n_pes);
    }
}

/// Kills PE 1. The survivors then end their new world together. Argument: the call that ends it.
fn ending(seat: &Seat) {
    let world = seat.join();
    let me = world.my_pe().get();
    world.team().barrier_blocking().unwrap();
    if me == 1 {
        die();
    }
    world.team().barrier_blocking().unwrap_err();
    let smaller = world.shrink().unwrap();
    match seat.arg::<String>(0).as_str() {
        "finalize" => {
            // The old world is dropped last.
            assert!(smaller.finalize().unwrap().is_clean());
            say("ended");
        }
        "abort" if me == 2 => drop(smaller.abort(9)),
        "abort" => {
            // This PE makes no call.
            std::thread::sleep(Duration::from_secs(60));
        }
        other => panic!("unknown end {other:?}"),
    }
}

fn finalize_and_abort_of_the_new_world_end_every_process() {
    for n_pes in [3, 4] {
        let mut running = Job::new("ending", n_pes).args("finalize").start();
        running.reap(1);
        let left = (0..n_pes).filter(|&pe| pe != 1);
        running.all_say(left.clone(), "ended");
        running.succeed(left.clone());
        let mut running = Job::new("ending", n_pes).args("abort").start();
        running.reap(1);
        let start = Instant::now();
        for pe in left {
            let (_, status) = running.ending(pe);
            assert_eq!(status.code(), Some(9), "PE {pe}");
        }
        assert!(start.elapsed() < SOON, "ended after {:?}, expected less than {SOON:?}", start.elapsed());
    }
}

fn shrink_excludes_threads_that_panic_or_return() {
    for (n_pes, gone) in [(2, vec![0]), (3, vec![1]), (4, vec![0, 3]), (8, vec![0, 1, 2, 6])] {
        for panics in [false, true] {
            let done = AtomicU32::new(0);
            let mut options = HostOptions::default();
            options.deadline = Duration::from_secs(60);
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                on_threads(n_pes, &options, |world| {
                    let me = world.my_pe().get();
                    if gone.contains(&me) {
                        // Some PEs leave while the others run the mixture, and some while the
                        // others shrink.
                        std::thread::sleep(Duration::from_millis(u64::from(me) * 3));
                        assert!(!panics, "this PE panics on purpose");
                        return;
                    }
                    let mut survival = Survival::new(World::from(world));
                    survival.run(7, n_pes - gone.len(), 30, || {}).expect("no other PE dies");
                    let expected: Vec<u32> = (0..n_pes as u32).filter(|pe| !gone.contains(pe)).collect();
                    assert_eq!(survival.first, expected);
                    assert!(survival.failures.iter().all(|(named, _)| named.iter().all(|pe| gone.contains(pe))));
                    survival.world.finalize().map(drop).expect("no survivor has died");
                    done.fetch_add(1, Ordering::Relaxed);
                })
            }));
            assert_eq!(outcome.is_err(), panics, "{n_pes} PEs without {gone:?}");
            assert_eq!(done.into_inner() as usize, n_pes - gone.len(), "{n_pes} PEs without {gone:?}, panic: {panics}");
        }
    }
}

fn operations_of_concurrent_worlds_do_not_mix() {
    // Four jobs of threads in one process shrink at the same time.
    let run = || -> Result<Vec<usize>> {
        let sizes = on_threads(3, &HostOptions::default(), |world| {
            if world.my_pe().get() == 1 {
                return 0;
            }
            let mut survival = Survival::new(World::from(world));
            survival.run(9, 2, 40, || {}).expect("no other PE dies");
            survival.world.n_pes()
        })?;
        Ok(sizes)
    };
    std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..4).map(|_| scope.spawn(run)).collect();
        for job in jobs {
            assert_eq!(job.join().unwrap().unwrap(), [2, 0, 2]);
        }
    });
}

fn survivors_of_random_kills_compute_right_results() {
    let kills: u64 = std::env::var("PEERWEAVE_KILLS").map_or(20, |kills| kills.parse().expect("PEERWEAVE_KILLS is a number"));
    let mut slowest = Duration::ZERO;
    for i in 0..kills {
        let random = |salt: u64| hash(&[i, salt]);
        let n_pes = 2 + (random(1) % 5) as usize;
        let first = (random(2) % n_pes as u64) as usize;
        let mut deaths = format!("{first}@{}", random(3) % 60_000);
        if n_pes > 2 && random(4) % 2 == 0 {
            let second = (first + 1 + (random(5) % (n_pes as u64 - 1)) as usize) % n_pes;
            // The second PE dies during the first shrink, or at any time.
            match random(6) % 2 {
                0 => deaths += &format!(" {second}@1@{}", random(7) % 8000),
                _ => deaths += &format!(" {second}@{}", random(7) % 90_000),
            }
        }
        let job = Job::new("survive", n_pes);
        let job = if i % 3 == 0 { job.without_attach() } else { job };
        println!("    {i}: {deaths} of {n_pes}");
        slowest = slowest.max(go_on(job, n_pes, &deaths, i));
    }
    println!("    {kills} kills; the slowest continued after {slowest:?}");
    assert!(slowest < SOON + Duration::from_millis(100), "the slowest job took {slowest:?}, expected about {SOON:?} at most");
}
