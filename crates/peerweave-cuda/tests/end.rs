//! Tests of the end of a GPU. After the end, the GPU holds no handle of the rendezvous, so the PE
//! can leave the job.
#![cfg(target_os = "linux")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use peerweave_bootstrap::Rendezvous;
use peerweave_cuda::{CudaError, Gpu, GpuOptions};
use peerweave_fakes::entered;
use peerweave_test_kernels::{count_up, ring, wait_for_ever};
use peerweave_types::FailureKind;

use common::{fakes, pes_that_may_fail};

/// Number of handles of the rendezvous after the end of the GPU: the handle of the test's harness
/// and the handle of the test.
const HANDLES: usize = 2;

fn options() -> GpuOptions {
    GpuOptions::new(1 << 20).deadline(Duration::from_secs(60)).slots(4)
}

/// Runs work on the GPU, and drops memory that other threads free later.
fn work(gpu: &Gpu) {
    let (word, signal) =
        (gpu.alloc::<u64>(1).expect("the memory is allocated"), gpu.alloc::<u64>(1).expect("the memory is allocated"));
    let (kept, stream) = (gpu.alloc::<u64>(1000).expect("the memory is allocated"), gpu.stream().expect("the stream is created"));
    stream.launch(&ring::KERNEL, 1, 1, (word.slice(), signal.slice(), 1)).expect("the kernel is launched");
    stream.launch(&count_up::KERNEL, 2, 64, (kept.slice(), 5)).expect("the kernel is launched");
    stream.wait().expect("the kernels complete");
    gpu.barrier("worked").expect("all PEs arrive");
    gpu.free(word).expect("the memory is freed");
    // The other allocations are dropped without being freed, so they stay allocated.
}

/// Runs work on a GPU and calls `end`. Checks that the GPU then holds no handle of the rendezvous.
fn is_free_right_after(end: impl Fn(Gpu) + Copy + Send + Sync + 'static) {
    for _ in 0..10 {
        pes_that_may_fail(2, options(), move |gpu| {
            let gpu = gpu.expect("the GPU is set up");
            let rendezvous: Arc<Rendezvous> = Arc::clone(gpu.rendezvous());
            work(&gpu);
            end(gpu);
            assert_eq!(Arc::strong_count(&rendezvous), HANDLES);
        });
    }
}

#[test]
fn ending_a_gpu_releases_every_reference_to_the_rendezvous() {
    fakes().run(|| is_free_right_after(|gpu| gpu.end().expect("the GPU ends without an error")));
}

#[test]
fn ending_a_gpu_unloads_every_loaded_module() {
    fakes().run(|| {
        for _ in 0..20 {
            pes_that_may_fail(1, options(), |gpu| {
                let gpu = gpu.expect("the GPU is set up");
                let (loads, unloads) = (entered("cuModuleLoadDataEx"), entered("cuModuleUnload"));
                gpu.load_crate(ring::KERNEL.ptx()).expect("all kernels are registered");
                let loaded = entered("cuModuleLoadDataEx") - loads;
                gpu.end().expect("the GPU ends without an error");
                assert_eq!(entered("cuModuleUnload") - unloads, loaded);
            });
        }
    });
}

#[test]
fn dropping_a_gpu_releases_every_reference_to_the_rendezvous() {
    fakes().run(|| is_free_right_after(drop));
}

#[test]
fn dropping_a_gpu_while_a_kernel_runs_releases_the_rendezvous() {
    fakes().run(|| {
        let short = options().deadline(Duration::from_secs(3));
        pes_that_may_fail(2, short, |gpu| {
            let gpu = gpu.expect("the GPU is set up");
            let rendezvous: Arc<Rendezvous> = Arc::clone(gpu.rendezvous());
            let (signal, stream) =
                (gpu.alloc::<u64>(1).expect("the memory is allocated"), gpu.stream().expect("the stream is created"));
            // The kernel ends at its deadline, after the signal, the stream and the GPU have been
            // dropped.
            stream.launch(&wait_for_ever::KERNEL, 1, 1, (signal.slice(), 1 - gpu.pe().get())).expect("the kernel is launched");
            drop((signal, stream));
            drop(gpu);
            assert_eq!(Arc::strong_count(&rendezvous), HANDLES);
        });
    });
}

#[test]
fn ending_a_gpu_fails_while_clones_memory_or_streams_exist() {
    fakes().run(|| {
        pes_that_may_fail(1, options(), |gpu| {
            let gpu = gpu.expect("the GPU is set up");
            let (memory, stream) =
                (gpu.alloc::<u64>(1).expect("the memory is allocated"), gpu.stream().expect("the stream is created"));
            let error = gpu.clone().end().expect_err("the end fails, because a stream, memory and a clone exist");
            let CudaError::Misuse { call: "Gpu::end", value, .. } = &error else { panic!("{error}, expected a misuse") };
            assert_eq!(value, "in use by 3 other handles");
            drop((memory, stream));
            gpu.end().expect("no other handle exists");
        });
    });
}

#[test]
fn ending_a_gpu_returns_the_error_of_a_failed_kernel() {
    fakes().run(|| {
        let short = options().deadline(Duration::from_secs(3));
        pes_that_may_fail(2, short, |gpu| {
            let gpu = gpu.expect("the GPU is set up");
            let rendezvous: Arc<Rendezvous> = Arc::clone(gpu.rendezvous());
            let (signal, stream) =
                (gpu.alloc::<u64>(1).expect("the memory is allocated"), gpu.stream().expect("the stream is created"));
            let other = 1 - gpu.pe().get();
            stream.launch(&wait_for_ever::KERNEL, 1, 1, (signal.slice(), other)).expect("the kernel is launched");
            stream.wait().expect_err("the wait fails, because no PE signals");
            drop((signal, stream));
            let error = gpu.end().expect_err("the call fails, because a kernel has failed");
            let CudaError::Kernel { call: "Gpu::end", failure } = &error else {
                panic!("{error}, expected the failure of a kernel")
            };
            assert_eq!(failure.kind, Some(FailureKind::Deadline), "{error}");
            assert_eq!(Arc::strong_count(&rendezvous), HANDLES);
        });
    });
}
