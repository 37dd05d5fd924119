//! Runs all-reduces with residual and RMSNorm on the GPUs of this machine, and compares them with
//! the oracle: `peerweave run -n 2 -- norms_on_gpus [SEED]`. Covers every element type, variant of
//! the call and quantisation, in the team of all PEs and in smaller teams. PE 0 prints a line for
//! each team.
//!
//! If processes see only one GPU, their PEs share the GPU, and each call takes milliseconds.

use peerweave::World;
use peerweave::bootstrap::Job;
use peerweave_cuda::{Cuda, CudaOptions};
use peerweave_tests::check::conformance::team_of;
use peerweave_tests::check::norms;
use std::error::Error;
use std::time::{Duration, Instant};

/// Numbers of rows and their lengths, for calls in one step, in two steps, and in several launches.
const SHAPES: [(usize, usize); 9] =
    [(1, 8), (3, 136), (1, 6144), (2, 4096), (16, 8192), (64, 5120), (138, 6144), (300, 7168), (1, 65_536)];

fn main() -> Result<(), Box<dyn Error>> {
    let seed = std::env::args().nth(1).map_or(Ok(1), |seed| seed.parse::<u64>())?;
    let mut options = CudaOptions::default();
    options.deadline = Duration::from_secs(30);
    let world = World::from(peerweave_core::World::new(Cuda::join(&Job::from_env()?, &options)?)?);
    for shape in ["world", "reversed", "every_second", "all_but_one"] {
        let started = Instant::now();
        let team = team_of(&world, shape);
        let shapes = if shape == "world" { &SHAPES[..] } else { &SHAPES[..5] };
        norms::of_every_type(&world, team.as_ref(), shapes, seed);
        if let Some(team) = team.filter(|_| shape != "world") {
            team.destroy()?;
        }
        if world.my_pe().get() == 0 {
            println!("RMSNorm, {shape}: right, {:.1} s", started.elapsed().as_secs_f64());
        }
    }
    if !world.finalize()?.is_clean() {
        return Err("symmetric memory was not released".into());
    }
    Ok(())
}
