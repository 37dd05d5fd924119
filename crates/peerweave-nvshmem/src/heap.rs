//! The symmetric heap: allocating, freeing, making outside memory symmetric. All of it collective.
//!
//! Handles are `buffer.rs`.
//!
//! # Invariants
//! - **\[H1\]** Memory is freed only where no handle, no captured graph and no stream uses it any more.
//! - **\[H2\]** The list of what is allocated is the same on every PE, in the same order.

use std::fmt;
use std::sync::{Arc, PoisonError};

use peerweave_driver::cudarc::driver::sys::CUpointer_attribute;
use peerweave_driver::{CudaCode, CudaError, CudaStream, DeviceBuffer, Driver, DriverError, bind_if_needed, relaxed};
use peerweave_types::Element;

use crate::agree::{Counted, Members, arrive, compare, taken};
use crate::context::{Context, Entered, Inner, undisturbed};
use crate::error::{DeadState, MisuseKind, NvshmemError};
use crate::handle::{Count, Handle};
use crate::parked::{Farewell, Held};
use crate::streams::{Streams, pass};
use crate::{Settings, SymmetricBuffer, Version};

/// One piece of symmetric memory.
pub(crate) struct Allocation {
    pub(crate) inner: Arc<Inner>,
    pub(crate) address: u64,
    bytes: usize,
    /// Counts allocations, the same on every PE.
    id: u64,
    /// What keeps outside memory; `None` for the heap's own.
    outside: Option<Held>,
    /// Streams that work on this memory was enqueued on.
    pub(crate) streams: Arc<Streams>,
    pub(crate) handles: Count,
}

impl Allocation {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Notes that work on this memory is enqueued on a stream.
    pub(crate) fn note(&self, stream: &Arc<CudaStream>) {
        self.streams.note(stream);
    }

    /// Waits until every stream that used the memory has passed its work.
    pub(crate) fn settle(&self, call: &'static str) -> Result<(), NvshmemError> {
        self.streams.settle(call, &self.inner)
    }

    /// Has NVSHMEM take it back. Collective; who calls has upheld [H1].
    pub(crate) fn release(self: &Arc<Self>, entered: &mut Entered<'_>) -> Result<(), NvshmemError> {
        self.call_release(entered).inspect_err(|_| {
            // NVSHMEM and the other PEs may still have it: outside memory is not given back, ever.
            std::mem::forget(Arc::clone(self));
        })?;
        let mut freed = self.inner.freed.lock().unwrap_or_else(PoisonError::into_inner);
        *freed = (freed.0 + 1, freed.1 + self.bytes as u64);
        Ok(())
    }

    fn call_release(&self, entered: &mut Entered<'_>) -> Result<(), NvshmemError> {
        let (address, bytes) = (self.address as usize, self.bytes);
        match &self.outside {
            None => entered.block("nvshmem_free", move |api, _| {
                // SAFETY: the address came from the heap and is freed once: the allocation leaves the list with it.
                unsafe { api.nvshmem_free(std::ptr::without_provenance_mut(address)) }
            }),
            Some(_) => {
                const CALL: &str = "nvshmemx_buffer_unregister_symmetric";
                let code = entered.block(CALL, move |api, _| {
                    // SAFETY: the address and the length are those of one registration, which is ended once.
                    unsafe { api.nvshmemx_buffer_unregister_symmetric(std::ptr::without_provenance_mut(address), bytes) }
                })?;
                self.inner.nvshmem.check(CALL, code)
            }
        }
    }
}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}: {} bytes at {:#x}", self.id, self.bytes, self.address)
    }
}

/// What the heap can have, by the settings that NVSHMEM was started with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// It does not grow, and refuses without harm.
    fixed: bool,
    /// It grows by so many bytes, or a multiple.
    step: u64,
    most_bytes: u64,
}

impl Limits {
    pub(crate) fn of(settings: &Settings) -> Self {
        /// What the device's memory is mapped in.
        const LEAST_STEP: u64 = 2 << 20;
        /// `NVSHMEMI_MAX_HANDLE_LENGTH`.
        const MOST_STEP: u64 = 1 << 31;
        let bytes = |name, default| settings.bytes(name).unwrap_or(default);
        let step = bytes("NVSHMEM_CUMEM_GRANULARITY", 512 << 20).clamp(LEAST_STEP, MOST_STEP);
        let most_bytes = bytes("NVSHMEM_MAX_MEMORY_PER_GPU", 256 << 30).max(step).next_multiple_of(step);
        let on_host = settings.effective("NVSHMEM_HEAP_KIND").is_some_and(|kind| kind.eq_ignore_ascii_case("SYSMEM"));
        Self { fixed: on_host || settings.is_on("NVSHMEM_DISABLE_CUDA_VMM"), step, most_bytes }
    }
}

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
    /// Where the heap has to grow for it, NVSHMEM waits for what the device's default stream has; for longer than the deadline is the end of the context.
    ///
    /// # Collective
    /// All PEs, with the same type and length, in the same order of set-up calls.
    ///
    /// # Errors
    /// [`NvshmemError::Disagree`] on every PE where they differ; [`NvshmemError::Nvshmem`] where the heap, or the device, has too little left;
    /// [`NvshmemError::Bootstrap`] and [`NvshmemError::Timeout`] name who did not come.
    ///
    /// A heap that cannot grow NVSHMEM gives up as a whole, and ends the process. So what cannot be is refused before. What is not known: which holes
    /// the heap has, where something was freed; and what others take of the device meanwhile. There NVSHMEM is asked, and if it gives nothing and the process
    /// lives on, the context is at its end ([`DeadState::Broken`]). A heap of a fixed size ([`Settings::disable_cuda_vmm`]) refuses without harm.
    pub fn alloc<T: Element>(&self, len: usize) -> Result<SymmetricBuffer<T>, NvshmemError> {
        self.allocate("nvshmem_malloc", len, Kind::Malloc)
    }

    /// As [`alloc`](Self::alloc), filled with zeros on every PE when this comes back, whatever streams have to do.
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
        let inner = &self.inner;
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
        let _setup = inner.setup_turn(call)?;
        let order = inner.world_order();
        let (_turn, able) = taken(able.and_then(|()| self.room(call, bytes, alignment)).and_then(|()| order.settle(call, inner)));
        let zeroed = if matches!(kind, Kind::Zeroed) { ", zeroed" } else { "" };
        let what = format!("{len} x {:?}, alignment {alignment}{zeroed}", T::DTYPE);
        let mut entered = arrive(inner, call, Members::World, &what, able)?;
        let address = entered.block(call, move |api, _| {
            // SAFETY: any sizes are allowed; all PEs call, with the same.
            let address = unsafe {
                match kind {
                    // NVSHMEM's own zeros come in the order of the default stream, and nothing waits for them: they may overwrite what others have put.
                    Kind::Malloc | Kind::Zeroed => api.nvshmem_malloc(bytes),
                    Kind::Align(alignment) => api.nvshmem_align(alignment, bytes),
                }
            }?;
            Ok(address.addr())
        })?;
        let zeroed = if matches!(kind, Kind::Zeroed) && address != 0 { self.zero(call, address as u64, bytes) } else { Ok(()) };
        if address == 0 && !inner.limits.fixed {
            // It has unmapped all of its heap.
            inner.bury(DeadState::Broken { by: call });
        }
        let alone = inner.world.is_none().then_some(entered);
        self.everybody_got(call, address, zeroed)?;
        if matches!(kind, Kind::Zeroed)
            && let Some(mut entered) = alone
        {
            // Nobody may put before everybody's zeros are there: where there is a rendezvous, all have just met.
            // SAFETY: NVSHMEM is initialised, and all PEs call.
            entered.block("nvshmem_barrier_all", |api, _| unsafe { api.nvshmem_barrier_all() })?;
        }
        if address == 0 {
            let detail = format!("{bytes} bytes of symmetric memory: the heap, or the device, has too little left");
            return Err(inner.nvshmem.failure(call, None, detail));
        }
        let allocation = self.enlist(address as u64, bytes, None);
        Ok(SymmetricBuffer::whole(allocation, len))
    }

    /// An error where the heap cannot have so much more. NVSHMEM would find that out by itself, and then unmap all of its heap, and end the process.
    ///
    /// It is not known which holes there are: where one may be large enough, NVSHMEM is asked.
    fn room(&self, call: &'static str, bytes: usize, alignment: usize) -> Result<(), NvshmemError> {
        let inner = &self.inner;
        let Limits { fixed: false, step, .. } = inner.limits else { return Ok(()) };
        self.addresses(call, bytes)?;
        let pieces = inner.allocations.lock().unwrap_or_else(PoisonError::into_inner).len() as u64;
        let (freed_pieces, freed) = *inner.freed.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = bytes as u64 + alignment as u64;
        // What was freed, and what each growth may have left over.
        let holes = freed + (pieces + freed_pieces + 1) * step;
        let (free, _) = undisturbed(&inner.context, || inner.context.mem_get_info()).map_err(CudaError::of("cuMemGetInfo_v2"))?;
        let grown = wanted.next_multiple_of(step);
        if grown > free as u64 && wanted > holes {
            let why = format!("the heap would have to grow by {grown}, and the device has {free} left");
            return Err(inner.nvshmem.failure(call, None, format!("{bytes} bytes of symmetric memory: {why}")));
        }
        Ok(())
    }

    /// The same of the addresses that the heap has for its own and for outside memory.
    fn addresses(&self, call: &'static str, bytes: usize) -> Result<(), NvshmemError> {
        let Limits { fixed, most_bytes, .. } = self.inner.limits;
        let allocations = self.inner.allocations.lock().unwrap_or_else(PoisonError::into_inner);
        let held: u64 = allocations.iter().map(|allocation| allocation.bytes as u64).sum();
        if fixed || held + (bytes as u64) < most_bytes {
            return Ok(());
        }
        let why = format!("{held} of at most {most_bytes} are allocated (NVSHMEM_MAX_MEMORY_PER_GPU)");
        Err(self.inner.nvshmem.failure(call, None, format!("{bytes} bytes of symmetric memory: {why}")))
    }

    /// Where one PE got memory and another did not, the heaps are alike no more, and NVSHMEM cannot be used.
    fn everybody_got(&self, call: &'static str, address: usize, usable: Result<(), NvshmemError>) -> Result<(), NvshmemError> {
        let outcome = if address == 0 { "got none" } else { "got memory" };
        compare(&self.inner, call, outcome, usable).inspect_err(|_| self.inner.bury(DeadState::Broken { by: call }))
    }

    /// Zeros fresh memory, and waits for that.
    fn zero(&self, call: &'static str, address: u64, bytes: usize) -> Result<(), NvshmemError> {
        let (inner, api) = (&self.inner, Driver::get()?.api());
        bind_if_needed(&inner.context)?;
        // SAFETY: the memory has that many bytes, and nobody else has it yet; the stream is live.
        let code = relaxed(|| unsafe { api.cuMemsetD8Async(address, 0, bytes, inner.side.cu_stream()) });
        CudaError::check("cuMemsetD8Async", code.map_err(DriverError::from)?)?;
        pass(call, inner, &inner.side)
    }

    fn enlist(&self, address: u64, bytes: usize, outside: Option<Held>) -> Handle {
        let mut allocations = self.inner.allocations.lock().unwrap_or_else(PoisonError::into_inner);
        let id = self.inner.count(Counted::Allocations);
        let (inner, streams) = (Arc::clone(&self.inner), Arc::new(Streams::new(&self.inner)));
        let allocation = Arc::new(Allocation { inner, address, bytes, id, outside, streams, handles: Count::default() });
        let handle = Handle::new(&allocation);
        allocations.push(allocation);
        handle
    }

    /// Frees symmetric memory on every PE, once the streams that used it have passed their work.
    ///
    /// # Collective
    /// All PEs, with their handle of the same allocation.
    ///
    /// # Errors
    /// [`MisuseKind::InUse`] while there are other handles or slices of it, or captured graphs that use it: then nobody frees it, the others get
    /// [`NvshmemError::Disagree`], and it is freed at [`finalize`](Self::finalize). As [`alloc`](Self::alloc) otherwise.
    pub fn free<T: Element>(&self, buffer: SymmetricBuffer<T>) -> Result<(), NvshmemError> {
        const CALL: &str = "nvshmem_free";
        let allocation = buffer.into_handle();
        let _setup = self.inner.setup_turn(CALL)?;
        let order = self.inner.world_order();
        let settled = self.may_free(CALL, &allocation).and_then(|()| allocation.settle(CALL));
        let (_turn, able) = taken(settled.and_then(|()| order.settle(CALL, &self.inner)));
        let mut entered = arrive(&self.inner, CALL, Members::World, &format!("allocation #{}", allocation.id), able)?;
        {
            let mut allocations = self.inner.allocations.lock().unwrap_or_else(PoisonError::into_inner);
            allocations.retain(|known| !Arc::ptr_eq(known, &allocation));
        }
        allocation.release(&mut entered)
    }

    /// `allocation` is a handle that nobody else has, so that there is no other one from here on where there is none now.
    fn may_free(&self, call: &'static str, allocation: &Handle) -> Result<(), NvshmemError> {
        if !Arc::ptr_eq(&allocation.inner, &self.inner) {
            return Err(NvshmemError::misuse(call, MisuseKind::WrongContext { what: "the buffer" }));
        }
        if !self.inner.gone_with_graphs(|| allocation.handles.is_at_most(1)) {
            let by = "another handle, a slice or a captured graph";
            return Err(NvshmemError::misuse(call, MisuseKind::InUse { what: "the buffer", by }));
        }
        Ok(())
    }

    /// Makes outside memory symmetric: every PE gives memory of its own, and gets a buffer whose counterparts are the others'.
    ///
    /// NVSHMEM takes memory that was made by CUDA's virtual memory management with a handle that can be shared: the whole of a mapping, of a multiple of the
    /// heap's step ([`Settings::heap_step_bytes`]). Others are refused here. The memory is kept until the buffer is freed.
    ///
    /// # Collective
    /// As [`alloc`](Self::alloc).
    ///
    /// # Errors
    /// [`MisuseKind::Context`] for memory that is only borrowed, is no virtual memory, cannot be shared, or is a part of a mapping; [`MisuseKind::Value`] for
    /// bytes that are no multiple of the step. [`NvshmemError::Nvshmem`] where NVSHMEM refuses it, which is the end of the context unless the heap is of a fixed
    /// size. As [`alloc`](Self::alloc) otherwise.
    pub fn register_symmetric<T: Element>(&self, memory: &impl DeviceBuffer<T>) -> Result<SymmetricBuffer<T>, NvshmemError> {
        self.register("nvshmemx_buffer_register_symmetric", memory, None)
    }

    /// As [`register_symmetric`](Self::register_symmetric), at an address of the symmetric heap that the caller would like, where it is free. Since 3.6.
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
        if !self.inner.nvshmem.has(CALL) {
            return Err(self.inner.nvshmem.unsupported(CALL, Some(Version::new(3, 6, 5))));
        }
        self.register(CALL, memory, Some(address))
    }

    fn register<T: Element>(
        &self,
        call: &'static str,
        memory: &impl DeviceBuffer<T>,
        wish: Option<u64>,
    ) -> Result<SymmetricBuffer<T>, NvshmemError> {
        let inner = &self.inner;
        let bytes = memory.len() * size_of::<T>();
        let kept = owned(inner, call, memory).and_then(|kept| whole_mapping(inner, call, kept.0, bytes).map(|()| kept));
        let _setup = inner.setup_turn(call)?;
        let order = inner.world_order();
        let (_turn, able) = taken(
            kept.as_ref()
                .map_err(Clone::clone)
                .and_then(|_| self.addresses(call, bytes))
                .and_then(|()| order.settle(call, inner)),
        );
        let mut entered = arrive(inner, call, Members::World, &format!("{} x {:?}", memory.len(), T::DTYPE), able)?;
        let (source, keep) = kept?;
        let address = entered.block(call, move |api, _| {
            let source = std::ptr::without_provenance_mut(source as usize);
            // SAFETY: the memory has that many bytes and is kept until it is unregistered; all PEs call.
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
        if address == 0 && !inner.limits.fixed {
            // It has unmapped all of its heap.
            inner.bury(DeadState::Broken { by: call });
        }
        self.everybody_got(call, address, Ok(())).inspect_err(|_| keep.leak())?;
        if address == 0 {
            let detail = format!("{bytes} bytes; NVSHMEM takes shareable virtual memory alone");
            return Err(inner.nvshmem.failure(call, None, detail));
        }
        Ok(SymmetricBuffer::whole(self.enlist(address as u64, bytes, Some(keep)), memory.len()))
    }

    /// Registers outside memory as a source and target of this PE's own side of puts and gets. Only needed for PEs that are reached by the network.
    ///
    /// Not collective. It ends some time after the result is dropped: when the streams that use it have passed. The memory is kept until then.
    ///
    /// # Errors
    /// [`NvshmemError::Nvshmem`] for memory that is registered already or overlaps such, or that a network does not take: then another one may have it, so
    /// that it is kept for ever. [`MisuseKind::Context`] for memory that is only borrowed.
    pub fn register_local<T: Element>(&self, memory: &impl DeviceBuffer<T>) -> Result<Registration, NvshmemError> {
        const CALL: &str = "nvshmemx_buffer_register";
        let inner = &self.inner;
        let (address, held) = owned(inner, CALL, memory)?;
        let bytes = memory.len() * size_of::<T>();
        let code = inner.issue(CALL, |api, _| {
            // SAFETY: the memory has that many bytes and is kept until it is unregistered.
            unsafe { api.nvshmemx_buffer_register(std::ptr::without_provenance_mut(address as usize), bytes) }
        })?;
        // Of several networks one may have it.
        inner.nvshmem.check(CALL, code).inspect_err(|_| held.leak())?;
        let record =
            Arc::new(Registered { inner: Arc::clone(inner), address, bytes, streams: Arc::new(Streams::new(inner)), held });
        inner.registered.lock().unwrap_or_else(PoisonError::into_inner).push((address, bytes, Arc::downgrade(&record)));
        Ok(Registration(record))
    }
}

/// The address of outside memory and what keeps it.
fn owned<T>(inner: &Inner, call: &'static str, memory: &impl DeviceBuffer<T>) -> Result<(u64, Held), NvshmemError> {
    let (found, expected) = (memory.device(), inner.context.ordinal());
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
    Ok((address, Held::new(&inner.context, keep)))
}

/// An error unless the memory is the whole of one mapping of virtual memory, whose handle can be shared, of the heap's step. NVSHMEM takes the handle, and maps
/// it from its beginning, whatever part was given; and where it finds out that it cannot, it unmaps all of its heap, and ends the process.
fn whole_mapping(inner: &Inner, call: &'static str, address: u64, bytes: usize) -> Result<(), NvshmemError> {
    use CUpointer_attribute::{
        CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, CU_POINTER_ATTRIBUTE_MAPPING_SIZE,
    };
    let api = Driver::get()?.api();
    bind_if_needed(&inner.context)?;
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
    if !inner.limits.fixed && !(bytes as u64).is_multiple_of(inner.limits.step) {
        let (what, expected) = ("the memory's bytes", "a multiple of the heap's step (Settings::heap_step_bytes)");
        return Err(NvshmemError::misuse(call, MisuseKind::Value { what, found: bytes as i64, expected }));
    }
    Ok(())
}

/// Outside memory that is registered as this PE's own side of puts and gets.
pub struct Registration(Arc<Registered>);

impl Registration {
    /// Its bytes.
    pub fn len_bytes(&self) -> usize {
        self.0.bytes
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registration({} bytes at {:#x})", self.0.bytes, self.0.address)
    }
}

/// The same, for all that need it: the caller's handle, calls that are being made, graphs. The last of them ends it.
pub(crate) struct Registered {
    inner: Arc<Inner>,
    address: u64,
    bytes: usize,
    /// Streams that transfer from or to it by the network.
    streams: Arc<Streams>,
    held: Held,
}

impl Registered {
    /// Notes that work which needs it is enqueued on a stream.
    pub(crate) fn note(&self, stream: &Arc<CudaStream>) {
        self.streams.note(stream);
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // In a fork, somebody who is not there may have the lock; the list is of no use there.
        if self.inner.nvshmem.not_forked(UNREGISTER).is_ok() {
            let mut registered = self.inner.registered.lock().unwrap_or_else(PoisonError::into_inner);
            registered.retain(|(address, ..)| *address != self.address);
        }
        let (held, streams) = (self.held.clone(), Some(Arc::clone(&self.streams)));
        self.inner.part(Farewell { call: UNREGISTER, tell, address: self.address as usize, streams, held });
    }
}

const UNREGISTER: &str = "nvshmemx_buffer_unregister";

fn tell(inner: &Inner, address: usize) -> Result<(), NvshmemError> {
    let address = std::ptr::without_provenance_mut(address);
    // SAFETY: the address was registered once, and is unregistered once, by who is inside.
    let code = inner.nvshmem.code(UNREGISTER, |api| unsafe { api.nvshmemx_buffer_unregister(address) })?;
    inner.nvshmem.check(UNREGISTER, code)
}
