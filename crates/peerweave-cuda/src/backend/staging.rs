//! Memory of the host as operands. The data is copied through pinned memory that the device can
//! access.
//!
//! Invariants: **\[G1\]** the device accesses only the pinned memory, never the caller's memory.
//! **\[G2\]** The memory of a blocking call is accessed only by the calling thread. The memory of a
//! queued call is accessed by a function that runs in stream order, while the queue holds the
//! memory.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use peerweave_driver::launch::MappedWords;
use peerweave_driver::{CudaError, CudaStream, Driver, DriverError, bind};

/// The thread that copies between the caller's memory and pinned memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copier {
    /// The calling thread: before the operation is enqueued, and after it has ended.
    Caller,
    /// A thread of the driver, in stream order.
    Stream,
}

/// Pinned memory that replaces memory of the caller.
#[derive(Clone, Debug)]
pub(super) struct Staged {
    words: Arc<MappedWords>,
    caller: Address,
    bytes: usize,
}

#[derive(Clone, Copy, Debug)]
struct Address(*mut u8);

// SAFETY: shared: the memory behind the address. Synchronised: by [G2], one thread at a time uses
// the memory, and the stream orders that thread with the enqueuing thread. A failure would be
// caught by the test `put_with_signal_delivers_data_before_the_signal`.
unsafe impl Send for Address {}
// SAFETY: shared: the same memory, synchronised as above. A failure would be caught by the test
// `put_with_signal_delivers_data_before_the_signal`.
unsafe impl Sync for Address {}

impl Staged {
    /// Uses pinned memory of at least `bytes` bytes in place of the caller's memory at `at`.
    pub(super) fn new(words: Arc<MappedWords>, at: *mut u8, bytes: usize) -> Self {
        Self { words, caller: Address(at), bytes }
    }

    /// Returns the device address of the pinned memory.
    pub(super) fn address(&self) -> u64 {
        self.words.device_address(0)
    }

    pub(super) fn note(&self, stream: &Arc<CudaStream>) {
        self.words.note(stream);
    }

    /// Returns the number of whole words in the caller's memory, and their address if it is
    /// aligned.
    fn words(&self) -> (usize, Option<*mut u32>) {
        let at = self.caller.0.cast::<u32>();
        (self.bytes / size_of::<u32>(), at.is_aligned().then_some(at))
    }

    /// Returns the range of the caller's bytes that a word of pinned memory holds.
    fn bytes_of(&self, word: usize) -> std::ops::Range<usize> {
        word * size_of::<u32>()..self.bytes.min((word + 1) * size_of::<u32>())
    }

    /// Copies from the caller's memory.
    ///
    /// # Safety
    /// The caller's memory is valid for reads.
    pub(super) unsafe fn fill(&self) {
        let (words, aligned) = self.words();
        // The memory may be a shared slice, which must not be accessed through an atomic reference,
        // or a buffer that another thread writes. A volatile read is allowed for both and returns
        // some value.
        for word in 0..self.bytes.div_ceil(size_of::<u32>()) {
            let value = match aligned {
                // SAFETY: the word is below `bytes`, aligned, and valid for reads.
                Some(at) if word < words => unsafe { at.add(word).read_volatile() },
                _ => {
                    let mut value = [0u8; size_of::<u32>()];
                    for (byte, at) in value.iter_mut().zip(self.bytes_of(word)) {
                        // SAFETY: `at` is below `bytes`.
                        *byte = unsafe { self.caller.0.add(at).read_volatile() };
                    }
                    u32::from_ne_bytes(value)
                }
            };
            self.words.word(word).store(value, Ordering::Relaxed);
        }
    }

    /// Copies to the caller's memory.
    ///
    /// # Safety
    /// The caller's memory is valid for writes, by atomic accesses if other threads use it.
    pub(super) unsafe fn empty(&self) {
        let (words, aligned) = self.words();
        for word in 0..self.bytes.div_ceil(size_of::<u32>()) {
            let value = self.words.word(word).load(Ordering::Relaxed);
            match aligned {
                // SAFETY: the word is below `bytes` and aligned; the caller guarantees the rest.
                Some(at) if word < words => unsafe { AtomicU32::from_ptr(at.add(word)) }.store(value, Ordering::Relaxed),
                _ => {
                    for (byte, at) in value.to_ne_bytes().into_iter().zip(self.bytes_of(word)) {
                        // SAFETY: `at` is below `bytes`; the caller guarantees the rest.
                        unsafe { AtomicU8::from_ptr(self.caller.0.add(at)) }.store(byte, Ordering::Relaxed);
                    }
                }
            }
        }
    }

    /// Enqueues the copy from the caller's memory.
    ///
    /// # Safety
    /// As for [`fill`](Self::fill), until the stream has run it.
    pub(super) unsafe fn enqueue_fill(&self, stream: &Arc<CudaStream>) -> Result<(), DriverError> {
        let staged = self.clone();
        // SAFETY: the caller guarantees it.
        call_in_order(stream, Box::new(move || unsafe { staged.fill() }))
    }

    /// Enqueues the copy to the caller's memory.
    ///
    /// # Safety
    /// As for [`empty`](Self::empty), until the stream has run it.
    pub(super) unsafe fn enqueue_empty(&self, stream: &Arc<CudaStream>) -> Result<(), DriverError> {
        let staged = self.clone();
        // SAFETY: the caller guarantees it.
        call_in_order(stream, Box::new(move || unsafe { staged.empty() }))
    }
}

pub(super) type Function = Box<dyn FnOnce() + Send>;

/// Calls a function of the host in the order of a stream that is not being captured. The function
/// must not call the driver. Its captured values are dropped on the same thread.
pub(super) fn call_in_order(stream: &Arc<CudaStream>, function: Function) -> Result<(), DriverError> {
    /// # Safety
    /// `data` is a box of a [`Function`] that is not used again.
    unsafe extern "C" fn run(data: *mut c_void) {
        // SAFETY: the caller guarantees it.
        let function = unsafe { Box::from_raw(data.cast::<Function>()) };
        // A panic must not unwind into the driver; copies do not panic.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(function));
    }
    bind(stream.context())?;
    let data: *mut c_void = Box::into_raw(Box::new(function)).cast();
    // SAFETY: the stream is live, and runs the function once, with the box.
    let code = unsafe { Driver::get()?.api().cuLaunchHostFunc(stream.cu_stream(), Some(run), data) };
    match code.map(|code| CudaError::check("cuLaunchHostFunc", code)) {
        Ok(Ok(())) => Ok(()),
        failed => {
            // SAFETY: the driver did not take the function.
            drop(unsafe { Box::from_raw(data.cast::<Function>()) });
            failed?.map_err(DriverError::from)
        }
    }
}
