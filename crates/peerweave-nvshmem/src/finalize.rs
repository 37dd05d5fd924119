//! Ending NVSHMEM, with a report of what was left.
//!
//! Invariant: no address of symmetric memory is in anybody's hand when the heap goes.

use std::sync::{Arc, PoisonError};

use crate::agree::{Members, arrive, taken};
use crate::context::{Context, END, LIFE, Life, is_alone};
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
    /// First it waits for every stream that NVSHMEM was given work on, at most for the context's deadline. From then on calls by teams and buffers that other
    /// threads still have are errors ([`MisuseKind::Context`]), unless the end fails.
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
        const CALL: &str = END;
        let inner = Arc::clone(&self.inner);
        inner.alive(CALL)?;
        let mut ending = {
            // Handles are made and given up under this lock, so that of two that go at once one is the last.
            let mut life = LIFE.lock().unwrap_or_else(PoisonError::into_inner);
            drop(self);
            let other_handles = inner.handles();
            if other_handles > 0 {
                return Ok(FinalizeReport { leaked: Vec::new(), other_handles });
            }
            if !matches!(&*life, Life::Live(_)) {
                return Err(NvshmemError::misuse(CALL, MisuseKind::Context { why: "another thread is ending NVSHMEM" }));
            }
            *life = Life::Ending(Arc::clone(&inner));
            Ending(Some(Life::Live(Arc::clone(&inner))))
        };
        let begun = inner.begin_end();
        let allocations = inner.allocations.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let idle = || -> Result<(), NvshmemError> {
            if !is_alone(&inner.modules) {
                let by = "a module guard: drop it first";
                return Err(NvshmemError::misuse(CALL, MisuseKind::InUse { what: "the context", by }));
            }
            if !inner.gone_with_graphs(|| is_alone(&inner.captured)) {
                let by = "a captured graph: destroy it first";
                return Err(NvshmemError::misuse(CALL, MisuseKind::InUse { what: "the context", by }));
            }
            for allocation in &allocations {
                if !inner.gone_with_graphs(|| allocation.handles.is_at_most(0)) {
                    let by = "a handle, a slice or a captured graph: drop it, or free it, first";
                    return Err(NvshmemError::misuse(CALL, MisuseKind::InUse { what: "symmetric memory", by }));
                }
            }
            // Nothing can be enqueued any more: nobody gets in, and no graph is left that calls NVSHMEM.
            inner.settle(CALL)
        };
        let _setup = inner.setup_turn(CALL)?;
        let order = inner.world_order();
        let (_begun, able) = taken(begun);
        let (_turn, able) = taken(able.and_then(|()| idle()).and_then(|()| order.settle(CALL, &inner)));
        let mut entered = arrive(&inner, CALL, Members::World, &format!("{} allocations left", allocations.len()), able)?;
        // The list and its members keep each other; and what is released now must not be released again, whatever comes.
        inner.allocations.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let (mut leaked, mut failed) = (Vec::new(), None);
        for allocation in &allocations {
            tracing::warn!(
                allocation = allocation.id(),
                bytes = allocation.bytes(),
                "symmetric memory was not freed before the end"
            );
            leaked.push(Leak { allocation: allocation.id(), bytes: allocation.bytes() });
            // One that cannot be released must not keep the others, here and on other PEs; unless nothing can be called any more.
            if let Err(error) = allocation.release(&mut entered) {
                failed.get_or_insert(error);
            }
        }
        inner.alive(CALL).map_err(|dead| failed.take().unwrap_or(dead))?;
        let ended = Arc::clone(&inner);
        entered.block(CALL, move |api, _| {
            // SAFETY: NVSHMEM is initialised and all PEs call; nothing of it is used afterwards: the context is buried before another call gets in.
            let result = unsafe { api.nvshmemx_hostlib_finalize() };
            ended.bury(DeadState::Finalized);
            result
        })?;
        let again = matches!(inner.arguments.way, "an id" | "a rendezvous");
        ending.0 = Some(if again { Life::Idle } else { Life::Over(DeadState::Finalized) });
        drop(ending);
        failed.map_or(Ok(FinalizeReport { leaked, other_handles: 0 }), Err)
    }
}

/// An end that is under way, and what there is after it: until it is done, what was there before.
struct Ending(Option<Life>);

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some(life) = self.0.take() {
            *LIFE.lock().unwrap_or_else(PoisonError::into_inner) = life;
        }
    }
}
