//! Maps each operation of `bench` to its NCCL call.

use std::sync::Arc;

use peerweave_driver::{CudaStream, DeviceMemory};
use peerweave_nccl::{Communicator, Group, NcclError, PreMulSum};
use peerweave_types::{Rank, ReduceOp};

use crate::workload::geometry::{self, Placement, View};
use crate::workload::op::BenchOp;
use crate::workload::pattern::{Sample, scalar};

/// The reduction that an NCCL call performs, if any.
pub(crate) enum Operation<T> {
    /// No reduction.
    None,
    /// A built-in reduction.
    Plain(ReduceOp),
    /// A sum of elements. Each rank multiplies its elements by its scalar before the sum.
    Scaled(PreMulSum<T>),
}

/// Returns the reduction of a case. If NCCL has no built-in reduction for the case, creates one for
/// this communicator.
pub(super) fn operation<T: Sample>(
    communicator: &Communicator,
    redop: Option<ReduceOp>,
    view: &View,
) -> Result<Operation<T>, NcclError> {
    Ok(match redop {
        None => Operation::None,
        Some(ReduceOp::PreMulSum) => Operation::Scaled(PreMulSum::new(communicator, scalar(view.rank))?),
        // NCCL has this reduction, because the configuration has refused all others.
        Some(op) => Operation::Plain(op),
    })
}

/// Communicator, stream and reduction of a call.
pub(super) struct Setting<'a> {
    pub(super) communicator: &'a Communicator,
    pub(super) stream: &'a Arc<CudaStream>,
    pub(super) view: View,
}

/// Enqueues one call. `send` is the input, and `recv` is the result. If input and result share one
/// buffer, this buffer is `recv`.
pub(super) fn enqueue<T: Sample>(
    setting: &Setting<'_>,
    operation: &Operation<T>,
    send: &mut DeviceMemory<T>,
    recv: &mut DeviceMemory<T>,
) -> Result<(), NcclError> {
    let Setting { communicator: c, stream: s, view } = setting;
    let (root, n, rank) = (Rank::new(view.root as u32), view.n_pes, view.rank);
    let param = view.counts.param;
    if view.op.reduces() {
        return match operation {
            Operation::Plain(op) => reduce(setting, *op, send, recv),
            Operation::Scaled(op) => reduce(setting, op, send, recv),
            Operation::None => unreachable!("peerweave bug: {} reduces, but no reduction was given", view.op.name()),
        };
    }
    let in_place = view.placement == Placement::InPlace;
    match view.op {
        BenchOp::Broadcast if in_place => c.broadcast_in_place(s, recv, root),
        BenchOp::Broadcast => c.broadcast(s, Some(&*send), recv, root),
        BenchOp::AllGather if in_place => c.all_gather_in_place(s, recv),
        BenchOp::AllGather => c.all_gather(s, &*send, recv),
        BenchOp::AllToAll => c.all_to_all(s, &*send, recv),
        BenchOp::AllToAllV => {
            let (to, from) = (geometry::vector_sends(param, n, rank), geometry::vector_receives(param, n, rank));
            c.all_to_all_v(s, &*send, &to, recv, &from)
        }
        // In place, only the root has one buffer for both; other ranks send or receive their part.
        BenchOp::Gather if in_place => c.gather_in_place(s, if rank == view.root { recv } else { send }, root),
        BenchOp::Gather => c.gather(s, &*send, Some(recv), root),
        BenchOp::Scatter if in_place => c.scatter_in_place(s, recv, root),
        BenchOp::Scatter => c.scatter(s, Some(&*send), recv, root),
        BenchOp::SendRecv => c.nccl().group(|group: &mut Group<'_>| {
            group.send(c, s, &*send, Rank::new(((rank + 1) % n) as u32))?;
            group.recv(c, s, recv, Rank::new(((rank + n - 1) % n) as u32))
        }),
        other => unreachable!("NCCL has no operation {}; the configuration should have refused it", other.name()),
    }
}

fn reduce<T: Sample>(
    setting: &Setting<'_>,
    op: impl peerweave_nccl::Reduction<T>,
    send: &mut DeviceMemory<T>,
    recv: &mut DeviceMemory<T>,
) -> Result<(), NcclError> {
    let Setting { communicator: c, stream: s, view } = setting;
    let root = Rank::new(view.root as u32);
    match (view.op, view.placement) {
        (BenchOp::AllReduce, Placement::InPlace) => c.all_reduce_in_place(s, recv, op),
        (BenchOp::AllReduce, Placement::OutOfPlace) => c.all_reduce(s, &*send, recv, op),
        (BenchOp::Reduce, Placement::InPlace) => c.reduce_in_place(s, recv, op, root),
        (BenchOp::Reduce, Placement::OutOfPlace) => c.reduce(s, &*send, Some(recv), op, root),
        (BenchOp::ReduceScatter, Placement::InPlace) => c.reduce_scatter_in_place(s, recv, op),
        (BenchOp::ReduceScatter, Placement::OutOfPlace) => c.reduce_scatter(s, &*send, recv, op),
        (other, _) => unreachable!("{} does not reduce, expected an operation for which BenchOp::reduces is true", other.name()),
    }
}
