//! Accesses memory of the program by the addresses that the program passes.
//!
//! The callers check sizes. Invariant: a null pointer is refused before it is used.

use core::ffi::{CStr, c_char, c_void};

use super::codes::{Result, invalid};

/// An output pointer that the library writes later, possibly from another thread.
#[derive(Clone, Copy)]
pub(crate) struct Out<T>(pub(crate) *mut T);

// SAFETY: shared is an address of the program's, which promises that it stays valid until the
// call's work is complete, on whichever thread it is done; synchronised by that promise: no other
// code accesses it until then. Would be caught by the tests of non-blocking calls in
// tests/lifecycle.rs.
unsafe impl<T> Send for Out<T> {}

impl<T> Out<T> {
    /// Writes the value to the program's output.
    pub(crate) fn set(&self, value: T) {
        // SAFETY: the callers have checked that the pointer is not null; the program promises that
        // it is writable.
        unsafe { self.0.write(value) }
    }
}

/// Returns an error if a pointer is null.
pub(crate) fn not_null<T>(pointer: *const T, name: &str) -> Result {
    if pointer.cast::<c_void>().is_null() { invalid(format!("{name} argument is NULL")) } else { Ok(()) }
}

/// Returns the text of a C string.
pub(crate) fn text(pointer: *const c_char) -> String {
    // SAFETY: NCCL's documentation requires that a text in a configuration is a C string, if set.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

/// Copies memory of the program.
pub(crate) fn read(address: usize, bytes: usize) -> Vec<u8> {
    let mut copy = vec![0; bytes];
    if bytes > 0 {
        // SAFETY: the program promised this many readable bytes until the operation is complete;
        // device memory is host memory here.
        unsafe { std::ptr::copy(std::ptr::with_exposed_provenance::<u8>(address), copy.as_mut_ptr(), bytes) };
    }
    copy
}

/// Writes to memory of the program.
pub(crate) fn write(address: usize, bytes: &[u8]) {
    if !bytes.is_empty() {
        // SAFETY: the program promised this many writable bytes until the operation is complete;
        // device memory is host memory here.
        unsafe { std::ptr::copy(bytes.as_ptr(), std::ptr::with_exposed_provenance_mut::<u8>(address), bytes.len()) };
    }
}
