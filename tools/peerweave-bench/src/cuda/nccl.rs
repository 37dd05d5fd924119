//! A PE of `bench --backend nccl`: one process or thread with one GPU. Uses the same plan, inputs
//! and checks as the host backend.
//!
//! Invariant: every PE makes the same calls in the same order. PEs agree on the number of calls in
//! a batch through the rendezvous, not through the library under test.

use std::sync::Arc;
use std::time::{Duration, Instant};

use peerweave_bootstrap::{Job, Options, Rendezvous, Server};
use peerweave_driver::cudarc::driver::CudaGraph;
use peerweave_driver::{CudaError, DeviceMemory, DriverError, local_context};
use peerweave_nccl::{Communicator, Nccl, NcclMem, Window, WindowKind};

use super::Failure;
use super::agreement::Agreement;
use super::nccl_calls::{Operation, Setting, enqueue, operation};
use super::trial::{Site, Subject, Trial};
use crate::workload::args::Buffers;
use crate::workload::binding::{Bind, bind};
use crate::workload::config::{Case, Config};
use crate::workload::geometry::{self, GUARD, Placement, View};
use crate::workload::pattern::Sample;
use crate::workload::record::{Measured, Ready, Record, monotonic_ns, say};
use crate::workload::types::with_element_type;

/// Maximum duration of each wait.
const DEADLINE: Duration = Duration::from_secs(30);
/// Runs the PEs of this process: one PE, or with `--threads` one PE on each thread.
pub(super) fn run(config: &Config) -> Result<(), Failure> {
    if !config.threads {
        return one_pe(config, &Job::from_env()?);
    }
    let n_pes = u32::try_from(config.n_pes)?;
    let (_server, jobs) = Server::on_this_machine(n_pes)?;
    // Failures are passed between threads as text.
    let outcomes: Vec<Result<(), String>> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            jobs.iter().map(|job| scope.spawn(|| one_pe(config, job).map_err(|error| error.to_string()))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err("the thread of this PE panicked".to_owned())))
            .collect()
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
    let site = Site { config, stream: &stream, agreement: Agreement::new(&rendezvous) };
    let session = Session { communicator: &communicator, site: &site };
    site.agreement.barrier()?;
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
    site.agreement.barrier()?;
    communicator.finalize(DEADLINE)?;
    Ok(())
}

/// What one PE uses for all its measurements of NCCL: the communicator, and the configuration and
/// stream of the PE.
pub(crate) struct Session<'a> {
    pub(crate) communicator: &'a Communicator,
    pub(crate) site: &'a Site<'a>,
}

/// The buffers for all cases of one element type. Also holds the windows of the buffers, if the
/// buffers are registered.
pub(crate) struct Memory<T: Sample> {
    send: DeviceMemory<T>,
    recv: DeviceMemory<T>,
    windows: Vec<Window<T>>,
}

/// The measurement of one case, in place or out of place. Owns the buffers of the case.
pub(crate) struct Bench<'a, T> {
    session: &'a Session<'a>,
    subject: Subject,
    operation: Operation<T>,
    send: DeviceMemory<T>,
    recv: DeviceMemory<T>,
    /// Memory of the result and of the guard elements behind the result.
    guarded: DeviceMemory<T>,
}

impl Session<'_> {
    fn rows<T: Sample>(&self, cases: &[(usize, Case)]) -> Result<(), Failure> {
        let memory = self.memory::<T>(cases, self.site.config.window)?;
        for (row, case) in cases {
            let mut records = Vec::new();
            for placement in self.site.config.placements() {
                let (iters, batch_us, wrong) = self.bench(&memory, case, placement)?.measure()?;
                let pe = self.communicator.rank().index();
                records.push(Record::Measured(Measured { pe, row: *row, placement, iters, batch_us, wrong }));
            }
            records.iter().for_each(say);
        }
        self.free(memory)
    }

    fn view(&self, rank: usize, case: &Case, placement: Placement) -> View {
        let (op, n_pes) = (self.site.config.op, self.site.config.n_pes);
        View { op, counts: case.counts, n_pes, rank, root: case.root.unwrap_or(0), placement }
    }

    /// Allocates buffers that are long enough for every case in `cases`. Registers the buffers as
    /// windows if `is_window` is true. All PEs must call this function.
    pub(crate) fn memory<T: Sample>(&self, cases: &[(usize, Case)], is_window: bool) -> Result<Memory<T>, Failure> {
        let n_pes = self.site.config.n_pes;
        // Takes the largest length of all PEs, because a window has the same length on every PE.
        let most = |part: fn((usize, usize)) -> usize| {
            let of_case = |case| {
                self.site.config.placements().flat_map(move |placement| (0..n_pes).map(move |rank| (rank, case, placement)))
            };
            let all = cases.iter().flat_map(|(_, case)| of_case(case));
            all.map(|(rank, case, placement)| part(geometry::lengths(&self.view(rank, case, placement)))).max().unwrap_or(0)
        };
        let context = self.site.stream.context();
        let alloc = |len| -> Result<DeviceMemory<T>, Failure> {
            Ok(match self.site.config.buffers {
                // NCCL is fastest with memory of its own allocator, which nccl-tests uses as well.
                Buffers::Symmetric => NcclMem::alloc(self.communicator.nccl(), context, len)?.as_device_memory().clone(),
                Buffers::Private => DeviceMemory::alloc(context, len)?,
            })
        };
        // A window has at least one element.
        let (send, recv) = (alloc(most(|(send, _)| send).max(1))?, alloc(most(|(_, recv)| recv) + GUARD)?);
        let windows = if is_window { vec![self.window(&send)?, self.window(&recv)?] } else { Vec::new() };
        Ok(Memory { send, recv, windows })
    }

    /// Prepares the measurement of `case`. `placement` determines whether the calls work in place.
    pub(crate) fn bench<T: Sample>(
        &self,
        memory: &Memory<T>,
        case: &Case,
        placement: Placement,
    ) -> Result<Bench<'_, T>, Failure> {
        let view = self.view(self.communicator.rank().index(), case, placement);
        let (send_len, recv_len) = geometry::lengths(&view);
        Ok(Bench {
            session: self,
            subject: Subject { view, redop: case.redop },
            operation: operation(self.communicator, case.redop, &view)?,
            send: memory.send.slice(0..send_len)?,
            recv: memory.recv.slice(0..recv_len)?,
            guarded: memory.recv.slice(0..recv_len + GUARD)?,
        })
    }

    /// Frees the buffers. Collective if the buffers are registered as windows.
    pub(crate) fn free<T: Sample>(&self, memory: Memory<T>) -> Result<(), Failure> {
        for window in memory.windows {
            window.deregister(self.site.stream, DEADLINE)?;
        }
        Ok(())
    }

    /// Registers the memory of this PE as a window, which NCCL's kernels access directly.
    /// Collective.
    fn window<T: Sample>(&self, memory: &DeviceMemory<T>) -> Result<Window<T>, Failure> {
        let window = Window::register(self.communicator, memory, WindowKind::SYMMETRIC)?;
        Ok(window.ok_or("--window: NCCL cannot create windows on these devices, expected peer access between all devices")?)
    }
}

impl<T: Sample> Trial<T> for Bench<'_, T> {
    fn site(&self) -> &Site<'_> {
        self.session.site
    }

    fn subject(&self) -> Subject {
        self.subject
    }

    fn enqueue(&mut self, times: u64) -> Result<(), Failure> {
        let Session { communicator, site } = self.session;
        let setting = Setting { communicator, stream: site.stream, view: self.subject.view };
        for _ in 0..times {
            enqueue(&setting, &self.operation, &mut self.send, &mut self.recv)?;
        }
        Ok(())
    }

    fn finish(&self) -> Result<(), Failure> {
        Ok(self.session.communicator.wait(self.session.site.stream, DEADLINE)?)
    }

    fn timed(&mut self, graph: Option<&CudaGraph>, launches: u64) -> Result<f64, Failure> {
        self.session.site.agreement.barrier()?;
        let start = Instant::now();
        self.launch(graph, launches)?;
        self.finish()?;
        Ok(start.elapsed().as_secs_f64())
    }

    fn write(&mut self, result: &[T], input: Option<&[T]>) -> Result<(), Failure> {
        let stream = self.session.site.stream;
        self.guarded.copy_from(stream, result)?;
        Ok(input.map_or(Ok(()), |input| self.send.copy_from(stream, input))?)
    }

    fn read(&self) -> Result<Vec<T>, Failure> {
        Ok(self.guarded.to_vec(self.session.site.stream)?)
    }
}
