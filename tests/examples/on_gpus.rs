//! Runs the conformance suite on the GPUs of this machine: `peerweave run -n 2 -- on_gpus [PASSES]
//! [SEED]`. Every collective, element type and reduction in teams of every shape is compared with
//! the oracle, and so are waits, reductions by a function, strided all-to-alls, contexts, locks,
//! teams that their members make alone, and dispatch and combine for mixture of experts. PE 0
//! prints a line for each part, team and type. With `moe` as the first argument, only mixture of
//! experts runs.
//!
//! If processes see only one GPU, their PEs share the GPU, and each call takes milliseconds.
//!
//! `NCCL_HOSTID` divides the PEs into hosts: `peerweave run -n 4 -- sh -c
//! 'NCCL_HOSTID=h$((PEERWEAVE_PE/2)) exec on_gpus'`. On several hosts, parts that access memory of
//! other PEs do not run, because such access is possible only within a host.

use peerweave::bootstrap::Job;
use peerweave::{DType, F8E4M3, Pe, World, bf16, f16};
use peerweave_cuda::{Cuda, CudaOptions};
use peerweave_tests::check::conformance::{all_of_a_type, in_teams, shapes_for, team_of};
use peerweave_tests::check::moe::{Case, Routing, calls_without_waits, exchange, two_exchanges};
use peerweave_tests::check::{contexts, elements, functions, locks, waits};
use std::error::Error;
use std::time::{Duration, Instant};

/// Checks dispatch and combine with tokens and results of several types and routing of every kind.
fn mixture_of_experts(world: &World) -> peerweave::Result<()> {
    let n = world.n_pes();
    for routing in [Routing::Random, Routing::OneRank, Routing::FirstOfEach, Routing::Nobody] {
        exchange::<bf16, bf16>(world, &Case::new(8 * n, 8.min(8 * n), 7168, 16, 0, routing), 3)?;
    }
    exchange::<bf16, bf16>(world, &Case::new(16 * n, 3, 24, 9, 0, Routing::Random), 10)?;
    exchange::<F8E4M3, bf16>(world, &Case::new(64 * n, 8, 7168, 33, 56, Routing::Random), 3)?;
    exchange::<f16, f16>(world, &Case::new(2 * n, 2, 264, 65, 0, Routing::Random), 3)?;
    exchange::<f32, f32>(world, &Case::new(512 * n, 32, 4, 64, 4, Routing::Random), 3)?;
    let mut case = Case::new(5 * n, 4, 40, 11, 4, Routing::Random);
    for (blocks, threads) in [(1, 1), (3, 96), (2, 33), (64, 64)] {
        case.shape = case.shape.launch(blocks, threads);
        exchange::<bf16, bf16>(world, &case, 2)?;
    }
    for _ in 0..5 {
        calls_without_waits(world, None)?;
    }
    if n == 4 { two_exchanges(world, None) } else { Ok(()) }
}

fn main() -> Result<(), Box<dyn Error>> {
    let only_moe = std::env::args().nth(1).is_some_and(|argument| argument == "moe");
    let mut arguments = std::env::args().skip(1 + usize::from(only_moe)).map(|argument| argument.parse::<u64>());
    let passes = arguments.next().transpose()?.unwrap_or(4) as usize;
    let seed = arguments.next().transpose()?.unwrap_or(1);
    let mut options = CudaOptions::default();
    options.deadline = Duration::from_secs(30);
    let world = World::from(peerweave_core::World::new(Cuda::join(&Job::from_env()?, &options)?)?);
    let say = |what: String, started: Instant| {
        if world.my_pe().get() == 0 {
            println!("{what}: right, {:.1} s", started.elapsed().as_secs_f64());
        }
    };
    let is_one_host = world.local_pes().len() == world.n_pes();
    if is_one_host {
        let started = Instant::now();
        mixture_of_experts(&world)?;
        say("mixture of experts".to_owned(), started);
    } else {
        say(format!("{} of {} PEs on this host", world.local_pes().len(), world.n_pes()), Instant::now());
    }
    if only_moe {
        return if world.finalize()?.is_clean() { Ok(()) } else { Err("symmetric memory was not released".into()) };
    }
    if is_one_host {
        let started = Instant::now();
        in_teams(&world, shapes_for(world.n_pes()), |team| {
            waits::of_every_type(&world, team);
            waits::any_is_fair(&world, team);
        });
        say("waits".to_owned(), started);
    }
    let started = Instant::now();
    in_teams(&world, shapes_for(world.n_pes()), |team| {
        functions::in_rank_order(&world, team, &[0, 1, 3, 700, 100_000, 1_000_003]);
    });
    say("reductions by a function".to_owned(), started);
    let started = Instant::now();
    in_teams(&world, shapes_for(world.n_pes()), |team| functions::strided(&world, team, &[0, 1, 5, 200, 40_000]));
    say("strided all-to-alls".to_owned(), started);
    composite_types(&world, is_one_host, say);
    if is_one_host {
        one_sided(&world, say);
    }
    let started = Instant::now();
    teams_by_members(&world, passes, seed)?;
    say("teams made by their members".to_owned(), started);
    for dtype in DType::ALL {
        let started = Instant::now();
        all_of_a_type(&world, Some(world.team()), dtype, passes, seed);
        say(format!("world, {dtype}"), started);
    }
    for (shape, dtype) in [
        ("every_second", DType::F32),
        ("reversed", DType::I32),
        ("colors", DType::BF16),
        ("all_but_one", DType::F16),
        ("rows", DType::U8),
        ("columns", DType::F64),
    ] {
        let started = Instant::now();
        let team = team_of(&world, shape);
        all_of_a_type(&world, team.as_ref(), dtype, passes, seed);
        if let Some(team) = team {
            team.destroy()?;
        }
        say(format!("{shape}, {dtype}"), started);
    }
    if !world.finalize()?.is_clean() {
        return Err("symmetric memory was not released".into());
    }
    Ok(())
}

/// Checks element types that consist of several values.
fn composite_types(world: &World, is_one_host: bool, say: impl Fn(String, Instant)) {
    const COUNTS: [usize; 4] = [1, 7, 300, 20_000];
    let started = Instant::now();
    in_teams(world, shapes_for(world.n_pes()), |team| {
        if is_one_host {
            elements::move_one_sided(world, team, &COUNTS);
        }
        elements::move_by_collectives(world, team, &COUNTS);
        elements::reduce(world, team, &COUNTS);
        elements::combine_and_stride(world, team, &COUNTS);
    });
    say("composite types".to_owned(), started);
}

/// Checks contexts and locks.
fn one_sided(world: &World, say: impl Fn(String, Instant)) {
    let started = Instant::now();
    contexts::all_operations(world);
    contexts::threads_use_contexts(world);
    contexts::quiet_is_of_its_own_context(world);
    say("contexts".to_owned(), started);
    let started = Instant::now();
    locks::one_holds_at_a_time(world, 2, 10);
    locks::waiters_take_turns(world, 3);
    locks::deadline_names_the_holder(world);
    say("locks".to_owned(), started);
}

/// Makes teams that only their members create, and runs every collective in each of them.
fn teams_by_members(world: &World, passes: usize, seed: u64) -> Result<(), Box<dyn Error>> {
    let n = world.n_pes() as u32;
    for list in [(0..n).rev().collect(), (0..n).step_by(2).collect(), (1..n).collect::<Vec<u32>>(), (0..n).collect()] {
        let members: Vec<Pe> = list.into_iter().map(Pe::new).collect();
        let team = members.contains(&world.my_pe()).then(|| world.team_of(&members)).transpose()?;
        all_of_a_type(world, team.as_ref(), DType::F32, passes, seed);
        if let Some(team) = team {
            team.destroy()?;
        }
    }
    Ok(())
}
