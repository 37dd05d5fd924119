//! An operation that can be begun on one thread and finished on another.
//!
//! A stream whose queue is empty runs an operation on the caller's thread; where that would keep the caller waiting for peers, the rest is
//! handed to the stream's own thread. Whatever was begun must be driven to its end, since other operations wait for their turn behind it.

pub(crate) mod collective;
pub(crate) mod launch;
mod one_sided;
mod point_to_point;
pub(crate) mod shared;
mod split;
mod tuning;
mod wait_until;

use crate::ops::collective::Progress;
use crate::ops::point_to_point::Transfers;
use crate::ops::shared::Shared;
use crate::sync::team::TeamState;
use crate::sync::wait::Limit;
use peerweave_core::Error;
use peerweave_core::backend::{Collective, Launch, Op, Outcome, WaitUntil};
use std::collections::VecDeque;
use std::sync::Arc;

/// An operation on its way.
#[derive(Debug)]
pub(crate) enum Task {
    Collective {
        op: Collective,
        team: Arc<TeamState>,
        progress: Progress,
    },
    Transfers(Transfers),
    Wait(WaitUntil),
    Kernel(Launch),
    Sequence(VecDeque<Task>, Option<Error>),
    /// Waits for nobody, but runs in its order.
    Plain(Op),
}

impl Task {
    /// Begins an operation: takes its place among those of its team.
    pub(crate) fn begin(shared: &Shared, op: &Op) -> Result<Self, Error> {
        Ok(match op {
            Op::Collective(op) => {
                let team = shared.teams.get(op.kind.name(), op.team)?;
                let progress = Progress::begin(&team);
                Self::Collective { op: op.clone(), team, progress }
            }
            Op::PointToPoint(op) => Self::Transfers(Transfers::begin(shared, [op.clone()])?),
            Op::Group(ops) => Self::begin_group(shared, ops)?,
            Op::Wait(wait) => Self::Wait(wait.clone()),
            Op::Launch(launch) => Self::Kernel(launch.clone()),
            plain => Self::Plain(plain.clone()),
        })
    }

    fn begin_group(shared: &Shared, ops: &[Op]) -> Result<Self, Error> {
        let transfers = ops.iter().filter_map(|op| match op {
            Op::PointToPoint(op) => Some(op.clone()),
            _ => None,
        });
        // Every team is looked up before any turn is taken.
        for op in ops {
            if let Op::Collective(op) = op {
                shared.teams.get(op.kind.name(), op.team)?;
            }
        }
        let mut tasks = VecDeque::from([Self::Transfers(Transfers::begin(shared, transfers)?)]);
        for op in ops.iter().filter(|op| !matches!(op, Op::PointToPoint(_))) {
            tasks.push_back(Self::begin(shared, op)?);
        }
        Ok(Self::Sequence(tasks, None))
    }

    /// Drives it; `None` where `limit` is a budget and it was spent first: call again.
    pub(crate) fn drive(&mut self, shared: &Shared, limit: Limit) -> Result<Option<Outcome>, Error> {
        shared.noted(self.advance(shared, limit))
    }

    fn advance(&mut self, shared: &Shared, limit: Limit) -> Result<Option<Outcome>, Error> {
        match self {
            Self::Collective { op, team, progress } => {
                Ok(progress.drive(shared, team, op, limit).map_err(|failure| *failure)?.map(|()| Outcome::Done))
            }
            Self::Transfers(transfers) => Ok(transfers.drive(shared, limit)?.map(|()| Outcome::Done)),
            Self::Wait(wait) => shared.wait_until(wait, limit),
            Self::Kernel(launch) => shared.launch(launch).map(Some),
            Self::Plain(op) => Ok(Some(run_plain(shared, op))),
            Self::Sequence(tasks, failed) => {
                while let Some(task) = tasks.front_mut() {
                    match task.drive(shared, limit) {
                        Ok(Some(_)) => {}
                        Ok(None) => return Ok(None),
                        Err(error) => {
                            failed.get_or_insert(error);
                        }
                    }
                    tasks.pop_front();
                }
                failed.take().map_or(Ok(Some(Outcome::Done)), Err)
            }
        }
    }

    /// Gives it up: an operation before it in its stream failed. The peers cannot know, so its team is given up with it.
    pub(crate) fn skip(&mut self, shared: &Shared, because: &Error) {
        match self {
            Self::Collective { team, progress, .. } => progress.skip(shared, team, because),
            Self::Transfers(transfers) => transfers.skip(shared, because),
            Self::Sequence(tasks, _) => tasks.iter_mut().for_each(|task| task.skip(shared, because)),
            Self::Wait(_) | Self::Kernel(_) | Self::Plain(_) => {}
        }
    }
}

/// Runs an operation that waits for nobody.
#[inline]
pub(crate) fn run_plain(shared: &Shared, op: &Op) -> Outcome {
    match op {
        Op::Put(put) => shared.put(put),
        Op::Get(get) => shared.get(get),
        Op::Strided(strided) => shared.strided(strided),
        Op::Signal(signal) => shared.signal(signal),
        Op::Atomic(atomic) => shared.atomic(atomic),
        Op::Fence => shared.fence(),
        Op::Quiet => shared.quiet(),
        Op::Collective(_) | Op::PointToPoint(_) | Op::Group(_) | Op::Wait(_) | Op::Launch(_) => {
            unreachable!("it waits for others")
        }
    }
}
