//! Outside memory: made symmetric on every PE, or registered as this PE's own side of transfers.

use peerweave_driver::cudarc::driver::sys::CUpointer_attribute;
use peerweave_driver::{CudaCode, DeviceBuffer, Driver, DriverError, bind_if_needed};
use peerweave_types::Element;

use crate::comm::Comm;
use crate::comm::agree::{Members, arrive, taken};
use crate::comm::deferred::Held;
use crate::context::Context;
use crate::error::{DeadState, MisuseKind, NvshmemError};
use crate::heap::limits::Limits;
use crate::heap::registration::Registration;
use crate::ops::allocate::everybody_got;
use crate::{SymmetricBuffer, Version};

impl Context {
    /// Makes outside memory symmetric: every PE gives memory of its own, and gets a buffer whose
    /// counterparts are the others'.
    ///
    /// NVSHMEM takes memory that was made by CUDA's virtual memory management with a handle that
    /// can be shared: the whole of a mapping, of a multiple of the heap's step
    /// ([`Settings::heap_step_bytes`](crate::Settings::heap_step_bytes)). Others are refused here.
    /// The memory is kept until the buffer is freed.
    ///
    /// # Collective
    /// As [`alloc`](Self::alloc).
    ///
    /// # Errors
    /// [`MisuseKind::Context`] for memory that is only borrowed, is no virtual memory, cannot be
    /// shared, or is a part of a mapping; [`MisuseKind::Value`] for bytes that are no multiple of
    /// the step. [`NvshmemError::Nvshmem`] where NVSHMEM refuses it, which is the end of the
    /// context unless the heap is of a fixed size. As [`alloc`](Self::alloc) otherwise.
    pub fn register_symmetric<T: Element>(&self, memory: &impl DeviceBuffer<T>) -> Result<SymmetricBuffer<T>, NvshmemError> {
        self.register("nvshmemx_buffer_register_symmetric", memory, None)
    }

    /// As [`register_symmetric`](Self::register_symmetric), at an address of the symmetric heap
    /// that the caller would like, where it is free. Since 3.6.
    ///
    /// # Collective
    /// As [`alloc`](Self::alloc); each PE with an address of its own.
    ///
    /// # Errors
    /// [`NvshmemError::Unsupported`]; as [`register_symmetric`](Self::register_symmetric).
    pub fn register_symmetric_near<T: Element>(
        &self,
        memory: &impl DeviceBuffer<T>,
        address: u64,
    ) -> Result<SymmetricBuffer<T>, NvshmemError> {
        const CALL: &str = "nvshmemx_buffer_register_symmetric_at_preferred_address";
        if !self.comm.nvshmem.has(CALL) {
            return Err(self.comm.nvshmem.unsupported(CALL, Some(Version::new(3, 6, 5))));
        }
        self.register(CALL, memory, Some(address))
    }

    fn register<T: Element>(
        &self,
        call: &'static str,
        memory: &impl DeviceBuffer<T>,
        wish: Option<u64>,
    ) -> Result<SymmetricBuffer<T>, NvshmemError> {
        let comm = &self.comm;
        let bytes = memory.len() * size_of::<T>();
        let kept =
            owned(comm, call, memory).and_then(|kept| whole_mapping(comm, self.heap.limits, call, kept.0, bytes).map(|()| kept));
        let _setup = comm.setup_turn(call)?;
        let order = comm.enqueued.world_order();
        let (_turn, able) = taken(
            kept.as_ref()
                .map_err(Clone::clone)
                .and_then(|_| self.heap.check_addresses(call, bytes))
                .and_then(|()| order.drain(call, comm)),
        );
        let mut entered = arrive(comm, call, Members::World, &format!("{} x {:?}", memory.len(), T::DTYPE), able)?;
        let (source, keep) = kept?;
        let address = entered.block(call, move |api, _| {
            let source = std::ptr::without_provenance_mut(source as usize);
            // SAFETY: the memory has that many bytes and is kept until it is unregistered; all PEs
            // call.
            let registered = unsafe {
                match wish {
                    None => api.nvshmemx_buffer_register_symmetric(source, bytes, 0),
                    Some(wish) => {
                        let wish = std::ptr::without_provenance_mut(wish as usize);
                        api.nvshmemx_buffer_register_symmetric_at_preferred_address(source, bytes, wish, 0)
                    }
                }
            }?;
            Ok(registered.addr())
        });
        let address = address.inspect_err(|error| {
            // The call is still inside, with the memory, and the other PEs may map it.
            if !matches!(error, NvshmemError::Unsupported(_)) {
                keep.leak();
            }
        })?;
        drop(entered);
        if address == 0 && !self.heap.limits.fixed {
            // It has unmapped all of its heap.
            comm.mark_dead(DeadState::Broken { by: call });
        }
        everybody_got(comm, call, address, Ok(())).inspect_err(|_| keep.leak())?;
        if address == 0 {
            let detail = format!("{bytes} bytes; NVSHMEM takes shareable virtual memory alone");
            return Err(comm.nvshmem.failure(call, None, detail));
        }
        Ok(SymmetricBuffer::whole(self.heap.enlist(address as u64, bytes, Some(keep)), memory.len()))
    }

    /// Registers outside memory as a source and target of this PE's own side of puts and gets. Only
    /// needed for PEs that are reached by the network.
    ///
    /// Not collective. It ends some time after the result is dropped: when the streams that use it
    /// have passed. The memory is kept until then.
    ///
    /// # Errors
    /// [`NvshmemError::Nvshmem`] for memory that is registered already or overlaps such, or that a
    /// network does not take: then another one may have it, so that it is kept forever.
    /// [`MisuseKind::Context`] for memory that is only borrowed.
    pub fn register_local<T: Element>(&self, memory: &impl DeviceBuffer<T>) -> Result<Registration, NvshmemError> {
        const CALL: &str = "nvshmemx_buffer_register";
        let comm = &self.comm;
        let (address, held) = owned(comm, CALL, memory)?;
        let bytes = memory.len() * size_of::<T>();
        let code = comm.issue(CALL, |api, _| {
            // SAFETY: the memory has that many bytes and is kept until it is unregistered.
            unsafe { api.nvshmemx_buffer_register(std::ptr::without_provenance_mut(address as usize), bytes) }
        })?;
        // Of several networks one may have it.
        comm.nvshmem.check(CALL, code).inspect_err(|_| held.leak())?;
        Ok(self.heap.register(address, bytes, held))
    }
}

/// The address of outside memory and what keeps it.
fn owned<T>(comm: &Comm, call: &'static str, memory: &impl DeviceBuffer<T>) -> Result<(u64, Held), NvshmemError> {
    let (found, expected) = (memory.device(), comm.context.ordinal());
    if found != expected {
        return Err(NvshmemError::misuse(call, MisuseKind::Device { what: "the memory", found, expected }));
    }
    if memory.is_empty() {
        return Err(NvshmemError::misuse(
            call,
            MisuseKind::Length { what: "the memory", found: 0, expected: 1, unit: "elements" },
        ));
    }
    let why = "memory that is only borrowed cannot be registered: it could go away before; use memory that is owned, such as DeviceMemory";
    let (address, keep) = memory.keep().ok_or_else(|| NvshmemError::misuse(call, MisuseKind::Context { why }))?;
    Ok((address, Held::new(&comm.context, keep)))
}

/// An error unless the memory is the whole of one mapping of virtual memory, whose handle can be
/// shared, of the heap's step. NVSHMEM takes the handle, and maps it from its beginning, whatever
/// part was given; and where it finds out that it cannot, it unmaps all of its heap, and ends the
/// process.
fn whole_mapping(comm: &Comm, limits: Limits, call: &'static str, address: u64, bytes: usize) -> Result<(), NvshmemError> {
    use CUpointer_attribute::{
        CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, CU_POINTER_ATTRIBUTE_MAPPING_SIZE,
    };
    let api = Driver::get()?.api();
    bind_if_needed(&comm.context)?;
    let refuse = |why| Err(NvshmemError::misuse(call, MisuseKind::Context { why }));
    let mut handle = 0;
    // SAFETY: the pointer is to a live handle; the driver looks the address up.
    let code = unsafe { api.cuMemRetainAllocationHandle(&raw mut handle, std::ptr::without_provenance_mut(address as usize)) };
    if code.map_err(DriverError::from)? != CudaCode::SUCCESS {
        return refuse("only CUDA's virtual memory can be made symmetric, such as peerweave-vmm's, and this is other memory");
    }
    // SAFETY: the handle is live, and not used any more.
    let _ = unsafe { api.cuMemRelease(handle) };
    // Nothing where the driver does not tell: then NVSHMEM finds out.
    let ask = |attribute| -> Result<Option<u64>, NvshmemError> {
        let mut value = 0_u64;
        // SAFETY: these attributes are numbers of at most 64 bits.
        let code = unsafe { api.cuPointerGetAttribute((&raw mut value).cast(), attribute, address) };
        Ok((code.map_err(DriverError::from)? == CudaCode::SUCCESS).then_some(value))
    };
    if ask(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES)? == Some(0) {
        return refuse("the memory's handle cannot be shared with other processes, so that it cannot be made symmetric");
    }
    let mapping = ask(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR)?.zip(ask(CU_POINTER_ATTRIBUTE_MAPPING_SIZE)?);
    if mapping.is_some_and(|mapping| mapping != (address, bytes as u64)) {
        return refuse("the memory is a part of a mapping, and NVSHMEM makes nothing less than the whole of one symmetric");
    }
    if !limits.fixed && !(bytes as u64).is_multiple_of(limits.step) {
        let (what, expected) = ("the memory's bytes", "a multiple of the heap's step (Settings::heap_step_bytes)");
        return Err(NvshmemError::misuse(call, MisuseKind::Value { what, found: bytes as i64, expected }));
    }
    Ok(())
}
