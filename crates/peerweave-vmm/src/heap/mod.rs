//! A symmetric heap on the GPUs of one machine. All PEs allocate together and get the same offset,
//! and each PE can access the memory of the other PEs.
//!
//! Memory of other machines cannot be accessed. `symmetric.rs` implements typed memory. `agree.rs`
//! implements the exchange of outcomes in a collective call. `chunk.rs` implements a chunk of
//! memory.
//!
//! ```text
//!   base                stride              stride
//!   |  rank 0: chunk chunk ...   |  rank 1: chunk chunk ...   |  ...      one reservation in every process
//! ```
//!
//! Invariants: [H1] the allocators of all PEs have executed the same calls with the same results.
//! [H2] An allocated offset is mapped, for every PE of the machine, until the heap and all handles
//! of its memory are dropped. [H3] Memory whose handles are dropped without `free` is never
//! allocated again.

use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use peerweave_bootstrap::Rendezvous;
use peerweave_driver::CudaContext;
use peerweave_driver::cudarc::driver::sys::CUdeviceptr;
use peerweave_types::{Element, HeapGeometry, Pe};

use crate::agree::{Disagreement, agree, unreadable};
use crate::error::{Misuse, VmmError};
use crate::heap::chunk::{Chunk, HeapTransport};
use crate::heap::pads::SignalPad;
use crate::heap::symmetric::{Block, SymmetricMemory};
use crate::memory::buffer::{bytes_of, wrong_value};
use crate::memory::physical::PhysicalMemory;
use crate::memory::reservation::Reservation;
use crate::memory::streams::wait_for_all;

mod check;
pub(crate) mod chunk;
mod inner;
pub(crate) mod multicast;
pub(crate) mod pads;
pub(crate) mod symmetric;
pub(crate) mod view;

pub(crate) use inner::HeapInner;
use inner::{Around, State};

const ALLOC: &str = "SymmetricHeap::alloc";
const FREE: &str = "SymmetricHeap::free";

/// The transport that the caller requests for sharing the heap's memory among the PEs of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sharing {
    /// The first transport that all PEs of the machine support. The order is: direct access among
    /// threads of one process, file descriptors, fabric handles, legacy IPC.
    #[default]
    Auto,
    /// Fabric handles if all PEs of the machine support fabric handles. If not, the transport is
    /// chosen as for [`Auto`](Self::Auto), and [`SymmetricHeap::fallback_reason`] returns the
    /// reason.
    PreferFabric,
    /// Legacy CUDA IPC, even if the PEs support other transports.
    Ipc,
}

/// Whether a heap grows automatically.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Growth {
    /// The heap grows only if the PEs call [`SymmetricHeap::grow`].
    #[default]
    Explicit,
    /// If an allocation does not fit, the heap grows by at least `bytes` bytes. If the heap's limit
    /// does not permit this, the heap grows by the length of the allocation, rounded up to the
    /// granularity.
    Steps {
        /// Minimum growth in bytes, if the maximum size of the heap permits it.
        bytes: usize,
    },
}

/// The options of a heap: its size, growth and transport. The options must be equal on all PEs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeapOptions {
    /// Initial size of each PE's segment in bytes. The size is rounded up to the granularity.
    pub initial_bytes: usize,
    /// Maximum size of each PE's segment in bytes. `None` means the largest memory size among the
    /// devices of all PEs. The heap reserves addresses for the maximum size; reserved addresses use
    /// no memory.
    pub max_bytes: Option<usize>,
    /// Whether the heap grows automatically.
    pub growth: Growth,
    /// Requested transport: the mechanism by which the PEs of a machine share memory.
    pub sharing: Sharing,
    /// Whether [`SymmetricHeap::multicast`] will be called. If so, the heap's granularity is a
    /// multiple of the granularity that the driver recommends for multicast objects. The
    /// recommended granularity may be 512 MiB. PEs whose device or settings do not allow multicast
    /// objects ignore this option.
    pub multicast: bool,
}

impl HeapOptions {
    /// Returns the options of a heap that has `initial_bytes` on each PE and does not grow
    /// automatically.
    pub fn new(initial_bytes: usize) -> Self {
        Self { initial_bytes, max_bytes: None, growth: Growth::default(), sharing: Sharing::default(), multicast: false }
    }

    /// Sets the maximum size of each PE's segment in bytes.
    pub fn max_bytes(self, max_bytes: usize) -> Self {
        Self { max_bytes: Some(max_bytes), ..self }
    }

    /// Sets whether the heap grows automatically.
    pub fn growth(self, growth: Growth) -> Self {
        Self { growth, ..self }
    }

    /// Sets whether the heap is prepared for multicast objects.
    pub fn multicast(self, multicast: bool) -> Self {
        Self { multicast, ..self }
    }

    /// Sets the requested transport: the mechanism by which the PEs of a machine share memory.
    pub fn sharing(self, sharing: Sharing) -> Self {
        Self { sharing, ..self }
    }
}

/// A heap of GPU memory with the same layout on every PE. The PEs allocate memory together. Each PE
/// can access the heap memory of all PEs of its machine.
///
/// # Collective
/// All PEs of the job call [`new`](Self::new), [`alloc`](Self::alloc),
/// [`signal_pad`](Self::signal_pad), [`free`](Self::free), [`grow`](Self::grow) and
/// [`finalize`](Self::finalize) in the same order with the same arguments. The same rule applies to
/// every other function that has a section "Collective". If the PEs' calls differ, all PEs get
/// [`Misuse::Diverged`], and the heap is unchanged. Each call returns by the deadline of the
/// rendezvous. If some PEs have not arrived by the deadline, the error names these PEs.
///
/// Dropping the heap, or a handle to its memory, is not collective. Memory whose handles are
/// dropped without [`free`](Self::free) stays allocated until the heap is released, and
/// [`finalize`](Self::finalize) reports this memory.
///
/// ```no_run
/// use std::sync::Arc;
/// use std::time::{Duration, Instant};
/// use peerweave_bootstrap::{Job, Options, Rendezvous};
/// use peerweave_types::Pe;
/// use peerweave_vmm::{HeapOptions, SymmetricHeap};
///
/// let job = Job::from_env()?;
/// let rendezvous = Arc::new(Rendezvous::join(&job, Options::default())?);
/// let context = peerweave_driver::context(job.local_pe as usize)?;
/// let heap = SymmetricHeap::new(&rendezvous, &context, HeapOptions::new(64 << 20))?;
/// let memory = heap.alloc::<f32>(1024)?; // zeros, on every PE
/// let next = Pe::new((job.pe.get() + 1) % job.n_pes);
/// let stream = context.default_stream();
/// let deadline = Instant::now() + Duration::from_secs(10);
/// peerweave_vmm::write(&stream, &mut memory.peer(next)?, &[1.0; 1024], deadline)?;
/// rendezvous.barrier("written")?;
/// assert_eq!(peerweave_vmm::read(&stream, &memory, deadline)?[0], 1.0);
/// heap.free(memory)?;
/// heap.finalize()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SymmetricHeap {
    inner: Arc<HeapInner>,
}

/// An allocation that was not freed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leak {
    /// Offset of the allocation in the heap, in bytes.
    pub offset: u64,
    /// Requested length in bytes.
    pub bytes: u64,
    /// Name of the element type.
    pub element: &'static str,
    /// Whether all handles to the allocation have been dropped. While a handle exists, the
    /// addresses stay valid.
    pub dropped: bool,
}

/// The allocations that were not freed when a heap was finalised.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeakReport {
    /// The allocations, in ascending order of their offsets.
    pub leaks: Vec<Leak>,
}

impl LeakReport {
    /// Returns whether all memory was freed before the heap was finalised.
    pub fn is_clean(&self) -> bool {
        self.leaks.is_empty()
    }
}

impl fmt::Display for LeakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_clean() {
            return f.write_str("all memory was freed");
        }
        let dropped = self.leaks.iter().filter(|leak| leak.dropped).count();
        write!(
            f,
            "{} allocations were not freed before their last handle was dropped, {} still have handles:",
            dropped,
            self.leaks.len() - dropped
        )?;
        for leak in &self.leaks {
            write!(f, "\n  offset {}: {} bytes of {}", leak.offset, leak.bytes, leak.element)?;
        }
        Ok(())
    }
}

impl SymmetricHeap {
    /// Creates a heap on the device of `context`. A PE may be a process, or a thread with its own
    /// context.
    ///
    /// # Collective
    /// All PEs of the job call this function. Afterwards the PEs of one machine can access each
    /// other's heap memory.
    ///
    /// # Errors
    /// [`VmmError::Unsupported`] if the devices of a machine cannot access each other, or if the
    /// PEs cannot share memory. [`VmmError::Peer`] if another PE failed or was lost.
    /// [`VmmError::Timeout`] if PEs do not arrive by the deadline; the error names these PEs.
    /// [`VmmError::Driver`] if a driver call fails.
    pub fn new(rendezvous: &Arc<Rendezvous>, context: &Arc<CudaContext>, options: HeapOptions) -> Result<Self, VmmError> {
        let call = format!("SymmetricHeap::new({options:?})");
        let around =
            agree(rendezvous, "peerweave-vmm/new", &call, Around::look(rendezvous, context, &options).map(|mine| mine.encode()))?;
        let id = Around::id(&around);
        let read = |(blob, pe): (&Vec<u8>, u32)| Around::decode(blob).ok_or_else(|| unreadable(&call, Pe::new(pe)));
        let around: Result<Vec<Around>, VmmError> = around.iter().zip(0..).map(read).collect();
        let inner = match around.and_then(|around| HeapInner::new(rendezvous, context, options, &around, id)) {
            Ok(inner) => inner,
            // The other PEs wait in the exchange for their first chunk, and must be notified.
            Err(error) => return Err(inner::tell(rendezvous, &inner::label(id, 0, "chunk"), &call, error)),
        };
        {
            let mut state = inner.state();
            let initial = inner.rounded(inner.options.initial_bytes);
            inner.extend(&mut state, &call, initial)?;
            state.calls += 1;
        }
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Allocates `len` elements on every PE, and fills them with zeros.
    ///
    /// # Collective
    /// All PEs of the job call this function with the same type and length. When the call returns,
    /// the memory of all PEs is zero.
    ///
    /// # Errors
    /// [`Misuse::Exhausted`] if the memory does not fit and the heap cannot grow.
    /// [`Misuse::Diverged`] if the PEs' calls differ. Also the errors of [`new`](Self::new).
    pub fn alloc<T: Element>(&self, len: usize) -> Result<SymmetricMemory<T>, VmmError> {
        self.alloc_aligned(len, align_of::<T>())
    }

    /// Allocates memory like [`alloc`](Self::alloc), at an offset that is a multiple of
    /// `alignment_bytes`. The alignment must be a power of two, and at most 2 MiB. The offset is
    /// always a multiple of 256.
    ///
    /// # Collective
    /// All PEs of the job call this function with the same type, length and alignment.
    ///
    /// # Errors
    /// The errors of [`alloc`](Self::alloc). [`Misuse::Value`] if the alignment is invalid.
    pub fn alloc_aligned<T: Element>(&self, len: usize, alignment_bytes: usize) -> Result<SymmetricMemory<T>, VmmError> {
        let mut state = self.inner.enter(ALLOC)?;
        self.alloc_in(&mut state, len, alignment_bytes)
    }

    fn alloc_in<T: Element>(
        &self,
        state: &mut State,
        len: usize,
        alignment_bytes: usize,
    ) -> Result<SymmetricMemory<T>, VmmError> {
        /// Maximum alignment of an allocation, in bytes. Every segment has this alignment.
        const MAX_ALIGNMENT_BYTES: usize = 2 << 20;
        let name = std::any::type_name::<T>();
        let history = state.history.get();
        let call = format!("{ALLOC}({len} x {name}, aligned to {alignment_bytes}) [hash of earlier calls: {history:016x}]");
        let wanted = match alignment_bytes.is_power_of_two() && alignment_bytes <= MAX_ALIGNMENT_BYTES {
            true => bytes_of::<T>(ALLOC, len).map(|bytes| bytes as u64),
            false => Err(wrong_value(ALLOC, "alignment_bytes", alignment_bytes, "a power of two of at most 2 MiB")),
        };
        let alignment = alignment_bytes as u64;
        let taken = wanted.as_ref().ok().and_then(|bytes| state.ranges.allocate(*bytes, alignment));
        let outcome = wanted.clone().and_then(|bytes| match taken {
            Some(at) => self.inner.zero(ALLOC, at, bytes).map(|()| at.to_le_bytes().to_vec()),
            None if self.inner.growth_for(state, bytes, alignment).is_some() => Ok(Vec::new()),
            None => Err(self.inner.exhausted(ALLOC, state, bytes)),
        });
        self.agree_on_offset(state, "alloc", &call, taken, outcome)?;
        let bytes = wanted?;
        let at = match taken {
            Some(at) => at,
            None => self.grow_and_take(state, &call, bytes, alignment)?,
        };
        state.history = state.history.with(&[1, bytes, alignment, at]);
        state.calls += 1;
        let leak = Leak { offset: at, bytes, element: name, dropped: false };
        self.inner.ledger().insert(at, leak);
        let block = Block::new(Arc::clone(&self.inner), at, bytes)?;
        Ok(SymmetricMemory::new(Arc::new(block), len))
    }

    /// Exchanges `outcome`, which contains this PE's offset of an allocation, with the other PEs.
    /// Returns an error unless all PEs have the same offset. After an error, the range at offset
    /// `taken` is free again in this PE's allocator.
    fn agree_on_offset(
        &self,
        state: &mut State,
        what: &str,
        call: &str,
        taken: Option<u64>,
        outcome: Result<Vec<u8>, VmmError>,
    ) -> Result<(), VmmError> {
        let agreed = agree(&self.inner.rendezvous, &self.inner.label(state, what), call, outcome)
            .and_then(|offsets| inner::same_offsets(call, &offsets));
        if agreed.is_err()
            && let Some(at) = taken
        {
            state.ranges.free(at);
        }
        self.inner.conclude(state, call, agreed)
    }

    /// Allocates `len` signals on every PE. Each signal is zero and has its own cache line.
    ///
    /// # Collective
    /// All PEs of the job call this function with the same `len`.
    ///
    /// # Errors
    /// The errors of [`alloc`](Self::alloc).
    pub fn signal_pad(&self, len: usize) -> Result<SignalPad, VmmError> {
        // The product saturates, so that all PEs refuse a number beyond the address space with the
        // same error.
        let words = len.saturating_mul(SignalPad::WORDS_PER_SIGNAL);
        Ok(SignalPad::new(self.alloc(words)?, len))
    }

    /// Frees memory on every PE. Before that, waits until this PE's streams have completed all work
    /// that uses the memory, and all work that uses multicast addresses of the heap.
    ///
    /// After an error the memory stays allocated, as if `memory` had been dropped without a call of
    /// `free`. Freeing fails if another library used the memory on a per-thread stream, because no
    /// other thread can wait for such a stream.
    ///
    /// # Collective
    /// All PEs of the job call this function, each with a handle to the same allocation. The PE
    /// must have no other handle to the allocation. Clones, slices and handles to the memory of
    /// other PEs also count as handles.
    ///
    /// # Errors
    /// [`Misuse::StillShared`] if other handles exist. [`Misuse::OtherHeap`] if the memory belongs
    /// to another heap. [`VmmError::Timeout`] if a stream does not complete its work, for example
    /// because the stream is being captured. [`VmmError::Driver`] with
    /// `DriverError::PerThreadStream` if the memory was used on a per-thread stream.
    /// [`Misuse::Diverged`] if the PEs' calls differ. Also the errors of [`new`](Self::new).
    pub fn free<T: Element>(&self, memory: SymmetricMemory<T>) -> Result<(), VmmError> {
        let mut state = self.inner.enter(FREE)?;
        self.free_in(&mut state, memory, self.inner.own_deadline())
    }

    /// Frees memory after the streams that use the memory have completed. Fails if the streams have
    /// not completed by `until`.
    fn free_in<T: Element>(&self, state: &mut State, mut memory: SymmetricMemory<T>, until: Instant) -> Result<(), VmmError> {
        let is_alone = memory.is_only_handle();
        let (block, offset) = (memory.block(), memory.block().offset());
        let call = format!("{FREE}(offset {offset}) [hash of earlier calls: {:016x}]", state.history.get());
        let outcome = if !Arc::ptr_eq(block.heap(), &self.inner) {
            Err(Misuse::OtherHeap { call: FREE }.into())
        } else if !is_alone {
            let handles = Arc::strong_count(block) + Arc::weak_count(block);
            Err(Misuse::StillShared { call: FREE, offset, handles }.into())
        } else {
            wait_for_all(block.streams(), FREE, until).and_then(|()| wait_for_all(&self.inner.multicast, FREE, until))
        };
        let agreed = agree(&self.inner.rendezvous, &self.inner.label(state, "free"), &call, outcome.map(|()| Vec::new()));
        self.inner.conclude(state, &call, agreed)?;
        state.ranges.free(offset);
        state.history = state.history.with(&[2, offset]);
        state.calls += 1;
        self.inner.ledger().remove(&offset);
        block.forget();
        Ok(())
    }

    /// Frees a signal pad, like [`free`](Self::free).
    ///
    /// # Collective
    /// All PEs of the job call this function. Each PE passes its own handle to the same pad.
    ///
    /// # Errors
    /// The errors of [`free`](Self::free).
    pub fn free_signal_pad(&self, pad: SignalPad) -> Result<(), VmmError> {
        self.free(pad.into_memory())
    }

    /// Grows every PE's segment by `bytes` bytes, rounded up to the granularity.
    ///
    /// # Collective
    /// All PEs of the job call this function with the same number of bytes.
    ///
    /// # Errors
    /// [`Misuse::Exhausted`] if the segment would exceed the heap's limit. [`Misuse::Diverged`] if
    /// the PEs' calls differ. Also the errors of [`new`](Self::new).
    pub fn grow(&self, bytes: usize) -> Result<(), VmmError> {
        const CALL: &str = "SymmetricHeap::grow";
        let mut state = self.inner.enter(CALL)?;
        let call = format!("{CALL}({bytes} bytes) [hash of earlier calls: {:016x}]", state.history.get());
        let rounded = self.inner.rounded(bytes);
        if state.total.saturating_add(rounded) > self.inner.max_bytes {
            let error = self.inner.exhausted(CALL, &state, rounded);
            let agreed = agree(&self.inner.rendezvous, &self.inner.label(&state, "chunk"), &call, Err(error));
            return self.inner.conclude(&mut state, &call, agreed).map(|_| ());
        }
        self.inner.extend(&mut state, &call, rounded)?;
        state.history = state.history.with(&[3, rounded]);
        state.calls += 1;
        Ok(())
    }

    fn grow_and_take(&self, state: &mut State, call: &str, bytes: u64, alignment: u64) -> Result<u64, VmmError> {
        let step = self.inner.growth_for(state, bytes, alignment);
        // All PEs have made the same calls, so this result is the same on all PEs.
        let step = step.ok_or_else(|| self.inner.exhausted(ALLOC, state, bytes))?;
        self.inner.extend(state, call, step)?;
        let at = state.ranges.allocate(bytes, alignment).ok_or_else(|| self.inner.exhausted(ALLOC, state, bytes))?;
        let outcome = self.inner.zero(ALLOC, at, bytes).map(|()| at.to_le_bytes().to_vec());
        self.agree_on_offset(state, "zeroed", call, Some(at), outcome)?;
        Ok(at)
    }

    /// Ends the heap. Waits until this PE's streams have completed all work that uses the heap's
    /// memory. Returns a report that lists the allocations that were not freed.
    ///
    /// The heap's memory is released when the last handle to the memory is dropped.
    ///
    /// # Collective
    /// All PEs of the job call this function. Each PE may still have handles to the heap's memory,
    /// and the PEs may have handles to different allocations.
    ///
    /// # Errors
    /// [`VmmError::Timeout`] if a stream does not complete its work, or if PEs do not arrive by the
    /// deadline. [`VmmError::Driver`] if a driver call fails, or if the heap's memory was used on a
    /// per-thread stream. [`VmmError::Peer`] if another PE failed or was lost. [`Misuse::Diverged`]
    /// if the PEs' calls differ.
    ///
    /// The heap has ended on this PE even after an error.
    pub fn finalize(self) -> Result<LeakReport, VmmError> {
        const CALL: &str = "SymmetricHeap::finalize";
        let mut state = self.inner.enter(CALL)?;
        let drained = wait_for_all(&self.inner.layout.streams, CALL, self.inner.own_deadline());
        let leaks: Vec<Leak> = self.inner.ledger().values().cloned().collect();
        let held = leaks.iter().filter(|leak| !leak.dropped).count() as u64;
        let agreed = agree(
            &self.inner.rendezvous,
            &self.inner.label(&state, "finalize"),
            CALL,
            drained.map(|()| held.to_le_bytes().into()),
        );
        let held = self.inner.conclude(&mut state, CALL, agreed)?;
        if held.iter().all(|held| *held == [0; 8]) && self.inner.layout.transport == HeapTransport::Ipc {
            self.close_peers(&mut state)?;
        }
        state.broken = Some("the heap was finalised".into());
        drop(state);
        Ok(LeakReport { leaks })
    }

    /// Closes the memory of other PEs that this process opened by legacy IPC. Then waits until all
    /// PEs have done the same, because a PE may free its own memory only after that.
    fn close_peers(&self, state: &mut State) -> Result<(), VmmError> {
        const CALL: &str = "SymmetricHeap::finalize";
        let mut chunks = std::mem::take(&mut *self.inner.chunks.write().unwrap_or_else(PoisonError::into_inner));
        let closings: Vec<_> = chunks.iter_mut().flat_map(Chunk::close_peers).collect();
        let closed = inner::wait_for_closings(CALL, &closings, self.inner.own_deadline()).map(|()| Vec::new());
        let agreed = agree(&self.inner.rendezvous, &self.inner.label(state, "closed"), CALL, closed);
        self.inner.conclude(state, CALL, agreed)?;
        // SAFETY: all PEs have just reported that they closed the memory of other PEs, and no PE
        // has a handle left.
        chunks.iter().for_each(|chunk| unsafe { chunk.recall() });
        Ok(())
    }

    /// Returns a closure that returns `true` once this heap and all handles to its memory have been
    /// dropped. From then on, the heap no longer keeps the rendezvous alive. The memory may be
    /// unmapped later, when the streams that used it have completed.
    pub fn gone(&self) -> impl Fn() -> bool + Send + Sync + use<> {
        let alive = Arc::downgrade(&self.inner.alive);
        move || alive.strong_count() == 0
    }

    /// Returns the address that byte `offset` in the segment of `pe` has in this process. The
    /// device of this PE's context may read and write the byte through this address.
    ///
    /// # Errors
    /// [`Misuse::NotMapped`] if `pe` is on another machine or does not exist.
    /// [`Misuse::OutOfRange`] if the offset is beyond the end of the heap.
    pub fn address_of(&self, pe: Pe, offset: u64) -> Result<CUdeviceptr, VmmError> {
        self.inner.address_of("SymmetricHeap::address_of", pe, offset, 1)
    }

    /// Returns the addresses that the segments have in this process, for kernels. In the result,
    /// `my_pe` is the index of this PE in [`members`](Self::members), and `n_pes` is the number of
    /// members.
    ///
    /// # Errors
    /// [`VmmError::Unsupported`] if the transport is legacy IPC, whose segments are not at equal
    /// strides.
    pub fn geometry(&self) -> Result<HeapGeometry, VmmError> {
        let layout = &self.inner.layout;
        let base = layout.reservation.as_ref().map(Reservation::base).ok_or_else(|| VmmError::Unsupported {
            feature: "a heap with a constant address stride between PEs",
            needs: "virtual memory management".into(),
            found: "legacy IPC".into(),
        })?;
        let (my_pe, n_pes) = (layout.place as u32, layout.members.len() as u32);
        let heap_bytes = self.inner.with_chunks(Chunk::end);
        Ok(HeapGeometry { base, stride: layout.stride, heap_start: 0, heap_bytes, my_pe, n_pes })
    }

    /// Returns the PEs of this machine in ascending order. The memory of these PEs is mapped in
    /// this process.
    pub fn members(&self) -> &[Pe] {
        &self.inner.layout.members
    }

    /// Returns the transport by which the PEs of this machine share memory. If
    /// [`Sharing::PreferFabric`] was requested but fabric handles are not used,
    /// [`fallback_reason`](Self::fallback_reason) returns the reason.
    pub fn transport(&self) -> HeapTransport {
        self.inner.layout.transport
    }

    /// Returns the reason why [`Sharing::PreferFabric`] was requested but fabric handles are not
    /// used. The reason names the first PE of the machine that cannot use them, and contains that
    /// PE's error. Returns `None` in all other cases. All PEs of a machine return the same value.
    pub fn fallback_reason(&self) -> Option<&str> {
        self.inner.fallback_reason.as_deref()
    }

    /// Returns the current size of each PE's segment in bytes.
    pub fn bytes(&self) -> u64 {
        self.inner.with_chunks(|chunks| chunks.iter().map(|chunk| chunk.bytes).sum())
    }

    /// Returns the offset and the physical memory of each chunk of this PE's segment. The memory
    /// can be bound to a multicast object. The result is empty if the transport is legacy IPC.
    pub fn physical(&self) -> Vec<(u64, PhysicalMemory)> {
        self.inner.with_chunks(|chunks| chunks.iter().filter_map(|chunk| Some((chunk.start, chunk.own.clone()?))).collect())
    }

    /// Runs `body`, the implementation of a collective call in another module, with the heap
    /// locked. If the PEs may have reached different outcomes, the heap refuses every later call.
    pub(crate) fn collectively<R>(
        &self,
        call: &'static str,
        body: impl FnOnce(&Arc<HeapInner>) -> Result<R, Disagreement>,
    ) -> Result<R, VmmError> {
        let mut state = self.inner.enter(call)?;
        let agreed = body(&self.inner);
        self.inner.conclude(&mut state, call, agreed)
    }

    /// Returns the context of this PE. The heap allocates this PE's memory on the device of the
    /// context.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.inner.layout.context
    }
}
