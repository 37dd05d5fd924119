//! Measures one operation on given buffers: checks the result, times the calls, and checks the
//! result again.
//!
//! Invariant: in this module every PE calls the same sequence of barriers. PEs differ only in
//! whether their calls are timed.

use std::cell::Cell;
use std::time::{Duration, Instant};

use peerweave::{Result, Stream, World};

use super::calls::{Calls, is_signal_alone};
use super::operands::{Operands, Side};
use crate::workload::config::Config;
use crate::workload::geometry::{self, GUARD, Placement, View};
use crate::workload::op::{BenchOp, ROUNDS_LATE};
use crate::workload::pattern::G_DUE;
use crate::workload::record::monotonic_ns;

/// Minimum duration of the trial run, which estimates the time of a call.
const TRIAL: Duration = Duration::from_millis(2);
const FEWEST_CALLS: u64 = 3;
const MOST_CALLS: u64 = 1 << 30;

/// What one PE measured for one case, either in place or out of place.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Calls per batch.
    pub iters: u64,
    /// Time of each batch, in microseconds per call; empty if this PE made no calls.
    pub batch_us: Vec<f64>,
    /// Number of wrong elements; `None` if results were not checked.
    pub wrong: Option<u64>,
}

/// Measures one case, in place or out of place.
///
/// # Errors
/// The error of an operation.
pub fn measure(world: &World, stream: Option<&Stream>, config: &Config, operands: &dyn Operands) -> Result<Outcome> {
    let bench = Bench { world, stream, config, operands, wrong: Cell::new(0), made: Cell::new(0) };
    bench.prepare_words()?;
    let mut calls = operands.calls(&bench.wrong);
    bench.run(&mut calls)
}

struct Bench<'a> {
    world: &'a World,
    stream: Option<&'a Stream>,
    config: &'a Config,
    operands: &'a dyn Operands,
    /// Number of wrong words that the calls have returned. Only some operations, such as `g` and
    /// atomics, return words.
    wrong: Cell<u64>,
    /// Number of calls made so far, timed or not. The checks of words depend on this number.
    made: Cell<u64>,
}

impl Bench<'_> {
    fn view(&self) -> &View {
        self.operands.view()
    }

    fn run(&self, calls: &mut Calls<'_>) -> Result<Outcome> {
        let team = self.world.team();
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
            if self.view().placement == Placement::InPlace || self.view().op == BenchOp::RmsNorm {
                // The calls have overwritten their inputs, or added to the residual. Only fresh
                // inputs have a known result.
                self.prepare(1)?;
                self.make(calls, 1)?;
                wrong += self.check(1, Turn::AfterTiming)?;
            } else {
                // Checks the result of the last of `iters` calls in a row.
                wrong += self.check(0, Turn::AfterTiming)?;
            }
        }
        Ok(Outcome { iters, batch_us, wrong: self.config.check.then_some(wrong + self.wrong.get()) })
    }

    /// Returns the fraction of a call's time that is reported: 0.5 for a ping-pong, because its
    /// call is a round trip, and 1 for all other operations.
    fn share_of_a_call(&self) -> f64 {
        if self.view().op == BenchOp::PingPong { 0.5 } else { 1.0 }
    }

    /// Returns whether the calls of this PE are timed. In one-sided operations, only PE 0 is timed.
    fn is_timed(&self) -> bool {
        !self.view().op.is_one_sided() || self.view().rank == 0
    }

    /// Makes calls between two barriers, without timing.
    fn make(&self, calls: &mut Calls<'_>, times: u64) -> Result<()> {
        self.world.team().barrier_blocking()?;
        calls(times)?;
        self.made.set(self.made.get() + times);
        self.world.team().barrier_blocking()
    }

    /// Makes `times` calls and returns the time that the calls took on this PE.
    fn timed(&self, calls: &mut Calls<'_>, times: u64) -> Result<Duration> {
        let team = self.world.team();
        self.made.set(self.made.get() + times);
        if !self.config.dirty {
            team.barrier_blocking()?;
            let start = Instant::now();
            calls(times)?;
            return Ok(start.elapsed());
        }
        let mut spent = Duration::ZERO;
        for _ in 0..times {
            self.operands.rewrite(self.input_side());
            team.barrier_blocking()?;
            let start = Instant::now();
            calls(1)?;
            spent += start.elapsed();
            if self.view().op.is_one_sided() {
                // A PE that makes no calls must not rewrite its memory while PE 0 reads it.
                team.barrier_blocking()?;
            }
        }
        Ok(spent)
    }

    /// Returns the number of calls for a batch of about `batch_ms` milliseconds, which is the same
    /// on every PE. Times the calls on all PEs, with more and more calls until [`TRIAL`] is
    /// reached, and uses the time of the slowest PE.
    fn calls_per_batch(&self, calls: &mut Calls<'_>) -> Result<u64> {
        let mut times = FEWEST_CALLS;
        loop {
            let mut slowest = [self.timed(calls, times)?.as_secs_f64()];
            self.world.team().all_reduce_in_place_blocking(&mut slowest, peerweave::ReduceOp::Max)?;
            let seconds = slowest[0].max(1e-9);
            if seconds >= TRIAL.as_secs_f64() || times >= MOST_CALLS / 8 {
                let wanted = f64::from(self.config.batch_ms) * 1e-3 / (seconds / times as f64);
                return Ok((wanted as u64).clamp(FEWEST_CALLS, MOST_CALLS));
            }
            times *= if seconds < TRIAL.as_secs_f64() / 16.0 { 8 } else { 2 };
        }
    }

    /// Sets the symmetric word to 0. For the operation `g`, also stores [`G_DUE`] in the element
    /// that PE 0 reads. Called before the first call of the operation.
    fn prepare_words(&self) -> Result<()> {
        let team = self.world.team();
        team.barrier_blocking()?;
        self.operands.word().store(0, 0)?;
        if self.view().op == BenchOp::G {
            self.operands.store_target(G_DUE)?;
        }
        team.barrier_blocking()
    }

    /// Fills the input of this PE with the values of round `round`, and its result with the value
    /// for unwritten elements (`poison`). Needs no barrier: a barrier precedes the next calls, and
    /// no PE accesses a peer's memory before that barrier.
    fn prepare(&self, round: u64) -> Result<()> {
        let view = self.view();
        if !view.op.has_size() {
            return Ok(());
        }
        let result_len = if view.op.is_one_sided() { view.counts.recv } else { self.operands.recv_len() };
        self.operands.spoil(self.result_side(), 0..result_len + GUARD)?;
        self.operands.fill(self.input_side(), &geometry::input(view), round)
    }

    /// Returns the number of mistakes on this PE: wrong elements or words, changed guard elements
    /// behind the result, and barriers that this PE left too early. Waits until all PEs have
    /// counted, because the next call may write into this memory.
    fn check(&self, round: u64, turn: Turn) -> Result<u64> {
        let view = self.view();
        let mut wrong = match view.op {
            // Barriers are checked only before timing, because the check of a barrier is slow.
            BenchOp::Barrier | BenchOp::Sync if turn == Turn::BeforeTiming => self.leavers()?,
            BenchOp::Lock if turn == Turn::BeforeTiming => {
                self.operands.count_wrong(self.result_side(), &geometry::input(view), round)?
            }
            BenchOp::P if view.rank == 1 => u64::from(!self.operands.target_is(self.made.get())?),
            BenchOp::Atomics | BenchOp::PutSignal if view.rank == 1 => {
                u64::from(self.operands.word().load(0)? != self.made.get())
            }
            _ => 0,
        };
        if view.op.has_size() && !is_signal_alone(view, self.operands.element_bytes()) {
            let side = self.result_side();
            for part in geometry::results(view) {
                wrong += self.operands.count_wrong(side, &part, round)?;
            }
            let end = if view.op.is_one_sided() { view.counts.recv } else { self.operands.recv_len() };
            wrong += self.operands.count_unspoiled(side, end..end + GUARD)?;
        }
        self.world.team().barrier_blocking()?;
        Ok(wrong)
    }

    /// Checks barriers: one PE after the other arrives late. Returns how many times this PE left a
    /// barrier before the late PE had arrived. The check compares times of all PEs, so all PEs must
    /// be on one machine.
    fn leavers(&self) -> Result<u64> {
        const LATE: Duration = Duration::from_micros(500);
        let (world, rank) = (self.world, self.view().rank);
        let mut early = 0;
        for round in 0..ROUNDS_LATE * world.n_pes() {
            let late = round % world.n_pes();
            world.team().barrier_blocking()?;
            if rank == late {
                std::thread::sleep(LATE);
            }
            let came = monotonic_ns();
            match (self.stream, self.view().op) {
                (None, BenchOp::Sync) => world.team().sync_blocking()?,
                (None, _) => world.team().barrier_blocking()?,
                (Some(stream), BenchOp::Sync) => world.team().sync(stream)?.wait()?,
                (Some(stream), _) => world.team().barrier(stream)?.wait()?,
            }
            let left = monotonic_ns();
            let mut last = [if rank == late { came } else { 0 }];
            world.team().all_reduce_in_place_blocking(&mut last, peerweave::ReduceOp::Max)?;
            early += u64::from(left < last[0]);
        }
        Ok(early)
    }

    /// Returns the memory that contains the input of a call. For get, this is the target memory. If
    /// input and result share a buffer, it is the memory of results; otherwise, the memory of
    /// inputs.
    fn input_side(&self) -> Side {
        match self.view().op {
            BenchOp::Get => Side::Target,
            _ if geometry::shares_buffer(self.view()) => Side::Recv,
            _ => Side::Send,
        }
    }

    /// Returns the memory in which the result of a call is checked on this PE: the target memory
    /// for puts and the ping-pong, otherwise the memory of results.
    fn result_side(&self) -> Side {
        match self.view().op {
            BenchOp::Put | BenchOp::PutSignal | BenchOp::PutStrided | BenchOp::PingPong => Side::Target,
            _ => Side::Recv,
        }
    }
}

/// The two checks of a measurement, before and after the timed batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    BeforeTiming,
    AfterTiming,
}
