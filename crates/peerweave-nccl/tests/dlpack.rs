//! Tests of tensors of other frameworks, passed by DLPack, as buffers of NCCL's calls. The calls
//! are issued immediately or captured into a graph.
#![cfg(target_os = "linux")]
#![allow(missing_docs, reason = "scenarios are named, not documented")]

mod common;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::*;
use peerweave_nccl::driver::dlpack::{
    DLDataType, DLDataTypeCode, DLDevice, DLDeviceType, DLManagedTensor, DLTensor, DlpackTensor,
};
use peerweave_nccl::{DeviceMemory, ReduceOp};

static DELETED: AtomicUsize = AtomicUsize::new(0);

/// Data of a tensor that the other framework frees when the deleter is called.
struct Producer {
    tensor: DLManagedTensor,
    shape: [i64; 1],
    _memory: DeviceMemory<f32>,
}

/// # Safety
/// `tensor` was created by `handed_over`, and is deleted once.
unsafe extern "C" fn delete(tensor: *mut DLManagedTensor) {
    // SAFETY: the caller guarantees that `manager_ctx` is the box that contains the tensor.
    drop(unsafe { Box::from_raw((*tensor).manager_ctx.cast::<Producer>()) });
    DELETED.fetch_add(1, Ordering::SeqCst);
}

/// Returns a tensor of another framework that shares this memory.
fn handed_over(memory: &DeviceMemory<f32>) -> DlpackTensor<f32> {
    let dl_tensor = DLTensor {
        data: std::ptr::with_exposed_provenance_mut(memory.address() as usize),
        device: DLDevice { device_type: DLDeviceType::CUDA, device_id: memory.context().ordinal() as i32 },
        ndim: 1,
        dtype: DLDataType { code: DLDataTypeCode::FLOAT, bits: 32, lanes: 1 },
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    };
    let tensor = DLManagedTensor { dl_tensor, manager_ctx: std::ptr::null_mut(), deleter: Some(delete) };
    let producer = Box::into_raw(Box::new(Producer { tensor, shape: [memory.len() as i64], _memory: memory.clone() }));
    // SAFETY: the box is valid, and no other code has it. The deleter, which any thread may call,
    // frees the box.
    unsafe {
        (*producer).tensor.manager_ctx = producer.cast();
        (*producer).tensor.dl_tensor.shape = (&raw mut (*producer).shape).cast();
        DlpackTensor::from_managed(NonNull::new_unchecked(&raw mut (*producer).tensor)).expect("the tensor is valid")
    }
}

#[test]
fn collective_accepts_dlpack_tensors_as_buffers() {
    fakes(2).run(|| {
        let all = all(2);
        let memories: Vec<_> = all.iter().map(|(comm, stream)| floats(stream, &[comm.rank().get() as f32 + 1.0; 8])).collect();
        let sends: Vec<_> = memories.iter().map(handed_over).collect();
        let mut sums: Vec<_> = all
            .iter()
            .map(|(_, stream)| handed_over(&floats(stream, &[0.0; 8])).into_memory().expect("the tensor is writable"))
            .collect();
        all[0]
            .0
            .nccl()
            .group(|group| {
                for (((comm, stream), send), sum) in all.iter().zip(&sends).zip(&mut sums) {
                    group.all_reduce(comm, stream, send, sum, ReduceOp::Sum)?;
                }
                Ok(())
            })
            .expect("the call is enqueued");
        for ((comm, stream), sum) in all.iter().zip(&sums) {
            comm.synchronize(stream).expect("the work completes");
            assert_eq!(sum.to_vec(stream).expect("the memory can be read"), [3.0; 8]);
        }
        assert_eq!(DELETED.load(Ordering::SeqCst), 0);
        drop((sends, sums));
        assert!(peerweave_nccl::driver::drain_retired(std::time::Instant::now() + DEADLINE));
        assert_eq!(DELETED.load(Ordering::SeqCst), 4, "the deleter of each tensor was called");
    });
}

#[test]
fn graph_keeps_a_dlpack_tensor_alive() {
    fakes(1).run(|| {
        let (comm, stream) = alone();
        let memory = floats(&stream, &[5.0; 4]);
        let mut result = floats(&stream, &[0.0; 4]);
        let graph = {
            let tensor = handed_over(&memory);
            let mut recv = result.clone();
            captured(&stream, || comm.all_reduce(&stream, &tensor, &mut recv, ReduceOp::Sum))
        };
        peerweave_nccl::driver::drain_retired(std::time::Instant::now() + std::time::Duration::from_millis(50));
        assert_eq!(DELETED.load(Ordering::SeqCst), 0, "the graph keeps the tensor alive");
        graph.launch().expect("the graph is launched");
        assert_eq!(value(&result, &stream), 5.0);
        result.copy_from(&stream, &[0.0; 4]).expect("the stream is idle");
        drop(graph);
        let end = std::time::Instant::now() + DEADLINE;
        while DELETED.load(Ordering::SeqCst) == 0 {
            assert!(std::time::Instant::now() < end, "the deleter of the tensor is called");
            std::thread::yield_now();
        }
    });
}
