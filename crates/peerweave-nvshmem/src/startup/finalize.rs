//! Finalises NVSHMEM, and reports memory that was not freed.
//!
//! Invariant: when the heap is released, no handle of symmetric memory exists.

use std::sync::{Arc, PoisonError};

use crate::comm::agree::{Members, arrive, split_outcome};
use crate::comm::enqueued::is_alone;
use crate::comm::entry::END;
use crate::context::{Context, LIFE, ProcessState};
use crate::error::{DeadState, MisuseKind, NvshmemError};

/// The report that [`Context::finalize`] returns.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FinalizeReport {
    /// The symmetric allocations that were dropped but not freed before `finalize`, in the order of
    /// allocation. `finalize` has freed these allocations.
    pub leaked: Vec<Leak>,
    /// Number of other handles to the context in this process. If this number is not 0, NVSHMEM
    /// keeps running.
    pub other_handles: usize,
}

/// An allocation of symmetric memory that was dropped but not freed before [`Context::finalize`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leak {
    /// Number of the allocation, the same on every PE. The allocations of a context are counted
    /// from 1.
    pub allocation: u64,
    /// Length of the allocation on each PE, in bytes.
    pub bytes: usize,
}

impl Context {
    /// Releases this handle to the context. If this handle is the last handle of the process, the
    /// call finalises NVSHMEM together with the other PEs. The call also frees the symmetric memory
    /// that was dropped but not freed, and reports this memory in the result.
    ///
    /// While NVSHMEM is being finalised, calls that other threads make through teams and buffers
    /// return [`MisuseKind::Context`]. If this call fails while NVSHMEM still works, calls of other
    /// threads are possible again. `finalize` waits, within the context's deadline, for every
    /// stream that has been used with this context.
    ///
    /// After an initialisation by an id or a rendezvous, NVSHMEM can be initialised again in this
    /// process.
    ///
    /// # Collective
    /// All PEs must make this call, each PE with its last handle.
    ///
    /// # Errors
    /// [`MisuseKind::InUse`] if this process still has a handle to symmetric memory, a module
    /// guard, or a captured graph that calls NVSHMEM. In this case, no PE finalises NVSHMEM, the
    /// other PEs get [`NvshmemError::Disagree`], and [`current`](Self::current) returns the context
    /// again. [`NvshmemError::Timeout`] or [`NvshmemError::Bootstrap`] if a PE does not arrive.
    /// These errors name the missing PEs if they are known.
    ///
    /// If NVSHMEM's own function for finalising fails, NVSHMEM ends the process.
    pub fn finalize(self) -> Result<FinalizeReport, NvshmemError> {
        const CALL: &str = END;
        let running = Arc::clone(&self.running);
        let (comm, heap) = (Arc::clone(&self.comm), Arc::clone(&self.heap));
        comm.check_usable(CALL)?;
        let mut ending = {
            // Handles are counted under this lock. Of two concurrent calls, exactly one therefore
            // releases the last handle.
            let mut life = LIFE.lock().unwrap_or_else(PoisonError::into_inner);
            drop(self);
            let other_handles = running.handles();
            if other_handles > 0 {
                return Ok(FinalizeReport { leaked: Vec::new(), other_handles });
            }
            if !matches!(&*life, ProcessState::Live(_)) {
                return Err(NvshmemError::misuse(
                    CALL,
                    MisuseKind::Context {
                        why: "another thread is finalising NVSHMEM; repeat this call only if the other thread's call of finalize returns an error",
                    },
                ));
            }
            *life = ProcessState::Ending(Arc::clone(&running));
            Ending(Some(ProcessState::Live(Arc::clone(&running))))
        };
        let begun = comm.begin_finalize();
        let allocations = heap.allocations().clone();
        let idle = || -> Result<(), NvshmemError> {
            if !is_alone(&comm.enqueued.modules) {
                let by = "a module guard; drop the guard first";
                return Err(NvshmemError::misuse(CALL, MisuseKind::InUse { what: "the context", by }));
            }
            if !comm.unused_after_graphs(|| is_alone(&comm.enqueued.captured)) {
                let by = "a captured graph; destroy the graph first";
                return Err(NvshmemError::misuse(CALL, MisuseKind::InUse { what: "the context", by }));
            }
            for allocation in &allocations {
                if !comm.unused_after_graphs(|| allocation.handles.is_at_most(0)) {
                    let by = "a handle, a slice or a captured graph; drop all of these first";
                    return Err(NvshmemError::misuse(CALL, MisuseKind::InUse { what: "symmetric memory", by }));
                }
            }
            // No further work can be enqueued: all other calls are refused, and no graph that calls
            // NVSHMEM exists.
            comm.drain(CALL)
        };
        let _setup = comm.setup_turn(CALL)?;
        let order = comm.enqueued.world_order();
        let (_begun, able) = split_outcome(begun);
        let (_turn, able) = split_outcome(able.and_then(|()| idle()).and_then(|()| order.drain(CALL, &comm)));
        let mut entered =
            arrive(&comm, CALL, Members::World, &format!("{} allocations that were not freed", allocations.len()), able)?;
        // Memory that is released below must not be released again, even after an error.
        heap.allocations().clear();
        let (mut leaked, mut failed) = (Vec::new(), None);
        for allocation in &allocations {
            tracing::warn!(
                allocation = allocation.id(),
                bytes = allocation.bytes(),
                "symmetric memory was not freed before finalize"
            );
            leaked.push(Leak { allocation: allocation.id(), bytes: allocation.bytes() });
            // After a failure, the remaining memory is still released, here and on other PEs,
            // unless NVSHMEM is unusable.
            if let Err(error) = heap.release(allocation, &mut entered) {
                failed.get_or_insert(error);
            }
        }
        comm.check_usable(CALL).map_err(|dead| failed.take().unwrap_or(dead))?;
        let ended = Arc::clone(&comm);
        entered.block(CALL, move |api, _| {
            // SAFETY: NVSHMEM is initialised, and all PEs call. NVSHMEM is not used afterwards,
            // because the context is marked dead before another call acquires the gate.
            let result = unsafe { api.nvshmemx_hostlib_finalize() };
            ended.mark_dead(DeadState::Finalized);
            result
        })?;
        let again = matches!(running.arguments.bootstrap, "an id" | "a rendezvous");
        ending.0 = Some(if again { ProcessState::Idle } else { ProcessState::Over(DeadState::Finalized) });
        drop(ending);
        failed.map_or(Ok(FinalizeReport { leaked, other_handles: 0 }), Err)
    }
}

/// A guard that sets the state of the process when [`Context::finalize`] returns. The field is this
/// state. It is first the state before the call, which an error restores. Once NVSHMEM has been
/// finalised, a new state replaces it.
struct Ending(Option<ProcessState>);

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some(life) = self.0.take() {
            *LIFE.lock().unwrap_or_else(PoisonError::into_inner) = life;
        }
    }
}
