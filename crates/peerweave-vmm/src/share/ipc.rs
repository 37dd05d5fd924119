//! Legacy IPC: shares device memory among processes if physical memory cannot be exported.
//!
//! The driver chooses the address at which an importing process gets the memory. So the segments of
//! a heap (each PE's memory) are not at equal distances from each other.
//!
//! Invariant: exported memory is freed only after the exporting process has called
//! [`IpcMemory::recall`], which declares that no other process has the memory open. Without this
//! call the memory is leaked, because freeing memory that another process has open is undefined
//! behavior.

use std::ffi::c_char;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use peerweave_driver::cudarc::driver::sys::{CUdeviceptr, CUipcMemHandle};
use peerweave_driver::{Access, CudaContext, CudaStream, Keep, Streams, alloc_when_freed, relaxed, retire};

use crate::VmmError;
use crate::memory::buffer::wrong_value;
use crate::raw;

/// The handle of an exported allocation, which can be sent to another process.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct IpcHandle(pub [u8; 64]);

impl fmt::Debug for IpcHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IpcHandle({:02x}{:02x}..)", self.0[0], self.0[1])
    }
}

// Every call below that allocates or opens memory runs in the capture mode `relaxed`. In another
// capture mode, the call would invalidate captures of other threads.

/// A handle to memory that other processes can open. `cuMemAlloc` has allocated the memory. Clones
/// are handles to the same allocation.
#[derive(Clone)]
pub struct IpcMemory {
    inner: Arc<Inner>,
}

struct Inner {
    address: CUdeviceptr,
    bytes: usize,
    context: Arc<CudaContext>,
    /// Whether the memory has been exported, so that another process may have it open.
    lent: AtomicBool,
    streams: Arc<Streams>,
    /// Whether no stream has used this memory, so that freeing it waits for no stream. `streams`
    /// does not show this, because it may contain streams that used only other memory of the same
    /// heap.
    is_unused: AtomicBool,
}

impl IpcMemory {
    /// Granularity of the driver's allocations, in bytes. The length of an [`IpcMemory`] is a
    /// multiple of the granularity. So exporting the memory exposes no other allocation.
    pub const STEP_BYTES: usize = 2 << 20;

    /// Allocates `bytes` bytes of memory on the device of `context`.
    ///
    /// # Errors
    /// [`Misuse::Value`](crate::Misuse::Value) if `bytes` is not a positive multiple of
    /// [`STEP_BYTES`](Self::STEP_BYTES). [`VmmError::Driver`] if a driver call fails.
    pub fn alloc(context: &Arc<CudaContext>, bytes: usize) -> Result<Self, VmmError> {
        Self::alloc_for(context, bytes, Arc::default())
    }

    pub(crate) fn alloc_for(context: &Arc<CudaContext>, bytes: usize, streams: Arc<Streams>) -> Result<Self, VmmError> {
        if bytes == 0 || !bytes.is_multiple_of(Self::STEP_BYTES) {
            return Err(wrong_value("IpcMemory::alloc", "bytes", bytes, "a positive multiple of 2 MiB"));
        }
        raw::bind(context)?;
        let mut address: CUdeviceptr = 0;
        let allocate = || {
            let api = raw::api()?;
            // SAFETY: the pointer is to a live address.
            raw::done("cuMemAlloc_v2", relaxed(|| unsafe { api.cuMemAlloc_v2(&raw mut address, bytes) }))
        };
        alloc_when_freed(allocate, VmmError::is_out_of_memory)?;
        let (lent, is_unused) = (AtomicBool::new(false), AtomicBool::new(false));
        let inner = Inner { address, bytes, context: Arc::clone(context), lent, streams, is_unused };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Returns a handle with which other processes can open the memory. If the memory is dropped
    /// after this call, the memory is leaked unless [`recall`](Self::recall) has been called.
    ///
    /// # Errors
    /// [`VmmError::Driver`] if a driver call fails.
    pub fn export(&self) -> Result<IpcHandle, VmmError> {
        raw::bind(&self.inner.context)?;
        let mut handle = CUipcMemHandle { reserved: [0; 64] };
        let api = raw::api()?;
        // SAFETY: the pointer is to a live handle, and the address is that of a live allocation.
        let code = relaxed(|| unsafe { api.cuIpcGetMemHandle(&raw mut handle, self.inner.address) });
        raw::done("cuIpcGetMemHandle", code)?;
        self.inner.lent.store(true, Ordering::Release);
        Ok(IpcHandle(handle.reserved.map(|byte| byte as u8)))
    }

    /// Declares that no other process has the memory open or will open the memory. After this call,
    /// dropping the last handle frees the memory instead of leaking it.
    ///
    /// # Safety
    /// Every process that opened the memory must have closed it before this call, and no process
    /// may open it later. The driver does not report this, so every other process must notify the
    /// caller after it has closed the memory.
    ///
    /// A process closes the memory when it has dropped all handles to the [`IpcPeerMemory`], and
    /// the streams that used the memory have completed their work. In that process,
    /// [`peerweave_driver::drain_retired`] waits until the memory is closed.
    pub unsafe fn recall(&self) {
        self.inner.lent.store(false, Ordering::Release);
    }

    /// Returns the address that the memory has in this process.
    pub fn address(&self) -> CUdeviceptr {
        self.inner.address
    }

    /// Returns the length of the memory in bytes.
    pub fn bytes(&self) -> usize {
        self.inner.bytes
    }

    /// Returns the address for work that is about to be enqueued on `stream`. The memory stays
    /// allocated until the stream has completed this work. If the work is captured into a graph,
    /// the graph must also own the value that [`keep`](Self::keep) returns.
    pub fn access(&self, stream: &Arc<CudaStream>) -> Access<'_> {
        self.inner.streams.note(stream);
        Access::new(self.inner.address)
    }

    /// Returns a value that keeps the memory allocated. A graph that uses the memory must own this
    /// value.
    pub fn keep(&self) -> Keep {
        Arc::<Inner>::clone(&self.inner)
    }

    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        &self.inner.context
    }

    /// Records that no stream has used this memory. Dropping the last handle then frees the memory
    /// without waiting for any stream. Without this call, the memory is freed only when all streams
    /// in `streams` have completed. All memory of a heap shares this list, so the list cannot show
    /// that this memory is unused.
    pub(crate) fn unused(&self) {
        self.inner.is_unused.store(true, Ordering::Release);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if *self.lent.get_mut() {
            tracing::warn!(bytes = self.bytes, "memory that other processes may have open is leaked until this process ends");
            return;
        }
        let (address, context) = (self.address, Arc::clone(&self.context));
        let streams = if *self.is_unused.get_mut() { Vec::new() } else { self.streams.all() };
        retire(
            &self.context,
            streams,
            Box::new(move || {
                // `cuMemFree` is not used, because it waits for the whole device, and blocks
                // launches of this process until then.
                // SAFETY: the last handle was dropped, no other process has the memory open, and
                // the streams that used it have completed that work.
                if let Err(error) = unsafe { peerweave_driver::free(&context, address) } {
                    tracing::warn!(%error, "memory exported by legacy IPC was not freed");
                }
            }),
        );
    }
}

/// A handle to memory that another process has allocated. This process has opened the memory.
/// Clones are handles to the same memory.
#[derive(Clone)]
pub struct IpcPeerMemory {
    inner: Arc<PeerInner>,
}

struct PeerInner {
    address: CUdeviceptr,
    bytes: usize,
    context: Arc<CudaContext>,
    streams: Arc<Streams>,
    is_unused: AtomicBool,
    closing: Arc<Closing>,
}

/// The result of a call of `cuIpcCloseMemHandle`, which closes memory of another process. The
/// result is set when the call has returned.
pub(crate) type Closing = OnceLock<Result<(), VmmError>>;

impl IpcPeerMemory {
    /// Opens memory of another process for access by the device of `context`. If the memory is on
    /// another device, the driver enables peer access.
    ///
    /// # Errors
    /// [`VmmError::Driver`] if a driver call fails, for example because this process exported the
    /// handle itself.
    ///
    /// # Safety
    /// `handle` must belong to an allocation of `bytes` bytes. The process that owns the allocation
    /// must not free the allocation while this process has the memory open. This process closes the
    /// memory after every handle to the memory has been dropped, and the streams that used the
    /// memory have completed. The caller must then notify the owner.
    pub unsafe fn open(context: &Arc<CudaContext>, handle: IpcHandle, bytes: usize) -> Result<Self, VmmError> {
        // SAFETY: the contract of `open_for` is that of this function, which the caller keeps.
        unsafe { Self::open_for(context, handle, bytes, Arc::default()) }
    }

    /// Opens memory like [`open`](Self::open), but records the streams that use the memory in
    /// `streams`, which other memory can share. The memory is closed only after all streams in
    /// `streams` have completed their work, unless [`unused`](Self::unused) is called.
    ///
    /// # Safety
    /// The requirements of [`open`](Self::open).
    pub(crate) unsafe fn open_for(
        context: &Arc<CudaContext>,
        handle: IpcHandle,
        bytes: usize,
        streams: Arc<Streams>,
    ) -> Result<Self, VmmError> {
        /// The driver's flag `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
        const LAZY_ENABLE_PEER_ACCESS: u32 = 1;
        raw::bind(context)?;
        let handle = CUipcMemHandle { reserved: handle.0.map(|byte| byte as c_char) };
        let mut address: CUdeviceptr = 0;
        let api = raw::api()?;
        // SAFETY: the pointer is to a live address; the driver checks the handle.
        let code = relaxed(|| unsafe { api.cuIpcOpenMemHandle_v2(&raw mut address, handle, LAZY_ENABLE_PEER_ACCESS) });
        raw::done("cuIpcOpenMemHandle_v2", code)?;
        let (is_unused, closing) = (AtomicBool::new(false), Arc::default());
        let inner = PeerInner { address, bytes, context: Arc::clone(context), streams, is_unused, closing };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Returns the address that the memory has in this process.
    pub fn address(&self) -> CUdeviceptr {
        self.inner.address
    }

    /// Returns the length of the memory in bytes.
    pub fn bytes(&self) -> usize {
        self.inner.bytes
    }
}

impl IpcPeerMemory {
    /// Returns the address for work that is about to be enqueued on `stream`. The memory stays open
    /// until the stream has completed this work. If the work is captured into a graph, the graph
    /// must also own the value that [`keep`](Self::keep) returns.
    pub fn access(&self, stream: &Arc<CudaStream>) -> Access<'_> {
        self.inner.streams.note(stream);
        Access::new(self.inner.address)
    }

    /// Returns a value that keeps the memory open. A graph that uses the memory must own this
    /// value.
    pub fn keep(&self) -> Keep {
        Arc::<PeerInner>::clone(&self.inner)
    }

    /// Returns the cell that will contain the result of closing the memory (`cuIpcCloseMemHandle`).
    /// The memory is closed after the last handle has been dropped and the streams that used the
    /// memory have completed their work.
    pub(crate) fn closing(&self) -> Arc<Closing> {
        Arc::clone(&self.inner.closing)
    }

    /// Records that no stream has used this memory. Dropping the last handle then closes the memory
    /// without waiting for any stream. Without this call, the memory is closed only when all
    /// streams in `streams` have completed. All memory of a heap shares this list, so the list
    /// cannot show that this memory is unused.
    pub(crate) fn unused(&self) {
        self.inner.is_unused.store(true, Ordering::Release);
    }
}

impl Drop for PeerInner {
    fn drop(&mut self) {
        let (address, closing) = (self.address, Arc::clone(&self.closing));
        let streams = if *self.is_unused.get_mut() { Vec::new() } else { self.streams.all() };
        retire(
            &self.context,
            streams,
            Box::new(move || {
                // SAFETY: this value opened the memory, its last handle was dropped, and the
                // streams that used the memory have completed that work.
                let code = raw::api().map(|api| unsafe { api.cuIpcCloseMemHandle(address) });
                let closed = code.and_then(|code| raw::done("cuIpcCloseMemHandle", code));
                if let Err(error) = &closed {
                    tracing::warn!(%error, "memory of another process was not closed");
                }
                let _ = closing.set(closed);
            }),
        );
    }
}

impl fmt::Debug for IpcMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IpcMemory({} bytes at {:#x})", self.inner.bytes, self.inner.address)
    }
}

impl fmt::Debug for IpcPeerMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IpcPeerMemory({} bytes at {:#x})", self.inner.bytes, self.inner.address)
    }
}
