//! Mixture of experts: sends tokens to the PEs of their experts, and returns the results. Uses
//! dispatch and combine, and all-to-alls for comparison.
#![forbid(unsafe_code)]

use clap::Parser;
use peerweave::{Element, Error, F8E4M3, ReduceOp, Stream, Symmetric, VectorCounts, World, bf16};
use peerweave_examples::experts::{Format, Layer};
use peerweave_moe::{Moe, Received, Shape, Tokens};
use std::time::Instant;

/// Maximum relative error of an output, which is rounded to `bf16` several times.
const TOLERANCE: f32 = 0.02;

/// Sends tokens to experts on all PEs, and returns the results.
#[derive(Parser)]
struct Args {
    /// Number of tokens of each PE
    #[arg(long, default_value_t = 8)]
    tokens: usize,
    /// Number of elements of a token, a multiple of 512
    #[arg(long, default_value_t = 512)]
    hidden: usize,
    /// Number of experts, a multiple of the number of PEs
    #[arg(long, default_value_t = 24)]
    experts: usize,
    /// Number of experts of each token
    #[arg(long, default_value_t = 4)]
    top_k: usize,
    /// Number of calls that are timed together
    #[arg(long, default_value_t = 5)]
    calls: usize,
    /// Number of times that the calls are timed
    #[arg(long, default_value_t = 3)]
    passes: usize,
}

/// Runs `calls` calls `passes` times, from a barrier to the end of the stream. Returns the median
/// time of a call on the slowest PE, in microseconds.
fn timed(world: &World, stream: &Stream, args: &Args, mut call: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    let mut times = Vec::new();
    for _ in 0..args.passes.max(1) {
        world.team().barrier_blocking()?;
        let start = Instant::now();
        for _ in 0..args.calls.max(1) {
            call()?;
        }
        stream.synchronize()?;
        times.push(start.elapsed().as_secs_f64() * 1e6 / args.calls.max(1) as f64);
    }
    times.sort_by(f64::total_cmp);
    let mut median = [times[times.len() / 2]];
    world.team().all_reduce_in_place_blocking(&mut median, ReduceOp::Max)?;
    Ok(median[0])
}

/// Allocates symmetric memory with this content.
fn filled<T: Element>(world: &World, content: &[T]) -> Result<Symmetric<T>, Error> {
    let memory = world.alloc(content.len())?;
    memory.copy_from(content)?;
    Ok(memory)
}

/// Runs the layer with tokens of one format, and checks its results. Returns the time of a dispatch
/// with its combine.
fn experts<T: Format>(world: &World, stream: &Stream, layer: &Layer, args: &Args) -> Result<f64, Error> {
    let me = world.my_pe().index();
    let shape = Shape::new(layer.experts, layer.top_k, layer.hidden, layer.tokens).scales(T::scales(layer.hidden));
    let mut moe = Moe::<T, bf16>::new(world, world.team(), stream, shape)?;

    // The experts and weights of this PE's tokens, as a router has computed them.
    let ((chosen, weights), (tokens, scales)) = (layer.routing(me), layer.encoded::<T>(me));
    let (chosen, weights) = (filled(world, &chosen)?, filled(world, &weights)?);
    let (tokens, scales) = (filled(world, &tokens)?, filled(world, &scales)?);
    let rows = world.alloc::<T>(moe.max_rows() * layer.hidden)?;
    let row_scales = world.alloc::<f32>(moe.max_rows() * T::scales(layer.hidden))?;
    let offsets = world.alloc::<u32>(layer.local_experts() + 1)?;
    let results = world.alloc::<bf16>(rows.len())?;
    let outputs = world.alloc::<bf16>(tokens.len())?;
    let has_scales = T::scales(layer.hidden) > 0;
    let sent = Tokens { rows: &tokens, scales: has_scales.then_some(&scales), experts: &chosen, weights: &weights };
    let received = Received { rows: &rows, scales: has_scales.then_some(&row_scales), offsets: &offsets };

    // Rows are in the order of experts, as grouped products of matrices require. The experts of
    // this example only multiply by a number, on the host.
    moe.dispatch(&sent, &received)?.wait()?;
    let (found, found_scales, starts) = (rows.to_vec()?, row_scales.to_vec()?, offsets.to_vec()?);
    assert!(layer.are_rows_of(me, &found, &found_scales, &starts), "PE {me}: the received rows of {} are wrong", T::NAME);
    results.copy_from(&layer.compute(me, &found, &found_scales, &starts))?;
    moe.combine(&results, &outputs)?.wait()?;
    let mut largest = [layer.difference::<T>(me, &outputs.to_vec()?)];
    world.team().all_reduce_in_place_blocking(&mut largest, ReduceOp::Max)?;
    assert!(largest[0] <= TOLERANCE, "outputs of {} differ by {}, expected at most {TOLERANCE}", T::NAME, largest[0]);
    if me == 0 {
        println!("{}: rows and outputs are those of one PE", T::NAME);
    }

    let time = timed(world, stream, args, || {
        moe.dispatch(&sent, &received)?;
        moe.combine(&results, &outputs)?;
        Ok(())
    })?;
    moe.release()?;
    chosen.release()?;
    for memory in [weights, scales, row_scales] {
        memory.release()?;
    }
    for memory in [tokens, rows] {
        memory.release()?;
    }
    offsets.release()?;
    for memory in [results, outputs] {
        memory.release()?;
    }
    Ok(time)
}

/// Returns the time of dispatch and combine by other calls: an exchange of counts and two
/// all-to-alls. The rows of `bf16` are already packed: one row for each token and expert or, with
/// `once`, one row for each token and PE.
fn all_to_all(world: &World, stream: &Stream, layer: &Layer, args: &Args, once: bool) -> Result<f64, Error> {
    let (team, me) = (world.team(), world.my_pe().index());
    let most = layer.n_pes * layer.tokens * layer.top_k * layer.hidden;
    let (send, recv) = (world.alloc::<bf16>(layer.tokens * layer.top_k * layer.hidden)?, world.alloc::<bf16>(most)?);
    let back = world.alloc::<bf16>(send.len())?;
    let elements: Vec<usize> = layer.sent(me, once).iter().map(|rows| rows * layer.hidden).collect();
    let time = timed(world, stream, args, || {
        let there = team.exchange_counts(&elements)?;
        let returned = VectorCounts::packed(there.recv_counts.clone(), there.send_counts.clone());
        team.all_to_all_v(stream, &send, &recv, there)?;
        team.all_to_all_v(stream, &recv, &back, returned)?;
        Ok(())
    })?;
    for memory in [send, recv, back] {
        memory.release()?;
    }
    Ok(time)
}

fn main() -> Result<(), Error> {
    let args = Args::parse();
    let world = World::from_env()?;
    let (stream, n) = (world.stream()?, world.n_pes());
    let layer = Layer { experts: args.experts, top_k: args.top_k, hidden: args.hidden, tokens: args.tokens, n_pes: n };
    if world.my_pe().get() == 0 {
        println!("{} tokens on each PE, {} of {} experts for each token", layer.tokens, layer.top_k, layer.experts);
    }

    let times = [
        ("dispatch and combine, bf16", experts::<bf16>(&world, &stream, &layer, &args)?),
        ("dispatch and combine, fp8 and bf16", experts::<F8E4M3>(&world, &stream, &layer, &args)?),
        ("two all_to_all_v, a row for each expert", all_to_all(&world, &stream, &layer, &args, false)?),
        ("two all_to_all_v, a row for each PE", all_to_all(&world, &stream, &layer, &args, true)?),
    ];
    // Times differ from run to run, so they go to standard error.
    if world.my_pe().get() == 0 {
        for (what, time) in times {
            eprintln!("{what:40} {time:10.1} us");
        }
    }
    assert!(world.finalize()?.is_clean());
    Ok(())
}
