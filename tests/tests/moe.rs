//! Checks dispatch and combine for mixture of experts on the host backend, among threads.

use peerweave::{F8E4M3, Result, World, bf16, f16, on_threads};
use peerweave_tests::check::moe::{Case, Routing, calls_without_waits, exchange, two_exchanges};

/// Runs a test with 1, 2, 3, 4 and 8 PEs.
fn on_all(test: impl Fn(&World) -> Result<()> + Sync) {
    for n in [1, 2, 3, 4, 8] {
        for outcome in on_threads(n, |world| test(&world)).unwrap() {
            outcome.unwrap_or_else(|error| panic!("{n} PEs: {error}"));
        }
    }
}

#[test]
fn moe_with_random_routing_matches_the_reference() {
    on_all(|world| {
        let case = Case::new(4 * world.n_pes(), 3, 24, 9, 0, Routing::Random);
        exchange::<bf16, bf16>(world, &case, 6)
    });
}

#[test]
fn moe_combine_of_every_type_adds_in_f32() {
    on_all(|world| {
        let case = Case::new(2 * world.n_pes(), 4, 16, 5, 0, Routing::Random);
        exchange::<f32, f32>(world, &case, 3)?;
        exchange::<f16, f16>(world, &case, 3)?;
        exchange::<f32, bf16>(world, &case, 3)
    });
}

#[test]
fn moe_delivers_8_bit_tokens_with_the_correct_scales() {
    on_all(|world| {
        let case = Case::new(3 * world.n_pes(), 2, 48, 7, 4, Routing::Random);
        exchange::<F8E4M3, bf16>(world, &case, 5)
    });
}

#[test]
fn moe_with_skewed_routing_matches_the_reference() {
    on_all(|world| {
        for routing in [Routing::OneRank, Routing::FirstOfEach, Routing::Nobody] {
            exchange::<bf16, bf16>(world, &Case::new(2 * world.n_pes(), 3, 8, 6, 0, routing), 3)?;
        }
        Ok(())
    });
}

#[test]
fn moe_results_do_not_depend_on_the_launch_shape() {
    for (blocks, threads) in [(1, 32), (3, 96), (2, 33), (5, 2)] {
        on_all(|world| {
            let mut case = Case::new(5 * world.n_pes(), 4, 40, 11, 4, Routing::Random);
            case.shape = case.shape.launch(blocks, threads);
            exchange::<bf16, bf16>(world, &case, 2)
        });
    }
}

#[test]
fn moe_with_many_experts_on_one_rank_is_correct() {
    for outcome in on_threads(2, |world| {
        exchange::<f32, f32>(&world, &Case::new(2 * 512, 32, 4, 8, 0, Routing::Random), 2)?;
        exchange::<f32, f32>(&world, &Case::new(2, 1, 4, 1, 0, Routing::Random), 4)
    })
    .unwrap()
    {
        outcome.unwrap();
    }
}

#[test]
fn moe_calls_enqueued_back_to_back_do_not_mix_their_data() {
    on_all(|world| calls_without_waits(world, None));
}

#[test]
fn moe_exchanges_of_two_teams_are_independent() {
    for outcome in on_threads(4, |world| two_exchanges(&world, None)).unwrap() {
        outcome.unwrap();
    }
}
