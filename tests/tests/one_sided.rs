//! Checks puts, gets, signals and atomics among threads and processes: values, positions, and the
//! order of visibility.

use peerweave::{AtomicInteger, Buffer, Compare, DType, F8E4M3, F8E5M2, Rank, Strides, Symmetric, Team, World, bf16, f16};
use peerweave_tests::conformance::team_of;
use peerweave_tests::memory::{Kind, Mem, arena_len};
use peerweave_tests::sample::{Exact, Sample, hash, movable};
use peerweave_tests::{Job, Seat, named};
use std::process::ExitCode;

fn main() -> ExitCode {
    peerweave_tests::main(
        named![movement, ring, signals, message_passing, atomics, nbi, views],
        named![
            puts_and_gets_are_right_for_all_types_and_sizes,
            token_passes_a_ring_thousands_of_times,
            waits_and_tests_of_every_kind_see_the_signals,
            data_is_visible_after_its_signal,
            concurrent_atomics_lose_no_count,
            nbi_puts_are_complete_after_quiet,
            views_name_the_same_bytes_on_every_rank,
        ],
    )
}

fn neighbour(team: &Team, distance: usize) -> Rank {
    Rank::new(((team.my_rank().index() + distance) % team.size()) as u32)
}

/// Argument: the shape of the team.
fn movement(seat: &Seat) {
    let world = seat.join();
    let shape: String = seat.arg(0);
    let team = team_of(&world, &shape);
    for dtype in DType::ALL {
        let run = match dtype {
            DType::I8 => moves::<i8>,
            DType::U8 => moves::<u8>,
            DType::I16 => moves::<i16>,
            DType::U16 => moves::<u16>,
            DType::I32 => moves::<i32>,
            DType::U32 => moves::<u32>,
            DType::I64 => moves::<i64>,
            DType::U64 => moves::<u64>,
            DType::F16 => moves::<f16>,
            DType::BF16 => moves::<bf16>,
            DType::F32 => moves::<f32>,
            DType::F64 => moves::<f64>,
            DType::F8E4M3 => moves::<F8E4M3>,
            DType::F8E5M2 => moves::<F8E5M2>,
            other => panic!("{other} is new"),
        };
        run(&world, team.as_ref());
    }
    let _ = world.finalize().expect("all finalize");
}

const LONGEST: usize = 300_001;

fn moves<T: Sample>(world: &World, team: Option<&Team>) {
    let arenas = [0; 3].map(|_| world.alloc::<T>(arena_len(LONGEST)).expect("a heap"));
    let stream = world.stream().expect("a stream");
    if let Some(team) = team {
        let me = team.my_rank().index();
        for (i, len) in [0, 1, 2, 3, 7, 8, 31, 64, 65, 1000, 4097, LONGEST / size_of::<T>()].into_iter().enumerate() {
            for (j, kind) in Kind::ALL.into_iter().enumerate() {
                let seed = hash(&[i as u64, j as u64, T::DTYPE as u64]);
                let distance = seed as usize % team.size();
                let (to, from) = (neighbour(team, distance), neighbour(team, team.size() - distance));
                let mine: Vec<T> = (0..len).map(|i| movable(seed, me, i)).collect();
                let source = Mem::new(kind, &arenas[0], seed as usize % 13, &mine);
                let target = Mem::new(Kind::Symmetric, &arenas[1], seed as usize % 29, &vec![T::default(); len]);
                let dest = target.symmetric();
                team.barrier_blocking().unwrap();
                let on_stream = seed & 1 == 0 && kind != Kind::Slice;
                match (kind, on_stream) {
                    (Kind::Slice, _) => team.put_blocking(source.slice(), dest, to).unwrap(),
                    (Kind::Symmetric, false) => team.put_blocking(source.symmetric(), dest, to).unwrap(),
                    (Kind::Symmetric, true) => team.put(&stream, source.symmetric(), dest, to).unwrap().wait().unwrap(),
                    (Kind::Buffer, false) => team.put_blocking(source.buffer(), dest, to).unwrap(),
                    (Kind::Buffer, true) => team.put(&stream, source.buffer(), dest, to).unwrap().wait().unwrap(),
                }
                team.barrier_blocking().unwrap();
                let theirs: Vec<T> = (0..len).map(|i| movable(seed, from.index(), i)).collect();
                same(&target.contents().unwrap(), &theirs, "put");

                // `to` now has this PE's data; a get reads it back.
                let mut back = Mem::new(kind, &arenas[2], seed as usize % 17, &vec![T::default(); len]);
                match (kind, on_stream) {
                    (Kind::Slice, _) => team.get_blocking(dest, back.slice_mut(), to).unwrap(),
                    (Kind::Symmetric, false) => team.get_blocking(dest, back.symmetric(), to).unwrap(),
                    (Kind::Symmetric, true) => team.get(&stream, dest, back.symmetric(), to).unwrap().wait().unwrap(),
                    (Kind::Buffer, false) => team.get_blocking(dest, back.buffer(), to).unwrap(),
                    (Kind::Buffer, true) => team.get(&stream, dest, back.buffer(), to).unwrap().wait().unwrap(),
                }
                same(&back.contents().unwrap(), &mine, "get");

                if len > 0 {
                    let at = seed as usize % len;
                    let value = movable::<T>(seed, 1000 + me, 0);
                    team.barrier_blocking().unwrap();
                    if on_stream {
                        team.p(&stream, dest, at, value, to).unwrap().wait().unwrap();
                        assert_eq!(team.g(&stream, dest, at, to).unwrap().wait().unwrap().bits(), value.bits());
                    } else {
                        team.p_blocking(dest, at, value, to).unwrap();
                        assert_eq!(team.g_blocking(dest, at, to).unwrap().bits(), value.bits());
                    }
                    team.barrier_blocking().unwrap();
                }
                strided(team, &stream, &arenas, seed, len);
            }
        }
    }
    for arena in arenas {
        arena.release().expect("all release");
    }
}

/// Makes a strided put, followed by a strided get of the same data.
fn strided<T: Sample>(team: &Team, stream: &peerweave::Stream, arenas: &[peerweave::Symmetric<T>; 3], seed: u64, len: usize) {
    let me = team.my_rank().index();
    let (to, from) = (neighbour(team, 1), neighbour(team, team.size() - 1));
    let [source_stride, dest_stride] = [1 + (seed >> 8) as usize % 4, 1 + (seed >> 16) as usize % 5];
    let count = len.min(5000) / 5;
    let span = |stride: usize| count.saturating_sub(1) * stride + usize::from(count > 0);
    let mine: Vec<T> = (0..span(source_stride)).map(|i| movable(seed, 50 + me, i)).collect();
    let before: Vec<T> = (0..span(dest_stride)).map(|i| movable(seed, 99, i)).collect();
    let target = Mem::new(Kind::Symmetric, &arenas[1], 3, &before);
    let source = Mem::new(Kind::Buffer, &arenas[0], 1, &mine);
    team.barrier_blocking().unwrap();
    let strides = Strides { count, source: source_stride, dest: dest_stride };
    if seed & 2 == 0 {
        team.put_strided_blocking(source.buffer(), target.symmetric(), strides, to).unwrap();
    } else {
        team.put_strided(stream, source.buffer(), target.symmetric(), strides, to).unwrap().wait().unwrap();
    }
    team.barrier_blocking().unwrap();
    let mut expected = before;
    (0..count).for_each(|i| expected[i * dest_stride] = movable(seed, 50 + from.index(), i * source_stride));
    same(&target.contents().unwrap(), &expected, "put_strided");

    let mut back: Vec<T> = mine.iter().map(|_| T::default()).collect();
    let strides = Strides { count, source: dest_stride, dest: source_stride };
    team.get_strided_blocking(target.symmetric(), &mut back, strides, to).unwrap();
    for (i, element) in back.iter().enumerate() {
        let expected = if i % source_stride == 0 { mine[i] } else { T::default() };
        assert_eq!(element.bits(), expected.bits(), "get_strided, element {i}");
    }
    let again = Buffer::<T>::zeroed(mine.len());
    team.get_strided(stream, target.symmetric(), &again, strides, to).unwrap().wait().unwrap();
    same(&again.to_vec(), &back, "get_strided on a stream");
    team.barrier_blocking().unwrap();
}

fn same<T: Sample>(found: &[T], expected: &[T], what: &str) {
    assert_eq!(found.len(), expected.len());
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!(found.bits() == expected.bits(), "{what}: element {i} of {} is {found:?}, not {expected:?}", T::DTYPE);
    }
}

fn puts_and_gets_are_right_for_all_types_and_sizes() {
    Job::new("movement", 1).args("world").everywhere();
    Job::new("movement", 3).args("world").everywhere();
    for shape in ["every_second", "reversed", "colors"] {
        Job::new("movement", 4).args(shape).on_threads();
        Job::new("movement", 4).args(shape).on_processes();
    }
}

/// Argument: the number of rounds.
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
            assert!(back.iter().enumerate().all(|(i, &x)| x == round * 100 + i as u64 + hops), "round {round}: {back:?}");
        }
    }
    team.barrier_blocking().unwrap();
    data.release().unwrap();
    words.release().unwrap();
    assert!(world.finalize().unwrap().is_clean());
}

fn token_passes_a_ring_thousands_of_times() {
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

    // Enqueued before any PE signals.
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
            assert!(found.iter().all(|&x| x == round as u32), "round {round}: {:?}", found.iter().find(|&&x| x != round as u32));
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
            // A lock by compare-swap around a count that is not atomic.
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

fn concurrent_atomics_lose_no_count() {
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
            // The source is dropped or changed when this returns.
            let mine = vec![round * 1000 + me as u32; 1000];
            team.put_nbi_blocking(&mine, &part, Rank::new(rank as u32)).unwrap();
        }
        world.quiet_blocking().unwrap();
        team.sync_blocking().unwrap();
        let found = data.to_vec().unwrap();
        assert!(found.iter().enumerate().all(|(i, &x)| x == round * 1000 + (i / 1000) as u32), "round {round}");
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

/// Each rank writes to its part of every rank's buffer, through ranges and casts, and reads the
/// buffers of all ranks by their addresses.
fn views(seat: &Seat) {
    const WORDS: usize = 24;
    fn put_and_read<T: Sample>(world: &World, bytes: &Symmetric<u8>) {
        let (team, stream) = (world.team(), world.stream().unwrap());
        let (me, n) = (team.my_rank().index(), team.size());
        let all = bytes.cast::<T>().unwrap();
        let len = all.len() / n;
        let value = |rank: usize, i: usize| movable::<T>(7, rank, i);
        let mine: Vec<T> = (0..len).map(|i| value(me, i)).collect();
        let part = all.range(me * len..(me + 1) * len).unwrap();
        for to in 0..n {
            let to = Rank::new(to as u32);
            team.put_blocking(&mine[..1], &all.range(me * len..=me * len).unwrap(), to).unwrap();
            team.put_blocking(&mine[1..], &part.range(1..).unwrap(), to).unwrap();
        }
        team.barrier_blocking().unwrap();
        let expected: Vec<u64> = (0..n * len).map(|i| value(i / len, i % len).bits()).collect();
        for rank in 0..n {
            let first = team.peer_ptr(&all, Rank::new(rank as u32)).unwrap().expect("the host backend maps all memory");
            // SAFETY: the elements are live, and no PE writes them until the barrier below.
            let theirs = unsafe { std::slice::from_raw_parts(first, n * len) };
            assert!(theirs.iter().map(|x| x.bits()).eq(expected.iter().copied()), "rank {rank}");
            assert_eq!(team.peer_device_address(&all, Rank::new(rank as u32)).unwrap(), None);
        }
        team.barrier_blocking().unwrap();
        // A range is an operand like its handle: read and written in a stream, after a clone of it.
        let kept = (*part).clone();
        team.all_gather(&stream, &part, &all).unwrap_err();
        team.broadcast_in_place(&stream, &kept.range(..1).unwrap(), Rank::new(0)).unwrap();
        stream.synchronize().unwrap();
        team.barrier_blocking().unwrap();
    }
    let world = seat.join();
    let words = world.alloc_zeroed::<u64>(WORDS * world.n_pes()).unwrap();
    let bytes = words.cast::<u8>().unwrap();
    put_and_read::<u8>(&world, &bytes);
    put_and_read::<bf16>(&world, &bytes);
    put_and_read::<i32>(&world, &bytes);
    put_and_read::<f64>(&world, &bytes);
    let half = words.range(..WORDS / 2).unwrap();
    (*half).clone().release().unwrap_err();
    bytes.release().unwrap();
    assert!(half.is_released() && half.load(0).is_err());
    assert!(world.finalize().unwrap().is_clean());
}

fn views_name_the_same_bytes_on_every_rank() {
    for n in [1, 2, 3, 8] {
        Job::new("views", n).on_threads();
    }
    Job::new("views", 3).on_processes();
}
