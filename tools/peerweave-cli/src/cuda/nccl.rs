//! A PE of `bench --backend nccl`: one process or thread with one GPU. Uses the same plan, inputs
//! and checks as the host backend.
//!
//! Invariant: every PE makes the same calls in the same order. PEs agree on the number of calls in
//! a batch through the rendezvous, not through the library under test.

use std::sync::Arc;
use std::time::{Duration, Instant};

use peerweave_bootstrap::{Endpoint, Job, Options, Rendezvous, Server, ServerOptions, Token};
use peerweave_driver::cudarc::driver::CudaGraph;
use peerweave_driver::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use peerweave_driver::{CudaError, CudaStream, DeviceMemory, DriverError, local_context};
use peerweave_nccl::{Communicator, Nccl, NcclMem, Window, WindowKind};

use super::Failure;
use super::agreement::{Agreement, FEWEST_CALLS};
use super::nccl_calls::{Elements, Operation, Setting, enqueue, operation};
use crate::workload::args::Buffers;
use crate::workload::binding::{Bind, bind};
use crate::workload::config::{Case, Config};
use crate::workload::geometry::{self, GUARD, Placement, Tile, View};
use crate::workload::pattern::{PERIOD, input_tile, moved_tile, poison, reduced_tile};
use crate::workload::record::{Measured, Ready, Record, monotonic_ns, say};
use crate::workload::types::with_element_type;

/// Deadline of a wait.
const DEADLINE: Duration = Duration::from_secs(30);
/// Runs the PEs of this process.
pub(super) fn run(config: &Config) -> Result<(), Failure> {
    if !config.threads {
        return one_pe(config, &Job::from_env()?);
    }
    let n_pes = u32::try_from(config.n_pes)?;
    let token = Token::random()?;
    let server = Server::bind(&Endpoint::random_unix()?, token, n_pes, ServerOptions::default())?;
    let jobs: Vec<Job> = (0..n_pes).map(|pe| Job::on_one_machine(pe, n_pes, server.endpoint().clone(), token)).collect();
    // Failures are passed between threads as text.
    let outcomes: Vec<Result<(), String>> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            jobs.iter().map(|job| scope.spawn(|| one_pe(config, job).map_err(|error| error.to_string()))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("the thread panicked".to_owned()))).collect()
    });
    let failed = outcomes.into_iter().enumerate().filter_map(|(pe, outcome)| Some(format!("PE {pe}: {}", outcome.err()?)));
    let failed: Vec<String> = failed.collect();
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n").into()) }
}

fn one_pe(config: &Config, job: &Job) -> Result<(), Failure> {
    let rendezvous = Arc::new(Rendezvous::join(job, Options { deadline: DEADLINE, ..Options::default() })?);
    let pe = rendezvous.pe().index();
    if config.bind == Bind::Processor {
        bind(pe, config.n_pes);
    }
    let nccl = Nccl::load()?;
    let context = local_context(job.local_pe as usize)?;
    let stream = context.new_stream().map_err(CudaError::of("cuStreamCreate")).map_err(DriverError::from)?;
    let communicator = Communicator::builder().nccl(nccl).deadline(DEADLINE).from_rendezvous(&context, &rendezvous)?;
    let session = Session { config, communicator: &communicator, stream: &stream, agreement: Agreement::new(&rendezvous) };
    session.agreement.barrier()?;
    say(&Record::Ready(Ready {
        passed_at_ns: monotonic_ns(),
        pe,
        pid: std::process::id(),
        backend: "nccl".to_owned(),
        compute: format!("{}, NCCL {}", context.name().map_err(CudaError::of("cuDeviceGetName"))?, nccl.version()),
        private_buffers: "device memory".to_owned(),
    }));
    let cases: Vec<(usize, Case)> = config.cases().into_iter().enumerate().collect();
    for of_one_type in cases.chunk_by(|a, b| a.1.dtype == b.1.dtype) {
        with_element_type!(of_one_type[0].1.dtype, T => session.rows::<T>(of_one_type))?;
    }
    session.agreement.barrier()?;
    communicator.finalize(DEADLINE)?;
    Ok(())
}

struct Session<'a> {
    config: &'a Config,
    communicator: &'a Communicator,
    stream: &'a Arc<CudaStream>,
    agreement: Agreement<'a>,
}

/// One placement of one case, with its buffers.
struct Bench<'a, T> {
    session: &'a Session<'a>,
    case: &'a Case,
    view: View,
    operation: Operation<T>,
    send: DeviceMemory<T>,
    recv: DeviceMemory<T>,
    /// The memory of the result and of the guard elements behind it.
    guarded: DeviceMemory<T>,
}

impl Session<'_> {
    fn rows<T: Elements>(&self, cases: &[(usize, Case)]) -> Result<(), Failure> {
        let (pe, n_pes) = (self.communicator.rank().index(), self.config.n_pes);
        let view_of = |rank, case: &Case, placement| View {
            op: self.config.op,
            counts: case.counts,
            n_pes,
            rank,
            root: case.root.unwrap_or(0),
            placement,
        };
        let view = |case, placement| view_of(pe, case, placement);
        // The largest length of all PEs, because windows have the same length everywhere.
        let most = |part: fn((usize, usize)) -> usize| {
            let of_case =
                |case| self.config.placements().flat_map(move |placement| (0..n_pes).map(move |rank| (rank, case, placement)));
            let all = cases.iter().flat_map(|(_, case)| of_case(case));
            all.map(|(rank, case, placement)| part(geometry::lengths(&view_of(rank, case, placement)))).max().unwrap_or(0)
        };
        let context = self.stream.context();
        let alloc = |len| -> Result<DeviceMemory<T>, Failure> {
            Ok(match self.config.buffers {
                // As in nccl-tests; NCCL is fastest with its own memory.
                Buffers::Symmetric => NcclMem::alloc(self.communicator.nccl(), context, len)?.as_device_memory().clone(),
                Buffers::Private => DeviceMemory::alloc(context, len)?,
            })
        };
        // Windows must not be empty.
        let (send, recv) = (alloc(most(|(send, _)| send).max(1))?, alloc(most(|(_, recv)| recv) + GUARD)?);
        let windows = if self.config.window { vec![self.window(&send)?, self.window(&recv)?] } else { Vec::new() };
        for (row, case) in cases {
            let mut records = Vec::new();
            for placement in self.config.placements() {
                let view = view(case, placement);
                let (send_len, recv_len) = geometry::lengths(&view);
                let (send, recv, guarded) =
                    (send.slice(0..send_len)?, recv.slice(0..recv_len)?, recv.slice(0..recv_len + GUARD)?);
                let operation = operation(self.communicator, case.redop, &view)?;
                let mut bench = Bench { session: self, case, view, operation, send, recv, guarded };
                let (iters, batch_us, wrong) = bench.measure()?;
                records.push(Record::Measured(Measured { pe, row: *row, placement, iters, batch_us, wrong }));
            }
            records.iter().for_each(say);
        }
        for window in windows {
            window.deregister(self.stream, DEADLINE)?;
        }
        Ok(())
    }

    /// Registers the memory of all PEs as a window, which NCCL's kernels access directly.
    fn window<T: Elements>(&self, memory: &DeviceMemory<T>) -> Result<Window<T>, Failure> {
        let window = Window::register(self.communicator, memory, WindowKind::SYMMETRIC)?;
        Ok(window.ok_or("--window: NCCL cannot create windows on these devices, expected peer access between all of them")?)
    }
}

impl<T: Elements> Bench<'_, T> {
    fn measure(&mut self) -> Result<(u64, Vec<f64>, Option<u64>), Failure> {
        let config = self.session.config;
        let mut wrong = 0;
        self.prepare(0)?;
        if config.check {
            self.enqueue(1)?;
            wrong += self.check(0)?;
        }
        self.enqueue(config.warmup.max(1))?;
        self.finish()?;
        let graph = config.graph.map(|calls| self.capture(calls)).transpose()?;
        let per_launch = u64::from(config.graph.unwrap_or(1));
        let launches = match config.iters {
            Some(iters) => iters.div_ceil(per_launch),
            None => self.launches_per_batch(graph.as_ref())?,
        };
        let mut batch_us = Vec::new();
        for _ in 0..config.batches {
            let spent = self.timed(graph.as_ref(), launches)?;
            batch_us.push(spent.as_secs_f64() * 1e6 / (launches * per_launch) as f64);
        }
        self.session.agreement.barrier()?;
        if config.check {
            // In place, the calls have overwritten their inputs. Only fresh inputs have a known
            // result.
            let round = u64::from(self.view.placement == Placement::InPlace);
            self.prepare(round)?;
            match &graph {
                Some(graph) if self.view.placement == Placement::OutOfPlace => launch(graph, 1)?,
                _ => self.enqueue(1)?,
            }
            wrong += self.check(round)?;
        }
        Ok((launches * per_launch, batch_us, config.check.then_some(wrong)))
    }

    fn enqueue(&mut self, times: u64) -> Result<(), Failure> {
        let Session { communicator, stream, .. } = self.session;
        let setting = Setting { communicator, stream, view: self.view };
        for _ in 0..times {
            enqueue(&setting, &self.operation, &mut self.send, &mut self.recv)?;
        }
        Ok(())
    }

    /// Captures calls as a graph.
    fn capture(&mut self, calls: u32) -> Result<CudaGraph, Failure> {
        let stream = self.session.stream;
        stream
            .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            .map_err(CudaError::of("cuStreamBeginCapture"))?;
        let captured = self.enqueue(u64::from(calls));
        // Ends the capture even after an error, because the stream could not be used otherwise.
        let graph = stream.end_capture(CUgraphInstantiate_flags(0)).map_err(CudaError::of("cuStreamEndCapture"));
        captured?;
        let graph = graph?.ok_or("the capture returned no graph")?;
        graph.upload().map_err(CudaError::of("cuGraphUpload"))?;
        launch(&graph, 1)?;
        self.finish()?;
        Ok(graph)
    }

    /// Waits for all enqueued work.
    fn finish(&self) -> Result<(), Failure> {
        Ok(self.session.communicator.wait(self.session.stream, DEADLINE)?)
    }

    /// Times launches on this PE, after a barrier.
    fn timed(&mut self, graph: Option<&CudaGraph>, launches: u64) -> Result<Duration, Failure> {
        self.session.agreement.barrier()?;
        let start = Instant::now();
        match graph {
            Some(graph) => launch(graph, launches)?,
            None => self.enqueue(launches)?,
        }
        self.finish()?;
        Ok(start.elapsed())
    }

    /// Returns the number of launches in a batch; the same on every PE.
    fn launches_per_batch(&mut self, graph: Option<&CudaGraph>) -> Result<u64, Failure> {
        let mine = self.timed(graph, FEWEST_CALLS)?;
        self.session.agreement.calls_per_batch(mine.as_nanos() as u64, self.session.config.batch_ms)
    }

    /// Fills the input with the values of this round, and overwrites the result with a value that
    /// no result has.
    fn prepare(&mut self, round: u64) -> Result<(), Failure> {
        let stream = self.session.stream;
        let input = geometry::input(&self.view);
        let tile = self.tile(input.of, round);
        let mut result = vec![poison::<T>(); self.guarded.len()];
        let shared = geometry::shares_buffer(&self.view);
        let mut own = vec![poison::<T>(); if shared { 0 } else { self.send.len() }];
        let target = if shared { &mut result } else { &mut own };
        for (i, element) in target[input.at..input.at + input.len].iter_mut().enumerate() {
            *element = tile[(input.from + i) % PERIOD];
        }
        self.guarded.copy_from(stream, &result)?;
        if !shared {
            self.send.copy_from(stream, &own)?;
        }
        self.session.agreement.barrier()
    }

    /// Counts wrong elements in this PE's result and behind it.
    fn check(&self, round: u64) -> Result<u64, Failure> {
        self.finish()?;
        let found = self.guarded.to_vec(self.session.stream)?;
        let mut wrong = 0;
        for part in geometry::results(&self.view) {
            let tile = self.tile(part.of, round);
            let due = (0..part.len).map(|i| tile[(part.from + i) % PERIOD]);
            wrong +=
                found[part.at..part.at + part.len].iter().zip(due).filter(|(found, due)| found.bits64() != due.bits64()).count();
        }
        wrong += found[self.recv.len()..].iter().filter(|found| found.bits64() != poison::<T>().bits64()).count();
        self.session.agreement.barrier()?;
        Ok(wrong as u64)
    }

    fn tile(&self, of: Tile, round: u64) -> Vec<T> {
        let n_pes = self.view.n_pes;
        match (of, self.case.redop) {
            (Tile::Input(rank), None) => moved_tile(rank, round),
            (Tile::Input(rank), Some(redop)) => input_tile(redop, n_pes, rank, round),
            (Tile::Reduced, Some(redop)) => reduced_tile(redop, n_pes, round),
            (Tile::Reduced, None) => unreachable!("only reductions have a reduced result"),
        }
    }
}

pub(super) fn launch(graph: &CudaGraph, times: u64) -> Result<(), Failure> {
    for _ in 0..times {
        graph.launch().map_err(CudaError::of("cuGraphLaunch"))?;
    }
    Ok(())
}
