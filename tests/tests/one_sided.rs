//! Checks puts, gets, signals and atomics among threads and processes: values, positions, and the
//! order of visibility.

use peerweave::{AtomicInteger, Buffer, Compare, Rank, World};
use peerweave_tests::check::conformance::team_of;
use peerweave_tests::check::one_sided::{self, neighbour};
use peerweave_tests::check::views;
use peerweave_tests::data::sample::{Exact, hash};
use peerweave_tests::{Job, Seat, named};
use std::process::ExitCode;

fn main() -> ExitCode {
    peerweave_tests::main(
        named![movement, ring, signals, message_passing, atomics, nbi, views],
        named![
            puts_and_gets_are_correct_for_all_types_and_sizes,
            token_circulates_in_a_ring_thousands_of_times,
            waits_and_tests_of_every_kind_see_the_signals,
            data_is_visible_after_its_signal,
            concurrent_atomics_lose_no_increment,
            nbi_puts_are_complete_after_quiet,
            views_of_symmetric_memory_cover_the_same_bytes_on_all_ranks,
        ],
    )
}

/// Checks puts and gets of every type in a team. Argument: the shape of the team.
fn movement(seat: &Seat) {
    let world = seat.join();
    let shape: String = seat.arg(0);
    let lens = [0, 1, 2, 3, 7, 8, 31, 64, 65, 1000, 4097, usize::MAX];
    one_sided::every_type(&world, team_of(&world, &shape).as_ref(), &lens, 300_001);
    let _ = world.finalize().expect("all PEs finalize");
}

fn puts_and_gets_are_correct_for_all_types_and_sizes() {
    Job::new("movement", 1).args("world").everywhere();
    Job::new("movement", 3).args("world").everywhere();
    for shape in ["every_second", "reversed", "colors"] {
        Job::new("movement", 4).args(shape).on_threads();
        Job::new("movement", 4).args(shape).on_processes();
    }
}

/// Passes data around the ring of all PEs. Argument: the number of rounds.
fn ring(seat: &Seat) {
    let world = seat.join();
    let team = world.team();
    let rounds: u64 = seat.arg(0);
    let data = world.alloc_zeroed::<u64>(64).unwrap();
    let words = world.alloc_zeroed::<u64>(2).unwrap();
    let (arrived, freed) = (words.signal(0).unwrap(), words.signal(1).unwrap());
    let (right, left) = (neighbour(team, 1), neighbour(team, team.size() - 1));
    let first = team.my_rank().index() == 0;
    let mut token = vec![0u64; 64];
    for round in 1..=rounds {
        if first {
            token.iter_mut().enumerate().for_each(|(i, x)| *x = round * 100 + i as u64);
        } else {
            team.wait_until_blocking(&arrived, Compare::Ge, round).unwrap();
            token = data.to_vec().unwrap();
            team.signal_blocking(freed.set(round), left).unwrap();
        }
        // The right neighbour has read the data of the previous round.
        if round > 1 {
            team.wait_until_blocking(&freed, Compare::Ge, round - 1).unwrap();
        }
        token.iter_mut().for_each(|x| *x += 1);
        team.put_signal_blocking(&token, &data, arrived.set(round), right).unwrap();
        if first {
            team.wait_until_blocking(&arrived, Compare::Ge, round).unwrap();
            let back = data.to_vec().unwrap();
            team.signal_blocking(freed.set(round), left).unwrap();
            let hops = team.size() as u64;
            assert!(
                back.iter().enumerate().all(|(i, &x)| x == round * 100 + i as u64 + hops),
                "round {round}: the data after the ring is wrong: {back:?}"
            );
        }
    }
    team.barrier_blocking().unwrap();
    data.release().unwrap();
    words.release().unwrap();
    assert!(world.finalize().unwrap().is_clean());
}

fn token_circulates_in_a_ring_thousands_of_times() {
    Job::new("ring", 1).args("1000").everywhere();
    Job::new("ring", 2).args("10000").everywhere();
    Job::new("ring", 4).args("1000").everywhere();
}

fn signals(seat: &Seat) {
    let world = seat.join();
    let (team, stream) = (world.team(), world.stream().unwrap());
    let n = team.size();
    let words = world.alloc_zeroed::<u64>(n).unwrap();
    let go = world.alloc_zeroed::<u64>(1).unwrap();
    let (my_word, go_word) = (words.signal(team.my_rank().index()).unwrap(), go.signal(0).unwrap());
    let not = |compare: Compare, value: u64| !team.test(&words.signal(0).unwrap(), compare, value).unwrap();
    assert!(not(Compare::Ne, 0) && not(Compare::Gt, 0) && not(Compare::Lt, 0));
    assert_eq!(team.test_any(&words, None, Compare::Ne, 0).unwrap(), None);
    assert_eq!(team.test_some(&words, None, Compare::Ne, 0).unwrap(), [0usize; 0]);
    assert!(!team.test_all(&words, None, Compare::Eq, 1).unwrap());
    let everything_excluded = vec![true; n];
    assert!(team.test_all(&words, Some(&everything_excluded), Compare::Eq, 9).unwrap());
    assert_eq!(team.wait_until_any_blocking(&words, Some(&everything_excluded), Compare::Eq, 9).unwrap(), None);
    assert!(team.wait_until_some_blocking(&words, Some(&everything_excluded), Compare::Eq, 9).unwrap().is_empty());
    team.wait_until_all_blocking(&words, Some(&everything_excluded), Compare::Eq, 9).unwrap();
    team.barrier_blocking().unwrap();

    // These waits are enqueued before any PE signals.
    let all = team.wait_until_all(&stream, &words, None, Compare::Ge, 5).unwrap();
    let mut exclude = vec![false; n];
    exclude[0] = n > 1;
    let any = team.wait_until_any(&stream, &words, Some(&exclude), Compare::Ge, 5).unwrap();
    let some = team.wait_until_some(&stream, &words, None, Compare::Ge, 5).unwrap();
    let one = team.wait_until(&stream, &words.signal(n - 1).unwrap(), Compare::Ge, 5).unwrap();
    assert!(!all.is_complete() && !any.is_complete());
    team.barrier_blocking().unwrap();
    for rank in 0..n as u32 {
        for _ in 0..5 {
            team.signal_blocking(my_word.add(1), Rank::new(rank)).unwrap();
        }
    }
    all.wait().unwrap();
    assert_eq!(any.wait().unwrap(), Some(usize::from(n > 1)));
    assert_eq!(some.wait().unwrap(), (0..n).collect::<Vec<_>>());
    assert_eq!(one.wait().unwrap(), 5);
    assert_eq!(words.to_vec().unwrap(), vec![5; n]);
    assert_eq!(team.signal_fetch(&words.signal(0).unwrap()).unwrap(), 5);
    team.barrier_blocking().unwrap();

    // The last PE releases all waiters, with every comparison.
    for (round, compare) in (1..).zip(Compare::ALL) {
        let awaited = match compare {
            Compare::Eq | Compare::Ge => round,
            Compare::Gt | Compare::Ne => round - 1,
            // The word starts at u64::MAX for these.
            Compare::Lt => round + 1,
            Compare::Le => round,
        };
        let start = if matches!(compare, Compare::Lt | Compare::Le) { u64::MAX } else { round - 1 };
        go.store(0, start).unwrap();
        team.barrier_blocking().unwrap();
        if team.my_rank().index() == n - 1 {
            (0..n as u32).for_each(|rank| team.signal(&stream, go_word.set(round), Rank::new(rank)).unwrap().wait().unwrap());
        }
        assert_eq!(team.wait_until_blocking(&go_word, compare, awaited).unwrap(), round);
        assert!(team.test(&go_word, compare, awaited).unwrap());
        team.barrier_blocking().unwrap();
    }
    let _ = world.finalize().unwrap();
}

fn waits_and_tests_of_every_kind_see_the_signals() {
    for n_pes in [1, 2, 5] {
        Job::new("signals", n_pes).on_threads();
        Job::new("signals", n_pes).on_processes();
    }
}

/// Checks message passing: a PE that sees the signal sees the data, for every size and form of put.
fn message_passing(seat: &Seat) {
    let world = seat.join();
    let team = world.team();
    let me = team.my_rank().index();
    let rounds: u64 = seat.arg(0);
    let data = world.alloc_zeroed::<u32>(20_000).unwrap();
    let words = world.alloc_zeroed::<u64>(2).unwrap();
    let (full, empty) = (words.signal(0).unwrap(), words.signal(1).unwrap());
    let stream = world.stream().unwrap();
    // Pairs: an even PE sends to the next.
    let peer = Rank::new((me ^ 1) as u32);
    for round in 1..=rounds {
        let len = [1, 2, 16, 17, 100, 1024, 20_000][hash(&[round]) as usize % 7];
        let part = data.slice(0..len).unwrap();
        if me.is_multiple_of(2) {
            team.wait_until_blocking(&empty, Compare::Ge, round - 1).unwrap();
            let message = vec![round as u32; len];
            match round % 4 {
                0 => team.put_signal_blocking(&message, &part, full.set(round), peer).unwrap(),
                1 => {
                    team.put_blocking(&message, &part, peer).unwrap();
                    world.fence_blocking().unwrap();
                    team.signal_blocking(full.add(1), peer).unwrap();
                }
                2 => {
                    let message = Buffer::from(message);
                    drop(team.put_signal_nbi(&stream, &message, &part, full.set(round), peer).unwrap());
                }
                _ => {
                    let message = Buffer::from(message);
                    team.put_nbi(&stream, &message, &part, peer).unwrap();
                    world.quiet(&stream).unwrap();
                    team.signal(&stream, full.set(round), peer).unwrap();
                }
            }
        } else {
            if round % 3 == 0 {
                while !team.test(&full, Compare::Ge, round).unwrap() {
                    std::thread::yield_now();
                }
            } else {
                assert_eq!(team.wait_until_blocking(&full, Compare::Ge, round).unwrap(), round);
            }
            let found = part.to_vec().unwrap();
            assert!(
                found.iter().all(|&x| x == round as u32),
                "round {round}: found {:?} after the signal",
                found.iter().find(|&&x| x != round as u32)
            );
            team.signal_blocking(empty.set(round), peer).unwrap();
        }
    }
    stream.synchronize().unwrap();
    team.barrier_blocking().unwrap();
    let _ = world.finalize().unwrap();
}

fn data_is_visible_after_its_signal() {
    Job::new("message_passing", 2).args("6000").on_threads();
    Job::new("message_passing", 2).args("6000").on_processes();
    Job::new("message_passing", 4).args("500").on_processes();
}

fn atomics(seat: &Seat) {
    fn counts<T: AtomicInteger + Exact + PartialEq>(world: &World, rounds: usize) {
        let (team, stream) = (world.team(), world.stream().unwrap());
        let n = team.size();
        let me = team.my_rank().index();
        let cells = world.alloc_zeroed::<T>(6).unwrap();
        cells.store(3, T::from_word(u64::MAX)).unwrap();
        team.barrier_blocking().unwrap();
        let mut taken = Vec::new();
        for round in 0..rounds {
            let target = Rank::new((round % n) as u32);
            team.atomic_add_blocking(&cells, 0, T::small(3), target).unwrap();
            team.atomic_inc_blocking(&cells, 0, target).unwrap();
            taken.push(team.atomic_fetch_inc_blocking(&cells, 1, Rank::new(0)).unwrap().bits());
            // A lock made of compare-swaps protects a count that is not atomic.
            if round % 8 == 0 {
                while team.atomic_compare_swap_blocking(&cells, 4, T::small(0), T::small(1), Rank::new(0)).unwrap() != T::small(0)
                {
                    std::thread::yield_now();
                }
                let old = team.g_blocking(&cells, 5, Rank::new(0)).unwrap();
                team.p_blocking(&cells, 5, T::from_word(old.to_word() + 1), Rank::new(0)).unwrap();
                world.quiet_blocking().unwrap();
                team.atomic_set_blocking(&cells, 4, T::small(0), Rank::new(0)).unwrap();
            }
        }
        team.atomic_or_blocking(&cells, 2, T::from_word(1 << me), Rank::new(0)).unwrap();
        team.atomic_and_blocking(&cells, 3, T::from_word(!(1 << me)), Rank::new(0)).unwrap();
        team.atomic_fetch_xor(&stream, &cells, 2, T::from_word(1 << (me + 8)), Rank::new(0)).unwrap().wait().unwrap();
        team.barrier_blocking().unwrap();
        let sum = team.atomic_fetch(&stream, &cells, 0, team.my_rank()).unwrap().wait().unwrap().to_word();
        let turns = (0..rounds).filter(|round| round % n == me).count() * n;
        assert_eq!(sum, 4 * turns as u64);
        // Every number was returned to exactly one PE.
        let mut all = vec![0u64; rounds * n];
        team.all_gather_blocking(&taken, &mut all).unwrap();
        all.sort_unstable();
        assert!(all.iter().zip(0..).all(|(&x, i)| x == i));
        let bits = (1u64 << n) - 1;
        assert_eq!(team.g_blocking(&cells, 2, Rank::new(0)).unwrap().to_word(), bits | bits << 8);
        assert_eq!(team.g_blocking(&cells, 3, Rank::new(0)).unwrap(), T::from_word(!bits));
        assert_eq!(team.g_blocking(&cells, 5, Rank::new(0)).unwrap().to_word(), (rounds.div_ceil(8) * n) as u64);
        let alone = Rank::new(me as u32);
        team.barrier_blocking().unwrap();
        let old = team.g_blocking(&cells, 5, alone).unwrap();
        assert_eq!(team.atomic_swap_blocking(&cells, 5, T::small(7), alone).unwrap(), old);
        assert_eq!(team.atomic_fetch_add_blocking(&cells, 5, T::small(2), alone).unwrap(), T::small(7));
        assert_eq!(team.atomic_fetch_or_blocking(&cells, 5, T::small(64), alone).unwrap(), T::small(9));
        assert_eq!(team.atomic_fetch_and_blocking(&cells, 5, T::small(65), alone).unwrap(), T::small(73));
        assert_eq!(team.atomic_compare_swap_blocking(&cells, 5, T::small(1), T::small(2), alone).unwrap(), T::small(65));
        assert_eq!(team.atomic_fetch_blocking(&cells, 5, alone).unwrap(), T::small(65));
        cells.release().unwrap();
    }
    let world = seat.join();
    let rounds = seat.arg(0);
    counts::<i32>(&world, rounds);
    counts::<u32>(&world, rounds);
    counts::<i64>(&world, rounds);
    counts::<u64>(&world, rounds);
    let team = world.team();
    let floats = world.alloc_zeroed::<f64>(1).unwrap();
    let right = neighbour(team, 1);
    team.barrier_blocking().unwrap();
    team.atomic_set_blocking(&floats, 0, 1.5 + f64::from(world.my_pe().get()), right).unwrap();
    team.barrier_blocking().unwrap();
    let left = neighbour(team, team.size() - 1);
    assert_eq!(team.atomic_swap_blocking(&floats, 0, -0.0, team.my_rank()).unwrap(), 1.5 + f64::from(left.get()));
    assert_eq!(team.atomic_fetch_blocking(&floats, 0, team.my_rank()).unwrap().to_bits(), (-0.0f64).to_bits());
    floats.release().unwrap();
    assert!(world.finalize().unwrap().is_clean());
}

fn concurrent_atomics_lose_no_increment() {
    Job::new("atomics", 1).args("500").everywhere();
    Job::new("atomics", 4).args("2000").on_threads();
    Job::new("atomics", 4).args("2000").on_processes();
}

fn nbi(seat: &Seat) {
    let world = seat.join();
    let (team, stream) = (world.team(), world.stream().unwrap());
    let me = team.my_rank().index();
    let n = team.size();
    let data = world.alloc_zeroed::<u32>(n * 1000).unwrap();
    for round in 0..50u32 {
        for rank in 0..n {
            let part = data.slice(me * 1000..(me + 1) * 1000).unwrap();
            // The source may be changed or dropped as soon as the call returns.
            let mine = vec![round * 1000 + me as u32; 1000];
            team.put_nbi_blocking(&mine, &part, Rank::new(rank as u32)).unwrap();
        }
        world.quiet_blocking().unwrap();
        team.sync_blocking().unwrap();
        let found = data.to_vec().unwrap();
        assert!(
            found.iter().enumerate().all(|(i, &x)| x == round * 1000 + (i / 1000) as u32),
            "round {round}: a put is not complete after the quiet"
        );
        let back = Buffer::<u32>::zeroed(1000);
        let from = neighbour(team, 1);
        let theirs = data.slice(0..1000).unwrap();
        if from != team.my_rank() {
            team.get_nbi(&stream, &theirs, &back, from).unwrap();
            world.quiet(&stream).unwrap().wait().unwrap();
            assert!(back.to_vec().iter().all(|&x| x == round * 1000));
        }
        team.barrier_blocking().unwrap();
    }
    data.release().unwrap();
    let _ = world.finalize().unwrap();
}

fn nbi_puts_are_complete_after_quiet() {
    Job::new("nbi", 3).on_threads();
    Job::new("nbi", 3).on_processes();
}

fn views(seat: &Seat) {
    let world = seat.join();
    views::name_the_same_bytes(&world, world.team());
    views::are_found_by_offset_and_address(&world);
    assert!(world.finalize().unwrap().is_clean());
}

fn views_of_symmetric_memory_cover_the_same_bytes_on_all_ranks() {
    for n in [1, 2, 3, 8] {
        Job::new("views", n).on_threads();
    }
    Job::new("views", 3).on_processes();
}
