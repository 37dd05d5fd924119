//! Runs the conformance suite on the GPUs of this machine: `peerweave run -n 2 -- on_gpus [PASSES]
//! [SEED]`. Every collective, element type and reduction in teams of every shape is compared with
//! the oracle, and so are waits, reductions by a function, and strided all-to-alls. PE 0 prints a
//! line for each part, team and type.
//!
//! PEs of processes that see one GPU share it: then each call takes milliseconds.

use peerweave::bootstrap::Job;
use peerweave::{DType, World};
use peerweave_cuda::{Cuda, CudaOptions};
use peerweave_tests::conformance::{all_of_a_type, team_of};
use peerweave_tests::{functions, waits};
use std::error::Error;
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<u64>());
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
    let started = Instant::now();
    waits::of_every_type(&world);
    waits::any_is_fair(&world);
    say("waits".to_owned(), started);
    let started = Instant::now();
    functions::in_rank_order(&world, &[0, 1, 3, 700, 100_000, 1_000_003]);
    say("reductions by a function".to_owned(), started);
    let started = Instant::now();
    functions::strided(&world, &[0, 1, 5, 200, 40_000]);
    say("strided all-to-alls".to_owned(), started);
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
