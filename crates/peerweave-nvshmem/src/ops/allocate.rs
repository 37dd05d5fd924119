//! Allocating and freeing symmetric memory. All of it is collective.
//!
//! What is allocated is `heap`.

use std::sync::Arc;

use peerweave_driver::{CudaError, Driver, DriverError, bind_if_needed, relaxed};
use peerweave_types::Element;

use crate::SymmetricBuffer;
use crate::comm::Comm;
use crate::comm::agree::{Members, arrive, compare, taken};
use crate::comm::streams::pass;
use crate::context::Context;
use crate::error::{DeadState, MisuseKind, NvshmemError};
use crate::heap::handle::Handle;

/// How memory is allocated.
#[derive(Clone, Copy)]
enum Kind {
    Malloc,
    Zeroed,
    Align(usize),
}

impl Context {
    /// Allocates `len` elements, with unspecified values, on every PE. Zero elements are allowed.
    ///
    /// Where the heap has to grow for it, NVSHMEM waits for what the device's default stream has;
    /// for longer than the deadline is the end of the context.
    ///
    /// # Collective
    /// All PEs, with the same type and length, in the same order of set-up calls.
    ///
    /// # Errors
    /// [`NvshmemError::Disagree`] on every PE where they differ; [`NvshmemError::Nvshmem`] where
    /// the heap, or the device, has too little left; [`NvshmemError::Bootstrap`] and
    /// [`NvshmemError::Timeout`] name who did not come.
    ///
    /// A heap that cannot grow NVSHMEM gives up as a whole, and ends the process. So what cannot be
    /// is refused before. What is not known: which holes the heap has, where something was freed;
    /// and what others take of the device meanwhile. There NVSHMEM is asked, and if it gives
    /// nothing and the process lives on, the context is at its end ([`DeadState::Broken`]). A heap
    /// of a fixed size ([`Settings::disable_cuda_vmm`](crate::Settings::disable_cuda_vmm)) refuses
    /// without harm.
    pub fn alloc<T: Element>(&self, len: usize) -> Result<SymmetricBuffer<T>, NvshmemError> {
        self.allocate("nvshmem_malloc", len, Kind::Malloc)
    }

    /// As [`alloc`](Self::alloc), filled with zeros on every PE when this comes back, whatever
    /// streams have to do.
    ///
    /// # Collective
    /// As [`alloc`](Self::alloc).
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    pub fn alloc_zeroed<T: Element>(&self, len: usize) -> Result<SymmetricBuffer<T>, NvshmemError> {
        self.allocate("nvshmem_malloc", len, Kind::Zeroed)
    }

    /// As [`alloc`](Self::alloc), at a multiple of `alignment_bytes`, a power of two.
    ///
    /// # Collective
    /// As [`alloc`](Self::alloc).
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    pub fn alloc_aligned<T: Element>(&self, alignment_bytes: usize, len: usize) -> Result<SymmetricBuffer<T>, NvshmemError> {
        self.allocate("nvshmem_align", len, Kind::Align(alignment_bytes))
    }

    fn allocate<T: Element>(&self, call: &'static str, len: usize, kind: Kind) -> Result<SymmetricBuffer<T>, NvshmemError> {
        let comm = &self.comm;
        let alignment = if let Kind::Align(alignment) = kind { alignment } else { 0 };
        let countable = |bytes: &usize| isize::try_from(*bytes).is_ok();
        // NVSHMEM adds both, and would give a small piece where that is more than it can count.
        let sum = |bytes: usize| bytes.max(size_of::<T>()).checked_add(alignment);
        let bytes = len.checked_mul(size_of::<T>()).filter(|bytes| sum(*bytes).as_ref().is_some_and(countable));
        let able = match (bytes, kind) {
            (_, Kind::Align(found)) if !found.is_power_of_two() || found < size_of::<*const ()>() => {
                let (what, expected) = ("the alignment", "a power of two, at least that of a pointer");
                let found = i64::try_from(found).unwrap_or(i64::MAX);
                Err(NvshmemError::misuse(call, MisuseKind::Value { what, found, expected }))
            }
            (Some(_), _) => Ok(()),
            (None, _) => Err(DriverError::TooLarge { call, count: len, element_bytes: size_of::<T>() }.into()),
        };
        // NVSHMEM takes zero bytes for no call at all.
        let bytes = bytes.unwrap_or(0).max(size_of::<T>());
        let _setup = comm.setup_turn(call)?;
        let order = comm.enqueued.world_order();
        let (_turn, able) =
            taken(able.and_then(|()| self.heap.check_room(call, bytes, alignment)).and_then(|()| order.drain(call, comm)));
        let zeroed = if matches!(kind, Kind::Zeroed) { ", zeroed" } else { "" };
        let what = format!("{len} x {:?}, alignment {alignment}{zeroed}", T::DTYPE);
        let mut entered = arrive(comm, call, Members::World, &what, able)?;
        let address = entered.block(call, move |api, _| {
            // SAFETY: any sizes are allowed; all PEs call, with the same.
            let address = unsafe {
                match kind {
                    // NVSHMEM's own zeros come in the order of the default stream, and nothing
                    // waits for them: they may overwrite what others have put.
                    Kind::Malloc | Kind::Zeroed => api.nvshmem_malloc(bytes),
                    Kind::Align(alignment) => api.nvshmem_align(alignment, bytes),
                }
            }?;
            Ok(address.addr())
        })?;
        let zeroed = if matches!(kind, Kind::Zeroed) && address != 0 { self.zero(call, address as u64, bytes) } else { Ok(()) };
        if address == 0 && !self.heap.limits.fixed {
            // It has unmapped all of its heap.
            comm.mark_dead(DeadState::Broken { by: call });
        }
        let alone = comm.world.is_none().then_some(entered);
        everybody_got(comm, call, address, zeroed)?;
        if matches!(kind, Kind::Zeroed)
            && let Some(mut entered) = alone
        {
            // Nobody may put before everybody's zeros are there: where there is a rendezvous, all
            // have just met. SAFETY: NVSHMEM is initialised, and all PEs call.
            entered.block("nvshmem_barrier_all", |api, _| unsafe { api.nvshmem_barrier_all() })?;
        }
        if address == 0 {
            let detail = format!("{bytes} bytes of symmetric memory: the heap, or the device, has too little left");
            return Err(comm.nvshmem.failure(call, None, detail));
        }
        let allocation = self.heap.enlist(address as u64, bytes, None);
        Ok(SymmetricBuffer::whole(allocation, len))
    }

    /// Zeros fresh memory, and waits for that.
    fn zero(&self, call: &'static str, address: u64, bytes: usize) -> Result<(), NvshmemError> {
        let (comm, api) = (&self.comm, Driver::get()?.api());
        bind_if_needed(&comm.context)?;
        // SAFETY: the memory has that many bytes, and nobody else has it yet; the stream is live.
        let code = relaxed(|| unsafe { api.cuMemsetD8Async(address, 0, bytes, comm.side.cu_stream()) });
        CudaError::check("cuMemsetD8Async", code.map_err(DriverError::from)?)?;
        pass(call, comm, &comm.side)
    }

    /// Frees symmetric memory on every PE, once the streams that used it have passed their work.
    ///
    /// # Collective
    /// All PEs, with their handle of the same allocation.
    ///
    /// # Errors
    /// [`MisuseKind::InUse`] while there are other handles or slices of it, or captured graphs that
    /// use it: then nobody frees it, the others get [`NvshmemError::Disagree`], and it is freed at
    /// [`finalize`](Self::finalize). As [`alloc`](Self::alloc) otherwise.
    pub fn free<T: Element>(&self, buffer: SymmetricBuffer<T>) -> Result<(), NvshmemError> {
        const CALL: &str = "nvshmem_free";
        let allocation = buffer.into_handle();
        let _setup = self.comm.setup_turn(CALL)?;
        let order = self.comm.enqueued.world_order();
        let settled = self.may_free(CALL, &allocation).and_then(|()| allocation.drain(CALL));
        let (_turn, able) = taken(settled.and_then(|()| order.drain(CALL, &self.comm)));
        let mut entered = arrive(&self.comm, CALL, Members::World, &format!("allocation #{}", allocation.id()), able)?;
        self.heap.delist(&allocation);
        self.heap.release(&allocation, &mut entered)
    }

    /// `allocation` is a handle that nobody else has, so that there is no other one from here on
    /// where there is none now.
    fn may_free(&self, call: &'static str, allocation: &Handle) -> Result<(), NvshmemError> {
        if !Arc::ptr_eq(&allocation.comm, &self.comm) {
            return Err(NvshmemError::misuse(call, MisuseKind::WrongContext { what: "the buffer" }));
        }
        if !self.comm.gone_with_graphs(|| allocation.handles.is_at_most(1)) {
            let by = "another handle, a slice or a captured graph";
            return Err(NvshmemError::misuse(call, MisuseKind::InUse { what: "the buffer", by }));
        }
        Ok(())
    }
}

/// Where one PE got memory and another did not, the heaps are alike no more, and NVSHMEM cannot be
/// used.
pub(super) fn everybody_got(
    comm: &Comm,
    call: &'static str,
    address: usize,
    usable: Result<(), NvshmemError>,
) -> Result<(), NvshmemError> {
    let outcome = if address == 0 { "got none" } else { "got memory" };
    compare(comm, call, outcome, usable).inspect_err(|_| comm.mark_dead(DeadState::Broken { by: call }))
}
