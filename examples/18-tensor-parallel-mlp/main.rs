//! A tensor-parallel perceptron, as in Megatron: each PE has some columns of the first matrix of a
//! layer and the same rows of the second one. One all-reduce, which includes the residual and the
//! norm, ends a layer.
#![forbid(unsafe_code)]

use clap::Parser;
use peerweave::{Error, ReduceOp, RmsNorm, Stream, World};
use peerweave_examples::mlp::{EPSILON, Mlp, Sizes};
use std::time::Instant;

/// Largest difference from the output of one PE that rounding can cause.
const TOLERANCE: f64 = 1e-4;

/// Maximum number of multiplications of the check that computes outputs on one PE.
const MOST_WORK: usize = 2_000_000_000;

/// Computes the layers of a perceptron that is divided among the PEs.
#[derive(Parser)]
struct Args {
    /// Number of tokens
    #[arg(long, default_value_t = 20)]
    tokens: usize,
    /// Number of elements of a token; rounded up to a multiple of 4
    #[arg(long, default_value_t = 96)]
    hidden: usize,
    /// Number of elements of a token between the two matrices of a layer
    #[arg(long, default_value_t = 384)]
    inner: usize,
    /// Number of layers
    #[arg(long, default_value_t = 2)]
    layers: usize,
    /// Number of times that each variant is run and timed
    #[arg(long, default_value_t = 3)]
    passes: usize,
    /// Computes with the kernel on CPU threads, as on GPUs
    #[arg(long)]
    kernel: bool,
}

/// Runs all layers. `end` adds up the results of a layer, adds the residual, and normalises.
fn forward(stream: &Stream, mlp: &Mlp, layers: usize, end: impl Fn(usize) -> Result<(), Error>) -> Result<(), Error> {
    for layer in 0..layers {
        // This PE's columns of the first product are multiplied by its rows of the second matrix,
        // so PEs exchange nothing between the two products.
        mlp.compute(stream, layer)?;
        end(layer)?;
    }
    stream.synchronize()
}

/// Computes all products without communication.
fn computation(stream: &Stream, mlp: &Mlp, layers: usize) -> Result<(), Error> {
    (0..layers).try_for_each(|layer| mlp.compute(stream, layer))?;
    stream.synchronize()
}

/// Runs `run` `passes` times. Returns the median time of the slowest PE, in milliseconds.
fn timed(world: &World, mlp: &Mlp, passes: usize, run: impl Fn() -> Result<(), Error>) -> Result<f64, Error> {
    let mut times = Vec::new();
    for _ in 0..passes.max(1) {
        mlp.start()?;
        world.team().barrier_blocking()?;
        let start = Instant::now();
        run()?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    let mut median = [times[times.len() / 2]];
    world.team().all_reduce_in_place_blocking(&mut median, ReduceOp::Max)?;
    Ok(median[0])
}

fn main() -> Result<(), Error> {
    let args = Args::parse();
    let world = World::from_env()?;
    let (me, n) = (world.my_pe().index(), world.n_pes());
    let sizes = Sizes {
        tokens: args.tokens.max(1),
        hidden: args.hidden.max(1).next_multiple_of(4), // rows of 16 bytes, for GPUs
        inner: args.inner.max(n),
        layers: args.layers.max(1),
    };
    let by_kernel = args.kernel || world.backend_name() != "host";
    let (mlp, stream) = (Mlp::new(&world, sizes, by_kernel)?, world.stream()?);
    if me == 0 {
        let Sizes { tokens, hidden, inner, layers } = sizes;
        println!(
            "{tokens} tokens of {hidden} elements, {layers} layers of {inner}, of which PE 0 has {}",
            sizes.shard(0, n).len()
        );
    }

    let alone = timed(&world, &mlp, args.passes, || computation(&stream, &mlp, sizes.layers))?;
    let norm = |layer| RmsNorm::new(mlp.norm(layer)).epsilon(EPSILON);

    // Makes the all-reduce and the norm in separate steps. The norm of a team of one PE adds
    // nothing up.
    let own = world.team_of(&[world.my_pe()])?;
    let in_steps = |layer| {
        world.team().all_reduce_in_place(&stream, &mlp.partial, ReduceOp::Sum)?;
        own.all_reduce_rms_norm(&stream, &mlp.partial, &mlp.residual, &mlp.x, norm(layer)).map(drop)
    };
    let separate = timed(&world, &mlp, args.passes, || forward(&stream, &mlp, sizes.layers, in_steps))?;
    let expected = mlp.x.to_vec()?;

    // Makes the all-reduce and the norm in one operation.
    let at_once = |layer| world.team().all_reduce_rms_norm(&stream, &mlp.partial, &mlp.residual, &mlp.x, norm(layer)).map(drop);
    let whole = timed(&world, &mlp, args.passes, || forward(&stream, &mlp, sizes.layers, at_once))?;
    assert!(mlp.x.to_vec()? == expected, "the result of one operation differs from that of separate steps");

    // Tokens do not depend on each other, so it suffices to compare some of them.
    let output = mlp.x.to_vec()?;
    let work = 2 * sizes.layers * sizes.hidden * sizes.inner;
    let compared = (MOST_WORK / work).clamp(1, sizes.tokens);
    let mut largest = 0.0f64;
    for (token, found) in output.chunks(sizes.hidden).enumerate().take(compared) {
        for (found, expected) in found.iter().zip(sizes.on_one_pe(token)) {
            let difference = (f64::from(*found) - expected).abs();
            // A NaN counts as the largest difference.
            largest = if difference.is_nan() { f64::INFINITY } else { largest.max(difference) };
        }
    }
    assert!(largest <= TOLERANCE, "the output differs from that of one PE by {largest}, expected at most {TOLERANCE}");
    let mut losses = [sizes.loss(&output), -sizes.loss(&output)];
    world.team().all_reduce_in_place_blocking(&mut losses, ReduceOp::Max)?;
    assert_eq!(losses[0], -losses[1], "the PEs have different outputs");
    if me == 0 {
        println!("loss {:.6} on every PE; the output equals that of one PE", losses[0]);
        // Times differ from run to run, so they go to standard error.
        eprintln!("computation alone  {alone:9.3} ms; medians of {} passes", args.passes.max(1));
        for (name, time) in [("one operation", whole), ("separate steps", separate)] {
            let rest = (time - alone).max(0.0);
            eprintln!("{name:<18} {time:9.3} ms, of which {} all-reduces with norm {rest:.3} ms", sizes.layers);
        }
    }

    own.destroy()?;
    mlp.release()?;
    assert!(world.finalize()?.is_clean());
    Ok(())
}
