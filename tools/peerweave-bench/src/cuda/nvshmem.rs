//! A PE of `bench --backend nvshmem`: one process with one GPU. Uses the same plan, inputs and
//! checks as the host backend. The calls are in `nvshmem_calls.rs`.
//!
//! Invariant: every PE makes the same set-up calls in the same order. PEs agree on the number of
//! calls in a batch through the rendezvous, not through the library under test.

use std::sync::Arc;
use std::time::{Duration, Instant};

use peerweave_bootstrap::{Job, Options, Rendezvous};
use peerweave_driver::cudarc::driver::sys::CUevent_flags;
use peerweave_driver::cudarc::driver::{CudaEvent, CudaGraph};
use peerweave_driver::{CudaError, DriverError, local_context};
use peerweave_nvshmem::{Context, Settings, SymmetricBuffer, Team};

use super::Failure;
use super::agreement::Agreement;
use super::nvshmem_calls::{Calls, Memory, Reduced, device};
use super::trial::{Site, Subject, Trial};
use crate::workload::args::{Buffers, Clock};
use crate::workload::binding::{Bind, bind};
use crate::workload::config::{Case, Config};
use crate::workload::geometry::{self, GUARD, Placement, View};
use crate::workload::op::{BenchOp, ROUNDS_LATE};
use crate::workload::pattern::{G_DUE, Sample};
use crate::workload::record::{Measured, Ready, Record, monotonic_ns, say};
use crate::workload::types::with_element_type;

/// Maximum duration of each wait.
const DEADLINE: Duration = Duration::from_secs(30);
/// Time that a wait spins before it yields the processor.
const SPIN: Duration = Duration::from_micros(100);
/// NVSHMEM's default heap size.
const HEAP_BYTES: u64 = 1 << 30;
/// Size of the part of the heap that NVSHMEM uses itself, in bytes.
const HEAP_SPARE_BYTES: u64 = 64 << 20;

/// The error if the GPU did not finish its work before the deadline.
#[derive(Debug, thiserror::Error)]
#[error("{op}: the GPU of PE {pe} did not finish within {waited:?}")]
struct Late {
    op: &'static str,
    pe: usize,
    waited: Duration,
}

/// Runs this process's part of the benchmark as one PE: joins the job, initialises NVSHMEM and
/// measures every case.
pub(super) fn run(config: &Config) -> Result<(), Failure> {
    let job = Job::from_env()?;
    let rendezvous = Arc::new(Rendezvous::join(&job, Options { deadline: DEADLINE, ..Options::default() })?);
    let pe = rendezvous.pe().index();
    let library = peerweave_nvshmem::Nvshmem::load()?;
    let gpu = local_context(job.local_pe as usize)?;
    let nvshmem = Context::from_rendezvous(&rendezvous, &gpu, settings(config))?;
    let stream = gpu.new_stream().map_err(CudaError::of("cuStreamCreate")).map_err(DriverError::from)?;
    // Binds this thread after NVSHMEM has started its threads, so that NVSHMEM's threads, which
    // spin, do not inherit the binding.
    if config.bind == Bind::Processor {
        bind(pe, config.n_pes);
    }
    let site = Site { config, stream: &stream, agreement: Agreement::new(&rendezvous) };
    let session = Session::new(&nvshmem, &site)?;
    site.agreement.barrier()?;
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
    site.agreement.barrier()?;
    drop(session);
    nvshmem.finalize()?;
    if let Some(rendezvous) = Arc::into_inner(rendezvous) {
        rendezvous.leave()?;
    }
    Ok(())
}

/// Returns NVSHMEM's settings. Unless the user has set the heap size, the heap is large enough for
/// the measurement.
pub(crate) fn settings(config: &Config) -> Settings {
    let settings = Settings::default().deadline(DEADLINE);
    let bytes = |case: &Case| {
        let (send, recv, target) = lengths(config, case);
        (send + recv + target) as u64 * case.dtype.size_bytes() as u64
    };
    let most = config.cases().iter().map(bytes).max().unwrap_or(0) + HEAP_SPARE_BYTES;
    let said = std::env::var_os("NVSHMEM_SYMMETRIC_SIZE").is_some();
    if said || most <= HEAP_BYTES { settings } else { settings.symmetric_size_bytes(most) }
}

/// Returns three lengths in elements: of the input, of the result, and of the memory that one-sided
/// operations access on the other PE. The lengths are the same on every PE, as symmetric memory
/// requires.
fn lengths(config: &Config, case: &Case) -> (usize, usize, usize) {
    let (send, recv) = (case.counts.send, case.counts.recv);
    let result = if config.has_in_place() { send.max(recv) } else { recv };
    (send, result + GUARD, if config.op.is_one_sided() { recv + GUARD } else { GUARD })
}

/// What one PE uses for all its measurements of NVSHMEM: the context, the team of all PEs, the
/// timing events, and the stream of the PE.
pub(crate) struct Session<'a> {
    context: &'a Context,
    world: Team,
    /// Events that time the calls: the first is recorded before the calls, and the second after
    /// them.
    events: [CudaEvent; 2],
    site: &'a Site<'a>,
}

/// The buffers of a PE for one element type. They are large enough for every operation size that is
/// measured with this type.
pub(crate) struct Parts<T> {
    send: Memory<T>,
    recv: Memory<T>,
    target: SymmetricBuffer<T>,
    word: SymmetricBuffer<u64>,
}

impl<'a> Session<'a> {
    pub(crate) fn new(context: &'a Context, site: &'a Site<'a>) -> Result<Self, Failure> {
        let gpu = site.stream.context();
        let event = || gpu.new_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).map_err(CudaError::of("cuEventCreate"));
        Ok(Self { context, world: context.world(), events: [event()?, event()?], site })
    }
}

impl Session<'_> {
    /// Records an event on the stream. `event` is 0 for the event before the timed calls, and 1 for
    /// the event after them.
    fn mark(&self, event: usize) -> Result<(), Failure> {
        Ok(self.events[event].record(self.site.stream).map_err(CudaError::of("cuEventRecord"))?)
    }

    /// Waits until all timed calls on the stream are complete, by polling the event that follows
    /// them. Spins first, so that a short wait ends without delay.
    fn passed(&self) -> Result<(), Failure> {
        let start = Instant::now();
        while !self.events[1].try_is_complete().map_err(CudaError::of("cuEventQuery"))? {
            match start.elapsed() {
                waited if waited < SPIN => std::hint::spin_loop(),
                waited if waited < DEADLINE => std::thread::yield_now(),
                waited => {
                    let (op, pe) = (self.site.config.op.name(), self.site.agreement.pe());
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
        let memory = self.memory::<T>(cases)?;
        for (row, case) in cases {
            let mut records = Vec::new();
            for placement in self.site.config.placements() {
                let (iters, batch_us, wrong) = self.bench(&memory, case, placement)?.measure()?;
                let pe = self.site.agreement.pe();
                records.push(Record::Measured(Measured { pe, row: *row, placement, iters, batch_us, wrong }));
            }
            records.iter().for_each(say);
        }
        self.free(memory)
    }

    /// Allocates buffers that are long enough for every case in `cases`. All PEs must call this
    /// function.
    pub(crate) fn memory<T: Reduced>(&self, cases: &[(usize, Case)]) -> Result<Parts<T>, Failure> {
        let all = cases.iter().map(|(_, case)| lengths(self.site.config, case));
        let (send, recv, target) = all.fold((0, 0, 0), |most, one| (most.0.max(one.0), most.1.max(one.1), most.2.max(one.2)));
        let alloc = |len| -> Result<Memory<T>, Failure> {
            Ok(match self.site.config.buffers {
                Buffers::Symmetric => Memory::Symmetric(self.context.alloc(len)?),
                Buffers::Private => device(self.context, len)?,
            })
        };
        let (send, recv) = (alloc(send)?, alloc(recv)?);
        let (target, word) = (self.context.alloc::<T>(target)?, self.context.alloc_zeroed::<u64>(1)?);
        Ok(Parts { send, recv, target, word })
    }

    /// Prepares the measurement of `case`. `placement` determines whether the calls work in place.
    pub(crate) fn bench<T: Reduced>(
        &self,
        memory: &Parts<T>,
        case: &Case,
        placement: Placement,
    ) -> Result<Bench<'_, T>, Failure> {
        let Parts { send, recv, target, word } = memory;
        let view = View {
            op: self.site.config.op,
            counts: case.counts,
            n_pes: self.site.config.n_pes,
            rank: self.site.agreement.pe(),
            root: case.root.unwrap_or(0),
            placement,
        };
        let (send_len, recv_len) = geometry::lengths(&view);
        let guarded = self.result(&view, recv, target, recv_len + GUARD)?;
        let calls = Calls {
            context: self.context,
            world: &self.world,
            stream: self.site.stream,
            view,
            redop: case.redop,
            nbi: self.site.config.nbi,
            send: send.slice(0..send_len)?,
            recv: recv.slice(0..recv_len)?,
            target: target.slice(0..if view.op.is_one_sided() { recv_len } else { 0 })?,
            word: word.clone(),
            made: 0,
            wrong: 0,
        };
        Ok(Bench { session: self, calls, guarded })
    }

    /// Frees the buffers. Collective.
    pub(crate) fn free<T: Reduced>(&self, memory: Parts<T>) -> Result<(), Failure> {
        if self.site.config.graph.is_some() {
            // Waits until the resources of dropped graphs are released: first by a thread of the
            // driver, then by a thread of `peerweave-driver`.
            std::thread::sleep(Duration::from_millis(200));
            peerweave_driver::drain_retired(Instant::now() + DEADLINE);
        }
        let Parts { send, recv, target, word } = memory;
        for memory in [send, recv] {
            if let Memory::Symmetric(buffer) = memory {
                self.context.free(buffer)?;
            }
        }
        self.context.free(target)?;
        Ok(self.context.free(word)?)
    }

    /// Returns the memory of this PE's result and of the guard elements behind the result.
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

/// The measurement of one case, in place or out of place. Owns the buffers of the case.
pub(crate) struct Bench<'a, T> {
    session: &'a Session<'a>,
    calls: Calls<'a, T>,
    /// Memory of the result and of the guard elements behind the result.
    guarded: Memory<T>,
}

impl<T: Reduced> Bench<'_, T> {
    fn timed_in_a_row(&mut self, graph: Option<&CudaGraph>, launches: u64) -> Result<f64, Failure> {
        let session = self.session;
        let start = Instant::now();
        if session.site.config.clock == Clock::Events {
            session.mark(0)?;
        }
        self.launch(graph, launches)?;
        if session.site.config.nbi {
            // As in NVSHMEM's perftest, the second event is recorded after the host has waited for
            // the quiet.
            session.finish()?;
        }
        session.finish()?;
        match session.site.config.clock {
            Clock::Wall => Ok(start.elapsed().as_secs_f64()),
            Clock::Events => {
                let [first, last] = &session.events;
                Ok(f64::from(first.elapsed_ms(last).map_err(CudaError::of("cuEventElapsedTime"))?) / 1e3)
            }
        }
    }
}

impl<T: Reduced> Trial<T> for Bench<'_, T> {
    fn site(&self) -> &Site<'_> {
        self.session.site
    }

    fn subject(&self) -> Subject {
        Subject { view: self.calls.view, redop: self.calls.redop }
    }

    fn enqueue(&mut self, times: u64) -> Result<(), Failure> {
        self.calls.make(times)?;
        Ok(self.calls.complete()?)
    }

    fn count(&mut self, calls: i64) {
        self.calls.made = self.calls.made.wrapping_add_signed(calls);
    }

    fn finish(&self) -> Result<(), Failure> {
        self.session.finish()
    }

    fn timed(&mut self, graph: Option<&CudaGraph>, launches: u64) -> Result<f64, Failure> {
        let config = self.session.site.config;
        self.session.site.agreement.barrier()?;
        if self.calls.view.op.is_one_sided() {
            // Keeps the GPU busy while the first timed calls are enqueued.
            self.enqueue(config.warmup)?;
        } else {
            self.session.world.barrier(self.session.site.stream)?;
        }
        if config.clock == Clock::Wall || config.nbi {
            self.finish()?;
        }
        let (times, each) = if config.each { (launches, 1) } else { (1, launches) };
        let mut spent = 0.0;
        for _ in 0..times {
            spent += self.timed_in_a_row(graph, each)?;
        }
        Ok(spent)
    }

    fn write(&mut self, result: &[T], input: Option<&[T]>) -> Result<(), Failure> {
        let stream = self.session.site.stream;
        self.guarded.write(stream, result)?;
        match (input, self.calls.view.op) {
            (None, _) => Ok(()),
            (Some(input), BenchOp::Get) => Ok(self.calls.target.copy_from(stream, input)?),
            (Some(input), _) => Ok(self.calls.send.write(stream, input)?),
        }
    }

    fn read(&self) -> Result<Vec<T>, Failure> {
        Ok(self.guarded.read(self.session.site.stream)?)
    }

    fn prepare_words(&mut self) -> Result<(), Failure> {
        let stream = self.session.site.stream;
        self.calls.word.copy_from(stream, &[0])?;
        if self.calls.view.op == BenchOp::G {
            self.calls.target.copy_from(stream, &[T::from_bits64(G_DUE)])?;
        }
        self.session.site.agreement.barrier()
    }

    fn wrong_words(&mut self) -> Result<u64, Failure> {
        let Calls { view, made, target, word, stream, .. } = &self.calls;
        let wrong = match view.op {
            BenchOp::P if view.rank == 1 => u64::from(target.to_vec(stream)?[0].bits64() != T::from_bits64(*made).bits64()),
            BenchOp::PutSignal if view.rank == 1 => u64::from(word.to_vec(stream)?[0] != *made),
            BenchOp::PingPong if view.rank < 2 => u64::from(word.to_vec(stream)?[0] != *made),
            _ => 0,
        };
        Ok(wrong + std::mem::take(&mut self.calls.wrong))
    }

    /// Checks barriers: one PE after the other arrives late. Returns how many times this PE left a
    /// barrier before the late PE had arrived. The check compares times of all PEs, so all PEs must
    /// be on one machine.
    fn leavers(&mut self) -> Result<u64, Failure> {
        const LATE: Duration = Duration::from_millis(1);
        let view = self.calls.view;
        let mut early = 0;
        for round in 0..ROUNDS_LATE * view.n_pes {
            let late = round % view.n_pes;
            self.session.site.agreement.barrier()?;
            if view.rank == late {
                std::thread::sleep(LATE);
            }
            let came = monotonic_ns();
            self.make(1)?;
            let left = monotonic_ns();
            let last = self.session.site.agreement.largest(if view.rank == late { came } else { 0 })?;
            early += u64::from(left < last);
        }
        Ok(early)
    }
}
