//! Checks teams: creation and destruction in any order, thousands of times; exhaustion of slots;
//! use after destruction.

use peerweave::{Error, MisuseKind, Pe, Rank, ReduceOp, Team, TeamShape, World};
use peerweave_tests::data::sample::hash;
use peerweave_tests::{Job, Seat, named};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

fn main() -> ExitCode {
    peerweave_tests::main(
        named![shapes, churn, exhaustion, exhaustion_of_one, after_destroy, nested, disjoint, reuse],
        named![
            team_members_ranks_and_translations_match_the_split,
            teams_can_be_created_and_destroyed_thousands_of_times,
            exhausted_team_slots_are_an_error_and_can_be_reused,
            split_without_a_free_slot_on_one_pe_fails_on_all_pes,
            destroyed_team_refuses_every_call,
            nested_teams_work_concurrently,
            disjoint_teams_work_independently,
            team_slot_can_be_reused_while_a_former_member_sleeps,
        ],
    )
}

/// Asserts that a team is usable and has these members.
fn works(team: &Team, members: &[u32]) {
    let found: Vec<u32> = team.members().iter().map(|pe| pe.get()).collect();
    assert_eq!(found, members);
    let mut all = vec![0u32; team.size()];
    team.all_gather_blocking(&[members[team.my_rank().index()]], &mut all).unwrap();
    assert_eq!(all, members);
}

fn shapes(seat: &Seat) {
    let world = seat.join();
    let all = world.team();
    let (n, me) = (all.size() as u32, world.my_pe().get());
    works(all, &(0..n).collect::<Vec<_>>());
    let even = all.split_strided(TeamShape { start: 0, stride: 2, size: n.div_ceil(2) }).unwrap();
    assert_eq!(even.is_some(), me % 2 == 0);
    let back = all.split_strided(TeamShape { start: n - 1, stride: -1, size: n }).unwrap().unwrap();
    works(&back, &(0..n).rev().collect::<Vec<_>>());
    assert_eq!(back.my_rank(), Rank::new(n - 1 - me));
    if let Some(even) = &even {
        works(even, &(0..n).step_by(2).collect::<Vec<_>>());
        assert_eq!(even.translate(Rank::new(0), &back), Some(Rank::new(n - 1)));
        assert_eq!(even.rank_of(Pe::new(1)), None);
        assert_eq!(back.translate(back.my_rank(), even), Some(even.my_rank()));
        assert_eq!(even.translate(Rank::new(n), &back), None);
        if n > 1 {
            assert_eq!(all.translate(Rank::new(1), even), None);
        }
        assert!(matches!(even.pe_of(Rank::new(n)).unwrap_err().misuse(), Some(MisuseKind::Rank { .. })));
    }
    // Checks keys that reverse the order, and equal keys, which keep the order.
    let color = me % 3;
    let team = all.split(Some(color.into()), -i64::from(me)).unwrap().unwrap();
    works(&team, &(0..n).rev().filter(|pe| pe % 3 == color).collect::<Vec<_>>());
    let tied = all.split(Some(u64::MAX), i64::from(me / 2)).unwrap().unwrap();
    works(&tied, &(0..n).collect::<Vec<_>>());
    let (row, column) = all.split_2d(2).unwrap();
    works(&row, &(0..n).filter(|pe| pe / 2 == me / 2).collect::<Vec<_>>());
    works(&column, &(0..n).filter(|pe| pe % 2 == me % 2).collect::<Vec<_>>());
    let local = world.local_team().unwrap();
    works(&local, &(0..n).collect::<Vec<_>>());
    assert!(matches!(world.local_team().unwrap().destroy().unwrap_err().misuse(), Some(MisuseKind::LocalTeam)));
    assert!(matches!(all.clone().destroy().unwrap_err().misuse(), Some(MisuseKind::WorldTeam)));
    for shape in [
        TeamShape { start: n, stride: 1, size: 1 },
        TeamShape { start: 0, stride: 1, size: 0 },
        TeamShape { start: 0, stride: 1, size: n + 1 },
        TeamShape { start: 0, stride: 0, size: 2 },
        TeamShape { start: 0, stride: -1, size: 2 },
        TeamShape { start: 0, stride: i32::MAX, size: u32::MAX },
    ] {
        assert!(matches!(all.split_strided(shape).unwrap_err().misuse(), Some(MisuseKind::Shape { .. })), "{shape:?}");
    }
    assert!(matches!(all.split_2d(0).unwrap_err().misuse(), Some(MisuseKind::Value { .. })));
    all.barrier_blocking().unwrap();
    let _ = world.finalize().unwrap();
}

fn team_members_ranks_and_translations_match_the_split() {
    for n_pes in [1, 2, 3, 6] {
        Job::new("shapes", n_pes).on_threads();
        Job::new("shapes", n_pes).on_processes();
    }
}

/// Creates and destroys teams at random. Argument: the number of rounds.
fn churn(seat: &Seat) {
    let world = seat.join();
    let all = world.team();
    let n = all.size() as u64;
    let me = u64::from(world.my_pe().get());
    let mut kept: Vec<Team> = Vec::new();
    for round in 0..seat.arg::<u64>(0) {
        // Each PE computes the same colors, so that all know the members of each team.
        let color = |pe: u64| match hash(&[round, pe]) % 4 {
            3 => None,
            color => Some(color),
        };
        let made = all.split(color(me), 0).unwrap();
        assert_eq!(made.is_some(), color(me).is_some());
        if let Some(team) = made {
            let members: Vec<u32> = (0..n).filter(|&pe| color(pe) == color(me)).map(|pe| pe as u32).collect();
            works(&team, &members);
            // Also uses the parts of a slot that have state: mailboxes and staging areas.
            if team.size() > 1 {
                let (size, rank) = (team.size(), team.my_rank().index());
                let (mine, mut theirs) = ([round; 3], [0; 3]);
                team.group_blocking(|group| {
                    group.recv(&mut theirs, Rank::new(((rank + size - 1) % size) as u32))?;
                    group.send(&mine, Rank::new(((rank + 1) % size) as u32))
                })
                .unwrap();
                assert_eq!(theirs, mine);
                let mut large = vec![round; 3000];
                team.all_reduce_in_place_blocking(&mut large, ReduceOp::Max).unwrap();
                assert!(large.iter().all(|&x| x == round));
            }
            if hash(&[round]).is_multiple_of(8) { kept.push(team) } else { team.destroy().unwrap() }
        }
        // Destroys all kept teams from time to time, the oldest last.
        if hash(&[round, 99]).is_multiple_of(32) {
            while let Some(team) = kept.pop() {
                team.barrier_blocking().unwrap();
                team.destroy().unwrap();
            }
        }
        assert!(kept.len() < 60, "{} teams are alive, expected fewer than 60: change the seed", kept.len());
    }
    all.barrier_blocking().unwrap();
    let _ = world.finalize().unwrap();
}

fn teams_can_be_created_and_destroyed_thousands_of_times() {
    Job::new("churn", 1).args("2000").on_threads();
    Job::new("churn", 2).args("5000").on_processes();
    Job::new("churn", 5).args("600").on_threads();
    Job::new("churn", 5).args("600").on_processes();
}

fn exhaustion(seat: &Seat) {
    fn fill(world: &World) -> Vec<Team> {
        let all = world.team();
        let mut teams = Vec::new();
        loop {
            // All PEs get the error at the same number of teams.
            match all.split(Some(0), 0) {
                Ok(team) => teams.push(team.unwrap()),
                Err(error) => {
                    assert!(matches!(&error, Error::TooManyTeams { call: "split", max_teams: 64 }), "{error}");
                    break;
                }
            }
        }
        assert_eq!(teams.len(), world.caps().max_teams - 1);
        teams
    }
    let world = seat.join();
    let all = world.team();
    for _ in 0..3 {
        let mut teams = fill(&world);
        // A PE that passes no color needs no slot.
        assert!(all.split(None, 0).unwrap().is_none());
        let freed = teams.swap_remove(20);
        freed.destroy().unwrap();
        let again = all.split(Some(3), 0).unwrap().unwrap();
        works(&again, &(0..all.size() as u32).collect::<Vec<_>>());
        assert!(all.split(Some(0), 0).is_err());
        // The world without free slots stays usable.
        all.barrier_blocking().unwrap();
        again.destroy().unwrap();
        for team in teams {
            team.barrier_blocking().unwrap();
            team.destroy().unwrap();
        }
    }
    let _ = world.finalize().unwrap();
}

fn exhausted_team_slots_are_an_error_and_can_be_reused() {
    Job::new("exhaustion", 1).on_threads();
    Job::new("exhaustion", 3).on_threads();
    Job::new("exhaustion", 3).on_processes();
}

/// Uses all slots of PE 0 for teams of one PE, while the other PEs have free slots.
fn exhaustion_of_one(seat: &Seat) {
    let world = seat.join();
    let all = world.team();
    let me = u64::from(world.my_pe().get());
    let alone = TeamShape { start: 0, stride: 1, size: 1 };
    let mut teams: Vec<Team> =
        (1..world.caps().max_teams).filter_map(|_| all.split_strided(alone).expect("PE 0 has a free slot")).collect();
    let refused = |made: peerweave::Result<Option<Team>>| {
        let error = made.expect_err("a split fails if PE 0 has no free slot");
        assert!(matches!(&error, Error::TooManyTeams { call: "split", .. }), "{error}");
    };
    // Each PE has its own color. The team of PE 0 cannot be created, so no PE gets a team.
    refused(all.split(Some(me), 0));
    // PE 2 requests no team and gets the error too.
    refused(all.split((me != 2).then_some(me), 0));
    // Without PE 0 there is room.
    let others = all.split((me != 0).then_some(7), 0).expect("a split without PE 0 succeeds");
    assert_eq!(others.is_some(), me != 0);
    others.map_or(Ok(()), Team::destroy).unwrap();
    teams.pop().map_or(Ok(()), Team::destroy).unwrap();
    let again = all.split(Some(0), 0).expect("a split succeeds after a slot of PE 0 was freed").unwrap();
    works(&again, &(0..all.size() as u32).collect::<Vec<_>>());
    again.destroy().unwrap();
    teams.into_iter().for_each(|team| team.destroy().unwrap());
    let _ = world.finalize().unwrap();
}

fn split_without_a_free_slot_on_one_pe_fails_on_all_pes() {
    Job::new("exhaustion_of_one", 3).on_threads();
    Job::new("exhaustion_of_one", 3).on_processes();
}

fn after_destroy(seat: &Seat) {
    let world = seat.join();
    let all = world.team();
    let team = all.split(Some(0), 0).unwrap().unwrap();
    let (clone, stream) = (team.clone(), world.stream().unwrap());
    let words = world.alloc_zeroed::<u64>(2).unwrap();
    team.destroy().unwrap();
    let gone = |result: peerweave::Result<()>| {
        let error = result.expect_err("a call on a destroyed team fails");
        assert!(matches!(error.misuse(), Some(MisuseKind::TeamDestroyed)), "{error}");
    };
    gone(clone.barrier_blocking());
    gone(clone.sync(&stream).map(drop));
    gone(clone.all_reduce_in_place_blocking(&mut [1u32], ReduceOp::Sum));
    gone(clone.put_blocking(&[1u64], &words.slice(0..1).unwrap(), Rank::new(0)));
    gone(clone.signal_blocking(words.signal(0).unwrap().set(1), Rank::new(0)));
    gone(clone.send_blocking(&[1u32], Rank::new(0)));
    gone(clone.group_blocking(|_| Ok(())));
    gone(clone.split(Some(0), 0).map(drop));
    gone(clone.atomic_inc_blocking(&words, 0, Rank::new(0)));
    gone(clone.clone().destroy());
    assert_eq!(words.to_vec().unwrap(), [0, 0]);
    words.release().unwrap();
    all.barrier_blocking().unwrap();
    let _ = world.finalize().unwrap();
}

fn destroyed_team_refuses_every_call() {
    Job::new("after_destroy", 1).everywhere();
    Job::new("after_destroy", 2).everywhere();
}

fn nested(seat: &Seat) {
    let world = seat.join();
    let mut chain = vec![world.team().clone()];
    // Splits into halves until this PE is alone in its team.
    while chain.last().unwrap().size() > 1 {
        let last = chain.last().unwrap();
        let half = u64::from(last.my_rank().index() >= last.size() / 2);
        chain.push(last.split(Some(half), 0).unwrap().unwrap());
    }
    for round in 0..200u64 {
        let team = &chain[(hash(&[round]) % chain.len() as u64) as usize % chain.len()];
        // Uneven halves would give chains of different depths, whose PEs could choose different
        // teams for the same call.
        let mut sum = [0u64];
        team.all_reduce_blocking(&[1], &mut sum, ReduceOp::Sum).unwrap();
        assert_eq!(sum[0], team.size() as u64);
    }
    while chain.len() > 1 {
        chain.pop().unwrap().destroy().unwrap();
    }
    let _ = world.finalize().unwrap();
}

fn nested_teams_work_concurrently() {
    // Powers of two, so that the chains of all PEs have the same length.
    for n_pes in [2, 4, 8] {
        Job::new("nested", n_pes).on_threads();
        Job::new("nested", n_pes).on_processes();
    }
}

fn disjoint(seat: &Seat) {
    let world = seat.join();
    let me = u64::from(world.my_pe().get());
    let team = world.team().split(Some(me % 2), 0).unwrap().unwrap();
    // Each team makes its own number of calls and splits further, while the other team makes
    // different calls.
    for round in 0..(50 + 100 * (me % 2)) {
        let mut sum = [0u64];
        team.all_reduce_blocking(&[round], &mut sum, ReduceOp::Sum).unwrap();
        assert_eq!(sum[0], round * team.size() as u64);
        if round % 10 == me % 2 {
            let inner = team.split(Some(0), -(me as i64)).unwrap().unwrap();
            inner.barrier_blocking().unwrap();
            inner.destroy().unwrap();
        }
    }
    world.team().barrier_blocking().unwrap();
    team.destroy().unwrap();
    let _ = world.finalize().unwrap();
}

fn disjoint_teams_work_independently() {
    Job::new("disjoint", 5).on_threads();
    Job::new("disjoint", 4).on_processes();
}

/// Destroys a team of PE 0 and PE 1, while PE 1 sleeps in a wait, and immediately creates a team of
/// PE 0 and PE 2 in the same slot.
fn reuse(seat: &Seat) {
    let world = seat.join();
    let me = world.my_pe().get();
    let with = |other: u32| world.team().split((me == 0 || me == other).then_some(0), 0).unwrap();
    let lasting = with(2);
    for _ in 0..25 {
        let Some(first) = with(1) else {
            // PE 2.
            let second = lasting.as_ref().unwrap().split(Some(0), 0).unwrap().unwrap();
            (0..4).for_each(|_| second.barrier_blocking().unwrap());
            second.destroy().unwrap();
            continue;
        };
        if me == 1 {
            first.destroy().unwrap();
            continue;
        }
        // The low byte of the ID is the slot. The other bytes distinguish the teams that use the
        // slot one after the other.
        let slot = first.name().id.0 & 0xff;
        // A PE that has waited for a while polls less often.
        sleep(Duration::from_millis(6));
        first.destroy().unwrap();
        let second = lasting.as_ref().unwrap().split(Some(0), 0).unwrap().unwrap();
        assert_eq!(second.name().id.0 & 0xff, slot, "the slot is reused");
        (0..4).for_each(|_| second.barrier_blocking().unwrap());
        second.destroy().unwrap();
    }
    world.team().barrier_blocking().unwrap();
    let _ = world.finalize().unwrap();
}

fn team_slot_can_be_reused_while_a_former_member_sleeps() {
    Job::new("reuse", 3).on_threads();
    Job::new("reuse", 3).on_processes();
}
