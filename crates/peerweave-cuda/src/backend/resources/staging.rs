//! Operands and results in memory of the host. Their data is copied through pinned memory that the
//! device can access.
//!
//! Invariants: **\[G1\]** the device accesses only the pinned memory, never the caller's memory.
//! **\[G2\]** In a blocking call, only the calling thread accesses the caller's memory. In a
//! stream-ordered call, only host functions that the stream runs access the caller's memory, and
//! the queue keeps this memory allocated.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering};

use peerweave_driver::launch::MappedWords;
use peerweave_driver::{CudaError, CudaStream, Driver, DriverError, bind};

/// The thread that copies data between the caller's memory and pinned memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copier {
    /// The calling thread copies the operands before the operation is enqueued, and the results
    /// after the operation has ended.
    Caller,
    /// The stream calls host functions that copy the operands and the results. A thread of the
    /// driver runs these functions.
    Stream,
}

/// Pinned memory of a pool. While an operation uses this memory, the device accesses it in place of
/// the caller's memory. The address and the length of the caller's memory are stored here.
#[derive(Debug)]
pub(crate) struct Pinned {
    pub(crate) words: MappedWords,
    /// Address of the caller's memory. Only the threads that the invariant [G2] of this module
    /// permits may access this memory.
    caller: AtomicPtr<u8>,
    bytes: AtomicUsize,
}

impl Pinned {
    pub(crate) fn new(words: MappedWords) -> Self {
        Self { words, caller: AtomicPtr::default(), bytes: AtomicUsize::new(0) }
    }
}

/// A handle of a [`Pinned`], for one operation in which this pinned memory replaces the caller's
/// memory.
#[derive(Clone, Debug)]
pub(crate) struct Staged(Arc<Pinned>);

impl Staged {
    /// Creates a handle of `pinned` for one operation. In this operation, the device accesses
    /// `pinned` instead of the caller's memory, which has `bytes` bytes and starts at address `at`.
    /// `pinned` has at least `bytes` bytes, and no other operation uses `pinned`.
    pub(crate) fn new(pinned: Arc<Pinned>, at: *mut u8, bytes: usize) -> Self {
        pinned.caller.store(at, Ordering::Relaxed);
        pinned.bytes.store(bytes, Ordering::Release);
        Self(pinned)
    }

    /// Returns the device address of the pinned memory.
    pub(crate) fn address(&self) -> u64 {
        self.0.words.device_address(0)
    }

    pub(crate) fn note(&self, stream: &Arc<CudaStream>) {
        self.0.words.note(stream);
    }

    fn bytes(&self) -> usize {
        self.0.bytes.load(Ordering::Acquire)
    }

    fn caller(&self) -> *mut u8 {
        self.0.caller.load(Ordering::Relaxed)
    }

    /// Returns the number of complete 32-bit words in the caller's memory, and the address of the
    /// memory. Returns `None` as the address if the address is not aligned for 32-bit words.
    fn words(&self) -> (usize, Option<*mut u32>) {
        let at = self.caller().cast::<u32>();
        (self.bytes() / size_of::<u32>(), at.is_aligned().then_some(at))
    }

    /// Returns the bytes that the 32-bit word `word` contains, as a range of offsets in the
    /// caller's memory. The last word may be incomplete.
    fn bytes_of(&self, word: usize) -> std::ops::Range<usize> {
        word * size_of::<u32>()..self.bytes().min((word + 1) * size_of::<u32>())
    }

    /// Copies the operand from the caller's memory to the pinned memory.
    ///
    /// # Safety
    /// The caller's memory is valid for reads.
    pub(crate) unsafe fn fill(&self) {
        let (words, aligned) = self.words();
        // The memory may be a shared slice, which must not be accessed through an atomic reference,
        // or a buffer that another thread writes. A volatile read is allowed for both and returns
        // some value.
        for word in 0..self.bytes().div_ceil(size_of::<u32>()) {
            let value = match aligned {
                // SAFETY: the word is below `bytes`, aligned, and valid for reads.
                Some(at) if word < words => unsafe { at.add(word).read_volatile() },
                _ => {
                    let mut value = [0u8; size_of::<u32>()];
                    for (byte, at) in value.iter_mut().zip(self.bytes_of(word)) {
                        // SAFETY: `at` is below `bytes`.
                        *byte = unsafe { self.caller().add(at).read_volatile() };
                    }
                    u32::from_ne_bytes(value)
                }
            };
            self.0.words.word(word).store(value, Ordering::Relaxed);
        }
    }

    /// Copies the result from the pinned memory to the caller's memory.
    ///
    /// # Safety
    /// The caller's memory is valid for writes. If other threads use the memory, their accesses are
    /// atomic.
    pub(crate) unsafe fn empty(&self) {
        let (words, aligned) = self.words();
        for word in 0..self.bytes().div_ceil(size_of::<u32>()) {
            let value = self.0.words.word(word).load(Ordering::Relaxed);
            match aligned {
                // SAFETY: the word is below `bytes` and aligned; the caller guarantees the rest.
                Some(at) if word < words => unsafe { AtomicU32::from_ptr(at.add(word)) }.store(value, Ordering::Relaxed),
                _ => {
                    for (byte, at) in value.to_ne_bytes().into_iter().zip(self.bytes_of(word)) {
                        // SAFETY: `at` is below `bytes`; the caller guarantees the rest.
                        unsafe { AtomicU8::from_ptr(self.caller().add(at)) }.store(byte, Ordering::Relaxed);
                    }
                }
            }
        }
    }

    /// Enqueues a host function that copies the operand from the caller's memory to the pinned
    /// memory.
    ///
    /// # Safety
    /// Until the host function has returned, the caller's memory meets the requirements of
    /// [`Staged::fill`](Self::fill).
    pub(crate) unsafe fn enqueue_fill(&self, stream: &Arc<CudaStream>) -> Result<(), DriverError> {
        /// Copies the operand with [`Staged::fill`]. `data` is a raw `Arc<Pinned>`, which this
        /// function takes over and drops after the copy.
        ///
        /// # Safety
        /// `data` is from [`Arc::into_raw`], and no other code uses this handle. The caller's
        /// memory, whose address the [`Pinned`] stores, satisfies the requirements of
        /// [`Staged::fill`].
        unsafe extern "C" fn run(data: *mut c_void) {
            // SAFETY: the caller guarantees both properties.
            unsafe { Staged(Arc::from_raw(data.cast::<Pinned>())).fill() };
        }
        // SAFETY: the caller guarantees the memory until the stream has run the function.
        unsafe { self.enqueue(stream, run) }
    }

    /// Enqueues a host function that copies the result from the pinned memory to the caller's
    /// memory.
    ///
    /// # Safety
    /// Until the host function has returned, the caller's memory meets the requirements of
    /// [`Staged::empty`](Self::empty).
    pub(crate) unsafe fn enqueue_empty(&self, stream: &Arc<CudaStream>) -> Result<(), DriverError> {
        /// Copies the result with [`Staged::empty`]. `data` is a raw `Arc<Pinned>`, which this
        /// function takes over and drops after the copy.
        ///
        /// # Safety
        /// `data` is from [`Arc::into_raw`], and no other code uses this handle. The caller's
        /// memory, whose address the [`Pinned`] stores, satisfies the requirements of
        /// [`Staged::empty`].
        unsafe extern "C" fn run(data: *mut c_void) {
            // SAFETY: the caller guarantees both properties.
            unsafe { Staged(Arc::from_raw(data.cast::<Pinned>())).empty() };
        }
        // SAFETY: the caller guarantees the memory until the stream has run the function.
        unsafe { self.enqueue(stream, run) }
    }

    /// Enqueues a call of the host function `run`, and passes a handle of the pinned memory to
    /// `run`. `run` copies between the caller's memory and the pinned memory, and then drops this
    /// handle. The operation in flight owns another handle, so `run` does not free the pinned
    /// memory. Host functions must not free pinned memory, because they must not call the driver.
    ///
    /// # Safety
    /// `run` takes ownership of a handle from [`Arc::into_raw`]. The caller's memory stays valid
    /// for the copy until `run` has returned.
    unsafe fn enqueue(&self, stream: &Arc<CudaStream>, run: unsafe extern "C" fn(*mut c_void)) -> Result<(), DriverError> {
        let data = Arc::into_raw(Arc::clone(&self.0));
        // SAFETY: the caller guarantees that the function takes over the handle.
        let enqueued = unsafe { launch_host(stream, run, data.cast_mut().cast()) };
        if enqueued.is_err() {
            // SAFETY: the driver did not take the function, so this handle is still owned here.
            drop(unsafe { Arc::from_raw(data) });
        }
        enqueued
    }
}

/// Enqueues the host function `run` on a stream that is not being captured. The stream calls
/// `run(data)` once. After an error, the stream does not call `run`.
///
/// # Safety
/// A thread of the driver may call `run(data)` at any time until the stream has completed its
/// earlier work and this function. Such a call must be sound. `run` must not call the driver.
unsafe fn launch_host(
    stream: &Arc<CudaStream>,
    run: unsafe extern "C" fn(*mut c_void),
    data: *mut c_void,
) -> Result<(), DriverError> {
    bind(stream.context())?;
    // SAFETY: the stream is live; the caller guarantees the function and its argument.
    let code = unsafe { Driver::get()?.api().cuLaunchHostFunc(stream.cu_stream(), Some(run), data) }?;
    Ok(CudaError::check("cuLaunchHostFunc", code)?)
}

pub(crate) type Function = Box<dyn FnOnce() + Send>;

/// Enqueues a call of a closure on a stream that is not being captured. A thread of the driver runs
/// the closure in stream order, and drops its captured values. The closure must not call the
/// driver.
pub(crate) fn call_in_order(stream: &Arc<CudaStream>, function: Function) -> Result<(), DriverError> {
    /// Runs the closure in the box to which `data` points.
    ///
    /// # Safety
    /// `data` is the raw pointer of a box of a [`Function`]. No other code uses the box.
    unsafe extern "C" fn run(data: *mut c_void) {
        // SAFETY: the caller guarantees that `data` is the raw pointer of a box of a `Function`.
        let function = unsafe { Box::from_raw(data.cast::<Function>()) };
        // A panic must not unwind into the driver. The function itself stores the error of its
        // panic.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(function));
    }
    let data: *mut c_void = Box::into_raw(Box::new(function)).cast();
    // SAFETY: the stream runs the function once, with the box.
    let enqueued = unsafe { launch_host(stream, run, data) };
    if enqueued.is_err() {
        // SAFETY: the driver did not take the function.
        drop(unsafe { Box::from_raw(data.cast::<Function>()) });
    }
    enqueued
}
