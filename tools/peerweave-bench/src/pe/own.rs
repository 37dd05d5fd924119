//! The portable API on GPUs, as one of the libraries that `bench --compare` measures. The calls run
//! on a CUDA stream, so that they can be captured into a graph.

use std::cell::Cell;
use std::time::{Duration, Instant};

use peerweave::cuda::{CollectiveKind, Cuda, Method};
use peerweave::{Stream, Symmetric, World};
use peerweave_driver::cudarc::driver::CudaGraph;
use peerweave_driver::{deadline_after, wait};

use super::operands::{Buffers, Operands, Typed, Work};
use crate::cuda::Failure;
use crate::cuda::trial::{Site, Subject, Trial};
use crate::workload::config::{Case, Config};
use crate::workload::geometry::{self, GUARD, Placement};
use crate::workload::pattern::Sample;

/// Time limit of each wait. The limit is longer than the deadline of the world, so that the world's
/// error, which names the PE at fault, is reported first.
pub(super) const DEADLINE: Duration = Duration::from_secs(40);

/// The measurement of one case with Peerweave's kernels. Owns the buffers of the case.
pub(super) struct Own<'a, T: Sample, W> {
    site: &'a Site<'a>,
    world: &'a World,
    queue: &'a Stream,
    /// The collective to measure, and the method if the user has selected one. `None` if the
    /// operation has only one method.
    route: Option<(CollectiveKind, Option<Method>)>,
    subject: Subject,
    operands: Typed<'a, T, Symmetric<T>, W>,
    send: Symmetric<T>,
    /// Memory of the result and of the guard elements behind the result.
    guarded: Symmetric<T>,
    wrong: Cell<u64>,
}

impl<'a, T: Sample, W: Work<T>> Own<'a, T, W> {
    /// Prepares the measurement of `case`, out of place, with Peerweave's kernels. `queue` must be
    /// the [`Stream`] of `world` that adopts the CUDA stream `site.stream`.
    pub(super) fn new(
        site: &'a Site<'a>,
        world: &'a World,
        queue: &'a Stream,
        config: &Config,
        case: &Case,
        route: Option<(CollectiveKind, Option<Method>)>,
        buffers: &'a Buffers<T, Symmetric<T>>,
    ) -> Result<Self, Failure> {
        let operands = Typed::new(world, Some(queue), config, case, Placement::OutOfPlace, buffers)?;
        let view = *operands.view();
        let (send_len, recv_len) = geometry::lengths(&view);
        let (send, guarded) = (buffers.send.slice(0..send_len)?, buffers.recv.slice(0..recv_len + GUARD)?);
        let subject = Subject { view, redop: case.redop };
        Ok(Self { site, world, queue, route, subject, operands, send, guarded, wrong: Cell::new(0) })
    }
}

impl<T: Sample, W: Work<T>> Trial<T> for Own<'_, T, W>
where
    for<'m> &'m Symmetric<T>: peerweave::MaybeSource<T, Argument = &'m Symmetric<T>>
        + peerweave::MaybeDest<T, Argument = &'m Symmetric<T>>
        + peerweave::StreamSource<T>
        + peerweave::StreamDest<T>,
{
    fn site(&self) -> &Site<'_> {
        self.site
    }

    fn subject(&self) -> Subject {
        self.subject
    }

    fn enqueue(&mut self, times: u64) -> Result<(), Failure> {
        if let (Some((kind, method)), Some(cuda)) = (self.route, self.world.backend::<Cuda>()) {
            cuda.choose(kind, method);
        }
        Ok(self.operands.calls(&self.wrong)(times)?)
    }

    fn finish(&self) -> Result<(), Failure> {
        // `queue` does not know of launched graphs, so this waits for the stream first.
        let passed = wait(self.site.stream, deadline_after(DEADLINE))?;
        self.queue.synchronize()?;
        if passed { Ok(()) } else { Err(format!("Peerweave's kernels did not finish within {DEADLINE:?}").into()) }
    }

    fn timed(&mut self, graph: Option<&CudaGraph>, launches: u64) -> Result<f64, Failure> {
        self.site.agreement.barrier()?;
        let start = Instant::now();
        self.launch(graph, launches)?;
        // The time includes only the wait for the stream, as for the other contenders.
        let passed = wait(self.site.stream, deadline_after(DEADLINE))?;
        let spent = start.elapsed().as_secs_f64();
        self.queue.synchronize()?;
        if passed { Ok(spent) } else { Err(format!("Peerweave's kernels did not finish within {DEADLINE:?}").into()) }
    }

    fn write(&mut self, result: &[T], input: Option<&[T]>) -> Result<(), Failure> {
        self.guarded.copy_from(result)?;
        Ok(input.map_or(Ok(()), |input| self.send.copy_from(input))?)
    }

    fn read(&self) -> Result<Vec<T>, Failure> {
        Ok(self.guarded.to_vec()?)
    }
}
