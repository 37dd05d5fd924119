//! What NVSHMEM has under way on the device: streams, the orders of teams, transfers of its own
//! streams, captured graphs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use peerweave_driver::{CudaContext, Streams, deadline_after, wait, wait_until};

use super::Comm;
use super::order::Order;
use super::pending::Pending;
use super::streams::pass_all;
use crate::error::NvshmemError;
use crate::sys::nvshmem_team_t;

/// What is under way, and what keeps NVSHMEM from ending.
#[derive(Default)]
pub(crate) struct Enqueued {
    /// Every stream that NVSHMEM was given.
    pub(crate) used: Arc<Streams>,
    /// What the collectives of NVSHMEM's own teams are ordered by, and its set-up calls. One order
    /// for all of them: what NVSHMEM does for the world it does, in parts, as the teams of a
    /// machine and of an index.
    world_order: Arc<Order>,
    /// What those of teams that were made are ordered by, by the team's handle.
    orders: Mutex<HashMap<nvshmem_team_t, Arc<Order>>>,
    /// Transfers that NVSHMEM does on streams of its own.
    pub(crate) pending: Pending,
    /// Whether the host has sent something over a network that no quiet from the host has completed
    /// since.
    pub(crate) sent: AtomicBool,
    /// Captured graphs that call NVSHMEM have clones of it.
    pub(crate) captured: Arc<()>,
    /// Modules that know NVSHMEM's state have clones of it.
    pub(crate) modules: Arc<()>,
}

impl Enqueued {
    /// What the collectives of a team that was made are ordered by.
    pub(crate) fn order(&self, team: nvshmem_team_t) -> Arc<Order> {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(orders.entry(team).or_default())
    }

    /// What those of NVSHMEM's own teams are ordered by.
    pub(crate) fn world_order(&self) -> Arc<Order> {
        Arc::clone(&self.world_order)
    }

    /// All teams' orders.
    pub(crate) fn orders(&self) -> Vec<Arc<Order>> {
        let orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        orders.values().cloned().chain([self.world_order()]).collect()
    }

    /// A team is no more; NVSHMEM may give its handle to another.
    pub(crate) fn forget_order(&self, team: nvshmem_team_t) {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).remove(&team);
    }
}

impl Comm {
    /// Waits for all that this crate knows to be under way on the device: NVSHMEM waits for the
    /// whole device where it makes and ends teams, and a wait inside of it is the end, where one
    /// out here is an error.
    pub(crate) fn drain(&self, call: &'static str) -> Result<(), NvshmemError> {
        pass_all(call, self, &self.enqueued.used)?;
        self.enqueued.orders().iter().try_for_each(|order| order.drain(call, self).map(drop))
    }

    /// Completes what the host has sent over a network, and what was left to NVSHMEM's own streams.
    pub(crate) fn quiet_of_host(&self) -> Result<(), NvshmemError> {
        // Before the call: what is sent while it is inside comes after it.
        let sent = self.enqueued.sent.swap(false, Ordering::Relaxed);
        // SAFETY: NVSHMEM is initialised.
        let quiet = self.block("nvshmem_quiet", |api, _| unsafe { api.nvshmem_quiet() });
        quiet.inspect_err(|_| {
            self.enqueued.sent.fetch_or(sent, Ordering::Relaxed);
        })
    }

    /// The error that the device has by now, which NVSHMEM's calls without a result only print.
    pub(crate) fn healthy(&self) -> Result<(), NvshmemError> {
        Ok(wait(&self.side, Instant::now()).map(drop)?)
    }

    /// Whether something has no other owner. What a graph owns is dropped some time after the
    /// graph: that is waited for, for as long as a graph may just have gone.
    pub(crate) fn gone_with_graphs(&self, alone: impl Fn() -> bool) -> bool {
        const LONGEST: Duration = Duration::from_secs(2);
        if alone() {
            return true;
        }
        let deadline = deadline_after(self.deadline.min(LONGEST));
        let look = || {
            peerweave_driver::settle(deadline_after(Duration::from_millis(1)));
            Ok::<_, std::convert::Infallible>(alone() || is_alone(&self.enqueued.captured))
        };
        let _ = wait_until(deadline, look);
        alone()
    }
}

/// Whether nobody else has a handle. What others did before they dropped theirs is seen by the
/// caller. Only for a value of which nobody makes a `Weak`.
pub(crate) fn is_alone<T>(value: &Arc<T>) -> bool {
    let is_alone = Arc::strong_count(value) == 1;
    fence(Ordering::Acquire);
    is_alone
}

/// Runs something of cudarc's that first gives, and forgets, an error that some other object's
/// destructor left in the context: it is put aside meanwhile.
pub(crate) fn undisturbed<R>(context: &CudaContext, run: impl FnOnce() -> R) -> R {
    let earlier = context.check_err();
    let result = run();
    context.record_err(earlier);
    result
}
