//! A chunk of a heap: memory of equal length on each PE, mapped on all PEs of the machine. A heap
//! grows by one chunk at a time.
//!
//! `mod.rs` decides when a chunk is created. Invariants: a chunk keeps the memory at its addresses
//! alive. A chunk that no caller has used is released without waiting for the heap's streams.

use std::sync::Arc;

use peerweave_driver::cudarc::driver::sys::CUdeviceptr;
use peerweave_driver::{CudaCode, CudaContext, Streams};
use peerweave_types::Pe;

use crate::agree::{Reader, unreadable};
use crate::memory::access::Rights;
use crate::memory::descriptor::{self, Descriptor};
use crate::memory::mapping::{Mapping, Source};
use crate::memory::physical::{self, Exportable, PhysicalMemory};
use crate::memory::reservation::Reservation;
use crate::raw;
use crate::share::identity::{self, Entry, ProcessId};
use crate::share::ipc::{Closing, IpcHandle, IpcMemory, IpcPeerMemory};
use crate::share::{FabricHandle, SharedMemory};
use crate::{PeerCause, VmmError};

/// The transport by which the PEs of a machine share memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HeapTransport {
    /// Direct access without an export, because all PEs of the machine are threads of one process.
    Process,
    /// Export of memory as POSIX file descriptors.
    FileDescriptor,
    /// Export of memory as fabric handles.
    Fabric,
    /// Legacy CUDA IPC. The segments of the PEs are not at equal distances from each other. A heap
    /// with this transport cannot be finalised while a stream of its context is being captured. In
    /// that case the driver would refuse to close the memory of other PEs, and would invalidate the
    /// capture.
    Ipc,
}

impl HeapTransport {
    /// Returns the handle types by which memory of this transport can be exported. If
    /// `file_descriptor` is true, the result includes file descriptors, except for legacy IPC.
    /// Multicast needs file descriptors: a multicast object that is exported as a file descriptor
    /// accepts only memory that can be exported in the same way.
    pub(crate) fn exportable(self, file_descriptor: bool) -> Exportable {
        Exportable { file_descriptor: file_descriptor && self != Self::Ipc, fabric: self == Self::Fabric }
    }
}

/// The data of a heap that all its chunks need: the PEs of this machine, the transport and the
/// addresses.
pub(crate) struct Layout {
    pub(crate) context: Arc<CudaContext>,
    pub(crate) transport: HeapTransport,
    pub(crate) exportable: Exportable,
    /// PEs of this machine, in ascending order.
    pub(crate) members: Vec<Pe>,
    pub(crate) place: usize,
    /// The reserved addresses of all segments. `None` with legacy IPC.
    pub(crate) reservation: Option<Reservation>,
    pub(crate) stride: u64,
    /// The streams that use any memory of the heap.
    pub(crate) streams: Arc<Streams>,
}

/// Memory that this PE has allocated for a new chunk, before the other PEs map it.
pub(crate) struct Made {
    own: Own,
    /// The entry by which PEs that are threads of this process find the memory. Dropping the value
    /// removes the entry.
    _entry: Option<Entry>,
    pub(crate) fd: Option<Descriptor>,
    /// The data that this PE sends to the other PEs so that they can open this memory.
    pub(crate) blob: Vec<u8>,
}

enum Own {
    Physical(PhysicalMemory),
    Ipc(IpcMemory),
}

/// A chunk that is mapped on all PEs of the machine.
pub(crate) struct Chunk {
    /// Offset of the chunk's first byte, the same in every segment.
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    /// The addresses at which this process accesses the chunk: one address for each PE of the
    /// machine, in ascending order of the PEs.
    pub(crate) addresses: Vec<CUdeviceptr>,
    pub(crate) own: Option<PhysicalMemory>,
    parts: Vec<Part>,
    is_given_out: bool,
}

/// The memory of one PE in a chunk. While this value exists, the addresses of that memory are valid
/// in this process.
enum Part {
    Mapped(Mapping),
    /// Memory of this PE, exported by legacy IPC.
    Mine(IpcMemory),
    /// Memory of another PE that is a thread of this process. This PE uses the address of the
    /// memory directly, without legacy IPC.
    Found {
        _memory: Arc<IpcMemory>,
    },
    /// Memory of another process, opened by legacy IPC.
    Opened(IpcPeerMemory),
}

impl Layout {
    /// Allocates this PE's memory of a chunk. Returns the memory, and the data that other PEs need
    /// to open the memory.
    pub(crate) fn make(&self, bytes: usize) -> Result<Made, VmmError> {
        let context = &self.context;
        if self.transport == HeapTransport::Ipc {
            let memory = IpcMemory::alloc_for(context, bytes, Arc::clone(&self.streams))?;
            let handle = memory.export()?;
            let entry = identity::publish(Arc::new(memory.clone()));
            let mut blob = ProcessId::mine().0.to_vec();
            blob.extend(entry.key.to_le_bytes());
            blob.extend(handle.0);
            return Ok(Made { own: Own::Ipc(memory), _entry: Some(entry), fd: None, blob });
        }
        let memory = PhysicalMemory::create(context, bytes, self.exportable)?;
        let (mut entry, mut fd, mut blob) = (None, None, Vec::new());
        match self.transport {
            HeapTransport::FileDescriptor => {
                let SharedMemory::FileDescriptor { fd: exported, .. } = memory.export_file_descriptor()? else { unreachable!() };
                if self.place == 0 {
                    // The exchange needs descriptors for the connections of the other PEs and for
                    // their memory.
                    descriptor::check_room(&exported, 2 * self.members.len() + 2)?;
                }
                fd = Some(exported);
            }
            HeapTransport::Fabric => {
                let SharedMemory::Fabric { handle, .. } = memory.export_fabric()? else { unreachable!() };
                blob.extend(handle.0);
            }
            HeapTransport::Process | HeapTransport::Ipc => {
                let published = identity::publish(Arc::<physical::Inner>::clone(&memory.inner));
                blob.extend(published.key.to_le_bytes());
                entry = Some(published);
            }
        }
        Ok(Made { own: Own::Physical(memory), _entry: entry, fd, blob })
    }

    /// Creates a chunk of the heap. Maps the memory that each PE of this machine (a member) has
    /// allocated for the chunk. The memory of a member is mapped at offset `start` of the member's
    /// segment. `blobs` contains, for each PE of the job, the data for opening the PE's memory.
    /// `fds` contains the file descriptor of each member, or is empty if the members exchange no
    /// file descriptors.
    ///
    /// Returns the chunk, and an error if not all of the memory could be mapped. After an error,
    /// the chunk contains the memory that was mapped before the error.
    pub(crate) fn join(
        &self,
        call: &str,
        made: &Made,
        (start, bytes): (u64, usize),
        blobs: &[Vec<u8>],
        fds: Vec<Descriptor>,
    ) -> (Chunk, Result<(), VmmError>) {
        let (addresses, parts) = (Vec::new(), Vec::new());
        let mut chunk = Chunk { start, bytes: bytes as u64, addresses, own: None, parts, is_given_out: false };
        let joined = self.join_to(&mut chunk, call, made, blobs, fds);
        (chunk, joined)
    }

    fn join_to(
        &self,
        chunk: &mut Chunk,
        call: &str,
        made: &Made,
        blobs: &[Vec<u8>],
        fds: Vec<Descriptor>,
    ) -> Result<(), VmmError> {
        let (start, bytes) = (chunk.start, chunk.bytes as usize);
        let mut fds = fds.into_iter();
        for (place, pe) in self.members.iter().enumerate() {
            let fd = fds.next();
            let is_mine = place == self.place;
            match &made.own {
                Own::Physical(own) => {
                    let memory = if is_mine { own.clone() } else { self.peers_memory(call, *pe, &blobs[pe.index()], fd, bytes)? };
                    let mapping = self.map(*pe, place, start, &memory, bytes)?;
                    chunk.addresses.push(mapping.address());
                    chunk.parts.push(Part::Mapped(mapping));
                    if is_mine {
                        chunk.own = Some(memory);
                    }
                }
                Own::Ipc(own) if is_mine => {
                    chunk.addresses.push(own.address());
                    chunk.parts.push(Part::Mine(own.clone()));
                }
                Own::Ipc(_) => {
                    let (address, part) = self.open(call, *pe, &blobs[pe.index()], bytes)?;
                    chunk.addresses.push(address);
                    chunk.parts.push(part);
                }
            }
        }
        Ok(())
    }

    /// Returns the physical memory that PE `pe` has allocated for a chunk. `blob` and `fd` are the
    /// data that `pe` has sent.
    fn peers_memory(
        &self,
        call: &str,
        pe: Pe,
        blob: &[u8],
        fd: Option<Descriptor>,
        bytes: usize,
    ) -> Result<PhysicalMemory, VmmError> {
        let mut reader = Reader(blob);
        let shared = match self.transport {
            HeapTransport::FileDescriptor => SharedMemory::FileDescriptor { fd: fd.ok_or_else(|| unreadable(call, pe))?, bytes },
            HeapTransport::Fabric => {
                let handle = FabricHandle(reader.bytes().ok_or_else(|| unreadable(call, pe))?);
                SharedMemory::Fabric { handle, bytes }
            }
            HeapTransport::Process | HeapTransport::Ipc => {
                let key = reader.number().ok_or_else(|| unreadable(call, pe))?;
                let inner = identity::find::<physical::Inner>(key).ok_or_else(|| gone(call, pe))?;
                return Ok(PhysicalMemory { inner });
            }
        };
        // SAFETY: the peer knows the job's token and made the same call, so it exported physical
        // memory of `bytes` bytes.
        unsafe { PhysicalMemory::import(&self.context, shared) }
    }

    fn map(&self, pe: Pe, place: usize, start: u64, memory: &PhysicalMemory, bytes: usize) -> Result<Mapping, VmmError> {
        let reservation = self.reservation.as_ref().ok_or_else(|| VmmError::Unsupported {
            feature: "a heap with a constant address stride between PEs",
            needs: "virtual memory management".into(),
            found: "legacy IPC".into(),
        })?;
        let offset = usize::try_from(place as u64 * self.stride + start).unwrap_or(usize::MAX);
        let source = Source::Physical(memory.clone());
        let mapping = reservation.map_source("SymmetricHeap", offset, source, bytes, Arc::clone(&self.streams))?;
        let ordinal = self.context.ordinal();
        let Err(error) = mapping.allow(&[ordinal], Rights::ReadWrite) else { return Ok(mapping) };
        mapping.unused();
        match place == self.place {
            false if error.is_code(PEER_REFUSED) => Err(VmmError::Unsupported {
                feature: "peer access",
                needs: format!("access of device {ordinal} to the memory of {pe}"),
                found: error.to_string(),
            }),
            _ => Err(error),
        }
    }

    /// Opens another PE's memory by legacy IPC. If the PE is a thread of this process, uses the
    /// address of the memory directly.
    fn open(&self, call: &str, pe: Pe, blob: &[u8], bytes: usize) -> Result<(CUdeviceptr, Part), VmmError> {
        let mut reader = Reader(blob);
        let mut read = || Some((ProcessId(reader.bytes()?), reader.number()?, IpcHandle(reader.bytes()?)));
        let (process, key, handle) = read().ok_or_else(|| unreadable(call, pe))?;
        if process != ProcessId::mine() {
            // SAFETY: the peer made the same call with `bytes` bytes, and leaks the memory unless
            // all PEs finalise the heap.
            let opened = unsafe { IpcPeerMemory::open_for(&self.context, handle, bytes, Arc::clone(&self.streams)) }?;
            return Ok((opened.address(), Part::Opened(opened)));
        }
        let memory = identity::find::<IpcMemory>(key).ok_or_else(|| gone(call, pe))?;
        if memory.context().ordinal() != self.context.ordinal() {
            crate::peer::enable(&self.context, memory.context())?;
        }
        Ok((memory.address(), Part::Found { _memory: memory }))
    }
}

/// Codes that the driver returns if a device cannot access the memory of another device.
const PEER_REFUSED: &[CudaCode] = &[CudaCode::INVALID_DEVICE, CudaCode::NOT_SUPPORTED, CudaCode::PEER_ACCESS_UNSUPPORTED];

fn gone(call: &str, pe: Pe) -> VmmError {
    VmmError::Peer {
        call: call.to_owned(),
        pe,
        cause: PeerCause::Failed(format!("the memory of {pe} was freed before this PE mapped it")),
    }
}

impl Made {
    /// Returns the length of this PE's memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match &self.own {
            Own::Physical(memory) => memory.bytes(),
            Own::Ipc(memory) => memory.bytes(),
        }
    }

    /// Declares that no other PE has this PE's memory open. The memory can then be freed.
    ///
    /// # Safety
    /// No other PE has opened the memory, or all PEs have closed it. All PEs know that the creation
    /// of the chunk failed, so no PE opens the memory later.
    pub(crate) unsafe fn recall(&self) {
        if let Own::Ipc(memory) = &self.own {
            memory.unused();
            // SAFETY: the caller guarantees that no other PE has the memory open.
            unsafe { memory.recall() };
        }
    }
}

impl Chunk {
    /// Marks the chunk as available for allocations. From then on, any stream of the heap may use
    /// it.
    pub(crate) fn mark_used(mut self) -> Self {
        self.is_given_out = true;
        self
    }

    /// Ends this PE's access to the memory of the other PEs. Memory that was opened by legacy IPC
    /// is closed later, on another thread. Returns an element for each such memory, which contains
    /// the result once the memory has been closed.
    pub(crate) fn close_peers(&mut self) -> Vec<Arc<Closing>> {
        let (mine, others): (Vec<Part>, Vec<Part>) = self.parts.drain(..).partition(|part| matches!(part, Part::Mine(_)));
        self.parts = mine;
        if !self.is_given_out {
            others.iter().for_each(Part::unused);
        }
        others.iter().filter_map(|part| if let Part::Opened(opened) = part { Some(opened.closing()) } else { None }).collect()
    }

    /// Records that no other PE has this PE's memory open any more, so that the memory can be
    /// freed.
    ///
    /// # Safety
    /// All other PEs have closed the memory.
    pub(crate) unsafe fn recall(&self) {
        for part in &self.parts {
            if let Part::Mine(memory) = part {
                // SAFETY: the caller guarantees that all other PEs have closed the memory.
                unsafe { memory.recall() };
            }
        }
    }

    /// Returns the offset of the end of the last chunk, or 0 if there is no chunk.
    pub(crate) fn end(chunks: &[Self]) -> u64 {
        chunks.last().map_or(0, |chunk| chunk.start + chunk.bytes)
    }

    /// Returns whether this chunk contains the `bytes` bytes that begin at `offset`.
    pub(crate) fn holds(&self, offset: u64, bytes: u64) -> bool {
        offset >= self.start && offset.saturating_add(bytes) <= self.start + self.bytes
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if self.is_given_out {
            return;
        }
        self.parts.iter().for_each(Part::unused);
    }
}

impl Part {
    /// Marks the memory as used by no stream. The memory is then unmapped, closed or freed without
    /// a wait for streams.
    fn unused(&self) {
        match self {
            Self::Mapped(mapping) => mapping.unused(),
            Self::Mine(memory) => memory.unused(),
            // The PE that owns the memory marks the memory.
            Self::Found { .. } => {}
            Self::Opened(opened) => opened.unused(),
        }
    }
}

/// Tests whether fabric handles work on a device, by allocating memory of the minimum length and
/// exporting it. The inner error is the reason why they do not work. The outer error means that the
/// test itself failed.
pub(crate) fn fabric_works(context: &Arc<CudaContext>, file_descriptor: bool) -> Result<Result<(), String>, VmmError> {
    let exportable = HeapTransport::Fabric.exportable(file_descriptor);
    if !raw::has(context.ordinal(), raw::Attribute::Fabric)? {
        let ordinal = context.ordinal();
        return Ok(Err(format!("device {ordinal} lacks CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED")));
    }
    let tried = physical::Granularity::of_device(context.ordinal(), exportable)
        .and_then(|granularity| PhysicalMemory::create(context, granularity.minimum, exportable))
        .and_then(|memory| memory.export_fabric());
    match tried {
        Ok(_) => Ok(Ok(())),
        Err(error @ VmmError::Unsupported { .. }) => Ok(Err(error.to_string())),
        Err(error) if error.is_code(physical::FABRIC_REFUSED) => Ok(Err(error.to_string())),
        Err(error) => Err(error),
    }
}
