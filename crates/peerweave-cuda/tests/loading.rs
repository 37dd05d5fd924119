//! Tests of loading kernels over the fake driver. The fake driver loads an image only if all
//! kernels in the image are registered.
#![cfg(target_os = "linux")]

mod common;

use std::time::Duration;

use peerweave_cuda::{CudaError, GpuOptions};
use peerweave_fakes::{driver, entered};
use peerweave_kernels::bench::{bench_g, bench_p};
use peerweave_test_kernels::{count_up, ring};

use common::{fakes, pes};

const LOAD: &str = "cuModuleLoadDataEx";

fn options() -> GpuOptions {
    GpuOptions::new(1 << 20).deadline(Duration::from_secs(60)).slots(4)
}

/// # Safety
/// No requirements, because the function does not return.
unsafe extern "C" fn never(_: *const driver::Launch) {
    std::process::abort();
}

#[test]
fn kernel_is_loaded_without_other_kernels_of_the_crate() {
    fakes().run(|| {
        pes(1, options(), |gpu| {
            driver::register_kernel("bench_p", never);
            let before = entered(LOAD);
            gpu.load(&bench_p::KERNEL).expect("the module has no other kernel");
            let error = gpu.load(&bench_g::KERNEL).expect_err("the load fails, because the kernel is not registered");
            assert!(matches!(error, CudaError::Driver(_)), "{error}");
            assert_eq!(entered(LOAD) - before, 2);
            gpu.load(&bench_p::KERNEL).expect("the kernel is loaded");
            assert_eq!(entered(LOAD) - before, 2, "a loaded kernel is not loaded again");
        });
    });
}

#[test]
fn launch_after_loading_a_crate_loads_no_further_module() {
    fakes().run(|| {
        pes(2, options(), |gpu| {
            gpu.load_crate(ring::KERNEL.ptx()).expect("all kernels are registered");
            gpu.barrier("loaded").expect("both PEs arrive");
            let before = entered(LOAD);
            // Each kernel of this crate has its own module, so the numbers of loaded functions and
            // modules are equal.
            assert_eq!(entered("cuFuncLoad"), before, "the number of loaded functions differs from the number of loaded modules");
            gpu.barrier("counted").expect("both PEs arrive");
            let (word, signal) =
                (gpu.alloc::<u64>(9).expect("the memory is allocated"), gpu.alloc::<u64>(1).expect("the memory is allocated"));
            let stream = gpu.stream().expect("the stream is created");
            stream.launch(&ring::KERNEL, 1, 1, (word.slice(), signal.slice(), 1)).expect("the kernel is launched");
            stream.launch(&count_up::KERNEL, 1, 9, (word.slice(), 5)).expect("the kernel is launched");
            stream.wait().expect("both kernels complete");
            assert_eq!(entered(LOAD), before);
            gpu.barrier("ended").expect("both PEs arrive");
        });
    });
}

#[test]
fn failure_to_load_one_kernel_of_a_crate_is_an_error() {
    fakes().run(|| {
        pes(1, options(), |gpu| {
            driver::register_kernel("bench_p", never);
            let error =
                gpu.load_crate(bench_p::KERNEL.ptx()).expect_err("the load fails, because the other kernels are not registered");
            assert!(matches!(error, CudaError::Driver(_)), "{error}");
            gpu.load(&bench_p::KERNEL).expect("the load needs no other kernels");
        });
    });
}
