//! Registration of memory from outside the heap. Either all PEs together make such memory
//! symmetric, or one PE registers it for its own network transfers.

use peerweave_driver::cudarc::driver::sys::CUpointer_attribute;
use peerweave_driver::{CudaCode, DeviceBuffer, Driver, DriverError, bind_if_needed};
use peerweave_types::Element;

use crate::comm::Comm;
use crate::comm::agree::{Members, arrive, split_outcome};
use crate::comm::deferred::Held;
use crate::context::Context;
use crate::error::{DeadState, MisuseKind, NvshmemError};
use crate::heap::limits::Limits;
use crate::heap::registration::Registration;
use crate::ops::allocate::check_all_allocated;
use crate::{SymmetricBuffer, Version};

impl Context {
    /// Makes existing memory symmetric. Every PE passes its own memory. The returned buffer
    /// represents the memory of all PEs.
    ///
    /// NVSHMEM accepts only memory from CUDA's virtual memory management. It must be possible to
    /// share the memory's handle with other processes. The memory must be one whole mapping. Unless
    /// the heap has a fixed size, the length of the mapping must be a multiple of the heap's step
    /// ([`Settings::heap_step_bytes`](crate::Settings::heap_step_bytes)). The memory stays
    /// allocated until the returned buffer has been freed.
    ///
    /// # Collective
    /// The same rules apply as for [`alloc`](Self::alloc).
    ///
    /// # Errors
    /// [`MisuseKind::Context`] if the memory is borrowed, is not from CUDA's virtual memory
    /// management, has no shareable handle, or is only a part of a mapping. [`MisuseKind::Value`]
    /// if the length is not a multiple of the step. [`NvshmemError::Nvshmem`] if NVSHMEM refuses
    /// the memory. Unless the heap has a fixed size, the context is unusable after such a refusal.
    /// Other errors are the same as for [`alloc`](Self::alloc).
    pub fn register_symmetric<T: Element>(&self, memory: &impl DeviceBuffer<T>) -> Result<SymmetricBuffer<T>, NvshmemError> {
        self.register("nvshmemx_buffer_register_symmetric", memory, None)
    }

    /// Makes memory symmetric like [`register_symmetric`](Self::register_symmetric), preferably at
    /// the address `address` in the symmetric heap. Requires NVSHMEM 3.6.
    ///
    /// # Collective
    /// The same rules apply as for [`alloc`](Self::alloc). The PEs may pass different addresses.
    ///
    /// # Errors
    /// [`NvshmemError::Unsupported`] if the library is older than NVSHMEM 3.6. Other errors are the
    /// same as for [`register_symmetric`](Self::register_symmetric).
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
        let (_turn, able) = split_outcome(
            kept.as_ref()
                .map_err(Clone::clone)
                .and_then(|_| self.heap.check_addresses(call, bytes))
                .and_then(|()| order.drain(call, comm)),
        );
        let mut entered = arrive(comm, call, Members::World, &format!("{} x {}", memory.len(), T::DTYPE.rust_name()), able)?;
        let (source, keep) = kept?;
        let address = entered.block(call, move |api, _| {
            let source = std::ptr::without_provenance_mut(source as usize);
            // SAFETY: the memory has `bytes` bytes and is kept alive until it is unregistered. All
            // PEs call.
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
            // The call has not returned and may still use the memory, and other PEs may map the
            // memory.
            if !matches!(error, NvshmemError::Unsupported(_)) {
                keep.leak();
            }
        })?;
        drop(entered);
        if address == 0 && !self.heap.limits.fixed {
            // NVSHMEM has unmapped its whole heap, so the context is unusable.
            comm.mark_dead(DeadState::Broken { by: call });
        }
        check_all_allocated(comm, call, address, Ok(())).inspect_err(|_| keep.leak())?;
        if address == 0 {
            let detail =
                format!("NVSHMEM refused to make {bytes} bytes symmetric, expected CUDA virtual memory with a shareable handle");
            return Err(comm.nvshmem.failure(call, None, detail));
        }
        Ok(SymmetricBuffer::whole(self.heap.add_allocation(address as u64, bytes, Some(keep)), memory.len()))
    }

    /// Registers memory that this PE uses as the source of puts or as the target of gets. Only
    /// transfers over the network need this call.
    ///
    /// This call is not collective. The memory stays registered and allocated until the returned
    /// value has been dropped and the streams that use the memory have completed.
    ///
    /// # Errors
    /// [`NvshmemError::Nvshmem`] if the memory overlaps registered memory, or if a network refuses
    /// the memory. In both cases the memory is leaked, because NVSHMEM may already have registered
    /// it with another network. [`MisuseKind::Context`] if the memory is borrowed.
    pub fn register_local<T: Element>(&self, memory: &impl DeviceBuffer<T>) -> Result<Registration, NvshmemError> {
        const CALL: &str = "nvshmemx_buffer_register";
        let comm = &self.comm;
        let (address, held) = owned(comm, CALL, memory)?;
        let bytes = memory.len() * size_of::<T>();
        let code = comm.issue(CALL, |api, _| {
            // SAFETY: the memory has `bytes` bytes and is kept alive until it is unregistered.
            unsafe { api.nvshmemx_buffer_register(std::ptr::without_provenance_mut(address as usize), bytes) }
        })?;
        // One of several networks may have registered the memory, so the memory must not be freed.
        comm.nvshmem.check(CALL, code).inspect_err(|_| held.leak())?;
        Ok(self.heap.register(address, bytes, held))
    }
}

/// Returns the address and the owner of memory. Returns an error for borrowed memory, for empty
/// memory, and for memory on another device.
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
    let why = "borrowed memory cannot be registered, because the owner could free the memory too early; use owned memory, such as DeviceMemory";
    let (address, keep) = memory.keep().ok_or_else(|| NvshmemError::misuse(call, MisuseKind::Context { why }))?;
    Ok((address, Held::new(&comm.context, keep)))
}

/// Checks that memory is one whole mapping, and that the memory's handle can be shared with other
/// processes. If the heap can grow, also checks that the length of the memory is a multiple of the
/// step by which the heap grows.
///
/// NVSHMEM does not make these checks. If the memory began in the middle of a mapping, NVSHMEM
/// would map the start of the mapping instead. If NVSHMEM cannot map the memory, NVSHMEM unmaps its
/// whole heap and ends the process.
fn whole_mapping(comm: &Comm, limits: Limits, call: &'static str, address: u64, bytes: usize) -> Result<(), NvshmemError> {
    use CUpointer_attribute::{
        CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, CU_POINTER_ATTRIBUTE_MAPPING_SIZE,
    };
    let api = Driver::get()?.api();
    bind_if_needed(&comm.context)?;
    let refuse = |why| Err(NvshmemError::misuse(call, MisuseKind::Context { why }));
    let mut handle = 0;
    // SAFETY: the pointer is to a live handle, and the driver looks up the address.
    let code = unsafe { api.cuMemRetainAllocationHandle(&raw mut handle, std::ptr::without_provenance_mut(address as usize)) };
    if code.map_err(DriverError::from)? != CudaCode::SUCCESS {
        return refuse(
            "only memory from CUDA's virtual memory management can be made symmetric; allocate the memory with peerweave-vmm",
        );
    }
    // SAFETY: the handle is live, and is not used afterwards.
    let _ = unsafe { api.cuMemRelease(handle) };
    // An attribute that the driver does not know is not checked. NVSHMEM then accepts or refuses
    // the memory.
    let ask = |attribute| -> Result<Option<u64>, NvshmemError> {
        let mut value = 0_u64;
        // SAFETY: these attributes are integers of at most 64 bits.
        let code = unsafe { api.cuPointerGetAttribute((&raw mut value).cast(), attribute, address) };
        Ok((code.map_err(DriverError::from)? == CudaCode::SUCCESS).then_some(value))
    };
    if ask(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES)? == Some(0) {
        return refuse(
            "memory without a shareable handle cannot be made symmetric; allocate the memory with a shareable handle type",
        );
    }
    let mapping = ask(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR)?.zip(ask(CU_POINTER_ATTRIBUTE_MAPPING_SIZE)?);
    if mapping.is_some_and(|mapping| mapping != (address, bytes as u64)) {
        return refuse("the memory is a part of a mapping, expected a whole mapping");
    }
    if !limits.fixed && !(bytes as u64).is_multiple_of(limits.step) {
        let (what, expected) = ("the length of the memory in bytes", "a multiple of the heap's step (Settings::heap_step_bytes)");
        return Err(NvshmemError::misuse(call, MisuseKind::Value { what, found: bytes as i64, expected }));
    }
    Ok(())
}
