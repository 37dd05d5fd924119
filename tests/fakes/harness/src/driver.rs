//! Calls functions that only the fake driver of this process has: faults, blocked streams, and host
//! functions that stand in for kernels.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::mem::transmute;
use std::ptr::NonNull;

/// A launch in progress, as the fake driver passes it to the function of a kernel.
#[derive(Debug)]
#[repr(C)]
pub struct Launch {
    /// Number of blocks in each dimension.
    pub grid: [c_uint; 3],
    /// Threads of a block in each dimension.
    pub block: [c_uint; 3],
    /// Dynamic shared memory per block, in bytes.
    pub shared_bytes: c_uint,
    /// Number of parameters.
    pub n_parameters: c_uint,
    parameters: *const *const c_void,
    /// The device.
    pub device: c_int,
}

impl Launch {
    /// Returns the argument of the parameter at `index`.
    ///
    /// # Safety
    /// The kernel's parameter at `index` has the type `T`.
    ///
    /// # Panics
    /// If the kernel has no such parameter.
    #[must_use]
    pub unsafe fn argument<T: Copy>(&self, index: usize) -> T {
        assert!(
            index < self.n_parameters as usize,
            "argument {index} does not exist: the kernel has {} parameters",
            self.n_parameters
        );
        // SAFETY: the fake passes `n_parameters` addresses, each aligned to 16 bytes; the caller
        // guarantees the type.
        unsafe { *self.parameters.add(index).read().cast::<T>() }
    }
}

/// Returns a function of the fake driver.
///
/// # Panics
/// If the driver of this process is not the fake.
#[must_use]
pub fn function(name: &CStr) -> NonNull<c_void> {
    // SAFETY: both names end with a zero, and the fake is never unloaded.
    let address = unsafe { libc::dlsym(libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW), name.as_ptr()) };
    NonNull::new(address).unwrap_or_else(|| panic!("libcuda.so.1 of this process lacks {name:?}, expected the fake driver"))
}

/// Replaces the injected faults of the driver by `function:nth=code,...`. `nth` counts the calls
/// from now, starting at 1. An empty text removes all faults.
///
/// # Panics
/// If the text cannot be parsed.
pub fn fail(orders: &str) {
    let text = CString::new(orders).expect("the faults contain no zero byte");
    // SAFETY: the fake declares the function with this signature.
    let order =
        unsafe { transmute::<NonNull<c_void>, extern "C" fn(*const c_char) -> c_int>(function(c"peerweave_fake_cuda_fail")) };
    assert_eq!(order(text.as_ptr()), 0, "{orders:?} does not have the form function:nth=code,...");
}

/// Blocks a stream, given its handle, until [`unblock`] is called. Null is the default stream of
/// the current context.
///
/// # Panics
/// If there is no such stream.
pub fn block<S>(stream: *mut S) {
    of_stream(c"peerweave_fake_stream_block", stream.cast());
}

/// Lets a blocked stream continue.
///
/// # Panics
/// If there is no such stream.
pub fn unblock<S>(stream: *mut S) {
    of_stream(c"peerweave_fake_stream_unblock", stream.cast());
}

fn of_stream(name: &CStr, stream: *mut c_void) {
    // SAFETY: the fake declares both functions with this signature, and looks the handle up.
    let call = unsafe { transmute::<NonNull<c_void>, extern "C" fn(*mut c_void) -> c_int>(function(name)) };
    assert_eq!(call(stream), 0, "{name:?} failed, expected a stream that exists");
}

/// Puts the current context in a failed state with this code of the driver.
///
/// # Panics
/// If no context is current, or the code is 0.
pub fn fail_context(code: usize) {
    // SAFETY: the fake declares the function with this signature.
    let fail = unsafe { transmute::<NonNull<c_void>, extern "C" fn(usize) -> c_int>(function(c"peerweave_fake_context_fail")) };
    assert_eq!(fail(code), 0, "cannot fail with code {code}: expected a positive code and a current context");
}

/// Emulates a kernel's store to a multicast address, in the current context.
///
/// # Errors
/// Returns the driver's code if the bytes are not inside one writable multicast mapping, or a
/// device has no memory bound there.
pub fn multicast_store(address: u64, bytes: &[u8]) -> Result<(), c_int> {
    type Store = unsafe extern "C" fn(u64, *const c_void, usize) -> c_int;
    // SAFETY: the fake declares the function with this signature.
    let store = unsafe { transmute::<NonNull<c_void>, Store>(function(c"peerweave_fake_multicast_store")) };
    // SAFETY: the bytes are readable; the fake looks the address up.
    match unsafe { store(address, bytes.as_ptr().cast(), bytes.len()) } {
        0 => Ok(()),
        code => Err(code),
    }
}

/// Registers a host function for kernels of this name in images that are loaded later. The host
/// function runs once for each launch, on the thread of the stream.
///
/// # Panics
/// If the name has a zero byte.
pub fn register_kernel(name: &str, kernel: unsafe extern "C" fn(*const Launch)) {
    type Register = extern "C" fn(*const c_char, unsafe extern "C" fn(*const Launch)) -> c_int;
    let name = CString::new(name).expect("the name of a kernel has no zero byte");
    // SAFETY: the fake declares the function with this signature.
    let register = unsafe { transmute::<NonNull<c_void>, Register>(function(c"peerweave_fake_kernel")) };
    assert_eq!(register(name.as_ptr(), kernel), 0, "cannot register the kernel {name:?}");
}
