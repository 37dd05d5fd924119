//! Calls that make a stream wait for words on this PE. The words are integers of 32 or 64 bits.
//!
//! A wait on a stream has no deadline. If the expected value never arrives, the stream stays
//! blocked. A wait of the host for that stream times out.

use std::ffi::c_int;
use std::sync::Arc;

use peerweave_driver::cudarc::driver::sys::CUstream;
use peerweave_driver::{CudaStream, DeviceBuffer};
use peerweave_types::{AtomicInteger, Compare};

#[cfg(doc)]
use crate::MisuseKind;
use crate::context::Context;
use crate::error::NvshmemError;
use crate::ops::enqueue::{Enqueue, check_len, pointer};
use crate::ops::rma::one_at_least;
use crate::sys::CType;
use crate::{SymmetricBuffer, sys};
use peerweave_types::nvshmem::compare;

impl Context {
    /// Makes `stream` wait until the first element of this PE's `word` satisfies the comparison
    /// `condition` with `value`.
    ///
    /// # Errors
    /// Returns the same errors as [`signal`](Self::signal).
    pub fn wait_until<T: AtomicInteger>(
        &self,
        word: &SymmetricBuffer<T>,
        condition: Compare,
        value: T,
        stream: &Arc<CudaStream>,
    ) -> Result<(), NvshmemError> {
        const CALL: &str = "nvshmemx_wait_until_on_stream";
        let mut enqueue = Enqueue::begin(&self.comm, CALL, stream)?;
        one_at_least(CALL, "the word", word)?;
        let address = enqueue.symmetric("the word", word)?;
        let stream = stream.cu_stream();
        enqueue.call(|_, families| {
            let function = families.wait_until_on_stream(c_type::<T>())?;
            macro_rules! call {
                ($bits:ty) => {{
                    // SAFETY: the address is that of the function for an integer of this width.
                    // Signed and unsigned integers are passed in the same manner.
                    let function = unsafe {
                        std::mem::transmute::<sys::ByValue, unsafe extern "C" fn(*mut $bits, c_int, $bits, CUstream)>(function)
                    };
                    // SAFETY: the word is inside the symmetric heap, and its memory is kept alive.
                    unsafe { function(pointer(address), compare(condition), value.to_word() as $bits, stream) }
                }};
            }
            if size_of::<T>() == 4 {
                call!(u32)
            } else {
                call!(u64)
            }
            Ok(())
        })
    }

    /// Makes `stream` wait until every element of this PE's `words` satisfies the comparison
    /// `condition` with `value`.
    ///
    /// # Errors
    /// Returns the same errors as [`signal`](Self::signal).
    pub fn wait_until_all<T: AtomicInteger>(
        &self,
        words: &SymmetricBuffer<T>,
        condition: Compare,
        value: T,
        stream: &Arc<CudaStream>,
    ) -> Result<(), NvshmemError> {
        const CALL: &str = "nvshmemx_wait_until_all_on_stream";
        let mut enqueue = Enqueue::begin(&self.comm, CALL, stream)?;
        let address = enqueue.symmetric("the words", words)?;
        if words.is_empty() {
            return Ok(());
        }
        let (count, stream) = (words.len(), stream.cu_stream());
        enqueue.call(|_, families| {
            let function = families.wait_until_all_on_stream(c_type::<T>())?;
            macro_rules! call {
                ($bits:ty) => {{
                    type Function = unsafe extern "C" fn(*mut $bits, usize, *const c_int, c_int, $bits, CUstream);
                    // SAFETY: as in `wait_until`.
                    let function = unsafe { std::mem::transmute::<sys::ByValue, Function>(function) };
                    // SAFETY: the words are inside the symmetric heap, and their memory is kept
                    // alive. A null mask selects all words.
                    unsafe {
                        function(pointer(address), count, std::ptr::null(), compare(condition), value.to_word() as $bits, stream)
                    }
                }};
            }
            if size_of::<T>() == 4 {
                call!(u32)
            } else {
                call!(u64)
            }
            Ok(())
        })
    }

    /// Makes `stream` wait until every element of this PE's `words` satisfies the comparison
    /// `condition` with the element of `values` at the same index. `values` is memory on this
    /// device, and must not change until the stream has completed the wait.
    ///
    /// # Errors
    /// [`MisuseKind::Length`] unless `words` and `values` have the same number of elements. Other
    /// errors are the same as for [`signal`](Self::signal).
    pub fn wait_until_each<T: AtomicInteger>(
        &self,
        words: &SymmetricBuffer<T>,
        condition: Compare,
        values: &impl DeviceBuffer<T>,
        stream: &Arc<CudaStream>,
    ) -> Result<(), NvshmemError> {
        const CALL: &str = "nvshmemx_wait_until_all_vector_on_stream";
        let mut enqueue = Enqueue::begin(&self.comm, CALL, stream)?;
        check_len(CALL, "the values", values.len(), words.len())?;
        let address = enqueue.symmetric("the words", words)?;
        if words.is_empty() {
            return Ok(());
        }
        let access = enqueue.source("the values", values)?;
        let (count, values) = (words.len(), access.address());
        enqueue.call(|_, families| {
            let function = families.wait_until_all_vector_on_stream(c_type::<T>())?;
            // SAFETY: the words are inside the symmetric heap and the values are inside their
            // buffer. Both are kept alive. A null mask selects all words.
            unsafe {
                function(pointer(address), count, std::ptr::null(), compare(condition), pointer(values), stream.cu_stream())
            };
            Ok(())
        })
    }
}

/// Returns the C type of an integer that NVSHMEM can wait for.
fn c_type<T: AtomicInteger>() -> CType {
    use peerweave_types::DType;
    match T::DTYPE {
        DType::I32 => CType::Int32,
        DType::U32 => CType::Uint32,
        DType::I64 => CType::Int64,
        _ => CType::Uint64,
    }
}
