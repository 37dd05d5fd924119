//! Measures one operation on given buffers: checks it, times it, and checks it again.
//!
//! Invariant: every PE makes the same sequence of barriers here; PEs differ only in whether they
//! are timed.

use std::cell::Cell;
use std::time::{Duration, Instant};

use peerweave::{Element, Result, Stream, Symmetric, World};

use super::calls::{self, Calls, G_DUE, Reduces, Setting, Words, is_signal_alone};
use super::config::{Case, Config};
use super::geometry::{self, Placement, Tile, View};
use super::memory::{GUARD, Memory, count_unspoiled, count_wrong, fill, rewrite, spoil};
use super::op::BenchOp;
use super::pattern::{input_tile, moved_tile, reduced_tile};
use peerweave::{MaybeDest, MaybeSource, StreamDest, StreamSource};

/// Intended duration of a batch.
const BATCH: Duration = Duration::from_millis(30);
/// Minimum duration of the trial that estimates the time of a call.
const TRIAL: Duration = Duration::from_millis(2);
/// How often each PE arrives late at a barrier that is checked. More than once, because a PE that
/// leaves early is not seen where the system stops it for as long as the other is late.
pub(crate) const ROUNDS_LATE: usize = 8;
const FEWEST_CALLS: u64 = 3;
const MOST_CALLS: u64 = 1 << 30;

/// The memory of a PE, large enough for the largest case of its type.
pub struct Buffers<T, M> {
    /// Inputs.
    pub send: M,
    /// Results.
    pub recv: M,
    /// Target of one-sided operations.
    pub target: Symmetric<T>,
    /// A signal, or a counter.
    pub word: Symmetric<u64>,
}

/// Measurement of one PE in one placement.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Calls per batch.
    pub iters: u64,
    /// Microseconds per call of each batch; empty if this PE made no calls.
    pub batch_us: Vec<f64>,
    /// Number of wrong elements; `None` if results were not checked.
    pub wrong: Option<u64>,
}

/// Measures one placement of one case.
///
/// # Errors
/// The error of an operation.
pub fn measure<T, M>(
    world: &World,
    stream: Option<&Stream>,
    config: &Config,
    case: &Case,
    placement: Placement,
    buffers: &Buffers<T, M>,
) -> Result<Outcome>
where
    T: Reduces,
    M: Memory<T>,
    for<'m> &'m M: StreamSource<T> + StreamDest<T> + MaybeSource<T, Argument = &'m M> + MaybeDest<T, Argument = &'m M>,
{
    let rank = world.my_pe().index();
    let view = View { op: config.op, counts: case.counts, n_pes: world.n_pes(), rank, root: case.root.unwrap_or(0), placement };
    let (send_len, recv_len) = geometry::lengths(&view);
    let setting = Setting { world, stream, view, send: buffers.send.range(0..send_len)?, recv: buffers.recv.range(0..recv_len)? };
    let target = buffers.target.slice(0..if view.op.is_one_sided() { recv_len } else { 0 })?;
    let bench = Bench { config, case, buffers, setting: &setting, target: &target, wrong: Cell::new(0), made: Cell::new(0) };
    bench.prepare_words()?;
    let mut calls = bench.calls();
    bench.run(&mut calls)
}

struct Bench<'a, T, M> {
    config: &'a Config,
    case: &'a Case,
    buffers: &'a Buffers<T, M>,
    setting: &'a Setting<'a, M>,
    target: &'a Symmetric<T>,
    /// Number of words received that differed from the expected ones.
    wrong: Cell<u64>,
    /// Number of calls made so far.
    made: Cell<u64>,
}

impl<T, M> Bench<'_, T, M>
where
    T: Reduces,
    M: Memory<T>,
    for<'m> &'m M: StreamSource<T> + StreamDest<T> + MaybeSource<T, Argument = &'m M> + MaybeDest<T, Argument = &'m M>,
{
    fn view(&self) -> &View {
        &self.setting.view
    }

    fn calls(&self) -> Calls<'_> {
        let op = self.view().op;
        if op.is_one_sided() {
            let words = Words { word: &self.buffers.word, wrong: &self.wrong };
            return calls::one_sided(self.setting, self.target, words);
        }
        match self.case.redop {
            Some(redop) => T::reducing(self.setting, redop),
            None => calls::moving(self.setting),
        }
    }

    fn run(&self, calls: &mut Calls<'_>) -> Result<Outcome> {
        let team = self.setting.world.team();
        let mut wrong = 0;
        self.prepare(0)?;
        if self.config.check {
            self.make(calls, 1)?;
            wrong += self.check(0, Turn::BeforeTiming)?;
        }
        self.make(calls, self.config.warmup)?;
        let iters = match self.config.iters {
            Some(iters) => iters,
            None => self.calls_per_batch(calls)?,
        };
        let mut batch_us = Vec::new();
        for _ in 0..self.config.batches {
            let spent = self.timed(calls, iters)?;
            if self.is_timed() {
                batch_us.push(spent.as_secs_f64() * 1e6 / iters as f64 * self.share_of_a_call());
            }
        }
        team.barrier_blocking()?;
        if self.config.check {
            if self.view().placement == Placement::InPlace {
                // In place, the calls have overwritten their inputs. Only fresh inputs have a known
                // result.
                self.prepare(1)?;
                self.make(calls, 1)?;
                wrong += self.check(1, Turn::AfterTiming)?;
            } else {
                // The result of the last of `iters` calls in a row.
                wrong += self.check(0, Turn::AfterTiming)?;
            }
        }
        Ok(Outcome { iters, batch_us, wrong: self.config.check.then_some(wrong + self.wrong.get()) })
    }

    /// Returns the part of a call that is reported: half for a ping-pong, which is a round trip.
    fn share_of_a_call(&self) -> f64 {
        if self.view().op == BenchOp::PingPong { 0.5 } else { 1.0 }
    }

    /// Returns whether this PE is timed.
    fn is_timed(&self) -> bool {
        !self.view().op.is_one_sided() || self.view().rank == 0
    }

    /// Makes calls between two barriers, without timing.
    fn make(&self, calls: &mut Calls<'_>, times: u64) -> Result<()> {
        self.setting.world.team().barrier_blocking()?;
        calls(times)?;
        self.made.set(self.made.get() + times);
        self.setting.world.team().barrier_blocking()
    }

    /// Makes calls and returns the time that they took on this PE.
    fn timed(&self, calls: &mut Calls<'_>, times: u64) -> Result<Duration> {
        let team = self.setting.world.team();
        self.made.set(self.made.get() + times);
        if !self.config.dirty {
            team.barrier_blocking()?;
            let start = Instant::now();
            calls(times)?;
            return Ok(start.elapsed());
        }
        let mut spent = Duration::ZERO;
        for _ in 0..times {
            self.rewrite_input();
            team.barrier_blocking()?;
            let start = Instant::now();
            calls(1)?;
            spent += start.elapsed();
            if self.view().op.is_one_sided() {
                // A PE that is only read must not rewrite its memory meanwhile.
                team.barrier_blocking()?;
            }
        }
        Ok(spent)
    }

    /// Returns the number of calls that take about [`BATCH`]; the same on every PE.
    fn calls_per_batch(&self, calls: &mut Calls<'_>) -> Result<u64> {
        let mut times = FEWEST_CALLS;
        loop {
            let mut slowest = [self.timed(calls, times)?.as_secs_f64()];
            self.setting.world.team().all_reduce_in_place_blocking(&mut slowest, peerweave::ReduceOp::Max)?;
            let seconds = slowest[0].max(1e-9);
            if seconds >= TRIAL.as_secs_f64() || times >= MOST_CALLS / 8 {
                let wanted = BATCH.as_secs_f64() / (seconds / times as f64);
                return Ok((wanted as u64).clamp(FEWEST_CALLS, MOST_CALLS));
            }
            times *= if seconds < TRIAL.as_secs_f64() / 16.0 { 8 } else { 2 };
        }
    }

    /// Initializes the words that peers change, before the first call.
    fn prepare_words(&self) -> Result<()> {
        let team = self.setting.world.team();
        team.barrier_blocking()?;
        self.buffers.word.store(0, 0)?;
        if self.view().op == BenchOp::G {
            self.buffers.target.store(0, T::from_bits64(G_DUE))?;
        }
        team.barrier_blocking()
    }

    /// Fills inputs and overwrites results with a value that no result has. No PE reads a peer's
    /// memory before the barrier of the next call.
    fn prepare(&self, round: u64) -> Result<()> {
        let view = self.view();
        if !view.op.has_size() {
            return Ok(());
        }
        let result = self.result_memory();
        let result_len = if view.op.is_one_sided() { view.counts.recv } else { self.setting.recv.count() };
        match result {
            Kind::Own(memory) => spoil(memory, 0..result_len + GUARD)?,
            Kind::Target(memory) => spoil(memory, 0..result_len + GUARD)?,
        }
        let part = geometry::input(view);
        let tile = self.tile(part.of, round);
        match self.input_memory() {
            Kind::Own(memory) => fill(memory, &part, &tile),
            Kind::Target(memory) => fill(memory, &part, &tile),
        }
    }

    fn rewrite_input(&self) {
        match self.input_memory() {
            Kind::Own(_) if geometry::shares_buffer(self.view()) => rewrite(&self.setting.recv),
            Kind::Own(_) => rewrite(&self.setting.send),
            Kind::Target(_) => rewrite(self.target),
        }
    }

    /// Counts wrong elements in this PE's result and behind it. Waits until all PEs have counted,
    /// because the next call may write here.
    fn check(&self, round: u64, turn: Turn) -> Result<u64> {
        let view = self.view();
        let mut wrong = match view.op {
            // Only before timing, because this check is slow.
            BenchOp::Barrier | BenchOp::Sync if turn == Turn::BeforeTiming => self.leavers()?,
            BenchOp::P if view.rank == 1 => {
                u64::from(self.buffers.target.load(0)?.bits64() != T::from_bits64(self.made.get()).bits64())
            }
            BenchOp::Atomics | BenchOp::PutSignal if view.rank == 1 => u64::from(self.buffers.word.load(0)? != self.made.get()),
            _ => 0,
        };
        if view.op.has_size() && !is_signal_alone(view, size_of::<T>()) {
            for part in geometry::results(view) {
                let tile = self.tile(part.of, round);
                wrong += match self.result_memory() {
                    Kind::Own(memory) => count_wrong(memory, &part, &tile)?,
                    Kind::Target(memory) => count_wrong(memory, &part, &tile)?,
                };
            }
            let end = if view.op.is_one_sided() { view.counts.recv } else { self.setting.recv.count() };
            wrong += match self.result_memory() {
                Kind::Own(memory) => count_unspoiled(memory, end..end + GUARD)?,
                Kind::Target(memory) => count_unspoiled(memory, end..end + GUARD)?,
            };
        }
        self.setting.world.team().barrier_blocking()?;
        Ok(wrong)
    }

    /// Makes each PE in turn arrive late and counts the PEs that leave before. Needs one clock, so
    /// one machine.
    fn leavers(&self) -> Result<u64> {
        const LATE: Duration = Duration::from_micros(500);
        let (world, rank) = (self.setting.world, self.view().rank);
        let mut early = 0;
        for round in 0..ROUNDS_LATE * world.n_pes() {
            let late = round % world.n_pes();
            world.team().barrier_blocking()?;
            if rank == late {
                std::thread::sleep(LATE);
            }
            let came = super::record::monotonic_ns();
            match (self.setting.stream, self.view().op) {
                (None, BenchOp::Sync) => world.team().sync_blocking()?,
                (None, _) => world.team().barrier_blocking()?,
                (Some(stream), BenchOp::Sync) => world.team().sync(stream)?.wait()?,
                (Some(stream), _) => world.team().barrier(stream)?.wait()?,
            }
            let left = super::record::monotonic_ns();
            let mut last = [if rank == late { came } else { 0 }];
            world.team().all_reduce_in_place_blocking(&mut last, peerweave::ReduceOp::Max)?;
            early += u64::from(left < last[0]);
        }
        Ok(early)
    }

    fn tile(&self, of: Tile, round: u64) -> Vec<T> {
        let n_pes = self.view().n_pes;
        match (of, self.case.redop) {
            (Tile::Input(rank), None) => moved_tile(rank, round),
            (Tile::Input(rank), Some(redop)) => input_tile(redop, n_pes, rank, round),
            (Tile::Reduced, Some(redop)) => reduced_tile(redop, n_pes, round),
            (Tile::Reduced, None) => unreachable!("only reductions have a reduced result"),
        }
    }

    /// Returns the memory with this PE's input.
    fn input_memory(&self) -> Kind<'_, T, M> {
        match self.view().op {
            BenchOp::Get => Kind::Target(&self.buffers.target),
            _ if geometry::shares_buffer(self.view()) => Kind::Own(&self.buffers.recv),
            _ => Kind::Own(&self.buffers.send),
        }
    }

    /// Returns the memory with this PE's result.
    fn result_memory(&self) -> Kind<'_, T, M> {
        match self.view().op {
            BenchOp::Put | BenchOp::PutSignal | BenchOp::PingPong => Kind::Target(&self.buffers.target),
            _ => Kind::Own(&self.buffers.recv),
        }
    }
}

/// The two checks of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    BeforeTiming,
    AfterTiming,
}

/// Symmetric or private memory.
enum Kind<'a, T: Element, M> {
    Own(&'a M),
    Target(&'a Symmetric<T>),
}
