//! The state that a heap shares with the handles of its memory: the mapped chunks, the allocator
//! and the list of PEs.
//!
//! `mod.rs` has the public calls, and states the invariants [H1] to [H3]. A collective call locks
//! the state until the call returns. No destructor acquires this lock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

use peerweave_bootstrap::Rendezvous;
use peerweave_bootstrap::first_fit::FirstFit;
use peerweave_driver::cudarc::driver::sys::CUdeviceptr;
use peerweave_driver::{CudaContext, DriverError, PrivateStream, Streams, deadline_after, multicast_switch, wait_until};
use peerweave_types::Pe;

use super::{Growth, HeapOptions, Leak, Sharing};
use crate::agree::{Disagreement, Reader, agree};
use crate::error::{Misuse, VmmError};
use crate::heap::chunk::{Chunk, HeapTransport, Layout, Made, fabric_works};
use crate::memory::descriptor;
use crate::memory::physical::{Exportable, Granularity};
use crate::memory::reservation::Reservation;
use crate::memory::streams::wait_for;
use crate::multicast::{self, MulticastProperties};
use crate::raw::{self, Attribute};
use crate::share::history::History;
use crate::share::identity::ProcessId;
use crate::share::ipc::{Closing, IpcMemory};

/// Unit of allocation, in bytes: two cache lines of a GPU. No cache line has data of two
/// allocations.
const UNIT_BYTES: u64 = 256;

/// The data of a heap. The heap and all handles to the heap's memory own this data together.
pub(crate) struct HeapInner {
    pub(crate) rendezvous: Arc<Rendezvous>,
    pub(super) options: HeapOptions,
    /// Random number that identifies the heap, the same on all PEs.
    pub(crate) id: u64,
    granularity: u64,
    pub(super) max_bytes: u64,
    /// The stream on which the heap fills memory with zeros and tests peer access.
    pub(super) stream: PrivateStream,
    /// Number of unused bytes after each chunk. The number is 0 if no machine of the job uses
    /// legacy IPC.
    gap: u64,
    pub(crate) layout: Layout,
    /// The streams that use multicast addresses of this heap, a subset of the streams in
    /// `layout.streams`.
    pub(crate) multicast: Arc<Streams>,
    /// The reason why the PEs do not use the requested transport to share memory. `None` if they
    /// use the requested transport.
    pub(super) fallback_reason: Option<String>,
    pub(super) chunks: RwLock<Vec<Chunk>>,
    /// State of the collective calls. A collective call keeps the lock until it returns.
    state: Mutex<State>,
    ledger: Mutex<BTreeMap<u64, Leak>>,
    /// A token that shows whether the heap still exists. Other code has a weak reference to it. The
    /// field is declared last, so it is dropped after all other fields, including the rendezvous.
    pub(super) alive: Arc<()>,
}

/// The data that the collective calls of a heap read and change, for example the allocated ranges.
pub(super) struct State {
    pub(super) ranges: FirstFit,
    pub(super) history: History,
    /// Number of successful collective calls.
    pub(super) calls: u64,
    /// Sum of the lengths of the chunks in each segment, in bytes. Gaps between chunks are not
    /// counted.
    pub(super) total: u64,
    /// Offset in bytes at which the next chunk will start. The offset is the same in every segment.
    end: u64,
    pub(super) broken: Option<String>,
}

impl State {
    /// Returns the state of a heap that has no chunk.
    fn new() -> Self {
        let history = History::default();
        Self { ranges: FirstFit::new(UNIT_BYTES), history, calls: 0, total: 0, end: 0, broken: None }
    }
}

/// The report about a PE and its device that PEs exchange when they create a heap.
pub(super) struct Around {
    pub(super) random: u64,
    machine: u64,
    process: ProcessId,
    granularity: u64,
    total_bytes: u64,
    vmm: bool,
    file_descriptor: bool,
    fabric: bool,
    /// The reason why fabric handles cannot be used. Empty if they can be used, or if a test of
    /// fabric handles was not necessary.
    refusal: String,
}

impl Around {
    pub(super) fn look(rendezvous: &Rendezvous, context: &Arc<CudaContext>, options: &HeapOptions) -> Result<Self, VmmError> {
        let ordinal = context.ordinal();
        let vmm = raw::has(ordinal, Attribute::Vmm)? && options.sharing != Sharing::Ipc;
        let exportable = if vmm { Exportable::of_device(ordinal)? } else { Exportable::NOWHERE };
        // Fabric handles are tried only if they may be used, because the test allocates memory.
        let is_tried = options.sharing == Sharing::PreferFabric || !exportable.file_descriptor;
        let tried = match vmm {
            true if is_tried => fabric_works(context, exportable.file_descriptor)?,
            true => Err(String::new()),
            false => Err(format!("device {ordinal} lacks virtual memory management")),
        };
        let fabric = tried.is_ok();
        let granularity = match vmm {
            true => {
                let own = Granularity::of_device(ordinal, Exportable { fabric, ..exportable })?.recommended;
                if options.multicast { for_multicast(ordinal, rendezvous.n_pes(), own)? } else { own }
            }
            false => IpcMemory::STEP_BYTES,
        };
        raw::bind(context)?;
        let (mut free_bytes, mut total_bytes) = (0, 0);
        // SAFETY: both pointers are to live integers.
        let code = unsafe { raw::api()?.cuMemGetInfo_v2(&raw mut free_bytes, &raw mut total_bytes) };
        raw::done("cuMemGetInfo_v2", code)?;
        let mut random = [0; 8];
        if getrandom::fill(&mut random).is_err() {
            random = (std::time::UNIX_EPOCH.elapsed().map_or(0, |now| now.as_nanos() as u64)).to_le_bytes();
        }
        Ok(Self {
            random: u64::from_le_bytes(random),
            machine: rendezvous.host().number(),
            process: ProcessId::mine(),
            granularity: granularity as u64,
            total_bytes: total_bytes as u64,
            vmm,
            file_descriptor: exportable.file_descriptor,
            fabric,
            refusal: tried.err().unwrap_or_default(),
        })
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut blob: Vec<u8> =
            [self.random, self.machine, self.granularity, self.total_bytes].iter().flat_map(|word| word.to_le_bytes()).collect();
        blob.extend(self.process.0);
        blob.extend([self.vmm, self.file_descriptor, self.fabric].map(u8::from));
        blob.extend((self.refusal.len() as u32).to_le_bytes());
        blob.extend(self.refusal.as_bytes());
        blob
    }

    pub(super) fn decode(blob: &[u8]) -> Option<Self> {
        let mut reader = Reader(blob);
        let (random, machine, granularity) = (reader.number()?, reader.number()?, reader.number()?);
        let (total_bytes, process) = (reader.number()?, ProcessId(reader.bytes()?));
        let [vmm, file_descriptor, fabric] = reader.bytes::<3>()?.map(|flag| flag == 1);
        let len = u32::from_le_bytes(reader.bytes()?) as usize;
        let refusal = reader.rest();
        // Larger sizes than a real machine has are refused, because they would overflow later.
        let whole = refusal.len() == len && (1..1 << 48).contains(&granularity) && total_bytes < 1 << 56;
        let refusal = String::from_utf8(refusal.to_vec()).ok()?;
        whole.then_some(Self { random, machine, process, granularity, total_bytes, vmm, file_descriptor, fabric, refusal })
    }

    /// Returns the random number that identifies the heap. `blobs` contains the data that each PE
    /// has sent. The number is in the data of PE 0. Returns 0 on all PEs if the data of PE 0 is
    /// invalid.
    pub(super) fn id(blobs: &[Vec<u8>]) -> u64 {
        blobs.first().and_then(|blob| Reader(blob).number()).unwrap_or(0)
    }

    /// Returns the number of unused bytes after each chunk of a segment: `granularity` if any
    /// machine uses legacy IPC, and 0 otherwise. All machines use the same number, so that all PEs
    /// have the same offsets.
    fn gap(all: &[Self], sharing: Sharing, granularity: u64) -> u64 {
        let machines: BTreeSet<u64> = all.iter().map(|pe| pe.machine).collect();
        let any_ipc = machines.into_iter().any(|machine| {
            let members: Vec<&Self> = all.iter().filter(|pe| pe.machine == machine).collect();
            Self::transport(&members, sharing) == HeapTransport::Ipc
        });
        if any_ipc { granularity } else { 0 }
    }

    /// Returns the transport for the PEs of one machine: the requested transport, or the best
    /// transport that all of these PEs support.
    fn transport(members: &[&Self], sharing: Sharing) -> HeapTransport {
        let all = |can: fn(&Self) -> bool| members.iter().all(|member| can(member));
        let one_process = members.iter().all(|member| member.process == members[0].process);
        match sharing {
            _ if !all(|member| member.vmm) => HeapTransport::Ipc,
            Sharing::PreferFabric if all(|member| member.fabric) => HeapTransport::Fabric,
            _ if one_process => HeapTransport::Process,
            _ if all(|member| member.file_descriptor) => HeapTransport::FileDescriptor,
            _ if all(|member| member.fabric) => HeapTransport::Fabric,
            _ => HeapTransport::Ipc,
        }
    }
}

/// Returns the heap's granularity for multicast objects: a multiple of both `granularity` and the
/// granularity that the driver recommends for multicast objects. Returns `granularity` if multicast
/// objects cannot be used.
fn for_multicast(ordinal: usize, devices: u32, granularity: usize) -> Result<usize, VmmError> {
    if multicast_switch().is_err() || multicast::check_device(ordinal).is_err() {
        return Ok(granularity);
    }
    let recommended = MulticastProperties::new(devices, granularity).granularity()?.recommended;
    // Both granularities are powers of two on all known devices.
    Ok(if recommended.is_multiple_of(granularity) { recommended } else { granularity.saturating_mul(recommended) })
}

/// Returns the reason why the PEs of a machine do not use fabric handles although fabric handles
/// were requested. The reason names the first PE that cannot use fabric handles, and contains the
/// error of that PE. Returns `None` if fabric handles were not requested, or if all PEs can use
/// them.
fn why_not_fabric(members: &[(Pe, &Around)], sharing: Sharing) -> Option<String> {
    let (pe, around) = members.iter().find(|(_, around)| sharing == Sharing::PreferFabric && !around.fabric)?;
    Some(format!("{pe}: {}", around.refusal))
}

impl HeapInner {
    /// Creates a heap without memory. This call is not collective.
    pub(super) fn new(
        rendezvous: &Arc<Rendezvous>,
        context: &Arc<CudaContext>,
        options: HeapOptions,
        around: &[Around],
        id: u64,
    ) -> Result<Self, VmmError> {
        let call = "SymmetricHeap::new";
        let mine = &around[rendezvous.pe().index()];
        let members: Vec<Pe> =
            (0..).map(Pe::new).zip(around).filter(|(_, pe)| pe.machine == mine.machine).map(|(pe, _)| pe).collect();
        let place = members.iter().position(|pe| *pe == rendezvous.pe()).expect("the PEs of this machine include this PE");
        let here: Vec<(Pe, &Around)> = members.iter().map(|pe| (*pe, &around[pe.index()])).collect();
        let transport = Around::transport(&here.iter().map(|(_, around)| *around).collect::<Vec<_>>(), options.sharing);
        let fallback_reason = why_not_fabric(&here, options.sharing);
        if let Some(why) = &fallback_reason {
            tracing::warn!(?transport, why, "fabric handles were requested but are not available");
        }
        let file_descriptor = members.iter().all(|pe| around[pe.index()].file_descriptor);
        let granularity = around.iter().map(|pe| pe.granularity).max().unwrap_or(1).max(IpcMemory::STEP_BYTES as u64);
        let wanted = options.max_bytes.map_or(around.iter().map(|pe| pe.total_bytes).max().unwrap_or(0), |bytes| bytes as u64);
        let too_large = || DriverError::TooLarge { call, count: options.initial_bytes, element_bytes: 1 };
        let max_bytes = wanted
            .max(options.initial_bytes as u64)
            .max(1)
            .checked_next_multiple_of(granularity)
            .filter(|bytes| bytes.checked_mul(2 * members.len() as u64).is_some_and(|all| all <= 1 << 57))
            .ok_or_else(too_large)?;
        // With legacy IPC, successive chunks have unrelated addresses. A gap between the chunks
        // prevents an allocation from spanning two chunks. Offsets are the same on all PEs, so
        // either all segments of the job have gaps or no segment has gaps. A chunk is at least as
        // long as the gap after it, so twice the maximum size suffices for all chunks and gaps.
        let gap = Around::gap(around, options.sharing, granularity);
        let stride = if gap == 0 { max_bytes } else { 2 * max_bytes };
        let reservation = match transport {
            HeapTransport::Ipc => None,
            HeapTransport::Process | HeapTransport::FileDescriptor | HeapTransport::Fabric => {
                let bytes = usize::try_from(stride * members.len() as u64).map_err(|_| too_large())?;
                Some(Reservation::new(context, bytes, granularity.next_power_of_two() as usize)?)
            }
        };
        let stream = PrivateStream::new(context)?;
        let layout = Layout {
            context: Arc::clone(context),
            transport,
            exportable: transport.exportable(file_descriptor),
            members,
            place,
            reservation,
            stride,
            streams: Arc::new(Streams::new()),
        };
        tracing::debug!(?transport, members = layout.members.len(), max_bytes, "created a symmetric heap");
        let multicast = Arc::new(Streams::within(&layout.streams));
        Ok(Self {
            rendezvous: Arc::clone(rendezvous),
            multicast,
            options,
            id,
            granularity,
            max_bytes,
            stream,
            gap,
            layout,
            fallback_reason,
            chunks: RwLock::default(),
            state: Mutex::new(State::new()),
            ledger: Mutex::default(),
            alive: Arc::new(()),
        })
    }

    /// Locks the state for the collective call `call`. Fails if an earlier failure made the heap
    /// unusable.
    pub(super) fn enter(&self, call: &'static str) -> Result<MutexGuard<'_, State>, VmmError> {
        let state = self.state();
        match &state.broken {
            Some(earlier) => Err(Misuse::Broken { call, earlier: earlier.clone() }.into()),
            None => Ok(state),
        }
    }

    /// Returns the alignment of the heap's addresses in bytes, a power of two.
    pub(crate) fn alignment_bytes(&self) -> usize {
        self.granularity.next_power_of_two() as usize
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ledger(&self) -> MutexGuard<'_, BTreeMap<u64, Leak>> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn with_chunks<R>(&self, body: impl FnOnce(&[Chunk]) -> R) -> R {
        body(&self.chunks.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records that the last handle of the memory at `offset` was dropped without `free`.
    pub(crate) fn record_dropped(&self, offset: u64) {
        if let Some(leak) = self.ledger().get_mut(&offset) {
            leak.dropped = true;
            tracing::debug!(
                offset,
                bytes = leak.bytes,
                "symmetric memory was not freed before its last handle was dropped: it stays allocated until the heap is released"
            );
        }
    }

    pub(super) fn label(&self, state: &State, what: &str) -> String {
        label(self.id, state.calls, what)
    }

    /// Returns the time at which a collective call stops waiting for this PE's own device. This
    /// time is three quarters of the rendezvous timeout from now, so that time remains to notify
    /// the other PEs.
    pub(super) fn own_deadline(&self) -> Instant {
        deadline_after(self.rendezvous.deadline() / 4 * 3)
    }

    /// Converts the error of an exchange of outcomes to a [`VmmError`]. If the PEs may have reached
    /// different outcomes, makes the heap unusable.
    pub(super) fn conclude<R>(&self, state: &mut State, call: &str, agreed: Result<R, Disagreement>) -> Result<R, VmmError> {
        agreed.map_err(|disagreement| {
            if let Disagreement::Unknown(error) = &disagreement {
                state.broken = Some(format!("{call} failed: {error}"));
            }
            disagreement.into()
        })
    }

    /// Adds a chunk of `bytes` to the segments of all PEs.
    pub(super) fn extend(&self, state: &mut State, call: &str, bytes: u64) -> Result<(), VmmError> {
        let (start, len) = (state.end, usize::try_from(bytes).unwrap_or(usize::MAX));
        let made = self.layout.make(len);
        let outcome = made.as_ref().map(|made| made.blob.clone()).map_err(Clone::clone);
        let agreed = agree(&self.rendezvous, &self.label(state, "chunk"), call, outcome);
        if let (Err(Disagreement::Known(_)), Ok(made)) = (&agreed, &made) {
            // SAFETY: all PEs know that this exchange failed. A PE opens the memory of other PEs
            // only after a successful exchange.
            unsafe { made.recall() };
        }
        let blobs = self.conclude(state, call, agreed)?;
        let mut made = made?;
        let fds = match made.fd.take() {
            Some(fd) if self.layout.members.len() > 1 => descriptor::exchange(&self.rendezvous, &self.layout.members, fd),
            _ => Ok(Vec::new()),
        };
        let fds = match fds {
            // The missing or lost PE will not take part in the next exchange, so that exchange is
            // skipped.
            Err(error) if error.is_loss() => self.conclude(state, call, Err(Disagreement::Unknown(error)))?,
            fds => fds,
        };
        let (chunk, joined) = match fds {
            Ok(fds) => {
                let (chunk, joined) = self.layout.join(call, &made, (start, len), &blobs, fds);
                (Some(chunk), joined)
            }
            Err(error) => (None, Err(error)),
        };
        let agreed = agree(&self.rendezvous, &self.label(state, "mapped"), call, joined.map(|()| Vec::new()));
        let chunk = match (self.conclude(state, call, agreed), chunk) {
            (Ok(_), Some(chunk)) => chunk,
            (Ok(_), None) => unreachable!("bug in peerweave-vmm: a PE without a chunk reported success"),
            (Err(error), chunk) => {
                self.undo(state, call, chunk, made);
                return Err(error);
            }
        };
        self.chunks.write().unwrap_or_else(PoisonError::into_inner).push(chunk.mark_used());
        state.ranges.add(start, bytes);
        state.total += bytes;
        state.end = start + bytes + self.gap;
        Ok(())
    }

    /// Releases this PE's memory of a chunk that not all PEs could map. With legacy IPC, leaks the
    /// memory if other PEs may still have it open.
    fn undo(&self, state: &mut State, call: &str, chunk: Option<Chunk>, made: Made) {
        let (start, len) = (state.end, made.bytes());
        let mut chunk = chunk;
        let closings = chunk.as_mut().map(Chunk::close_peers).unwrap_or_default();
        drop(chunk);
        // With legacy IPC, other PEs may have this PE's memory open. The condition is the same on
        // all PEs.
        if self.gap > 0 && state.broken.is_none() {
            let closed = wait_for_closings(call, &closings, self.own_deadline()).map(|()| Vec::new());
            let agreed = agree(&self.rendezvous, &self.label(state, "undone"), call, closed);
            match self.conclude(state, call, agreed) {
                // SAFETY: all PEs have just reported that they closed the memory of other PEs, and
                // no PE opens it again.
                Ok(_) => unsafe { made.recall() },
                Err(error) => {
                    tracing::warn!(%error, "heap memory that not all PEs could map is leaked, because other PEs may have it open")
                }
            }
        }
        drop(made);
        self.wait_for_room(start, len);
    }

    /// Waits until the addresses of a dropped chunk are free in the segments of all PEs of this
    /// machine. The next chunk can then be mapped to them. If they are not free by the deadline,
    /// only logs a warning.
    fn wait_for_room(&self, start: u64, len: usize) {
        let Layout { reservation, stride, members, .. } = &self.layout;
        let Some(reservation) = reservation else { return };
        let until = self.own_deadline();
        for place in 0..members.len() as u64 {
            let start = usize::try_from(place * stride + start).unwrap_or(usize::MAX);
            if !reservation.wait_for_room(start..start.saturating_add(len), until) {
                tracing::warn!(
                    place,
                    "addresses are still mapped after a failed heap growth: the heap cannot map new memory to these addresses"
                );
            }
        }
    }

    pub(super) fn rounded(&self, bytes: usize) -> u64 {
        (bytes as u64).max(1).checked_next_multiple_of(self.granularity).unwrap_or(u64::MAX)
    }

    /// Returns the number of bytes by which the heap grows for an allocation. Returns `None` if the
    /// heap does not grow automatically or would exceed its limit.
    pub(super) fn growth_for(&self, state: &State, bytes: u64, alignment: u64) -> Option<u64> {
        let Growth::Steps { bytes: step } = self.options.growth else { return None };
        let wanted = bytes.max(step as u64).checked_add(alignment)?.max(1).checked_next_multiple_of(self.granularity)?;
        let least = bytes.max(1).checked_next_multiple_of(self.granularity)?;
        let room = self.max_bytes.checked_sub(state.total)?;
        [wanted, least].into_iter().find(|growth| *growth <= room)
    }

    pub(super) fn exhausted(&self, call: &'static str, state: &State, bytes: u64) -> VmmError {
        let (free, total, limit) = (state.ranges.free_bytes(), state.total, self.max_bytes);
        Misuse::Exhausted { call, bytes, free, total, limit }.into()
    }

    /// Fills a range of this PE's segment with zeros, and waits until the fill is complete.
    pub(super) fn zero(&self, call: &'static str, offset: u64, bytes: u64) -> Result<(), VmmError> {
        if bytes == 0 {
            return Ok(());
        }
        let start = Instant::now();
        let address = self.address_of(call, self.layout.members[self.layout.place], offset, bytes)?;
        self.layout.streams.note(&self.stream);
        raw::bind(&self.layout.context)?;
        // SAFETY: the range is mapped and is unmapped only after this stream's work. No PE uses the
        // range before this call ends.
        let code = unsafe { raw::api()?.cuMemsetD8Async(address, 0, bytes as usize, self.stream.cu_stream()) };
        raw::done("cuMemsetD8Async", code)?;
        wait_for(&self.stream, call, start, self.own_deadline())
    }

    /// Returns the address at which this process can access a range in the segment of `pe`. The
    /// range has `bytes` bytes and starts at `offset`.
    pub(crate) fn address_of(&self, call: &'static str, pe: Pe, offset: u64, bytes: u64) -> Result<CUdeviceptr, VmmError> {
        let Layout { members, reservation, stride, .. } = &self.layout;
        let place = members.binary_search(&pe).map_err(|_| {
            let mapped = members.iter().map(|pe| pe.get()).collect();
            Misuse::NotMapped { call, pe, mapped }
        })?;
        self.with_chunks(|chunks| {
            let end = Chunk::end(chunks);
            let outside = || {
                let (start, len) = (offset as usize, end as usize);
                VmmError::from(Misuse::OutOfRange { call, start, end: start.saturating_add(bytes as usize), len, unit: "bytes" })
            };
            match reservation {
                Some(reservation) => {
                    let is_inside = match self.gap {
                        0 => offset.checked_add(bytes).is_some_and(|last| last <= end),
                        _ => chunks.iter().any(|chunk| chunk.holds(offset, bytes)),
                    };
                    is_inside.then(|| reservation.base() + place as u64 * stride + offset).ok_or_else(outside)
                }
                None => {
                    let chunk = chunks.iter().find(|chunk| chunk.holds(offset, bytes)).ok_or_else(outside)?;
                    Ok(chunk.addresses[place] + (offset - chunk.start))
                }
            }
        })
    }
}

/// Returns the label of an exchange of a heap. `id` is the heap's random number, `calls` is the
/// number of its successful collective calls, and `what` names the exchange within a call.
pub(super) fn label(id: u64, calls: u64, what: &str) -> String {
    format!("peerweave-vmm/{id:016x}/{calls}/{what}")
}

/// Waits until this process has closed all memory of other PEs that it opened by legacy IPC.
/// Returns an error if a close fails, or is not complete at `until`. After an error, the owners
/// must not free the memory.
pub(super) fn wait_for_closings(call: &str, closings: &[Arc<Closing>], until: Instant) -> Result<(), VmmError> {
    let start = Instant::now();
    if !wait_until(until, || Ok::<_, VmmError>(closings.iter().all(|closing| closing.get().is_some())))? {
        let call = format!("{call}: closing the memory of other PEs");
        return Err(VmmError::Timeout { call, waited: start.elapsed(), missing: Vec::new() });
    }
    closings.iter().filter_map(|closing| closing.get().cloned()).collect()
}

/// Checks that all PEs found the same offset for an allocation. `found` has the encoded offset of
/// each PE, or no bytes if the PE found no room. The check also passes if no PE found room.
pub(super) fn same_offsets(call: &str, found: &[Vec<u8>]) -> Result<(), Disagreement> {
    let text = |blob: &[u8]| match blob.try_into() {
        Ok(at) => format!("offset {}", u64::from_le_bytes(at)),
        Err(_) => "no room".to_owned(),
    };
    match found.iter().zip(0..).find(|(blob, _)| **blob != found[0]) {
        None => Ok(()),
        Some((other, pe)) => {
            let (call, one, other_has) = (call.to_owned(), Pe::new(0), text(other));
            Err(Disagreement::Known(
                Misuse::Diverged { call, one, one_has: text(&found[0]), other: Pe::new(pe), other_has }.into(),
            ))
        }
    }
}

/// Reports `error`, the failure of this PE, to the other PEs, so that they do not wait for this PE.
/// Returns `error`, or the error of the exchange if the exchange itself fails.
pub(super) fn tell(rendezvous: &Rendezvous, label: &str, call: &str, error: VmmError) -> VmmError {
    match agree(rendezvous, label, call, Err(error.clone())) {
        Err(disagreement) => disagreement.into(),
        Ok(_) => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn around(process: u8, vmm: bool, file_descriptor: bool, fabric: bool) -> Around {
        let (granularity, total_bytes) = (2 << 20, 1 << 30);
        Around {
            random: 1,
            machine: 2,
            process: ProcessId([process; 16]),
            granularity,
            total_bytes,
            vmm,
            file_descriptor,
            fabric,
            refusal: if fabric { String::new() } else { "refused".into() },
        }
    }

    #[test]
    fn best_transport_that_all_pes_support_is_chosen() {
        let transport = |members: &[Around], sharing| Around::transport(&members.iter().collect::<Vec<_>>(), sharing);
        let full = || around(1, true, true, true);
        assert_eq!(transport(&[full(), full()], Sharing::Auto), HeapTransport::Process);
        assert_eq!(transport(&[full(), around(2, true, true, true)], Sharing::Auto), HeapTransport::FileDescriptor);
        assert_eq!(transport(&[full(), around(2, true, true, true)], Sharing::PreferFabric), HeapTransport::Fabric);
        assert_eq!(transport(&[full(), around(2, true, true, false)], Sharing::PreferFabric), HeapTransport::FileDescriptor);
        assert_eq!(transport(&[full(), around(2, true, false, true)], Sharing::Auto), HeapTransport::Fabric);
        assert_eq!(transport(&[full(), around(2, true, false, false)], Sharing::Auto), HeapTransport::Ipc);
        assert_eq!(transport(&[full(), around(1, false, false, false)], Sharing::Auto), HeapTransport::Ipc);
    }

    #[test]
    fn all_machines_leave_address_gaps_if_one_uses_legacy_ipc() {
        let here = || around(1, true, true, true);
        let there = |vmm| Around { machine: 3, ..around(2, vmm, vmm, vmm) };
        assert_eq!(Around::gap(&[here(), there(true)], Sharing::Auto, 7), 0);
        // The machine with legacy IPC needs a gap after each chunk, so the other machine has the
        // gap too.
        assert_eq!(Around::gap(&[here(), there(false)], Sharing::Auto, 7), 7);
        assert_eq!(Around::gap(&[there(false), here()], Sharing::Auto, 7), 7);
    }

    #[test]
    fn error_for_different_allocation_offsets_names_two_pes() {
        let at = |at: u64| at.to_le_bytes().to_vec();
        assert!(same_offsets("alloc", &[at(256), at(256)]).is_ok());
        assert!(same_offsets("alloc", &[vec![], vec![]]).is_ok());
        let text = |found: &[Vec<u8>]| {
            VmmError::from(same_offsets("alloc", found).expect_err("the data of the PEs differs")).to_string()
        };
        let differ = "alloc: the PEs disagree: PE 0 has offset 256, PE 2 has offset 512";
        assert_eq!(text(&[at(256), at(256), at(512)]), differ);
        assert_eq!(text(&[vec![], at(0)]), "alloc: the PEs disagree: PE 0 has no room, PE 1 has offset 0");
    }

    #[test]
    fn encoded_heap_creation_data_decodes_to_the_same_values() {
        for (fabric, refusal) in [(true, ""), (false, "refused")] {
            let blob = around(7, true, false, fabric).encode();
            let read = Around::decode(&blob).expect("the blob is complete");
            assert_eq!((read.process, read.vmm, read.file_descriptor, read.fabric), (ProcessId([7; 16]), true, false, fabric));
            assert_eq!(read.refusal, refusal);
            assert!((0..blob.len()).all(|len| Around::decode(&blob[..len]).is_none()));
            assert!(Around::decode(&[&blob[..], &[0]].concat()).is_none());
        }
    }
}
