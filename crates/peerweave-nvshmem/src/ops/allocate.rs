//! Collective allocation and release of symmetric memory. `heap` has the list of allocations.

use std::sync::Arc;

use peerweave_driver::{CudaError, Driver, DriverError, bind_if_needed, relaxed};
use peerweave_types::Element;

use crate::SymmetricBuffer;
use crate::comm::Comm;
use crate::comm::agree::{Members, arrive, compare, split_outcome};
use crate::comm::streams::wait_stream;
use crate::context::Context;
use crate::error::{DeadState, MisuseKind, NvshmemError};
use crate::heap::handle::Handle;

/// Selects memory with unspecified values, zeroed memory, or memory with a given alignment in
/// bytes.
#[derive(Clone, Copy)]
enum Kind {
    Malloc,
    Zeroed,
    Align(usize),
}

impl Context {
    /// Allocates `len` elements with unspecified values on every PE. `len` may be zero.
    ///
    /// If the heap has to grow, NVSHMEM waits for the device's default stream. If this wait exceeds
    /// the deadline, the context becomes unusable.
    ///
    /// # Collective
    /// All PEs must make this call with the same type and length. All PEs must make all their setup
    /// calls in the same order.
    ///
    /// # Errors
    /// [`NvshmemError::Disagree`] on every PE if the PEs pass different types or lengths.
    /// [`NvshmemError::Nvshmem`] if the heap or the device has too little memory.
    /// [`NvshmemError::Bootstrap`] or [`NvshmemError::Timeout`] if a PE does not arrive. These
    /// errors name the missing PEs if they are known.
    ///
    /// NVSHMEM ends the process if the heap cannot grow. This crate therefore refuses a request
    /// that cannot succeed, and does not call NVSHMEM. Two things cannot be checked: the sizes of
    /// the freed blocks in the heap, and the memory that other processes allocate on the device. If
    /// NVSHMEM fails for one of these reasons and the process survives, the context is unusable
    /// ([`DeadState::Broken`]).
    ///
    /// If the heap has a fixed size
    /// ([`Settings::disable_cuda_vmm`](crate::Settings::disable_cuda_vmm)), NVSHMEM refuses a
    /// request that is too large, and the context stays usable.
    pub fn alloc<T: Element>(&self, len: usize) -> Result<SymmetricBuffer<T>, NvshmemError> {
        self.allocate("nvshmem_malloc", len, Kind::Malloc)
    }

    /// Allocates like [`alloc`](Self::alloc), and fills the memory with zeros. Every PE has filled
    /// its memory before this call returns on any PE.
    ///
    /// # Collective
    /// The same rules apply as for [`alloc`](Self::alloc).
    ///
    /// # Errors
    /// Returns the same errors as [`alloc`](Self::alloc).
    pub fn alloc_zeroed<T: Element>(&self, len: usize) -> Result<SymmetricBuffer<T>, NvshmemError> {
        self.allocate("nvshmem_malloc", len, Kind::Zeroed)
    }

    /// Allocates like [`alloc`](Self::alloc), at an address that is a multiple of
    /// `alignment_bytes`. The alignment must be a power of two, and at least the size of a pointer.
    ///
    /// # Collective
    /// The same rules apply as for [`alloc`](Self::alloc).
    ///
    /// # Errors
    /// [`MisuseKind::Value`] if the alignment is invalid. Other errors are the same as for
    /// [`alloc`](Self::alloc).
    pub fn alloc_aligned<T: Element>(&self, alignment_bytes: usize, len: usize) -> Result<SymmetricBuffer<T>, NvshmemError> {
        self.allocate("nvshmem_align", len, Kind::Align(alignment_bytes))
    }

    fn allocate<T: Element>(&self, call: &'static str, len: usize, kind: Kind) -> Result<SymmetricBuffer<T>, NvshmemError> {
        let comm = &self.comm;
        let alignment = if let Kind::Align(alignment) = kind { alignment } else { 0 };
        let countable = |bytes: &usize| isize::try_from(*bytes).is_ok();
        // NVSHMEM adds the size and the alignment. If the sum overflowed, the allocation would be
        // too small.
        let sum = |bytes: usize| bytes.max(size_of::<T>()).checked_add(alignment);
        let bytes = len.checked_mul(size_of::<T>()).filter(|bytes| sum(*bytes).as_ref().is_some_and(countable));
        let able = match (bytes, kind) {
            (_, Kind::Align(found)) if !found.is_power_of_two() || found < size_of::<*const ()>() => {
                let (what, expected) = ("the alignment", "a power of two, at least the size of a pointer");
                let found = i64::try_from(found).unwrap_or(i64::MAX);
                Err(NvshmemError::misuse(call, MisuseKind::Value { what, found, expected }))
            }
            (Some(_), _) => Ok(()),
            (None, _) => Err(DriverError::TooLarge { call, count: len, element_bytes: size_of::<T>() }.into()),
        };
        // NVSHMEM ignores a call with zero bytes, so at least one element is allocated.
        let bytes = bytes.unwrap_or(0).max(size_of::<T>());
        let _setup = comm.setup_turn(call)?;
        let order = comm.enqueued.world_order();
        let (_turn, able) = split_outcome(
            able.and_then(|()| self.heap.check_room(call, bytes, alignment)).and_then(|()| order.drain(call, comm)),
        );
        let zeroed = if matches!(kind, Kind::Zeroed) { ", zeroed" } else { "" };
        let what = format!("{len} x {}, alignment {alignment}{zeroed}", T::DTYPE.rust_name());
        let mut entered = arrive(comm, call, Members::World, &what, able)?;
        let address = entered.block(call, move |api, _| {
            // SAFETY: every size is permitted, and all PEs make the same call.
            let address = unsafe {
                match kind {
                    // `nvshmem_calloc` is not used, because it writes the zeros on the default
                    // stream without waiting. The zeros could overwrite data that peers have put by
                    // then.
                    Kind::Malloc | Kind::Zeroed => api.nvshmem_malloc(bytes),
                    Kind::Align(alignment) => api.nvshmem_align(alignment, bytes),
                }
            }?;
            Ok(address.addr())
        })?;
        let zeroed = if matches!(kind, Kind::Zeroed) && address != 0 { self.zero(call, address as u64, bytes) } else { Ok(()) };
        if address == 0 && !self.heap.limits.fixed {
            // NVSHMEM has unmapped its whole heap.
            comm.mark_dead(DeadState::Broken { by: call });
        }
        let alone = comm.world.is_none().then_some(entered);
        check_all_allocated(comm, call, address, zeroed)?;
        if matches!(kind, Kind::Zeroed)
            && let Some(mut entered) = alone
        {
            // No PE may put before all PEs have written their zeros. PEs with a rendezvous have
            // just synchronised there.
            // SAFETY: NVSHMEM is initialised, and all PEs call.
            entered.block("nvshmem_barrier_all", |api, _| unsafe { api.nvshmem_barrier_all() })?;
        }
        if address == 0 {
            let detail = format!(
                "NVSHMEM could not allocate {bytes} bytes, because the symmetric heap or the device has too little memory"
            );
            return Err(comm.nvshmem.failure(call, None, detail));
        }
        let allocation = self.heap.add_allocation(address as u64, bytes, None);
        Ok(SymmetricBuffer::whole(allocation, len))
    }

    /// Fills new memory with zeros, and waits until the fill is complete.
    fn zero(&self, call: &'static str, address: u64, bytes: usize) -> Result<(), NvshmemError> {
        let (comm, api) = (&self.comm, Driver::get()?.api());
        bind_if_needed(&comm.context)?;
        // SAFETY: the memory has `bytes` bytes and is not shared yet, and the stream is live.
        let code = relaxed(|| unsafe { api.cuMemsetD8Async(address, 0, bytes, comm.side.cu_stream()) });
        CudaError::check("cuMemsetD8Async", code.map_err(DriverError::from)?)?;
        wait_stream(call, comm, &comm.side)
    }

    /// Waits until the streams that use the memory have completed, and then frees the memory on
    /// every PE.
    ///
    /// # Collective
    /// All PEs must make this call with a handle to the same allocation.
    ///
    /// # Errors
    /// [`MisuseKind::InUse`] if other handles, slices or captured graphs use the memory. In this
    /// case, no PE frees the memory, and the other PEs get [`NvshmemError::Disagree`].
    /// [`finalize`](Self::finalize) frees the memory later. Other errors are the same as for
    /// [`alloc`](Self::alloc).
    pub fn free<T: Element>(&self, buffer: SymmetricBuffer<T>) -> Result<(), NvshmemError> {
        const CALL: &str = "nvshmem_free";
        let allocation = buffer.into_handle();
        let _setup = self.comm.setup_turn(CALL)?;
        let order = self.comm.enqueued.world_order();
        let settled = self.may_free(CALL, &allocation).and_then(|()| allocation.drain(CALL));
        let (_turn, able) = split_outcome(settled.and_then(|()| order.drain(CALL, &self.comm)));
        let mut entered = arrive(&self.comm, CALL, Members::World, &format!("allocation #{}", allocation.id()), able)?;
        self.heap.remove_allocation(&allocation);
        self.heap.release(&allocation, &mut entered)
    }

    /// Returns an error if the memory is still in use. `allocation` must be the caller's only
    /// handle to the memory. After a success, no other handle exists. No further handle can appear,
    /// because handles are created only from existing handles.
    fn may_free(&self, call: &'static str, allocation: &Handle) -> Result<(), NvshmemError> {
        if !Arc::ptr_eq(&allocation.comm, &self.comm) {
            return Err(NvshmemError::misuse(call, MisuseKind::WrongContext { what: "the buffer" }));
        }
        if !self.comm.unused_after_graphs(|| allocation.handles.is_at_most(1)) {
            let by = "another handle, a slice or a captured graph";
            return Err(NvshmemError::misuse(call, MisuseKind::InUse { what: "the buffer", by }));
        }
        Ok(())
    }
}

/// Compares the outcomes of an allocation on all PEs. Returns an error unless all PEs received
/// memory or no PE did. `address` is 0 if this PE received no memory. If `usable` is an error on
/// one PE, all PEs get an error. Without a rendezvous, only returns `usable`. After an error of
/// this function, NVSHMEM is unusable.
pub(super) fn check_all_allocated(
    comm: &Comm,
    call: &'static str,
    address: usize,
    usable: Result<(), NvshmemError>,
) -> Result<(), NvshmemError> {
    let outcome = if address == 0 { "received no memory" } else { "received memory" };
    compare(comm, call, outcome, usable).inspect_err(|_| comm.mark_dead(DeadState::Broken { by: call }))
}
