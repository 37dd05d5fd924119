//! A PE that measures several libraries in one run. The batches of the libraries alternate, so that
//! a change of the machine's state affects all libraries. Each library has its own buffers, with
//! the same inputs and checks.
//!
//! Invariant: every PE makes the same calls in the same order, and all PEs agree on which
//! contenders can be measured.

use std::sync::Arc;
use std::time::Duration;

use peerweave::cuda::{CollectiveKind, Cuda, Forced, Query};
use peerweave::{ReduceOp, Scalar, Stream, Symmetric, World};
use peerweave_bootstrap::{Job, Options, Rendezvous};
use peerweave_driver::{CudaContext, CudaError, PrivateStream, local_context};
use peerweave_nccl::{Communicator, Nccl};
use peerweave_nvshmem::{Context, Nvshmem};

use super::operands::{Buffers, Moving, Reducing, Work};
use super::own::Own;
use crate::cuda::agreement::Agreement;
use crate::cuda::nvshmem_calls::Reduced;
use crate::cuda::trial::{Site, Started, Trial};
use crate::cuda::{self, Failure, nccl, nvshmem};
use crate::workload::args::Contender;
use crate::workload::binding::{Bind, bind};
use crate::workload::config::{Case, Config};
use crate::workload::geometry::{GUARD, Placement};
use crate::workload::op::BenchOp;
use crate::workload::pattern::Sample;
use crate::workload::record::{Compared, Contenders, Note, Ready, Record, monotonic_ns, say};
use crate::workload::types::{with_moved_type, with_type_of};

/// Time limit for each wait for other PEs.
const DEADLINE: Duration = Duration::from_secs(30);

/// Evaluates an expression in which `$T` is the element type of `$dtype`. Panics for the types
/// whose reductions a comparison does not support: 16-bit integers and 8-bit floats.
macro_rules! with_compared_type {
    ($dtype:expr, $T:ident => $call:expr) => {
        with_type_of!($dtype, $T => $call;
            I8 i8, U8 u8, I32 i32, U32 u32, I64 i64, U64 u64, F16 ::peerweave_types::f16, BF16 ::peerweave_types::bf16,
            F32 f32, F64 f64)
    };
}

/// Runs this process as a PE of a comparison.
pub(super) fn run(config: &Config) -> Result<(), Failure> {
    let job = Job::from_env()?;
    let rendezvous = Arc::new(Rendezvous::join(&job, Options { deadline: DEADLINE, ..Options::default() })?);
    let context = local_context(job.local_pe as usize)?;
    let mut options = World::builder().deadline(DEADLINE).cuda_options()?;
    let needed = config.cases().iter().map(Case::size_bytes).max().unwrap_or(0);
    // At least 1 GiB, and more for large buffers: with a small heap, collectives have little
    // staging memory.
    options.heap_bytes = options.heap_bytes.or(Some((3 * needed + (64 << 20)).max(1 << 30)));
    let forced = options.forced.clone();
    let world = World::builder().backend(Cuda::join_by(&rendezvous, &context, &options)?).build()?;
    let stream = PrivateStream::new(&context)?;
    let site = Site { config, stream: &stream, agreement: Agreement::new(&rendezvous) };
    let mut libraries = Libraries::default();
    for contender in &config.compare {
        libraries.set_up(contender, &site, &rendezvous, &context)?;
    }
    // Binds this thread after the libraries have started their threads, so that the threads of the
    // libraries do not inherit the binding.
    if config.bind == Bind::Processor {
        bind(world.my_pe().index(), config.n_pes);
    }
    let cuda = world.backend::<Cuda>().ok_or("the world does not run on GPUs, expected the backend cuda")?;
    let queue = world.adopt_stream(cuda.wrap_stream((*stream).clone())?)?;
    site.agreement.barrier()?;
    say(&Record::Ready(Ready {
        passed_at_ns: monotonic_ns(),
        pe: world.my_pe().index(),
        pid: std::process::id(),
        backend: "cuda".to_owned(),
        compute: context.name().map_err(CudaError::of("cuDeviceGetName"))?,
        private_buffers: "device memory".to_owned(),
    }));
    if world.my_pe().index() == 0 {
        say(&Record::Contenders(libraries.contenders(config, cuda.arch()?)));
    }
    let run = Run { config, site: &site, world: &world, queue: &queue, cuda, forced: &forced, libraries: &libraries };
    let cases: Vec<(usize, Case)> = config.cases().into_iter().enumerate().collect();
    for of_one_type in cases.chunk_by(|a, b| a.1.dtype == b.1.dtype) {
        let dtype = of_one_type[0].1.dtype;
        if config.op.reduces() {
            with_compared_type!(dtype, T => run.rows::<T, Reducing>(of_one_type))?;
        } else {
            with_moved_type!(dtype, T => run.rows::<T, Moving>(of_one_type))?;
        }
    }
    site.agreement.barrier()?;
    drop(queue);
    let Libraries { nccl, nvshmem, .. } = libraries;
    if let Some(communicator) = nccl {
        communicator.finalize(DEADLINE)?;
    }
    if let Some(nvshmem) = nvshmem {
        nvshmem.finalize()?;
    }
    drop(stream);
    let _ = world.finalize()?;
    if let Some(rendezvous) = Arc::into_inner(rendezvous) {
        rendezvous.leave()?;
    }
    Ok(())
}

/// The libraries that all PEs could set up for a comparison, and lists of the contenders that can
/// and cannot be measured.
#[derive(Default)]
struct Libraries {
    nccl: Option<Communicator>,
    nvshmem: Option<Context>,
    /// Names of contenders that cannot be measured, with the reasons.
    absent: Vec<(String, String)>,
    /// Names of contenders that can be measured, with their versions.
    present: Vec<(String, String)>,
}

impl Libraries {
    /// Sets up the library of a contender on all PEs, and records the contender in `present`. If
    /// the set-up fails on one PE, all PEs record the contender in `absent` instead, with the
    /// reason.
    fn set_up(
        &mut self,
        contender: &Contender,
        site: &Site<'_>,
        rendezvous: &Arc<Rendezvous>,
        context: &Arc<CudaContext>,
    ) -> Result<(), Failure> {
        let name = contender.name();
        let made = match contender {
            Contender::Own(_) => Ok(format!("peerweave {}", env!("CARGO_PKG_VERSION"))),
            Contender::Nccl | Contender::NcclWindow => self.set_up_nccl(site, rendezvous, context)?,
            Contender::Nvshmem => self.set_up_nvshmem(site, rendezvous, context)?,
            // The command starts separate processes for PyTorch.
            Contender::Torch => return Ok(()),
        };
        match made {
            Ok(version) => self.present.push((name, version)),
            Err(why) => self.absent.push((name, why)),
        }
        Ok(())
    }

    fn set_up_nccl(
        &mut self,
        site: &Site<'_>,
        rendezvous: &Arc<Rendezvous>,
        context: &Arc<CudaContext>,
    ) -> Result<Result<String, String>, Failure> {
        let library = Nccl::load();
        let missing = library.as_ref().err().map(ToString::to_string);
        if let Some(why) = site.agreement.first_error(missing.as_deref())? {
            return Ok(Err(why));
        }
        let library = library?;
        if site.agreement.is_shared(&device_of(context)?)? {
            return Ok(Err("PEs share a GPU, and NCCL refuses two ranks on one GPU".to_owned()));
        }
        if self.nccl.is_none() {
            let made = Communicator::builder().nccl(library).deadline(DEADLINE).from_rendezvous(context, rendezvous);
            let failed = made.as_ref().err().map(ToString::to_string);
            if let Some(why) = site.agreement.first_error(failed.as_deref())? {
                return Ok(Err(why));
            }
            self.nccl = Some(made?);
        }
        Ok(Ok(format!("NCCL {}", library.version())))
    }

    fn set_up_nvshmem(
        &mut self,
        site: &Site<'_>,
        rendezvous: &Arc<Rendezvous>,
        context: &Arc<CudaContext>,
    ) -> Result<Result<String, String>, Failure> {
        if matches!(site.config.op, BenchOp::Reduce | BenchOp::Gather | BenchOp::Scatter | BenchOp::SendRecv) {
            return Ok(Err(format!("NVSHMEM has no operation {} on streams", site.config.op.name())));
        }
        let library = Nvshmem::load();
        let missing = library.as_ref().err().map(ToString::to_string);
        if let Some(why) = site.agreement.first_error(missing.as_deref())? {
            return Ok(Err(why));
        }
        let library = library?;
        if site.agreement.is_shared(&device_of(context)?)? {
            return Ok(Err("PEs share a GPU, which NVSHMEM supports for tests only".to_owned()));
        }
        let made = Context::from_rendezvous(rendezvous, context, nvshmem::settings(site.config));
        let failed = made.as_ref().err().map(ToString::to_string);
        if let Some(why) = site.agreement.first_error(failed.as_deref())? {
            return Ok(Err(why));
        }
        self.nvshmem = Some(made?);
        Ok(Ok(format!("NVSHMEM {}", library.version())))
    }

    /// Returns the record that lists the measured contenders, and those that are not measured. Both
    /// lists are in the order of `--compare`.
    fn contenders(&self, config: &Config, arch: String) -> Contenders {
        let named = |list: &[(String, String)]| -> Vec<(String, String)> {
            let names = config.compare.iter().map(Contender::name);
            names.filter_map(|name| list.iter().find(|(other, _)| *other == name).cloned()).collect()
        };
        Contenders { present: named(&self.present), absent: named(&self.absent), arch }
    }

    fn has(&self, contender: &Contender) -> bool {
        self.present.iter().any(|(name, _)| *name == contender.name())
    }
}

/// Returns the UUID of a GPU as bytes. Any two GPUs of the machine have different UUIDs.
fn device_of(context: &Arc<CudaContext>) -> Result<Vec<u8>, Failure> {
    let uuid = context.uuid().map_err(CudaError::of("cuDeviceGetUuid"))?;
    Ok(uuid.bytes.iter().map(|byte| *byte as u8).collect())
}

/// What this PE uses for every case of a comparison: the configuration, the streams, the backend
/// for GPUs and the libraries.
struct Run<'a> {
    config: &'a Config,
    site: &'a Site<'a>,
    world: &'a World,
    queue: &'a Stream,
    cuda: &'a Cuda,
    /// For each collective operation, the method that `PEERWEAVE_ROUTE` selects, if any.
    forced: &'a Forced,
    libraries: &'a Libraries,
}

impl Run<'_> {
    /// Measures all cases with one element type.
    fn rows<T: Sample + Scalar + Reduced, W: Work<T>>(&self, cases: &[(usize, Case)]) -> Result<(), Failure> {
        let (mut send, mut recv) = (0, 0);
        for (_, case) in cases {
            (send, recv) = (send.max(case.counts.send), recv.max(case.counts.recv));
        }
        let alloc = |len: usize| self.world.alloc::<T>(len + GUARD);
        let buffers = Buffers { send: alloc(send)?, recv: alloc(recv)?, target: alloc(0)?, word: self.world.alloc_zeroed(1)? };
        let nccl = self.libraries.nccl.as_ref().map(|communicator| nccl::Session { communicator, site: self.site });
        let memory_of = |contender, is_window| match &nccl {
            Some(session) if self.libraries.has(contender) => session.memory::<T>(cases, is_window).map(Some),
            _ => Ok(None),
        };
        let plain = memory_of(&Contender::Nccl, false)?;
        let window = memory_of(&Contender::NcclWindow, true)?;
        let nvshmem = self.libraries.nvshmem.as_ref().map(|context| nvshmem::Session::new(context, self.site)).transpose()?;
        let symmetric = nvshmem.as_ref().map(|session| session.memory::<T>(cases)).transpose()?;
        for (row, case) in cases {
            self.explain(*row, case)?;
            let mut entries: Vec<Entry<'_, T>> = Vec::new();
            for contender in self.config.compare.iter().filter(|contender| self.libraries.has(contender)) {
                let trial: Option<Box<dyn Trial<T> + '_>> = match contender {
                    Contender::Own(method) => self.own::<T, W>(case, method.as_deref(), &buffers)?,
                    Contender::Nccl => bench_of(nccl.as_ref(), plain.as_ref(), case)?,
                    Contender::NcclWindow => bench_of(nccl.as_ref(), window.as_ref(), case)?,
                    Contender::Nvshmem => match (&nvshmem, &symmetric) {
                        (Some(session), Some(memory)) => Some(Box::new(session.bench(memory, case, Placement::OutOfPlace)?)),
                        _ => None,
                    },
                    Contender::Torch => None,
                };
                entries.push(Entry { name: contender.name(), trial });
            }
            measure(self.config, self.world.my_pe().index(), *row, entries)?;
        }
        if let Some(session) = &nccl {
            [plain, window].into_iter().flatten().try_for_each(|memory| session.free(memory))?;
        }
        if let (Some(session), Some(memory)) = (&nvshmem, symmetric) {
            session.free(memory)?;
        }
        let Buffers { send, recv, target, word } = buffers;
        [send, recv, target].into_iter().try_for_each(Symmetric::release)?;
        Ok(word.release()?)
    }

    fn query(&self, kind: CollectiveKind, case: &Case) -> Query {
        Query::new(kind, case.dtype, case.counts.param as u64).reduction(case.redop.unwrap_or(ReduceOp::Sum))
    }

    /// With the option `--explain`, sends a note from PE 0 to the process of `peerweave bench`. The
    /// note says which route (algorithm and launch shape) Peerweave uses for `case`.
    fn explain(&self, row: usize, case: &Case) -> Result<(), Failure> {
        if let Some(kind) = cuda::collective_kind(self.config.op).filter(|_| self.config.explain) {
            self.cuda.choose(kind, self.forced.get(kind));
            let text = self.cuda.explain(self.world.team(), &self.query(kind, case))?.to_string();
            if self.world.my_pe().index() == 0 {
                say(&Record::Note(Note { row, text }));
            }
        }
        Ok(())
    }

    /// Returns the trial that measures `case` with Peerweave's kernels and the algorithm `method`.
    /// Without `method`, `PEERWEAVE_ROUTE` or the route table selects the algorithm. Returns `None`
    /// if `method` cannot carry out the call.
    fn own<'b, T: Sample + Scalar, W: Work<T> + 'b>(
        &'b self,
        case: &Case,
        method: Option<&str>,
        buffers: &'b Buffers<T, Symmetric<T>>,
    ) -> Result<Option<Box<dyn Trial<T> + 'b>>, Failure> {
        let mut route = None;
        if let Some(kind) = cuda::collective_kind(self.config.op) {
            let chosen = method.map(|name| cuda::method(self.config.op, name)).transpose()?.or_else(|| self.forced.get(kind));
            self.cuda.choose(kind, chosen);
            if method.is_some() && self.cuda.explain(self.world.team(), &self.query(kind, case))?.refused.is_some() {
                return Ok(None);
            }
            route = Some((kind, chosen));
        }
        let own = Own::<T, W>::new(self.site, self.world, self.queue, self.config, case, route, buffers)?;
        Ok(Some(Box::new(own)))
    }
}

/// Returns the trial that measures a case with NCCL; `None` if NCCL or its buffers are not
/// available.
fn bench_of<'b, T: Sample>(
    session: Option<&'b nccl::Session<'b>>,
    memory: Option<&nccl::Memory<T>>,
    case: &Case,
) -> Result<Option<Box<dyn Trial<T> + 'b>>, Failure> {
    let (Some(session), Some(memory)) = (session, memory) else { return Ok(None) };
    Ok(Some(Box::new(session.bench(memory, case, Placement::OutOfPlace)?)))
}

/// One contender in the measurement of one case. `trial` is `None` if the contender does not
/// support the call.
struct Entry<'a, T> {
    name: String,
    trial: Option<Box<dyn Trial<T> + 'a>>,
}

/// Measures a case with all contenders (the compared libraries), in rounds. A round times one batch
/// of each contender, and the contender that begins changes from round to round.
fn measure<T: Sample>(config: &Config, pe: usize, row: usize, mut entries: Vec<Entry<'_, T>>) -> Result<(), Failure> {
    let named = |name: &str, error: Failure| -> Failure { format!("{name}: {error}").into() };
    let mut started: Vec<Option<Started>> = Vec::new();
    for Entry { name, trial } in &mut entries {
        started.push(trial.as_mut().map(|trial| trial.begin()).transpose().map_err(|error| named(name, error))?);
    }
    for round in 0..config.batches as usize {
        for turn in 0..entries.len() {
            let at = (round + turn) % entries.len();
            let Entry { name, trial } = &mut entries[at];
            if let (Some(trial), Some(started)) = (trial, &mut started[at]) {
                trial.batch(started).map_err(|error| named(name, error))?;
            }
        }
    }
    let mut records = Vec::new();
    for (Entry { name, trial }, started) in entries.iter_mut().zip(started) {
        let outcome = match (trial, started) {
            (Some(trial), Some(started)) => Some(trial.end(started).map_err(|error| named(name, error))?),
            _ => None,
        };
        let (iters, batch_us, wrong) = outcome.unwrap_or_default();
        records.push(Record::Compared(Compared { pe, row, contender: name.clone(), iters, batch_us, wrong }));
    }
    records.iter().for_each(say);
    Ok(())
}
