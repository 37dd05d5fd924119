//! Carries out collectives by the kernels of the module `collective`.

use peerweave_core::Error;
use peerweave_core::backend::{Collective, CollectiveKind};
use peerweave_types::ReduceOp;

use crate::backend::enqueue::{Enqueue, Source};
use crate::backend::error::unsupported;
use crate::backend::hosts;
use crate::backend::teams::{Span, TeamOf};
use crate::collective::Collectives;

/// The text of the [`Error::Unsupported`] for a team that has no kernels for collectives.
pub(crate) const NO_KERNELS: &str =
    "the team has more than 8 members, or the heap has no room for the staging memory of the team";

/// The means by which the members of a team exchange data. The team has at least two ranks.
pub(super) enum Path<'t> {
    /// All members are on one host, so these kernels carry out the call.
    Kernels(&'t Collectives),
    /// The members are on several hosts. Kernels within each host and messages between hosts carry
    /// out the call.
    Hosts(&'t Span),
}

impl Enqueue<'_> {
    /// Returns the [`Path`] by which the members of a team exchange data: kernels, or kernels and
    /// messages between hosts. The team has several ranks.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the members cannot communicate.
    pub(super) fn kernels_of<'t>(&self, team: &'t TeamOf) -> Result<Path<'t>, Error> {
        match &team.span {
            Some(span) => hosts::check(self, span).map(|()| Path::Hosts(span)),
            None => self.collectives(team).map(Path::Kernels),
        }
    }

    /// Returns the collective kernels of a team. The team has several ranks, which are all on one
    /// host. Fails if the team has no kernels.
    pub(super) fn collectives<'t>(&self, team: &'t TeamOf) -> Result<&'t Collectives, Error> {
        team.collectives.as_ref().ok_or_else(|| unsupported(self.call, NO_KERNELS))
    }

    /// Enqueues the kernel that carries out a barrier of a team. All members of the team are on one
    /// host.
    pub(super) fn meet(&mut self, team: &TeamOf) -> Result<Source, Error> {
        let enqueued = self.collectives(team)?.barrier(self.stream);
        self.enqueued(team, enqueued)
    }

    /// Enqueues a collective that moves data among the ranks of a team without reducing the data.
    pub(super) fn exchange(&mut self, team: &TeamOf, op: &Collective) -> Result<Source, Error> {
        use CollectiveKind::{AllGather, AllToAll, Gather, Scatter};
        let n = team.members.len();
        let kernels = self.kernels_of(team)?;
        let bytes = op.count * op.dtype.size_bytes();
        let sent = if matches!(op.kind, AllToAll | Scatter) { n * bytes } else { bytes };
        let received = if matches!(op.kind, AllGather | AllToAll | Gather) { n * bytes } else { bytes };
        let from = op.send.map_or(Ok(0), |send| self.reading(send, sent))?;
        let (to, staged) = op.recv.map_or(Ok((0, None)), |recv| self.writing(recv, received))?;
        // In an in-place call, the operand is part of the result. If it is in memory of the host,
        // `from` and `to` are two separate ranges of pinned memory.
        let collectives = match kernels {
            Path::Kernels(collectives) => collectives,
            Path::Hosts(span) => {
                let source = self.exchange_between(team, span, op, from, to)?;
                self.written(staged)?;
                return Ok(source);
            }
        };
        let (stream, bytes, root) = (self.stream, bytes as u64, op.root);
        // SAFETY: each range has one part, or one part for each rank. The ranges stay allocated
        // until the stream has passed the call: they are recorded or held. The core has checked
        // that they overlap only in in-place forms. A rank without an operand or a result does not
        // access it.
        let enqueued = unsafe {
            match op.kind {
                AllGather => collectives.all_gather(stream, from, to, bytes),
                AllToAll => collectives.all_to_all(stream, from, to, bytes),
                Gather => collectives.gather(stream, from, to, bytes, root),
                Scatter => collectives.scatter(stream, from, to, bytes, root),
                kind => {
                    assert_eq!(kind, CollectiveKind::Broadcast, "peerweave-cuda bug: expected a broadcast");
                    collectives.broadcast(stream, from, to, bytes, root)
                }
            }
        };
        let source = self.enqueued(team, enqueued)?;
        self.written(staged)?;
        Ok(source)
    }

    /// Enqueues a reduction or a scan of a team.
    pub(super) fn reduce(&mut self, team: &TeamOf, op: &Collective) -> Result<Source, Error> {
        use CollectiveKind::{ExclusiveScan, Reduce, ReduceScatter, Scan};
        let n = team.members.len();
        let kernels = self.kernels_of(team)?;
        let part = op.count * op.dtype.size_bytes();
        let bytes = if op.kind == ReduceScatter { n * part } else { part };
        let send = op.send.unwrap_or_else(|| panic!("peerweave-core bug: {} has no operand", self.call));
        let from = self.reading(send, bytes)?;
        // An exclusive scan has no result on rank 0, so the kernel of rank 0 writes nothing.
        let (to, staged) = match op.recv {
            Some(recv) if op.kind != ExclusiveScan || team.me != 0 => self.writing(recv, part)?,
            _ => (from, None),
        };
        let collectives = match kernels {
            Path::Kernels(collectives) => collectives,
            Path::Hosts(span) => {
                let source = self.reduce_between(team, span, op, from, to)?;
                self.written(staged)?;
                return Ok(source);
            }
        };
        let (stream, count, dtype, scalar) = (self.stream, op.count as u64, op.dtype, op.scalar);
        let is_scaled = op.op == ReduceOp::PreMulSum;
        // SAFETY: the ranges have `count` elements; the operand of a reduce_scatter has `count`
        // elements for each rank. The ranges stay allocated until the stream has passed the call:
        // they are recorded or held. The core has checked that they overlap only in in-place forms.
        let enqueued = unsafe {
            match (op.kind, is_scaled) {
                (Reduce, false) => collectives.reduce(stream, from, to, count, dtype, op.op, op.root),
                (Reduce, true) => collectives.reduce_scaled(stream, from, to, count, dtype, scalar, op.root),
                (ReduceScatter, false) => collectives.reduce_scatter(stream, from, to, count, dtype, op.op),
                (ReduceScatter, true) => collectives.reduce_scatter_scaled(stream, from, to, count, dtype, scalar),
                (Scan, _) => collectives.scan(stream, from, to, count, dtype, op.op, scalar),
                (ExclusiveScan, _) => collectives.exclusive_scan(stream, from, to, count, dtype, op.op, scalar),
                (_, false) => collectives.all_reduce(stream, from, to, count, dtype, op.op),
                (_, true) => collectives.all_reduce_scaled(stream, from, to, count, dtype, scalar),
            }
        };
        let source = self.enqueued(team, enqueued)?;
        self.written(staged)?;
        Ok(source)
    }
}
