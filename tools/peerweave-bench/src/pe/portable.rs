//! Runs PEs that measure the portable API, on the host or on GPUs.

use peerweave::{Buffer, MaybeDest, MaybeSource, Result, Stream, StreamDest, StreamSource, Symmetric, World, on_threads};

use super::measure::{Outcome, measure};
use super::memory::Memory;
use super::operands::{Buffers, Moving, Reducing, Typed, Work};
use super::special;
use crate::workload::args::Buffers as BufferKind;
use crate::workload::binding::{Bind, bind};
use crate::workload::config::{Case, Config};
use crate::workload::geometry::{self, GUARD, Placement, View};
use crate::workload::pattern::Sample;
use crate::workload::record::{Measured, Note, Ready, Record, monotonic_ns, say};
use crate::workload::types::{with_moved_type, with_number_type};

/// Runs this process as a PE of a job.
pub(super) fn run_in_job(config: &Config) -> Result<()> {
    run(World::from_env()?, config)
}

/// Runs all PEs as threads of this process.
pub(super) fn run_on_threads(config: &Config) -> Result<()> {
    on_threads(config.n_pes, |world| run(world, config))?.into_iter().collect()
}

/// Runs all cases of `config` on one PE. Prints a record when the PE is ready, and the records of
/// the results.
fn run(world: World, config: &Config) -> Result<()> {
    if config.bind == Bind::Processor {
        bind(world.local_index(), config.n_pes);
    }
    world.team().barrier_blocking()?;
    say(&Record::Ready(Ready {
        passed_at_ns: monotonic_ns(),
        pe: world.my_pe().index(),
        pid: std::process::id(),
        backend: world.backend_name().to_owned(),
        compute: world.caps().compute.clone(),
        private_buffers: format!("{:?}", world.caps().private_buffers),
    }));
    let stream = if config.stream { Some(world.stream()?) } else { None };
    let cases: Vec<(usize, Case)> = config.cases().into_iter().enumerate().collect();
    for of_one_type in cases.chunk_by(|a, b| a.1.dtype == b.1.dtype) {
        let plan = Plan { world: &world, stream: stream.as_ref(), config, cases: of_one_type };
        let dtype = of_one_type[0].1.dtype;
        if config.op.is_special() {
            plan.special_rows()?;
        } else if config.op.reduces() {
            with_number_type!(dtype, T => plan.run::<T, Reducing>())?;
        } else {
            with_moved_type!(dtype, T => plan.run::<T, Moving>())?;
        }
    }
    drop(stream);
    let _ = world.finalize()?;
    Ok(())
}

/// Returns a text about one case: how the backend carries out the call, and why.
#[cfg(feature = "cuda")]
fn explained(world: &World, config: &Config, case: &Case) -> Result<String> {
    use crate::cuda;
    use peerweave::cuda::{Cuda, Query};

    let (Some(cuda), Some(kind)) = (world.backend::<Cuda>(), cuda::collective_kind(config.op)) else {
        return Ok("nothing to explain: the operation has only one method".to_owned());
    };
    let query = Query::new(kind, case.dtype, case.counts.param as u64);
    let query = query.reduction(case.redop.unwrap_or(peerweave::ReduceOp::Sum));
    Ok(cuda.explain(world.team(), &query)?.to_string())
}

/// Returns a message that this build does not support GPUs. Not called in practice: the command
/// refuses `--backend cuda`, which `--explain` requires, before a PE starts.
#[cfg(not(feature = "cuda"))]
fn explained(_: &World, _: &Config, _: &Case) -> Result<String> {
    Ok(crate::cuda::NOT_BUILT_IN.to_owned())
}

/// The cases of one element type, with the world, the stream and the configuration for measuring
/// these cases.
struct Plan<'a> {
    world: &'a World,
    stream: Option<&'a Stream>,
    config: &'a Config,
    cases: &'a [(usize, Case)],
}

impl Plan<'_> {
    fn run<T: Sample, W: Work<T>>(&self) -> Result<()> {
        let (mut send_len, mut recv_len) = (0, 0);
        for (_, case) in self.cases {
            for placement in self.config.placements() {
                let view = View {
                    op: self.config.op,
                    counts: case.counts,
                    n_pes: self.world.n_pes(),
                    rank: self.world.my_pe().index(),
                    // Symmetric memory has the same length on every PE, so all PEs use the length
                    // of the root, which needs the longest buffers.
                    root: self.world.my_pe().index(),
                    placement,
                };
                let (send, recv) = geometry::lengths(&view);
                (send_len, recv_len) = (send_len.max(send).max(case.counts.send), recv_len.max(recv));
            }
        }
        let one_sided = self.config.op.is_one_sided();
        let target = self.world.alloc::<T>(if one_sided { recv_len } else { 0 } + GUARD)?;
        let word = self.world.alloc_zeroed::<u64>(1)?;
        match self.config.buffers {
            BufferKind::Symmetric => {
                let (send, recv) = (self.world.alloc::<T>(send_len + GUARD)?, self.world.alloc::<T>(recv_len + GUARD)?);
                let buffers = Buffers { send, recv, target, word };
                self.rows::<T, Symmetric<T>, W>(&buffers)?;
                let Buffers { send, recv, target, word } = buffers;
                send.release()?;
                recv.release()?;
                target.release()?;
                word.release()
            }
            BufferKind::Private => {
                let buffers =
                    Buffers { send: Buffer::zeroed(send_len + GUARD), recv: Buffer::zeroed(recv_len + GUARD), target, word };
                self.rows::<T, Buffer<T>, W>(&buffers)?;
                let Buffers { target, word, .. } = buffers;
                target.release()?;
                word.release()
            }
        }
    }

    fn special_rows(&self) -> Result<()> {
        for (row, case) in self.cases {
            let outcome = special::run(self.world, self.stream, self.config, case)?;
            let (pe, row, placement) = (self.world.my_pe().index(), *row, Placement::OutOfPlace);
            let Outcome { iters, batch_us, wrong } = outcome;
            say(&Record::Measured(Measured { pe, row, placement, iters, batch_us, wrong }));
        }
        Ok(())
    }

    fn rows<T, M, W>(&self, buffers: &Buffers<T, M>) -> Result<()>
    where
        T: Sample,
        M: Memory<T>,
        W: Work<T>,
        for<'m> &'m M: StreamSource<T> + StreamDest<T> + MaybeSource<T, Argument = &'m M> + MaybeDest<T, Argument = &'m M>,
    {
        for (row, case) in self.cases {
            // The records are sent after both placements, so that the command does not compete for
            // a CPU between them.
            let mut records = Vec::new();
            if self.config.explain && self.world.my_pe().index() == 0 {
                let text = explained(self.world, self.config, case)?;
                say(&Record::Note(Note { row: *row, text }));
            }
            for placement in self.config.placements() {
                let operands = Typed::<T, M, W>::new(self.world, self.stream, self.config, case, placement, buffers)?;
                let outcome = measure(self.world, self.stream, self.config, &operands)?;
                records.push(Record::Measured(Measured {
                    pe: self.world.my_pe().index(),
                    row: *row,
                    placement,
                    iters: outcome.iters,
                    batch_us: outcome.batch_us,
                    wrong: outcome.wrong,
                }));
            }
            records.iter().for_each(say);
        }
        Ok(())
    }
}
