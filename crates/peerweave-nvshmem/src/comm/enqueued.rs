//! Work in flight on the device: streams, the collective order of teams, transfers on NVSHMEM's own
//! streams, captured graphs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use peerweave_driver::{CudaContext, Streams, deadline_after, wait, wait_until};

use super::Comm;
use super::order::Order;
use super::pending::Pending;
use super::streams::wait_all;
use crate::error::NvshmemError;
use crate::sys::nvshmem_team_t;

/// Work in flight, and users of NVSHMEM that prevent its end.
#[derive(Default)]
pub(crate) struct InFlight {
    /// Every stream that was passed to NVSHMEM.
    pub(crate) used: Arc<Streams>,
    /// Collective order of NVSHMEM's predefined teams and of its setup calls. They share one order,
    /// because NVSHMEM implements a collective of the world partly by collectives of its node and
    /// same-index teams.
    world_order: Arc<Order>,
    /// Collective order of each team that was split, by the team's handle.
    orders: Mutex<HashMap<nvshmem_team_t, Arc<Order>>>,
    /// Transfers on NVSHMEM's own streams.
    pub(crate) pending: Pending,
    /// Whether the host has sent over a network since the last quiet from the host.
    pub(crate) sent: AtomicBool,
    /// Captured graphs that call NVSHMEM hold clones of it.
    pub(crate) captured: Arc<()>,
    /// Modules initialised with NVSHMEM's state hold clones of it.
    pub(crate) modules: Arc<()>,
}

impl InFlight {
    /// Returns the collective order of a team that was split.
    pub(crate) fn order(&self, team: nvshmem_team_t) -> Arc<Order> {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(orders.entry(team).or_default())
    }

    /// Returns the collective order of NVSHMEM's predefined teams.
    pub(crate) fn world_order(&self) -> Arc<Order> {
        Arc::clone(&self.world_order)
    }

    /// Returns the orders of all teams.
    pub(crate) fn orders(&self) -> Vec<Arc<Order>> {
        let orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        orders.values().cloned().chain([self.world_order()]).collect()
    }

    /// Removes the order of a destroyed team. NVSHMEM may reuse its handle.
    pub(crate) fn forget_order(&self, team: nvshmem_team_t) {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).remove(&team);
    }
}

impl Comm {
    /// Waits for all known work on the device. NVSHMEM waits for the whole device when it creates
    /// and destroys teams: a timeout inside NVSHMEM makes NVSHMEM unusable, but a timeout here is
    /// only an error.
    pub(crate) fn drain(&self, call: &'static str) -> Result<(), NvshmemError> {
        wait_all(call, self, &self.enqueued.used)?;
        self.enqueued.orders().iter().try_for_each(|order| order.drain(call, self).map(drop))
    }

    /// Completes what the host has sent over a network, and transfers on NVSHMEM's own streams.
    pub(crate) fn quiet_host(&self) -> Result<(), NvshmemError> {
        // Cleared before the call: data sent during the call is not covered by it.
        let sent = self.enqueued.sent.swap(false, Ordering::Relaxed);
        // SAFETY: NVSHMEM is initialised.
        let quiet = self.block("nvshmem_quiet", |api, _| unsafe { api.nvshmem_quiet() });
        quiet.inspect_err(|_| {
            self.enqueued.sent.fetch_or(sent, Ordering::Relaxed);
        })
    }

    /// Fails if the device has an error. NVSHMEM's functions without a result only print it.
    pub(crate) fn check_device_errors(&self) -> Result<(), NvshmemError> {
        Ok(wait(&self.side, Instant::now()).map(drop)?)
    }

    /// Returns whether a value has no other owner. Waits for up to 2 s, because a graph drops its
    /// values some time after it is destroyed.
    pub(crate) fn unused_after_graphs(&self, alone: impl Fn() -> bool) -> bool {
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

/// Returns whether `value` is the only handle. Writes made through dropped handles are then visible
/// to the caller. For values without a `Weak` only.
pub(crate) fn is_alone<T>(value: &Arc<T>) -> bool {
    let is_alone = Arc::strong_count(value) == 1;
    fence(Ordering::Acquire);
    is_alone
}

/// Runs a function of cudarc that would return and clear an error recorded in the context by
/// another object's destructor. That error is removed first and restored afterwards.
pub(crate) fn with_error_preserved<R>(context: &CudaContext, run: impl FnOnce() -> R) -> R {
    let earlier = context.check_err();
    let result = run();
    context.record_err(earlier);
    result
}
