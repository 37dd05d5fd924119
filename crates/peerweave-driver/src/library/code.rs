//! Return codes of CUDA's driver as numbers.
//!
//! cudarc's enumeration is not used, because a newer driver returns other values, and an unknown
//! value in an enumeration is undefined behaviour. Invariant: every 32-bit value is a valid value
//! of this type.

use std::fmt;

use crate::cudarc::driver::sys::CUresult;

/// A result code that a function of CUDA's driver returned (`CUresult`). This type can hold any
/// number.
///
/// The constants are the codes that this project uses; the driver has more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
#[must_use = "this result code may be an error"]
pub struct CudaCode(pub u32);

macro_rules! codes {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        impl CudaCode {
            $(
                #[doc = $text]
                pub const $name: Self = Self($number);
            )*
        }

        /// Name and value of each constant. A test compares this list with cudarc's codes.
        #[cfg(test)]
        const ALL: &[(&str, CudaCode)] = &[$((stringify!($name), CudaCode::$name)),*];
    };
}

codes! {
    SUCCESS = 0, "No error.";
    INVALID_VALUE = 1, "`CUDA_ERROR_INVALID_VALUE`: an argument is invalid.";
    OUT_OF_MEMORY = 2, "`CUDA_ERROR_OUT_OF_MEMORY`: the driver cannot allocate enough memory.";
    DEINITIALIZED = 4, "`CUDA_ERROR_DEINITIALIZED`: the driver has shut down because the process is ending.";
    INVALID_DEVICE = 101, "`CUDA_ERROR_INVALID_DEVICE`: the device does not exist.";
    PEER_ACCESS_UNSUPPORTED = 217, "`CUDA_ERROR_PEER_ACCESS_UNSUPPORTED`: the devices do not support peer access.";
    ILLEGAL_STATE = 401, "`CUDA_ERROR_ILLEGAL_STATE`: the call is not allowed in the current state of a resource.";
    NOT_FOUND = 500, "`CUDA_ERROR_NOT_FOUND`: a name does not exist.";
    NOT_READY = 600, "`CUDA_ERROR_NOT_READY`: the work is not complete yet.";
    PEER_ACCESS_ALREADY_ENABLED = 704, "`CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED`: peer access is already enabled.";
    NOT_PERMITTED = 800, "`CUDA_ERROR_NOT_PERMITTED`: the operation is not permitted.";
    NOT_SUPPORTED = 801, "`CUDA_ERROR_NOT_SUPPORTED`: this system does not support the operation.";
    STREAM_CAPTURE_INVALIDATED = 901, "`CUDA_ERROR_STREAM_CAPTURE_INVALIDATED`: an earlier error has invalidated the capture.";
    STREAM_CAPTURE_IMPLICIT = 906, "`CUDA_ERROR_STREAM_CAPTURE_IMPLICIT`: the call would order the default stream with a stream that is being captured.";
    CAPTURED_EVENT = 907, "`CUDA_ERROR_CAPTURED_EVENT`: the event was last recorded in a stream that is being captured.";
}

impl From<CUresult> for CudaCode {
    fn from(code: CUresult) -> Self {
        Self(code as u32)
    }
}

/// Formats the code as the name that the driver has for the code. If the driver has no such name,
/// formats the code as a number.
impl fmt::Display for CudaCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::library::describe(*self).0)
    }
}

impl fmt::Debug for CudaCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaCode({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_codes_equal_the_codes_of_the_cuda_header() {
        let header = [
            CUresult::CUDA_SUCCESS,
            CUresult::CUDA_ERROR_INVALID_VALUE,
            CUresult::CUDA_ERROR_OUT_OF_MEMORY,
            CUresult::CUDA_ERROR_DEINITIALIZED,
            CUresult::CUDA_ERROR_INVALID_DEVICE,
            CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
            CUresult::CUDA_ERROR_ILLEGAL_STATE,
            CUresult::CUDA_ERROR_NOT_FOUND,
            CUresult::CUDA_ERROR_NOT_READY,
            CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED,
            CUresult::CUDA_ERROR_NOT_PERMITTED,
            CUresult::CUDA_ERROR_NOT_SUPPORTED,
            CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
            CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
            CUresult::CUDA_ERROR_CAPTURED_EVENT,
        ];
        assert_eq!(ALL.len(), header.len());
        for ((name, code), of_cudarc) in ALL.iter().zip(header) {
            assert_eq!(CudaCode::from(of_cudarc), *code);
            assert!(
                format!("{of_cudarc:?}").ends_with(name),
                "cudarc's name of the code is {of_cudarc:?}, expected a name that ends in {name}"
            );
        }
    }
}
