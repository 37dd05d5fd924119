//! Operations of the backend. Each operation is a [`Task`], which one thread can start and another
//! thread can finish.
//!
//! A stream whose queue is empty runs a task on the thread of the caller. If the task has waited
//! for peers for its whole time budget, the thread of the stream continues the task. Every started
//! task must be completed, because later operations of its team wait for the task.

pub(crate) mod collective;
mod copy;
pub(crate) mod launch;
mod one_sided;
pub(crate) mod point_to_point;
pub(crate) mod queues;
pub(crate) mod shared;
mod split;
mod team_of;
mod tuning;
mod wait_until;

use collective::CollectiveTask;
use peerweave_core::Error;
use peerweave_core::backend::{Launch, Op, Outcome, WaitUntil};
use point_to_point::Transfers;
use shared::Shared;
use std::borrow::Cow;
use std::collections::VecDeque;

use crate::sync::wait::{Limit, Stop};

/// An operation that was started. A task may borrow the description of the operation from the
/// caller. [`Task::into_owned`] ends this borrow, so that another thread can complete the task
/// after the caller has returned.
#[derive(Debug)]
pub(crate) enum Task<'a> {
    Collective(CollectiveTask<'a>),
    Transfers(Transfers),
    Wait(Cow<'a, WaitUntil>),
    Launch(Cow<'a, Launch>),
    /// A group of operations. The first field has the sends and receives, which run at the same
    /// time. The second field has all other operations, which run one by one after the sends and
    /// receives. The third field is the first failure in the group, if any.
    Group(Transfers, VecDeque<Task<'a>>, Option<Error>),
    /// An operation that waits for no other PE, such as a put.
    OneSided(Cow<'a, Op>),
}

impl<'a> Task<'a> {
    /// Starts an operation. If the operation is a collective, a send or a receive, its position in
    /// the order of the team's operations is fixed from now on.
    #[inline]
    pub(crate) fn start(shared: &'a Shared, op: &'a Op) -> Result<Self, Error> {
        Ok(match op {
            Op::Collective(op) => Self::Collective(CollectiveTask::start(shared, op)?),
            Op::PointToPoint(op) => Self::Transfers(Transfers::start(shared, [op.clone()])?),
            Op::Group(ops) => Self::start_group(shared, ops)?,
            op => Self::without_team(op),
        })
    }

    /// Starts an operation that has no position among the operations of a team: a wait, a launch or
    /// a one-sided operation.
    #[inline]
    fn without_team(op: &'a Op) -> Self {
        match op {
            Op::Wait(wait) => Self::Wait(Cow::Borrowed(wait)),
            Op::Launch(launch) => Self::Launch(Cow::Borrowed(launch)),
            op => Self::OneSided(Cow::Borrowed(op)),
        }
    }

    fn start_group(shared: &'a Shared, ops: &'a [Op]) -> Result<Self, Error> {
        let transfers = ops.iter().filter_map(|op| match op {
            Op::PointToPoint(op) => Some(op.clone()),
            _ => None,
        });
        // Every team is looked up before any operation takes its place, so that an error has no
        // effect.
        let others = ops.iter().filter(|op| !matches!(op, Op::PointToPoint(_))).map(|op| match op {
            Op::Collective(collective) => Ok((op, Some(shared.teams.get(collective.kind.name(), collective.team)?))),
            op => Ok((op, None)),
        });
        let others = others.collect::<Result<Vec<_>, Error>>()?;
        let transfers = Transfers::start(shared, transfers)?;
        let tasks = others.into_iter().map(|(op, team)| match (op, team) {
            (Op::Collective(op), Some(team)) => Self::Collective(CollectiveTask::start_in(team, op)),
            (op, _) => Self::without_team(op),
        });
        let tasks = tasks.collect();
        Ok(Self::Group(transfers, tasks, None))
    }

    /// Converts the task to a task that borrows nothing. Another thread can then continue the task
    /// after the caller has returned.
    pub(crate) fn into_owned(self) -> Task<'static> {
        match self {
            Self::Collective(task) => Task::Collective(task.into_owned()),
            Self::Transfers(transfers) => Task::Transfers(transfers),
            Self::Wait(wait) => Task::Wait(Cow::Owned(wait.into_owned())),
            Self::Launch(launch) => Task::Launch(Cow::Owned(launch.into_owned())),
            Self::Group(transfers, tasks, failed) => {
                Task::Group(transfers, tasks.into_iter().map(Task::into_owned).collect(), failed)
            }
            Self::OneSided(op) => Task::OneSided(Cow::Owned(op.into_owned())),
        }
    }

    /// Runs the task until the task is complete. If `limit` is a time budget, returns when the
    /// budget is spent.
    ///
    /// # Errors
    /// [`Stop::BudgetSpent`] if `limit` is a budget and was spent. Call again to continue.
    #[inline]
    pub(crate) fn drive(&mut self, shared: &Shared, limit: Limit) -> Result<Outcome, Stop> {
        let outcome = match self {
            Self::Collective(task) => task.drive(shared, limit).map(|()| Outcome::Done),
            Self::Transfers(transfers) => transfers.drive(shared, limit).map(|()| Outcome::Done),
            Self::Wait(wait) => shared.wait_until(wait, limit),
            Self::Launch(launch) => shared.launch(launch).map_err(Stop::from),
            Self::OneSided(op) => shared.run_one_sided(op).map_err(Stop::from),
            Self::Group(transfers, tasks, failed) => {
                // If the transfers have already ended, their list is empty and this returns at
                // once.
                match transfers.drive(shared, limit) {
                    Ok(()) => {}
                    Err(Stop::BudgetSpent) => return Err(Stop::BudgetSpent),
                    Err(Stop::Failed(error)) => {
                        failed.get_or_insert(*error);
                    }
                }
                while let Some(task) = tasks.front_mut() {
                    match task.drive(shared, limit) {
                        Ok(_) => {}
                        Err(Stop::BudgetSpent) => return Err(Stop::BudgetSpent),
                        Err(Stop::Failed(error)) => {
                            failed.get_or_insert(*error);
                        }
                    }
                    tasks.pop_front();
                }
                failed.take().map_or(Ok(Outcome::Done), |error| Err(error.into()))
            }
        };
        outcome.map_err(|stop| shared.peers.record_stop(stop))
    }

    /// Ends the task without running the operation. `because` is the reason: the failure of an
    /// earlier operation, for example in the same stream. Other PEs may wait for this PE in the
    /// operation, so the team of the operation fails too.
    pub(crate) fn skip(&mut self, shared: &Shared, because: &Error) {
        match self {
            Self::Collective(task) => task.skip(shared, because),
            Self::Transfers(transfers) => transfers.skip(shared, because),
            Self::Group(transfers, tasks, _) => {
                transfers.skip(shared, because);
                tasks.iter_mut().for_each(|task| task.skip(shared, because));
            }
            Self::Wait(_) | Self::Launch(_) | Self::OneSided(_) => {}
        }
    }
}

/// Returns whether the operation may have to wait, either for other PEs or for earlier operations
/// of its team.
#[inline]
pub(crate) fn waits(op: &Op) -> bool {
    matches!(op, Op::Collective(_) | Op::PointToPoint(_) | Op::Group(_) | Op::Wait(_) | Op::Launch(_))
}

/// Runs an operation to its end on the calling thread.
#[inline]
pub(crate) fn run(shared: &Shared, op: &Op) -> Result<Outcome, Error> {
    if waits(op) { run_waiting(shared, op) } else { shared.run_one_sided(op) }
}

/// Runs an operation that may wait for other PEs. This function is separate from [`run`], so that
/// [`run`] need not save registers for operations that do not wait.
#[inline(never)]
fn run_waiting(shared: &Shared, op: &Op) -> Result<Outcome, Error> {
    let limit = Limit::Deadline(shared.peers.deadline);
    // A collective is run without a `Task`, because a `Task` would be moved and dropped in each
    // call.
    if let Op::Collective(op) = op {
        return match collective::run(shared, op, limit) {
            Ok(()) => Ok(Outcome::Done),
            Err(stop) => Err(shared.peers.record_stop(stop).into_error()),
        };
    }
    Task::start(shared, op)?.drive(shared, limit).map_err(Stop::into_error)
}
