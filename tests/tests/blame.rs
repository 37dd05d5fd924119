//! Checks that errors name the root cause. If a PE fails because of a dead PE, a third PE that
//! waits for the failed PE names the dead PE, whichever calls failed in between.

use peerweave::{Buffer, Compare, Pe, Rank, ReduceOp, Result, World};
use peerweave_tests::data::sample::hash;
use peerweave_tests::run::death::die;
use peerweave_tests::run::job::{say, say_outcome};
use peerweave_tests::{Job, Seat, named};
use std::process::ExitCode;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    peerweave_tests::main(
        named![destroying, receiving, exiting],
        named![
            failed_destroy_names_the_root_cause,
            failed_receive_names_the_root_cause,
            errors_after_a_pe_exits_on_error_name_the_root_cause,
            errors_after_a_failed_finalize_name_the_root_cause,
        ],
    )
}

/// Asserts that all other PEs name PE 0, which dies.
fn all_name_pe_0(job: &Job, context: &str) {
    let mut running = job.start();
    running.all_say(0..4, "ready");
    running.reap(0);
    for pe in 1..4 {
        let line = running.line(pe);
        assert!(line.starts_with("lost 0 |"), "{context}: PE {pe} reported `{line}`, expected the loss of PE 0");
    }
    running.succeed(1..4);
}

/// Repeatedly creates and destroys the teams {0, 2} and {1, 3}, and uses the lasting teams {0, 1}
/// and {2, 3}. Argument: microseconds until PE 0 dies.
fn destroying(seat: &Seat) {
    let microseconds: u64 = seat.arg(0);
    let run = |world: &World| -> Result<()> {
        let me = u64::from(world.my_pe().get());
        let pair = world.team().split(Some(me / 2), 0)?.expect("a rank that passes a color gets a team");
        world.team().barrier_blocking()?;
        say("ready");
        if me == 0 {
            std::thread::spawn(move || {
                let end = Instant::now() + Duration::from_micros(microseconds);
                while Instant::now() < end {
                    std::hint::spin_loop();
                }
                die()
            });
        }
        loop {
            world.team().split(Some(me % 2), 0)?.expect("a rank that passes a color gets a team").destroy()?;
            pair.barrier_blocking()?;
        }
    };
    say_outcome(seat.try_join().and_then(|world| run(&world)));
}

fn failed_destroy_names_the_root_cause() {
    for i in 0..100 {
        let microseconds = hash(&[i, 77]) % 1500;
        all_name_pe_0(&Job::new("destroying", 4).args(microseconds.to_string()), &format!("after {microseconds} us"));
    }
}

/// Offers a large private message from PE 0, which dies, to PE 1. PE 1 cannot read it and fails. PE
/// 3 waits for PE 1 in a team of the two.
fn receiving(seat: &Seat) {
    let run = |world: &World| -> Result<()> {
        let me = world.my_pe().get();
        let odd = world.team().split(Some(u64::from(me % 2)), 0)?.expect("a rank that passes a color gets a team");
        world.team().barrier_blocking()?;
        say("ready");
        match me {
            0 => {
                let stream = world.stream()?;
                let buffer = Buffer::from(vec![7u64; 1 << 20]);
                let _offered = world.team().send(&stream, &buffer, Rank::new(1))?;
                std::thread::sleep(Duration::from_millis(50));
                die();
            }
            1 => {
                std::thread::sleep(Duration::from_millis(150));
                world.team().recv_blocking(&mut vec![0u64; 1 << 20], Rank::new(0))?;
            }
            2 => std::thread::sleep(Duration::from_millis(300)),
            _ => odd.barrier_blocking()?,
        }
        world.team().barrier_blocking()
    };
    say_outcome(seat.try_join().and_then(|world| run(&world)));
}

fn failed_receive_names_the_root_cause() {
    for _ in 0..3 {
        all_name_pe_0(&Job::new("receiving", 4), "a message of a PE that died");
    }
    all_name_pe_0(&Job::new("receiving", 4).without_attach(), "a message of a PE that died, through staging areas");
}

/// Kills PE 1. PE 0 notices the death in a collective, reports it, and ends its process at once,
/// without dropping its world. The other PEs call later, each after the PEs before it have ended.
/// Arguments: the call of the other PEs, and what each survivor does before it exits.
fn exiting(seat: &Seat) {
    let (call, ending): (String, String) = (seat.arg(0), seat.arg(1));
    let world = seat.join();
    let me = world.my_pe().get();
    let run = || -> Result<()> {
        let team = world.team();
        // Of the PEs other than PE 1, each has a team with the one before it: 0 and 2, 2 and 3.
        let with_pe_0 = team.split(Some(u64::from(me % 2)), 0)?.expect("a rank that passes a color gets a team");
        let with_pe_2 = team.split(Some(u64::from(me / 2)), 0)?.expect("a rank that passes a color gets a team");
        let words = world.alloc_zeroed::<u64>(1)?;
        let lock = world.alloc_lock()?;
        if call == "lock" && me == 0 {
            std::mem::forget(lock.lock()?);
        }
        team.barrier_blocking()?;
        say("ready");
        let mut sums = [1u64; 2000];
        match (me, call.as_str()) {
            (1, _) => die(),
            (0, _) => loop {
                team.all_reduce_in_place_blocking(&mut sums, ReduceOp::Sum)?;
            },
            _ => std::thread::sleep(Duration::from_millis(300 * u64::from(me - 1))),
        }
        match call.as_str() {
            "all_reduce" => team.all_reduce_in_place_blocking(&mut sums, ReduceOp::Sum),
            "pairs" if me == 2 => with_pe_0.barrier_blocking(),
            "pairs" => with_pe_2.barrier_blocking(),
            "recv" => team.recv_blocking(&mut sums, Rank::new((me - 1) / 2 * 2)),
            "wait" => team.wait_until_blocking(&words.signal(0)?, Compare::Ge, 1).map(drop),
            "put" => loop {
                team.p_blocking(&words, 0, 7, Rank::new(0))?;
            },
            "lock" => lock.lock().map(drop),
            "split" => team.split(Some(0), 0).map(drop),
            "team_of" => world.team_of(&[0, me].map(Pe::new)).map(drop),
            "finalize" => world.finalize().map(drop),
            other => panic!("unknown call {other:?}"),
        }
    };
    let outcome = run();
    if ending == "finalize" {
        assert!(world.finalize().is_err(), "finalize must fail, because PE 1 has died");
    }
    say_outcome(outcome);
    // Neither the world nor what belongs to it is dropped.
    std::process::exit(0);
}

/// Asserts that all survivors of [`exiting`] name PE 1.
fn exiting_names_pe_1(n_pes: usize, call: &str, ending: &str) {
    let mut running = Job::new("exiting", n_pes).args(format!("{call} {ending}")).start();
    running.all_say(0..n_pes, "ready");
    running.reap(1);
    let survivors = || (0..n_pes).filter(|&pe| pe != 1);
    for pe in survivors() {
        let line = running.line(pe);
        assert!(
            line.starts_with("lost 1 |"),
            "{call}, {ending}: PE {pe} of {n_pes} reported `{line}`, expected the loss of PE 1"
        );
    }
    running.succeed(survivors());
}

fn errors_after_a_pe_exits_on_error_name_the_root_cause() {
    for call in ["all_reduce", "pairs", "recv", "wait", "put", "lock", "split", "team_of", "finalize"] {
        for n_pes in [3, 4] {
            for _ in 0..2 {
                exiting_names_pe_1(n_pes, call, "exit");
            }
        }
    }
}

fn errors_after_a_failed_finalize_name_the_root_cause() {
    for call in ["all_reduce", "pairs", "recv", "wait", "put", "lock", "split", "team_of"] {
        for n_pes in [3, 4] {
            for _ in 0..2 {
                exiting_names_pe_1(n_pes, call, "finalize");
            }
        }
    }
}
