//! Checks teams that only their members create (`team_of`). Other PEs may be busy, members agree on
//! a slot, and every waiting member gets an error that names the PE at fault.

use peerweave::host::{HostOptions, on_threads};
use peerweave::{Compare, Error, Mismatch, Pe, PeerCause, Rank, ReduceOp, Result, Team, World};
use peerweave_tests::run::death::die;
use peerweave_tests::run::job::{named_by, say};
use peerweave_tests::{Job, Seat, named};
use std::process::ExitCode;
use std::sync::Barrier;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    peerweave_tests::main(
        named![lists, busy, again, death],
        named![
            team_made_from_a_list_has_the_order_of_the_list,
            teams_are_made_while_other_pes_are_busy,
            team_slots_are_reused_thousands_of_times,
            exhausted_team_slots_are_an_error_on_all_members,
            threads_of_one_pe_make_teams_one_at_a_time,
            teams_are_made_while_other_teams_are_split,
            errors_of_all_waiting_members_name_the_missing_member,
            team_is_made_by_the_call_after_a_timeout,
            different_member_lists_are_a_mismatch_on_both_pes,
            mismatch_shows_the_list_of_the_failed_call,
            errors_soon_name_a_member_that_dies_or_leaves,
        ],
    )
}

/// Time within which a loss is reported on a machine whose processors are all busy; much less than
/// the deadline.
const SOON: Duration = Duration::from_secs(20);

fn pes(list: &[u32]) -> Vec<Pe> {
    list.iter().copied().map(Pe::new).collect()
}

/// Makes a team, checks its members, ranks and collectives, and destroys it.
fn check(world: &World, list: &[Pe]) -> Result<()> {
    let team = world.team_of(list)?;
    let me = list.iter().position(|&pe| pe == world.my_pe()).expect("the list contains this PE");
    assert_eq!((team.members(), team.my_rank().index(), team.size()), (list, me, list.len()));
    check_collectives(&team)?;
    team.destroy()
}

fn check_collectives(team: &Team) -> Result<()> {
    let (me, n) = (team.my_rank().get(), team.size() as u32);
    let mut sum = [0u32; 5];
    team.all_reduce_blocking(&[me + 1; 5], &mut sum, ReduceOp::Sum)?;
    assert_eq!(sum, [n * (n + 1) / 2; 5]);
    let mut all = vec![0u32; n as usize];
    team.all_gather_blocking(&[team.members()[me as usize].get()], &mut all)?;
    assert_eq!(pes(&all), team.members());
    if n > 1 {
        let (right, left) = (Rank::new((me + 1) % n), Rank::new((me + n - 1) % n));
        let (mine, mut got) = ([me], [0u32]);
        team.group_blocking(|group| {
            group.send(&mine, right)?;
            group.recv(&mut got, left)
        })?;
        assert_eq!(got, [left.get()]);
    }
    Ok(())
}

/// Makes teams from lists of each size, forwards and backwards. A PE calls only for the lists that
/// contain it.
fn lists(seat: &Seat) {
    let world = seat.join();
    let n = world.n_pes() as u32;
    for size in 1..=n {
        for start in 0..n {
            let forwards: Vec<u32> = (start..start + size).map(|pe| pe % n).collect();
            let backwards: Vec<u32> = forwards.iter().rev().copied().collect();
            for list in [forwards, backwards].map(|list| pes(&list)) {
                if list.contains(&world.my_pe()) {
                    check(&world, &list).unwrap();
                }
            }
        }
    }
    assert!(world.finalize().unwrap().is_clean());
}

fn team_made_from_a_list_has_the_order_of_the_list() {
    for n_pes in [1, 2, 3, 5, 8] {
        Job::new("lists", n_pes).everywhere();
    }
}

/// Makes and uses a team of all PEs but the last. The last PE waits for a signal meanwhile, which
/// PE 0 sends after the team was used.
fn busy(seat: &Seat) {
    let world = seat.join();
    let words = world.alloc_zeroed::<u64>(1).unwrap();
    let (me, last) = (world.my_pe().get(), world.n_pes() as u32 - 1);
    if me == last {
        world.team().wait_until_blocking(&words.signal(0).unwrap(), Compare::Eq, 1).unwrap();
    } else {
        let members = pes(&(0..last).rev().collect::<Vec<_>>());
        check(&world, &members).unwrap();
        if me == 0 {
            world.team().signal_blocking(words.signal(0).unwrap().set(1), Rank::new(last)).unwrap();
        }
    }
    words.release().unwrap();
    assert!(world.finalize().unwrap().is_clean());
}

fn teams_are_made_while_other_pes_are_busy() {
    for n_pes in [2, 3, 8] {
        Job::new("busy", n_pes).everywhere();
    }
}

/// Makes teams of pairs and of all PEs alternately, more often than there are slots.
fn again(seat: &Seat) {
    let world = seat.join();
    let (me, n) = (world.my_pe().get(), world.n_pes() as u32);
    let pair = pes(&[me & !1, (me | 1).min(n - 1)]);
    let everyone = pes(&(0..n).collect::<Vec<_>>());
    for round in 0..seat.arg(0) {
        if pair[0] != pair[1] {
            let team = world.team_of(&pair).unwrap();
            team.barrier_blocking().unwrap();
            team.destroy().unwrap();
        }
        if round % 4 == 0 {
            check(&world, &everyone).unwrap();
        }
    }
    assert!(world.finalize().unwrap().is_clean());
}

fn team_slots_are_reused_thousands_of_times() {
    for (n_pes, rounds) in [(2, 1000), (3, 500), (8, 100)] {
        Job::new("again", n_pes).args(rounds.to_string()).everywhere();
    }
}

fn options(deadline: Duration) -> HostOptions {
    let mut options = HostOptions::default();
    options.deadline = deadline;
    options.heap_bytes = Some(1 << 20);
    options
}

/// Runs `body` on threads that are PEs. Panics if a thread panics.
fn pes_run<R: Send>(n_pes: usize, deadline: Duration, body: impl Fn(&World) -> R + Sync) -> Vec<R> {
    on_threads(n_pes, &options(deadline), |world| body(&World::from(world))).expect("the PEs can share memory")
}

const PATIENT: Duration = Duration::from_secs(60);

fn exhausted_team_slots_are_an_error_on_all_members() {
    pes_run(3, PATIENT, |world| {
        let (all, max) = (pes(&[0, 1, 2]), world.caps().max_teams);
        // PE 0 uses half of its slots for teams of itself, so other PEs have free slots that are
        // not free on PE 0.
        let alone = (0..max / 2).filter(|_| world.my_pe().get() == 0).map(|_| world.team_of(&pes(&[0])).unwrap());
        let alone: Vec<Team> = alone.collect();
        let mut together = Vec::new();
        let error = loop {
            match world.team_of(&all) {
                Ok(team) => together.push(team),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::TooManyTeams { call: "team_of", .. }), "{error}");
        assert_eq!(together.len(), max - 1 - max / 2);
        check_collectives(&together[0]).unwrap();
        together.pop().expect("at least one team was created").destroy().unwrap();
        check(world, &all).unwrap();
        alone.into_iter().chain(together).for_each(|team| team.destroy().unwrap());
        (0..max - 1).for_each(|_| drop(world.team_of(&all).unwrap()));
        assert!(world.finalize().unwrap().is_clean());
    });
}

fn threads_of_one_pe_make_teams_one_at_a_time() {
    pes_run(3, PATIENT, |world| {
        // Each PE makes a team from every list that contains it. No two lists have two PEs in
        // common.
        let lists = [pes(&[0, 1]), pes(&[2, 1]), pes(&[2, 0])];
        for list in &lists {
            if list.contains(&world.my_pe()) {
                check(world, list).unwrap();
            }
        }
        let alone = pes(&[world.my_pe().get()]);
        scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..200).for_each(|_| world.team_of(&alone).unwrap().destroy().unwrap()));
            }
        });
        assert!(world.finalize().unwrap().is_clean());
    });
}

fn teams_are_made_while_other_teams_are_split() {
    pes_run(3, PATIENT, |world| {
        let everyone = pes(&[2, 0, 1]);
        scope(|scope| {
            scope.spawn(|| {
                for _ in 0..200 {
                    let team = world.team().split(Some(0), 0).unwrap().expect("a rank that passes a color gets a team");
                    team.destroy().unwrap();
                }
            });
            (0..200).for_each(|_| check(world, &everyone).unwrap());
        });
        assert!(world.finalize().unwrap().is_clean());
    });
}

fn errors_of_all_waiting_members_name_the_missing_member() {
    // First PE 0 is missing, which is the first of the list, and then PE 2.
    for absent in [0u32, 2] {
        let failed = Barrier::new(4);
        let errors = pes_run(4, Duration::from_secs(4), |world| {
            let me = world.my_pe().get();
            if me == absent {
                failed.wait();
                return None;
            }
            // The members begin to wait at different times. All fail at the first deadline.
            sleep(Duration::from_millis(u64::from(me) * 50));
            let started = Instant::now();
            let outcome = world.team_of(&pes(&[0, 1, 2, 3]));
            let waited = started.elapsed();
            failed.wait();
            assert!(waited < Duration::from_secs(15), "PE {me} waited for {waited:?}, expected less than 15 s");
            Some(outcome.unwrap_err())
        });
        for (pe, error) in errors.into_iter().enumerate().filter_map(|(pe, error)| Some((pe, error?))) {
            assert!(matches!(error, Error::Timeout(_)), "PE {pe}: {error}");
            assert_eq!(error.blamed(), [Pe::new(absent)], "PE {pe}: {error}");
            assert!(error.to_string().starts_with("team_of on "), "{error}");
        }
    }
}

fn team_is_made_by_the_call_after_a_timeout() {
    let (failed, late) = (Barrier::new(2), pes(&[0, 1]));
    pes_run(2, Duration::from_secs(4), |world| {
        if world.my_pe().get() == 0 {
            assert!(matches!(world.team_of(&late), Err(Error::Timeout(_))));
        }
        failed.wait();
        check(world, &late).unwrap();
        assert!(world.finalize().unwrap().is_clean());
    });
}

fn different_member_lists_are_a_mismatch_on_both_pes() {
    for (one, other) in
        [([0, 1].to_vec(), [1, 0].to_vec()), ([0, 1].to_vec(), [0, 1, 2].to_vec()), ([1, 0].to_vec(), [2, 0, 1].to_vec())]
    {
        let errors = pes_run(3, PATIENT, |world| {
            let error = match world.my_pe().get() {
                0 => Some(world.team_of(&pes(&one)).unwrap_err()),
                1 => Some(world.team_of(&pes(&other)).unwrap_err()),
                _ => None,
            };
            // Without this barrier, an error could name a PE that has left as the cause.
            world.team().barrier_blocking().unwrap();
            error
        });
        for (pe, error) in errors.into_iter().enumerate().filter_map(|(pe, error)| Some((pe, error?))) {
            let Error::Mismatch(mismatch) = &error else { panic!("PE {pe}: {error}") };
            let Mismatch { pe: blamed, mine, theirs, .. } = &**mismatch;
            let lists = if pe == 0 { [&one, &other] } else { [&other, &one] };
            assert_eq!(
                [mine, theirs].map(String::as_str),
                lists.map(|list| format!("team_of of PEs {list:?}")).each_ref().map(String::as_str)
            );
            assert_eq!(blamed.index(), 1 - pe, "{error}");
        }
    }
}

/// After each mismatch, PE 1 makes another team at once. The error of PE 0 must not show the list
/// of that call.
fn mismatch_shows_the_list_of_the_failed_call() {
    pes_run(2, Duration::from_secs(30), |world| {
        let me = world.my_pe();
        let lists = [pes(&[0, 1]), pes(&[1, 0])];
        let shown = ["team_of of PEs [0, 1]", "team_of of PEs [1, 0]"];
        for round in 0..500 {
            let error = world.team_of(&lists[me.index()]).expect_err("team_of with different lists fails");
            let Error::Mismatch(mismatch) = &error else { panic!("round {round}: {error}") };
            assert_eq!((&*mismatch.mine, &*mismatch.theirs), (shown[me.index()], shown[1 - me.index()]), "round {round}");
            world.team_of(&[me]).expect("a team of this PE alone can be created").destroy().expect("the team can be destroyed");
            world.team().barrier_blocking().expect("both PEs reach the barrier");
        }
    });
}

/// Makes a member die or leave while the other members call `team_of`. Arguments: the member that
/// dies or leaves, and `kill` or `leave`.
fn death(seat: &Seat) {
    let world = seat.join();
    let me: usize = world.my_pe().index();
    let way: String = seat.arg(1);
    world.team().barrier_blocking().unwrap();
    if me == seat.arg::<usize>(0) {
        sleep(Duration::from_millis(30));
        match &*way {
            "kill" => die(),
            _ => drop(world),
        }
        sleep(Duration::from_secs(1));
        return;
    }
    // PE 3 is no member.
    if me == 3 {
        sleep(Duration::from_millis(300));
        return say("away");
    }
    let error = world.team_of(&pes(&[2, 1, 0])).unwrap_err();
    let cause = if way == "kill" { PeerCause::Died } else { PeerCause::Left };
    let right = matches!(&error, Error::Peer { cause: found, .. } if *found == cause);
    say(format!("{right} {:?} {error}", named_by(&error)));
}

fn errors_soon_name_a_member_that_dies_or_leaves() {
    if cfg!(peerweave_portable) {
        return;
    }
    for way in ["kill", "leave"] {
        for victim in 0..3 {
            let mut running = Job::new("death", 4).args(format!("{victim} {way}")).start();
            let started = Instant::now();
            for pe in (0..3).filter(|&pe| pe != victim) {
                let said = running.line(pe);
                // The other survivor leaves after its error, but the line must name the victim.
                assert!(
                    said.starts_with(&format!("true [{:?}]", Pe::new(victim as u32))),
                    "{way}: PE {pe} printed `{said}`, expected an error that names PE {victim}"
                );
            }
            assert!(started.elapsed() < SOON, "{way}: reported after {:?}, expected less than {SOON:?}", started.elapsed());
            assert_eq!(running.line(3), "away");
        }
    }
}
