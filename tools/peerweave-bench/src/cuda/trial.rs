//! Measures one case on a GPU, in the same way for every contender: checks the result, times the
//! calls, and checks the result again.
//!
//! [`Trial::measure`] runs these stages for one contender. A comparison instead begins the
//! trials of all contenders and alternates their batches.
//!
//! Invariant: in this module every PE calls the same sequence of barriers. PEs differ only in
//! whether their calls are timed.

use std::sync::Arc;

use peerweave_driver::cudarc::driver::CudaGraph;
use peerweave_driver::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use peerweave_driver::{CudaError, CudaStream};
use peerweave_types::ReduceOp;

use super::Failure;
use super::agreement::Agreement;
use crate::workload::config::Config;
use crate::workload::geometry::{self, GUARD, Part, Placement, View};
use crate::workload::op::BenchOp;
use crate::workload::pattern::{PERIOD, Sample, poison, tile};

/// Number of calls in the trial run, which estimates the time of a call. Also the minimum number of
/// calls in a batch.
const FEWEST_CALLS: u64 = 3;

/// One PE in a measurement: its configuration, its stream, and its barriers and exchanges with the
/// other PEs.
pub(crate) struct Site<'a> {
    pub(crate) config: &'a Config,
    pub(crate) stream: &'a Arc<CudaStream>,
    pub(crate) agreement: Agreement<'a>,
}

/// The operation and the reduction of a case.
#[derive(Clone, Copy)]
pub(crate) struct Subject {
    pub(crate) view: View,
    pub(crate) redop: Option<ReduceOp>,
}

/// Outcome of a measurement. The three fields are the number of calls per batch, the time of each
/// batch in microseconds per call (empty if this PE is not timed), and the number of wrong elements
/// (`None` if results were not checked).
pub(crate) type Outcome = (u64, Vec<f64>, Option<u64>);

/// A measurement that has begun: the data that [`Trial::batch`] and [`Trial::end`] need.
pub(crate) struct Started {
    graph: Option<CudaGraph>,
    launches: u64,
    /// Number of calls that one launch makes: all calls of the graph, or 1 without a graph.
    per_launch: u64,
    is_timed: bool,
    wrong: u64,
    batch_us: Vec<f64>,
}

/// The measurement of one case, in place or out of place, with one library.
pub(crate) trait Trial<T: Sample> {
    /// Returns the PE on which this trial runs, with its configuration and stream.
    fn site(&self) -> &Site<'_>;
    /// Returns the operation and the reduction that this trial measures.
    fn subject(&self) -> Subject;
    /// Enqueues `times` calls. If the library's calls are complete only after a further operation,
    /// such as a quiet, also enqueues that operation.
    fn enqueue(&mut self, times: u64) -> Result<(), Failure>;
    /// Adds `_calls`, which may be negative, to the number of executed calls. [`Self::enqueue`]
    /// also counts the calls that are captured but not executed, so [`Self::capture`] subtracts
    /// them. Each launch of the graph adds the calls of the graph. The default implementation does
    /// nothing, for trials whose checks do not depend on this number.
    fn count(&mut self, _calls: i64) {}
    /// Waits until the stream has completed all enqueued work.
    fn finish(&self) -> Result<(), Failure>;
    /// Waits in a barrier, then launches the graph `launches` times, or makes `launches` calls if
    /// there is no graph. Returns the time of the launches in seconds.
    fn timed(&mut self, graph: Option<&CudaGraph>, launches: u64) -> Result<f64, Failure>;
    /// Writes `result` to the memory of the result and of the guard elements behind the result.
    /// Writes `input` to the memory of the input, if the input has separate memory.
    fn write(&mut self, result: &[T], input: Option<&[T]>) -> Result<(), Failure>;
    /// Returns the elements of the result, followed by the guard elements behind the result.
    fn read(&self) -> Result<Vec<T>, Failure>;
    /// Initialises the memory whose values the checks of one-sided operations compare. Called
    /// before the first call of the operation. The default implementation does nothing, for trials
    /// without such operations.
    fn prepare_words(&mut self) -> Result<(), Failure> {
        Ok(())
    }
    /// Returns the number of wrong words that this PE has received since the last call of this
    /// function.
    fn wrong_words(&mut self) -> Result<u64, Failure> {
        Ok(0)
    }
    /// Checks barriers in which one PE arrives late. Returns how many times this PE left a barrier
    /// before the late PE had arrived.
    fn leavers(&mut self) -> Result<u64, Failure> {
        Ok(0)
    }

    /// Runs the whole measurement: [`begin`](Self::begin), all timed batches, and
    /// [`end`](Self::end).
    fn measure(&mut self) -> Result<Outcome, Failure> {
        let mut started = self.begin()?;
        for _ in 0..self.site().config.batches {
            self.batch(&mut started)?;
        }
        self.end(started)
    }

    /// Checks the result of one call, warms up, captures a graph if graphs are timed, and agrees on
    /// the number of calls in a batch.
    fn begin(&mut self) -> Result<Started, Failure> {
        let (config, Subject { view, .. }) = (self.site().config.clone(), self.subject());
        let mut wrong = 0;
        self.prepare_words()?;
        self.prepare(0)?;
        if config.check {
            self.make(1)?;
            wrong += self.check(0)?;
            if view.op.is_synchronization() {
                wrong += self.leavers()?;
            }
        }
        self.make(config.warmup.max(1))?;
        let graph = config.graph.map(|calls| self.capture(calls)).transpose()?;
        let per_launch = u64::from(config.graph.unwrap_or(1));
        let is_timed = !view.op.is_one_sided() || view.rank == 0;
        let launches = match config.iters {
            Some(iters) => iters.div_ceil(per_launch),
            None => {
                let mine = self.timed(graph.as_ref(), FEWEST_CALLS)?;
                let mine_ns = if is_timed { (mine * 1e9) as u64 } else { 0 };
                self.site().agreement.calls_per_batch(mine_ns, FEWEST_CALLS, config.batch_ms)?
            }
        };
        Ok(Started { graph, launches, per_launch, is_timed, wrong, batch_us: Vec::new() })
    }

    /// Runs and times one batch. If this PE is timed, appends the time per call to `started`.
    fn batch(&mut self, started: &mut Started) -> Result<(), Failure> {
        // A ping-pong is a round trip; half of its time is reported.
        let share = if self.subject().view.op == BenchOp::PingPong { 0.5 } else { 1.0 };
        let spent = self.timed(started.graph.as_ref(), started.launches)?;
        if started.is_timed {
            started.batch_us.push(spent * 1e6 / (started.launches * started.per_launch) as f64 * share);
        }
        Ok(())
    }

    /// Checks the result again after the timed batches, and returns the outcome.
    fn end(&mut self, started: Started) -> Result<Outcome, Failure> {
        let Started { graph, launches, per_launch, mut wrong, batch_us, .. } = started;
        let is_checked = self.site().config.check;
        let placement = self.subject().view.placement;
        self.site().agreement.barrier()?;
        if is_checked {
            // In place, the calls have overwritten their inputs. Only fresh inputs have a known
            // result.
            let round = u64::from(placement == Placement::InPlace);
            self.prepare(round)?;
            match &graph {
                Some(graph) if placement == Placement::OutOfPlace => {
                    self.launch(Some(graph), 1)?;
                    self.finish()?;
                }
                _ => self.make(1)?,
            }
            wrong += self.check(round)?;
        }
        Ok((launches * per_launch, batch_us, is_checked.then_some(wrong)))
    }

    /// Makes calls and waits for them, without timing.
    fn make(&mut self, times: u64) -> Result<(), Failure> {
        self.enqueue(times)?;
        self.finish()
    }

    /// Captures `calls` calls into a graph. Then launches the graph once, without timing, and waits
    /// until the launch has completed.
    fn capture(&mut self, calls: u32) -> Result<CudaGraph, Failure> {
        let stream = Arc::clone(self.site().stream);
        stream
            .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            .map_err(CudaError::of("cuStreamBeginCapture"))?;
        let captured = self.enqueue(u64::from(calls));
        // Ends the capture even after an error, because the stream could not be used otherwise.
        let graph = stream.end_capture(CUgraphInstantiate_flags(0)).map_err(CudaError::of("cuStreamEndCapture"));
        captured?;
        let graph = graph?.ok_or("the capture returned no graph")?;
        self.count(-i64::from(calls));
        graph.upload().map_err(CudaError::of("cuGraphUpload"))?;
        self.launch(Some(&graph), 1)?;
        self.finish()?;
        Ok(graph)
    }

    /// Enqueues the graph `launches` times. If there is no graph, enqueues `launches` calls
    /// instead.
    fn launch(&mut self, graph: Option<&CudaGraph>, launches: u64) -> Result<(), Failure> {
        let Some(graph) = graph else { return self.enqueue(launches) };
        self.count(launches as i64 * i64::from(self.site().config.graph.unwrap_or(1)));
        for _ in 0..launches {
            graph.launch().map_err(CudaError::of("cuGraphLaunch"))?;
        }
        Ok(())
    }

    /// Fills the input with values that depend on `round`, and the result with the value for
    /// unwritten elements ([`poison`]). Waits until all PEs have done so.
    fn prepare(&mut self, round: u64) -> Result<(), Failure> {
        let subject = self.subject();
        if subject.view.op.has_size() {
            let (input, is_shared) = (geometry::input(&subject.view), geometry::shares_buffer(&subject.view));
            let mut result = vec![poison::<T>(); geometry::lengths(&subject.view).1 + GUARD];
            let mut own = vec![poison::<T>(); if is_shared { 0 } else { input.at + input.len }];
            let filled = if is_shared { &mut result } else { &mut own };
            filled[input.at..input.at + input.len]
                .iter_mut()
                .zip(subject.values(&input, round))
                .for_each(|(to, from)| *to = from);
            self.write(&result, (!is_shared).then_some(&own))?;
        }
        self.site().agreement.barrier()
    }

    /// Returns the number of mistakes on this PE: wrong elements of the result, wrong received
    /// words, and guard elements that a call has changed. The guard elements follow the result in
    /// memory. Waits until all PEs have counted, because the next call may write into this memory.
    fn check(&mut self, round: u64) -> Result<u64, Failure> {
        // After this barrier, the puts of all PEs have completed.
        self.site().agreement.barrier()?;
        let subject = self.subject();
        let mut wrong = self.wrong_words()?;
        if subject.view.op.has_size() {
            let found = self.read()?;
            for part in geometry::results(&subject.view) {
                let pairs = found[part.at..part.at + part.len].iter().zip(subject.values::<T>(&part, round));
                wrong += pairs.filter(|(found, due)| found.bits64() != due.bits64()).count() as u64;
            }
            let behind = &found[found.len() - GUARD..];
            wrong += behind.iter().filter(|found| found.bits64() != poison::<T>().bits64()).count() as u64;
        }
        self.site().agreement.barrier()?;
        Ok(wrong)
    }
}

impl Subject {
    /// Returns the elements that the range `part` of a buffer must contain, if all ranks use their
    /// inputs of round `round`.
    fn values<T: Sample>(&self, part: &Part, round: u64) -> impl Iterator<Item = T> + use<T> {
        let tile = tile(part.of, self.redop, self.view.n_pes, round);
        let from = part.from;
        (0..part.len).map(move |i| tile[(from + i) % PERIOD])
    }
}
