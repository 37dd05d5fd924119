//! Messages among ranks of a team on several hosts. Kernels carry messages within a host, and NCCL
//! carries messages between hosts.

use std::sync::Arc;

use peerweave_core::Error;
use peerweave_driver::{CudaStream, PrivateStream, join};

use crate::backend::enqueue::{Enqueue, Source};
use crate::backend::error::{driver, interned, unsupported};
use crate::backend::lock::lock;
use crate::backend::resources;
use crate::backend::teams::{Span, TeamOf};
use crate::collective::{Collectives, Message};
use crate::nccl::Remote;

/// The text of [`Error::Unsupported`] if the members of a team on this host have no kernels for
/// collectives.
const NO_KERNELS_INSIDE: &str =
    "more than 8 members of the team are on one host, or the heap has no room for the staging memory of the team";

/// Returns the rank that exchanges data with other hosts in a collective with a root. `ranks` are
/// the ranks of one host. The result is the root if the root is on this host, and otherwise the
/// first rank.
pub(super) fn first_of(ranks: &[usize], root: usize) -> usize {
    if ranks.contains(&root) { root } else { ranks[0] }
}

/// Checks that the members of a team on several hosts can communicate. Fails if NCCL is unavailable
/// between the hosts. Also fails if this host has several members, but the team has no kernels for
/// the communication inside this host. The caller calls this function before it enqueues any work.
pub(crate) fn check(on: &Enqueue<'_>, span: &Span) -> Result<(), Error> {
    if !on.state.nccl.between.is_ready() {
        return Err(unsupported(on.call, interned(on.state.nccl.between.unavailable().to_owned())));
    }
    if span.local().len() > 1 { on.inside(span).map(drop) } else { Ok(()) }
}

impl Enqueue<'_> {
    /// Returns the kernels by which the members on this host communicate with each other. Fails if
    /// the team has no such kernels.
    pub(crate) fn inside<'t>(&self, span: &'t Span) -> Result<&'t Collectives, Error> {
        span.inside.as_ref().ok_or_else(|| unsupported(self.call, NO_KERNELS_INSIDE))
    }

    /// Enqueues the sends and receives of one call. Messages within the host and messages between
    /// hosts run at the same time, on two streams. If all messages shared one stream, two ranks
    /// could deadlock when one of them enqueues its messages in several calls. A captured call
    /// nevertheless uses only one stream.
    pub(crate) fn transfers_between(&mut self, team: &TeamOf, span: &Span, messages: &[Message]) -> Result<Source, Error> {
        let is_local = |message: &Message| span.inside_rank(message.peer().index()).is_some();
        let (local, remote): (Vec<Message>, Vec<Message>) = messages.iter().copied().partition(is_local);
        // During a capture, the second stream would become a part of the capture, so one stream is
        // used for all messages.
        if local.is_empty() || remote.is_empty() || self.capturing {
            return self.messages_between(team, span, messages);
        }
        let call = self.call;
        let failed = |error| driver(call, error);
        let mut side = lock(&self.state.between_hosts);
        let side = match &mut *side {
            Some(side) => side,
            none => {
                let made = none.insert(PrivateStream::new(&self.state.context).map_err(failed)?);
                resources::note(self.gpu, made);
                made
            }
        };
        let (stream, beside): (&Arc<CudaStream>, &Arc<CudaStream>) = (self.stream, side);
        join(beside, stream).map_err(failed)?;
        let sent = self.enqueue_remote(team, beside, &remote);
        let moved = sent.and_then(|()| self.messages_between(team, span, &local));
        // The second stream may use the memory even after an error, so the first stream waits for
        // it.
        join(stream, beside).map_err(failed)?;
        moved
    }

    /// Enqueues messages among ranks of a team on several hosts.
    pub(crate) fn messages_between(&mut self, team: &TeamOf, span: &Span, messages: &[Message]) -> Result<Source, Error> {
        let (mut local, mut remote) = (Vec::new(), Vec::new());
        for message in messages {
            match span.inside_rank(message.peer().index()) {
                Some(inside) => local.push(message.with_peer(inside)),
                None => remote.push(*message),
            }
        }
        if !local.iter().all(|message: &Message| message.peer().index() == span.place()) {
            // SAFETY: the ranges stay allocated until the stream has passed the call: they are
            // recorded or held. The core has checked that results overlap nothing.
            let enqueued = unsafe { self.inside(span)?.messages(self.stream, &local) };
            self.enqueued(team, enqueued)?;
        } else {
            self.copy_own(&local)?;
        }
        self.enqueue_remote(team, self.stream, &remote)?;
        Ok(Source::Hosts)
    }

    /// Enqueues a copy for each message that this rank sends to itself.
    fn copy_own(&self, messages: &[Message]) -> Result<(), Error> {
        let sent = messages.iter().filter_map(|message| match *message {
            Message::Send { at, bytes, .. } => Some((at, bytes)),
            Message::Receive { .. } => None,
        });
        let received = messages.iter().filter_map(|message| match *message {
            Message::Receive { at, .. } => Some(at),
            Message::Send { .. } => None,
        });
        sent.zip(received).try_for_each(|((from, bytes), to)| self.copy(to, from, bytes as usize))
    }

    /// Enqueues messages to and from ranks on other hosts, on the stream of the operation.
    pub(super) fn remote_only(&mut self, team: &TeamOf, messages: &[Message]) -> Result<(), Error> {
        self.enqueue_remote(team, self.stream, messages)
    }

    /// Enqueues messages to and from ranks on other hosts, on `stream`.
    fn enqueue_remote(&self, team: &TeamOf, stream: &Arc<CudaStream>, messages: &[Message]) -> Result<(), Error> {
        let remote = |message: &Message| match *message {
            Message::Send { to, at, bytes } => Remote { pe: team.members[to.index()], is_send: true, at, bytes },
            Message::Receive { from, at, bytes } => Remote { pe: team.members[from.index()], is_send: false, at, bytes },
        };
        let remote: Vec<Remote> = messages.iter().map(remote).collect();
        // SAFETY: the ranges stay allocated until the stream has passed the call: they are recorded
        // or held. If `stream` is not the stream of the operation, the operation's stream waits for
        // it.
        let enqueued = unsafe { self.state.nccl.between.enqueue(stream, self.capturing, &remote) };
        enqueued.map_err(|error| self.state.nccl_refused(self.call, team, error))
    }
}
