//! Ending NVSHMEM, with a report of what was left.
//!
//! Invariant: no address of symmetric memory is in anybody's hand when the heap goes.

use std::sync::{Arc, PoisonError};

use crate::comm::agree::{Members, arrive, taken};
use crate::comm::enqueued::is_alone;
use crate::comm::entry::END;
use crate::context::{Context, LIFE, Life};
use crate::error::{DeadState, MisuseKind, NvshmemError};

/// What the end found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FinalizeReport {
    /// Symmetric memory that was dropped and not freed, in the order of allocation: it was freed
    /// now.
    pub leaked: Vec<Leak>,
    /// Other handles of the context in this process. If there are any, NVSHMEM goes on, and this
    /// handle is gone.
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
    /// Gives this handle up; the last one ends NVSHMEM on every PE. What was dropped without being
    /// freed is freed now, and reported.
    ///
    /// First it waits for every stream that NVSHMEM was given work on, at most for the context's
    /// deadline. From then on calls by teams and buffers that other threads still have are errors
    /// ([`MisuseKind::Context`]), unless the end fails.
    ///
    /// After a start by an id or a rendezvous NVSHMEM can be started again in this process.
    ///
    /// # Collective
    /// All PEs, with as many handles.
    ///
    /// # Errors
    /// [`MisuseKind::InUse`] while there are handles of symmetric memory in this process, or
    /// captured graphs that use it: then nobody ends NVSHMEM, the others get
    /// [`NvshmemError::Disagree`], and [`current`](Self::current) gives the context again.
    /// [`NvshmemError::Timeout`] and [`NvshmemError::Bootstrap`] name who did not come.
    ///
    /// NVSHMEM itself ends the process where its own clean-up fails.
    pub fn finalize(self) -> Result<FinalizeReport, NvshmemError> {
        const CALL: &str = END;
        let running = Arc::clone(&self.running);
        let (comm, heap) = (Arc::clone(&self.comm), Arc::clone(&self.heap));
        comm.alive(CALL)?;
        let mut ending = {
            // Handles are made and given up under this lock, so that of two that go at once one is
            // the last.
            let mut life = LIFE.lock().unwrap_or_else(PoisonError::into_inner);
            drop(self);
            let other_handles = running.handles();
            if other_handles > 0 {
                return Ok(FinalizeReport { leaked: Vec::new(), other_handles });
            }
            if !matches!(&*life, Life::Live(_)) {
                return Err(NvshmemError::misuse(CALL, MisuseKind::Context { why: "another thread is ending NVSHMEM" }));
            }
            *life = Life::Ending(Arc::clone(&running));
            Ending(Some(Life::Live(Arc::clone(&running))))
        };
        let begun = comm.begin_end();
        let allocations = heap.allocations().clone();
        let idle = || -> Result<(), NvshmemError> {
            if !is_alone(&comm.enqueued.modules) {
                let by = "a module guard: drop it first";
                return Err(NvshmemError::misuse(CALL, MisuseKind::InUse { what: "the context", by }));
            }
            if !comm.gone_with_graphs(|| is_alone(&comm.enqueued.captured)) {
                let by = "a captured graph: destroy it first";
                return Err(NvshmemError::misuse(CALL, MisuseKind::InUse { what: "the context", by }));
            }
            for allocation in &allocations {
                if !comm.gone_with_graphs(|| allocation.handles.is_at_most(0)) {
                    let by = "a handle, a slice or a captured graph: drop it, or free it, first";
                    return Err(NvshmemError::misuse(CALL, MisuseKind::InUse { what: "symmetric memory", by }));
                }
            }
            // Nothing can be enqueued any more: nobody gets in, and no graph is left that calls
            // NVSHMEM.
            comm.drain(CALL)
        };
        let _setup = comm.setup_turn(CALL)?;
        let order = comm.enqueued.world_order();
        let (_begun, able) = taken(begun);
        let (_turn, able) = taken(able.and_then(|()| idle()).and_then(|()| order.drain(CALL, &comm)));
        let mut entered = arrive(&comm, CALL, Members::World, &format!("{} allocations left", allocations.len()), able)?;
        // What is released now must not be released again, whatever comes.
        heap.allocations().clear();
        let (mut leaked, mut failed) = (Vec::new(), None);
        for allocation in &allocations {
            tracing::warn!(
                allocation = allocation.id(),
                bytes = allocation.bytes(),
                "symmetric memory was not freed before the end"
            );
            leaked.push(Leak { allocation: allocation.id(), bytes: allocation.bytes() });
            // One that cannot be released must not keep the others, here and on other PEs; unless
            // nothing can be called any more.
            if let Err(error) = heap.release(allocation, &mut entered) {
                failed.get_or_insert(error);
            }
        }
        comm.alive(CALL).map_err(|dead| failed.take().unwrap_or(dead))?;
        let ended = Arc::clone(&comm);
        entered.block(CALL, move |api, _| {
            // SAFETY: NVSHMEM is initialised and all PEs call; nothing of it is used afterwards:
            // the context is marked dead before another call gets in.
            let result = unsafe { api.nvshmemx_hostlib_finalize() };
            ended.mark_dead(DeadState::Finalized);
            result
        })?;
        let again = matches!(running.arguments.way, "an id" | "a rendezvous");
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
