//! Ending NVSHMEM, with a report of what was left.
//!
//! Invariant: no address of symmetric memory is in anybody's hand when the heap goes.

use std::sync::{Arc, PoisonError};

use crate::agree::{Members, arrive, taken};
use crate::context::{Context, LIFE, Life};
use crate::error::{DeadState, MisuseKind, NvshmemError};

/// What the end found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FinalizeReport {
    /// Symmetric memory that was dropped and not freed, in the order of allocation: it was freed now.
    pub leaked: Vec<Leak>,
    /// Other handles of the context in this process. If there are any, NVSHMEM goes on, and this handle is gone.
    pub other_handles: usize,
}

/// A piece of symmetric memory that nobody freed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leak {
    /// Counts the allocations of the process, the same on every PE.
    pub allocation: u64,
    /// Its bytes on each PE.
    pub bytes: usize,
}

impl Context {
    /// Gives this handle up; the last one ends NVSHMEM on every PE. What was dropped without being freed is freed now, and reported.
    ///
    /// After a start by an id or a rendezvous NVSHMEM can be started again in this process.
    ///
    /// # Collective
    /// All PEs, with as many handles.
    ///
    /// # Errors
    /// [`MisuseKind::InUse`] while there are handles of symmetric memory in this process, or captured graphs that use it: then nobody ends
    /// NVSHMEM, the others get [`NvshmemError::Disagree`], and [`current`](Self::current) gives the context again. [`NvshmemError::Timeout`] and
    /// [`NvshmemError::Bootstrap`] name who did not come.
    ///
    /// NVSHMEM itself ends the process where its own clean-up fails.
    pub fn finalize(self) -> Result<FinalizeReport, NvshmemError> {
        const CALL: &str = "nvshmemx_hostlib_finalize";
        let inner = Arc::clone(&self.inner);
        inner.alive(CALL)?;
        let other_handles = inner.handles().saturating_sub(1);
        if other_handles > 0 {
            return Ok(FinalizeReport { leaked: Vec::new(), other_handles });
        }
        let allocations = inner.allocations.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let idle = || -> Result<(), NvshmemError> {
            if Arc::strong_count(&inner.captured) > 1 {
                let by = "a captured graph: destroy it first";
                return Err(NvshmemError::misuse(CALL, MisuseKind::InUse { what: "the context", by }));
            }
            for allocation in &allocations {
                // One is the list's, one the copy's.
                if Arc::strong_count(allocation) > 2 {
                    let by = "a handle, a slice or a captured graph: drop it, or free it, first";
                    return Err(NvshmemError::misuse(CALL, MisuseKind::InUse { what: "symmetric memory", by }));
                }
                allocation.settle(CALL)?;
            }
            inner.orders().iter().try_for_each(|order| order.settle(CALL, &inner).map(drop))
        };
        let order = inner.world_order();
        let (_turn, able) = taken(idle().and_then(|()| order.settle(CALL, &inner)));
        arrive(&inner, CALL, Members::World, &format!("{} allocations left", allocations.len()), able)?;
        // The list and its members keep each other; and what is released now must not be released again, whatever comes.
        inner.allocations.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let mut leaked = Vec::new();
        for allocation in &allocations {
            tracing::warn!(
                allocation = allocation.id(),
                bytes = allocation.bytes(),
                "symmetric memory was not freed before the end"
            );
            leaked.push(Leak { allocation: allocation.id(), bytes: allocation.bytes() });
            allocation.release()?;
        }
        let ended = Arc::clone(&inner);
        inner.block(CALL, move |api, _| {
            // SAFETY: NVSHMEM is initialised and all PEs call; nothing of it is used afterwards: the context is buried before another call gets in.
            let result = unsafe { api.nvshmemx_hostlib_finalize() };
            ended.bury(DeadState::Finalized);
            result
        })?;
        let again = matches!(inner.arguments.way, "an id" | "a rendezvous");
        let next = if again { Life::Idle } else { Life::Over(DeadState::Finalized) };
        *LIFE.lock().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(FinalizeReport { leaked, other_handles: 0 })
    }
}
