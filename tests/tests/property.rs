//! Compares random sequences of collectives on random numbers of PEs with the oracle; failing cases
//! are shrunk.
//!
//! The seed is the number in `PEERWEAVE_TEST_SEED`. `.ci/run` chooses a new seed in each run and
//! prints it. Without the variable, the sequences are always the same.

use peerweave::host::{HostOptions, on_threads};
use peerweave::{ReduceOp, World};
use peerweave_tests::check::conformance::{Arenas, Bench, Case};
use peerweave_tests::data::calls::Form;
use peerweave_tests::data::memory::Kind;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};

fn count() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 0usize..20, 4 => 20usize..1200, 2 => 1200usize..9000, 1 => 9000usize..200_000]
}

fn case() -> impl Strategy<Value = Case> {
    let form = prop_oneof![prop::sample::select(&Form::REDUCING[..]), prop::sample::select(&Form::MOVING[..])];
    let kind = prop_oneof![Just(None), prop::sample::select(&Kind::ALL[..]).prop_map(Some)];
    let op = prop::sample::select(&ReduceOp::ALL[..]);
    (form, op, count(), kind, any::<bool>(), any::<u64>()).prop_map(|(form, op, count, kind, on_stream, seed)| Case {
        form,
        op,
        count,
        kind,
        on_stream,
        seed,
    })
}

fn run(world: &World, cases: &[Case]) {
    let stream = world.stream().unwrap();
    let bench = Bench { team: world.team(), stream: &stream };
    let longest = cases.iter().map(|case| case.longest(world.n_pes())).max().unwrap_or(0);
    let (ints, floats) = (Arenas::<i32>::new(world, longest), Arenas::<f32>::new(world, longest));
    for case in cases {
        match Form::REDUCING.contains(&case.form) {
            true if case.op.is_bitwise() || case.seed & 2 == 0 => bench.reduction(case, &ints),
            true => bench.reduction(case, &floats),
            false if case.seed & 2 == 0 => bench.movement(case, &ints),
            false => bench.movement(case, &floats),
        }
    }
    ints.release();
    floats.release();
}

/// The variable with the seed.
const SEED: &str = "PEERWEAVE_TEST_SEED";

/// Returns the seed of this run and prints it, so that a failure can be repeated.
fn seed() -> u64 {
    let seed = match std::env::var(SEED) {
        Ok(text) => text.parse().unwrap_or_else(|error| panic!("{SEED} is {text:?}, expected a number below 2^64: {error}")),
        Err(_) => 0x7065_6572,
    };
    println!("seed {seed}; to repeat: {SEED}={seed} cargo test -p peerweave-tests --test property");
    seed
}

proptest! {
    #![proptest_config(Config {
        cases: 60,
        rng_seed: RngSeed::Fixed(seed()),
        failure_persistence: None,
        max_shrink_iters: 200,
        ..Config::default()
    })]

    #[test]
    fn random_sequences_of_collectives_match_the_oracle(n_pes in 1usize..7, cases in prop::collection::vec(case(), 1..8)) {
        on_threads(n_pes, &HostOptions::default(), |world| run(&world.into(), &cases)).unwrap();
    }
}
