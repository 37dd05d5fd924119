//! Checks that the end of a PE is detected even if process IDs are meaningless, file descriptors
//! are few, or the program has closed them. Also checks that no living PE is reported as dead.

use peerweave::{Error, ReduceOp, Result, World};
use peerweave_tests::repeat::workload::Workload;
use peerweave_tests::run::death::die;
use peerweave_tests::run::job::{say, say_outcome};
use peerweave_tests::run::needs::needs;
use peerweave_tests::{Job, Seat, named};
use rustix::process::{Resource, Rlimit, Signal, getpid, kill_process, setrlimit};
use std::process::ExitCode;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    peerweave_tests::main(
        named![looping, closing, contained, heaps, little_address_space, little_file_size],
        named![
            errors_soon_name_a_dead_pe_if_file_descriptors_are_few,
            pe_that_closes_file_descriptors_is_not_reported_dead,
            private_buffers_across_pid_namespaces_are_right,
            errors_soon_name_a_dead_pe_in_another_pid_namespace,
            exit_of_an_unrelated_process_with_the_same_pid_is_ignored,
            different_heap_sizes_are_a_mismatch_on_all_pes,
            error_for_too_little_address_space_names_the_setting,
            error_for_a_low_file_size_limit_names_the_setting,
        ],
    )
}

/// Time within which every PE must detect a loss.
const SOON: Duration = Duration::from_secs(20);

fn limit(resource: Resource, to: u64) {
    setrlimit(resource, Rlimit { current: Some(to), maximum: Some(to) }).expect("a process can lower its limits");
}

/// Runs a mixture of operations until a PE dies. Arguments: the victim, and the limit of file
/// descriptors on all PEs except PE 0, or 0 for no limit.
fn looping(seat: &Seat) {
    let (victim, descriptors): (usize, u64) = (seat.arg(0), seat.arg(1));
    let me: usize = std::env::var("PEERWEAVE_PE").expect("this process is a PE").parse().expect("PEERWEAVE_PE is a number");
    if descriptors > 0 && me > 0 {
        limit(Resource::Nofile, descriptors);
    }
    let run = |world: &World| -> Result<()> {
        let mut workload = Workload::new(world);
        (0..10).try_for_each(|_| workload.step())?;
        world.team().barrier_blocking()?;
        say("ready");
        if me == victim {
            die();
        }
        loop {
            workload.step()?;
        }
    };
    say_outcome(seat.try_join().and_then(|world| run(&world)));
}

fn victim_is_named_soon(job: &Job, n_pes: usize, victim: usize) {
    let mut running = job.start();
    running.all_say(0..n_pes, "ready");
    running.reap(victim);
    let died = Instant::now();
    for pe in (0..n_pes).filter(|&pe| pe != victim) {
        let (at, line) = running.timed_line(pe);
        let late = at.saturating_duration_since(died);
        assert!(
            line.starts_with(&format!("lost {victim} |")) && late < SOON,
            "PE {pe} reported `{line}` after {late:?}, expected the loss of the victim"
        );
    }
    running.succeed((0..n_pes).filter(|&pe| pe != victim));
}

fn errors_soon_name_a_dead_pe_if_file_descriptors_are_few() {
    for descriptors in [7, 8, 10, 14] {
        victim_is_named_soon(&Job::new("looping", 6).args(format!("5 {descriptors}")), 6, 5);
    }
}

/// Closes all descriptors of PE 1 except the standard ones. Argument: whether PE 1 then opens
/// others.
fn closing(seat: &Seat) {
    let reopens: bool = seat.arg(0);
    let run = |world: &World| -> Result<()> {
        let mut workload = Workload::new(world);
        (0..10).try_for_each(|_| workload.step())?;
        if world.my_pe().get() == 1 {
            for descriptor in 3..1000 {
                // SAFETY: `close` takes any number. Calls on the library's descriptors fail from
                // here on, which is what is tested. No owner of a descriptor is dropped before this
                // process ends.
                unsafe { libc::close(descriptor) };
            }
            if reopens {
                (0..40).for_each(|_| std::mem::forget(std::fs::File::open("/dev/null")));
            }
        }
        // Long waits, during which every PE checks whether the others are alive.
        for round in 0..6 {
            if round % 3 == world.my_pe().get() % 3 {
                std::thread::sleep(Duration::from_millis(40));
            }
            world.team().barrier_blocking()?;
        }
        (0..100).try_for_each(|_| workload.step())?;
        world.team().barrier_blocking()
    };
    // The world lives until the process ends. Dropping it would close descriptors that no longer
    // belong to the library.
    let world = std::mem::ManuallyDrop::new(seat.join());
    say_outcome(run(&world));
    std::process::exit(0);
}

fn pe_that_closes_file_descriptors_is_not_reported_dead() {
    for reopens in [false, true] {
        let mut running = Job::new("closing", 3).args(reopens.to_string()).start();
        running.all_say(0..3, "fine");
        running.succeed(0..3);
    }
}

/// Runs large collectives on private buffers and checks every element. Then PE 1 dies, or all PEs
/// stay alive. Arguments: whether PE 1 dies, and the milliseconds of waiting.
fn contained(seat: &Seat) {
    let (dies, milliseconds): (bool, u64) = (seat.arg(0), seat.arg(1));
    let run = |world: World| -> Result<()> {
        let (n, me) = (world.n_pes(), world.my_pe().index());
        for len in [100_000, 1_000_000] {
            let send = vec![me as u64 + 1; len];
            let mut recv = vec![0u64; len * n];
            world.team().all_gather_blocking(&send, &mut recv)?;
            assert!(
                recv.iter().enumerate().all(|(i, &x)| x == (i / len) as u64 + 1),
                "the result of all_gather of {len} elements is wrong"
            );
            let mut sum = send;
            world.team().all_reduce_in_place_blocking(&mut sum, ReduceOp::Sum)?;
            assert!(sum.iter().all(|&x| x == (n * (n + 1) / 2) as u64), "the result of all_reduce of {len} elements is wrong");
        }
        world.team().barrier_blocking()?;
        say("ready");
        if dies && me == 1 {
            kill_process(getpid(), Signal::KILL).expect("this process can kill itself");
            // The system ignores a SIGKILL of the first process of a PID namespace to itself.
            std::process::abort();
        }
        let end = Instant::now() + Duration::from_millis(milliseconds);
        loop {
            if me == 1 {
                std::thread::sleep(Duration::from_millis(20));
            }
            let mut go_on = [u64::from(Instant::now() < end)];
            world.team().all_reduce_in_place_blocking(&mut go_on, ReduceOp::Min)?;
            if go_on[0] == 0 {
                break;
            }
        }
        world.finalize().map(drop)
    };
    say_outcome(seat.try_join().and_then(run));
}

/// The command that makes each PE the first process of its own PID namespace. Address randomisation
/// is off, so all PEs have the same addresses, as in containers of one image.
const CONTAINER: [&str; 7] = ["setarch", "-R", "unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];

fn private_buffers_across_pid_namespaces_are_right() {
    if needs("pid-namespaces") {
        let mut running = Job::new("contained", 2).args("false 0").under(&CONTAINER).start();
        running.all_say(0..2, "ready");
        running.all_say(0..2, "fine");
        running.succeed(0..2);
    }
}

fn errors_soon_name_a_dead_pe_in_another_pid_namespace() {
    if needs("pid-namespaces") {
        victim_is_named_soon_after_aborting(&Job::new("contained", 3).args("true 20000").under(&CONTAINER), 3);
    }
}

fn victim_is_named_soon_after_aborting(job: &Job, n_pes: usize) {
    let mut running = job.start();
    running.all_say(0..n_pes, "ready");
    let ready = Instant::now();
    for pe in (0..n_pes).filter(|&pe| pe != 1) {
        let (at, line) = running.timed_line(pe);
        let late = at.saturating_duration_since(ready);
        assert!(
            line.starts_with("lost 1 |") && late < SOON,
            "PE {pe} reported `{line}` after {late:?}, expected the loss of the victim"
        );
    }
}

fn exit_of_an_unrelated_process_with_the_same_pid_is_ignored() {
    if !needs("pid-namespaces") {
        return;
    }
    // In its namespace, PE 1 has the process ID that an unrelated process has in this namespace.
    // The unrelated process ends while the job runs.
    let mut unrelated = std::process::Command::new("sleep").arg("0.5").spawn().expect("the program sleep can be started");
    let number = unrelated.id();
    let script: &'static str = Box::leak(
        format!("[ $PEERWEAVE_PE = 1 ] && echo {} > /proc/sys/kernel/ns_last_pid; \"$0\" & wait $!", number - 1).into_boxed_str(),
    );
    let only_pe_1: &'static str = Box::leak(
        format!("if [ $PEERWEAVE_PE = 1 ]; then exec unshare --pid --fork --mount-proc --kill-child sh -c '{script}' \"$0\"; fi; exec \"$0\"")
            .into_boxed_str(),
    );
    let mut running = Job::new("contained", 2).args("false 1500").under(&["sh", "-c", only_pe_1]).start();
    running.all_say(0..2, "ready");
    unrelated.wait().expect("the process is a child of this process");
    running.all_say(0..2, "fine");
    running.succeed(0..2);
}

/// Requests a heap of a different size on PE 1.
fn heaps(seat: &Seat) {
    let me: usize = std::env::var("PEERWEAVE_PE").expect("this process is a PE").parse().expect("PEERWEAVE_PE is a number");
    let heap_bytes = if me == 1 { 2 << 20 } else { 1 << 20 };
    let joined = World::builder().heap_bytes(heap_bytes).build();
    let _ = seat;
    match joined {
        Err(error @ Error::Mismatch(_)) => say(format!("mismatch {error}")),
        Err(error) => say(error),
        Ok(_) => say("fine"),
    }
}

fn different_heap_sizes_are_a_mismatch_on_all_pes() {
    let mut running = Job::new("heaps", 3).start();
    for pe in 0..3 {
        let line = running.line(pe);
        let names_both = line.contains("1048576") && line.contains("2097152") && line.contains("PEERWEAVE_HEAP_BYTES");
        assert!(
            line.starts_with("mismatch ") && names_both,
            "PE {pe} reported `{line}`, expected a mismatch with both heap sizes"
        );
    }
    running.succeed(0..3);
}

fn little_address_space(seat: &Seat) {
    limit(Resource::As, 4 << 30);
    say_outcome(seat.try_join().map(drop));
}

fn error_for_too_little_address_space_names_the_setting() {
    let mut running = Job::new("little_address_space", 2).heap_bytes(64 << 30).start();
    let lines = [running.line(0), running.line(1)];
    assert!(lines.iter().any(|line| line.contains("PEERWEAVE_HEAP_BYTES") && line.contains("ulimit -v")), "{lines:?}");
    running.succeed(0..2);
}

fn little_file_size(seat: &Seat) {
    limit(Resource::Fsize, 1 << 30);
    say_outcome(seat.try_join().map(drop));
}

fn error_for_a_low_file_size_limit_names_the_setting() {
    let mut running = Job::new("little_file_size", 2).heap_bytes(64 << 30).start();
    let lines = [running.line(0), running.line(1)];
    assert!(lines[0].contains("PEERWEAVE_HEAP_BYTES") && lines[0].contains("ulimit -f"), "{lines:?}");
    // PE 0 creates the file.
    assert!(lines[1].starts_with("lost 0 "), "{lines:?}");
    running.succeed(0..2);
}
