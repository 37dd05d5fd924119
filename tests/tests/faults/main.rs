//! Checks PEs that are killed, stopped, panic or leave. Every other PE must soon get an error that
//! names the PE, and no files, sockets or processes may remain.
//!
//! `PEERWEAVE_KILLS` is the number of random kills (default 20).

use peerweave::host::{HostOptions, on_threads};
use peerweave::{Error, Pe, PeerCause, Rank, ReduceOp, Result, Team, World};
use peerweave_tests::data::calls::Form;
use peerweave_tests::data::sample::hash;
use peerweave_tests::repeat::acts::act;
use peerweave_tests::repeat::workload::Workload;
use peerweave_tests::run::child::Running;
use peerweave_tests::run::death::{die, die_in};
use peerweave_tests::run::job::{say, say_outcome};
use peerweave_tests::run::leftovers::Before;
use peerweave_tests::{Job, Seat, named};
use rustix::process::Signal;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitCode;
use std::sync::{Barrier, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    peerweave_tests::main(
        named![absent, joining, stage, finalizing, leaving, chain, mixture],
        named![
            errors_name_a_pe_killed_before_it_joins,
            errors_name_a_pe_killed_while_it_joins,
            errors_name_a_pe_killed_before_or_in_a_collective,
            errors_name_a_pe_killed_in_strided_exchange_or_reduce_fn,
            errors_name_a_pe_killed_in_allocation_split_or_stream,
            errors_name_a_pe_killed_while_peers_wait_for_its_signal,
            errors_name_a_pe_killed_while_kernels_wait_for_it,
            errors_name_a_pe_killed_while_peers_access_its_memory,
            errors_name_a_pe_killed_in_sends_and_receives,
            finalize_errors_name_a_pe_killed_during_finalize,
            errors_name_a_pe_that_panics_returns_exits_or_aborts,
            errors_name_a_pe_whose_thread_panics,
            timeout_errors_name_a_stopped_pe,
            timeout_errors_do_not_name_a_pe_that_waits_too,
            timeout_errors_do_not_name_a_waiting_pe_that_is_stopped,
            errors_name_a_pe_killed_after_a_long_wait,
            pe_that_resumes_before_the_deadline_is_awaited,
            errors_name_a_pe_killed_at_a_random_instant,
            job_with_more_pes_than_processors_has_no_errors,
        ],
    )
}

/// Time within which every PE must detect a loss on a machine whose processors are all busy; much
/// less than the deadline.
const SOON: Duration = Duration::from_secs(20);

/// The deadline of jobs in which a PE is stopped; the job must also be set up within this time.
const STOPPED: Duration = Duration::from_secs(6);

/// Waits until every PE except the victim has reported the loss of the victim and has succeeded.
/// Panics if a report is later than `within` after `since`.
fn all_lose(running: &mut Running, n_pes: usize, victim: usize, since: Instant, within: Duration) {
    let others = || (0..n_pes).filter(|&pe| pe != victim);
    for pe in others() {
        let (at, line) = running.timed_line(pe);
        let late = at.saturating_duration_since(since);
        assert!(line.starts_with(&format!("lost {victim} |")), "PE {pe} does not name the victim, PE {victim}: {line}");
        assert!(late < within, "PE {pe} reported the loss after {late:?}, expected less than {within:?}: {line}");
    }
    running.succeed(others());
}

/// Starts a job and calls `kill`, which returns when the victim has died. Asserts that all other
/// PEs name the victim and leave nothing behind.
fn victim_is_named(job: &Job, n_pes: usize, victim: usize, kill: impl FnOnce(&mut Running) -> Instant) {
    let before = Before::now();
    let mut running = job.start();
    let since = kill(&mut running);
    all_lose(&mut running, n_pes, victim, since, SOON);
    let (socket, mark) = (running.socket.clone(), running.mark.clone());
    drop(running);
    before.assert_nothing_new(&socket, &mark);
}

/// Waits until all PEs are ready and the victim has killed itself. Returns the time.
fn by_itself(running: &mut Running, n_pes: usize, victim: usize) -> Instant {
    running.all_say(0..n_pes, "ready");
    let status = running.reap(victim);
    assert_eq!(status.signal(), Some(9), "{status}");
    Instant::now()
}

// ---- before and during the rendezvous ----

/// Joins on all PEs except one. Argument: the PE that never joins.
fn absent(seat: &Seat) {
    let me: usize = std::env::var("PEERWEAVE_PE").expect("this process is a PE").parse().expect("PEERWEAVE_PE is a number");
    if me == seat.arg::<usize>(0) {
        say("absent");
        sleep(Duration::from_secs(60));
    }
    say_outcome(seat.try_join().map(drop));
}

fn errors_name_a_pe_killed_before_it_joins() {
    for victim in [0, 1, 3] {
        let job = Job::new("absent", 4).args(victim.to_string());
        victim_is_named(&job, 4, victim, |running| {
            assert_eq!(running.line(victim), "absent");
            sleep(Duration::from_millis(20));
            running.kill(victim)
        });
    }
}

/// Kills a PE while the PEs join. Arguments: the victim, and the microseconds after which it dies.
fn joining(seat: &Seat) {
    let me: usize = std::env::var("PEERWEAVE_PE").expect("this process is a PE").parse().expect("PEERWEAVE_PE is a number");
    if me == seat.arg::<usize>(0) {
        die_in(seat.arg(1));
    }
    say_outcome(seat.try_join().and_then(|world| {
        loop {
            world.team().barrier_blocking()?;
        }
    }));
}

fn errors_name_a_pe_killed_while_it_joins() {
    for i in 0..24u64 {
        let victim = (i % 3) as usize;
        let job = Job::new("joining", 3).args(format!("{victim} {}", i * 250));
        victim_is_named(&job, 3, victim, |running| {
            running.reap(victim);
            Instant::now()
        });
    }
}

// ---- during an operation ----

/// Repeats an operation during which a PE dies. Arguments: the operation, the victim, and the
/// microseconds after which the victim dies, `before` or `never`.
fn stage(seat: &Seat) {
    let (name, victim, when): (String, usize, String) = (seat.arg(0), seat.arg(1), seat.arg(2));
    let run = |world: &World| -> Result<()> {
        let mut act = act(world, &name)?;
        (0..3).try_for_each(|_| act())?;
        world.team().barrier_blocking()?;
        say("ready");
        if world.my_pe().index() == victim {
            match when.as_str() {
                "before" => die(),
                "never" => {}
                microseconds => die_in(microseconds.parse().expect("the argument is a number of microseconds")),
            }
        }
        loop {
            act()?;
        }
    };
    say_outcome(seat.try_join().and_then(|world| run(&world)));
}

/// Kills a PE once before the operation `name`, and in `insides` jobs during the operation.
fn killed_around(name: &str, seed: u64, insides: u64) {
    for i in 0..=insides {
        let victim = (hash(&[seed, i]) % 3) as usize;
        let when = if i == 0 { "before".to_owned() } else { (hash(&[seed, i, 1]) % 1500).to_string() };
        let job = Job::new("stage", 3).args(format!("{name} {victim} {when}"));
        let job = if seed % 4 == 3 { job.without_attach() } else { job };
        let mut who = format!("{name}, victim {victim}, {when} µs");
        let guard = Context(&mut who);
        victim_is_named(&job, 3, victim, |running| by_itself(running, 3, victim));
        drop(guard);
    }
}

/// Prints the current case if the thread panics.
struct Context<'a>(&'a mut String);

impl Drop for Context<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("    at: {}", self.0);
        }
    }
}

fn errors_name_a_pe_killed_before_or_in_a_collective() {
    let sizes = [(8, "private"), (1500, "private"), (100_000, "symmetric"), (100_000, "private"), (1_500_000, "private")];
    let mut seed = 0;
    for form in ["barrier", "sync"] {
        killed_around(form, seed, 4);
        seed += 1;
    }
    for form in Form::REDUCING.into_iter().chain(Form::MOVING) {
        for (bytes, place) in sizes {
            // In-place forms run only with large buffers, where a kill is more likely to interrupt
            // the operation.
            if form.is_in_place() && bytes < 10_000 {
                continue;
            }
            killed_around(&format!("{form:?}:{bytes}:{place}"), seed, 1);
            seed += 1;
        }
    }
}

fn errors_name_a_pe_killed_in_strided_exchange_or_reduce_fn() {
    let names = [
        "strided:60",
        "strided:30000:symmetric",
        "strided:1500000",
        "functions:8",
        "functions:30000",
        "functions:1500000",
        "exchange_counts",
        "lock",
    ];
    for (seed, name) in (700..).zip(names) {
        killed_around(name, seed, 3);
    }
}

fn errors_name_a_pe_killed_in_allocation_split_or_stream() {
    for (seed, name) in (1000..).zip(["alloc:100", "alloc:3000000", "split", "stream:8", "stream:300000", "wait_on_stream"]) {
        killed_around(name, seed, 4);
    }
}

fn errors_name_a_pe_killed_while_peers_wait_for_its_signal() {
    killed_around("wait", 2000, 8);
    for (seed, name) in (2010..).zip(["wait16", "wait_vector"]) {
        killed_around(name, seed, 3);
    }
}

fn errors_name_a_pe_killed_while_kernels_wait_for_it() {
    for (seed, name) in (2100..).zip(["kernel_barrier", "kernel_signal:4096", "moe"]) {
        killed_around(name, seed, 6);
    }
}

fn errors_name_a_pe_killed_while_peers_access_its_memory() {
    for (seed, name) in (2200..).zip(["atomics", "quiet", "test", "context"]) {
        killed_around(name, seed, 2);
    }
}

fn errors_name_a_pe_killed_in_sends_and_receives() {
    for (seed, name) in (3000..).zip(["ring:100", "ring:30000", "ring:2000000"]) {
        killed_around(name, seed, 4);
    }
    for (seed, bytes) in (3100..).zip([100, 30_000, 2_000_000]) {
        for when in ["before".to_owned(), (hash(&[seed]) % 1000).to_string()] {
            let job = Job::new("stage", 3).args(format!("star:{bytes} 1 {when}"));
            victim_is_named(&job, 3, 1, |running| by_itself(running, 3, 1));
        }
    }
}

/// Kills a PE before or during finalize. Arguments: the victim, and the microseconds after which it
/// dies, or `before`.
fn finalizing(seat: &Seat) {
    let (victim, when): (usize, String) = (seat.arg(0), seat.arg(1));
    let world = seat.join();
    world.team().barrier_blocking().expect("all PEs are alive");
    say("ready");
    if world.my_pe().index() == victim {
        match when.as_str() {
            "before" => die(),
            microseconds => die_in(microseconds.parse().expect("the argument is a number of microseconds")),
        }
    }
    say_outcome(world.finalize().map(drop));
    if std::env::var("PEERWEAVE_PE").is_ok_and(|pe| pe == victim.to_string()) {
        sleep(Duration::from_secs(60));
    }
}

fn finalize_errors_name_a_pe_killed_during_finalize() {
    for i in 0..8u64 {
        let victim = (i % 3) as usize;
        let when = if i < 3 { "before".to_owned() } else { (i * 20).to_string() };
        let mut running = Job::new("finalizing", 3).args(format!("{victim} {when}")).start();
        let since = by_itself(&mut running, 3, victim);
        for pe in (0..3).filter(|&pe| pe != victim) {
            let (at, line) = running.timed_line(pe);
            // A PE succeeds if the victim had completed its part of finalize before it died.
            assert!(
                line.starts_with(&format!("lost {victim} |")) || (line == "fine" && i >= 3),
                "PE {pe} reported `{line}`, expected the loss of PE {victim}"
            );
            assert!(at.saturating_duration_since(since) < SOON, "PE {pe} reported later than {SOON:?}: `{line}`");
        }
        running.succeed((0..3).filter(|&pe| pe != victim));
    }
}

// ---- PEs that leave or stop ----

/// Makes a PE leave while the other PEs reduce. Arguments: the PE that leaves, and how it leaves.
#[expect(clippy::zombie_processes, reason = "a child that outlives its parent is what is tested")]
fn leaving(seat: &Seat) {
    let (victim, how): (usize, String) = (seat.arg(0), seat.arg(1));
    let world = seat.join();
    let run = |world: &World| -> Result<()> {
        let mut act = act(world, "AllReduce:20000:private")?;
        (0..5).try_for_each(|_| act())?;
        say("ready");
        if world.my_pe().index() == victim {
            match how.as_str() {
                "panic" => panic!("this PE panics on purpose"),
                "return" => return Ok(()),
                "exit" => std::process::exit(0),
                "abort" => std::process::abort(),
                "orphan" => {
                    // The child outlives the PE, and keeps everything that it has inherited.
                    let mut child = std::process::Command::new("sleep");
                    child.arg("3").env_clear().stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
                    let _outlives = child.spawn().expect("a child process can be started");
                    die()
                }
                other => panic!("unknown way to leave: {other:?}"),
            }
        }
        loop {
            act()?;
        }
    };
    let outcome = run(&world);
    let me = world.my_pe().index();
    drop(world);
    if me != victim {
        say_outcome(outcome);
    } else if how == "return" {
        // The process continues without a world.
        sleep(Duration::from_millis(300));
    }
}

fn errors_name_a_pe_that_panics_returns_exits_or_aborts() {
    for (i, how) in ["panic", "return", "exit", "abort", "orphan"].into_iter().enumerate() {
        for victim in [0, 1 + i % 2] {
            let job = Job::new("leaving", 3).args(format!("{victim} {how}"));
            let mut running = job.start();
            running.all_say(0..3, "ready");
            let mut who = format!("{how}, victim {victim}");
            let context = Context(&mut who);
            all_lose(&mut running, 3, victim, Instant::now(), SOON);
            running.reap(victim);
            drop(context);
        }
    }
}

fn errors_name_a_pe_whose_thread_panics() {
    let told = Mutex::new(Vec::new());
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        on_threads(3, &HostOptions::default(), |world| {
            let mut sum = [0u64];
            for round in 0.. {
                if round == 100 && world.my_pe().get() == 1 {
                    panic!("this PE panics on purpose");
                }
                if let Err(error) = world.team().all_reduce_blocking(&[1u64], &mut sum, ReduceOp::Sum) {
                    told.lock().unwrap().push(error);
                    return;
                }
            }
        })
    }));
    assert!(panicked.is_err(), "the panic was not propagated");
    let told = told.into_inner().unwrap();
    assert_eq!(told.len(), 2);
    for error in told {
        assert!(matches!(&error, Error::Peer { pe, cause: PeerCause::Left, .. } if pe.get() == 1), "{error}");
    }
}

fn timeout_errors_name_a_stopped_pe() {
    for (victim, name) in
        [(0, "barrier"), (1, "AllReduce:20000:private"), (2, "AllReduce:200000:symmetric"), (1, "alloc:100"), (0, "stream:8")]
    {
        let before = Before::now();
        let job = Job::new("stage", 3).args(format!("{name} {victim} never")).deadline(STOPPED);
        let mut running = job.start();
        running.all_say(0..3, "ready");
        running.signal(victim, Signal::STOP);
        let mut guard = format!("{name}, victim {victim}");
        let context = Context(&mut guard);
        all_lose(&mut running, 3, victim, Instant::now(), STOPPED + SOON);
        drop(context);
        running.signal(victim, Signal::CONT);
        // The victim notices that the others have left, and reports that.
        let line = running.line(victim);
        assert!(line.starts_with("lost "), "the victim reported `{line}`, expected the loss of another PE");
        running.succeed([victim]);
        let (socket, mark) = (running.socket.clone(), running.mark.clone());
        drop(running);
        before.assert_nothing_new(&socket, &mark);
    }
}

/// PE 0 makes no call. PE 1 waits for PE 0, and the other PEs wait for PE 1, some of them through
/// another PE. The deadline of PE 1 passes last. All PEs must name PE 0 only.
fn timeout_errors_do_not_name_a_pe_that_waits_too() {
    let mut options = HostOptions::default();
    options.deadline = Duration::from_secs(1);
    let in_a_barrier = |team: &Team| match team.my_rank().get() {
        1 => team.recv_blocking(&mut [0u64], Rank::new(0)),
        _ => team.barrier_blocking(),
    };
    let in_a_receive = |team: &Team| {
        let (me, mut received) = (team.my_rank().get(), [0u64]);
        team.recv_blocking(&mut received, Rank::new(me - 1))?;
        team.send_blocking(&received, Rank::new((me + 1) % 4))
    };
    for calls in [&in_a_barrier as &(dyn Fn(&Team) -> Result<()> + Sync), &in_a_receive] {
        let (named, reported) = (Mutex::new(Vec::new()), Barrier::new(4));
        on_threads(4, &options, |world| {
            let me = world.my_pe().get();
            if me > 0 {
                sleep(Duration::from_millis(60 - 20 * u64::from(me)));
                let outcome = calls(world.team());
                named.lock().unwrap().push((me, outcome));
            }
            reported.wait();
        })
        .expect("the PEs leave after their reports");
        for (pe, outcome) in named.into_inner().unwrap() {
            let error = outcome.expect_err("PE 0 makes no call");
            assert_eq!(error.blamed(), [Pe::new(0)], "PE {pe}: {error}");
        }
    }
}

/// PE 0 makes no call. Each other PE receives from the PE before it.
fn chain(seat: &Seat) {
    let (world, mut received) = (seat.join(), [0u64]);
    let me = world.my_pe().get();
    world.team().barrier_blocking().unwrap();
    say("ready");
    match me {
        0 => sleep(3 * STOPPED),
        _ => say_outcome(world.team().recv_blocking(&mut received, Rank::new(me - 1))),
    }
}

/// Starts [`chain`] on three PEs. Calls `interrupt` after PE 1 has waited for more than half of its
/// deadline. Checks that PE 2 then names PE `expected`.
fn interrupted_chain(interrupt: impl FnOnce(&mut Running), expected: usize) {
    let mut running = Job::new("chain", 3).deadline(STOPPED).start();
    running.all_say(0..3, "ready");
    sleep(STOPPED * 3 / 4);
    interrupt(&mut running);
    let line = running.line(2);
    assert!(line.starts_with(&format!("lost {expected} |")), "PE 2 does not name PE {expected}: {line}");
    running.succeed([2]);
}

fn timeout_errors_do_not_name_a_waiting_pe_that_is_stopped() {
    interrupted_chain(|running| running.signal(1, Signal::STOP), 0);
}

fn errors_name_a_pe_killed_after_a_long_wait() {
    let kill = |running: &mut Running| {
        running.kill(1);
    };
    interrupted_chain(kill, 1);
}

fn pe_that_resumes_before_the_deadline_is_awaited() {
    let mut running = Job::new("mixture", 3).args("3000").start();
    running.all_say(0..3, "ready");
    for i in 0..6 {
        let pe = i % 3;
        sleep(Duration::from_millis(15));
        // The PE may have ended by now.
        running.signal(pe, Signal::STOP);
        sleep(Duration::from_millis(40));
        running.signal(pe, Signal::CONT);
    }
    running.all_say(0..3, "fine");
    running.succeed(0..3);
}

// ---- during a random mixture of operations ----

/// Runs a random mixture of operations. Argument: the number of rounds; `0` means no limit.
fn mixture(seat: &Seat) {
    let rounds: u64 = seat.arg(0);
    let run = |world: World| -> Result<()> {
        let mut workload = Workload::new(&world);
        say("ready");
        let mut round = 0;
        while rounds == 0 || round < rounds {
            workload.step()?;
            round += 1;
        }
        drop(workload);
        world.finalize().map(drop)
    };
    say_outcome(seat.try_join().and_then(run));
}

fn errors_name_a_pe_killed_at_a_random_instant() {
    let kills: u64 = std::env::var("PEERWEAVE_KILLS").map_or(20, |kills| kills.parse().expect("PEERWEAVE_KILLS is a number"));
    let mut slowest = Duration::ZERO;
    let mut wrong = Vec::new();
    for i in 0..kills {
        let n_pes = 2 + (hash(&[i, 1]) % 4) as usize;
        let victim = (hash(&[i, 2]) % n_pes as u64) as usize;
        let delay = Duration::from_micros(hash(&[i, 3]) % 60_000);
        let job = Job::new("mixture", n_pes).args("0");
        let job = if i % 3 == 0 { job.without_attach() } else { job };
        let before = Before::now();
        let mut running = job.start();
        // The kill may happen before the rendezvous, or far into the mixture.
        sleep(delay);
        let since = running.kill(victim);
        for pe in (0..n_pes).filter(|&pe| pe != victim) {
            let (mut at, mut line) = running.timed_line(pe);
            if line == "ready" {
                (at, line) = running.timed_line(pe);
            }
            let late = at.saturating_duration_since(since);
            slowest = slowest.max(late);
            if !line.starts_with(&format!("lost {victim} |")) || late >= SOON {
                wrong.push(format!("kill {i}, of PE {victim} of {n_pes} after {delay:?}: PE {pe} after {late:?}: {line}"));
            }
        }
        running.succeed((0..n_pes).filter(|&pe| pe != victim));
        let (socket, mark) = (running.socket.clone(), running.mark.clone());
        drop(running);
        before.assert_nothing_new(&socket, &mark);
    }
    println!("    {kills} kills; the slowest was reported by all PEs after {slowest:?}");
    assert!(wrong.is_empty(), "{} wrong reports:\n{}", wrong.len(), wrong.join("\n"));
}

fn job_with_more_pes_than_processors_has_no_errors() {
    for (n_pes, rounds) in [(8, 300), (16, 60)] {
        let job = Job::new("mixture", n_pes).args(rounds.to_string());
        let mut running = job.start();
        running.all_say(0..n_pes, "ready");
        running.all_say(0..n_pes, "fine");
        running.succeed(0..n_pes);
    }
}
