//! Work in flight on the device: the streams in use, the order of each team's collectives, pending
//! transfers on NVSHMEM's own streams, and captured graphs.

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

/// Work in flight on the device. The fields `captured` and `modules` are tokens. While a captured
/// graph or the guard of a module owns a clone of a token, NVSHMEM cannot be finalised.
#[derive(Default)]
pub(crate) struct InFlight {
    /// All streams on which calls of NVSHMEM were enqueued, and all streams that use memory of
    /// NVSHMEM.
    pub(crate) used: Arc<Streams>,
    /// The order that two kinds of calls share: collectives of the predefined teams, and setup
    /// calls of all PEs or of a predefined team. NVSHMEM implements a collective of all PEs partly
    /// by collectives of the node team and of the same-index team, so one order covers all of these
    /// calls.
    world_order: Arc<Order>,
    /// One [`Order`] for each team that the program created. The order makes the team's collectives
    /// run one after the other, even on different streams. The key is the team's handle.
    orders: Mutex<HashMap<nvshmem_team_t, Arc<Order>>>,
    /// Incomplete transfers on NVSHMEM's own streams.
    pub(crate) pending: Pending,
    /// Whether the host has made a put over a network that no later quiet of the host has
    /// completed.
    pub(crate) sent: AtomicBool,
    /// A token. Every captured graph that calls NVSHMEM owns a clone. While a clone exists, NVSHMEM
    /// cannot be finalised.
    pub(crate) captured: Arc<()>,
    /// A token. The guard of each CUDA module that was initialised with NVSHMEM's state owns a
    /// clone. While a clone exists, NVSHMEM cannot be finalised.
    pub(crate) modules: Arc<()>,
}

impl InFlight {
    /// Returns the [order](Order) of the collectives of `team`. `team` must be a team that the
    /// program created. For the predefined teams, call [`world_order`](Self::world_order).
    pub(crate) fn order(&self, team: nvshmem_team_t) -> Arc<Order> {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(orders.entry(team).or_default())
    }

    /// Returns the [order](Order) that all predefined teams share for their collectives.
    pub(crate) fn world_order(&self) -> Arc<Order> {
        Arc::clone(&self.world_order)
    }

    /// Returns all [orders](Order) of collectives: one for each team that the program created, and
    /// one that all predefined teams share.
    pub(crate) fn orders(&self) -> Vec<Arc<Order>> {
        let orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        orders.values().cloned().chain([self.world_order()]).collect()
    }

    /// Deletes the [order](Order) of the collectives of `team` after `team` was destroyed. NVSHMEM
    /// may then give the same handle to a new team.
    pub(crate) fn forget_order(&self, team: nvshmem_team_t) {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).remove(&team);
    }
}

impl Comm {
    /// Waits for the work on all streams that have been used with this context. Callers wait before
    /// a call in which NVSHMEM waits for the whole device, such as the creation of a team. A
    /// timeout of this wait is only an error, but a timeout inside NVSHMEM would make NVSHMEM
    /// unusable.
    pub(crate) fn drain(&self, call: &'static str) -> Result<(), NvshmemError> {
        wait_all(call, self, &self.enqueued.used)?;
        self.enqueued.orders().iter().try_for_each(|order| order.drain(call, self).map(drop))
    }

    /// Waits until two kinds of transfers are complete: transfers that the host has made over a
    /// network, and transfers on NVSHMEM's own streams.
    pub(crate) fn quiet_host(&self) -> Result<(), NvshmemError> {
        // Cleared before the call, because the call does not complete data that is sent during the
        // call.
        let sent = self.enqueued.sent.swap(false, Ordering::Relaxed);
        // SAFETY: NVSHMEM is initialised.
        let quiet = self.block("nvshmem_quiet", |api, _| unsafe { api.nvshmem_quiet() });
        quiet.inspect_err(|_| {
            self.enqueued.sent.fetch_or(sent, Ordering::Relaxed);
        })
    }

    /// Returns an error if earlier work of the device failed. NVSHMEM's functions that return no
    /// status code only print such an error.
    pub(crate) fn check_device_errors(&self) -> Result<(), NvshmemError> {
        Ok(wait(&self.side, Instant::now()).map(drop)?)
    }

    /// Waits until `alone` returns `true`, for at most 2 s, and returns the last result of `alone`.
    /// `alone` returns whether a value has no other owner. The wait is necessary because a graph
    /// drops its values some time after the graph is destroyed. If no captured graph exists any
    /// more, the wait ends immediately.
    pub(crate) fn unused_after_graphs(&self, alone: impl Fn() -> bool) -> bool {
        const LONGEST: Duration = Duration::from_secs(2);
        if alone() {
            return true;
        }
        let deadline = deadline_after(self.deadline.min(LONGEST));
        let look = || {
            peerweave_driver::drain_retired(deadline_after(Duration::from_millis(1)));
            Ok::<_, std::convert::Infallible>(alone() || is_alone(&self.enqueued.captured))
        };
        let _ = wait_until(deadline, look);
        alone()
    }
}

/// Returns whether `value` is the only handle to its data. If the result is `true`, the caller sees
/// all writes that were made through other handles before these handles were dropped. The caller
/// must ensure that no `Weak` handle exists.
pub(crate) fn is_alone<T>(value: &Arc<T>) -> bool {
    let is_alone = Arc::strong_count(value) == 1;
    fence(Ordering::Acquire);
    is_alone
}

/// Calls `run`, which uses cudarc, and preserves an earlier error of the context. cudarc records
/// the errors of destructors in the context. The next call of cudarc returns a recorded error and
/// clears it. This function therefore removes the error before it calls `run`, and records the
/// error again afterwards.
pub(crate) fn with_error_preserved<R>(context: &CudaContext, run: impl FnOnce() -> R) -> R {
    let earlier = context.check_err();
    let result = run();
    context.record_err(earlier);
    result
}
