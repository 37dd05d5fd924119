//! A PE of `bench --backend nvshmem`: one process with one GPU. Uses the same plan, inputs and
//! checks as the host backend; `nvshmem_calls.rs` has the calls.
//!
//! Invariant: every PE makes the same set-up calls in the same order. PEs agree on the number of
//! calls in a batch through the rendezvous, not through the library under test.

use std::sync::Arc;
use std::time::{Duration, Instant};

use peerweave_bootstrap::{Job, Options, Rendezvous};
use peerweave_driver::cudarc::driver::sys::{CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode};
use peerweave_driver::cudarc::driver::{CudaEvent, CudaGraph};
use peerweave_driver::{CudaError, CudaStream, DriverError, local_context};
use peerweave_nvshmem::{Context, Settings, SymmetricBuffer, Team};

use super::Failure;
use super::agreement::{Agreement, FEWEST_CALLS};
use super::nccl::launch;
use super::nvshmem_calls::{Calls, Memory, Reduced, device};
use crate::workload::args::{Buffers, Clock};
use crate::workload::binding::{Bind, bind};
use crate::workload::config::{Case, Config};
use crate::workload::geometry::{self, GUARD, Placement, Tile, View};
use crate::workload::op::{BenchOp, ROUNDS_LATE};
use crate::workload::pattern::{G_DUE, PERIOD, Sample, input_tile, moved_tile, poison, reduced_tile};
use crate::workload::record::{Measured, Ready, Record, monotonic_ns, say};
use crate::workload::types::with_element_type;

/// Deadline of a wait.
const DEADLINE: Duration = Duration::from_secs(30);
/// Time that a wait spins before it yields the processor.
const SPIN: Duration = Duration::from_micros(100);
/// NVSHMEM's default heap size, and the part of it that NVSHMEM uses itself.
const HEAP_BYTES: u64 = 1 << 30;
const HEAP_SPARE_BYTES: u64 = 64 << 20;

/// The GPU did not finish its work before the deadline.
#[derive(Debug, thiserror::Error)]
#[error("{op}: the GPU of PE {pe} did not finish within {waited:?}")]
struct Late {
    op: &'static str,
    pe: usize,
    waited: Duration,
}

/// Runs the PE of this process.
pub(super) fn run(config: &Config) -> Result<(), Failure> {
    let job = Job::from_env()?;
    let rendezvous = Arc::new(Rendezvous::join(&job, Options { deadline: DEADLINE, ..Options::default() })?);
    let pe = rendezvous.pe().index();
    let library = peerweave_nvshmem::Nvshmem::load()?;
    let gpu = local_context(job.local_pe as usize)?;
    let nvshmem = Context::from_rendezvous(&rendezvous, &gpu, settings(config))?;
    let stream = gpu.new_stream().map_err(CudaError::of("cuStreamCreate")).map_err(DriverError::from)?;
    let event = || gpu.new_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).map_err(CudaError::of("cuEventCreate"));
    let events = [event()?, event()?];
    // Only now, so that NVSHMEM's threads, which spin, do not inherit the binding.
    if config.bind == Bind::Processor {
        bind(pe, config.n_pes);
    }
    let session = Session {
        config,
        context: &nvshmem,
        world: nvshmem.world(),
        stream: &stream,
        events,
        agreement: Agreement::new(&rendezvous),
    };
    session.agreement.barrier()?;
    say(&Record::Ready(Ready {
        passed_at_ns: monotonic_ns(),
        pe,
        pid: std::process::id(),
        backend: "nvshmem".to_owned(),
        compute: format!("{}, NVSHMEM {}", gpu.name().map_err(CudaError::of("cuDeviceGetName"))?, library.version()),
        private_buffers: "device memory".to_owned(),
    }));
    let cases: Vec<(usize, Case)> = config.cases().into_iter().enumerate().collect();
    for of_one_type in cases.chunk_by(|a, b| a.1.dtype == b.1.dtype) {
        with_element_type!(of_one_type[0].1.dtype, T => session.rows::<T>(of_one_type))?;
    }
    session.agreement.barrier()?;
    drop(session);
    nvshmem.finalize()?;
    if let Some(rendezvous) = Arc::into_inner(rendezvous) {
        rendezvous.leave()?;
    }
    Ok(())
}

/// Returns settings with a heap that is large enough, unless the user set its size.
fn settings(config: &Config) -> Settings {
    let settings = Settings::default().deadline(DEADLINE);
    let bytes = |case: &Case| {
        let (send, recv, target) = lengths(config, case);
        (send + recv + target) as u64 * case.dtype.size_bytes() as u64
    };
    let most = config.cases().iter().map(bytes).max().unwrap_or(0) + HEAP_SPARE_BYTES;
    let said = std::env::var_os("NVSHMEM_SYMMETRIC_SIZE").is_some();
    if said || most <= HEAP_BYTES { settings } else { settings.symmetric_size_bytes(most) }
}

/// Returns the lengths of the input, the result and the target of one-sided operations, in
/// elements. They are the same on every PE, as symmetric memory requires.
fn lengths(config: &Config, case: &Case) -> (usize, usize, usize) {
    let (send, recv) = (case.counts.send, case.counts.recv);
    let result = if config.has_in_place() { send.max(recv) } else { recv };
    (send, result + GUARD, if config.op.is_one_sided() { recv + GUARD } else { GUARD })
}

struct Session<'a> {
    config: &'a Config,
    context: &'a Context,
    world: Team,
    stream: &'a Arc<CudaStream>,
    /// Events before and after the timed calls.
    events: [CudaEvent; 2],
    agreement: Agreement<'a>,
}

impl Session<'_> {
    /// Records an event on the stream.
    fn mark(&self, event: usize) -> Result<(), Failure> {
        Ok(self.events[event].record(self.stream).map_err(CudaError::of("cuEventRecord"))?)
    }

    /// Waits until the stream has passed the second event. Spins first, so that a short wait is not
    /// lengthened.
    fn passed(&self) -> Result<(), Failure> {
        let start = Instant::now();
        while !self.events[1].try_is_complete().map_err(CudaError::of("cuEventQuery"))? {
            match start.elapsed() {
                waited if waited < SPIN => std::hint::spin_loop(),
                waited if waited < DEADLINE => std::thread::yield_now(),
                waited => {
                    let (op, pe) = (self.config.op.name(), self.agreement.pe());
                    return Err(Late { op, pe, waited }.into());
                }
            }
        }
        Ok(())
    }

    fn finish(&self) -> Result<(), Failure> {
        self.mark(1)?;
        self.passed()
    }

    fn rows<T: Reduced>(&self, cases: &[(usize, Case)]) -> Result<(), Failure> {
        let all = cases.iter().map(|(_, case)| lengths(self.config, case));
        let (send, recv, target) = all.fold((0, 0, 0), |most, one| (most.0.max(one.0), most.1.max(one.1), most.2.max(one.2)));
        let alloc = |len| -> Result<Memory<T>, Failure> {
            Ok(match self.config.buffers {
                Buffers::Symmetric => Memory::Symmetric(self.context.alloc(len)?),
                Buffers::Private => device(self.context, len)?,
            })
        };
        let (send, recv) = (alloc(send)?, alloc(recv)?);
        let (target, word) = (self.context.alloc::<T>(target)?, self.context.alloc_zeroed::<u64>(1)?);
        for (row, case) in cases {
            let mut records = Vec::new();
            for placement in self.config.placements() {
                let view = View {
                    op: self.config.op,
                    counts: case.counts,
                    n_pes: self.config.n_pes,
                    rank: self.agreement.pe(),
                    root: case.root.unwrap_or(0),
                    placement,
                };
                let (send_len, recv_len) = geometry::lengths(&view);
                let guarded = self.result(&view, &recv, &target, recv_len + GUARD)?;
                let calls = Calls {
                    context: self.context,
                    world: &self.world,
                    stream: self.stream,
                    view,
                    redop: case.redop,
                    nbi: self.config.nbi,
                    send: send.slice(0..send_len)?,
                    recv: recv.slice(0..recv_len)?,
                    target: target.slice(0..if view.op.is_one_sided() { recv_len } else { 0 })?,
                    word: word.clone(),
                    made: 0,
                    wrong: 0,
                };
                let (iters, batch_us, wrong) = Bench { session: self, calls, guarded }.measure()?;
                let pe = view.rank;
                records.push(Record::Measured(Measured { pe, row: *row, placement, iters, batch_us, wrong }));
            }
            records.iter().for_each(say);
        }
        if self.config.graph.is_some() {
            // A thread of the driver, then one of `peerweave-driver` release what graphs kept
            // alive.
            std::thread::sleep(Duration::from_millis(200));
            peerweave_driver::settle(Instant::now() + DEADLINE);
        }
        for memory in [send, recv] {
            if let Memory::Symmetric(buffer) = memory {
                self.context.free(buffer)?;
            }
        }
        self.context.free(target)?;
        Ok(self.context.free(word)?)
    }

    /// Returns the memory of this PE's result and of the guard elements behind it.
    fn result<T: Sample>(
        &self,
        view: &View,
        recv: &Memory<T>,
        target: &SymmetricBuffer<T>,
        len: usize,
    ) -> Result<Memory<T>, Failure> {
        Ok(match view.op {
            BenchOp::Put | BenchOp::PutSignal | BenchOp::PingPong => Memory::Symmetric(target.slice(0..len)?),
            _ => recv.slice(0..len)?,
        })
    }
}

/// One placement of one case, with its buffers.
struct Bench<'a, T> {
    session: &'a Session<'a>,
    calls: Calls<'a, T>,
    /// The memory of the result and of the guard elements behind it.
    guarded: Memory<T>,
}

impl<T: Reduced> Bench<'_, T> {
    fn measure(&mut self) -> Result<(u64, Vec<f64>, Option<u64>), Failure> {
        let config = self.session.config;
        let mut wrong = 0;
        self.prepare_words()?;
        self.prepare(0)?;
        if config.check {
            self.make(1)?;
            wrong += self.check(0)?;
            if self.calls.view.op.meets() {
                wrong += self.leavers()?;
            }
        }
        self.make(config.warmup.max(1))?;
        let graph = config.graph.map(|calls| self.capture(calls)).transpose()?;
        let per_launch = u64::from(config.graph.unwrap_or(1));
        let launches = match config.iters {
            Some(iters) => iters.div_ceil(per_launch),
            None => self.launches_per_batch(graph.as_ref())?,
        };
        let mut batch_us = Vec::new();
        for _ in 0..config.batches {
            let spent = self.timed(graph.as_ref(), launches)?;
            if self.is_timed() {
                batch_us.push(spent * 1e6 / (launches * per_launch) as f64 * self.share_of_a_call());
            }
        }
        self.session.agreement.barrier()?;
        if config.check {
            // In place, the calls have overwritten their inputs. Only fresh inputs have a known
            // result.
            let round = u64::from(self.calls.view.placement == Placement::InPlace);
            self.prepare(round)?;
            match &graph {
                Some(graph) if self.calls.view.placement == Placement::OutOfPlace => {
                    self.launch(Some(graph), 1)?;
                    self.session.finish()?;
                }
                _ => self.make(1)?,
            }
            wrong += self.check(round)? + self.calls.wrong;
        }
        Ok((launches * per_launch, batch_us, config.check.then_some(wrong)))
    }

    /// Returns the part of a call that is reported: half for a ping-pong, which is a round trip.
    fn share_of_a_call(&self) -> f64 {
        if self.calls.view.op == BenchOp::PingPong { 0.5 } else { 1.0 }
    }

    /// Returns whether this PE is timed.
    fn is_timed(&self) -> bool {
        !self.calls.view.op.is_one_sided() || self.calls.view.rank == 0
    }

    /// Makes calls and waits for them, without timing.
    fn make(&mut self, times: u64) -> Result<(), Failure> {
        self.calls.make(times)?;
        self.calls.complete()?;
        self.session.finish()
    }

    /// Captures calls as a graph.
    fn capture(&mut self, calls: u32) -> Result<CudaGraph, Failure> {
        let (stream, made) = (self.session.stream, self.calls.made);
        stream
            .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            .map_err(CudaError::of("cuStreamBeginCapture"))?;
        let captured = self.calls.make(u64::from(calls));
        // Ends the capture even after an error, because the stream could not be used otherwise.
        let graph = stream.end_capture(CUgraphInstantiate_flags(0)).map_err(CudaError::of("cuStreamEndCapture"));
        captured?;
        let graph = graph?.ok_or("the capture returned no graph")?;
        // Captured calls have not run.
        self.calls.made = made;
        graph.upload().map_err(CudaError::of("cuGraphUpload"))?;
        self.launch(Some(&graph), 1)?;
        self.session.finish()?;
        Ok(graph)
    }

    /// Enqueues calls, or graphs of calls.
    fn launch(&mut self, graph: Option<&CudaGraph>, launches: u64) -> Result<(), Failure> {
        let Some(graph) = graph else {
            self.calls.make(launches)?;
            return Ok(self.calls.complete()?);
        };
        self.calls.made += launches * u64::from(self.session.config.graph.unwrap_or(1));
        launch(graph, launches)
    }

    /// Times launches on this PE after a barrier, in seconds.
    fn timed(&mut self, graph: Option<&CudaGraph>, launches: u64) -> Result<f64, Failure> {
        let config = self.session.config;
        self.session.agreement.barrier()?;
        if self.calls.view.op.is_one_sided() {
            // Keeps the GPU busy while the first timed calls are enqueued.
            self.calls.make(config.warmup)?;
            self.calls.complete()?;
        } else {
            self.session.world.barrier(self.session.stream)?;
        }
        if config.clock == Clock::Wall || config.nbi {
            self.session.finish()?;
        }
        let (times, each) = if config.each { (launches, 1) } else { (1, launches) };
        let mut spent = 0.0;
        for _ in 0..times {
            spent += self.timed_in_a_row(graph, each)?;
        }
        Ok(spent)
    }

    fn timed_in_a_row(&mut self, graph: Option<&CudaGraph>, launches: u64) -> Result<f64, Failure> {
        let session = self.session;
        let start = Instant::now();
        if session.config.clock == Clock::Events {
            session.mark(0)?;
        }
        self.launch(graph, launches)?;
        if session.config.nbi {
            // The end is recorded when the host has seen the quiet, as in perftest.
            session.finish()?;
        }
        session.finish()?;
        match session.config.clock {
            Clock::Wall => Ok(start.elapsed().as_secs_f64()),
            Clock::Events => {
                let [first, last] = &session.events;
                Ok(f64::from(first.elapsed_ms(last).map_err(CudaError::of("cuEventElapsedTime"))?) / 1e3)
            }
        }
    }

    /// Returns the number of launches in a batch; the same on every PE.
    fn launches_per_batch(&mut self, graph: Option<&CudaGraph>) -> Result<u64, Failure> {
        let mine = self.timed(graph, FEWEST_CALLS)?;
        self.session
            .agreement
            .calls_per_batch(if self.is_timed() { (mine * 1e9) as u64 } else { 0 }, self.session.config.batch_ms)
    }

    /// Initializes the words that peers change, before the first call.
    fn prepare_words(&mut self) -> Result<(), Failure> {
        let stream = self.session.stream;
        self.calls.word.copy_from(stream, &[0])?;
        if self.calls.view.op == BenchOp::G {
            self.calls.target.copy_from(stream, &[T::from_bits64(G_DUE)])?;
        }
        self.session.agreement.barrier()
    }

    /// Fills the input with the values of this round, and overwrites the result with a value that
    /// no result has.
    fn prepare(&mut self, round: u64) -> Result<(), Failure> {
        let view = self.calls.view;
        if view.op.has_size() {
            let stream = self.session.stream;
            let input = geometry::input(&view);
            let tile = self.tile(input.of, round);
            let mut result = vec![poison::<T>(); self.guarded.len()];
            let shared = geometry::shares_buffer(&view);
            let mut own = vec![poison::<T>(); if shared { 0 } else { input.at + input.len }];
            let filled = if shared { &mut result } else { &mut own };
            for (i, element) in filled[input.at..input.at + input.len].iter_mut().enumerate() {
                *element = tile[(input.from + i) % PERIOD];
            }
            self.guarded.write(stream, &result)?;
            match view.op {
                _ if shared => {}
                BenchOp::Get => self.calls.target.copy_from(stream, &own)?,
                _ => self.calls.send.write(stream, &own)?,
            }
        }
        self.session.agreement.barrier()
    }

    /// Counts wrong elements in this PE's result and behind it.
    fn check(&self, round: u64) -> Result<u64, Failure> {
        let Calls { view, made, target, word, stream, .. } = &self.calls;
        // All puts have completed.
        self.session.agreement.barrier()?;
        let mut wrong = match view.op {
            BenchOp::P if view.rank == 1 => u64::from(target.to_vec(stream)?[0].bits64() != T::from_bits64(*made).bits64()),
            BenchOp::PutSignal if view.rank == 1 => u64::from(word.to_vec(stream)?[0] != *made),
            BenchOp::PingPong if view.rank < 2 => u64::from(word.to_vec(stream)?[0] != *made),
            _ => 0,
        };
        if view.op.has_size() {
            let found = self.guarded.read(stream)?;
            for part in geometry::results(view) {
                let tile = self.tile(part.of, round);
                let due = (0..part.len).map(|i| tile[(part.from + i) % PERIOD]);
                let pairs = found[part.at..part.at + part.len].iter().zip(due);
                wrong += pairs.filter(|(found, due)| found.bits64() != due.bits64()).count() as u64;
            }
            let behind = &found[found.len() - GUARD..];
            wrong += behind.iter().filter(|found| found.bits64() != poison::<T>().bits64()).count() as u64;
        }
        self.session.agreement.barrier()?;
        Ok(wrong)
    }

    /// Makes each PE in turn arrive late and counts the PEs that leave before. Needs one clock, so
    /// one machine.
    fn leavers(&mut self) -> Result<u64, Failure> {
        const LATE: Duration = Duration::from_millis(1);
        let view = self.calls.view;
        let mut early = 0;
        for round in 0..ROUNDS_LATE * view.n_pes {
            let late = round % view.n_pes;
            self.session.agreement.barrier()?;
            if view.rank == late {
                std::thread::sleep(LATE);
            }
            let came = monotonic_ns();
            self.make(1)?;
            let left = monotonic_ns();
            let last = self.session.agreement.largest(if view.rank == late { came } else { 0 })?;
            early += u64::from(left < last);
        }
        Ok(early)
    }

    fn tile(&self, of: Tile, round: u64) -> Vec<T> {
        let n_pes = self.calls.view.n_pes;
        match (of, self.calls.redop) {
            (Tile::Input(rank), None) => moved_tile(rank, round),
            (Tile::Input(rank), Some(redop)) => input_tile(redop, n_pes, rank, round),
            (Tile::Reduced, Some(redop)) => reduced_tile(redop, n_pes, round),
            (Tile::Reduced, None) => unreachable!("only reductions have a reduced result"),
        }
    }
}
