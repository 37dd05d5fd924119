//! Imports tensors of other frameworks by DLPack. PyTorch, JAX, CuPy and others export a pointer to
//! a struct with a deleter. The consumer calls the deleter when the tensor is no longer needed.
//!
//! Tensors are not copied, and this crate exports no tensors. An imported tensor becomes
//! [`DeviceMemory`] and follows the rules of that type.
//!
//! Invariant: the deleter of a tensor is never called twice. If the tensor is refused, the deleter
//! is called immediately. If the tensor is imported, the deleter is called after every stream that
//! used the memory has completed. If this crate cannot find out whether these streams have
//! completed, the deleter is never called.

mod abi;

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use peerweave_types::{DType, Element};

pub use abi::{
    DLDataType, DLDataTypeCode, DLDevice, DLDeviceType, DLManagedTensor, DLManagedTensorVersioned, DLPACK_FLAG_BITMASK_IS_COPIED,
    DLPACK_FLAG_BITMASK_READ_ONLY, DLPACK_MAJOR_VERSION, DLPackVersion, DLTensor,
};

use crate::cudarc::driver::CudaStream;
use crate::cudarc::driver::sys::CUdeviceptr;
use crate::{Access, DeviceBuffer, DeviceMemory, DriverError, Keep, context};

/// A tensor that another framework exported through DLPack: dense elements of type `T`, in
/// row-major order, on a CUDA device.
///
/// The tensor implements [`DeviceBuffer`], so calls can read the tensor but not write it. If the
/// producer has not marked the tensor read-only, [`into_memory`](Self::into_memory) returns memory
/// that can also be written. This crate calls the producer's deleter after the last handle has been
/// dropped and all work that uses the memory has completed.
///
/// ```no_run
/// use std::ptr::NonNull;
/// use peerweave_driver::dlpack::{DLManagedTensorVersioned, DlpackTensor};
///
/// # fn f(from_capsule: NonNull<DLManagedTensorVersioned>) -> Result<(), peerweave_driver::DriverError> {
/// // SAFETY: the pointer is the content of a `dltensor_versioned` capsule that was renamed to
/// // `used_dltensor_versioned`, so no other code owns the struct. The producer was given the
/// // stream on which the tensor is first used.
/// let tensor = unsafe { DlpackTensor::<f32>::from_versioned(from_capsule) }?;
/// println!("{:?}", tensor.shape());
/// let memory = tensor.into_memory()?; // a buffer of any call
/// # Ok(())
/// # }
/// ```
pub struct DlpackTensor<T> {
    memory: DeviceMemory<T>,
    shape: Vec<usize>,
    is_read_only: bool,
}

impl<T: Element> DlpackTensor<T> {
    /// Imports a tensor from DLPack 0.8 or older: the content of a capsule named `dltensor`.
    ///
    /// # Safety
    /// - `tensor` points to a valid struct that the caller owns. No other code uses the struct or
    ///   calls its deleter, even if this call fails.
    /// - `shape` points to `ndim` numbers. `strides` is null, or also points to `ndim` numbers.
    ///   Until the deleter is called, the memory on the tensor's device contains the elements that
    ///   the struct describes.
    /// - The deleter may be called on any thread. The deleter acquires any lock that it needs, such
    ///   as the lock of an interpreter.
    /// - Work that uses the tensor on a stream is ordered after the producer's work on the memory.
    ///
    /// # Errors
    /// [`DriverError::Dlpack`] for a device other than a CUDA device, an element type other than
    /// `T`, strides that are not dense, or a misaligned address. [`DriverError::NoSuchDevice`] for
    /// a device that this process does not see. If this call fails, the deleter has been called.
    pub unsafe fn from_managed(tensor: NonNull<DLManagedTensor>) -> Result<Self, DriverError> {
        const CALL: &str = "DlpackTensor::from_managed";
        let owned = Owned(tensor);
        // SAFETY: the caller's struct is valid until the deleter is called. Only `owned` calls the
        // deleter.
        let DLManagedTensor { dl_tensor, .. } = unsafe { tensor.read() };
        // SAFETY: the tensor is a copy of the tensor in the struct.
        unsafe { Self::take(CALL, &dl_tensor, false, owned) }
    }

    /// Imports a tensor from DLPack 1.x: the content of a capsule named `dltensor_versioned`.
    ///
    /// # Safety
    /// As for [`from_managed`](Self::from_managed). For a major version other than 1, only the
    /// conditions on the deleter apply.
    ///
    /// # Errors
    /// As for [`from_managed`](Self::from_managed), and [`DriverError::Dlpack`] for a major version
    /// other than 1.
    pub unsafe fn from_versioned(tensor: NonNull<DLManagedTensorVersioned>) -> Result<Self, DriverError> {
        const CALL: &str = "DlpackTensor::from_versioned";
        let owned = Owned(tensor);
        // SAFETY: the version is the first field in every layout. The caller owns the struct.
        let version = unsafe { (&raw const (*tensor.as_ptr()).version).read() };
        if version.major != DLPACK_MAJOR_VERSION {
            let found = format!("{}.{}", version.major, version.minor);
            return Err(refused(CALL, "DLPack version", found, "1.x".into()));
        }
        // SAFETY: `DLManagedTensorVersioned` has the layout of major version 1. The struct is valid
        // until the deleter is called. Only `owned` calls the deleter.
        let DLManagedTensorVersioned { dl_tensor, flags, .. } = unsafe { tensor.read() };
        // SAFETY: the tensor is a copy of the tensor in the struct.
        unsafe { Self::take(CALL, &dl_tensor, flags & DLPACK_FLAG_BITMASK_READ_ONLY != 0, owned) }
    }

    /// Imports the tensor from the DLPack struct that `owned` holds. `tensor` is a copy of the
    /// struct's [`DLTensor`], not a copy of the elements.
    ///
    /// # Safety
    /// As for [`from_managed`](Self::from_managed), for the struct that `owned` holds.
    unsafe fn take<M: Managed>(
        call: &'static str,
        tensor: &DLTensor,
        is_read_only: bool,
        owned: Owned<M>,
    ) -> Result<Self, DriverError> {
        // SAFETY: guaranteed by the caller.
        let (shape, len, address) = unsafe { check::<T>(call, tensor) }?;
        let context = context(tensor.device.device_id.unsigned_abs() as usize)?;
        let give_back = Box::new(move || drop(owned));
        // SAFETY: the memory has `len` elements on that device, and the deleter frees the memory.
        let memory = unsafe { DeviceMemory::adopt(&context, address, len, give_back) };
        Ok(Self { memory, shape, is_read_only })
    }
}

impl<T> DlpackTensor<T> {
    /// Returns the lengths of the tensor's dimensions, in elements. The list is empty for a scalar,
    /// which has one element.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns whether the producer marked the tensor read-only.
    pub fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Returns the tensor's memory, for reading and writing. [`DlpackTensor`] describes when the
    /// deleter is called.
    ///
    /// # Errors
    /// [`DriverError::Dlpack`] for a read-only tensor.
    pub fn into_memory(self) -> Result<DeviceMemory<T>, DriverError> {
        if self.is_read_only {
            let expected = "writable".into();
            return Err(refused("DlpackTensor::into_memory", "access", "read-only".into(), expected));
        }
        Ok(self.memory)
    }
}

impl<T> fmt::Debug for DlpackTensor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let access = if self.is_read_only { ", read-only" } else { "" };
        write!(f, "DlpackTensor({:?}{access}, {:?})", self.shape, self.memory)
    }
}

// SAFETY: [D1] `check` computed the length of `memory` from the shape. `memory` guarantees [D2] and
// [D3], because every method calls the method of `memory`.
unsafe impl<T> DeviceBuffer<T> for DlpackTensor<T> {
    fn len(&self) -> usize {
        self.memory.len()
    }

    fn device(&self) -> usize {
        DeviceBuffer::device(&self.memory)
    }

    fn read<'a>(&'a self, stream: &'a Arc<CudaStream>) -> Result<Access<'a>, DriverError> {
        self.memory.read(stream)
    }

    fn keep(&self) -> Option<(CUdeviceptr, Keep)> {
        self.memory.keep()
    }
}

/// The owner of a DLPack struct. Dropping this value calls the struct's deleter.
struct Owned<M: Managed>(NonNull<M>);

// SAFETY: nothing is shared: `Owned` alone owns the struct. The caller of the import promised that
// the deleter may be called on any thread. The test
// `deleter_is_called_once_after_all_stream_work_ends` would catch a violation.
unsafe impl<M: Managed> Send for Owned<M> {}

impl<M: Managed> Drop for Owned<M> {
    fn drop(&mut self) {
        // SAFETY: the struct is valid until its deleter is called, which happens only here.
        unsafe { M::delete(self.0) }
    }
}

/// A DLPack struct that contains a tensor and a deleter.
trait Managed: 'static {
    /// Calls the deleter, if the struct has a deleter.
    ///
    /// # Safety
    /// `this` is valid until the deleter is called. No code uses the struct after this call.
    unsafe fn delete(this: NonNull<Self>);
}

impl Managed for DLManagedTensor {
    /// # Safety
    /// As for [`Managed::delete`].
    unsafe fn delete(this: NonNull<Self>) {
        // SAFETY: guaranteed by the caller; only the field `deleter` is read.
        if let Some(deleter) = unsafe { (&raw const (*this.as_ptr()).deleter).read() } {
            // SAFETY: the producer set this function for this struct.
            unsafe { deleter(this.as_ptr()) }
        }
    }
}

impl Managed for DLManagedTensorVersioned {
    /// # Safety
    /// As for [`Managed::delete`].
    unsafe fn delete(this: NonNull<Self>) {
        // SAFETY: guaranteed by the caller. Only the field `deleter` is read, which has the same
        // offset in every version.
        if let Some(deleter) = unsafe { (&raw const (*this.as_ptr()).deleter).read() } {
            // SAFETY: the producer set this function for this struct.
            unsafe { deleter(this.as_ptr()) }
        }
    }
}

#[cold]
fn refused(call: &'static str, what: &'static str, found: String, expected: String) -> DriverError {
    DriverError::Dlpack { call, what, found: found.into(), expected: expected.into() }
}

/// Checks that `tensor` is a dense tensor of `T` on a CUDA device. Returns the tensor's shape, the
/// number of elements, and the address of the first element.
///
/// # Safety
/// The tensor's fields `shape` and `strides` are each null, or point to `ndim` numbers.
unsafe fn check<T: Element>(call: &'static str, tensor: &DLTensor) -> Result<(Vec<usize>, usize, CUdeviceptr), DriverError> {
    let wrong = |what, found: String, expected: String| Err(refused(call, what, found, expected));
    if tensor.device.device_type != DLDeviceType::CUDA || tensor.device.device_id < 0 {
        let found = format!("type {}, index {}", tensor.device.device_type.0, tensor.device.device_id);
        return wrong("device", found, format!("type {} (CUDA) and an index of 0 or more", DLDeviceType::CUDA.0));
    }
    const { assert!(T::PARTS == 1, "DLPack has no type for elements that are made of several values") };
    let expected = data_type(T::DTYPE);
    if tensor.dtype != expected {
        let shown = |kind: DLDataType| format!("code {}, {} bits, {} lanes", kind.code.0, kind.bits, kind.lanes);
        return wrong("element type", shown(tensor.dtype), format!("{} ({})", shown(expected), std::any::type_name::<T>()));
    }
    let Ok(ndim) = usize::try_from(tensor.ndim) else {
        return wrong("number of dimensions", tensor.ndim.to_string(), "0 or more".into());
    };
    if ndim > 0 && tensor.shape.is_null() {
        return wrong("shape", "null".into(), format!("{ndim} numbers"));
    }
    // SAFETY: guaranteed by the caller, and `shape` is not null.
    let shape = if ndim == 0 { &[][..] } else { unsafe { std::slice::from_raw_parts(tensor.shape, ndim) } };
    let Ok(lens) = shape.iter().map(|len| usize::try_from(*len)).collect::<Result<Vec<_>, _>>() else {
        return wrong("shape", format!("{shape:?}"), "lengths of 0 or more".into());
    };
    let bytes = lens.iter().try_fold(size_of::<T>(), |bytes, len| bytes.checked_mul(*len));
    let Some(bytes) = bytes.filter(|bytes| isize::try_from(*bytes).is_ok()) else {
        return wrong("shape", format!("{shape:?}"), "at most as many elements as fit in the address space".into());
    };
    if ndim > 0 && !tensor.strides.is_null() && bytes > 0 {
        // SAFETY: guaranteed by the caller, and `strides` is not null.
        let strides = unsafe { std::slice::from_raw_parts(tensor.strides, ndim) };
        let dense = row_major(&lens);
        // The stride of a dimension of length 1 does not matter.
        if strides.iter().zip(&dense).zip(&lens).any(|((found, dense), len)| *len > 1 && found != dense) {
            return wrong("strides", format!("{strides:?}"), format!("{dense:?} (dense in row-major order)"));
        }
    }
    let address = (tensor.data.addr() as u64).checked_add(tensor.byte_offset);
    match address {
        _ if bytes == 0 => Ok((lens, 0, 0)),
        Some(address)
            if !tensor.data.is_null() && address % size_of::<T>() as u64 == 0 && address.checked_add(bytes as u64).is_some() =>
        {
            Ok((lens, bytes / size_of::<T>(), address))
        }
        _ => wrong(
            "address",
            format!("{:#x} + {} bytes", tensor.data.addr(), tensor.byte_offset),
            format!("a non-null address that is a multiple of {element_bytes}", element_bytes = size_of::<T>()),
        ),
    }
}

/// Returns the strides of a dense tensor in row-major order, in elements.
fn row_major(lens: &[usize]) -> Vec<i64> {
    let mut strides = vec![1i64; lens.len()];
    for index in (1..lens.len()).rev() {
        strides[index - 1] = strides[index].saturating_mul(i64::try_from(lens[index]).unwrap_or(i64::MAX));
    }
    strides
}

/// Returns DLPack's description of an element type.
fn data_type(dtype: DType) -> DLDataType {
    let code = match dtype {
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => DLDataTypeCode::INT,
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => DLDataTypeCode::UINT,
        DType::F16 | DType::F32 | DType::F64 => DLDataTypeCode::FLOAT,
        DType::BF16 => DLDataTypeCode::BFLOAT,
        DType::F8E4M3 => DLDataTypeCode::FLOAT8_E4M3FN,
        DType::F8E5M2 => DLDataTypeCode::FLOAT8_E5M2,
        // DLPack has no code for the other element types. No producer uses the code `u8::MAX`.
        _ => DLDataTypeCode(u8::MAX),
    };
    // The cast is exact, because an element has at most eight bytes.
    DLDataType { code, bits: 8 * dtype.size_bytes() as u8, lanes: 1 }
}
