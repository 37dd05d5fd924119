//! Ring attention: each PE has a slice of a sequence. The keys and values of all slices rotate by
//! put with signal, while each PE computes with the block that it has.
#![forbid(unsafe_code)]

use clap::Parser;
use peerweave::{Compare, Error, Rank, ReduceOp, Stream, Symmetric, World};
use peerweave_examples::attention::{Attention, HEAD, Matrix, Position, Sequence};
use std::time::Instant;

/// Largest difference from plain attention that rounding can cause.
const TOLERANCE: f64 = 1e-5;

/// Computes attention over a sequence of which each PE has a slice.
#[derive(Parser)]
struct Args {
    /// Number of tokens of the whole sequence
    #[arg(long, default_value_t = 120)]
    tokens: usize,
    /// Number of heads, of 64 elements each
    #[arg(long, default_value_t = 2)]
    heads: usize,
    /// Number of times that each algorithm is run and timed
    #[arg(long, default_value_t = 3)]
    passes: usize,
    /// Computes with the kernel on CPU threads, as on GPUs
    #[arg(long)]
    kernel: bool,
}

/// The state that both algorithms use.
struct Program {
    world: World,
    attention: Attention,
    /// The stream of kernels.
    computing: Stream,
    /// The stream of transfers.
    moving: Stream,
    /// The keys and values of this PE.
    own: Symmetric<f32>,
    /// The keys and values of two blocks that travel around the ring.
    slots: [Symmetric<f32>; 2],
    /// The keys and values of all PEs.
    all: Symmetric<f32>,
    /// Word 0: the last step whose block has arrived. Word 1: the last step whose block the right
    /// neighbour no longer needs.
    signals: Symmetric<u64>,
}

impl Program {
    /// Computes attention to all blocks while they travel around the ring. `done` is the number of
    /// steps of earlier calls; signals count on from there.
    fn ring(&self, done: u64) -> Result<(), Error> {
        let (team, attention) = (self.world.team(), &self.attention);
        let (me, n) = (team.my_rank().index(), team.size());
        let (left, right) = (Rank::new(((me + n - 1) % n) as u32), Rank::new(((me + 1) % n) as u32));
        let (arrived, free) = (self.signals.signal(0)?, self.signals.signal(1)?);
        for step in 0..n {
            let block = if step == 0 { &self.own } else { &self.slots[step % 2] };
            let count = done + step as u64;

            // One stream passes the block on. The right neighbour has two slots. The block goes to
            // the slot of the previous step, which the right neighbour must no longer need.
            if step + 1 < n {
                if step > 0 {
                    team.wait_until(&self.moving, &arrived, Compare::Ge, count)?;
                }
                if step > 1 {
                    team.wait_until(&self.moving, &free, Compare::Ge, count - 1)?;
                }
                team.put_signal(&self.moving, block, &self.slots[(step + 1) % 2], arrived.set(count + 1), right)?;
            }

            // Meanwhile this thread, or the other stream, computes with the same block.
            if step > 0 && attention.is_queued() {
                team.wait_until(&self.computing, &arrived, Compare::Ge, count)?;
            } else if step > 0 {
                team.wait_until_blocking(&arrived, Compare::Ge, count)?;
            }
            attention.attend(&self.computing, block, Position { step, owner: (me + n - step) % n })?;

            // Once the block has been passed on and used, the left neighbour may overwrite it.
            if step > 0 && step + 2 < n {
                self.moving.wait_event(&self.computing.record()?)?;
                team.signal(&self.moving, free.set(count), left)?;
            }
        }
        self.moving.synchronize()?;
        self.computing.synchronize()
    }

    /// Computes attention to all blocks after an all-gather of the blocks.
    fn all_gather(&self) -> Result<(), Error> {
        self.world.team().all_gather(&self.computing, &self.own, &self.all)?.wait()?;
        self.compute()
    }

    /// Computes attention to all blocks in the memory of this PE.
    fn compute(&self) -> Result<(), Error> {
        for (owner, block) in self.all.chunks(self.own.len())?.enumerate() {
            self.attention.attend(&self.computing, &block, Position { step: owner, owner })?;
        }
        self.computing.synchronize()
    }

    /// Runs an algorithm `passes` times. Returns the median time of the slowest PE, in
    /// milliseconds.
    fn timed(&self, passes: usize, form: impl Fn(usize) -> Result<(), Error>) -> Result<f64, Error> {
        let mut times = Vec::new();
        for pass in 0..passes.max(1) {
            self.world.team().barrier_blocking()?; // every PE has finished with the blocks of the previous pass
            let start = Instant::now();
            form(pass)?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        times.sort_by(f64::total_cmp);
        let mut median = [times[times.len() / 2]];
        self.world.team().all_reduce_in_place_blocking(&mut median, ReduceOp::Max)?;
        Ok(median[0])
    }

    /// Compares the result of the last run with plain attention, on all PEs.
    fn check(&self, form: &str) -> Result<(), Error> {
        let mut largest = [self.attention.difference()?];
        self.world.team().all_reduce_in_place_blocking(&mut largest, ReduceOp::Max)?;
        assert!(largest[0] <= TOLERANCE, "{form}: differs by {} from plain attention, expected {TOLERANCE} or less", largest[0]);
        if self.world.my_pe().get() == 0 {
            println!("{form}: the same as plain attention on one PE");
        }
        Ok(())
    }
}

fn main() -> Result<(), Error> {
    let args = Args::parse();
    let world = World::from_env()?;
    let (me, n) = (world.my_pe().index(), world.n_pes());
    let sequence = Sequence { tokens: args.tokens.max(n), heads: args.heads.max(1), n_pes: n };

    let by_kernel = args.kernel || world.backend_name() != "host";
    let len = sequence.block_len();
    let program = Program {
        attention: Attention::new(&world, sequence, by_kernel)?,
        computing: world.stream()?,
        moving: world.stream()?,
        own: world.alloc(len)?,
        slots: [world.alloc(len)?, world.alloc(len)?],
        all: world.alloc(n * len)?,
        signals: world.alloc_zeroed(2)?,
        world,
    };
    let content = [sequence.content(Matrix::Keys, me), sequence.content(Matrix::Values, me)].concat();
    program.own.copy_from(&content)?;
    if me == 0 {
        println!("{} tokens, at most {} on each PE", sequence.tokens, sequence.rows());
    }

    let gathered = program.timed(args.passes, |_| program.all_gather())?;
    program.check("all_gather")?;
    let computed = program.timed(args.passes, |_| program.compute())?;
    let rotated = program.timed(args.passes, |pass| program.ring((pass * n) as u64))?;
    program.check("ring")?;

    // Times differ from run to run, so they go to standard error.
    if me == 0 {
        let (heads, bytes) = (sequence.heads, len * size_of::<f32>());
        eprintln!("{heads} heads of {HEAD} elements, blocks of {bytes} bytes; medians of {} passes:", args.passes.max(1));
        eprintln!("computation alone  {computed:9.3} ms");
        eprintln!("ring               {rotated:9.3} ms, of which communication {:.3} ms", rotated - computed);
        eprintln!("all_gather         {gathered:9.3} ms, of which communication {:.3} ms", gathered - computed);
    }

    let Program { world, attention, own, slots: [even, odd], all, signals, .. } = program;
    attention.release()?;
    for buffer in [own, even, odd, all] {
        buffer.release()?;
    }
    signals.release()?;
    assert!(world.finalize()?.is_clean());
    Ok(())
}
