//! Enqueues operations of the portable API. Each kind of operation has its own function, which
//! [`enqueue`] calls.

use peerweave_core::Error;
use peerweave_core::backend::{Collective, CollectiveKind, Op};
use peerweave_driver::launch::LaunchConfig;
use peerweave_types::ReduceOp;

use super::order::order;
use super::transfers::transfers_of;
use crate::backend::enqueue::{Enqueue, Source};
use crate::backend::teams::{Calls, TeamOf};

/// Enqueues an operation of the portable API on the stream of `on`. Returns the location of the
/// operation's outcome.
///
/// # Safety
/// Memory of the host to which `op` refers stays valid until the
/// [`Copier`](crate::backend::resources::Copier) of `on` has copied it.
pub(crate) unsafe fn enqueue(on: &mut Enqueue<'_>, op: &Op) -> Result<Source, Error> {
    match op {
        Op::Put(put) => on.put(put),
        Op::Get(get) => on.get(get),
        Op::Strided(op) => on.strided(op),
        Op::Copy(op) => on.between(op.target, op.source, op.bytes),
        Op::PutElement(put) => on.put_element(put),
        Op::GetElement(get) => on.get_element(get),
        Op::Fill(fill) => on.fill(fill),
        Op::Signal(signal) => on.signal(signal),
        Op::Wait(wait) => on.wait(wait),
        Op::Atomic(op) => on.atomic(op),
        Op::Launch(launch) => on.launch(launch),
        // A stream runs its work in order, and a copy or store is complete when the next work
        // starts.
        Op::Fence => Ok(Source::Copy),
        Op::Quiet => Ok(Source::Quiet),
        Op::Collective(op) => on.collective(op),
        Op::Group(ops) => {
            let mut source = on.transfers(transfers_of(ops))?;
            for op in ops.iter().filter(|op| !matches!(op, Op::PointToPoint(_))) {
                // SAFETY: the caller guarantees the memory for all members of the group.
                let next = unsafe { enqueue(on, op) }?;
                on.hold(std::mem::replace(&mut source, next));
            }
            Ok(source)
        }
        Op::PointToPoint(op) => on.transfers(std::iter::once(op)),
    }
}

impl Enqueue<'_> {
    fn collective(&mut self, op: &Collective) -> Result<Source, Error> {
        let team = &*self.state.team(self.call, op.team)?;
        self.state.poisoned(self.call, team.name())?;
        let alone = team.members.len() == 1;
        let _order = order(&team.order, self.call, self.stream, self.capturing)?;
        self.compared(team, |calls| calls.write(team, op));
        match op.kind {
            CollectiveKind::Barrier | CollectiveKind::Sync => self.barrier(team),
            CollectiveKind::AllToAllStrided => self.all_to_all_strided(team, op),
            CollectiveKind::AllReduceRmsNorm => self.norm(team, op),
            _ if alone => self.alone(team, op),
            _ if self.is_by_nccl(team, op) => self.by_nccl(team, op),
            _ if op.function().is_some() => self.by_function(team, op),
            kind if kind.has_counts() => self.vector(team, op),
            kind if kind.reduces() => self.reduce(team, op),
            _ => self.exchange(team, op),
        }
    }

    /// Records a call or a message of this PE with `write`, so that other ranks can compare their
    /// calls with it. The caller holds the lock `order` of the team until it has enqueued the call
    /// or the message. During a capture, records nothing, and ends the comparison of the team's
    /// calls.
    pub(super) fn compared(&self, team: &TeamOf, write: impl FnOnce(&Calls)) {
        match &self.state.calls {
            Some(calls) if team.members.len() > 1 && self.capturing => calls.end(team),
            Some(calls) if team.members.len() > 1 => write(calls),
            _ => {}
        }
    }

    /// Enqueues a barrier of the members of a team.
    fn barrier(&mut self, team: &TeamOf) -> Result<Source, Error> {
        const THREADS: u32 = 32;
        if let Some(span) = &team.span {
            return self.meet_between(team, span);
        }
        if team.collectives.is_some() && team.members.len() > 1 {
            return self.meet(team);
        }
        let slot = self.slot(1)?;
        let arguments = (team.number(), slot.view(0, 1));
        self.launch_kernel(|kernels| &kernels.barrier, LaunchConfig::new(1, THREADS), arguments)?;
        Ok(Source::Collective(slot))
    }

    /// Enqueues a collective of a team with one member. The result is a copy of the operand. For
    /// [`ReduceOp::PreMulSum`], the result is the scaled operand. An exclusive scan of one member
    /// has no result.
    fn alone(&mut self, team: &TeamOf, op: &Collective) -> Result<Source, Error> {
        if op.kind == CollectiveKind::ExclusiveScan {
            return Ok(Source::Copy);
        }
        if op.kind.reduces() && op.op == ReduceOp::PreMulSum {
            return self.reduce(team, op);
        }
        let (Some(mut send), Some(mut recv)) = (op.send, op.recv) else { return Ok(Source::Copy) };
        let size = op.element_bytes();
        let mut count = op.count;
        if let Some(counts) = &op.counts {
            (send, recv) = (send.plus(counts.send_offsets[0] * size), recv.plus(counts.recv_offsets[0] * size));
            count = counts.recv_counts[0];
        }
        if send == recv {
            return Ok(Source::Copy);
        }
        self.between(recv, send, count * size)
    }
}
