//! Checks aborts of the job. Every process exits with the code of the abort, whatever the process
//! is doing. If PEs are threads, their calls fail with an error that names the PE that aborted.

use peerweave::host::{HostOptions, on_threads};
use peerweave::{Compare, Error, MisuseKind, Rank, Result, Symmetric, World};
use peerweave_tests::run::job::say;
use peerweave_tests::{Job, Seat, named};
use std::process::ExitCode;
use std::sync::Barrier;
use std::thread::sleep;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    peerweave_tests::main(
        named![act, at_once, before_the_end_of_a_join],
        named![
            abort_code_is_the_exit_status_of_every_process,
            abort_ends_processes_that_are_joining,
            first_of_two_aborts_sets_the_status_of_all_processes,
            abort_fails_the_calls_of_every_thread,
            first_of_two_aborts_sets_the_error_of_all_threads,
            panic_because_of_an_abort_is_reported_as_the_abort,
            abort_after_finalize_returns_a_misuse_error,
        ],
    )
}

/// Time within which every PE must end on a machine whose processors are all busy; much less than
/// the deadline.
const SOON: Duration = Duration::from_secs(20);

mod kernels {
    use peerweave_device::prelude::*;

    /// Waits for a signal that no PE sends.
    #[kernel]
    pub(super) fn wait(ctx: &Context, signal: SymSlice<u64>) -> Result<(), Failed> {
        ctx.signal_wait_until_block(signal, Compare::Ge, 1)
    }
}

/// What PEs do when the job is aborted: names for [`until_failure`]. `puts` makes no call that
/// waits.
const ACTS: [&str; 10] = ["barrier", "signal", "stream", "ticket", "kernel", "alloc", "split", "recv", "finalize", "puts"];

/// Repeats the operation `name` until it fails. `compute` makes no call, so it never fails.
fn until_failure(world: &World, words: &Symmetric<u64>, name: &str) -> Result<()> {
    let team = world.team();
    let last = Rank::new(team.size() as u32 - 1);
    loop {
        match name {
            "barrier" => team.barrier_blocking()?,
            "signal" => drop(team.wait_until_blocking(&words.signal(0)?, Compare::Eq, 1)?),
            "stream" => {
                let stream = world.stream()?;
                team.barrier(&stream)?;
                stream.synchronize()?;
            }
            "ticket" => team.barrier(&world.stream()?)?.wait()?,
            "kernel" => world.stream()?.launch(&kernels::wait::KERNEL, 1, 2, (words,))?.wait()?,
            "alloc" => drop(world.alloc::<u8>(64)?),
            "split" => drop(team.split(Some(0), 0)?),
            "recv" => team.recv_blocking(&mut [0u8], last)?,
            "finalize" => drop(world.finalize()?),
            "puts" => team.put_blocking(&[0u64], words, last)?,
            "compute" => sleep(Duration::from_micros(1)),
            other => unreachable!("unknown operation {other}"),
        }
    }
}

/// Prints a line when dropped.
struct Loud;

impl Drop for Loud {
    fn drop(&mut self) {
        say("dropped");
    }
}

/// Aborts the job on the last PE. Arguments: the exit code, and what the other PEs do meanwhile.
fn act(seat: &Seat) {
    let (code, name): (u8, String) = (seat.arg(0), seat.arg(1));
    let world = seat.join();
    let words = world.alloc_zeroed::<u64>(1).unwrap();
    let _loud = Loud;
    // Leaves an incomplete line in the buffer of standard output.
    print!("tail");
    if world.my_pe().index() + 1 < world.n_pes() {
        let outcome = until_failure(&world, &words, &name);
        say(format!("the process continued after the abort with {outcome:?}"));
        return;
    }
    sleep(Duration::from_millis(30));
    let returned = world.abort(code);
    say(format!("returned {returned}"));
}

fn abort_code_is_the_exit_status_of_every_process() {
    let acts = || ACTS.into_iter().chain(["compute"]);
    let cases = acts().map(|name| (3, name, 7)).chain([
        (1, "barrier", 0),
        (1, "barrier", 255),
        (2, "barrier", 0),
        (2, "compute", 0),
        (2, "compute", 1),
        (8, "barrier", 255),
        (8, "compute", 0),
        (8, "puts", 3),
    ]);
    for (n_pes, name, code) in cases {
        let mut running = Job::new("act", n_pes).args(format!("{code} {name}")).start();
        let started = Instant::now();
        for pe in 0..n_pes {
            let (said, status) = running.ending(pe);
            assert_eq!(status.code(), Some(code), "PE {pe} of {n_pes} in {name}: {status}, {said:?}");
            assert_eq!(said, ["tail"], "PE {pe} of {n_pes} in {name}");
        }
        assert!(started.elapsed() < SOON, "{name}: ended after {:?}, expected less than {SOON:?}", started.elapsed());
    }
}

/// Aborts on PE 0 as soon as PE 0 has joined, when the other PEs may still be joining.
fn before_the_end_of_a_join(seat: &Seat) {
    let world = seat.try_join();
    if let Ok(world) = &world {
        match world.my_pe().get() {
            0 => drop(world.abort(5)),
            _ => sleep(Duration::from_secs(60)),
        }
    }
    say(format!("the process continued after joining with {world:?}"));
}

fn abort_ends_processes_that_are_joining() {
    for _ in 0..10 {
        let mut running = Job::new("before_the_end_of_a_join", 4).start();
        for pe in 0..4 {
            let (said, status) = running.ending(pe);
            assert_eq!((said, status.code()), (Vec::new(), Some(5)), "PE {pe}: {status}");
        }
    }
}

/// Aborts on every second PE, each with its own code.
fn at_once(seat: &Seat) {
    let world = seat.join();
    let me = world.my_pe().get() as u8;
    world.team().barrier_blocking().unwrap();
    if me.is_multiple_of(2) {
        say(world.abort(10 + me));
    }
    let outcome = world.team().barrier_blocking();
    say(format!("the process continued after the abort with {outcome:?}"));
}

fn first_of_two_aborts_sets_the_status_of_all_processes() {
    for n_pes in [2, 3, 8] {
        for _ in 0..5 {
            let mut running = Job::new("at_once", n_pes).start();
            let endings: Vec<_> = (0..n_pes).map(|pe| running.ending(pe)).collect();
            let first = endings[0].1.code().expect("the process exits without a signal");
            assert!(first >= 10 && first % 2 == 0 && first < 10 + n_pes as i32, "{endings:?}");
            assert!(endings.iter().all(|(said, status)| said.is_empty() && status.code() == Some(first)), "{endings:?}");
        }
    }
}

fn options() -> HostOptions {
    let mut options = HostOptions::default();
    options.deadline = Duration::from_secs(60);
    options.heap_bytes = Some(1 << 20);
    options
}

fn is_abort(error: &Error, pe: u32, expected: u8) -> bool {
    matches!(error, Error::Aborted { by, code } if by.get() == pe && *code == expected)
}

fn abort_fails_the_calls_of_every_thread() {
    for n_pes in [1, 2, 3, 8] {
        for (name, code) in ACTS.into_iter().zip([0, 1, 255].into_iter().cycle()) {
            let by = n_pes as u32 - 1;
            let started = Instant::now();
            let ended = on_threads(n_pes, &options(), |world| {
                let world = World::from(world);
                let words = world.alloc_zeroed::<u64>(1).unwrap();
                let error = if world.my_pe().get() == by {
                    sleep(Duration::from_millis(10));
                    world.abort(code)
                } else {
                    until_failure(&world, &words, name).unwrap_err()
                };
                assert!(is_abort(&error, by, code), "{name} on PE {}: {error}", world.my_pe());
                assert_eq!(error.to_string(), format!("PE {by} has aborted the job with exit code {code}"));
                // All later calls fail with the same error, even calls that wait for no PE.
                let later = [
                    world.quiet_blocking(),
                    world.team().put_blocking(&[0u64], &words, Rank::new(0)),
                    world.stream().map(drop),
                    world.finalize().map(drop),
                ];
                for (index, outcome) in later.into_iter().enumerate() {
                    assert!(outcome.as_ref().is_err_and(|error| is_abort(error, by, code)), "call {index}: {outcome:?}");
                }
            });
            assert!(ended.as_ref().is_err_and(|error| is_abort(error, by, code)), "{name}: {ended:?}");
            assert!(started.elapsed() < SOON, "{name}: ended after {:?}, expected less than {SOON:?}", started.elapsed());
        }
    }
}

fn first_of_two_aborts_sets_the_error_of_all_threads() {
    for _ in 0..50 {
        let together = Barrier::new(3);
        let seen = std::sync::Mutex::new(Vec::new());
        let ended = on_threads(3, &options(), |world| {
            let me = world.my_pe().get();
            together.wait();
            let error = if me < 2 { world.abort(10 + me as u8) } else { world.team().barrier_blocking().unwrap_err() };
            seen.lock().unwrap().push(error);
        });
        let Err(Error::Aborted { by, code }) = ended else { panic!("{ended:?}") };
        assert_eq!(u32::from(code), 10 + by.get());
        assert!(seen.into_inner().unwrap().iter().all(|error| is_abort(error, by.get(), code)));
    }
}

fn panic_because_of_an_abort_is_reported_as_the_abort() {
    let ended = on_threads(2, &options(), |world| match world.my_pe().get() {
        0 => drop(world.abort(4)),
        _ => world.team().barrier_blocking().expect("PE 0 aborts"),
    });
    assert!(ended.as_ref().is_err_and(|error| is_abort(error, 0, 4)), "{ended:?}");
}

fn abort_after_finalize_returns_a_misuse_error() {
    let errors = on_threads(2, &options(), |world| {
        let _ = world.finalize().unwrap();
        world.abort(1)
    });
    for error in errors.expect("abort after finalize does not end the job") {
        assert!(matches!(error.misuse(), Some(MisuseKind::Finalized)), "{error}");
    }
}
