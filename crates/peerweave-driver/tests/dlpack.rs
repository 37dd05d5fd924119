//! Tests of importing tensors of another framework by DLPack, over the fake driver: accepted
//! tensors, refused tensors, and calls of the deleter.
#![cfg(target_os = "linux")]

mod common;

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use peerweave_driver::dlpack::{
    DLDataType, DLDataTypeCode, DLDevice, DLDeviceType, DLManagedTensor, DLManagedTensorVersioned, DLPACK_FLAG_BITMASK_READ_ONLY,
    DLPackVersion, DLTensor, DlpackTensor,
};
use peerweave_driver::{DeviceBuffer, DeviceBufferMut, DeviceMemory, DriverError};
use peerweave_fakes::Fakes;
use peerweave_types::{Element, F8E4M3, bf16};

use common::{LONG, SHORT, block, comes, device, unblock};

/// A framework that exports a tensor.
struct Producer {
    /// The memory of the tensor, which the deleter frees.
    _memory: DeviceMemory<u8>,
    shape: Vec<i64>,
    strides: Vec<i64>,
    deleted: Arc<AtomicUsize>,
    /// The exported DLPack struct, which the framework allocates.
    place: Place,
}

enum Place {
    Managed(Box<DLManagedTensor>),
    Versioned(Box<DLManagedTensorVersioned>),
}

const F32: DLDataType = DLDataType { code: DLDataTypeCode::FLOAT, bits: 32, lanes: 1 };

/// A tensor on device 0 that can still be changed before it is exported.
struct Made(Box<Producer>);

impl Made {
    fn new(memory: DeviceMemory<u8>, dtype: DLDataType, shape: &[i64]) -> (Self, Arc<AtomicUsize>) {
        let deleted = Arc::new(AtomicUsize::new(0));
        let tensor = DLTensor {
            data: std::ptr::with_exposed_provenance_mut(memory.address() as usize),
            device: DLDevice { device_type: DLDeviceType::CUDA, device_id: 0 },
            ndim: shape.len() as i32,
            dtype,
            shape: std::ptr::null_mut(),
            strides: std::ptr::null_mut(),
            byte_offset: 0,
        };
        let place = Place::Managed(Box::new(DLManagedTensor {
            dl_tensor: tensor,
            manager_ctx: std::ptr::null_mut(),
            deleter: Some(delete_managed),
        }));
        let producer =
            Producer { _memory: memory, shape: shape.to_vec(), strides: Vec::new(), deleted: Arc::clone(&deleted), place };
        (Self(Box::new(producer)), deleted)
    }

    /// Like [`new`](Self::new), with `values` as elements.
    fn floats(values: &[f32], shape: &[i64]) -> (Self, Arc<AtomicUsize>) {
        let (_, stream) = device();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Self::new(DeviceMemory::from_slice(&stream, &bytes).expect("the device has enough memory"), F32, shape)
    }

    fn tensor(mut self, change: impl FnOnce(&mut DLTensor)) -> Self {
        match &mut self.0.place {
            Place::Managed(managed) => change(&mut managed.dl_tensor),
            Place::Versioned(managed) => change(&mut managed.dl_tensor),
        }
        self
    }

    fn strides(mut self, strides: &[i64]) -> Self {
        self.0.strides = strides.to_vec();
        self
    }

    /// Leaks the producer, and sets the pointers in the DLPack struct to the producer's shape and
    /// strides.
    fn linked(self) -> NonNull<Producer> {
        let producer = NonNull::from(Box::leak(self.0));
        // SAFETY: no other code uses the producer yet.
        let this = unsafe { &mut *producer.as_ptr() };
        let (shape, strides) = (this.shape.as_mut_ptr(), this.strides.as_mut_ptr());
        let strides = if this.strides.is_empty() { std::ptr::null_mut() } else { strides };
        let context: *mut c_void = producer.as_ptr().cast();
        match &mut this.place {
            Place::Managed(managed) => {
                (managed.dl_tensor.shape, managed.dl_tensor.strides, managed.manager_ctx) = (shape, strides, context)
            }
            Place::Versioned(managed) => {
                (managed.dl_tensor.shape, managed.dl_tensor.strides, managed.manager_ctx) = (shape, strides, context)
            }
        }
        producer
    }

    fn managed(self) -> NonNull<DLManagedTensor> {
        // SAFETY: the producer was just leaked, and only the deleter frees it.
        match unsafe { &mut (*self.linked().as_ptr()).place } {
            Place::Managed(managed) => NonNull::from(managed.as_mut()),
            Place::Versioned(_) => panic!("the struct is of DLPack 1.x"),
        }
    }

    fn versioned(mut self, major: u32, flags: u64) -> NonNull<DLManagedTensorVersioned> {
        if let Place::Managed(managed) = &self.0.place {
            self.0.place = Place::Versioned(Box::new(DLManagedTensorVersioned {
                version: DLPackVersion { major, minor: 1 },
                manager_ctx: std::ptr::null_mut(),
                deleter: Some(delete_versioned),
                flags,
                dl_tensor: managed.dl_tensor,
            }));
        }
        // SAFETY: as in `managed`.
        match unsafe { &mut (*self.linked().as_ptr()).place } {
            Place::Versioned(managed) => NonNull::from(managed.as_mut()),
            Place::Managed(_) => panic!("the struct is of DLPack 0.8"),
        }
    }
}

/// Frees a producer and its tensor, and counts the call.
///
/// # Safety
/// This function is called once for each tensor, with the tensor's `manager_ctx`.
unsafe fn delete(context: *mut c_void) {
    // SAFETY: guaranteed by the caller. `linked` leaked the producer.
    let producer = unsafe { Box::from_raw(context.cast::<Producer>()) };
    producer.deleted.fetch_add(1, Ordering::SeqCst);
}

/// The deleter of a tensor of DLPack 0.8.
///
/// # Safety
/// `this` is a struct returned by `managed`, and is deleted once.
unsafe extern "C" fn delete_managed(this: *mut DLManagedTensor) {
    // SAFETY: guaranteed by the caller.
    unsafe { delete((*this).manager_ctx) }
}

/// The deleter of a tensor of DLPack 1.x.
///
/// # Safety
/// `this` is a struct returned by `versioned`, and is deleted once.
unsafe extern "C" fn delete_versioned(this: *mut DLManagedTensorVersioned) {
    // SAFETY: guaranteed by the caller.
    unsafe { delete((*this).manager_ctx) }
}

/// Imports a tensor of DLPack 0.8. Checks that the import fails and that the deleter was called.
/// Returns the error message.
fn refused<T: Element>((made, deleted): (Made, Arc<AtomicUsize>)) -> String {
    // SAFETY: the struct is valid, ours, and its deleter may be called anywhere.
    let error = unsafe { DlpackTensor::<T>::from_managed(made.managed()) }.expect_err("the tensor is refused");
    assert!(matches!(error, DriverError::Dlpack { .. } | DriverError::NoSuchDevice { .. }), "{error}");
    assert_eq!(deleted.load(Ordering::SeqCst), 1, "the deleter was not called: {error}");
    error.to_string()
}

#[test]
fn tensor_of_either_dlpack_version_can_be_used_as_a_buffer() {
    Fakes::new().cuda().run(|| {
        let (_, stream) = device();
        let values: Vec<f32> = (0..6).map(|value| value as f32).collect();
        let (made, deleted) = Made::floats(&values, &[2, 3]);
        // SAFETY: the struct is valid, ours, and its deleter may be called anywhere.
        let tensor = unsafe { DlpackTensor::<f32>::from_managed(made.managed()) }.expect("the tensor is supported");
        assert_eq!((tensor.shape(), tensor.len(), tensor.device(), tensor.is_read_only()), (&[2, 3][..], 6, 0, false));
        assert!(tensor.keep().is_some(), "a graph cannot keep the tensor");
        let mut memory = tensor.into_memory().expect("the tensor is writable");
        assert_eq!(memory.to_vec(&stream).expect("the copy ends"), values);
        memory.copy_from(&stream, &[7.0; 6]).expect("the copy ends");
        let address = memory.address();
        assert_eq!(memory.write(&stream).expect("the stream is live").address(), address);
        assert_eq!(deleted.load(Ordering::SeqCst), 0);
        drop(memory);
        assert!(comes(LONG, || deleted.load(Ordering::SeqCst) == 1));

        let (made, deleted) = Made::floats(&values, &[6]);
        // SAFETY: as above.
        let tensor = unsafe { DlpackTensor::<f32>::from_versioned(made.versioned(1, 0)) }.expect("the tensor is supported");
        assert_eq!(tensor.into_memory().expect("the tensor is writable").to_vec(&stream).expect("the copy ends"), values);
        assert!(comes(LONG, || deleted.load(Ordering::SeqCst) == 1));
    });
}

#[test]
fn deleter_is_called_once_after_all_stream_work_ends() {
    Fakes::new().cuda().run(|| {
        let (_, stream) = device();
        let (made, deleted) = Made::floats(&[1.0; 4], &[4]);
        // SAFETY: the struct is valid, ours, and its deleter may be called anywhere.
        let tensor = unsafe { DlpackTensor::<f32>::from_versioned(made.versioned(1, 0)) }.expect("the tensor is supported");
        let memory = tensor.into_memory().expect("the tensor is writable");
        block(&stream);
        drop(memory.read(&stream).expect("the stream is live"));
        let other = memory.slice(1..3).expect("the range is within the memory");
        drop(memory);
        drop(other);
        std::thread::sleep(SHORT);
        assert_eq!(deleted.load(Ordering::SeqCst), 0, "the deleter was called while a stream uses the memory");
        unblock(&stream);
        assert!(comes(LONG, || deleted.load(Ordering::SeqCst) == 1));
        std::thread::sleep(SHORT);
        assert_eq!(deleted.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn read_only_tensor_can_be_read_but_not_written() {
    Fakes::new().cuda().run(|| {
        let (_, stream) = device();
        let (made, deleted) = Made::floats(&[1.0; 4], &[4]);
        let pointer = made.versioned(1, DLPACK_FLAG_BITMASK_READ_ONLY);
        // SAFETY: the struct is valid, ours, and its deleter may be called anywhere.
        let tensor = unsafe { DlpackTensor::<f32>::from_versioned(pointer) }.expect("the tensor is supported");
        assert!(tensor.is_read_only() && tensor.read(&stream).is_ok());
        assert_eq!(
            tensor.into_memory().expect_err("the tensor is read-only").to_string(),
            "DlpackTensor::into_memory: the tensor has access read-only, expected writable"
        );
        assert!(comes(LONG, || deleted.load(Ordering::SeqCst) == 1));
    });
}

#[test]
fn unsupported_tensor_is_refused_and_the_deleter_is_called() {
    Fakes::new().cuda().run(|| {
        let made = |shape: &[i64]| Made::floats(&[1.0; 12], shape);
        let with = |(made, deleted): (Made, Arc<AtomicUsize>), change: fn(&mut DLTensor)| (made.tensor(change), deleted);
        let call = "DlpackTensor::from_managed: the tensor has";
        let host = with(made(&[12]), |tensor| tensor.device.device_type = DLDeviceType::CPU);
        assert_eq!(
            refused::<f32>(host),
            format!("{call} device type 1, index 0, expected type 2 (CUDA) and an index of 0 or more")
        );
        let managed = with(made(&[12]), |tensor| tensor.device.device_type = DLDeviceType::CUDA_MANAGED);
        assert!(refused::<f32>(managed).contains("device type 13"));
        let far = with(made(&[12]), |tensor| tensor.device.device_id = 77);
        assert!(refused::<f32>(far).contains("device 77 does not exist"));
        assert_eq!(
            refused::<i32>(made(&[12])),
            format!("{call} element type code 2, 32 bits, 1 lanes, expected code 0, 32 bits, 1 lanes (i32)")
        );
        let vectors = with(made(&[3]), |tensor| tensor.dtype.lanes = 4);
        assert!(refused::<f32>(vectors).contains("4 lanes"));
        let (transposed, deleted) = made(&[3, 4]);
        assert_eq!(
            refused::<f32>((transposed.strides(&[1, 3]), deleted)),
            format!("{call} strides [1, 3], expected [4, 1] (dense in row-major order)")
        );
        let (backward, deleted) = made(&[12]);
        assert!(refused::<f32>((backward.strides(&[-1]), deleted)).contains("strides [-1]"));
        assert_eq!(refused::<f32>(made(&[3, -4])), format!("{call} shape [3, -4], expected lengths of 0 or more"));
        assert!(refused::<f32>(made(&[i64::MAX, 4])).contains("as many elements as fit in the address space"));
        let odd = with(made(&[2]), |tensor| tensor.byte_offset = 2);
        assert!(refused::<f32>(odd).contains("+ 2 bytes, expected a non-null address that is a multiple of 4"));
        let null = with(made(&[2]), |tensor| tensor.data = std::ptr::null_mut());
        assert!(refused::<f32>(null).contains("address 0x0"));
        let negative = with(made(&[2]), |tensor| tensor.ndim = -1);
        assert!(refused::<f32>(negative).contains("number of dimensions -1, expected 0 or more"));
    });
}

#[test]
fn unknown_dlpack_version_is_refused_and_deleter_is_called() {
    Fakes::new().cuda().run(|| {
        let (made, deleted) = Made::floats(&[1.0; 4], &[4]);
        // SAFETY: the struct is valid, ours, and its deleter may be called anywhere.
        let error = unsafe { DlpackTensor::<f32>::from_versioned(made.versioned(2, 0)) }.expect_err("major version 2 is refused");
        assert_eq!(error.to_string(), "DlpackTensor::from_versioned: the tensor has DLPack version 2.1, expected 1.x");
        assert_eq!(deleted.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn tensors_with_valid_shapes_strides_and_types_are_imported() {
    Fakes::new().cuda().run(|| {
        let (_, stream) = device();
        // The stride of a dimension of length 1 may be any number. Null strides mean row-major
        // order. A scalar has one element. An offset moves the first element.
        let taken = |(made, _): (Made, Arc<AtomicUsize>)| {
            // SAFETY: the struct is valid, ours, and its deleter may be called anywhere.
            unsafe { DlpackTensor::<f32>::from_managed(made.managed()) }
                .expect("the tensor is supported")
                .into_memory()
                .expect("the memory is writable")
        };
        let values = [0.0, 1.0, 2.0, 3.0];
        let (made, deleted) = Made::floats(&values, &[2, 1, 2]);
        assert_eq!(taken((made.strides(&[2, 99, 1]), deleted)).to_vec(&stream).expect("the copy ends"), values);
        assert_eq!(taken(Made::floats(&values, &[])).to_vec(&stream).expect("the copy ends"), values[..1]);
        let (made, deleted) = Made::floats(&values, &[2]);
        let offset = taken((made.tensor(|tensor| tensor.byte_offset = 8), deleted));
        assert_eq!(offset.to_vec(&stream).expect("the copy ends"), values[2..]);
        let (made, deleted) = Made::floats(&values, &[3, 0]);
        let empty = taken((made.strides(&[5, 5]).tensor(|tensor| tensor.data = std::ptr::null_mut()), deleted));
        assert!(empty.is_empty());

        fn fits<T: Element>(code: u8, bits: u8) {
            let (_, stream) = device();
            let memory = DeviceMemory::from_slice(&stream, &[0u8; 64]).expect("the device has enough memory");
            let (made, _) =
                Made::new(memory, DLDataType { code: DLDataTypeCode(code), bits, lanes: 1 }, &[64 / size_of::<T>() as i64]);
            // SAFETY: the struct is valid, ours, and its deleter may be called anywhere.
            let tensor = unsafe { DlpackTensor::<T>::from_managed(made.managed()) }.expect("the element type matches");
            assert_eq!(tensor.len(), 64 / size_of::<T>());
        }
        fits::<u8>(1, 8);
        fits::<i64>(0, 64);
        fits::<bf16>(4, 16);
        fits::<F8E4M3>(10, 8);
        fits::<f64>(2, 64);
    });
}
