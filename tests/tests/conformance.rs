//! Compares every collective, element type and reduction with a naive oracle: in teams of every
//! shape, on all kinds of buffers, around every threshold of an algorithm, among threads and
//! processes.

use peerweave::{DType, Error, Rank, ReduceFn, ReduceOp, VectorCounts, bf16, f16};
use peerweave_tests::check::conformance::{self, Arenas, Bench, Case, all_of_a_type, in_teams, shapes_for, team_of};
use peerweave_tests::check::functions;
use peerweave_tests::data::calls::Form;
use peerweave_tests::data::memory::Kind;
use peerweave_tests::data::sample::{Exact, hash};
use peerweave_tests::{Job, Seat, named};
use std::process::ExitCode;

fn main() -> ExitCode {
    peerweave_tests::main(
        named![every_collective, borders, streaming, same_bits, reduce_nans, long_run, mixed_places, functions, panics, strided],
        named![
            collectives_are_right_around_size_thresholds,
            collectives_are_right_among_1_2_3_5_and_8_pes,
            collectives_are_right_in_teams_of_every_shape,
            collectives_larger_than_the_caches_are_right,
            inexact_sums_have_the_same_bits_on_every_pe,
            min_and_max_ignore_nans_unless_all_inputs_are_nan,
            many_collectives_in_a_row_are_right,
            ranks_can_mix_in_place_and_out_of_place_calls,
            reduction_functions_combine_elements_in_rank_order,
            panic_in_a_reduction_function_fails_the_call_on_all_pes,
            strided_all_to_all_moves_elements_to_correct_indices,
        ],
    )
}

/// Compares every collective in one team with the oracle. Arguments: shape of the team, passes,
/// seed.
fn every_collective(seat: &Seat) {
    let world = seat.join();
    let shape: String = seat.arg(0);
    let team = team_of(&world, &shape);
    for dtype in DType::ALL {
        all_of_a_type(&world, team.as_ref(), dtype, seat.arg(1), seat.arg(2));
    }
    if let Some(team) = team.filter(|_| shape != "world") {
        team.destroy().expect("all PEs destroy the team");
    }
    assert!(world.finalize().expect("all PEs finalize").is_clean() || shape == "rows" || shape == "columns");
}

fn collectives_are_right_among_1_2_3_5_and_8_pes() {
    for (n_pes, passes) in [(1, 2), (2, 4), (3, 4), (5, 2), (8, 1)] {
        Job::new("every_collective", n_pes).args(format!("world {passes} {n_pes}")).everywhere();
    }
}

fn collectives_are_right_in_teams_of_every_shape() {
    for (seed, shape) in (100..).zip(["every_second", "reversed", "colors", "all_but_one", "rows", "columns"]) {
        let job = Job::new("every_collective", 5).args(format!("{shape} 1 {seed}"));
        job.on_threads();
        if seed % 2 == 0 { job.on_processes() } else { job.without_attach().on_processes() }
    }
}

fn borders(seat: &Seat) {
    let world = seat.join();
    conformance::borders::<u8>(&world, 1);
    conformance::borders::<f32>(&world, 2);
    let _ = world.finalize().expect("all PEs finalize");
}

fn collectives_are_right_around_size_thresholds() {
    Job::new("borders", 2).everywhere();
    Job::new("borders", 3).on_processes();
}

/// Runs each collective with more bytes than fit into the caches.
fn streaming(seat: &Seat) {
    let world = seat.join();
    let n = world.n_pes();
    let stream = world.stream().expect("a stream can be created");
    let bench = Bench { team: world.team(), stream: &stream };
    let arenas = Arenas::<f32>::new(&world, 3_300_000 * n);
    for (i, form) in Form::REDUCING.into_iter().chain(Form::MOVING).enumerate() {
        let parts = form.lens(1, n, true).0.max(form.lens(1, n, true).1);
        let case = Case {
            form,
            op: ReduceOp::Sum,
            count: 3_250_001 / parts * if parts == 1 { 1 } else { 2 },
            kind: Some(Kind::Symmetric),
            on_stream: i % 2 == 1,
            seed: 900 + i as u64,
        };
        if Form::REDUCING.contains(&form) { bench.reduction(&case, &arenas) } else { bench.movement(&case, &arenas) }
    }
    arenas.release();
    let _ = world.finalize().expect("all PEs finalize");
}

fn collectives_larger_than_the_caches_are_right() {
    Job::new("streaming", 2).on_threads();
    Job::new("streaming", 3).on_processes();
}

/// Checks that results that depend on the order of computation have the same bits on all PEs.
fn same_bits(seat: &Seat) {
    fn one<T: Exact>(seat: &Seat, world: &peerweave::World, float: impl Fn(f64) -> T) {
        let team = world.team();
        let n = world.n_pes();
        for (i, bytes) in [8usize, 24, 200, 2048, 4096, 5000, 70_000, 262_144, 600_000].into_iter().enumerate() {
            for kind in 0..3 {
                let count = (bytes / size_of::<T>()).max(1);
                let seed: u64 = seat.arg(0);
                let value = |i: usize| {
                    let random = hash(&[seed, bytes as u64, world.my_pe().get().into(), i as u64]);
                    float((random % 100_000) as f64 * 1.1e-3 - 37.7)
                };
                let mine: Vec<T> = (0..count).map(value).collect();
                for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Avg] {
                    let result: Vec<T> = match kind {
                        0 => {
                            let (from, to) = (world.alloc::<T>(count).unwrap(), world.alloc::<T>(count).unwrap());
                            from.copy_from(&mine).unwrap();
                            team.all_reduce_blocking(&from, &to, op).unwrap();
                            let result = to.to_vec().unwrap();
                            from.release().unwrap();
                            to.release().unwrap();
                            result
                        }
                        1 => {
                            let mut to = vec![T::default(); count];
                            team.all_reduce_blocking(&mine, &mut to, op).unwrap();
                            to
                        }
                        _ => {
                            let mut to = mine.clone();
                            team.all_reduce_in_place_blocking(&mut to, op).unwrap();
                            to
                        }
                    };
                    let bits: Vec<u64> = result.iter().map(|x| x.bits()).collect();
                    let mut digests = vec![0u64; n];
                    team.all_gather_blocking(&[hash(&bits)], &mut digests).unwrap();
                    assert!(
                        digests.iter().all(|digest| *digest == digests[0]),
                        "{} {op} of {count}, kind of buffers {kind}, size {i}",
                        T::DTYPE
                    );
                }
            }
        }
    }
    let world = seat.join();
    one(seat, &world, |x| x as f32);
    one(seat, &world, |x| x);
    one(seat, &world, |x| f16::from_f64(x / 50.0));
    one(seat, &world, bf16::from_f64);
    let _ = world.finalize().expect("all PEs finalize");
}

fn inexact_sums_have_the_same_bits_on_every_pe() {
    for n_pes in [2, 3, 5] {
        Job::new("same_bits", n_pes).args(n_pes.to_string()).everywhere();
    }
}

fn reduce_nans(seat: &Seat) {
    fn one<T: Exact>(world: &peerweave::World, nan: T) {
        let (team, n) = (world.team(), world.n_pes());
        let me = team.my_rank().index();
        for count in [1, 3, 5, 100, 1000, 40_000] {
            for op in [ReduceOp::Min, ReduceOp::Max] {
                // By `i % 4`: NaN on all ranks but one, on one rank, on none, on all.
                let value = |rank: usize, i: usize| match i % 4 {
                    0 if rank != i / 4 % n => nan,
                    1 if rank == i / 4 % n => nan,
                    3 => nan,
                    _ => T::small(rank as i64 - 1),
                };
                let mut buffer: Vec<T> = (0..count).map(|i| value(me, i)).collect();
                team.all_reduce_in_place_blocking(&mut buffer, op).unwrap();
                for (i, found) in buffer.iter().enumerate() {
                    let all: Vec<T> = (0..n).map(|rank| value(rank, i)).collect();
                    let expected = T::combine(op, &all, &[]);
                    // All NaNs count as equal here, whatever their bits are.
                    assert!(
                        found.bits() == expected.bits() || (T::is_nan(*found) && T::is_nan(expected)),
                        "element {i} is {found:?}, expected {expected:?}"
                    );
                }
            }
        }
    }
    let world = seat.join();
    one(&world, f32::NAN);
    one(&world, f64::NAN);
    one(&world, f16::NAN);
    one(&world, bf16::NAN);
    let _ = world.finalize().expect("all PEs finalize");
}

fn min_and_max_ignore_nans_unless_all_inputs_are_nan() {
    for n_pes in [1, 2, 4] {
        Job::new("reduce_nans", n_pes).everywhere();
    }
}

/// Makes many collectives in a row. Argument: the number of collectives.
fn long_run(seat: &Seat) {
    let world = seat.join();
    let (team, n, me) = (world.team(), world.n_pes() as u64, u64::from(world.my_pe().get()));
    let big = world.alloc::<u32>(5000).unwrap();
    let stream = world.stream().unwrap();
    for round in 0..seat.arg::<u64>(0) {
        match hash(&[round]) % 6 {
            0 => team.barrier_blocking().unwrap(),
            1 => {
                let mut sum = [0u64; 2];
                team.all_reduce_blocking(&[round, me], &mut sum, ReduceOp::Sum).unwrap();
                assert_eq!(sum, [round * n, n * (n - 1) / 2]);
            }
            2 => {
                let root = (round % n) as u32;
                let mut x = vec![if u64::from(root) == me { round } else { 0 }; 400];
                team.broadcast_in_place_blocking(&mut x, Rank::new(root)).unwrap();
                assert!(x.iter().all(|&x| x == round));
            }
            3 => {
                big.fill(round as u32 + me as u32).unwrap();
                team.all_reduce_in_place(&stream, &big, ReduceOp::Max).unwrap().wait().unwrap();
                assert_eq!(big.load((round % 5000) as usize).unwrap(), round as u32 + n as u32 - 1);
            }
            4 => {
                let mut all = vec![0u64; n as usize];
                team.all_gather_blocking(&[round ^ me], &mut all).unwrap();
                assert!(all.iter().zip(0..).all(|(&x, pe)| x == round ^ pe));
            }
            _ => {
                team.sync(&stream).unwrap();
                stream.synchronize().unwrap();
            }
        }
    }
    big.release().unwrap();
    let _ = world.finalize().expect("all PEs finalize");
}

fn many_collectives_in_a_row_are_right() {
    Job::new("long_run", 2).args("20000").everywhere();
    Job::new("long_run", 5).args("2000").everywhere();
    // The job has more ranks than the backend's fixed-size arrays hold.
    Job::new("long_run", 20).args("60").on_threads();
}

/// Checks that some ranks can call in place while other ranks do not.
fn mixed_places(seat: &Seat) {
    let world = seat.join();
    let (team, n) = (world.team(), world.n_pes());
    let me = team.my_rank().index();
    let value = |rank: usize, i: usize| hash(&[rank as u64, i as u64]) as u32;
    for count in [1, 8, 500, 3000, 100_000] {
        for symmetric in [true, false] {
            let whole = count * n;
            let [a, b] = [world.alloc::<u32>(whole).unwrap(), world.alloc::<u32>(whole).unwrap()];
            let mine: Vec<u32> = (0..whole).map(|i| value(me, i)).collect();
            let mut private = mine.clone();
            let mut other = vec![0; whole];
            a.copy_from(&mine).unwrap();
            let in_place = me.is_multiple_of(2);
            let expected: Vec<u32> = (0..n).flat_map(|from| (0..count).map(move |i| value(from, me * count + i))).collect();
            match (symmetric, in_place) {
                (true, true) => team.all_to_all_in_place_blocking(&a),
                (true, false) => team.all_to_all_blocking(&a, &b),
                (false, true) => team.all_to_all_in_place_blocking(&mut private),
                (false, false) => team.all_to_all_blocking(&mine, &mut other),
            }
            .unwrap();
            let found = match (symmetric, in_place) {
                (true, true) => a.to_vec().unwrap(),
                (true, false) => b.to_vec().unwrap(),
                (false, true) => private,
                (false, false) => other,
            };
            assert_eq!(found, expected, "all_to_all of {count}, symmetric: {symmetric}, in place: {in_place}");

            let counts = VectorCounts::packed(vec![count; n], vec![count; n]);
            a.copy_from(&mine).unwrap();
            if in_place { team.all_to_all_v_in_place_blocking(&a, counts) } else { team.all_to_all_v_blocking(&a, &b, counts) }
                .unwrap();
            let found = if in_place { a.to_vec() } else { b.to_vec() }.unwrap();
            assert_eq!(found, expected, "all_to_all_v of {count}, in place: {in_place}");

            let sum: Vec<u32> = (0..whole).map(|i| (0..n).fold(0, |sum: u32, rank| sum.wrapping_add(value(rank, i)))).collect();
            let mut result = mine.clone();
            if in_place {
                team.all_reduce_in_place_blocking(&mut result, ReduceOp::Sum).unwrap();
            } else {
                a.copy_from(&mine).unwrap();
                team.all_reduce_blocking(&a, &mut result, ReduceOp::Sum).unwrap();
            }
            assert!(result == sum, "all_reduce of {whole}, in place: {in_place}");
            a.release().unwrap();
            b.release().unwrap();
        }
    }
    let _ = world.finalize().expect("all PEs finalize");
}

fn ranks_can_mix_in_place_and_out_of_place_calls() {
    for n_pes in [2, 3] {
        Job::new("mixed_places", n_pes).everywhere();
    }
}

/// Counts around the thresholds of the host backend.
const COUNTS: [usize; 7] = [0, 1, 3, 40, 700, 5000, 100_000];

fn functions(seat: &Seat) {
    let world = seat.join();
    in_teams(&world, shapes_for(world.n_pes()), |team| functions::in_rank_order(&world, team, &COUNTS));
    functions::another_call_is_noticed(world.team());
    let _ = world.finalize().expect("all PEs finalize");
}

fn reduction_functions_combine_elements_in_rank_order() {
    Job::new("functions", 1).on_threads();
    Job::new("functions", 2).everywhere();
    Job::new("functions", 4).everywhere();
    Job::new("functions", 5).on_threads();
    Job::new("functions", 3).without_attach().on_processes();
}

/// Makes a function panic on one PE in the middle of a large reduction.
fn panics(seat: &Seat) {
    let world = seat.join();
    let me = world.my_pe().get();
    let team = world.team().split(Some(0), 0).unwrap().expect("a rank that passes a color gets a team");
    let function = ReduceFn::new(move |a: u64, b: u64| if me == 1 && b == 77 { panic!("no 77") } else { a + b });
    let sum = world.alloc_zeroed::<u64>(50_000).unwrap();
    let mine = world.alloc_zeroed::<u64>(50_000).unwrap();
    mine.fill(77).unwrap();
    let failed = team.all_reduce_with_blocking(&mine, &sum, &function).unwrap_err();
    let text = failed.to_string();
    if me == 1 {
        assert!(text.contains("all_reduce") && text.contains("no 77"), "{text}");
    } else {
        assert!(matches!(&failed, Error::Peer { pe, .. } if pe.get() == 1), "{failed:?}");
    }
    world.team().barrier_blocking().unwrap();
    mine.release().unwrap();
    sum.release().unwrap();
    drop(world.finalize());
}

fn panic_in_a_reduction_function_fails_the_call_on_all_pes() {
    Job::new("panics", 3).on_threads();
    Job::new("panics", 2).on_processes();
}

fn strided(seat: &Seat) {
    let world = seat.join();
    in_teams(&world, shapes_for(world.n_pes()), |team| functions::strided(&world, team, &[0, 1, 2, 5, 90, 700, 40_000]));
    let _ = world.finalize().expect("all PEs finalize");
}

fn strided_all_to_all_moves_elements_to_correct_indices() {
    Job::new("strided", 1).on_threads();
    Job::new("strided", 2).everywhere();
    Job::new("strided", 3).on_threads();
}
