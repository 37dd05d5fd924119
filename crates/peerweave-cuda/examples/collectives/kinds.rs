//! The compared operations. Each operation can be called through Peerweave and through NCCL, and
//! has an expected result.

use clap::ValueEnum;
use peerweave_cuda::Message;
use peerweave_driver::DeviceMemory;
use peerweave_nccl::Communicator;
use peerweave_types::{DType, Rank, ReduceOp, bf16};

use crate::Outcome;
use crate::bench::{Bench, given};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Operation {
    AllReduce,
    AllGather,
    AllToAll,
    ReduceScatter,
    Broadcast,
    Reduce,
    Gather,
    Scatter,
    SendRecv,
}

use Operation::{AllGather, AllReduce, AllToAll, Broadcast, Gather, Reduce, ReduceScatter, Scatter, SendRecv};

/// Root of operations that have a root.
const ROOT: Rank = Rank::new(0);

impl Operation {
    /// Returns whether each rank has a part. The size of such an operation is the size of all parts
    /// together.
    fn has_parts(self) -> bool {
        matches!(self, AllGather | AllToAll | ReduceScatter | Gather | Scatter)
    }

    /// Returns the number of elements of one message or part in a call of `bytes` bytes.
    pub(crate) fn part(self, bytes: usize, ranks: usize) -> usize {
        bytes / 2 / if self.has_parts() { ranks } else { 1 }
    }

    /// Returns the number of elements of the input and of the result, for a rank that has both.
    fn lens(self, part: usize, ranks: usize) -> (usize, usize) {
        match self {
            AllGather | Gather => (part, part * ranks),
            AllToAll => (part * ranks, part * ranks),
            ReduceScatter | Scatter => (part * ranks, part),
            AllReduce | Broadcast | Reduce | SendRecv => (part, part),
        }
    }

    /// Returns the number of elements of this rank's result. Returns 0 if this rank has no result.
    fn results(self, part: usize, ranks: usize, me: u32) -> usize {
        if matches!(self, Reduce | Gather) && me != ROOT.get() { 0 } else { self.lens(part, ranks).1 }
    }

    /// Returns the expected element of this rank's result at `index`.
    fn expected(self, part: usize, ranks: usize, me: u32, index: usize) -> f32 {
        let (from, own) = ((index / part) as u32, me as usize * part + index % part);
        let sum = |index| (0..ranks as u32).map(|rank| given(rank, index)).sum();
        match self {
            AllReduce | Reduce => sum(index),
            ReduceScatter => sum(own),
            AllGather | Gather => given(from, index % part),
            AllToAll => given(from, own),
            Broadcast => given(ROOT.get(), index),
            Scatter => given(ROOT.get(), own),
            SendRecv => given((me + ranks as u32 - 1) % ranks as u32, index),
        }
    }
}

impl Bench<'_> {
    /// Enqueues one call of Peerweave, with the result at `recv`.
    pub(crate) fn ours(&self, operation: Operation, part: usize, recv: u64) -> Outcome {
        let (all, stream, send) = (self.collectives, &self.stream, self.send.address());
        let (count, bytes) = (part as u64, 2 * part as u64);
        let ranks = all.members().len() as u32;
        let (next, previous) = ((all.rank().get() + 1) % ranks, (all.rank().get() + ranks - 1) % ranks);
        // SAFETY: both are live memory of this device until all graphs have run.
        unsafe {
            match operation {
                AllReduce => all.all_reduce(stream, send, recv, count, DType::BF16, ReduceOp::Sum)?,
                AllGather => all.all_gather(stream, send, recv, bytes)?,
                AllToAll => all.all_to_all(stream, send, recv, bytes)?,
                Broadcast => all.broadcast(stream, send, recv, bytes, ROOT)?,
                ReduceScatter => all.reduce_scatter(stream, send, recv, count, DType::BF16, ReduceOp::Sum)?,
                Reduce => all.reduce(stream, send, recv, count, DType::BF16, ReduceOp::Sum, ROOT)?,
                Gather => all.gather(stream, send, recv, bytes, ROOT)?,
                Scatter => all.scatter(stream, send, recv, bytes, ROOT)?,
                SendRecv => {
                    let messages = [
                        Message::Send { to: Rank::new(next), at: send, bytes },
                        Message::Receive { from: Rank::new(previous), at: recv, bytes },
                    ];
                    all.messages(stream, &messages)?;
                }
            }
        }
        Ok(())
    }

    /// Enqueues one call of NCCL.
    pub(crate) fn theirs(&self, operation: Operation, part: usize, nccl: &Communicator) -> Outcome {
        use peerweave_nccl::ReduceOp::Sum;
        let (stream, ranks) = (&self.stream, self.collectives.members().len());
        let (sent, received) = operation.lens(part, ranks);
        let (send, mut recv) = (self.send.slice(0..sent)?, self.recv.slice(0..received)?);
        let me = self.collectives.rank().get() as usize;
        let is_root = me == ROOT.get() as usize;
        match operation {
            AllReduce => nccl.all_reduce(stream, &send, &mut recv, Sum)?,
            AllGather => nccl.all_gather(stream, &send, &mut recv)?,
            AllToAll => nccl.all_to_all(stream, &send, &mut recv)?,
            ReduceScatter => nccl.reduce_scatter(stream, &send, &mut recv, Sum)?,
            Broadcast => nccl.broadcast(stream, is_root.then_some(&send as _), &mut recv, ROOT)?,
            Reduce => nccl.reduce(stream, &send, if is_root { Some(&mut recv as _) } else { None }, Sum, ROOT)?,
            Gather => nccl.gather(stream, &send, if is_root { Some(&mut recv as _) } else { None }, ROOT)?,
            Scatter => nccl.scatter(stream, is_root.then_some(&send as _), &mut recv, ROOT)?,
            SendRecv => {
                let (next, previous) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
                nccl.nccl().group(|group| {
                    group.send(nccl, stream, &send, Rank::new(next as u32))?;
                    group.recv(nccl, stream, &mut recv, Rank::new(previous as u32))
                })?;
            }
        }
        Ok(())
    }

    /// Compares the first and the last elements of a result with the expected elements.
    pub(crate) fn compare(&self, operation: Operation, part: usize, result: &DeviceMemory<bf16>, what: &str) -> Outcome {
        const MOST: usize = 1 << 20;
        let (me, ranks) = (self.collectives.rank().get(), self.collectives.members().len());
        let len = operation.results(part, ranks, me);
        for range in [0..len.min(MOST), len.saturating_sub(MOST)..len] {
            let found = result.slice(range.clone())?.to_vec(&self.stream)?;
            let expected = |at: usize| operation.expected(part, ranks, me, range.start + at);
            if let Some(at) = found.iter().enumerate().position(|(at, value)| value.to_f32() != expected(at)) {
                let (index, value) = (range.start + at, found[at]);
                return Err(format!("{operation:?}, {what}: element {index} is {value}, expected {}", expected(at)).into());
            }
        }
        Ok(())
    }
}
