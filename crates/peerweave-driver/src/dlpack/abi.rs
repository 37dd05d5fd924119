//! DLPack's structs with the layout of C: version 0.8 (`DLManagedTensor`) and 1.x
//! (`DLManagedTensorVersioned`). The structs are plain data and own nothing.

use std::ffi::c_void;

/// The major version of DLPack that defines the layout of [`DLManagedTensorVersioned`].
pub const DLPACK_MAJOR_VERSION: u32 = 1;
/// Bit of [`DLManagedTensorVersioned::flags`]: the tensor is read-only.
pub const DLPACK_FLAG_BITMASK_READ_ONLY: u64 = 1;
/// Bit of [`DLManagedTensorVersioned::flags`]: the producer has copied the tensor for the consumer.
pub const DLPACK_FLAG_BITMASK_IS_COPIED: u64 = 1 << 1;

/// The kind of a [`DLDevice`]. This type is not an enumeration, because a producer may send any
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct DLDeviceType(pub i32);

impl DLDeviceType {
    /// Host memory.
    pub const CPU: Self = Self(1);
    /// Memory on a CUDA device.
    pub const CUDA: Self = Self(2);
    /// Pinned host memory.
    pub const CUDA_HOST: Self = Self(3);
    /// CUDA managed memory.
    pub const CUDA_MANAGED: Self = Self(13);
}

/// The device that holds a tensor's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DLDevice {
    /// The kind of device.
    pub device_type: DLDeviceType,
    /// Index of the device among the devices of this type. For CUDA, the device ordinal.
    pub device_id: i32,
}

/// The class of a [`DLDataType`], such as integers or floats. This type is not an enumeration,
/// because a producer may send any number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct DLDataTypeCode(pub u8);

impl DLDataTypeCode {
    /// Signed integers.
    pub const INT: Self = Self(0);
    /// Unsigned integers.
    pub const UINT: Self = Self(1);
    /// IEEE 754 floats.
    pub const FLOAT: Self = Self(2);
    /// bfloat16.
    pub const BFLOAT: Self = Self(4);
    /// Complex numbers.
    pub const COMPLEX: Self = Self(5);
    /// Booleans.
    pub const BOOL: Self = Self(6);
    /// 8-bit floats with 4 exponent bits, with NaN but without infinities. Since DLPack 1.1.
    pub const FLOAT8_E4M3FN: Self = Self(10);
    /// 8-bit floats with 5 exponent bits, with NaN and infinities. Since DLPack 1.1.
    pub const FLOAT8_E5M2: Self = Self(12);
}

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DLDataType {
    /// Class of the element type.
    pub code: DLDataTypeCode,
    /// Size of one number (lane), in bits.
    pub bits: u8,
    /// Count of numbers in one element: 1, except for vector types.
    pub lanes: u16,
}

/// The version of a [`DLManagedTensorVersioned`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DLPackVersion {
    /// The major version. The layout of the struct depends on the major version.
    pub major: u32,
    /// The minor version, which increases when types or devices are added.
    pub minor: u32,
}

/// A tensor. This struct does not own the tensor's memory.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DLTensor {
    /// Base address in the memory of `device`. The first element is at this address plus
    /// `byte_offset`. Null for a tensor without elements.
    pub data: *mut c_void,
    /// The device that holds the memory.
    pub device: DLDevice,
    /// Number of dimensions.
    pub ndim: i32,
    /// Type of the elements.
    pub dtype: DLDataType,
    /// Address of `ndim` lengths, one for each dimension, in elements.
    pub shape: *mut i64,
    /// Address of `ndim` strides, one for each dimension, in elements. Null for a dense tensor in
    /// row-major order.
    pub strides: *mut i64,
    /// Offset from `data` to the first element, in bytes.
    pub byte_offset: u64,
}

/// A tensor and its deleter, in the layout of DLPack 0.8 and older versions.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DLManagedTensor {
    /// The tensor.
    pub dl_tensor: DLTensor,
    /// Data that belongs to the producer.
    pub manager_ctx: *mut c_void,
    /// Function that the consumer calls once, with this struct, when the tensor is no longer
    /// needed. The function also frees the struct. Null if nothing must be freed.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

/// A tensor and its deleter, in the layout that DLPack has used since 1.0.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DLManagedTensorVersioned {
    /// Version of the layout. If the major version is not [`DLPACK_MAJOR_VERSION`], a consumer may
    /// use only `deleter`.
    pub version: DLPackVersion,
    /// Data that belongs to the producer.
    pub manager_ctx: *mut c_void,
    /// Function that the consumer calls once when the tensor is no longer needed, like
    /// [`DLManagedTensor::deleter`].
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    /// Flags, such as [`DLPACK_FLAG_BITMASK_READ_ONLY`].
    pub flags: u64,
    /// The tensor.
    pub dl_tensor: DLTensor,
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn struct_layouts_equal_the_layouts_of_the_dlpack_header() {
        assert_eq!((size_of::<DLDevice>(), size_of::<DLDataType>(), size_of::<DLTensor>()), (8, 4, 48));
        assert_eq!((offset_of!(DLTensor, device), offset_of!(DLTensor, ndim), offset_of!(DLTensor, dtype)), (8, 16, 20));
        assert_eq!((offset_of!(DLTensor, shape), offset_of!(DLTensor, strides), offset_of!(DLTensor, byte_offset)), (24, 32, 40));
        assert_eq!((size_of::<DLManagedTensor>(), offset_of!(DLManagedTensor, deleter)), (64, 56));
        assert_eq!((size_of::<DLManagedTensorVersioned>(), offset_of!(DLManagedTensorVersioned, manager_ctx)), (80, 8));
        assert_eq!((offset_of!(DLManagedTensorVersioned, deleter), offset_of!(DLManagedTensorVersioned, flags)), (16, 24));
        assert_eq!(offset_of!(DLManagedTensorVersioned, dl_tensor), 32);
    }
}
