//! A symmetric heap on the GPUs of one machine: what one PE allocates, all allocate, at the same
//! offset; each reaches every other's.
//!
//! Typed memory is `symmetric.rs`, one round of a collective call `agree.rs`, one piece of memory
//! `chunk.rs`. Not here: machines beyond this one.
//!
//! ```text
//!   base                stride              stride
//!   |  place 0: chunk chunk ...  |  place 1: chunk chunk ...  |  ...      one reservation in every process
//! ```
//!
//! Invariants: [H1] the allocators of all PEs have gone through the same calls with the same
//! results; [H2] an offset given out is mapped, at every place of the machine, until the heap and
//! every handle of its memory is gone; [H3] what is dropped without `free` is never given out
//! again.

use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use peerweave_bootstrap::Rendezvous;
use peerweave_driver::CudaContext;
use peerweave_driver::cudarc::driver::sys::CUdeviceptr;
use peerweave_types::{Element, HeapGeometry, Pe};

use crate::agree::{Disagreement, agree, unreadable};
use crate::error::{Misuse, VmmError};
use crate::heap::chunk::{Chunk, Way};
use crate::heap::pads::SignalPad;
use crate::heap::symmetric::{Block, SymmetricMemory};
use crate::memory::buffer::{bytes_of, wrong_value};
use crate::memory::physical::PhysicalMemory;
use crate::memory::reservation::Reservation;
use crate::memory::streams::wait_for_all;

pub(crate) mod allocator;
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

/// How memory of the heap should get to the other PEs of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sharing {
    /// Directly among threads of one process; as file descriptors; as fabric handles; by legacy
    /// IPC: the first that all can.
    #[default]
    Auto,
    /// As fabric handles where all PEs of the machine can have them, or else as
    /// [`Auto`](Self::Auto): [`SymmetricHeap::fell_back`] tells why.
    PreferFabric,
    /// By legacy IPC.
    Ipc,
}

/// Whether a heap grows by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Growth {
    /// Only by [`SymmetricHeap::grow`].
    #[default]
    Explicit,
    /// When an allocation finds no room, by at least this many bytes.
    Steps {
        /// Bytes.
        bytes: usize,
    },
}

/// How large a heap is, and how it is shared. The same on all PEs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeapOptions {
    /// Bytes of each PE at the start; rounded up to the granularity.
    pub initial_bytes: usize,
    /// The most that each PE may ever have: so many addresses are reserved, which costs no memory.
    /// `None` for all the memory of the device.
    pub max_bytes: Option<usize>,
    /// Whether it grows by itself.
    pub growth: Growth,
    /// How memory gets to the others.
    pub sharing: Sharing,
    /// Whether the heap is to have multicast addresses too, by [`SymmetricHeap::multicast`]. Then
    /// its granularity is a multiple of what the driver recommends for multicast objects, which may
    /// be 512 MiB, on every PE whose device and switch allow them.
    pub multicast: bool,
}

impl HeapOptions {
    /// A heap of `initial_bytes` on each PE that grows when asked.
    pub fn new(initial_bytes: usize) -> Self {
        Self { initial_bytes, max_bytes: None, growth: Growth::default(), sharing: Sharing::default(), multicast: false }
    }

    /// With this limit.
    pub fn max_bytes(self, max_bytes: usize) -> Self {
        Self { max_bytes: Some(max_bytes), ..self }
    }

    /// With this way of growing.
    pub fn growth(self, growth: Growth) -> Self {
        Self { growth, ..self }
    }

    /// Made for multicast objects.
    pub fn multicast(self, multicast: bool) -> Self {
        Self { multicast, ..self }
    }

    /// With this way of sharing.
    pub fn sharing(self, sharing: Sharing) -> Self {
        Self { sharing, ..self }
    }
}

/// Memory of every PE's GPU that all PEs of the machine reach, allocated collectively.
///
/// # Collective
/// [`new`](Self::new), [`alloc`](Self::alloc), [`signal_pad`](Self::signal_pad),
/// [`free`](Self::free), [`grow`](Self::grow) and [`finalize`](Self::finalize) are called by all
/// PEs of the job in the same order with the same arguments; where they are not, all get
/// [`Misuse::Diverged`] and nothing has happened. They end by the deadline of the rendezvous and
/// name who did not come.
///
/// Dropping it, or memory of it, is local. What is dropped without [`free`](Self::free) is parked
/// until the heap is gone, and told by [`finalize`](Self::finalize).
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

/// Memory that was not freed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leak {
    /// Where it is in the heap.
    pub offset: u64,
    /// Its length in bytes, as it was asked for.
    pub bytes: u64,
    /// The element's type.
    pub element: &'static str,
    /// Whether all its handles are gone. If not, its addresses stay valid until they are.
    pub dropped: bool,
}

/// What a heap held that was not freed, when it was finalized.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeakReport {
    /// Each piece, by its offset.
    pub leaks: Vec<Leak>,
}

impl LeakReport {
    /// Whether everything had been freed.
    pub fn is_clean(&self) -> bool {
        self.leaks.is_empty()
    }
}

impl fmt::Display for LeakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_clean() {
            return f.write_str("everything was freed");
        }
        let dropped = self.leaks.iter().filter(|leak| leak.dropped).count();
        write!(f, "{} pieces were dropped without free, {} are still held:", dropped, self.leaks.len() - dropped)?;
        for leak in &self.leaks {
            write!(f, "\n  offset {}: {} bytes of {}", leak.offset, leak.bytes, leak.element)?;
        }
        Ok(())
    }
}

impl SymmetricHeap {
    /// Makes a heap on the device of `context`. PEs may be threads with a context each, or
    /// processes.
    ///
    /// # Collective
    /// All PEs of the job. Those of this machine reach each other's memory.
    ///
    /// # Errors
    /// [`VmmError::Unsupported`] where devices do not reach each other or memory cannot be shared;
    /// [`VmmError::Peer`] for the failure or loss of another PE; [`VmmError::Timeout`] names who
    /// did not come; what the driver says.
    pub fn new(rendezvous: &Arc<Rendezvous>, context: &Arc<CudaContext>, options: HeapOptions) -> Result<Self, VmmError> {
        let call = format!("SymmetricHeap::new({options:?})");
        let around = agree(
            rendezvous,
            "peerweave-vmm/new",
            &call,
            Around::look(context, &options, rendezvous.n_pes()).map(|mine| mine.encode()),
        )?;
        let id = Around::id(&around);
        let read = |(blob, pe): (&Vec<u8>, u32)| Around::decode(blob).ok_or_else(|| unreadable(&call, Pe::new(pe)));
        let around: Result<Vec<Around>, VmmError> = around.iter().zip(0..).map(read).collect();
        let inner = match around.and_then(|around| HeapInner::new(rendezvous, context, options, &around, id)) {
            Ok(inner) => inner,
            // The others are at their first chunk, and are to hear of it.
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

    /// Allocates `len` elements on every PE, filled with zeros.
    ///
    /// # Collective
    /// All PEs, with the same type and length. When it returns, the memory of all PEs is zero.
    ///
    /// # Errors
    /// [`Misuse::Exhausted`] where there is no room and the heap may not grow;
    /// [`Misuse::Diverged`]; as [`new`](Self::new).
    pub fn alloc<T: Element>(&self, len: usize) -> Result<SymmetricMemory<T>, VmmError> {
        self.alloc_aligned(len, align_of::<T>())
    }

    /// As [`alloc`](Self::alloc), at an offset that is a multiple of `alignment_bytes`, a power of
    /// two of at most 2 MiB. (256 is always kept.)
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc); [`Misuse::Value`] for another alignment.
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
        /// Every segment starts at a multiple of it.
        const MAX_ALIGNMENT_BYTES: usize = 2 << 20;
        let name = std::any::type_name::<T>();
        let history = state.history.get();
        let call = format!("{ALLOC}({len} x {name}, aligned to {alignment_bytes}) after history {history:016x}");
        let wanted = match alignment_bytes.is_power_of_two() && alignment_bytes <= MAX_ALIGNMENT_BYTES {
            true => bytes_of::<T>(ALLOC, len).map(|bytes| bytes as u64),
            false => Err(wrong_value(ALLOC, "alignment_bytes", alignment_bytes, "a power of two of at most 2 MiB")),
        };
        let alignment = alignment_bytes as u64;
        let taken = wanted.as_ref().ok().and_then(|bytes| state.ranges.take(*bytes, alignment));
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

    /// A round in which all PEs must have found the same offset. Gives it back to the allocator
    /// otherwise.
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
            state.ranges.give_back(at);
        }
        self.inner.settle(state, call, agreed)
    }

    /// Allocates `len` signals on every PE, each zero and in a line of its own.
    ///
    /// # Collective
    /// As [`alloc`](Self::alloc).
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    pub fn signal_pad(&self, len: usize) -> Result<SignalPad, VmmError> {
        // A number beyond the address space is refused by all in the same way.
        let words = len.saturating_mul(SignalPad::WORDS_PER_SIGNAL);
        Ok(SignalPad::new(self.alloc(words)?, len))
    }

    /// Frees memory on every PE, once this PE's streams have passed the work that uses it, and all
    /// work at multicast addresses of the heap.
    ///
    /// If it fails, the memory is parked as if it had been dropped. It does where another library
    /// gave it to a per-thread stream: nobody can wait for what that stream does.
    ///
    /// # Collective
    /// All PEs, with the handle of the same allocation. Every other handle of it, slices and peers'
    /// views included, must be gone.
    ///
    /// # Errors
    /// [`Misuse::StillShared`], [`Misuse::OtherHeap`]; [`VmmError::Timeout`] where a stream does
    /// not pass, as one that is being captured; `DriverError::PerThreadStream`;
    /// [`Misuse::Diverged`]; as [`new`](Self::new).
    pub fn free<T: Element>(&self, memory: SymmetricMemory<T>) -> Result<(), VmmError> {
        let mut state = self.inner.enter(FREE)?;
        self.free_in(&mut state, memory, self.inner.own_deadline())
    }

    /// Frees memory; its streams have until then.
    fn free_in<T: Element>(&self, state: &mut State, mut memory: SymmetricMemory<T>, until: Instant) -> Result<(), VmmError> {
        let is_alone = memory.is_only_handle();
        let (block, offset) = (memory.block(), memory.block().offset());
        let call = format!("{FREE}(offset {offset}) after history {:016x}", state.history.get());
        let outcome = if !Arc::ptr_eq(block.heap(), &self.inner) {
            Err(Misuse::OtherHeap { call: FREE }.into())
        } else if !is_alone {
            let handles = Arc::strong_count(block) + Arc::weak_count(block);
            Err(Misuse::StillShared { call: FREE, offset, handles }.into())
        } else {
            wait_for_all(block.streams(), FREE, until).and_then(|()| wait_for_all(&self.inner.multicast, FREE, until))
        };
        let agreed = agree(&self.inner.rendezvous, &self.inner.label(state, "free"), &call, outcome.map(|()| Vec::new()));
        self.inner.settle(state, &call, agreed)?;
        state.ranges.give_back(offset);
        state.history = state.history.with(&[2, offset]);
        state.calls += 1;
        self.inner.ledger().remove(&offset);
        block.forget();
        Ok(())
    }

    /// As [`free`](Self::free), for a signal pad.
    ///
    /// # Errors
    /// As [`free`](Self::free).
    pub fn free_signal_pad(&self, pad: SignalPad) -> Result<(), VmmError> {
        self.free(pad.into_memory())
    }

    /// Adds `bytes`, rounded up to the granularity, to every PE's segment.
    ///
    /// # Collective
    /// All PEs, with the same number.
    ///
    /// # Errors
    /// [`Misuse::Exhausted`] beyond the heap's limit; as [`new`](Self::new).
    pub fn grow(&self, bytes: usize) -> Result<(), VmmError> {
        const CALL: &str = "SymmetricHeap::grow";
        let mut state = self.inner.enter(CALL)?;
        let call = format!("{CALL}({bytes} bytes) after history {:016x}", state.history.get());
        let rounded = self.inner.rounded(bytes);
        if state.total.saturating_add(rounded) > self.inner.max_bytes {
            let error = self.inner.exhausted(CALL, &state, rounded);
            let agreed = agree(&self.inner.rendezvous, &self.inner.label(&state, "chunk"), &call, Err(error));
            return self.inner.settle(&mut state, &call, agreed).map(|_| ());
        }
        self.inner.extend(&mut state, &call, rounded)?;
        state.history = state.history.with(&[3, rounded]);
        state.calls += 1;
        Ok(())
    }

    fn grow_and_take(&self, state: &mut State, call: &str, bytes: u64, alignment: u64) -> Result<u64, VmmError> {
        let step = self.inner.growth_for(state, bytes, alignment);
        // All PEs have the same history, so that all find the same here.
        let step = step.ok_or_else(|| self.inner.exhausted(ALLOC, state, bytes))?;
        self.inner.extend(state, call, step)?;
        let at = state.ranges.take(bytes, alignment).ok_or_else(|| self.inner.exhausted(ALLOC, state, bytes))?;
        let outcome = self.inner.zero(ALLOC, at, bytes).map(|()| at.to_le_bytes().to_vec());
        self.agree_on_offset(state, "zeroed", call, Some(at), outcome)?;
        Ok(at)
    }

    /// Ends the heap, once this PE's streams have passed the work that uses it, and tells what was
    /// not freed.
    ///
    /// The memory goes back to the devices when the last handle is gone.
    ///
    /// # Collective
    /// All PEs. What is still held may differ.
    ///
    /// # Errors
    /// As [`free`](Self::free). The heap is gone all the same, locally.
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
        let held = self.inner.settle(&mut state, CALL, agreed)?;
        if held.iter().all(|held| *held == [0; 8]) && self.inner.layout.way == Way::Ipc {
            self.close_peers(&mut state)?;
        }
        state.broken = Some("it was finalized".into());
        drop(state);
        Ok(LeakReport { leaks })
    }

    /// By legacy IPC, memory may be freed only when all others have closed it.
    fn close_peers(&self, state: &mut State) -> Result<(), VmmError> {
        const CALL: &str = "SymmetricHeap::finalize";
        let mut chunks = std::mem::take(&mut *self.inner.chunks.write().unwrap_or_else(PoisonError::into_inner));
        let closings: Vec<_> = chunks.iter_mut().flat_map(Chunk::close_peers).collect();
        let closed = inner::wait_for_closings(CALL, &closings, self.inner.own_deadline()).map(|()| Vec::new());
        let agreed = agree(&self.inner.rendezvous, &self.inner.label(state, "closed"), CALL, closed);
        self.inner.settle(state, CALL, agreed)?;
        // SAFETY: all PEs have just said that they closed what they had of others, and none has a
        // handle left.
        chunks.iter().for_each(|chunk| unsafe { chunk.recall() });
        Ok(())
    }

    /// The address, in this process, of `offset` in the segment of `pe`. The device of this PE's
    /// context may read and write there.
    ///
    /// # Errors
    /// [`Misuse::NotMapped`] for a PE of another machine; [`Misuse::OutOfRange`] for an offset
    /// beyond the heap.
    pub fn address_of(&self, pe: Pe, offset: u64) -> Result<CUdeviceptr, VmmError> {
        self.inner.address_of("SymmetricHeap::address_of", pe, offset, 1)
    }

    /// How the segments lie in this address space, for kernels. `my_pe` and `n_pes` count the PEs
    /// of this machine.
    ///
    /// # Errors
    /// [`VmmError::Unsupported`] where memory is shared by legacy IPC: then addresses are no
    /// arithmetic.
    pub fn geometry(&self) -> Result<HeapGeometry, VmmError> {
        let layout = &self.inner.layout;
        let base = layout.reservation.as_ref().map(Reservation::base).ok_or_else(|| VmmError::Unsupported {
            feature: "segments at equal strides",
            needs: "virtual memory management".into(),
            found: "legacy IPC".into(),
        })?;
        let (my_pe, n_pes) = (layout.place as u32, layout.members.len() as u32);
        let heap_bytes = self.inner.with_chunks(Chunk::end);
        Ok(HeapGeometry { base, stride: layout.stride, heap_start: 0, heap_bytes, my_pe, n_pes })
    }

    /// The PEs whose memory is mapped here, in ascending order: those of this machine.
    pub fn members(&self) -> &[Pe] {
        &self.inner.layout.members
    }

    /// How memory gets from one PE of this machine to the others. With [`Sharing::PreferFabric`] it
    /// is [`Way::Fabric`] or [`fell_back`](Self::fell_back) says why not.
    pub fn way(&self) -> Way {
        self.inner.layout.way
    }

    /// Why the memory goes another way than the options wish: which PE could not, and what its
    /// driver said. `None` where it goes as they wish; the same on all PEs of a machine.
    pub fn fell_back(&self) -> Option<&str> {
        self.inner.fell_back.as_deref()
    }

    /// Bytes of each segment now.
    pub fn bytes(&self) -> u64 {
        self.inner.with_chunks(|chunks| chunks.iter().map(|chunk| chunk.bytes).sum())
    }

    /// The physical memory of this PE, chunk by chunk, each with its offset: to bind it to a
    /// multicast object. Empty where memory is shared by legacy IPC.
    pub fn physical(&self) -> Vec<(u64, PhysicalMemory)> {
        self.inner.with_chunks(|chunks| chunks.iter().filter_map(|chunk| Some((chunk.start, chunk.own.clone()?))).collect())
    }

    /// A collective call of another module: one at a time, and after one that may have ended
    /// differently on the PEs the heap is broken.
    pub(crate) fn collectively<R>(
        &self,
        call: &'static str,
        body: impl FnOnce(&Arc<HeapInner>) -> Result<R, Disagreement>,
    ) -> Result<R, VmmError> {
        let mut state = self.inner.enter(call)?;
        let agreed = body(&self.inner);
        self.inner.settle(&mut state, call, agreed)
    }

    /// The context that the heap is on.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.inner.layout.context
    }
}
