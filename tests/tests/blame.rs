//! Errors name the root cause: if a PE fails because of another one, a third PE names the first,
//! whichever call failed between them.

use peerweave::{Buffer, Rank, Result, World};
use peerweave_tests::death::die;
use peerweave_tests::job::{named_by, say};
use peerweave_tests::sample::hash;
use peerweave_tests::{Job, Seat, named};
use std::process::ExitCode;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    peerweave_tests::main(
        named![destroying, receiving],
        named![failed_destroy_names_the_root_cause, failed_receive_names_the_root_cause],
    )
}

/// Prints the result of this PE.
fn tell(outcome: Result<()>) {
    match outcome {
        Ok(()) => say("fine"),
        Err(error) => {
            let named: Vec<String> = named_by(&error).iter().map(|pe| pe.get().to_string()).collect();
            say(format!("lost {} | {error}", named.join(",")));
        }
    }
}

/// Asserts that all other PEs name PE 0, which dies.
fn all_name_pe_0(job: &Job, context: &str) {
    let mut running = job.start();
    running.all_say(0..4, "ready");
    running.reap(0);
    for pe in 1..4 {
        let line = running.line(pe);
        assert!(line.starts_with("lost 0 |"), "{context}: PE {pe}: {line}");
    }
    running.succeed(1..4);
}

/// Repeatedly creates and destroys the teams {0, 2} and {1, 3}; {0, 1} and {2, 3} stay. Argument:
/// microseconds until PE 0 dies.
fn destroying(seat: &Seat) {
    let microseconds: u64 = seat.arg(0);
    let run = |world: &World| -> Result<()> {
        let me = u64::from(world.my_pe().get());
        let pair = world.team().split(Some(me / 2), 0)?.expect("all take part");
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
            world.team().split(Some(me % 2), 0)?.expect("all take part").destroy()?;
            pair.barrier_blocking()?;
        }
    };
    tell(seat.try_join().and_then(|world| run(&world)));
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
        let odd = world.team().split(Some(u64::from(me % 2)), 0)?.expect("all take part");
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
    tell(seat.try_join().and_then(|world| run(&world)));
}

fn failed_receive_names_the_root_cause() {
    for _ in 0..3 {
        all_name_pe_0(&Job::new("receiving", 4), "a message of a PE that died");
    }
    all_name_pe_0(&Job::new("receiving", 4).without_attach(), "a message of a PE that died, through staging areas");
}
