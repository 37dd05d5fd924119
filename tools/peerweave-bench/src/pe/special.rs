//! Operations that need more than an input and a result: all-reduce with RMSNorm, mixture of
//! experts, and locks. Each operation has its own memory, values and check.
//!
//! Invariant: every value is a small integer times a power of two, so results are exact.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use peerweave::{Buffer, Lock, NormElement, Rank, Result, RmsNorm, Stream, StreamDest, StreamSource, Symmetric, World};
use peerweave_moe::{Moe, Output, Received, Shape, Tokens};

use super::calls::Calls;
use super::measure::{Outcome, measure};
use super::memory::{self, Memory};
use super::operands::{Operands, Side};
use crate::workload::args::Buffers as BufferKind;
use crate::workload::config::{Case, Config};
use crate::workload::geometry::{GUARD, Part, Placement, View};
use crate::workload::op::{BenchOp, row_len};
use crate::workload::pattern::{Sample, float, hash, poison};
use crate::workload::types::with_float_type;

/// Measures one case of an operation for which `BenchOp::is_special` is true.
///
/// # Errors
/// The error of an operation.
pub(super) fn run(world: &World, stream: Option<&Stream>, config: &Config, case: &Case) -> Result<Outcome> {
    let rank = world.my_pe().index();
    let view = View { op: config.op, counts: case.counts, n_pes: world.n_pes(), rank, root: 0, placement: Placement::OutOfPlace };
    match config.op {
        BenchOp::Lock => locks(world, config, view),
        BenchOp::Moe => with_float_type!(case.dtype, T => experts::<T>(world, stream, config, view)),
        _ => with_float_type!(case.dtype, T => match config.buffers {
            BufferKind::Symmetric => {
                let norm = Norm::<T, Symmetric<T>>::new(view, world, stream, |len| world.alloc(len))?;
                let outcome = measure(world, stream, config, &norm)?;
                norm.release(Symmetric::release)?;
                Ok(outcome)
            }
            BufferKind::Private => {
                let norm = Norm::<T, Buffer<T>>::new(view, world, stream, |len| Ok(Buffer::zeroed(len)))?;
                let outcome = measure(world, stream, config, &norm)?;
                norm.release(|_| Ok(()))?;
                Ok(outcome)
            }
        }),
    }
}

/// Implements the methods of [`Operands`] that are the same for all operations of this module.
/// These operations access no target memory on another PE, so `store_target` does nothing and
/// `target_is` returns `true`.
macro_rules! without_target {
    ($element:ty) => {
        fn view(&self) -> &View {
            &self.view
        }
        fn recv_len(&self) -> usize {
            self.view.counts.recv
        }
        fn word(&self) -> &Symmetric<u64> {
            &self.word
        }
        fn store_target(&self, _bits: u64) -> Result<()> {
            Ok(())
        }
        fn target_is(&self, _bits: u64) -> Result<bool> {
            Ok(true)
        }
        fn element_bytes(&self) -> usize {
            size_of::<$element>()
        }
    };
}

fn wrong<T: Sample>(found: &[T], due: impl Iterator<Item = T>) -> u64 {
    found.iter().zip(due).map(|(found, due)| u64::from(found.bits64() != due.bits64())).sum()
}

// ---- all-reduce, residual and RMSNorm ----

/// Absolute value of every element that RMSNorm normalises in the check of `rms-norm`: the sum of
/// the inputs of all ranks and the residual. The residual is chosen so that each sum is this value
/// or its negative. The value is a power of four, so the root mean square of a row is exact.
const SUM: f64 = 64.0;

struct Norm<'a, T, M> {
    world: &'a World,
    stream: Option<&'a Stream>,
    view: View,
    hidden: usize,
    word: Symmetric<u64>,
    input: M,
    residual: M,
    weight: M,
    /// Memory of the result, and of the guard elements behind the result.
    guarded: M,
    output: M,
    element: std::marker::PhantomData<T>,
}

impl<'a, T: Sample, M: Memory<T>> Norm<'a, T, M> {
    fn new(view: View, world: &'a World, stream: Option<&'a Stream>, alloc: impl Fn(usize) -> Result<M>) -> Result<Self> {
        let (len, hidden) = (view.counts.param, row_len(view.counts.param, size_of::<T>()));
        let guarded = alloc(len + GUARD)?;
        Ok(Self {
            world,
            stream,
            view,
            hidden,
            word: world.alloc_zeroed(1)?,
            input: alloc(len)?,
            residual: alloc(len)?,
            weight: alloc(hidden)?,
            output: guarded.range(0..len)?,
            guarded,
            element: std::marker::PhantomData,
        })
    }

    fn release(self, release: impl Fn(M) -> Result<()>) -> Result<()> {
        drop(self.output);
        [self.input, self.residual, self.weight, self.guarded].into_iter().try_for_each(release)?;
        self.word.release()
    }

    /// Returns element `index` of the input of `rank` in round `round`. The element is an integer
    /// from -3 to 3; it is 0 if `rank` is at least 60.
    fn part(rank: usize, round: u64, index: usize) -> f64 {
        // At most 60 ranks contribute a nonzero value, so that the residual is exact in every type.
        if rank < 60 { (hash(rank as u64, round, index as u64) % 7) as f64 - 3.0 } else { 0.0 }
    }

    fn sum(round: u64, index: usize) -> f64 {
        if hash(u64::MAX, round, index as u64) & 1 == 0 { SUM } else { -SUM }
    }

    fn weight(round: u64, index: usize) -> f64 {
        1.0 + (hash(u64::MAX - 1, round, index as u64) % 7) as f64
    }
}

impl<T: Sample + NormElement, M: Memory<T>> Operands for Norm<'_, T, M>
where
    for<'m> &'m M: StreamSource<T> + StreamDest<T>,
{
    without_target!(T);

    fn calls<'a>(&'a self, _wrong: &'a Cell<u64>) -> Calls<'a> {
        let (team, Self { input, residual, output, weight, .. }) = (self.world.team(), self);
        match self.stream {
            None => Box::new(move |times| {
                (0..times).try_for_each(|_| team.all_reduce_rms_norm_blocking(input, residual, output, RmsNorm::new(weight)))
            }),
            Some(queue) => Box::new(move |times| {
                for _ in 0..times {
                    team.all_reduce_rms_norm(queue, input, residual, output, RmsNorm::new(weight))?;
                }
                queue.synchronize()
            }),
        }
    }

    fn fill(&self, _: Side, _: &Part, round: u64) -> Result<()> {
        let (n, rank, len) = (self.view.n_pes, self.view.rank, self.view.counts.param);
        let all = |of: &dyn Fn(usize) -> f64, len: usize| (0..len).map(|index| float::<T>(of(index))).collect::<Vec<T>>();
        self.input.set(&all(&|index| Self::part(rank, round, index), len))?;
        let parts = |index| (0..n).map(|rank| Self::part(rank, round, index)).sum::<f64>();
        self.residual.set(&all(&|index| Self::sum(round, index) - parts(index), len))?;
        self.weight.set(&all(&|index| Self::weight(round, index), self.hidden))
    }

    fn spoil(&self, _: Side, range: Range<usize>) -> Result<()> {
        memory::spoil(&self.guarded, range)
    }

    fn rewrite(&self, _: Side) {
        memory::rewrite(&self.input);
    }

    fn count_wrong(&self, _: Side, _: &Part, round: u64) -> Result<u64> {
        let mut found = vec![poison::<T>(); self.view.counts.param];
        self.residual.read(&mut found)?;
        let sums = wrong(&found, (0..).map(|index| float(Self::sum(round, index))));
        self.output.read(&mut found)?;
        let due = |index: usize| Self::sum(round, index) / SUM * Self::weight(round, index % self.hidden);
        Ok(sums + wrong(&found, (0..).map(|index| float(due(index)))))
    }

    fn count_unspoiled(&self, _: Side, range: Range<usize>) -> Result<u64> {
        memory::count_unspoiled(&self.guarded, range)
    }
}

// ---- mixture of experts ----

const TOP_K: usize = 2;
const LOCAL_EXPERTS: usize = 4;
const WEIGHTS: [f32; TOP_K] = [0.5, 0.25];

struct Experts<'a, T> {
    stream: &'a Stream,
    /// Whether a call waits until its last step, the combine (the return of the experts' results),
    /// is complete. `false` if stream-ordered calls are timed.
    waits: bool,
    view: View,
    hidden: usize,
    word: Symmetric<u64>,
    moe: RefCell<Moe<T, T>>,
    rows: Symmetric<T>,
    experts: Symmetric<i32>,
    weights: Symmetric<f32>,
    received: Symmetric<T>,
    offsets: Symmetric<u32>,
    guarded: Symmetric<T>,
}

fn experts<T: Sample + Output>(world: &World, stream: Option<&Stream>, config: &Config, view: View) -> Result<Outcome> {
    let own = world.stream()?;
    let (hidden, queue) = (row_len(view.counts.param, size_of::<T>()), stream.unwrap_or(&own));
    let tokens = view.counts.param / hidden;
    let moe = Moe::new(world, world.team(), queue, Shape::new(LOCAL_EXPERTS * view.n_pes, TOP_K, hidden, tokens))?;
    let all = Experts::<T> {
        stream: queue,
        waits: stream.is_none(),
        view,
        hidden,
        word: world.alloc_zeroed(1)?,
        rows: world.alloc(tokens * hidden)?,
        experts: world.alloc(tokens * TOP_K)?,
        weights: world.alloc(tokens * TOP_K)?,
        received: world.alloc(moe.max_rows() * hidden)?,
        offsets: world.alloc(LOCAL_EXPERTS + 1)?,
        guarded: world.alloc(tokens * hidden + GUARD)?,
        moe: RefCell::new(moe),
    };
    let outcome = measure(world, stream, config, &all)?;
    all.moe.into_inner().release()?;
    [all.rows, all.received, all.guarded].into_iter().try_for_each(Symmetric::release)?;
    all.experts.release()?;
    all.weights.release()?;
    all.offsets.release()?;
    all.word.release()?;
    Ok(outcome)
}

impl<T: Sample> Experts<'_, T> {
    fn tokens(&self) -> usize {
        self.view.counts.param / self.hidden
    }

    /// Returns the experts to which a rank sends one of its tokens.
    fn experts_of(&self, rank: usize, token: usize) -> [usize; TOP_K] {
        let all = LOCAL_EXPERTS * self.view.n_pes;
        let random = hash(rank as u64, u64::MAX, token as u64) as usize;
        let first = random % all;
        [first, (first + 1 + (random >> 32) % (all - 1)) % all]
    }

    fn value(rank: usize, round: u64, index: usize) -> f64 {
        (hash(rank as u64, round, index as u64) % 121) as f64 - 60.0
    }
}

impl<T: Sample + Output> Operands for Experts<'_, T> {
    without_target!(T);

    fn calls<'a>(&'a self, _wrong: &'a Cell<u64>) -> Calls<'a> {
        let outputs =
            self.guarded.slice(..self.view.counts.param).expect("the buffer contains the result and then the guard elements");
        Box::new(move |times| {
            let mut moe = self.moe.borrow_mut();
            let tokens = Tokens { rows: &self.rows, scales: None, experts: &self.experts, weights: &self.weights };
            let received = Received { rows: &self.received, scales: None, offsets: &self.offsets };
            for _ in 0..times {
                moe.dispatch(&tokens, &received)?;
                let ticket = moe.combine(&self.received, &outputs)?;
                if self.waits {
                    ticket.wait()?;
                }
            }
            self.stream.synchronize()
        })
    }

    fn fill(&self, _: Side, _: &Part, round: u64) -> Result<()> {
        let (rank, tokens) = (self.view.rank, self.tokens());
        let values = (0..self.view.counts.param).map(|index| float(Self::value(rank, round, index)));
        self.rows.copy_from(&values.collect::<Vec<T>>())?;
        let experts = (0..tokens).flat_map(|token| self.experts_of(rank, token)).map(|expert| expert as i32);
        self.experts.copy_from(&experts.collect::<Vec<i32>>())?;
        self.weights.copy_from(&WEIGHTS.repeat(tokens))
    }

    fn spoil(&self, _: Side, range: Range<usize>) -> Result<()> {
        memory::spoil(&self.received, 0..self.received.len())?;
        memory::spoil(&self.guarded, range)
    }

    fn rewrite(&self, _: Side) {
        memory::rewrite(&self.rows);
    }

    fn count_wrong(&self, _: Side, _: &Part, round: u64) -> Result<u64> {
        let (rank, n, hidden, tokens) = (self.view.rank, self.view.n_pes, self.hidden, self.tokens());
        // The experts return their inputs unchanged.
        let factor = f64::from(WEIGHTS.iter().sum::<f32>());
        let found = self.guarded.slice(..self.view.counts.param)?.to_vec()?;
        let mut all = wrong(&found, (0..).map(|index| float(factor * Self::value(rank, round, index))));
        // Rows are ordered by expert, then by rank, then by token.
        let (received, offsets) = (self.received.to_vec()?, self.offsets.to_vec()?);
        let mut row = 0;
        for (expert, first) in offsets[..LOCAL_EXPERTS].iter().enumerate() {
            all += u64::from(*first != row as u32);
            for (from, token) in (0..n).flat_map(|from| (0..tokens).map(move |token| (from, token))) {
                if self.experts_of(from, token).contains(&(rank * LOCAL_EXPERTS + expert)) {
                    let due = (token * hidden..).map(|index| float(Self::value(from, round, index)));
                    all += wrong(&received[row * hidden..(row + 1) * hidden], due);
                    row += 1;
                }
            }
        }
        Ok(all + u64::from(offsets[LOCAL_EXPERTS] != row as u32))
    }

    fn count_unspoiled(&self, _: Side, range: Range<usize>) -> Result<u64> {
        memory::count_unspoiled(&self.guarded, range)
    }
}

// ---- locks ----

/// Number of times that each PE acquires the lock for the check.
const TURNS: u64 = 50;

struct Locks<'a> {
    world: &'a World,
    view: View,
    lock: Lock,
    word: Symmetric<u64>,
}

fn locks(world: &World, config: &Config, view: View) -> Result<Outcome> {
    let all = Locks { world, view, lock: world.alloc_lock()?, word: world.alloc_zeroed(1)? };
    let outcome = measure(world, None, config, &all)?;
    all.lock.release()?;
    all.word.release()?;
    Ok(outcome)
}

impl Operands for Locks<'_> {
    without_target!(u64);

    fn calls<'a>(&'a self, _wrong: &'a Cell<u64>) -> Calls<'a> {
        Box::new(move |times| (0..times).try_for_each(|_| self.lock.lock()?.unlock()))
    }

    fn fill(&self, _: Side, _: &Part, _: u64) -> Result<()> {
        Ok(())
    }

    fn spoil(&self, _: Side, _: Range<usize>) -> Result<()> {
        Ok(())
    }

    fn rewrite(&self, _: Side) {}

    /// Checks the lock: every PE increments a counter on PE 0 repeatedly, and holds the lock for
    /// each increment. Returns the number of lost increments on PE 0, and 0 on the other PEs.
    fn count_wrong(&self, _: Side, _: &Part, _: u64) -> Result<u64> {
        let (team, zero) = (self.world.team(), Rank::new(0));
        for _ in 0..TURNS {
            let guard = self.lock.lock()?;
            let old = team.g_blocking(&self.word, 0, zero)?;
            team.p_blocking(&self.word, 0, old + 1, zero)?;
            guard.unlock()?;
        }
        team.barrier_blocking()?;
        let lost = if self.view.rank == 0 { self.word.load(0)?.abs_diff(TURNS * self.view.n_pes as u64) } else { 0 };
        team.barrier_blocking()?;
        self.word.store(0, 0)?;
        Ok(lost)
    }

    fn count_unspoiled(&self, _: Side, _: Range<usize>) -> Result<u64> {
        Ok(0)
    }
}
