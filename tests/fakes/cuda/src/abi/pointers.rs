//! The pointers that a caller passes: pointers to which a function writes, and pointers from which
//! a function reads.

use super::codes::{Code, Result};

/// A pointer to which a function of the driver writes.
///
/// # Invariants
/// The pointer is null, or its C caller guarantees, by the driver's interface, that it is valid for
/// one `T`.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes the value; returns an error if the pointer is null.
    pub(crate) fn set(&self, value: T) -> Result {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, so by the invariant valid for a write of one T.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes the value unless the pointer is null.
    pub(crate) fn set_if_wanted(&self, value: T) {
        if !self.is_null() {
            let _ = self.set(value);
        }
    }

    /// Reads the caller's value of an in-out argument.
    pub(crate) fn get(&self) -> Result<T>
    where
        T: Copy,
    {
        In(self.0.cast_const()).get()
    }

    /// Returns whether the caller passed null.
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Returns an error if the pointer is null. A function calls this before it does any work.
    pub(crate) fn required(&self) -> Result {
        if self.is_null() { Err(Code::INVALID_VALUE) } else { Ok(()) }
    }

    /// Writes values up to the capacity of the caller's array.
    pub(crate) fn set_array(&self, capacity: usize, values: &[T]) -> Result
    where
        T: Copy,
    {
        self.required()?;
        for (index, value) in values.iter().take(capacity).enumerate() {
            // SAFETY: the C caller gave an array of `capacity` elements, and `index` is below that.
            unsafe { self.0.add(index).write_unaligned(*value) };
        }
        Ok(())
    }

    /// Returns a null output, for a value that the caller does not request.
    pub(crate) fn nowhere() -> Out<T> {
        Out(core::ptr::null_mut())
    }

    /// Creates an output from an element of a caller's array of outputs.
    pub(crate) fn from_array_element(pointer: *mut T) -> Out<T> {
        Out(pointer)
    }

    /// Returns the same address, for functions whose output type depends on another argument.
    pub(crate) fn cast<U>(&self) -> Out<U> {
        Out(self.0.cast())
    }
}

/// A pointer from which a function of the driver reads.
///
/// # Invariants
/// The pointer is null, or its C caller guarantees, by the driver's interface, that it is valid for
/// the stated number of elements.
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// Reads the value; returns an error if the pointer is null.
    pub(crate) fn get(&self) -> Result<T> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, so by the invariant valid for a read of one T.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Reads `count` values.
    pub(crate) fn array(&self, count: usize) -> Result<Vec<T>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: by the invariant the caller's array has `count` elements.
        Ok((0..count).map(|index| unsafe { self.0.add(index).read_unaligned() }).collect())
    }

    /// Returns the pointer as a number, for arguments that can be a pointer or a number.
    pub(crate) fn address(&self) -> usize {
        self.0 as usize
    }

    /// Creates an input from a pointer inside another argument.
    pub(crate) fn from_address(pointer: *const T) -> In<T> {
        In(pointer)
    }

    /// Returns the same address, for functions whose type of input depends on another argument.
    pub(crate) fn cast<U>(&self) -> In<U> {
        In(self.0.cast())
    }
}

impl In<core::ffi::c_char> {
    /// Returns the text at the pointer.
    pub(crate) fn text(&self) -> Result<String> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: by the driver's interface a `const char*` argument is a NUL-terminated string.
        Ok(unsafe { core::ffi::CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}
