//! Kills a process while all processes run collectives. The other processes continue in a smaller
//! world.

use std::time::{Duration, Instant};

use peerweave_bootstrap::Job;
use peerweave_core::{Error, World};
use peerweave_cuda::{Cuda, CudaOptions};

use crate::calls::{KINDS, MOST, Operands, random};
use crate::{Arguments, Outcome, ended, lines, start};

/// Number of rounds of all collectives in the smaller world.
const ROUNDS: u64 = 3;

/// Runs random collectives until one of them fails. Then prints the PE that the error names,
/// shrinks the world to the surviving PEs, and checks the results of all collectives.
pub(crate) fn run(job: &Job, deadline: Duration, seed: u64) -> Outcome {
    let mut options = CudaOptions::default();
    (options.deadline, options.heap_bytes) = (deadline, Some(64 << 20));
    let cuda = Cuda::join(job, &options)?;
    let world = World::new(cuda)?;
    let on = Operands::new(&world)?;
    let (team, stream) = (world.team(), world.stream()?);
    // All kernels are loaded before the first kill.
    for kind in 0..=KINDS {
        on.enqueue(team, &stream, kind, 64)?;
    }
    stream.synchronize()?;
    team.barrier_blocking()?;
    println!("ready");
    let error = (0..)
        .find_map(|call| one(&world, &on, &stream, random(&[seed, call])).err())
        .ok_or("no call failed, expected a failure after a process was killed")?;
    let portable = error.downcast_ref::<Error>().ok_or_else(|| error.to_string())?;
    println!("blamed {:?}: {portable}", portable.blamed().iter().map(|pe| pe.get()).collect::<Vec<_>>());
    on.x.slice(..8)?.copy_from(&[5.0; 8])?;
    if on.x.load(7)? != 5.0 {
        return Err("memory of the GPU has a wrong value after the failure".into());
    }
    let start = Instant::now();
    let smaller = world.shrink()?;
    let former: Vec<u32> = smaller.former_pes().iter().map(|pe| pe.get()).collect();
    println!("shrunk to {former:?} after {:.0?}", start.elapsed());
    if on.x.load(7)? != 5.0 {
        return Err("memory of the old world has a wrong value".into());
    }
    drop((on, stream, world));
    let (on, stream) = (Operands::new(&smaller)?, smaller.stream()?);
    for call in 0..ROUNDS * KINDS {
        let len = 1 + random(&[seed, call, 5]) as usize % MOST;
        on.enqueue(smaller.team(), &stream, call % KINDS, len)?;
        stream.synchronize()?;
        on.check(call % KINDS, len)?;
        // Another PE may still write the result of this PE.
        smaller.team().barrier_blocking()?;
    }
    drop((on, stream));
    let _ = smaller.finalize()?;
    Ok(())
}

fn one(world: &World, on: &Operands, stream: &peerweave_core::Stream, random: u64) -> Outcome {
    let (kind, len) = (random % (KINDS + 1), 1 + (random >> 8) as usize % (1 << ((random >> 40) % 17)).min(MOST));
    on.enqueue(world.team(), stream, kind, len)?;
    if random >> 60 == 0 {
        stream.synchronize()?;
        return on.check(kind, len);
    }
    Ok(())
}

/// Kills a process of each job at a random moment, and checks the output of the other processes.
pub(crate) fn supervise(arguments: &Arguments) -> Outcome {
    let (mut slowest, mut went_on, mut after) = (Duration::ZERO, Duration::ZERO, Vec::new());
    for round in 0..arguments.kills {
        let chance = random(&[arguments.seed, round, 77]);
        let victim = (chance % u64::from(arguments.n)) as usize;
        let mut started = start(arguments, arguments.seed + round, true)?;
        let mut outputs: Vec<_> = started.children.iter_mut().map(lines).collect();
        for (pe, output) in outputs.iter_mut().enumerate() {
            let line = output.next();
            if line.as_deref() != Some("ready") {
                return Err(format!("round {round}: PE {pe} printed {line:?}, expected \"ready\"").into());
            }
        }
        std::thread::sleep(Duration::from_micros(chance >> 8 & 0x3ffff));
        started.children[victim].kill()?;
        let killed = Instant::now();
        for pe in (0..started.children.len()).filter(|pe| *pe != victim) {
            let line = outputs[pe].next().unwrap_or_default();
            let took = killed.elapsed();
            if !line.starts_with(&format!("blamed [{victim}]")) {
                return Err(format!("round {round}: PE {pe} printed {line:?} after {took:?}, but PE {victim} was killed").into());
            }
            let left: Vec<usize> = (0..started.children.len()).filter(|pe| *pe != victim).collect();
            let line = outputs[pe].next().unwrap_or_default();
            if !line.starts_with(&format!("shrunk to {left:?}")) {
                return Err(format!("round {round}: PE {pe} printed {line:?}, expected a world of PEs {left:?}").into());
            }
            went_on = went_on.max(killed.elapsed());
            if !ended(&mut started.children[pe], killed + Duration::from_secs(arguments.deadline + 60))? {
                return Err(format!("round {round}: PE {pe} failed in the smaller world").into());
            }
            slowest = slowest.max(took);
            after.push(took);
        }
    }
    after.sort();
    let median = after.get(after.len() / 2).copied().unwrap_or_default();
    let kills = arguments.kills;
    println!("{kills} kills: every survivor named the killed PE after {median:.0?} (median), at most {slowest:.0?}");
    println!("every survivor had a smaller world after at most {went_on:.1?}, and its results were correct");
    Ok(())
}
